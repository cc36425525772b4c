"""Exchanges of items between slots, judged by exact makespans, told from the bottom to :func:`exchange`.

A *lane* is what has a makespan: a replica, or all of them where every op waits for its like in the others (tied), and
then takes as long as the slowest of these. Between the longest lane and any cell, items change places as long as that
lane gets shorter.

Of each lane some critical paths are kept. The length of a path is a sum, so that what an exchange does to it costs a
product for each module. Most exchanges make some path too long, and are never run.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from solvers._jit import helper, kernel
from solvers._loops import copy, draw, first_largest, first_smallest
from solvers.pipeline._cells import NONE, exchange_back, exchange_if_kept, put_all
from solvers.pipeline.run import all_ends, ends_from

Ints = NDArray[np.int64]
_PATHS = 16
"""Of each lane, that are kept."""
_PATIENCE = 40
"""Tries in vain for each item, before the search jumps."""
_TRY, _PATH, _RUN = 20, 2, 2
"""Units of work: of a try, of a path that is looked at, and of each op of a run."""


class Lanes(NamedTuple):
    """Durations of ops, and what is known of their runs. Writable."""

    loads: Ints  # int64[cells, M]: work in every cell
    rows: Ints  # int64[cells, 2 S]: durations of every cell's ops
    durations: Ints  # int64[lanes, K, 2 S]: of every lane's; the same memory as `rows` unless replicas are tied
    makespans: Ints  # int64[lanes]
    # critical paths: length = const + slope times load, summed
    slopes: Ints  # int64[lanes, cells of a lane, paths, M]
    consts: Ints  # int64[lanes, paths]
    lengths: Ints  # int64[lanes, paths]: with the present loads
    hints: Ints  # int64[lanes]: the path that ruled out an exchange last
    kept: Ints  # int64[lanes, T]: when ops end
    ends: Ints  # int64[T]: and in the last run
    first: Ints  # int64[K]: the first op of each slot in the order's graph
    more: Ints  # int64[M]: what an exchange takes from one cell, and gives to another


# --- exact runs ------------------------------------------------------------------------------------------------------


@helper
def _set_durations(cell, pipe, lanes):
    """Bring the durations of a cell's ops up to date, and of its lane. O(M S), of tied replicas O(R S) more."""
    row, num_slots = lanes.rows[cell], lanes.durations.shape[1]
    for j in range(len(row)):
        row[j] = pipe.fixed[j]
        for m in range(lanes.loads.shape[1]):
            row[j] += lanes.loads[cell, m] * pipe.unit[m, j]
    if len(lanes.durations) * num_slots < len(lanes.rows):  # tied
        shared = lanes.durations[0, cell % num_slots]
        for j in range(len(row)):
            shared[j] = 0
            for other in range(cell % num_slots, len(lanes.rows), num_slots):
                shared[j] = max(shared[j], lanes.rows[other, j])


@helper
def _shift(a, b, sign, pipe, lanes):
    """Move `more` of work from cell a to b, or back."""
    for m in range(len(lanes.more)):
        lanes.loads[a, m] -= sign * lanes.more[m]
        lanes.loads[b, m] += sign * lanes.more[m]
    _set_durations(a, pipe, lanes)
    _set_durations(b, pipe, lanes)


@helper
def _length(lane, p, lanes):
    """Length of a path that is kept, with the present loads."""
    slopes, length = lanes.slopes[lane], lanes.consts[lane, p]
    for inside in range(slopes.shape[0]):
        for m in range(slopes.shape[2]):
            length += slopes[inside, p, m] * lanes.loads[lane * slopes.shape[0] + inside, m]
    return length


@helper
def _learn(lane, p, pipe, lanes):
    """Keep the critical path of the lane's last run as path p, along the device where two are as long. O(path M).

    Of tied replicas an op of the path is that of the replica where it takes longest.
    """
    slopes, rows, num_slots = lanes.slopes[lane], lanes.rows, lanes.durations.shape[1]
    first, width, flat = lane * slopes.shape[0], rows.shape[1], lanes.durations[lane].reshape(-1)
    cells, before, follows, hops = pipe.graph[0], pipe.graph[1], pipe.graph[2], pipe.graph[3]
    for inside in range(slopes.shape[0]):
        for m in range(slopes.shape[2]):
            slopes[inside, p, m] = 0
    constant, op = np.int64(0), first_largest(lanes.ends)
    while op >= 0:
        k, j = cells[op] // width, cells[op] % width
        inside = k
        for other in range(k + num_slots, slopes.shape[0], num_slots):
            if rows[first + other, j] > rows[first + inside, j]:
                inside = other
        for m in range(slopes.shape[2]):
            slopes[inside, p, m] += pipe.unit[m, j]
        constant += pipe.fixed[j]
        # what this op waited for last is what ends just as it starts, with the hop between
        start = lanes.ends[op] - flat[cells[op]]
        if (before[op] >= 0 and lanes.ends[before[op]] == start) or (before[op] < 0 and start == 0):
            op = before[op]
        else:
            constant += pipe.hop * hops[op]
            op = follows[op]
    lanes.consts[lane, p] = constant


@helper
def _begin(pipe, work, cell_of, lanes):
    """Run all lanes with items where they are; the paths that are kept stay."""
    for cell in range(lanes.loads.shape[0]):
        for m in range(lanes.loads.shape[1]):
            lanes.loads[cell, m] = 0
    for i in range(len(cell_of)):
        for m in range(lanes.loads.shape[1]):
            lanes.loads[cell_of[i], m] += work[i, m]
    for cell in range(lanes.loads.shape[0]):
        _set_durations(cell, pipe, lanes)
    for lane in range(len(lanes.makespans)):
        lanes.makespans[lane] = all_ends(pipe.graph, lanes.durations[lane], pipe.hop, lanes.kept[lane])
        for p in range(lanes.lengths.shape[1]):
            lanes.lengths[lane, p] = _length(lane, p, lanes)


# --- one exchange ----------------------------------------------------------------------------------------------------


@helper
def _unopposed(lane, inside, other, sign, limit, more, slopes, lengths, hints):
    """How many paths say nothing against an exchange before one does; all of them if none does.

    Cell `inside` of a lane gives `sign` times `more`, and `other`, unless it is -1, gets as much. The path that ruled
    out the last exchange is looked at first: it rules out most of the next ones too.
    """
    count, hint = lengths.shape[1], hints[lane]
    for turn in range(count):
        p = hint + turn if hint + turn < count else hint + turn - count
        length = lengths[lane, p]
        for m in range(len(more)):
            slope = slopes[lane, inside, p, m]
            if other >= 0:
                slope -= slopes[lane, other, p, m]
            length -= sign * slope * more[m]
        if length >= limit:
            hints[lane] = p
            return turn
    return count


@helper
def _run(lane, begin, a, b, limit, pipe, lanes):
    """Run a lane from an op on, `more` being gone from cell a to b; where it reaches `limit`, learn why, and undo."""
    for op in range(begin):
        lanes.ends[op] = lanes.kept[lane, op]
    found = ends_from(begin, pipe.graph, lanes.durations[lane], pipe.hop, lanes.ends)
    if found >= limit:
        p = first_smallest(lanes.lengths[lane])
        _learn(lane, p, pipe, lanes)
        _shift(a, b, -1, pipe, lanes)
        lanes.lengths[lane, p] = _length(lane, p, lanes)
    return found


@helper
def _exchanged(i, j, a, b, limit, pipe, rules, cells, lanes):
    """Exchange item i of cell a and j of b (-1: none) if caps allow it and both lanes end before `limit` then.

    Returns whether that is so, and the work.
    """
    size, num_ops, num_slots = lanes.slopes.shape[1], pipe.graph.shape[1], len(lanes.first)
    one, two = a // size, b // size
    if exchange_if_kept(i, j, a, b, rules, cells) == 0:
        return False, _TRY
    _shift(a, b, 1, pipe, lanes)
    # ops before the first of a slot that changes end when they did
    begin, later = lanes.first[a % num_slots], lanes.first[b % num_slots]
    if one == two:
        begin = min(begin, later)
    met = _run(one, begin, a, b, limit, pipe, lanes)
    other, work = met, _RUN * (num_ops - begin)
    if met < limit and one != two:
        other = _run(two, later, a, b, limit, pipe, lanes)
        work += _RUN * (num_ops - later)
    if met >= limit or other >= limit:
        exchange_back(i, j, a, b, rules, cells)
        return False, work
    for lane in (one, two):
        lanes.makespans[lane] = all_ends(pipe.graph, lanes.durations[lane], pipe.hop, lanes.kept[lane])
    for p in range(lanes.lengths.shape[1]):
        for m in range(len(lanes.more)):
            lanes.lengths[one, p] -= lanes.slopes[one, a % size, p, m] * lanes.more[m]
            lanes.lengths[two, p] += lanes.slopes[two, b % size, p, m] * lanes.more[m]
    return True, work + _RUN * num_ops


# --- the search ------------------------------------------------------------------------------------------------------


@helper
def _list_items(lane, size, cell_of, items):
    """List the items of a lane; returns how many they are."""
    count = 0
    for i in range(len(cell_of)):
        if cell_of[i] // size == lane:
            items[count] = i
            count += 1
    return count


@kernel(turns=1000)
def exchange(state, work, goal, pipe, rules, cells, rows, durations):
    """Exchange items between cells until no makespan is above `goal`, or as long as there is work; return what is left.

    ``state``, int64[1], draws items; ``rows`` and ``durations`` are room for those of :class:`Lanes`.
    """
    n, num_cells, num_lanes = len(cells.cell_of), len(cells.counts), len(durations)
    modules, num_ops, size = pipe.unit.shape[0], pipe.graph.shape[1], num_cells // num_lanes
    lanes = Lanes(
        np.empty((num_cells, modules), np.int64), rows, durations, np.empty(num_lanes, np.int64),
        np.zeros((num_lanes, size, _PATHS, modules), np.int64), np.zeros((num_lanes, _PATHS), np.int64),
        np.zeros((num_lanes, _PATHS), np.int64), np.zeros(num_lanes, np.int64),
        np.empty((num_lanes, num_ops), np.int64), np.empty(num_ops, np.int64), np.empty(rules.num_slots, np.int64),
        np.empty(modules, np.int64),
    )  # fmt: skip
    for op in range(num_ops - 1, -1, -1):
        lanes.first[pipe.graph[0, op] // rows.shape[1]] = op
    _begin(pipe, rules.work, cells.cell_of, lanes)
    best, items, count = cells.cell_of.copy(), np.empty(n, np.int64), 0
    worst = first_largest(lanes.makespans)
    least, idle, kicks = lanes.makespans[worst], 0, 0
    # An exchange has to help by a step: large at first, halved where tries are in vain, longer by a quarter where one
    # helps. So large gains are made first, and are not lost to small ones.
    step = (least - goal) // 16
    while n > 0 and num_cells > 1 and work > 0:
        if idle == 0:
            worst = first_largest(lanes.makespans)
            count = _list_items(worst, size, cells.cell_of, items)
            work -= n
        if lanes.makespans[worst] <= goal:
            break
        if idle > _PATIENCE * n or count == 0:
            # 1. Stuck: keep what is best, or go back to it, and jump: one to four exchanges that may make the longest
            #    lane longer, by half at most and mostly by little.
            if lanes.makespans[worst] < least:
                least = lanes.makespans[worst]
                copy(best, cells.cell_of)
            else:
                put_all(best, rules, cells)
                _begin(pipe, rules.work, cells.cell_of, lanes)
                work -= 4 * num_lanes * num_ops + lanes.slopes.size
            kicks, idle, step = 1 + draw(state, 4), 0, (least - goal) // 64
            continue
        # 2. An item of the longest lane, in a jump of any, and another to exchange it with, or a cell to go to.
        idle += 1
        i = items[draw(state, count)] if kicks == 0 else draw(state, n)
        j = NONE
        if draw(state, 8):
            j = draw(state, n)
            b = cells.cell_of[j]
        else:
            b = draw(state, num_cells)
        limit = lanes.makespans[worst] - step
        if kicks > 0:
            limit = lanes.makespans[worst] + 1 + (lanes.makespans[worst] >> (1 + draw(state, 11)))
        elif idle % (2 * n) == 0:
            step //= 2
        a = cells.cell_of[i]
        work -= _TRY
        if a == b:
            continue
        # 3. In turn, cheapest first: paths that are kept, the caps, exact runs.
        for m in range(modules):
            lanes.more[m] = rules.work[i, m] - (rules.work[j, m] if j >= 0 else 0)
        one, two = a // size, b // size
        inside, other = a - one * size, b - two * size
        same = other if one == two else NONE
        passed = _unopposed(one, inside, same, 1, limit, lanes.more, lanes.slopes, lanes.lengths, lanes.hints)
        work -= _PATH * passed
        if passed == _PATHS and one != two:
            passed = _unopposed(two, other, NONE, -1, limit, lanes.more, lanes.slopes, lanes.lengths, lanes.hints)
            work -= _PATH * passed
        if passed < _PATHS:
            continue
        made, spent = _exchanged(i, j, a, b, limit, pipe, rules, cells, lanes)
        work -= spent
        if made:
            kicks, idle, step = max(0, kicks - 1), 0, step + step // 4
    if lanes.makespans[first_largest(lanes.makespans)] > least:
        put_all(best, rules, cells)
    return work
