"""How items come to slots of replicas: one function a method, and their registry."""

from contextlib import suppress
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from solvers._budget import work_units
from solvers.errors import TimeLimitError
from solvers.groups import read_only
from solvers.pipeline._all_ways import any_way
from solvers.pipeline._deal import deal
from solvers.pipeline._problem import PipelineProblem
from solvers.pipeline._profile import Profile
from solvers.pipeline._search import SEED, Solution
from solvers.pipeline._targets import targets_of

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


def vector_lpt(problem: PipelineProblem, profile: Profile, goal: int, seconds: float) -> Found:
    """Even slots: longest first to where the largest component then is smallest, which is what DFLOP falls back to."""
    return within_caps(problem, dealt(problem))


def dealt(problem: PipelineProblem, cells: int | None = None) -> Ints:
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
        raise _not_by(problem, "found no slots under the caps", "give {method='auto'}")
    return found


def within_caps(problem: PipelineProblem, cell_of_item: Ints) -> Found:
    """Raise TimeLimitError where slots that no cap was thought of for break one."""
    solution = Solution.of(problem, cell_of_item)
    if not solution.fits():
        raise _not_by(problem, "found no slots under the caps", "give {method='auto'}")
    if not problem.caps[-1] and not solution.counts.all():
        raise _not_by(problem, "left a slot empty", "give {method='auto'}, or {allow_empty=True}")
    return Found(cell_of_item, True)


def _not_by(problem: PipelineProblem, rule: str, remedy: str) -> TimeLimitError:
    """Return what to raise where a method that knows of no caps fails; raise InfeasibleError where all must."""
    with suppress(TimeLimitError):
        any_way(problem)
    return TimeLimitError(f"this {{method}} {rule}", remedy)


PIPELINERS: dict[str, Pipeliner] = {
    "auto": auto,
    "random": random,
    "vector_lpt": vector_lpt,
}
"""Every method by name."""
