"""A route: which rows of one rank go to which ranks, and where those that come are put."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from balancer.plan.exchange import rank_exchange
from balancer.problem.placement import Placement

__all__ = ["End", "Route", "Rows", "expanded", "grouped_sums"]


@dataclass(frozen=True, eq=False)
class End:
    """A rank's rows at one end of their route.

    Attributes
    ----------
    counts : int64[num_ranks]
        Rows that go to, or come from, each rank.
    order : int64[k]
        The rows in the order in which they are sent, or arrive: by rank. Both sides have the same order.
    lengths : int64[k]
        Elements of the rows, as they lie.
    """

    counts: NDArray[np.int64]
    order: NDArray[np.int64]
    lengths: NDArray[np.int64]

    @cached_property
    def rows(self) -> list[int]:
        """The rows in order."""
        rows: list[int] = self.order.tolist()
        return rows

    @cached_property
    def in_order(self) -> bool:
        """Whether they lie in this order."""
        return self.rows == list(range(len(self.rows)))

    @cached_property
    def sizes(self) -> NDArray[np.int64]:
        """Elements of each row, in order."""
        return self.lengths[self.order]

    @cached_property
    def elements(self) -> NDArray[np.int64]:
        """Elements that go to, or come from, each rank."""
        return grouped_sums(self.sizes, self.counts)

    @cached_property
    def slabs(self) -> list[tuple[int, slice, int]]:
        """Of each rank that has any: its number, its rows in `order`, and their elements."""
        ends = np.cumsum(self.counts)
        ranks = np.flatnonzero(self.counts)
        bounds = zip(ranks, ends[ranks] - self.counts[ranks], ends[ranks], self.elements[ranks], strict=True)
        return [(int(rank), slice(int(start), int(stop)), int(size)) for rank, start, stop, size in bounds]

    @cached_property
    def everything(self) -> "Rows":
        """All rows, in order."""
        ranks = np.arange(len(self.counts)).repeat(self.counts)
        lie = (self.lengths.cumsum() - self.lengths)[self.order]
        before = self.elements.cumsum() - self.elements
        return Rows(ranks, lie, self.sizes.cumsum() - self.sizes - before[ranks], self.sizes)

    def of_items(self, counts: NDArray[np.int64], lengths: NDArray[np.int64]) -> "End":
        """Return the end of rows of several items each, item by item; `counts` and `lengths` are as they lie."""
        return End(grouped_sums(counts[self.order], self.counts), expanded(self.order, counts), lengths)


class Rows(NamedTuple):
    """Rows at one end of a route, in order, each an int64; in elements but for the ranks.

    Attributes
    ----------
    ranks : int64[k]
        Where each goes to or comes from.
    lie : int64[k]
        Where it begins as the rows lie.
    wire : int64[k]
        Where it begins among those that go to or come from its rank.
    sizes : int64[k]
    """

    ranks: NDArray[np.int64]
    lie: NDArray[np.int64]
    wire: NDArray[np.int64]
    sizes: NDArray[np.int64]

    def where(self, chosen: NDArray[np.bool_]) -> "Rows":
        """Return some of them."""
        return Rows(self.ranks[chosen], self.lie[chosen], self.wire[chosen], self.sizes[chosen])


@dataclass(frozen=True, eq=False)
class Route:
    """One rank's rows on their way from a source placement to a target placement.

    Attributes
    ----------
    leaving, coming : End
        Its rows before, and after.
    own : int
        The rank itself, whose rows that stay need no wire; -1: they take it too, for peers that listen.
    """

    leaving: End
    coming: End
    own: int

    @classmethod
    def of(
        cls, source: Placement, target: Placement, lengths: NDArray[np.int64], rank: int, listened: bool = False
    ) -> "Route":
        """Return one rank's route, to whose wire peers may listen. O(ranks + k log k) for its k rows."""
        exchange = rank_exchange(source, target, lengths, rank)
        return cls(
            End(exchange.input_split_sizes, exchange.send_order, lengths[source.samples_on_rank(rank)]),
            End(
                exchange.output_split_sizes,
                _inverse(exchange.receive_order),
                lengths[target.samples_on_rank(rank)],
            ),
            -1 if listened else rank,
        )

    @cached_property
    def leave(self) -> Rows:
        """The rows that leave the rank."""
        rows = self.leaving.everything
        return rows.where(rows.ranks != self.own)

    @cached_property
    def come(self) -> Rows:
        """The rows that come from other ranks."""
        rows = self.coming.everything
        return rows.where(rows.ranks != self.own)

    @cached_property
    def stay(self) -> tuple[Rows, Rows]:
        """The rows that stay on the rank, before and after."""
        before, after = self.leaving.everything, self.coming.everything
        return before.where(before.ranks == self.own), after.where(after.ranks == self.own)

    def with_lengths(self, before: NDArray[np.int64], after: NDArray[np.int64]) -> "Route":
        """Return the same way for other payload of the same rows; the same route for the same lengths."""
        key = before.tobytes(), after.tobytes()
        if key not in self._by_lengths:
            leaving, coming = replace(self.leaving, lengths=before), replace(self.coming, lengths=after)
            self._by_lengths[key] = Route(leaving, coming, self.own)
        return self._by_lengths[key]

    @cached_property
    def _by_lengths(self) -> dict[tuple[bytes, bytes], "Route"]:
        return {}

    def back(self) -> "Route":
        """Return the way back: rows return in the order in which they came."""
        return self._back

    @cached_property
    def _back(self) -> "Route":
        return Route(self.coming, self.leaving, self.own)


def _inverse(permutation: NDArray[np.int64]) -> NDArray[np.int64]:
    inverse = np.empty_like(permutation)
    inverse[permutation] = np.arange(len(permutation))
    return inverse


def grouped_sums(values: NDArray[np.int64], counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Sum the first so many values, the next so many, and so on."""
    running = np.zeros(len(values) + 1, dtype=np.int64)
    np.cumsum(values, out=running[1:])
    ends = np.cumsum(counts)
    sums: NDArray[np.int64] = running[ends] - running[ends - counts]
    return sums


def expanded(rows: NDArray[np.int64], counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the items of rows in this order, where row i has ``counts[i]`` and all items are counted through."""
    picked = counts[rows]
    first = (np.cumsum(counts) - counts)[rows] - (np.cumsum(picked) - picked)
    return np.repeat(first, picked) + np.arange(picked.sum())
