"""The ramp of a pipeline, and the cut that proves it good: what each slot should hold, were items divisible at will.

The makespan is the largest over all paths of a sum that is linear in the slots' loads, so the best loads are a linear
program. It is solved nearly, in two steps, each step of which is one exact run:

1. *Volume* (Barahona and Anbil 2000): steps along critical paths that are averaged. The average is a flow along the
   order, :class:`solvers.pipeline.PipelineCut`, and no replica with mean loads ends before it.
2. *Polish*: Polyak's steps from there to a level that is known to be near. They end at a gentle point, where slots are
   are alike that may be so; the program's own vertices are up to half a percent harder to fill with items.
3. *Within caps*: where slots may hold only so much, more of Polyak's steps, each followed by one to within the limits.
   What is proven knows of no caps.

Only sums, products and quotients of doubles, in one order: the same on every machine.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from solvers._jit import helper, kernel
from solvers._loops import copy_table
from solvers.groups import read_only
from solvers.pipeline._flight import largest
from solvers.pipeline._problem import PipelineProblem
from solvers.pipeline.orders import OpOrder
from solvers.pipeline.run import Pipe, all_ends, critical_path, durations_of
from solvers.pipeline.types import PipelineCut

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
BITS = 20
"""Of the weights of paths: what is lost by rounding them is a millionth, as much as a plan counts."""
_UNIT_BITS, _TOTAL_BITS = 16, 30
"""Of times and totals here: a product of both, times all ops, leaves room in int64."""
_STEPS, _STEPS_AROUND = 3_000, 500
"""Runs, at most: of a mean replica, and around large items."""
_CLOSE = 2e-4
"""Between makespan and bound, as a part of them: the end."""
_SLACKS = (0.004, 0.001)
"""Above the bound: the levels that are polished to."""
_FIRST, _LAST = 0.04, 0.001
"""Within caps no level is known to be near: each is by such a part below what was met, half as much where that is in
vain, from the first part to the last."""
_LIKE_BITS = 20
"""Of work and sizes that are compared, so that sums of products fit int64."""
_PASSES = 8
"""Through all limits after a step, at most."""
_KEPT = 1e-4
"""Over a limit: too little to count."""


class Ramp(NamedTuple):
    """What the slots of a mean replica should hold, and the proof that nothing ends much earlier."""

    share: Floats  # float64[K, M]: of every module's work, what each slot has
    length: float  # the makespan, in a unit that all ramps of one program have in common
    cut: PipelineCut


class Limits(NamedTuple):
    """What caps leave room for: sums over some slots in a row, each 1 at most. Read-only."""

    first: Ints  # int64[L]: the first slot of each sum
    last: Ints  # int64[L]: and its last one
    weights: Floats  # float64[L, K, M]: what a unit of a module's work in a slot counts
    most: Floats  # float64[L]: 1, less what counts already

    @classmethod
    def of(cls, weights: Floats, most: Floats) -> "Limits":
        """Return those of such weights."""
        counts: NDArray[np.bool_] = weights.max(axis=2, initial=0.0) > 0
        first, last = counts.argmax(axis=1), weights.shape[1] - 1 - counts[:, ::-1].argmax(axis=1)
        return cls(*map(read_only, (first, last, weights, most)))

    @classmethod
    def of_caps(cls, problem: PipelineProblem) -> "Limits":
        """Return what caps leave of shares of a mean replica's work; without those that others, or nothing, can break.

        What an item holds is taken for a part of one module's work: of the module that is most like it, item by item.
        """
        slots, sizes, flight = problem.num_slots, problem.sizes, problem.flight
        whole, module = sizes.sum(axis=1) / problem.num_replicas, _likeness(sizes, problem.items).argmax(axis=1)
        count, entries = len(sizes) * slots, flight.entries
        weights = np.zeros((count + len(flight.caps), slots, len(problem.items)))
        # a sum for every column of sizes and every slot, then one for every set in flight
        column, slot = np.divmod(np.arange(count), slots)
        weights[np.arange(count), slot, module[column]] = whole[column]
        column, slot = entries["column"], np.repeat(np.arange(slots), np.diff(flight.first))
        np.add.at(weights, (count + entries["number"], slot, module[column]), entries["times"] * whole[column])
        weights /= np.maximum(1, np.concatenate([np.repeat(problem.caps, slots), flight.caps]))[:, None, None]
        weights = largest(weights[weights.max(axis=1).sum(axis=1) > 1], weights[:0])
        return cls.of(weights, np.ones(len(weights)))

    def around(self, totals: Floats, base: Floats) -> "Limits":
        """Return those of loads whose modules sum up to `totals`, float64[M], on top of `base`, float64[K, M]."""
        weights = self.weights / totals
        most = self.most - (weights * base).sum(axis=(1, 2))
        return Limits(self.first, self.last, read_only(weights), read_only(most))


def _likeness(sizes: Ints, items: Ints) -> Floats:
    """Return the cosine of each row of sizes and each module's work: float64[C, M]. Sums are of integers."""
    cut = [row >> max(0, int(row.max(initial=0)).bit_length() - _LIKE_BITS) for row in (*sizes, *items)]
    table = np.array(cut, dtype=np.int64)
    ahead, back = table[: len(sizes), None], table[None, len(sizes) :]
    likeness: Floats = (ahead * back).sum(axis=2) / np.sqrt(np.maximum(1, (back * back).sum(axis=2)))
    return likeness


_FREE = Limits.of(np.zeros((0, 1, 1)), np.zeros(0))


class Program(NamedTuple):
    """A mean replica, in numbers that fit. Read-only."""

    pipe: Pipe
    totals: Floats  # float64[M]: work of each module
    order: OpOrder
    limits: Limits  # of shares of it

    @classmethod
    def of(cls, problem: PipelineProblem) -> "Program":
        """Scale totals over all replicas and times so that the largest are so many bits long."""
        totals, stages, order = problem.items.sum(axis=1), problem.merged, problem.order
        tops = [max(1, int(top)) for top in stages.unit.max(axis=1)]
        each = [int(t) * top for t, top in zip(totals, tops, strict=True)]
        besides = [x * problem.num_replicas for x in (*stages.fixed.tolist(), stages.hop)]
        most = max(1, *each, *besides)
        work = np.array([max(1, (x << _TOTAL_BITS) // most) for x in each], dtype=np.float64)
        rows = zip(stages.unit.tolist(), tops, strict=True)
        unit = np.array([[(u << _UNIT_BITS) // top for u in row] for row, top in rows], dtype=np.int64)
        *fixed, hop = [(x << (_TOTAL_BITS + _UNIT_BITS)) // most for x in besides]
        pipe = Pipe(read_only(unit), read_only(np.array(fixed, dtype=np.int64)), order.graph, hop)
        return cls(pipe, read_only(work), order, Limits.of_caps(problem))

    def ramp(self, base: Floats | None = None) -> Ramp:
        """Return the ramp, or one around what lies in slots already: ``base``, float64[K, M], of a module's work."""
        slots, modules, num_ops = self.order.num_slots, len(self.totals), self.pipe.graph.shape[1]
        fixed = np.zeros((slots, modules)) if base is None else base * self.totals
        rest = np.maximum(0.0, self.totals - fixed.sum(axis=0))
        steps = _STEPS if base is None else _STEPS_AROUND
        loads, flow = np.tile(rest / slots, (slots, 1)), np.zeros((2, num_ops))
        length, proven = volume(self.pipe, read_only(rest), read_only(fixed), steps, loads, flow)
        given = self.pipe, read_only(rest), read_only(fixed)
        for slack in _SLACKS:
            length = min(length, polish(*given, _FREE, steps // 2, proven * (1 + slack), loads))
        limits = self.limits.around(self.totals, fixed)
        if over_limits(loads, limits) > _KEPT:
            length, part = polish(*given, limits, 1, 0.0, loads), _FIRST
            while part > _LAST and length > 0.0:
                level = length * (1 - part)
                length = polish(*given, limits, steps // 10, level, loads)
                part = part if length <= level else part / 2
        along, across = np.empty(num_ops, dtype=np.int64), np.empty(num_ops, dtype=np.int64)
        whole_flow(self.pipe.graph, read_only(flow), 1 << BITS, along, across)
        place = self.order.place
        return Ramp((loads + fixed) / self.totals, length, PipelineCut(along[place], across[place], BITS))


class _Room(NamedTuple):
    """Room for a run. Writable."""

    loads: Ints  # int64[K, M]
    durations: Ints  # int64[K, 2 S]
    ends: Ints  # int64[T]
    marks: NDArray[np.int8]  # int8[T]: see solvers.pipeline.run.critical_path
    slopes: Floats  # float64[K, M]: what a unit of work more in a slot adds to the path


@helper
def _room(pipe, loads):
    """Make room for runs at such loads."""
    slots, modules = loads.shape
    width, num_ops = pipe.unit.shape[1], pipe.graph.shape[1]
    return _Room(
        np.empty((slots, modules), np.int64), np.empty((slots, width), np.int64), np.empty(num_ops, np.int64),
        np.empty(num_ops, np.int8), np.empty((slots, modules)),
    )  # fmt: skip


@helper
def _run_at(loads, base, pipe, room):
    """Run the pipeline at these loads on top of others: makespan, a critical path's slopes, its constant. O(T M)."""
    slots, modules = loads.shape
    width, constant = pipe.unit.shape[1], 0.0
    for k in range(slots):
        for m in range(modules):
            room.loads[k, m] = np.int64(loads[k, m] + base[k, m] + 0.5)
            room.slopes[k, m] = 0.0
    durations_of(room.loads, pipe.unit, pipe.fixed, room.durations)
    makespan = all_ends(pipe.graph, room.durations, pipe.hop, room.ends)
    critical_path(pipe.graph, room.durations, room.ends, room.marks)
    for op in range(len(room.marks)):
        if room.marks[op] > 0:
            k, j = pipe.graph[0, op] // width, pipe.graph[0, op] % width
            for m in range(modules):
                room.slopes[k, m] += pipe.unit[m, j]
            constant += pipe.fixed[j]
            if room.marks[op] == 2:
                constant += pipe.hop * pipe.graph[3, op]
    for k in range(slots):
        for m in range(modules):
            constant += room.slopes[k, m] * base[k, m]
    return makespan * 1.0, constant


@helper
def _step(loads, origin, slopes, gap, totals):
    """Set loads to `origin`, moved against the slopes so far that a sum with these falls by `gap`; returns if it can.

    Every module's sum stays what it is, and no load falls below 0; modules move in parts of their totals.
    """
    slots, modules = loads.shape
    square = 0.0
    means = np.zeros(modules)
    for m in range(modules):
        for k in range(slots):
            means[m] += slopes[k, m] / slots
        for k in range(slots):
            square += ((slopes[k, m] - means[m]) * totals[m]) ** 2
    if square <= 0.0:
        return False
    for m in range(modules):
        rate = gap / square * totals[m] * totals[m]
        for k in range(slots):
            loads[k, m] = origin[k, m] - rate * (slopes[k, m] - means[m])
        _onto_simplex(loads, m, totals[m])
    return True


@helper
def _onto_simplex(loads, m, total):
    """Move a module's loads as little as possible until they are at least 0 and sum up to `total`."""
    slots = loads.shape[0]
    for _ in range(slots):
        found, count, below = 0.0, 0, False
        for k in range(slots):
            if loads[k, m] > 0.0:
                found += loads[k, m]
                count += 1
            else:
                loads[k, m] = 0.0
        excess = (found - total) / max(1, count)
        for k in range(slots):
            if loads[k, m] > 0.0:
                loads[k, m] -= excess
                below = below or loads[k, m] < 0.0
        if not below:
            break


@helper
def _over(n, loads, limits):
    """By how much a sum is over its limit."""
    over = -limits.most[n]
    for k in range(limits.first[n], limits.last[n] + 1):
        for m in range(loads.shape[1]):
            over += limits.weights[n, k, m] * loads[k, m]
    return over


@kernel
def over_limits(loads, limits):
    """By how much sums exceed their limits at most; 0 where none does."""
    most = 0.0
    for n in range(len(limits.most)):
        most = max(most, _over(n, loads, limits))
    return most


@helper
def _to_within(loads, totals, limits):
    """Move loads to within the limits, nearly: from limit to limit, each time as little as can be. O(L K M) a pass."""
    for _ in range(_PASSES):
        kept = True
        for n in range(len(limits.most)):
            over, square = _over(n, loads, limits), 0.0
            if over <= _KEPT:
                continue
            kept = False
            for k in range(limits.first[n], limits.last[n] + 1):
                for m in range(len(totals)):
                    square += (limits.weights[n, k, m] * totals[m]) ** 2
            for k in range(limits.first[n], limits.last[n] + 1):
                for m in range(len(totals)):
                    if square > 0.0:
                        loads[k, m] -= over / square * limits.weights[n, k, m] * totals[m] * totals[m]
        if kept:
            break
        for m in range(len(totals)):
            _onto_simplex(loads, m, totals[m])


@kernel(turns=1000)
def volume(pipe, totals, base, most_steps, loads, flow):
    """Find loads of a small makespan, and the flow that proves a bound: both, as makespan and bound, are returned.

    ``loads``, float64[K, M], are where to begin, and in the end the best met; they sum up to ``totals``, float64[M], on
    top of ``base``, float64[K, M]. ``flow``, float64[2, T], is set to the weights of the averaged paths: of ops that
    come from the op before them on their device, and from the op of the same slot.
    """
    slots, modules = loads.shape
    room, best, prices, paths = _room(pipe, loads), loads.copy(), np.zeros(loads.shape), np.zeros(flow.shape)
    least, proven, seen, constant = np.inf, -1.0, 0.0, 0.0
    # a step's part of the gap; what a new path weighs; steps in vain, one after another
    part, smooth, vain = 0.5, 0.1, 0
    for turn in range(most_steps):
        # 1. A run's critical path joins the average, which is worth what it says where each module is cheapest.
        makespan, added = _run_at(loads, base, pipe, room)
        weight = smooth if turn else 1.0
        constant += weight * (added - constant)
        value = constant
        for m in range(modules):
            lowest = np.inf
            for k in range(slots):
                prices[k, m] += weight * (room.slopes[k, m] - prices[k, m])
                lowest = min(lowest, prices[k, m])
            value += lowest * totals[m]
        for op in range(len(room.marks)):
            paths[0, op] += weight * ((room.marks[op] == 1) - paths[0, op])
            paths[1, op] += weight * ((room.marks[op] == 2) - paths[1, op])
        if value > proven:
            proven = value
            copy_table(flow, paths)
        # 2. Steps get longer where they help and shorter where they do not; the average gets slower where it stalls.
        if makespan < least:
            least, vain, part = makespan, 0, min(1.5, part * 1.05)
            copy_table(best, loads)
        else:
            vain += 1
            if vain == 10:
                part, vain = max(0.005, part * 0.7), 0
        if turn % 50 == 49:
            if proven < 1.002 * seen:
                smooth = max(0.0005, smooth * 0.8)
            seen = proven
        # 3. The next point is a step from the best one, against the average.
        gap = part * (least - max(proven, 0.5 * least))
        if least - proven < _CLOSE * least or not _step(loads, best, prices, gap, totals):
            break
    copy_table(loads, best)
    return least, proven


@kernel(turns=1000)
def polish(pipe, totals, base, limits, most_steps, level, loads):
    """Move loads to where the makespan is at most `level`, not far from where they were; return the least met."""
    _to_within(loads, totals, limits)
    room, best, least = _room(pipe, loads), loads.copy(), np.inf
    for _ in range(most_steps):
        makespan, _ = _run_at(loads, base, pipe, room)
        if makespan < least:
            least = makespan
            copy_table(best, loads)
        if makespan <= level or not _step(loads, loads, room.slopes, makespan - level, totals):
            break
        _to_within(loads, totals, limits)
    copy_table(loads, best)
    return least


@kernel
def whole_flow(graph, flow, total, along, across):
    """Round a flow to integers that are one, too, and end with `total`; ``flow`` is that of :func:`volume`.

    From the last op to the first: what ends with an op, and what its followers get from it, is divided between the two
    that it comes from.
    """
    before, follows = graph[1], graph[2]
    ended, passed = flow[0] + flow[1], np.zeros(len(along), np.int64)
    for op in range(len(along)):
        if before[op] >= 0:
            ended[before[op]] -= flow[0, op]
        if follows[op] >= 0:
            ended[follows[op]] -= flow[1, op]
    whole = 0.0
    for op in range(len(along)):
        ended[op] = max(0.0, ended[op])
        whole += ended[op]
    met, given = 0.0, np.int64(0)
    for op in range(len(along) - 1, -1, -1):
        met += ended[op]
        # sums are rounded, not parts: so they end with all there is
        upto = np.int64(met / whole * total + 0.5)
        weight = passed[op] + upto - given
        given = upto
        both = flow[0, op] + flow[1, op]
        side = np.int64(weight * (flow[1, op] / both) + 0.5) if both > 0.0 else np.int64(0)
        if follows[op] < 0:
            side = np.int64(0)
        along[op], across[op] = weight - side, side
        if before[op] >= 0:
            passed[before[op]] += weight - side
        if follows[op] >= 0:
            passed[follows[op]] += side
