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

from solvers._jit import helper, kernel
from solvers._loops import copy, copy_table, draw, first_largest, first_smallest, largest_of, numbers
from solvers.pipeline._kernels import all_ends, critical_path, run_round

_PATHS = 64  # of each lane that are kept
_PATIENCE = 200  # pairs of cells, for every slot, that are tried in vain


@helper
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


@kernel
def place(cell_of_item, items, sizes, members, counts, loads, held, first_set, sets, in_flight):
    """Put every item into its cell; -1 is none."""
    for item in range(len(cell_of_item)):
        if cell_of_item[item] < 0:
            continue
        _change(
            cell_of_item[item], item, np.int64(-1), items, sizes, members, counts, loads, held, first_set, sets,
            in_flight,
        )  # fmt: skip


@helper
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
    """Put more items, in an order, each where what is left of the targets shrinks most; returns how many have a place.

    ``targets``, float64[cells, M], are loads; ``weights``, float64[M], say what a unit of each module counts.
    """
    cells, modules = targets.shape
    left, vector = np.empty((cells, modules)), np.empty(modules)
    for cell in range(cells):
        for m in range(modules):
            left[cell, m] = (targets[cell, m] - loads[cell, m]) * weights[m]
    empty = np.int64(0)
    for cell in range(cells):
        empty += counts[cell] == 0
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
def _settle(durations, lead, hop, heads, tails, end):
    """Bring heads and tails of a lane up to date: of every round when each stage ends before it, and the rest after."""
    num_slots, num_stages = durations.shape[0], durations.shape[1] // 2
    flat = durations.reshape(-1)
    for s in range(num_stages):
        end[s] = 0
    end[num_stages] = -hop
    last = num_slots + num_stages - 1
    for r in range(last):
        for s in range(num_stages):
            heads[r, s] = end[s]
        run_round(r, durations, flat, lead, hop, end)
    for s in range(num_stages):
        tails[last, s] = 0
    for r in range(last - 1, -1, -1):
        _round_back(r, durations, lead, hop, tails[r + 1], tails[r])


@helper
def _learn(durations, rows, first, graph, hop, unit, fixed, ends, path, slopes, values, consts):
    """Keep the critical path of a lane, in place of the one that binds least; returns the lane's makespan.

    ``slopes``, int64[cells of the lane, P, M], say by how much a unit of work more in a cell lengthens each path kept.
    Of tied replicas an op is that of the slowest cell among ``rows``; `first` is the lane's first cell.
    """
    makespan = all_ends(graph, durations, hop, ends)
    critical_path(graph, durations, ends, path)
    num_slots, width = durations.shape
    p = first_smallest(values)
    for cell in range(slopes.shape[0]):
        for m in range(unit.shape[0]):
            slopes[cell, p, m] = 0
    constant = np.int64(0)
    for op in range(len(path)):
        if path[op]:
            k, j = graph[0, op] // width, graph[0, op] % width
            cell = k
            for other in range(k, slopes.shape[0], num_slots):
                if rows[first + other, j] > rows[first + cell, j]:
                    cell = other
            for m in range(unit.shape[0]):
                slopes[cell, p, m] += unit[m, j]
            constant += fixed[j]
            if path[op] == 2:
                constant += hop * graph[3, op]
    consts[p] = constant
    return makespan, p


@helper
def _value(p, first, slopes, consts, loads):
    """Length of a path that is kept, with the present loads."""
    value = consts[p]
    for cell in range(slopes.shape[0]):
        for m in range(loads.shape[1]):
            value += slopes[cell, p, m] * loads[first + cell, m]
    return value


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


@helper
def _swap_rows(a, b, row_a, row_b, durations):
    """Swap rows a and b (-1: none) of a lane with two others."""
    for j in range(durations.shape[1]):
        durations[a, j], row_a[j] = row_a[j], durations[a, j]
    if b >= 0:
        for j in range(durations.shape[1]):
            durations[b, j], row_b[j] = row_b[j], durations[b, j]


@helper
def _passes(
    limit, a, b, row_a, row_b, lane, first, rows, graph, rounds, lead, hop, unit, fixed, loads, heads, tails, ends,
    path, end, slopes, values, consts,
):  # fmt: skip
    """Whether a lane stays below `limit` with other durations in slot a, and b if that is not -1; if not, learn why."""
    num_stages = lane.shape[1] // 2
    _swap_rows(a, b, row_a, row_b, lane)
    if rounds:
        low = a if b < 0 else min(a, b)
        makespan = _span(lane, lead, hop, heads, tails, low, max(a, b) + num_stages - 1, end)
    else:
        makespan = all_ends(graph, lane, hop, ends)
    p = np.int64(-1)
    if makespan >= limit:
        _, p = _learn(lane, rows, first, graph, hop, unit, fixed, ends, path, slopes, values, consts)
    _swap_rows(a, b, row_a, row_b, lane)
    if p >= 0:
        values[p] = _value(p, first, slopes, consts, loads)
    return makespan < limit


@helper
def _bound_by(hint, limit, more, rises, values):
    """First path, from `hint` on, that would reach `limit` with so much more work in a cell; -1 if there is none."""
    count, modules = rises.shape
    for turn in range(count):
        p = hint + turn if hint + turn < count else hint + turn - count
        value = values[p]
        for m in range(modules):
            value += rises[p, m] * more[m]
        if value >= limit:
            return p
    return np.int64(-1)


@helper
def _set_rises(ka, kb, slopes, rises):
    """How much longer each path gets by a unit of work more in cell ka (-1: none) of a lane, and less in kb."""
    for p in range(rises.shape[0]):
        for m in range(rises.shape[1]):
            rises[p, m] = 0
            if ka >= 0:
                rises[p, m] += slopes[ka, p, m]
            if kb >= 0:
                rises[p, m] -= slopes[kb, p, m]


@helper
def _set_more(came, went, items, more):
    """Set how much more work of each module a cell has after an exchange."""
    for m in range(items.shape[0]):
        more[m] = 0
        if came >= 0:
            more[m] += items[m, came]
        if went >= 0:
            more[m] -= items[m, went]


@helper
def _set_both(a, b, i, j, tied, items, loads, unit, fixed, rows, num_slots, row_a, row_b):
    """Set the durations in the lanes of cells a and b after item i of a and item j of b have changed places."""
    _set_row(a, j, i, items, loads, unit, fixed, row_a)
    _set_row(b, i, j, items, loads, unit, fixed, row_b)
    if tied:
        _raise_to_others(a % num_slots, a, b, rows, num_slots, row_a)
        _raise_to_others(b % num_slots, a, b, rows, num_slots, row_b)
        if a % num_slots == b % num_slots:
            for x in range(len(row_a)):
                row_a[x] = max(row_a[x], row_b[x])


@helper
def _pair(
    limit, a, b, state, items, sizes, caps, members, counts, loads, held, first_set, sets, in_flight, rows, lanes,
    graph, rounds, lead, hop, unit, fixed, heads, tails, slopes, values, consts, spare,
):  # fmt: skip
    """Find an exchange between cells a and b that leaves their lanes below `limit`: the two items, and the work done.

    (-1, -1) if there is none. Paths that are kept rule most of them out at a few products each; what is left is run.
    """
    ends, path, end, row_a, row_b, rises_a, rises_b, more = spare
    num_slots, tied = lanes.shape[1], len(lanes) * lanes.shape[1] < len(rows)
    lane_a, lane_b = (0, 0) if tied else (a // num_slots, b // num_slots)
    first_a, first_b = lane_a * num_slots, lane_b * num_slots
    same, ka, kb = lane_a == lane_b, a % num_slots, b % num_slots
    _set_rises(a - first_a, b - first_b if same else np.int64(-1), slopes[lane_a], rises_a)
    _set_rises(np.int64(-1), b - first_b, slopes[lane_b], rises_b)
    hint_a, hint_b, count_a, count_b = np.int64(0), np.int64(0), counts[a] + 1, counts[b] + 1
    start = draw(state, count_a * count_b)
    work, cost = np.int64(4 * rises_a.shape[0]), lanes.shape[2] * num_slots if not rounds else lanes.shape[2] ** 2 // 3
    for turn in range(count_a * count_b):
        at = start + turn if start + turn < count_a * count_b else start + turn - count_a * count_b
        p, q = at // count_b - 1, at % count_b - 1
        i = members[a, p] if p >= 0 else np.int64(-1)
        j = members[b, q] if q >= 0 else np.int64(-1)
        if i < 0 and j < 0:
            continue
        _set_more(j, i, items, more)
        work += 3
        bound = _bound_by(hint_a, limit, more, rises_a, values[lane_a])
        if bound >= 0:
            work += 2 * abs(bound - hint_a)
            hint_a = bound
            continue
        work += 2 * rises_a.shape[0]
        if not same:
            bound = _bound_by(hint_b, limit, more, rises_b, values[lane_b])
            if bound >= 0:
                work += 2 * abs(bound - hint_b)
                hint_b = bound
                continue
            work += 2 * rises_a.shape[0]
        if not _may(a, b, i, j, sizes, caps, members, counts, held, first_set, sets, in_flight):
            continue
        work += cost
        _set_both(a, b, i, j, tied, items, loads, unit, fixed, rows, num_slots, row_a, row_b)
        if not _passes(
            limit, ka, kb if same and ka != kb else np.int64(-1), row_a, row_b, lanes[lane_a], first_a, rows, graph,
            rounds, lead, hop, unit, fixed, loads, heads[lane_a], tails[lane_a], ends, path, end, slopes[lane_a],
            values[lane_a], consts[lane_a],
        ):  # fmt: skip
            work += 4 * graph.shape[1]
            _set_rises(a - first_a, b - first_b if same else np.int64(-1), slopes[lane_a], rises_a)
            continue
        if same or _passes(
            limit, kb, np.int64(-1), row_b, row_a, lanes[lane_b], first_b, rows, graph, rounds, lead, hop, unit, fixed,
            loads, heads[lane_b], tails[lane_b], ends, path, end, slopes[lane_b], values[lane_b], consts[lane_b],
        ):  # fmt: skip
            return i, j, work
        work += 4 * graph.shape[1]
        _set_rises(np.int64(-1), b - first_b, slopes[lane_b], rises_b)
    return np.int64(-1), np.int64(-1), work


@helper
def _settled(durations, graph, rounds, lead, hop, heads, tails, ends, end):
    """Makespan of a lane; heads and tails are brought up to date."""
    if not rounds:
        return all_ends(graph, durations, hop, ends)
    _settle(durations, lead, hop, heads, tails, end)
    return largest_of(end)


@helper
def _shift(cell, came, went, items, slopes, values):
    """Bring the lengths of the paths that are kept up to date with what a cell of their lane gets and gives."""
    for p in range(len(values)):
        for m in range(items.shape[0]):
            if came >= 0:
                values[p] += slopes[cell, p, m] * items[m, came]
            if went >= 0:
                values[p] -= slopes[cell, p, m] * items[m, went]


@helper
def _set_durations(cell, tied, items, loads, unit, fixed, rows, lanes):
    """Bring the durations of a cell's ops up to date, and of its lane."""
    num_slots = lanes.shape[1]
    _set_row(cell, np.int64(-1), np.int64(-1), items, loads, unit, fixed, rows[cell])
    if tied:
        slot = cell % num_slots
        for j in range(rows.shape[1]):
            lanes[0, slot, j] = 0
        _raise_to_others(slot, np.int64(-1), np.int64(-1), rows, num_slots, lanes[0, slot])


@helper
def _copy_solution(target, source):
    """Make one solution the other: members, counts, loads, held, in_flight."""
    for t, s in ((target[0], source[0]), (target[2], source[2]), (target[3], source[3]), (target[4], source[4])):
        copy_table(t, s)
    copy(target[1], source[1])


@helper
def _settle_all(changed, lanes, graph, rounds, lead, hop, heads, tails, spare, makespans):
    """Bring some lanes' makespans, heads and tails up to date; returns the work."""
    for lane in changed:
        makespans[lane] = _settled(lanes[lane], graph, rounds, lead, hop, heads[lane], tails[lane], spare[0], spare[2])
    return 4 * graph.shape[1] * len(changed)


@helper
def _follow(a, b, i, j, tied, items, loads, unit, fixed, rows, lanes, slopes, values):
    """Bring durations and kept paths up to date after an exchange; returns the lanes that it changed."""
    num_slots = lanes.shape[1]
    for cell, came, went in ((a, j, i), (b, i, j)):
        lane = 0 if tied else cell // num_slots
        _set_durations(cell, tied, items, loads, unit, fixed, rows, lanes)
        _shift(cell - lane * num_slots, came, went, items, slopes[lane], values[lane])
    changed = np.array([0 if tied else a // num_slots, 0 if tied else b // num_slots])
    return changed[:1] if changed[0] == changed[1] else changed


@helper
def _go_back(now, best, tied, items, unit, fixed, rows, lanes, slopes, values, consts):
    """Go back to the best solution; returns the work."""
    _copy_solution(now, best)
    loads = now[2]
    for cell in range(len(loads)):
        _set_durations(cell, tied, items, loads, unit, fixed, rows, lanes)
    for lane in range(len(lanes)):
        for p in range(values.shape[1]):
            values[lane, p] = _value(p, lane * lanes.shape[1], slopes[lane], consts[lane], loads)
    return slopes.size


@helper
def _memory(num_ops, width, kept, modules):
    """What pairs are tried in: ends, a path, ends of stages, two rows, rises of paths in two lanes, work."""
    return (
        np.empty(num_ops, np.int64), np.empty(num_ops, np.int8), np.empty(width // 2 + 1, np.int64),
        np.empty(width, np.int64), np.empty(width, np.int64), np.empty((kept, modules), np.int64),
        np.empty((kept, modules), np.int64), np.empty(modules, np.int64),
    )  # fmt: skip


@kernel
def exchange(
    state, most_work, goal, items, sizes, caps, members, counts, loads, held, first_set, sets, in_flight, rows, lanes,
    graph, rounds, lead, hop, unit, fixed,
):  # fmt: skip
    """Exchange items between cells until no makespan is above `goal`, or as long as there is work; returns the work.

    Exchanges between the longest lane and any cell, as long as it gets shorter and no other as long. Where none is
    found, some that make it a little longer, and on from there; the best solution is what is left behind. ``rows``,
    int64[cells, 2 S], are the durations of every cell, the same memory as ``lanes`` unless replicas are tied.
    """
    cells, modules = loads.shape
    num_lanes, num_slots, width = lanes.shape
    tied, spare = num_lanes * num_slots < cells, _memory(graph.shape[1], width, _PATHS, modules)
    heads = np.empty((num_lanes, num_slots + width // 2, width // 2), np.int64)
    tails, makespans = np.empty_like(heads), np.empty(num_lanes, np.int64)
    slopes = np.zeros((num_lanes, cells // num_lanes, _PATHS, modules), np.int64)
    values, consts = np.zeros((num_lanes, _PATHS), np.int64), np.zeros((num_lanes, _PATHS), np.int64)
    now = (members, counts, loads, held, in_flight)
    best = (members.copy(), counts.copy(), loads.copy(), held.copy(), in_flight.copy())
    least, work, step, kicks, worst = np.int64(2**62), np.int64(0), np.int64(-1), 0, 0
    changed = numbers(num_lanes)
    while True:
        work += _settle_all(changed, lanes, graph, rounds, lead, hop, heads, tails, spare, makespans)
        worst = first_largest(makespans)
        if makespans[worst] <= goal or work >= most_work or cells == 1:
            break
        step = (makespans[worst] - goal) // 16 if step < 0 else step
        i, j, idle = np.int64(-1), np.int64(-1), 0
        while i < 0 and j < 0 and idle < _PATIENCE * num_slots and work < most_work:
            a = draw(state, cells) if tied or kicks > 0 else worst * num_slots + draw(state, num_slots)
            b = worst * num_slots + draw(state, num_slots) if draw(state, 4) == 0 else draw(state, cells)
            idle += 1
            if a != b:
                limit = makespans[worst] - step
                if kicks > 0:
                    limit = makespans[worst] + 1 + (makespans[worst] >> (1 + draw(state, 11)))
                elif idle % (4 * num_slots) == 0:
                    step //= 2
                i, j, more = _pair(
                    limit, a, b, state, items, sizes, caps, members, counts, loads, held, first_set, sets, in_flight,
                    rows, lanes, graph, rounds, lead, hop, unit, fixed, heads, tails, slopes, values, consts, spare,
                )  # fmt: skip
                work += more
        if i >= 0 or j >= 0:
            kicks, step = max(0, kicks - 1), step + step // 4
            _change(a, j, i, items, sizes, members, counts, loads, held, first_set, sets, in_flight)
            _change(b, i, j, items, sizes, members, counts, loads, held, first_set, sets, in_flight)
            changed = _follow(a, b, i, j, tied, items, loads, unit, fixed, rows, lanes, slopes, values)
            continue
        if makespans[worst] < least:
            least = makespans[worst]
            _copy_solution(best, now)
        else:
            work += _go_back(now, best, tied, items, unit, fixed, rows, lanes, slopes, values, consts)
            changed = numbers(num_lanes)
        kicks, step = 1 + draw(state, 4), (makespans[worst] - goal) // 64
        work += cells * members.shape[1] // 4
    if makespans[worst] > least:
        _copy_solution(now, best)
    return work
