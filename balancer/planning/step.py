"""From a multimodal batch to the plan of a step: every phase balanced for itself, and the streams between them.

columns -> :func:`~balancer.problem.phases.resolve_phases` -> one :class:`~balancer.problem.problem.Problem` a phase
-> dispatch plans -> streams -> :class:`~balancer.plan.step_plan.StepPlan`.
"""

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike

import solvers
from balancer.cost import parse_cost
from balancer.plan.dispatch_plan import DispatchPlan
from balancer.plan.step_plan import Parts, PhasePlan, StepPlan, own_name, parts_of
from balancer.plan.stream import Stream
from balancer.planning.planner import EPS, plan_problem, replay_plan
from balancer.problem.batch import GlobalBatch
from balancer.problem.constraints import Constraints
from balancer.problem.micro_batches import MicroBatches, check_keeps_all
from balancer.problem.phases import Columns, Phase, PhaseItems, resolve_phases
from balancer.problem.placement import Placement
from balancer.problem.problem import Affinity, Problem
from balancer.problem.ragged import Ragged
from balancer.problem.topology import Topology
from solvers.arguments import as_count

__all__ = ["MODES", "Settings", "Step", "about", "assemble", "encoder_slots", "in_first_slot", "in_slots",
           "orchestrate", "plan_in_slots", "plan_phase", "plan_phases", "step_batch"]  # fmt: skip

MODES = ("separate", "joint", "auto")
"""How encoders are balanced: each for itself, their sum, or whichever makes the ranks' sums more even."""


@dataclass(frozen=True, slots=True)
class Settings:
    """How the phases of a step are planned; as :func:`orchestrate` takes them."""

    method: str = "auto"
    placement: str = "relocate"
    eps: float = EPS
    time_budget: float = 0.01
    mode: str = "separate"
    group_size: int | None = None
    micro_batches: MicroBatches | None = None

    def __post_init__(self) -> None:
        check_keeps_all(self.micro_batches, "a step of several phases")


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """What all phases of a step share."""

    topology: Topology
    home: Placement
    items: tuple[PhaseItems, ...]
    settings: Settings

    def batch(self, items: PhaseItems) -> GlobalBatch:
        """Return the items of a phase, lying where their samples do."""
        return GlobalBatch(items.lengths, self.home.lifted(items.sample_of_item))

    def problem(self, items: PhaseItems) -> Problem:
        """Return the problem of one phase by itself."""
        num_ranks, phase = self.topology.num_ranks, items.phase
        batch = self.batch(items)
        least = int(phase.every_rank_nonempty and self._has_enough(batch))
        constraints = Constraints.of(
            len(items.lengths),
            num_ranks,
            equal_counts=phase.equal_counts,
            max_tokens_per_rank=phase.max_tokens_per_rank,
            min_samples_per_rank=least,
        )
        try:
            return Problem.of(batch, self.topology, items.cost, constraints)
        except (ValueError, solvers.SolverError) as error:
            raise about(items, error) from None

    def _has_enough(self, batch: GlobalBatch) -> bool:
        """Whether there is an item for every rank, in each group where nothing leaves its group."""
        num_ranks = self.topology.num_ranks
        size = self.settings.group_size or num_ranks
        items_of_group = np.bincount(batch.home.rank_of_sample // size, minlength=num_ranks // size)
        return bool((items_of_group >= size).all())


def orchestrate(
    batch: Columns,
    phases: Sequence[Phase] | Mapping[str, str],
    topology: Topology | int,
    *,
    home_rank: ArrayLike | None = None,
    method: str = "auto",
    placement: str = "relocate",
    eps: float = EPS,
    time_budget: float = 0.01,
    mode: str = "separate",
    part_order: Ragged | None = None,
    group_size: int | None = None,
    micro_batches: MicroBatches | None = None,
) -> StepPlan:
    """Plan all phases of a multimodal step together: encoders and LLM balanced each for itself, exchanges composed.

    Parameters
    ----------
    batch : mapping of str to int64[n] or Ragged
        The columns of the global batch: a number, or a list of numbers, for each of n samples.
    phases : sequence of Phase, or mapping of name to items
        In the order in which they compute; the others feed the last one unless they say otherwise.
    topology : Topology or int
        Ranks and nodes; a number stands for so many ranks of one node.
    home_rank : int32[n], optional
        Where each sample lies before the step; by default equal contiguous shares.
    method, placement, eps, time_budget
        As :func:`balancer.balance` takes them, for every phase.
    mode : str
        ``"separate"``: every encoder even by itself, for when ranks wait for each other between encoders. ``"joint"``:
        the sum of the encoders even, for when they run one after the other without waiting; their costs must be in
        one unit. ``"auto"``: joint if that makes the largest sum smaller.
    part_order : Ragged, optional
        Of each sample, in which order its parts are read by the last phase: a permutation of its parts as
        :class:`balancer.plan.step_plan.Parts` counts them by default, encoder after encoder and then its own.
    group_size : int, optional
        Plan within groups of so many consecutive ranks, with nothing exchanged between groups; must divide the ranks.
    micro_batches : MicroBatches, optional
        Cut the last phase's shares into micro-batches. All phases then have the same number, and an encoder computes an
        item in the slot in which the last phase computes its sample, or with ``encoders="step"`` before the first.

    Returns
    -------
    StepPlan

    Raises
    ------
    TypeError, ValueError
        An argument that cannot be used, or a column that is not there; it names phase, argument, value and rule.
    InfeasibleError, SolverError
        As :func:`balancer.balance`, with the phase.

    Examples
    --------
    >>> batch = {"patches": [64, 0, 256, 64], "tokens": [90, 40, 80, 30]}
    >>> plan = orchestrate(batch, {"vision": "patches", "llm": "tokens"}, 2)
    >>> plan["vision"].loads.tolist(), plan["llm"].loads.tolist()
    ([128, 256], [120, 120])
    """
    started = time.perf_counter()
    settings = Settings(method, placement, eps, time_budget, mode, group_size, micro_batches)
    step = step_batch(batch, phases, topology, home_rank, settings)
    plans = plan_phases(step)
    return assemble(step, plans, "orchestrated", started, part_order)


def step_batch(
    batch: Columns,
    phases: Sequence[Phase] | Mapping[str, str],
    topology: Topology | int,
    home_rank: ArrayLike | None,
    settings: Settings,
) -> Step:
    """Check the batch and find every phase's items."""
    if isinstance(topology, int | np.integer):
        topology = Topology.uniform(int(topology), None)
    if isinstance(phases, Mapping):
        phases = [Phase(name, items) for name, items in phases.items()]
    items = resolve_phases(batch, phases)
    home = GlobalBatch.of(items[-1].lengths, topology.num_ranks, home_rank).home
    _check_settings(settings, phases, topology.num_ranks)
    return Step(topology, home, items, settings)


def _check_settings(settings: Settings, phases: Sequence[Phase], num_ranks: int) -> None:
    if settings.mode not in MODES:
        raise ValueError(f"mode must be one of {', '.join(MODES)}, got {settings.mode!r}")
    if settings.group_size is not None:
        size = as_count("group_size", settings.group_size)
        if num_ranks % size:
            raise ValueError(f"group_size must divide the {num_ranks} ranks, got {size}")
        if equal := [phase.name for phase in phases if phase.equal_counts]:
            raise ValueError(
                f"equal_counts of phase {equal[0]!r} cannot be combined with group_size: groups hold unequal numbers"
            )
    if settings.mode != "separate":
        _check_joint(phases)
    if settings.micro_batches is None:
        return
    if settings.group_size is not None:
        raise ValueError("micro_batch_tokens cannot be combined with group_size: leave one of them out")
    for phase in phases:
        sums = parse_cost(phase.cost).additive
        if not sums or phase.equal_counts or phase.max_tokens_per_rank is not None:
            what = f"cost '{phase.cost}'" if not sums else "equal_counts or max_tokens_per_rank"
            raise ValueError(f"micro_batch_tokens cannot be combined with {what} of phase {phase.name!r}")


def _check_joint(phases: Sequence[Phase]) -> None:
    """Refuse encoders whose sum cannot be made even."""
    names = [phase.name for phase in phases]
    fed = {phase.feeds or names[-1] for phase in phases[:-1]}
    encoders = [phase for phase in phases[:-1] if phase.name not in fed]
    for phase in encoders if len(encoders) > 1 else ():
        given = [
            name for name in ("equal_counts", "max_tokens_per_rank", "every_rank_nonempty") if getattr(phase, name)
        ]
        what = given[0] if given else f"cost '{phase.cost}'"
        if given or not parse_cost(phase.cost).additive:
            raise ValueError(
                f"{what} of phase {phase.name!r} cannot be combined with balancing encoders jointly; "
                "use mode='separate'"
            )


def plan_phases(step: Step) -> dict[str, DispatchPlan]:
    """Plan every phase: encoders from where their samples lie, then each fed phase from where its parts are."""
    last, slots = step.items[-1], _last_phase_slots(step)
    if slots is None:
        plans = _plan_before(step)
        return plans | {last.phase.name: plan_phase(step, last, _from_parts(step, last, plans))}
    if slots.micro_batches is not None and slots.micro_batches.encoders == "step":
        early = _plan_before(step)
        plans = {
            items.phase.name: in_first_slot(step, items, early[items.phase.name].target, slots.num_slots)
            for items in step.items[:-1]
        }
    else:
        plans = {
            items.phase.name: plan_in_slots(step, items, _from_home(step, items), slots) for items in step.items[:-1]
        }
    return plans | {last.phase.name: slots}


def _plan_before(step: Step) -> dict[str, DispatchPlan]:
    """Plan all phases but the last, each over the whole step."""
    encoders = [items for items in step.items[:-1] if not items.fed_by]
    plans = {items.phase.name: plan_phase(step, items, _from_home(step, items)) for items in encoders}
    if step.settings.mode != "separate" and len(encoders) > 1:
        joint = _plan_jointly(step, encoders)
        if step.settings.mode == "joint" or _largest_sum(joint) < _largest_sum(plans):
            plans = {name: _with_bound(plan, plans[name]) for name, plan in joint.items()}
    for items in step.items[:-1]:
        if items.phase.name not in plans:
            plans[items.phase.name] = plan_phase(step, items, _from_parts(step, items, plans))
    return plans


def _with_bound(plan: DispatchPlan, other: DispatchPlan) -> DispatchPlan:
    """Take over what another plan of the same problem has proven."""
    if other.lower_bound <= plan.lower_bound:
        return plan
    status = solvers.SolveStatus.OPTIMAL if plan.makespan == other.lower_bound else plan.status
    return replace(plan, lower_bound=other.lower_bound, bound_name=other.bound_name, status=status)


def _largest_sum(plans: Mapping[str, DispatchPlan]) -> int:
    """Return the most that a rank computes in all these phases."""
    return int(sum(plan.loads for plan in plans.values()).max())  # type: ignore[union-attr]


def _from_home(step: Step, items: PhaseItems) -> Problem:
    """Return an encoder's problem, with what moving each of its raw items takes."""
    return replace(step.problem(items), volumes=items.lengths * items.phase.bytes_in)


def _from_parts(step: Step, items: PhaseItems, plans: Mapping[str, DispatchPlan]) -> Problem:
    """Return a fed phase's problem, with how many bytes of each of its samples already lie on which rank."""
    feeders = [_find(step, name) for name in items.fed_by]
    samples = [feeder.sample_of_item for feeder in feeders] + [items.own.row_of_value]
    ranks = [plans[feeder.phase.name].rank_of_sample for feeder in feeders]
    ranks.append(step.home.rank_of_sample[samples[-1]])
    volumes = [feeder.outputs * feeder.phase.bytes_out for feeder in feeders]
    volumes.append(items.own.values * items.phase.bytes_in)
    affinity = Affinity.of(np.concatenate(samples), np.concatenate(ranks), np.concatenate(volumes), len(items.lengths))
    return replace(step.problem(items), affinity=affinity)


def _find(step: Step, name: str) -> PhaseItems:
    return next(items for items in step.items if items.phase.name == name)


def plan_phase(step: Step, items: PhaseItems, problem: Problem) -> DispatchPlan:
    """Plan one phase, over all ranks or within groups of them."""
    settings = step.settings
    try:
        if settings.group_size is None:
            return plan_problem(problem, settings.method, settings.time_budget, settings.placement, settings.eps)
        return _plan_in_groups(problem, settings, settings.group_size)
    except (ValueError, solvers.SolverError) as error:
        raise about(items, error) from None


def about(items: PhaseItems, error: Exception) -> Exception:
    """Return the error with the phase in its message, items called by their samples, and whatever else it carries."""

    def by_sample(match: re.Match[str]) -> str:
        item = int(match[1])
        return f"item {item} (of sample {items.sample_of_item[item]})" if item < len(items.lengths) else match[0]

    message = str(error.args[0]) if error.args else ""
    message = message.replace(", over_long='drop' leaves them out", "")  # which no phase can
    if items.feeds is not None and not items.fed_by:  # others compute whole samples
        message = re.sub(r"\bsample (\d+)", by_sample, message)
    error.args = (f"phase {items.phase.name!r}: {message}", *error.args[1:])
    return error


def _plan_in_groups(problem: Problem, settings: Settings, size: int) -> DispatchPlan:
    """Plan each group of `size` consecutive ranks by itself; the bound is that of all ranks together."""
    num_ranks = problem.topology.num_ranks
    rank_of_item = np.empty(len(problem.costs), dtype=np.int32)
    group_of_item = problem.batch.home.rank_of_sample // size
    for group in range(num_ranks // size):
        members = np.flatnonzero(group_of_item == group)
        part = problem.of_ranks(members, group * size, size)
        plan = plan_problem(part, settings.method, settings.time_budget, settings.placement, settings.eps)
        rank_of_item[members] = plan.rank_of_sample + group * size
    return replay_plan(problem, Placement.by_sample_order(rank_of_item, num_ranks), settings.method)


def _plan_jointly(step: Step, encoders: Sequence[PhaseItems]) -> dict[str, DispatchPlan]:
    """Balance the sum of all encoders: their items are dealt out as if they were one phase's."""
    problems = [_from_home(step, items) for items in encoders]
    union = Problem.joint(problems)
    plan = plan_phase(step, encoders[0], union)
    plans, first = {}, 0
    for items, problem in zip(encoders, problems, strict=True):
        ranks = plan.rank_of_sample[first : first + len(items.lengths)]
        first += len(items.lengths)
        target = Placement.by_sample_order(ranks.copy(), step.topology.num_ranks)
        plans[items.phase.name] = replay_plan(problem, target, step.settings.method)
    return plans


def _last_phase_slots(step: Step) -> DispatchPlan | None:
    """Plan rank and slot of the last phase, where there are micro-batches."""
    if step.settings.micro_batches is None:
        return None
    problem = in_slots(step.problem(step.items[-1]), step.settings.micro_batches)
    return plan_phase(step, step.items[-1], problem)


def plan_in_slots(step: Step, items: PhaseItems, problem: Problem, last: DispatchPlan) -> DispatchPlan:
    """Plan an encoder slot by slot: each item in the slot of its sample, the items of a slot even over the ranks."""
    slot_of_item = last.slot_of_sample[items.sample_of_item]
    rank_of_item = np.empty(len(items.lengths), dtype=np.int32)
    for slot in range(last.num_slots):
        members = np.flatnonzero(slot_of_item == slot)
        part = problem.of_samples(members)
        rank_of_item[members] = plan_phase(step, items, part).rank_of_sample
    target = Placement.by_slots(rank_of_item, slot_of_item, step.topology.num_ranks, last.num_slots)
    problem = in_slots(problem, encoder_slots(items, last.num_slots))
    return replay_plan(problem, target, step.settings.method, slots=(slot_of_item, last.num_slots))


def in_first_slot(step: Step, items: PhaseItems, target: Placement, num_slots: int) -> DispatchPlan:
    """Plan an encoder whose items are all computed before the first micro-batch: they are in slot 0."""
    problem = in_slots(Problem.of(step.batch(items), step.topology, items.cost), encoder_slots(items, num_slots))
    slots = np.zeros(len(items.lengths), dtype=np.int32), num_slots
    return replay_plan(problem, target, step.settings.method, slots=slots)


def in_slots(problem: Problem, micro_batches: MicroBatches) -> Problem:
    """Return the problem cut into micro-batches; what a rank must hold is then a matter of each slot by itself."""
    return replace(problem, constraints=Constraints(), micro_batches=micro_batches)


def encoder_slots(items: PhaseItems, num_slots: int) -> MicroBatches:
    """Return what an encoder's micro-batches keep to: as many as the last phase has, possibly empty, of any size."""
    return MicroBatches(max(1, int(items.lengths.sum())), "lockstep", num_slots, allow_empty=True)


def assemble(
    step: Step, plans: Mapping[str, DispatchPlan], strategy: str, started: float, part_order: Ragged | None = None
) -> StepPlan:
    """Put plans of all phases together with the streams between them."""
    by_name = {items.phase.name: items for items in step.items}
    streams: dict[str, Stream] = {}
    parts: dict[str, Parts] = {}
    for name, items in by_name.items():
        target = plans[name].target
        if items.feeds is not None:
            taker = plans[items.feeds].target
            if not items.fed_by:
                volumes = items.lengths * items.phase.bytes_in
                streams[f"{name}:in"] = Stream(f"{name}:in", plans[name].home, target, items.lengths, volumes)
            volumes = items.outputs * items.phase.bytes_out
            lifted = taker.lifted(items.sample_of_item)
            streams[f"{name}:out"] = Stream(f"{name}:out", target, lifted, items.outputs, volumes)
        if items.fed_by or items.feeds is None:
            sample = items.own.row_of_value
            volumes = items.own.values * items.phase.bytes_in
            own = Stream(own_name(name), step.home.lifted(sample), target.lifted(sample), items.own.values, volumes)
            streams[own_name(name)] = own
            parts[name] = parts_of(items, by_name, len(step.home.samples))
    last = step.items[-1].phase.name
    if part_order is not None:
        parts[last] = _reordered(parts[last], part_order, len(step.home.samples))
    settings = step.settings
    phases = {
        name: PhasePlan(items, replace(plans[name], placement=settings.placement, eps=settings.eps))
        for name, items in by_name.items()
    }
    return StepPlan(
        step.topology, step.home, phases, streams, parts,
        step.settings.mode, strategy, time.perf_counter() - started,
    )  # fmt: skip


def _reordered(parts: Parts, order: Ragged, num_samples: int) -> Parts:
    """Bring the parts of every sample into the order that the caller gives."""
    counts = np.bincount(parts.sample_of_part, minlength=num_samples)
    if len(order) != num_samples or not np.array_equal(order.counts, counts):
        sample = int(np.argmax(order.counts != counts)) if len(order) == num_samples else -1
        what = f"sample {sample} has {counts[sample]} parts, got {order.counts[sample]}" if sample >= 0 else "samples"
        raise ValueError(f"part_order must have an entry for every part of each of {num_samples} samples: {what}")
    first = np.repeat(order.offsets[:-1], order.counts)
    index = first + order.values
    seen = np.zeros(len(index), dtype=bool)
    inside = (order.values >= 0) & (order.values < np.repeat(order.counts, order.counts))
    seen[index[inside]] = True
    if not (inside.all() and seen.all()):
        sample = int(order.row_of_value[np.argmin(inside if not inside.all() else seen)])
        raise ValueError(f"part_order of sample {sample} must be a permutation of 0..{counts[sample] - 1}")
    return Parts(parts.streams, parts.stream_of_part[index], parts.item_of_part[index], parts.sample_of_part)
