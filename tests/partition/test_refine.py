"""Local search: never worse, never a count broken, and ended only where no single move or swap helps."""

import numpy as np
import oracles
import pytest
from hypothesis import given
from hypothesis import strategies as st

from solvers._budget import work_units
from solvers.partition._problem import PartitionProblem
from solvers.partition.refine import refine

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


@given(
    costs=st.lists(st.integers(0, 100) | st.integers(0, 10**6), max_size=30),
    num_groups=st.integers(1, 7),
    seed=st.integers(0, 99),
    equal_counts=st.booleans(),
)
def test_ends_where_nothing_helps(costs: list[int], num_groups: int, seed: int, equal_counts: bool) -> None:
    problem = PartitionProblem.prepare(costs, num_groups, equal_counts)
    assignment = np.array(start(costs, num_groups, seed, equal_counts), dtype=np.int32)
    before = problem.makespan_of(assignment)
    left = refine(problem, assignment, AMPLE)
    assert left > 0
    assert problem.makespan_of(assignment) <= before
    ordered, groups = problem.sorted_costs.tolist(), assignment.tolist()
    counts = oracles.counts_of(groups, num_groups)
    if equal_counts:
        assert max(counts) - min(counts) <= 1
    at_bound = problem.makespan_of(assignment) == problem.bound.value
    assert at_bound or not improves(ordered, groups, num_groups, equal_counts)


@pytest.mark.parametrize("work", [0, 1, 50, 1000])
def test_little_work_leaves_a_feasible_assignment(work: int) -> None:
    costs = np.random.default_rng(0).lognormal(6, 1, 203).astype(np.int64)
    problem = PartitionProblem.prepare(costs, 16, True)
    assignment = np.array(start(costs.tolist(), 16, 3, True), dtype=np.int32)
    before = problem.makespan_of(assignment)
    left = refine(problem, assignment, work)
    counts = np.bincount(assignment, minlength=16)
    assert left <= 0 or problem.makespan_of(assignment) == problem.bound.value
    assert problem.makespan_of(assignment) <= before
    assert counts.max() - counts.min() <= 1


@pytest.mark.parametrize("shift", [0, 30, 56, 57])
def test_costs_past_half_of_int64(shift: int) -> None:
    """The same search on the same costs times 2^shift, whose largest cost ends above 2^62: nothing may wrap."""
    costs = [40, 8, 6, 19, 17, 9, 3, 1, 1]
    groups = [0, 1, 1, 1, 0, 1, 0, 1, 1]
    order = oracles.descending(costs)
    problem = PartitionProblem.prepare([c << shift for c in costs], 2, False)
    expected, assignment = (np.array([groups[i] for i in order], dtype=np.int32) for _ in range(2))
    refine(PartitionProblem.prepare(costs, 2, False), expected, AMPLE)
    refine(problem, assignment, AMPLE)
    assert assignment.tolist() == expected.tolist()
    assert not improves(problem.sorted_costs.tolist(), assignment.tolist(), 2, False)
