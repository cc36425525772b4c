"""The streams of a plan that start at home: by them the fields of a mini-batch travel, each on a route of its own."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from balancer.executor.fields import Field, Spec
from balancer.executor.gathering import Gathered
from balancer.executor.payload import Payload, Values
from balancer.executor.route import Route
from balancer.plan.step_plan import StepPlan, own_name
from balancer.problem.phases import SINGLE_PHASE, feeding
from balancer.problem.placement import Placement
from balancer.problem.ragged import Ragged
from balancer.problem.setup import Setup

__all__ = ["FieldRoute", "HomeStream", "home_streams", "stream_names"]


@dataclass(frozen=True, slots=True, eq=False)
class FieldRoute:
    """How one field travels between home and the phase that takes it, on one rank."""

    route: Route  # of the field's rows
    home: Field  # what the field is like before dispatch
    here: Field  # and after
    chosen: NDArray[np.int64] | None = None  # which rows at home travel, by their place; None: all; others are empty

    def payload(self, values: Values | None, forth: bool, device: torch.device) -> Payload:
        """Return the rank's rows as they travel, forth or back; None on a rank that only receives."""
        spec, route = self.home.spec, self.route if forth else self.route.back
        if forth and values is not None and self.chosen is not None and not isinstance(values, Tensor):
            values = [values[row] for row in self.chosen.tolist()]
        by_row = spec.by_row and spec.device == device.type  # else it moves to another device, in one piece
        return Payload(route, spec.torch_dtype, spec.trailing, by_row, values)

    def arrived(self, values: Values, forth: bool, device: torch.device) -> Field:
        """Return the field of rows that have travelled; back home they are put among those that did not."""
        field = self.here if forth else self.home
        if not forth and self.chosen is not None and not isinstance(values, Tensor):
            empty = torch.empty((0, *field.spec.trailing), dtype=field.spec.torch_dtype, device=device)
            travelled, values = values, [empty] * len(field.lengths)
            for place, row in zip(self.chosen.tolist(), travelled, strict=True):
                values[place] = row
        if isinstance(values, Tensor) and field.spec.device == "cpu":
            values = values.cpu()
        return Field(field.spec, field.rows, values)


@dataclass(frozen=True, eq=False)
class HomeStream:
    """Items that travel from home to a phase, as one rank sends and receives them."""

    name: str  # of the phase, or "llm:own" for the pieces that a fed phase takes from home
    source: Placement
    target: Placement
    sample_of_item: NDArray[np.int64] | None  # None: the items are the samples
    rank: int
    sends_own: bool  # whether the rank sends what stays on it too, for its replica peers

    @cached_property
    def home(self) -> NDArray[np.int64]:
        """The items of this rank before, in order."""
        return self.source.samples_on_rank(self.rank)

    @cached_property
    def here(self) -> NDArray[np.int64]:
        """The items of this rank after, in order."""
        return self.target.samples_on_rank(self.rank)

    def sizes_here(self, lengths: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the elements of each row of this rank after, given the items' lengths."""
        return lengths[self.here]

    @cached_property
    def _route(self) -> Route:
        """The route of the items, with the lengths still to be set."""
        none = np.zeros(len(self.source.samples), dtype=np.int64)
        return Route.of(self.source, self.target, none, self.rank, self.sends_own)

    def field_route(self, name: str, gathered: Gathered) -> FieldRoute:
        """Return how a field travels; ValueError if rows and items do not fit."""
        rows: Any = gathered.rows[name]
        home = gathered.field(name, self.rank)
        if self.sample_of_item is not None:
            self._check_items(name, gathered, self.sample_of_item)
            if isinstance(rows, Ragged):
                return self._of_lengths(rows.values, home)
            chosen = self.sample_of_item[self.home] - gathered.home.offsets[self.rank]
            return self._of_lengths(rows[self.sample_of_item], home, chosen)
        if isinstance(home.rows, Ragged):
            after = rows.take(self.here)
            sending, receiving = self._route.sending.of_items(home.rows), self._route.receiving.of_items(after)
            return FieldRoute(Route(sending, receiving, self._route.own), home, replace(home, rows=after))
        return self._of_lengths(rows, home)

    def result_route(self, spec: Spec, lengths: Any) -> FieldRoute:
        """Return how results travel, given how long they are, int64[k], rank after rank."""
        of_item = np.empty(len(lengths), dtype=np.int64)
        of_item[self.target.samples] = lengths
        return self._of_lengths(of_item, Field(spec, of_item[self.home]))

    def _of_lengths(self, of_item: NDArray[np.int64], home: Field, chosen: Any = None) -> FieldRoute:
        here = Field(home.spec.of_items, of_item[self.here])
        return FieldRoute(self._route.with_lengths(of_item[self.home], here.lengths), home, here, chosen)

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


def stream_names(setup: Setup) -> list[str]:
    """Return the names of the streams from home; the last is that of the samples to the last phase."""
    feeds, fed_by = feeding(setup.phases)
    takes_pieces = {phase for phase in feeds if (fed_by[phase] or feeds[phase] is None) and phase != SINGLE_PHASE}
    return [name for phase in feeds for name in ([own_name(phase)] if phase in takes_pieces else []) + [phase]]


def home_streams(plan: StepPlan, rank: int, sends_own: bool) -> Mapping[str, HomeStream]:
    """Return the streams from home by name, as one rank sends and receives them."""
    streams = {}
    for name in stream_names(plan.setup):
        is_own, items = name not in plan.phases, plan.phases[name.removesuffix(":own")].items
        source, target, samples = plan.home, plan[items.phase.name].target, None  # whole samples
        if is_own or (items.feeds is not None and not items.fed_by):
            stream = plan.streams[name if is_own else f"{name}:in"]
            source, target = stream.source, stream.target
            samples = items.own.row_of_value if is_own else items.sample_of_item
        streams[name] = HomeStream(name, source, target, samples, rank, sends_own)
    return streams
