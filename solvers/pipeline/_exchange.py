"""Exchanges of items between slots, judged by exact makespans: the search of `auto`, from top to bottom.

A *lane* is what has a makespan: a replica, or all of them where every op waits for its like in the others (tied), and
then takes as long as the slowest of these. The search is :func:`_exchange`, at the end: between the longest lane
and any cell, items change places as long as that lane gets shorter. What makes it fast:

- Of each lane some critical paths are kept. The length of a path is a sum, so that what an exchange does to it costs a
  product for each module. Most exchanges make some path too long, and are never run.
- What is run is run in part: of 1F1B the rounds that a slot is in, with what is known from before and after them.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from solvers._jit import helper, kernel
from solvers._loops import copy, copy_table, draw, first_largest, first_smallest, largest_of, numbers
from solvers.pipeline._cells import NONE, Cells, Rules, Solution, change_items, lanes_of, may_exchange
from solvers.pipeline.orders import one_f_one_b
from solvers.pipeline.run import all_ends, critical_path, run_round

Ints = NDArray[np.int64]
# Any seed does: it only has to be the same on all ranks.
SEED = 20_260_101
_PATHS = 64
"""Of each lane, that are kept. An exchange that is too long is found to be so by one of them in most cases."""
_PATIENCE = 200
"""Pairs of cells, for every slot, that are tried in vain before the search jumps."""


class Pipe(NamedTuple):
    """What ops take, and in which order they run. Read-only."""

    unit: Ints  # int64[M, 2 S]: time of one unit of each module's work in every forward and backward
    fixed: Ints  # int64[2 S]: what each takes besides
    graph: Ints  # int64[4, T]: see solvers.pipeline.run
    hop: int
    lead: int  # so many first stages have no backward
    in_rounds: bool  # whether the order is 1F1B, which runs round by round


class Lanes(NamedTuple):
    """Durations of ops, and what is known of their runs. Writable."""

    rows: Ints  # int64[cells, 2 S]: durations of every cell's ops
    durations: Ints  # int64[lanes, K, 2 S]: of every lane's; the same memory as `rows` unless replicas are tied
    heads: Ints  # int64[lanes, K + S, S]: of 1F1B, when each stage ends before a round
    tails: Ints  # int64[lanes, K + S, S]: and how long it then takes at least from there to the end of all
    makespans: Ints  # int64[lanes]


class Paths(NamedTuple):
    """Critical paths that are kept of every lane: length = const + slope times load, summed. Writable."""

    slopes: Ints  # int64[lanes, cells of a lane, paths, M]
    consts: Ints  # int64[lanes, paths]
    lengths: Ints  # int64[lanes, paths]: with the present loads


class Scratch(NamedTuple):
    """What pairs are tried in. Writable."""

    ends: Ints  # int64[T]: when ops end
    marks: NDArray[np.int8]  # int8[T]: see solvers.pipeline.run.critical_path
    stage_ends: Ints  # int64[S + 1]
    rows: Ints  # int64[2, 2 S]: durations after an exchange, of cells a and b
    # int64[2, paths, M]: what a unit more in cell a, and less in b, adds to the paths of the lane of a; the other way,
    # of the lane of b
    rises: Ints
    more: Ints  # int64[M]: what a cell has more after an exchange


class Search(NamedTuple):
    """All that an exchange needs to be judged."""

    pipe: Pipe
    rules: Rules
    cells: Cells
    lanes: Lanes
    paths: Paths
    scratch: Scratch


class Change(NamedTuple):
    """An exchange: cell a gives item i for item j of cell b; both are -1 where none was found."""

    a: int
    b: int
    i: int
    j: int


# --- exact runs of a lane --------------------------------------------------------------------------------------------


@helper
def _run_in_part(lane, durations, lanes, pipe, first, last, stage_ends):
    """Makespan by running rounds `first` to `last` alone, what is before and after them being known. O(rounds S)."""
    num_stages = durations.shape[1] // 2
    flat, heads, tails = durations.reshape(-1), lanes.heads[lane], lanes.tails[lane]
    for s in range(num_stages):
        stage_ends[s] = heads[first, s]
    stage_ends[num_stages] = -pipe.hop
    for r in range(first, last + 1):
        run_round(r, durations, flat, pipe.lead, pipe.hop, stage_ends)
    makespan = np.int64(0)
    for s in range(num_stages):
        makespan = max(makespan, stage_ends[s] + tails[last + 1, s])
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
def _set_heads_and_tails(durations, pipe, heads, tails, stage_ends):
    """Run a lane forwards and backwards, and keep what is known between its rounds. O(K S)."""
    num_slots, num_stages = durations.shape[0], durations.shape[1] // 2
    flat = durations.reshape(-1)
    for s in range(num_stages):
        stage_ends[s] = 0
    stage_ends[num_stages] = -pipe.hop
    last = num_slots + num_stages - 1
    for r in range(last):
        for s in range(num_stages):
            heads[r, s] = stage_ends[s]
        run_round(r, durations, flat, pipe.lead, pipe.hop, stage_ends)
    for s in range(num_stages):
        tails[last, s] = 0
    for r in range(last - 1, -1, -1):
        _round_back(r, durations, pipe.lead, pipe.hop, tails[r + 1], tails[r])


@helper
def _settle(changed, lanes, pipe, scratch):
    """Run lanes that have changed; returns the work."""
    for lane in changed:
        durations = lanes.durations[lane]
        if pipe.in_rounds:
            _set_heads_and_tails(durations, pipe, lanes.heads[lane], lanes.tails[lane], scratch.stage_ends)
            lanes.makespans[lane] = largest_of(scratch.stage_ends)
        else:
            lanes.makespans[lane] = all_ends(pipe.graph, durations, pipe.hop, scratch.ends)
    return 4 * pipe.graph.shape[1] * len(changed)


# --- durations after an exchange -------------------------------------------------------------------------------------


@helper
def _set_row(cell, came, went, pipe, rules, loads, row):
    """Set durations of a cell's ops as they are after an exchange. O(M S)."""
    unit, fixed, work = pipe.unit, pipe.fixed, rules.work
    for j in range(len(fixed)):
        row[j] = fixed[j]
    for m in range(work.shape[0]):
        load = loads[cell, m]
        if came >= 0:
            load += work[m, came]
        if went >= 0:
            load -= work[m, went]
        for j in range(len(fixed)):
            row[j] += load * unit[m, j]


@helper
def _raise_to_others(slot, a, b, rows, num_slots, row):
    """Of tied replicas: raise a row of durations to those of a slot in all cells but a and b. O(R S)."""
    for cell in range(slot, len(rows), num_slots):
        if cell != a and cell != b:
            for j in range(len(row)):
                row[j] = max(row[j], rows[cell, j])


@helper
def _set_both(change, search):
    """Set the durations that the slots of cells a and b have in their lanes after an exchange."""
    a, b, i, j = change
    lanes, row_a, row_b = search.lanes, search.scratch.rows[0], search.scratch.rows[1]
    _set_row(a, j, i, search.pipe, search.rules, search.cells.loads, row_a)
    _set_row(b, i, j, search.pipe, search.rules, search.cells.loads, row_b)
    num_slots = lanes.durations.shape[1]
    if len(lanes.makespans) * num_slots < len(lanes.rows):  # tied
        _raise_to_others(a % num_slots, a, b, lanes.rows, num_slots, row_a)
        _raise_to_others(b % num_slots, a, b, lanes.rows, num_slots, row_b)
        if a % num_slots == b % num_slots:
            for x in range(len(row_a)):
                row_a[x] = max(row_a[x], row_b[x])


@helper
def _swap_rows(a, b, row_a, row_b, durations):
    """Swap rows a and b (-1: none) of a lane with two others."""
    for j in range(durations.shape[1]):
        durations[a, j], row_a[j] = row_a[j], durations[a, j]
    if b >= 0:
        for j in range(durations.shape[1]):
            durations[b, j], row_b[j] = row_b[j], durations[b, j]


@helper
def _set_durations(cell, search):
    """Bring the durations of a cell's ops up to date, and of its lane."""
    lanes = search.lanes
    num_slots = lanes.durations.shape[1]
    _set_row(cell, NONE, NONE, search.pipe, search.rules, search.cells.loads, lanes.rows[cell])
    if len(lanes.makespans) * num_slots < len(lanes.rows):  # tied
        slot = cell % num_slots
        for j in range(lanes.rows.shape[1]):
            lanes.durations[0, slot, j] = 0
        _raise_to_others(slot, NONE, NONE, lanes.rows, num_slots, lanes.durations[0, slot])


# --- critical paths that are kept ------------------------------------------------------------------------------------


@helper
def _length(lane, p, paths, loads):
    """Length of a path that is kept, with the present loads. O(cells of a lane, M)."""
    slopes, length = paths.slopes[lane], paths.consts[lane, p]
    for cell in range(slopes.shape[0]):
        for m in range(loads.shape[1]):
            length += slopes[cell, p, m] * loads[lane * slopes.shape[0] + cell, m]
    return length


@helper
def _learn(lane, pipe, lanes, paths, scratch):
    """Keep the critical path of a lane in place of the one that binds least; returns which that was. O(T M).

    Of tied replicas an op of the path is that of the replica where it takes longest.
    """
    durations, rows, graph = lanes.durations[lane], lanes.rows, pipe.graph
    slopes, width, first = paths.slopes[lane], durations.shape[1], lane * paths.slopes.shape[1]
    all_ends(graph, durations, pipe.hop, scratch.ends)
    critical_path(graph, durations, scratch.ends, scratch.marks)
    p, num_slots = first_smallest(paths.lengths[lane]), durations.shape[0]
    for cell in range(slopes.shape[0]):
        for m in range(slopes.shape[2]):
            slopes[cell, p, m] = 0
    constant = np.int64(0)
    for op in range(graph.shape[1]):
        if scratch.marks[op]:
            k, j = graph[0, op] // width, graph[0, op] % width
            cell = k
            for other in range(k + num_slots, slopes.shape[0], num_slots):
                if rows[first + other, j] > rows[first + cell, j]:
                    cell = other
            for m in range(pipe.unit.shape[0]):
                slopes[cell, p, m] += pipe.unit[m, j]
            constant += pipe.fixed[j]
            if scratch.marks[op] == 2:
                constant += pipe.hop * graph[3, op]
    paths.consts[lane, p] = constant
    return p


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
def _bound_by(hint, limit, more, rises, lengths):
    """First path, from `hint` on, that would reach `limit` with so much more work in a cell; -1 if there is none.

    The path that ruled out the last exchange is looked at first: it rules out most of the next ones too.
    """
    count, modules = rises.shape
    for turn in range(count):
        p = hint + turn if hint + turn < count else hint + turn - count
        length = lengths[p]
        for m in range(modules):
            length += rises[p, m] * more[m]
        if length >= limit:
            return p
    return NONE


@helper
def _shift(cell, came, went, work, slopes, lengths):
    """Bring the lengths of the paths that are kept up to date with what a cell of their lane gets and gives."""
    for p in range(len(lengths)):
        for m in range(work.shape[0]):
            if came >= 0:
                lengths[p] += slopes[cell, p, m] * work[m, came]
            if went >= 0:
                lengths[p] -= slopes[cell, p, m] * work[m, went]


# --- one pair of cells -----------------------------------------------------------------------------------------------


@helper
def _passes(limit, lane, rows, row_a, row_b, search):
    """Whether a lane stays below `limit` with other durations in its two slots `rows`; if not, learn why.

    The second slot is -1 where only one changes in this lane. Durations are swapped in for the run, and back.
    """
    pipe, lanes, scratch = search.pipe, search.lanes, search.scratch
    a, b, durations = rows[0], rows[1], lanes.durations[lane]
    _swap_rows(a, b, row_a, row_b, durations)
    if pipe.in_rounds:
        low, last = a if b < 0 else min(a, b), max(a, b) + durations.shape[1] // 2 - 1
        makespan = _run_in_part(lane, durations, lanes, pipe, low, last, scratch.stage_ends)
    else:
        makespan = all_ends(pipe.graph, durations, pipe.hop, scratch.ends)
    p = NONE
    if makespan >= limit:
        p = np.int64(_learn(lane, pipe, lanes, search.paths, scratch))
    _swap_rows(a, b, row_a, row_b, durations)
    if p >= 0:
        search.paths.lengths[lane, p] = _length(lane, p, search.paths, search.cells.loads)
    return makespan < limit


@helper
def _find_exchange(limit, a, b, state, search):
    """Find items of cells a and b whose exchange leaves both lanes below `limit`: the exchange, and the work done.

    All pairs are tried from a drawn one on, also of an item and none. In turn, cheapest first: paths that are kept, the
    caps, an exact run.
    """
    pipe, lanes, paths, scratch = search.pipe, search.lanes, search.paths, search.scratch
    members, num_lanes, num_slots = search.cells.members, len(lanes.makespans), lanes.durations.shape[1]
    tied, width = num_lanes * num_slots < len(lanes.rows), lanes.durations.shape[2]
    lane_a, lane_b = (0, 0) if tied else (a // num_slots, b // num_slots)
    first_a, first_b = lane_a * num_slots, lane_b * num_slots
    same, ka, kb = lane_a == lane_b, a % num_slots, b % num_slots
    slots_a, slots_b = (ka, kb if same and ka != kb else NONE), (kb, NONE)
    lengths_a, lengths_b = paths.lengths[lane_a], paths.lengths[lane_b]
    rises_a, rises_b = scratch.rises[0], scratch.rises[1]
    _set_rises(a - first_a, b - first_b if same else NONE, paths.slopes[lane_a], rises_a)
    _set_rises(NONE, b - first_b, paths.slopes[lane_b], rises_b)
    hint_a, hint_b = np.int64(0), np.int64(0)
    count_a, count_b = search.cells.counts[a] + 1, search.cells.counts[b] + 1
    start = draw(state, count_a * count_b)
    work, cost = np.int64(4 * rises_a.shape[0]), width**2 // 3 if pipe.in_rounds else width * num_slots
    for turn in range(count_a * count_b):
        at = start + turn if start + turn < count_a * count_b else start + turn - count_a * count_b
        p, q = at // count_b - 1, at % count_b - 1
        i, j = members[a, p] if p >= 0 else NONE, members[b, q] if q >= 0 else NONE
        if i < 0 and j < 0:
            continue
        # what cell a gets more of each module, and b less
        for m in range(len(scratch.more)):
            scratch.more[m] = (search.rules.work[m, j] if j >= 0 else 0) - (search.rules.work[m, i] if i >= 0 else 0)
        work += 3
        bound = _bound_by(hint_a, limit, scratch.more, rises_a, lengths_a)
        if bound >= 0:
            work += 2 * abs(bound - hint_a)
            hint_a = bound
            continue
        work += 2 * rises_a.shape[0]
        if not same:
            bound = _bound_by(hint_b, limit, scratch.more, rises_b, lengths_b)
            if bound >= 0:
                work += 2 * abs(bound - hint_b)
                hint_b = bound
                continue
            work += 2 * rises_a.shape[0]
        if not may_exchange(a, b, i, j, search.rules, search.cells):
            continue
        work += cost
        change = Change(a, b, i, j)
        _set_both(change, search)
        # a run that fails has taught a path; the rises of its lane hold it, for the pairs that follow
        if not _passes(limit, lane_a, slots_a, scratch.rows[0], scratch.rows[1], search):
            work += 4 * pipe.graph.shape[1]
            _set_rises(a - first_a, b - first_b if same else NONE, paths.slopes[lane_a], rises_a)
            continue
        if same or _passes(limit, lane_b, slots_b, scratch.rows[1], scratch.rows[0], search):
            return change, work
        work += 4 * pipe.graph.shape[1]
        _set_rises(NONE, b - first_b, paths.slopes[lane_b], rises_b)
    return Change(a, b, NONE, NONE), work


# --- the search ------------------------------------------------------------------------------------------------------


@helper
def _make(change, search):
    """Make an exchange, and bring durations and kept paths up to date; returns the lanes that it changed."""
    a, b, i, j = change
    num_slots, num_lanes = search.lanes.durations.shape[1], len(search.lanes.makespans)
    tied = num_lanes * num_slots < len(search.lanes.rows)
    change_items(a, j, i, search.rules, search.cells)
    change_items(b, i, j, search.rules, search.cells)
    for cell, came, went in ((a, j, i), (b, i, j)):
        lane = 0 if tied else cell // num_slots
        _set_durations(cell, search)
        inside = cell - lane * num_slots
        _shift(inside, came, went, search.rules.work, search.paths.slopes[lane], search.paths.lengths[lane])
    changed = np.array([0 if tied else a // num_slots, 0 if tied else b // num_slots])
    return changed[:1] if changed[0] == changed[1] else changed


@helper
def _copy_cells(target, source):
    """Make one solution the other."""
    copy_table(target.members, source.members)
    copy(target.counts, source.counts)
    copy_table(target.loads, source.loads)
    copy_table(target.held, source.held)
    copy_table(target.in_flight, source.in_flight)


@helper
def _return_to(best, search):
    """Go back to the best solution; returns the work."""
    lanes, paths = search.lanes, search.paths
    _copy_cells(search.cells, best)
    for cell in range(len(search.cells.loads)):
        _set_durations(cell, search)
    for lane in range(len(lanes.makespans)):
        for p in range(paths.lengths.shape[1]):
            paths.lengths[lane, p] = _length(lane, p, paths, search.cells.loads)
    return paths.slopes.size


@helper
def _begin(pipe, rules, cells, rows, durations):
    """Make room for all that a search needs to know."""
    num_lanes, num_slots, width = durations.shape
    modules, num_ops = pipe.unit.shape[0], pipe.graph.shape[1]
    heads = np.empty((num_lanes, num_slots + width // 2, width // 2), np.int64)
    lanes = Lanes(rows, durations, heads, np.empty_like(heads), np.empty(num_lanes, np.int64))
    slopes = np.zeros((num_lanes, len(rows) // num_lanes, _PATHS, modules), np.int64)
    paths = Paths(slopes, np.zeros((num_lanes, _PATHS), np.int64), np.zeros((num_lanes, _PATHS), np.int64))
    scratch = Scratch(
        np.empty(num_ops, np.int64), np.empty(num_ops, np.int8), np.empty(width // 2 + 1, np.int64),
        np.empty((2, width), np.int64), np.empty((2, _PATHS, modules), np.int64), np.empty(modules, np.int64),
    )  # fmt: skip
    return Search(pipe, rules, cells, lanes, paths, scratch)


@kernel(turns=1000)
def _exchange(state, most_work, goal, pipe, rules, cells, rows, durations):
    """Exchange items between cells until no makespan is above `goal`, or as long as there is work; returns the work.

    ``state``, int64[1], draws the pairs; ``rows`` and ``durations`` are those of :class:`Lanes`, as they are now.
    """
    search = _begin(pipe, rules, cells, rows, durations)
    makespans, num_cells = search.lanes.makespans, len(cells.counts)
    num_lanes, num_slots = durations.shape[0], durations.shape[1]
    tied, changed = num_lanes * num_slots < num_cells, numbers(num_lanes)
    best = Cells(
        cells.members.copy(), cells.counts.copy(), cells.loads.copy(), cells.held.copy(), cells.in_flight.copy()
    )
    least, work, step, kicks, worst = np.int64(2**62), np.int64(0), np.int64(-1), 0, 0
    while True:
        work += _settle(changed, search.lanes, pipe, search.scratch)
        worst = first_largest(makespans)
        if makespans[worst] <= goal or work >= most_work or num_cells == 1:
            break
        # 1. The longest lane has to get shorter by a step: large at first, halved where pairs are tried in vain, longer
        #    by a quarter with each exchange. So large gains are made first, and are not lost to small ones.
        step = (makespans[worst] - goal) // 16 if step < 0 else step
        change, idle = Change(NONE, NONE, NONE, NONE), 0
        while change.i < 0 and change.j < 0 and idle < _PATIENCE * num_slots and work < most_work:
            a = draw(state, num_cells) if tied or kicks > 0 else worst * num_slots + draw(state, num_slots)
            b = worst * num_slots + draw(state, num_slots) if draw(state, 4) == 0 else draw(state, num_cells)
            idle += 1
            if a != b:
                limit = makespans[worst] - step
                if kicks > 0:
                    limit = makespans[worst] + 1 + (makespans[worst] >> (1 + draw(state, 11)))
                elif idle % (4 * num_slots) == 0:
                    step //= 2
                change, more = _find_exchange(limit, a, b, state, search)
                work += more
        if change.i >= 0 or change.j >= 0:
            kicks, step = max(0, kicks - 1), step + step // 4
            changed = _make(change, search)
            continue
        # 2. None is found: note what is best so far, or go back to it, and jump: one to four exchanges that may make it
        #    longer, by half at most and mostly by little.
        if makespans[worst] < least:
            least = makespans[worst]
            _copy_cells(best, search.cells)
        else:
            work += _return_to(best, search)
            changed = numbers(num_lanes)
        kicks, step = 1 + draw(state, 4), (makespans[worst] - goal) // 64
        work += num_cells * cells.members.shape[1] // 4
    if makespans[worst] > least:
        _copy_cells(search.cells, best)
    return work


def exchange_items(solution: Solution, goal: int, work: int) -> int:
    """Exchange items for as much work as given, or until no makespan is above `goal`; return what is left."""
    problem, stages, order = solution.problem, solution.problem.merged, solution.problem.order
    rows, lanes = lanes_of(problem, solution.cells.loads)
    in_rounds = order == one_f_one_b(problem.num_slots, order.num_stages, order.forward_only)
    pipe = Pipe(stages.unit, stages.fixed, order.graph, stages.hop, order.forward_only, in_rounds)
    state = np.array([SEED], dtype=np.int64)
    return work - int(_exchange(state, work, goal, pipe, solution.rules, solution.cells, rows, lanes))
