"""How does it compare with what other packages and trainers have on board?

    pip install prtpy numberpartitioning binpacking; pip install --no-deps verl
    python benchmarks/peers.py [packages] [samplers] [schedulers] [--quick]

What is not installed is left out. Of verl one file is loaded by path, and what that imports is replaced by blanks. In
`packages` a method that took over 20 s is not asked for the next size. `batch_rebalance` is transformers' own sampler.
`dp_balanced` is Megatron-core's rule, written anew: packs in the order of the samples until one is full; and then,
until their number divides, the last sample of the last pack that has two becomes a pack. Lengths are lognormal (mean
2,000, sigma 1), by fixed seeds. About three minutes of one core with all packages; `--quick` half a minute.
"""

import importlib.util
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import MagicMock, patch

import common
import numpy as np
from common import COSTS, Table

import solvers
from balancer.compat import BalancedBatchSampler
from balancer.compat.megatron import BalancedPackingScheduler
from balancer.cost import parse_cost

Split = Callable[[list[int], int], list[int]]  # costs and groups -> the groups' loads
PATIENCE_S = 20.0
BATCH = 16


def installed(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


def ours(method: str, **options: object) -> Split:
    return lambda costs, m: solvers.partition(costs, m, method, stop_at=0, **options).loads.tolist()


def of_indices(solve: Callable[[list[int], int], list[list[int]]]) -> Split:
    return lambda costs, m: [sum(costs[i] for i in group) for group in solve(costs, m)]


def verl_functions() -> Iterator[tuple[str, Split]]:
    folder = importlib.util.find_spec("verl").submodule_search_locations[0]
    spec = importlib.util.spec_from_file_location("peer", f"{folder}/utils/seqlen_balancing.py")
    peer = importlib.util.module_from_spec(spec)
    blank = dict.fromkeys(("torch", "verl", "verl.protocol", "verl.utils", "verl.utils.device"), MagicMock())
    with patch.dict(sys.modules, blank):
        spec.loader.exec_module(peer)
    yield "verl karmarkar_karp", of_indices(lambda costs, m: peer.karmarkar_karp(costs, m, False))
    yield "verl karmarkar_karp, equal size", of_indices(lambda costs, m: peer.karmarkar_karp(costs, m, True))
    yield "verl greedy_partition", of_indices(lambda costs, m: peer.greedy_partition(costs, m, False))


def ways() -> Iterator[tuple[str, Split]]:
    yield "seqbalancer auto", ours("auto")
    yield "seqbalancer auto, equal counts", ours("auto", equal_counts=True)
    yield "seqbalancer karmarkar_karp", ours("karmarkar_karp")
    if installed("verl"):
        yield from verl_functions()
    if installed("numberpartitioning"):
        import numberpartitioning

        yield "numberpartitioning karmarkar_karp", lambda costs, m: numberpartitioning.karmarkar_karp(costs, m).sizes
        yield "numberpartitioning greedy", lambda costs, m: numberpartitioning.greedy(costs, m).sizes
    if installed("prtpy"):
        import prtpy

        for name in ("greedy", "multifit", "kk"):
            method = getattr(prtpy.partitioning, name)
            yield f"prtpy {name}", lambda costs, m, of=method: prtpy.partition(of, m, costs, outputtype=prtpy.out.Sums)
    if installed("binpacking"):
        import binpacking

        name = "binpacking to_constant_bin_number"
        yield name, lambda costs, m: list(map(sum, binpacking.to_constant_bin_number(costs, m)))


def packages(quick: bool) -> None:
    """Public packages: gap to the proven bound in ppm, and time over that of our `auto`."""
    table = Table("costs", "items on groups", "method", "gap, ppm: median", "worst", "ms", "time over auto's")
    every = list(ways())
    for cost in COSTS:
        too_slow = set()
        for n, m in ((512, 8), (4096, 64), (16_384, 256))[: 1 if quick else 3]:
            first = 0.0
            for name, split in every:
                if name in too_slow:
                    continue
                gaps, times = [], []
                for seed in range(100, 103):
                    costs = common.priced(common.lognormal(n, seed), cost)
                    bound = solvers.makespan_lower_bound(costs, m, "equal" in name)
                    as_list = costs.tolist()
                    started = time.thread_time()
                    loads = split(as_list, m)
                    times.append(time.thread_time() - started)
                    gaps.append(1e6 * (max(loads) / bound - 1))
                too_slow |= {name} if max(times) > PATIENCE_S else set()
                middle = statistics.median(times)
                first = first or middle
                cells = f"{statistics.median(gaps):,.2f}", f"{max(gaps):,.2f}", f"{1e3 * middle:,.2f}"
                table.row(cost, f"{n:,} on {m}", name, *cells, f"{middle / first:,.1f}")


# Samplers: Hugging Face


MEASURES: dict[str, Callable[[np.ndarray], float]] = {
    "tokens": np.sum,
    "padded tokens": lambda lengths: len(lengths) * lengths.max(),
    # Rows times a longest one, whose square counts a thousandth.
    "batch_rebalance's cost": lambda lengths: len(lengths) * (lengths.max() + 0.001 * float(lengths.max()) ** 2),
}
PADDED = {"cost": "padded:a=1000,b=1"}  # the same


def theirs(lengths: np.ndarray, ranks: int) -> list[Any]:
    """Batches of every rank, as transformers' sampler makes them."""
    from transformers.trainer_pt_utils import BatchRebalanceSampler

    made = [BatchRebalanceSampler(lengths.tolist(), BATCH * ranks, ranks, 1, rank=rank) for rank in range(ranks)]
    return list(zip(*made, strict=True))


def our_batches(lengths: np.ndarray, ranks: int, **options: Any) -> list[Any]:
    batches = iter(BalancedBatchSampler(lengths, BATCH, ranks, "all", **options))
    return list(zip(*[batches] * ranks, strict=True))


def samplers(quick: bool) -> None:
    """An epoch of 16 samples a rank, of at most 8,192 tokens: largest over mean load of ranks, by what is measured."""
    made = {
        "ours, linear": our_batches,
        "ours, padded": lambda *of: our_batches(*of, **PADDED),
        "ours, padded, window=24": lambda *of: our_batches(*of, **PADDED, window=24),
    }
    made |= {"`batch_rebalance`": theirs} if installed("transformers") else {}
    table = Table("ranks, sampler", *MEASURES, "padding", "ms a step and rank over ours, linear")
    for ranks in (8,) if quick else (8, 32):
        base = 0.0
        for name, make in made.items():
            ratios: list[list[float]] = []
            padding, seconds, steps = [], 0.0, 0
            for seed in range(1 if quick else 3):
                lengths = common.lognormal(16_384, seed, 8192)
                started = time.thread_time()
                found = make(lengths, ranks)
                seconds, steps = seconds + time.thread_time() - started, steps + len(found)
                each = [np.array([[measure(lengths[list(batch)]) for batch in step] for step in found])
                        for measure in MEASURES.values()]  # fmt: skip
                ratios.append([loads.max(axis=1).sum() / loads.mean(axis=1).sum() for loads in each])
                padding.append(1 - lengths.sum() / each[1].sum())
            # Theirs runs once a rank here: a rank waits for its own alone.
            spent = seconds / steps / (ranks if make is theirs else 1)
            base = base or spent
            table.row(f"{ranks}, {name}", *np.mean(ratios, axis=0).tolist(), f"{statistics.mean(padding):.1%}",
                      f"{spent / base:.1f}")  # fmt: skip


# Schedulers: Megatron-core


def dp_balanced(lengths: np.ndarray, cap: int, ranks: int) -> list[list[list[int]]]:
    """Micro-batches of all ranks by the stock rule: [k][rank] -> ids."""
    packs, filled = [[]], 0
    for index, length in enumerate(lengths.tolist()):
        if filled + length > cap:
            packs.append([])
            filled = 0
        packs[-1].append(index)
        filled += length
    last = len(packs) - 1
    while len(packs) % ranks:
        if len(packs[last]) > 1:
            packs.append([packs[last].pop()])
        else:
            last -= 1
    return [packs[first : first + ranks] for first in range(0, len(packs), ranks)]


def schedulers(quick: bool) -> None:
    """Ranks meet in every micro-batch of 32,768 tokens, 64 samples a rank: time over that of an even step."""
    table = Table("ranks", "`dp_balanced`", "ours", "ratio", "micro-batches a rank", "ours", "ms a step, ours")
    cap, cost = 32_768, parse_cost(BalancedPackingScheduler.cost)
    for ranks in (8,) if quick else (8, 32):
        scheduler = BalancedPackingScheduler(cap, 1, ranks)
        made = {
            "stock": lambda lengths, ranks=ranks: dp_balanced(lengths, cap, ranks),
            "ours": lambda lengths, scheduler=scheduler: scheduler.get_groups_and_subsamples(enumerate(lengths)),
        }
        taken, slots, even, spent = dict.fromkeys(made, 0), dict.fromkeys(made, 0), 0.0, 0.0
        steps = [step for seed in range(1 if quick else 5) for step in np.split(common.lognormal(256 * ranks, seed), 4)]
        for lengths in steps:
            costs = cost.sample_costs(lengths)
            even += int(costs.sum()) / ranks
            for name, make in made.items():
                grid, ms = common.timed(lambda make=make, lengths=lengths: make(lengths))
                spent += ms if name == "ours" else 0
                taken[name] += sum(max(int(costs[list(pack)].sum()) for pack in slot) for slot in grid)
                slots[name] += len(grid)
        each = [count / len(steps) for count in slots.values()]
        table.row(str(ranks), *(value / even for value in taken.values()), taken["stock"] / taken["ours"], *each,
                  spent / len(steps))  # fmt: skip


if __name__ == "__main__":
    common.main(__doc__, packages, samplers, schedulers)
