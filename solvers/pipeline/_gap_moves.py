"""Moves of the search in a pipeline's gaps: tasks to other places, and items, with loads and tasks, to other slots.

Plans and shapes are those of :mod:`solvers.pipeline._gap_run`. A move changes a plan, notes in ``choice`` what it has
changed and in ``touched`` on which devices, and returns the start of the first op that it may change; -1 if there is
no such move. ``rules`` are the tasks' sizes, slots, where they are allowed, and what devices may hold.

``items`` are ``item_slot``, int64[m]; ``item_rows``, int64[m, 2 S], what they add to their slot's ops; ``item_first``,
int64[m + 1], and ``item_tasks``, which tasks are theirs; ``item_sizes``, int64[C, m], under ``slot_caps``,
int64[C + 1], the last of which says whether a slot may be empty; ``item_of_task``, int64[t]. What slots hold are
``held``, int64[K, C], and ``counts``, int64[K].
"""

import numpy as np

from solvers._jit import helper
from solvers._loops import draw
from solvers.pipeline._gap_run import AFTER, GATE, NEVER, NO_CAP, TOOK, away, gate_op, place_of, since

_D, _E, _J, _A, _B, _K, _L = range(7)  # of a choice: devices, the other task, items and their slots; -1 if none


@helper
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
def _held_change(op, sizes, ops, shape):
    """What a device holds more once an op has started, or, of a backward, has ended."""
    change = np.int64(0)
    if op >= shape[1]:
        change = -sizes[op - shape[1]]
    elif op >= shape[0] and ops[op + shape[1] - shape[0], TOOK] > 0:
        change = sizes[op - shape[0]]
    return change


@helper
def _tail(op, d, ops, starts, after, shape):
    """What comes after an op's end but on its device."""
    tail = np.int64(0)
    if op < shape[1] and starts[gate_op(op, ops, shape)] >= 0:
        tail = after[gate_op(op, ops, shape)] + away(d, ops[op, GATE], shape)
    return tail


@helper
def _place(op, d, first, last, late, most, plan, starts, after, shape):
    """Return where in a device's sequence a task's op makes no path longer than `most`: its last place, or its best.

    It is -1 where there is none from place `first` to `last`. What other ops start at is as before.
    """
    sequence, ops, _ = plan
    ready, tail = since(op, d, plan, starts, shape), _tail(op, d, ops, starts, after, shape)
    found, least = np.int64(-1), most
    for p in range(max(first, place_of(sequence, d, ready, starts)), last + 1):
        end = ready
        if p > 1:
            end = max(end, starts[sequence[d, p - 1]] + ops[sequence[d, p - 1], TOOK])
        end += ops[op, TOOK]
        if end + tail > most:
            break
        whole = end + tail
        if p <= sequence[d, 0]:
            whole = max(whole, end + after[sequence[d, p]])
        if whole <= most and (late or found < 0 or whole < least):
            found, least = np.int64(p), whole
    return found


@helper
def _suits(op, d, p, most, plan, starts, after, shape):
    """Whether a task's op in place of another makes no path longer than `most`, others starting as before."""
    sequence, ops, _ = plan
    end, tail = since(op, d, plan, starts, shape), _tail(op, d, ops, starts, after, shape)
    if p > 1:
        end = max(end, starts[sequence[d, p - 1]] + ops[sequence[d, p - 1], TOOK])
    if p < sequence[d, 0]:
        tail = max(tail, after[sequence[d, p + 1]])
    return end + ops[op, TOOK] + tail <= most


@helper
def _room(i, d, p, plan, rules, shape):
    """Before which place a device that begins to hold a task at place p must let it go; -1 where it has no room."""
    sequence, ops, _ = plan
    held, cap = rules[0][i], rules[3][d]
    if cap >= NO_CAP:
        return np.int64(sequence[d, 0] + 1)
    for q in range(1, sequence[d, 0] + 1):
        if q == p and held > cap:
            return np.int64(-1)
        held += _held_change(sequence[d, q], rules[0], ops, shape)
        if q >= p and held > cap:
            return np.int64(q)
    return np.int64(sequence[d, 0] + 1) if held <= cap or p <= sequence[d, 0] else np.int64(-1)


@helper
def holds(d, plan, rules, shape):
    """Whether what a device holds between forwards and backwards stays under its cap."""
    sequence, ops, _ = plan
    held = np.int64(0)
    for p in range(1, sequence[d, 0] + 1):
        held += _held_change(sequence[d, p], rules[0], ops, shape)
        if held > rules[3][d]:
            return False
    return True


@helper
def move_task(state, i, choice, most, plan, starts, after, rules, shape, touched):
    """Give a task to a device, perhaps its own, where its forward and backward make no path longer than `most`."""
    sequence, ops, device = plan
    d, e = device[i], draw(state, sequence.shape[0])
    ahead, back, begin = shape[0] + i, shape[1] + i, starts[shape[0] + i]
    if not rules[2][i, e]:
        return np.int64(-1)
    choice[_E], touched[d], touched[e] = e, 1, 1
    both = ops[back, TOOK] > 0
    _take(sequence, d, ahead)
    if both:
        _take(sequence, d, back)
    p = _place(ahead, e, 1, sequence[e, 0] + 1, draw(state, 2) == 0, most, plan, starts, after, shape)
    if p < 0:
        return np.int64(-1)
    if both:
        q = _place(back, e, p, _room(i, e, p, plan, rules, shape), False, most, plan, starts, after, shape)
        if q < 0:
            return np.int64(-1)
        _put(sequence, e, q, back)
    if p <= sequence[e, 0]:
        begin = min(begin, starts[sequence[e, p]])
    _put(sequence, e, p, ahead)
    device[i] = e
    return begin


@helper
def exchange_tasks(state, i, choice, most, plan, starts, after, rules, shape, touched):
    """Let two tasks of two devices change places."""
    sequence, ops, device = plan
    slots, allowed, j = rules[1], rules[2], draw(state, len(device))
    d, e, front, backs = device[i], device[j], shape[0], shape[1]
    same = (ops[backs + i, TOOK] > 0) == (ops[backs + j, TOOK] > 0)
    if e == d or not allowed[i, e] or not allowed[j, d] or not same or abs(slots[i] - slots[j]) > shape[4]:
        return np.int64(-1)
    for base in (front, backs):
        if ops[backs + i, TOOK] > 0 or base == front:
            p, q = _find(sequence, d, base + i), _find(sequence, e, base + j)
            if not (
                _suits(base + j, d, p, most, plan, starts, after, shape)
                and _suits(base + i, e, q, most, plan, starts, after, shape)
            ):
                return np.int64(-1)
            sequence[d, p], sequence[e, q] = base + j, base + i
            touched[d] = touched[e] = 1
    choice[_E], choice[_J] = e, j
    device[i], device[j] = e, d
    return min(starts[front + i], starts[front + j])


@helper
def shift(state, op, d, plan, starts, touched):
    """Move an op some places in its device's sequence."""
    sequence = plan[0]
    p = _find(sequence, d, op)
    q = p + (1 + draw(state, 6)) * (2 * draw(state, 2) - 1)
    q = max(1, min(sequence[d, 0], q))
    begin = min(starts[op], starts[sequence[d, q]])
    touched[d] = 1
    _take(sequence, d, op)
    _put(sequence, d, q, op)
    return begin


@helper
def _follow(item, old, new, plan, starts, shape, items, touched):
    """Move the tasks of an item to where they belong in another slot; returns the first start that this may change.

    They stay on their devices; ``starts`` are changed too, to what they might be.
    """
    sequence, ops, device = plan
    front, backs, width, num_slots = shape[:4]
    begin = np.int64(NEVER)
    for at in range(items[2][item], items[2][item + 1]):
        i = items[3][at]
        d = device[i]
        touched[d] = 1
        for op in (front + i, backs + i):
            if op >= backs and ops[op, TOOK] == 0:
                continue
            begin = min(begin, starts[op])
            _take(sequence, d, op)
            late = ops[op, GATE] >= num_slots
            cell = width // 2 if op >= backs else (width // 2 - 1 if late else np.int64(0))
            wanted = starts[op] + starts[new * width + cell] - starts[old * width + cell]
            if op >= backs or late:
                wanted = max(starts[op], starts[new * width + cell] + ops[new * width + cell, TOOK])
            starts[op] = max(0, wanted)
            p = place_of(sequence, d, starts[op], starts)
            if p <= sequence[d, 0]:
                begin = min(begin, starts[sequence[d, p]])
            begin = min(begin, starts[op])
            _put(sequence, d, p, op)
    return begin


@helper
def _fits(a, b, k, other, items, held, counts):
    """Whether two slots may exchange items; `b` may be none, -1."""
    sizes, caps = items[4], items[5]
    fits = b >= 0 or counts[k] > 1 or caps[len(caps) - 1] > 0
    for c in range(sizes.shape[0]):
        more = sizes[c, a] - (sizes[c, b] if b >= 0 else 0)
        fits &= held[other, c] + more <= caps[c] and held[k, c] - more <= caps[c]
    return fits


@helper
def _lengthens(a, b, k, other, on, items, shape):
    """Whether a longest path gets longer where two slots exchange items, none of whose tasks is on it."""
    rows, more = items[1], np.int64(0)
    width = rows.shape[1]
    for cell in range(width):
        gain = rows[a, cell] - (rows[b, cell] if b >= 0 else np.int64(0))
        more += gain * (on[other * width + cell] - on[k * width + cell])
    for item in (a, b):
        if item >= 0 and more > 0:
            for at in range(items[2][item], items[2][item + 1]):
                if on[shape[0] + items[3][at]] > 0 or on[shape[1] + items[3][at]] > 0:
                    return False
    return more > 0


@helper
def count_item(item, k, sign, item_sizes, held, counts):
    """Count an item to a slot, or with -1 out of it."""
    counts[k] += sign
    for c in range(item_sizes.shape[0]):
        held[k, c] += sign * item_sizes[c, item]


@helper
def _resettle(item, old, new, ops, slots, items, shape):
    """Count an item's loads and tasks to another slot."""
    front, backs, width, num_slots, window = shape[:5]
    for cell in range(width):
        ops[old * width + cell, TOOK] -= items[1][item, cell]
        ops[new * width + cell, TOOK] += items[1][item, cell]
    for at in range(items[2][item], items[2][item + 1]):
        i = items[3][at]
        slots[i] = new
        if ops[front + i, GATE] >= num_slots:
            ops[front + i, GATE] = num_slots + new
            ops[front + i, AFTER] = new * width + width // 2 - 1
            continue
        ops[front + i, GATE] = new
        ops[front + i, AFTER] = (new - window) * width if new >= window else -1
        ops[backs + i, AFTER] = new * width + width // 2


@helper
def move_items(state, i, choice, plan, starts, on, slots, items, shape, held, counts, touched):
    """Let an item, that of a task or with -1 any, change its slot, perhaps for another.

    ``starts`` of their tasks are changed too.
    """
    item_slot, width = items[0], shape[2]
    a = items[6][i] if i >= 0 else draw(state, len(item_slot))
    k, b, other = item_slot[a], np.int64(-1), draw(state, shape[3])
    if draw(state, 3) > 0:
        b = draw(state, len(item_slot))
        other = item_slot[b]
    if k == other or not _fits(a, b, k, other, items, held, counts) or _lengthens(a, b, k, other, on, items, shape):
        return np.int64(-1)
    choice[_A], choice[_B], choice[_K], choice[_L] = a, b, k, other
    begin = min(starts[k * width], starts[other * width])
    for item, old, new in ((a, k, other), (b, other, k)):
        if item >= 0:
            begin = min(begin, _follow(item, old, new, plan, starts, shape, items, touched))
            _resettle(item, old, new, plan[1], slots, items, shape)
    return begin


@helper
def take_back(choice, i, plan, slots, items, shape):
    """Undo a move, but for sequences."""
    device = plan[2]
    device[i] = choice[_D]
    if choice[_J] >= 0:
        device[choice[_J]] = choice[_E]
    if choice[_A] >= 0:
        for item, old, new in ((choice[_A], choice[_K], choice[_L]), (choice[_B], choice[_L], choice[_K])):
            if item >= 0:
                _resettle(item, new, old, plan[1], slots, items, shape)


@helper
def keep_items(choice, items, held, counts):
    """Note the new slots of items."""
    for item, old, new in ((choice[_A], choice[_K], choice[_L]), (choice[_B], choice[_L], choice[_K])):
        if item >= 0:
            items[0][item] = new
            count_item(item, old, -1, items[4], held, counts)
            count_item(item, new, 1, items[4], held, counts)
