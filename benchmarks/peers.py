"""Beside public packages, in one run: the gap each leaves to the proven bound, and the time it takes.

Run: pip install prtpy numberpartitioning binpacking; pip install --no-deps verl; python benchmarks/peers.py
A package that is not installed is left out. Of verl, one file is loaded by path, and what that
imports is replaced by blanks.
"""

import importlib.util
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from unittest.mock import MagicMock

from workloads import lognormal_lengths

import balancer
import solvers

Split = Callable[[list[int], int], list[int]]  # costs and groups -> the groups' loads
SEEDS = range(100, 103)
PATIENCE_S = 20.0  # a method that took longer on one size is not asked the next


def ours(method: str, **options: object) -> Split:
    return lambda costs, m: solvers.partition(costs, m, method, stop_at=0, **options).loads.tolist()


def installed(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


def of_indices(solve: Callable[[list[int], int], list[list[int]]]) -> Split:
    return lambda costs, m: [sum(costs[i] for i in group) for group in solve(costs, m)]


def verl_functions() -> Iterator[tuple[str, Split]]:
    folder = importlib.util.find_spec("verl").submodule_search_locations[0]
    for blank in ("torch", "verl", "verl.protocol", "verl.utils", "verl.utils.device"):
        sys.modules.setdefault(blank, MagicMock())
    spec = importlib.util.spec_from_file_location("peer", f"{folder}/utils/seqlen_balancing.py")
    peer = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(peer)
    yield "verl karmarkar_karp", of_indices(lambda costs, m: peer.karmarkar_karp(costs, m, False))
    yield "verl karmarkar_karp, equal size", of_indices(lambda costs, m: peer.karmarkar_karp(costs, m, True))
    yield "verl greedy_partition", of_indices(lambda costs, m: peer.greedy_partition(costs, m, False))


def peers() -> Iterator[tuple[str, Split]]:
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
            algorithm = getattr(prtpy.partitioning, name)
            yield (
                f"prtpy {name}",
                lambda costs, m, a=algorithm: prtpy.partition(a, m, costs, outputtype=prtpy.out.Sums),
            )
    if installed("binpacking"):
        import binpacking

        yield (
            "binpacking to_constant_bin_number",
            lambda costs, m: [sum(group) for group in binpacking.to_constant_bin_number(costs, m)],
        )


def main() -> None:
    balancer.warmup()
    methods = list(peers())
    print("| costs | items on groups | method | median gap | worst | ms |")
    print("|---|--:|---|--:|--:|--:|")
    for kind, cost in (("linear", balancer.CostModel()), ("quadratic", balancer.CostModel(a=24576, b=1))):
        too_slow = set()
        for n, m in ((512, 8), (4096, 64), (16384, 256)):
            for name, split in methods:
                if name in too_slow:
                    continue
                gaps, times = [], []
                for seed in SEEDS:
                    costs = cost.sample_costs(lognormal_lengths(n, seed))
                    bound = solvers.makespan_lower_bound(costs, m, "equal" in name)
                    as_list = costs.tolist()
                    started = time.perf_counter()
                    loads = split(as_list, m)
                    times.append(time.perf_counter() - started)
                    gaps.append(max(loads) / bound - 1)
                if max(times) > PATIENCE_S:
                    too_slow.add(name)
                middle, worst = f"{statistics.median(gaps) * 1e6:,.2f} ppm", f"{max(gaps) * 1e6:,.2f} ppm"
                print(
                    f"| {kind} | {n:,} on {m} | {name} | {middle} | {worst} | {statistics.median(times) * 1e3:,.2f} |"
                )


if __name__ == "__main__":
    main()
