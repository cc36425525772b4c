"""The checker: what is right passes, and each thing that can be wrong is named."""

import dataclasses
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import solvers
from solvers import CertificateError, PartitionResult, SolverError, SolveStatus, check_partition

COSTS = [9, 8, 7, 6, 5, 4, 3, 2, 1, 1, 1, 0]
BEST = solvers.partition(COSTS, 3)
ROUND = dataclasses.replace(  # dealt in turns: feasible, and not optimal
    BEST, group_of_item=np.arange(12, dtype=np.int32) % 3, loads=np.array([19, 16, 12]), makespan=19,
    status=SolveStatus.FEASIBLE,
)  # fmt: skip


def edited(array: np.ndarray, where: int, value: int) -> np.ndarray:
    array = array.copy()
    array[where] = value
    return array


def claim(result: PartitionResult, **changes: Any) -> PartitionResult:
    return dataclasses.replace(result, **changes)


def test_what_is_right_passes() -> None:
    check_partition(COSTS, ROUND)
    check_partition(COSTS, ROUND, num_groups=3, equal_counts=True)
    check_partition(np.array(COSTS, dtype=np.int16), BEST, num_groups=3)


WRONG = {
    "group too large": (
        claim(ROUND, group_of_item=edited(ROUND.group_of_item, 4, 3)),
        r"^item 4 is in group 3, outside 0\.\.2$",
    ),
    "group negative": (
        claim(ROUND, group_of_item=edited(ROUND.group_of_item, 0, -1)),
        r"^item 0 is in group -1, outside 0\.\.2$",
    ),
    "item moved": (
        claim(ROUND, group_of_item=edited(ROUND.group_of_item, 0, 1)),
        r"^the load of group 0 is \d+, not \d+$",
    ),
    "load": (claim(ROUND, loads=edited(ROUND.loads, 2, 13)), r"^the load of group 2 is 12, not 13$"),
    "makespan too small": (
        claim(ROUND, makespan=ROUND.makespan - 1),
        rf"^the loads make a makespan of {ROUND.makespan}, not makespan = {ROUND.makespan - 1}$",
    ),
    "bound above the makespan": (
        claim(BEST, lower_bound=BEST.makespan + 1),
        rf"^lower_bound = {BEST.makespan + 1} must be within 0\.\.makespan = {BEST.makespan}$",
    ),
    "bound negative": (claim(ROUND, lower_bound=-1), r"^lower_bound = -1 must be within 0\.\."),
    "bound not proven": (
        claim(ROUND, lower_bound=ROUND.lower_bound + 1),
        rf"^lower_bound = {ROUND.lower_bound + 1}, but 'mean' proves {ROUND.lower_bound} at most$",
    ),
    "optimal with a gap": (
        claim(ROUND, status=SolveStatus.OPTIMAL),
        r"^status is optimal with makespan \d+ and lower_bound \d+$",
    ),
    "not optimal without a gap": (claim(BEST, status=SolveStatus.FEASIBLE), r"^status is feasible with makespan "),
    "a group without an item": (
        claim(ROUND, group_of_item=np.append(ROUND.group_of_item, np.int32(0))),
        r"^every item has one group: 12 items, groups of shape \(13,\)$",
    ),
    "groups of another type": (
        claim(ROUND, group_of_item=ROUND.group_of_item.astype(np.int64)),
        r"^group_of_item must be int32, got int64$",
    ),
    "a column of loads": (  # which compares equal to a row of them, entry by entry
        claim(ROUND, loads=ROUND.loads[:, None]),
        r"^loads must be int64 of shape \(3,\), got int64 of shape \(3, 1\)$",
    ),
    "loads of another type": (
        claim(ROUND, loads=ROUND.loads.astype(np.float64)),
        r"^loads must be int64 of shape \(3,\), got float64 of shape \(3,\)$",
    ),
    "a load too many": (
        claim(ROUND, loads=np.append(ROUND.loads, 0)),
        r"^loads must be int64 of shape \(3,\), got int64 of shape \(4,\)$",
    ),
}


@pytest.mark.parametrize("what", WRONG)
def test_each_corruption_is_named(what: str) -> None:
    result, message = WRONG[what]
    with pytest.raises(CertificateError, match=message):
        check_partition(COSTS, result, num_groups=3)


def test_equal_counts() -> None:
    costs = [9, 1, 1, 1, 1]
    result = solvers.partition(costs, 2, "lpt")
    check_partition(costs, result)
    with pytest.raises(CertificateError, match=r"^equal_counts: group 0 holds 1 items, not 2 to 3$"):
        check_partition(costs, result, equal_counts=True)


def test_a_bound_that_only_equal_counts_prove() -> None:
    costs = [100, 4, 4, 4, 4, 4]
    result = solvers.partition(costs, 2, "lpt", equal_counts=True)
    assert result.bound_name == "filler"
    check_partition(costs, result, equal_counts=True)
    with pytest.raises(CertificateError, match="filler"):
        check_partition(costs, result)


def test_a_bound_is_held_to_its_own_name() -> None:
    """The pigeonhole bound is 10 here and the mean 7: who says "mean" may claim 7."""
    costs = [5, 5, 5, 5]
    result = solvers.partition(costs, 3, "lpt")
    assert (result.lower_bound, result.bound_name) == (10, "pigeonhole")
    check_partition(costs, result)
    with pytest.raises(CertificateError, match=r"^lower_bound = 10, but 'mean' proves 7 at most$"):
        check_partition(costs, claim(result, bound_name="mean"))


@pytest.mark.parametrize("name", ["trust me", "padded"])
def test_a_bound_needs_a_known_name(name: str) -> None:
    """Else any bound passes; and the name of the padded bound proves nothing where no costs are padded."""
    proven = claim(ROUND, lower_bound=ROUND.makespan, status=SolveStatus.OPTIMAL, bound_name=name)
    with pytest.raises(CertificateError, match="bound"):
        check_partition(COSTS, proven)


def test_a_weaker_bound_than_the_best_is_no_lie() -> None:
    check_partition(COSTS, claim(ROUND, lower_bound=ROUND.lower_bound - 1))
    check_partition(COSTS, claim(ROUND, lower_bound=0))


PADDED_COSTS = [8, 8, 5, 3, 1, 1, 1]
PADDED = solvers.padded(PADDED_COSTS, 3)


def test_padded_results() -> None:
    check_partition(PADDED_COSTS, PADDED, padded=True)
    with pytest.raises(CertificateError, match=r"^the load of group \d is \d+, not \d+$"):
        check_partition(PADDED_COSTS, PADDED)
    with pytest.raises(CertificateError, match=r"^the load of group 1 is "):
        check_partition(PADDED_COSTS, claim(PADDED, loads=edited(PADDED.loads, 1, 99)), padded=True)


@pytest.mark.parametrize(
    ("costs", "groups", "equal_counts"), [([8, 1, 1, 8, 1, 1], [0, 0, 0, 1, 1, 1], False), ([8, 1, 1], [0, 0, 1], True)]
)
def test_a_padded_bound_not_proven(costs: list[int], groups: list[int], equal_counts: bool) -> None:
    """Feasible, and not optimal: that "padded" does not prove it to be can be checked, so it must be."""
    best = solvers.padded(costs, 2, equal_counts=equal_counts)
    makespan = 8 * groups.count(0)
    assert best.makespan < makespan
    lie = claim(
        best,
        group_of_item=np.array(groups, dtype=np.int32),
        loads=np.array([makespan, groups.count(1) * max(c for c, g in zip(costs, groups, strict=True) if g)]),
        makespan=makespan,
        lower_bound=makespan,
    )
    with pytest.raises(CertificateError, match=rf"^lower_bound = {makespan}, but 'padded' proves \d+ at most$"):
        check_partition(costs, lie, equal_counts=equal_counts, padded=True)


def test_unusable_costs_are_an_argument_error() -> None:
    with pytest.raises(ValueError, match=r"costs\[0\] must be >= 0"):
        check_partition([-1], ROUND)
    with pytest.raises(ValueError, match="num_groups must be >= 1"):
        check_partition(COSTS, ROUND, num_groups=0)
    assert issubclass(CertificateError, SolverError)
    assert not issubclass(CertificateError, ValueError)


@given(costs=st.lists(st.integers(0, 50), min_size=1, max_size=12), num_groups=st.integers(1, 5), data=st.data())
def test_no_item_can_move_unseen(costs: list[int], num_groups: int, data: st.DataObject) -> None:
    result = solvers.partition(costs, num_groups, "lpt")
    item = data.draw(st.integers(0, len(costs) - 1))
    group = data.draw(st.integers(0, num_groups - 1))
    moved = claim(result, group_of_item=edited(result.group_of_item, item, group))
    if group == result.group_of_item[item] or costs[item] == 0:
        check_partition(costs, moved)
    else:
        with pytest.raises(CertificateError, match="the load of group"):
            check_partition(costs, moved)
