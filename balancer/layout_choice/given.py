"""What there is to do, whatever the layout: some global batches of a log, models, and what they run on."""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from balancer.cost import AudioEncoder, Module, SaturatingThroughput, VisionEncoder, module
from balancer.cost.throughput import Throughput
from balancer.errors import InputError
from balancer.io.log import LengthLog, open_log
from balancer.layouts.layout import as_generators, upstream
from balancer.offline.settings import LogSettings
from balancer.offline.steps import Steps, rows_of_steps
from balancer.problem.cuts.pipeline_stages import PipelineStages
from balancer.problem.phases import Phase
from balancer.problem.setup import Setup, as_phases
from balancer.problem.step_times import StepItems
from balancer.problem.topology import Topology
from balancer.simulate.cluster import Cluster, read_cluster
from solvers.arguments import as_count
from solvers.errors import ArgumentError, ArgumentTypeError, UsageError

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Given:
    """What there is to do, and what it runs on, whatever the layout."""

    models: dict[str, Module]  # by phase: encoders, the language model, generators
    # Of one GPU, by the elements that it has at a time; by tensor shards, where their exchanges were measured with it.
    # Under 0 that for all others.
    rates: dict[str, dict[int, Throughput]]
    cluster: Cluster
    num_gpus: int
    steps: tuple[StepItems, ...]
    pieces: dict[str, int | None]
    frozen: frozenset[str]
    overlap: float
    generators: tuple[str, ...] = ()  # the last phases, which take what the language model puts out
    _parts: dict[tuple[object, ...], Ints] = field(default_factory=dict)

    def parts(self, names: tuple[str, ...], counts: tuple[tuple[str, int], ...]) -> Ints:
        """Return each stage's part of these modules, int64[M, S]; the same for many layouts, and kept.

        Encoders that share stages are all cut as the one with most work, and so are generators.
        """
        if (names, counts) not in self._parts:
            models: dict[str, Any] = {name: self.models[name] for name in names}
            pieces = {name: self.pieces.get(name) for name in names}
            stages = PipelineStages.of(dict(counts), models, pieces=pieces)
            rows = dict(stages.forward)
            for alike in (self.encoders, self.generators):
                if together := [name for name in alike if name in rows]:
                    largest = rows[max(together, key=lambda name: self.total(name)[0])]
                    rows |= dict.fromkeys(together, largest)
            self._parts[names, counts] = np.array([rows[name] for name in names], dtype=np.int64)
        return self._parts[names, counts]

    @property
    def llm(self) -> str:
        """The language model's phase: the last that is no generator."""
        return list(self.models)[-1 - len(self.generators)]

    @property
    def encoders(self) -> tuple[str, ...]:
        """Phases before it."""
        return tuple(self.models)[: -1 - len(self.generators)]

    def backward_times(self, name: str, *, recompute: bool) -> int:
        """Return how many times its forward a module's backward takes."""
        times = 2
        if name in self.frozen:  # its inputs' gradients alone, if anything before it is trained
            times = int(any(other not in self.frozen for other in upstream(list(self.models), self.generators, name)))
        return times + (recompute and times > 0)

    @property
    def exposed(self) -> float:
        """The part of exchanges that computing does not hide."""
        return 1.0 - self.overlap

    def total(self, name: str) -> tuple[float, float]:
        """FLOPs and elements of a phase in all steps."""
        return sum(step.total[name][0] for step in self.steps), sum(step.total[name][1] for step in self.steps)

    def useful_flops(self, step: StepItems) -> float:
        """Forward and backward, nothing recomputed."""
        return sum(step.total[name][0] * (1 + self.backward_times(name, recompute=False)) for name in self.models)

    def bandwidth(self, gpus: int) -> float:
        """Bytes a second of one GPU among so many neighbours."""
        inside = gpus <= self.cluster.gpus_per_node
        return self.cluster.intra_node_bytes_per_s if inside else self.cluster.inter_node_bytes_per_s


def given_of(
    log: str | os.PathLike[str] | LengthLog,
    num_gpus: int,
    phases: Sequence[Phase] | Mapping[str, str],
    models: Mapping[str, str | Module],
    batch: int,
    *,
    cluster: str | Cluster = "h100",
    num_steps: int = 1,
    pieces: Mapping[str, int] | None = None,
    frozen: Iterable[str] = (),
    efficiency: float = 0.5,
    throughput: Mapping[str, Throughput | Mapping[int, Throughput]] | None = None,
    overlap: float = 0.0,
    generators: Iterable[str] = (),
) -> Given:
    """Check, and read the steps; arguments as :func:`balancer.configure` has them."""
    found = as_phases(phases)
    names = [phase.name for phase in found]
    for argument, given in (("models", models), ("pieces", pieces or {}), ("throughput", throughput or {})):
        if odd := [name for name in given if name not in names]:
            raise ArgumentError(argument, f"be of the phases {', '.join(names)}", repr(odd[0]))
    if missing := [name for name in names if name not in models]:
        raise UsageError("phase {name!r} has no model", "name one in {models}", name=missing[0])
    behind = as_generators(names, generators)
    still = frozenset([frozen] if isinstance(frozen, str) else frozen)
    if still - set(names):
        raise ArgumentError("frozen", f"be phases, of {', '.join(names)}", repr(min(still - set(names))))
    for argument, value, least in (("efficiency", efficiency, 1e-9), ("overlap", overlap, 0.0)):
        if not least <= value <= 1:
            raise ArgumentError(argument, "be a fraction, up to 1" + " and over 0" * (least > 0), repr(value))
    node = read_cluster(cluster) if isinstance(cluster, str) else cluster
    if not isinstance(node, Cluster):
        raise ArgumentTypeError("cluster", "be a Cluster, or the name of one", repr(cluster))
    shapes = {name: module(each) if isinstance(each := models[name], str) else each for name in names}
    usual = SaturatingThroughput(efficiency * node.peak_flops)
    llm = names[-1 - len(behind)]
    if behind and isinstance(shapes[llm], VisionEncoder | AudioEncoder):
        rule = f"be after the language model, which {llm!r}, the phase before them, is not: its model is an encoder"
        raise ArgumentError("generators", rule, ", ".join(behind))
    rates = {name: _rates((throughput or {}).get(name, usual), usual) for name in names}
    parts = {name: None if (cut := (pieces or {}).get(name)) is None else as_count("pieces", cut) for name in names}
    steps = _steps(
        log, _for_a_log(found, len(behind)), shapes, parts, as_count("batch", batch), as_count("num_steps", num_steps)
    )
    return Given(shapes, rates, node, as_count("num_gpus", num_gpus), steps, parts, still, overlap, behind)


def _for_a_log(phases: tuple[Phase, ...], generators: int) -> tuple[Phase, ...]:
    """Put the language model last: it has an item of every sample, where a generator has none of most."""
    llm = len(phases) - generators - 1
    return phases[:llm] + phases[llm + 1 :] + phases[llm : llm + 1]


def _rates(given: Throughput | Mapping[int, Throughput], usual: Throughput) -> dict[int, Throughput]:
    """Return rates by tensor shards; those that were not measured are that of one shard, with exchanges besides."""
    for each in given.values() if isinstance(given, Mapping) else [given]:
        if not callable(getattr(each, "at", None)):
            raise ArgumentTypeError("throughput", "be a Throughput, or map tensor shards to some", repr(each))
    if not isinstance(given, Mapping):
        return {0: given}
    return {0: given.get(1, usual), **given}


def _steps(
    log: str | os.PathLike[str] | LengthLog,
    phases: tuple[Phase, ...],
    models: Mapping[str, Module],
    pieces: Mapping[str, int | None],
    batch: int,
    num_steps: int,
) -> tuple[StepItems, ...]:
    """Read so many full global batches, evenly spread over the log."""
    opened = log if isinstance(log, LengthLog) else open_log(log)
    settings = LogSettings(Setup(Topology.uniform(1, 1), phases), batch, drop_last=True)
    steps = list(rows_of_steps(opened, settings))
    if len(steps) < num_steps:
        there = f"has {len(steps):,} full batches of {batch:,} rows, and {num_steps:,} are asked for"
        raise InputError(f"{opened.path}: {there}; give a smaller batch, or fewer steps")
    made, found = Steps(opened, settings), []
    forwards = {name: model.flops(backward=False) for name, model in models.items()}
    for i in range(num_steps):
        rows = steps[i * len(steps) // num_steps]
        shares = {items.phase.name: (items.lengths, items.sample_of_item) for items in made.of(rows).items}
        found.append(StepItems.of(shares, forwards, pieces, len(rows)))
    if not any(flops for step in found for flops, _ in step.total.values()):
        raise InputError(f"{opened.path}: holds nothing to do: all lengths are 0 in the steps taken")
    return tuple(found)
