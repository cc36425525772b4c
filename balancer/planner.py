"""From a batch to a dispatch plan, one phase: the staircase to read first.

lengths -> :class:`~balancer.batch.GlobalBatch` -> :class:`~balancer.problem.Problem` -> a solver's groups
-> ranks -> :class:`~balancer.plan.DispatchPlan`.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

import solvers
from balancer.batch import GlobalBatch
from balancer.constraints import Constraints
from balancer.cost import CostModel, parse_cost
from balancer.micro_batches import MicroBatches, check_schedule_name
from balancer.near_home import relocate_schedule
from balancer.placement import Placement
from balancer.placing import PLACEMENTS, check_placement, effective, place
from balancer.plan import DispatchPlan
from balancer.problem import Problem
from balancer.schedule import Schedule, make_schedule, schedule_bound
from balancer.smallest_cap import with_smallest_cap
from balancer.topology import Topology
from solvers.bounds import Bound, dual_feasible_bound, late_bound
from solvers.makespan_bounds import makespan_bound
from solvers.relocation import as_eps

__all__ = ["EPS", "METHODS", "PLACEMENTS", "balance", "check_method", "plan_problem", "replay_plan", "warmup"]

METHODS = (*solvers.PARTITIONERS, "padded", "mixed")
"""Every partition method that :func:`balance` takes."""

EPS = 1e-3
"""What relocation may give up of the makespan unless told otherwise, as a fraction."""

COUNTED_METHODS = tuple(method for method in METHODS if method not in solvers.USES_CLOCK)
"""Those whose budget is counted work, so that every rank computes the same plan."""


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
    placement: str | None = None,
    eps: float = EPS,
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
        ``"linear"``, ``"quadratic:a=24576,b=1"`` for a*l + b*l^2, ``"padded"`` for rows times the longest row, or
        ``"convolution:a=24576,b=1,c=100,p=1"`` for the sum of a*l + b*l^2 and rows times c * longest^p.
    method : str
        A name in :data:`METHODS`; ``"auto"`` suits every cost and constraint.
    equal_counts : bool
        Give every rank n/num_ranks samples, within one where that does not divide.
    max_tokens_per_rank : int, optional
        A cap, never exceeded, on the sum of lengths on a rank.
    time_budget : float
        Seconds' worth of work for the solver, counted and not timed: every rank computes the same plan.
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
        Cut every rank's share into micro-batches of at most so many elements: the same number on every rank. Other
        constraints, but not `initial_loads` and `rank_speeds`, hold for a rank's micro-batches together.
    schedule : str
        With micro-batches, where ranks wait for each other: ``"lockstep"`` (in every slot, as with FSDP), ``"step"``
        or ``"pipeline"``; see :class:`balancer.MicroBatches`.
    micro_batches : MicroBatches, optional
        In place of `micro_batch_tokens` and `schedule`, to say more: how many, a multiple of what, over-long samples.
    placement : str, optional
        ``"relocate"``: start from the homes and move only what balance needs, first within nodes, at a makespan of at
        most 1 + `eps` times the best found; with micro-batches, what each rank then has is cut. Where that cannot be,
        ``fell_back`` of the plan says why, and groups are rearranged. ``"rearrange"``: the best partition, its groups
        on the ranks where most of them lies; the makespan is the best found. ``"any"``: groups on ranks as they come.
        By default ``"relocate"`` if `home_rank` is given, else ``"rearrange"``.
    eps : float
        What relocation may give up of the makespan, as a fraction.

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
    elif ranks_per_node is not None or topology.num_ranks != num_ranks:
        raise ValueError(
            f"topology has {topology.num_ranks} ranks: give the same num_ranks (got {num_ranks}) and no ranks_per_node"
        )
    check_schedule_name(schedule)
    if micro_batches is not None and not isinstance(micro_batches, MicroBatches):
        raise TypeError(f"micro_batches must be MicroBatches(max_tokens, ...), got {micro_batches!r}")
    if micro_batch_tokens is not None:
        if micro_batches is not None:
            raise ValueError("give micro_batch_tokens or micro_batches, not both")
        micro_batches = MicroBatches(micro_batch_tokens, schedule)
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
    problem = Problem.of(batch, topology, parse_cost(cost), constraints, micro_batches)
    if placement is None:
        placement = "rearrange" if home_rank is None else "relocate"
    return plan_problem(problem, method, time_budget, placement, eps)


def check_method(method: str, cost: CostModel) -> str:
    """Return the partition method for `cost` by that name, or raise ValueError saying which there are."""
    if method not in METHODS:
        raise ValueError(f"unknown method {method!r}; known methods are {', '.join(METHODS)}")
    own = "padded" if cost.padded else "mixed" if cost.c else None
    if own is not None and method not in ("auto", own):
        raise ValueError(f"method {method!r} does not take cost '{cost}'; methods that do are auto, {own}")
    if own is None and method in ("padded", "mixed"):
        kind = "padded" if method == "padded" else "convolution"
        raise ValueError(f"method {method!r} takes {kind} costs, not cost '{cost}'; use auto")
    return own or method


def plan_problem(
    problem: Problem, method: str = "auto", time_budget: float = 0.01, placement: str = "relocate", eps: float = EPS
) -> DispatchPlan:
    """Solve a problem and make the plan; as :func:`balance`, for who has the problem already."""
    started = time.perf_counter()
    name = check_method(method, problem.cost)
    check_placement(placement)
    as_eps(eps)
    if problem.micro_batches is not None:
        plan = _schedule(problem, problem.micro_batches, method, time_budget, placement, eps, started)
        return replace(plan, placement=effective(problem, placement), eps=eps)
    result = _solve(problem, name, time_budget)
    placed = place(problem, result.group_of_item, placement, eps, time_budget)
    target = Placement.by_sample_order(placed.rank_of_sample, problem.topology.num_ranks)
    bound = Bound(result.lower_bound, result.bound_name)
    plan = _plan(problem, target, bound, method, result.status, started)
    if (better := _bound_beside(problem, bound, plan.makespan)) is not bound:
        plan = _plan(problem, target, better, method, result.status, started)
    return replace(plan, placement=effective(problem, placement), eps=eps, fell_back=placed.fell_back)


def replay_plan(
    problem: Problem,
    target: Placement,
    method: str,
    time_budget: float | None = None,
    slots: tuple[NDArray[np.int32], int] | None = None,
) -> DispatchPlan:
    """Make the plan of a placement that is known already, with loads and bound computed anew.

    The bound is the closed-form one; where it leaves a gap, `time_budget` is given and `method` counts its work, the
    problem is solved again for the bound that its search proves, as it did when the plan was made.
    """
    started = time.perf_counter()
    num_ranks = problem.topology.num_ranks
    bound = _bound(problem)
    plan = _plan(problem, target, bound, method, None, started, slots)
    if plan.makespan > bound.value and _is_plain(problem):
        bound = _bound_by_sums(problem.costs, num_ranks, bound, plan.makespan)
        plan = _plan(problem, target, bound, method, None, started, slots)
    if plan.makespan == bound.value or time_budget is None or method in solvers.USES_CLOCK or problem.cost.padded:
        return plan  # nothing that a search could add
    if problem.micro_batches is not None:
        bound = schedule_bound(problem, problem.micro_batches, plan.num_slots, time_budget)
    else:
        result = _solve(problem, check_method(method, problem.cost), time_budget)
        bound = _bound_beside(problem, Bound(result.lower_bound, result.bound_name), plan.makespan)
    return _plan(problem, target, bound, method, None, started, slots)


def _solve(problem: Problem, method: str, time_budget: float) -> solvers.PartitionResult:
    num_ranks, constraints = problem.topology.num_ranks, problem.constraints
    if not problem.cost.additive:
        costs, equal_counts = problem.costs, constraints.equal_counts
        if method == "padded":
            result = solvers.padded(costs, num_ranks, equal_counts=equal_counts)
        else:
            result = solvers.mixed(
                costs[:, 0], costs[:, 1], num_ranks, equal_counts=equal_counts, time_budget=time_budget
            )
        cap = constraints.max_tokens_per_rank
        return result if cap is None else _under_cap(problem, result, cap, time_budget)
    keywords = constraints.solver_keywords(problem.batch.lengths)
    try:
        return solvers.partition(problem.costs, num_ranks, method, time_budget, **keywords)
    except solvers.SolverError as error:
        error = constraints.in_domain_words(error, problem.batch.numbers)
        raise with_smallest_cap(error, constraints.all_caps(problem.batch.lengths), keywords, num_ranks) from None


def _bound(problem: Problem) -> Bound:
    """Return the best closed-form bound on what a step takes."""
    num_ranks, constraints = problem.topology.num_ranks, problem.constraints
    if not constraints.names():
        return problem.cost.lower_bound(problem.costs, num_ranks)
    if not problem.cost.additive:
        return problem.cost.lower_bound(problem.costs, num_ranks, constraints.equal_counts)
    return makespan_bound(problem.costs, num_ranks, **constraints.solver_keywords(problem.batch.lengths))


def _is_plain(problem: Problem) -> bool:
    """Whether a rank's time is the sum of its samples' costs, and nothing else."""
    kept = problem.constraints
    busy = kept.rank_speeds is not None or kept.initial_loads is not None
    return problem.cost.additive and problem.micro_batches is None and not busy


def _bound_beside(problem: Problem, bound: Bound, makespan: int) -> Bound:
    """Return a better bound than a search under constraints has found, where one holds without them; else `bound`."""
    if makespan == bound.value or not problem.constraints.names() or not _is_plain(problem):
        return bound
    better = _bound_by_sums(problem.costs, problem.topology.num_ranks, bound, makespan)
    return better if better.value > bound.value else bound


def _bound_by_sums(costs: NDArray[np.int64], num_ranks: int, bound: Bound, makespan: int) -> Bound:
    """Return the best bound that takes no search, where the closed-form ones leave a gap."""
    descending = np.sort(costs)[::-1]
    bound = late_bound(descending, int(costs.sum()), num_ranks, bound, makespan)
    return bound if bound.value == makespan else dual_feasible_bound(descending, num_ranks, bound, makespan)


def _schedule(
    problem: Problem,
    micro_batches: MicroBatches,
    method: str,
    time_budget: float,
    placement: str,
    eps: float,
    started: float,
) -> DispatchPlan:
    """Plan rank and slot of every sample; where none is relocated, ranks may exchange all their micro-batches."""
    if method != "auto":
        raise ValueError(f"method {method!r} makes no micro-batches; use 'auto'")
    found = make_schedule(problem, micro_batches, time_budget)
    fell_back = ""
    if placement == "relocate" and problem.topology.num_ranks > 1:
        moved = relocate_schedule(problem, micro_batches, found, eps, time_budget)
        if not isinstance(moved, str):
            return _scheduled(problem, moved, method, started)
        placement, fell_back = "rearrange", moved
    ranks = _place_slots(problem, micro_batches, found, placement, time_budget)
    found = found._replace(rank_of_sample=ranks)
    return replace(_scheduled(problem, found, method, started), fell_back=fell_back)


def _place_slots(
    problem: Problem, micro_batches: MicroBatches, found: Schedule, placement: str, time_budget: float
) -> NDArray[np.int32]:
    """Lay finished micro-batches on ranks: those of each slot by themselves, where no rank's sum counts.

    In lockstep and along a pipeline a step takes the same whichever rank computes which of a slot's micro-batches.
    """
    if micro_batches.schedule == "step" or problem.constraints.names():
        return place(problem, found.rank_of_sample, placement, 0, time_budget).rank_of_sample
    ranks = found.rank_of_sample.copy()
    for slot in range(found.num_slots):
        members = np.flatnonzero(found.slot_of_sample == slot)
        part = place(problem.of_samples(members), ranks[members], placement, 0, time_budget / found.num_slots)
        ranks[members] = part.rank_of_sample
    return ranks


def _scheduled(problem: Problem, found: Schedule, method: str, started: float) -> DispatchPlan:
    num_ranks, slots = problem.topology.num_ranks, (found.slot_of_sample, found.num_slots)
    target = Placement.by_slots(found.rank_of_sample, found.slot_of_sample, num_ranks, found.num_slots)
    return _plan(problem, target, found.bound, method, None, started, slots)


def _plan(
    problem: Problem,
    target: Placement,
    bound: Bound,
    method: str,
    status: solvers.SolveStatus | None,
    started: float,
    slots: tuple[NDArray[np.int32], int] | None = None,
) -> DispatchPlan:
    home, costs, num_ranks = problem.batch.home, problem.costs, problem.topology.num_ranks
    constraints, cost = problem.constraints, problem.cost
    loads = constraints.with_initial(cost.loads(costs, target.rank_of_sample, num_ranks))
    makespan = constraints.makespan(loads)
    slot_of_sample, num_slots = slots or (np.zeros(len(costs), dtype=np.int32), 1)
    if problem.micro_batches is not None:
        bins = target.rank_of_sample * np.int32(num_slots) + slot_of_sample
        slot_loads = cost.loads(costs, bins, num_ranks * num_slots).reshape(num_ranks, num_slots)
        makespan = problem.micro_batches.makespan(slot_loads)
    if makespan == bound.value:
        status = solvers.SolveStatus.OPTIMAL
    elif status is None or status is solvers.SolveStatus.OPTIMAL:
        status = solvers.SolveStatus.FEASIBLE
    return DispatchPlan(
        topology=problem.topology,
        cost=cost,
        lengths=problem.batch.lengths,
        home=home,
        target=target,
        home_loads=constraints.with_initial(cost.loads(costs, home.rank_of_sample, num_ranks)),
        loads=loads,
        makespan=makespan,
        lower_bound=bound.value,
        bound_name=bound.name,
        status=status,
        method=method,
        constraints=constraints,
        micro_batches=problem.micro_batches,
        slot_of_sample=slot_of_sample,
        num_slots=num_slots,
        binding_sample=_binding_sample(costs, loads),
        dropped=problem.batch.dropped,
        dropped_lengths=problem.batch.dropped_lengths,
        runtime_s=time.perf_counter() - started,
    )


def _binding_sample(costs: NDArray[np.int64], loads: NDArray[np.int64]) -> int | None:
    """Return the largest sample if it costs more than a fair share of the plan's total load."""
    if len(costs) == 0:
        return None
    costs = costs if costs.ndim == 1 else costs.sum(axis=1)
    largest = int(np.argmax(costs))
    fair_share = -(-int(loads.sum()) // len(loads))
    return largest if costs[largest] > fair_share else None


def _under_cap(
    problem: Problem, result: solvers.PartitionResult, cap: int, time_budget: float
) -> solvers.PartitionResult:
    """Return `result` if it keeps to the token cap; else, at some loss of balance, groups of even token counts."""
    lengths, num_ranks = problem.batch.lengths, problem.topology.num_ranks
    if int(problem.cost.tokens(lengths, result.group_of_item, num_ranks).max()) <= cap:
        return result
    if problem.cost.padded:
        even = solvers.padded(lengths, num_ranks, equal_counts=problem.constraints.equal_counts)
    else:
        equal_counts = problem.constraints.equal_counts
        even = solvers.partition(lengths, num_ranks, "auto", time_budget, equal_counts=equal_counts)
    if even.lower_bound > cap:
        raise solvers.InfeasibleError(
            f"max_tokens_per_rank = {cap} cannot be kept: some rank gets at least {even.lower_bound} tokens "
            f"(bound '{even.bound_name}'), and {even.makespan} would do"
        )
    if even.makespan > cap:
        raise solvers.SolverError(
            f"no plan with at most max_tokens_per_rank = {cap} was found (best: {even.makespan}) and none was proven "
            "impossible; raise the cap"
        )
    loads = problem.cost.loads(problem.costs, even.group_of_item, num_ranks)
    return solvers.PartitionResult(
        even.group_of_item, loads, int(loads.max()), result.lower_bound, result.bound_name,
        solvers.SolveStatus.FEASIBLE, result.method, result.runtime_s + even.runtime_s,
    )  # fmt: skip


def warmup(methods: Sequence[str] = COUNTED_METHODS) -> None:
    """Compile, or load from the cache on disk, every kernel that planning uses; call it before the first step.

    Parameters
    ----------
    methods : sequence of str
        Methods to make ready; by default all but ``exact``, which is not compiled.
    """
    rng = np.random.default_rng(0)
    for num_samples, num_ranks in ((600, 200), (40, 4)):  # many groups take another path than few
        lengths = rng.integers(0, 1000, num_samples)
        for method in methods:
            for equal_counts in (False, True):
                cost = {"padded": "padded", "mixed": "convolution:a=9,b=1,c=2"}.get(method, "linear")
                balance(lengths, num_ranks, cost=cost, method=method, equal_counts=equal_counts).exchange(0)
    lengths = np.arange(1, 40)
    for equal_counts in (False, True):  # from homes, under caps or not
        for cap in (None, 250):
            homes = np.minimum(lengths // 5, 3)
            balance(lengths, 4, 2, homes, "quadratic:a=1,b=1", "auto", equal_counts, cap, placement="relocate")
            balance(lengths, 4, 2, homes, placement="relocate", eps=0, equal_counts=equal_counts)
    for equal_counts in (False, True):  # caps so tight that greedy must be mended
        balance(lengths, 4, cost="quadratic:a=1,b=1", equal_counts=equal_counts, max_tokens_per_rank=198)
    balance(lengths, 4, 2, np.minimum(lengths // 5, 3), keep_together=lengths // 3)
    homes = np.repeat(np.arange(4), [20, 20, 10, 9])
    for schedule, eps in (("lockstep", EPS), ("lockstep", 0.5), ("step", EPS)):  # micro-batches, near home or not
        for tokens in (150, 400):  # which hold all with hardly any room, and with much
            cut = MicroBatches(tokens, schedule)
            balance(np.arange(1, 60), 4, 2, homes, "quadratic:a=9,b=1", micro_batches=cut, eps=eps)
    dual_feasible_bound(np.asarray([3, 2, 2]), 2, Bound(1, "mean"), 4)  # which only gaps that searches leave call for
    if "auto" in methods:  # few items a group: patterns, and dives among them
        solvers.auto(np.random.default_rng(3).integers(350, 1400, 40), 16)
    for equal_counts in (False, True):  # 62 bits of load and 2 of group are more than a packed heap key holds
        solvers.lpt(np.full(15, 2**59), 4, equal_counts=equal_counts)
