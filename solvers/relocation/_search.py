"""The order in which amounts move: inside nodes first, then across them."""

import numpy as np

from solvers._jit import helper, kernel
from solvers._loops import numbers, sum_of
from solvers.arguments import INT64_MAX
from solvers.relocation._exchange import settle
from solvers.relocation._tournament import first_of, hold, update
from solvers.relocation._transfer import (
    ACTIVE,
    BY_VOLUME,
    CAP,
    CROSSING,
    EVERYTHING,
    KEEP_COUNTS,
    MEANS,
    PLAIN,
    PURE,
    SLACK,
    TYPICAL,
    WORK,
    State,
    make_scratch,
    move,
    transfer,
)

_AHEAD = 8
_TRIES = 4
_LISTING = 6  # work units an item and round
KEPT_SLACK = 4  # a node keeps one part in four
MOST_SLACK = 2**61  # twice that fits int64


@helper
def list_residents(order, where, num_ranks, start, items):
    """Items by rank in the sequence of `order` reversed: ascending in cost where `order` descends."""
    start[:] = 0
    for r in where:
        start[r + 1] += 1
    for r in range(num_ranks):
        start[r + 1] += start[r]
    filled = start[:-1].copy()
    for k in range(len(order) - 1, -1, -1):
        i = order[k]
        items[filled[where[i]]] = i
        filled[where[i]] += 1


@helper
def _window(state):
    """How much of the slack one rank may take now."""
    numbers = state.numbers
    slack = max(numbers[SLACK], 0)
    return min(slack, 2 * slack // max(numbers[ACTIVE], 1))


@helper
def _close(state, rank):
    """The rank is done: what it has below the cap is slack used."""
    state.numbers[SLACK] -= state.numbers[CAP] - state.loads[rank]
    state.numbers[ACTIVE] -= 1


@helper
def _left(room, excess):
    """What is left of the room of a taker, within int64: who hands on for another may be far below the cap itself."""
    return min(room, INT64_MAX + min(excess, 0)) - excess


@helper
def _move_between(state, scratch, giver, taker):
    cap = state.numbers[CAP]
    excess, room = state.loads[giver] - cap, cap - state.loads[taker]
    window = _window(state)
    if excess <= room:
        return transfer(state, scratch, giver, taker, excess, excess + min(window, _left(room, excess)), excess)
    # A taker that is nearly full might else take next to nothing, again and again.
    low = max(1, room - min(window, room // 2))
    return transfer(state, scratch, giver, taker, low, room, room)


@helper
def _class_of(excess, room, fine, comfortable):
    if excess <= room:
        left = _left(room, excess)
        return 0 if left <= fine else 1 if left >= comfortable else 2
    return 1 if excess - room >= comfortable else 2


@helper
def _choose_taker(state, giver, takers, num_takers, tried, num_tried):
    cap, typical = state.numbers[CAP], state.numbers[TYPICAL]
    excess = state.loads[giver] - cap
    fine = min(_window(state), typical // 4)
    best, best_class, best_room = -1, 3, np.int64(0)
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
def _give(state, scratch, giver, takers, num_takers, tried):
    """Let `giver` give to the first of a few takers with which it works. Returns the number of takers, or -1."""
    cap = state.numbers[CAP]
    num_tried = np.int64(0)
    while num_tried < _TRIES:
        best = _choose_taker(state, giver, takers, num_takers, tried, num_tried)
        if best < 0:
            return -1
        taker = takers[best]
        if _move_between(state, scratch, giver, taker):
            enough = _window(state)
            if not state.numbers[KEEP_COUNTS]:  # where it is cheap to fill a taker better, it is worth it
                enough = min(enough, state.numbers[TYPICAL] // 4)
            if cap - state.loads[taker] <= enough:
                _close(state, taker)
                num_takers -= 1
                takers[best] = takers[num_takers]
            return num_takers
        tried[num_tried] = taker
        num_tried += 1
    return -1


@helper
def _hand_over(state, scratch, giver, node_start, ranks):
    """Shift the excess of `giver` to another rank of its node, which may have the items to give it. Returns who."""
    k = state.node[giver]
    excess = state.loads[giver] - state.numbers[CAP]
    window = min(_window(state), state.numbers[CAP])
    for j in range(node_start[k], node_start[k + 1]):
        mate = ranks[j]
        can_take = mate != giver and state.loads[mate] <= state.numbers[CAP]
        if can_take and transfer(state, scratch, giver, mate, excess, excess + window, excess):
            return mate
    return -1


@helper
def _push(state, giver, node_start, ranks):
    """Give the least item that is enough to the emptiest rank of the node, over the cap or not. Returns who has it.

    What the cap leaves beside a very large item may be nothing: then the rank that takes it must give all it has, and
    only from there, in small items, does the excess go where there is room.
    """
    k = state.node[giver]
    mate = np.int64(-1)
    for j in range(node_start[k], node_start[k + 1]):
        r = ranks[j]
        if r != giver and (mate < 0 or state.loads[r] < state.loads[mate]):
            mate = r
    excess = state.loads[giver] - state.numbers[CAP]
    if mate < 0 or state.loads[mate] > state.numbers[CAP]:
        return -1
    for k in range(state.start[giver], state.start[giver + 1]):
        i = state.items[k]
        fits = state.held[mate] + state.sizes[i] <= state.room[mate]
        if state.where[i] == giver and state.costs[i] >= excess and fits:
            move(state, np.int64(i), mate)
            return mate
    return -1


@helper
def _drop(members, count, rank):
    """Take `rank` off the list if it is on it. Returns the number left."""
    for k in range(count):
        if members[k] == rank:
            members[k] = members[count - 1]
            return count - 1
    return count


@helper
def _largest_ahead(state, givers, num_givers):
    g = num_givers - 1
    for k in range(max(0, num_givers - _AHEAD), num_givers):
        if state.loads[givers[k]] > state.loads[givers[g]]:
            g = k
    return g


@helper
def _give_across(state, scratch, giver, takers, num_takers, tried, node_start, ranks):
    """By plain sums if possible: exchanges across nodes move more than the excess, exchanges inside one do not cross.

    Returns who gave in the end, and the number of takers or -1.
    """
    numbers = state.numbers
    left = -1
    if not numbers[KEEP_COUNTS]:
        numbers[MEANS] = PURE
        left = _give(state, scratch, giver, takers, num_takers, tried)
    if left < 0 and not numbers[KEEP_COUNTS]:
        numbers[MEANS], numbers[CROSSING] = EVERYTHING, 0
        mate = _hand_over(state, scratch, giver, node_start, ranks)
        numbers[CROSSING] = 1
        if mate >= 0:
            giver = mate
            num_takers = _drop(takers, num_takers, mate)
            numbers[MEANS] = PURE
            left = _give(state, scratch, giver, takers, num_takers, tried)
    numbers[MEANS] = EVERYTHING
    if left < 0:
        left = _give(state, scratch, giver, takers, num_takers, tried)
    return giver, left, num_takers


@helper
def _give_plainly(state, scratch, giver, takers, num_takers, tried):
    """By plain sums to any of a few takers, and only then by exchanges. Returns the number of takers, or -1."""
    state.numbers[MEANS] = PURE
    left = _give(state, scratch, giver, takers, num_takers, tried)
    state.numbers[MEANS] = EVERYTHING
    if left < 0:
        left = _give(state, scratch, giver, takers, num_takers, tried)
    return left


@helper
def match(state, scratch, givers, num_givers, takers, num_takers, tried, node_start, ranks):
    """Let givers give to takers until either list ends, or the work."""
    crossing = state.numbers[CROSSING]
    state.numbers[MEANS] = EVERYTHING
    pushes = num_givers if crossing and not state.numbers[KEEP_COUNTS] else 0
    while num_givers > 0 and num_takers > 0 and state.numbers[WORK] > 0:
        g = _largest_ahead(state, givers, num_givers)
        giver = givers[g]
        if crossing:
            giver, left, num_takers = _give_across(state, scratch, giver, takers, num_takers, tried, node_start, ranks)
            givers[g] = giver
        elif state.numbers[PLAIN]:
            left = _give_plainly(state, scratch, giver, takers, num_takers, tried)
        else:
            left = _give(state, scratch, giver, takers, num_takers, tried)
        if left >= 0:
            num_takers = left
            if state.loads[giver] > state.numbers[CAP]:
                continue
            _close(state, giver)
        elif pushes > 0:
            pushes -= 1
            mate = _push(state, giver, node_start, ranks)
            if mate >= 0:
                num_takers = _drop(takers, num_takers, mate)
                givers[g] = mate
                continue
        num_givers -= 1
        givers[g] = givers[num_givers]


@helper
def _list_sides(state, ranks, least_room, givers, takers):
    """Who is over the cap, and who has at least `least_room` under it. Returns how many of each."""
    cap = state.numbers[CAP]
    num_givers, num_takers = 0, 0
    for r in ranks:
        if state.loads[r] > cap:
            givers[num_givers] = r
            num_givers += 1
        elif cap - state.loads[r] >= least_room:
            takers[num_takers] = r
            num_takers += 1
    return num_givers, num_takers


@helper
def _close_what_fits(state, least_room):
    for r in range(len(state.loads)):
        if 0 <= state.numbers[CAP] - state.loads[r] < least_room:
            _close(state, r)


@helper
def _use_own_slack(state, inside, slack):
    """What ranks may stay below the cap is their node's own room, if it has any. Returns the least room of a taker."""
    numbers = state.numbers
    numbers[SLACK], numbers[ACTIVE] = slack, len(inside)
    least_room = min(_window(state) // 2, numbers[TYPICAL] // 4) + 1
    for r in inside:
        if 0 <= numbers[CAP] - state.loads[r] < least_room:
            _close(state, r)
    return least_room


@helper
def _scratch_for(start):
    capacity = np.int64(1)
    for r in range(len(start) - 1):
        capacity = max(capacity, start[r + 1] - start[r])
    return make_scratch(capacity)


@helper
def _relocate(
    costs, sizes, leave_rank, leave_node, where, node, node_start, ranks, loads, held, room, order, cap, slack, typical,
    keep_counts, cheap_order, plain, node_slack, rounds, work,
):  # fmt: skip
    """Bring loads under `cap`, changing `where`, `loads` and `held`, as far as it goes. Returns what is left of `work`.

    `cheap_order` lists items of most volume for their cost first, or is empty: then volumes are costs. `plain`: what
    plain sums do is not done by exchanges, as those move more. `node_slack`: what each node has to use if that is just
    its own room, or empty. Twice a slack fits int64.
    """
    m = len(loads)
    start, items = np.zeros(m + 1, dtype=np.int64), np.empty(len(costs), dtype=np.int32)
    by_volume = len(cheap_order) > 0
    numbers = np.array([
        cap, slack, m, work, typical, np.int64(keep_counts), 0, 0, np.int64(by_volume), np.int64(plain),
    ])  # fmt: skip
    numbers[WORK] -= _LISTING * len(costs)
    cheap = np.empty(len(cheap_order), dtype=np.int32)
    marks = np.zeros(len(cheap_order) + 1, dtype=np.int64)
    state = State(
        costs, sizes, leave_rank, leave_node, where, node, loads, held, room, start, items, cheap, marks, numbers
    )
    if by_volume:
        list_residents(cheap_order, where, m, start, cheap)
    list_residents(order, where, m, start, items)
    scratch = _scratch_for(start)
    givers, takers = np.empty(m, dtype=np.int64), np.empty(m, dtype=np.int64)
    tried = np.empty(_TRIES, dtype=np.int64)
    least_room = min(_window(state) // 2, typical // 4) + 1
    _close_what_fits(state, least_room)
    for k in range(len(node_start) - 1):
        inside = ranks[node_start[k] : node_start[k + 1]]
        if len(node_slack) > 0:
            least_room = _use_own_slack(state, inside, node_slack[k])
        num_givers, num_takers = _list_sides(state, inside, least_room, givers, takers)
        match(state, scratch, givers, num_givers, takers, num_takers, tried, node_start, ranks)
    numbers[CROSSING] = 1
    numbers[BY_VOLUME] = 0  # whose lists are those of the start
    for _ in range(rounds):
        numbers[WORK] -= _LISTING * len(costs)
        list_residents(order, where, m, start, items)
        scratch = _scratch_for(start)
        num_givers, num_takers = _list_sides(state, ranks, least_room, givers, takers)
        if num_givers == 0 or numbers[WORK] <= 0:
            break
        match(state, scratch, givers, num_givers, takers, num_takers, tried, node_start, ranks)
        least_room = np.int64(1)
    return numbers[WORK]


@helper
def _slack_under(cap, groups, load):
    """How far `groups` that carry `load` together may stay below `cap` in all; 2^61 at most, 0 at least."""
    each = cap - load // groups
    if each > MOST_SLACK // groups:
        return np.int64(MOST_SLACK)
    return max(0, each * groups - load % groups)


@helper
def _carried(costs, sizes, where, num_groups):
    """Costs and sizes of each group."""
    loads, held = np.zeros(num_groups, np.int64), np.zeros(num_groups, np.int64)
    for i in range(len(where)):
        loads[where[i]] += costs[i]
        held[where[i]] += sizes[i]
    return loads, held


@helper
def _balance_nodes(
    costs, sizes, leave, where, node, node_start, ranks, room, order, cheap_order, cap, slack, typical, keep_counts,
    work,
):  # fmt: skip
    """Bring the sum of each node under what its ranks may carry, as if nodes were ranks. Returns the work left.

    What arrives is put on the rank of the node with the most room, large items first. A node has eight times the items
    of a rank, and so finds exact amounts, and of least volume, where a rank of few items finds none.
    """
    k = len(node_start) - 1
    widest = np.int64(0)
    for j in range(k):
        widest = max(widest, node_start[j + 1] - node_start[j])
    if k == 1 or cap > (MOST_SLACK - 1) // widest:
        return work
    nodes = np.empty(len(where), np.int32)
    for i in range(len(where)):
        nodes[i] = node[where[i]]
    loads, held = _carried(costs, sizes, nodes, k)
    total_size, room_of_node = sum_of(held), np.zeros(k, np.int64)
    for j in range(k):
        loads[j] += (widest - node_start[j + 1] + node_start[j]) * cap  # what the ranks that a smaller one lacks would
        for at in range(node_start[j], node_start[j + 1]):
            room_of_node[j] += min(room[ranks[at]], total_size - room_of_node[j])
    kept = slack // (KEPT_SLACK * k)  # what a node keeps of its slack, its ranks need
    left = _relocate(
        costs, sizes, leave.copy(), leave.copy(), nodes, np.zeros(k, np.int32), np.array([0, k]), numbers(k), loads,
        held, room_of_node, order, cap * widest - kept, slack - k * kept, typical, keep_counts, cheap_order, True,
        np.empty(0, np.int64), 0, work,
    )  # fmt: skip
    settle(order, nodes, node, ranks, node_start, costs, keep_counts, where)
    return left - len(room)


@kernel
def relocate_kernel(
    costs, sizes, leave_rank, leave_node, home, where, node, node_start, ranks, room, order, cheap_order, cap,
    keep_counts, nodes_first, own_slack, rounds, work,
):  # fmt: skip
    """Bring loads under `cap`, changing `where`: inside nodes, then `rounds` times across. Returns the work left.

    `nodes_first`: as if nodes were ranks, before. `own_slack`: each node has just its own room to use. `cap` is not
    over the sum of all costs.
    """
    m, n = len(room), len(costs)
    loads, held = _carried(costs, sizes, where, m)
    total, positive = sum_of(loads), 0
    for i in range(n):
        positive += costs[i] > 0
    typical, slack = total // max(positive, 1), _slack_under(cap, m, total)
    if nodes_first:
        work = _balance_nodes(costs, sizes, leave_node, where, node, node_start, ranks, room, order, cheap_order, cap,
                              slack, typical, keep_counts, work)  # fmt: skip
        loads, held = _carried(costs, sizes, where, m)
    leaves_rank, leaves_node = np.zeros(n, np.int64), np.zeros(n, np.int64)
    for i in range(n):
        if where[i] == home[i]:
            leaves_rank[i] = leave_rank[i]
        if node[where[i]] == node[home[i]]:
            leaves_node[i] = leave_node[i]
    node_slack = np.zeros(len(node_start) - 1 if own_slack else 0, np.int64)
    for i in range(n if own_slack else 0):
        node_slack[node[where[i]]] += costs[i]
    for k in range(len(node_slack)):
        node_slack[k] = _slack_under(cap, node_start[k + 1] - node_start[k], node_slack[k])
    return _relocate(
        costs, sizes, leaves_rank, leaves_node, where, node, node_start, ranks, loads, held, room, order, cap, slack,
        typical, keep_counts, np.empty(0, np.int32), False, node_slack, rounds, work,
    )  # fmt: skip


@kernel
def return_home(costs, sizes, home, node, where, room, cap, sequence):
    """Bring back what fits under the cap now: what crossed first, then the rest, in this sequence."""
    loads, held = _carried(costs, sizes, where, len(room))
    away, moved, count = np.empty(len(where), np.bool_), np.empty(len(sequence), np.int32), 0
    for i in range(len(where)):
        away[i] = where[i] != home[i]
    for i in sequence:  # in a small array, as the sequence goes to and fro
        if away[i]:
            moved[count] = i
            count += 1
    while True:
        returned = 0
        for crossed in (True, False):
            for k in range(count):
                i = moved[k]
                r, h = where[i], home[i]
                if r == h or (node[r] != node[h]) != crossed:
                    continue
                if loads[h] + costs[i] <= cap and held[h] + sizes[i] <= room[h]:
                    where[i] = h
                    loads[r] -= costs[i]
                    loads[h] += costs[i]
                    held[r] -= sizes[i]
                    held[h] += sizes[i]
                    returned += 1
        if returned == 0:
            return


@kernel
def fix_counts(where, node, node_start, ranks, order, quota, counts):
    """Move the cheapest items from ranks over their quota to ranks under it, inside nodes first."""
    next_in_node = node_start[:-1].copy()
    next_rank = 0
    for crossing in (False, True):
        for p in range(len(order) - 1, -1, -1):
            i = order[p]
            r = where[i]
            if counts[r] <= quota[r]:
                continue
            to = -1
            if crossing:
                while next_rank < len(quota) and counts[next_rank] >= quota[next_rank]:
                    next_rank += 1
                if next_rank < len(quota):
                    to = next_rank
            else:
                k = node[r]
                j = next_in_node[k]
                while j < node_start[k + 1] and counts[ranks[j]] >= quota[ranks[j]]:
                    j += 1
                next_in_node[k] = j
                if j < node_start[k + 1]:
                    to = ranks[j]
            if to >= 0:
                where[i] = to
                counts[r] -= 1
                counts[to] += 1


@kernel
def fix_sizes(where, sizes, node, node_start, ranks, held, room, by_size):
    """Move the largest items off ranks that hold more than they may, to those with most room, inside nodes first."""
    m = len(ranks)
    place = np.empty(m, dtype=np.int64)
    for k in range(m):
        place[ranks[k]] = k
    free = (room - held)[ranks]
    by_node = hold(-free, ranks.astype(np.int64), free)
    for crossing in (False, True):
        for i in by_size:
            r = where[i]
            if held[r] <= room[r]:
                continue
            low, high = (0, m) if crossing else (node_start[node[r]], node_start[node[r] + 1])
            j = first_of(by_node, low, high, sizes[i])
            if j >= 0:
                to = ranks[j]
                where[i] = to
                held[r] -= sizes[i]
                held[to] += sizes[i]
                for q in (np.int64(r), to):
                    update(by_node, place[q], held[q] - room[q], q, room[q] - held[q])
