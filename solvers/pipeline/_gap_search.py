"""A schedule of tasks in a pipeline's gaps as sequences: the exact run of given ones, and a search among them.

Ops have numbers: the pipeline's are ``k * 2 S + cell`` (see :mod:`solvers.pipeline._kernels`), then come the tasks'
forwards from `front` on, then their backwards from `backs` on. What is known of each op, ``ops``, int64[5, ops]: the
time that it takes; the op for whose end it waits (a forward of a task: for whose start), or -1; how long after that;
the slot whose first op it is, and the slot of a task whose forward it is, else -1. Of a schedule: ``sequence``,
int64[D, 1 + L], how many ops a device runs, and which, in turn; ``starts``, int64[ops]; ``device``, int64[t].

Items, which have loads and tasks, may change their slots: ``item_slot``, int64[m]; ``item_rows``, int64[m, 2 S], what
they add to their slot's ops; ``item_first``, int64[m + 1], and ``item_tasks``, which tasks are theirs; ``item_sizes``,
int64[C, m], under ``slot_caps``, int64[C + 1], the last of which says whether a slot may be empty.
"""

import numpy as np

from solvers._jit import helper, inlined, kernel
from solvers._loops import copy, draw, first_largest

__all__ = ["search_gaps"]

_NEVER = 2**62
_TOOK, _AFTER, _LAG, _FIRST, _AHEAD = range(5)  # rows of what is known of ops
_PASS = 300  # units of work that a step takes besides running ops anew
_UNITS = 3  # of work that running two ops anew takes


@helper
def _resume(begin, sequence, ops, hop, starts, left, ready, at, free):
    """Find the ops that do not start before `begin`; returns how many, and sets their starts to -1."""
    for k in range(len(left)):
        left[k], ready[k] = 0, 0
    total = np.int64(0)
    for d in range(sequence.shape[0]):
        p, end = 1, np.int64(0)
        while p <= sequence[d, 0] and 0 <= starts[sequence[d, p]] < begin:
            op = sequence[d, p]
            end = starts[op] + ops[_TOOK, op]
            k = ops[_AHEAD, op]
            if k >= 0:
                ready[k] = max(ready[k], end + (hop if d > 0 else 0))
            p += 1
        at[d], free[d] = p, end
        for q in range(p, sequence[d, 0] + 1):
            op = sequence[d, q]
            starts[op] = -1
            total += 1
            if ops[_AHEAD, op] >= 0:
                left[ops[_AHEAD, op]] += 1
    return total


@helper
def _run(begin, most, sequence, ops, tails, hop, front, backs, starts, left, ready, at, free):
    """Run all ops that do not start before `begin`, where nothing has changed.

    Returns the makespan, or NEVER where it is over `most` or ops wait for each other. ``tails`` are least times from
    the start of an op to the end of all.
    """
    num_devices = sequence.shape[0]
    total = _resume(begin, sequence, ops, hop, starts, left, ready, at, free)
    moved, up = True, True
    while moved and total > 0:
        moved = False
        for turn in range(num_devices):
            d = turn if up else num_devices - 1 - turn
            p, last, end = at[d], sequence[d, 0], free[d]
            away = hop if d > 0 else np.int64(0)
            while p <= last:
                op = sequence[d, p]
                start, after, k = end, ops[_AFTER, op], ops[_FIRST, op]
                if after >= 0:
                    if starts[after] < 0:
                        break
                    since = starts[after] + ops[_LAG, op]
                    if op >= backs:
                        since += away
                    if op < front or op >= backs:
                        since += ops[_TOOK, after]
                    start = max(start, since)
                if k >= 0:
                    if left[k] > 0:
                        break
                    start = max(start, ready[k])
                if start + tails[op] > most:
                    return np.int64(_NEVER)
                starts[op] = start
                end = start + ops[_TOOK, op]
                k = ops[_AHEAD, op]
                if k >= 0:
                    left[k] -= 1
                    ready[k] = max(ready[k], end + away)
                p += 1
                total -= 1
                moved = True
            at[d], free[d] = p, end
        up = not up
    if total > 0:
        return np.int64(_NEVER)
    return free[first_largest(free)]


@inlined
def _find(sequence, d, op):
    p = 1
    while sequence[d, p] != op:
        p += 1
    return p


@helper
def _take(sequence, d, op):
    """Take an op out of a device's sequence."""
    p = _find(sequence, d, op)
    for q in range(p, sequence[d, 0]):
        sequence[d, q] = sequence[d, q + 1]
    sequence[d, 0] -= 1


@helper
def _put(sequence, d, p, op):
    """Put an op into a device's sequence, so that it stands at p."""
    for q in range(sequence[d, 0], p - 1, -1):
        sequence[d, q + 1] = sequence[d, q]
    sequence[d, p] = op
    sequence[d, 0] += 1


@helper
def _place_of(sequence, d, time, starts):
    """Where an op that starts at a time belongs."""
    low, high = 1, sequence[d, 0] + 1
    while low < high:
        mid = (low + high) // 2
        if starts[sequence[d, mid]] < time:
            low = mid + 1
        else:
            high = mid
    return low


@helper
def _holds(sequence, d, ahead, backs, sizes, ops, cap):
    """Whether what a device holds between forwards and backwards stays under its cap."""
    held = np.int64(0)
    for p in range(1, sequence[d, 0] + 1):
        op = sequence[d, p]
        if op >= backs:
            held -= sizes[op - backs]
        elif op >= ahead and ops[_AHEAD, op] >= 0 and ops[_TOOK, op + backs - ahead] > 0:
            held += sizes[op - ahead]
            if held > cap:
                return False
    return True


@helper
def _critical(sequence, ops, starts, free, ahead, backs, found):
    """List tasks on one longest path; returns how many entries."""
    num_devices, count = sequence.shape[0], np.int64(0)
    n = backs - ahead
    d = first_largest(free)
    p = sequence[d, 0]
    for _ in range(len(starts)):
        if p < 1:
            break
        op = sequence[d, p]
        if op >= ahead:
            found[count] = op
            count += 1
        before = sequence[d, p - 1] if p > 1 else np.int64(-1)
        if before >= 0 and starts[before] + ops[_TOOK, before] == starts[op]:
            p -= 1
            continue
        cause, k = ops[_AFTER, op], ops[_FIRST, op]
        if k >= 0:  # the task that is last of the slot's
            latest = np.int64(-1)
            for other in range(ahead, backs):
                if ops[_AHEAD, other] == k and starts[other] + ops[_TOOK, other] > latest:
                    latest = starts[other] + ops[_TOOK, other]
                    if latest <= starts[op]:
                        cause = other
        if cause < 0 or starts[op] == 0:
            break
        for e in range(num_devices):
            q = _place_of(sequence, e, starts[cause], starts)
            while q <= sequence[e, 0] and starts[sequence[e, q]] == starts[cause] and sequence[e, q] != cause:
                q += 1
            if q <= sequence[e, 0] and sequence[e, q] == cause:
                d, p = e, q
                break
    return count if n else np.int64(0)


@helper
def _elsewhere(state, i, e, sequence, ops, starts, device, ahead, backs):
    """Give a task to another device, about when it was; returns the start of the first op that this may change."""
    front, back, d = ahead + i, backs + i, device[i]
    begin = starts[front]
    place = _place_of(sequence, e, begin - (draw(state, 3) - 1) * ops[_TOOK, front], starts)
    if place <= sequence[e, 0]:
        begin = min(begin, starts[sequence[e, place]])
    _take(sequence, d, front)
    if ops[_TOOK, back] > 0:
        later = sequence[e, 0] + 1
        if draw(state, 2) == 0:
            later = max(place, _place_of(sequence, e, starts[back], starts))
        _take(sequence, d, back)
        _put(sequence, e, later, back)
    _put(sequence, e, place, front)
    device[i] = e
    return begin


@helper
def _exchanged(i, j, sequence, ops, starts, device, ahead, backs):
    """Let two tasks of two devices change places; returns the start of the first op that this may change."""
    d, e = device[i], device[j]
    for base in (ahead, backs):
        if ops[_TOOK, backs + i] > 0 or base == ahead:
            p, q = _find(sequence, d, base + i), _find(sequence, e, base + j)
            sequence[d, p], sequence[e, q] = base + j, base + i
    device[i], device[j] = e, d
    return min(starts[ahead + i], starts[ahead + j])


@helper
def _shifted(state, op, d, sequence, starts):
    """Move an op some places in its device's sequence; returns the start of the first op that this may change."""
    p = _find(sequence, d, op)
    q = p + (1 + draw(state, 6)) * (2 * draw(state, 2) - 1)
    q = max(1, min(sequence[d, 0], q))
    begin = min(starts[op], starts[sequence[d, q]])
    _take(sequence, d, op)
    _put(sequence, d, q, op)
    return begin


@helper
def _set_tails(graph, width, ops, front, backs, slots, hop, tails):
    """Set the least time from every op's start to the end, by the pipeline's own order."""
    for op in range(len(tails)):
        tails[op] = ops[_TOOK, op]
    for at in range(graph.shape[1] - 1, -1, -1):
        tail = tails[graph[0, at]]
        for row in (1, 2):
            if graph[row, at] >= 0:
                op = graph[0, graph[row, at]]
                more = hop * graph[3, at] if row == 2 else np.int64(0)
                tails[op] = max(tails[op], ops[_TOOK, op] + more + tail)
    for i in range(backs - front):
        tails[front + i] += tails[slots[i] * width]


@helper
def _regain(i, k, window, width, ops, front, backs, slots):
    """Say of a task that it is of slot k."""
    slots[i] = k
    ops[_AHEAD, front + i] = k
    ops[_AFTER, front + i] = (k - window) * width if k >= window else -1
    ops[_AFTER, backs + i] = k * width + width // 2


@helper
def _load(item, k, sign, width, item_rows, ops):
    for cell in range(width):
        ops[_TOOK, k * width + cell] += sign * item_rows[item, cell]


@helper
def _follow(item, old, new, width, sequence, ops, starts, device, front, backs, touched, item_first, item_tasks):
    """Move the tasks of an item to where they belong in another slot; returns the first start that this may change.

    They stay on their devices; ``starts`` are changed too, to what they might be.
    """
    begin = np.int64(_NEVER)
    for at in range(item_first[item], item_first[item + 1]):
        i = item_tasks[at]
        d = device[i]
        touched[d] = 1
        for op in (front + i, backs + i):
            if op >= backs and ops[_TOOK, op] == 0:
                continue
            begin = min(begin, starts[op])
            _take(sequence, d, op)
            cell = np.int64(0) if op < backs else width // 2
            wanted = starts[op] + starts[new * width + cell] - starts[old * width + cell]
            if op >= backs:
                wanted = max(starts[op], starts[new * width + cell] + ops[_TOOK, new * width + cell])
            starts[op] = max(0, wanted)
            p = _place_of(sequence, d, starts[op], starts)
            if p <= sequence[d, 0]:
                begin = min(begin, starts[sequence[d, p]])
            begin = min(begin, starts[op])
            _put(sequence, d, p, op)
    return begin


@inlined
def _fits(a, b, k, l, item_sizes, slot_caps, held, counts):
    """Whether two slots may exchange items; `b` may be none, -1."""
    fits = b >= 0 or counts[k] > 1 or slot_caps[len(slot_caps) - 1] > 0
    for c in range(item_sizes.shape[0]):
        more = item_sizes[c, a] - (item_sizes[c, b] if b >= 0 else 0)
        fits &= held[l, c] + more <= slot_caps[c] and held[k, c] - more <= slot_caps[c]
    return fits


@helper
def _count(item, k, sign, item_sizes, held, counts):
    counts[k] += sign
    for c in range(item_sizes.shape[0]):
        held[k, c] += sign * item_sizes[c, item]


@inlined
def _squares(free):
    """What falls when a late device ends earlier, though another may be the last."""
    total = 0.0
    for d in range(len(free)):
        total += np.float64(free[d]) * np.float64(free[d])
    return total


@helper
def _restore(d, target, source):
    for p in range(max(target[d, 0], source[d, 0]) + 1):
        target[d, p] = source[d, p]


@kernel
def search_gaps(
    state, most_work, goal, sequence, ops, graph, hop, front, window, sizes, slots, allowed, caps, device, starts,
    item_slot, item_rows, item_first, item_tasks, item_sizes, slot_caps,
):  # fmt: skip
    """Search for as much work as given, or until the makespan is no larger than `goal`; returns it, and the work done.

    ``sizes`` and ``slots`` are those of the tasks. What is given is in the end that of the best schedule.
    """
    num_devices, n, m, num_slots, width = sequence.shape[0], len(device), len(item_slot), 1, np.int64(0)
    for op in range(front):
        num_slots = max(num_slots, ops[_FIRST, op] + 1)
    width = front // num_slots
    backs = front + n
    left, ready = np.empty(num_slots, np.int64), np.empty(num_slots, np.int64)
    at, free = np.empty(num_devices, np.int64), np.empty(num_devices, np.int64)
    path, tails = np.empty(len(starts), np.int64), np.empty(len(starts), np.int64)
    held, counts = np.zeros((num_slots, item_sizes.shape[0]), np.int64), np.zeros(num_slots, np.int64)
    touched = np.zeros(num_devices, np.int64)
    for item in range(m):
        _count(item, item_slot[item], 1, item_sizes, held, counts)
    _set_tails(graph, width, ops, front, backs, slots, hop, tails)
    makespan = _run(0, _NEVER, sequence, ops, tails, hop, front, backs, starts, left, ready, at, free)
    trial, kept, score = starts.copy(), sequence.copy(), _squares(free)
    count = _critical(sequence, ops, starts, free, front, backs, path)
    work = np.int64(0)
    while work < most_work and makespan > goal and n > 0:
        work += _PASS
        op = front + draw(state, n)
        if count > 0 and draw(state, 4) > 0:
            op = path[draw(state, count)]
        i = (op - front) % n
        d, e, j, kind = device[i], device[i], np.int64(-1), draw(state, 11 if m > 0 else 8)
        a, b, k, l = np.int64(-1), np.int64(-1), np.int64(-1), np.int64(-1)
        if kind < 3:
            e = draw(state, num_devices)
            if e == d or not allowed[i, e]:
                continue
            begin = _elsewhere(state, i, e, sequence, ops, starts, device, front, backs)
        elif kind < 6:
            j = draw(state, n)
            e = device[j]
            same = (ops[_TOOK, backs + i] > 0) == (ops[_TOOK, backs + j] > 0)
            if e == d or not allowed[i, e] or not allowed[j, d] or not same or abs(slots[i] - slots[j]) > window:
                continue
            begin = _exchanged(i, j, sequence, ops, starts, device, front, backs)
        elif kind < 8:
            begin = _shifted(state, op, d, sequence, starts)
        else:
            a = draw(state, m)
            k = item_slot[a]
            if kind < 10:
                b = draw(state, m)
                l = item_slot[b]
            else:
                l = draw(state, num_slots)
            if k == l or not _fits(a, b, k, l, item_sizes, slot_caps, held, counts):
                continue
            copy(trial, starts)
            begin = min(starts[k * width], starts[l * width])
            for item, old, new in ((a, k, l), (b, l, k)):
                if item >= 0:
                    _load(item, old, -1, width, item_rows, ops)
                    _load(item, new, 1, width, item_rows, ops)
                    first = _follow(item, old, new, width, sequence, ops, trial, device, front, backs, touched,
                                    item_first, item_tasks)  # fmt: skip
                    begin = min(begin, first)
                    for t in range(item_first[item], item_first[item + 1]):
                        _regain(item_tasks[t], new, window, width, ops, front, backs, slots)
        touched[d], touched[e] = 1, 1
        met, holds = np.int64(_NEVER), True
        for f in range(num_devices):
            holds &= touched[f] == 0 or _holds(sequence, f, front, backs, sizes, ops, caps[f])
        if holds:
            if a < 0:
                copy(trial, starts)
            met = _run(begin, makespan, sequence, ops, tails if a < 0 else ops[_TOOK], hop, front, backs, trial, left,
                       ready, at, free)  # fmt: skip
            work += _UNITS * len(starts) // 2
        if met < makespan or (met == makespan and _squares(free) <= score):
            makespan, score = met, _squares(free)
            copy(starts, trial)
            if a >= 0:
                for item, old, new in ((a, k, l), (b, l, k)):
                    if item >= 0:
                        item_slot[item] = new
                        _count(item, old, -1, item_sizes, held, counts)
                        _count(item, new, 1, item_sizes, held, counts)
                _set_tails(graph, width, ops, front, backs, slots, hop, tails)
            count = _critical(sequence, ops, starts, free, front, backs, path)
            for f in range(num_devices):
                if touched[f]:
                    _restore(f, kept, sequence)
                    touched[f] = 0
        else:
            for f in range(num_devices):
                if touched[f]:
                    _restore(f, sequence, kept)
                    touched[f] = 0
            device[i] = d
            if j >= 0:
                device[j] = e
            if a >= 0:
                for item, old, new in ((a, k, l), (b, l, k)):
                    if item >= 0:
                        _load(item, old, 1, width, item_rows, ops)
                        _load(item, new, -1, width, item_rows, ops)
                        for t in range(item_first[item], item_first[item + 1]):
                            _regain(item_tasks[t], old, window, width, ops, front, backs, slots)
    return makespan, work
