"""Limits of micro-batches besides the cap: what solvers lay out, against a naive reading and all ways there are."""

import itertools

import numpy as np
import pytest

from solvers import CertificateError, InfeasibleError, SolverError, check_schedule
from solvers.packing import BatchLimits, fill_sorted, schedule_micro_batches

SYNCS = ("micro_batch", "step", "pipeline")


def limits_of(rng: np.random.Generator, n: int, tokens: np.ndarray, which: str) -> BatchLimits:
    sizes, caps = np.zeros((n, 0), dtype=np.int64), np.zeros(0, dtype=np.int64)
    if "sum" in which:
        sizes = rng.integers(0, 30, (n, 2))
        caps = np.maximum(sizes.max(axis=0, initial=1), rng.integers(40, 90, 2))
    return BatchLimits(
        sizes, caps, most_items=int(rng.integers(3, 9)) if "count" in which else None,
        padded=int(tokens.max(initial=1) * rng.integers(2, 5)) if "padded" in which else None,
        kinds=rng.integers(0, 3, n) if "kinds" in which else None,
        everywhere=rng.random(n) < 0.4 if "everywhere" in which else None,
    )  # fmt: skip


def broken(tokens: np.ndarray, cap: int, limits: BatchLimits, ranks: np.ndarray, slots: np.ndarray, shape: tuple):
    """Which limit micro-batches break, read sample by sample."""
    for k in range(shape[1]):
        has = []
        for rank in range(shape[0]):
            mine = [i for i in range(len(tokens)) if (ranks[i], slots[i]) == (rank, k)]
            if sum(tokens[i] for i in mine) > cap:
                return "cap"
            if any(sum(limits.sizes[i, q] for i in mine) > limits.caps[q] for q in range(len(limits.caps))):
                return "sum"
            if limits.most_items is not None and len(mine) > limits.most_items:
                return "count"
            if limits.padded is not None and mine and len(mine) * max(tokens[i] for i in mine) > limits.padded:
                return "padded"
            if limits.kinds is not None and len({limits.kinds[i] for i in mine}) > 1:
                return "kinds"
            has.append(limits.everywhere is not None and any(limits.everywhere[i] for i in mine))
        if any(has) and not all(has):
            return "everywhere"
    return ""


@pytest.mark.parametrize(
    "which", ["sum count everywhere", "sum count kinds", "sum count padded", "padded kinds", "padded everywhere"]
)
def test_every_micro_batch_keeps_to_all_limits(which: str):
    rng = np.random.default_rng(sum(map(ord, which)))
    for turn in range(3):
        n, ranks = int(rng.integers(60, 120)), int(rng.integers(2, 5))
        tokens, costs = rng.integers(1, 100, n), rng.integers(0, 1000, n)
        limits = limits_of(rng, n, tokens, which)
        found = schedule_micro_batches(costs, tokens, ranks, 400, sync=SYNCS[turn % 3], limits=limits, time_budget=0.01)
        shape = ranks, found.num_slots
        assert not broken(tokens, 400, limits, found.rank_of_item, found.slot_of_item, shape)
        held = np.bincount(found.rank_of_item * found.num_slots + found.slot_of_item, minlength=shape[0] * shape[1])
        assert held.min() > 0  # nobody asked for empty ones
        check_schedule(costs, tokens, found, num_ranks=ranks, cap=400, sync=SYNCS[turn % 3], limits=limits)


@pytest.mark.parametrize("which", ["sum", "count", "padded", "kinds", "everywhere"])
def test_what_is_found_and_what_is_infeasible_against_all_ways_there_are(which: str):
    rng, excess, misses = np.random.default_rng(3), [], 0
    for turn in range(10):
        n, ranks, slots, sync = 5, 2, 2, SYNCS[turn % 2]
        tokens, costs = rng.integers(1, 10, n), rng.integers(1, 50, n)
        limits = limits_of(rng, n, tokens, which)
        if limits.caps.size:
            limits = limits._replace(caps=np.maximum(limits.sizes.max(axis=0), 40))
        best = None
        for bins in itertools.product(range(ranks * slots), repeat=n):
            rank, slot = np.divmod(np.array(bins), slots)
            loads = np.bincount(bins, weights=costs, minlength=4).astype(int).reshape(2, 2)
            value = loads.max(axis=0).sum() if sync == "micro_batch" else loads.sum(axis=1).max()
            if (
                len(set(bins)) == 4
                and (best is None or value < best)
                and not broken(tokens, 25, limits, rank, slot, (2, 2))
            ):
                best = value
        try:
            found = schedule_micro_batches(costs, tokens, ranks, 25, sync=sync, num_slots=slots, limits=limits)
        except InfeasibleError:
            assert best is None
            continue
        except SolverError:
            misses += best is not None
            continue
        assert best is not None
        assert found.lower_bound <= best <= found.value
        excess.append(found.value / best - 1)
    assert misses == 0
    # Sorted samples are cut where they lie; and which sample stays in a bin is not searched.
    assert np.mean(excess) < {"padded": 0.25, "everywhere": 0.1}.get(which, 0.05)


def test_few_samples_of_a_kind_share_slots_with_other_kinds():
    kinds = np.array([0] * 3 + [1] * 5 + [2] * 40)
    tokens = np.full(48, 10)
    limits = BatchLimits(np.zeros((48, 0), dtype=np.int64), np.zeros(0, dtype=np.int64), kinds=kinds)
    found = schedule_micro_batches(tokens, tokens, 8, 100, num_slots=1, limits=limits)
    assert not broken(tokens, 100, limits, found.rank_of_item, found.slot_of_item, (8, 1))


@pytest.mark.parametrize(("share", "power"), [(0.1, 2), (0.9, 1)])
def test_samples_that_all_ranks_have_make_a_step_hardly_longer(share: float, power: int):
    """A tall slot is one of theirs, which has room for them beside the largest; the cheapest stay, one in each bin."""
    rng = np.random.default_rng(int(10 * share))
    lengths = np.clip(rng.lognormal(7, 1, 1024).astype(np.int64), 1, 16_384)
    everywhere = rng.random(1024) < share
    limits = BatchLimits(np.zeros((1024, 0), dtype=np.int64), np.zeros(0, dtype=np.int64), everywhere=everywhere)
    asked = {"num_ranks": 64, "cap": 32_768, "num_slots": 4, "time_budget": 0.01}
    plain, found = (schedule_micro_batches(lengths**power, lengths, limits=each, **asked) for each in (None, limits))
    check_schedule(lengths**power, lengths, found, num_ranks=64, cap=32_768, limits=limits)
    assert found.value <= 1.01 * plain.value


def test_too_few_samples_for_all_ranks_are_named():
    limits = BatchLimits(np.zeros((9, 0), np.int64), np.zeros(0, np.int64), everywhere=np.arange(9) < 2)
    with pytest.raises(InfeasibleError, match=r"2 samples are to be on all ranks .* there are 3 ranks, short by 1"):
        schedule_micro_batches([1] * 9, [1] * 9, 3, 9, limits=limits)


def test_padded_costs_are_even_and_padded_little():
    rng = np.random.default_rng(1)
    tokens = np.clip(rng.lognormal(5, 0.6, 256), 10, 2000).astype(np.int64)
    none = BatchLimits(np.zeros((256, 0), np.int64), np.zeros(0, np.int64), most_items=24)
    layout = fill_sorted(tokens, tokens, 8, 2, int(tokens.sum()), none, sync="step", pays_padding=True)
    bins = [tokens[layout == k] for k in range(16)]
    padded = np.array([len(mine) * mine.max() for mine in bins])
    assert max(map(len, bins)) <= 24
    assert padded.sum() < 1.25 * tokens.sum()  # drawn at random, 2.4 times
    assert padded.reshape(8, 2).sum(axis=1).max() < 1.08 * padded.sum() / 8


def test_the_check_finds_a_limit_that_is_not_kept():
    tokens, nothing = np.full(12, 10), np.zeros((12, 0), dtype=np.int64)
    found = schedule_micro_batches(tokens, tokens, 2, 30)
    of_sizes = BatchLimits(np.arange(12)[:, None], np.array([11]))
    some = np.arange(12) == found.rank_of_item.argmin()
    for limits, words in (
        (of_sizes, "of quantity 0, over its limit 11"),
        (BatchLimits(nothing, np.zeros(0), most_items=2), "holds 3 items, over 2"),
        (BatchLimits(nothing, np.zeros(0), padded=29), "is padded to 30, over 29"),
        (BatchLimits(nothing, np.zeros(0), kinds=np.arange(12)), "holds items of two kinds"),
        (BatchLimits(nothing, np.zeros(0), everywhere=some), "some ranks have an item that all should have"),
    ):
        with pytest.raises(CertificateError, match=words):
            check_schedule(tokens, tokens, found, num_ranks=2, cap=30, limits=limits)
