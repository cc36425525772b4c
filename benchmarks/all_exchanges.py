"""Every rank's exchange at once, by two counting sorts: what one process would hold that made them for all ranks."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from balancer import Placement, RankExchange
from balancer.plan.exchange import rank_exchange
from solvers.groups import members_by_group

__all__ = ["Exchanges", "all_exchanges", "check_rank"]


@dataclass(frozen=True, slots=True, eq=False)
class Exchanges:
    """Every rank's exchange at once, stored sparse: O(items + pairs of ranks that exchange something).

    Attributes
    ----------
    source, target : Placement
    send_items : int64[k]
        Items in send-buffer order, rank after rank, cut by ``source.offsets``.
    arrival_items : int64[k]
        Items in order of arrival, rank after rank, cut by ``target.offsets``.
    pair_offsets : int64[num_ranks + 1]
        Rank r sends to the ranks ``pair_target[pair_offsets[r] : pair_offsets[r + 1]]``, which ascend.
    pair_target : int32[pairs]
    pair_items, pair_elements : int64[pairs]
        How many items, and elements, go from that rank to that rank.
    lengths : int64[k]
    """

    source: Placement
    target: Placement
    send_items: NDArray[np.int64]
    arrival_items: NDArray[np.int64]
    pair_offsets: NDArray[np.int64]
    pair_target: NDArray[np.int32]
    pair_items: NDArray[np.int64]
    pair_elements: NDArray[np.int64]
    lengths: NDArray[np.int64]

    def __post_init__(self) -> None:
        for name in ("send_items", "arrival_items", "pair_offsets", "pair_target", "pair_items", "pair_elements"):
            getattr(self, name).flags.writeable = False

    def rank(self, rank: int) -> RankExchange:
        """Return one rank's exchange in its dense form, as :func:`rank_exchange` makes it."""
        return rank_exchange(self.source, self.target, self.lengths, rank)


def all_exchanges(source: Placement, target: Placement, lengths: NDArray[np.int64]) -> Exchanges:
    """Build every rank's exchange between two placements of the same items.

    Parameters
    ----------
    source, target : Placement
        On the same ranks.
    lengths : int64[k]
        Elements of each item.

    Returns
    -------
    Exchanges
        O(k + num_ranks): two counting sorts.
    """
    num_ranks = source.num_ranks
    # By target rank, and within that in the order in which they lie, source rank after source rank: order of arrival.
    arrivals = source.samples[members_by_group(target.rank_of_sample[source.samples], num_ranks)[0]]
    # Of these by source rank, and within that by target rank: order of sending.
    sends = arrivals[members_by_group(source.rank_of_sample[arrivals], num_ranks)[0]]
    pairs = source.rank_of_sample[sends] * np.int64(num_ranks) + target.rank_of_sample[sends]
    starts = np.flatnonzero(np.concatenate((np.ones(min(1, len(pairs)), dtype=bool), pairs[1:] != pairs[:-1])))
    bounds = np.append(starts, len(pairs))
    elements = np.concatenate(([0], np.cumsum(lengths[sends])))
    first_pair = np.searchsorted(pairs[starts], np.arange(num_ranks + 1) * np.int64(num_ranks))
    return Exchanges(
        source, target, sends, arrivals, first_pair, (pairs[starts] % num_ranks).astype(np.int32), np.diff(bounds),
        np.diff(elements[bounds]), lengths,
    )  # fmt: skip


def check_rank(every: Exchanges, rank: int) -> None:
    """Raise AssertionError if one rank's exchange is not the one that it makes for itself."""
    one, source, target = every.rank(rank), every.source, every.target
    sent = every.send_items[source.offsets[rank] : source.offsets[rank + 1]]
    assert np.array_equal(sent, source.samples_on_rank(rank)[one.send_order])
    arrived = every.arrival_items[target.offsets[rank] : target.offsets[rank + 1]]
    assert np.array_equal(arrived[one.receive_order], target.samples_on_rank(rank))
    pairs = slice(every.pair_offsets[rank], every.pair_offsets[rank + 1])
    to = every.pair_target[pairs]
    assert np.array_equal(to, np.flatnonzero(one.input_split_sizes))
    assert np.array_equal(every.pair_items[pairs], one.input_split_sizes[to])
    assert np.array_equal(every.pair_elements[pairs], one.input_split_elements[to])
