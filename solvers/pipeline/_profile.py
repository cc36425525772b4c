"""The ramp to aim at, and the cut that proves it good: from the linear program, kept per order, stages and mix."""

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from solvers.groups import read_only
from solvers.pipeline._fluid import smooth_fluid, solve_fluid
from solvers.pipeline._stages import Stages
from solvers.pipeline.orders import OpOrder
from solvers.pipeline.types import PipelineCut

__all__ = ["Profile", "profile_of"]

_BITS = 20  # of the weights of paths
_UNIT_BITS, _TOTAL_BITS = 16, 30
_MIX_BITS = 6  # of what a module has to do, relative to the others, that tell one mix from another
_WORK = 1.5e9  # steps of the innermost loop: about a second
_MOST_STEPS = 20_000
_SLACK = 5e-4  # of the makespan, for which the profile is smoother than the program's own solution


class Profile(NamedTuple):
    """Shares of every module's work, float64[K, M], and a cut."""

    share: NDArray[np.float64]
    cut: PipelineCut


def profile_of(totals: NDArray[np.int64], stages: Stages, order: OpOrder, num_replicas: int) -> Profile:
    """Return the profile for these totals over all replicas, rounded to a mix so that the next step finds it kept.

    What is kept depends on nothing but the rounded numbers: a process that has just begun gets the same.
    """
    tops = [max(1, int(top)) for top in stages.unit.max(axis=1)]
    each = [int(t) * top for t, top in zip(totals, tops, strict=True)]
    besides = [x * num_replicas for x in (*stages.fixed.tolist(), stages.hop)]
    most = max(1, *each, *besides)
    mix = tuple(max(1, _rounded((x << _TOTAL_BITS) // most)) for x in each)
    fixed = tuple(_rounded((x << (_TOTAL_BITS + _UNIT_BITS)) // most) if x else 0 for x in besides)
    rows = zip(stages.unit.tolist(), tops, strict=True)
    unit = np.array([[(u << _UNIT_BITS) // top for u in row] for row, top in rows], dtype=np.int64)
    return _solved(order.graph.tobytes(), order.place.tobytes(), order.num_slots, unit.tobytes(), mix, fixed)


def _rounded(number: int) -> int:
    """Keep the first bits of a number alone."""
    drop = max(0, number.bit_length() - _MIX_BITS)
    return ((number >> drop) << drop) + ((1 << drop) >> 1)


@lru_cache(maxsize=128)
def _solved(
    graph_bytes: bytes, place_bytes: bytes, num_slots: int, unit_bytes: bytes, mix: tuple[int, ...],
    besides: tuple[int, ...],
) -> Profile:  # fmt: skip
    graph = read_only(np.frombuffer(graph_bytes, dtype=np.int64).reshape(4, -1))
    place = np.frombuffer(place_bytes, dtype=np.int64)
    modules = len(mix)
    unit = read_only(np.frombuffer(unit_bytes, dtype=np.int64).reshape(modules, -1))
    fixed, hop = read_only(np.array(besides[:-1], dtype=np.int64)), besides[-1]
    totals = read_only(np.array(mix, dtype=np.float64))
    rows = num_slots * modules
    even = np.full(rows, 1 / num_slots)
    share, weights = even.copy(), np.empty(rows + 1)
    paths = np.zeros((rows + 1, graph.shape[1]), dtype=np.int8)
    pivots = int(_WORK / (rows * rows + 4 * graph.shape[1])) + 16
    makespan, _ = solve_fluid(totals, unit, fixed, graph, hop, num_slots, pivots, share, weights, paths)
    smooth = even
    level = makespan * (1 + _SLACK)
    steps = min(_MOST_STEPS, int(_WORK / (8 * graph.shape[1])))
    if smooth_fluid(totals, unit, fixed, graph, hop, num_slots, level, steps, smooth) > level * (1 + 4 * _SLACK):
        smooth = share
    whole = np.floor(weights / max(weights.sum(), 1e-9) * 2**_BITS).astype(np.int64)
    whole[int(np.argmax(whole))] += 2**_BITS - int(whole.sum())
    flows = [np.tensordot(whole, paths == mark, axes=(0, 0)).astype(np.int64)[place] for mark in (1, 2)]
    return Profile(smooth.reshape(num_slots, modules), PipelineCut(flows[0], flows[1], _BITS))
