"""Micro-batches for pipelines: which item runs in which slot of which replica, the longest pipeline being short.

Told from top to bottom, in the order in which it runs (:func:`found`):

1. the *ramp* of a mean replica (:mod:`solvers.pipeline.ramp`) says what each slot should hold;
2. it is bent around *large items*, which no slot of it has room for (:func:`targets_of`);
3. slots are *filled* by it, and items exchanged until slots come close to it (:func:`started`, with the kernels of
   :mod:`solvers.pipeline._cells`);
4. items are *exchanged* as long as the longest replica gets shorter, by exact runs (:mod:`solvers.pipeline._exchange`).
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from math import fsum

import numpy as np
from numpy.typing import ArrayLike, NDArray

from solvers._budget import work_units
from solvers.arguments import as_budget
from solvers.bounds import Bound
from solvers.errors import TimeLimitError, as_words
from solvers.groups import read_only
from solvers.pipeline._cells import Cells, Rules, fill, fit, over_all
from solvers.pipeline._exchange import exchange
from solvers.pipeline._problem import PipelineProblem
from solvers.pipeline.bounds import closed_form, fluid_bound
from solvers.pipeline.orders import OpOrder
from solvers.pipeline.ramp import Program, Ramp
from solvers.pipeline.run import Pipe, all_ends_kernel
from solvers.pipeline.types import PipelineRequest, PipelineResult
from solvers.types import status_of

__all__ = ["PipelineProblem", "pipeline_lower_bound", "schedule_pipeline"]

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
_SEED = 20_260_101  # any does: it only has to be the same on all ranks
_ROUNDS, _TRIES, _TRY = 4, 200, 10
"""Of fitting slots to the ramp: rounds, tries for each item in a round, and units of work that a try takes."""
_FITTED = 4
"""Part of the budget that fitting takes at most."""
_EIGHTH = 8
"""Part of the budget that each of two starts has."""
_RATE = 0.9
"""By how much a replica with a large item gets shorter, where its other work shrinks by 1: measured."""
_USUAL = 0.9
"""Of the largest slot of the ramp: what such a slot holds anyway, and what of a large item is no burden."""
_MIDDLE = 7 / 16
"""Where in a pipeline a large item costs least: measured, flat around."""


def schedule_pipeline(
    work: ArrayLike,
    forward: ArrayLike,
    backward: ArrayLike,
    num_replicas: int,
    num_slots: int,
    *,
    forward_overhead: ArrayLike | None = None,
    backward_overhead: ArrayLike | None = None,
    sizes: ArrayLike | None = None,
    cap: ArrayLike | None = None,
    in_flight_cap: ArrayLike | None = None,
    order: str | OpOrder = "1f1b",
    chunks: int = 1,
    hop: int = 0,
    tied: bool = False,
    slots_multiple_of: int = 1,
    allow_empty: bool = False,
    time_budget: float = 0.1,
) -> PipelineResult:
    """Put items into slots of replicas so that the pipeline that takes longest is as short as possible, exactly.

    Slots of equal load are not best: small ones first and last, and large ones between (a *ramp*), fill and drain a
    pipeline faster, by about a tenth where it has half as many stages as slots.

    Parameters
    ----------
    work : int64[n, M]
        Work of each item in each module (an encoder, a language model), non-negative.
    forward, backward : int64[M, S]
        Time of one unit of a module's work in each stage: 0 where the stage has nothing of the module. First stages
        whose backward takes nothing at all run none (frozen modules); recomputation belongs into `backward`.
    num_replicas, num_slots : int
        R pipelines of K slots (micro-batches) each.
    forward_overhead, backward_overhead : int64[S], optional
        What every op takes besides, in empty slots too.
    sizes : int64[n] or int64[n, S], optional
        What an item holds (tokens), in every stage or in each.
    cap : int or int64[S], optional
        What a slot may hold at most.
    in_flight_cap : int or int64[devices], optional
        What a device may hold at most between forwards and backwards.
    order : str or OpOrder
        ``"1f1b"``, ``"gpipe"``, or what every replica's devices run in turn.
    chunks : int
        Stages of each device; over 1, the order is interleaved 1F1B, stage s on device ``s % (S / chunks)``.
    hop : int
        What passes between the end of an op and the start of the next on another device, for the same slot.
    tied : bool
        Whether an op waits for its like in all replicas, as where they share parameters: it takes as long as the
        slowest, and all replicas end together.
    slots_multiple_of : int
        What `num_slots` has to be a multiple of.
    allow_empty : bool
        Whether a slot may hold no item.
    time_budget : float
        Seconds' worth of work, counted and not timed. The ramp and the bound, which take 1 to 60 ms, are not counted.

    Returns
    -------
    PipelineResult

    Raises
    ------
    TypeError, ValueError
        Arguments of the wrong type, shape or range, that contradict each other, or whose sums do not fit.
    InfeasibleError
        Items fewer than slots, one of them over the cap, or all of them over what all slots hold.
    TimeLimitError
        If no schedule under the caps was found; there may be one.

    Notes
    -----
    The least makespan of real loads instead of items is a linear program; a point near its best is the ramp to aim at,
    and a point near its dual's best the bound. Items go where the ramp calls for them, and are then exchanged between
    slots, judged by exact makespans. Deterministic. Op orders fitted to the contents were measured: on a ramp they add
    less than half a percent.

    References
    ----------
    DFLOP (arXiv:2603.25120) evens the largest micro-batch: another problem, whose optimum can be far from a short
    pipeline.

    Examples
    --------
    >>> result = schedule_pipeline([[3], [1], [2], [2], [1], [3]], [[1, 1]], [[2, 2]], 1, 3)
    >>> result.makespan, result.lower_bound, result.bound_name
    (46, 46, 'fluid')
    """
    asked = PipelineRequest(
        work, forward, backward, num_replicas, num_slots, forward_overhead=forward_overhead,
        backward_overhead=backward_overhead, sizes=sizes, cap=cap, in_flight_cap=in_flight_cap, order=order,
        chunks=chunks, hop=hop, tied=tied, slots_multiple_of=slots_multiple_of, allow_empty=allow_empty,
    )  # fmt: skip
    started = time.perf_counter()
    seconds = as_budget(time_budget)
    problem = PipelineProblem.from_request(asked)
    # 1. The ramp to aim at, and what proves a bound.
    program = Program.of(problem)
    ramp = program.ramp()
    bound = _bound(problem, ramp)
    cut = ramp.cut if bound.name == "fluid" else None
    # 2. Items to slots, as long as the budget lasts or until the bound is met.
    cells = found(problem, program, ramp, bound.value, work_units(seconds))
    makespans = makespans_of(problem, cells)
    makespan = int(makespans.max())
    replica, slot = np.divmod(cells.astype(np.int32), np.int32(problem.num_slots))
    return PipelineResult(
        read_only(replica), read_only(slot), read_only(makespans), makespan, cut, problem.order,
        lower_bound=bound.value, bound_name=bound.name, status=status_of(makespan, bound.value),
        runtime_s=time.perf_counter() - started,
    )  # fmt: skip


def pipeline_lower_bound(asked: PipelineRequest) -> Bound:
    """Return the bound that :func:`solvers.schedule_pipeline` proves, whatever the caps, with no search.

    Examples
    --------
    >>> pipeline_lower_bound(PipelineRequest([[3], [1], [2], [2], [1], [3]], [[1, 1]], [[2, 2]], 1, 3))
    Bound(value=46, name='fluid')
    """
    problem = PipelineProblem.from_request(asked)
    return _bound(problem, Program.of(problem).ramp())


def _bound(problem: PipelineProblem, ramp: Ramp) -> Bound:
    """Return whichever argument says most."""
    order, stages, replicas = problem.order, problem.merged, problem.num_replicas
    closed = closed_form(problem.items.T, stages, order, replicas)
    fluid = fluid_bound(problem.items.sum(axis=1), stages, order, ramp.cut, replicas)
    return fluid if fluid.value > closed.value else closed


def found(problem: PipelineProblem, program: Program, ramp: Ramp, goal: int, units: int) -> Ints:
    """Return a cell, ``replica * K + slot``, for every item: aim at the ramp, then exchange items.

    There are two starts, as a search may end on a plateau: one fits what slots take of all stages, the other what they
    take of the one that takes longest. The better goes on with what the exchanges have left of the budget; fitting is
    counted apart, up to a quarter of it for each start.
    """
    rules, aims, unit = Rules.of(problem), targets_of(problem, program, ramp), problem.merged.unit
    share, left, tried = units // _EIGHTH, units, list[tuple[int, Cells]]()
    for weights in (unit.sum(axis=1), unit.max(axis=1))[: len(unit)]:  # of one module both are the same
        cells = started(problem, rules, weights, *aims, units)
        if cells is not None:
            tried.append((_exchanged(problem, rules, cells, goal, share), cells))
            left -= share
    if not tried:
        raise none_found(problem)
    _, best = min(tried, key=lambda each: each[0])
    _exchanged(problem, rules, best, goal, left)
    return best.cell_of


def _exchanged(problem: PipelineProblem, rules: Rules, cells: Cells, goal: int, units: int) -> int:
    """Exchange items; return the longest makespan."""
    rows, lanes = lanes_of(problem, loads_of(problem, cells.cell_of))
    pipe = Pipe(problem.merged.unit, problem.merged.fixed, problem.order.graph, problem.merged.hop)
    exchange(np.array([_SEED], dtype=np.int64), units, goal, pipe, rules, cells, rows, lanes)
    return int(makespans_of(problem, cells.cell_of).max())


# --- what slots aim at -----------------------------------------------------------------------------------------------


def targets_of(problem: PipelineProblem, program: Program, ramp: Ramp) -> tuple[Floats, Ints]:
    """Return what each cell is to hold of each module, float64[cells, M'], and cells of large items, else -1.

    Replicas with larger items get less of everything else, so that all end together.
    """
    replicas, slots = problem.num_replicas, problem.num_slots
    mean = np.maximum(1, problem.items.sum(axis=1)) / replicas
    targets = np.tile(ramp.share * mean, (replicas, 1, 1)).reshape(replicas, slots, -1)
    cell_of_item = np.full(problem.items.shape[1], -1, dtype=np.int64)
    # an item is large if no slot of the ramp has room for it, in any module
    over = (problem.items / (ramp.share.max(axis=0) * mean)[:, None]).max(axis=0, initial=0)
    large = [int(i) for i in np.argsort(-over, kind="stable") if over[i] > 1]
    if problem.tied or not large or len(large) > problem.num_cells // 2:
        return targets.reshape(problem.num_cells, -1), cell_of_item
    # largest first to the replica with the least of them so far, around the middle of its pipeline
    base = np.zeros_like(targets)
    burden, count = np.zeros(replicas), np.zeros(replicas, dtype=np.int64)
    for item in large:
        replica = int(np.argmin(burden))
        slot = _nth_place(int(count[replica]), slots)
        cell_of_item[item] = replica * slots + slot
        base[replica, slot] += problem.items[:, item] / mean
        burden[replica] += over[item] - _USUAL
        count[replica] += 1
    # a replica with large items is longer by so much; it gets less of everything else, and the others more
    around = [program.ramp(base[r]) if count[r] else ramp for r in range(replicas)]
    lengths = [each.length / max(1.0, ramp.length) for each in around]
    mean_length = fsum(lengths) / replicas
    for replica, each in enumerate(around):
        scale = max(0.5, 1 + (mean_length - lengths[replica]) / _RATE)
        targets[replica] = each.share * mean * scale
    return targets.reshape(problem.num_cells, -1), cell_of_item


def _nth_place(n: int, num_slots: int) -> int:
    """Return the slot of a replica's n-th large item: every other one around the middle, then those between."""
    middle = int(num_slots * _MIDDLE)
    order = sorted(range(num_slots), key=lambda k: ((k - middle) % 2, abs(k - middle), k))
    return order[n % num_slots]


# --- items to slots --------------------------------------------------------------------------------------------------


def started(
    problem: PipelineProblem, rules: Rules, each: Ints, targets: Floats, given: Ints, units: int
) -> Cells | None:
    """Fill cells by targets, float64[cells, M'], but for items with a cell, and fit them; None where none was found.

    ``each``, int64[M'], says what a unit of each module counts. Where the caps leave no such way any will do.
    """
    vectors = problem.items * each[:, None]  # whole numbers, so that their sums are the same everywhere
    weights = read_only(each * (problem.num_cells / max(1, int(vectors.sum()))))
    tries = min(_TRIES * len(given), units // (_FITTED * _ROUNDS * _TRY))
    # first a way that breaks no cap from the start, else one of those that exchanges mend
    for mend in (False, True)[: 1 + (len(problem.sizes) > 0)]:
        for wanted, laid, order in _ways(problem, targets, given, vectors):
            cells = Cells.of(rules, laid, problem.num_cells)
            rest = np.argsort(order, kind="stable")
            fill(read_only(rest[laid[rest] < 0]), read_only(wanted), weights, rules, cells)
            if mend or over_all(rules, cells) == 0:
                fits = _fitted(problem, rules, cells, wanted, weights, tries)
                if fits is not None:
                    return fits
    return None


def none_found(problem: PipelineProblem) -> TimeLimitError:
    """Return what to raise where no cells were found for all items: there may be some all the same."""
    n, names = len(problem.work), ["cap"] if (problem.caps < problem.sizes.sum(axis=1)).any() else []
    names += ["in_flight_cap"] if len(problem.flight.caps) else []
    where = f"for all {n} {{items}} in {problem.num_slots} slots on each of {problem.num_replicas} replicas"
    remedies = [f"give a larger {as_words(names, ' or ')}"]
    remedies += ["more {num_slots}"] if problem.may_be_empty or n > problem.num_cells else []
    return TimeLimitError(f"found no place under {as_words(names, ' and ')}, {where}", remedies)


def _ways(problem: PipelineProblem, targets: Floats, given: Ints, vectors: Ints) -> Iterator[tuple[Floats, Ints, Ints]]:
    """Yield targets, cells of some items, and an order of the others: by work, or by size where room is short."""
    orders, nowhere = [-vectors.sum(axis=0)], np.full_like(given, -1)
    if len(problem.sizes):
        orders.append(-problem.sizes.max(axis=0))
    even = np.broadcast_to(targets.mean(axis=0), targets.shape).copy()  # which holds least in flight
    for wanted, laid in ((targets, given), (targets, nowhere), (even, nowhere)):
        for order in orders:
            yield wanted, laid, order


def _fitted(
    problem: PipelineProblem, rules: Rules, cells: Cells, targets: Floats, weights: Floats, tries: int
) -> Cells | None:
    """Fit cells to targets, lower ones where replicas come out longer; return the best of some rounds, if one fits."""
    best: Cells | None = None
    least, scale, state = 0, np.ones(problem.num_replicas), np.array([_SEED], dtype=np.int64)
    for _ in range(_ROUNDS):
        wanted = targets * np.repeat(scale, problem.num_slots)[:, None]
        fit(state, tries, read_only(wanted), weights, rules, cells)
        spans = makespans_of(problem, cells.cell_of)
        if over_all(rules, cells) == 0 and (best is None or spans.max() < least):
            best, least = Cells(*(each.copy() for each in cells)), int(spans.max())
        scale *= fsum(spans.tolist()) / problem.num_replicas / np.maximum(1, spans)
    return best


def lanes_of(problem: PipelineProblem, loads: Ints) -> tuple[Ints, Ints]:
    """Return durations by cell, int64[cells, 2 S], and by lane, int64[lanes, K, 2 S]; the same memory unless tied."""
    rows = problem.merged.durations(loads)
    lanes = rows.reshape(problem.num_replicas, problem.num_slots, -1)
    return rows, lanes.max(axis=0, keepdims=True) if problem.tied else lanes


def loads_of(problem: PipelineProblem, cell_of_item: Ints) -> Ints:
    """Work of every cell by module: int64[cells, M']."""
    loads = np.zeros((problem.num_cells, len(problem.items)), dtype=np.int64)
    for m, row in enumerate(problem.items):
        np.add.at(loads[:, m], cell_of_item, row)
    return loads


def makespans_of(problem: PipelineProblem, cell_of_item: Ints) -> Ints:
    """Exact makespans of all replicas: int64[R]."""
    loads = loads_of(problem, cell_of_item)
    _, lanes = lanes_of(problem, loads)
    graph, ends = problem.order.graph, np.empty(problem.order.graph.shape[1], dtype=np.int64)
    found = [all_ends_kernel(graph, np.ascontiguousarray(lane), problem.merged.hop, ends) for lane in lanes]
    return np.broadcast_to(np.array(found, dtype=np.int64), problem.num_replicas).copy()
