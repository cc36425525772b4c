"""Certificates of infeasibility against all assignments: nothing is refused that can be, and what they name is true."""

import itertools
from typing import Any

import constraint_oracles as oracles
import numpy as np
import pytest
import relocation_oracles
from constraint_cases import random_constraints

import solvers
from solvers import InfeasibilityCertificate, InfeasibleError
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


@pytest.mark.parametrize("seed", range(150))
def test_partition(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n, m = int(rng.integers(1, 7)), int(rng.integers(1, 4))
    given = random_constraints(rng, n, m, rate=0.6)
    given = {name: value for name, value in given.items() if name not in ("initial_loads", "speeds")}
    if "caps" in given:
        given["caps"] = (np.array(given["caps"]) * 3 // 4).tolist()
    try:
        solvers.partition([1] * n, m, **given)
    except InfeasibleError as error:
        assert infeasible(given, n, m)
        if error.certificate is not None:
            assert_true(error.certificate, given, n, m)
    else:
        assert not infeasible(given, n, m)


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


@pytest.mark.parametrize("seed", range(30))
def test_relocation(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n, ranks = int(rng.integers(1, 6)), int(rng.integers(1, 4))
    costs, homes = rng.integers(0, 9, n).tolist(), rng.integers(0, ranks, n).tolist()
    given: dict[str, Any] = {"cap": int(sum(costs) / ranks * rng.uniform(0.8, 1.5)) + 1}
    if rng.random() < 0.5:
        given |= {"sizes": rng.integers(0, 6, n).tolist()}
        given["caps"] = [int(sum(given["sizes"]) / ranks * rng.uniform(0.7, 1.6)) for _ in range(ranks)]

    can = len(relocation_oracles.feasible(costs, ranks, **given)) > 0
    try:
        solvers.relocate(costs, homes, [0] * ranks, **given)
    except InfeasibleError as error:
        assert not can
        if (found := error.certificate) is not None:
            amounts = costs if found.constraint == "cap" else given["sizes"]
            in_groups = found.available == ranks < found.needed  # more bins than there are ranks
            assert in_groups or found.needed == sum(amounts[i] for i in found.items)
            assert found.excess > 0
    except solvers.SolverError:
        pass  # neither found nor excluded
    else:
        assert can
