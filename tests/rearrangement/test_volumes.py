"""Volumes: built from items, from a matrix, or by hand and then checked."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rearrangement_oracles import dense

import solvers
from solvers import Volumes
from solvers.rearrangement.volumes import as_volumes

items = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4), st.integers(0, 9)), max_size=30)


@given(items=items)
def test_from_items(items: list[tuple[int, int, int]]) -> None:
    expected = [[0] * 5 for _ in range(5)]
    for group, home, volume in items:
        expected[group][home] += volume
    columns = [[item[k] for item in items] for k in range(3)]
    volumes = solvers.group_volumes(*columns, 5)
    assert dense(volumes) == expected
    assert volumes.total == sum(map(sum, expected))
    assert dense(as_volumes(expected)) == expected
    assert as_volumes(volumes) is volumes
    for array in (volumes.offsets, volumes.ranks, volumes.amounts):
        assert not array.flags.writeable
    assert volumes == dataclasses.replace(volumes, amounts=volumes.amounts.copy())
    assert volumes != "volumes"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([0, 5], [0, 0], [1, 1], 5), r"group_of_item\[1\] must be within 0..4, got 5"),
        (([0, 1], [0, -1], [1, 1], 5), r"home_rank\[1\] must be within 0..4, got -1"),
        (([0, 1], [0, 9], [1, 1], 5), r"home_rank\[1\] must be within 0..4, got 9"),
        (([0, 1], [0], [1, 1], 5), "home_rank must have 2 entries, one an item, got 1"),
        (([0, 1], [0, 1], [1], 5), "volume must have 2 entries, one an item, got 1"),
        (([0, 1], [0, 1], [1, -2], 5), r"volume\[1\] must be >= 0, got -2"),
        (([0, 1], [0, 1], [2**62, 2**62], 5), r"sum of volume must fit int64"),
        (([], [], [], 0), "num_ranks must be >= 1, got 0"),
    ],
)
def test_bad_items(arguments: tuple[object, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        solvers.group_volumes(*arguments)  # type: ignore[arg-type]


def by_hand(offsets: list[int], ranks: list[int], amounts: list[int]) -> Volumes:
    return Volumes(np.array(offsets, np.int64), np.array(ranks, np.int32), np.array(amounts, np.int64))


@pytest.mark.parametrize(
    ("volumes", "message"),
    [
        (by_hand([0, 1, 3], [0, 1], [5, 5]), "offsets must ascend from 0 to 2"),
        (by_hand([0, 2, 1, 2], [0, 1], [5, 5]), "offsets must ascend"),
        (by_hand([1, 2], [0, 0], [5, 5]), "offsets must ascend"),
        (by_hand([0], [], []), "offsets must ascend"),
        (by_hand([0, 1, 2], [0, 2], [5, 5]), r"ranks\[1\] must be within 0..1, got 2"),
        (by_hand([0, 1, 2], [-1, 0], [5, 5]), r"ranks\[0\] must be within 0..1, got -1"),
        (by_hand([0, 1, 2], [0, 0], [5, -5]), r"volumes.amounts\[1\] must be >= 0"),
        (by_hand([0, 0, 2], [1, 1], [5, 5]), "at most once in a group, group 1 has one twice"),
        (by_hand([0, 1, 2], [0, 0], [2**62, 2**62]), "must fit int64"),
    ],
)
def test_volumes_made_by_hand_are_checked(volumes: Volumes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        solvers.rearrange(volumes, [0] * volumes.num_ranks)


def test_volumes_of_the_wrong_kind() -> None:
    wrong = Volumes(np.array([0, 1]), np.array([0]), np.array([1]))  # int64 ranks
    with pytest.raises(TypeError, match="int64\\[m \\+ 1\\], int32\\[k\\], int64\\[k\\]; use group_volumes"):
        solvers.rearrange(wrong, [0])


def test_listed_zeros_do_no_harm() -> None:
    listed = by_hand([0, 2, 4], [0, 1, 0, 1], [0, 5, 4, 0])
    for method in solvers.REARRANGERS:
        for levels in ([0, 1], [0, 0]):
            result = solvers.rearrange(listed, levels, method)
            solvers.check_rearrangement(listed, levels, result)
            assert result.rank_of_group.tolist() == ([0, 1] if method == "identity" else [1, 0])
