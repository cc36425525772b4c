"""Against all assignments of tiny problems with any constraints: feasibility, bound, optimum, certificates, checker."""

import itertools
from typing import Any

import constraint_oracles as oracles
import numpy as np
import pytest
from constraint_cases import random_constraints, random_problem

import solvers
from solvers import InfeasibilityCertificate, InfeasibleError, SolverError
from solvers.packing import cut_shares, schedule_micro_batches

NAMED = {"caps": ("sizes", "caps"), "equal_counts": ("min_items", "max_items")}


def infeasible(given: dict[str, Any], n: int, m: int) -> bool:
    return not any(oracles.keeps(groups, n, m, given) for groups in oracles.all_assignments(n, m))


def of_items(given: dict[str, Any], items: list[int]) -> dict[str, Any]:
    by_item = ("sizes", "allowed", "keep_together")
    return {name: [value[i] for i in items] if name in by_item else value for name, value in given.items()}


def assert_true(found: InfeasibilityCertificate, given: dict[str, Any], n: int, m: int) -> None:
    """The named constraints alone, on the named items alone where they are too many, cannot be kept."""
    if given.pop("equal_counts", False):
        given |= {"min_items": n // m, "max_items": -(-n // m)}
    asked = [name for part in found.constraint.split(" + ") for name in NAMED.get(part, (part,))]
    named = {name: given[name] for name in asked if name in given}
    items = [int(i) for i in found.items]
    too_many = {name: value for name, value in named.items() if name != "min_items"}
    assert infeasible(named, n, m) or infeasible(of_items(too_many, items), len(items), m)
    assert found.excess > 0
    if found.constraint.startswith("caps") and found.needed != m + 1:
        sizes = [row[found.quantity or 0] for row in oracles.rows(given["sizes"], n)]
        caps = [row[found.quantity or 0] for row in oracles.caps_table(given["caps"], given["sizes"], m)]
        assert found.needed == sum(sizes[i] for i in items)
        room = [caps[g] for g in found.groups]
        assert found.available in (sum(room), max(room, default=0), *room)
    if found.constraint.startswith("max_items"):
        assert found.needed in (len(items), m + 1)


def run(costs: list[Any], m: int, method: str, given: dict[str, Any]) -> solvers.PartitionResult | None:
    try:
        result = solvers.partition(costs, m, method, 5.0 if method == "exact" else 0.5, stop_at=0, **given)
    except InfeasibleError as error:
        if error.certificate is not None:
            assert_true(error.certificate, dict(given), len(costs), m)
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


@pytest.mark.parametrize("seed", range(80))
def test_what_is_refused_cannot_be(seed: int) -> None:
    """Many rules at once, and caps that are often too low."""
    rng = np.random.default_rng(seed)
    n, m = int(rng.integers(1, 7)), int(rng.integers(1, 4))
    given = random_constraints(rng, n, m, rate=0.6)
    given = {name: value for name, value in given.items() if name not in ("initial_loads", "speeds")}
    if "caps" in given:
        given["caps"] = (np.array(given["caps"]) * 3 // 4).tolist()
    assert (run([1] * n, m, "auto", given) is None) == infeasible(given, n, m)


def can_be_packed(tokens: list[int], where: list[list[int]], bins: int, cap: int, allow_empty: bool) -> bool:
    """Whether each sample has a place among those of the bins that it may be in."""
    for places in itertools.product(*where):
        held = [[t for t, place in zip(tokens, places, strict=True) if place == b] for b in range(bins)]
        if all(sum(one) <= cap and (one or allow_empty) for one in held):
            return True
    return False


@pytest.mark.parametrize("seed", range(60))
def test_micro_batches(seed: int) -> None:
    """Of all ranks together, and of each rank by itself."""
    rng = np.random.default_rng(seed)
    n, ranks, slots, cap = (int(rng.integers(low, high)) for low, high in ((2, 6), (1, 3), (1, 3), (5, 12)))
    tokens = rng.integers(1, 9, n).tolist()
    allow_empty, home = bool(rng.random() < 0.5), rng.integers(0, ranks, n).tolist()
    anywhere = [[*range(ranks * slots)]] * n
    at_home = [[rank * slots + k for k in range(slots)] for rank in home]
    for where, run in (
        (
            anywhere,
            lambda: schedule_micro_batches(tokens, tokens, ranks, cap, num_slots=slots, allow_empty=allow_empty),
        ),
        (at_home, lambda: cut_shares(tokens, tokens, home, ranks, cap, num_slots=slots, allow_empty=allow_empty)),
    ):
        try:
            run()
        except InfeasibleError as error:
            found = error.certificate
            assert found is not None
            assert found.excess > 0
            assert not can_be_packed(tokens, where, ranks * slots, cap, allow_empty)
            if found.constraint == "cap":
                assert found.needed in [tokens[i] for i in found.items]
                assert all(tokens[i] > cap == found.available for i in found.items)
        except solvers.SolverError:
            pass  # neither found nor excluded
        else:
            assert can_be_packed(tokens, where, ranks * slots, cap, allow_empty)
