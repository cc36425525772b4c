"""What a rearrangement returns: a rank for every group, what that moves, and the proof of how little would do."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from solvers.types import Proven, Record

Objective = Literal["sum", "max"]
OBJECTIVES: tuple[Objective, ...] = ("sum", "max")


@dataclass(frozen=True, slots=True, eq=False)
class BoundCertificate(Record):
    """Numbers from which anyone can recompute a lower bound; *any* such numbers prove one, these prove a good one.

    Count what leaves rank r ``rank_multiplier[r]``-fold. Whatever group g keeps near its home in place p is worth at
    most ``place_price[p]`` and g's surplus, the most that ``kept[g, p] - place_price[p]`` comes to over the places that
    g may take. So no bijection keeps more than the sum of all surpluses and of (room * price) over all places.

    A *place* is a node and a class: the ranks of one node that are of one class. Places are numbered by class, then
    by node, and only pairs that some rank has are places.
    """

    # int64[m], read-only: at least 0, and not all 0. All 1 where the objective is the sum.
    rank_multiplier: NDArray[np.int64]
    place_price: NDArray[np.int64]  # int64[num_places], read-only


@dataclass(frozen=True, slots=True, eq=False)
class RearrangementResult(Proven):
    """Groups on ranks, with a certificate. Volumes are in the units that the caller's volumes are in.

    Attributes
    ----------
    rank_of_group : int32[m], read-only
        A bijection.
    objective : str
        ``"sum"``: the weighted volume that crosses; ``"max"``: the most of it that any one rank sends.
    value : int
        The value of the objective. With one level of weight 1, `inter_node_volume` or `max_rank_send`.
    crossing_volume : int64[num_levels], read-only
        The volume that crosses between units of each level; the first level is the nodes.
    inter_node_volume, intra_node_volume : int
        The volume that crosses between nodes, and that moves between ranks of one node.
    max_rank_send, max_rank_receive, max_node_send, max_node_receive : int
        The most that any rank, any node, sends to other nodes or receives from them.
    lower_bound : int
        Proven: no bijection (within the classes) has a smaller value.
    bound_name : str
        ``"dual"``: recomputed from `certificate`; ``"cp_sat"``: by a search whose proof is not kept.
    certificate : BoundCertificate
    status : SolveStatus
        ``OPTIMAL`` if and only if ``value == lower_bound``.
    method : str
    runtime_s : float
        Seconds from call to return; the one field that differs between runs, so ``==`` leaves it out.
    """

    rank_of_group: NDArray[np.int32]
    objective: Objective
    value: int
    crossing_volume: NDArray[np.int64]
    inter_node_volume: int
    intra_node_volume: int
    max_rank_send: int
    max_rank_receive: int
    max_node_send: int
    max_node_receive: int
    certificate: BoundCertificate
    method: str
    _measure: ClassVar[str] = "value"
