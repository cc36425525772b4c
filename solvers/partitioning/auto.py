"""The default method: a start, then one makespan after another, each lower, by the operation of `search.py`."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from solvers._budget import work_units
from solvers._sort import sort_descending
from solvers._units import merge
from solvers.bounds import Bound, best_bound, goal_above, total_bound
from solvers.constraints import ConstrainedProblem
from solvers.errors import InfeasibleError, SolverError, as_words
from solvers.groups import group_loads
from solvers.partitioning.infeasible import prove_infeasible
from solvers.partitioning.lpt import lpt_in_order
from solvers.partitioning.search import FAR, NOBODY, State, bring_under, divide_all, greedy, lay_out, resemble

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

# Larger sums are searched in coarser numbers, as limits must stay below FAR: those of so many bits.
_MOST_BITS = 60
# Work that one call of `bring_under` may take in the first turn, so much and so much a unit and group: it is enough for
# most steps, and little enough to be run as Python by a process that has compiled nothing yet.
_FIRST, _FIRST_EACH = 20_000, 40
# Work that there is at least, a unit and dimension, once LPT alone is not enough: a budget that sorting has spent would
# end in plans that are far from good. With two caps, 16,384 units on 256 groups take 30 ms where 10 were asked.
_LEAST_EACH, _LEAST_WITH_RULES = 40, 100
# Work after which no other start is tried, so much and so much a unit and dimension: once there is a plan.
_STARTS, _STARTS_EACH = 500_000, 60
# Work of one exhaustive search.
_EXHAUSTED = 2_000_000
# Turns: in the first, no groups are divided anew; in the others 4, 16, ... times for each group that is too full.
_TURNS, _TURNS_TO_OPTIMUM = 6, 60
_MOST_ATTEMPTS = 1024
# Kinds of groups that each have a heap of their own. Where there are more, all are in one, unless a unit may be in so
# few groups that it would pass by most of that heap.
_MOST_KINDS = 16
# Groups of a block, within which units are placed by likeness.
_BLOCK = 64
# So few units are also searched exhaustively.
_FEW_UNITS = 40


class Found(NamedTuple):
    """What a method found."""

    group_of_unit: Ints  # int64[u]
    bound: Bound


def auto(problem: ConstrainedProblem, seconds: float, stop_at: Fraction) -> Found:
    """Find a plan that keeps all rules, and lower its makespan turn by turn.

    Parameters
    ----------
    problem : ConstrainedProblem
    seconds : float
        Seconds' worth of work; a start always runs.
    stop_at : Fraction
        The gap that is small enough: the search ends as soon as it has proven it, or after a turn in vain. 0: it goes
        on until the plan is proven optimal, or the work is spent.

    Raises
    ------
    InfeasibleError
        With a certificate, where it is proven that no plan keeps the rules.
    SolverError
        Where none was found, nor proven impossible.
    """
    coarse = coarser(problem)
    if coarse is problem:
        return Search(problem, work_units(seconds), stop_at).run()
    try:
        found = Search(coarse, work_units(seconds), stop_at, proves=False).run()
    except SolverError:
        prove_infeasible(problem, merge(problem))
        raise
    return Found(found.group_of_unit, closed_bound(problem))


def coarser(problem: ConstrainedProblem) -> ConstrainedProblem:
    """Return the problem in numbers of fewer bits where sums are near the end of int64, else the problem itself.

    Sizes are rounded up and caps down, so that what fits then fits. A cap on all there is stays none.
    """
    total, all_sizes = int(problem.costs.sum()) + int(problem.initial.sum()), problem.sizes.sum(axis=0)
    shift = max(0, total.bit_length() - _MOST_BITS)
    columns = [max(0, total.bit_length() - _MOST_BITS) for total in all_sizes.tolist()]
    if not shift and not any(columns):
        return problem
    down = np.array(columns, dtype=np.int64)
    sizes = -(-problem.sizes >> down)
    return replace(
        problem, costs=problem.costs >> shift, initial=problem.initial >> shift, sizes=sizes,
        caps=np.where(problem.caps == all_sizes, sizes.sum(axis=0), problem.caps >> down),
    )  # fmt: skip


def closed_bound(problem: ConstrainedProblem) -> Bound:
    """Return the best bound that needs no search."""
    return total_bound(problem, merge(problem))[0]


def has_equal_counts(problem: ConstrainedProblem) -> bool:
    """Whether every group must hold n/m items, within one."""
    n, m = len(problem.costs), problem.num_groups
    return problem.least_items == n // m and problem.most_items <= -(-n // m) and problem.most_items < n


def is_plain(problem: ConstrainedProblem) -> bool:
    """Whether there is one cost and no rule, or the only rule is equal counts."""
    return set(problem.names) <= {"keep_together"} or problem.names == ("equal_counts",)


def state_of(amounts: Ints, mask: Ints, allowed: NDArray[np.bool_], least: Ints) -> State:
    """Return units with these amounts, int64[u, d], and groups of at least so many items, int64[m], for the kernels."""
    (u, dims), m = amounts.shape, len(least)
    by_amount, values = np.empty((dims, u), dtype=np.int64), np.empty((dims, u), dtype=np.int64)
    for d in range(dims):
        column = np.ascontiguousarray(amounts[:, d])
        by_amount[d], values[d] = sort_descending(column, int(column.max(initial=0)))
    return State(
        amounts, by_amount, values, mask, allowed, least, scale=m / np.maximum(amounts.sum(axis=0), 1),
        group=np.full(u, NOBODY, dtype=np.int64), held=np.zeros((m, dims), dtype=np.int64),
        head=np.full(m, NOBODY, dtype=np.int64), near=np.empty((u, 2), dtype=np.int64),
    )  # fmt: skip


class Search:
    """A problem, the best plan of it so far, and the work that is left."""

    def __init__(self, problem: ConstrainedProblem, work: int, stop_at: Fraction, proves: bool = True) -> None:
        self.problem, self.units, self.work, self.stop_at = problem, merge(problem), work, stop_at
        self.proves = proves  # whether what is proven of these numbers holds for those that were given
        self.order, self.ordered = np.zeros(0, dtype=np.int32), np.zeros(0, dtype=np.int64)
        if is_plain(problem):
            costs = np.ascontiguousarray(self.units.costs[:, 0])
            # Units by descending cost, and these costs: to sort is most of what such a problem takes.
            self.order, self.ordered = sort_descending(costs, int(costs.max(initial=0)))
            self.bound = best_bound(self.ordered, int(costs.sum()), problem.num_groups, has_equal_counts(problem))
            self.floors = [self.bound.value]
        else:
            self.bound, self.floors = total_bound(problem, self.units)  # floors: of the largest time of each cost
        self.best: Ints | None = None  # int64[u]
        self.makespan = 2**63 - 1  # of the best
        self._state: State | None = None

    def run(self) -> Found:
        """Search until the best is close enough, or the work is spent."""
        self.start()
        if not self.done:
            lay_out(self.state, self.best, self.before)
            self.lower(0, _FIRST + _FIRST_EACH * (len(self.units.costs) + self.problem.num_groups))
        attempts = 4
        for turn in range(1, _TURNS if self.stop_at else _TURNS_TO_OPTIMUM):
            if self.done:
                break
            before = self.makespan
            self.exhaust(_EXHAUSTED)
            self.lower(min(attempts, _MOST_ATTEMPTS), self.work)
            if turn > 2 and self.makespan == before and self.stop_at:
                break
            attempts *= 4
        return self.found()

    def found(self) -> Found:
        """Return the best, with its bound."""
        if self.best is None:
            raise RuntimeError("no plan was found: call run() or start() first")
        return Found(self.best, self.bound)

    # What the kernels work on, made when it is first needed ----------------------------------------------------------

    @property
    def state(self) -> State:
        """Units, limits and groups as the kernels take them."""
        if self._state is None:
            self._state = self._make_state()
        return self._state

    def _make_state(self) -> State:
        problem, units, m = self.problem, self.units, self.problem.num_groups
        c = units.costs.shape[1]
        amounts = np.column_stack([units.costs, units.sizes, units.items])
        before = np.zeros((m, amounts.shape[1]), dtype=np.int64)
        before[:, :c] = problem.initial
        upper = np.full(before.shape, FAR)
        upper[:, c:-1] = problem.caps
        if problem.most_items < len(problem.costs):  # more than all there are is no limit
            upper[:, -1] = problem.most_items
        self.before, self.upper = before, upper
        self.seed = np.ones(1, dtype=np.int64)
        least = np.full(m, problem.least_items, dtype=np.int64)
        floor = _LEAST_EACH if is_plain(problem) else _LEAST_WITH_RULES
        self.work = max(self.work, floor * amounts.size)
        return state_of(amounts, units.mask_of_unit, np.ascontiguousarray(units.masks), least)

    @property
    def components(self) -> int:
        """How many of the dimensions are costs; they stand first."""
        return len(self.floors)

    # The best so far ------------------------------------------------------------------------------------------------

    @property
    def close(self) -> bool:
        """Whether the best is proven within `stop_at` of the optimum."""
        return self.best is not None and self.makespan <= goal_above(self.bound, self.stop_at)

    @property
    def done(self) -> bool:
        """Whether there is nothing left to gain, or to spend."""
        return self.close or self.work <= 0

    def times(self) -> Ints:
        """Return the largest time of each cost, as it is laid out."""
        held = self.state.held[:, : self.components]
        return np.asarray((-(-held // self.problem.speeds[:, None])).max(axis=0))

    def value(self, times: Ints) -> int:
        """Return the makespan that the largest times of the costs make."""
        return int(times.sum() if self.problem.objective == "sum" else times.max())

    def offer(self) -> bool:
        """Keep a copy of what is laid out if it keeps all rules and is better than the best. Returns whether it is."""
        s = self.state
        makespan = self.value(self.times())
        if makespan >= self.makespan or (s.held > self.upper).any() or (s.held[:, -1] < s.lower).any():
            return False
        if self.best is None and (s.group < 0).any():
            return False
        self.best, self.makespan = s.group.copy(), makespan
        return True

    def limits(self, targets: Sequence[int]) -> Ints:
        """Return the upper limits where cost k may take ``targets[k]`` at most on any group."""
        upper = self.upper.copy()
        for k, target in enumerate(targets):
            upper[:, k] = np.minimum(int(target), FAR // self.problem.speeds) * self.problem.speeds
        return upper

    # A start --------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Find a plan that keeps all rules: LPT if there are none; else greedily in several ways, and mended."""
        if is_plain(self.problem):
            self._start_by_lpt()
            return
        s = self.state
        tried: list[tuple[int, int, Ints]] = []
        enough = self.work - _STARTS - _STARTS_EACH * s.amounts.size  # the rest is for the search
        # How near to the bound a start is near enough: where counts are limited, others would be no better.
        shift = 7 if self.problem.least_items else 10
        for order, weight in self._ways():
            failed = self._place(order, weight)
            if failed == 0:
                self.offer()
            near = self.makespan - self.bound.value <= self.bound.value >> shift
            if self.best is not None and (near or self.work < enough):
                break
            tried.append((failed, len(tried), s.group.copy()))
        if self.best is None and self.proves:
            prove_infeasible(self.problem, self.units)
        nearest = [group for _, _, group in sorted(tried, key=lambda one: one[:2])]
        if self.best is None:  # counts alone are mended without a search
            self._put_all(nearest[0])
        if self.best is None:  # to try all ways often takes less than to mend one
            self.exhaust(_EXHAUSTED // 4)
        for group in nearest:
            if self.best is None:
                self._mend(group)
        if self.best is None:
            self.exhaust(2 * _EXHAUSTED)
        if self.best is None:
            raise SolverError(
                f"no assignment was found that keeps {as_words(self.problem.names)}, nor was it proven that there is "
                "none",
                ["remedy: a larger {time_budget}", "looser constraints", "or {method='exact'}"],
            )

    def list_schedule(self) -> bool:
        """Run the first of the ways alone: costliest first, least loaded group. Returns whether it keeps all rules."""
        if is_plain(self.problem):
            self._start_by_lpt()
            return True
        order, weight = next(self._ways())
        return self._place(order, weight) == 0 and self.offer()

    def _place(self, order: Ints, weight: Floats | None) -> int:
        """Place all units in one of the :meth:`_ways`. Returns how many fit nowhere, and stay out."""
        problem = self.problem
        lay_out(self.state, np.full(len(order), NOBODY), self.before)
        if weight is None:
            return self._resemble(order)
        slack = len(problem.costs) - problem.least_items * problem.num_groups
        failed = self._spend(greedy(self.state, order, self.upper, weight, self.kinds(), slack, len(order)))
        if failed and problem.least_items:  # who may be where decides who has too few: these are filled afterwards
            lay_out(self.state, np.full(len(order), NOBODY), self.before)
            failed = self._spend(greedy(self.state, order, self.upper, weight, self.kinds(), FAR, FAR))
            self._fill_up()
        return failed

    def _resemble(self, order: Ints) -> int:
        """Place all units by likeness: of many groups first in blocks of them, then inside each block.

        A unit is compared with each block, and with each group of one of them: 104 of 2,560 groups.
        """
        s, m, c = self.state, self.problem.num_groups, self.components
        upper = self.limits(self.floors)
        if m >= 2 * _BLOCK and s.allowed.all():
            block, count = np.arange(m) // _BLOCK, -(-m // _BLOCK)
            room, held = np.zeros((2, count, len(s.values)), dtype=np.int64)
            np.add.at(room, block, np.minimum(upper, FAR // m))
            np.add.at(held, block, s.held)
            room[:, upper[0] == FAR] = FAR
            blocks = s._replace(
                allowed=np.ones((1, count), dtype=np.bool_), group=s.group.copy(), held=held,
                head=np.full(count, NOBODY), near=np.empty_like(s.near),
            )  # fmt: skip
            self._spend(resemble(blocks, order, room, c, 0, count))
            mine = blocks.group[order]
            for b in range(count):
                self._spend(resemble(s, order[mine == b], upper, c, b * _BLOCK, min(m, (b + 1) * _BLOCK)))
        return self._spend(resemble(s, order, upper, c, 0, m))

    def _spend(self, found: tuple[int, int]) -> int:
        """Count the work of what was called, and return what it found."""
        result, work = found
        self.work -= work
        return int(result)

    def _start_by_lpt(self) -> None:
        """LPT, which is mostly all that is needed."""
        m = self.problem.num_groups
        groups = lpt_in_order(self.ordered, m, has_equal_counts(self.problem))
        self.makespan = int(group_loads(self.ordered, groups, m).max())
        self.best = np.empty(len(groups), dtype=np.int64)
        self.best[self.order] = groups
        self.work -= 20 * len(groups)

    def _weights(self) -> tuple[Floats, Floats]:
        """By what a group counts as full: by its costs alone, and by all that is limited."""
        c, m, upper = self.components, self.problem.num_groups, self.upper
        by_cost = np.zeros(upper.shape)
        by_cost[:, :c] = m / np.maximum(self.state.values[:c].sum(axis=1), 1) / self.problem.speeds[:, None]
        by_all = by_cost.copy()
        by_all[:, c:] = 1.0 / np.maximum(upper[:, c:], 1)
        return by_cost, by_all

    def kinds(self) -> Ints:
        """Number groups that take the same units, and carry them at the same speed: int64[m]."""
        m = self.problem.num_groups
        alike = np.column_stack([self.state.allowed.T, self.problem.speeds])
        _, kind = np.unique(alike, axis=0, return_inverse=True)
        kind = kind.reshape(m).astype(np.int64)
        mask = self.state.mask
        few = self.state.allowed.sum(axis=1)[mask].sum() <= _MOST_KINDS * len(mask)
        return kind if few or kind.max() < _MOST_KINDS else np.zeros(m, dtype=np.int64)

    def _ways(self) -> Iterator[tuple[Ints, Floats | None]]:
        """Yield orders of units, with weights for :func:`greedy` or None for likeness; what is mostly best is first."""
        s, c = self.state, self.components
        by_cost, by_all = self._weights()
        share = s.amounts / np.maximum(s.amounts.sum(axis=0), 1)
        quantities = s.amounts.shape[1] - c - 1
        costliest = s.by_amount[0] if c == 1 else np.argsort(-share[:, :c].max(axis=1), kind="stable")
        tightest = np.argsort(-share[:, :-1].max(axis=1), kind="stable")
        by_load, by_likeness = (costliest, by_all if c > 1 else by_cost), (costliest, None)
        ways: list[tuple[Ints, Floats | None]] = [by_load]
        if c > 1 or (quantities and "speeds" in self.problem.names):
            ways = [by_likeness, by_load]
        elif quantities and self.problem.least_items == 0:
            ways = [by_load, by_likeness]
        if quantities or self.units.unit_of_item is not None:
            ways.append((tightest, by_all))
        if quantities:
            scarcest = np.argsort(-share[:, c:-1].max(axis=1), kind="stable")
            ways.append((scarcest, by_cost))
        if len(s.allowed) > 1 or not s.allowed.all():  # units that have few groups come first
            freedom = s.allowed.sum(axis=1)[s.mask]
            ways = [(order[np.argsort(freedom[order], kind="stable")], weight) for order, weight in ways]
        yield from ways

    def _put_all(self, group: Ints) -> None:
        """Put units that fit nowhere where they may be, and fill groups with too few items."""
        lay_out(self.state, group, self.before)
        anything = np.full(self.upper.shape, FAR)
        self._spend(greedy(self.state, self.state.by_amount[0], anything, self._weights()[1], self.kinds(), FAR, FAR))
        self._fill_up()
        self.offer()

    def _mend(self, group: Ints) -> None:
        """Put all units somewhere, and exchange until nothing is over a limit."""
        self._put_all(group)
        for attempts in (0, 0, 16, 16, 64, 64):
            if self.best is not None or self.work <= 0:
                return
            c, dims = self.components, self.state.held.shape[1]
            _, self.work = bring_under(self.state, self.upper, c, dims, attempts, self.seed, self.work)
            self._fill_up()
            self.offer()

    def _fill_up(self) -> None:
        """Give groups with too few items some, one by one (Ford and Fulkerson 1956).

        An item may have to come a long way: each group of a chain gives one to the group before it, and the last has
        one to spare.
        """
        s, m = self.state, self.problem.num_groups
        for g in np.repeat(np.arange(m), np.maximum(s.lower - s.held[:, -1], 0)):
            if s.held[g, -1] >= s.lower[g]:  # a unit of several items came
                continue
            chain = self._chain_to(int(g))
            if not chain:
                break
            group = s.group.copy()
            for unit, to in chain:
                group[unit] = to
            lay_out(s, group, self.before)

    def _chain_to(self, short: int) -> list[tuple[int, int]]:
        """Return the shortest chain of moves, each a unit and its group to be, that fills `short`, or none."""
        s, last = self.state, self.state.held.shape[1] - 1
        move = {short: (NOBODY, NOBODY)}  # of each group that was reached: the unit that it gives, and to whom
        reached = [short]
        for to in reached:
            fits = s.allowed[s.mask, to] & (s.group != to)
            for d in range(last):
                fits &= s.amounts[:, d] <= self.upper[to, d] - s.held[to, d]
            self.work -= len(fits) * (last + 1)
            units = np.flatnonzero(fits)
            for unit in units[np.argsort(s.amounts[units, 0], kind="stable")].tolist():  # the cheapest moves
                giver = int(s.group[unit])
                if giver in move:
                    continue
                move[giver] = (unit, to)
                reached.append(giver)
                if giver == NOBODY or s.held[giver, last] - s.amounts[unit, last] >= s.lower[giver]:
                    chain, at = [], giver
                    while at != short:
                        chain.append(move[at])
                        at = move[at][1]
                    return chain
        return []

    # Lower and lower ------------------------------------------------------------------------------------------------

    def lower(self, attempts: int, most_work: int) -> None:
        """Aim half way between what failed in this turn and what is reached, until both meet.

        Where the sum of several largest times counts, all of them are lowered together, and then one after another.
        """
        s, c, sums = self.state, self.components, self.problem.objective == "sum"
        parts = [list(range(c)), *([[k] for k in range(c)] if c > 1 and sums else [])]
        floors = np.array(self.floors)
        for part in parts:
            failed = floors - 1
            while not self.done:
                times = self.times()
                targets, ended = times.copy(), True
                if not sums:
                    low, high = int(failed.max()), int(times.max())
                    targets[:], ended = max(low + (high - low) // 2, low + 1), high - low <= 1
                else:
                    for k in part:
                        gap = int(times[k] - failed[k])
                        if gap > 1 + int(floors[k] * self.stop_at) // 4:
                            targets[k], ended = max(floors[k], failed[k] + gap // 2), False
                if ended:
                    break
                asked = min(self.work, most_work)
                ok, left = bring_under(s, self.limits(targets.tolist()), 0, c, attempts, self.seed, asked)
                self.work -= asked - left
                self.offer()
                if not ok:
                    failed[part] = np.maximum(failed[part], targets[part])

    # All ways there are ---------------------------------------------------------------------------------------------

    def exhaust(self, most_work: int) -> None:
        """Search all ways to divide the units, if these are few: for the optimum, or a proof that there is no plan."""
        if len(self.units.costs) > _FEW_UNITS:
            return
        if self.best is not None and self.components > 1 and self.problem.objective == "sum":
            self._exhaust_sums(most_work)
            lay_out(self.state, self.best, self.before)
            return
        if self.best is None:  # a start that failed has units in no group, which would not be divided
            lay_out(self.state, np.zeros(len(self.units.costs), dtype=np.int64), self.before)
        while not self.close:
            aim = FAR if self.best is None else self.makespan - 1
            verdict = self._reach([aim] * self.components, most_work)
            if verdict == 0 and self.proves:
                if self.best is None:
                    raise InfeasibleError(
                        f"every assignment of {len(self.problem.costs)} {{items}} to {self.problem.num_groups} "
                        f"{{groups}} breaks one of {as_words(self.problem.names)}: all were tried",
                    )
                self.bound = Bound(self.makespan, "search")
            if verdict != 1 or not self.offer():
                break

    def _reach(self, targets: Sequence[int], most_work: int) -> int:
        """Divide all units anew under these times: 1 and it is done; 0: there is no way; -1: not known."""
        verdict, spent = divide_all(self.state, self.limits(targets), min(self.work, most_work))
        self.work -= spent
        return int(verdict)

    def _exhaust_sums(self, most_work: int) -> None:
        """Of two costs whose sum counts: the least time of the first for each time of the second that is worth it."""
        if self.components > 2:
            return
        first, second = self.floors
        most = self.makespan - 1 - first
        while most >= second:
            low, high, reached = first, self.makespan - 1 - second, -1
            while low <= high:
                middle = (low + high) // 2
                verdict = self._reach([middle, most], most_work)
                if verdict < 0 or self.work <= 0:
                    return
                if verdict == 1:
                    self.offer()
                    times = self.times()
                    high, reached = int(times[0]) - 1, int(times[1])
                else:
                    low = middle + 1
            if reached < 0:
                break
            most = min(reached, self.makespan - low) - 1  # from here on the first takes `low` at least
        if self.proves:
            self.bound = Bound(self.makespan, "search")
