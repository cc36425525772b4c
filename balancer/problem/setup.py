"""The setup of a run: its ranks, its phases and how they are planned; the same in every step, on every rank."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import gcd
from typing import Any

import numpy as np
from numpy.typing import NDArray

from balancer.described import as_dict
from balancer.problem.cuts import WHOLE_SHARES, Cut, LongShort
from balancer.problem.phases import Phase, PhaseItems, columns_of_none, of_phase, resolve_phases
from balancer.problem.placement import Placement
from balancer.problem.problem import check_padded
from balancer.problem.settings import PlanSettings, check_method
from balancer.problem.topology import Topology, check_topology
from solvers.errors import ArgumentError, UsageError, braced


def as_phases(phases: Sequence[Phase] | Mapping[str, str]) -> tuple[Phase, ...]:
    """Read the phases that a caller gives, in full or as names and items."""
    if isinstance(phases, Mapping):
        return tuple(Phase(name, items) for name, items in phases.items())
    found = tuple(phases) if isinstance(phases, Iterable) else (phases,)
    for phase in found:
        if not isinstance(phase, Phase):
            raise TypeError(f"phases must be Phase, or map names to lengths, got {phase!r}")
    return found


def as_topology(
    num_ranks: Topology | int | None, ranks_per_node: int | None = None, topology: Topology | None = None
) -> Topology:
    """Read what a caller gives: ranks, in one node unless it says how many a node has; or a topology, as either."""
    given = num_ranks if isinstance(num_ranks, Topology) else topology
    if given is None:
        return Topology.uniform(num_ranks, ranks_per_node)  # type: ignore[arg-type] # refused by name
    check_topology(given)
    if ranks_per_node is not None or num_ranks not in (None, given, given.num_ranks):
        raise ArgumentError(
            "topology",
            "say the number of ranks and nodes alone: leave {num_ranks} and {ranks_per_node} out",
            repr(given),
        )
    return given


@dataclass(frozen=True, slots=True)
class Setup:
    """What all steps have in common.

    Raises
    ------
    TypeError, ValueError, InfeasibleError
        What every step would raise: phases that do not fit together, constraints that contradict each other or cannot
        be combined; it names the phase and the rule.
    """

    topology: Topology
    phases: tuple[Phase, ...]  # in the order in which they compute
    settings: PlanSettings = PlanSettings()  # noqa: RUF009 (frozen)
    _shares: bool = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        phases = as_phases(self.phases)
        if phases and self.settings.cut.limits:  # they name columns of samples, which the last phase computes
            phases = (*phases[:-1], replace(phases[-1], limits=self.settings.cut.limits))
        object.__setattr__(self, "phases", phases)
        num_ranks = self.topology.num_ranks
        # With no samples at all: what is wrong with the phases themselves then shows before any step.
        for items in resolve_phases(columns_of_none(self.phases) or {"": []}, self.phases, num_ranks):
            with of_phase(items.phase.name):
                check_method(self.settings.method, items.cost)
                items.constraints(self.topology_of(items.phase.name).num_ranks)
                if items.phase.prefix_length is not None and not items.is_last:
                    raise UsageError("{prefix} and {prefix_length} are for the last phase", "leave them out of others")
                if items.phase.own is not None and not items.is_last:
                    raise UsageError("{own} is for the last phase, which the others feed", "leave it out of others")
                self._check_phase(items.phase, items.is_last)
                self._check_sharing(items)
        self._check_groups()
        self.settings.cut.check_phases([phase.name for phase in self.phases])
        self.settings.cut.check_ranks(self.topology)
        if self.settings.mode != "separate":
            self._check_joint()
        object.__setattr__(self, "_shares", any(self.cut_of(phase.name).shares for phase in self.phases))

    def in_one_unit(self) -> "Setup":
        """Return the setup with costs that can be added up over phases: of named models in one unit of FLOPs.

        Of other costs nobody can tell, so their units are taken for one; UsageError where both kinds are there.
        """
        costs = {phase.name: phase.cost for phase in self.phases}
        units = {name: cost.flops_of_unit for name, cost in costs.items()}
        if not any(units.values()):
            return self
        if odd := [name for name, unit in units.items() if not unit]:
            raise UsageError(
                "costs of phases must be in one unit to be added up, flops:MODEL of all or of none, got {cost} of "
                "{name}", cost=str(costs[odd[0]]), name=odd[0],
            )  # fmt: skip
        # The greatest common divisor keeps all costs whole numbers, and as small as can be.
        common = gcd(*units.values())
        phases = (replace(phase, cost=costs[phase.name].times(units[phase.name] // common)) for phase in self.phases)
        return replace(self, phases=tuple(phases))

    # Where a phase is planned: on the ranks, unless phases have layouts of their own

    def topology_of(self, phase: str) -> Topology:
        """Return the ranks that a phase is planned over."""
        return self.topology

    def homes_in(self, phase: str, home: Placement) -> Placement:
        """Return where samples lie before the step as a phase sees it."""
        return home

    def ranks_near(self, phase: str, other: str) -> NDArray[np.int32]:
        """Return the rank of a phase that each rank of another is next to: int32[ranks of the other]."""
        return np.arange(self.topology.num_ranks, dtype=np.int32)

    def group_size_of(self, phase: str) -> int | None:
        """Return how many of a phase's ranks are planned by themselves; None: all together."""
        return self.settings.group_size

    def _check_phase(self, phase: Phase, is_last: bool) -> None:
        """Refuse what a phase's plan cannot keep to."""
        cost, cut = phase.cost, self.settings.cut
        shared = is_last and cut.shares
        names = [name for name in phase.constraints if shared or name != "every_rank_nonempty"]
        if is_last:
            cut.check(cost, names, self.topology)
        else:
            cut.check_encoder(cost, names)
        check_padded(cost, names)

    def _check_sharing(self, items: PhaseItems) -> None:
        """Refuse long and short of phases that are no encoders, and of ranks that are no groups of that size."""
        size, slots, of_group = items.phase.sequence_parallel, self.settings.cut, self.settings.group_size
        if size is None:
            return
        cut = LongShort.from_size(size)
        if items.is_last:
            raise UsageError(
                "{sequence_parallel} is for encoders",
                "samples of the last phase are shared with {sequence_groups}",
            )
        if slots.encoders == "slot":
            raise UsageError(
                "{sequence_parallel} of an encoder that computes an item in the slot of its sample is not planned: "
                "its long items are few, and shared over a whole step", "use {encoders='step'}",
            )  # fmt: skip
        if of_group is not None and of_group % size:
            raise UsageError(
                "{group_size} = {count} must be a multiple of {sequence_parallel} = {size}", count=of_group, size=size
            )
        cut.check(items.cost, items.phase.constraints, self.topology)

    def cut_of(self, phase: str) -> Cut:
        """Return how the last phase is cut, or an encoder whose items ranks share; others have whole shares."""
        if phase == self.phases[-1].name:
            return self.settings.cut
        given = next(each for each in self.phases if each.name == phase)
        size = given.sequence_parallel
        return WHOLE_SHARES if size is None else LongShort.from_size(size, given.share_multiple_of)

    @property
    def in_gaps(self) -> bool:
        """Whether encoders run in the gaps of the last phase's pipelines."""
        return self.settings.cut.fills_gaps

    @property
    def shares(self) -> bool:
        """Whether ranks share what some phase computes."""
        return self._shares

    def rank_sets(self) -> Iterator[range]:
        """Yield all sets of ranks that plans can need as a group of more than one, each once."""
        cuts = (self.cut_of(phase.name) for phase in self.phases)
        yield from dict.fromkeys(ranks for cut in cuts for ranks in cut.rank_sets(self.topology))

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
            for name in ("keep_together", "prefix"):
                if getattr(phase, name):
                    raise self._not_in_groups(phase, name, "samples with one key may lie in different groups")

    def _not_in_groups(self, phase: Phase, name: str, why: str) -> UsageError:
        named = braced(repr(phase.name))
        return UsageError(f"{{{name}}} of phase {named} cannot be combined with {{group_size}}: {why}")

    def _check_joint(self) -> None:
        """Refuse encoders whose sum cannot be made even."""
        encoders = self.phases[:-1]
        for phase in encoders if len(encoders) > 1 else ():
            cost, given = phase.cost, phase.constraints
            if phase.sequence_parallel is not None:
                given = ("sequence_parallel",)
            if given or not cost.additive:
                what = f"{{{given[0]}}}" if given else f"cost '{cost}'"
                raise UsageError(
                    f"{what} of phase {braced(repr(phase.name))} cannot be combined with balancing encoders jointly",
                    "use {mode='separate'}",
                )

    @property
    def several_items(self) -> bool:
        """Whether some phase may have several items a sample: encoders may."""
        return len(self.phases) > 1

    def to_json(self) -> dict[str, Any]:
        """Return the setup as a plan file holds it."""
        found = {
            "topology": {"node_sizes": list(self.topology.node_sizes)},
            "phases": [{"name": phase.name} | as_dict(phase) for phase in self.phases],
            "settings": self.settings.to_json(),
        }
        if models := {phase.name: name for phase in self.phases if (name := phase.cost.model)}:
            found["models"] = models  # beside the phases, so that versions that do not know it read the rest
        return found

    @classmethod
    def from_json(cls, found: Mapping[str, Any], **more: Any) -> "Setup":
        """Read back what :meth:`to_json` wrote; KeyError, TypeError or ValueError if it did not."""
        models = dict(found.get("models", {}))
        phases = tuple(Phase(**each) for each in found["phases"])
        named = ((phase, str(models.get(phase.name, ""))) for phase in phases)
        phases = tuple(replace(phase, cost=replace(phase.cost, model=model)) for phase, model in named)
        topology, settings = Topology(found["topology"]["node_sizes"]), PlanSettings.from_json(found["settings"])
        return cls(topology, phases, settings, **more)
