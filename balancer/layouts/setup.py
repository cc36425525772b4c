"""The setup of a run whose phases have layouts of their own: each is planned over the replicas of its layout."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from balancer.layouts.layout import ModuleLayout, StepLayout
from balancer.layouts.mesh import Mesh
from balancer.problem.phases import Phase
from balancer.problem.placement import Placement
from balancer.problem.settings import PlanSettings
from balancer.problem.setup import Setup, as_phases
from balancer.problem.topology import Topology
from solvers.errors import ArgumentError, ArgumentTypeError, UsageError, braced

AnyLayouts = StepLayout | Mapping[str, ModuleLayout | Mesh]
"""What callers give: a layout of all phases, or one for each by name, with GPUs of its own or without."""


def setup_of(
    topology: Topology,
    phases: Sequence[Phase] | Mapping[str, str],
    settings: PlanSettings,
    layouts: AnyLayouts | None = None,
) -> Setup:
    """Read what a caller gives. Layouts without a mode: encoders run before the last module."""
    if layouts is None:
        return Setup(topology, as_phases(phases), settings)
    if isinstance(layouts, StepLayout):
        return LaidOutSetup(topology, as_phases(phases), settings, layout=layouts)
    if not isinstance(layouts, Mapping):
        raise ArgumentTypeError("layouts", "map phases to ModuleLayout(...), or be a StepLayout", repr(layouts))
    gpus = {name: each for name, each in layouts.items() if isinstance(each, Mesh)}
    modules = {name: each.layout if isinstance(each, Mesh) else each for name, each in layouts.items()}
    layout = StepLayout(modules, mode="before")
    return LaidOutSetup(topology, as_phases(phases), settings, layout=layout, gpus=gpus)


def setup_from_json(found: Mapping[str, Any]) -> Setup:
    """Read back what :meth:`Setup.to_json` wrote; KeyError, TypeError or ValueError if it did not."""
    if "layout" not in found:
        return Setup.from_json(found)
    # JSON that is sorted has lost the order of the modules, which is that of the phases.
    modules = found["layout"]["modules"]
    names = [each["name"] for each in found["phases"]]
    order = {name: modules[name] for name in names if name in modules}
    layout = StepLayout.from_json(found["layout"] | {"modules": order | modules})
    gpus = {name: Mesh.of(layout.modules[name], each) for name, each in found.get("gpus", {}).items()}
    return LaidOutSetup.from_json(found, layout=layout, gpus=gpus)


@dataclass(frozen=True, slots=True, kw_only=True)
class LaidOutSetup(Setup):
    """What all steps have in common whose ranks are GPUs, split for each phase by its layout.

    Attributes
    ----------
    layout : StepLayout
    gpus : mapping of str to Mesh
        Which GPU is which shard, of phases that do not number them as Megatron-LM does.

    Raises
    ------
    TypeError, ValueError, InfeasibleError
        As :class:`Setup`, and for layouts of other phases or GPUs than there are, or that something does not go with.
    """

    layout: StepLayout
    gpus: Mapping[str, Mesh] = field(default_factory=dict, hash=False)
    _meshes: dict[str, Mesh] = field(init=False, repr=False, compare=False)
    _topologies: dict[str, Topology] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        layout, count = self.layout, self.topology.num_ranks
        meshes = {name: self.gpus.get(name) or Mesh.of(each) for name, each in layout.modules.items()}
        layout.check_phases([phase.name for phase in self.phases])
        if layout.mode != "before" and len(layout.modules) > 1:
            raise UsageError(
                "{layouts} of mode {given!r} are not planned here: all that is in the pipeline takes its slots "
                "and ranks", ("use mode 'before'", "plan them as a pipeline, with {stages}; those in its gaps with "
                               "cut=Pipelines.in_gaps(layout.times)"), given=layout.mode,
            )  # fmt: skip
        if layout.num_gpus != count:
            raise ArgumentError("layouts", f"be of the {count} GPUs there are", layout.num_gpus)
        object.__setattr__(self, "_meshes", meshes)
        of_gpus = self.topology
        object.__setattr__(self, "_topologies", {name: mesh.topology(of_gpus) for name, mesh in meshes.items()})
        self._check_cut()
        self._check_phases_of_layouts()
        self._check_groups_of_layouts()
        Setup.__post_init__(self)

    def mesh_of(self, phase: str) -> Mesh:
        """Return the GPUs of a phase's replicas; KeyError if there is no such phase."""
        return self._meshes[phase]

    def topology_of(self, phase: str) -> Topology:
        """Return the replicas that a phase is planned over."""
        return self._topologies[phase]

    def homes_in(self, phase: str, home: Placement) -> Placement:
        """Return where samples lie before the step as a phase sees it: on the replica of their GPU."""
        mesh = self._meshes[phase]
        replica = mesh.replica_of_gpu(self.topology.num_ranks)[home.rank_of_sample]
        return Placement.by_sample_order(replica, mesh.layout.dp)

    def ranks_near(self, phase: str, other: str) -> NDArray[np.int32]:
        """Return the replica of a phase that each replica of another puts out on: int32[replicas of the other]."""
        # Outputs come from the last device of the other phase, of its first shards.
        gpu = self._meshes[other].gpus[-1, :, 0, 0]
        return self._meshes[phase].replica_of_gpu(self.topology.num_ranks)[gpu]

    def group_size_of(self, phase: str) -> int | None:
        """Return how many of a phase's replicas are planned by themselves; None: all together."""
        size = self.settings.group_size
        return None if size is None else size // self._meshes[phase].layout.device_gpus

    def to_json(self) -> dict[str, Any]:
        """Return the setup as a plan file holds it."""
        found = Setup.to_json(self) | {"layout": self.layout.to_json()}
        if self.gpus:
            found["gpus"] = {name: mesh.gpus.tolist() for name, mesh in self.gpus.items()}
        return found

    def _check_cut(self) -> None:
        """Refuse cuts that say in another way how GPUs share samples, or where encoders run."""
        cut = self.settings.cut
        if cut.shares:
            raise UsageError(
                f"{{{cut.name}}} cannot be combined with {{layouts}}: the layout says already which GPUs share samples"
            )
        if cut.encoders_in_stages and len(self.phases) > 1:
            raise UsageError(
                "{stages} that encoders are part of cannot be combined with {layouts}, in which encoders run before "
                "the pipeline", "use {encoders='step'}",
            )  # fmt: skip

    def _check_phases_of_layouts(self) -> None:
        """Refuse what names ranks, or shares items otherwise than a layout does."""
        for phase in self.phases:
            if phase.sequence_parallel is not None:
                raise UsageError(
                    "{sequence_parallel} cannot be combined with {layouts}: its groups share long items alone, a "
                    "layout's shards all of them",
                    ("give the phase's layout sp or cp", "leave {layouts} out, with a rank for each GPU"),
                )
            if phase.allowed_ranks is not None:
                raise UsageError(
                    f"{{allowed_ranks}} of phase {braced(repr(phase.name))} cannot be combined with {{layouts}}: a "
                    "phase's ranks are then replicas"
                )
        if self.settings.mode != "separate" and len({each.dp for each in self.layout.encoders.values()}) > 1:
            raise UsageError(
                "encoders with unequal numbers of replicas cannot be balanced jointly", "use {mode='separate'}"
            )

    def _check_groups_of_layouts(self) -> None:
        """Refuse groups of GPUs that are no whole replicas."""
        size = self.settings.group_size
        if size is None:
            return
        for name, each in self.layout.modules.items():
            if each.pp > 1 or size % each.device_gpus:
                raise UsageError(
                    "{group_size} = {size} cannot be combined with the layout of phase {name!r} ({words}): groups must "
                    "be whole replicas", size=size, name=name, words=each.in_words(),
                )  # fmt: skip
            first = np.arange(each.dp)[:, None, None] * each.device_gpus
            if (self.mesh_of(name).gpus // size != first // size).any():
                raise UsageError(
                    "{group_size} = {size} cannot be combined with the GPUs of phase {name!r}: its replicas must be on "
                    "GPUs of one group each, in the order of groups", size=size, name=name,
                )  # fmt: skip
