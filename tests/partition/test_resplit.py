"""Two groups divided anew by differencing."""

import numpy as np
from compiled import from_python
from hypothesis import given
from hypothesis import strategies as st

from solvers.partitioning._problem import PartitionProblem
from solvers.partitioning.lpt import assign_lpt
from solvers.partitioning.resplit import difference_two, resplit

difference_two = from_python(difference_two)


def naive_difference(costs, in_pairs):
    """What differencing leaves, by sorting a list over and over."""
    values = [a - b for a, b in zip(costs[::2], [*costs[1::2], 0], strict=False)] if in_pairs else list(costs)
    while len(values) > 1:
        values.sort()
        values.append(values.pop() - values.pop())
    return values[0] if values else 0


@given(costs=st.lists(st.integers(0, 9) | st.integers(0, 10**9), max_size=40), in_pairs=st.booleans())
def test_differencing_two(costs, in_pairs):
    costs = np.array(sorted(costs, reverse=True), dtype=np.int64)
    n = len(costs)
    side = np.full(n, -1, dtype=np.int64)
    scratch = np.empty((n + 1, 2), dtype=np.int64), np.empty((n + 1, 2), dtype=np.int64)
    spread = difference_two(costs, in_pairs, *scratch, side)
    assert set(side.tolist()) <= {0, 1}
    assert spread == abs(int(costs[side == 0].sum()) - int(costs[side == 1].sum()))
    assert spread == naive_difference(costs.tolist(), in_pairs)
    if in_pairs:
        assert abs(int((side == 0).sum()) - int((side == 1).sum())) <= 1


@given(
    costs=st.lists(st.integers(0, 10**6), min_size=1, max_size=60),
    num_groups=st.integers(1, 12),
    equal_counts=st.booleans(),
    work=st.integers(0, 30_000),
)
def test_resplitting_keeps_every_promise(costs, num_groups, equal_counts, work):
    problem = PartitionProblem.prepare(costs, num_groups, equal_counts)
    before = assign_lpt(problem)
    after = before.copy()
    resplit(problem, after, work)
    assert ((after >= 0) & (after < num_groups)).all()
    assert problem.makespan_of(after) <= problem.makespan_of(before)
    if equal_counts:
        counts = np.bincount(after, minlength=num_groups)
        assert counts.max() - counts.min() <= 1


def test_quadratic_costs_are_evened_out_to_parts_per_billion():
    lengths = np.clip(np.random.default_rng(3).lognormal(7.1, 1, 4096), 1, 32768).astype(np.int64)
    problem = PartitionProblem.prepare(24576 * lengths + lengths**2, 64, False)
    assignment = assign_lpt(problem)
    resplit(problem, assignment, 8_000_000)
    assert problem.makespan_of(assignment) / problem.bound.value - 1 < 10e-9
