"""A search among schedules of tasks in a pipeline's gaps: a move, an exact run, and whatever is no worse is kept.

The search is :func:`search_gaps`, near the end; :class:`Gaps` is what it goes on with. Moves give tasks other places,
exchange them, shift ops, or give items, with loads and tasks, to other slots. A task is moved only where, other ops
starting as before, no path gets longer than the longest; so most of what a run would show to be worse is never run. A
move changes the plan of a search, notes what it has changed, and returns the start of the first op that it may change,
or -1 if there is no such move.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from solvers._jit import helper, kernel
from solvers._loops import copy, draw
from solvers.pipeline._gap_run import (
    NEVER,
    Clock,
    Plan,
    away,
    gate_op,
    late_tasks,
    ops_of,
    pipeline_of,
    place_of,
    run_ops,
    set_after,
    since,
)
from solvers.pipeline._tasks import NO_CAP, SlotTasks, Tasks
from solvers.pipeline.orders import OpOrder

Ints = NDArray[np.int64]
_SEED = 20_260_101  # any does: it only has to be the same on all ranks
_PASS = 180
"""Units of work that a step takes besides running ops anew; measured, as the next three."""
_UNITS = 1
"""For each op of a run."""
_ACCEPTED = 2
"""For each op of a schedule that is kept."""
_JUDGED = 6
"""For each op where longest paths are found anew."""
_STALE = 20
"""Kept schedules that are no shorter, after which longest paths are found anew."""
_MOVE = np.dtype(
    [
        ("device", np.int64),  # of the task before the move
        ("to_device", np.int64),  # the other device
        ("task", np.int64),  # the other task
        ("item", np.int64),
        ("for_item", np.int64),  # the other item
        ("slot", np.int64),  # of the item before the move
        ("to_slot", np.int64),  # the other slot
    ]
)
"""What a move has changed; -1 where there is none."""


class Items(NamedTuple):
    """What may change its slot, with its tasks. All but `slot` are read-only."""

    slot: Ints  # int64[m]: of each item; writable
    rows: Ints  # int64[m, 2 S]: what an item adds to the ops of its slot
    first: Ints  # int64[m + 1]: where the tasks of each begin
    tasks: Ints  # int64[t]: which they are
    sizes: Ints  # int64[C, m]: what it holds
    caps: Ints  # int64[C]: what a slot may hold of each
    may_be_empty: bool  # whether a slot may hold no item
    item_of_task: Ints  # int64[t]


class Trial(NamedTuple):
    """A plan that is moved, and what is known of the schedule that it began from. Writable.

    Helpers take it and :class:`Notes` apart, as each array that is handed over costs some nanoseconds.
    """

    sequence: Ints  # as in Plan, as are the next three
    ops: NDArray[np.void]
    device: Ints
    slot: Ints
    starts: Ints  # int64[ops]: of the plan, where nothing has moved
    after: Ints  # int64[ops]: the longest time from an op's start to the end of all
    holds: Ints  # int64[t]: what each task holds on its device until its backward has ended


class Notes(NamedTuple):
    """What a move draws from and leaves behind. Writable."""

    state: Ints  # int64[1]: draws
    touched: Ints  # int64[D]: 1 of devices whose sequences have changed
    move: NDArray[np.void]  # _MOVE[1]


class Movable(NamedTuple):
    """Items, and what slots have of them. Writable, but for the first."""

    items: Items
    held: Ints  # int64[K, C]: what slots hold
    counts: Ints  # int64[K]: how many items


def no_items() -> Items:
    """Return what a search takes where slots are given."""
    rows, sizes = np.zeros((0, 1), dtype=np.int64), np.zeros((0, 0), dtype=np.int64)
    first, none = np.zeros(1, dtype=np.int64), np.zeros(0, dtype=np.int64)
    for array in (rows, sizes, first, none):
        array.flags.writeable = False
    return Items(np.zeros(0, dtype=np.int64), rows, first, none, sizes, none, False, none)


# --- sequences -------------------------------------------------------------------------------------------------------


@helper
def _find(sequence, d, op):
    """Where an op stands in a device's sequence. O(L)."""
    p = 1
    while sequence[d, p] != op:
        p += 1
    return p


@helper
def _take(sequence, d, op):
    """Take an op out of a device's sequence. O(L)."""
    p = _find(sequence, d, op)
    for q in range(p, sequence[d, 0]):
        sequence[d, q] = sequence[d, q + 1]
    sequence[d, 0] -= 1


@helper
def _put(sequence, d, p, op):
    """Put an op into a device's sequence, so that it stands at p. O(L)."""
    for q in range(sequence[d, 0], p - 1, -1):
        sequence[d, q + 1] = sequence[d, q]
    sequence[d, p] = op
    sequence[d, 0] += 1


@helper
def _copy_sequence(d, target, source):
    for p in range(max(target[d, 0], source[d, 0]) + 1):
        target[d, p] = source[d, p]


# --- what devices hold -----------------------------------------------------------------------------------------------


@helper
def _held_change(op, holds, pipe):
    """What a device holds more once an op has started, or, of a backward, has ended."""
    change = np.int64(0)
    if op >= pipe.backs:
        change = -holds[op - pipe.backs]
    elif op >= pipe.front:
        change = holds[op - pipe.front]
    return change


@helper
def _last_place(i, d, p, cap, trial, pipe):
    """Before which place a device that begins to hold a task at place p must let it go; -1 where it has no room."""
    sequence, holds = trial.sequence, trial.holds
    held = holds[i]
    if cap >= NO_CAP:
        return np.int64(sequence[d, 0] + 1)
    for q in range(1, sequence[d, 0] + 1):
        if q == p and held > cap:
            return np.int64(-1)
        held += _held_change(sequence[d, q], holds, pipe)
        if q >= p and held > cap:
            return np.int64(q)
    return np.int64(sequence[d, 0] + 1) if held <= cap or p <= sequence[d, 0] else np.int64(-1)


@helper
def _is_under(cap, d, sequence, holds, pipe):
    """Whether what a device holds between forwards and backwards stays under its cap."""
    held = np.int64(0)
    for p in range(1, sequence[d, 0] + 1):
        held += _held_change(sequence[d, p], holds, pipe)
        if held > cap:
            return False
    return True


@helper
def _allowed(touched, caps, sequence, holds, pipe):
    """Whether the devices touched stay under their caps."""
    under = True
    for d in range(len(touched)):
        if touched[d] and caps[d] < NO_CAP:
            under &= _is_under(caps[d], d, sequence, holds, pipe)
    return under


# --- moves of tasks --------------------------------------------------------------------------------------------------


@helper
def _tail(op, d, ops, starts, after, pipe):
    """What comes after an op's end but on its device."""
    tail = np.int64(0)
    if op < pipe.backs and starts[gate_op(op, ops, pipe)] >= 0:
        tail = after[gate_op(op, ops, pipe)] + away(d, pipe)
    return tail


@helper
def _place(op, d, places, late, most, trial, pipe):
    """Return where in a device's sequence a task's op makes no path longer than `most`: its last place, or its best.

    It is -1 where there is none from the first to the last of `places`. What other ops start at is as before. O(L).
    """
    sequence, ops, starts, after = trial.sequence, trial.ops, trial.starts, trial.after
    ready, tail = since(op, d, ops, starts, pipe), _tail(op, d, ops, starts, after, pipe)
    found, least = np.int64(-1), most
    for p in range(max(places[0], place_of(sequence, d, ready, starts)), places[1] + 1):
        end = ready
        if p > 1:
            end = max(end, starts[sequence[d, p - 1]] + ops[sequence[d, p - 1]]["took"])
        end += ops[op]["took"]
        if end + tail > most:
            break
        whole = end + tail
        if p <= sequence[d, 0]:
            whole = max(whole, end + after[sequence[d, p]])
        if whole <= most and (late or found < 0 or whole < least):
            found, least = np.int64(p), whole
    return found


@helper
def _suits(op, d, p, most, trial, pipe):
    """Whether a task's op in place of another makes no path longer than `most`, others starting as before."""
    sequence, ops, starts, after = trial.sequence, trial.ops, trial.starts, trial.after
    end, tail = since(op, d, ops, starts, pipe), _tail(op, d, ops, starts, after, pipe)
    if p > 1:
        end = max(end, starts[sequence[d, p - 1]] + ops[sequence[d, p - 1]]["took"])
    if p < sequence[d, 0]:
        tail = max(tail, after[sequence[d, p + 1]])
    return end + ops[op]["took"] + tail <= most


@helper
def _move_task(i, most, trial, notes, tasks, pipe):
    """Give a task to a device, perhaps its own, where its forward and backward make no path longer than `most`."""
    sequence, ops, device, starts, touched = trial.sequence, trial.ops, trial.device, trial.starts, notes.touched
    d, e = device[i], draw(notes.state, sequence.shape[0])
    ahead, back, begin = pipe.front + i, pipe.backs + i, starts[pipe.front + i]
    if not tasks.allowed[i, e]:
        return np.int64(-1)
    notes.move[0]["to_device"], touched[d], touched[e] = e, 1, 1
    both = ops[back]["took"] > 0
    _take(sequence, d, ahead)
    if both:
        _take(sequence, d, back)
    p = _place(ahead, e, (np.int64(1), sequence[e, 0] + 1), draw(notes.state, 2) == 0, most, trial, pipe)
    if p < 0:
        return np.int64(-1)
    if both:
        q = _place(back, e, (p, _last_place(i, e, p, tasks.caps[e], trial, pipe)), False, most, trial, pipe)
        if q < 0:
            return np.int64(-1)
        _put(sequence, e, q, back)
    if p <= sequence[e, 0]:
        begin = min(begin, starts[sequence[e, p]])
    _put(sequence, e, p, ahead)
    device[i] = e
    return begin


@helper
def _exchange_tasks(i, most, trial, notes, tasks, pipe):
    """Let two tasks of two devices change places."""
    sequence, ops, device, slots, starts = trial.sequence, trial.ops, trial.device, trial.slot, trial.starts
    touched, allowed, j = notes.touched, tasks.allowed, draw(notes.state, len(device))
    d, e, front, backs = device[i], device[j], pipe.front, pipe.backs
    same = (ops[backs + i]["took"] > 0) == (ops[backs + j]["took"] > 0)
    if e == d or not allowed[i, e] or not allowed[j, d] or not same or abs(slots[i] - slots[j]) > pipe.window:
        return np.int64(-1)
    for base in (front, backs):
        if ops[backs + i]["took"] > 0 or base == front:
            p, q = _find(sequence, d, base + i), _find(sequence, e, base + j)
            if not (_suits(base + j, d, p, most, trial, pipe) and _suits(base + i, e, q, most, trial, pipe)):
                return np.int64(-1)
            sequence[d, p], sequence[e, q] = base + j, base + i
            touched[d] = touched[e] = 1
    notes.move[0]["to_device"], notes.move[0]["task"] = e, j
    device[i], device[j] = e, d
    return min(starts[front + i], starts[front + j])


@helper
def _shift_op(op, d, sequence, starts, notes):
    """Move an op some places in its device's sequence."""
    p = _find(sequence, d, op)
    q = p + (1 + draw(notes.state, 6)) * (2 * draw(notes.state, 2) - 1)
    q = max(1, min(sequence[d, 0], q))
    begin = min(starts[op], starts[sequence[d, q]])
    notes.touched[d] = 1
    _take(sequence, d, op)
    _put(sequence, d, q, op)
    return begin


# --- moves of items --------------------------------------------------------------------------------------------------


@helper
def _fits(a, b, k, other, movable):
    """Whether two slots may exchange items; `b` may be none, -1."""
    sizes, caps, held = movable.items.sizes, movable.items.caps, movable.held
    fits = b >= 0 or movable.counts[k] > 1 or movable.items.may_be_empty
    for c in range(sizes.shape[0]):
        more = sizes[c, a] - (sizes[c, b] if b >= 0 else 0)
        fits &= held[other, c] + more <= caps[c] and held[k, c] - more <= caps[c]
    return fits


@helper
def _count_item(item, k, sign, sizes, held, counts):
    """Count an item to a slot, or with -1 out of it."""
    counts[k] += sign
    for c in range(sizes.shape[0]):
        held[k, c] += sign * sizes[c, item]


@helper
def _resettle(item, old, new, ops, slots, items, pipe):
    """Count an item's loads and tasks to another slot."""
    width = pipe.width
    for cell in range(width):
        ops[old * width + cell]["took"] -= items.rows[item, cell]
        ops[new * width + cell]["took"] += items.rows[item, cell]
    for at in range(items.first[item], items.first[item + 1]):
        i = items.tasks[at]
        slots[i] = new
        ahead, back = pipe.front + i, pipe.backs + i
        ops[ahead]["gate"] = new
        ops[ahead]["follows"] = (new - pipe.window) * width if new >= pipe.window else -1
        ops[back]["follows"] = new * width + width // 2


@helper
def _take_along(item, old, new, trial, notes, items, pipe):
    """Move the tasks of an item to where they belong in another slot; returns the first start that this may change.

    They stay on their devices; ``starts`` are changed too, to what they might be.
    """
    sequence, ops, device, starts = trial.sequence, trial.ops, trial.device, trial.starts
    front, backs, width = pipe.front, pipe.backs, pipe.width
    begin = np.int64(NEVER)
    for at in range(items.first[item], items.first[item + 1]):
        i = items.tasks[at]
        d = device[i]
        notes.touched[d] = 1
        for op in (front + i, backs + i):
            if op >= backs and ops[op]["took"] == 0:
                continue
            begin = min(begin, starts[op])
            _take(sequence, d, op)
            cell = width // 2 if op >= backs else np.int64(0)
            wanted = starts[op] + starts[new * width + cell] - starts[old * width + cell]
            if op >= backs:
                wanted = max(starts[op], starts[new * width + cell] + ops[new * width + cell]["took"])
            starts[op] = max(0, wanted)
            p = place_of(sequence, d, starts[op], starts)
            if p <= sequence[d, 0]:
                begin = min(begin, starts[sequence[d, p]])
            begin = min(begin, starts[op])
            _put(sequence, d, p, op)
    return begin


@helper
def _move_items(i, trial, notes, movable, pipe):
    """Let an item, that of a task or with -1 any, change its slot, perhaps for another.

    ``starts`` of their tasks are changed too.
    """
    items, starts, width, state = movable.items, trial.starts, pipe.width, notes.state
    a = items.item_of_task[i] if i >= 0 else draw(state, len(items.slot))
    k, b, other = items.slot[a], np.int64(-1), draw(state, pipe.num_slots)
    if draw(state, 3) > 0:
        b = draw(state, len(items.slot))
        other = items.slot[b]
    if k == other or not _fits(a, b, k, other, movable):
        return np.int64(-1)
    move = notes.move
    move[0]["item"], move[0]["for_item"], move[0]["slot"], move[0]["to_slot"] = a, b, k, other
    begin = min(starts[k * width], starts[other * width])
    for item, old, new in ((a, k, other), (b, other, k)):
        if item >= 0:
            begin = min(begin, _take_along(item, old, new, trial, notes, items, pipe))
            _resettle(item, old, new, trial.ops, trial.slot, items, pipe)
    return begin


# --- a step ----------------------------------------------------------------------------------------------------------


@helper
def _moved(op, i, makespan, trial, notes, tasks, movable, pipe):
    """Make a move, drawn among all kinds: of items three times in eleven, where slots are not given."""
    move, state, d = notes.move, notes.state, trial.device[i]
    move[0]["device"], move[0]["to_device"], move[0]["task"] = d, d, -1
    move[0]["item"], move[0]["for_item"], move[0]["slot"], move[0]["to_slot"] = -1, -1, -1, -1
    if len(movable.items.slot) > 0 and draw(state, 11) < 3:
        chosen = i if draw(state, 2) > 0 else np.int64(-1)
        return _move_items(chosen, trial, notes, movable, pipe)
    kind = draw(state, 8)
    if kind < 1:
        return _shift_op(op, d, trial.sequence, trial.starts, notes)
    if kind < 5:
        return _move_task(i, makespan, trial, notes, tasks, pipe)
    return _exchange_tasks(i, makespan, trial, notes, tasks, pipe)


@helper
def _take_back(i, trial, move, items, pipe):
    """Undo a move, but for sequences."""
    device = trial.device
    device[i] = move[0]["device"]
    if move[0]["task"] >= 0:
        device[move[0]["task"]] = move[0]["to_device"]
    if move[0]["item"] >= 0:
        slot, other = move[0]["slot"], move[0]["to_slot"]
        for item, old, new in ((move[0]["item"], slot, other), (move[0]["for_item"], other, slot)):
            if item >= 0:
                _resettle(item, new, old, trial.ops, trial.slot, items, pipe)


@helper
def _keep_items(move, movable):
    """Note the new slots of items."""
    items = movable.items
    slot, other = move[0]["slot"], move[0]["to_slot"]
    for item, old, new in ((move[0]["item"], slot, other), (move[0]["for_item"], other, slot)):
        if item >= 0:
            items.slot[item] = new
            _count_item(item, old, -1, items.sizes, movable.held, movable.counts)
            _count_item(item, new, 1, items.sizes, movable.held, movable.counts)


@helper
def _settle(better, touched, sequence, kept):
    """Keep the orders of the devices touched, or take them back; and touch none."""
    for d in range(len(touched)):
        if touched[d] and better:
            _copy_sequence(d, kept, sequence)
        elif touched[d]:
            _copy_sequence(d, sequence, kept)
        touched[d] = 0


@helper
def _squares(free):
    """What falls when a late device ends earlier, though another may be the last."""
    total = 0.0
    for d in range(len(free)):
        total += np.float64(free[d]) * np.float64(free[d])
    return total


# --- the search ------------------------------------------------------------------------------------------------------


@helper
def _begin(items, num_slots):
    """Count items to their slots."""
    held, counts = np.zeros((num_slots, items.sizes.shape[0]), np.int64), np.zeros(num_slots, np.int64)
    for item in range(len(items.slot)):
        _count_item(item, items.slot[item], 1, items.sizes, held, counts)
    return Movable(items, held, counts)


@kernel(turns=1000)
def search_gaps(settings, plan, starts, pipe, tasks, items, state):
    """Search for as much work as given, or until the makespan is no larger than `goal`; returns it, and the work done.

    ``settings`` are both, the work and the goal. What is given is in the end that of the best schedule. ``starts``,
    int64[ops], are of the schedule that is kept; -1 of what does not run. The first run is exact whatever they are.
    """
    most_work, goal = settings
    movable = _begin(items, pipe.num_slots)
    moved, after = starts.copy(), np.empty(len(starts), np.int64)
    sequence, caps, holds = plan.sequence, tasks.caps, np.empty(len(plan.device), np.int64)
    for i in range(len(holds)):
        holds[i] = tasks.each[i]["size"] if tasks.each[i]["backward"] > 0 else 0
    trial = Trial(sequence, plan.ops, plan.device, plan.slot, moved, after, holds)
    touched, move = np.zeros(plan.sequence.shape[0], np.int64), np.empty(1, _MOVE)
    notes = Notes(state, touched, move)
    num_ops, num_devices, n, gates = len(starts), plan.sequence.shape[0], len(plan.device), pipe.num_slots
    at, free = np.empty(num_devices, np.int64), np.empty(num_devices, np.int64)
    clock = Clock(np.empty(gates, np.int64), np.empty(gates, np.int64), at, free, np.empty(num_devices, np.int64))
    path, need, waiting = np.empty(2 * n, np.int64), np.empty((num_ops, 2), np.int64), np.empty(num_ops, np.int64)
    # 1. An exact run, and the longest paths of its schedule.
    makespan = run_ops(0, NEVER, plan, starts, pipe, clock)
    copy(moved, starts)
    kept, score = plan.sequence.copy(), _squares(free)
    set_after(plan, starts, pipe, need, waiting, at, after)
    count, work, stale = late_tasks(starts, after, makespan, pipe, path), np.int64(0), 0
    while work < most_work and makespan > goal and n > 0:
        work += _PASS
        # 2. A move, seven times in eight of a task on the longest path; where caps hold, a run from there on.
        op = path[draw(state, count)] if count > 0 and draw(state, 8) > 0 else pipe.front + draw(state, n)
        i = (op - pipe.front) % n
        begin = _moved(op, i, makespan, trial, notes, tasks, movable, pipe)
        met, of_items = np.int64(NEVER), move[0]["item"] >= 0
        if begin >= 0 and _allowed(touched, caps, sequence, holds, pipe):
            met = run_ops(begin, makespan, plan, moved, pipe, clock)
            work += _UNITS * num_ops
        # 3. What is no worse is kept: of schedules as long, those whose devices end earlier.
        better = met < makespan or (met == makespan and _squares(free) <= score)
        _settle(better, touched, sequence, kept)
        if not better:
            _take_back(i, trial, move, items, pipe)
            if begin >= 0:
                copy(moved, starts)
            continue
        stale = stale + 1 if met == makespan and not of_items else _STALE
        makespan, score = met, _squares(free)
        copy(starts, moved)
        if of_items:
            _keep_items(move, movable)
        work += _ACCEPTED * num_ops
        # 4. Its longest paths, for the moves to come; not of each, as most kept schedules are as long.
        if stale >= _STALE:
            set_after(plan, starts, pipe, need, waiting, at, after)
            count = late_tasks(starts, after, makespan, pipe, path)
            stale, work = 0, work + _JUDGED * num_ops
    return makespan, work


@dataclass(slots=True, eq=False)
class Gaps:
    """A schedule of one pipeline with tasks in its gaps."""

    order: OpOrder
    hop: int
    tasks: Tasks
    given: SlotTasks
    makespan: int  # NEVER where ops wait for each other
    starts: Ints  # int64[K 2 S + 2 t]: of the pipeline's ops, and of tasks' forwards and backwards; -1: does not run
    plan: Plan
    items: Items
    state: Ints

    @classmethod
    def of(
        cls, durations: Ints, order: OpOrder, hop: int, tasks: Tasks, given: SlotTasks, device: Ints, sequence: Ints
    ) -> "Gaps":
        """Run what devices are given to run in turn, exactly; no items move."""
        starts = np.full(durations.size + 2 * len(device), -1, dtype=np.int64)
        for row in sequence:
            starts[row[1 : row[0] + 1]] = 0
        plan = Plan(sequence, ops_of(durations, order, hop, given, tasks.window), device, given.each["slot"].copy())
        found = cls(order, hop, tasks, given, 0, starts, plan, no_items(), np.array([_SEED], dtype=np.int64))
        found.search(0, 0)
        return found

    @property
    def num_ops(self) -> int:
        """Of the pipeline and the tasks."""
        return len(self.starts)

    @property
    def durations(self) -> Ints:
        """Of the pipeline's ops: int64[K, 2 S]."""
        front = self.num_ops - 2 * len(self.plan.device)
        return np.ascontiguousarray(self.plan.ops["took"][:front]).reshape(self.order.num_slots, -1)

    def search(self, units: int, goal: int) -> int:
        """Run exactly, and search for so much work; returns what was done."""
        pipe = pipeline_of(self.order, len(self.plan.device), self.tasks.window, self.hop)
        makespan, work = search_gaps((units, goal), self.plan, self.starts, pipe, self.given, self.items, self.state)
        self.makespan = int(makespan)
        return int(work)
