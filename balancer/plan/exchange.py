"""One rank's part in moving samples from one placement to another: split sizes and orders, for an all-to-all.

It takes any two placements: dispatch is home -> target, its way back target -> home, and an encoder's output goes from
the encoder's placement to the LLM's.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from balancer.problem.placement import Placement
from solvers.groups import group_loads
from solvers.types import Record


@dataclass(frozen=True, slots=True, eq=False)
class RankExchange(Record):
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


def rank_exchange(source: Placement, target: Placement, lengths: NDArray[np.int64], rank: int) -> RankExchange:
    """Build the exchange of one rank between two placements of the same samples.

    `lengths` are the elements of each sample. O(num_ranks + k log k) for the k samples that the rank holds before and
    after. Raises ValueError for a rank out of range.
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


def _inverse(permutation: NDArray[np.int64]) -> NDArray[np.int64]:
    inverse = np.empty_like(permutation)
    inverse[permutation] = np.arange(len(permutation))
    return inverse
