"""Pipelines that must not share all items, as those of several nodes: each part's items in slots of its own replicas.

What a replica may hold for its pipeline to end in time is, to first order, a sum: no pipeline is shorter than the paths
of a cut, on which a module's work counts at least as in the slot where it counts least. So items can be divided among
parts by that sum alone (:func:`held_by_replica`); then every part is scheduled by itself, by the ramp of all, and is
done as soon as it ends in time (:func:`schedule_parts`).
"""

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from solvers._budget import work_units
from solvers.groups import read_only
from solvers.pipeline._problem import PipelineProblem
from solvers.pipeline.bounds import priced
from solvers.pipeline.ramp import Program
from solvers.pipeline.solver import found, makespans_of

_BITS = 62  # of the sum of all costs, which fits int64


def held_by_replica(problem: PipelineProblem, makespan: int) -> tuple[NDArray[np.int64], int]:
    """Return a cost of every item, int64[n], and how much of it a replica holds at most that ends by `makespan`.

    Proven by the cut of the ramp, in exact integers: any other would do, but say less.

    Examples
    --------
    >>> from solvers.pipeline import PipelineRequest
    >>> asked = PipelineRequest([[3], [1], [2], [2], [1], [3]], [[1, 1]], [[2, 2]], 2, 1)
    >>> problem = PipelineProblem.from_request(asked)
    >>> costs, most = held_by_replica(problem, 55)
    >>> (costs / costs[1]).tolist(), most // int(costs[1])  # no item is beside another: 9 stages' times each
    ([3.0, 1.0, 2.0, 2.0, 1.0, 3.0], 9)
    """
    totals, cut = problem.items.sum(axis=1), Program.of(problem).ramp().cut
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
    program, units = Program.of(problem), work_units(time_budget / num_parts)
    ramp = program.ramp()
    replica, slot = np.empty(len(part_of_item), dtype=np.int32), np.empty(len(part_of_item), dtype=np.int32)
    most = 0
    for part in range(num_parts):
        mine = np.flatnonzero(part_of_item == part)
        own = _of_items(problem, mine, each)
        cells = found(own, program, ramp, longest, units)
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
