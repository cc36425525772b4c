"""What each phase takes of the samples, and steps that are good for all phases together."""

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

import solvers
from solvers.deferral import least_makespans

Ints = NDArray[np.int64]

_BUDGET = 1.5  # seconds' worth of work for all searches: the solver's own default for one
_NO_SEARCH = 1e-9  # the bound alone


class PhaseWork(NamedTuple):
    """What one phase takes of each sample or item."""

    costs: Ints  # int64[n]: its work, over all ranks that have a part of it
    heights: Ints | None  # int64[n]: the least time of a step that has it; None: the work, as one rank does all of it
    num_bins: int  # ranks, or replicas, that share the phase's work
    # int64[n] and a number: what else each sample has, such as tokens, and the most of it that a rank may hold
    capped: tuple[tuple[Ints, int], ...] = ()

    def at_least(self, step: Ints, num_steps: int) -> int:
        """Return what these steps take at least, whatever the plans of steps."""
        return int(least_makespans(self.costs, step, num_steps, self.num_bins, self.heights).sum())

    def taken(self, samples: Ints) -> "PhaseWork":
        """Return that of some samples."""
        heights = None if self.heights is None else self.heights[samples]
        capped = tuple((amounts[samples], most) for amounts, most in self.capped)
        return PhaseWork(self.costs[samples], heights, self.num_bins, capped)


class Chosen(NamedTuple):
    """Steps of items, with what is proven of them; numbers are sums over phases, whose costs are in one unit."""

    step: Ints  # int64[n]
    total: int  # what they take at least
    start_total: int  # what steps take at least as they were drawn
    lower_bound: int  # and at least in any steps that windows and limits allow
    bound_name: str


def choose(
    phases: Sequence[PhaseWork], rows: Ints, spans: Ints, start: Ints, limits: dict[str, Any], search: bool = True
) -> Chosen:
    """Choose the step of each item, so that the sum of all phases' makespans is small; its bound is the sum of theirs.

    The solver knows one phase. So each phase leads in turn, and from there every other one goes on; of all these steps
    those that take least over all phases are kept, or the steps as drawn. With one phase that is the solver.

    Parameters
    ----------
    phases : sequence of PhaseWork
    rows, spans, start, limits
        As :func:`solvers.defer` takes them.
    search : bool
        Else the steps as drawn are returned, with the bound.
    """
    # p phases make p searches alone and p (p - 1) that follow: p squared in all.
    budget = _BUDGET / len(phases) ** 2 if search else _NO_SEARCH

    def led_by(phase: PhaseWork, begin: Ints) -> solvers.DeferralResult:
        return solvers.defer(phase.costs, rows, spans, phase.num_bins, start=begin, heights=phase.heights,
                             time_budget=budget, **limits)  # fmt: skip

    alone = [led_by(phase, start) for phase in phases]
    tried = [start]
    if search:
        tried += [found.step_of_item for found in alone]
        for first, then in itertools.permutations(range(len(phases)), 2):
            tried.append(led_by(phases[then], alone[first].step_of_item).step_of_item)
    # Judged over all phases: what the leading phase gains, others may lose.
    totals = [sum(phase.at_least(step, int(spans[-1, 1]) + 1) for phase in phases) for step in tried]
    best = totals.index(min(totals))
    return Chosen(
        tried[best], totals[best], sum(found.start_total for found in alone), sum(found.lower_bound for found in alone),
        "cover" if any(found.bound_name == "cover" for found in alone) else "mean",
    )  # fmt: skip
