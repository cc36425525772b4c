"""Local search towards limits: up to two units against up to two, between a group outside its limits and another.

The *violation* of a group is the weighted sum of what it holds beyond its limits; an exchange is made if it lowers the
violation of its two groups together, so the search ends. Costs may be in breach on the way. Constraints may too where
`hard` is off (repair); where it is on, no exchange breaks one, so every assignment on the way is feasible.
"""

import numpy as np
from numpy.typing import NDArray

from solvers._jit import helper, kernel
from solvers._loops import stable_order
from solvers.partitioning.constrained.state import State

Ints = NDArray[np.int64]

_IMPOSSIBLE = 2**62
_PARTNERS = 16  # groups that one group tries before it gives up for this pass
_DOUBLE_PARTNERS = 6  # of those, how many with pairs of units
_WINDOW = 128  # units of a group that exchanges of single units look at
_PAIR_WINDOW = 32  # units of a group of which pairs are made
_LOOKS = 48  # pairs of the other group that one pair is tried against
_FAR = 2**61


@helper
def _group_violation(held, upper, lower, factor, shift, g):
    total = np.int64(0)
    for d in range(held.shape[1]):
        over = max(held[g, d] - upper[g, d], lower[g, d] - held[g, d])
        if over > 0:
            total += ((over + (1 << shift[d]) - 1) >> shift[d]) * factor[d]
    return total


@helper
def _after(amounts, held, upper, lower, factor, shift, hard_from, g, h, a, a2, b, b2, enough):
    """Violation of g and h together after g gave a, a2 for b, b2 (-1: none); _IMPOSSIBLE if not below `enough`."""
    total = np.int64(0)
    for d in range(held.shape[1]):
        x = np.int64(0)
        if a >= 0:
            x += amounts[a, d]
        if a2 >= 0:
            x += amounts[a2, d]
        if b >= 0:
            x -= amounts[b, d]
        if b2 >= 0:
            x -= amounts[b2, d]
        in_g, in_h = held[g, d] - x, held[h, d] + x
        over = max(in_g - upper[g, d], lower[g, d] - in_g)
        if over > 0:
            if d >= hard_from:
                return _IMPOSSIBLE
            total += ((over + (1 << shift[d]) - 1) >> shift[d]) * factor[d]
        over = max(in_h - upper[h, d], lower[h, d] - in_h)
        if over > 0:
            if d >= hard_from:
                return _IMPOSSIBLE
            total += ((over + (1 << shift[d]) - 1) >> shift[d]) * factor[d]
        if total >= enough:
            return _IMPOSSIBLE
    return total


@helper
def _sets(amounts, members, start, size, g, d, allowed, mask_of_unit, h, offset, window, pairs, firsts, seconds,
          values):  # fmt: skip
    """None, one or (with `pairs`) two units of g that may be in h, and what they have of dimension d. Returns count."""
    width = min(size[g], window)
    firsts[0], seconds[0], values[0] = -1, -1, 0
    count = 1
    for i in range(width):
        a = members[start[g] + (i + offset) % size[g]]
        if not allowed[mask_of_unit[a], h]:
            continue
        firsts[count], seconds[count], values[count] = a, -1, amounts[a, d]
        count += 1
        for j in range(i if pairs else 0):
            a2 = members[start[g] + (j + offset) % size[g]]
            if allowed[mask_of_unit[a2], h]:
                firsts[count], seconds[count], values[count] = a, a2, amounts[a, d] + amounts[a2, d]
                count += 1
    return count


@helper
def _scarcest(held, upper, lower, factor, shift, g, h):
    """The dimension that leaves least choice, and between what g may give of it, net, for both to keep their limits.

    Where both cannot, the middle is aimed at.
    """
    scarcest, least, most, narrowest = 0, np.int64(0), np.int64(0), np.int64(2**62)
    for d in range(held.shape[1]):
        low = max(held[g, d] - min(upper[g, d], _FAR), max(lower[h, d] - held[h, d], -_FAR))
        high = min(min(upper[h, d], _FAR) - held[h, d], held[g, d] - lower[g, d])
        middle = low // 2 + high // 2
        low, high = min(low, middle), max(high, middle)
        width = ((min(high - low, _FAR) >> shift[d]) + 1) * factor[d] if high - low < _FAR >> 26 else _FAR
        if width < narrowest:
            scarcest, least, most, narrowest = d, low, high, width
    return scarcest, least, most


@helper
def _best_sets(amounts, held, upper, lower, factor, shift, hard_from, allowed, mask_of_unit, members, start, size,
               g, h, offset, pairs, enough, good, found, sets):  # fmt: skip
    """The best exchange of a set of units of g for one of h, found by what they have of the scarcest dimension.

    Stops at the first that is as good as `good`. Writes the units to `found`; returns (violation after, work).
    """
    d, least, most = _scarcest(held, upper, lower, factor, shift, g, h)
    firsts, seconds, values = sets[0], sets[1], sets[2]
    other_firsts, other_seconds, other_values = sets[3], sets[4], sets[5]
    window = _PAIR_WINDOW if pairs else _WINDOW
    count = _sets(amounts, members, start, size, g, d, allowed, mask_of_unit, h, offset, window, pairs, firsts,
                  seconds, values)  # fmt: skip
    others = _sets(amounts, members, start, size, h, d, allowed, mask_of_unit, g, offset, window, pairs, other_firsts,
                   other_seconds, other_values)  # fmt: skip
    order = stable_order(other_values[:others])
    work = np.int64(12 * (count + others))
    best = enough
    for i in range(count):
        low, high = 0, others
        while low < high:  # the first set of h with value >= value of g's less the most
            half = (low + high) // 2
            if other_values[order[half]] < values[i] - most:
                low = half + 1
            else:
                high = half
        looks = 0
        while low < others and looks < _LOOKS and other_values[order[low]] <= values[i] - least:
            k = order[low]
            after = _after(amounts, held, upper, lower, factor, shift, hard_from, g, h, firsts[i], seconds[i],
                           other_firsts[k], other_seconds[k], best)  # fmt: skip
            if after < best:
                best = after
                found[0], found[1], found[2], found[3] = firsts[i], seconds[i], other_firsts[k], other_seconds[k]
                if best <= good:
                    return best, work
            low += 1
            looks += 1
        work += 8 + 2 * looks
    return best, work


@helper
def _worst_dimension(held, upper, lower, factor, shift, g):
    worst, where = np.int64(-1), 0
    for d in range(held.shape[1]):
        over = max(held[g, d] - upper[g, d], lower[g, d] - held[g, d])
        weight = ((max(over, 0) + (1 << shift[d]) - 1) >> shift[d]) * factor[d]
        if weight > worst:
            worst, where = weight, d
    return where


@helper
def _rank_partners(held, upper, lower, factor, shift, g, d_worst, score, tie):
    """Score each group by what g and it would violate together if units were sand; ties to the most room."""
    over = held[g, d_worst] > upper[g, d_worst]
    for h in range(len(held)):
        total = np.int64(0)
        for d in range(held.shape[1]):
            beyond = max(held[g, d] - upper[g, d], -_FAR) + max(held[h, d] - upper[h, d], -_FAR)
            short = lower[g, d] - held[g, d] + lower[h, d] - held[h, d]
            most = max(beyond, short)
            if most > 0:
                total += ((most + (1 << shift[d]) - 1) >> shift[d]) * factor[d]
        score[h] = total
        tie[h] = min(upper[h, d_worst], _FAR) - held[h, d_worst] if over else held[h, d_worst] - lower[h, d_worst]
    score[g] = _IMPOSSIBLE


@helper
def _take_best(score, tie):
    best = -1
    for h in range(len(score)):
        if score[h] < _IMPOSSIBLE and (
            best < 0 or score[h] < score[best] or (score[h] == score[best] and tie[h] > tie[best])
        ):
            best = h
    return best


@helper
def _move(unit, g, h, members, start, size, place, group_of_unit, amounts, held):
    """Move a unit from g to h. Returns False if h has no place left in `members`: lay them out anew."""
    last = members[start[g] + size[g] - 1]
    members[start[g] + place[unit]] = last
    place[last] = place[unit]
    size[g] -= 1
    members[start[h] + size[h]] = unit
    place[unit] = size[h]
    size[h] += 1
    group_of_unit[unit] = h
    for d in range(held.shape[1]):
        held[g, d] -= amounts[unit, d]
        held[h, d] += amounts[unit, d]
    return start[h] + size[h] + 2 < start[h + 1]


@helper
def _lay_out(group_of_unit, num_groups, start, size, place):
    size[:] = 0
    for g in group_of_unit:
        size[g] += 1
    start[0] = 0
    for g in range(num_groups):
        start[g + 1] = start[g] + size[g] + size[g] // 2 + 8
    members = np.empty(start[num_groups], dtype=np.int64)
    size[:] = 0
    for unit in range(len(group_of_unit)):
        g = group_of_unit[unit]
        members[start[g] + size[g]] = unit
        place[unit] = size[g]
        size[g] += 1
    return members


@helper
def _find(amounts, held, upper, lower, factor, shift, hard_from, allowed, mask_of_unit, members, start, size,
          g, turn, violation, score, tie, found, sets, work):  # fmt: skip
    """A partner for an exchange that lowers the violation of both, written to `found` (-1: none), and the work.

    Single units with several partners first, then pairs with a few.
    """
    d = _worst_dimension(held, upper, lower, factor, shift, g)
    num_groups = len(held)
    spent = np.int64(0)
    for with_pairs in range(2):
        _rank_partners(held, upper, lower, factor, shift, g, d, score, tie)
        for k in range(min(_DOUBLE_PARTNERS if with_pairs else _PARTNERS, num_groups - 1)):
            h = _take_best(score, tie)
            spent += num_groups
            if h < 0 or spent >= work:
                return -1, spent
            score[h] = _IMPOSSIBLE
            before = violation[g] + violation[h]
            after, looked = _best_sets(amounts, held, upper, lower, factor, shift, hard_from, allowed, mask_of_unit,
                                       members, start, size, g, h, (turn + k) * 37, with_pairs == 1, before,
                                       violation[h], found, sets)  # fmt: skip
            spent += looked + looked // 2
            if after < before:
                return h, spent
    return -1, spent


@kernel
def _exchange(amounts, group_of_unit, held, upper, lower, factor, shift, hard_from, allowed, mask_of_unit, work):
    num_groups = len(held)
    start = np.zeros(num_groups + 1, dtype=np.int64)
    size = np.zeros(num_groups, dtype=np.int64)
    place = np.empty(len(group_of_unit), dtype=np.int64)
    members = _lay_out(group_of_unit, num_groups, start, size, place)
    violation = np.empty(num_groups, dtype=np.int64)
    for g in range(num_groups):
        violation[g] = _group_violation(held, upper, lower, factor, shift, g)
    score = np.empty(num_groups, dtype=np.int64)
    tie = np.empty(num_groups, dtype=np.int64)
    tried = np.zeros(num_groups, dtype=np.bool_)
    sets = np.empty((6, 1 + max(_WINDOW, _PAIR_WINDOW * (_PAIR_WINDOW + 1) // 2)), dtype=np.int64)
    found = np.full(4, -1, dtype=np.int64)
    improved, turn = False, 0
    work -= len(group_of_unit)
    while work > 0:
        g = -1
        for other in range(num_groups):
            if not tried[other] and violation[other] > 0 and (g < 0 or violation[other] > violation[g]):
                g = other
        work -= num_groups
        if g < 0:
            if not improved or not violation.any():
                break
            improved = False
            tried[:] = False
            continue
        partner, spent = _find(amounts, held, upper, lower, factor, shift, hard_from, allowed, mask_of_unit, members,
                               start, size, g, turn, violation, score, tie, found, sets, work)  # fmt: skip
        turn += 1
        work -= spent
        if partner < 0:
            tried[g] = True
            continue
        improved = True
        room = True
        for k in range(4):
            if found[k] >= 0:
                source, target = (g, partner) if k < 2 else (partner, g)
                room = (
                    _move(found[k], source, target, members, start, size, place, group_of_unit, amounts, held) and room
                )
        if not room:
            members = _lay_out(group_of_unit, num_groups, start, size, place)
            work -= len(group_of_unit)
        violation[g] = _group_violation(held, upper, lower, factor, shift, g)
        violation[partner] = _group_violation(held, upper, lower, factor, shift, partner)
    return work


def exchange(state: State, assignment: Ints, upper: Ints, work: int, *, hard: bool) -> int:
    """Bring `assignment` towards the limits ``state.lower .. upper``, in place. Returns the work left.

    Parameters
    ----------
    state : State
    assignment : int64[u]
        Changed in place; the summed violation never grows.
    upper : int64[m, d]
    work : int
        Work units it may take.
    hard : bool
        Whether `assignment` is feasible and has to stay so on the way.
    """
    dimensions = state.amounts.shape[1]
    return int(
        _exchange(
            state.amounts, assignment, state.held(assignment), upper, state.lower, state.factor, state.shift,
            state.components if hard else dimensions, state.allowed, state.mask_of_unit, work,
        )
    )  # fmt: skip
