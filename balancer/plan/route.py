"""A route: which elements of one rank go to which ranks, and where those that it gets are put.

What travels are *runs* of elements: a row, a part of a row, or a row once more for another rank. A rank that sends and
one that gets list the runs between them in one order, so that nothing but their bytes is sent.
"""

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from balancer.plan.resharding import Resharding
from balancer.plan.stream import Stream
from balancer.problem.ragged import Ragged, offsets_of

__all__ = ["Route", "RouteEnd", "Runs", "arriving", "grouped_sums", "leaving", "resharded"]


class Runs(NamedTuple):
    """Runs at one end of a route; in elements but for the ranks."""

    ranks: NDArray[np.int64]  # where each goes to or comes from
    starts: NDArray[np.int64]  # where it begins among the rank's elements
    starts_in_block: NDArray[np.int64]  # where it begins among those that go to or come from its rank
    sizes: NDArray[np.int64]

    def where(self, chosen: NDArray[np.bool_]) -> "Runs":
        """Return some of them."""
        return Runs(self.ranks[chosen], self.starts[chosen], self.starts_in_block[chosen], self.sizes[chosen])


@dataclass(frozen=True, eq=False)
class RouteEnd:
    """What one rank sends, or what it gets: runs of its elements, listed as they travel, by rank."""

    counts: NDArray[np.int64]  # int64[ranks]: runs that go to, or come from, each rank
    order: NDArray[np.int64]  # int64[k]: which run comes next; of whole rows, the number of the row
    starts: NDArray[np.int64]  # int64[k]: where each begins among the rank's elements
    sizes: NDArray[np.int64]  # int64[k]: its elements
    lengths: NDArray[np.int64]  # int64[n]: elements of the rank's rows, which lie one after the other
    whole: bool = True  # whether each run is a row, so that rows may be tensors of their own

    @classmethod
    def of_rows(cls, counts: NDArray[np.int64], order: NDArray[np.int64], lengths: NDArray[np.int64]) -> "RouteEnd":
        """Return the end of whole rows of these lengths."""
        return cls(counts, order, (lengths.cumsum() - lengths)[order], lengths[order], lengths)

    @classmethod
    def by_rank(
        cls, ranks: NDArray[Any], num_ranks: int, lengths: NDArray[np.int64], places: NDArray[Any] | None = None,
        rows: NDArray[np.int64] | None = None,
    ) -> "RouteEnd":  # fmt: skip
        """Return the end of rows that go to ranks, or of those that come from them, given their places there.

        `rows` says which ones, if not each once. O(num_ranks + k log k) for k of them.
        """
        # Both ends sort by rank, then by where rows lie at their source: that alone makes them agree on the order.
        order = np.argsort(ranks, kind="stable") if places is None else np.lexsort((places, ranks))
        return cls.of_rows(np.bincount(ranks, minlength=num_ranks), order if rows is None else rows[order], lengths)

    def of_items(self, items: Ragged) -> "RouteEnd":
        """Return the end of the same rows where each is several items, which travel as rows of their own."""
        numbers = Ragged(np.arange(len(items.values)), items.offsets).take(self.order)
        return self.of_rows(grouped_sums(numbers.counts, self.counts), numbers.values, items.values)

    def parts(self, elements: NDArray[np.int64] | None = None, total: int | None = None) -> "RouteEnd":
        """Return the same runs as parts of rows: by default side by side as they lie, without padding.

        Else the `elements`, run by run as they lie, say where among so many each element is.
        """
        starts = self.starts if elements is None else elements[offsets_of(self.lengths)[:-1]][self.order]
        lengths = self.lengths if total is None else np.array([total])
        return replace(self, starts=starts, lengths=lengths, whole=False)

    def keeping(self, rank: int, starts: NDArray[np.int64], sizes: NDArray[np.int64], total: int) -> "RouteEnd":
        """Return these parts and further ones which stay on the rank, of so many elements in all."""
        at, counts = int(self.counts[: rank + 1].sum()), self.counts.copy()
        counts[rank] += len(starts)
        starts, sizes = np.insert(self.starts, at, starts), np.insert(self.sizes, at, sizes)
        return RouteEnd(counts, np.arange(len(starts)), starts, sizes, np.array([total]), whole=False)

    @cached_property
    def in_order(self) -> bool:
        """Whether the runs, one after the other, are all that the rank has."""
        if self.whole:
            return len(self.order) == len(self.lengths) and bool((self.order[1:] > self.order[:-1]).all())
        ends = self.sizes.cumsum()
        return int(self.sizes.sum()) == self.total and bool((self.starts == ends - self.sizes).all())

    @cached_property
    def total(self) -> int:
        """How many elements the rank has; what lies in no run is padding."""
        return int(self.lengths.sum())

    @cached_property
    def elements(self) -> NDArray[np.int64]:
        """Elements that go to, or come from, each rank."""
        return grouped_sums(self.sizes, self.counts)

    @cached_property
    def blocks(self) -> list[tuple[int, slice, int]]:
        """Of each rank that has any: its number, its runs, and their elements."""
        bounds, elements = offsets_of(self.counts).tolist(), self.elements.tolist()
        ranks = np.flatnonzero(self.counts).tolist()
        return [(rank, slice(bounds[rank], bounds[rank + 1]), elements[rank]) for rank in ranks]

    @cached_property
    def runs(self) -> Runs:
        """All runs, in order."""
        ranks = np.arange(len(self.counts)).repeat(self.counts)
        before = self.elements.cumsum() - self.elements
        return Runs(ranks, self.starts, self.sizes.cumsum() - self.sizes - before[ranks], self.sizes)


@dataclass(frozen=True, eq=False)
class Route:
    """One rank's part in an exchange."""

    sending: RouteEnd
    receiving: RouteEnd
    own: int  # the rank itself, whose runs that stay are not sent; -1: they are, so that replica peers get them too
    _by_lengths: dict[tuple[bytes, bytes], "Route"] = field(default_factory=dict, repr=False)

    @cached_property
    def sent(self) -> Runs:
        """The runs that leave the rank."""
        return self.sending.runs.where(self.sending.runs.ranks != self.own)

    @cached_property
    def received(self) -> Runs:
        """The runs that come from other ranks."""
        return self.receiving.runs.where(self.receiving.runs.ranks != self.own)

    @cached_property
    def kept(self) -> tuple[Runs, Runs]:
        """The runs that stay on the rank, before and after."""
        before, after = self.sending.runs, self.receiving.runs
        return before.where(before.ranks == self.own), after.where(after.ranks == self.own)

    @cached_property
    def back(self) -> "Route":
        """The way back: what came to a rank returns in the order in which it came."""
        return Route(self.receiving, self.sending, self.own)

    def with_lengths(
        self, before: NDArray[np.int64], after: NDArray[np.int64], chosen: NDArray[np.int64] | None = None
    ) -> "Route":
        """Return the same way for rows of other lengths; the same route for the same lengths.

        `chosen` are the rows before, if there are others besides, which are empty.
        """
        # Fields of the same lengths, such as token ids and labels, share one route with all that is derived from it.
        key = before.tobytes(), after.tobytes()
        if key not in self._by_lengths:
            sending, receiving = self.sending, self.receiving
            order = sending.order if chosen is None else chosen[sending.order]
            self._by_lengths[key] = Route(
                RouteEnd.of_rows(sending.counts, order, before),
                RouteEnd.of_rows(receiving.counts, receiving.order, after),
                self.own,
            )
        return self._by_lengths[key]

    def of_items(self, before: Ragged, after: Ragged) -> "Route":
        """Return the same way for rows of several items each, whose lengths are given."""
        return Route(self.sending.of_items(before), self.receiving.of_items(after), self.own)


def leaving(stream: Stream, rank: int) -> RouteEnd:
    """Return what a rank sends of a plan's stream."""
    items = stream.source.samples_on_rank(rank)
    return RouteEnd.by_rank(stream.target.rank_of_sample[items], stream.source.num_ranks, stream.lengths[items])


def arriving(stream: Stream, rank: int) -> RouteEnd:
    """Return what a rank gets of a plan's stream."""
    items, source = stream.target.samples_on_rank(rank), stream.source
    ranks, places = source.rank_of_sample[items], source.position_of_sample[items]
    return RouteEnd.by_rank(ranks, source.num_ranks, stream.lengths[items], places)


def resharded(sending: Resharding, receiving: Resharding, gpu: int, held: int, window: int) -> Route:
    """Return a GPU's route from the elements that it holds, so many, to those in its windows."""
    before = leaving(sending.stream, gpu).parts(sending.sent(gpu), held)
    return Route(before, arriving(receiving.stream, gpu).parts(receiving.arriving(gpu), window), gpu)


def grouped_sums(values: NDArray[np.int64], counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Sum the first so many values, the next so many, and so on."""
    running, ends = offsets_of(values), counts.cumsum()
    sums: NDArray[np.int64] = running[ends] - running[ends - counts]
    return sums
