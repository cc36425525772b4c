"""Local search towards limits: up to two units against up to two, between a group outside its limits and another.

The *violation* of a group is the weighted sum of what it holds beyond its limits; an exchange is made if it lowers the
violation of its two groups together, so the search ends. Costs may be in breach on the way. Constraints may too where
`hard` is off (repair); where it is on, no exchange breaks one, so every assignment on the way is feasible.

It is not :mod:`solvers._exchange`: a group's limits are many, none of them is a difference to aim at, and what makes an
exchange good is known only by what both groups then hold of everything.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from solvers._jit import helper, kernel
from solvers._loops import stable_order
from solvers.partitioning.constrained.state import State

Ints = NDArray[np.int64]

# Above every violation: these are at most 2**24 for each average load too much (state._SCALE_BITS).
_IMPOSSIBLE = 2**62
# The next five limit what one attempt takes: a pair of groups costs at most 528 pairs of units times 48 looks. What is
# left out has its turn later, as windows move on. No table has rows for them, as they lie inside one kernel.
# Groups that one group tries before it gives up for this pass, the most promising first.
_PARTNERS = 16
# Of those, how many with pairs of units, which are many more.
_DOUBLE_PARTNERS = 6
# Units of a group that exchanges of single units look at.
_WINDOW = 128
# Units of a group of which pairs are made: 528 with the units alone.
_PAIR_WINDOW = 32
# Pairs of the other group that one pair is tried against.
_LOOKS = 48
# Windows of one turn and the next, or one partner and the next, begin so many units apart: a prime, so that they come
# to begin at every unit of a group, nearly whatever its size.
_STRIDE = 37
# Stands for "no limit" in differences: two of them still fit int64.
_FAR = 2**61
_NOBODY = -1
"""Stands for a unit, or a group, where there is none."""


class Rules(NamedTuple):
    """What groups may hold; nothing of it is written. A violation is weighed as :class:`State` says."""

    amounts: Ints  # int64[u, d]: what each unit has of each dimension
    upper: Ints  # int64[m, d]
    lower: Ints  # int64[m, d]
    factor: Ints  # int64[d]
    shift: Ints  # int64[d]
    allowed: NDArray[np.bool_]  # bool[k, m]: whether units of a mask may be in a group
    mask_of_unit: Ints  # int64[u]
    hard_from: int  # no exchange may violate a dimension from this one on


class Places(NamedTuple):
    """Where units are, and what groups hold; all of it is written."""

    group_of_unit: Ints  # int64[u]
    held: Ints  # int64[m, d]
    member: Ints  # int64[places]: units of group g are member[start[g] : start[g] + size[g]], in no order
    start: Ints  # int64[m + 1]
    size: Ints  # int64[m]
    place: Ints  # int64[u]: where in its group's list a unit stands


class Choices(NamedTuple):
    """None, one or two units of a group, each a row, and what they have of one dimension; all of it is written."""

    first: Ints  # int64[rows], _NOBODY for none
    second: Ints  # int64[rows]
    value: Ints  # int64[rows]


class Look(NamedTuple):
    """Which units of a group are looked at."""

    offset: int  # the window begins so many units on
    pairs: bool  # whether two go together


class Scratch(NamedTuple):
    """Room for a search; all of it is written."""

    score: Ints  # int64[m]: of each partner
    tie: Ints  # int64[m]
    found: Ints  # int64[4]: units that change groups, two of either, _NOBODY for none
    given: Choices
    taken: Choices


@helper
def _weight(rules, d, over):
    """What holding `over` too much, or too little, of dimension d weighs."""
    return ((over + (1 << rules.shift[d]) - 1) >> rules.shift[d]) * rules.factor[d]


@helper
def _violation_of(rules, held, g):
    total = np.int64(0)
    for d in range(held.shape[1]):
        over = max(held[g, d] - rules.upper[g, d], rules.lower[g, d] - held[g, d])
        if over > 0:
            total += _weight(rules, d, over)
    return total


@helper
def _violation_after(rules, held, g, h, units, enough):
    """Violation of g and h together after two units went over and two came back; _IMPOSSIBLE if not below `enough`.

    The search spends its time here, so it ends at the first dimension that makes it too much. O(d).
    """
    amounts, upper, lower = rules.amounts, rules.upper, rules.lower
    a, a2, b, b2 = units
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
        over_g = max(in_g - upper[g, d], lower[g, d] - in_g)
        over_h = max(in_h - upper[h, d], lower[h, d] - in_h)
        if d >= rules.hard_from and (over_g > 0 or over_h > 0):
            return _IMPOSSIBLE
        if over_g > 0:
            total += _weight(rules, d, over_g)
        if over_h > 0:
            total += _weight(rules, d, over_h)
        if total >= enough:
            return _IMPOSSIBLE
    return total


@helper
def _list_choices(rules, places, g, h, d, look, choices):
    """List none, one or two units of g that may be in h, by window; return how many choices. O(window), squared."""
    member, start, size = places.member, places.start[g], places.size[g]
    first, second, value = choices.first, choices.second, choices.value
    first[0], second[0], value[0] = _NOBODY, _NOBODY, 0
    count = 1
    for i in range(min(size, _PAIR_WINDOW if look.pairs else _WINDOW)):
        a = member[start + (i + look.offset) % size]
        if not rules.allowed[rules.mask_of_unit[a], h]:
            continue
        first[count], second[count], value[count] = a, _NOBODY, rules.amounts[a, d]
        count += 1
        for j in range(i if look.pairs else 0):
            a2 = member[start + (j + look.offset) % size]
            if rules.allowed[rules.mask_of_unit[a2], h]:
                first[count], second[count] = a, a2
                value[count] = rules.amounts[a, d] + rules.amounts[a2, d]
                count += 1
    return count


@helper
def _scarcest(rules, held, g, h):
    """The dimension that leaves least choice, and between what g may give of it, net, for both to keep their limits.

    Where both cannot, the middle is aimed at.
    """
    scarcest, least, most, narrowest = 0, np.int64(0), np.int64(0), np.int64(2**62)
    for d in range(held.shape[1]):
        upper_g, upper_h = min(rules.upper[g, d], _FAR), min(rules.upper[h, d], _FAR)
        low = max(held[g, d] - upper_g, max(rules.lower[h, d] - held[h, d], -_FAR))
        high = min(upper_h - held[h, d], held[g, d] - rules.lower[g, d])
        middle = low // 2 + high // 2
        low, high = min(low, middle), max(high, middle)
        width = np.int64(_FAR)
        if high - low < _FAR >> 26:  # as wide as an average group or less: its weight fits
            # In parts of an average group's load, so that tokens and costs compare.
            width = ((min(high - low, _FAR) >> rules.shift[d]) + 1) * rules.factor[d]
        if width < narrowest:
            scarcest, least, most, narrowest = d, low, high, width
    return scarcest, least, most


@helper
def _first_from(values, order, count, least):
    """Where in `order`, by ascending value, the first of at least `least` stands."""
    low, high = 0, count
    while low < high:
        half = (low + high) // 2
        if values[order[half]] < least:
            low = half + 1
        else:
            high = half
    return low


@helper
def _best_exchange(rules, places, g, h, look, enough, good, scratch):
    """The best exchange of units of g for units of h, found by what they have of the scarcest dimension.

    Stops at the first that is as good as `good`. Writes the units to `scratch.found`; returns (violation after, work).
    """
    d, least, most = _scarcest(rules, places.held, g, h)
    given, taken, found = scratch.given, scratch.taken, scratch.found
    count = _list_choices(rules, places, g, h, d, look, given)
    others = _list_choices(rules, places, h, g, d, look, taken)
    order = stable_order(taken.value[:others])
    work = np.int64(12 * (count + others))
    best = enough
    for i in range(count):
        # Of h those that leave the net amount within least .. most; a few of them, as other dimensions may forbid any.
        low = _first_from(taken.value, order, others, given.value[i] - most)
        looks = 0
        while low < others and looks < _LOOKS and taken.value[order[low]] <= given.value[i] - least:
            k = order[low]
            units = given.first[i], given.second[i], taken.first[k], taken.second[k]
            after = _violation_after(rules, places.held, g, h, units, best)
            if after < best:
                best = after
                found[0], found[1], found[2], found[3] = units
                if best <= good:
                    return best, work
            low += 1
            looks += 1
        work += 8 + 2 * looks
    return best, work


@helper
def _worst_dimension(rules, held, g):
    worst, where = np.int64(-1), 0
    for d in range(held.shape[1]):
        over = max(held[g, d] - rules.upper[g, d], rules.lower[g, d] - held[g, d])
        weight = _weight(rules, d, max(over, 0))
        if weight > worst:
            worst, where = weight, d
    return where


@helper
def _rank_partners(rules, held, g, worst, score, tie):
    """Score each group by what g and it would violate together if units were sand; ties to the most room. O(m d)."""
    upper, lower = rules.upper, rules.lower
    over = held[g, worst] > upper[g, worst]
    for h in range(len(held)):
        total = np.int64(0)
        for d in range(held.shape[1]):
            beyond = max(held[g, d] - upper[g, d], -_FAR) + max(held[h, d] - upper[h, d], -_FAR)
            short = lower[g, d] - held[g, d] + lower[h, d] - held[h, d]
            most = max(beyond, short)
            if most > 0:
                total += _weight(rules, d, most)
        # Units taken as sand: what two groups hold too much together, no exchange between them can mend.
        score[h] = total
        tie[h] = min(upper[h, worst], _FAR) - held[h, worst] if over else held[h, worst] - lower[h, worst]
    score[g] = _IMPOSSIBLE


@helper
def _take_best(score, tie):
    """The group of least score, which then has none; _NOBODY if none is left. O(m)."""
    best = _NOBODY
    for h in range(len(score)):
        if score[h] < _IMPOSSIBLE and (
            best < 0 or score[h] < score[best] or (score[h] == score[best] and tie[h] > tie[best])
        ):
            best = h
    if best >= 0:
        score[best] = _IMPOSSIBLE
    return best


@helper
def _move(rules, places, unit, g, h):
    """Move a unit from g to h. Returns False if h has no place left in its list: lay them out anew. O(d)."""
    member, start, size, place = places.member, places.start, places.size, places.place
    last = member[start[g] + size[g] - 1]
    member[start[g] + place[unit]] = last  # lists are in no order, so that the last fills the gap
    place[last] = place[unit]
    size[g] -= 1
    member[start[h] + size[h]] = unit
    place[unit] = size[h]
    size[h] += 1
    places.group_of_unit[unit] = h
    for d in range(places.held.shape[1]):
        places.held[g, d] -= rules.amounts[unit, d]
        places.held[h, d] += rules.amounts[unit, d]
    return start[h] + size[h] + 2 < start[h + 1]  # room for the two units that an exchange may bring


@helper
def _lay_out(group_of_unit, held):
    """List the units of every group, ascending, with room for half as many again. O(u + m)."""
    num_groups = len(held)
    start, size = np.zeros(num_groups + 1, dtype=np.int64), np.zeros(num_groups, dtype=np.int64)
    place = np.empty(len(group_of_unit), dtype=np.int64)
    for g in group_of_unit:
        size[g] += 1
    for g in range(num_groups):
        start[g + 1] = start[g] + size[g] + size[g] // 2 + 8
    member = np.empty(start[num_groups], dtype=np.int64)
    size[:] = 0
    for unit in range(len(group_of_unit)):
        g = group_of_unit[unit]
        member[start[g] + size[g]] = unit
        place[unit] = size[g]
        size[g] += 1
    return Places(group_of_unit, held, member, start, size, place)


@helper
def _find_partner(rules, places, violation, g, turn, scratch, work):
    """A partner for an exchange that lowers the violation of both, _NOBODY if there is none; and the work done.

    Single units with several partners first, then pairs, which are many more, with a few.
    """
    worst = _worst_dimension(rules, places.held, g)
    num_groups, spent = len(violation), np.int64(0)
    for with_pairs in (False, True):
        _rank_partners(rules, places.held, g, worst, scratch.score, scratch.tie)
        for k in range(min(_DOUBLE_PARTNERS if with_pairs else _PARTNERS, num_groups - 1)):
            h = _take_best(scratch.score, scratch.tie)
            spent += num_groups
            if h < 0 or spent >= work:
                return _NOBODY, spent
            # Windows move on from turn to turn, so that all units of large groups have theirs.
            look = Look((turn + k) * _STRIDE, with_pairs)
            before = violation[g] + violation[h]
            after, looked = _best_exchange(rules, places, g, h, look, before, violation[h], scratch)
            spent += looked + looked // 2
            if after < before:
                return h, spent
    return _NOBODY, spent


@helper
def _make_choices():
    rows = 1 + max(_WINDOW, _PAIR_WINDOW * (_PAIR_WINDOW + 1) // 2)
    return Choices(np.empty(rows, dtype=np.int64), np.empty(rows, dtype=np.int64), np.empty(rows, dtype=np.int64))


@helper
def _worst_untried(violation, tried):
    """The group of most violation that is still to be tried in this pass, _NOBODY if there is none. O(m)."""
    worst = _NOBODY
    for g in range(len(violation)):
        if not tried[g] and violation[g] > 0 and (worst < 0 or violation[g] > violation[worst]):
            worst = g
    return worst


@kernel(turns=200)
def _exchange(rules, group_of_unit, held, work):
    """Exchange in place, always for the group that violates most, until nothing helps; returns the work left."""
    num_groups = len(held)
    places = _lay_out(group_of_unit, held)
    violation = np.empty(num_groups, dtype=np.int64)
    for g in range(num_groups):
        violation[g] = _violation_of(rules, held, g)
    score, tie = np.empty(num_groups, dtype=np.int64), np.empty(num_groups, dtype=np.int64)
    scratch = Scratch(score, tie, np.full(4, _NOBODY, dtype=np.int64), _make_choices(), _make_choices())
    tried = np.zeros(num_groups, dtype=np.bool_)
    improved, turn = False, 0
    work -= len(group_of_unit)
    while work > 0:
        g = _worst_untried(violation, tried)
        work -= num_groups
        if g < 0:  # a pass is over; another only if this one changed something
            if not improved or not violation.any():
                break
            improved = False
            tried[:] = False
            continue
        partner, spent = _find_partner(rules, places, violation, g, turn, scratch, work)
        turn += 1
        work -= spent
        if partner < 0:
            tried[g] = True
            continue
        improved, room = True, True
        for k in range(4):
            if scratch.found[k] >= 0:
                source, target = (g, partner) if k < 2 else (partner, g)
                room = _move(rules, places, scratch.found[k], source, target) and room
        # Lists grow by what comes in: laid out anew, which is rare, O(u + m).
        if not room:
            places = _lay_out(group_of_unit, held)
            work -= len(group_of_unit)
        # Only the two groups changed.
        violation[g] = _violation_of(rules, held, g)
        violation[partner] = _violation_of(rules, held, partner)
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
    rules = Rules(
        state.amounts, upper, state.lower, state.factor, state.shift, state.allowed, state.mask_of_unit,
        state.components if hard else state.amounts.shape[1],
    )  # fmt: skip
    return int(_exchange(rules, assignment, state.held(assignment), work))
