"""A route: which rows of one rank go to which ranks, and where those that come are put."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from balancer.exchange import rank_exchange
from balancer.placement import Placement

__all__ = ["Route"]


@dataclass(frozen=True, slots=True, eq=False)
class Route:
    """One rank's rows on their way from a source placement to a target placement.

    Attributes
    ----------
    sends, receives : int64[num_ranks]
        Rows to, and from, each rank.
    send_rows : int64[k]
        The rank's rows, as they lie before, in the order in which they are sent.
    arrival_of_row : int64[l]
        For each row as they lie after, which arrival it is; arrivals come by source rank, in the sender's order.
    before, after : int64[k], int64[l]
        Elements of the rank's rows, as they lie before and after.
    """

    sends: NDArray[np.int64]
    receives: NDArray[np.int64]
    send_rows: NDArray[np.int64]
    arrival_of_row: NDArray[np.int64]
    before: NDArray[np.int64]
    after: NDArray[np.int64]

    @classmethod
    def of(cls, source: Placement, target: Placement, lengths: NDArray[np.int64], rank: int) -> "Route":
        """Return one rank's route. O(ranks + k log k) for its k rows."""
        exchange = rank_exchange(source, target, lengths, rank)
        return cls(
            exchange.input_split_sizes,
            exchange.output_split_sizes,
            exchange.send_order,
            exchange.receive_order,
            lengths[source.samples_on_rank(rank)],
            lengths[target.samples_on_rank(rank)],
        )

    def with_lengths(self, before: NDArray[np.int64], after: NDArray[np.int64]) -> "Route":
        """Return the same way for other payload of the same rows."""
        return Route(self.sends, self.receives, self.send_rows, self.arrival_of_row, before, after)

    def back(self) -> "Route":
        """Return the way back: arrivals return in the order in which they came."""
        return Route(
            self.receives, self.sends, _inverse(self.arrival_of_row), _inverse(self.send_rows), self.after, self.before
        )


def _inverse(permutation: NDArray[np.int64]) -> NDArray[np.int64]:
    inverse = np.empty_like(permutation)
    inverse[permutation] = np.arange(len(permutation))
    return inverse
