"""Ranks that hold nothing cost nothing: what searches do does not grow with them, and nothing else changes."""

import sys

import numpy as np
import pytest

import solvers
from solvers.packing import schedule_micro_batches

FEW = [7919 * i % 4000 + 1 for i in range(200)]
HOMES = [i // 8 for i in range(200)]
MANY = 2**14


@pytest.mark.parametrize("method", ["greedy", "sum"])
@pytest.mark.parametrize("ranks_per_node", [8, 512])
def test_every_method_on_nodes_of_idle_ranks(method: str, ranks_per_node: int) -> None:
    rng = np.random.default_rng(2)
    volumes = solvers.group_volumes(rng.integers(0, 1024, 90), rng.integers(0, 1024, 90) // 4 * 4, FEW[:90], 1024)
    nodes = np.arange(1024) // ranks_per_node
    result = solvers.rearrange(volumes, nodes, method=method)
    solvers.check_rearrangement(volumes, nodes, result)


def test_ranks_without_samples_are_not_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    module = sys.modules["solvers.packing._schedule_search"]
    searched = []
    bins = module.Bins  # type: ignore[attr-defined]
    monkeypatch.setattr(module, "Bins", lambda *given: searched.append(given) or bins(*given))
    result = schedule_micro_batches(FEW, FEW, MANY, 4000, sync="step", allow_empty=True)
    assert len(np.unique(result.rank_of_item)) <= len(FEW)
    assert not searched


@pytest.mark.parametrize("ranks_per_node", [8, MANY], ids=["nodes", "one node"])
def test_few_items_on_many_ranks(ranks_per_node: int) -> None:
    nodes = np.arange(MANY) // ranks_per_node
    groups = solvers.partition(FEW, MANY).group_of_item
    volumes = solvers.group_volumes(groups, HOMES, FEW, MANY)
    for method in ("greedy", "sum"):  # a matrix of all ranks would be 2 GB
        result = solvers.rearrange(volumes, nodes, method=method)
        solvers.check_rearrangement(volumes, nodes, result)
        assert result.status == "optimal" or method == "greedy"
    for asked in ({}, {"eps": 0.5}, {"sizes": FEW, "caps": 5000}, {"equal_counts": True}):
        moved = solvers.relocate(FEW, HOMES, nodes, **asked)
        solvers.check_relocation(FEW, HOMES, nodes, moved, **{k: v for k, v in asked.items() if k != "eps"})
