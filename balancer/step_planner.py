"""From a multimodal batch to the plan of a step: every phase balanced for itself, and the streams between them.

columns -> :func:`~balancer.problem.phases.resolve_phases` -> one :class:`~balancer.problem.problem.Problem` a phase
-> dispatch plans -> streams -> :class:`~balancer.plan.step_plan.StepPlan`.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from balancer.cuts.rooms import ROOMS, placed
from balancer.layouts.setup import AnyLayouts, setup_of
from balancer.layouts.step_plan import step_plan_of
from balancer.plan.dispatch_plan import DispatchPlan
from balancer.plan.step_plan import PhasePlan, StepPlan
from balancer.planner import plan_problem, replay_plan
from balancer.problem.batch import GlobalBatch
from balancer.problem.cuts import Cut, as_cut
from balancer.problem.phases import SINGLE_PHASE, Columns, Phase, PhaseItems, columns_of_none, in_phase, resolve_phases
from balancer.problem.placement import Placement
from balancer.problem.problem import Affinity, Problem
from balancer.problem.settings import EPS, STOP_AT, PlanSettings
from balancer.problem.setup import Setup, as_phases, as_topology
from balancer.problem.topology import Topology
from solvers.bounds import Bound
from solvers.errors import ContradictionError, InfeasibleError, WordedError, Wording


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """One step to plan: what all its phases share, and what each of them computes."""

    setup: Setup
    batch: GlobalBatch  # the samples, with their lengths in the last phase
    items: tuple[PhaseItems, ...]

    @property
    def topology(self) -> Topology:
        """Ranks and nodes."""
        return self.setup.topology

    @property
    def settings(self) -> PlanSettings:
        """How the step is planned."""
        return self.setup.settings

    @property
    def home(self) -> Placement:
        """Where each sample lies before the step."""
        return self.batch.home

    def problem(self, items: PhaseItems) -> Problem:
        """Return the problem of one phase by itself; that of the last has the micro-batches."""
        is_last, name = items is self.items[-1], items.phase.name
        topology, home = self.setup.topology_of(name), self.setup.homes_in(name, self.home)
        num_ranks, size = topology.num_ranks, self.setup.group_size_of(name)
        if is_last:
            batch = self.batch if home is self.home else replace(self.batch, home=home)
        else:
            batch = GlobalBatch(items.lengths, home.lifted(items.sample_of_item))
        with of_items(self, items):
            least = int(items.phase.every_rank_nonempty and _has_enough(batch, num_ranks, size or num_ranks))
            constraints = items.constraints(num_ranks, least)
            cut = self.setup.cut_of(name)
            all_items = {each.phase.name: (each.cost, each.lengths, each.sample_of_item) for each in self.items}
            return Problem.from_batch(
                batch, topology, items.cost, constraints, cut, cut.work(all_items, len(batch.lengths)), items.limits
            )


def _has_enough(batch: GlobalBatch, num_ranks: int, size: int) -> bool:
    """Whether there is an item for every rank, in each group of this size, as nothing leaves its group."""
    items_of_group = np.bincount(batch.home.rank_of_sample // size, minlength=num_ranks // size)
    return bool((items_of_group >= size).all())


class of_items:  # noqa: N801 (a context manager)
    """Let errors about a phase name the phase, and call its items what they are: items of samples."""

    __slots__ = ("_items", "_step")

    def __init__(self, step: Step, items: PhaseItems) -> None:
        self._step, self._items = step, items

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, *_: object) -> None:
        if isinstance(error, WordedError):
            wording = _wording(self._items)
            raise in_phase(self._items.phase.name, error.in_words(wording)) from None


def _wording(items: PhaseItems) -> Wording:
    """Return what a phase's errors call its items."""
    if items.is_last:
        return Wording()  # they are the samples
    owner = "sample", lambda item: int(items.sample_of_item[item])
    return Wording({"sample": "item", "samples": "items"}, owners={"item": owner})


def orchestrate(
    batch: Any,
    phases: Sequence[Phase] | Mapping[str, str],
    num_ranks: Topology | int | None = None,
    ranks_per_node: int | None = None,
    *,
    topology: Topology | None = None,
    home_rank: ArrayLike | None = None,
    method: str = "auto",
    placement: str = "relocate",
    eps: float | Fraction = EPS,
    time_budget: float = 0.01,
    mode: str = "separate",
    group_size: int | None = None,
    cut: Cut | None = None,
    layouts: AnyLayouts | None = None,
    stop_at: float | Fraction | str = STOP_AT,
) -> StepPlan:
    """Plan all phases of a multimodal step together: encoders and LLM balanced separately, with their exchanges.

    Parameters
    ----------
    batch : mapping of str to int64[n] or Ragged, DataFrame, Arrow table, or data set of Hugging Face's
        The columns of the global batch: a number, or a list of numbers, for each of n samples.
    phases : sequence of Phase, or mapping of name to length
        In the order in which they compute. All others feed the last one.
    num_ranks : int
        Data-parallel ranks.
    ranks_per_node : int, optional
        Must divide `num_ranks`; by default all ranks share one node.
    topology : Topology, optional
        Instead of both, for nodes of unequal size; `num_ranks` may be one, too.
    home_rank : int32[n], optional
        Where each sample lies before the step; by default equal contiguous shares.
    method, placement, eps, time_budget, stop_at
        As :func:`balancer.balance` takes them, for every phase.
    mode : str
        ``"separate"``: balance every encoder separately, for ranks that wait for each other between encoders.
        ``"joint"``: balance the sum of the encoders, for encoders that run one after the other without waiting; they
        need additive costs in one unit, and no constraints.
    group_size : int, optional
        Plan within groups of this number of consecutive ranks and exchange nothing between them; must divide the ranks.
    cut : Cut, optional
        How the last phase is cut. With :class:`balancer.MicroBatches` all phases have the same number, and an encoder
        computes an item in the slot in which the last phase computes its sample, or with ``encoders="step"`` before
        the first. With :class:`balancer.SequenceGroups` groups of ranks share the samples of the last phase in every
        slot; encoders compute whole items.
    layouts : StepLayout or mapping of str to ModuleLayout or Mesh, optional
        How the GPUs are split for each phase, encoders before the last module. The topology's ranks are then GPUs.
        GPUs are numbered as in Megatron-LM unless a :class:`balancer.Mesh` says otherwise.
        Each phase is planned over its replicas, and ``plan.streams`` go from GPU to GPU.

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

    An encoder on four replicas of one GPU, and a language model on one of two context times two tensor shards:

    >>> from balancer import ModuleLayout
    >>> layouts = {"vision": ModuleLayout(dp=4), "llm": ModuleLayout(cp=2, tp=2)}
    >>> batch["tokens"] = [90, 40, 280, 70]  # at least what the encoder puts out
    >>> plan = orchestrate(batch, {"vision": "patches", "llm": "tokens"}, 4, layouts=layouts)
    >>> plan["vision"].num_ranks, plan["llm"].num_ranks, plan.streams["vision:out"].traffic(plan.topology).total
    (4, 1, 384)
    """
    settings = PlanSettings(method, placement, eps, time_budget, mode, group_size, as_cut(cut), stop_at)
    setup = setup_of(as_topology(num_ranks, ranks_per_node, topology), as_phases(phases), settings, layouts)
    return plan_step(make_step(setup, columns_of(batch), home_rank))


def columns_of(batch: Any) -> Columns:
    """Return the columns of a batch; TypeError names what was given, if it is no table."""
    if isinstance(batch, Mapping):
        return batch
    from balancer.io.tables import as_columns  # Arrow is not loaded for columns that are arrays already

    return as_columns(batch)


def make_step(
    setup: Setup, columns: Columns, home: Placement | ArrayLike | None = None, keys: Columns | None = None
) -> Step:
    """Find every phase's items in the columns of a batch.

    `home` is where the samples lie, by default equal contiguous shares; `keys` as :func:`resolve_phases` takes them.
    """
    num_ranks = setup.topology.num_ranks
    items = resolve_phases(columns, setup.phases, num_ranks, keys)
    if not isinstance(home, Placement):
        home = GlobalBatch.from_lengths(items[-1].lengths, num_ranks, home).home
    return step_of(setup, items, home)


def step_of(
    setup: Setup, items: tuple[PhaseItems, ...], home: Placement, row_numbers: NDArray[np.int64] | None = None
) -> Step:
    """Make a step of every phase's items; `row_numbers` as the batch has it."""
    lengths = items[-1].lengths
    batch = GlobalBatch(lengths, home, row_numbers=row_numbers, prefixes=items[-1].own_prefixes)
    return Step(setup, batch, items)


def plan_step(step: Step) -> StepPlan:
    """Plan all phases of a step."""
    started = time.perf_counter()
    *_, name = "orchestrated", *step.settings.cut.strategies
    return finished(step, plan_phases(step), name, started)


def finished(
    step: Step,
    plans: Mapping[str, DispatchPlan],
    strategy: str,
    started: float | None = None,
) -> StepPlan:
    """Put the plans of a step's phases together."""
    phases = {items.phase.name: PhasePlan(items, plans[items.phase.name]) for items in step.items}
    runtime_s = 0.0 if started is None else time.perf_counter() - started
    return step_plan_of(step.setup, step.batch, phases, strategy, runtime_s=runtime_s)


def rehearse(setup: Setup) -> StepPlan | None:
    """Plan a step without samples, to raise what every step would. None if the constraints need samples."""
    try:
        return plan_step(make_step(setup, columns_of_none(setup.phases) or {"": []}, np.empty(0, dtype=np.int32)))
    except ContradictionError:
        raise
    except InfeasibleError:
        return None


def plan_phases(step: Step) -> dict[str, DispatchPlan]:
    """Plan every phase: encoders from where their samples lie, then the last phase from where its parts are."""
    last, cut = step.items[-1], step.settings.cut
    if cut.encoders == "first":
        plans = _plan_before(step)
        return plans | {last.phase.name: plan_phase(step, last, _from_parts(step, plans))}
    # The last phase first where encoders follow its slots; else last, as it then starts from where parts are.
    slots = plan_phase(step, last, step.problem(last))
    if cut.encoders == "step":
        early = _plan_before(step)
        plans = {
            items.phase.name: in_first_slot(step, items, early[items.phase.name], slots.num_slots)
            for items in step.items[:-1]
        }
    else:
        plans = {
            items.phase.name: plan_in_slots(step, items, _from_home(step, items), slots) for items in step.items[:-1]
        }
    return plans | {last.phase.name: slots}


def _plan_before(step: Step) -> dict[str, DispatchPlan]:
    """Plan all phases but the last, each over the whole step."""
    encoders = step.items[:-1]
    plans = {items.phase.name: plan_phase(step, items, _from_home(step, items)) for items in encoders}
    if step.settings.mode == "joint" and len(encoders) > 1:
        return _plan_jointly(step, encoders, plans)
    return plans


def _from_home(step: Step, items: PhaseItems) -> Problem:
    """Return an encoder's problem, with what moving each of its raw items takes."""
    return replace(step.problem(items), volumes=items.lengths * items.phase.bytes_in)


def _from_parts(step: Step, plans: Mapping[str, DispatchPlan]) -> Problem:
    """Return the last phase's problem, with how many bytes of each of its samples already lie on which rank."""
    items = step.items[-1]
    if items.phase.name == SINGLE_PHASE:  # which moves whole samples, a byte an element
        return step.problem(items)
    setup, name = step.setup, items.phase.name
    feeders = step.items[:-1]
    there = [each.phase.name for each in feeders]
    held = {each.phase.name: plans[each.phase.name].put_out(each.outputs) for each in feeders}
    samples = [each.sample_of_item[held[each.phase.name].sample] for each in feeders] + [items.own.row_of_value]
    ranks = [setup.ranks_near(name, other)[held[other].place.rank_of_sample] for other in there]
    # What a sample brings itself, such as its text, lies at home; the rest lies where encoders put it out.
    ranks.append(setup.homes_in(name, step.home).rank_of_sample[samples[-1]])
    volumes = [held[each.phase.name].lengths * each.phase.bytes_out for each in feeders]
    volumes.append(items.own.values * items.phase.bytes_in)
    affinity = Affinity.from_parts(
        np.concatenate(samples), np.concatenate(ranks), np.concatenate(volumes), len(items.lengths)
    )
    return replace(step.problem(items), affinity=affinity)


def plan_phase(step: Step, items: PhaseItems, problem: Problem) -> DispatchPlan:
    """Plan one phase, over all ranks or within groups of them."""
    with of_items(step, items):
        size = step.setup.group_size_of(items.phase.name)
        if size is None:
            return plan_problem(problem, step.settings)
        return _plan_in_groups(problem, step.settings, size)


def _plan_in_groups(problem: Problem, settings: PlanSettings, size: int) -> DispatchPlan:
    """Plan each group of `size` consecutive ranks by itself; the bound is that of all ranks together."""
    group_of_item = problem.batch.home.rank_of_sample // size
    parts = []
    for group in range(problem.topology.num_ranks // size):
        members = np.flatnonzero(group_of_item == group)
        alone = replace(problem.of_ranks(members, group * size, size), cut=problem.cut)
        parts.append((members, group * size, plan_problem(alone, settings)))
    # Proven anew over all ranks: bounds of groups say nothing of ranks that could have helped each other.
    return replay_plan(ROOMS[problem.cut.name].kind.joined(problem, parts), settings)


def _plan_jointly(
    step: Step, encoders: Sequence[PhaseItems], separate: Mapping[str, DispatchPlan]
) -> dict[str, DispatchPlan]:
    """Balance the sum of all encoders: their items are dealt out as if they were one phase's.

    What the `separate` plans have proven of the same phases holds for these.
    """
    problems = [_from_home(step, items) for items in encoders]
    union = plan_phase(step, encoders[0], Problem.joint(problems))
    plans, first = {}, 0
    for items, problem in zip(encoders, problems, strict=True):
        ranks = union.rank_of_sample[first : first + len(items.lengths)]
        first += len(items.lengths)
        target = Placement.by_sample_order(ranks.copy(), problem.topology.num_ranks)
        alone = separate[items.phase.name]
        known = Bound(alone.lower_bound, alone.bound_name)
        plans[items.phase.name] = replay_plan(placed(problem, target), step.settings, known=known)
    return plans


def plan_in_slots(step: Step, items: PhaseItems, problem: Problem, last: DispatchPlan) -> DispatchPlan:
    """Plan an encoder slot by slot: each item in the slot of its sample, the items of a slot even over the ranks.

    An encoder that is a pipeline's stages computes it on the same replica.
    """
    slot_of_item = last.slot_of_sample[items.sample_of_item]
    rank_of_item = last.rank_of_sample[items.sample_of_item]
    # All ranks wait for each other in every slot, so that each slot is balanced by itself.
    for slot in () if last.cut.encoders_in_stages else np.unique(slot_of_item).tolist():
        members = np.flatnonzero(slot_of_item == slot)
        rank_of_item[members] = plan_phase(step, items, problem.of_samples(members)).rank_of_sample
    target = Placement.by_slots(rank_of_item, slot_of_item, problem.topology.num_ranks, last.num_slots)
    problem = encoder_problem(step, items, last.num_slots)
    return replay_plan(placed(problem, target, slot_of_item, last.num_slots), step.settings)


def in_first_slot(step: Step, items: PhaseItems, plan: DispatchPlan, num_slots: int) -> DispatchPlan:
    """Plan an encoder whose items are all computed before the first micro-batch: they are in slot 0.

    Those that ranks share have slots of their own, all of them before.
    """
    if plan.cut.own_slots:
        return plan
    slots, problem = np.zeros(len(items.lengths), dtype=np.int32), encoder_problem(step, items, num_slots)
    return replay_plan(placed(problem, plan.target, slots, num_slots), step.settings)


def encoder_problem(step: Step, items: PhaseItems, num_slots: int) -> Problem:
    """Return an encoder's problem in micro-batches: as many as the last phase has, possibly empty, of any size.

    Of an encoder that computes items in the slots of their samples, what a rank holds over the step is not planned.
    """
    problem, cut = step.problem(items), step.settings.cut
    if problem.cut.own_slots:
        return problem
    slots = cut.of_encoder(num_slots, int(items.lengths.sum()))
    return replace(problem, constraints=cut.kept_by_encoder(problem.constraints), cut=slots)
