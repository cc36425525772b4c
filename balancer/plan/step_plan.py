"""The plan of one step of a multimodal model: a placement for every phase, and the streams between them. Pure data."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from balancer.plan.dispatch_plan import DispatchPlan
from balancer.plan.only_phase import as_only_phase
from balancer.plan.pieces import Pieces, Segments, running_stops, runs, segments
from balancer.plan.stream import Stream, Traffic, fused
from balancer.problem.batch import GlobalBatch
from balancer.problem.phases import SINGLE_PHASE, PhaseItems
from balancer.problem.placement import Placement
from balancer.problem.ragged import offsets_of
from balancer.problem.setup import Setup
from balancer.problem.topology import Topology
from solvers.errors import Named, UsageError
from solvers.groups import members_by_group


class Parts(NamedTuple):
    """The parts of which the last phase's samples consist, sample after sample, in the order in which they are read."""

    streams: tuple[str, ...]  # the streams that bring them
    stream_of_part: NDArray[np.int32]  # int32[k]: which of `streams` brings each part
    item_of_part: NDArray[np.int64]  # int64[k]: which of that stream's items it is
    sample_of_part: NDArray[np.int64]  # int64[k]: ascending


@dataclass(frozen=True, slots=True, eq=False)
class PhasePlan:
    """One phase of a step."""

    items: PhaseItems  # what it computes; ``items.sample_of_item[i]`` is the sample that item i is of
    plan: DispatchPlan  # its items ("samples" there) on ranks, from where their samples lie before the step

    @property
    def idle_ranks(self) -> NDArray[np.int32]:
        """Ranks that get no item in the whole step: int32[], ascending. ``plan.empty_ranks(slot)`` is of a slot."""
        counts = np.diff(self.plan.shares.place.offsets)
        return np.flatnonzero(counts == 0).astype(np.int32)


@dataclass(frozen=True, eq=False, repr=False)
class StepPlan:
    """Where every phase of a step computes which items, and what has to travel for that.

    Attributes
    ----------
    setup : Setup
        Ranks, phases and how they were planned.
    batch : GlobalBatch
        The samples with their lengths in the last phase, and where they lie before the step.
    phases : dict of str to PhasePlan
        In the order in which they compute.
    strategy : str
        The name of the strategy that made it; see :mod:`balancer.strategies`.
    runtime_s : float
        Seconds that planning took; not part of the digest.
    """

    setup: Setup
    batch: GlobalBatch
    phases: Mapping[str, PhasePlan]
    strategy: str = "orchestrated"
    runtime_s: float = field(default=0.0, compare=False)

    def __post_init__(self) -> None:
        if self.last.cut.shares and not self.is_single:
            self.check_parts("{sequence_groups}")

    @cached_property
    def streams(self) -> Mapping[str, Stream]:
        """What travels, by name: ``"vision:in"`` raw inputs from home to the encoder, ``"vision:out"`` its outputs
        straight to the phase that takes them, ``"llm:own"`` what that phase takes from home itself.
        """  # noqa: D205 (one sentence)
        streams = dict(self._whole)
        for phase, plan in self.phases.items():
            if not plan.plan.cut.shares:
                continue
            if not plan.items.is_last:
                streams[f"{phase}:in"] = self.taken_in(phase).stream
            for name in self.parts[phase].streams if phase in self.parts else ():
                streams[name] = self.cut(name).stream
        return streams

    def traffic_of(self, stream: str) -> Traffic:
        """Return what a stream moves; KeyError if there is none of this name."""
        return self.streams[stream].traffic(self.topology)

    def least_inter_node(self, stream: str) -> int | None:
        """Return how many bytes of a stream cross nodes at least, with items on these ranks; None: not known."""
        return None

    @property
    def stream_names(self) -> tuple[str, ...]:
        """The names of :attr:`streams`, known before these are made."""
        return tuple(self._whole)

    @cached_property
    def _whole(self) -> dict[str, Stream]:
        """The streams of :attr:`streams`, to the first ranks of those that share samples."""
        streams: dict[str, Stream] = {}
        for name, phase in self.phases.items():
            items, target = phase.items, phase.plan.target
            if not items.is_last:
                volumes = items.lengths * items.phase.bytes_in
                streams[f"{name}:in"] = Stream(f"{name}:in", phase.plan.home, target, items.lengths, volumes)
                held, samples = self._put_out.get(name), items.sample_of_item
                lengths, source = (items.outputs, target) if held is None else (held.lengths, held.place)
                lifted = self.last.target.lifted(samples if held is None else samples[held.sample])
                volumes = lengths * items.phase.bytes_out
                streams[f"{name}:out"] = Stream(f"{name}:out", source, lifted, lengths, volumes)
            else:
                own, sample = own_name(name), items.own.row_of_value
                volumes = items.own.values * items.phase.bytes_in
                streams[own] = Stream(own, self.home.lifted(sample), target.lifted(sample), items.own.values, volumes)
        return streams

    @cached_property
    def _put_out(self) -> dict[str, Pieces]:
        """For each encoder whose items ranks share: the pieces of outputs that its stream has instead of items."""
        return {
            name: phase.plan.put_out(phase.items.outputs)
            for name, phase in self.phases.items()
            if phase.plan.cut.shares and not phase.items.is_last
        }

    def taken_in(self, phase: str) -> Segments:
        """Cut the items of an encoder into what each of the ranks that share them gets."""
        items, plan = self.phases[phase].items, self[phase]
        return segments(
            f"{phase}:in", Pieces.whole(plan.home, plan.lengths), plan.pieces, plan.lengths, items.phase.bytes_in
        )

    def cut(self, name: str) -> Segments:
        """Cut a stream that brings parts to the last phase into what each of the ranks that share its samples gets."""
        stream, plan, (sample, start) = self._whole[name], self.last, self.within(name)
        held = Pieces(sample, start, start + stream.lengths, stream.source)
        return segments(name, held, plan.pieces, plan.lengths, self.bytes_of(name))

    def within(self, name: str) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return of which sample each item that a stream brings is a part, and where in the sample that begins."""
        (parts,), (start, _) = self.parts.values(), self._ends
        mine = np.flatnonzero(parts.stream_of_part == parts.streams.index(name))
        at = np.empty_like(mine)
        # Parts are in the order in which they are read; items of a stream are in their own.
        at[parts.item_of_part[mine]] = mine
        return parts.sample_of_part[at], start[at]

    @cached_property
    def _ends(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Where parts begin and end in their samples: int64[k] both."""
        (parts,) = self.parts.values()
        return running_stops(parts.sample_of_part, self._sizes_of(parts))

    def bytes_of(self, name: str) -> int:
        """Return the bytes of an element of a stream."""
        phase, _, way = name.rpartition(":")
        given = self.phases[phase].items.phase
        return given.bytes_out if way == "out" else given.bytes_in

    def check_parts(self, what: str) -> None:
        """Raise ValueError unless the parts of each sample make up its length: ranks share what they make up."""
        (parts,), lengths = self.parts.values(), self.last.lengths
        sums = np.zeros_like(lengths)
        sums[parts.sample_of_part] = self._ends[1]  # of each sample, that of its last part stays
        if (odd := sums != lengths).any():
            sample = int(np.argmax(odd))
            raise UsageError(
                f"with {what} a sample must be as long as its parts: {{sample}} has length "
                f"{lengths[sample]}, its parts {sums[sample]}",
                "count in its length what it is fed, and say how much that is: {outputs}, {own}",
                sample=Named("sample", sample),
            )

    def _sizes_of(self, parts: Parts) -> NDArray[np.int64]:
        """Return the elements of each part: int64[k]."""
        each = []
        for name in parts.streams:
            phase, _, way = name.rpartition(":")
            items, held = self.phases[phase].items, self._put_out.get(phase)
            put_out = items.outputs if held is None else held.lengths
            each.append(put_out if way == "out" else items.own.values)
        first = offsets_of([len(sizes) for sizes in each])
        found: NDArray[np.int64] = np.concatenate(each)[first[parts.stream_of_part] + parts.item_of_part]
        return found

    @cached_property
    def parts(self) -> Mapping[str, Parts]:
        """The parts of the last phase's samples, by its name."""
        *encoders, last = (phase.items for phase in self.phases.values())
        return {last.phase.name: self._in_pieces(parts_of(last, encoders, self.num_samples))}

    def _in_pieces(self, parts: Parts) -> Parts:
        """Return the parts with those in pieces that ranks share."""
        feeders = [name.rpartition(":")[0] for name in parts.streams[:-1]]
        held = {s: pieces for s, name in enumerate(feeders) if (pieces := self._put_out.get(name)) is not None}
        if not held:
            return parts
        first, counts = parts.item_of_part.copy(), np.ones(len(parts.item_of_part), dtype=np.int64)
        for s, pieces in held.items():
            mine = parts.stream_of_part == s
            # An item that ranks share is one part for each of its pieces: they arrive from different ranks.
            begins = np.searchsorted(pieces.sample, np.arange(len(self.phases[feeders[s]].items.outputs) + 1))
            counts[mine], first[mine] = np.diff(begins)[first[mine]], begins[first[mine]]
        part, number = runs(counts)
        return Parts(parts.streams, parts.stream_of_part[part], first[part] + number, parts.sample_of_part[part])

    @property
    def topology(self) -> Topology:
        """Ranks and nodes."""
        return self.setup.topology

    @property
    def home(self) -> Placement:
        """Where the samples lie before the step."""
        return self.batch.home

    @property
    def mode(self) -> str:
        """How encoders were balanced: a name in :data:`balancer.problem.settings.MODES`."""
        return self.setup.settings.mode

    @property
    def is_single(self) -> bool:
        """Whether it has one phase that nobody named: that of whole samples."""
        return tuple(self.phases) == (SINGLE_PHASE,)

    @property
    def encoders_first(self) -> bool:
        """Whether all phases but the last compute their items before the first micro-batch."""
        return self.last.cut.encoders == "step"

    @property
    def encoders_in_pipeline(self) -> bool:
        """Whether all phases but the last are stages of its pipelines."""
        return self.last.cut.encoders_in_stages

    def __getitem__(self, phase: str) -> DispatchPlan:
        """Return the dispatch plan of a phase."""
        if phase not in self.phases:
            raise KeyError(f"no phase {phase!r}; phases are {', '.join(self.phases)}")
        return self.phases[phase].plan

    @property
    def last(self) -> DispatchPlan:
        """The dispatch plan of the last phase."""
        return list(self.phases.values())[-1].plan

    @property
    def num_ranks(self) -> int:
        """Ranks, empty ones included."""
        return self.topology.num_ranks

    @property
    def num_samples(self) -> int:
        """Samples in the step."""
        return len(self.batch.lengths)

    @property
    def num_slots(self) -> int:
        """Micro-batches a step, the same in every phase but those of encoders whose items ranks share."""
        return self.last.num_slots

    def inputs_of(self, phase: str) -> Stream:
        """Return all that the last phase takes as one stream, so that one all-to-all brings everything.

        Each rank's payload is what it holds of each stream, in the order of ``parts[phase].streams``. After
        ``receive_order`` the parts are in the order in which the phase reads them, sample by sample.

        Raises
        ------
        KeyError
            Any other phase.
        """
        self.check_fed(phase)
        parts = self.parts[phase]
        streams = [self._whole[name] for name in parts.streams]
        plan, stream = self[phase], self.in_reading_order(phase, streams)
        if not plan.cut.shares:
            return stream
        held = Pieces.parts(stream.source, parts.sample_of_part, stream.lengths)
        return segments(stream.name, held, plan.pieces, plan.lengths).stream

    def check_fed(self, phase: str) -> None:
        """Raise KeyError unless it is the last phase, which encoders feed."""
        if phase not in self.parts:
            raise KeyError(f"phase {phase!r} is fed by none; encoders feed the last, {list(self.phases)[-1]!r}")

    def in_reading_order(self, phase: str, streams: Sequence[Stream]) -> Stream:
        """Make one stream of those that bring the last phase whole parts, in the order in which it reads them."""
        parts = self.parts[phase]
        first = offsets_of([len(stream.lengths) for stream in streams])
        order = first[parts.stream_of_part] + parts.item_of_part
        return fused(f"{phase}:inputs", streams, order, self[phase].target.lifted(parts.sample_of_part))

    def to_pandas(self) -> Any:
        """Return a row a sample as a pandas DataFrame, as plan files have them; needs the extra ``pandas``."""
        from balancer.plan.rows import as_table, data_frame  # those who plan at run time need no files

        return data_frame(lambda: as_table(self))

    def _repr_html_(self) -> str:
        from balancer.plan.shown import Ratios, as_html

        before = list(self.phases)[:-1]
        phases = {name: Ratios.from_plan(phase.plan) for name, phase in self.phases.items()}
        if self.encoders_in_pipeline:  # their bound is the whole pipeline's
            phases |= {name: phases[name]._replace(best=None) for name in before}
        what = f"{self.num_samples:,} samples on {self.num_ranks:,} ranks"
        return as_html("Plan of a step", what, phases)

    def digest(self) -> str:
        """SHA-256, in hex, over the digests of the phases, in order: ranks whose digests agree hold the same plan.

        Where the only phase is ``"all"``, its digest.
        """
        if self.is_single:
            return self[SINGLE_PHASE].digest()
        digest = hashlib.sha256()
        for name, phase in self.phases.items():
            # Names and samples too: two phases with equal placements are not the same plan.
            digest.update(name.encode() + b"\0" + bytes.fromhex(phase.plan.digest()))
            digest.update(np.ascontiguousarray(phase.items.sample_of_item, dtype="<i8").data)
        return digest.hexdigest()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a plan file that holds all of this plan; :func:`balancer.load_steps` reads it. Atomic, and no pickle.

        Raises
        ------
        InputError
            If the path cannot be written.
        PlanError
            If samples do not lie at home in their order, which a plan file cannot tell.
        """
        from balancer.plan.rows import save  # those who plan at run time need no files

        phases = {name: (phase.items, phase.plan) for name, phase in self.phases.items()}
        save(path, self.setup, self.batch, phases, self.digest(), self.strategy)

    def __repr__(self) -> str:
        ratios = ", ".join(
            f"{name} {phase.plan.home_imbalance_ratio:.4g} -> {phase.plan.imbalance_ratio:.6g}"
            for name, phase in self.phases.items()
        )
        return f"<StepPlan: {self.num_samples} samples on {self.num_ranks} ranks, imbalance {ratios}>"


def as_step_plan(plan: StepPlan | DispatchPlan, bytes_per_element: int = 1) -> StepPlan:
    """Return a plan as a step plan: a dispatch plan becomes its only phase, ``"all"``."""
    if isinstance(plan, StepPlan):
        return plan
    setup, batch, items = as_only_phase(plan, bytes_per_element)
    return StepPlan(setup, batch, {SINGLE_PHASE: PhasePlan(items, plan)})


def own_name(phase: str) -> str:
    """Return the name of the stream that brings the last phase what it takes from home."""
    return f"{phase}:own"


def parts_of(items: PhaseItems, feeders: Sequence[PhaseItems], num_samples: int) -> Parts:
    """List the parts of the last phase's samples: what each encoder puts out, in order, then its own. O(k)."""
    samples = [feeder.sample_of_item for feeder in feeders] + [items.own.row_of_value]
    names = (*(f"{feeder.phase.name}:out" for feeder in feeders), own_name(items.phase.name))
    stream = np.repeat(np.arange(len(samples), dtype=np.int32), [len(part) for part in samples])
    item = np.concatenate([np.arange(len(part)) for part in samples])
    sample = np.concatenate(samples)
    order = members_by_group(sample.astype(np.int32), max(1, num_samples))[0]  # stable
    return Parts(names, stream[order], item[order], sample[order])
