"""Two ranks that share their items anew: rules are kept, no more crosses, and few items a rank stay near home."""

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from nightly import examples

import balancer
import solvers
from solvers.relocation._pairs import Totals, share_anew
from solvers.relocation._problem import Limits, RelocationProblem
from solvers.relocation.auto import SHARED, change_ranks

LOG = Path(__file__).parents[2] / "data" / "omni_mix_dev.parquet"


def few_a_rank(ranks: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Four items a rank, none of them long: the makespan is the mean, and hardly any change of it is allowed."""
    costs = np.random.default_rng(seed).integers(100, 3000, 4 * ranks)
    return costs, np.repeat(np.arange(ranks), 4), np.arange(ranks) // 4


@pytest.mark.parametrize("equal_counts", [False, True], ids=["free", "equal_counts"])
def test_what_two_ranks_share_anew_keeps_all_rules(equal_counts: bool) -> None:
    for seed in range(examples(3)):
        rng = np.random.default_rng(seed)
        ranks, n = 6, int(rng.integers(6, 80))
        costs, sizes, home = rng.integers(0, 50, n), rng.integers(0, 9, n), rng.integers(0, ranks, n)
        nodes, where = np.array([0, 1, 0, 2, 1, 1]), np.arange(n, dtype=np.int32) % ranks
        loads = np.bincount(where, weights=costs, minlength=ranks).astype(np.int64)
        held = np.bincount(where, weights=sizes, minlength=ranks).astype(np.int64)
        cap, room, counts = int(loads.max()), held + 1, np.bincount(where, minlength=ranks).astype(np.int64)
        problem = RelocationProblem.prepare(costs, home, nodes, None, None, equal_counts, sizes, room)
        before = int(costs[nodes[where] != nodes[home]].sum())
        few, most = (n // ranks, -(-n // ranks)) if equal_counts else (0, n)
        limits, totals = Limits(cap, room, few, most), Totals(loads, held, counts)
        crossing = share_anew(problem.items, problem.nodes, limits, where, totals, 0, 30_000)
        assert crossing == costs[nodes[where] != nodes[home]].sum() <= before
        assert problem.is_feasible(where, cap)
        for array, weights in ((loads, costs), (held, sizes), (counts, None)):
            assert array.tolist() == np.bincount(where, weights=weights, minlength=ranks).tolist()


def test_ranks_of_a_node_change_places() -> None:
    home, nodes = np.array([0, 0, 1, 2, 3, 3]), np.array([0, 1, 0, 1])
    problem = RelocationProblem.prepare([5, 4, 3, 2, 1, 1], home, nodes, None, None, False, None, None)
    where = np.array([2, 2, 3, 0, 1, 1], dtype=np.int32)
    assert change_ranks(problem, where).tolist() == [0, 0, 1, 2, 3, 3]
    tight = RelocationProblem.prepare([5, 4, 3, 2, 1, 1], home, nodes, None, None, False, [1] * 6, [1, 2, 2, 1])
    assert change_ranks(tight, where).tolist() == where.tolist(), "caps that differ were kept as it is"


@pytest.mark.parametrize("equal_counts", [False, True], ids=["free", "equal_counts"])
def test_few_items_a_rank_stay_near_home(equal_counts: bool) -> None:
    """The partition rearranged sends about half across nodes."""
    costs, home, nodes = few_a_rank(32, 1)
    result = solvers.relocate(costs, home, nodes, eps=0.01, equal_counts=equal_counts)
    solvers.check_relocation(costs, home, nodes, result, equal_counts=equal_counts)
    rearranged = solvers.relocate(costs, home, nodes, cap=result.cap, equal_counts=equal_counts, method="rearrange")
    assert not result.fell_back
    assert 2 * result.inter_node_volume < rearranged.inter_node_volume
    assert result == solvers.relocate(costs, home, nodes, eps=0.01, equal_counts=equal_counts)


@pytest.mark.parametrize("equal_counts", [False, True], ids=["free", "equal_counts"])
def test_what_began_as_a_partition_says_why(equal_counts: bool) -> None:
    """Nothing under this cap is found from home. Ranks that share anew what groups brought them make up for half."""
    costs, home, nodes = few_a_rank(16, 1)
    result = solvers.relocate(costs, home, nodes, eps=0.001, equal_counts=equal_counts)
    solvers.check_relocation(costs, home, nodes, result, equal_counts=equal_counts)
    rearranged = solvers.relocate(costs, home, nodes, cap=result.cap, equal_counts=equal_counts, method="rearrange")
    assert result.inter_node_volume < 0.8 * rearranged.inter_node_volume
    assert result.fell_back == SHARED
    plan = balancer.balance(costs, 16, 4, home, equal_counts=equal_counts, stop_at=0)
    assert plan.fell_back == SHARED
    assert plan.inter_node_volume < 0.8 * rearranged.inter_node_volume, "what ranks share anew is kept"


@pytest.mark.parametrize(("first", "most"), [(40_992, 1.02), (25_280, 1.25)], ids=["divided anew", "pairs"])
def test_what_swaps_cannot_repair_crosses_no_more_than_it_must(first: int, most: float) -> None:
    """Steps of the shipped log: of one, all ranks fit once a node is divided anew; of the other, pairs across too."""
    columns = pq.read_table(LOG, columns=["text_tokens", "image_tokens", "audio_tokens"])[first : first + 1024]
    costs = sum(column.to_numpy() for column in columns.columns).astype(np.int64)
    home, nodes = np.repeat(np.arange(64), 16), np.arange(64) // 8
    groups = solvers.partition(costs, 64).group_of_item
    result = solvers.relocate(costs, home, nodes, eps=0.001, groups=groups, time_budget=0.01)
    solvers.check_relocation(costs, home, nodes, result)
    assert result.inter_node_volume <= most * result.inter_bound


@pytest.mark.parametrize("spare", [1.02, 1.1])
def test_equal_counts_and_token_caps_stay_near_home(spare: float) -> None:
    """Nodes exchange items with no regard to caps, and ranks that hold too many tokens share theirs anew."""
    rng = np.random.default_rng(3)
    tokens = rng.integers(1, 1000, 16 * 20)
    costs, home, nodes = 500 * tokens + tokens**2, np.repeat(np.arange(16), 20), np.arange(16) // 4
    caps = int(spare * tokens.sum() / 16)
    given = {"volumes": tokens, "equal_counts": True, "sizes": tokens, "caps": caps}
    result = solvers.relocate(costs, home, nodes, eps=0.01, **given)
    solvers.check_relocation(costs, home, nodes, result, **given)
    assert not result.fell_back
    assert result.inter_node_volume <= 2 * result.inter_bound
