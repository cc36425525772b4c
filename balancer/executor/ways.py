"""Ways: how the items of each phase come from home, and how a field travels with them.

The home of a sample is the rank that drew it. Every phase has a way: its items from home to the ranks that compute
them. A phase that others feed has one more, ``"llm:own"``, of the pieces that its samples bring from home themselves.
Each field belongs to one way, and has a row for each item. It travels in one of two forms:

- *whole rows*: a row goes to every rank that lists its item, and comes home from one of them;
- *parts of rows*: a rank gets what it holds of each row, and the parts come home put together. A field travels so if
  ranks hold parts of items, and each of its rows is as long as its item.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from balancer.executor.fields import Column, Kind
from balancer.executor.gathered import Gathered
from balancer.executor.layouts import parts_from_home, rows_of_gpus
from balancer.executor.moves import Move, OwnPart, Segments
from balancer.layouts.resharding import Shards
from balancer.layouts.step_plan import LaidOutStepPlan, reshard_on, shards_of
from balancer.plan.dispatch_plan import DispatchPlan
from balancer.plan.pieces import Pieces, segments
from balancer.plan.step_plan import StepPlan, own_name
from balancer.problem.phases import SINGLE_PHASE
from balancer.problem.placement import Placement
from balancer.problem.ragged import Ragged
from balancer.problem.setup import Setup

__all__ = ["Trip", "Way", "way_names", "ways_from_home"]


class Trip(NamedTuple):
    """How one field travels, and what it is like before and after, on one rank."""

    way: "Way"
    before: tuple[Kind, Column]
    after: tuple[Kind, Column]
    lengths: NDArray[np.int64] | None  # int64[n]: of whole rows; None: parts of rows travel
    sizes: NDArray[np.int64] | None = None  # of results: of the rows of all ranks, of which some stay where they are

    def move(self, forth: bool) -> Move:
        """Return this rank's part, from home or back."""
        return self.way.move(forth, self.lengths, self.sizes)

    @property
    def shards(self) -> Shards | None:
        """Of what the parts are windows, where they are."""
        return None if self.lengths is not None or self.way.parts is None else self.way.parts.shards


class Parts(NamedTuple):
    """Which parts of items ranks hold."""

    lengths: NDArray[np.int64]  # int64[n]: elements of the items
    here: NDArray[np.int64]  # int64[k]: elements of this rank's rows, padding included
    # Functions, as these take time, and most steps cut no field of most ways.
    forth: Callable[[], Segments | OwnPart]
    back: Callable[[], Segments | OwnPart]
    shards: Shards | None = None  # with layouts: forth are windows of these


@dataclass(frozen=True, eq=False)
class Way:
    """The items of a phase on their way from home, as one rank sends and gets them."""

    name: str  # of the phase, or "llm:own" for the pieces that the last phase takes from home
    rank: int
    home: Placement  # where the items are before
    samples: NDArray[np.int64] | None  # int64[n]: the sample of each item; None: the items are the samples
    rows: Ragged  # the items of each rank, in order; or, where ranks have segments of items, these
    from_rank: NDArray[Any] | None  # int[n]: where an item's whole row comes home from; None: no rows go whole
    parts: Parts | None = None  # None: ranks hold whole items
    _moves: dict[Any, Move] = field(default_factory=dict, repr=False)

    @property
    def here(self) -> NDArray[np.int64]:
        """The items of this rank after, in order."""
        return self.rows.row(self.rank)

    def sizes_here(self, lengths: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the elements of each row of this rank after, given the items' lengths."""
        return lengths[self.here] if self.parts is None else self.parts.here

    def move(
        self, forth: bool, lengths: NDArray[np.int64] | None, sizes: NDArray[np.int64] | None = None
    ) -> Move:  # fmt: skip
        """Return this rank's part: of whole rows of these lengths, or of parts."""
        # Fields of the same lengths, such as token ids and labels, travel alike.
        key = forth, *(None if each is None else each.tobytes() for each in (lengths, sizes))
        if key not in self._moves:
            self._moves[key] = self._segments(forth, lengths, sizes).on(self.rank)
        return self._moves[key]

    def _segments(
        self, forth: bool, lengths: NDArray[np.int64] | None, sizes: NDArray[np.int64] | None
    ) -> Segments | OwnPart:
        if lengths is None:
            assert self.parts is not None
            return self.parts.forth() if forth else self.parts.back()
        found = Segments.of_rows(self.home, self.rows, lengths, sizes)
        if forth:
            return found
        # Several ranks may have a row: that of one of them comes home.
        return found.home(None if self.from_rank is None else self.from_rank[self.rows.values] == found.target)

    # Fields.

    def trip(self, name: str, gathered: Gathered) -> Trip:
        """Return how a field travels; ValueError if its rows do not fit the items."""
        kind, rows = gathered.kinds[name], gathered.rows[name]
        before, after = (kind, gathered.rows_at(name, self.rank)), kind
        if self.samples is not None:
            self._check_items(name, gathered, self.samples)
            after = kind._replace(form="list") if kind.form == "lists" else kind
            rows = rows.values if isinstance(rows, Ragged) else rows[self.samples]
        if self.parts is not None and self._is_cut(name, gathered, rows, self.parts):
            return Trip(self, before, (after, self.parts.here), None)
        if isinstance(rows, Ragged):  # several rows a sample, which go with it
            return Trip(self, before, (after, rows.take(self.here)), rows.sums())
        return Trip(self, before, (after, rows[self.here]), rows)

    def are_parts(self, rows: Column) -> bool:
        """Whether results on this rank are as long as what it has of each item."""
        return self.parts is not None and np.array_equal(rows, self.parts.here)  # type: ignore[arg-type]

    def trip_of_results(self, name: str, gathered: Gathered, are_parts: bool) -> Trip:
        """Return how results travel: as the parts of items that they are on all ranks, or whole."""
        kind, sizes = gathered.kinds[name], np.asarray(gathered.rows[name])
        at_home, after = self.home.samples_on_rank(self.rank), (kind, gathered.rows_at(name, self.rank))
        if self.parts is not None and are_parts and (self.from_rank is None or kind.by_token):
            return Trip(self, (kind, self.parts.lengths[at_home]), after, None)
        if self.from_rank is None:
            raise ValueError(f"results of {self.name!r} must be as long as the rows that they are of")
        # Several ranks may have a result of one item, and of unequal lengths: one counts.
        counts = self.from_rank[self.rows.values] == self.rows.row_of_value
        of_item = np.zeros(len(self.home.samples), dtype=np.int64)
        of_item[self.rows.values[counts]] = sizes[counts]
        return Trip(self, (kind, of_item[at_home]), after, of_item, sizes)

    def _is_cut(self, name: str, gathered: Gathered, rows: Any, parts: Parts) -> bool:
        """Return whether a field travels in parts; ValueError if it must, and cannot."""
        fits = not isinstance(rows, Ragged) and np.array_equal(rows, parts.lengths)
        by_token = gathered.kinds[name].by_token
        if self.from_rank is not None or self.samples is None:
            return fits and by_token
        if fits and (gathered.kinds[name].form != "object" or not len(rows)):
            return True
        item = int(np.argmax(rows != parts.lengths))
        sample = int(self.samples[item])
        raise ValueError(
            f"field {name!r} must be of tensors, and have an element for each that {self.name!r} has, as ranks share "
            f"them; it has {rows[item]} of an item of sample {sample} ({gathered.where(sample)}), {self.name!r} has "
            f"{parts.lengths[item]}"
        )

    def _check_items(self, name: str, gathered: Gathered, sample_of_item: NDArray[np.int64]) -> None:
        rows: Any = gathered.rows[name]
        items, listed = np.bincount(sample_of_item, minlength=len(rows)), isinstance(rows, Ragged)
        odd = items != rows.counts if listed else (items != 1) & ((items > 1) | (rows > 0))
        if odd.any():
            sample = int(np.argmax(odd))
            has = f"{rows.counts[sample]} items" if listed else f"one row of {rows[sample]} elements"
            raise ValueError(
                f"field {name!r} has {has} of sample {sample} ({gathered.where(sample)}), {self.name!r} has "
                f"{items[sample]} items of it"
            )


# Ways of a plan.


def way_names(setup: Setup) -> list[str]:
    """Return the names of the ways from home; the last is that of the samples to the last phase."""
    *encoders, last = (phase.name for phase in setup.phases)
    return [*encoders, *([own_name(last)] if last != SINGLE_PHASE else []), last]


def ways_from_home(step: StepPlan, rank: int) -> Mapping[str, Way]:
    """Return the ways from home by name, as one rank sends and gets them."""
    return {name: _way(step, name, rank) for name in way_names(step.setup)}


def _way(step: StepPlan, name: str, rank: int) -> Way:
    is_own, laid_out, phase = name not in step.phases, isinstance(step, LaidOutStepPlan), name.removesuffix(":own")
    items, plan = step.phases[phase].items, step[phase]
    samples = None if items.is_last else items.sample_of_item
    home, target = plan.home, plan.target
    if is_own:
        samples = items.own.row_of_value
    if laid_out or is_own:  # a plan's home is one of replicas then, or of samples
        home = step.home if samples is None else step.home.lifted(samples)
    if is_own and not laid_out:
        target = step.streams[name].target
    whole = Way(name, rank, home, samples, _rows_of(target), target.rank_of_sample)
    if is_own and (laid_out or plan.cut.shares):
        return _in_segments(whole, step)
    if laid_out:
        return _in_shards(whole, shards_of(step, name), step.num_ranks)
    return _in_shares(whole, plan) if plan.cut.shares else whole


def _in_segments(way: Way, step: StepPlan) -> Way:
    """Return the way of what samples bring in themselves, where ranks share samples: ranks get segments of items.

    With layouts, a GPU gets those in its window of its shard.
    """
    laid_out, name, rank = isinstance(step, LaidOutStepPlan), way.name, way.rank
    if laid_out:
        # Each GPU composes its own part alone: all parts are as many as GPUs.
        own = reshard_on(step, rank, name)
        cut = own[1].stream
        forth: Segments | OwnPart = OwnPart(*(Segments.of_stream(each.stream) for each in own))
    else:
        cut = step.streams[name]
        forth = Segments.of_stream(cut)
    here = cut.lengths[cut.target.samples_on_rank(rank)]
    lengths = step.phases[name.removesuffix(":own")].items.own.values
    parts = Parts(lengths, here, lambda: forth, lambda: forth.home())
    return replace(way, rows=_rows_of(cut.target), from_rank=None, parts=parts)


def _in_shares(way: Way, plan: DispatchPlan) -> Way:
    """Return the way of items that ranks share: a rank gets its share of each row, or whole rows."""
    lengths, pieces, (item, place, sizes) = plan.lengths, plan.pieces, plan.shares

    @cache
    def forth() -> Segments:  # O(pieces log pieces), over all ranks
        there = Pieces.whole(plan.home, lengths)
        return Segments.of_pieces(segments(way.name, there, pieces, lengths), there, pieces)

    here = sizes[place.samples_on_rank(way.rank)]
    parts = Parts(lengths, here, forth, lambda: forth().home())
    return replace(way, rows=Ragged(item[place.samples], place.offsets), parts=parts)


def _in_shards(way: Way, shards: Shards, num_gpus: int) -> Way:
    """Return the way of items to the GPUs of a layout: a GPU has its shard's share of each row, or whole rows.

    Of its shard a GPU gets one window, and gathers the others in its tensor group. What comes home is that of a
    replica's last pipeline device, of whole rows that of its first GPU.
    """
    mesh, rows = shards.mesh, rows_of_gpus(shards, num_gpus)

    @cache
    def to(devices: tuple[int, ...]) -> OwnPart:
        return parts_from_home(way.name, way.home, shards, way.rank, num_gpus, devices)

    every, last = tuple(range(mesh.layout.pp)), (mesh.layout.pp - 1,)
    here = shards.share[rows.row(way.rank)]
    parts = Parts(shards.lengths, here, lambda: to(every), lambda: to(last).home(), shards)
    return replace(way, rows=rows, from_rank=mesh.gpus[-1, :, 0, 0][shards.place.rank_of_sample], parts=parts)


def _rows_of(place: Placement) -> Ragged:
    return Ragged(place.samples, place.offsets)
