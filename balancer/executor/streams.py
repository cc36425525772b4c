"""Streams: how the fields of a mini-batch travel from home to the phases of a step, and back.

The home of a sample is the rank that drew it. Every phase has a stream: its items on their way from home. A phase that
others feed has one more, ``"llm:own"``, of the pieces that its samples bring from home themselves. Each field belongs
to one stream, and has a row for each item. It travels in one of two ways:

- *whole rows*: a row goes to every rank of its item's group, and comes home from the first of them. A group is one
  rank, the ranks that share a sample, or all GPUs of a replica.
- *parts of rows*: a rank gets what it holds of each row, and the parts come home put together. A field travels so if
  ranks hold parts of items, and each of its rows is as long as its item.

The plan says who holds what; each rank works out its own part of the exchange. :func:`streams_from_home` makes all
streams of a step. :meth:`HomeStream.field_route` says how a field travels, :meth:`HomeStream.result_route` how results
come home.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from balancer.executor.fields import Column, Field, Spec
from balancer.executor.gathering import Gathered
from balancer.executor.payload import Payload, Values, as_whole
from balancer.executor.peers import Peers
from balancer.executor.windows import Windows
from balancer.plan.dispatch_plan import DispatchPlan
from balancer.plan.pieces import Pieces, segments
from balancer.plan.resharding import Resharding, Shards, Source
from balancer.plan.route import Route, RouteEnd, arriving, leaving, resharded
from balancer.plan.step_plan import StepPlan, own_name, reshard, reshard_on, shards_of
from balancer.problem.phases import SINGLE_PHASE
from balancer.problem.placement import Placement
from balancer.problem.ragged import Ragged, offsets_of
from balancer.problem.setup import Setup

__all__ = ["FieldRoute", "HomeStream", "stream_names", "streams_from_home"]


@dataclass(frozen=True, slots=True, eq=False)
class FieldRoute:
    """How one field travels between home and the phase that takes it, on one rank."""

    home: Field  # what the field is like before dispatch
    here: Field  # what it is like after
    forth: Route
    back: Route
    windows: Windows | None = None  # of tensor shards: this GPU's window arrives, and they gather the others'

    @property
    def is_mirrored(self) -> bool:
        """Whether rows go back as they came, so that memory in which they arrived can be sent as it is."""
        return self.back is self.forth.back

    def payload(self, values: Values | None, forth: bool, device: torch.device) -> Payload:
        """Return what the rank sends, forth or back; `values` is None on a rank that only receives."""
        spec, route = self.home.spec, self.forth if forth else self.back
        # A field that changes its device, or travels in parts, travels in one piece.
        by_row = spec.by_row and spec.device == device.type and self.forth.sending.whole
        if not by_row and values is not None and not isinstance(values, Tensor):
            nothing = torch.empty((0, *spec.trailing), dtype=spec.torch_dtype, device=device)
            values = as_whole(values).detach() if len(values) else nothing
        return Payload(route, spec.torch_dtype, spec.trailing, by_row, values)

    def arrived(self, values: Values, forth: bool, device: torch.device) -> Field:
        """Return the field of what has travelled."""
        field = self.here if forth else self.home
        if forth and self.windows is not None:
            values = self.windows.joined(as_whole(values))
        if isinstance(values, Tensor) and field.spec.device == "cpu":
            values = values.cpu()
        return Field(field.spec, field.rows, values)


class Receivers(NamedTuple):
    """Which ranks get whole rows: all ranks of the group of the row's item."""

    group_of_item: NDArray[Any]  # int[n]
    ranks: Ragged  # the ranks of each group
    first: NDArray[Any]  # int[groups]: the rank of each group from which rows come home


class PartRoutes(NamedTuple):
    """The ways of parts of rows."""

    forth: Route
    back: Route
    unpadded: Route  # the way back of results without padding
    windows: Windows | None = None  # of tensor shards, as in FieldRoute


@dataclass(frozen=True, slots=True, eq=False)
class Parts:
    """Which parts of items ranks hold."""

    lengths: NDArray[np.int64]  # int64[n]: elements of the items
    here: NDArray[np.int64]  # int64[k]: elements of each row that this rank holds, padding included
    # A function, as finding the routes takes time, and most steps cut no field of most streams
    routes: Callable[[], PartRoutes]
    # The elements of the rows of all ranks, rank after rank: with padding (True), and without where that is known.
    # Results whose lengths are these are results of parts
    everywhere: Callable[[], list[tuple[bool, NDArray[np.int64]]]]


@dataclass(frozen=True, eq=False)
class HomeStream:
    """Items that travel from home to a phase, as one rank sends and gets them.

    ========================  ===============  =======  =================
    Ranks hold                `receivers`      `parts`  `replica_of_rank`
    ========================  ===============  =======  =================
    whole items               a rank each      None     None
    shares of an item         a group of them  given    None
    segments of items         None             given    None
    a replica's GPUs its all  all its GPUs     given    given
    ========================  ===============  =======  =================
    """

    name: str  # of the phase, or "llm:own" for the pieces that the last phase takes from home
    rank: int
    # The rank, as what stays on it is copied and not sent. -1 with replica peers, which get what is sent alone
    own: int
    source: Placement  # where the items are before
    sample_of_item: NDArray[np.int64] | None  # None: the items are the samples
    rows: Ragged  # what each rank, or with layouts each replica, has after: items in order, or segments of items
    replica_of_rank: NDArray[Any] | None  # int[ranks]; None without layouts
    receivers: Receivers | None  # None: no rows go whole, as ranks have segments
    parts: Parts | None = None  # None: ranks hold whole items

    @cached_property
    def home(self) -> NDArray[np.int64]:
        """The items of this rank before, in order."""
        return self.source.samples_on_rank(self.rank)

    @cached_property
    def here(self) -> NDArray[np.int64]:
        """The items of this rank after, in order. Where no rows go whole, they are segments of items."""
        return self.rows.row(self.rank if self.replica_of_rank is None else int(self.replica_of_rank[self.rank]))

    def sizes_here(self, lengths: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the elements of each row of this rank after, given the items' lengths."""
        return lengths[self.here] if self.parts is None else self.parts.here

    def field_route(self, name: str, gathered: Gathered) -> FieldRoute:
        """Return how a field travels; ValueError if its rows do not fit the items."""
        rows, home, chosen = gathered.rows[name], gathered.field(name, self.rank), None
        spec = home.spec
        if self.sample_of_item is not None:
            self._check_items(name, gathered, self.sample_of_item)
            spec = spec.of_items
            if isinstance(rows, Ragged):
                rows = rows.values
            else:
                rows = rows[self.sample_of_item]
                chosen = self.sample_of_item[self.home] - gathered.home.offsets[self.rank]
        if self.parts is not None and self._is_cut(name, gathered, rows, self.parts):
            return self._by_parts(self.parts, home, spec)
        here: Column = rows.take(self.here) if isinstance(rows, Ragged) else rows[self.here]
        return self._whole(home, Field(spec, here), chosen)

    def result_route(self, spec: Spec, lengths: Any) -> FieldRoute:
        """Return how results travel, given how long they are, int64[k], rank after rank."""
        if self.parts is not None and (self.receivers is None or _of_tokens(spec)):
            home = Field(spec, self.parts.lengths[self.home])
            for is_padded, sizes in self.parts.everywhere():
                if np.array_equal(lengths, sizes):
                    return self._by_parts(self.parts, home, spec, is_padded)
        if self.receivers is None:
            raise ValueError(f"results of {self.name!r} must be as long as the rows that they are of")
        rows = self.rows if self.replica_of_rank is None else self.rows.take(self.replica_of_rank)
        # Several ranks may have a result of one item, and of unequal lengths: that of the group's first rank counts.
        first = self.receivers.first[self.receivers.group_of_item[rows.values]] == rows.row_of_value
        # From the results of all ranks to one length an item, and from that to this rank's items at home.
        of_item = np.empty(len(self.source.samples), dtype=np.int64)
        of_item[rows.values[first]] = lengths[first]
        here = lengths[rows.offsets[self.rank] : rows.offsets[self.rank + 1]]
        return self._whole(Field(spec, of_item[self.home]), Field(spec, here))

    # Rows that go whole.

    def _whole(self, home: Field, here: Field, chosen: NDArray[np.int64] | None = None) -> FieldRoute:
        """Return how whole rows travel: all at home, or the `chosen` places, all other rows there being empty."""

        def fitted(route: Route) -> Route:
            if isinstance(home.rows, Ragged) and isinstance(here.rows, Ragged):
                return route.of_items(home.rows, here.rows)
            return route.with_lengths(home.lengths, here.lengths, chosen)

        there, homeward = self._row_routes
        forth = fitted(there)
        return FieldRoute(home, here, forth, forth.back if homeward is there else fitted(homeward).back)

    @cached_property
    def _row_routes(self) -> tuple[Route, Route]:
        """The routes of rows to all that get them, and to those from whom they come home; lengths are still to be set.

        One route where every group is one rank.
        """
        if self.receivers is None:
            raise TypeError(f"no rows of {self.name!r} go whole")
        group_of_item, ranks, first = self.receivers
        size, groups, here = self.source.num_ranks, group_of_item[self.home], self.here
        before, after = np.zeros(len(groups), dtype=np.int64), np.zeros(len(here), dtype=np.int64)
        came_from, places = self.source.rank_of_sample[here], self.source.position_of_sample[here]
        to_first, from_all = (
            RouteEnd.by_rank(first[groups], size, before),
            RouteEnd.by_rank(came_from, size, after, places),
        )
        # Rows that go to one rank each come home on the same way: then memory can be sent back as it arrived.
        if len(ranks.values) == len(ranks):
            route = Route(to_first, from_all, self.own)
            return route, route
        to, mine = ranks.take(groups), np.flatnonzero(first[group_of_item[here]] == self.rank)
        to_all = RouteEnd.by_rank(to.values, size, before, rows=to.row_of_value)
        from_first = RouteEnd.by_rank(came_from[mine], size, after, places[mine], mine)
        return Route(to_all, from_all, self.own), Route(to_first, from_first, self.own)

    # Parts of rows.

    def _by_parts(self, parts: Parts, home: Field, spec: Spec, padded: bool = True) -> FieldRoute:
        routes = parts.routes()
        back = routes.back if padded else routes.unpadded
        return FieldRoute(home, Field(spec, parts.here), routes.forth, back, routes.windows)

    def _is_cut(self, field: str, gathered: Gathered, rows: Any, parts: Parts) -> bool:
        """Return whether a field travels in parts; ValueError if it must, and cannot."""
        spec, samples = gathered.specs[field], self.sample_of_item
        fits = not isinstance(rows, Ragged) and np.array_equal(rows, parts.lengths)
        if self.receivers is not None or samples is None:
            return fits and _of_tokens(spec)
        if fits and not (_is_text(spec) and len(rows)):
            return True
        item = int(np.argmax(rows != parts.lengths))
        sample = int(samples[item])
        raise ValueError(
            f"field {field!r} must be no text, and have an element for each that {self.name!r} has, as ranks share "
            f"them; it has {rows[item]} of an item of sample {sample} ({gathered.where(sample)}), {self.name!r} has "
            f"{parts.lengths[item]}"
        )

    def _check_items(self, field: str, gathered: Gathered, sample_of_item: NDArray[np.int64]) -> None:
        rows: Any = gathered.rows[field]
        items, listed = np.bincount(sample_of_item, minlength=len(rows)), isinstance(rows, Ragged)
        odd = items != rows.counts if listed else (items != 1) & ((items > 1) | (rows > 0))
        if odd.any():
            sample = int(np.argmax(odd))
            has = f"{rows.counts[sample]} items" if listed else f"one row of {rows[sample]} elements"
            raise ValueError(
                f"field {field!r} has {has} of sample {sample} ({gathered.where(sample)}), {self.name!r} has "
                f"{items[sample]} items of it"
            )


def _is_text(spec: Spec) -> bool:
    return spec.form in ("str", "bytes")


def _of_tokens(spec: Spec) -> bool:
    """Whether rows of a field can have an element for each token of their samples."""
    return not (spec.fixed or _is_text(spec))


# Streams of a plan.


def stream_names(setup: Setup) -> list[str]:
    """Return the names of the streams from home; the last is that of the samples to the last phase."""
    *encoders, last = (phase.name for phase in setup.phases)
    return [*encoders, *([own_name(last)] if last != SINGLE_PHASE else []), last]


def streams_from_home(step: StepPlan, peers: Peers) -> Mapping[str, HomeStream]:
    """Return the streams from home by name, as one rank sends and gets them."""
    return {name: _stream(step, name, peers) for name in stream_names(step.setup)}


def _stream(step: StepPlan, name: str, peers: Peers) -> HomeStream:
    is_own, laid_out, phase = name not in step.phases, step.setup.layout is not None, name.removesuffix(":own")
    items, plan = step.phases[phase].items, step[phase]
    samples = None if items.is_last else items.sample_of_item  # None: of whole samples
    source, target = plan.home, plan.target
    if is_own:
        samples = items.own.row_of_value
    if laid_out or is_own:  # a plan's home is one of replicas then, or of samples
        source = step.home if samples is None else step.home.lifted(samples)
    if is_own and not laid_out:
        target = step.streams[name].target
    # Every item to one rank, a group by itself; streams whose ranks share items differ in what follows.
    ranks = np.arange(target.num_ranks + 1)
    alone = Receivers(target.rank_of_sample, Ragged(ranks[:-1], ranks), ranks[:-1])
    own = peers.rank if peers.replica is None else -1
    whole = HomeStream(name, peers.rank, own, source, samples, _rows_of(target), None, alone)
    if is_own and (laid_out or plan.cut.shares):
        return _in_segments(whole, step)
    if laid_out:
        return _in_shards(whole, shards_of(step, name), peers)
    return _in_shares(whole, plan) if plan.cut.shares else whole


def _in_segments(stream: HomeStream, step: StepPlan) -> HomeStream:
    """Return the stream of what samples bring in themselves, where ranks share samples: ranks get segments of items.

    With layouts, a GPU gets those in its window of its shard.
    """
    name, rank, laid_out = stream.name, stream.rank, step.setup.layout is not None
    sent, cut = (each.stream for each in reshard_on(step, rank, name)) if laid_out else [step.streams[name]] * 2
    route = Route(leaving(sent, rank).parts(), arriving(cut, rank).parts(), stream.own)

    def everywhere() -> list[tuple[bool, NDArray[np.int64]]]:
        of_all = reshard(step, name).stream if laid_out else cut
        return [(True, of_all.lengths[of_all.target.samples])]

    here = cut.lengths[cut.target.samples_on_rank(rank)]
    lengths = step.phases[name.removesuffix(":own")].items.own.values
    parts = Parts(lengths, here, lambda: PartRoutes(route, route.back, route.back), everywhere)
    return replace(stream, rows=_rows_of(cut.target), receivers=None, parts=parts)


def _in_shares(stream: HomeStream, plan: DispatchPlan) -> HomeStream:
    """Return the stream of items that ranks share: a rank gets its share of each row, or whole rows."""
    rank, lengths, pieces, (item, place, sizes) = stream.rank, plan.lengths, plan.pieces, plan.shares
    first_share, first_rank = offsets_of(np.bincount(item, minlength=len(lengths))), plan.target.rank_of_sample
    receivers = Receivers(
        np.arange(len(lengths)), Ragged(place.rank_of_sample.astype(np.int64), first_share), first_rank
    )
    here = sizes[place.samples_on_rank(rank)]

    @cache
    def routes() -> PartRoutes:  # O(pieces log pieces), over all ranks
        found = segments(stream.name, Pieces.whole(plan.home, lengths), pieces, lengths)
        before, after = leaving(found.stream, rank).parts(), arriving(found.stream, rank)
        unpadded = Route(before, after.parts(), stream.own)
        route = Route(before, after.parts(found.places_on_rank(pieces, rank), int(here.sum())), stream.own)
        return PartRoutes(route, route.back, unpadded.back)

    def everywhere() -> list[tuple[bool, NDArray[np.int64]]]:
        real = np.minimum(pieces.stop, lengths[pieces.sample]) - pieces.start
        size = np.int64(place.num_ranks)  # shares are in order of samples, then of ranks
        keys = item * size + place.rank_of_sample, pieces.sample * size + pieces.place.rank_of_sample
        share = np.searchsorted(*keys)
        unpadded = np.zeros(len(item), dtype=np.int64)
        np.add.at(unpadded, share, np.maximum(real, 0))
        return [(True, sizes[place.samples]), (False, unpadded[place.samples])]

    rows = Ragged(item[place.samples], place.offsets)
    return replace(stream, rows=rows, receivers=receivers, parts=Parts(lengths, here, routes, everywhere))


def _in_shards(stream: HomeStream, shards: Shards, peers: Peers) -> HomeStream:
    """Return the stream of items to the GPUs of a layout: a GPU has its shard's share of each row, or whole rows.

    Of its shard a GPU gets one window, and gathers the others in its tensor group. Whole rows come home from the first
    GPU of a replica's last pipeline device. Each GPU composes its own part alone: all parts are as many as GPUs.
    """
    rank, mesh = stream.rank, shards.mesh
    gpus = np.moveaxis(mesh.gpus, 1, 0).reshape(mesh.layout.dp, -1)
    ranks = Ragged(gpus.ravel().astype(np.int64), np.arange(len(gpus) + 1) * gpus.shape[1])
    receivers = Receivers(shards.place.rank_of_sample, ranks, mesh.gpus[-1, :, 0, 0])
    replica_of_gpu = mesh.replica_of_gpu(peers.size).astype(np.int64)
    here = shards.share[shards.place.samples_on_rank(int(replica_of_gpu[rank]))]
    held, size = Source(Pieces.whole(stream.source, shards.lengths)), int(here.sum())

    @cache
    def routes() -> PartRoutes:
        windows, home = Windows.of(shards, stream.name, peers), int(shards.lengths[stream.home].sum())

        def part(devices: Sequence[int]) -> Route:
            found = Resharding.on(rank, stream.name, [held], shards, peers.size, devices)
            return resharded(*found, rank, home, size if windows is None else windows.size)

        forth = part(range(mesh.layout.pp))
        back = forth if mesh.layout.pp == 1 else part((-1,))
        if windows is not None:  # on the way back they are taken out of the shard's buffer, which was gathered
            starts = windows.in_buffer(back.receiving.starts)
            back = Route(back.sending, replace(back.receiving, starts=starts, lengths=here), rank)
        return PartRoutes(forth, back.back, back.back, windows)

    def everywhere() -> list[tuple[bool, NDArray[np.int64]]]:
        return [(True, shards.share[stream.rows.take(replica_of_gpu).values])]

    parts = Parts(shards.lengths, here, routes, everywhere)
    return replace(stream, replica_of_rank=replica_of_gpu, receivers=receivers, parts=parts)


def _rows_of(place: Placement) -> Ragged:
    return Ragged(place.samples, place.offsets)
