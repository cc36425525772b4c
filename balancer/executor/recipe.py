"""The recipe: how every step is planned, the same on all ranks; and plans as integers, where one rank plans alone."""

import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

import solvers
from balancer.cost import CostModel, parse_cost
from balancer.executor.gathering import Gathered, words_of
from balancer.executor.per_sample import PER_SAMPLE, check_named, numbers, per_sample
from balancer.plan.dispatch_plan import SINGLE_PHASE, DispatchPlan
from balancer.plan.step_plan import StepPlan
from balancer.planning.planner import EPS, balance, check_method
from balancer.planning.ranks import PLACEMENTS, check_placement
from balancer.planning.step import Settings, assemble, orchestrate, step_batch
from balancer.problem.constraints import Constraints
from balancer.problem.items import parse_items
from balancer.problem.micro_batches import MicroBatches, check_keeps_all, check_schedule_name
from balancer.problem.phases import Phase
from balancer.problem.placement import Placement
from balancer.problem.problem import check_together
from balancer.problem.ragged import Ragged
from balancer.problem.topology import Topology
from solvers.arguments import as_budget
from solvers.relocation import as_eps

__all__ = ["Plan", "Recipe"]

Plan = DispatchPlan | StepPlan

_OF_RANKS = ("equal_counts", "max_tokens_per_rank", "min_samples_per_rank", "max_samples_per_rank", "initial_loads",
             "rank_speeds")  # fmt: skip
_CONSTRAINTS = (*_OF_RANKS, *PER_SAMPLE)
_OF_BALANCE = frozenset((*_CONSTRAINTS, "method", "time_budget", "micro_batch_tokens", "schedule", "micro_batches",
                         "placement", "eps"))  # fmt: skip
_OF_ORCHESTRATE = frozenset(["method", "placement", "eps", "time_budget", "mode", "group_size", "micro_batches"])
_CERTIFICATE = ("makespan", "lower_bound", "bound_name", "method", "num_slots", "binding_sample")


@dataclass(frozen=True, slots=True, eq=False)
class Recipe:
    """What the planner is asked every step.

    Attributes
    ----------
    topology : Topology
    phases : tuple of Phase or None
        None: one phase, that of whole samples.
    cost : CostModel
        Of the one phase.
    length : str or None
        The columns whose sum is a sample's length in the one phase; None: those of its only ragged field.
    settings : dict
        Further keywords of :func:`balancer.balance` or :func:`balancer.orchestrate`; those in
        :data:`balancer.executor.per_sample.PER_SAMPLE` name columns.
    """

    topology: Topology
    phases: tuple[Phase, ...] | None = None
    cost: CostModel = field(default_factory=CostModel)
    length: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        known = _OF_BALANCE if self.phases is None else _OF_ORCHESTRATE
        if unknown := sorted(set(self.settings) - known):
            hint = "; with phases, constraints are those of each Phase" if unknown[0] in _CONSTRAINTS else ""
            raise TypeError(f"no setting {unknown[0]!r}; those there are: {', '.join(sorted(known))}{hint}")
        check_keeps_all(self.settings.get("micro_batches"), "a dispatcher")
        check_schedule_name(self.settings.get("schedule", "lockstep"))
        if self.settings.get("micro_batch_tokens") is not None and self.settings.get("micro_batches") is not None:
            raise ValueError("give micro_batch_tokens or micro_batches, not both")
        check_placement(self.settings.get("placement") or PLACEMENTS[0])
        as_eps(self.settings.get("eps", EPS))
        as_budget(self.settings.get("time_budget", 0.01))
        method = self.settings.get("method", "auto")
        if self.phases is not None:
            for phase in self.phases:
                check_method(method, parse_cost(phase.cost))
            self.rehearse()
            return
        check_method(method, self.cost)
        check_named(self.settings)
        ranks = self.topology.num_ranks
        settings = {name: self.settings[name] for name in _OF_RANKS if name in self.settings}
        kept = Constraints.of(0, ranks, **settings, **per_sample(self.settings, {}, {}, 0, ranks))
        check_together(self.cost, kept.names(), self._micro_batches())
        self.rehearse()

    def rehearse(self) -> Plan | None:
        """Plan a step without samples: what it refuses, every step would. None if so few are too few."""
        ranks, nobody = self.topology.num_ranks, np.empty(0, dtype=np.int32)
        try:
            if self.phases is not None:
                expressions = [(phase.items, phase.outputs, phase.own, phase.totals) for phase in self.phases]
                columns = _columns_of_none([text for texts in expressions for text in texts if text])
                return orchestrate(columns, self.phases, self.topology, home_rank=nobody, **self.settings)
            for text in (self.length, *(self.settings.get("caps") or {})):
                if text:  # the field without a name is named by none
                    numbers(_columns_of_none([text]), text)
            settings = {name: value for name, value in self.settings.items() if name not in PER_SAMPLE}
            settings |= per_sample(self.settings, {}, {}, 0, ranks)
            return balance(nobody, ranks, home_rank=nobody, cost=self.cost, topology=self.topology, **settings)
        except solvers.ContradictionError:
            raise
        except solvers.InfeasibleError:
            return None

    @property
    def reads_clock(self) -> bool:
        """Whether two ranks may find different plans."""
        return self.settings.get("method", "auto") in solvers.USES_CLOCK

    def plan(self, gathered: Gathered) -> Plan:
        """Plan a step; errors that name a sample say on which rank it is."""
        try:
            return self._plan(gathered)
        except Exception as error:
            gathered.locate(error)
            raise

    def _plan(self, gathered: Gathered) -> Plan:
        if self.phases is not None:
            return orchestrate(
                gathered.all_columns(), self.phases, self.topology, home_rank=gathered.home.rank_of_sample,
                **self.settings,
            )  # fmt: skip
        return balance(
            self._lengths(gathered), self.topology.num_ranks, home_rank=gathered.home.rank_of_sample, cost=self.cost,
            topology=self.topology, **self._keywords(gathered),
        )  # fmt: skip

    def _lengths(self, gathered: Gathered) -> NDArray[np.int64]:
        columns = gathered.all_columns()
        length = self.length
        if length is None:
            ragged = [name for name, spec in gathered.specs.items() if not spec.fixed and spec.form not in _TEXT]
            if len(gathered.home.samples) == 0:
                return np.empty(0, dtype=np.int64)
            if len(ragged) != 1:
                raise ValueError(
                    f"length must name the columns whose sum is a sample's length: there are {len(ragged)} ragged "
                    f"fields ({', '.join(ragged) or 'none'})"
                )
            length = ragged[0]
        if not length:  # the field without a name, which no expression can name
            columns, length = {"length": columns[length]}, "length"
        if len(gathered.home.samples) == 0:
            return np.empty(0, dtype=np.int64)
        return numbers(columns, length)

    def _keywords(self, gathered: Gathered) -> dict[str, Any]:
        """Return the settings of one phase, with this step's values where they name columns."""
        samples, ranks = len(gathered.home.samples), self.topology.num_ranks
        columns = gathered.all_columns()
        found = per_sample(self.settings, columns, gathered.columns, samples, ranks)
        return {name: value for name, value in self.settings.items() if name not in PER_SAMPLE} | found

    def _micro_batches(self) -> MicroBatches | None:
        tokens: int | None = self.settings.get("micro_batch_tokens")
        given: MicroBatches | None = self.settings.get("micro_batches")
        return given if tokens is None else MicroBatches(tokens, self.settings.get("schedule", "lockstep"))

    def digest(self, gathered: Gathered) -> bytes:
        """SHA-256 of all that a plan depends on: this recipe and what the ranks told."""
        settings = sorted((name, repr(value)) for name, value in self.settings.items())
        given = [list(self.topology.node_sizes), repr(self.phases), repr(self.cost), self.length, settings]
        digest = hashlib.sha256(json.dumps(given).encode())
        for words in gathered.words:
            digest.update(np.ascontiguousarray(words, dtype="<i8").data)
        return digest.digest()

    def words_of_plan(self, plan: Plan) -> NDArray[np.int64]:
        """Return a plan's placements and certificates as integers, for :meth:`plan_of_words`."""
        plans = _phase_plans(plan)
        described = {
            name: {key: getattr(one, key) for key in _CERTIFICATE} | {"status": one.status.value}
            for name, one in plans.items()
        }
        text = json.dumps({"phases": described, "mode": getattr(plan, "mode", "")}).encode()
        arrays = [np.asarray([len(text)]), words_of(text)]
        for one in plans.values():
            arrays += [one.rank_of_sample, one.target.position_of_sample, one.slot_of_sample]
        return np.concatenate(arrays).astype(np.int64)

    def plan_of_words(self, words: NDArray[np.int64], gathered: Gathered) -> Plan:
        """Return the plan that another rank made of the same gathered lengths."""
        started = time.perf_counter()
        size = int(words[0])
        end = 1 + -(-size // 8)
        described = json.loads(words[1:end].astype("<i8").tobytes()[:size])
        rest = words[end:]
        if self.phases is None:
            lengths = self._lengths(gathered)
            keywords = self._keywords(gathered)
            constraints = Constraints.of(
                len(lengths), self.topology.num_ranks,
                **{key: value for key, value in keywords.items() if key in _CONSTRAINTS},
            )  # fmt: skip
            given = _Given(self.topology, self.cost, lengths, gathered.home, constraints, self._micro_batches())
            return given.plan(described["phases"][SINGLE_PHASE], rest)
        step = step_batch(
            gathered.all_columns(), self.phases, self.topology, gathered.home.rank_of_sample,
            Settings(**self.settings),
        )  # fmt: skip
        plans = {}
        for items in step.items:
            problem = step.problem(items)
            told = described["phases"][items.phase.name]
            slots = self.settings.get("micro_batches")
            if slots is not None and items is not step.items[-1]:  # as the orchestrator has it
                slots = MicroBatches(max(1, int(items.lengths.sum())), "lockstep", told["num_slots"], allow_empty=True)
            given = _Given(self.topology, items.cost, items.lengths, problem.batch.home, problem.constraints, slots)
            plans[items.phase.name] = given.plan(told, rest)
            rest = rest[3 * len(items.lengths) :]
        return assemble(step, plans, "orchestrated", started)


_TEXT = ("str", "bytes")


def _columns_of_none(expressions: Sequence[str]) -> dict[str, ArrayLike | Ragged]:
    """Return the columns that expressions name, of no samples; of lists, where a function takes them."""
    numbers_of_none = np.empty(0, dtype=np.int64)
    columns: dict[str, ArrayLike | Ragged] = {}
    for text in expressions:
        if not isinstance(text, str) or "(" not in text:
            names = [name.strip() for name in str(text).split("+")]
            columns = {name: numbers_of_none for name in names if name} | columns
        else:
            columns |= {name: Ragged.of([]) for name in parse_items(text).columns}
    return columns


def _phase_plans(plan: Plan) -> dict[str, DispatchPlan]:
    if isinstance(plan, DispatchPlan):
        return {SINGLE_PHASE: plan}
    return {name: phase.plan for name, phase in plan.phases.items()}


@dataclass(frozen=True, slots=True, eq=False)
class _Given:
    """What a rank knows of a phase without having planned it."""

    topology: Topology
    cost: CostModel
    lengths: NDArray[np.int64]
    home: Placement
    constraints: Constraints
    micro_batches: MicroBatches | None

    def plan(self, told: Mapping[str, Any], words: NDArray[np.int64]) -> DispatchPlan:
        """Put the plan together from what was told: its certificate, then rank, position and slot of each sample."""
        n, num_ranks = len(self.lengths), self.topology.num_ranks
        rank, position, slot = words[: 3 * n].astype(np.int32).reshape(3, n)
        target = Placement.checked(rank, num_ranks, position)
        costs = self.cost.sample_costs(self.lengths)
        return DispatchPlan(
            self.topology,
            self.cost,
            self.lengths,
            self.home,
            target,
            self.constraints.with_initial(self.cost.loads(costs, self.home.rank_of_sample, num_ranks)),
            self.constraints.with_initial(self.cost.loads(costs, target.rank_of_sample, num_ranks)),
            status=solvers.SolveStatus(told["status"]),
            constraints=self.constraints,
            micro_batches=self.micro_batches,
            slot_of_sample=slot.copy(),
            **{key: told[key] for key in _CERTIFICATE},
        )


def as_recipe(
    topology: Topology,
    phases: Sequence[Phase] | Mapping[str, str] | None,
    cost: str | CostModel,
    length: str | None,
    settings: Mapping[str, Any],
) -> Recipe:
    """Read what a caller gives."""
    if phases is None:
        return Recipe(topology, None, parse_cost(cost), length, dict(settings))
    if isinstance(phases, Mapping):
        phases = [Phase(name, items) for name, items in phases.items()]
    for phase in phases:
        if not isinstance(phase, Phase):
            raise TypeError(f"phases must be Phase, or map names to items, got {phase!r}")
    if length is not None or cost != "linear":
        raise ValueError("with phases, lengths and costs are those of each phase: leave length and cost out")
    return Recipe(topology, tuple(phases), settings=dict(settings))
