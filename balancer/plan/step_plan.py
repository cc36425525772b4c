"""The plan of one step of a multimodal model: a placement for every phase, and the streams between them. Pure data."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from balancer.plan.dispatch_plan import DispatchPlan
from balancer.plan.stream import Stream, fused
from balancer.problem.phases import PhaseItems
from balancer.problem.placement import Placement
from balancer.problem.topology import Topology
from solvers.groups import members_by_group

__all__ = ["Parts", "PhasePlan", "StepPlan", "own_name", "parts_of"]


class Parts(NamedTuple):
    """What the samples of a fed phase are put together from, sample after sample, each in the order of its parts.

    Attributes
    ----------
    streams : tuple of str
        The streams that bring them.
    stream_of_part : int32[k]
        Which of `streams` brings each part.
    item_of_part : int64[k]
        Which of that stream's items it is.
    sample_of_part : int64[k]
        Ascending.
    """

    streams: tuple[str, ...]
    stream_of_part: NDArray[np.int32]
    item_of_part: NDArray[np.int64]
    sample_of_part: NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class PhasePlan:
    """One phase of a step.

    Attributes
    ----------
    items : PhaseItems
        What it computes; ``items.sample_of_item[i]`` is the sample that item i is of.
    plan : DispatchPlan
        Its items ("samples" there) on ranks, from where their samples lie before the step.
    """

    items: PhaseItems
    plan: DispatchPlan

    @property
    def idle_ranks(self) -> NDArray[np.int32]:
        """Ranks that get no item: they skip the phase's collectives unless they run a dummy. int32[], ascending."""
        counts = np.diff(self.plan.target.offsets)
        return np.flatnonzero(counts == 0).astype(np.int32)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class StepPlan:
    """Where every phase computes which items, and what has to travel for that.

    Attributes
    ----------
    topology : Topology
    home : Placement
        Where the samples lie before the step.
    phases : dict of str to PhasePlan
        In the order in which they compute.
    streams : dict of str to Stream
        What travels, by name: ``"vision:in"`` raw inputs from home to the encoder, ``"vision:out"`` its outputs
        straight to the phase that takes them, ``"llm:own"`` what that takes from home besides.
    parts : dict of str to Parts
        Of every fed phase, what its samples are put together from.
    mode : str
        ``"separate"`` or ``"joint"``: whether the encoders were balanced each for itself or their sum.
    strategy : str
        The name of the strategy that made it; see :mod:`balancer.planning.strategies`.
    runtime_s : float
        Seconds that planning took; not part of the digest.
    """

    topology: Topology
    home: Placement
    phases: Mapping[str, PhasePlan]
    streams: Mapping[str, Stream]
    parts: Mapping[str, Parts]
    mode: str = "separate"
    strategy: str = "orchestrated"
    runtime_s: float = field(default=0.0, compare=False)

    @property
    def encoders_first(self) -> bool:
        """Whether all phases but the last compute their items before the first micro-batch."""
        micro_batches = list(self.phases.values())[-1].plan.micro_batches
        return micro_batches is not None and micro_batches.encoders == "step"

    def __getitem__(self, phase: str) -> DispatchPlan:
        """Return the dispatch plan of a phase."""
        if phase not in self.phases:
            raise KeyError(f"no phase {phase!r}; phases are {', '.join(self.phases)}")
        return self.phases[phase].plan

    @property
    def num_ranks(self) -> int:
        """Ranks, empty ones included."""
        return self.topology.num_ranks

    @property
    def num_samples(self) -> int:
        """Samples in the step."""
        return len(self.home.samples)

    @property
    def num_slots(self) -> int:
        """Micro-batches a step, the same in every phase."""
        return max(phase.plan.num_slots for phase in self.phases.values())

    @property
    def idle_ranks(self) -> dict[str, NDArray[np.int32]]:
        """Of each phase, the ranks that get no item of it."""
        return {name: phase.idle_ranks for name, phase in self.phases.items()}

    @property
    def dummy_ranks(self) -> dict[str, NDArray[np.int32]]:
        """Of each phase that asks for ``every_rank_nonempty``, the ranks that must run a dummy item."""
        none = np.empty(0, dtype=np.int32)
        return {
            name: phase.idle_ranks if phase.items.phase.every_rank_nonempty else none
            for name, phase in self.phases.items()
        }

    def inputs_of(self, phase: str) -> Stream:
        """Return all that a fed phase takes as one stream, so that one all-to-all brings everything.

        Each rank sends, one after the other in order of ``parts[phase].streams``, what it holds of each stream; the
        parts arrive, after ``receive_order``, sample by sample and part by part, as the phase reads them.

        Raises
        ------
        KeyError
            A phase that no other feeds.
        """
        if phase not in self.parts:
            raise KeyError(f"phase {phase!r} is fed by none; phases that are: {', '.join(self.parts) or 'none'}")
        parts = self.parts[phase]
        streams = [self.streams[name] for name in parts.streams]
        first = np.concatenate(([0], np.cumsum([len(stream.lengths) for stream in streams])))
        order = first[parts.stream_of_part] + parts.item_of_part
        return fused(f"{phase}:inputs", streams, order, self[phase].target.lifted(parts.sample_of_part))

    def digest(self) -> str:
        """SHA-256, in hex, over the digests of the phases, in order: ranks whose digests agree hold the same plan."""
        digest = hashlib.sha256()
        for name, phase in self.phases.items():
            digest.update(name.encode() + b"\0" + bytes.fromhex(phase.plan.digest()))
            digest.update(np.ascontiguousarray(phase.items.sample_of_item, dtype="<i8").data)
        return digest.hexdigest()

    def __repr__(self) -> str:
        ratios = ", ".join(
            f"{name} {phase.plan.home_imbalance_ratio:.4g} -> {phase.plan.imbalance_ratio:.6g}"
            for name, phase in self.phases.items()
        )
        return f"<StepPlan: {self.num_samples} samples on {self.num_ranks} ranks, imbalance {ratios}>"


def own_name(phase: str) -> str:
    """Return the name of the stream that brings a fed phase what it takes from home."""
    return f"{phase}:own"


def parts_of(items: PhaseItems, feeders: Mapping[str, PhaseItems], num_samples: int) -> Parts:
    """List the parts of a fed phase's samples: what each feeder puts out, in order of phases, then its own. O(k)."""
    samples = [feeders[name].sample_of_item for name in items.fed_by] + [items.own.row_of_value]
    names = (*(f"{name}:out" for name in items.fed_by), own_name(items.phase.name))
    stream = np.repeat(np.arange(len(samples), dtype=np.int32), [len(part) for part in samples])
    item = np.concatenate([np.arange(len(part)) for part in samples])
    sample = np.concatenate(samples)
    order = members_by_group(sample.astype(np.int32), max(1, num_samples))[0]  # stable
    return Parts(names, stream[order], item[order], sample[order])
