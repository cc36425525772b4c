"""Ranks that hold nothing cost nothing: what searches do does not grow with them, and nothing else changes."""

import sys

import numpy as np
import pytest
from compiled import from_python

import solvers
from solvers.packing import schedule_micro_batches
from solvers.rearrangement._largest_send import SwapSearch, node_view
from solvers.rearrangement._problem import UNLIMITED, RearrangementProblem
from solvers.rearrangement._transport import Rows, dual_value_kernel, kept_by, solve_transport

kept_by = from_python(kept_by)

FEW = [7919 * i % 4000 + 1 for i in range(200)]
HOMES = [i // 8 for i in range(200)]
MANY = 2**14


# --- transport --------------------------------------------------------------------------------------------------------


def transport(num_groups: int, room: int, seed: int, work: int = UNLIMITED) -> tuple[int, int, int]:
    """Forty groups that keep something in some of the first places; returns what is kept, proven, and the work done."""
    rng = np.random.default_rng(seed)
    groups, num_places = np.sort(rng.choice(1000, 40, replace=False)), num_groups // room
    places = [np.sort(rng.choice(30, 3, replace=False)) for _ in groups]
    counts = np.zeros(num_groups, dtype=np.int64)
    counts[groups] = 3
    rows = Rows(
        np.concatenate(([0], np.cumsum(counts))), np.concatenate(places).astype(np.int32), rng.integers(1, 1000, 120),
    )  # fmt: skip
    starts = np.arange(num_places + 1) * room
    assignment = np.repeat(np.arange(num_places, dtype=np.int32), room)
    price = np.empty(num_places, dtype=np.int64)
    left = solve_transport(rows, starts, assignment, price, True, work)
    assert (np.bincount(assignment, minlength=num_places) == room).all()
    return int(kept_by(rows, assignment)), int(dual_value_kernel(rows, starts, price)), work - left


@pytest.mark.parametrize("room", [1, 2, 8])
@pytest.mark.parametrize("seed", range(5))
def test_groups_that_keep_nothing_are_no_work_to_place(room: int, seed: int) -> None:
    few, more, all_of_them = (transport(m, room, seed) for m in (2048, 4096, MANY))
    assert few == more == all_of_them
    kept, proven, _ = transport(1024, room, seed)  # so few are not left out
    assert kept == proven == few[0] == few[1]


@pytest.mark.parametrize("work", [0, 100, 1000, 5000, 20_000])
def test_stopped_early_prices_prove_what_they_can(work: int) -> None:
    kept, proven, _ = transport(2048, 2, 0, work)
    assert kept <= proven <= transport(2048, 2, 0, 0)[1]


# --- the largest send -------------------------------------------------------------------------------------------------


def sends(m: int, spread: int) -> RearrangementProblem:
    """Sixteen ranks that hold something, `spread` apart; nodes of eight such."""
    rng = np.random.default_rng(1)
    busy = np.arange(16) * spread
    volumes = solvers.group_volumes(busy[rng.integers(0, 16, 60)], busy[rng.integers(0, 16, 60)], FEW[:60], m)
    return RearrangementProblem.prepare(volumes, np.arange(m) // (8 * spread), "max", None, None, None)


def test_swaps_do_not_look_at_ranks_that_hold_nothing() -> None:
    found = []
    for m in (64, 4096):
        problem = sends(m, 1)
        ranks = problem.identity()
        left = SwapSearch(problem).lower(ranks, 0, UNLIMITED)
        found.append((UNLIMITED - left, problem.value_of(ranks)))
    assert found[0] == found[1]


def test_a_swap_with_one_group_that_holds_nothing_stands_for_all() -> None:
    spent = []
    for spread in (2, 64):
        problem = sends(16 * spread, spread)
        ranks = problem.identity()
        left = SwapSearch(problem).lower(ranks, 0, UNLIMITED)
        spent.append((UNLIMITED - left, problem.value_of(ranks)))
    assert spent[1][1] == spent[0][1]
    assert spent[1][0] < 8 * spent[0][0]  # 32 times the ranks


def test_nodes_are_looked_at_without_ranks_that_hold_nothing() -> None:
    problem = sends(1024, 64)
    view = node_view(problem, SwapSearch(problem), 1)
    assert view is not None
    assert view.amounts.shape[1] == len(view.ranks) <= 8 < len(view.inside) == 512 == view.rooms.sum()
    padded = sends(1024, 1)
    assert node_view(padded, SwapSearch(padded), 100) is None  # a node that holds nothing


@pytest.mark.parametrize("method", solvers.REARRANGERS)
@pytest.mark.parametrize("ranks_per_node", [8, 512])
def test_every_method_on_nodes_of_idle_ranks(method: str, ranks_per_node: int) -> None:
    rng = np.random.default_rng(2)
    volumes = solvers.group_volumes(rng.integers(0, 1024, 90), rng.integers(0, 1024, 90) // 4 * 4, FEW[:90], 1024)
    nodes = np.arange(1024) // ranks_per_node
    result = solvers.rearrange(volumes, nodes, method=method, time_budget=0.3 if method == "max" else 0.01)
    solvers.check_rearrangement(volumes, nodes, result)


# --- schedules, and all together --------------------------------------------------------------------------------------


def test_ranks_without_samples_are_not_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    module = sys.modules["solvers.packing._schedule_search"]
    packed = []
    pack = module.auto  # type: ignore[attr-defined]
    monkeypatch.setattr(module, "auto", lambda tokens, *given, **more: packed.append(1) or pack(tokens, *given, **more))
    result = schedule_micro_batches(FEW, FEW, MANY, 4000, objective="step", allow_empty=True)
    assert len(packed) == len(np.unique(result.rank_of_item)) <= len(FEW)


@pytest.mark.parametrize("ranks_per_node", [8, MANY], ids=["nodes", "one node"])
def test_few_items_on_many_ranks(ranks_per_node: int) -> None:
    nodes = np.arange(MANY) // ranks_per_node
    groups = solvers.partition(FEW, MANY).group_of_item
    volumes = solvers.group_volumes(groups, HOMES, FEW, MANY)
    for method in ("auto", "greedy", "identity", "sum"):
        for objective in ("sum", "max"):
            result = solvers.rearrange(volumes, nodes, method=method, objective=objective)
            solvers.check_rearrangement(volumes, nodes, result)
            assert result.gap == 0 or objective == "max" or method in ("greedy", "identity")
    for asked in ({}, {"eps": 0.5}, {"sizes": FEW, "caps": 5000}, {"equal_counts": True}):
        moved = solvers.relocate(FEW, HOMES, nodes, **asked)
        solvers.check_relocation(FEW, HOMES, nodes, moved, **{k: v for k, v in asked.items() if k != "eps"})
