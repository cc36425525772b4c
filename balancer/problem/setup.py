"""The setup of a run: its ranks, its phases and how they are planned; the same in every step, on every rank."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from balancer.cost import parse_cost
from balancer.problem.phases import Phase, columns_of_none, of_phase, resolve_phases
from balancer.problem.problem import check_together
from balancer.problem.sequence_groups import SequenceGroups
from balancer.problem.settings import PlanSettings, check_method
from balancer.problem.topology import Topology
from solvers.errors import UsageError, braced

__all__ = ["Setup", "as_phases", "as_topology"]


def as_phases(phases: Sequence[Phase] | Mapping[str, str]) -> tuple[Phase, ...]:
    """Read the phases that a caller gives, in full or as names and items."""
    if isinstance(phases, Mapping):
        return tuple(Phase(name, items) for name, items in phases.items())
    found = tuple(phases) if isinstance(phases, Iterable) else (phases,)
    for phase in found:
        if not isinstance(phase, Phase):
            raise TypeError(f"phases must be Phase, or map names to items, got {phase!r}")
    return found


def as_topology(topology: Topology | int) -> Topology:
    """Read what a caller gives: a number is a single node with this number of ranks."""
    return topology if isinstance(topology, Topology) else Topology.uniform(topology, None)


@dataclass(frozen=True, slots=True)
class Setup:
    """What all steps have in common.

    Attributes
    ----------
    topology : Topology
    phases : tuple of Phase
        In the order in which they compute.
    settings : PlanSettings

    Raises
    ------
    TypeError, ValueError, InfeasibleError
        What every step would raise: phases that do not fit together, constraints that contradict each other or cannot
        be combined; it names the phase and the rule.
    """

    topology: Topology
    phases: tuple[Phase, ...]
    settings: PlanSettings = PlanSettings()  # noqa: RUF009 (frozen)

    def __post_init__(self) -> None:
        object.__setattr__(self, "phases", as_phases(self.phases))
        num_ranks = self.topology.num_ranks
        resolved = resolve_phases(columns_of_none(self.phases) or {"": []}, self.phases, num_ranks)
        for items in resolved:
            with of_phase(items.phase.name):
                check_method(self.settings.method, items.cost)
                items.constraints(num_ranks)
                self._check_phase(items.phase, items is resolved[-1])
        self._check_groups()
        cut = self.settings.micro_batches
        if cut is not None and cut.stages is not None:
            names = [phase.name for phase in self.phases]
            cut.stages.check_phases(names if cut.encoders == "slot" else names[-1:])
        if self.settings.mode != "separate":
            self._check_joint()

    def _check_phase(self, phase: Phase, is_last: bool) -> None:
        """Refuse what a phase's plan cannot keep to."""
        cost, cut = parse_cost(phase.cost), self.settings.micro_batches
        shared = is_last and isinstance(cut, SequenceGroups)
        names = [name for name in phase.constraints if shared or name != "every_rank_nonempty"]
        held = [name for name in names if name != "allowed_ranks"]
        if cut is not None and not is_last and cut.encoders == "slot" and held:
            raise UsageError(
                ("{sequence_groups}" if isinstance(cut, SequenceGroups) else "{micro_batch_tokens}")
                + " cannot be combined with {"
                + held[0]
                + "} of an encoder that computes an item in "
                "the slot of its sample: what a rank has over the step is then not the encoder's to choose",
                "use {encoders='step'}",
            )
        check_together(cost, names, cut if is_last or cut is None or cut.encoders == "slot" else None)
        if is_last and isinstance(cut, SequenceGroups):
            cut.ranks_per_node(self.topology)
            cut.check_heads(cost)

    def _check_groups(self) -> None:
        """Refuse groups of ranks that cannot be planned by themselves."""
        size, num_ranks = self.settings.group_size, self.topology.num_ranks
        if size is None:
            return
        if num_ranks % size:
            raise UsageError("{group_size} must divide the {count} ranks, got {size}", count=num_ranks, size=size)
        for phase in self.phases:
            if phase.equal_counts:
                raise self._not_in_groups(phase, "equal_counts", "groups hold unequal numbers")
            if phase.keep_together:
                raise self._not_in_groups(phase, "keep_together", "samples with one key may lie in different groups")

    def _not_in_groups(self, phase: Phase, name: str, why: str) -> UsageError:
        named = braced(repr(phase.name))
        return UsageError(f"{{{name}}} of phase {named} cannot be combined with {{group_size}}: {why}")

    def _check_joint(self) -> None:
        """Refuse encoders whose sum cannot be made even."""
        names = [phase.name for phase in self.phases]
        fed = {phase.feeds or names[-1] for phase in self.phases[:-1]}
        encoders = [phase for phase in self.phases[:-1] if phase.name not in fed]
        for phase in encoders if len(encoders) > 1 else ():
            cost, given = parse_cost(phase.cost), phase.constraints
            if given or not cost.additive:
                what = f"{{{given[0]}}}" if given else f"cost '{cost}'"
                raise UsageError(
                    f"{what} of phase {braced(repr(phase.name))} cannot be combined with balancing encoders jointly",
                    "use {mode='separate'}",
                )

    @property
    def several_items(self) -> bool:
        """Whether some phase may have several items a sample."""
        return any("(" in phase.items for phase in self.phases)

    def to_json(self) -> dict[str, Any]:
        """Return the setup as a plan file holds it."""
        return {
            "topology": {"node_sizes": list(self.topology.node_sizes)},
            "phases": [phase.to_json() for phase in self.phases],
            "settings": self.settings.to_json(),
        }

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> "Setup":
        """Read back what :meth:`to_json` wrote; KeyError, TypeError or ValueError if it did not."""
        phases = tuple(Phase(**phase) for phase in found["phases"])
        return cls(Topology(found["topology"]["node_sizes"]), phases, PlanSettings.from_json(found["settings"]))
