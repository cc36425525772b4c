"""Micro-batches for pipelines: which item runs in which slot of which replica, the longest pipeline being short.

Some pipelines must not share all items: then each part's items are in slots of its own replicas, by one ramp for all.
What a replica may hold for its pipeline to end in time is, to first order, a sum: no pipeline is shorter than the paths
of a cut, on which a module's work counts at least as in the slot where it counts least. So items can be divided among
parts by that sum alone; then every part is scheduled by itself, and is done as soon as it ends in time.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from solvers.arguments import as_budget, unknown
from solvers.groups import read_only
from solvers.pipeline._problem import PipelineProblem
from solvers.pipeline._profile import profile_of
from solvers.pipeline.bounds import closed_form, fluid_bound, priced
from solvers.pipeline.methods import PIPELINERS, makespans_of
from solvers.pipeline.orders import OpOrder
from solvers.pipeline.types import PipelineCut, PipelineRequest, PipelineResult
from solvers.types import status_of

__all__ = ["PipelineProblem", "held_by_replica", "schedule_parts", "schedule_pipeline"]

_BITS = 62  # of the sum of all costs, which fits int64


def schedule_pipeline(
    work: ArrayLike,
    forward: ArrayLike,
    backward: ArrayLike,
    num_replicas: int,
    num_slots: int,
    method: str = "auto",
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
    method : str
        A name in :data:`PIPELINERS`.
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
        Seconds' worth of work, counted and not timed. The linear program behind the profile and the bound is not
        counted: it is kept for each order, stages and mix, and takes milliseconds to a few seconds once, and then
        milliseconds a call.

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
    The least makespan of real loads instead of items is a linear program; its solution is the ramp to aim at, its dual
    the bound. Items go where the ramp calls for them, and are then exchanged between slots, judged by exact makespans.
    Deterministic. Op orders fitted to the contents were measured: on a ramp they add less than half a percent.

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
    solve = PIPELINERS.get(method)
    if solve is None:
        raise unknown("method", method, PIPELINERS)
    seconds = as_budget(time_budget)
    problem = PipelineProblem.from_request(asked)
    # 1. The ramp to aim at, and what proves a bound: whichever argument says most.
    replicas, totals = problem.num_replicas, problem.items.sum(axis=1)
    profile = profile_of(totals, problem.merged, problem.order, replicas)
    bound = closed_form(problem.items.T, problem.merged, problem.order, replicas)
    cut: PipelineCut | None = None
    fluid = fluid_bound(totals, problem.merged, problem.order, profile.cut, replicas)
    if fluid.value > bound.value:
        bound, cut = fluid, profile.cut
    # 2. Items to slots, as long as the budget lasts or until the bound is met.
    cells = solve(problem, profile, bound.value, seconds)
    makespans = makespans_of(problem, cells)
    makespan = int(makespans.max())
    replica, slot = np.divmod(cells.astype(np.int32), np.int32(problem.num_slots))
    return PipelineResult(
        read_only(replica), read_only(slot), read_only(makespans), makespan, cut, problem.order, method,
        lower_bound=bound.value, bound_name=bound.name, status=status_of(makespan, bound.value),
        runtime_s=time.perf_counter() - started,
    )  # fmt: skip


def held_by_replica(problem: PipelineProblem, makespan: int) -> tuple[NDArray[np.int64], int]:
    """Return a cost of every item, int64[n], and how much of it a replica holds at most that ends by `makespan`.

    Proven by the cut of the linear program, in exact integers: any other would do, but say less.

    Examples
    --------
    >>> asked = PipelineRequest([[3], [1], [2], [2], [1], [3]], [[1, 1]], [[2, 2]], 2, 1)
    >>> problem = PipelineProblem.from_request(asked)
    >>> costs, most = held_by_replica(problem, 55)
    >>> (costs / costs[1]).tolist(), most // int(costs[1])  # no item is beside another: 9 stages' times each
    ([3.0, 1.0, 2.0, 2.0, 1.0, 3.0], 9)
    """
    totals = problem.items.sum(axis=1)
    cut = profile_of(totals, problem.merged, problem.order, problem.num_replicas).cut
    prices, constant = priced(cut, problem.merged.unit, problem.merged.fixed, problem.merged.hop, problem.order)
    least: list[Any] = prices.min(axis=0).tolist()
    all_of_it = sum(price * int(total) for price, total in zip(least, totals, strict=True))
    shift = max(0, all_of_it.bit_length() - _BITS)  # what is cut off makes a sum no larger
    costs = np.zeros(problem.items.shape[1], dtype=object)
    for price, row in zip(least, problem.items, strict=True):
        costs += price * row.astype(object)
    return (costs >> shift).astype(np.int64), max(0, (makespan << cut.bits) - constant) >> shift


def schedule_parts(
    problem: PipelineProblem, part_of_item: NDArray[np.int32], num_parts: int, longest: int, time_budget: float
) -> tuple[NDArray[np.int32], NDArray[np.int32], int]:
    """Schedule the items of each part on as many replicas of its own, until no pipeline takes more than `longest`.

    The problem is that of all parts together; `num_parts` divides its replicas, and part p has the p-th so many. The
    budget is for all parts, and one that needs none leaves it to no other. Returns replica and slot of every item, and
    the longest part's makespan (of replicas that are tied: within parts alone).
    """
    each = problem.num_replicas // num_parts
    profile = profile_of(problem.items.sum(axis=1), problem.merged, problem.order, problem.num_replicas)
    replica, slot = np.empty(len(part_of_item), dtype=np.int32), np.empty(len(part_of_item), dtype=np.int32)
    most = 0
    for part in range(num_parts):
        mine = np.flatnonzero(part_of_item == part)
        own = _of_items(problem, mine, each)
        cells = PIPELINERS["auto"](own, profile, longest, time_budget / num_parts)
        most = max(most, int(makespans_of(own, cells).max()))
        replica[mine], slot[mine] = np.divmod(cells, problem.num_slots)
        replica[mine] += np.int32(part * each)
    return replica, slot, most


def _of_items(problem: PipelineProblem, items: NDArray[np.int64], num_replicas: int) -> PipelineProblem:
    """Return the problem of some of the items on fewer replicas, checked."""
    return replace(
        problem, work=read_only(problem.work[items]), items=read_only(np.ascontiguousarray(problem.items[:, items])),
        sizes=read_only(np.ascontiguousarray(problem.sizes[:, items])), num_replicas=num_replicas,
    ).checked()  # fmt: skip
