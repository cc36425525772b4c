"""What must hold under constraints at any size: scaling, permuting, budgets, determinism; and a checker that fails."""

import dataclasses
from typing import Any

import numpy as np
import pytest
from constraint_cases import random_constraints
from hypothesis import given, settings
from hypothesis import strategies as st
from nightly import examples

import solvers
from solvers import CertificateError, SolverError

SEEDS = st.integers(0, 10**9)


def solve(costs: Any, m: int, budget: float, constraints: dict[str, Any]) -> solvers.PartitionResult | None:
    try:
        result = solvers.partition(costs, m, time_budget=budget, stop_at=0, **constraints)
    except SolverError:
        return None
    solvers.check_partition(costs, result, num_groups=m, stop_at=0, **constraints)
    return result


def problem(seed: int, n: int = 24, m: int = 4) -> tuple[list[int], int, dict[str, Any]]:
    rng = np.random.default_rng(seed)
    return rng.integers(0, 100, n).tolist(), m, random_constraints(rng, n, m, 200, rate=0.25)


@settings(max_examples=examples(25))
@given(seed=SEEDS, factor=st.sampled_from([2, 7, 1000]))
def test_a_factor_scales_caps_and_initial_loads_too(seed: int, factor: int) -> None:
    """On tiny problems, where the optimum is found: without speeds it scales, with them it is rounded up."""
    costs, m, constraints = problem(seed, 6, 3)
    constraints.pop("speeds", None)
    scaled = dict(constraints)
    for name in ("sizes", "caps", "initial_loads"):
        if name in scaled:
            scaled[name] = (factor * np.array(scaled[name])).tolist()
    one, many = solve(costs, m, 0.5, constraints), solve([factor * c for c in costs], m, 0.5, scaled)
    assert (one is None) == (many is None)
    if one is not None and many is not None:
        assert many.makespan == factor * one.makespan == many.lower_bound


@settings(max_examples=examples(25))
@given(seed=SEEDS, data=st.data())
def test_permuting_items_changes_no_optimum(seed: int, data: st.DataObject) -> None:
    costs, m, constraints = problem(seed, 6, 3)
    order = data.draw(st.permutations(range(len(costs))))
    permuted = dict(constraints)
    for name in ("sizes", "allowed", "keep_together"):
        if name in permuted:
            permuted[name] = [permuted[name][i] for i in order]
    one, other = solve(costs, m, 0.5, constraints), solve([costs[i] for i in order], m, 0.5, permuted)
    assert (one is None) == (other is None)
    if one is not None and other is not None:
        assert one.makespan == other.makespan


@settings(max_examples=examples(25))
@given(seed=SEEDS)
def test_a_larger_budget_is_never_worse_and_the_same_one_the_same(seed: int) -> None:
    costs, m, constraints = problem(seed, 60, 6)
    found = [solve(costs, m, budget, constraints) for budget in (1e-6, 1e-4, 1e-3, 1e-2)]
    makespans = [float("inf") if result is None else result.makespan for result in found]
    assert makespans == sorted(makespans, reverse=True)
    assert solve(costs, m, 1e-3, constraints) == found[2]


LENGTHS = np.clip(np.random.default_rng(3).lognormal(np.log(2000) - 0.5, 1, 1024), 1, 32768).astype(np.int64)
COSTS = 24576 * LENGTHS + LENGTHS * LENGTHS
CAP = int(1.05 * LENGTHS.sum() / 16)


def trainer_cases() -> dict[str, tuple[Any, dict[str, Any]]]:
    rng = np.random.default_rng(5)
    cap = {"sizes": LENGTHS, "caps": CAP}
    masks = np.ones((1024, 16), dtype=np.bool_)
    masks[rng.random(1024) < 0.5, :4] = False
    patches = rng.integers(0, 3000, 1024)
    vectors = np.stack([patches * patches, COSTS], axis=1)
    return {
        "cap": (COSTS, cap),
        "equal counts": (COSTS, cap | {"equal_counts": True}),
        "prompts": (COSTS, {"sizes": LENGTHS, "caps": int(CAP * 1.05), "keep_together": np.arange(1024) // 8}),
        "masks": (COSTS, {"allowed": masks, "sizes": LENGTHS, "caps": int(CAP * 1.05)}),
        "speeds": (COSTS, {"speeds": [2] * 8 + [1] * 8}),
        "initial loads": (COSTS, {"initial_loads": rng.integers(0, COSTS.sum() // 16, 16)}),
        "vectors": (vectors, {}),
        "vectors, max": (vectors, cap | {"objective": "max"}),
    }


@pytest.mark.parametrize("case", trainer_cases())
def test_trainer_shapes_are_within_a_thousandth(case: str) -> None:
    costs, constraints = trainer_cases()[case]
    result = solve(costs, 16, 0.05, constraints)
    assert result is not None
    assert result.gap < 1e-3


@pytest.mark.parametrize("counts", [{"min_items": 20}, {"equal_counts": True}], ids=["min_items", "equal_counts"])
def test_groups_of_few_candidates_get_their_fewest_items_along_chains(counts: dict[str, Any]) -> None:
    """Each item may be in 4 of 20 groups, and none has one to spare: an item often has to come a long way."""
    rng = np.random.default_rng(0)
    costs = rng.lognormal(6, 1, 400).astype(np.int64) + 1
    result = solve(costs, 20, 0.05, {"allowed": [rng.choice(20, 4, replace=False).tolist() for _ in costs], **counts})
    assert result is not None
    assert result.gap < 0.05


# --- the checker can fail ---------------------------------------------------------------------------------------------

ITEMS = [9, 7, 5, 3]
RULES: dict[str, Any] = {
    "sizes": [1, 2, 3, 4], "caps": 6, "max_items": 3, "allowed": [[0], None, None, None],
    "keep_together": [0, 1, 2, 0], "initial_loads": [2, 4], "speeds": [2, 1],
}  # fmt: skip
GROUPS = [0, 1, 1, 0]


def claim(groups: list[int], **changes: Any) -> solvers.PartitionResult:
    base = solvers.partition(ITEMS, 2, **RULES)
    assert base.group_of_item.tolist() == GROUPS
    return dataclasses.replace(base, **({"group_of_item": np.array(groups, dtype=np.int32)} | changes))


def test_the_checker_accepts_what_is_right() -> None:
    solvers.check_partition(ITEMS, claim(GROUPS), **RULES)


@pytest.mark.parametrize(
    ("groups", "changes", "rules", "message"),
    [
        ([1, 1, 1, 0], {}, {}, "allowed: item 0 may not be in group 1"),
        ([0, 1, 1, 1], {}, {}, "keep_together: items 0 and 3 have one key and are in groups 0 and 1"),
        (GROUPS, {}, {"caps": 4}, "caps: group 0 holds 5 of quantity 0, over its cap 4"),
        (GROUPS, {}, {"max_items": 1}, "max_items: group 0 holds 2 items, not 0 to 1"),
        (GROUPS, {}, {"initial_loads": [3, 4]}, "the load of group 0 is 15, not 14"),
        (GROUPS, {}, {"speeds": [1, 2]}, "the loads make a makespan of 14, not makespan = 16"),
        (
            GROUPS,
            {"lower_bound": 15, "bound_name": "water", "status": solvers.SolveStatus.FEASIBLE},
            {},
            "lower_bound = 15, but 'water' proves 10 at most",
        ),
        (
            GROUPS,
            {"lower_bound": 15, "bound_name": "padded", "status": solvers.SolveStatus.FEASIBLE},
            {},
            "lower_bound is by an unknown argument 'padded'; known here are mean, largest, pigeonhole",
        ),
    ],
)
def test_the_checker_names_the_first_violated_rule(
    groups: list[int], changes: dict[str, Any], rules: dict[str, Any], message: str
) -> None:
    with pytest.raises(CertificateError) as caught:
        solvers.check_partition(ITEMS, claim(groups, **changes), **(RULES | rules))
    assert str(caught.value).startswith(message)
