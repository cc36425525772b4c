"""Lower bounds on the makespan of pipelines with tasks in their gaps, each with its proof.

Of given slots (:func:`solvers.pipeline.multiplex`):

=============== =======================================================================================================
name            why no schedule does better
=============== =======================================================================================================
``work``        all devices together have all ops and tasks to run; and each device has its own stages', and the tasks
                that may run nowhere else
``pipeline``    the pipeline alone takes as long, exactly
``generators``  the same with the last stage's backwards after their slots' generators: the longest task, and the mean
                over the devices; where that stage turns at once, so that its device waits for them
``ends``        before the first slot its tasks' forwards run, and after the last one's its backwards: the longest of
                them, and their mean over the devices
=============== =======================================================================================================

Of any slots (:func:`solvers.schedule_multiplexed`): ``fluid`` and ``work`` of :mod:`solvers.pipeline.bounds`, which
hold for the pipelines without tasks, and

=============== =======================================================================================================
``all_work``    all devices of all replicas together have all ops and tasks to run
``item_with_tasks`` some replica runs the item that takes longest through all stages and back, with its own tasks
=============== =======================================================================================================
"""

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from solvers.bounds import Bound
from solvers.pipeline._kernels import all_ends_kernel
from solvers.pipeline._problem import PipelineProblem
from solvers.pipeline._profile import Profile
from solvers.pipeline._tasks import SlotTasks, Tasks
from solvers.pipeline.bounds import closed_form, fluid_bound
from solvers.pipeline.orders import OpOrder

Ints = NDArray[np.int64]


def multiplex_bound(durations: Ints, order: OpOrder, hop: int, tasks: SlotTasks) -> Bound:
    """Return the best bound for given slots: ``durations``, int64[K, 2 S], are those of the pipeline's ops."""
    devices, s = order.num_devices, order.num_stages
    ends = np.empty(order.graph.shape[1], dtype=np.int64)
    alone = int(all_ends_kernel(order.graph, durations, hop, ends))
    table = durations.sum(axis=0)
    own = np.array([table[d:s:devices].sum() + table[s + d :: devices].sum() for d in range(devices)])
    both = tasks.table[1] + tasks.table[2]
    one = tasks.allowed.sum(axis=1) == 1
    np.add.at(own, np.argmax(tasks.allowed[one], axis=1), both[one])
    work = max(int(own.max()), -(-int(table.sum() + both.sum()) // devices))
    late = tasks.table[4] > 0
    around = 0
    for row, slot in ((1, 0), (2, order.num_slots - 1)):
        here = tasks.table[row, (tasks.table[0] == slot) & ~late]
        around += max(int(here.max(initial=0)), -(-int(here.sum()) // devices))
    last_is_first_stage = order.forward_only == 0 and order.slot[order.device_offsets[1] - 1] == order.num_slots - 1
    found = [Bound(work, "work"), Bound(alone, "pipeline")]
    if late.any() and _turns_at_once(order):
        longer = durations.copy()
        for slot in range(order.num_slots):
            here = tasks.table[1, (tasks.table[0] == slot) & late]
            longer[slot, s - 1] += max(int(here.max(initial=0)), -(-int(here.sum()) // devices))
        found.append(Bound(int(all_ends_kernel(order.graph, longer, hop, ends)), "generators"))
    if last_is_first_stage:
        found.append(Bound(alone + around, "ends"))
    return max(found, key=lambda bound: bound.value)


def _turns_at_once(order: OpOrder) -> bool:
    """Whether the last stage runs every slot's backward right after its forward."""
    last = order.num_stages - 1
    ops = order.ops_of(last % order.num_devices)
    pairs = {(a, b) for a, b in pairwise(ops)}
    return all(((k, last, False), (k, last, True)) in pairs for k in range(order.num_slots))


def multiplexed_bound(problem: PipelineProblem, tasks: Tasks, profile: Profile) -> Bound:
    """Return the best bound for whatever slots."""
    order, stages, replicas = problem.order, problem.merged, problem.num_replicas
    totals = problem.items.sum(axis=1)
    spent = sum(int(t) * int(u) for t, u in zip(totals, stages.unit.sum(axis=1, dtype=object), strict=True))
    spent += problem.num_cells * int(stages.fixed.sum()) + int(tasks.forward.sum()) + int(tasks.backward.sum())
    longest = np.zeros((3, len(problem.work)), dtype=np.int64)
    early = np.where(tasks.late, 0, tasks.forward)
    for row, values in enumerate((early, tasks.backward, tasks.forward - early)):
        np.maximum.at(longest[row], tasks.owner, values)
    trips = problem.items.T @ stages.unit.sum(axis=1) + longest.sum(axis=0)
    hops = 2 * order.num_stages - 2 - min(order.forward_only, order.num_stages - 1) if order.num_devices > 1 else 0
    found = [
        Bound(-(-spent // (replicas * order.num_devices)), "all_work"),
        closed_form(problem.items.T, stages, order, replicas),
        fluid_bound(totals, stages, order, profile.cut, replicas),
        Bound(int(trips.max(initial=0)) + int(stages.fixed.sum()) + hops * stages.hop, "item_with_tasks"),
    ]
    return max(found, key=lambda bound: bound.value)
