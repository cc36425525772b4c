"""One rank's part in moving samples from one placement to another: split sizes and orders, for an all-to-all.

An exchange knows nothing of plans: a dispatch is home -> target, its way back target -> home, and an encoder's output
goes from the encoder's placement straight to the LLM's.
"""

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from balancer.problem.placement import Placement
from solvers.groups import group_loads, members_by_group

__all__ = ["Exchanges", "RankExchange", "all_exchanges", "rank_exchange"]


@dataclass(frozen=True, slots=True, eq=False)
class RankExchange:
    """What one rank sends and receives; all arrays are int64 and read-only.

    With ``payload`` the rank's samples in home order::

        arrivals = all_to_all(payload[send_order], input_split_sizes, output_split_sizes)
        dispatched = arrivals[receive_order]

    and the way back, for ``result`` in dispatch order::

        buffer = empty; buffer[receive_order] = result
        returned = all_to_all(buffer, output_split_sizes, input_split_sizes)
        payload = returned[restore_order]

    Attributes
    ----------
    input_split_sizes, output_split_sizes : int64[num_ranks]
        Samples sent to, and received from, each rank.
    input_split_elements, output_split_elements : int64[num_ranks]
        The same in elements (tokens, frames, patches).
    send_order : int64[samples held before]
        Home positions in send-buffer order: by target rank, then by home position.
    receive_order : int64[samples held after]
        Arrival index of each dispatch position. Arrivals come by source rank, then in the sender's order.
    restore_order : int64[samples held before]
        Send-buffer index of each home position.
    """

    input_split_sizes: NDArray[np.int64]
    output_split_sizes: NDArray[np.int64]
    input_split_elements: NDArray[np.int64]
    output_split_elements: NDArray[np.int64]
    send_order: NDArray[np.int64]
    receive_order: NDArray[np.int64]
    restore_order: NDArray[np.int64]

    def __post_init__(self) -> None:
        for spec in fields(self):
            getattr(self, spec.name).flags.writeable = False

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, RankExchange):
            return NotImplemented
        return all(np.array_equal(getattr(self, f.name), getattr(other, f.name)) for f in fields(self))

    __hash__ = None  # type: ignore[assignment]


def rank_exchange(source: Placement, target: Placement, lengths: NDArray[np.int64], rank: int) -> RankExchange:
    """Build the exchange of one rank between two placements of the same samples.

    Parameters
    ----------
    source, target : Placement
        On the same ranks.
    lengths : int64[n]
        Elements of each sample.
    rank : int

    Returns
    -------
    RankExchange
        O(num_ranks + k log k) for the k samples that the rank holds before and after.

    Raises
    ------
    ValueError
        A rank out of range.
    """
    sent = source.samples_on_rank(rank)
    received = target.samples_on_rank(rank)
    to_rank = target.rank_of_sample[sent]
    from_rank = source.rank_of_sample[received]
    send_order = np.argsort(to_rank, kind="stable")
    arrival_order = np.lexsort((source.position_of_sample[received], from_rank))
    return RankExchange(
        input_split_sizes=np.bincount(to_rank, minlength=source.num_ranks),
        output_split_sizes=np.bincount(from_rank, minlength=source.num_ranks),
        input_split_elements=group_loads(lengths[sent], to_rank, source.num_ranks),
        output_split_elements=group_loads(lengths[received], from_rank, source.num_ranks),
        send_order=send_order,
        receive_order=_inverse(arrival_order),
        restore_order=_inverse(send_order),
    )


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


def _inverse(permutation: NDArray[np.int64]) -> NDArray[np.int64]:
    inverse = np.empty_like(permutation)
    inverse[permutation] = np.arange(len(permutation))
    return inverse
