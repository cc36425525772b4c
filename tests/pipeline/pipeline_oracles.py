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


def gap_starts(lists, took, tasks, device, turns, window, hop=0) -> dict[tuple, int]:
    """When each op of a pipeline starts, (slot, stage, backward), and each of the tasks in its gaps, (task, backward).

    `tasks` are slots, forwards and backwards; `turns` the places of forwards and backwards on their devices. All starts
    begin at 0 and are put off as long as an op starts before what it waits for lets it.
    """
    stages = 1 + max(op[1] for each in lists for op in each)
    took, owners = dict(took), [{} for _ in lists]
    for i, (_, ahead, back) in enumerate(zip(*tasks, strict=True)):
        took[i, False], took[i, True] = ahead, back
        for halves, places in zip((False, True), turns, strict=True):
            if places[i] >= 0:
                owners[device[i]][places[i]] = i, halves
    waits = []  # (op, other op, how long after its start)
    for d, (each, own) in enumerate(zip(lists, owners, strict=True)):
        rest = list(each)
        row = [own[at] if at in own else rest.pop(0) for at in range(len(each) + len(own))]
        waits += [(op, before, took[before]) for before, op in itertools.pairwise(row)]
        for op in each:
            before = op_before(op, stages)
            if before:
                waits.append((op, before, took[before] + hop * (before[1] % len(lists) != d)))
    for i, (slot, ahead, back) in enumerate(zip(*tasks, strict=True)):
        away = hop * (device[i] > 0)
        waits.append(((slot, 0, False), (i, False), ahead + away))
        if slot >= window:
            waits.append(((i, False), (slot - window, 0, False), 0))
        if back:
            waits.append(((i, True), (slot, 0, True), took[slot, 0, True] + away))
    starts, late = dict.fromkeys(took, 0), True
    while late:
        late = [(op, starts[before] + gap) for op, before, gap in waits if starts[op] < starts[before] + gap]
        for op, start in late:
            starts[op] = max(starts[op], start)
    return starts


def closed_forms(items, forward, backward, lists, replicas, slots, hop=0, fixed=None, tasks=((), (), ())):
    """Bounds in closed form, by name, where tasks of items, if there are any, run in gaps.

    The device that has most to do; the item that takes longest, forth and back; all devices together.
    """
    stages, devices, modules = len(forward[0]), len(lists), range(len(forward))
    fixed = fixed or ([0] * stages, [0] * stages)
    totals = [sum(item[m] for item in items) for m in modules]
    each = [[forward[m][s] + backward[m][s] for s in range(stages)] for m in modules]
    every = [fixed[0][s] + fixed[1][s] for s in range(stages)]
    busiest = 0
    for d in range(devices):
        own = range(d, stages, devices)
        spent = sum(totals[m] * sum(each[m][s] for s in own) for m in modules)
        busiest = max(busiest, -(-spent // replicas) + slots * sum(every[s] for s in own))
    trips = [sum(item[m] * sum(each[m]) for m in modules) for item in items]
    back = sum(1 for s in range(stages - 1) if any((0, s, True) in ops for ops in lists))
    around = sum(every) + (hop * (stages - 1 + back) if devices > 1 else 0)
    longest = [[0, 0] for _ in items]
    for i, *spent in zip(*tasks, strict=True):
        longest[i] = [max(a, b) for a, b in zip(longest[i], spent, strict=True)]
    whole = sum(trips) + replicas * slots * sum(every) + sum(tasks[1]) + sum(tasks[2])
    return {
        "work": busiest,
        "largest_item": max(trips, default=0) + around,
        "all_work": -(-whole // (replicas * devices)),
        "item_with_tasks": max((t + sum(a) for t, a in zip(trips, longest, strict=True)), default=0) + around,
    }


def gap_forms(took, lists, tasks, alone, slots, allowed=None):
    """Bounds of given slots with tasks in their gaps, by name; the pipeline alone takes `alone`."""
    devices = len(lists)
    own = [sum(took[op] for op in each) for each in lists]
    total = sum(own) + sum(tasks[1]) + sum(tasks[2])
    for i, (_, ahead, back) in enumerate(zip(*tasks, strict=True)):
        where = [d for d in range(devices) if allowed is None or allowed[i][d]]
        if len(where) == 1:
            own[where[0]] += ahead + back
    ends = alone
    for column, slot in ((tasks[1], 0), (tasks[2], slots - 1)):
        here = [took for took, k in zip(column, tasks[0], strict=True) if k == slot]
        ends += max(max(here, default=0), -(-sum(here) // devices))
    return {"work": max(*own, -(-total // devices)), "pipeline": alone, "ends": ends}


def fluid_by_scipy(totals, forward, backward, lists, slots, hop=0, limits=()) -> float:
    """The linear program of real loads: loads, ends of ops and the makespan as variables.

    `limits` are pairs: what a unit of work counts by slot and module, and the most that all may count together.
    """
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
    for weights, most in limits:
        rows.append(np.append(np.ravel(weights), np.zeros(size - slots * modules)))
        bounds.append(most)
    sums = np.zeros((modules, size))
    for m in range(modules):
        sums[m, m : slots * modules : modules] = 1
    cost = np.zeros(size)
    cost[-1] = 1
    return linprog(cost, np.array(rows), bounds, sums, totals, method="highs").fun
