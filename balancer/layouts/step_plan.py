"""A step whose phases have layouts: its streams go from GPU to GPU, each row once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from balancer.layouts.layout import ModuleLayout
from balancer.layouts.mesh import Mesh
from balancer.layouts.resharding import Resharding, Shards, Source
from balancer.layouts.setup import LaidOutSetup
from balancer.plan.pieces import Pieces
from balancer.plan.step_plan import StepPlan
from balancer.plan.stream import Stream, Traffic
from balancer.problem.setup import Setup
from solvers.errors import ArgumentError, UsageError


def step_plan_of(setup: Setup, *given: Any, **named: Any) -> StepPlan:
    """Make the plan of a step: from GPU to GPU where the setup has layouts. Arguments are those of a StepPlan."""
    if isinstance(setup, LaidOutSetup):
        return LaidOutStepPlan(setup, *given, **named)
    return StepPlan(setup, *given, **named)


@dataclass(frozen=True, eq=False, repr=False)
class LaidOutStepPlan(StepPlan):
    """A step each of whose phases is planned over the replicas of its layout."""

    setup: LaidOutSetup

    def __post_init__(self) -> None:
        self.check_parts("{layouts}")

    @cached_property
    def streams(self) -> Mapping[str, Stream]:
        """What travels, by name, from GPU to GPU, in segments; see :func:`balancer.reshard`."""
        return {name: each.stream for name, each in self._reshardings.items()}

    @cached_property
    def _reshardings(self) -> dict[str, Resharding]:
        return {name: reshard(self, name) for name in self.stream_names}

    @cached_property
    def shards(self) -> dict[str, Shards]:
        """Parts of samples on the GPUs of each phase, as far as they were asked for."""
        return {}

    def traffic_of(self, stream: str) -> Traffic:
        """Return what a stream moves; KeyError if there is none of this name."""
        return self._reshardings[stream].segments.traffic(self.topology)

    def least_inter_node(self, stream: str) -> int | None:
        """Return how many bytes of a stream cross nodes at least, with items on these replicas.

        None where tensor groups span nodes: then what they gather crosses too, in no stream. KeyError if there is no
        such stream.
        """
        found = self._reshardings[stream]
        return found.least_inter_node(self.topology) if found.gathers_in_nodes(self.topology) else None

    def inputs_of(self, phase: str) -> Stream:
        """Return all that the last phase takes as one stream between GPUs; KeyError for any other phase."""
        self.check_fed(phase)
        return reshard(self, f"{phase}:inputs").stream


def reshard(
    step: StepPlan, stream: str, *, source: ModuleLayout | Mesh | None = None, target: ModuleLayout | Mesh | None = None
) -> Resharding:
    """Compute the exchange of a stream between phases with different layouts; each row is sent once.

    Parameters
    ----------
    step : StepPlan
        Each of its phases planned over the replicas of its layout.
    stream : str
        A name of :attr:`StepPlan.streams`, or ``"llm:inputs"`` for all inputs of the last phase in one exchange.
    source, target : ModuleLayout or Mesh, optional
        Layouts of the phase that sends and of the phase that receives; by default those of the step, with GPUs numbered
        as in Megatron-LM.

    Returns
    -------
    Resharding

    Raises
    ------
    KeyError
        An unknown stream.
    TypeError, ValueError
        Layouts of other numbers of replicas than the phases were planned over, or missing.

    Examples
    --------
    >>> import balancer
    >>> phases = {"vision": "patches", "llm": "tokens"}
    >>> batch = {"patches": [64, 0, 256, 64], "tokens": [90, 40, 280, 70]}
    >>> layouts = {"vision": ModuleLayout(dp=4), "llm": ModuleLayout(cp=2, tp=2)}
    >>> step = balancer.orchestrate(batch, phases, 4, layouts=layouts)
    >>> found = balancer.reshard(step, "vision:out")
    >>> found.target.window(1), found.target.cu_seqlens(1).tolist()
    (slice(122, 244, None), [0, 48, 68, 208, 244])
    """
    sources, shards, num_gpus = ends_of(step, stream, source, target)
    return Resharding.of(stream, sources, shards, num_gpus)


def reshard_on(
    step: StepPlan, gpu: int, stream: str, only: Sequence[str] | None = None, devices: Sequence[int] = (0,)
) -> tuple[Resharding, Resharding]:
    """Compose one GPU's part of :func:`reshard`: what it sends, and what it gets.

    The step has layouts; `only` says which streams of several, and `devices` are the pipeline devices of the target.
    """
    return Resharding.on(gpu, stream, *ends_of(step, stream, None, None, only), devices)


def shards_of(step: StepPlan, phase: str) -> Shards:
    """Return what each GPU has of the items of a phase, the same object each time; ValueError without layouts."""
    found = _laid_out(step, phase)
    if phase not in found.shards:
        found.shards[phase] = _shards_on(step, phase, found.setup.mesh_of(phase))
    return found.shards[phase]


def ends_of(
    step: StepPlan, stream: str, source: ModuleLayout | Mesh | None = None, target: ModuleLayout | Mesh | None = None,
    only: Sequence[str] | None = None,
) -> tuple[list[Source], Shards, int]:  # fmt: skip
    """Return where the items of a stream are, where they go, and among how many GPUs."""
    phase, _, way = str(stream).rpartition(":")
    several = way == "inputs" and phase in step.parts
    if stream not in step.stream_names and not several:
        known = ", ".join((*step.stream_names, *(f"{name}:inputs" for name in step.parts)))
        raise KeyError(f"no stream {stream!r}; streams are {known}")
    names = only or (step.parts[phase].streams if several else (stream,))
    to = list(step.phases)[-1] if way == "out" else phase
    mesh = _mesh_of(step, to, target)
    there = [_mesh_of(step, name.rpartition(":")[0], source) for name in names if name.endswith(":out")]
    num_gpus = step.num_ranks
    if not isinstance(step, LaidOutStepPlan):
        num_gpus = 1 + max(int(each.gpus.max()) for each in (mesh, *there))
    for each in (mesh, *there):
        each.check(num_gpus)
    shards = shards_of(step, to) if target is None else _shards_on(step, to, mesh)
    return [_source_of(step, name, to, source) for name in names], shards, num_gpus


def _shards_on(step: StepPlan, phase: str, mesh: Mesh) -> Shards:
    plan = step[phase]
    return Shards.of(mesh, plan.target, plan.lengths, (plan.slot_of_sample, plan.num_slots))


def _source_of(step: StepPlan, name: str, to: str, given: ModuleLayout | Mesh | None) -> Source:
    """Return where a stream's items are, and what of a phase's samples they are."""
    phase, _, way = name.rpartition(":")
    items, plan = step.phases[phase].items, step[phase]
    held: Shards | Pieces
    if way == "out":
        mesh = _mesh_of(step, phase, given)
        held = Shards.of(mesh, plan.target, items.outputs, (plan.slot_of_sample, plan.num_slots))
    elif not isinstance(step, LaidOutStepPlan):
        raise UsageError("stream {name!r} begins where samples lie, on GPUs: plan with {layouts}", name=name)
    elif way == "in":
        return Source(Pieces.whole(step.home.lifted(items.sample_of_item), items.lengths), None, items.phase.bytes_in)
    else:
        held = Pieces.whole(step.home.lifted(items.own.row_of_value), items.own.values)
    return Source(held, step.within(name), step.bytes_of(name))


def _laid_out(step: StepPlan, phase: str) -> LaidOutStepPlan:
    """Return the step, or raise UsageError if it has no layouts."""
    if not isinstance(step, LaidOutStepPlan):
        raise UsageError("the layout of phase {name!r} must be given: the step has no {layouts}", name=phase)
    return step


def _mesh_of(step: StepPlan, phase: str, given: ModuleLayout | Mesh | None) -> Mesh:
    """Return the GPUs of a phase: those that a caller gives, or those of the step's layouts."""
    if given is None:
        return _laid_out(step, phase).setup.mesh_of(phase)
    mesh = given if isinstance(given, Mesh) else Mesh.of(given)
    if mesh.layout.dp != step[phase].num_ranks:
        raise ArgumentError(
            "layout", f"have the {step[phase].num_ranks} replicas that phase {phase!r} was planned over", mesh.layout.dp
        )
    return mesh
