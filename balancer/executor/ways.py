"""Ways: the streams of a plan by which the fields of a mini-batch travel, and their rows' lengths at both ends."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from balancer.executor.fields import Outline
from balancer.executor.gathering import Gathered
from balancer.executor.route import Route, expanded, grouped_sums
from balancer.executor.wire import Values
from balancer.plan.step_plan import StepPlan, own_name
from balancer.plan.stream import fused
from balancer.problem.placement import Placement

__all__ = ["Leg", "Way", "check_ways", "inputs_route", "ways_of"]


@dataclass(frozen=True, slots=True, eq=False)
class Way:
    """One stream from home.

    Attributes
    ----------
    name : str
        Of the phase that it leads to, or ``"llm:own"`` for the pieces that a fed phase takes from home.
    source, target : Placement
        Of its items.
    sample_of_item : int64[k] or None
        None: its items are the samples.
    num_samples : int
    """

    name: str
    source: Placement
    target: Placement
    sample_of_item: NDArray[np.int64] | None
    num_samples: int

    def route(self, rank: int, listened: bool) -> Route:
        """Return one rank's route, with the lengths still to be set."""
        return Route.of(self.source, self.target, np.zeros(len(self.source.samples), dtype=np.int64), rank, listened)

    def leg(self, field: str, gathered: Gathered, rank: int, route: Route) -> "Leg":
        """Return how a field travels on one rank, whose route this is; ValueError if rows and items do not fit."""
        lengths, counts, spec = gathered.lengths[field], gathered.counts[field], gathered.specs[field]
        home, here = self.source.samples_on_rank(rank), self.target.samples_on_rank(rank)
        if self.sample_of_item is None and counts is not None:
            before, after = expanded(home, counts), expanded(here, counts)
            leaving = route.leaving.of_items(counts[home], lengths[before])
            coming = route.coming.of_items(counts[here], lengths[after])
            return Leg(self.name, Route(leaving, coming, route.own), Outline(spec, lengths[after], counts[here]), None)
        chosen = None
        if self.sample_of_item is not None:
            self._check_items(field, gathered, self.sample_of_item)
            if counts is None:
                lengths = lengths[self.sample_of_item]
                chosen = self.sample_of_item[home] - gathered.home.samples_on_rank(rank)[:1].sum()
            spec = replace(spec, form="list") if spec.form == "lists" else spec
        return Leg(self.name, route.with_lengths(lengths[home], lengths[here]), Outline(spec, lengths[here]), chosen)

    def _check_items(self, field: str, gathered: Gathered, sample_of_item: NDArray[np.int64]) -> None:
        items = np.bincount(sample_of_item, minlength=self.num_samples)
        lengths, counts = gathered.lengths[field], gathered.counts[field]
        odd = items != counts if counts is not None else (items != 1) & ((items > 1) | (lengths > 0))
        if odd.any():
            sample = int(np.argmax(odd))
            has = f"{counts[sample]} items" if counts is not None else f"one row of {lengths[sample]} elements"
            raise ValueError(
                f"field {field!r} has {has} of sample {sample} ({gathered.where(sample)}), {self.name!r} has "
                f"{items[sample]} items of it"
            )


@dataclass(frozen=True, slots=True, eq=False)
class Leg:
    """How one field travels on one rank.

    Attributes
    ----------
    way : str
    route : Route
        Of the field's rows.
    here : Outline
        The rows after dispatch.
    chosen : int64[k] or None
        Which of the rank's rows at home travel, by their place there; None: all do. Others have no element.
    """

    way: str
    route: Route
    here: Outline
    chosen: NDArray[np.int64] | None

    def leaving(self, home: Values) -> Values:
        """Return the rows that travel."""
        if self.chosen is None or isinstance(home, Tensor):
            return home
        return [home[row] for row in self.chosen.tolist()]

    def come_home(self, rows: Values, outline: Outline, device: torch.device) -> Values:
        """Put rows that travelled among those that did not."""
        if self.chosen is None or isinstance(rows, Tensor):
            return rows
        empty = torch.empty((0, *outline.spec.trailing), dtype=outline.spec.torch_dtype, device=device)
        whole = [empty] * len(outline.lengths)
        for place, row in zip(self.chosen.tolist(), rows, strict=True):
            whole[place] = row
        return whole


def ways_of(plan: StepPlan) -> Mapping[str, Way]:
    """Return the ways of a plan by name; the last is that of the samples to the last phase."""
    ways = {}
    for name, phase in plan.phases.items():
        if name in plan.parts:
            stream, pieces = plan.streams[own_name(name)], phase.items.own.row_of_value
            ways[own_name(name)] = Way(own_name(name), stream.source, stream.target, pieces, plan.num_samples)
            ways[name] = Way(name, plan.home, phase.plan.target, None, plan.num_samples)
        else:
            stream = plan.streams[f"{name}:in"]
            ways[name] = Way(name, stream.source, stream.target, phase.items.sample_of_item, plan.num_samples)
    return ways


def check_ways(way_of_field: Mapping[str, str], ways: Mapping[str, Way]) -> None:
    """Raise ValueError if a field is to take a way that is not."""
    for field, name in way_of_field.items():
        if name not in ways:
            raise ValueError(f"fields[{field!r}] must be one of {', '.join(ways)}, got {name!r}")


def inputs_route(plan: StepPlan, phase: str, rank: int) -> tuple[Route, NDArray[np.int64], dict[str, int]]:
    """Return the route of all that a fed phase takes, where what it takes from home is with its samples already.

    Returns
    -------
    Route
        Of the rank's outputs, stream after stream, then of its own pieces; to its samples, part by part.
    int64[n]
        Elements of each of the rank's samples.
    dict of str to int
        How many elements of each stream the rank puts in.
    """
    if phase not in plan.parts or not plan.phases[phase].items.fed_by:
        fed = [name for name, each in plan.phases.items() if each.items.fed_by]
        raise KeyError(f"phase {phase!r} is fed by none; phases that are: {', '.join(fed) or 'none'}")
    parts, taker = plan.parts[phase], plan[phase].target
    streams = {name: plan.streams[name] for name in parts.streams}
    own = streams[own_name(phase)]
    streams[own_name(phase)] = replace(own, source=own.target)
    first = np.concatenate(([0], np.cumsum([len(stream.lengths) for stream in streams.values()])))
    order = first[parts.stream_of_part] + parts.item_of_part
    whole = fused(f"{phase}:inputs", list(streams.values()), order, taker.lifted(parts.sample_of_part))
    held = {name: int(stream.lengths[stream.source.samples_on_rank(rank)].sum()) for name, stream in streams.items()}
    counts = np.bincount(parts.sample_of_part, minlength=plan.num_samples)
    lengths = grouped_sums(whole.lengths, counts)[taker.samples_on_rank(rank)]
    return Route.of(whole.source, whole.target, whole.lengths, rank), lengths, held
