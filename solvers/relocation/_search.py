"""The order in which amounts move: who gives how much to whom, inside nodes first, then across them.

Ranks over the cap are *givers*, ranks with room under it *takers*. A giver gives just its excess, within the *slack*:
what all ranks together may stay below the cap. The largest excess comes first, and goes to a taker whose room suits it.
Where no sum of a giver's items fits, its excess takes a detour over another rank of its node.

The same search balances nodes before, as if they were ranks. :func:`relocate_kernel` is where it begins.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from solvers._jit import helper, kernel
from solvers._loops import numbers, sum_of
from solvers.arguments import INT64_MAX
from solvers.relocation._nodes import list_by_group, settle
from solvers.relocation._problem import NONE, Nodes
from solvers.relocation._transfer import NOW, State, Window, make_scratch, move, transfer

_AHEAD = 8  # givers and takers at the ends of their lists, of which one is chosen: so a choice is O(1)
_TRIES = 4
_LISTING = 6  # work units an item and round
KEPT_SLACK = 4  # a node keeps one part in four
MOST_SLACK = 2**61  # twice that fits int64
_LISTED = np.dtype([("givers", np.int64), ("takers", np.int64)])


class Way(NamedTuple):
    """How amounts are to move."""

    keep_counts: bool  # every rank keeps its number of items
    nodes_first: bool  # nodes are balanced before, as if they were ranks
    own_slack: bool  # each node has just its own room to use
    rounds: int  # how many times across nodes, after all that moves inside them


class _Sides(NamedTuple):
    """Ranks over the cap, and ranks with room. Writable."""

    listed: NDArray[np.void]  # _LISTED[1]: how many there are of each
    givers: NDArray[np.int64]  # int64[m]
    takers: NDArray[np.int64]  # int64[m]
    tried: NDArray[np.int64]  # int64[_TRIES]: takers to which a giver could give nothing


@kernel
def relocate_kernel(items, nodes, limits, way, cheap_order, where, work):
    """Bring loads under the cap, changing `where`: inside nodes, then across. Returns the work left.

    `cheap_order` lists items of most volume for their cost first, or is empty: then volumes are costs. The cap is not
    over the sum of all costs.
    """
    m, n, cap, node = len(limits.room), len(items.costs), limits.cap, nodes.of_rank
    total, positive = sum_of(items.costs), 0
    for i in range(n):
        positive += items.costs[i] > 0
    now = _begin(cap, _slack_under(cap, m, total), m, total // max(positive, 1), np.int64(way.keep_counts), work)
    # 1. Nodes as if they were ranks, so that what crosses is known before ranks are looked at.
    if way.nodes_first:
        _balance_nodes(items, nodes, limits.room, cheap_order, where, now)
    # 2. Whoever is away from home already may go anywhere: leaving adds nothing.
    leave_rank, leave_node = np.zeros(n, np.int64), np.zeros(n, np.int64)
    for i in range(n):
        if where[i] == items.home[i]:
            leave_rank[i] = items.leave_rank[i]
        if node[where[i]] == node[items.home[i]]:
            leave_node[i] = items.leave_node[i]
    # 3. A node whose ranks are nearly full has less to use than one with much room, where each has just its own.
    node_slack = np.zeros(len(nodes.start) - 1 if way.own_slack else 0, np.int64)
    for i in range(n if way.own_slack else 0):
        node_slack[node[where[i]]] += items.costs[i]
    for k in range(len(node_slack)):
        node_slack[k] = _slack_under(cap, nodes.start[k + 1] - nodes.start[k], node_slack[k])
    # 4. Ranks, inside nodes and then across.
    state = _state_of(items, nodes, where, limits.room, (leave_rank, leave_node), np.int64(0), now)
    return _relocate(items, state, node_slack, way.rounds)


@helper
def _balance_nodes(items, nodes, room, cheap_order, where, ranks_now):
    """Bring the sum of each node under what its ranks may carry, as if nodes were ranks. Changes `where` and the work.

    What arrives is put on the rank of the node with the most room, large items first. A node has eight times the items
    of a rank, and so finds exact amounts, and of least volume, where a rank of few items finds none.
    """
    k, start, cap, slack = len(nodes.start) - 1, nodes.start, ranks_now[0]["cap"], ranks_now[0]["slack"]
    widest = np.int64(0)
    for j in range(k):
        widest = max(widest, start[j + 1] - start[j])
    if k == 1 or cap > (MOST_SLACK - 1) // widest:
        return
    # 1. What each node has, and how much of the sizes. Its ranks need some of its slack, which it keeps.
    goal = np.empty(len(where), np.int32)
    for i in range(len(where)):
        goal[i] = nodes.of_rank[where[i]]
    # Rooms are summed with care: all sizes together fit int64, all rooms need not.
    total_size, room_of_node = sum_of(items.sizes), np.zeros(k, np.int64)
    for j in range(k):
        for at in range(start[j], start[j + 1]):
            room_of_node[j] += min(room[nodes.ranks[at]], total_size - room_of_node[j])
    kept = slack // (KEPT_SLACK * k)
    now = _begin(cap * widest - kept, slack - k * kept, k, ranks_now[0]["typical"], ranks_now[0]["keep_counts"],
                 ranks_now[0]["work"])  # fmt: skip
    now[0]["by_volume"], now[0]["plain"] = np.int64(len(cheap_order) > 0), 1
    one_node = Nodes(np.zeros(k, np.int32), numbers(k), np.array([0, k]))
    leaves = (items.leave_node.copy(), items.leave_node.copy())
    state = _state_of(items, one_node, goal, room_of_node, leaves, len(cheap_order), now)
    # 2. One cap for all: a smaller node carries what the ranks that it lacks would.
    for j in range(k):
        state.loads[j] += (widest - start[j + 1] + start[j]) * cap
    if now[0]["by_volume"]:
        list_by_group(cheap_order, goal, True, state.start, state.cheap)
    # 3. Amounts move in one round, all of it inside what looks like one node; what arrives is put on ranks.
    ranks_now[0]["work"] = _relocate(items, state, np.empty(0, np.int64), np.int64(0)) - len(room)
    settle(items.order, goal, nodes, items.costs, now[0]["keep_counts"], where)


@helper
def _begin(cap, slack, num_ranks, typical, keep_counts, work):
    """What a search may do before it has done anything."""
    now = np.zeros(1, dtype=NOW)
    now[0]["cap"], now[0]["slack"], now[0]["active"] = cap, slack, num_ranks
    now[0]["typical"], now[0]["keep_counts"], now[0]["work"] = typical, keep_counts, work
    return now


@helper
def _state_of(items, nodes, where, room, leaves, num_cheap, now):
    """The state of items on ranks; `leaves`: what leaving adds, of ranks and of nodes. Nothing is listed yet."""
    n, m = len(where), len(room)
    loads, held = carried(items, where, m)
    return State(
        items.costs, items.sizes, nodes, room, leaves[0], leaves[1], where, loads, held, np.zeros(m + 1, np.int64),
        np.empty(n, np.int32), np.empty(num_cheap, np.int32), np.zeros(num_cheap + 1, np.int64), now,
    )  # fmt: skip


@helper
def carried(items, where, num_groups):
    """Costs and sizes of each group."""
    loads, held = np.zeros(num_groups, np.int64), np.zeros(num_groups, np.int64)
    for i in range(len(where)):
        loads[where[i]] += items.costs[i]
        held[where[i]] += items.sizes[i]
    return loads, held


@helper
def _slack_under(cap, groups, load):
    """How far `groups` that carry `load` together may stay below `cap` in all; 2^61 at most, 0 at least."""
    each = cap - load // groups
    if each > MOST_SLACK // groups:
        return np.int64(MOST_SLACK)
    return max(0, each * groups - load % groups)


@helper
def _relocate(items, state, node_slack, rounds):
    """Bring loads under the cap, changing the state, as far as the work goes. Returns what is left of it.

    `node_slack`: what each node has to use if that is just its own room, or empty. Twice a slack fits int64.
    """
    m, nodes, now = len(state.loads), state.nodes, state.now
    sides = _Sides(np.zeros(1, dtype=_LISTED), np.empty(m, np.int64), np.empty(m, np.int64), np.empty(_TRIES, np.int64))
    scratch = _listed(items, state)
    # 1. What ranks have over the cap goes to others of their node, which is what crosses nothing.
    least_room = _least_room(state)
    _close_what_fits(state, nodes.ranks, least_room)
    for k in range(len(nodes.start) - 1):
        inside = nodes.ranks[nodes.start[k] : nodes.start[k + 1]]
        if len(node_slack) > 0:
            least_room = _use_own_slack(state, inside, node_slack[k])
        _list_sides(state, inside, least_room, sides)
        _match(state, scratch, sides)
    # 2. What is still over goes anywhere, and from the second round on also to ranks with hardly any room.
    now[0]["crossing"] = 1
    now[0]["by_volume"] = 0  # whose lists are those of the start
    for _ in range(rounds):
        scratch = _listed(items, state)  # as items have moved
        _list_sides(state, nodes.ranks, least_room, sides)
        if sides.listed[0]["givers"] == 0 or now[0]["work"] <= 0:
            break
        _match(state, scratch, sides)
        least_room = np.int64(1)
    return now[0]["work"]


@helper
def _listed(items, state):
    """List the items of each rank, ascending in cost, and make room for transfers between these."""
    state.now[0]["work"] -= _LISTING * len(items.costs)
    list_by_group(items.order, state.where, True, state.start, state.items)
    capacity = np.int64(1)
    for r in range(len(state.loads)):
        capacity = max(capacity, state.start[r + 1] - state.start[r])
    return make_scratch(capacity)


@helper
def _use_own_slack(state, inside, slack):
    """What ranks may stay below the cap is their node's own room, if it has any. Returns the least room of a taker."""
    state.now[0]["slack"], state.now[0]["active"] = slack, len(inside)
    least_room = _least_room(state)
    _close_what_fits(state, inside, least_room)
    return least_room


@helper
def _close_what_fits(state, ranks, least_room):
    """Ranks that fit and have no room worth filling are done."""
    for r in ranks:
        if 0 <= state.now[0]["cap"] - state.loads[r] < least_room:
            _close(state, r)


@helper
def _least_room(state):
    """How much room a rank must have to be a taker: what it could leave unused anyway is not worth a transfer."""
    return min(_window(state) // 2, state.now[0]["typical"] // 4) + 1


@helper
def _list_sides(state, ranks, least_room, sides):
    """Who is over the cap, and who has at least `least_room` under it."""
    cap, listed = state.now[0]["cap"], sides.listed
    listed[0]["givers"], listed[0]["takers"] = 0, 0
    for r in ranks:
        if state.loads[r] > cap:
            sides.givers[listed[0]["givers"]] = r
            listed[0]["givers"] += 1
        elif cap - state.loads[r] >= least_room:
            sides.takers[listed[0]["takers"]] = r
            listed[0]["takers"] += 1


@helper
def _match(state, scratch, sides):
    """Let givers give to takers until either list ends, or the work."""
    now, givers, listed = state.now, sides.givers, sides.listed
    crossing = now[0]["crossing"]
    now[0]["exchanges"] = 1
    pushes = listed[0]["givers"] if crossing and not now[0]["keep_counts"] else 0
    while listed[0]["givers"] > 0 and listed[0]["takers"] > 0 and now[0]["work"] > 0:
        # 1. The largest excess first, while there is most room to choose from.
        g = _largest_ahead(state, sides)
        giver = givers[g]
        # 2. All ways to give. Those that move least come first, and each costs more than the one before.
        if crossing:
            giver, gave = _give_across(state, scratch, giver, sides)
            givers[g] = giver
        elif now[0]["plain"]:
            gave = _give_plainly(state, scratch, giver, sides)
        else:
            gave = _give(state, scratch, giver, sides)
        # 3. Who still is over goes on, who fits is done, and who found no way makes another rank a giver, or is left.
        if gave:
            if state.loads[giver] > now[0]["cap"]:
                continue
            _close(state, giver)
        elif pushes > 0:
            # Each push makes another rank a giver; as many as there were at first, so that it ends.
            pushes -= 1
            mate = _push(state, giver)
            if mate != NONE:
                _drop_taker(sides, mate)
                givers[g] = mate
                continue
        listed[0]["givers"] -= 1
        givers[g] = givers[listed[0]["givers"]]


@helper
def _largest_ahead(state, sides):
    """Where the giver stands that is most over the cap, of the next few."""
    givers, num_givers = sides.givers, sides.listed[0]["givers"]
    g = num_givers - 1
    for k in range(max(0, num_givers - _AHEAD), num_givers):
        if state.loads[givers[k]] > state.loads[givers[g]]:
            g = k
    return g


@helper
def _give_plainly(state, scratch, giver, sides):
    """By plain sums to any of a few takers, and only then by exchanges. Returns whether it gave."""
    state.now[0]["exchanges"] = 0
    gave = _give(state, scratch, giver, sides)
    state.now[0]["exchanges"] = 1
    return gave or _give(state, scratch, giver, sides)


@helper
def _give_across(state, scratch, giver, sides):
    """By plain sums if possible: exchanges across nodes move more than the excess, exchanges inside one do not cross.

    Returns who gave in the end, and whether it did.
    """
    now, gave = state.now, False
    # 1. Plain sums.
    if not now[0]["keep_counts"]:
        now[0]["exchanges"] = 0
        gave = _give(state, scratch, giver, sides)
    # 2. Another rank of the node may have items of the sums that are needed.
    if not gave and not now[0]["keep_counts"]:
        now[0]["exchanges"], now[0]["crossing"] = 1, 0
        mate = _hand_over(state, scratch, giver)
        now[0]["crossing"] = 1
        if mate != NONE:
            giver = mate
            _drop_taker(sides, mate)
            now[0]["exchanges"] = 0
            gave = _give(state, scratch, giver, sides)
    # 3. Exchanges.
    now[0]["exchanges"] = 1
    if not gave:
        gave = _give(state, scratch, giver, sides)
    return giver, gave


@helper
def _hand_over(state, scratch, giver):
    """Shift the excess of `giver` to another rank of its node, which may have the items to give it; who, or NONE."""
    k, cap = state.nodes.of_rank[giver], state.now[0]["cap"]
    excess = state.loads[giver] - cap
    window = Window(excess, excess + min(_window(state), cap), excess)
    for j in range(state.nodes.start[k], state.nodes.start[k + 1]):
        mate = state.nodes.ranks[j]
        can_take = mate != giver and state.loads[mate] <= cap
        if can_take and transfer(state, scratch, giver, mate, window):
            return mate
    return NONE


@helper
def _push(state, giver):
    """Give the least item that is enough to the emptiest rank of the node, over the cap or not; who has it, or NONE.

    What the cap leaves beside a very large item may be nothing: then the rank that takes it must give all it has, and
    only from there, in small items, does the excess go where there is room.
    """
    node, cap = state.nodes.of_rank[giver], state.now[0]["cap"]
    mate = np.int64(NONE)
    for j in range(state.nodes.start[node], state.nodes.start[node + 1]):
        r = state.nodes.ranks[j]
        if r != giver and (mate == NONE or state.loads[r] < state.loads[mate]):
            mate = r
    excess = state.loads[giver] - cap
    if mate == NONE or state.loads[mate] > cap:
        return NONE
    # Items of a rank ascend, so that the first that is enough is the least.
    for k in range(state.start[giver], state.start[giver + 1]):
        i = state.items[k]
        fits = state.held[mate] + state.sizes[i] <= state.room[mate]
        if state.where[i] == giver and state.costs[i] >= excess and fits:
            move(state, np.int64(i), mate)
            return mate
    return NONE


@helper
def _drop_taker(sides, rank):
    """Take `rank` off the list of takers if it is on it."""
    takers, listed = sides.takers, sides.listed
    for k in range(listed[0]["takers"]):
        if takers[k] == rank:
            listed[0]["takers"] -= 1
            takers[k] = takers[listed[0]["takers"]]
            return


@helper
def _give(state, scratch, giver, sides):
    """Let `giver` give to the first of a few takers with which it works. Returns whether it gave."""
    takers, cap = sides.takers, state.now[0]["cap"]
    num_tried = np.int64(0)
    while num_tried < _TRIES:
        best = _choose_taker(state, giver, sides, num_tried)
        if best == NONE:
            return False
        taker = takers[best]
        if _move_between(state, scratch, giver, taker):
            enough = _window(state)
            if not state.now[0]["keep_counts"]:  # where it is cheap to fill a taker better, it is worth it
                enough = min(enough, state.now[0]["typical"] // 4)
            if cap - state.loads[taker] <= enough:
                _close(state, taker)
                sides.listed[0]["takers"] -= 1
                takers[best] = takers[sides.listed[0]["takers"]]
            return True
        sides.tried[num_tried] = taker
        num_tried += 1
    return False


@helper
def _choose_taker(state, giver, sides, num_tried):
    """Where the taker stands whose room suits the excess best, of the next few that were not tried; NONE: none."""
    cap, typical = state.now[0]["cap"], state.now[0]["typical"]
    takers, tried, num_takers = sides.takers, sides.tried, sides.listed[0]["takers"]
    excess = state.loads[giver] - cap
    fine = min(_window(state), typical // 4)
    best, best_class, best_room = NONE, 3, np.int64(0)
    for k in range(max(0, num_takers - _AHEAD), num_takers):
        seen = False
        for t in range(num_tried):
            seen |= tried[t] == takers[k]
        if seen:
            continue
        room = cap - state.loads[takers[k]]
        kind = _class_of(excess, room, fine, typical // 2)
        if kind < best_class or (kind == best_class and room > best_room):
            best, best_class, best_room = k, kind, room
    return best


@helper
def _class_of(excess, room, fine, comfortable):
    """0: both are done after it; 1: the one that is not can go on well; 2: it has little left, which is hard."""
    if excess <= room:
        left = _left(room, excess)
        return 0 if left <= fine else 1 if left >= comfortable else 2
    return 1 if excess - room >= comfortable else 2


@helper
def _left(room, excess):
    """What is left of the room of a taker, within int64: who hands on for another may be far below the cap itself."""
    return min(room, INT64_MAX + min(excess, 0)) - excess


@helper
def _move_between(state, scratch, giver, taker):
    """Move the excess of the giver, or as much of it as the taker has room for. Returns whether that worked."""
    cap = state.now[0]["cap"]
    excess, room = state.loads[giver] - cap, cap - state.loads[taker]
    slack = _window(state)
    if excess <= room:
        window = Window(excess, excess + min(slack, _left(room, excess)), excess)
        return transfer(state, scratch, giver, taker, window)
    # A taker that is nearly full might else take next to nothing, again and again.
    return transfer(state, scratch, giver, taker, Window(max(1, room - min(slack, room // 2)), room, room))


@helper
def _window(state):
    """How much of the slack one rank may take now."""
    # Twice its part: most ranks take less than theirs, and what they leave is for the others.
    slack = max(state.now[0]["slack"], 0)
    return min(slack, 2 * slack // max(state.now[0]["active"], 1))


@helper
def _close(state, rank):
    """The rank is done: what it has below the cap is slack used."""
    state.now[0]["slack"] -= state.now[0]["cap"] - state.loads[rank]
    state.now[0]["active"] -= 1
