"""Lower bounds on the makespan of pipelines, each with its proof.

Of pipelines without tasks, whatever items are in their slots (:func:`solvers.schedule_pipeline`):

=============== =======================================================================================================
name            why no schedule does better
=============== =======================================================================================================
``work``        every device runs its stages of a mean replica's work, and what ops take besides
``largest_item`` some replica runs the item that takes longest forwards through all stages, and back, with all hops
``fluid``       the makespan is convex in the slots' loads, so the mean over the replicas is no longer than their mean
                makespan; it is at least the mean length of some critical paths, which is least where every module's
                work lies in the slot that counts least: :class:`solvers.pipeline.PipelineCut`
=============== =======================================================================================================

Of given slots with tasks in the gaps (:func:`solvers.pipeline.multiplex`):

=============== =======================================================================================================
name            why no schedule does better
=============== =======================================================================================================
``work``        all devices together have all ops and tasks to run; and each device has its own stages', and the tasks
                that may run nowhere else
``pipeline``    the pipeline alone takes as long, exactly
``ends``        before the first slot its tasks' forwards run, and after the last one's its backwards: the longest of
                them, and their mean over the devices
=============== =======================================================================================================

Of any slots (:func:`solvers.schedule_multiplexed`): ``fluid``, ``work`` and
``largest_item`` as above, and

=============== =======================================================================================================
``all_work``    all devices of all replicas together have all ops and tasks to run
``item_with_tasks`` some replica runs the item that takes longest through all stages and back, with its own tasks
=============== =======================================================================================================
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from solvers.bounds import Bound
from solvers.pipeline._problem import PipelineProblem
from solvers.pipeline._tasks import SlotTasks, Tasks
from solvers.pipeline.orders import OpOrder
from solvers.pipeline.run import Stages, all_ends_kernel
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
    # the trip back ends at the first stage that is trained
    lead = order.forward_only
    hops = s - 1 + max(0, s - 1 - lead) if d > 1 else 0
    round_trip = int((work @ both.sum(axis=1)).max(initial=0)) + int(fixed.sum()) + hops * stages.hop
    return Bound(round_trip, "largest_item") if round_trip > max(busy) else Bound(max(busy), "work")


def fluid_bound(totals: Ints, stages: Stages, order: OpOrder, cut: PipelineCut, num_replicas: int) -> Bound:
    """Return what a cut proves, in exact integers. O(T M)."""
    prices, constant = priced(cut, stages.unit, stages.fixed, stages.hop, order)
    total = sum(int(least) * int(t) for least, t in zip(prices.min(axis=0), totals, strict=True))
    return Bound(-(-(total + num_replicas * constant) // (num_replicas << cut.bits)), "fluid")


def priced(cut: PipelineCut, unit: Ints, fixed: Ints, hop: int, order: OpOrder) -> tuple[NDArray[Any], int]:
    """Return what a unit of work in each slot adds to all paths of a cut, object[K, M], and what is always there."""
    s = order.num_stages
    flat = np.zeros(order.num_slots * 2 * s, dtype=object)
    flat[order.slot * 2 * s + order.backward * s + order.stage] = cut.from_device + cut.from_neighbour
    table = flat.reshape(order.num_slots, 2 * s)
    constant = int((table @ fixed.astype(object)).sum())
    constant += hop * int(cut.from_neighbour[order.graph[3, order.place] == 1].sum())
    return table @ unit.T.astype(object), constant


def multiplex_bound(durations: Ints, order: OpOrder, hop: int, tasks: SlotTasks) -> Bound:
    """Return the best bound for given slots: ``durations``, int64[K, 2 S], are those of the pipeline's ops."""
    devices, s = order.num_devices, order.num_stages
    ends = np.empty(order.graph.shape[1], dtype=np.int64)
    alone = int(all_ends_kernel(order.graph, durations, hop, ends))
    table = durations.sum(axis=0)
    own = np.array([table[d:s:devices].sum() + table[s + d :: devices].sum() for d in range(devices)])
    slots = tasks.each["slot"]
    both = tasks.each["forward"] + tasks.each["backward"]
    # tasks that may run on one device alone are that device's work
    one = tasks.allowed.sum(axis=1) == 1
    np.add.at(own, np.argmax(tasks.allowed[one], axis=1), both[one])
    work = max(int(own.max()), -(-int(table.sum() + both.sum()) // devices))
    # nothing of the pipeline runs before the first slot's tasks have, nor after the last one's backwards begin
    around = 0
    for name, slot in (("forward", 0), ("backward", order.num_slots - 1)):
        here = tasks.each[name][slots == slot]
        around += max(int(here.max(initial=0)), -(-int(here.sum()) // devices))
    last_is_first_stage = order.forward_only == 0 and order.slot[order.device_offsets[1] - 1] == order.num_slots - 1
    found = [Bound(work, "work"), Bound(alone, "pipeline")]
    if last_is_first_stage:
        found.append(Bound(alone + around, "ends"))
    return max(found, key=lambda bound: bound.value)


def multiplexed_bound(problem: PipelineProblem, tasks: Tasks, cut: PipelineCut) -> Bound:
    """Return the best bound for whatever slots."""
    order, stages, replicas = problem.order, problem.merged, problem.num_replicas
    totals = problem.items.sum(axis=1)
    spent = sum(int(t) * int(u) for t, u in zip(totals, stages.unit.sum(axis=1, dtype=object), strict=True))
    spent += problem.num_cells * int(stages.fixed.sum()) + int(tasks.forward.sum()) + int(tasks.backward.sum())
    # an item's tasks run side by side at best: of either way the longest counts
    longest = np.zeros((2, len(problem.work)), dtype=np.int64)
    for row, values in enumerate((tasks.forward, tasks.backward)):
        np.maximum.at(longest[row], tasks.owner, values)
    trips = problem.items.T @ stages.unit.sum(axis=1) + longest.sum(axis=0)
    hops = 2 * order.num_stages - 2 - min(order.forward_only, order.num_stages - 1) if order.num_devices > 1 else 0
    found = [
        Bound(-(-spent // (replicas * order.num_devices)), "all_work"),
        closed_form(problem.items.T, stages, order, replicas),
        fluid_bound(totals, stages, order, cut, replicas),
        Bound(int(trips.max(initial=0)) + int(stages.fixed.sum()) + hops * stages.hop, "item_with_tasks"),
    ]
    return max(found, key=lambda bound: bound.value)
