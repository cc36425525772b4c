"""How items come to slots of replicas: one function a method, and their registry."""

from contextlib import suppress
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from solvers._budget import work_units
from solvers.errors import TimeLimitError
from solvers.pipeline._all_ways import any_way
from solvers.pipeline._problem import PipelineProblem
from solvers.pipeline._profile import Profile
from solvers.pipeline._search import SEED, Solution
from solvers.pipeline._targets import targets_of

__all__ = ["PIPELINERS", "Found", "not_by", "within_caps"]

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
    return within_caps(problem, found)


def within_caps(problem: PipelineProblem, cell_of_item: Ints) -> Found:
    """Raise TimeLimitError where slots that no cap was thought of for break one."""
    solution = Solution.of(problem, cell_of_item)
    if not solution.fits():
        raise not_by(problem, "found no slots under the caps", "give {method='auto'}")
    if not problem.caps[-1] and not solution.counts.all():
        raise not_by(problem, "left a slot empty", "give {method='auto'}, or {allow_empty=True}")
    return Found(cell_of_item, True)


def not_by(problem: PipelineProblem, rule: str, remedy: str) -> TimeLimitError:
    """Return what to raise where a method that knows of no caps fails; raise InfeasibleError where all must."""
    with suppress(TimeLimitError):
        any_way(problem)
    return TimeLimitError(f"this {{method}} {rule}", remedy)


PIPELINERS: dict[str, Pipeliner] = {
    "auto": auto,
    "random": random,
}
"""Every method by name."""
