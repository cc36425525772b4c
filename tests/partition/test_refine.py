"""Local search: never worse, never a count broken, and ended only where no single move or swap helps."""

import numpy as np
import oracles
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from solvers._budget import work_units
from solvers.partitioning.refine import PartitionProblem, refine

AMPLE = work_units(10)


def start(costs: list[int], num_groups: int, seed: int, equal_counts: bool) -> list[int]:
    """Some feasible assignment of the sorted costs."""
    rng = np.random.default_rng(seed)
    groups = np.arange(len(costs)) % num_groups if equal_counts else rng.integers(0, num_groups, len(costs))
    return rng.permutation(groups).tolist()


def improves(costs: list[int], groups: list[int], num_groups: int, equal_counts: bool) -> bool:
    """Whether some move or swap from one of the largest groups leaves both groups below what it was."""
    loads, counts = oracles.loads_of(costs, groups, num_groups), oracles.counts_of(groups, num_groups)
    g = loads.index(max(loads))
    for i in (i for i, group in enumerate(groups) if group == g):
        for h in range(num_groups):
            may_move = not equal_counts or counts[h] < counts[g]
            partners = [costs[j] for j, group in enumerate(groups) if group == h] + ([0] if may_move else [])
            if h != g and any(max(loads[g] - costs[i] + b, loads[h] + costs[i] - b) < loads[g] for b in partners):
                return True
    return False


def ends_where_nothing_helps(costs: list[int], num_groups: int, equal_counts: bool, groups: list[int]) -> None:
    problem = PartitionProblem.prepare(costs, num_groups, equal_counts)
    assignment = np.array(groups, dtype=np.int32)
    before = problem.makespan_of(assignment)
    left = refine(problem, assignment, AMPLE)
    assert left > 0
    assert problem.makespan_of(assignment) <= before
    ordered, groups = problem.sorted_costs.tolist(), assignment.tolist()
    if equal_counts:
        counts = oracles.counts_of(groups, num_groups)
        assert max(counts) - min(counts) <= 1
    at_bound = problem.makespan_of(assignment) == problem.goal
    assert at_bound or not improves(ordered, groups, num_groups, equal_counts)


@settings(max_examples=3 * settings().max_examples)
@given(
    costs=st.lists(st.integers(1, 60), min_size=6, max_size=16) | st.lists(st.integers(0, 10**6), max_size=30),
    num_groups=st.integers(1, 6),
    seed=st.integers(0, 10**6),
    equal_counts=st.booleans(),
)
def test_ends_where_nothing_helps(costs: list[int], num_groups: int, seed: int, equal_counts: bool) -> None:
    ends_where_nothing_helps(costs, num_groups, equal_counts, start(costs, num_groups, seed, equal_counts))


@pytest.mark.parametrize(
    ("costs", "num_groups", "equal_counts", "groups"),
    [
        # a group past one that cannot help still can
        ([60, 57, 52, 47, 37, 29, 26, 24, 9, 9, 7, 3], 5, False, [3, 1, 2, 3, 2, 3, 4, 3, 4, 2, 4, 4]),
        ([54, 49, 48, 48, 43, 30], 3, True, [1, 2, 2, 0, 0, 1]),
        # a group may take many more items than it started with
        ([1] * 12, 2, False, [0] * 12),
        # an exchange is found only if groups stay sorted through the exchanges before it
        ([49, 45, 42, 40, 30, 26, 17, 16], 3, False, [1, 2, 1, 1, 2, 1, 0, 1]),
    ],
)
def test_ends_where_nothing_helps_on_cases_that_once_mattered(
    costs: list[int], num_groups: int, equal_counts: bool, groups: list[int]
) -> None:
    ends_where_nothing_helps(costs, num_groups, equal_counts, groups)


@pytest.mark.parametrize("work", [0, 1, 50, 1000])
def test_little_work_leaves_a_feasible_assignment(work: int) -> None:
    costs = np.random.default_rng(0).lognormal(6, 1, 203).astype(np.int64)
    problem = PartitionProblem.prepare(costs, 16, True)
    assignment = np.array(start(costs.tolist(), 16, 3, True), dtype=np.int32)
    before = problem.makespan_of(assignment)
    left = refine(problem, assignment, work)
    counts = np.bincount(assignment, minlength=16)
    assert left <= 0 or problem.makespan_of(assignment) == problem.goal
    assert problem.makespan_of(assignment) <= before
    assert counts.max() - counts.min() <= 1


@pytest.mark.parametrize(("costs", "groups"), [([45, 9, 3], [1, 0, 1]), ([43, 6, 5, 3, 2, 2], [0, 1, 1, 1, 0, 1])])
@pytest.mark.parametrize("shift", [40, 56, 57])
def test_costs_past_half_of_int64(costs: list[int], groups: list[int], shift: int) -> None:
    """The same search on the same costs times 2^shift, whose largest cost ends above 2^62: nothing may wrap."""
    problem = PartitionProblem.prepare([c << shift for c in costs], 2, False)
    assignment = np.array(groups, dtype=np.int32)
    refine(problem, assignment, AMPLE)
    assert problem.makespan_of(assignment) == costs[0] << shift
    assert not improves(problem.sorted_costs.tolist(), assignment.tolist(), 2, False)
