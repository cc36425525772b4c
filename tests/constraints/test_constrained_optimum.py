"""Against all assignments of tiny problems with any constraints: feasibility, bound, optimum, proof, checker."""

from typing import Any

import constraint_oracles as oracles
import numpy as np
import pytest
from constraint_cases import random_problem

import solvers
from solvers import InfeasibleError, SolverError


def run(costs: list[Any], m: int, method: str, given: dict[str, Any]) -> solvers.PartitionResult | None:
    try:
        result = solvers.partition(costs, m, method, 5.0 if method == "exact" else 0.5, stop_at=0, **given)
    except InfeasibleError:
        return None
    groups = result.group_of_item.tolist()
    assert oracles.keeps(groups, len(costs), m, given)
    assert result.makespan == oracles.makespan(costs, groups, m, given)
    expected = oracles.loads(costs, groups, m, given)
    assert result.loads.reshape(m, -1).tolist() == expected
    assert result.lower_bound <= result.makespan
    solvers.check_partition(costs, result, num_groups=m, stop_at=0, **given)
    return result


@pytest.mark.parametrize("seed", range(120))
def test_any_combination(seed: int) -> None:
    costs, m, given = random_problem(np.random.default_rng(seed))
    optimum = oracles.optimum(costs, m, given)
    result = run(costs, m, "auto", given)
    assert (result is None) == (optimum is None)
    if result is not None and optimum is not None:
        assert result.makespan == result.lower_bound == optimum
        assert solvers.makespan_lower_bound(costs, m, **given) <= optimum
    try:
        scheduled = run(costs, m, "lpt", given)
    except SolverError:
        return
    assert optimum is not None or scheduled is None
    if scheduled is not None:
        assert scheduled.makespan >= (optimum or 0)


@pytest.mark.parametrize("seed", range(1000, 1015))
def test_exact(seed: int) -> None:
    costs, m, given = random_problem(np.random.default_rng(seed))
    optimum = oracles.optimum(costs, m, given)
    result = run(costs, m, "exact", given)
    assert (None if result is None else result.makespan) == optimum


@pytest.mark.parametrize("given", [{"min_items": 1}, {"min_items": 1, "max_items": 3}])
def test_a_least_count_is_no_equal_count(given: dict[str, Any]) -> None:
    """Five items in three groups of one or more: counts 1, 1, 3 are best, whatever counts 2, 2, 1 give."""
    costs = [109, 106, 57, 26, 8]
    result = run(costs, 3, "auto", given)
    assert result is not None
    assert result.makespan == oracles.optimum(costs, 3, given) == 109
