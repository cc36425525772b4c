"""How items come to slots of replicas: one function a method, and their registry.

What `auto` does: the linear program says what each slot is to hold (:mod:`solvers.pipeline._profile`); that is bent
where an item is larger than any slot of it (:func:`targets_of`); slots are filled by it
(:mod:`solvers.pipeline._cells`); then items change places (:mod:`solvers.pipeline._exchange`).
"""

from math import fsum
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from solvers._budget import work_units
from solvers.errors import TimeLimitError
from solvers.pipeline._cells import Solution, lanes_of, loads_of
from solvers.pipeline._exchange import SEED, exchange_items
from solvers.pipeline._problem import PipelineProblem
from solvers.pipeline._profile import Profile
from solvers.pipeline.run import all_ends_kernel

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
_PACE = 1.7
"""Units of work that exchanges take for one of the local searches for which units were measured."""
_STEPS = 300
"""Of bending a ramp; more gained nothing."""
_RATE = 0.9
"""By how much a replica with a large item gets shorter, where its other work shrinks by 1: measured."""
_USUAL = 0.9
"""Of the largest slot of the ramp: what such a slot holds anyway, and what of a large item is no burden."""
_MIDDLE = 7 / 16
"""Where in a pipeline a large item costs least: measured, flat around."""


class Pipeliner(Protocol):
    """What every entry of :data:`PIPELINERS` is."""

    def __call__(self, problem: PipelineProblem, profile: Profile, goal: int, seconds: float) -> Ints:
        """Return a cell, ``replica * K + slot``, for every item; no makespan below `goal` is possible."""


def auto(problem: PipelineProblem, profile: Profile, goal: int, seconds: float) -> Ints:
    """Aim at the profile, then exchange items as long as the longest replica gets shorter."""
    solution = Solution.filled(problem, *targets_of(problem, profile))
    exchange_items(solution, goal, work_units(_PACE * seconds))
    return solution.cell_of_item()


def targets_of(problem: PipelineProblem, profile: Profile) -> tuple[Floats, Ints]:
    """Return what each cell is to hold of each module, float64[cells, M'], and cells of large items, else -1.

    Replicas with larger items get less of everything else, so that all end together.
    """
    replicas, slots = problem.num_replicas, problem.num_slots
    mean = np.maximum(1, problem.items.sum(axis=1)) / replicas
    targets = np.tile(profile.share * mean, (replicas, 1, 1)).reshape(replicas, slots, -1)
    cell_of_item = np.full(problem.items.shape[1], -1, dtype=np.int64)
    # an item is large if no slot of the ramp has room for it, in any module
    over = (problem.items / (profile.share.max(axis=0) * mean)[:, None]).max(axis=0, initial=0)
    large = [int(i) for i in np.argsort(-over, kind="stable") if over[i] > 1]
    if problem.tied or not large or len(large) > problem.num_cells // 2:
        return targets.reshape(problem.num_cells, -1), cell_of_item
    # largest first to the replica with the least of them so far, around the middle of its pipeline
    least = np.zeros_like(targets)
    burden, count = np.zeros(replicas), np.zeros(replicas, dtype=np.int64)
    for item in large:
        replica = int(np.argmin(burden))
        slot = _nth_place(int(count[replica]), slots)
        cell_of_item[item] = replica * slots + slot
        least[replica, slot] += problem.items[:, item] / mean
        burden[replica] += over[item] - _USUAL
        count[replica] += 1
    # a replica with large items is longer by so much; it gets less of everything else, and the others more
    lengths = np.ones(replicas)
    for replica in np.flatnonzero(count).tolist():
        lengths[replica] = profile.bent(least[replica], 1.0, _STEPS)[1]
    mean_length = fsum(lengths) / replicas
    for replica in range(replicas):
        scale = max(0.5, 1 + (mean_length - lengths[replica]) / _RATE)
        share = profile.bent(least[replica], scale, _STEPS)[0] if count[replica] else profile.share * scale
        targets[replica] = share * mean
    return targets.reshape(problem.num_cells, -1), cell_of_item


def _nth_place(n: int, num_slots: int) -> int:
    """Return the slot of a replica's n-th large item: every other one around the middle, then those between."""
    middle = int(num_slots * _MIDDLE)
    order = sorted(range(num_slots), key=lambda k: ((k - middle) % 2, abs(k - middle), k))
    return order[n % num_slots]


def random(problem: PipelineProblem, profile: Profile, goal: int, seconds: float) -> Ints:
    """As sampled: items in an order as if at random, as many in each slot."""
    n, cells = len(problem.work), problem.num_cells
    found = np.empty(n, dtype=np.int64)
    found[np.random.Generator(np.random.PCG64(SEED)).permutation(n)] = np.arange(n) * cells // max(1, n)
    return within_caps(problem, found)


def within_caps(problem: PipelineProblem, cell_of_item: Ints) -> Ints:
    """Raise TimeLimitError where slots that no cap was thought of for break one."""
    solution = Solution.from_cells(problem, cell_of_item)
    if not solution.fits():
        raise TimeLimitError("this {method} found no slots under the caps", "give {method='auto'}")
    if not problem.may_be_empty and not solution.cells.counts.all():
        raise TimeLimitError("this {method} left a slot empty", "give {method='auto'}, or {allow_empty=True}")
    return cell_of_item


def makespans_of(problem: PipelineProblem, cell_of_item: Ints) -> Ints:
    """Exact makespans of all replicas: int64[R]."""
    loads = loads_of(problem, cell_of_item)
    _, lanes = lanes_of(problem, loads)
    graph, ends = problem.order.graph, np.empty(problem.order.graph.shape[1], dtype=np.int64)
    found = [all_ends_kernel(graph, np.ascontiguousarray(lane), problem.merged.hop, ends) for lane in lanes]
    return np.broadcast_to(np.array(found, dtype=np.int64), problem.num_replicas).copy()


PIPELINERS: dict[str, Pipeliner] = {
    "auto": auto,
    "random": random,
}
"""Every method by name."""
