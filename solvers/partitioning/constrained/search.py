"""The search under constraints: relaxed, constructed, repaired, improved, and where it is small, exhausted.

The order of the stages and the work that each may take do not depend on the budget, which only says where to stop: a
larger budget goes on from where a smaller one ended, and never returns anything worse.
"""

from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from solvers.bounds import Bound, goal_above
from solvers.errors import InfeasibleError, SolverError, as_words
from solvers.makespan_bounds import total_bound
from solvers.partitioning._problem import PartitionProblem
from solvers.partitioning.constrained.exchange import exchange
from solvers.partitioning.constrained.exhaust import exhaust
from solvers.partitioning.constrained.greedy import greedy
from solvers.partitioning.constrained.infeasible import check_feasible, prove_infeasible
from solvers.partitioning.constrained.match import match
from solvers.partitioning.constrained.state import State
from solvers.partitioning.lpt import assign_lpt
from solvers.partitioning.portfolio import assign_auto

Ints = NDArray[np.int64]

# docs/benchmarks/searches.md has a row for each part of this search, under constraints and with few items.
# Units and groups up to which everything is tried. With few items that is worth 696 +- 118 ppm and 15 points proven.
_SMALL = 12
# Units, by groups that are alike: about a million work units at most on average.
_SMALL_IF_ALIKE = {2: 20}
# And of other numbers of groups, of at most so many (benchmarks/few_items.py --enumerate).
_SMALL_OF_MORE = 16
# Work units after which trying everything is given up: 0.15 seconds.
_SMALL_WORK = 60_000_000
# A start within 2^-9 of the bound, 0.2 %, needs no other beside it. Any value from 6 to 12 does as well
# (benchmarks/constants.py).
_CLOSE = 9
# Groups that a shake mixes, the slowest and others. Shaking is worth 59 +- 17 ppm with few items. With 2 or 4 groups,
# 24 +- 20 and 27 +- 17 ppm of that are lost.
_SHAKEN = 3
# Turns in vain: 64 samples on 16 ranks take 2.3 ms and not 8.4, their gaps are 0.05 % larger; with 4, 0.09 %.
_IN_VAIN = 8
# Work units besides those of the exchanges: 60 to 90 microseconds, measured.
_WORK_OF_SHAKING = 30_000
# And of every unit: it is copied and checked in NumPy, a few passes of some nanoseconds.
_WORK_A_UNIT = 20
# Halvings of the step by which a target is lowered, from half of the gap: down to a part in 16,000 of it. Any value
# from 7 to 20 does as well: 3 +- 3 and 5 +- 5 ppm with few items.
_STEPS = 14


@dataclass(slots=True)
class Search:
    """The best assignment so far, the bound, and the work left."""

    state: State
    work: int  # negative once the budget is spent
    stop_at: Fraction = Fraction(0)  # the gap that is small enough
    bound: Bound = field(init=False)
    floors: list[int] = field(init=False)  # lower bounds on the largest time of each component
    best: Ints | None = None  # int64[u]: feasible
    makespan: int = 2**63 - 1  # of `best`

    def __post_init__(self) -> None:
        self.bound, self.floors = total_bound(self.state.problem, self.state.units)

    @property
    def done(self) -> bool:
        """Whether there is nothing left to gain, or to spend."""
        return self.work <= 0 or self.close

    @property
    def close(self) -> bool:
        """Whether the best is proven within `stop_at` of the optimum."""
        return self.best is not None and self.makespan <= goal_above(self.bound, self.stop_at)

    def offer(self, assignment: Ints) -> bool:
        """Keep a copy of `assignment` if it is feasible and better than the best. Returns whether it is."""
        makespan = self.state.makespan(assignment)
        if makespan >= self.makespan or not self.state.feasible(assignment):
            return False
        self.best, self.makespan = assignment.astype(np.int64), makespan
        return True


def search(state: State, work: int, stop_at: Fraction = Fraction(0)) -> Search:
    """Return the best that `work` buys.

    Raises
    ------
    InfeasibleError
        With a certificate, where it is proven that there is no assignment.
    SolverError
        Where none was found, nor proven impossible.
    """
    check_feasible(state)
    found = Search(state, work, stop_at)
    # Most often the unconstrained answer keeps the constraints, or is the best start: it is the cheapest to get.
    starts = _relax(found)
    # Greedy orders and the match by composition: one pass each, O(u log m).
    if not found.close:
        starts += _construct(found)
    # Nothing feasible yet: is there anything at all? Proofs first, then exchanges that lower what is violated.
    if found.best is None:
        prove_infeasible(state)
        _repair(found, starts)
    # Few units and groups: all ways there are, which ends in an optimum or a proof of none.
    exhaust_small(found)
    if found.best is None:
        raise SolverError(
            f"no assignment was found that keeps {as_words(state.problem.names)}, nor was it proven that there is none",
            ["remedy: a larger {time_budget}", "looser constraints", "or {method='exact'}"],
        )
    # The main search: everything under a lower makespan by exchanges, over and over; the rest of the work shakes.
    lower_targets(found)
    if state.components == 1:
        shake(found)
    return found


def _relax(found: Search) -> list[Ints]:
    """Solve without the constraints: what keeps them all anyway is the answer, and what does not is a start."""
    state = found.state
    if state.components > 1 or not state.problem.plain_groups:
        return []
    units, m = state.units, state.problem.num_groups
    few, longer = divmod(len(state.problem.costs), m)
    equal = 0 < few == state.problem.least_items and state.problem.key_of_item is None
    if longer and state.problem.most_items > few + 1:  # counts may differ by more: no bound for equal ones holds
        equal = False
    problem = PartitionProblem.prepare(units.costs[:, 0], m, equal, found.stop_at)
    assignment = np.empty(len(problem.order), dtype=np.int64)
    assignment[problem.order] = assign_lpt(problem)
    starts = [assignment]
    found.offer(assignment)
    # As for equal counts (even_counts._FIRST). Four times as much each time, so that all tries before the last take a
    # third of it.
    spend = 40 * (len(assignment) + m)
    while not found.done:
        groups, bound = assign_auto(problem, min(spend, found.work))
        found.work -= spend
        assignment = np.empty(len(groups), dtype=np.int64)
        assignment[problem.order] = groups
        found.offer(assignment)
        if bound.value > found.bound.value:
            found.bound = bound
        if equal or not state.feasible(assignment):  # under counts the search below is the better one
            break
        spend *= 4
    return starts


def _orders(state: State) -> list[Ints]:
    """Orders in which the greedy places units: by cost; by tightness; by both; and first those with few groups."""
    c, units = state.components, state.units
    u = len(units.items)
    by_cost = np.arange(u)
    orders = [by_cost]
    rooms = [float(np.minimum(state.upper[:, d], 2**62).mean()) for d in range(c, state.amounts.shape[1])]
    tight = np.zeros(u)
    for d, room in enumerate(rooms):
        tight = np.maximum(tight, state.amounts[:, c + d] / max(room, 1.0))
    cost = np.zeros(u)
    for k in range(c):
        cost = np.maximum(cost, units.costs[:, k] * (state.problem.num_groups / max(int(units.costs[:, k].sum()), 1)))
    if state.problem.sizes.shape[1] or state.problem.key_of_item is not None:
        orders.append(np.argsort(-tight, kind="stable"))
        orders.append(np.argsort(-np.maximum(tight, cost), kind="stable"))
    if state.masked:
        freedom = state.allowed.sum(axis=1)[state.mask_of_unit]
        orders.insert(0, np.lexsort((by_cost, freedom)))
        if len(orders) > 2:
            orders.append(np.lexsort((by_cost, -tight, freedom)))
    return orders


def _construct(found: Search) -> list[Ints]:
    """Run the greedy in every order; all of what they give are starts for a repair if none is feasible."""
    state, starts = found.state, []
    if state.components > 1 or state.problem.sizes.shape[1]:  # more to match than one load
        assignment, failed = match(state, np.arange(len(state.amounts)), found.floors)
        starts.append(assignment)
        placed = failed == 0 and found.offer(assignment)
        if placed and found.makespan - found.bound.value <= found.bound.value >> _CLOSE:
            return starts
    for order in _orders(found.state):
        assignment, failed = greedy(found.state, order)
        starts.append(assignment)
        if failed == 0:
            found.offer(assignment)
        if found.close:
            break
    return starts


def _round(state: State) -> int:
    return 4_000_000 + 40 * len(state.amounts) + 200 * state.problem.num_groups


def _repair(found: Search, starts: list[Ints]) -> None:
    """Lower the violation of the starts in turn until one is feasible; those with masks broken are left out.

    Twice: with costs left free, and then from where that ended.
    """
    state = found.state
    if state.masked:
        starts = [s for s in starts if state.allowed[state.mask_of_unit, s].all()]
    for _ in range(3):
        for start in starts:
            if found.work <= 0:
                return
            spent = 4 * _round(state)
            left = exchange(state, start, state.upper, min(spent, found.work), hard=False)
            found.work -= min(spent, found.work) - left
            if found.offer(start):
                return


def lower_targets(found: Search) -> None:
    """Lower one target after another, by half of what may be left, or less where that was too much."""
    state = found.state
    if found.best is None:
        return
    c = state.components
    slots = [[k] for k in range(c)] if state.problem.objective == "sum" else [list(range(c))]
    if c > 1 and state.problem.objective == "sum":
        # All components at once first: where they pull together, one exchange serves them all.
        slots.insert(0, list(range(c)))
    shifts = [1] * len(slots)
    current = found.best.copy()
    while not found.done and min(shifts) <= _STEPS:
        for s, slot in enumerate(slots):
            if found.done or shifts[s] > _STEPS:
                continue
            targets = _targets(found, slot, shifts[s], current)
            if targets is None:
                shifts[s] = _STEPS + 1
                continue
            spent = min(_round(state), found.work)
            left = exchange(state, current, state.limits_for(targets), spent, hard=True)
            found.work -= spent - left
            reached = all(t <= target for t, target in zip(state.times(current), targets, strict=True))
            # Met: try a larger step. Not met: half of it.
            if found.offer(current) and reached:
                shifts[s] = max(1, shifts[s] - 1)
            else:
                shifts[s] += 1
            if state.makespan(current) > found.makespan and found.best is not None:
                current = found.best.copy()


def _targets(found: Search, slot: list[int], shift: int, current: Ints) -> list[int] | None:
    """The largest times to aim at: those of `current`, and for the components in `slot` less; None where nothing is."""
    targets = found.state.times(current)
    if found.state.problem.objective == "max":
        aim = max(targets)
        step = (aim - found.bound.value) >> shift
        return [aim - max(step, 1)] * len(targets) if aim > found.bound.value else None
    before = list(targets)
    for k in slot:
        if targets[k] > found.floors[k]:
            targets[k] -= max((targets[k] - found.floors[k]) >> shift, 1)
    return targets if targets != before else None


def exhaust_small(found: Search) -> None:
    """Where units and groups are few, search exhaustively: the optimum, or a proof of infeasibility."""
    state = found.state
    u, m = len(state.amounts), state.problem.num_groups
    alike = state.problem.plain_groups and not state.masked
    most = _SMALL_IF_ALIKE.get(m, _SMALL_OF_MORE) if alike else _SMALL
    if found.done or u > most or m > (_SMALL_OF_MORE if alike else _SMALL):
        return
    order = np.lexsort((np.arange(u), state.allowed.sum(axis=1)[state.mask_of_unit]))
    assignment, left = exhaust(state, order, found.makespan, found.bound.value, min(_SMALL_WORK, found.work))
    complete = left > 0
    found.work -= min(_SMALL_WORK, found.work) - left
    if assignment is not None:
        found.offer(assignment)
    if complete and found.best is None:
        raise InfeasibleError(
            f"every assignment of {len(state.problem.costs)} {{items}} to {m} {{groups}} breaks one of "
            f"{as_words(state.problem.names)}: all were tried",
        )
    if complete and found.makespan > found.bound.value:
        found.bound = Bound(found.makespan, "search")


def shake(found: Search) -> None:
    """Mix a few groups anew and go on from there, until the best is proven optimal or the work is spent.

    Where a gap is small enough (`stop_at`), it also ends after some turns in a row in vain: a bound may be too weak to
    ever prove that gap. For one cost component. Assignments that break a constraint are discarded.
    """
    state, rng = found.state, np.random.default_rng(0)
    m = state.problem.num_groups
    if found.best is None or m == 1:
        return
    in_vain, slowest = 0, _slowest(state, found.best)
    while not found.done and not (found.stop_at and in_vain == _IN_VAIN):
        current = found.best.copy()
        is_mixed = np.zeros(m, dtype=np.bool_)
        is_mixed[rng.choice(m, min(m, _SHAKEN) - 1, replace=False)] = True
        is_mixed[slowest] = True
        units = np.flatnonzero(is_mixed[current])
        mixed = rng.choice(units, min(len(units), 4 * _SHAKEN), replace=False)
        current[mixed] = rng.permutation(current[mixed])
        found.work -= _WORK_OF_SHAKING + _WORK_A_UNIT * len(current)
        in_vain += 1
        # What was mixed may break a rule: thrown away, as to repair it would cost more than to mix again.
        if found.done or not state.feasible(current):
            continue
        spent = min(1_000_000, found.work)
        left = exchange(state, current, state.limits_for([found.makespan - 1]), spent, hard=True)
        found.work -= spent - left
        if found.offer(current):
            in_vain, slowest = 0, _slowest(state, found.best)


def _slowest(state: State, assignment: Ints) -> int:
    """Return the group that ends last."""
    return int(np.argmax(state.loads(assignment)[:, 0] // state.problem.speeds))
