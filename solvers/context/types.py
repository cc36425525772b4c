"""What a layout of context shards is: who has which tokens, what that takes, and what proves how good it is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from solvers.types import Proven

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class ContextShardsResult(Proven):
    """Documents in shards, with a certificate.

    Attributes
    ----------
    rank, document, start, stop : int64[p], read-only
        Rank ``rank[i]`` holds positions ``start[i]`` to ``stop[i] - 1`` of a document. By rank, then document, then
        start; none touches the next. Padding is a document behind those given.
    work : int64[masks, g], read-only
        Pairs of query and key that each rank computes in a layer of each kind.
    received, sent : int64[masks, g], read-only
        Rows of keys (and of values) that a rank gets from others, each once, and that it sends, once to each rank
        that needs it, in a layer of each kind.
    crossing : int
        Rows that ranks of another node need, once a node, summed over layers; 0 without nodes.
    ranges : int64[g], read-only
        Rows of this layout on each rank.
    weights : int64[masks], read-only
        Layers of each kind.
    total_received : int
        Rows received by all ranks in all layers: what was to be small.
    caps : int64[masks], read-only
        No rank has more work: the mean and `eps` of it, or more if no layout so even was found.
    max_rows_held : int
        The most rows that a rank holds in a layer, its own and those received.
    bound_work : int64[masks], read-only
        Proven: in every layout some rank has as much.
    bound_crossing : int
        Proven: what crosses nodes at least where no rank has more work than `caps`.
    lower_bound : int
        Proven: the least that `total_received` can be where no rank has more work than `caps`.
    bound_name : str
        ``"keys"``: a key is received by all ranks but one that its queries need; ``"cuts"``: a document longer than a
        shard is cut somewhere, which costs a window; or ``"keys + cuts"``.
    status, runtime_s
        As of :class:`solvers.PartitionResult`, and of work as well: ``OPTIMAL`` if and only if ``total_received ==
        lower_bound``, and no rank has more work than `eps` allows, or than `bound_work` says that some rank has.
    """

    rank: Ints
    document: Ints
    start: Ints
    stop: Ints
    work: Ints
    received: Ints
    sent: Ints
    crossing: int
    ranges: Ints
    weights: Ints
    total_received: int
    caps: Ints
    max_rows_held: int
    bound_work: Ints
    bound_crossing: int
    _measure: ClassVar[str] = "total_received"

    @property
    def imbalance_ratio(self) -> float:
        """The largest over the mean work of a rank, of the mask that is least even; 1.0 where there is no work."""
        mean = self.work.mean(axis=1)
        return float((self.work.max(axis=1)[mean > 0] / mean[mean > 0]).max(initial=1.0))
