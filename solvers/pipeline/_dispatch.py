"""The loop that puts tasks into a pipeline's gaps: a list schedule, every device doing at any time what serves best.

What goes together. ``durations``, int64[K, 2 S], of the pipeline's ops: forwards of a slot, then backwards.
``offsets``, int64[D + 1], ``slots`` and ``cells``, int64[T]: the ops of every device in turn. ``tasks``, int64[5, t],
sorted by slot: slot, forward, backward, size, and 1 where it is a generator's, whose forward is all that it does;
``first``, int64[K + 1], where each slot's tasks begin. ``allowed``, bool[t, D].

A schedule is ``ends``, int64[K, 2 S], when ops end, ``device``, int64[t], and ``starts``, int64[2, t], of tasks; -1
where there is none yet. On its way, ``of_device``, int64[7, D], has of each device since when it is free, when it
decides next, its next op, the rest of its ops, what it owes in backwards, what it holds, and what of that belongs to
slots in flight; ``of_slot``, int64[4, K], how many tasks have not been forwards, and when all that have been are ready,
before the first stage and after the last; ``queue``, int64[D, 1 + t], how many backwards each device owes, and which.
"""

import numpy as np

from solvers._jit import helper, kernel

NEVER = 2**62
_FREE, _WAKE, _NEXT, _REST, _OWED, _HELD, _FAST = range(7)
_LEFT, _READY, _LATE = range(3)  # and _LATE + 1, when those after the last stage are ready
_SPARE = 10  # a part of all room is not for tasks that run ahead


@helper
def _earliest(k, cell, now, num_devices, hop, durations, ends, of_slot):
    """When an op can start, and whether that is known: else it is the least that it can be."""
    num_stages = durations.shape[1] // 2
    more, known = np.int64(0), True
    while True:
        if cell == 0:
            known &= of_slot[_LEFT, k] == 0
            return max(now, (of_slot[_READY, k] if known else now) + more), known
        if cell == 2 * num_stages - 1 and of_slot[_LATE, k] > 0:
            known = False
        elif cell == 2 * num_stages - 1 and of_slot[_LATE + 1, k] > 0:
            return max(now, of_slot[_LATE + 1, k] + more), known
        last = cell - 1 if cell < num_stages else (num_stages - 1 if cell == 2 * num_stages - 1 else cell + 1)
        if last % num_stages % num_devices != cell % num_stages % num_devices:
            more += hop
        if ends[k, last] >= 0:
            return max(now, ends[k, last] + more), known
        more += durations[k, last]
        known = False
        cell = last


@helper
def _spare(caps, of_device):
    """What all devices may hold of tasks that run ahead."""
    room = np.int64(0)
    for d in range(len(caps)):
        room += min(caps[d] - caps[d] // _SPARE - of_device[_FAST, d], NEVER // len(caps))
    return room


@helper
def _makes_room(k, d, tasks, first, allowed, caps, of_device, device):
    """Whether a device can make room, by backwards alone, for a slot's task that finds none on any device."""
    short = np.int64(0)
    for i in range(first[k], first[k + 1]):
        fits = device[i] >= 0 or tasks[2, i] == 0 or tasks[3, i] <= short
        for e in range(len(caps)):
            fits |= allowed[i, e] and of_device[_HELD, e] + tasks[3, i] <= caps[e]
        if not fits:
            short = tasks[3, i]
    return short > 0 and of_device[_HELD, d] + short > caps[d] and of_device[_FAST, d] + short <= caps[d]


@helper
def _forward(
    d, now, gap, target, rule, window, begun, waiting, tasks, first, allowed, caps, of_device, of_slot, device
):
    """Return a task whose forward is to run now: the first slot's that fits the gap, or that is urgent; else -1.

    It must leave the device below its target, unless the first stage waits for it. Where there are caps, no slot's run
    before all of the slot before it have, and none that runs ahead takes the last of the room.
    """
    ahead = window if gap > 0 or rule[1] >= 256 else min(window, rule[0])
    after = now + gap + of_device[_REST, d] + of_device[_OWED, d]
    if after > target and not waiting:
        return np.int64(-1)
    room = _spare(caps, of_device) if rule[3] > 0 else np.int64(NEVER)
    for k in range(begun, min(len(first) - 1, begun + ahead)):
        if of_slot[_LEFT, k] == 0:
            continue
        for i in range(first[k], first[k + 1]):
            if tasks[4, i] > 0:
                continue
            took, size = tasks[1, i], tasks[3, i] if tasks[2, i] > 0 else np.int64(0)
            if device[i] >= 0 or not allowed[i, d] or (size > 0 and of_device[_HELD, d] + size > caps[d]):
                continue
            if k > begun and size > room:
                continue
            late = max(0, took - gap)
            urgent = k < begun + rule[0] or late * 256 <= rule[1] * took
            if (k == begun and waiting) or (urgent and after + late + tasks[2, i] <= target):
                return i
        if rule[3] > 0:
            break
    return np.int64(-1)


@helper
def _generator(d, now, hop, tasks, first, allowed, ends, of_slot, device):
    """Return a generator's task that can run now, the first slot's and its longest, or -1; and when another can."""
    num_stages, soon = ends.shape[1] // 2, np.int64(NEVER)
    away = hop if d != (num_stages - 1) % allowed.shape[1] else np.int64(0)
    for k in range(len(first) - 1):
        end = ends[k, num_stages - 1]
        if of_slot[_LATE, k] == 0 or end < 0:
            continue
        for i in range(first[k], first[k + 1]):
            if tasks[4, i] == 0 or device[i] >= 0 or not allowed[i, d]:
                continue
            if end + away <= now:
                return i, soon
            soon = min(soon, end + away)
    return np.int64(-1), soon


@helper
def _backward(d, now, gap, forced, rule, hop, tasks, ends, queue):
    """Return a task whose backward is to run now, the longest that fits, or -1; and when another can."""
    num_stages, best, soon = ends.shape[1] // 2, np.int64(-1), np.int64(NEVER)
    for at in range(queue[d, 0]):
        i = queue[d, at + 1]
        end = ends[tasks[0, i], num_stages]
        if end < 0:
            continue
        ready = end + (hop if d > 0 else 0)
        if ready > now:
            soon = min(soon, ready)
        elif (forced or max(0, tasks[2, i] - gap) * 256 <= rule[1] * tasks[2, i]) and (
            best < 0 or tasks[2, i] > tasks[2, best]
        ):
            best = i
    return best, soon


@helper
def _start_forward(i, d, now, hop, durations, tasks, of_device, of_slot, device, starts, queue):
    k, end = tasks[0, i], now + tasks[1, i]
    starts[0, i], device[i] = now, d
    row, home = _LEFT, 0
    if tasks[4, i] > 0:
        row, home = _LATE, (durations.shape[1] // 2 - 1) % queue.shape[0]
    of_slot[row, k] -= 1
    of_slot[row + 1, k] = max(of_slot[row + 1, k], end + (hop if d != home else 0))
    if tasks[2, i] > 0:
        of_device[_OWED, d] += tasks[2, i]
        of_device[_HELD, d] += tasks[3, i]
        of_device[_FAST, d] += tasks[3, i]
        queue[d, 0] += 1
        queue[d, queue[d, 0]] = i
    return end


@helper
def _start_backward(i, d, now, tasks, of_device, starts, queue):
    starts[1, i] = now
    of_device[_OWED, d] -= tasks[2, i]
    of_device[_HELD, d] -= tasks[3, i]
    at = 1
    while queue[d, at] != i:
        at += 1
    queue[d, at] = queue[d, queue[d, 0]]
    queue[d, 0] -= 1
    return now + tasks[2, i]


@helper
def _loosen(k, tasks, first, of_device, device):
    """A slot is back in the first stage: its tasks' backwards can free what they hold."""
    for i in range(first[k], first[k + 1]):
        if tasks[2, i] > 0:
            of_device[_FAST, device[i]] -= tasks[3, i]


@helper
def _begin(durations, offsets, slots, cells, tasks, of_device, of_slot, ends, device, starts):
    """Set everything to where nothing has run.

    Returns how many ops and halves of tasks there are, these' time, and whether some are a generator's.
    """
    left, unplaced, late = len(slots), np.int64(0), False
    ends[:], device[:], starts[:] = -1, -1, -1
    of_device[:], of_slot[:] = 0, 0
    for i in range(tasks.shape[1]):
        of_slot[_LATE if tasks[4, i] > 0 else _LEFT, tasks[0, i]] += 1
        late |= tasks[4, i] > 0
        unplaced += tasks[1, i] + tasks[2, i]
        left += 2 if tasks[2, i] > 0 else 1
    for d in range(len(offsets) - 1):
        of_device[_NEXT, d] = offsets[d]
        for op in range(offsets[d], offsets[d + 1]):
            of_device[_REST, d] += durations[slots[op], cells[op]]
    return left, unplaced, late


@helper
def _decides_first(of_device):
    d = 0
    for e in range(1, of_device.shape[1]):
        if of_device[_WAKE, e] < of_device[_WAKE, d]:
            d = e
    return d


@helper
def _target(now, unplaced, of_device):
    """When all devices end that share what is left."""
    total = unplaced
    for d in range(of_device.shape[1]):
        total += max(now, of_device[_FREE, d]) + of_device[_REST, d] + of_device[_OWED, d]
    return total // of_device.shape[1]


@helper
def _wake_others(d, now, of_device):
    """Those that wait decide anew."""
    for e in range(of_device.shape[1]):
        if e != d and of_device[_WAKE, e] > now and of_device[_FREE, e] <= now:
            of_device[_WAKE, e] = now


@kernel
def dispatch(
    rule, durations, offsets, slots, cells, tasks, first, allowed, caps, window, hop, ends, device, starts, turns
):  # fmt: skip
    """Make a schedule; returns its makespan, or NEVER where caps let nothing go on.

    ``rule``, int64[4]: how many slots ahead forwards are urgent, by how much of itself, in parts of 256, a task may
    exceed its gap, what a device may be over the mean, and whether there are caps: then forwards run slot by slot, and
    where one finds no room, devices that can make some run backwards before anything else.
    """
    num_slots, num_devices = durations.shape[0], len(offsets) - 1
    of_device, of_slot = np.empty((7, num_devices), np.int64), np.empty((4, num_slots), np.int64)
    queue = np.zeros((num_devices, tasks.shape[1] + 1), np.int64)
    left, unplaced, late = _begin(durations, offsets, slots, cells, tasks, of_device, of_slot, ends, device, starts)
    makespan, begun = np.int64(0), np.int64(0)  # slots below `begun` have begun in the first stage
    while left > 0:
        d = _decides_first(of_device)
        now, op = of_device[_WAKE, d], of_device[_NEXT, d]
        if now >= NEVER:
            return np.int64(NEVER)
        has, known, gap, k, cell = op < offsets[d + 1], False, np.int64(0), np.int64(-1), np.int64(-1)
        if has:
            k, cell = slots[op], cells[op]
            ready, known = _earliest(k, cell, now, num_devices, hop, durations, ends, of_slot)
            gap = ready - now
        runs = known and gap == 0
        blocked = begun < num_slots and of_slot[_LEFT, begun] > 0
        waiting = blocked and of_device[_FREE, 0] <= now and cells[of_device[_NEXT, 0]] == 0
        i, back, soon, end = np.int64(-1), np.int64(-1), np.int64(NEVER), np.int64(NEVER)
        if late and not runs:
            i, soon = _generator(d, now, hop, tasks, first, allowed, ends, of_slot, device)
        if i < 0 and begun < num_slots and (not runs or cell < durations.shape[1] // 2 or blocked):
            target = _target(now, unplaced, of_device) + rule[2]
            i = _forward(
                d, now, gap, target, rule, window, begun, waiting, tasks, first, allowed, caps, of_device, of_slot,
                device,
            )  # fmt: skip
        full = rule[3] > 0 and blocked and _makes_room(begun, d, tasks, first, allowed, caps, of_device, device)
        if (not runs or full) and (i < 0 or full):
            forced = not has or (blocked and not known) or full
            back, then = _backward(d, now, gap, forced, rule, hop, tasks, ends, queue)
            soon = min(soon, then)
        if i >= 0 and (back < 0 or (tasks[0, i] == begun and waiting)):
            end = _start_forward(i, d, now, hop, durations, tasks, of_device, of_slot, device, starts, queue)
            unplaced -= tasks[1, i] + tasks[2, i]
            turns[durations.size + i] = left
        elif back >= 0:
            end = _start_backward(back, d, now, tasks, of_device, starts, queue)
            turns[durations.size + tasks.shape[1] + back] = left
        elif runs:
            turns[k * durations.shape[1] + cell] = left
            end = ends[k, cell] = now + durations[k, cell]
            of_device[_NEXT, d] += 1
            of_device[_REST, d] -= durations[k, cell]
            begun += cell == 0
            if cell == durations.shape[1] // 2:
                _loosen(k, tasks, first, of_device, device)
        else:
            of_device[_WAKE, d] = min(soon, now + gap if known else NEVER)
        if end < NEVER:
            left -= 1
            makespan = max(makespan, end)
            of_device[_FREE, d] = of_device[_WAKE, d] = end
        elif d > 0 or not waiting:
            continue
        _wake_others(d, now, of_device)
    return makespan
