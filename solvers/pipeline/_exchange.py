"""The loops of the search: items to the slots whose targets they meet best, and exchanges judged by exact makespans.

A *cell* is a slot of a replica, ``replica * K + slot``. A *lane* is what has a makespan: a replica, or all of them
where every op waits for its like in the others (tied), and then takes as long as the slowest of these.

Arrays that go together. ``items``, int64[M, n], work by module; ``sizes``, int64[C, n], what an item holds; ``caps``,
int64[C + 1], what a cell may hold of each, and whether one may be empty. What is held at once in some stages: the sets
that slot k is in are ``sets[:, first_set[k] : first_set[k + 1]]``, int64[3, e], of each its number, the column of sizes
and how often. A solution: ``members``, int64[cells, width], ``counts[cell]`` of them; ``loads``, int64[cells, M];
``held``, int64[cells, C]; ``in_flight``, int64[R + 1, sets], the last row of which is the most that may be.
"""

import numpy as np

from solvers._jit import helper, inlined, kernel
from solvers._loops import draw
from solvers.pipeline._kernels import all_ends, critical_path, run_round

__all__ = ["exchange", "fill"]


@inlined
def _room(cell, came, went, sizes, caps, held):
    """Whether a cell's sizes stay under their caps when an item comes and another goes; -1 is none."""
    fits = True
    for c in range(sizes.shape[0]):
        size = held[cell, c]
        if came >= 0:
            size += sizes[c, came]
        if went >= 0:
            size -= sizes[c, went]
        if size > caps[c]:
            fits = False
    return fits


@helper
def _flows(cell, other, came, went, sizes, first_set, sets, in_flight):
    """Whether what is in flight stays under its caps; `other` of the same replica, or -1, gets what goes."""
    num_slots = len(first_set) - 1
    replica, slot, last = cell // num_slots, cell % num_slots, in_flight.shape[0] - 1
    second = other % num_slots if other >= 0 and other // num_slots == replica else -1
    for e in range(first_set[slot], first_set[slot + 1]):
        s, column, times = sets[0, e], sets[1, e], sets[2, e]
        more = np.int64(0)
        if came >= 0:
            more += sizes[column, came]
        if went >= 0:
            more -= sizes[column, went]
        if more <= 0 or in_flight[replica, s] + more * times <= in_flight[last, s]:
            continue
        total = in_flight[replica, s] + more * times
        if second >= 0:
            for f in range(first_set[second], first_set[second + 1]):
                if sets[0, f] == s and sets[1, f] == column:
                    total -= more * sets[2, f]
        if total > in_flight[last, s]:
            return False
    return True


@helper
def _change(cell, came, went, items, sizes, members, counts, loads, held, first_set, sets, in_flight):
    """Put an item into a cell, and take another out; -1 is none."""
    num_slots = len(first_set) - 1
    if went >= 0:
        k = 0
        while members[cell, k] != went:
            k += 1
        counts[cell] -= 1
        members[cell, k] = members[cell, counts[cell]]
    if came >= 0:
        members[cell, counts[cell]] = came
        counts[cell] += 1
    for sign in (-1, 1):
        item = came if sign > 0 else went
        if item >= 0:
            for m in range(items.shape[0]):
                loads[cell, m] += sign * items[m, item]
            for c in range(sizes.shape[0]):
                held[cell, c] += sign * sizes[c, item]
            for e in range(first_set[cell % num_slots], first_set[cell % num_slots + 1]):
                in_flight[cell // num_slots, sets[0, e]] += sign * sizes[sets[1, e], item] * sets[2, e]


@inlined
def _may(a, b, i, j, sizes, caps, members, counts, held, first_set, sets, in_flight):
    """Whether item i of cell a and item j of cell b may change places; one of them may be none, -1."""
    width, empty = members.shape[1], caps[len(caps) - 1]
    return (
        (j >= 0 or empty or counts[a] > 1)
        and (i >= 0 or empty or counts[b] > 1)
        and (i >= 0 or counts[a] < width)
        and (j >= 0 or counts[b] < width)
        and _room(a, j, i, sizes, caps, held)
        and _room(b, i, j, sizes, caps, held)
        and _flows(a, b, j, i, sizes, first_set, sets, in_flight)
        and _flows(b, a, i, j, sizes, first_set, sets, in_flight)
    )


@kernel
def fill(order, targets, weights, items, sizes, caps, members, counts, loads, held, first_set, sets, in_flight):
    """Put items, in an order, each where what is left of the targets shrinks most; returns how many have a place.

    ``targets``, float64[cells, M], are loads; ``weights``, float64[M], say what a unit of each module counts.
    """
    cells, modules = targets.shape
    left, vector = np.empty((cells, modules)), np.empty(modules)
    for cell in range(cells):
        for m in range(modules):
            left[cell, m] = targets[cell, m] * weights[m]
    empty = cells
    for at in range(len(order)):
        item = order[at]
        for m in range(modules):
            vector[m] = items[m, item] * weights[m]
        forced = caps[len(caps) - 1] == 0 and len(order) - at <= empty
        best, most = -1, -np.inf
        for cell in range(cells):
            gain = 0.0
            for m in range(modules):
                gain += left[cell, m] * vector[m]
            if (
                gain > most
                and counts[cell] < members.shape[1]
                and not (forced and counts[cell] > 0)
                and _room(cell, item, -1, sizes, caps, held)
                and _flows(cell, -1, item, -1, sizes, first_set, sets, in_flight)
            ):
                best, most = cell, gain
        if best < 0:
            return at
        empty -= counts[best] == 0
        for m in range(modules):
            left[best, m] -= vector[m]
        _change(best, item, -1, items, sizes, members, counts, loads, held, first_set, sets, in_flight)
    return len(order)


@helper
def _span(durations, lead, hop, heads, tails, first, last, end):
    """Makespan by running rounds `first` to `last` alone, what is before and after them being known."""
    num_stages = durations.shape[1] // 2
    flat = durations.reshape(-1)
    for s in range(num_stages):
        end[s] = heads[first, s]
    end[num_stages] = -hop
    for r in range(first, last + 1):
        run_round(r, durations, flat, lead, hop, end)
    makespan = np.int64(0)
    for s in range(num_stages):
        makespan = max(makespan, end[s] + tails[last + 1, s])
    return makespan


@helper
def _round_back(r, durations, lead, hop, after, before):
    """Longest paths to the end from when each stage ends before round r, given those from after it."""
    num_slots, num_stages = durations.shape[0], durations.shape[1] // 2
    both = max(lead, num_stages - 1 - r)
    stop = min(num_stages, num_slots + num_stages - 1 - r)
    carried = np.int64(-(2**62))
    for s in range(num_stages - 1, -1, -1):
        rest = after[s]
        if both <= s < stop:
            rest += durations[r - num_stages + 1 + s, num_stages + s]
            if s + 1 < num_stages:
                before[s + 1] = max(before[s + 1], hop + rest)
        if r < num_slots:
            rest = max(rest, carried) + durations[r, s]
            carried = rest + hop
        before[s] = rest


@helper
def _settle_lane(durations, graph, rounds, lead, hop, unit, ends, path, heads, tails, end, slope):
    """Bring what is kept of a lane up to date: heads, tails, a critical path's slope. Returns its makespan."""
    num_slots, width = durations.shape
    num_stages = width // 2
    makespan = all_ends(graph, durations, hop, 0, ends)
    critical_path(graph, durations, hop, ends, path)
    for k in range(num_slots):
        for m in range(unit.shape[0]):
            slope[k, m] = 0
    for op in range(len(path)):
        if path[op]:
            k, j = graph[0, op] // width, graph[0, op] % width
            for m in range(unit.shape[0]):
                slope[k, m] += unit[m, j]
    if rounds:
        flat = durations.reshape(-1)
        for s in range(num_stages):
            end[s] = 0
        end[num_stages] = -hop
        for r in range(num_slots + num_stages - 1):
            for s in range(num_stages):
                heads[r, s] = end[s]
            run_round(r, durations, flat, lead, hop, end)
        for s in range(num_stages):
            tails[num_slots + num_stages - 1, s] = 0
        for r in range(num_slots + num_stages - 2, -1, -1):
            _round_back(r, durations, lead, hop, tails[r + 1], tails[r])
    return makespan


@helper
def _set_row(cell, came, went, items, loads, unit, fixed, row):
    """Durations of a cell's ops after an exchange."""
    for j in range(len(fixed)):
        row[j] = fixed[j]
    for m in range(items.shape[0]):
        load = loads[cell, m]
        if came >= 0:
            load += items[m, came]
        if went >= 0:
            load -= items[m, went]
        for j in range(len(fixed)):
            row[j] += load * unit[m, j]


@helper
def _raise_to_others(slot, a, b, rows, num_slots, row):
    """Of tied replicas: raise a row of durations to those of a slot in all cells but a and b."""
    for cell in range(slot, len(rows), num_slots):
        if cell != a and cell != b:
            for j in range(len(row)):
                row[j] = max(row[j], rows[cell, j])


@inlined
def _with_rows(a, b, row_a, row_b, durations):
    """Swap rows a and b (-1: none) of a lane with two others."""
    for j in range(durations.shape[1]):
        durations[a, j], row_a[j] = row_a[j], durations[a, j]
    if b >= 0:
        for j in range(durations.shape[1]):
            durations[b, j], row_b[j] = row_b[j], durations[b, j]


@helper
def _tried(a, b, row_a, row_b, durations, graph, rounds, lead, hop, heads, tails, ends, end):
    """Makespan of a lane with other durations in slot a, and in slot b if that is not -1."""
    _with_rows(a, b, row_a, row_b, durations)
    if rounds:
        low = a if b < 0 else min(a, b)
        makespan = _span(durations, lead, hop, heads, tails, low, max(a, b) + durations.shape[1] // 2 - 1, end)
    else:
        makespan = all_ends(graph, durations, hop, 0, ends)
    _with_rows(a, b, row_a, row_b, durations)
    return makespan


@kernel
def exchange(
    state, most_work, goal, items, sizes, caps, members, counts, loads, held, first_set, sets, in_flight,
    rows, lanes, graph, rounds, lead, hop, unit, fixed, makespans,
):  # fmt: skip
    """Exchange items between cells as long as the largest makespan falls; return the work.

    An exchange is tried only if it shortens the critical path of the longest lane and lengthens no other's beyond that:
    what the path's slope says, at a few products each. ``rows``, int64[cells, 2 S], are the durations of every cell,
    the same memory as ``lanes`` unless replicas are tied.
    """
    cells, modules = loads.shape
    num_lanes, num_slots, width = lanes.shape
    num_stages, num_ops = width // 2, graph.shape[1]
    tied = num_lanes * num_slots < cells
    ends, path, end = np.empty(num_ops, np.int64), np.empty(num_ops, np.int8), np.empty(num_stages + 1, np.int64)
    heads = np.empty((num_lanes, num_slots + num_stages, num_stages), np.int64)
    tails = np.empty((num_lanes, num_slots + num_stages, num_stages), np.int64)
    slopes = np.empty((num_lanes, num_slots, modules), np.int64)
    row_a, row_b = np.empty(width, np.int64), np.empty(width, np.int64)
    for lane in range(num_lanes):
        makespans[lane] = _settle_lane(
            lanes[lane], graph, rounds, lead, hop, unit, ends, path, heads[lane], tails[lane], end, slopes[lane]
        )
    work, idle = np.int64(0), 0
    cost = num_stages * num_stages + num_stages if rounds else num_ops
    worst = 0
    while work < most_work and idle < 400 * num_slots:
        if idle == 0:
            worst = 0
            for lane in range(num_lanes):
                if makespans[lane] > makespans[worst]:
                    worst = lane
            if makespans[worst] <= goal:
                break
        most = makespans[worst]
        a = draw(state, cells) if tied else worst * num_slots + draw(state, num_slots)
        b = worst * num_slots + draw(state, num_slots) if draw(state, 4) == 0 else draw(state, cells)
        idle += 1
        if a == b:
            continue
        ka, kb = a % num_slots, b % num_slots
        lane = 0 if tied else b // num_slots
        work += 8 + (counts[a] + 1) * (counts[b] + 1)
        found = False
        for p in range(-1, counts[a]):
            i = members[a, p] if p >= 0 else np.int64(-1)
            for q in range(-1, counts[b]):
                j = members[b, q] if q >= 0 else np.int64(-1)
                if not tied:
                    mine, theirs = np.int64(0), np.int64(0)
                    for m in range(modules):
                        more = np.int64(0)
                        if j >= 0:
                            more += items[m, j]
                        if i >= 0:
                            more -= items[m, i]
                        mine += slopes[worst, ka, m] * more
                        theirs -= slopes[lane, kb, m] * more
                    if lane == worst:
                        mine, theirs = mine + theirs, mine + theirs
                    if mine >= 0 or makespans[lane] + theirs >= most:
                        continue
                if (i < 0 and j < 0) or not _may(
                    a, b, i, j, sizes, caps, members, counts, held, first_set, sets, in_flight
                ):
                    continue
                _set_row(a, j, i, items, loads, unit, fixed, row_a)
                _set_row(b, i, j, items, loads, unit, fixed, row_b)
                if tied:
                    _raise_to_others(ka, a, b, rows, num_slots, row_a)
                    _raise_to_others(kb, a, b, rows, num_slots, row_b)
                    if ka == kb:
                        for x in range(width):
                            row_a[x] = max(row_a[x], row_b[x])
                work += cost
                if lane == worst:
                    second = kb if ka != kb else -1
                    if _tried(
                        ka, second, row_a, row_b, lanes[lane], graph, rounds, lead, hop, heads[lane], tails[lane], ends,
                        end,
                    ) >= most:  # fmt: skip
                        continue
                else:
                    if _tried(
                        ka, -1, row_a, row_b, lanes[worst], graph, rounds, lead, hop, heads[worst], tails[worst], ends,
                        end,
                    ) >= most:  # fmt: skip
                        continue
                    work += cost
                    if (
                        _tried(
                            kb,
                            -1,
                            row_b,
                            row_a,
                            lanes[lane],
                            graph,
                            rounds,
                            lead,
                            hop,
                            heads[lane],
                            tails[lane],
                            ends,
                            end,
                        )
                        >= most
                    ):
                        continue
                found = True
                _change(a, j, i, items, sizes, members, counts, loads, held, first_set, sets, in_flight)
                _change(b, i, j, items, sizes, members, counts, loads, held, first_set, sets, in_flight)
                break
            if found:
                break
        if found:
            idle = 0
            work += 4 * num_ops
            _set_row(a, -1, -1, items, loads, unit, fixed, rows[a])
            _set_row(b, -1, -1, items, loads, unit, fixed, rows[b])
            if tied:
                for slot in (ka, kb):
                    for x in range(width):
                        lanes[0, slot, x] = 0
                    _raise_to_others(slot, -1, -1, rows, num_slots, lanes[0, slot])
            for changed in (worst, lane):
                makespans[changed] = _settle_lane(
                    lanes[changed], graph, rounds, lead, hop, unit, ends, path, heads[changed], tails[changed], end,
                    slopes[changed],
                )  # fmt: skip
    return work
