"""How items come to slots of replicas: one function a method, and their registry."""

import time
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from solvers._budget import work_units
from solvers.errors import TimeLimitError, UsageError
from solvers.groups import read_only
from solvers.pipeline._deal import deal, reorder
from solvers.pipeline._problem import PipelineProblem
from solvers.pipeline._profile import Profile
from solvers.pipeline._search import SEED, Solution, lanes_of, loads_of
from solvers.pipeline._targets import targets_of
from solvers.pipeline.min_max import least_largest

__all__ = ["PIPELINERS", "USES_CLOCK", "Found"]

Ints = NDArray[np.int64]
_PACE = 1.7  # units of work that exchanges take for one of the local searches for which units were measured


class Found(NamedTuple):
    """A cell, ``replica * K + slot``, for every item, and whether the method ended by itself."""

    cell_of_item: Ints
    ended: bool


class Pipeliner(Protocol):
    """What every entry of :data:`PIPELINERS` is."""

    def __call__(self, problem: PipelineProblem, profile: Profile, goal: int, seconds: float) -> Found:
        """Solve; no makespan below `goal` is possible."""


def auto(problem: PipelineProblem, profile: Profile, goal: int, seconds: float) -> Found:
    """Aim at the profile, then exchange items as long as the longest replica gets shorter."""
    solution = Solution.filled(problem, *targets_of(problem, profile))
    left = solution.exchanged(goal, work_units(_PACE * seconds))
    return Found(solution.cell_of_item(), left > 0)


def random(problem: PipelineProblem, profile: Profile, goal: int, seconds: float) -> Found:
    """As sampled: items in an order as if at random, as many in each slot."""
    n, cells = len(problem.work), problem.num_cells
    found = np.empty(n, dtype=np.int64)
    found[np.random.Generator(np.random.PCG64(SEED)).permutation(n)] = np.arange(n) * cells // max(1, n)
    return _within_caps(problem, found)


def vector_lpt(problem: PipelineProblem, profile: Profile, goal: int, seconds: float) -> Found:
    """Even slots: longest first to where the largest component then is smallest, which is what DFLOP falls back to."""
    return _within_caps(problem, _dealt(problem))


def order_only(problem: PipelineProblem, profile: Profile, goal: int, seconds: float) -> Found:
    """Put the slots of `vector_lpt`, as they are, in a better order."""
    if problem.flight_caps is not None:
        raise UsageError("{method='order_only'} takes no {in_flight_cap}")
    dealt = _dealt(problem)
    rows, _ = lanes_of(problem, loads_of(problem, dealt))
    tall = np.argsort(-rows.sum(axis=1), kind="stable")
    wanted = np.argsort(-np.tile(profile.share.sum(axis=1), problem.num_replicas), kind="stable")
    place = np.empty(problem.num_cells, dtype=np.int64)
    place[wanted] = tall
    units, order = work_units(seconds), problem.order
    work = reorder(
        np.array([SEED], dtype=np.int64), units, goal, read_only(rows), place, problem.num_replicas, problem.tied,
        order.graph, problem.merged.hop,
    )  # fmt: skip
    cell_of_slot = np.empty(problem.num_cells, dtype=np.int64)
    cell_of_slot[place] = np.arange(problem.num_cells)
    return Found(cell_of_slot[dealt], work < units)


def deferred(problem: PipelineProblem, profile: Profile, goal: int, seconds: float) -> Found:
    """Put off what a slot has over its share of any module's work to a later one; replicas as even as `vector_lpt`'s.

    Made from what is said of Entrain (arXiv:2605.27918): in the order given, a slot takes all items, those put off
    first, with which no module has more than its share of what is left; the last takes all.
    """
    slots, found = problem.num_slots, _dealt(problem, problem.num_replicas) * problem.num_slots
    for replica in range(problem.num_replicas):
        waiting = np.flatnonzero(found == replica * slots)
        for slot in range(slots - 1):
            work = problem.items[:, waiting]
            share, load = work.sum(axis=1) / (slots - slot), np.zeros(len(work))
            taken: list[int] = []
            for at in range(len(waiting)):
                spare = len(waiting) - len(taken) > slots - slot - 1  # one at least for every slot that follows
                if spare and (not taken or bool((load + work[:, at] <= share).all())):
                    taken.append(at)
                    load = load + work[:, at]
            found[waiting[taken]] = replica * slots + slot
            waiting = np.delete(waiting, taken)
        found[waiting] = replica * slots + slots - 1
    return _within_caps(problem, found)


def min_max(problem: PipelineProblem, profile: Profile, goal: int, seconds: float) -> Found:
    """Even slots by CP-SAT: the largest component of any slot as small as possible, from `vector_lpt`, by the clock."""
    if problem.flight_caps is not None:
        raise UsageError("{method='min_max'} takes no {in_flight_cap}")
    deadline = time.perf_counter() + seconds
    return Found(*least_largest(problem, _dealt(problem), deadline))


def _dealt(problem: PipelineProblem, cells: int | None = None) -> Ints:
    """Slot of every item by vector LPT, or one of as many cells as given, which then has no caps."""
    stages = problem.merged
    half, count = stages.num_stages, problem.num_cells if cells is None else cells
    whole = problem.items * (stages.unit[:, :half] + stages.unit[:, half:]).max(axis=1)[:, None]
    spent = whole * (count / np.maximum(1, whole.sum(axis=1, keepdims=True)))
    found = np.empty(spent.shape[1], dtype=np.int64)
    order = read_only(np.argsort(-spent.max(axis=0, initial=0.0), kind="stable"))
    caps = problem.caps if cells is None else read_only(np.array([*[2**62] * len(problem.sizes), 1]))
    placed = deal(order, read_only(spent), problem.sizes, caps, found, count)
    if placed < len(found):
        raise TimeLimitError(
            f"found no place under {{cap}} for {len(found) - placed} of {len(found)} {{items}}", "give a larger {cap}"
        )
    return found


def _within_caps(problem: PipelineProblem, cell_of_item: Ints) -> Found:
    """Raise TimeLimitError where slots that no cap was thought of for break one."""
    solution = Solution.of(problem, cell_of_item)
    if not solution.fits():
        raise TimeLimitError("this {method} found no slots under the caps", "give {method='auto'}")
    if not problem.caps[-1] and not solution.counts.all():
        raise TimeLimitError("this {method} left a slot empty", "give {method='auto'}, or {allow_empty=True}")
    return Found(cell_of_item, True)


PIPELINERS: dict[str, Pipeliner] = {
    "auto": auto,
    "random": random,
    "vector_lpt": vector_lpt,
    "order_only": order_only,
    "deferred": deferred,
    "min_max": min_max,
}
"""Every method by name."""

USES_CLOCK = frozenset({"min_max"})
"""Methods whose result depends on the time of day; plan with them on one rank and broadcast."""
