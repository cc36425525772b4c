"""What slots are to hold: the profile, bent where an item is larger than any slot of it."""

from math import fsum

import numpy as np
from numpy.typing import NDArray

from solvers.pipeline._problem import PipelineProblem
from solvers.pipeline._profile import Profile

_STEPS = 300
_RATE = 0.9  # by how much a replica with a large item gets shorter, where its other work shrinks by 1
_MIDDLE = 7 / 16  # where a large item costs least: measured, flat around


def targets_of(problem: PipelineProblem, profile: Profile) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return what each cell is to hold of each module, float64[cells, M'], and cells of large items, else -1.

    Replicas with larger items get less of everything else, so that all end together.
    """
    replicas, slots = problem.num_replicas, problem.num_slots
    mean = np.maximum(1, problem.items.sum(axis=1)) / replicas
    targets = np.tile(profile.share * mean, (replicas, 1, 1)).reshape(replicas, slots, -1)
    cell_of_item = np.full(problem.items.shape[1], -1, dtype=np.int64)
    over = (problem.items / (profile.share.max(axis=0) * mean)[:, None]).max(axis=0, initial=0)
    large = [int(i) for i in np.argsort(-over, kind="stable") if over[i] > 1]
    if problem.tied or not large or len(large) > problem.num_cells // 2:
        return targets.reshape(problem.num_cells, -1), cell_of_item
    least = np.zeros_like(targets)
    burden, count = np.zeros(replicas), np.zeros(replicas, dtype=np.int64)
    for item in large:
        replica = int(np.argmin(burden))
        slot = _nth_place(int(count[replica]), slots)
        cell_of_item[item] = replica * slots + slot
        least[replica, slot] += problem.items[:, item] / mean
        burden[replica] += over[item] - 0.9
        count[replica] += 1
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
