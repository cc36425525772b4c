"""Whole shares of a step: a solver's groups, then the rank of each group."""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

import solvers
from balancer.cuts.near_home import place
from balancer.plan.dispatch_plan import DispatchPlan
from balancer.problem.cuts import Cut
from balancer.problem.placement import Placement
from balancer.problem.problem import Problem
from balancer.problem.settings import PlanSettings, check_method
from balancer.problem.smallest_cap import with_smallest_cap
from solvers.bounds import Bound, makespan_bound
from solvers.partitioning.prefix_bound import prefix_bound


def plan_whole_shares(problem: Problem, cut: Cut, settings: PlanSettings) -> DispatchPlan:
    """Solve for groups, then give these to ranks."""
    result = _solve(problem, settings)
    found = place(problem, result.group_of_item, settings.placement, settings.eps)
    plan = DispatchPlan(problem, _placed(problem, found.rank_of_sample))
    bound = Bound(result.lower_bound, result.bound_name)
    return plan.finished(bound, settings, status=result.status, fell_back=found.fell_back)


def _placed(problem: Problem, rank_of_sample: NDArray[np.int32]) -> Placement:
    """Return each rank's samples in order, those of one prompt side by side."""
    num_ranks, shared = problem.topology.num_ranks, problem.constraints.prefix
    if shared is None:
        return Placement.by_sample_order(rank_of_sample, num_ranks)
    return shared.side_by_side(rank_of_sample, num_ranks)


def whole_shares_bound(plan: DispatchPlan, settings: PlanSettings, search: bool) -> Bound:
    """Return the best bound on shares that were not planned here."""
    problem = plan.problem
    bound = closed_form_bound(problem)
    if plan.makespan == bound.value or not search or problem.cost.padded:
        return bound
    result = _solve(problem, settings)
    return Bound(result.lower_bound, result.bound_name)


def closed_form_bound(problem: Problem) -> Bound:
    """Return the best closed-form bound on what a step takes."""
    num_ranks, constraints = problem.topology.num_ranks, problem.constraints
    if not constraints.names():
        return problem.cost.lower_bound(problem.costs, num_ranks)
    if constraints.prefix is not None and problem.prompts is not None:
        keys, equal = constraints.prefix.keys, constraints.equal_counts
        return Bound(prefix_bound(problem.costs, num_ranks, keys, problem.prompts, equal_counts=equal), "parts")
    if not problem.cost.additive:
        return problem.cost.lower_bound(
            problem.costs, num_ranks, constraints.equal_counts, constraints.min_samples_per_rank
        )
    return makespan_bound(problem.costs, num_ranks, **constraints.solver_keywords(problem.batch.lengths))


def _solve(problem: Problem, settings: PlanSettings) -> solvers.PartitionResult:
    method, time_budget = check_method(settings.method, problem.cost), settings.time_budget
    num_ranks, constraints = problem.topology.num_ranks, problem.constraints
    if not problem.cost.additive:
        return _solve_padded(problem, method, time_budget)
    keywords, constant = constraints.solver_keywords(problem.batch.lengths), _equal_constant(problem)
    # A part that all ranks have alike hides differences: relative gaps of what is left are larger, and searches go
    # on.
    costs = problem.costs - constant if constant else problem.costs
    if problem.prompts is not None:
        keywords["prefix_costs"] = problem.prompts
    try:
        result = solvers.partition(costs, num_ranks, method, time_budget, stop_at=settings.stop_at, **keywords)
    except solvers.SolverError as error:
        caps = constraints.all_caps(problem.batch.lengths)
        told = with_smallest_cap(error, caps, keywords, num_ranks)
        raise told.in_words(constraints.wording(error)) from None
    return _with_constant(result, constant * (len(problem.costs) // num_ranks))


def _equal_constant(problem: Problem) -> int:
    """Return what every sample costs alike, where all ranks get equally many: methods do better without it."""
    kept, constant, num_ranks = problem.constraints, problem.cost.constant, problem.topology.num_ranks
    even = (
        kept.equal_counts and kept.prefix is None and len(problem.costs) % num_ranks == 0 and kept.rank_speeds is None
    )
    return constant if even and constant and problem.batch.lengths.all() else 0


def _with_constant(result: solvers.PartitionResult, constant: int) -> solvers.PartitionResult:
    """Return a result with what each group costs besides."""
    if not constant:
        return result
    makespan, bound = result.makespan + constant, result.lower_bound + constant
    return replace(result, loads=result.loads + constant, makespan=makespan, lower_bound=bound)


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
            raise error.in_words(kept.wording(error)) from None
    cap = kept.max_tokens_per_rank
    return result if cap is None else _under_cap(problem, result, cap, time_budget)


def _padded(problem: Problem, costs: NDArray[np.int64]) -> solvers.PartitionResult:
    kept, num_ranks = problem.constraints, problem.topology.num_ranks
    return solvers.padded(costs, num_ranks, equal_counts=kept.equal_counts, min_items=kept.min_samples_per_rank)


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
        even = solvers.partition(lengths, num_ranks, "auto", time_budget, equal_counts=equal_counts, stop_at=0)
    if even.lower_bound > cap:
        raise solvers.InfeasibleError(
            f"{{max_tokens_per_rank}} = {cap} cannot be kept: some rank gets at least {even.lower_bound} tokens "
            f"(bound '{even.bound_name}'), and {even.makespan} is enough"
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
