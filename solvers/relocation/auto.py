"""Relocation within a budget of work: exact amounts from rank to rank, and swaps where that is not enough."""

import dataclasses
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from solvers._budget import work_units
from solvers._sort import sort_descending
from solvers.arguments import INT64_MAX
from solvers.bounds import Bound
from solvers.errors import SolverError
from solvers.groups import group_loads, read_only
from solvers.partitioning import partition
from solvers.partitioning._problem import PartitionProblem
from solvers.partitioning.even_counts import assign_even
from solvers.partitioning.lower_target import lower_target
from solvers.partitioning.portfolio import improve_starts
from solvers.relocation._exchange import exchange_nodes
from solvers.relocation._pairs import WORK_A_RANK, WORK_TO_FIT, Totals, share_anew, share_to_fit
from solvers.relocation._place import change_ranks, place_groups
from solvers.relocation._problem import RelocationProblem
from solvers.relocation._search import (
    KEPT_SLACK,
    MOST_SLACK,
    Way,
    fix_counts,
    fix_sizes,
    relocate_kernel,
    return_home,
)
from solvers.relocation._stand_by import stand_by
from solvers.relocation.bounds import inter_bound, plain_inter_bound

_ROUNDS = 3
_FEW_A_RANK = 32  # items, of which there are too few sums of three
_LEAST_WORK = 100  # units an item, which a search always gets
_LEAST_WORK_OF_SWAPS = 300  # where every move is one
_MOST_KEPT = 1000  # nor more than one part of the cap in so many, where items change places
_MOST_SCALE = 1 << 20  # of volume for cost: finer does not matter
_NO_ORDER = np.empty(0, dtype=np.int32)
_FAR = 100  # one part in so many of all volume more than what must cross
_SHARE_TO_FIT = 8  # one part in so many of the work
_SECONDS_OF_A_NODE = 0.0005  # worth of work
_PARTITION_SHARE = 0.1  # of the budget: past a few milliseconds the makespan falls by less than a part per million


@dataclasses.dataclass(frozen=True, slots=True)
class Reference:
    """What the cap is measured by, and an answer that keeps it."""

    makespan: int  # M: that of a partition under the same constraints, or of the homes where it is smaller
    group_of_item: NDArray[np.int32]  # int32[n]: the groups of the partition
    partition_makespan: int
    least_makespan: int  # proven: no assignment has a smaller one; 0 where the caller gave the groups


def reference(problem: RelocationProblem, time_budget: float, groups: NDArray[np.int32] | None = None) -> Reference:
    """Partition without homes, unless the caller has done so, and the makespan that caps are relative to."""
    proven = 0
    if groups is None:
        caps = None if problem.sizes is None else problem.room
        found = partition(
            problem.costs, problem.num_ranks, time_budget=time_budget * _PARTITION_SHARE,
            equal_counts=problem.equal_counts, sizes=problem.sizes, caps=caps,
        )  # fmt: skip
        groups, proven = found.group_of_item, found.lower_bound
    reached, _ = problem.measured(groups)
    at_home, fits = problem.measured(problem.affinity.home)
    makespan = at_home if at_home < reached and fits else reached
    return Reference(makespan, groups, reached, proven)


def cap_of(problem: RelocationProblem, makespan: int, eps: Fraction) -> int:
    """``max(c_max, floor((1 + eps) M))``, within int64."""
    return max(problem.largest, min(makespan + eps.numerator * makespan // eps.denominator, INT64_MAX))


def _quotas(counts: NDArray[np.int64], num_items: int) -> NDArray[np.int64]:
    """How many items each rank shall hold: n/m, within one where m does not divide n, near to what it holds."""
    few, longer = divmod(num_items, len(counts))
    quota = np.full(len(counts), few, dtype=np.int64)
    quota[np.argsort(-counts, kind="stable")[:longer]] += 1
    return quota


def _start(problem: RelocationProblem) -> NDArray[np.int32]:
    """Homes, with counts and sizes put right if need be."""
    where = problem.affinity.home.copy()
    m = problem.num_ranks
    if problem.equal_counts:
        counts = np.bincount(where, minlength=m).astype(np.int64)
        quota = _quotas(counts, len(where))
        if (counts != quota).any():
            fix_counts(problem.order, problem.nodes, where, quota, counts)
    if problem.sizes is not None:
        held = group_loads(problem.sizes, where, m)
        if (held > problem.room).any():
            by_size = np.argsort(-problem.sizes, kind="stable")
            fix_sizes(by_size, read_only(problem.sizes), problem.nodes, where, held, problem.room)
    return where


def come_back(problem: RelocationProblem, where: NDArray[np.int32], cap: int) -> None:
    """Let whatever fits at home under the cap return there, what crossed first, the largest volumes first."""
    if problem.equal_counts or problem.counts is not None:
        return
    sequence, leave = problem.order, problem.affinity.leave_node
    if not problem.volumes_are_costs:
        moved = np.flatnonzero(where != problem.affinity.home)
        sequence = moved[np.argsort(-leave[moved], kind="stable")].astype(np.int32)
    return_home(problem.items, problem.nodes, problem.limits(cap), where, sequence)


def _move_amounts(
    problem: RelocationProblem,
    where: NDArray[np.int32],
    cap: int,
    work: int,
    rounds: int = _ROUNDS,
    nodes_first: bool = False,
    own_slack: bool = False,
) -> int:
    """Bring loads under `cap` by exact amounts, inside nodes and then `rounds` times across. Returns the work left.

    As :func:`relocate_kernel`.
    """
    items, by_cost = problem.items, problem.volumes_are_costs
    if by_cost and problem.affinity.rows is None:  # then costs are searched, which is faster
        items = items._replace(leave_rank=problem.costs, leave_node=problem.costs)
    way = Way(problem.equal_counts, nodes_first, own_slack, rounds)
    cheap_order = read_only(_NO_ORDER if by_cost or not nodes_first else _cheapest_last(problem))
    return int(relocate_kernel(items, problem.nodes, problem.limits(cap), way, cheap_order, where, work))


def _exchange_between_nodes(
    problem: RelocationProblem, where: NDArray[np.int32], cap: int, groups: NDArray[np.int32] | None, work: int
) -> int:
    """Bring nodes under what their ranks may carry by exchanges, counts as they are. Returns the work left.

    Where items are so large that what stands beside them must be small, it comes to them then, and nodes that are over
    after that exchange once more.
    """
    items, nodes, ranks, k = problem.items, problem.nodes, np.diff(problem.nodes.start), problem.num_nodes
    cap = min(cap, problem.total)
    if k == 1 or cap * int(ranks.max()) >= MOST_SLACK:
        return work
    kept = min((cap * problem.num_ranks - problem.total) // (KEPT_SLACK * k), cap // _MOST_KEPT)
    for again in (False, True):
        free = np.ones(len(where), dtype=np.bool_)
        few = len(where) // problem.num_ranks
        if again and groups is not None and few > 1:
            stand_by(items, nodes, groups.copy(), few, cap, where, free)
        work = int(exchange_nodes(items, nodes, cap * ranks - kept, where, free, work))
    return work - problem.num_ranks


def _cheapest_last(problem: RelocationProblem) -> NDArray[np.int32]:
    """Items, those that cross with most volume for their cost first; stable."""
    volume = problem.affinity.leave_node
    scale = INT64_MAX // (int(volume.max(initial=0)) + 1)
    key = volume * min(scale, _MOST_SCALE) // np.maximum(problem.costs, 1)
    return sort_descending(key, int(key.max(initial=0)))[0]


def _repair_nodes(problem: RelocationProblem, where: NDArray[np.int32], cap: int, work: int) -> int:
    """In every node that has a rank over the cap, swaps inside the node, which ignore homes. Returns the work left."""
    loads = group_loads(problem.costs, where, problem.num_ranks)
    node_of_item = problem.nodes.of_rank[where]
    rank_in_node = np.empty(problem.num_ranks, dtype=np.int32)
    for node in sorted(set(problem.nodes.of_rank[loads > cap].tolist())):
        ranks = problem.nodes.ranks[problem.nodes.start[node] : problem.nodes.start[node + 1]]
        rank_in_node[ranks] = np.arange(len(ranks))
        items = problem.order[node_of_item[problem.order] == node]
        groups = rank_in_node[where[items]]
        part = _of_positions(problem.costs[items], len(ranks), problem.equal_counts, cap)
        work = _lower(part, groups, work)
        where[items] = ranks[_divided(part, groups)]
    return work


def _mend(problem: RelocationProblem, where: NDArray[np.int32], cap: int, work: int) -> tuple[bool, int]:
    """Repair nodes where ranks are over the cap; what then still is, shares items anew.

    Returns whether all rules hold then, and the work left.
    """
    if problem.sizes is not None:
        return False, work
    work = _repair_nodes(problem, where, cap, work)
    fits = problem.is_feasible(where, cap)
    if not fits and not problem.equal_counts:
        shared = where.copy()
        most = min(WORK_TO_FIT * len(where), work // _SHARE_TO_FIT)
        share_to_fit(problem.items, problem.nodes, problem.limits(cap), shared, _totals(problem, shared), most)
        if fits := problem.is_feasible(shared, cap):
            where[:] = shared
    return fits, work


def _divided(problem: PartitionProblem, groups: NDArray[np.int32]) -> NDArray[np.int32]:
    """Return `groups`, or where they are over the bound, a partition that is less so, near to them."""
    if (over := _excess(problem, groups)) == 0:
        return groups
    divide = assign_even if problem.equal_counts else improve_starts
    anew, _, _ = divide(problem, work_units(_SECONDS_OF_A_NODE))
    if _excess(problem, anew) >= over:
        return groups
    pairs, pair_of = np.unique(anew.astype(np.int64) * problem.num_groups + groups, return_inverse=True)
    common = np.zeros(len(pairs), dtype=np.int64)  # what a new group and an old one share; most share nothing
    np.add.at(common, pair_of, problem.sorted_costs)
    group_of = np.full(problem.num_groups, -1, dtype=np.int32)
    free = np.ones(problem.num_groups, dtype=np.bool_)
    for pair in np.argsort(-common, kind="stable").tolist():  # what has most in common first
        new, old = divmod(int(pairs[pair]), problem.num_groups)
        if common[pair] > 0 and group_of[new] < 0 and free[old]:
            group_of[new], free[old] = old, False
    group_of[group_of < 0] = np.flatnonzero(free)
    return group_of[anew]


def _excess(problem: PartitionProblem, groups: NDArray[np.int32]) -> int:
    loads = group_loads(problem.sorted_costs, groups, problem.num_groups)
    return int(np.maximum(loads - problem.bound.value, 0).sum())


def _of_positions(costs: NDArray[np.int64], num_groups: int, equal_counts: bool, cap: int) -> PartitionProblem:
    """Return the partition of costs that descend already, done as soon as all loads are within `cap`."""
    return PartitionProblem(_NO_ORDER, costs, int(costs.sum()), num_groups, equal_counts, Bound(cap, "cap"))


def _lower(problem: PartitionProblem, groups: NDArray[np.int32], work: int) -> int:
    """Bring `groups` under the bound, if the work suffices, by swaps. Returns the work left."""
    for keep_counts in (True, False):
        if work > 0 and problem.makespan_of(groups) > problem.bound.value:
            work = lower_target(problem, groups, work, keep_counts=keep_counts)
    return work


def search(
    problem: RelocationProblem, cap: int, work: int, groups: NDArray[np.int32] | None = None
) -> NDArray[np.int32] | None:
    """Return an assignment under `cap` that moves little, or None where the work did not suffice."""
    home = problem.affinity.home
    if problem.is_feasible(home, cap):
        return home
    if problem.counts is not None or (problem.equal_counts and problem.sizes is not None):
        fitted = _fitted(problem, cap, work, groups)
        if fitted is not None or problem.counts is not None:
            return fitted
    where = _start(problem)
    least = (_LEAST_WORK_OF_SWAPS if problem.equal_counts else _LEAST_WORK) * len(problem.costs)
    if _bring_under(problem, where, cap, max(work, least), groups):
        come_back(problem, where, cap)
        return where
    if problem.sizes is not None and not problem.equal_counts:
        return _fitted(problem, cap, work, groups)
    return None


def _fitted(
    problem: RelocationProblem, cap: int, work: int, groups: NDArray[np.int32] | None
) -> NDArray[np.int32] | None:
    """What a simpler search finds, with ranks that hold too much, too many or too few put right; None if they are not.

    It knows no sizes where counts are equal or where it failed with them, and no counts where these are not equal.
    """
    free = dataclasses.replace(problem, counts=None)
    if problem.counts is None:
        free = dataclasses.replace(problem, sizes=None, room=np.zeros_like(problem.room), total_size=0)
    found = search(free, cap, work, groups)
    if found is None or problem.is_feasible(found, cap):
        return found
    where = found.copy()
    most = WORK_TO_FIT * len(where)
    share_to_fit(problem.items, problem.nodes, problem.limits(cap), where, _totals(problem, where), most)
    if not problem.is_feasible(where, cap):
        return None
    come_back(problem, where, cap)
    return where


def _totals(problem: RelocationProblem, where: NDArray[np.int32]) -> Totals:
    """Return what ranks hold."""
    m = problem.num_ranks
    counts = np.bincount(where, minlength=m).astype(np.int64)
    return Totals(group_loads(problem.costs, where, m), group_loads(problem.all_sizes, where, m), counts)


def _bring_under(
    problem: RelocationProblem, where: NDArray[np.int32], cap: int, work: int, groups: NDArray[np.int32] | None
) -> bool:
    """Bring loads under the cap: nodes as if they were ranks, ranks inside nodes, and what is still over, anywhere.

    Returns whether `where` keeps all rules then.
    """
    exchanges = problem.equal_counts and problem.sizes is None
    if exchanges:
        work = _exchange_between_nodes(problem, where, cap, groups, work)
        if work <= 0:
            return False  # nodes that are over the cap are not repaired inside
    left = _move_amounts(problem, where, cap, work, rounds=0, nodes_first=not exchanges, own_slack=True)
    fits = problem.is_feasible(where, cap)
    if not fits:
        fits, left = _mend(problem, where, cap, max(left, 4 * len(where)))
    if not fits:
        left = _move_amounts(problem, where, cap, left)
        fits = problem.is_feasible(where, cap) or _mend(problem, where, cap, max(left, 4 * len(where)))[0]
    return fits


def assign_rearrange(problem: RelocationProblem, cap: int, groups: Reference, time_budget: float) -> NDArray[np.int32]:
    """Lay the partition's groups on ranks. Raises SolverError where they are over the cap."""
    if groups.partition_makespan > cap:
        raise SolverError(
            f"no assignment under {{cap}} = {cap} was found, nor was it proven that there is none: the partition "
            f"reaches {groups.partition_makespan}",
            "raise {cap}, {eps} or {time_budget}",
        )
    return place_groups(problem, groups.group_of_item, time_budget)


def assign_auto(
    problem: RelocationProblem, cap: int, groups: Reference, time_budget: float
) -> tuple[NDArray[np.int32], str]:
    """Return what relocation finds, and where it finds nothing, the partition rearranged, and why.

    Where much more crosses than must, ranks then share their items anew, two at a time.
    """
    found = search(problem, cap, work_units(time_budget), groups.group_of_item)
    if found is not None:
        return _with_ranks_shared(problem, found, cap), ""
    found = assign_rearrange(problem, cap, groups, time_budget)
    shared = _with_ranks_shared(problem, found, cap)
    return shared, "no relocation under the cap was found within the budget" if shared is found else ""


def _with_ranks_shared(problem: RelocationProblem, found: NDArray[np.int32], cap: int) -> NDArray[np.int32]:
    """Return `found`, or where far more crosses than must, an assignment that came of it and of which less moves."""
    affinity, m = problem.affinity, problem.num_ranks
    inter = affinity.volumes_of(found, problem.nodes.of_rank)[0]
    least = affinity.base_inter
    far = int(affinity.leave_node.sum()) // _FAR
    if problem.num_nodes == 1 or inter - least <= far or len(found) >= _FEW_A_RANK * m:
        return found
    bound = -1
    if affinity.rows is None and problem.sizes is None and not problem.equal_counts:  # in one pass
        bound = int(plain_inter_bound(
            read_only(problem.costs), read_only(affinity.leave_node), read_only(affinity.home),
            read_only(problem.nodes.of_rank), problem.num_nodes, min(cap, problem.total),
        ))  # fmt: skip
    if bound < 0:
        bound, _ = inter_bound(problem, cap)
    if inter - bound <= far:
        return found
    where = found.copy()
    totals, enough, work = _totals(problem, where), bound - least, WORK_A_RANK * m
    share_anew(problem.items, problem.nodes, problem.limits(cap), where, totals, enough, work)
    where = change_ranks(problem, where)
    come_back(problem, where, cap)
    return min(found, where, key=lambda way: affinity.volumes_of(way, problem.nodes.of_rank))
