"""Lower bounds on the makespan of a pipeline with tasks in its gaps, each with its proof.

=============== =======================================================================================================
name            why no schedule does better
=============== =======================================================================================================
``work``        all devices together have all ops and tasks to run; and each device has its own stages', and the tasks
                that may run nowhere else
``pipeline``    the pipeline alone takes as long, exactly
``ends``        before the first slot its tasks' forwards run, and after the last one's its backwards: the longest of
                them, and their mean over the devices
=============== =======================================================================================================
"""

import numpy as np
from numpy.typing import NDArray

from solvers.bounds import Bound
from solvers.pipeline._kernels import all_ends
from solvers.pipeline._tasks import SlotTasks
from solvers.pipeline.orders import OpOrder

__all__ = ["multiplex_bound"]

Ints = NDArray[np.int64]


def multiplex_bound(durations: Ints, order: OpOrder, hop: int, tasks: SlotTasks) -> Bound:
    """Return the best bound for given slots: ``durations``, int64[K, 2 S], are those of the pipeline's ops."""
    devices, s = order.num_devices, order.num_stages
    ends = np.empty(order.graph.shape[1], dtype=np.int64)
    alone = int(all_ends(order.graph, durations, hop, 0, ends))
    table = durations.sum(axis=0)
    own = np.array([table[d:s:devices].sum() + table[s + d :: devices].sum() for d in range(devices)])
    both = tasks.table[1] + tasks.table[2]
    one = tasks.allowed.sum(axis=1) == 1
    np.add.at(own, np.argmax(tasks.allowed[one], axis=1), both[one])
    work = max(int(own.max()), -(-int(table.sum() + both.sum()) // devices))
    around = 0
    for row, slot in ((1, 0), (2, order.num_slots - 1)):
        here = tasks.table[row, tasks.first[slot] : tasks.first[slot + 1]]
        around += max(int(here.max(initial=0)), -(-int(here.sum()) // devices))
    last_is_first_stage = order.forward_only == 0 and order.slot[order.device_offsets[1] - 1] == order.num_slots - 1
    found = [Bound(work, "work"), Bound(alone, "pipeline")]
    if last_is_first_stage:
        found.append(Bound(alone + around, "ends"))
    return max(found, key=lambda bound: bound.value)
