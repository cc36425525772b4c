"""Pipelines in the most naive way: events over lists of ops, longest paths by networkx, optima by trying everything."""

import itertools
from collections.abc import Sequence

import networkx as nx
import numpy as np

Op = tuple[int, int, bool]


def op_before(op: Op, stages: int) -> Op | None:
    """The op of the same slot that must end first."""
    slot, stage, backward = op
    if not backward:
        return (slot, stage - 1, False) if stage else None
    return (slot, stage + 1, True) if stage + 1 < stages else (slot, stage, False)


def ends_by_events(lists: Sequence[Sequence[Op]], loads, forward, backward, hop=0, fixed=None) -> dict[Op, int]:
    """When each op ends: the clock goes on to the next op that can start."""
    took = durations(loads, forward, backward, fixed)
    stages = len(forward[0])
    ends: dict[Op, int] = {}
    free, queues = [0] * len(lists), [list(each) for each in lists]
    while any(queues):
        starts = []
        for device, queue in enumerate(queues):
            before = op_before(queue[0], stages) if queue else None
            if queue and (before is None or before in ends):
                arrives = 0 if before is None else ends[before] + hop * (before[1] % len(lists) != device)
                starts.append((max(free[device], arrives), device))
        start, device = min(starts)
        op = queues[device].pop(0)
        free[device] = ends[op] = start + took[op]
    return ends


def durations(loads, forward, backward, fixed=None) -> dict[Op, int]:
    stages = len(forward[0])
    fixed = fixed or ([0] * stages, [0] * stages)
    return {
        (k, s, back): fixed[back][s] + sum(x * unit[m][s] for m, x in enumerate(load))
        for k, load in enumerate(loads)
        for s in range(stages)
        for back, unit in ((False, forward), (True, backward))
    }


def makespan_by_networkx(lists: Sequence[Sequence[Op]], loads, forward, backward, hop=0, fixed=None) -> int:
    took = durations(loads, forward, backward, fixed)
    graph = nx.DiGraph()
    for device, each in enumerate(lists):
        for at, op in enumerate(each):
            graph.add_edge("start", op, weight=took[op])
            if at:
                graph.add_edge(each[at - 1], op, weight=took[op])
            before = op_before(op, len(forward[0]))
            if before is not None:
                away = hop * (before[1] % len(lists) != device)
                graph.add_edge(
                    before, op, weight=max(took[op] + away, graph.get_edge_data(before, op, {"weight": 0})["weight"])
                )
    return nx.dag_longest_path_length(graph)


def one_f_one_b_lists(num_slots: int, num_stages: int) -> list[list[Op]]:
    """By what it means: stage s may hold S - s slots, and runs a backward as soon as it holds so many."""
    lists = []
    for stage in range(num_stages):
        ops, ahead, back = [], 0, 0
        while back < num_slots:
            if ahead < num_slots and ahead - back < num_stages - stage:
                ops.append((ahead, stage, False))
                ahead += 1
            else:
                ops.append((back, stage, True))
                back += 1
        lists.append(ops)
    return lists


def best_makespan(
    work, forward, backward, replicas, lists, *, hop=0, fixed=None, sizes=None, cap=None, in_flight_cap=None,
    tied=False, allow_empty=False,
) -> int | None:  # fmt: skip
    """Least makespan over all ways to put items into slots; None if none is permitted."""
    slots = 1 + max(op[0] for op in lists[0])
    work = np.asarray(work)
    best = None
    for cells in itertools.product(range(replicas * slots), repeat=len(work)):
        if not allow_empty and len(set(cells)) < replicas * slots:
            continue
        loads = np.zeros((replicas * slots, work.shape[1]), dtype=int)
        np.add.at(loads, list(cells), work)
        if sizes is not None:
            held = np.bincount(cells, weights=sizes, minlength=replicas * slots)
            if cap is not None and held.max() > cap:
                continue
            if in_flight_cap is not None and most_held(lists, held.reshape(replicas, -1)) > in_flight_cap:
                continue
        parts = loads.reshape(replicas, slots, -1)
        if tied:
            took = [durations(part.tolist(), forward, backward, fixed) for part in parts]
            slowest = {op: max(each[op] for each in took) for op in took[0]}
            makespan = longest(lists, slowest, len(forward[0]), hop)
        else:
            makespan = max(
                max(ends_by_events(lists, part.tolist(), forward, backward, hop, fixed).values()) for part in parts
            )
        best = makespan if best is None else min(best, makespan)
    return best


def longest(lists, took, stages, hop) -> int:
    """As :func:`ends_by_events`, from durations."""
    ends: dict[Op, int] = {}
    free, queues = [0] * len(lists), [list(each) for each in lists]
    while any(queues):
        for device, queue in enumerate(queues):
            before = op_before(queue[0], stages) if queue else None
            if queue and (before is None or before in ends):
                op = queue.pop(0)
                arrives = 0 if before is None else ends[before] + hop * (before[1] % len(lists) != device)
                free[device] = ends[op] = max(free[device], arrives) + took[op]
    return max(ends.values())


def most_held(lists, held) -> float:
    """The most that any device of any replica holds between forwards and backwards, by its order."""
    most = 0
    for sizes in held:
        for ops in lists:
            now = 0
            for slot, stage, backward in ops:
                if (slot, stage, True) in ops:  # what has no backward is not held
                    now += -sizes[slot] if backward else sizes[slot]
                    most = max(most, now)
    return most


def fluid_by_scipy(totals, forward, backward, lists, slots, hop=0) -> float:
    """The linear program of real loads: loads, ends of ops and the makespan as variables."""
    from scipy.optimize import linprog

    modules, stages = len(forward), len(forward[0])
    ops = [op for each in lists for op in each]
    number = {op: slots * modules + at for at, op in enumerate(ops)}
    size = slots * modules + len(ops) + 1
    rows, bounds = [], []

    def add(before, op, gap):
        row = np.zeros(size)
        row[number[op]] = -1
        if before is not None:
            row[number[before]] = 1
        for m in range(modules):
            row[op[0] * modules + m] += (backward if op[2] else forward)[m][op[1]]
        rows.append(row)
        bounds.append(-gap)

    for device, each in enumerate(lists):
        for at, op in enumerate(each):
            add(each[at - 1] if at else None, op, 0)
            before = op_before(op, stages)
            if before is not None:
                add(before, op, hop * (before[1] % len(lists) != device))
        row = np.zeros(size)
        row[number[each[-1]]], row[-1] = 1, -1
        rows.append(row)
        bounds.append(0)
    sums = np.zeros((modules, size))
    for m in range(modules):
        sums[m, m : slots * modules : modules] = 1
    cost = np.zeros(size)
    cost[-1] = 1
    return linprog(cost, np.array(rows), bounds, sums, totals, method="highs").fun
