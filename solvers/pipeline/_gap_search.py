"""A search among schedules of tasks in a pipeline's gaps: a move, an exact run, and whatever is no worse is kept.

See :mod:`solvers.pipeline._gap_run` for the arrays, and :mod:`solvers.pipeline._gap_moves` for the moves. A task is
moved only where, other ops starting as before, no path gets longer than the longest; so most of what a run would show
to be worse is never run.
"""

import numpy as np

from solvers._jit import helper, kernel
from solvers._loops import copy, draw
from solvers.pipeline._gap_moves import (
    count_item,
    exchange_tasks,
    holds,
    keep_items,
    move_items,
    move_task,
    shift,
    take_back,
)  # fmt: skip
from solvers.pipeline._gap_run import NEVER, NO_CAP, critical, run, set_after, set_tails

_PASS = 180  # units of work that a step takes besides running ops anew
_UNITS = 1  # of work that running an op anew takes
_ACCEPTED = 2  # of work for each op that keeping a schedule takes
_JUDGED = 6  # and what is known of longest paths
_STALE = 20  # kept schedules that are no shorter, after which that is found anew under caps; else at each: no gain


@helper
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
def _settle(better, touched, sequence, kept):
    """Keep the orders of the devices touched, or take them back; and touch none."""
    for d in range(len(touched)):
        if touched[d] and better:
            _restore(d, kept, sequence)
        elif touched[d]:
            _restore(d, sequence, kept)
        touched[d] = 0


@helper
def _moved(state, op, i, choice, makespan, plan, trial, after, on, rules, items, shape, held, counts, touched):
    """Make a move, of items or of a task."""
    choice[:] = -1
    choice[0] = choice[1] = plan[2][i]
    if len(items[0]) > 0 and draw(state, 11) < 3:
        chosen = i if draw(state, 2) > 0 else np.int64(-1)
        return move_items(state, chosen, choice, plan, trial, on, rules[1], items, shape, held, counts, touched)
    kind = draw(state, 8)
    if kind < 1:
        return shift(state, op, choice[0], plan, trial, touched)
    if kind < 5:
        return move_task(state, i, choice, makespan, plan, trial, after, rules, shape, touched)
    return exchange_tasks(state, i, choice, makespan, plan, trial, after, rules, shape, touched)


@helper
def _allowed(touched, plan, rules, shape):
    """Whether the devices touched stay under their caps."""
    under = True
    for d in range(len(touched)):
        if touched[d] and rules[3][d] < NO_CAP:
            under &= holds(d, plan, rules, shape)
    return under


@helper
def _patience(caps):
    """After how many kept schedules longest paths are found anew."""
    patience = 1
    for d in range(len(caps)):
        if caps[d] < NO_CAP:
            patience = _STALE
    return patience


@kernel
def search_gaps(state, most_work, goal, plan, starts, graph, shape, rules, items):
    """Search for as much work as given, or until the makespan is no larger than `goal`; returns it, and the work done.

    What is given is in the end that of the best schedule.
    """
    sequence, num_ops = plan[0], len(starts)
    num_devices, n, num_slots = sequence.shape[0], len(plan[2]), shape[3]
    free = np.empty(num_devices, np.int64)
    left, ready, at = np.empty(2 * num_slots, np.int64), np.empty(2 * num_slots, np.int64), np.empty_like(free)
    room = left, ready, at, free, np.empty_like(free)
    path, tails, on = np.empty(num_ops, np.int64), np.empty(num_ops, np.int64), np.empty(num_ops, np.int64)
    after, nothing = np.empty(num_ops, np.int64), np.zeros(num_ops, np.int64)
    need, waiting = np.empty((num_ops, 2), np.int64), np.empty(num_ops, np.int64)
    held, counts = np.zeros((num_slots, items[4].shape[0]), np.int64), np.zeros(num_slots, np.int64)
    touched, choice = np.zeros(num_devices, np.int64), np.empty(7, np.int64)
    for item in range(len(items[0])):
        count_item(item, items[0][item], 1, items[4], held, counts)
    set_tails(graph, plan, rules[1], shape, tails)
    makespan = run(0, NEVER, tails, plan, starts, shape, room)
    trial, kept, score = starts.copy(), sequence.copy(), _squares(free)
    count = critical(plan, starts, shape, free, path, on)
    set_after(plan, starts, shape, need, waiting, at, after)
    work, stale, patience = np.int64(0), 0, _patience(rules[3])
    while work < most_work and makespan > goal and n > 0:
        work += _PASS
        op = path[draw(state, count)] if count > 0 and draw(state, 8) > 0 else shape[0] + draw(state, n)
        i = (op - shape[0]) % n
        begin = _moved(
            state, op, i, choice, makespan, plan, trial, after, on, rules, items, shape, held, counts, touched
        )
        met = np.int64(NEVER)
        if begin >= 0 and _allowed(touched, plan, rules, shape):
            least = nothing if choice[3] >= 0 else tails
            met = run(begin, makespan, least, plan, trial, shape, room)
            work += _UNITS * num_ops
        better = met < makespan or (met == makespan and _squares(free) <= score)
        _settle(better, touched, sequence, kept)
        if not better:
            take_back(choice, i, plan, rules[1], items, shape)
            if begin >= 0:
                copy(trial, starts)
            continue
        stale = stale + 1 if met == makespan and choice[3] < 0 else patience
        makespan, score = met, _squares(free)
        copy(starts, trial)
        if choice[3] >= 0:
            keep_items(choice, items, held, counts)
            set_tails(graph, plan, rules[1], shape, tails)
        work += _ACCEPTED * num_ops
        if stale >= patience:
            count = critical(plan, starts, shape, free, path, on)
            set_after(plan, starts, shape, need, waiting, at, after)
            stale, work = 0, work + _JUDGED * num_ops
    return makespan, work
