"""Blocks of ``window + 1`` steps: which positions of an epoch's order each step has.

A step of so many samples is a piece of its block, which is sorted by cost, cut, and runs in random order. Steps of free
size, with ``batch_size=None``, take what their micro-batches hold.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from balancer.compat import step_grid
from balancer.compat.rank_batches import Place
from balancer.compat.step_grid import Grid, StepPlanner
from balancer.problem.shuffle import shuffled
from solvers.errors import SolverError
from solvers.partitioning import partition

if TYPE_CHECKING:
    from balancer.compat.limited_step import LimitedStepPlanner

__all__ = ["Block", "CountedSteps", "DrawnOrder"]

Ints = NDArray[np.int64]
Planned = tuple[list[Ints], list[Grid] | None]


@dataclass(frozen=True, slots=True)
class DrawnOrder:
    """The order of an epoch: how many positions it has, and the row at each."""

    epoch: int
    total: int
    rows: Callable[[Ints], Ints]


@dataclass
class Block:
    """Steps that are planned together.

    Attributes
    ----------
    behind : Place
        Where the next block begins.
    positions : int64[n]
        Of the order: what it plans, each once.
    drawn : list of int64[]
        Positions of its steps as they were drawn.
    """

    behind: Place
    positions: Ints
    drawn: list[Ints]
    order: DrawnOrder
    planner: StepPlanner
    plan: Callable[[], Planned]

    @property
    def count(self) -> int:
        """How many steps it has; nothing is planned for that."""
        return len(self.drawn)

    @cached_property
    def _planned(self) -> Planned:
        return self.plan()

    @property
    def steps(self) -> list[Ints]:
        """The positions of each step."""
        return self._planned[0]

    def grid(self, step: int) -> Grid:
        """Return the micro-batches of a step, as rows."""
        steps, grids = self._planned
        return self.planner.plan(self.order.rows(steps[step])) if grids is None else grids[step]


class CountedSteps:
    """Steps of so many samples each.

    Parameters
    ----------
    planner : StepPlanner
    limited : LimitedStepPlanner or None
        The same, where micro-batches have limits.
    size : int
        Samples of a step.
    window : int
    within : Fraction or None
        How far the tokens of a step may be from the mean of its block.
    drop_last : bool
        Leave out what makes no whole step.
    """

    def __init__(
        self, planner: StepPlanner, limited: LimitedStepPlanner | None, size: int, window: int,
        within: Fraction | None, seed: int, drop_last: bool,
    ) -> None:  # fmt: skip
        self.planner, self._limited, self.size, self.window, self._within = planner, limited, size, window, within
        self._seed, self._drop, self.costs = seed, drop_last, planner.costs

    def block(self, at: Place, order: DrawnOrder, number: int) -> Block | None:
        """Return the block that begins at a place, None behind the last; it has step `number` of the epoch first."""
        size = self.size * (self.window + 1)
        end = min(order.total, at.samples + max(0, size - len(at.carried)))
        block = np.concatenate([at.carried[:size], np.arange(at.samples, end)])
        # Those that are left out at the end may be a step of others who go on from there.
        block, out = np.split(block, [len(block) - (len(block) % self.size if self._drop else 0)])
        if not len(block):
            return None
        behind = Place(at.epoch, end, np.concatenate([out, at.carried[size:]]))
        drawn = np.split(block, range(self.size, len(block), self.size))
        whole = drawn
        if len(rest := drawn[-1]) < self.size:
            whole, drawn = drawn[:-1], [*drawn[:-1], self._filled_up(rest, order.total)]

        def plan() -> Planned:
            last = [self._by_cost(each, order) for each in drawn[len(whole) :]]
            ways = ([*way, *last] for way in self._ways(whole, order))
            return (next(ways), None) if self._limited is None else self._that_fits(self._limited, ways, order, number)

        return Block(behind, block, drawn, order, self.planner, plan)

    def _filled_up(self, rest: Ints, total: int) -> Ints:
        """Add the first rows of the epoch: so all micro-batches are of one size, or, of any size, none is empty."""
        batches = self.planner.micro_steps * self.planner.num_ranks
        free = self._limited is not None or self.planner.speeds is not None
        missing = max(0, batches - len(rest)) if free else -len(rest) % batches
        return np.concatenate([rest, np.arange(missing) % total])

    def _ways(self, drawn: Sequence[Ints], order: DrawnOrder) -> Iterator[list[Ints]]:
        """Yield ways to make steps of what was drawn, the best first; within a step by cost."""
        if not drawn:
            yield []
            return
        count, seed = len(drawn), self._seed ^ (int(drawn[0][0]) + 1)  # each block has random numbers of its own
        by_cost = self._by_cost(np.concatenate(drawn), order)
        # What ranks wait for, a step or a micro-step, is of like cost. In random order: else lengths would drift.
        pieces = count * (1 if self.planner.sync == "step" else self.planner.micro_steps)
        turn = shuffled(np.arange(pieces), pieces, seed, order.epoch)
        steps = by_cost.reshape(pieces, -1)[turn].reshape(count, -1)
        if self._keeps_tokens(steps, order):
            yield list(steps)
        if count > 1:
            # Steps of like tokens: rows of like cost, one a rank, stay together, and are dealt to steps evenly.
            of_step = self.planner.sync == "step" and self.costs.additive
            like = self.planner.num_ranks if of_step else self.size // self.planner.micro_steps
            alike = by_cost.reshape(-1, like)
            tokens = self.costs.lengths[order.rows(by_cost)].reshape(alike.shape).sum(axis=1)
            members = _dealt(tokens, count).reshape(count, -1)[shuffled(np.arange(count), count, seed, order.epoch)]
            steps = alike[members].reshape(count, -1)
            if self._keeps_tokens(steps, order):
                yield list(steps)
        yield [self._by_cost(step, order) for step in drawn]

    def _keeps_tokens(self, steps: Ints, order: DrawnOrder) -> bool:
        """Whether no step has tokens further from their mean than was asked for."""
        if self._within is None:
            return True
        tokens = self.costs.lengths[order.rows(steps.ravel())].reshape(steps.shape).sum(axis=1).tolist()
        total, count = sum(tokens), len(tokens)
        return all(abs(each * count - total) <= self._within * total for each in tokens)

    def _by_cost(self, positions: Ints, order: DrawnOrder) -> Ints:
        return positions[self.costs.heaviest_first(order.rows(positions))]

    def _that_fits(
        self, planner: LimitedStepPlanner, ways: Iterator[list[Ints]], order: DrawnOrder, number: int
    ) -> Planned:
        """Return the first way whose steps all fit their limits."""
        error: Exception = AssertionError("there is the way that was drawn")
        for way in ways:
            steps, grids = planner.gathered(way, order.rows, self.size), []
            for each in steps:
                try:
                    grids.append(planner.plan(order.rows(each)))
                except SolverError as why:
                    error = planner.unfit(number + len(grids), order.epoch, order.rows(each), why)
                    break
            else:
                return steps, grids
        raise error


def _dealt(costs: Ints, groups: int) -> Ints:
    """Return things group by group, as many for each, and each group's in the given order, so that groups are even."""
    found = partition(costs, groups, equal_counts=True, time_budget=step_grid.BUDGET, stop_at=step_grid.STOP_AT)
    return np.argsort(found.group_of_item, kind="stable")
