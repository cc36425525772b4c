"""From a batch to a dispatch plan, one phase: read this module first.

lengths -> :class:`~balancer.problem.batch.GlobalBatch` -> :class:`~balancer.problem.problem.Problem`
-> the room of its cut (:mod:`balancer.cuts.rooms`), which asks a solver and puts groups on ranks
-> :class:`~balancer.plan.dispatch_plan.DispatchPlan`, with a lower bound beside it.
"""

from __future__ import annotations

import time
from dataclasses import replace
from fractions import Fraction
from typing import Any, Unpack

import numpy as np
from numpy.typing import ArrayLike, NDArray

import solvers
from balancer.cost import CostModel, parse_cost
from balancer.cost.given import given_costs
from balancer.cuts.near_home import effective
from balancer.cuts.rooms import ROOMS
from balancer.plan.dispatch_plan import DispatchPlan
from balancer.problem.batch import GlobalBatch
from balancer.problem.constraints import Constraints, KeptArguments, with_kept
from balancer.problem.cuts import Cut, as_cut
from balancer.problem.limits import held_limits
from balancer.problem.problem import Problem
from balancer.problem.settings import EPS, STOP_AT, PlanSettings, default_placement
from balancer.problem.topology import Topology, check_topology
from solvers.bounds import Bound
from solvers.errors import ArgumentError


@with_kept
def balance(
    lengths: ArrayLike,
    num_ranks: int,
    ranks_per_node: int | None = None,
    home_rank: ArrayLike | None = None,
    cost: str | CostModel | ArrayLike = "linear",
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
    cost : str, CostModel, or float64[n] or int64[n]
        ``"linear"``, ``"quadratic:a=24576,b=1"`` for a*l + b*l^2, ``"attention:a=24576,full=8,window1024=40"`` for
        layers that see less, ``"flops:qwen2-7b"`` for either from a model's shape, ``"padded"`` for rows times the
        longest row, or ``"convolution:a=24576,b=1,c=100,p=1"`` for the sum of a*l + b*l^2 and rows times c * longest^p.
        Or one number a sample, finite and at least 0, such as measured seconds or loss tokens, for whole shares and
        micro-batches; caps are on lengths then as always. Numbers with fractions are scaled and rounded once.
    method : str
        A name in :data:`balancer.problem.settings.METHODS`; ``"auto"`` suits every cost and constraint.
    cut : Cut, optional
        How the step is cut; by default each rank computes whole samples, all of them before ranks wait for each other.
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
    by_name = isinstance(cost, str | CostModel)
    model = parse_cost(cost if by_name else "linear")  # type: ignore[arg-type]
    asked: dict[str, Any] = {**kept}
    prefix, prefix_length = asked.pop("prefix", None), asked.pop("prefix_length", None)
    # The same argument means two things: what a mask lets see each other, or what of a sample is its prompt.
    own = prefix_length if model.needs_prefixes else None
    if prefix is not None or (prefix_length is not None and own is None):
        asked["prefix"] = prefix, prefix_length
    batch = GlobalBatch.from_lengths(lengths, topology.num_ranks, home_rank, own)
    constraints = Constraints.from_given(len(batch.lengths), topology.num_ranks, **asked)
    limits = settings.cut.limits
    held = held_limits(limits, len(batch.lengths), topology.num_ranks) if limits else None
    given = None if by_name else _given(cost, len(batch.lengths))  # type: ignore[arg-type]
    problem = Problem.from_batch(batch, topology, model, constraints, settings.cut, limits=held, given=given)
    return plan_problem(problem, settings)


def _given(cost: ArrayLike, count: int) -> NDArray[np.int64]:
    """Return costs that a caller has of each sample: int64[count]."""
    found = given_costs("cost", cost, count)
    if found.ndim > 1:
        raise ArgumentError("cost", f"have one number for each of {count} samples", f"shape {found.shape}")
    return found


def plan_problem(problem: Problem, settings: PlanSettings) -> DispatchPlan:
    """Solve a problem as its cut is solved, and make the plan."""
    started = time.perf_counter()
    plan = ROOMS[problem.cut.name].plan(problem, problem.cut, settings)
    return _stamped(plan, settings, started)


def replay_plan(
    placed: DispatchPlan,
    settings: PlanSettings,
    *,
    known: Bound | None = None,
    fell_back: str = "",
    search: bool = False,
) -> DispatchPlan:
    """Make the plan of samples that are placed already, with loads and bound computed anew.

    The bound is the closed-form one, or the one that is `known` to hold, whichever is larger. Where the closed form
    leaves a gap, `search` solves the problem again for the bound that this proves, unless the method reads a clock:
    two runs of such a method differ, so that a bound would be another each time.
    """
    started, plan = time.perf_counter(), placed.measured()
    bound = ROOMS[plan.cut.name].bound(plan, settings, search and settings.method not in solvers.USES_CLOCK)
    if known is not None and known.value > bound.value:
        bound = known
    return _stamped(plan.finished(bound, settings, fell_back=fell_back), settings, started)


def _stamped(plan: DispatchPlan, settings: PlanSettings, started: float) -> DispatchPlan:
    """Return a plan that says how its samples came to ranks, and how long that took."""
    placement = effective(plan.problem, settings.placement)
    return replace(plan, placement=placement, runtime_s=time.perf_counter() - started)
