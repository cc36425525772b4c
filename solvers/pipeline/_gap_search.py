"""A schedule of tasks in a pipeline's gaps as sequences: the exact run of given ones, and a search among them.

Ops have numbers: the pipeline's are ``k * 2 S + cell`` (see :mod:`solvers.pipeline._kernels`), then come the tasks'
forwards from `front` on, then their backwards from `backs` on; a task of a generator is one op, among the forwards.
What is known of each op, ``ops``, int64[ops, 5]: the time that it takes; the op for whose end it waits (a forward of a
task: for whose start), or -1; how long after that; the gate that it waits for, and the gate that it is a part of, else
-1. Slot k has two: all forwards of its tasks, k, open its first op, all its generators' tasks, K + k, its backward in
the last stage. Of a schedule: ``sequence``, int64[D, 1 + L], how many ops a device runs, and which, in turn;
``starts``, int64[ops]; ``device``, int64[t].

Items, which have loads and tasks, may change their slots;
``items`` are ``item_slot``, int64[m]; ``item_rows``, int64[m, 2 S], what
they add to their slot's ops; ``item_first``, int64[m + 1], and ``item_tasks``, which tasks are theirs; ``item_sizes``,
int64[C, m], under ``slot_caps``, int64[C + 1], the last of which says whether a slot may be empty.
"""

import numpy as np

from solvers._jit import helper, inlined, kernel
from solvers._loops import copy, draw, first_largest

__all__ = ["search_gaps"]

_NEVER, _NO_CAP = 2**62, 2**60
_TOOK, _AFTER, _LAG, _OPENED, _GATE = range(5)  # columns of what is known of ops
_D, _E, _J, _A, _B, _K, _L = range(7)  # of a move: devices, the other task, items and their slots; -1 if none
_PASS = 300  # units of work that a step takes besides running ops anew
_UNITS = 1  # of work that running an op anew takes
_ACCEPTED = 6  # of work for each op that keeping a schedule takes


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


@inlined
def _away(d, gate, home, hop):
    """What passes between a device and the one that a gate is on: the first, or the last stage's `home`."""
    return hop if d != (home[1] if gate >= home[0] else 0) else np.int64(0)


@helper
def _resume(begin, sequence, ops, hop, home, front, device, starts, left, ready, at, free, rest):
    """Find the ops that do not start before `begin`; returns how many, and sets their starts to -1."""
    for k in range(len(left)):
        left[k], ready[k] = 0, 0
    for i in range(len(device)):
        k, start = ops[front + i, _GATE], starts[front + i]
        if start < begin:
            ready[k] = max(ready[k], start + ops[front + i, _TOOK] + _away(device[i], k, home, hop))
        else:
            left[k] += 1
    total = np.int64(0)
    for d in range(sequence.shape[0]):
        p = _place_of(sequence, d, begin, starts)
        at[d], free[d], rest[d] = p, 0, 0
        if p > 1:
            free[d] = starts[sequence[d, p - 1]] + ops[sequence[d, p - 1], _TOOK]
        for q in range(p, sequence[d, 0] + 1):
            op = sequence[d, q]
            starts[op] = -1
            rest[d] += ops[op, _TOOK]
        total += sequence[d, 0] + 1 - p
    return total


@helper
def _run(begin, most, sequence, ops, tails, hop, home, front, backs, device, starts, left, ready, at, free, rest):
    """Run all ops that do not start before `begin`, where nothing has changed.

    Returns the makespan, or NEVER where it is over `most` or ops wait for each other. ``tails`` are least times from
    the start of an op to the end of all; ``home``, how many slots there are, and the last stage's device.
    """
    num_devices = sequence.shape[0]
    total = _resume(begin, sequence, ops, hop, home, front, device, starts, left, ready, at, free, rest)
    moved, up = True, True
    while moved and total > 0:
        moved = False
        for turn in range(num_devices):
            d = turn if up else num_devices - 1 - turn
            p, last, end = at[d], sequence[d, 0], free[d]
            while p <= last:
                op = sequence[d, p]
                start, after, k = end, ops[op, _AFTER], ops[op, _OPENED]
                if after >= 0:
                    since = starts[after]
                    if since < 0:
                        break
                    since += ops[op, _LAG]
                    if op < front:
                        since += ops[after, _TOOK]
                    elif op >= backs:
                        since += ops[after, _TOOK] + _away(d, 0, home, hop)
                    elif ops[op, _GATE] >= home[0]:
                        since += ops[after, _TOOK] + _away(d, home[0], home, hop)
                    start = max(start, since)
                if k >= 0:
                    if left[k] > 0:
                        break
                    start = max(start, ready[k])
                if start + max(tails[op], rest[d]) > most:
                    return np.int64(_NEVER)
                starts[op] = start
                end = start + ops[op, _TOOK]
                rest[d] -= ops[op, _TOOK]
                if front <= op < backs:
                    k = ops[op, _GATE]
                    left[k] -= 1
                    ready[k] = max(ready[k], end + _away(d, k, home, hop))
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
def _holds(sequence, d, ahead, backs, sizes, ops, cap):
    """Whether what a device holds between forwards and backwards stays under its cap."""
    held = np.int64(0)
    for p in range(1, sequence[d, 0] + 1):
        op = sequence[d, p]
        if op >= backs:
            held -= sizes[op - backs]
        elif op >= ahead and ops[op + backs - ahead, _TOOK] > 0:
            held += sizes[op - ahead]
            if held > cap:
                return False
    return True


@inlined
def _last_task(k, before, ops, starts, front, backs):
    """Return which task of a gate ends last, of those that do so by some time, or -1."""
    found, latest = np.int64(-1), np.int64(-1)
    for op in range(front, backs):
        end = starts[op] + ops[op, _TOOK]
        if ops[op, _GATE] == k and latest < end <= before:
            found, latest = op, end
    return found


@helper
def _where(op, sequence, starts, found):
    """Set device and place of an op."""
    for d in range(sequence.shape[0]):
        p = _place_of(sequence, d, starts[op], starts)
        while p <= sequence[d, 0] and starts[sequence[d, p]] == starts[op]:
            if sequence[d, p] == op:
                found[0], found[1] = d, p
                return
            p += 1


@helper
def _critical(sequence, ops, starts, free, front, backs, path):
    """List the tasks' ops on one longest path; returns how many there are."""
    count, here = np.int64(0), np.empty(2, np.int64)
    here[0] = first_largest(free)
    here[1] = sequence[here[0], 0]
    for _ in range(len(starts)):
        d, p = here[0], here[1]
        if p < 1:
            break
        op = sequence[d, p]
        if op >= front:
            path[count] = op
            count += 1
        before = sequence[d, p - 1] if p > 1 else np.int64(-1)
        if before >= 0 and starts[before] + ops[before, _TOOK] == starts[op]:
            here[1] = p - 1
            continue
        cause = ops[op, _AFTER]
        if ops[op, _OPENED] >= 0:
            last = _last_task(ops[op, _OPENED], starts[op], ops, starts, front, backs)
            cause = last if last >= 0 else cause
        if cause < 0 or starts[op] == 0:
            break
        _where(cause, sequence, starts, here)
    return count


@helper
def _elsewhere(state, i, e, sequence, ops, starts, device, front, backs):
    """Give a task to another device, about when it was; returns the start of the first op that this may change."""
    ahead, back, d = front + i, backs + i, device[i]
    begin = starts[ahead]
    place = _place_of(sequence, e, begin - (draw(state, 3) - 1) * ops[ahead, _TOOK], starts)
    if place <= sequence[e, 0]:
        begin = min(begin, starts[sequence[e, place]])
    _take(sequence, d, ahead)
    if ops[back, _TOOK] > 0:
        later = sequence[e, 0] + 1
        if draw(state, 2) == 0:
            later = max(place, _place_of(sequence, e, starts[back], starts))
        _take(sequence, d, back)
        _put(sequence, e, later, back)
    _put(sequence, e, place, ahead)
    device[i] = e
    return begin


@helper
def _exchanged(i, j, sequence, ops, starts, device, front, backs):
    """Let two tasks of two devices change places; returns the start of the first op that this may change."""
    d, e = device[i], device[j]
    for base in (front, backs):
        if ops[backs + i, _TOOK] > 0 or base == front:
            p, q = _find(sequence, d, base + i), _find(sequence, e, base + j)
            sequence[d, p], sequence[e, q] = base + j, base + i
    device[i], device[j] = e, d
    return min(starts[front + i], starts[front + j])


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
        tails[op] = ops[op, _TOOK]
    for at in range(graph.shape[1] - 1, -1, -1):
        tail = tails[graph[0, at]]
        for row in (1, 2):
            if graph[row, at] >= 0:
                op = graph[0, graph[row, at]]
                more = hop * graph[3, at] if row == 2 else np.int64(0)
                tails[op] = max(tails[op], ops[op, _TOOK] + more + tail)
    num_slots = front // width
    for i in range(backs - front):
        tails[front + i] += tails[slots[i] * width + (width - 1 if ops[front + i, _GATE] >= num_slots else 0)]


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
            if op >= backs and ops[op, _TOOK] == 0:
                continue
            begin = min(begin, starts[op])
            _take(sequence, d, op)
            late = ops[op, _GATE] >= front // width
            cell = width // 2 if op >= backs else (width // 2 - 1 if late else np.int64(0))
            wanted = starts[op] + starts[new * width + cell] - starts[old * width + cell]
            if op >= backs or late:
                wanted = max(starts[op], starts[new * width + cell] + ops[new * width + cell, _TOOK])
            starts[op] = max(0, wanted)
            p = _place_of(sequence, d, starts[op], starts)
            if p <= sequence[d, 0]:
                begin = min(begin, starts[sequence[d, p]])
            begin = min(begin, starts[op])
            _put(sequence, d, p, op)
    return begin


@inlined
def _fits(a, b, k, other, item_sizes, slot_caps, held, counts):
    """Whether two slots may exchange items; `b` may be none, -1."""
    fits = b >= 0 or counts[k] > 1 or slot_caps[len(slot_caps) - 1] > 0
    for c in range(item_sizes.shape[0]):
        more = item_sizes[c, a] - (item_sizes[c, b] if b >= 0 else 0)
        fits &= held[other, c] + more <= slot_caps[c] and held[k, c] - more <= slot_caps[c]
    return fits


@helper
def _count(item, k, sign, item_sizes, held, counts):
    counts[k] += sign
    for c in range(item_sizes.shape[0]):
        held[k, c] += sign * item_sizes[c, item]


@helper
def _resettle(item, old, new, width, window, ops, front, backs, slots, item_rows, item_first, item_tasks):
    """Count an item's loads and tasks to another slot."""
    for cell in range(width):
        ops[old * width + cell, _TOOK] -= item_rows[item, cell]
        ops[new * width + cell, _TOOK] += item_rows[item, cell]
    for at in range(item_first[item], item_first[item + 1]):
        i = item_tasks[at]
        slots[i] = new
        if ops[front + i, _GATE] >= front // width:
            ops[front + i, _GATE] = front // width + new
            ops[front + i, _AFTER] = new * width + width // 2 - 1
            continue
        ops[front + i, _GATE] = new
        ops[front + i, _AFTER] = (new - window) * width if new >= window else -1
        ops[backs + i, _AFTER] = new * width + width // 2


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


@helper
def _with_task(state, i, op, choice, sequence, ops, starts, front, backs, window, slots, allowed, device):
    """Move a task; returns the start of the first op that this may change, or -1 if it may not be."""
    d, kind = device[i], draw(state, 8)
    choice[_E] = d
    if kind >= 6:
        return _shifted(state, op, d, sequence, starts)
    if kind < 3:
        e = draw(state, sequence.shape[0])
        if e == d or not allowed[i, e]:
            return np.int64(-1)
        choice[_E] = e
        return _elsewhere(state, i, e, sequence, ops, starts, device, front, backs)
    j = draw(state, len(device))
    e = device[j]
    same = (ops[backs + i, _TOOK] > 0) == (ops[backs + j, _TOOK] > 0)
    if e == d or not allowed[i, e] or not allowed[j, d] or not same or abs(slots[i] - slots[j]) > window:
        return np.int64(-1)
    choice[_E], choice[_J] = e, j
    return _exchanged(i, j, sequence, ops, starts, device, front, backs)


@helper
def _with_items(
    state, choice, sequence, ops, starts, front, backs, window, slots, device, touched, items, held, counts
):  # fmt: skip
    """Let an item change its slot, perhaps for another; returns the start of the first op that this may change, or -1.

    ``starts`` of their tasks are changed too.
    """
    item_slot, item_rows, item_first, item_tasks, item_sizes, slot_caps = items
    a, width = draw(state, len(item_slot)), item_rows.shape[1]
    k, b, other = item_slot[a], np.int64(-1), draw(state, held.shape[0])
    if draw(state, 3) > 0:
        b = draw(state, len(item_slot))
        other = item_slot[b]
    if k == other or not _fits(a, b, k, other, item_sizes, slot_caps, held, counts):
        return np.int64(-1)
    choice[_A], choice[_B], choice[_K], choice[_L] = a, b, k, other
    begin = min(starts[k * width], starts[other * width])
    for item, old, new in ((a, k, other), (b, other, k)):
        if item >= 0:
            first = _follow(
                item, old, new, width, sequence, ops, starts, device, front, backs, touched, item_first, item_tasks
            )
            begin = min(begin, first)
            _resettle(item, old, new, width, window, ops, front, backs, slots, item_rows, item_first, item_tasks)
    return begin


@helper
def _take_back(choice, i, ops, front, backs, window, slots, device, items):
    """Undo a move, but for sequences."""
    _, item_rows, item_first, item_tasks, _, _ = items
    device[i] = choice[_D]
    if choice[_J] >= 0:
        device[choice[_J]] = choice[_E]
    if choice[_A] >= 0:
        for item, old, new in ((choice[_A], choice[_K], choice[_L]), (choice[_B], choice[_L], choice[_K])):
            if item >= 0:
                _resettle(item, new, old, item_rows.shape[1], window, ops, front, backs, slots, item_rows, item_first,
                          item_tasks)  # fmt: skip


@helper
def _keep(choice, items, held, counts):
    """Note the new slots of items."""
    item_slot, item_sizes = items[0], items[4]
    for item, old, new in ((choice[_A], choice[_K], choice[_L]), (choice[_B], choice[_L], choice[_K])):
        if item >= 0:
            item_slot[item] = new
            _count(item, old, -1, item_sizes, held, counts)
            _count(item, new, 1, item_sizes, held, counts)


@helper
def _settle(better, touched, sequence, kept):
    """Keep the orders of the devices touched, or take them back; and touch none."""
    for d in range(len(touched)):
        if touched[d] and better:
            _restore(d, kept, sequence)
        elif touched[d]:
            _restore(d, sequence, kept)
        touched[d] = 0


@kernel
def search_gaps(
    state, most_work, goal, sequence, ops, graph, hop, front, num_slots, window, tasks, device, starts, items
):  # fmt: skip
    """Search for as much work as given, or until the makespan is no larger than `goal`; returns it, and the work done.

    ``tasks`` are their sizes, slots, where they are allowed, and what devices may hold; ``items`` as above. What is
    given is in the end that of the best schedule.
    """
    sizes, slots, allowed, caps = tasks
    num_devices, n = sequence.shape[0], len(device)
    width, backs = front // num_slots, front + n
    left, ready = np.empty(2 * num_slots, np.int64), np.empty(2 * num_slots, np.int64)
    at, free, rest = np.empty(num_devices, np.int64), np.empty(num_devices, np.int64), np.empty(num_devices, np.int64)
    home = np.array([num_slots, (width // 2 - 1) % num_devices])
    path, tails = np.empty(len(starts), np.int64), np.empty(len(starts), np.int64)
    nothing, bound_caps = np.zeros(len(starts), np.int64), False
    for d in range(num_devices):
        bound_caps |= caps[d] < _NO_CAP
    held, counts = np.zeros((num_slots, items[4].shape[0]), np.int64), np.zeros(num_slots, np.int64)
    touched, choice = np.zeros(num_devices, np.int64), np.empty(7, np.int64)
    for item in range(len(items[0])):
        _count(item, items[0][item], 1, items[4], held, counts)
    _set_tails(graph, width, ops, front, backs, slots, hop, tails)
    makespan = _run(
        0, _NEVER, sequence, ops, tails, hop, home, front, backs, device, starts, left, ready, at, free, rest
    )
    trial, kept, score = starts.copy(), sequence.copy(), _squares(free)
    count = _critical(sequence, ops, starts, free, front, backs, path)
    work = np.int64(0)
    while work < most_work and makespan > goal and n > 0:
        work += _PASS
        op = path[draw(state, count)] if count > 0 and draw(state, 8) > 0 else front + draw(state, n)
        i = (op - front) % n
        choice[:] = -1
        choice[_D] = choice[_E] = device[i]
        if len(items[0]) > 0 and draw(state, 11) < 3:
            copy(trial, starts)
            begin = _with_items(
                state, choice, sequence, ops, trial, front, backs, window, slots, device, touched, items, held, counts
            )
        else:
            begin = _with_task(
                state, i, op, choice, sequence, ops, starts, front, backs, window, slots, allowed, device
            )
            copy(trial, starts)
        if begin < 0:
            continue
        touched[choice[_D]] = touched[choice[_E]] = 1
        met, holds = np.int64(_NEVER), True
        for d in range(num_devices if bound_caps else 0):
            holds &= touched[d] == 0 or _holds(sequence, d, front, backs, sizes, ops, caps[d])
        if holds:
            least = nothing if choice[_A] >= 0 else tails
            met = _run(
                begin, makespan, sequence, ops, least, hop, home, front, backs, device, trial, left, ready, at, free,
                rest,
            )  # fmt: skip
            work += _UNITS * len(starts)
        better = met < makespan or (met == makespan and _squares(free) <= score)
        _settle(better, touched, sequence, kept)
        if not better:
            _take_back(choice, i, ops, front, backs, window, slots, device, items)
            continue
        makespan, score = met, _squares(free)
        copy(starts, trial)
        if choice[_A] >= 0:
            _keep(choice, items, held, counts)
            _set_tails(graph, width, ops, front, backs, slots, hop, tails)
        count = _critical(sequence, ops, starts, free, front, backs, path)
        work += _ACCEPTED * len(starts)
    return makespan, work
