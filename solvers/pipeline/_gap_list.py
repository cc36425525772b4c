"""Schedules of tasks in a pipeline's gaps to begin with: the best of some list schedules.

A list schedule lets every device do at any time what serves best; see :func:`list_schedule`. Of the device
that decides next, in this order of preference,

1. the forward of a task, where it is urgent or fits the gap before the device's next op;
2. the backward of a task, where it fits, or where nothing else can go on;
3. the pipeline's next op, if it can start now;
4. nothing, until something can.

No rule is best everywhere, so some are tried (:func:`listed`).
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from solvers._jit import helper, kernel
from solvers.errors import TimeLimitError
from solvers.groups import read_only
from solvers.pipeline._gap_run import NEVER
from solvers.pipeline._gap_search import Gaps
from solvers.pipeline._tasks import NO_CAP, SlotTasks, Tasks, held_by_given
from solvers.pipeline.orders import OpOrder

Ints = NDArray[np.int64]
NO_TASK = np.int64(-1)
_SPARE = 10
"""A tenth of all room is not for tasks that run ahead, so that the slot that is next finds some."""
_UNITS = 160
"""Of work for each op of a list schedule; measured."""
_FREE = (1, 64, 0), (2, 64, 0.01), (2, 64, 0), (1, 0, 0.1)
"""Rules as :class:`ListRule` has them, the slack as a part of the mean: what was best most often comes first."""
_CAPPED = (1, 128, 0.01), (2, 128, 0.005), (2, 64, 0.01), (1, 64, 0.01)
"""The same where what is held has a cap; the others follow."""


class ListRule(NamedTuple):
    """What a list schedule prefers."""

    urgent: int  # slots ahead whose forwards are urgent
    over: int  # by how much of itself, in parts of 256, a task may exceed its gap
    slack: int  # by how much a device may be over the mean
    # whether there are caps: then forwards run slot by slot, and where one finds no room, devices that can make some
    # run backwards before anything else
    capped: bool


class PipelineOps(NamedTuple):
    """The pipeline's own ops. Read-only."""

    durations: Ints  # int64[K, 2 S]
    offsets: Ints  # int64[D + 1]: where the ops of each device begin, in turn
    slots: Ints  # int64[T]
    cells: Ints  # int64[T]: stage, and S more of a backward
    hop: int
    window: int  # slots by which tasks may run ahead


class Listed(NamedTuple):
    """A schedule. Writable."""

    ends: Ints  # int64[K, 2 S]: when the pipeline's ops end; -1 where they have not
    device: Ints  # int64[t]: where tasks run; -1 where they have not
    sequence: Ints  # int64[D, 1 + L]: what each device has run, as solvers.pipeline._gap_run.Plan has it

    @classmethod
    def empty(cls, ops: PipelineOps, num_tasks: int) -> "Listed":
        """Return one in which nothing has run."""
        ends, device = np.full_like(ops.durations, -1), np.full(num_tasks, -1, dtype=np.int64)
        most = 1 + int(np.diff(ops.offsets).max()) + 2 * num_tasks
        return cls(ends, device, np.zeros((len(ops.offsets) - 1, 1 + most), dtype=np.int64))


DEVICE = np.dtype(
    [
        ("free", np.int64),  # since when it is free
        ("wakes", np.int64),  # when it decides next
        ("next_op", np.int64),  # the pipeline's next op there
        ("rest", np.int64),  # what the rest of these takes
        ("owed", np.int64),  # what the backwards take that it owes
        ("held", np.int64),  # what it holds
        ("in_flight", np.int64),  # and what of that belongs to slots whose backwards are not back in the first stage
        ("queued", np.int64),  # how many backwards it owes
    ]
)
"""What a device is about."""
SLOT = np.dtype(
    [
        ("left", np.int64),  # tasks before the first stage whose forwards have not begun
        ("ready", np.int64),  # when all that have begun are there
    ]
)
"""What has run of a slot's tasks."""


class Board(NamedTuple):
    """What a device looks at before it decides. Each array that is handed over costs some nanoseconds: no others."""

    rule: ListRule
    hop: int
    window: int
    tasks: SlotTasks
    device: Ints  # int64[t]: where tasks run
    devices: NDArray[np.void]  # DEVICE[D]
    slots: NDArray[np.void]  # SLOT[K]


# --- what can run ----------------------------------------------------------------------------------------------------


@helper
def _earliest(k, cell, now, num_devices, hop, durations, ends, slots):
    """When an op can start, and whether that is known: else it is the least that it can be.

    It goes back along the slot's ops to one that has ended, or to what is not known: O(S), and mostly O(1).
    """
    num_stages = durations.shape[1] // 2
    more, known = np.int64(0), True
    while True:
        if cell == 0:
            known &= slots[k]["left"] == 0
            return max(now, (slots[k]["ready"] if known else now) + more), known
        last = cell - 1 if cell < num_stages else (num_stages - 1 if cell == 2 * num_stages - 1 else cell + 1)
        if last % num_stages % num_devices != cell % num_stages % num_devices:
            more += hop
        if ends[k, last] >= 0:
            return max(now, ends[k, last] + more), known
        more += durations[k, last]
        known = False
        cell = last


@helper
def _spare_room(caps, devices):
    """What all devices may hold of tasks that run ahead."""
    room = np.int64(0)
    for d in range(len(caps)):
        room += min(caps[d] - caps[d] // _SPARE - devices[d]["in_flight"], NEVER // len(caps))
    return room


@helper
def _makes_room(k, d, tasks, devices, device):
    """Whether a device can make room, by backwards alone, for a slot's task that finds none on any device."""
    caps, each, short = tasks.caps, tasks.each, np.int64(0)
    for i in range(tasks.first[k], tasks.first[k + 1]):
        fits = device[i] >= 0 or tasks.each[i]["backward"] == 0 or each[i]["size"] <= short
        for e in range(len(caps)):
            fits |= tasks.allowed[i, e] and devices[e]["held"] + each[i]["size"] <= caps[e]
        if not fits:
            short = each[i]["size"]
    return short > 0 and devices[d]["held"] + short > caps[d] and devices[d]["in_flight"] + short <= caps[d]


@helper
def _forward(d, now, gap, target, begun, waiting, board):
    """Return a task whose forward is to run now: the first slot's that fits the gap, or that is urgent; else none.

    It must leave the device below its target, unless the first stage waits for it. Where there are caps, no slot's run
    before all of the slot before it have, and none that runs ahead takes the last of the room. O(tasks of a window).
    """
    rule, devices, window, slots, device = board.rule, board.devices, board.window, board.slots, board.device
    each, allowed, first, caps = board.tasks
    ahead = window if gap > 0 or rule.over >= 256 else min(window, rule.urgent)
    after = now + gap + devices[d]["rest"] + devices[d]["owed"]
    if after > target and not waiting:
        return NO_TASK
    room = _spare_room(caps, devices) if rule.capped else np.int64(NEVER)
    for k in range(begun, min(len(first) - 1, begun + ahead)):
        if slots[k]["left"] == 0:
            continue
        for i in range(first[k], first[k + 1]):
            took, size = each[i]["forward"], each[i]["size"] if each[i]["backward"] > 0 else np.int64(0)
            full = size > 0 and devices[d]["held"] + size > caps[d]
            if device[i] >= 0 or not allowed[i, d] or full:
                continue
            if k > begun and size > room:
                continue
            late = max(0, took - gap)
            urgent = k < begun + rule.urgent or late * 256 <= rule.over * took
            if (k == begun and waiting) or (urgent and after + late + each[i]["backward"] <= target):
                return i
        if rule.capped:
            break
    return NO_TASK


@helper
def _backward(d, now, gap, forced, ends, queue, board):
    """Return a task whose backward is to run now, the longest that fits, or none; and when another can. O(queue)."""
    tasks, num_stages = board.tasks.each, ends.shape[1] // 2
    best, longest, soon = NO_TASK, np.int64(0), np.int64(NEVER)
    for at in range(board.devices[d]["queued"]):
        i = queue[d, at]
        end = ends[tasks[i]["slot"], num_stages]
        if end < 0:
            continue
        ready = end + (board.hop if d > 0 else 0)
        if ready > now:
            soon = min(soon, ready)
            continue
        took = tasks[i]["backward"]
        if (forced or max(0, took - gap) * 256 <= board.rule.over * took) and (best < 0 or took > longest):
            best, longest = i, took
    return best, soon


# --- what runs -------------------------------------------------------------------------------------------------------


@helper
def _start_forward(i, d, now, queue, board):
    """Run the forward of a task; returns when it ends."""
    tasks, devices, slots, hop = board.tasks, board.devices, board.slots, board.hop
    k, end = tasks.each[i]["slot"], now + tasks.each[i]["forward"]
    board.device[i] = d
    slots[k]["left"] -= 1
    slots[k]["ready"] = max(slots[k]["ready"], end + (hop if d > 0 else 0))
    if tasks.each[i]["backward"] > 0:
        devices[d]["owed"] += tasks.each[i]["backward"]
        devices[d]["held"] += tasks.each[i]["size"]
        devices[d]["in_flight"] += tasks.each[i]["size"]
        queue[d, devices[d]["queued"]] = i
        devices[d]["queued"] += 1
    return end


@helper
def _start_backward(i, d, now, each, devices, queue):
    """Run the backward of a task; returns when it ends."""
    devices[d]["owed"] -= each[i]["backward"]
    devices[d]["held"] -= each[i]["size"]
    at = 0
    while queue[d, at] != i:
        at += 1
    devices[d]["queued"] -= 1
    queue[d, at] = queue[d, devices[d]["queued"]]
    return now + each[i]["backward"]


@helper
def _loosen(k, tasks, devices, device):
    """A slot is back in the first stage: its tasks' backwards can free what they hold."""
    for i in range(tasks.first[k], tasks.first[k + 1]):
        if tasks.each[i]["backward"] > 0:
            devices[device[i]]["in_flight"] -= tasks.each[i]["size"]


@helper
def _decides_first(devices):
    """Return the device that decides next, of several the first."""
    d = 0
    for e in range(1, len(devices)):
        if devices[e]["wakes"] < devices[d]["wakes"]:
            d = e
    return d


@helper
def _target(now, unplaced, devices):
    """When all devices end that share what is left."""
    total = unplaced
    for d in range(len(devices)):
        total += max(now, devices[d]["free"]) + devices[d]["rest"] + devices[d]["owed"]
    return total // len(devices)


@helper
def _wake_others(d, now, devices):
    """Devices that wait decide anew."""
    for e in range(len(devices)):
        if e != d and devices[e]["wakes"] > now and devices[e]["free"] <= now:
            devices[e]["wakes"] = now


@helper
def _begin(rule, ops, tasks, listed):
    """Set everything to where nothing has run."""
    num_devices, num_slots, n = len(ops.offsets) - 1, ops.durations.shape[0], len(tasks.each)
    devices, slots = np.zeros(num_devices, DEVICE), np.zeros(num_slots, SLOT)
    for i in range(n):
        slots[tasks.each[i]["slot"]]["left"] += 1
    for d in range(num_devices):
        devices[d]["next_op"] = ops.offsets[d]
        for op in range(ops.offsets[d], ops.offsets[d + 1]):
            devices[d]["rest"] += ops.durations[ops.slots[op], ops.cells[op]]
    return Board(rule, ops.hop, ops.window, tasks, listed.device, devices, slots)


@helper
def _count(tasks, num_ops):
    """How many ops and halves of tasks there are, and what these take."""
    left, unplaced = num_ops, np.int64(0)
    for i in range(len(tasks.each)):
        unplaced += tasks.each[i]["forward"] + tasks.each[i]["backward"]
        left += 2 if tasks.each[i]["backward"] > 0 else 1
    return left, unplaced


@kernel(turns=200)
def list_schedule(rule, ops, tasks, listed):
    """Make a schedule; returns its makespan, or NEVER where caps let nothing go on.

    Devices decide in the order of time. Each turn runs one op, or puts a device to sleep: O(D) and what the preferred
    kinds of ops cost to find.
    """
    board = _begin(rule, ops, tasks, listed)
    # all arrays by names of their own: to take one from a tuple in every turn would cost as much as the turn
    durations, offsets, op_slots, cells, hop, _ = ops
    ends, device, sequence = listed
    devices, slots, each, num_devices = board.devices, board.slots, tasks.each, len(offsets) - 1
    num_slots, width, n = durations.shape[0], durations.shape[1], len(tasks.each)
    left, unplaced = _count(tasks, len(op_slots))
    queue = np.empty((len(devices), n), np.int64)  # backwards that devices owe
    makespan, begun = np.int64(0), np.int64(0)  # slots below `begun` have begun in the first stage
    while left > 0:
        # 1. Who decides, and how long until its next op of the pipeline can start: a gap for tasks.
        d = _decides_first(devices)
        now, op = devices[d]["wakes"], devices[d]["next_op"]
        if now >= NEVER:
            return np.int64(NEVER)
        has, known, gap, k, cell = op < offsets[d + 1], False, np.int64(0), np.int64(-1), np.int64(-1)
        if has:
            k, cell = op_slots[op], cells[op]
            ready, known = _earliest(k, cell, now, num_devices, hop, durations, ends, slots)
            gap = ready - now
        runs = known and gap == 0
        blocked = begun < num_slots and slots[begun]["left"] > 0
        waiting = blocked and devices[0]["free"] <= now and cells[devices[0]["next_op"]] == 0
        # 2. What it runs; a forward of the pipeline is let be, as what follows it waits for it.
        i, back, soon, end, ran = NO_TASK, NO_TASK, np.int64(NEVER), np.int64(NEVER), np.int64(0)
        if begun < num_slots and (not runs or cell < width // 2 or blocked):
            target = _target(now, unplaced, devices) + rule.slack
            i = _forward(d, now, gap, target, begun, waiting, board)
        full = rule.capped and blocked and _makes_room(begun, d, tasks, devices, device)
        if (not runs or full) and (i < 0 or full):
            forced = not has or (blocked and not known) or full
            back, soon = _backward(d, now, gap, forced, ends, queue, board)
        if i >= 0 and (back < 0 or (each[i]["slot"] == begun and waiting)):
            end, ran = _start_forward(i, d, now, queue, board), durations.size + i
            unplaced -= each[i]["forward"] + each[i]["backward"]
        elif back >= 0:
            end, ran = _start_backward(back, d, now, each, devices, queue), durations.size + n + back
        elif runs:
            ran = k * width + cell
            end = ends[k, cell] = now + durations[k, cell]
            devices[d]["next_op"] += 1
            devices[d]["rest"] -= durations[k, cell]
            begun += cell == 0
            if cell == width // 2:
                _loosen(k, tasks, devices, device)
        else:
            devices[d]["wakes"] = min(soon, now + gap if known else NEVER)
        # 3. Whoever sleeps may now have something to do.
        if end < NEVER:
            left -= 1
            makespan = max(makespan, end)
            sequence[d, 0] += 1
            sequence[d, sequence[d, 0]] = ran
            devices[d]["free"] = devices[d]["wakes"] = end
        elif d > 0 or not waiting:
            continue
        _wake_others(d, now, devices)
    return makespan


# --- the best of some ------------------------------------------------------------------------------------------------


def listed(durations: Ints, order: OpOrder, hop: int, tasks: Tasks, given: SlotTasks, units: int, goal: int) -> Gaps:
    """Make list schedules for so much work, one at least, or until one meets the goal; return the best, run exactly.

    Raises TimeLimitError where caps let none of them go on.
    """
    ops = PipelineOps(
        read_only(durations.view()), order.device_offsets, read_only(order.slot),
        read_only(order.stage + durations.shape[1] // 2 * order.backward), hop, tasks.window,
    )  # fmt: skip
    spent = int(durations.sum()) + int(given.each["forward"].sum()) + int(given.each["backward"].sum())
    rules = [(*rule, True) for rule in _CAPPED] if (tasks.caps < NO_CAP).any() else []
    rules += [(*rule, False) for rule in _FREE]
    most = max(1, units // (_UNITS * (len(ops.cells) + 2 * len(given.each))))
    best, kept, window = NEVER, None, tasks.window
    while kept is None and window:  # the less runs ahead, the less is held
        for urgent, over, slack, capped in rules:
            if most <= 0 and kept is not None:
                break
            made = Listed.empty(ops, len(given.each))
            rule = ListRule(urgent, over, int(slack * (spent // order.num_devices)), capped)
            makespan = list_schedule(rule, ops._replace(window=window), given, made)
            most -= 1
            if makespan < best:
                best, kept = int(makespan), made
            if best <= goal:
                break
        window //= 2
    if kept is None:
        least = -(-held_by_given(order, given) // order.num_devices)
        raise TimeLimitError(
            f"found no schedule under {{held_cap}}; with less than {least} on every device there is none",
            "give a larger {held_cap}",
        )
    return Gaps.of(durations, order, hop, tasks, given, kept.device, kept.sequence)
