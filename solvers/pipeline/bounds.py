"""Lower bounds on the longest replica's makespan, each with its proof.

=============== =======================================================================================================
name            why no schedule does better
=============== =======================================================================================================
``work``        every device runs its stages of a mean replica's work, and what ops take besides
``largest_item`` some replica runs the item that takes longest forwards through all stages, and back, with all hops
``fluid``       the makespan is convex in the slots' loads, so the mean over the replicas is no longer than their mean
                makespan; it is at least the mean length of some critical paths, which is least where every module's
                work lies in the slot that counts least: :class:`solvers.pipeline.PipelineCut`
``outlier``     the same of the replica that runs the item which takes longest, and of the mean of the others; the item
                is in some slot, and all else where it counts least: :class:`solvers.pipeline.OutlierCut`
=============== =======================================================================================================
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from solvers.bounds import Bound
from solvers.pipeline._stages import Stages
from solvers.pipeline.orders import OpOrder
from solvers.pipeline.types import PipelineCut

Ints = NDArray[np.int64]


def closed_form(work: Ints, stages: Stages, order: OpOrder, num_replicas: int) -> Bound:
    """Return the better of ``work`` and ``largest_item``; ``work`` is int64[n, M]. O(n M S)."""
    s, d = stages.num_stages, order.num_devices
    both = stages.unit[:, :s] + stages.unit[:, s:]
    totals = work.sum(axis=0)
    fixed = stages.fixed[:s] + stages.fixed[s:]
    busy = [
        -(-sum(int(t) * int(u) for t, u in zip(totals, both[:, device::d].sum(axis=1), strict=True)) // num_replicas)
        + order.num_slots * int(fixed[device::d].sum())
        for device in range(d)
    ]
    lead = order.forward_only
    hops = s - 1 + max(0, s - 1 - lead) if d > 1 else 0
    round_trip = int((work @ both.sum(axis=1)).max(initial=0)) + int(fixed.sum()) + hops * stages.hop
    return Bound(round_trip, "largest_item") if round_trip > max(busy) else Bound(max(busy), "work")


def fluid_bound(totals: Ints, stages: Stages, order: OpOrder, cut: PipelineCut, num_replicas: int) -> Bound:
    """Return what a cut proves, in exact integers. O(T M)."""
    prices, constant = priced(cut, stages.unit, stages.fixed, stages.hop, order)
    total = sum(int(least) * int(t) for least, t in zip(prices.min(axis=0), totals, strict=True))
    return Bound(-(-(total + num_replicas * constant) // (num_replicas << cut.bits)), "fluid")


def outlier_bounds(
    own: Ints, totals: Ints, stages: Stages, order: OpOrder, num_replicas: int, cut: PipelineCut, weight: int,
    others: PipelineCut,
) -> NDArray[Any]:  # fmt: skip
    """Return what is proven where the item that has `own` of each module is in each slot: exact integers, object[K].

    Its replica ends no sooner than the paths of `cut`, and the mean of the others no sooner than those of `others`, of
    which `weight` is taken, so that both weigh 2 to the power of the cut's bits. All that is not the item is where it
    counts least: in a slot of its replica, or with the others.
    """
    prices, constant = priced(cut, stages.unit, stages.fixed, stages.hop, order)
    apart, base = priced(others, stages.unit, stages.fixed, stages.hop, order)
    share, whole = max(1, num_replicas - 1), 1 << others.bits
    value = share * (whole * constant + weight * base)
    for m, (mine, total) in enumerate(zip(own.tolist(), totals.tolist(), strict=True)):
        least = share * whole * prices[:, m].min()
        if num_replicas > 1:
            least = min(least, weight * apart[:, m].min())
        value = value + (total - mine) * least
    value = value + share * whole * (prices @ own.astype(object))
    return np.asarray(-(-value // (share * whole << cut.bits)))


def priced(cut: PipelineCut, unit: Ints, fixed: Ints, hop: int, order: OpOrder) -> tuple[NDArray[Any], int]:
    """Return what a unit of work in each slot adds to all paths of a cut, object[K, M], and what is always there."""
    s = order.num_stages
    flat = np.zeros(order.num_slots * 2 * s, dtype=object)
    flat[order.slot * 2 * s + order.backward * s + order.stage] = cut.from_device + cut.from_neighbour
    table = flat.reshape(order.num_slots, 2 * s)
    constant = int((table @ fixed.astype(object)).sum())
    constant += hop * int(cut.from_neighbour[order.graph[3, order.place] == 1].sum())
    return table @ unit.T.astype(object), constant
