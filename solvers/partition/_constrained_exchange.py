"""Local search towards limits: up to two units against up to two, between a group outside its limits and another.

The *violation* of a group is the weighted sum of what it holds beyond its limits; an exchange is made if it lowers the
violation of its two groups together, so the search ends. Costs may be in breach on the way. Constraints may too where
`hard` is off (repair); where it is on, no exchange breaks one, so every assignment on the way is feasible.
"""

import numpy as np
from numpy.typing import NDArray

from solvers._jit import kernel
from solvers.partition._constrained_state import State

__all__ = ["exchange"]

Ints = NDArray[np.int64]

_IMPOSSIBLE = 2**62
_PARTNERS = 16  # groups that one group tries before it gives up for this pass
_DOUBLE_PARTNERS = 6  # of those, how many with pairs of units
_WINDOW = 96  # units of a group that single exchanges look at in one go
_PAIR_WINDOW = 48  # units of a group of which pairs are made
_LOOKS = 48  # pairs of the other group that one pair is tried against
_FAR = 2**61


@kernel
def _group_violation(held, upper, lower, factor, shift, g):
    total = np.int64(0)
    for d in range(held.shape[1]):
        over = max(held[g, d] - upper[g, d], lower[g, d] - held[g, d])
        if over > 0:
            total += ((over + (1 << shift[d]) - 1) >> shift[d]) * factor[d]
    return total


@kernel
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


@kernel
def _may(allowed, mask_of_unit, unit, g):
    return unit < 0 or allowed[mask_of_unit[unit], g]


@kernel
def _best_single(amounts, held, upper, lower, factor, shift, hard_from, allowed, mask_of_unit, members, start, size,
                 masked, g, h, offset, enough, good, found):  # fmt: skip
    """The best exchange of at most one unit for at most one; stops at the first that is as good as `good`.

    Writes (a, b) to `found` and returns (violation after, work).
    """
    width_g, width_h = min(size[g], _WINDOW), min(size[h], _WINDOW)
    work = np.int64(1)
    best = enough
    for i in range(-1, width_g):
        a = np.int64(-1) if i < 0 else members[start[g] + (i + offset) % size[g]]
        if masked and not _may(allowed, mask_of_unit, a, h):
            continue
        for j in range(-1, width_h):
            b = np.int64(-1) if j < 0 else members[start[h] + (j + offset) % size[h]]
            if masked and not _may(allowed, mask_of_unit, b, g):
                continue
            after = _after(amounts, held, upper, lower, factor, shift, hard_from, g, h, a, -1, b, -1, best)
            if after < best:
                best = after
                found[0], found[1], found[2], found[3] = a, -1, b, -1
                if best <= good:
                    return best, work + (i + 2) * width_h
    return best, work + (width_g + 1) * (width_h + 1)


@kernel
def _sets(amounts, members, start, size, g, d, allowed, mask_of_unit, h, offset, firsts, seconds, values):
    """None, one or two units of g that may all be in h, with what they have of dimension d. Returns how many."""
    width = min(size[g], _PAIR_WINDOW)
    firsts[0], seconds[0], values[0] = -1, -1, 0
    count = 1
    for i in range(width):
        a = members[start[g] + (i + offset) % size[g]]
        if not _may(allowed, mask_of_unit, a, h):
            continue
        firsts[count], seconds[count], values[count] = a, -1, amounts[a, d]
        count += 1
        for j in range(i):
            a2 = members[start[g] + (j + offset) % size[g]]
            if _may(allowed, mask_of_unit, a2, h):
                firsts[count], seconds[count], values[count] = a, a2, amounts[a, d] + amounts[a2, d]
                count += 1
    return count


@kernel
def _best_double(amounts, held, upper, lower, factor, shift, hard_from, allowed, mask_of_unit, members, start, size,
                 g, h, d, offset, enough, good, found, sets):  # fmt: skip
    """As :func:`_best_single` with up to two units each way, found by what they have of dimension `d`."""
    firsts, seconds, values = sets[0], sets[1], sets[2]
    other_firsts, other_seconds, other_values = sets[3], sets[4], sets[5]
    count = _sets(amounts, members, start, size, g, d, allowed, mask_of_unit, h, offset, firsts, seconds, values)
    others = _sets(amounts, members, start, size, h, d, allowed, mask_of_unit, g, offset, other_firsts, other_seconds,
                   other_values)  # fmt: skip
    order = np.argsort(other_values[:others], kind="mergesort")
    # What g gives less what it takes should lie here, so that both keep their limits of d.
    least = max(held[g, d] - min(upper[g, d], _FAR), max(lower[h, d] - held[h, d], -_FAR))
    most = min(min(upper[h, d], _FAR) - held[h, d], held[g, d] - lower[g, d])
    middle = least // 2 + most // 2
    least, most = min(least, middle), max(most, middle)
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


@kernel
def _worst_dimension(held, upper, lower, factor, shift, g):
    worst, where = np.int64(-1), 0
    for d in range(held.shape[1]):
        over = max(held[g, d] - upper[g, d], lower[g, d] - held[g, d])
        weight = ((max(over, 0) + (1 << shift[d]) - 1) >> shift[d]) * factor[d]
        if weight > worst:
            worst, where = weight, d
    return where


@kernel
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


@kernel
def _take_best(score, tie):
    best = -1
    for h in range(len(score)):
        if score[h] < _IMPOSSIBLE and (
            best < 0 or score[h] < score[best] or (score[h] == score[best] and tie[h] > tie[best])
        ):
            best = h
    return best


@kernel
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


@kernel
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


@kernel
def _exchange(
    amounts, group_of_unit, held, upper, lower, factor, shift, hard_from, allowed, mask_of_unit, masked, work
):
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
    sets = np.empty((6, 1 + _PAIR_WINDOW * (_PAIR_WINDOW + 1) // 2), dtype=np.int64)
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
        d = _worst_dimension(held, upper, lower, factor, shift, g)
        partner = -1
        for with_pairs in range(2):
            _rank_partners(held, upper, lower, factor, shift, g, d, score, tie)
            for _ in range(min(_DOUBLE_PARTNERS if with_pairs else _PARTNERS, num_groups - 1)):
                h = _take_best(score, tie)
                work -= num_groups
                if h < 0 or work <= 0:
                    break
                score[h] = _IMPOSSIBLE
                before = violation[g] + violation[h]
                turn += 1
                if with_pairs:
                    after, spent = _best_double(amounts, held, upper, lower, factor, shift, hard_from, allowed,
                                                mask_of_unit, members, start, size, g, h, d, turn * 37, before,
                                                violation[h], found, sets)  # fmt: skip
                else:
                    after, spent = _best_single(amounts, held, upper, lower, factor, shift, hard_from, allowed,
                                                mask_of_unit, members, start, size, masked, g, h, turn * 37, before,
                                                violation[h], found)  # fmt: skip
                work -= 4 * spent
                if after < before:
                    partner = h
                    break
            if partner >= 0 or work <= 0:
                break
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
            state.components if hard else dimensions, state.allowed, state.mask_of_unit, state.masked, work,
        )
    )  # fmt: skip
