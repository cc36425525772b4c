"""Streams from home to ranks that share samples: of a field each gets its pieces, or every row of its group's samples.

What has an element for each that the plan shares is cut, and travels as segments, which lie at home as the rows do. All
other rows go to every rank of their sample's group, and come home from its first. Both travel in one piece.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from balancer.executor.fields import Column, Field, Spec
from balancer.executor.gathering import Gathered
from balancer.executor.home_streams import FieldRoute, HomeStream
from balancer.executor.payload import Payload, Values, as_whole
from balancer.executor.route import Route
from balancer.executor.windows import Windows
from balancer.plan.pieces import Pieces, Shares, segments
from balancer.plan.step_plan import StepPlan, own_name
from balancer.plan.stream import Stream
from balancer.problem.ragged import Ragged, offsets_of

__all__ = ["CutStream", "SharedFieldRoute", "SharedStream", "Way", "elements_of", "of_tokens", "placed",
           "shared_streams"]  # fmt: skip


class Way(NamedTuple):
    """How a field's elements travel one way, as one rank sends and receives them."""

    route: Route
    taken: NDArray[np.int64] | None = None  # which of its elements the rank sends, in order; None: all
    places: NDArray[np.int64] | None = None  # where those that arrive lie among zeros; None: one after the other
    windows: Windows | None = None  # what arrives is the rank's window, of which its tensor group has the others


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class SharedFieldRoute(FieldRoute):
    """How one field travels between home and ranks that share samples, on one rank."""

    forth: Way
    back: Way

    @classmethod
    def of(cls, home: Field, here: Field, forth: Way, back: Way) -> "SharedFieldRoute":
        """Return how a field travels, given what it is like before and after."""
        return cls(forth.route, home, here, forth=forth, back=back)

    def payload(self, values: Values | None, forth: bool, device: torch.device) -> Payload:
        """Return the rank's elements as they travel, forth or back; None on a rank that only receives."""
        spec, way = self.home.spec, self.forth if forth else self.back
        if values is None:
            return Payload(way.route, spec.torch_dtype, spec.trailing, False, None)
        nothing = torch.empty((0, *spec.trailing), dtype=spec.torch_dtype, device=device)
        whole = as_whole(values).detach() if len(values) else nothing
        if way.taken is not None:
            whole = whole[torch.from_numpy(way.taken).to(whole.device)]
        return Payload(way.route, spec.torch_dtype, spec.trailing, False, whole)

    def arrived(self, values: Values, forth: bool, device: torch.device) -> Field:
        """Return the field of elements that have travelled, among padding where the plan has it."""
        field, way = (self.here, self.forth) if forth else (self.home, self.back)
        size = int(field.lengths.sum()) if way.windows is None else way.windows.size
        whole = placed(as_whole(values), way.places, size)
        whole = whole if way.windows is None else way.windows.gathered(whole)
        return Field(field.spec, field.rows, whole.cpu() if field.spec.device == "cpu" else whole)


def placed(values: Tensor, places: NDArray[np.int64] | None, size: int) -> Tensor:
    """Return so many elements: the values at their places, zeros elsewhere. Gradients return."""
    if places is None:
        return values
    index = torch.from_numpy(places).to(values.device)
    return values.new_zeros((size, *values.shape[1:])).index_copy(0, index, values)


@dataclass(frozen=True, eq=False)
class CutStream(HomeStream):
    """Items that are cut where ranks share their samples: a row here is a segment of an item."""

    cut: Stream  # of the segments
    item_lengths: NDArray[np.int64]
    places: NDArray[np.int64] | None  # where elements lie among the rank's rows after; None: one after the other

    @cached_property
    def rows_here(self) -> NDArray[np.int64]:
        """Elements of each row of this rank after, padding included."""
        return self.cut.lengths[self.here]

    def sizes_here(self, lengths: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the elements of each row of this rank after."""
        return self.rows_here

    @cached_property
    def _segments(self) -> Route:
        return Route.of(self.cut.source, self.cut.target, self.cut.lengths, self.rank, self.sends_own)

    def field_route(self, name: str, gathered: Gathered) -> SharedFieldRoute:
        """Return how a field travels; ValueError if its rows do not fit the items."""
        rows, samples = gathered.rows[name], self.sample_of_item
        if samples is None:
            raise ValueError(f"{self.name!r} must have items")
        self._check_items(name, gathered, samples)
        of_item = rows.values if isinstance(rows, Ragged) else rows[samples]
        odd = of_item != self.item_lengths
        if _is_text(gathered.specs[name]) or odd.any():
            item = int(np.argmax(odd))
            raise ValueError(
                f"field {name!r} must be no text, and have an element for each that {self.name!r} has, as ranks share "
                f"them; it has {of_item[item]} of an item of sample {samples[item]} "
                f"({gathered.where(int(samples[item]))}), {self.name!r} has {self.item_lengths[item]}"
            )
        return self._cut(gathered.field(name, self.rank))

    def result_route(self, spec: Spec, lengths: Any) -> SharedFieldRoute:
        """Return how results travel, given how long they are, int64[k], rank after rank."""
        if not np.array_equal(lengths, self.cut.lengths[self.cut.target.samples]):
            raise ValueError(f"results of {self.name!r} must be as long as the rows that they are of")
        return self._cut(Field(spec, self.item_lengths[self.home]))

    def _cut(self, home: Field, padded: bool = True) -> SharedFieldRoute:
        spec = home.spec.of_items
        route, places = self._segments, self.places if padded else None
        return SharedFieldRoute.of(home, Field(spec, self.rows_here), Way(route, None, places), Way(route.back, places))


@dataclass(frozen=True, eq=False)
class SharedStream(CutStream):
    """Samples that ranks share: a row here is a rank's share of a sample, or of other fields the sample's whole row.

    Or an encoder's items, of which there may be several a sample.
    """

    pieces: Pieces
    shares: Shares

    @cached_property
    def _held(self) -> NDArray[np.int64]:
        """The shares of this rank, in order."""
        return self.shares.place.samples_on_rank(self.rank)

    @cached_property
    def here(self) -> NDArray[np.int64]:
        """The samples of this rank after, in order."""
        return self.shares.sample[self._held]

    @cached_property
    def rows_here(self) -> NDArray[np.int64]:
        """Elements of each share of this rank, padding included."""
        return self.shares.lengths[self._held]

    @cached_property
    def _to_all(self) -> Route:
        """The route of whole rows to every rank that shares their sample, with the lengths still to be set."""
        source, none = self.source.lifted(self.shares.sample), np.zeros(len(self.shares.sample), dtype=np.int64)
        return Route.of(source, self.shares.place, none, self.rank, self.sends_own)

    @cached_property
    def _copies(self) -> NDArray[np.int64]:
        """The samples of this rank before, once for every rank that shares them."""
        return self.home.repeat(np.bincount(self.shares.sample, minlength=len(self.item_lengths))[self.home])

    @cached_property
    def _first_shares(self) -> NDArray[np.int64]:
        """The first share of each sample."""
        return np.searchsorted(self.shares.sample, np.arange(len(self.item_lengths)))

    def field_route(self, name: str, gathered: Gathered) -> SharedFieldRoute:
        """Return how a field travels: cut if each row has the length that the plan has of its sample or item."""
        rows, home = gathered.rows[name], gathered.field(name, self.rank)
        there = home
        if self.sample_of_item is not None:
            self._check_items(name, gathered, self.sample_of_item)
            rows = rows.values if isinstance(rows, Ragged) else rows[self.sample_of_item]
            there = replace(home, spec=replace(home.spec, form="list")) if home.spec.form == "lists" else home
        if not isinstance(rows, Ragged) and of_tokens(home.spec) and np.array_equal(rows, self.item_lengths):
            return self._cut(home)
        sizes = rows.sums() if isinstance(rows, Ragged) else rows
        here: Column = rows.take(self.here) if isinstance(rows, Ragged) else rows[self.here]
        row_at_home = self.source.position_of_sample[self._copies]
        forth = Way(
            self._to_all.with_lengths(sizes[self._copies], sizes[self.here]),
            elements_of(sizes[self.home], row_at_home.astype(np.int64)),
        )
        return SharedFieldRoute.of(home, replace(there, rows=here), forth, self._from_first(sizes, sizes[self.here]))

    def result_route(self, spec: Spec, lengths: Any) -> SharedFieldRoute:
        """Return how results travel, given how long they are: of tokens by pieces, else from a group's first rank."""
        of_share = np.empty(len(lengths), dtype=np.int64)
        of_share[self.shares.place.samples] = lengths
        if of_tokens(spec):
            home = Field(spec, self.item_lengths[self.home])
            for padded, sizes in (True, self.shares.lengths), (False, self._without_padding):
                if np.array_equal(of_share, sizes):
                    return self._cut(home, padded)
        of_sample = of_share[self._first_shares]
        home, here = Field(spec, of_sample[self.home]), Field(spec, of_share[self._held])
        back = self._from_first(of_sample, here.lengths)
        return SharedFieldRoute.of(home, here, Way(back.route.back), back)

    @property
    def _without_padding(self) -> NDArray[np.int64]:
        """Elements of each share but for padding."""
        sample, first = self.pieces.sample, self.target.rank_of_sample
        real = np.minimum(self.pieces.stop, self.item_lengths[sample]) - self.pieces.start
        sizes = np.zeros(len(self.shares.sample), dtype=np.int64)
        share = self._first_shares[sample] + self.pieces.place.rank_of_sample - first[sample]
        np.add.at(sizes, share, np.maximum(real, 0))
        return sizes

    def _from_first(self, of_sample: NDArray[np.int64], here: NDArray[np.int64]) -> Way:
        """Return the way home of rows of these lengths from the first ranks of groups; `here` are all on this rank."""
        first = np.flatnonzero(self.target.rank_of_sample[self.here] == self.rank)
        route = self._route.with_lengths(of_sample[self.home], here[first])
        return Way(route.back, elements_of(here, first))


def shared_streams(plan: StepPlan, rank: int, sends_own: bool) -> Mapping[str, HomeStream]:
    """Return the streams from home to ranks that share samples, by name; none where they do not."""
    streams: dict[str, HomeStream] = {}
    for name, phase in plan.phases.items():
        dispatch, items = phase.plan, phase.items
        if not dispatch.cut.shares:
            continue
        is_last = items.feeds is None
        if is_last and not plan.is_single:
            own, samples = plan.streams[own_name(name)], items.own.row_of_value
            streams[own.name] = CutStream(
                own.name, plan.home.lifted(samples), own.target, samples, rank, sends_own, own, items.own.values, None
            )
        lengths, pieces, shares = dispatch.lengths, dispatch.pieces, dispatch.shares
        found = segments(name, Pieces.whole(dispatch.home, lengths), pieces, lengths)
        padded = int(shares.lengths.sum()) > int(lengths.sum())
        streams[name] = SharedStream(
            name, dispatch.home, dispatch.target, None if is_last else items.sample_of_item, rank, sends_own,
            found.stream, lengths, found.places_on_rank(pieces, rank) if padded else None, pieces, shares,
        )  # fmt: skip
    return streams


def _is_text(spec: Spec) -> bool:
    return spec.form in ("str", "bytes")


def of_tokens(spec: Spec) -> bool:
    """Whether rows of a field can have an element for each token of their samples."""
    return not (spec.fixed or _is_text(spec))


def elements_of(sizes: NDArray[np.int64], rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the elements of some rows, of all rows that lie one after the other."""
    return Ragged(np.arange(int(sizes.sum())), offsets_of(sizes)).take(rows).values.copy()  # which torch may have
