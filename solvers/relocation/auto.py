"""Relocation within a budget of work: exact amounts from rank to rank, and swaps where that is not enough.

The way of an assignment, in the order of this file:

1. :func:`reference`: a partition that knows no homes. Its makespan gives the cap, and it is what is fallen back on.
2. :func:`search`: from the homes, put right where ranks hold too many or too much (:func:`_start`), amounts move until
   no load is over the cap (:func:`_bring_under`). What fits at home after that returns (:func:`come_back`).
3. :func:`place_groups`, where the search found nothing: the partition's groups, laid on ranks.
4. :func:`_with_ranks_shared`, where far more crosses nodes than must: ranks share their items anew, two at a time.

The kernels: amounts in `_search.py` (who gives to whom) and `_transfer.py` (which items), whole nodes in `_nodes.py`,
two ranks in `_pairs.py`; those that just pass over all items are here.
"""

import dataclasses
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from solvers._budget import work_units
from solvers._jit import kernel
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
from solvers.rearrangement import group_volumes, rearrange
from solvers.relocation._nodes import exchange_nodes, first_of, hold, stand_by, update
from solvers.relocation._pairs import WORK_A_RANK, WORK_TO_FIT, Totals, share_anew, share_to_fit
from solvers.relocation._problem import NONE, RelocationProblem
from solvers.relocation._search import KEPT_SLACK, MOST_SLACK, Way, carried, relocate_kernel
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
_LEAST_SECONDS = 0.1  # worth of work to lay groups on ranks: for thousands of these it is enough for the optimum


LAID = "no relocation under the cap was found within the budget"
"""Why groups are laid on ranks."""

SHARED = f"{LAID}; ranks share anew what the laid groups brought them"
"""The same, where samples are nearer home than whole groups can be."""


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
            equal_counts=problem.equal_counts, sizes=problem.sizes, caps=caps, stop_at=0,
        )  # fmt: skip
        groups, proven = found.group_of_item, found.lower_bound
    reached, _ = problem.measured(groups)
    at_home, fits = problem.measured(problem.affinity.home)
    makespan = at_home if at_home < reached and fits else reached
    return Reference(makespan, groups, reached, proven)


def cap_of(problem: RelocationProblem, makespan: int, eps: Fraction) -> int:
    """``max(c_max, floor((1 + eps) M))``, within int64."""
    return max(problem.largest, min(makespan + eps.numerator * makespan // eps.denominator, INT64_MAX))


def assign_auto(
    problem: RelocationProblem, cap: int, measure: Reference, time_budget: float
) -> tuple[NDArray[np.int32], str]:
    """Return what relocation finds; or the partition rearranged, and why: :data:`LAID` or :data:`SHARED`.

    Where much more crosses than must, ranks share their items anew after either, two at a time. What began as the
    partition moves more all the same, so that it never goes without a reason.
    """
    found = search(problem, cap, work_units(time_budget), measure.group_of_item)
    if found is not None:
        return _with_ranks_shared(problem, found, cap), ""
    found = assign_rearrange(problem, cap, measure, time_budget)
    shared = _with_ranks_shared(problem, found, cap)
    return shared, LAID if shared is found else SHARED


def assign_rearrange(problem: RelocationProblem, cap: int, measure: Reference, time_budget: float) -> NDArray[np.int32]:
    """Lay the partition's groups on ranks. Raises SolverError where they are over the cap."""
    if measure.partition_makespan > cap:
        raise SolverError(
            f"no assignment under {{cap}} = {cap} was found, nor was it proven that there is none: the partition "
            f"reaches {measure.partition_makespan}",
            "raise {cap}, {eps} or {time_budget}",
        )
    return place_groups(problem, measure.group_of_item, time_budget)


# --- the search: from the homes, under the cap -----------------------------------------------------------------------


def search(
    problem: RelocationProblem, cap: int, work: int, groups: NDArray[np.int32] | None = None
) -> NDArray[np.int32] | None:
    """Return an assignment under `cap` that moves little, or None where the work did not suffice."""
    # 1. Where nothing is over, nothing moves.
    home = problem.affinity.home
    if problem.is_feasible(home, cap):
        return home
    # 2. Amounts know one rule beside the cap. What has more of them is searched with one, and then put right.
    if problem.counts is not None or (problem.equal_counts and problem.sizes is not None):
        fitted = _fitted(problem, cap, work, groups)
        if fitted is not None or problem.counts is not None:
            return fitted
    # 3. Homes, put right, then brought under the cap.
    where = _start(problem)
    least = (_LEAST_WORK_OF_SWAPS if problem.equal_counts else _LEAST_WORK) * len(problem.costs)
    if _bring_under(problem, where, cap, max(work, least), groups):
        come_back(problem, where, cap)
        return where
    # 4. Sizes may have been in the way of every amount: first without them.
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
    if not share_to_fit(problem.items, problem.nodes, problem.limits(cap), where, _totals(problem, where), most):
        return None
    come_back(problem, where, cap)
    return where


def _start(problem: RelocationProblem) -> NDArray[np.int32]:
    """Homes, with counts and sizes put right if need be."""
    where = problem.affinity.home.copy()
    m = problem.num_ranks
    if problem.equal_counts:
        # n/m items each, and where m does not divide n, one more for those that hold the most: so the fewest move.
        counts = np.bincount(where, minlength=m).astype(np.int64)
        few, longer = divmod(len(where), m)
        quota = np.full(m, few, dtype=np.int64)
        quota[np.argsort(-counts, kind="stable")[:longer]] += 1
        if (counts != quota).any():
            fix_counts(problem.order, problem.nodes, where, quota, counts)
    if problem.sizes is not None:
        held = group_loads(problem.sizes, where, m)
        if (held > problem.room).any():
            by_size = np.argsort(-problem.sizes, kind="stable")
            fix_sizes(by_size, read_only(problem.sizes), problem.nodes, where, held, problem.room)
    return where


@kernel
def fix_counts(order, nodes, where, quota, counts):
    """Move the cheapest items from ranks over their quota to ranks under it, inside nodes first. O(n + m)."""
    # The first rank that may have a place: quotas are only filled, so that these never go back.
    next_in_node = nodes.start[:-1].copy()
    next_rank = 0
    for crossing in (False, True):
        for p in range(len(order) - 1, -1, -1):
            i = order[p]
            r = where[i]
            if counts[r] <= quota[r]:
                continue
            to = NONE
            if crossing:
                while next_rank < len(quota) and counts[next_rank] >= quota[next_rank]:
                    next_rank += 1
                if next_rank < len(quota):
                    to = next_rank
            else:
                k = nodes.of_rank[r]
                j = next_in_node[k]
                while j < nodes.start[k + 1] and counts[nodes.ranks[j]] >= quota[nodes.ranks[j]]:
                    j += 1
                next_in_node[k] = j
                if j < nodes.start[k + 1]:
                    to = nodes.ranks[j]
            if to != NONE:
                where[i] = to
                counts[r] -= 1
                counts[to] += 1


@kernel
def fix_sizes(by_size, sizes, nodes, where, held, room):
    """Move the largest items off ranks that hold more than they may, to those with most room, inside nodes first.

    O(m + n log m).
    """
    node, ranks, start, m = nodes.of_rank, nodes.ranks, nodes.start, len(nodes.ranks)
    place = np.empty(m, dtype=np.int64)
    for k in range(m):
        place[ranks[k]] = k
    # A tournament of ranks, node by node: who has most room is known after each move, in a node or in all.
    free = (room - held)[ranks]
    by_node = hold(-free, ranks.astype(np.int64), free)
    for crossing in (False, True):
        for i in by_size:
            r = where[i]
            if held[r] <= room[r]:
                continue
            low, high = (0, m) if crossing else (start[node[r]], start[node[r] + 1])
            j = first_of(by_node, low, high, sizes[i])
            if j != NONE:
                to = ranks[j]
                where[i] = to
                held[r] -= sizes[i]
                held[to] += sizes[i]
                for q in (np.int64(r), to):
                    update(by_node, place[q], held[q] - room[q], q, room[q] - held[q])


def _bring_under(
    problem: RelocationProblem, where: NDArray[np.int32], cap: int, work: int, groups: NDArray[np.int32] | None
) -> bool:
    """Bring loads under the cap: nodes as if they were ranks, ranks inside nodes, and what is still over, anywhere.

    Returns whether `where` keeps all rules then.
    """
    # 1. Nodes. Where counts are equal, amounts move as exchanges, for which whole nodes have a search of their own.
    exchanges = problem.equal_counts and problem.sizes is None
    if exchanges:
        done, work = _exchange_between_nodes(problem, where, cap, groups, work)
        if not done or work <= 0:
            return False  # nodes that are over the cap are not repaired inside
    # 2. Ranks inside nodes, where nothing crosses; then swaps there for what no amount brings under the cap.
    left = _move_amounts(problem, where, cap, work, rounds=0, nodes_first=not exchanges, own_slack=True)
    fits = problem.is_feasible(where, cap)
    if not fits:
        fits, left = _mend(problem, where, cap, max(left, 4 * len(where)))
    # 3. What is still over goes anywhere, with all slack there is.
    if not fits:
        left = _move_amounts(problem, where, cap, left)
        fits = problem.is_feasible(where, cap) or _mend(problem, where, cap, max(left, 4 * len(where)))[0]
    return fits


def _exchange_between_nodes(
    problem: RelocationProblem, where: NDArray[np.int32], cap: int, groups: NDArray[np.int32] | None, work: int
) -> tuple[bool, int]:
    """Bring nodes under what their ranks may carry by exchanges, counts as they are.

    Where items are so large that what stands beside them must be small, it comes to them then, and nodes that are over
    after that exchange once more. Returns whether no node is over, and the work left.
    """
    items, nodes, ranks, k = problem.items, problem.nodes, np.diff(problem.nodes.start), problem.num_nodes
    cap = min(cap, problem.total)
    if k == 1 or cap * int(ranks.max()) >= MOST_SLACK:
        return True, work
    # Nodes keep some of the slack, as their ranks need it.
    kept = min((cap * problem.num_ranks - problem.total) // (KEPT_SLACK * k), cap // _MOST_KEPT)
    for again in (False, True):
        free = np.ones(len(where), dtype=np.bool_)
        few = len(where) // problem.num_ranks
        if again and groups is not None and few > 1:
            stand_by(items, nodes, groups.copy(), few, cap, where, free)
        done, work = exchange_nodes(items, nodes, cap * ranks - kept, where, free, work)
        if not done:
            return False, int(work)
    return True, int(work) - problem.num_ranks


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

    As :func:`relocate_kernel`; about O(n log n + m k^2) for k items a rank.
    """
    items, by_cost = problem.items, problem.volumes_are_costs
    if by_cost and problem.affinity.rows is None:  # then costs are searched, which is faster
        items = items._replace(leave_rank=problem.costs, leave_node=problem.costs)
    way = Way(problem.equal_counts, nodes_first, own_slack, rounds)
    cheap_order = read_only(_NO_ORDER if by_cost or not nodes_first else _cheapest_last(problem))
    return int(relocate_kernel(items, problem.nodes, problem.limits(cap), way, cheap_order, where, work))


def _cheapest_last(problem: RelocationProblem) -> NDArray[np.int32]:
    """Items, those that cross with most volume for their cost first; stable."""
    volume = problem.affinity.leave_node
    scale = INT64_MAX // (int(volume.max(initial=0)) + 1)
    key = volume * min(scale, _MOST_SCALE) // np.maximum(problem.costs, 1)
    return sort_descending(key, int(key.max(initial=0)))[0]


def _mend(problem: RelocationProblem, where: NDArray[np.int32], cap: int, work: int) -> tuple[bool, int]:
    """Repair nodes where ranks are over the cap; what then still is, shares items anew.

    Returns whether all rules hold then, and the work left.
    """
    if problem.sizes is not None:  # which swaps ignore
        return False, work
    work = _repair_nodes(problem, where, cap, work)
    fits = problem.is_feasible(where, cap)
    if not fits and not problem.equal_counts:
        shared = where.copy()
        most = min(WORK_TO_FIT * len(where), work // _SHARE_TO_FIT)
        fits = share_to_fit(problem.items, problem.nodes, problem.limits(cap), shared, _totals(problem, shared), most)
        if fits:  # else all the volume that it let cross was for nothing
            where[:] = shared
    return fits, work


def _repair_nodes(problem: RelocationProblem, where: NDArray[np.int32], cap: int, work: int) -> int:
    """In every node that has a rank over the cap, swaps inside the node, which ignore homes. Returns the work left."""
    loads = group_loads(problem.costs, where, problem.num_ranks)
    node_of_item = problem.nodes.of_rank[where]
    rank_in_node = np.empty(problem.num_ranks, dtype=np.int32)
    for node in sorted(set(problem.nodes.of_rank[loads > cap].tolist())):
        # 1. The node alone, as a partition that is done as soon as all loads are within the cap.
        ranks = problem.nodes.ranks[problem.nodes.start[node] : problem.nodes.start[node + 1]]
        rank_in_node[ranks] = np.arange(len(ranks))
        items = problem.order[node_of_item[problem.order] == node]
        groups = rank_in_node[where[items]]
        costs = problem.costs[items]  # they descend already
        part = PartitionProblem(_NO_ORDER, costs, int(costs.sum()), len(ranks), problem.equal_counts, Bound(cap, "cap"))
        # 2. Swaps from what is there, first those that move least.
        for keep_counts in (True, False):
            if work > 0 and part.makespan_of(groups) > cap:
                work = lower_target(part, groups, work, keep_counts=keep_counts)
        # 3. Where these do not end, a partition from scratch.
        where[items] = ranks[_divided(part, groups)]
    return work


def _divided(problem: PartitionProblem, groups: NDArray[np.int32]) -> NDArray[np.int32]:
    """Return `groups`, or where they are over the bound, a partition that is less so, near to them."""
    if (over := _excess(problem, groups)) == 0:
        return groups
    divide = assign_even if problem.equal_counts else improve_starts
    anew = divide(problem, work_units(_SECONDS_OF_A_NODE))[0]
    if _excess(problem, anew) >= over:
        return groups
    # Its groups go to the ranks that hold most of them.
    pairs, pair_of = np.unique(anew.astype(np.int64) * problem.num_groups + groups, return_inverse=True)
    common = np.zeros(len(pairs), dtype=np.int64)  # what a new group and an old one share; most share nothing
    np.add.at(common, pair_of, problem.sorted_costs)
    group_of = np.full(problem.num_groups, NONE, dtype=np.int32)
    free = np.ones(problem.num_groups, dtype=np.bool_)
    for pair in np.argsort(-common, kind="stable").tolist():  # what has most in common first
        new, old = divmod(int(pairs[pair]), problem.num_groups)
        if common[pair] > 0 and group_of[new] == NONE and free[old]:
            group_of[new], free[old] = old, False
    group_of[group_of == NONE] = np.flatnonzero(free)
    return group_of[anew]


def _excess(problem: PartitionProblem, groups: NDArray[np.int32]) -> int:
    loads = group_loads(problem.sorted_costs, groups, problem.num_groups)
    return int(np.maximum(loads - problem.bound.value, 0).sum())


def come_back(problem: RelocationProblem, where: NDArray[np.int32], cap: int) -> None:
    """Let whatever fits at home under the cap return there, what crossed first, the largest volumes first."""
    if problem.equal_counts or problem.counts is not None:
        return
    sequence, leave = problem.order, problem.affinity.leave_node
    if not problem.volumes_are_costs:
        moved = np.flatnonzero(where != problem.affinity.home)
        sequence = moved[np.argsort(-leave[moved], kind="stable")].astype(np.int32)
    return_home(problem.items, problem.nodes, problem.limits(cap), where, sequence)


@kernel
def return_home(items, nodes, limits, where, sequence):
    """Bring back what fits under the cap now: what crossed first, then the rest, in this sequence. O(n) a pass."""
    costs, sizes, home, node = items.costs, items.sizes, items.home, nodes.of_rank
    loads, held = carried(items, where, len(limits.room))
    away, moved, count = np.empty(len(where), np.bool_), np.empty(len(sequence), np.int32), 0
    for i in range(len(where)):
        away[i] = where[i] != home[i]
    for i in sequence:  # in a small array, as the sequence goes to and fro
        if away[i]:
            moved[count] = i
            count += 1
    # Whoever returns leaves room for others, so again and again until nobody does.
    while True:
        returned = 0
        for crossed in (True, False):
            for k in range(count):
                i = moved[k]
                r, h = where[i], home[i]
                if r == h or (node[r] != node[h]) != crossed:
                    continue
                if loads[h] + costs[i] <= limits.cap and held[h] + sizes[i] <= limits.room[h]:
                    where[i] = h
                    loads[r] -= costs[i]
                    loads[h] += costs[i]
                    held[r] -= sizes[i]
                    held[h] += sizes[i]
                    returned += 1
        if returned == 0:
            return


# --- the partition's groups, laid on ranks ---------------------------------------------------------------------------


def place_groups(problem: RelocationProblem, group_of_item: NDArray[np.int32], time_budget: float) -> NDArray[np.int32]:
    """Rank of each item when whole groups go to ranks, one each: least across nodes, and then least inside them."""
    affinity, m = problem.affinity, problem.num_ranks
    if affinity.rows is None:
        volumes = group_volumes(group_of_item, affinity.home, affinity.leave_node, m)
    else:
        offsets, ranks, parts = affinity.rows
        volumes = group_volumes(np.repeat(group_of_item, np.diff(offsets)), ranks, parts, m)
    found = rearrange(volumes, problem.nodes.of_rank, time_budget=max(time_budget, _LEAST_SECONDS))
    placed = found.rank_of_group[group_of_item]
    if problem.sizes is not None and (group_loads(problem.sizes, placed, m) > problem.room).any():
        return group_of_item  # caps differ from rank to rank, and the groups were made to fit as they are
    return placed


# --- ranks share their items anew ------------------------------------------------------------------------------------


def _with_ranks_shared(problem: RelocationProblem, found: NDArray[np.int32], cap: int) -> NDArray[np.int32]:
    """Return `found`, or where far more crosses than must, an assignment that came of it and of which less moves."""
    # 1. Is it far? What crosses if all stay is known at once, a bound under the cap takes a pass or more.
    affinity, m = problem.affinity, problem.num_ranks
    inter = affinity.volumes_of(found, problem.nodes.of_rank)[0]
    least = affinity.base_inter
    far = int(affinity.leave_node.sum()) // _FAR
    if problem.num_nodes == 1 or inter - least <= far or len(found) >= _FEW_A_RANK * m:
        return found
    bound = _bound(problem, cap)
    if inter - bound <= far:
        return found
    # 2. Two ranks after another, until no more crosses than must, or the work is done.
    where = found.copy()
    totals, enough, work = _totals(problem, where), bound - least, WORK_A_RANK * m
    share_anew(problem.items, problem.nodes, problem.limits(cap), where, totals, enough, work)
    # 3. That looked at nodes alone: whole ranks of a node change places, and items return, so that more is at home.
    where = change_ranks(problem, where)
    come_back(problem, where, cap)
    return min(found, where, key=lambda way: affinity.volumes_of(way, problem.nodes.of_rank))


def _bound(problem: RelocationProblem, cap: int) -> int:
    """As :func:`inter_bound`, in one pass where that is possible."""
    affinity = problem.affinity
    if affinity.rows is None and problem.sizes is None and not problem.equal_counts:
        bound = int(plain_inter_bound(
            read_only(problem.costs), read_only(affinity.leave_node), read_only(affinity.home),
            read_only(problem.nodes.of_rank), problem.num_nodes, min(cap, problem.total),
        ))  # fmt: skip
        if bound >= 0:
            return bound
    return inter_bound(problem, cap)[0]


def _totals(problem: RelocationProblem, where: NDArray[np.int32]) -> Totals:
    """Return what ranks hold."""
    m = problem.num_ranks
    counts = np.bincount(where, minlength=m).astype(np.int64)
    return Totals(group_loads(problem.costs, where, m), group_loads(problem.all_sizes, where, m), counts)


def change_ranks(problem: RelocationProblem, where: NDArray[np.int32]) -> NDArray[np.int32]:
    """Let the ranks of each node change what they hold among themselves, so that more is at home.

    Not where their caps differ. Greedy: O(m times the ranks of a node, sorted).
    """
    affinity, m = problem.affinity, problem.num_ranks
    if problem.sizes is not None and (problem.room != problem.room[0]).any():
        return where
    # What every rank holds that is at home on each rank of its node: most pairs share nothing.
    width = int(np.diff(problem.nodes.start).max())
    place = np.empty(m, dtype=np.int64)  # of a rank in its node
    place[problem.nodes.ranks] = np.arange(m) - np.repeat(problem.nodes.start[:-1], np.diff(problem.nodes.start))
    stays = np.flatnonzero(problem.nodes.of_rank[where] == problem.nodes.of_rank[affinity.home])
    volumes = np.zeros(m * width, dtype=np.int64)
    np.add.at(volumes, where[stays].astype(np.int64) * width + place[affinity.home[stays]], affinity.leave_rank[stays])
    rank_of_group = np.full(m, NONE, dtype=np.int32)
    _most_in_common(
        read_only(volumes), np.argsort(-volumes, kind="stable"), width, problem.nodes.of_rank, problem.nodes.start,
        problem.nodes.ranks, rank_of_group,
    )  # fmt: skip
    return rank_of_group[where]


@kernel
def _most_in_common(volumes, order, width, node_of_rank, node_start, ranks_by_node, rank_of_group):
    """Each group and rank of a node that have most in common first; what is left over by number."""
    taken = np.zeros(len(rank_of_group), np.bool_)
    for at in order:
        if volumes[at] == 0:
            break
        group = at // width
        rank = ranks_by_node[node_start[node_of_rank[group]] + at % width]
        if rank_of_group[group] == NONE and not taken[rank]:
            rank_of_group[group], taken[rank] = rank, True
    for node in range(len(node_start) - 1):
        free = node_start[node]
        for at in range(node_start[node], node_start[node + 1]):
            if rank_of_group[ranks_by_node[at]] == NONE:
                while taken[ranks_by_node[free]]:
                    free += 1
                rank_of_group[ranks_by_node[at]], taken[ranks_by_node[free]] = ranks_by_node[free], True
