"""How items come to slots of replicas: one function a method, and their registry."""

from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from solvers._budget import work_units
from solvers.pipeline._problem import PipelineProblem
from solvers.pipeline._profile import Profile
from solvers.pipeline._search import Solution

__all__ = ["PIPELINERS", "USES_CLOCK", "Found"]

Ints = NDArray[np.int64]


class Found(NamedTuple):
    """A cell, ``replica * K + slot``, for every item, and whether the method ended by itself."""

    cell_of_item: Ints
    ended: bool


class Pipeliner(Protocol):
    """What every entry of :data:`PIPELINERS` is."""

    def __call__(self, problem: PipelineProblem, profile: Profile, goal: int, seconds: float) -> Found: ...


def auto(problem: PipelineProblem, profile: Profile, goal: int, seconds: float) -> Found:
    """Aim at the profile, then exchange items as long as the longest replica gets shorter."""
    totals = problem.items.sum(axis=1)
    solution = Solution.empty(problem).filled(profile.share * (totals / problem.num_replicas))
    left = solution.exchanged(goal, work_units(seconds))
    return Found(solution.cell_of_item(), left > 0)


PIPELINERS: dict[str, Pipeliner] = {"auto": auto}
"""Every method by name."""

USES_CLOCK: frozenset[str] = frozenset()
"""Methods whose result depends on the time of day."""
