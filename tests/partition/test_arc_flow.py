"""The arc-flow model: what HiGHS finds and refutes, judged by enumeration."""

import sys
import time

import numpy as np
import oracles
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nightly import examples

import solvers
from solvers.partition._problem import PartitionProblem
from solvers.partition.bin_completion import distinct_costs

MODULE = sys.modules[solvers.arc_flow.__module__]
EVER = 1e9


def solve(costs, num_groups, cap):
    values, counts = distinct_costs(PartitionProblem.prepare(costs, num_groups, False))
    return MODULE._solve(values, counts, num_groups, cap, time.perf_counter() + EVER), values, counts


@settings(max_examples=examples(25))
@given(costs=st.lists(st.integers(1, 20), min_size=1, max_size=8), num_groups=st.integers(1, 4))
def test_the_model_is_met_at_the_optimum_and_refuted_below(costs, num_groups):
    optimum = oracles.optimal_makespan(costs, num_groups)
    (used, refuted), values, counts = solve(costs, num_groups, optimum)
    assert not refuted
    assert np.array_equal(used.sum(axis=0), counts)
    assert (used @ values).max() <= optimum
    if optimum > max(costs):
        (used, refuted), *_ = solve(costs, num_groups, optimum - 1)
        assert used is None
        assert refuted


@pytest.mark.parametrize("factor", [1, 1000])
def test_it_closes_what_the_start_leaves(monkeypatch: pytest.MonkeyPatch, factor: int) -> None:
    """With a start that is LPT alone, all is for the model to find and to prove; a common factor costs nothing."""
    costs = factor * np.random.default_rng(1).integers(35, 140, 14)
    best = solvers.auto(costs, 6, time_budget=0.5)
    assert best.gap == 0
    monkeypatch.setattr(MODULE, "assign_auto", lambda problem, _: (solvers.partition_lpt(problem), problem.bound, True))
    monkeypatch.setattr(solvers, "partition_lpt", sys.modules[solvers.lpt.__module__].assign_lpt, raising=False)
    result = solvers.arc_flow(costs, 6, time_budget=20)
    solvers.check_partition(costs, result)
    assert (result.makespan, result.gap) == (best.makespan, 0.0)
    assert result.bound_name in ("arc_flow", "mean", "pigeonhole", "largest")


def test_too_many_arcs_are_not_built(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MODULE, "_load_scipy", lambda: pytest.fail("SciPy was called"))
    costs = np.random.default_rng(2).integers(10**8, 10**9, 600)
    result = solvers.arc_flow(costs, 150, time_budget=0.02)
    solvers.check_partition(costs, result)
    assert result.makespan <= solvers.lpt(costs, 150).makespan
