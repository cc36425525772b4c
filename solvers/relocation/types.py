"""What relocation returns: a rank for every item, how much moves, and proven bounds on that."""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from solvers.types import Record, SolveStatus, relative_gap


@dataclass(frozen=True, slots=True, eq=False)
class RelocationResult(Record):
    """Items on ranks under a cap, with what moved and what had to.

    Attributes
    ----------
    rank_of_item : int32[n], read-only
        The rank of each item.
    loads : int64[num_ranks], read-only
        The load of each rank.
    makespan : int
        The largest load; at most `cap`.
    cap : int
        What no load exceeds.
    inter_node_volume, intra_node_volume : int
        Volume that crosses nodes, and volume that moves between ranks of a node.
    inter_bound : int
        Proven: no assignment under the cap moves less across nodes.
    intra_bound : int
        Proven: of the assignments under the cap that cross no more than this one, none moves less inside nodes.
    leave_bound : int
        Proven: no assignment under the cap moves less in all, across nodes and inside them.
    inter_bound_name, intra_bound_name : str
        The arguments that prove the bounds; see :mod:`solvers.relocation.bounds`.
    status : SolveStatus
        ``OPTIMAL`` if and only if both volumes equal their bounds: proven least, first across, then inside.
    method : str
    fell_back : str
        Empty; or, where no relocation under the cap was found within the budget, why: the answer then began as a
        partition whose groups are laid on ranks so that little moves. Ranks may have shared their items anew since.
    runtime_s : float
        Seconds from call to return; ``==`` leaves it out.
    """

    rank_of_item: NDArray[np.int32]
    loads: NDArray[np.int64]
    makespan: int
    cap: int
    inter_node_volume: int
    intra_node_volume: int
    inter_bound: int
    intra_bound: int
    leave_bound: int
    inter_bound_name: str
    intra_bound_name: str
    status: SolveStatus
    method: str
    fell_back: str = ""
    runtime_s: float = field(default=0.0, compare=False)

    @property
    def inter_gap(self) -> float:
        """``(inter_node_volume - inter_bound) / inter_bound``; 0.0 when equal, infinite if only the bound is 0."""
        return relative_gap(self.inter_node_volume, self.inter_bound)

    @property
    def intra_gap(self) -> float:
        """``(intra_node_volume - intra_bound) / intra_bound``; 0.0 when equal, infinite if only the bound is 0."""
        return relative_gap(self.intra_node_volume, self.intra_bound)
