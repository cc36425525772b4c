"""Rearrangement: every method against brute force, greedy against its definition."""

import dataclasses

import numpy as np
import pytest
import rearrangement_oracles as oracles
from hypothesis import given, settings
from hypothesis import strategies as st
from nightly import examples

import solvers
from solvers import REARRANGERS, SolveStatus, Volumes
from solvers.errors import CertificateError

EVERY_METHOD = pytest.mark.parametrize("method", REARRANGERS)
Drawn = tuple[list[list[int]], list[int], list[int], list[int]]


@st.composite
def cases(draw: st.DrawFn, most: int = 6, largest: int = 2**40) -> Drawn:
    """A matrix, nodes, and classes of which each has as many groups as ranks."""
    m = draw(st.integers(1, most))
    amounts = st.integers(0, draw(st.sampled_from([1, 3, 1000, largest])))
    volumes = draw(st.lists(st.lists(amounts, min_size=m, max_size=m), min_size=m, max_size=m))
    nodes = draw(st.lists(st.integers(-1, 2), min_size=m, max_size=m))
    group_class = draw(st.lists(st.sampled_from([0, 0, 4]), min_size=m, max_size=m))
    return volumes, nodes, group_class, list(draw(st.permutations(group_class)))


def check(drawn: Drawn, result: solvers.Rearrangement) -> tuple[int, list[tuple[int, int, int]]]:
    """Check a result with the checker and without; return its value, and what every bijection moves."""
    volumes, nodes, group_class, rank_class = drawn
    solvers.check_rearrangement(volumes, nodes, result, class_of_group=group_class, class_of_rank=rank_class)
    target = tuple(result.rank_of_group.tolist())
    every = list(oracles.bijections(group_class, rank_class))
    assert target in every
    told = result.inter_node_volume, result.intra_node_volume, result.largest_send
    assert told == oracles.moved(volumes, nodes, target)
    assert all(type(number) is int for number in (*told, result.lower_bound))
    return told[2 if result.objective == "max" else 0], [oracles.moved(volumes, nodes, other) for other in every]


def stays(volumes: list[list[int]], nodes: list[int], group_class: list[int], rank_class: list[int]) -> tuple[int, ...]:
    """What moves where the k-th group of each class is on its k-th rank."""
    groups, ranks = (sorted(range(len(of)), key=of.__getitem__) for of in (group_class, rank_class))
    target = dict(zip(groups, ranks, strict=True))
    return oracles.moved(volumes, nodes, [target[g] for g in range(len(groups))])


def asked(drawn: Drawn, method: str, **more: object) -> solvers.Rearrangement:
    volumes, nodes, group_class, rank_class = drawn
    return solvers.rearrange(volumes, nodes, method, class_of_group=group_class, class_of_rank=rank_class, **more)  # type: ignore[arg-type]


# --- greedy -----------------------------------------------------------------------------------------------------------


@settings(max_examples=examples(40))
@given(drawn=cases(most=5))
def test_greedy_is_what_it_says_or_what_was(drawn: Drawn) -> None:
    result = asked(drawn, "greedy")
    value, every = check(drawn, result)
    by_definition = oracles.moved(*drawn[:2], oracles.greedy(*drawn))
    stay = stays(*drawn)
    assert (value, result.intra_node_volume) == min(by_definition[:2], stay[:2])
    if by_definition[:2] <= stay[:2]:
        assert result.rank_of_group.tolist() == oracles.greedy(*drawn)
    total, least = sum(map(sum, drawn[0])), min(moved[0] for moved in every)
    assert total - value >= (total - least) / 2  # two partition matroids
    assert result.lower_bound == 0
    assert (result.status, result.method) == (SolveStatus.FEASIBLE if value else SolveStatus.OPTIMAL, "greedy")


def test_greedy_leaves_groups_where_they_are_if_that_is_better() -> None:
    # Greedy takes the 5 of group 0 and leaves group 1 with nothing.
    volumes = [[4, 5], [0, 4]]
    assert solvers.rearrange(volumes, [0, 1]).rank_of_group.tolist() == [0, 1]
    # With classes the first group of each stays on its first rank, whatever their numbers.
    swapped = solvers.rearrange([[5, 4], [4, 0]], [0, 1], class_of_group=[7, 3], class_of_rank=[3, 7])
    assert swapped.rank_of_group.tolist() == [1, 0]


def test_ties_go_to_the_lower_group_and_then_to_what_is_listed_first() -> None:
    assert solvers.rearrange(np.ones((4, 4), np.int64), [0, 0, 1, 1]).rank_of_group.tolist() == [0, 1, 2, 3]
    listed = by_hand([0, 2, 4], [1, 0, 1, 0], [5, 5, 5, 5])
    assert solvers.rearrange(listed, [0, 1]).rank_of_group.tolist() == [1, 0]
    assert solvers.rearrange(listed, [0, 0]).rank_of_group.tolist() == [1, 0]


# --- the exact sum, and the program -----------------------------------------------------------------------------------


@settings(max_examples=examples(40))
@given(drawn=cases(most=5))
def test_the_sum_is_the_least_and_says_so(drawn: Drawn) -> None:
    result = asked(drawn, "sum")
    value, every = check(drawn, result)
    assert value == result.lower_bound == min(moved[0] for moved in every)
    assert result.status is SolveStatus.OPTIMAL
    # Inside the nodes that it chose, or where nothing was rearranged, most stays.
    nodes, target, kinds = drawn[1], result.rank_of_group.tolist(), drawn[3]
    if (value, result.intra_node_volume) != stays(*drawn)[:2]:
        assert result.intra_node_volume == min(
            oracles.moved(drawn[0], nodes, other)[1]
            for other in oracles.bijections(drawn[2], kinds)
            if all(nodes[r] == nodes[s] for r, s in zip(target, other, strict=True))
        )


@pytest.mark.parametrize("objective", ["sum", "max"])
@settings(max_examples=examples(20))
@given(drawn=cases(most=5, largest=2**13))
def test_the_program_against_brute_force(objective: str, drawn: Drawn) -> None:
    result = asked(drawn, "ilp", objective=objective, time_limit=60)
    value, every = check(drawn, result)
    least = min(moved[2 if objective == "max" else 0] for moved in every)
    assert (value, result.lower_bound, result.status, result.objective) == (least, least, "optimal", objective)


def middle_case(m: int, ranks_per_node: int, items_per_rank: int, seed: int) -> tuple[Volumes, np.ndarray]:
    """Lognormal lengths after LPT, as trainers have them."""
    lengths = np.random.default_rng(seed).lognormal(6, 1, m * items_per_rank).astype(np.int64)
    groups = solvers.partition(lengths, m, "lpt").group_of_item
    return solvers.group_volumes(groups, np.repeat(np.arange(m), items_per_rank), lengths, m), (
        np.arange(m) // ranks_per_node
    )


def dense(volumes: Volumes) -> list[list[int]]:
    m = volumes.num_ranks
    matrix = np.zeros((m, m), dtype=np.int64)
    np.add.at(matrix, (np.repeat(np.arange(m), np.diff(volumes.offsets)), volumes.ranks), volumes.amounts)
    return matrix.tolist()


@pytest.mark.parametrize(
    ("volumes", "nodes"),
    [
        middle_case(64, 8, 16, 0), middle_case(48, 5, 3, 1),
        (middle_case(30, 1, 4, 3)[0], np.sort(np.random.default_rng(0).integers(0, 5, 30))),
    ],
    ids=["nodes of 8", "one smaller", "uneven"],
)  # fmt: skip
def test_greedy_is_near_the_least_sum(volumes: Volumes, nodes: np.ndarray) -> None:
    result, greedy = solvers.rearrange(volumes, nodes, "sum"), solvers.rearrange(volumes, nodes)
    assert result.inter_node_volume == result.lower_bound
    assert result.lower_bound <= greedy.inter_node_volume <= 1.02 * result.lower_bound
    for each in (result, greedy):
        solvers.check_rearrangement(volumes, nodes, each)


def test_a_program_out_of_time_has_the_greedy_and_a_bound() -> None:
    volumes, nodes = middle_case(64, 8, 16, 0)
    result = solvers.rearrange(volumes, nodes, "ilp", objective="max", time_limit=1e-3)
    solvers.check_rearrangement(volumes, nodes, result)
    assert result.status is SolveStatus.TIME_LIMIT
    assert result.largest_send <= solvers.rearrange(volumes, nodes).largest_send


# --- numbers ----------------------------------------------------------------------------------------------------------


@EVERY_METHOD
@settings(max_examples=examples(15))
@given(data=st.data())
def test_numbers_up_to_the_end_of_int64_are_counted_exactly(method: str, data: st.DataObject) -> None:
    """Where SciPy counts in floats, what it found is measured in integers, and the bound is no more than is so."""
    m = data.draw(st.integers(1, 4))
    amounts = st.integers(2**62 // m**2 - 9, 2**62 // m**2)
    volumes = data.draw(st.lists(st.lists(amounts, min_size=m, max_size=m), min_size=m, max_size=m))
    nodes = data.draw(st.lists(st.integers(0, 2), min_size=m, max_size=m))
    drawn = volumes, nodes, [0] * m, [0] * m
    result = asked(drawn, method)
    value, every = check(drawn, result)
    least = min(moved[0] for moved in every)
    assert result.lower_bound <= least <= value
    if method == "sum":
        assert value - result.lower_bound <= 2**20 * m  # of 2^62
        assert result.status is (SolveStatus.OPTIMAL if value == result.lower_bound else SolveStatus.WITHIN)


def test_bits_are_dropped_only_where_they_do_not_fit() -> None:
    assert solvers.rearrange([[2**40, 2**40 + 1], [2**40, 2**40]], [0, 1], "sum").status is SolveStatus.OPTIMAL
    large = solvers.rearrange([[2**50, 2**50 + 1], [2**50, 2**50]], [0, 1], "sum")
    assert (large.status, large.inter_node_volume - large.lower_bound) == (SolveStatus.WITHIN, 30)


def test_nothing_moves_where_there_is_nothing() -> None:
    empty = solvers.group_volumes([], [], [], 3)
    for method in REARRANGERS:
        for volumes in (empty, np.zeros((3, 3), np.int64)):
            result = solvers.rearrange(volumes, [0, 1, 1], method)
            assert (result.rank_of_group.tolist(), result.status) == ([0, 1, 2], SolveStatus.OPTIMAL)
        assert solvers.rearrange([[7]], [5], method).rank_of_group.tolist() == [0]


# --- volumes ----------------------------------------------------------------------------------------------------------

items = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4), st.integers(0, 9)), max_size=30)


@settings(max_examples=examples(20))
@given(items=items)
def test_volumes_from_items(items: list[tuple[int, int, int]]) -> None:
    expected = [[0] * 5 for _ in range(5)]
    for group, home, volume in items:
        expected[group][home] += volume
    columns = [[item[k] for item in items] for k in range(3)]
    volumes = solvers.group_volumes(*columns, 5)
    assert dense(volumes) == expected
    assert volumes.total == sum(map(sum, expected))
    for g in range(5):  # each rank once, and no zeros
        row = slice(*volumes.offsets[g : g + 2].tolist())
        assert len(set(volumes.ranks[row].tolist())) == len(volumes.ranks[row])
    assert (volumes.amounts > 0).all()
    assert not volumes.amounts.flags.writeable
    assert volumes == dataclasses.replace(volumes, amounts=volumes.amounts.copy())


def by_hand(offsets: list[int], ranks: list[int], amounts: list[int]) -> Volumes:
    return Volumes(np.array(offsets, np.int64), np.array(ranks, np.int32), np.array(amounts, np.int64))


@EVERY_METHOD
def test_volumes_by_hand_may_list_zeros_and_a_rank_twice(method: str) -> None:
    for nodes in ([0, 1], [0, 0]):
        for listed in (by_hand([0, 2, 4], [0, 1, 0, 1], [0, 5, 4, 0]), by_hand([0, 3, 4], [1, 0, 1, 0], [2, 3, 3, 4])):
            result = solvers.rearrange(listed, nodes, method)
            solvers.check_rearrangement(listed, nodes, result)
            if nodes == [0, 1]:
                assert result.rank_of_group.tolist() == [1, 0]


# --- what callers get wrong -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([0, 5], [0, 0], [1, 1], 5), r"group_of_item\[1\] must be within 0..4, got 5"),
        (([0, 1], [0, -1], [1, 1], 5), r"home_rank\[1\] must be within 0..4, got -1"),
        (([0, 1], [0, 1], [1], 5), "volume must have 2 entries, one an item, got 1"),
        (([0, 1], [0, 1], [1, -2], 5), r"volume\[1\] must be >= 0, got -2"),
    ],
)
def test_bad_items(arguments: tuple[object, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        solvers.group_volumes(*arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("volumes", "message"),
    [
        (by_hand([0, 1, 3], [0, 1], [5, 5]), "offsets must ascend from 0 to 2"),
        (by_hand([0, 2, 1], [0], [5]), "offsets must ascend from 0 to 1"),
        (by_hand([0, 1, 2], [0, 2], [5, 5]), r"volumes.ranks\[1\] must be within 0..1, got 2"),
        (by_hand([0, 1, 2], [0, 1], [5, -5]), r"volumes.amounts\[1\] must be >= 0, got -5"),
    ],
)
def test_bad_volumes_by_hand(volumes: Volumes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        solvers.rearrange(volumes, [0] * volumes.num_ranks)


def test_volumes_of_wrong_types() -> None:
    wrong = Volumes(np.array([0, 1]), np.array([0]), np.array([1]))  # int64 ranks
    with pytest.raises(TypeError, match="int64\\[m \\+ 1\\], int32\\[k\\], int64\\[k\\]; use group_volumes"):
        solvers.rearrange(wrong, [0])


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"volumes": [[1, 2, 3], [4, 5, 6]]}, ValueError, r"square matrix .* got shape \(2, 3\)"),
        ({"volumes": [[1, 2], [3]]}, TypeError, "volumes must be Volumes or a matrix"),
        ({"volumes": [[1, 2], [-3, 4]]}, ValueError, r"volumes\[1, 0\] must be >= 0, got -3"),
        ({"node_of_rank": [0]}, ValueError, "node_of_rank must have 2 entries, one a rank, got 1"),
        ({"method": "hungarian"}, ValueError, "unknown method 'hungarian'; known methods are greedy, sum, ilp"),
        ({"objective": "median"}, ValueError, "unknown objective 'median'; known objectives are sum, max"),
        ({"objective": "max"}, ValueError, "objective 'max' is for method 'ilp' alone, not for 'greedy'"),
        ({"method": "ilp", "time_limit": 0}, ValueError, "time_limit must be positive"),
        ({"class_of_group": [0, 1]}, ValueError, "class_of_group was given without class_of_rank"),
        ({"class_of_group": [0, 1], "class_of_rank": [0]}, ValueError, "class_of_rank must have 2 entries, got 1"),
        (
            {"class_of_group": [0, 7], "class_of_rank": [0, 0]},
            solvers.InfeasibleError,
            "class 0 has 1 groups but 2 ranks",
        ),
    ],
)
def test_bad_arguments(arguments: dict[str, object], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        solvers.rearrange(**({"volumes": [[1, 2], [3, 4]], "node_of_rank": [0, 1]} | arguments))  # type: ignore[arg-type]


# --- the checker ------------------------------------------------------------------------------------------------------

VOLUMES, NODES = [[1, 0, 0, 8], [9, 0, 1, 0], [0, 0, 7, 2], [0, 5, 0, 0]], [0, 0, 1, 1]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rank_of_group": np.array([3, 0, 2, 2], np.int32)}, "rank_of_group must hold each of 0..3 once"),
        ({"rank_of_group": np.array([0, 3, 2, 1], np.int32)}, "inter_node_volume is 17, not 2"),
        ({"inter_node_volume": 3}, "inter_node_volume is 2, not 3"),
        ({"intra_node_volume": 3}, "intra_node_volume is 2, not 3"),
        ({"largest_send": 3}, "largest_send is 1, not 3"),
        ({"lower_bound": 3}, "lower_bound = 3 must be within 0..inter_node_volume = 2"),
        ({"objective": "max"}, "lower_bound = 2 must be within 0..largest_send = 1"),
    ],
)
def test_the_checker_names_what_is_wrong(change: dict[str, object], message: str) -> None:
    right = solvers.rearrange(VOLUMES, NODES, "sum")
    with pytest.raises(CertificateError, match=message):
        solvers.check_rearrangement(VOLUMES, NODES, dataclasses.replace(right, **change))  # type: ignore[arg-type]


def test_the_checker_looks_at_classes() -> None:
    result, classes = solvers.rearrange(VOLUMES, NODES), [0, 1, 0, 1]
    with pytest.raises(CertificateError, match="group 0 is of class 0, its rank 3 of 1"):
        solvers.check_rearrangement(VOLUMES, NODES, result, class_of_group=classes, class_of_rank=classes)
