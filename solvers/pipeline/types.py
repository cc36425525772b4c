"""What schedules of pipelines return: a replica and a slot for every item, makespans, and what proves the bound."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from solvers.pipeline.orders import OpOrder
from solvers.types import Proven, Record


@dataclass(frozen=True, slots=True, eq=False)
class PipelineCut(Record):
    """Critical paths with integer weights, added up op by op: a flow from first ops along the order to any ops.

    No replica ends before any of its paths, so not before their mean; and it is least where every module's work lies in
    the slot that counts least. *Any* such flow proves a bound, for any work; a linear program picks a good one.

    Attributes
    ----------
    from_device : int64[T], read-only
        By op of the order: weight of the paths that come to it from the op before it on its device, or begin with it,
        the device's first.
    from_neighbour : int64[T], read-only
        Of those that come from the op of the same slot which it follows.
    bits : int
        The weights of all paths sum to 2 to the power of this.
    """

    from_device: NDArray[np.int64]
    from_neighbour: NDArray[np.int64]
    bits: int


@dataclass(frozen=True, slots=True, eq=False)
class OutlierCut(Record):
    """Critical paths of the replica that runs a large item, and of the mean of the others.

    Attributes
    ----------
    item : int
    cut_of_slot : int32[K], read-only
        Which of `cuts` proves most where the item is in each slot.
    cuts : tuple of PipelineCut
        Of the item's replica; their weights sum to 2 to the power of `bits`, less what `weights` says.
    weights : int64, read-only
        By cut, how much `others` counts.
    others : PipelineCut
        Of a mean replica.
    """

    item: int
    cut_of_slot: NDArray[np.int32]
    cuts: tuple[PipelineCut, ...]
    weights: NDArray[np.int64]
    others: PipelineCut


@dataclass(frozen=True, slots=True, eq=False)
class PipelineResult(Proven):
    """Items in slots of replicas, with a certificate.

    Attributes
    ----------
    replica_of_item, slot_of_item : int32[n], read-only
        In the order in which the items were given.
    makespans : int64[num_replicas], read-only
        When each replica's pipeline ends, exactly.
    makespan : int
        The largest of them.
    lower_bound : int
        Proven: no schedule with this op order has a smaller makespan.
    bound_name : str
        The argument that proves `lower_bound`; see :mod:`solvers.pipeline.bounds`.
    cut : PipelineCut, OutlierCut or None
        What proves ``"fluid"`` or ``"outlier"``.
    order : OpOrder
        What every replica's devices run, in turn; it says K.
    status : SolveStatus
        ``OPTIMAL`` if and only if ``makespan == lower_bound``.
    method : str
    runtime_s : float
        Seconds from call to return; the one field that differs between runs, so ``==`` leaves it out.
    """

    replica_of_item: NDArray[np.int32]
    slot_of_item: NDArray[np.int32]
    makespans: NDArray[np.int64]
    makespan: int
    cut: PipelineCut | OutlierCut | None
    order: OpOrder
    method: str

    @property
    def num_replicas(self) -> int:
        """R; replicas that hold nothing included."""
        return len(self.makespans)

    @property
    def num_slots(self) -> int:
        """K, the same on every replica."""
        return self.order.num_slots
