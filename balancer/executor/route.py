"""A route: which rows of one rank go to which ranks, and where those that it gets are put."""

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from balancer.plan.exchange import rank_exchange
from balancer.problem.placement import Placement
from balancer.problem.ragged import Ragged, offsets_of

__all__ = ["Route", "RouteEnd", "Rows", "grouped_sums"]


class Rows(NamedTuple):
    """Rows at one end of a route; in elements but for the ranks."""

    ranks: NDArray[np.int64]  # where each goes to or comes from
    starts: NDArray[np.int64]  # where it begins as the rows lie
    starts_in_block: NDArray[np.int64]  # where it begins among those that go to or come from its rank
    sizes: NDArray[np.int64]

    def where(self, chosen: NDArray[np.bool_]) -> "Rows":
        """Return some of them."""
        return Rows(self.ranks[chosen], self.starts[chosen], self.starts_in_block[chosen], self.sizes[chosen])


@dataclass(frozen=True, eq=False)
class RouteEnd:
    """A rank's rows at one end of their route."""

    counts: NDArray[np.int64]  # rows that go to, or come from, each rank
    order: NDArray[np.int64]  # the rows as they are sent, or arrive: by rank; both sides have the same order
    lengths: NDArray[np.int64]  # elements of the rows, as they lie

    @cached_property
    def in_order(self) -> bool:
        """Whether the rows lie in this order."""
        return bool((self.order[1:] > self.order[:-1]).all())

    @cached_property
    def sizes(self) -> NDArray[np.int64]:
        """Elements of each row, in order."""
        return self.lengths[self.order]

    @cached_property
    def elements(self) -> NDArray[np.int64]:
        """Elements that go to, or come from, each rank."""
        return grouped_sums(self.sizes, self.counts)

    @cached_property
    def blocks(self) -> list[tuple[int, slice, int]]:
        """Of each rank that has any: its number, its rows in `order`, and their elements."""
        bounds, elements = offsets_of(self.counts).tolist(), self.elements.tolist()
        ranks = np.flatnonzero(self.counts).tolist()
        return [(rank, slice(bounds[rank], bounds[rank + 1]), elements[rank]) for rank in ranks]

    @cached_property
    def rows(self) -> Rows:
        """All rows, in order."""
        ranks = np.arange(len(self.counts)).repeat(self.counts)
        before, starts = self.elements.cumsum() - self.elements, self.lengths.cumsum() - self.lengths
        return Rows(ranks, starts[self.order], self.sizes.cumsum() - self.sizes - before[ranks], self.sizes)

    def of_items(self, items: Ragged) -> "RouteEnd":
        """Return the end of rows of several items each, item by item; the items' lengths are as the rows lie."""
        numbers = Ragged(np.arange(len(items.values)), items.offsets).take(self.order)
        return RouteEnd(grouped_sums(numbers.counts, self.counts), numbers.values, items.values)


@dataclass(frozen=True, eq=False)
class Route:
    """One rank's rows on their way from a source placement to a target placement."""

    sending: RouteEnd  # its rows before
    receiving: RouteEnd  # and after
    own: int  # the rank itself, whose rows that stay are not sent; -1: they are, so that replica peers get them too
    _by_lengths: dict[tuple[bytes, bytes], "Route"] = field(default_factory=dict, repr=False)

    @classmethod
    def of(
        cls, source: Placement, target: Placement, lengths: NDArray[np.int64], rank: int, sends_own: bool = False
    ) -> "Route":
        """Return one rank's route, on which it may send rows that stay too. O(ranks + k log k) for its k rows."""
        exchange = rank_exchange(source, target, lengths, rank)
        before, after = lengths[source.samples_on_rank(rank)], lengths[target.samples_on_rank(rank)]
        arrivals = np.empty_like(exchange.receive_order)
        arrivals[exchange.receive_order] = np.arange(len(arrivals))
        return cls(
            RouteEnd(exchange.input_split_sizes, exchange.send_order, before),
            RouteEnd(exchange.output_split_sizes, arrivals, after),
            -1 if sends_own else rank,
        )

    @cached_property
    def sent(self) -> Rows:
        """The rows that leave the rank."""
        return self.sending.rows.where(self.sending.rows.ranks != self.own)

    @cached_property
    def received(self) -> Rows:
        """The rows that come from other ranks."""
        return self.receiving.rows.where(self.receiving.rows.ranks != self.own)

    @cached_property
    def kept(self) -> tuple[Rows, Rows]:
        """The rows that stay on the rank, before and after."""
        before, after = self.sending.rows, self.receiving.rows
        return before.where(before.ranks == self.own), after.where(after.ranks == self.own)

    @cached_property
    def back(self) -> "Route":
        """The way back: rows return in the order in which they came."""
        return Route(self.receiving, self.sending, self.own)

    def with_lengths(self, before: NDArray[np.int64], after: NDArray[np.int64]) -> "Route":
        """Return the same way for other payload of the same rows; the same route for the same lengths."""
        key = before.tobytes(), after.tobytes()
        if key not in self._by_lengths:
            sending, receiving = replace(self.sending, lengths=before), replace(self.receiving, lengths=after)
            self._by_lengths[key] = Route(sending, receiving, self.own)
        return self._by_lengths[key]


def grouped_sums(values: NDArray[np.int64], counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Sum the first so many values, the next so many, and so on."""
    running, ends = offsets_of(values), counts.cumsum()
    return running[ends] - running[ends - counts]
