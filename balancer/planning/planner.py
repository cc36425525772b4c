"""From a batch to a dispatch plan, one phase: read this module first.

lengths -> :class:`~balancer.problem.batch.GlobalBatch` -> :class:`~balancer.problem.problem.Problem`
-> a solver's groups -> ranks -> :class:`~balancer.plan.dispatch_plan.DispatchPlan`.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

import solvers
from balancer.cost import CostModel, parse_cost
from balancer.plan.dispatch_plan import DispatchPlan
from balancer.plan.placed import WholeShares
from balancer.planning.found import Found, closed_form_bound
from balancer.planning.long_short import long_short_bound, plan_long_short
from balancer.planning.pipelines import pipeline_bound, plan_in_gaps, plan_pipelines
from balancer.planning.ranks import effective, place
from balancer.planning.sequence_groups import groups_bound, plan_groups
from balancer.planning.slots import plan_slots, slots_bound
from balancer.problem.batch import GlobalBatch
from balancer.problem.constraints import Constraints
from balancer.problem.cuts.micro_batches import MicroBatches, as_micro_batches
from balancer.problem.cuts.sequence_groups import SequenceGroups
from balancer.problem.placement import Placement
from balancer.problem.problem import Problem
from balancer.problem.settings import EPS, PlanSettings, check_method, default_placement, one_of
from balancer.problem.smallest_cap import with_smallest_cap
from balancer.problem.topology import Topology
from solvers.arguments import as_share
from solvers.bounds import Bound, dual_feasible_bound, goal_above, late_bound

__all__ = ["PLANNERS", "Planner", "balance", "plan_problem", "replay_plan"]


def balance(
    lengths: ArrayLike,
    num_ranks: int,
    ranks_per_node: int | None = None,
    home_rank: ArrayLike | None = None,
    cost: str | CostModel = "linear",
    method: str = "auto",
    equal_counts: bool = False,
    max_tokens_per_rank: int | None = None,
    time_budget: float = 0.01,
    *,
    topology: Topology | None = None,
    min_samples_per_rank: int = 0,
    max_samples_per_rank: int | None = None,
    keep_together: ArrayLike | None = None,
    caps: Mapping[str, tuple[ArrayLike, int]] | None = None,
    allowed_ranks: ArrayLike | None = None,
    initial_loads: ArrayLike | None = None,
    rank_speeds: ArrayLike | None = None,
    micro_batch_tokens: int | None = None,
    schedule: str = "lockstep",
    micro_batches: MicroBatches | None = None,
    sequence_groups: SequenceGroups | None = None,
    placement: str | None = None,
    eps: float | Fraction = EPS,
    objective: str = "sum",
    stop_at: float | Fraction | str = 0,
) -> DispatchPlan:
    """Plan on which rank each sample of a global batch runs, so that all ranks finish together.

    Parameters
    ----------
    lengths : int64[n]
        Tokens, frames or patches of each sample: a list, a NumPy array, or a torch CPU tensor.
    num_ranks : int
        Data-parallel ranks; may exceed n, and then some ranks get nothing.
    ranks_per_node : int, optional
        Must divide `num_ranks`; by default all ranks share one node.
    home_rank : int32[n], optional
        The rank on which each sample lies now. By default equal contiguous shares: sample i on rank
        ``i // ceil(n / num_ranks)``.
    cost : str or CostModel
        ``"linear"``, ``"quadratic:a=24576,b=1"`` for a*l + b*l^2, ``"flops:qwen2-7b"`` for the same from a model's
        shape, ``"padded"`` for rows times the longest row, or ``"convolution:a=24576,b=1,c=100,p=1"`` for the sum of
        a*l + b*l^2 and rows times c * longest^p.
    method : str
        A name in :data:`balancer.problem.settings.METHODS`; ``"auto"`` suits every cost and constraint.
    equal_counts : bool
        Give every rank n/num_ranks samples, within one where that does not divide.
    max_tokens_per_rank : int, optional
        A cap, never exceeded, on the sum of lengths on a rank.
    time_budget : float
        Seconds' worth of work for the solver, counted and not timed, so that every rank computes the same plan. Not so
        with the methods in :data:`solvers.USES_CLOCK`, which are timed: plan on one rank, and send the plan around.
    topology : Topology, optional
        In place of `ranks_per_node`, for nodes of unequal size.
    min_samples_per_rank, max_samples_per_rank : int, optional
        How many samples a rank gets at least and at most.
    keep_together : int[n] or str[n], optional
        Samples with equal keys run on one rank, adjacent or not: the responses to one prompt, say.
    caps : mapping of str to (int64[n], int), optional
        Further quantities by name: what each sample has of it, and the cap on a rank's sum, never exceeded.
    allowed_ranks : bool[n, num_ranks], optional
        Where each sample may run.
    initial_loads : int64[num_ranks], optional
        Load in cost units that ranks have already.
    rank_speeds : int64[num_ranks], optional
        Cost units that a rank does in a unit of time; the plan's makespan is then in that time, rounded up.
    micro_batch_tokens : int, optional
        Cut every rank's share into micro-batches of at most this many elements, the same number on every rank. Not with
        `initial_loads`, `rank_speeds` or padding; other constraints hold for a rank's micro-batches together.
    schedule : str
        With micro-batches, where ranks wait for each other: ``"lockstep"`` (in every slot, as with FSDP), ``"step"``
        or ``"pipeline"``; see :class:`balancer.MicroBatches`.
    micro_batches : MicroBatches, optional
        In place of `micro_batch_tokens` and `schedule`, for all settings of micro-batches.
    sequence_groups : SequenceGroups, optional
        In place of micro-batches: let ranks share samples, long ones many ranks and short ones few. Of the constraints
        only `keep_together` is kept; others are refused.
    placement : str, optional
        ``"relocate"``: start from the homes and move only what balance needs, first within nodes, at a makespan of at
        most 1 + `eps` times the best found. Where that is not possible, the plan is rearranged, and its ``fell_back``
        says why. ``"rearrange"``: make the best groups found, then give them ranks so that little crosses nodes.
        ``"any"``: group i on rank i. By default ``"relocate"`` if `home_rank` is given, else ``"rearrange"``.
    eps : float or Fraction
        How much larger relocation may make the makespan, as a fraction of it.
    objective : str
        What ``placement="rearrange"`` minimises: ``"sum"``, all that crosses nodes, or ``"max"``, the most that one
        rank sends across.
    stop_at : float, Fraction or str
        The gap that is small enough for whole shares, ``0.001`` or ``"0.1%"``: the search for groups ends as soon as it
        has proven it, and under equal counts or caps also once it gains nothing for some turns. 0: it goes on until
        they are proven optimal, or the work is spent.

    Returns
    -------
    DispatchPlan

    Raises
    ------
    TypeError, ValueError
        An argument that cannot be used; it names the argument, the index, the value and the rule.
    InfeasibleError
        No plan keeps to the constraints; it says why and by how much.
    SolverError
        No plan that keeps to the constraints was found, though none was proven impossible.

    Examples
    --------
    >>> plan = balance([900, 100, 400, 600, 500, 500], num_ranks=3)
    >>> [plan.samples_on_rank(r).tolist() for r in range(3)], plan.imbalance_ratio, plan.gap
    ([[0, 1], [2, 3], [4, 5]], 1.0, 0.0)
    """
    settings = PlanSettings(
        method, placement or default_placement(home_rank is not None), objective, eps, time_budget,
        micro_batches=one_of(as_micro_batches(micro_batch_tokens, schedule, micro_batches), sequence_groups),
        stop_at=stop_at,
    )  # fmt: skip
    if isinstance(settings.micro_batches, SequenceGroups):
        settings.micro_batches.check_heads(parse_cost(cost))
    if topology is None:
        topology = Topology.uniform(num_ranks, ranks_per_node)
    elif ranks_per_node is not None or topology.num_ranks != num_ranks:
        raise ValueError(
            f"topology has {topology.num_ranks} ranks: give the same num_ranks (got {num_ranks}) and no ranks_per_node"
        )
    batch = GlobalBatch.of(lengths, topology.num_ranks, home_rank)
    constraints = Constraints.of(
        len(batch.lengths),
        topology.num_ranks,
        equal_counts=equal_counts,
        max_tokens_per_rank=max_tokens_per_rank,
        min_samples_per_rank=min_samples_per_rank,
        max_samples_per_rank=max_samples_per_rank,
        keep_together=keep_together,
        caps=caps,
        allowed_ranks=allowed_ranks,
        initial_loads=initial_loads,
        rank_speeds=rank_speeds,
    )
    problem = Problem.of(batch, topology, parse_cost(cost), constraints, settings.micro_batches)
    return plan_problem(problem, settings)


def plan_problem(problem: Problem, settings: PlanSettings) -> DispatchPlan:
    """Solve a problem as its cut is solved, and make the plan."""
    started = time.perf_counter()
    found = PLANNERS[problem.cut_name].plan(problem, problem.micro_batches, settings)
    return DispatchPlan.of(
        found.placed, found.prove, settings, placement=effective(problem, settings.placement), status=found.status,
        fell_back=found.fell_back, started=started,
    )  # fmt: skip


def replay_plan(
    placed: WholeShares,
    settings: PlanSettings,
    *,
    fell_back: str = "",
    search: bool = False,
    settle: Callable[[Bound, int], Bound] | None = None,
    status: solvers.SolveStatus | None = None,
) -> DispatchPlan:
    """Make the plan of samples that are placed already, with loads and bound computed anew.

    The bound is the closed-form one. Where that leaves a gap, `search` solves the problem again for the bound that this
    proves, unless the method reads a clock. `settle` may replace the bound, given it and the makespan.
    """
    searched = search and settings.method not in solvers.USES_CLOCK

    def prove(makespan: int) -> Bound:
        bound = PLANNERS[placed.problem.cut_name].bound(placed, makespan, settings, searched)
        return bound if settle is None else settle(bound, makespan)

    return DispatchPlan.of(
        placed, prove, settings, placement=effective(placed.problem, settings.placement), status=status,
        fell_back=fell_back, started=time.perf_counter(),
    )  # fmt: skip


def _plan_whole_shares(problem: Problem, cut: None, settings: PlanSettings) -> Found:
    """Solve for groups, then give these to ranks."""
    result = _solve(problem, settings)
    found = place(
        problem, result.group_of_item, settings.placement, settings.eps, settings.time_budget, settings.objective
    )
    target = Placement.by_sample_order(found.rank_of_sample, problem.topology.num_ranks)
    bound = Bound(result.lower_bound, result.bound_name)
    return Found(
        WholeShares(problem, target), lambda makespan: _bound_beside(problem, bound, makespan, settings), result.status,
        found.fell_back,
    )  # fmt: skip


def _whole_shares_bound(placed: WholeShares, makespan: int, settings: PlanSettings, search: bool) -> Bound:
    """Return the best bound on shares that were not planned here."""
    problem = placed.problem
    bound = closed_form_bound(problem)
    if makespan > bound.value and _is_plain(problem):
        bound = _bound_by_sums(problem.costs, problem.topology.num_ranks, bound, makespan)
    if makespan == bound.value or not search or problem.cost.padded:
        return bound
    result = _solve(problem, settings)
    return _bound_beside(problem, Bound(result.lower_bound, result.bound_name), makespan, settings)


def _solve(problem: Problem, settings: PlanSettings) -> solvers.PartitionResult:
    method, time_budget = check_method(settings.method, problem.cost), settings.time_budget
    num_ranks, constraints = problem.topology.num_ranks, problem.constraints
    if not problem.cost.additive:
        return _solve_padded(problem, method, time_budget)
    keywords = constraints.solver_keywords(problem.batch.lengths)
    try:
        return solvers.partition(problem.costs, num_ranks, method, time_budget, stop_at=settings.stop_at, **keywords)
    except solvers.SolverError as error:
        caps = constraints.all_caps(problem.batch.lengths)
        told = with_smallest_cap(error, caps, keywords, num_ranks)
        raise told.in_words(constraints.wording(error, problem.batch.numbers)) from None


def _solve_padded(problem: Problem, method: str, time_budget: float) -> solvers.PartitionResult:
    """Solve where rows of a rank are padded together, throughout or before a convolution."""
    costs, num_ranks, kept = problem.costs, problem.topology.num_ranks, problem.constraints
    if method == "mixed":
        result = solvers.mixed(
            costs[:, 0], costs[:, 1], num_ranks, equal_counts=kept.equal_counts, time_budget=time_budget
        )
    else:
        try:
            result = _padded(problem, costs)
        except solvers.SolverError as error:
            raise error.in_words(kept.wording(error, problem.batch.numbers)) from None
    cap = kept.max_tokens_per_rank
    return result if cap is None else _under_cap(problem, result, cap, time_budget)


def _padded(problem: Problem, costs: NDArray[np.int64]) -> solvers.PartitionResult:
    kept, num_ranks = problem.constraints, problem.topology.num_ranks
    return solvers.padded(costs, num_ranks, equal_counts=kept.equal_counts, min_items=kept.min_samples_per_rank)


def _is_plain(problem: Problem) -> bool:
    """Whether a rank's time is the sum of its samples' costs, and nothing else."""
    kept = problem.constraints
    busy = kept.rank_speeds is not None or kept.initial_loads is not None
    return problem.cost.additive and problem.micro_batches is None and not busy


def _bound_beside(problem: Problem, bound: Bound, makespan: int, settings: PlanSettings) -> Bound:
    """Return a better bound than a search under constraints has found, where one holds without them; else `bound`."""
    close = makespan <= goal_above(bound, as_share("stop_at", settings.stop_at))
    if close or not problem.constraints.names() or not _is_plain(problem):
        return bound
    better = _bound_by_sums(problem.costs, problem.topology.num_ranks, bound, makespan)
    return better if better.value > bound.value else bound


def _bound_by_sums(costs: NDArray[np.int64], num_ranks: int, bound: Bound, makespan: int) -> Bound:
    """Return the best bound that takes no search, where the closed-form ones leave a gap."""
    descending = np.sort(costs)[::-1]
    bound = late_bound(descending, int(costs.sum()), num_ranks, bound, makespan)
    return bound if bound.value == makespan else dual_feasible_bound(descending, num_ranks, bound, makespan)


def _under_cap(
    problem: Problem, result: solvers.PartitionResult, cap: int, time_budget: float
) -> solvers.PartitionResult:
    """Return `result` if it keeps to the token cap; else, at some loss of balance, groups of even token counts."""
    lengths, num_ranks = problem.batch.lengths, problem.topology.num_ranks
    if int(problem.cost.tokens(lengths, result.group_of_item, num_ranks).max()) <= cap:
        return result
    if problem.cost.padded:
        even = _padded(problem, lengths)
    else:
        equal_counts = problem.constraints.equal_counts
        even = solvers.partition(lengths, num_ranks, "auto", time_budget, equal_counts=equal_counts)
    if even.lower_bound > cap:
        raise solvers.InfeasibleError(
            f"{{max_tokens_per_rank}} = {cap} cannot be kept: some rank gets at least {even.lower_bound} tokens "
            f"(bound '{even.bound_name}'), and {even.makespan} would do"
        )
    if even.makespan > cap:
        raise solvers.SolverError(
            f"no plan with at most {{max_tokens_per_rank}} = {cap} was found (best: {even.makespan}) and none was "
            "proven impossible", "raise the cap",
        )  # fmt: skip
    loads = problem.cost.loads(problem.costs, even.group_of_item, num_ranks)
    return replace(
        result, group_of_item=even.group_of_item, loads=loads, makespan=int(loads.max()),
        status=solvers.SolveStatus.FEASIBLE, runtime_s=result.runtime_s + even.runtime_s,
    )  # fmt: skip


class Planner(NamedTuple):
    """How a cut is planned, and what bound there is on a plan of it that was made elsewhere."""

    plan: Callable[[Problem, Any, PlanSettings], Found]  # of a problem and its cut
    bound: Callable[[Any, int, PlanSettings, bool], Bound]  # of what is placed, its makespan, whether to search


PLANNERS = {
    "whole_shares": Planner(_plan_whole_shares, _whole_shares_bound),
    "micro_batches": Planner(plan_slots, slots_bound),
    "pipelines": Planner(plan_pipelines, pipeline_bound),
    "gaps": Planner(plan_in_gaps, pipeline_bound),
    "sequence_groups": Planner(plan_groups, groups_bound),
    "sequence_parallel": Planner(plan_long_short, long_short_bound),
}
"""How each cut is planned, by :attr:`balancer.problem.problem.Problem.cut_name`."""
