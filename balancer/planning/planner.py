"""From a batch to a dispatch plan, one phase: read this module first.

lengths -> :class:`~balancer.problem.batch.GlobalBatch` -> :class:`~balancer.problem.problem.Problem`
-> a solver's groups -> ranks -> :class:`~balancer.plan.dispatch_plan.DispatchPlan`.

Each way to cut a step has a planner of its own, by name in :data:`PLANNERS`. It returns what it has
:class:`~balancer.planning.found.Found`: the samples in their places, how the solver ended, why samples were not
relocated if they were not, and `prove`, a function that gives the lower bound. The plan calls it with its makespan,
which only the plan knows. No bound needs to prove more than that.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from fractions import Fraction
from typing import Any, NamedTuple, Unpack

from numpy.typing import ArrayLike

import solvers
from balancer.cost import CostModel, parse_cost
from balancer.plan.dispatch_plan import DispatchPlan
from balancer.plan.placed import WholeShares
from balancer.planning.context_shards import plan_shards, shards_bound
from balancer.planning.found import Claim, Found
from balancer.planning.long_short import long_short_bound, plan_long_short
from balancer.planning.micro_batches import plan_slots, slots_bound
from balancer.planning.near_home import effective
from balancer.planning.pipelines import pipeline_bound, plan_in_gaps, plan_pipelines
from balancer.planning.sequence_groups import groups_bound, plan_groups
from balancer.planning.whole_shares import plan_whole_shares, whole_shares_bound
from balancer.problem.batch import GlobalBatch
from balancer.problem.constraints import Constraints, KeptArguments, with_kept
from balancer.problem.cuts import Cut, as_cut
from balancer.problem.limits import held_limits
from balancer.problem.problem import Problem
from balancer.problem.settings import EPS, STOP_AT, PlanSettings, default_placement
from balancer.problem.topology import Topology, check_topology
from solvers.bounds import Bound


@with_kept
def balance(
    lengths: ArrayLike,
    num_ranks: int,
    ranks_per_node: int | None = None,
    home_rank: ArrayLike | None = None,
    cost: str | CostModel = "linear",
    *,
    method: str = "auto",
    cut: Cut | None = None,
    placement: str | None = None,
    eps: float | Fraction = EPS,
    time_budget: float = 0.01,
    stop_at: float | Fraction | str = STOP_AT,
    topology: Topology | None = None,
    **kept: Unpack[KeptArguments],
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
        ``"linear"``, ``"quadratic:a=24576,b=1"`` for a*l + b*l^2, ``"attention:a=24576,full=8,window1024=40"`` for
        layers that see less, ``"flops:qwen2-7b"`` for either from a model's shape, ``"padded"`` for rows times the
        longest row, or ``"convolution:a=24576,b=1,c=100,p=1"`` for the sum of a*l + b*l^2 and rows times c * longest^p.
    method : str
        A name in :data:`balancer.problem.settings.METHODS`; ``"auto"`` suits every cost and constraint.
    cut : Cut, optional
        How the step is cut; by default each rank computes whole samples, all of them before ranks meet.
        ``MicroBatches(8192)``: every rank's share in micro-batches of at most so many elements, the same number on
        every rank. ``SequenceGroups((1, 2, 4), 8192)``: ranks share samples, long ones many ranks and short ones few.
        ``ContextShards(8, 131_072)``: ranks share packs of documents. Each names the constraints that it keeps, and
        the errors those that it does not.
    placement : str, optional
        ``"relocate"``: start from the homes and move only what balance needs, first within nodes, at a makespan of at
        most 1 + `eps` times the best found. If that is not possible, the plan is rearranged, and its ``fell_back``
        says why. ``"rearrange"``: make the best groups found, then give them ranks so that little crosses nodes.
        ``"any"``: group i on rank i. By default ``"relocate"`` if `home_rank` is given or there are several nodes, else
        ``"any"``.
    eps : float or Fraction
        How much larger relocation may make the makespan, as a fraction of it.
    time_budget : float
        Seconds' worth of work for the solver. It is counted and not timed, so every rank computes the same plan.
        Methods in :data:`solvers.USES_CLOCK` are timed: plan with them on one rank, and send the plan to the others.
    stop_at : float, Fraction or str
        The gap that is small enough for whole shares, ``0.001`` or ``"0.1%"``: the search for groups ends as soon as it
        has proven it, or gains nothing for some turns. 0: it goes on until they are proven optimal, or the work is
        spent. Relocation may add `eps` to what is found.
    topology : Topology, optional
        Instead of `ranks_per_node`, for nodes of unequal size.
    equal_counts : bool
        Give every rank n/num_ranks samples, within one where that does not divide.
    max_tokens_per_rank : int, optional
        A cap, never exceeded, on the sum of lengths on a rank.
    min_samples_per_rank, max_samples_per_rank : int, optional
        The least and the most samples of a rank.
    keep_together : int[n] or str[n], optional
        Samples with equal keys run on one rank, adjacent or not, such as the responses to one prompt.
    prefix : int[n] or str[n], optional
        Samples of equal keys begin with one prompt. A rank computes the prompt once for all its samples of this key: it
        pays for each of its prompts, and for what each response adds. On a rank, samples of one key are neighbours.
    prefix_length : int64[n], optional
        The length of each sample's prompt, which is part of its length. For a cost with a mask ``prefix`` without a
        number: how many of its tokens see each other.
    caps : mapping of str to (int64[n], int), optional
        Further quantities by name: the amount of each sample, and the cap on a rank's sum, never exceeded.
    allowed_ranks : sequence of n lists of int, or bool[n, num_ranks], optional
        Where each sample may run: the ranks, None for all of them; or a matrix.
    initial_loads : int64[num_ranks], optional
        Load that ranks have already, in cost units.
    rank_speeds : int64[num_ranks], optional
        Cost units that a rank does in a unit of time; the plan's makespan is then in that time, rounded up.

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
    if topology is None:
        topology = Topology.uniform(num_ranks, ranks_per_node)
    else:
        check_topology(topology)
        if ranks_per_node is not None or topology.num_ranks != num_ranks:
            ranks = f"{topology.num_ranks} ranks: give the same num_ranks (got {num_ranks})"
            raise ValueError(f"topology has {ranks} and no ranks_per_node")
    settings = PlanSettings(
        method,
        default_placement(home_rank is not None, topology.num_nodes) if placement is None else placement,
        eps, time_budget,
        cut=as_cut(cut), stop_at=stop_at,
    )  # fmt: skip
    model = parse_cost(cost)
    asked: dict[str, Any] = {**kept}
    prefix, prefix_length = asked.pop("prefix", None), asked.pop("prefix_length", None)
    # The same argument means two things: what a mask lets see each other, or what of a sample is its prompt.
    own = prefix_length if model.needs_prefixes else None
    if prefix is not None or (prefix_length is not None and own is None):
        asked["prefix"] = prefix, prefix_length
    batch = GlobalBatch.from_lengths(lengths, topology.num_ranks, home_rank, own)
    constraints = Constraints.from_given(len(batch.lengths), topology.num_ranks, **asked)
    limits = held_limits(settings.cut.limits, len(batch.lengths), topology.num_ranks)
    problem = Problem.from_batch(batch, topology, model, constraints, settings.cut, limits=limits)
    return plan_problem(problem, settings)


def plan_problem(problem: Problem, settings: PlanSettings) -> DispatchPlan:
    """Solve a problem as its cut is solved, and make the plan."""
    started = time.perf_counter()
    found = PLANNERS[problem.cut.name].plan(problem, problem.cut, settings)
    return DispatchPlan.from_placed(
        found.placed, found.prove, settings, placement=effective(problem, settings.placement), status=found.status,
        fell_back=found.fell_back, started=started,
    )  # fmt: skip


def replay_plan(
    placed: WholeShares,
    settings: PlanSettings,
    claim: Claim = Claim(),  # noqa: B008 (frozen)
    *,
    search: bool = False,
) -> DispatchPlan:
    """Make the plan of samples that are placed already, with loads and bound computed anew.

    The bound is the closed-form one. Where that leaves a gap, `search` solves the problem again for the bound that this
    proves, unless the method reads a clock. `claim` is what is known of the plan besides, and settles the bound.
    """
    # Two runs of such a method differ, so that a bound would be another each time.
    searched = search and settings.method not in solvers.USES_CLOCK

    def prove(makespan: int) -> Bound:
        bound = PLANNERS[placed.problem.cut.name].bound(placed, makespan, settings, searched)
        return claim.settle(bound, makespan)

    return DispatchPlan.from_placed(
        placed, prove, settings, placement=effective(placed.problem, settings.placement), status=claim.status,
        fell_back=claim.fell_back, started=time.perf_counter(),
    )  # fmt: skip


class Planner(NamedTuple):
    """How a cut is planned, and what bound there is on a plan of it that was made elsewhere."""

    plan: Callable[[Problem, Any, PlanSettings], Found]  # of a problem and its cut
    bound: Callable[[Any, int, PlanSettings, bool], Bound]  # of what is placed, its makespan, whether to search


PLANNERS = {
    "whole_shares": Planner(plan_whole_shares, whole_shares_bound),
    "micro_batches": Planner(plan_slots, slots_bound),
    "pipelines": Planner(plan_pipelines, pipeline_bound),
    "gaps": Planner(plan_in_gaps, pipeline_bound),
    "sequence_groups": Planner(plan_groups, groups_bound),
    "sequence_parallel": Planner(plan_long_short, long_short_bound),
    "context_shards": Planner(plan_shards, shards_bound),
}
"""How each cut is planned, by :attr:`balancer.problem.cuts.Cut.name`."""
