"""Bounds that prove more than the closed forms, given seconds: a linear program, or the same with whole groups."""

import time
from collections.abc import Iterator
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from solvers.arguments import as_budget, as_integer
from solvers.grouping._kernels import RANK_TIME, TIME
from solvers.grouping._problem import SequenceProblem
from solvers.grouping._relaxation import Types, Whole, proven, solve_relaxation
from solvers.grouping._request import SequenceRequest
from solvers.grouping.bounds import closed_form
from solvers.grouping.solver import solve
from solvers.grouping.types import SequenceBound

# Seconds' worth of search for a makespan, where none is given: the default of `sequence_groups`.
_BUDGET = 0.1
# Classes of slots at first. A program grows with them, and only those in use are split later (`_finer`).
_CLASSES = 8
# Classes after which no more are split, so that a program still fits its share of the time.
_MOST_CLASSES = 96
# Of the time left, for one program, so that a finer one may still follow.
_SHARE = 0.4


def sequence_groups_lower_bound(
    asked: SequenceRequest, *, upper: int | None = None, whole: bool = False, bound_budget: float = 30.0
) -> SequenceBound:
    """Prove that no sequence groups have a smaller makespan.

    Parameters
    ----------
    asked : SequenceRequest
    upper : int, optional
        A makespan that some solution has; the bound is never above it. By default that of
        :func:`solvers.sequence_groups`.
    whole : bool
        Whether slots and groups are counted in whole numbers: more is proven, by a search by the clock whose proof
        is not kept. Otherwise the bound comes with its certificate.
    bound_budget : float
        Seconds by the clock, after which the best bound so far is returned.

    Returns
    -------
    SequenceBound

    Raises
    ------
    TypeError, ValueError, InfeasibleError, TimeLimitError
        As :func:`solvers.sequence_groups`.

    Examples
    --------
    >>> asked = SequenceRequest([[8, 6, 6], [5, 4, 4]], [8, 6, 6], [1, 2], 2, 8, overhead=1)
    >>> sequence_groups_lower_bound(asked).value
    12
    """
    started = time.perf_counter()
    deadline = started + as_budget(bound_budget)
    problem = SequenceProblem.of(asked)
    upper = solve(problem, _BUDGET, started).makespan if upper is None else as_integer("upper", upper)
    closed = closed_form(problem)
    best, certificate, name = closed.value, None, closed.name
    types = Types.of(problem)
    edges = first_edges(problem, upper) if len(problem.order) else None
    used = np.zeros(0, dtype=bool)
    for level in _levels(whole):
        left = deadline - time.perf_counter()
        # A makespan that is reached leaves nothing to prove.
        if edges is None or best >= upper or left <= 0:
            break
        if level == "finer":
            edges = _finer(edges, used)
            continue
        bound, prices, used = solve_relaxation(types, edges, level, max(0.01, _SHARE * left))
        value = min(upper, int(np.ceil(bound)) if prices is None else proven(types, prices))
        if value > best:
            best, certificate, name = value, prices, "relaxation" if level == "nothing" else "whole_relaxation"
    return SequenceBound(best, name, certificate, time.perf_counter() - started)


def _levels(whole: bool) -> Iterator[Whole | Literal["finer"]]:
    """What is to be whole, in turn; and when classes are to be told apart more finely."""
    yield "nothing"
    while whole:
        yield "slots"
        yield "groups"
        yield "finer"


def first_edges(problem: SequenceProblem, upper: int) -> NDArray[np.int64]:
    """Heights that tell classes of slots apart, from 0 to the most that the groups of any better solution take."""
    slots = problem.fewest_slots
    top = max(1, upper - problem.overhead * slots)
    mean = int(problem.least[RANK_TIME].sum()) // (problem.num_ranks * slots)
    # Most slots of good solutions are about as tall as the mean; classes lie close together there (by ratio), and one
    # reaches from there to the top.
    high = min(top, max(3 * mean, int(problem.least[TIME].max()) * 5 // 4, 2))
    inner = np.geomspace(max(1, min(mean, high) // 4), high, _CLASSES).astype(np.int64)
    return np.unique(np.concatenate([[0], inner[inner < top], [top]]))


def _finer(edges: NDArray[np.int64], used: NDArray[np.bool_]) -> NDArray[np.int64] | None:
    """Split the classes that a solution uses; None where that is of no use, or too many."""
    low, high = edges[:-1][used], edges[1:][used]
    middle = np.where(low > 0, np.sqrt(low.astype(float) * high).astype(np.int64), high // 2)
    finer = np.unique(np.concatenate([edges, middle]))
    return finer if len(edges) < len(finer) <= _MOST_CLASSES else None
