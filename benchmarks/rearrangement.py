"""Groups to ranks on lognormal lengths after LPT, eight ranks a node: what still crosses, and the time to know it.

Run: python benchmarks/rearrangement.py [methods | peers]. Ten seeds, median and worst. Milliseconds are of processor
time, the best of three runs, after compilation, and for `max` of the clock, one run. Every result is checked.
"""

import statistics
import sys
import time

import numpy as np
from ortools.graph.python import min_cost_flow
from scipy.optimize import linear_sum_assignment
from workloads import lognormal_lengths

import solvers
from solvers.rearrangement import USES_CLOCK

RANKS_PER_NODE = 8
SEEDS = range(10)
SHAPES = [(m, per_rank) for m in (64, 512, 2560) for per_rank in (16, 64)]
METHODS = [  # method, objective, budget in seconds
    ("identity", "sum", 0.01),
    ("greedy", "sum", 0.01),
    ("auto", "sum", 0.01),
    ("sum", "sum", 0.01),
    ("sum", "max", 0.01),
    ("auto", "max", 0.01),
    ("auto", "max", 0.1),
    ("max", "max", 5.0),
]


def problem(m, per_rank, seed):
    lengths = lognormal_lengths(m * per_rank, seed)
    groups = solvers.lpt(lengths, m).group_of_item
    volumes = solvers.group_volumes(groups, np.repeat(np.arange(m), per_rank), lengths, m)
    return volumes, np.arange(m) // RANKS_PER_NODE


def milliseconds(function, clock=time.process_time, runs=3):
    best = float("inf")
    for _ in range(runs):
        started = clock()
        result = function()
        best = min(best, clock() - started)
    return result, 1000 * best


def run(method, objective, budget, volumes, nodes):
    clock, runs = (time.perf_counter, 1) if method in USES_CLOCK else (time.process_time, 3)
    result, ms = milliseconds(lambda: solvers.rearrange(volumes, nodes, method, objective, budget), clock, runs)
    solvers.check_rearrangement(volumes, nodes, result)
    mean = volumes.total / volumes.num_ranks
    return (
        100 * result.inter_node_volume / volumes.total,
        100 * result.intra_node_volume / volumes.total,
        result.max_rank_send / mean,
        100 * result.gap,
        result.gap == 0,
        ms,
    )


def row(m, per_rank, method, objective, budget, problems):
    run(method, objective, budget, *problems[0])  # compile all that will be needed
    found = [run(method, objective, budget, *one) for one in problems]
    crosses, inside, send, gap, proven, ms = zip(*found, strict=True)
    median = statistics.median
    print(
        f"| {m * per_rank:,} on {m:,} | `{method}` | {objective} | {budget:g} "
        f"| {median(crosses):.2f} | {max(crosses):.2f} | {median(inside):.2f} "
        f"| {median(send):.3f} | {max(send):.3f} | {median(gap):.2f} | {max(gap):.2f} "
        f"| {sum(proven)} of {len(SEEDS)} | {median(ms):.1f} | {max(ms):.1f} |",
        flush=True,
    )


def methods():
    print("| samples on ranks | method | objective | budget, s | crosses %, median | worst | inside %, median ", end="")
    print("| largest send, median | worst | gap %, median | worst | proven | ms, median | worst |")
    print("|---|---|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|")
    for m, per_rank in SHAPES:
        problems = [problem(m, per_rank, seed) for seed in SEEDS]
        for method, objective, budget in METHODS:
            row(m, per_rank, method, objective, budget, problems)


def kept_in_nodes(volumes, nodes):
    kept = np.zeros((volumes.num_ranks, int(nodes.max()) + 1), dtype=np.int64)
    groups = np.repeat(np.arange(volumes.num_ranks), np.diff(volumes.offsets))
    np.add.at(kept, (groups, nodes[volumes.ranks]), volumes.amounts)
    return kept


def scipy_dense(volumes, nodes):
    slots = kept_in_nodes(volumes, nodes)[:, nodes]
    return volumes.total - int(slots[linear_sum_assignment(slots, maximize=True)].sum())


def ortools_flow(volumes, nodes):
    """Arcs where something is kept, and one hub for all other pairs."""
    kept = kept_in_nodes(volumes, nodes)
    m, num_nodes = kept.shape
    hub = m + num_nodes
    groups, places = np.nonzero(kept)
    flow = min_cost_flow.SimpleMinCostFlow()
    flow.add_arcs_with_capacity_and_unit_cost(groups, m + places, np.ones(len(groups), int), -kept[groups, places])
    flow.add_arcs_with_capacity_and_unit_cost(np.arange(m), np.full(m, hub), np.ones(m, int), np.zeros(m, int))
    flow.add_arcs_with_capacity_and_unit_cost(
        np.full(num_nodes, hub), m + np.arange(num_nodes), np.full(num_nodes, m), np.zeros(num_nodes, int)
    )
    supplies = np.concatenate([np.ones(m, int), -np.bincount(nodes), [0]])
    flow.set_nodes_supplies(np.arange(len(supplies)), supplies)
    assert flow.solve() == flow.OPTIMAL
    return volumes.total + flow.optimal_cost()


def ours(volumes, nodes):
    return solvers.rearrange(volumes, nodes, "sum").inter_node_volume


def peers():
    print("| samples on ranks | `rearrange`, `sum`: ms | OR-Tools min-cost flow: ms | SciPy dense assignment: ms |")
    print("|---|--:|--:|--:|")
    for m, per_rank in SHAPES:
        times = []
        for seed in SEEDS:
            volumes, nodes = problem(m, per_rank, seed)
            found = [
                milliseconds(lambda f=f, v=volumes, n=nodes: f(v, n), runs=2) for f in (ours, ortools_flow, scipy_dense)
            ]
            assert len({value for value, _ in found}) == 1  # the same optimum
            times.append([ms for _, ms in found])
        columns = " | ".join(f"{statistics.median(column):.1f}" for column in zip(*times, strict=True))
        print(f"| {m * per_rank:,} on {m:,} | {columns} |", flush=True)


def main() -> None:
    for name in sys.argv[1:] or ("methods", "peers"):
        {"methods": methods, "peers": peers}[name]()


if __name__ == "__main__":
    main()
