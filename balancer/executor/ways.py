"""Ways: the streams of a plan by which the fields of a mini-batch travel, and their rows' lengths at both ends."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from balancer.executor.fields import Field
from balancer.executor.gathering import Gathered
from balancer.executor.recipe import Plan
from balancer.executor.route import Route
from balancer.placement import Placement
from balancer.plan import SINGLE_PHASE, DispatchPlan
from balancer.step_plan import own_name
from balancer.stream import fused

__all__ = ["Way", "inputs_route", "ways_of"]


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

    def route(self, rank: int) -> Route:
        """Return one rank's route, with the lengths still to be set."""
        return Route.of(self.source, self.target, np.zeros(len(self.source.samples), dtype=np.int64), rank)

    def row_lengths(self, field: str, gathered: Gathered) -> NDArray[np.int64]:
        """Return how many elements of a field each item of the stream has; ValueError if they do not fit together."""
        lengths, counts = gathered.lengths[field], gathered.counts[field]
        if self.sample_of_item is None:
            return lengths if counts is None else _row_sums(lengths, counts)
        items = np.bincount(self.sample_of_item, minlength=self.num_samples)
        if counts is not None:
            if not np.array_equal(items, counts):
                sample = int(np.argmax(items != counts))
                raise ValueError(
                    f"field {field!r} has {counts[sample]} items of sample {sample}, {self.name!r} has {items[sample]}"
                )
            return lengths
        stray = (items != 1) & ((items > 1) | (lengths > 0))
        if stray.any():
            sample = int(np.argmax(stray))
            raise ValueError(
                f"field {field!r} has one row of {lengths[sample]} elements of sample {sample}, {self.name!r} has "
                f"{items[sample]} items of it"
            )
        return lengths[self.sample_of_item]

    def dispatched(self, home: Field, field: str, gathered: Gathered, rank: int) -> Field:
        """Return what a field is on a rank after dispatch, without its values."""
        rows = self.row_lengths(field, gathered)
        here = self.target.samples_on_rank(rank)
        spec = gathered.specs[field]
        counts = gathered.counts[field]
        if counts is None or self.sample_of_item is not None:
            flat = replace(spec, form="list") if spec.form == "lists" else spec
            return Field(flat, None, rows[here])
        starts = np.cumsum(counts) - counts
        items = [np.arange(start, start + count) for start, count in zip(starts[here], counts[here], strict=True)]
        index = np.concatenate([np.empty(0, dtype=np.int64), *items])
        return Field(spec, None, gathered.lengths[field][index], counts[here])


def _row_sums(values: NDArray[np.int64], counts: NDArray[np.int64]) -> NDArray[np.int64]:
    running = np.concatenate(([0], np.cumsum(values)))
    ends = np.cumsum(counts)
    sums: NDArray[np.int64] = running[ends] - running[ends - counts]
    return sums


def ways_of(plan: Plan) -> Mapping[str, Way]:
    """Return the ways of a plan by name; the last is that of the samples to the last phase."""
    if isinstance(plan, DispatchPlan):
        return {SINGLE_PHASE: Way(SINGLE_PHASE, plan.home, plan.target, None, plan.num_samples)}
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


def inputs_route(plan: Plan, phase: str, rank: int) -> tuple[Route, NDArray[np.int64], dict[str, int]]:
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
    if isinstance(plan, DispatchPlan) or phase not in plan.parts:
        fed = [] if isinstance(plan, DispatchPlan) else list(plan.parts)
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
    lengths = _row_sums(whole.lengths, counts)[taker.samples_on_rank(rank)]
    return Route.of(whole.source, whole.target, whole.lengths, rank), lengths, held
