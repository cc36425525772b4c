"""The ramp to aim at, and the cut that proves it good: from the linear program, kept per order, stages and mix."""

from functools import lru_cache
from math import fsum
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from solvers.groups import read_only
from solvers.pipeline._fluid import REST, smooth_fluid, solve_fluid
from solvers.pipeline._stages import Stages
from solvers.pipeline.orders import OpOrder
from solvers.pipeline.types import PipelineCut

BITS = 20  # of the weights of paths
_UNIT_BITS, _TOTAL_BITS = 16, 30
_MIX_BITS = 5  # of what a module has to do, relative to the others, that tell one mix from another
_FIRST_WORK, _NEXT_WORK = 4e9, 2e7  # steps of the innermost loop: up to a few seconds once, some milliseconds a step
_MOST_STEPS = 20_000
_FIRST_SLACK, _NEXT_SLACK = 5e-4, 1e-3  # of the makespan, for which the profile is smoother than the program's own


class Profile(NamedTuple):
    """Shares of every module's work, float64[K, M], a cut, and the program, to solve it for other totals."""

    share: NDArray[np.float64]
    cut: PipelineCut
    program: tuple[Any, ...]
    ratios: NDArray[np.float64]

    def bent(self, least: NDArray[np.float64], scale: float, steps: int) -> tuple[NDArray[np.float64], float]:
        """Return shares that are at least so much, and sum up to `scale`; and their makespan over the profile's own.

        In so many steps, a fifth each with a target that is closer.
        """
        totals, unit, fixed, graph, hop, num_slots = self.program
        rates = np.tile(self.ratios, num_slots)
        share = np.maximum(self.share, least).ravel() * rates
        none, floor = np.zeros_like(share), np.ascontiguousarray(least.ravel()) * rates
        first = (*self.program[:1], read_only(self.ratios), unit, fixed, graph, hop, num_slots)
        own = max(1, smooth_fluid(*first, none, 0.0, 0, self.share.ravel() * rates))
        ratios = read_only(self.ratios * scale)
        met = 2.0 * own
        for part in (0.02, 0.01, 0.005, 0.0025, 0.001):
            met = smooth_fluid(
                totals, ratios, unit, fixed, graph, hop, num_slots, floor, met * (1 - part), steps // 5, share
            )
        return (share / rates).reshape(num_slots, -1), met / own


class _Kept(NamedTuple):
    """A problem with rounded numbers, and its solution: see :mod:`solvers.pipeline._fluid`."""

    problem: tuple[Any, ...]
    share: NDArray[np.float64]
    smooth: NDArray[np.float64]
    basis: tuple[NDArray[Any], ...]


def profile_of(totals: NDArray[np.int64], stages: Stages, order: OpOrder, num_replicas: int) -> Profile:
    """Return the profile for these totals over all replicas.

    The program is solved for totals rounded to a mix, which is kept, so that the next step pays nothing for it; then
    for the totals themselves, from there on. What is kept depends on nothing but the rounded numbers: a process that
    has just begun gets the same.
    """
    tops = [max(1, int(top)) for top in stages.unit.max(axis=1)]
    each = [int(t) * top for t, top in zip(totals, tops, strict=True)]
    besides = [x * num_replicas for x in (*stages.fixed.tolist(), stages.hop)]
    most = max(1, *each, *besides)
    wanted = [max(1, (x << _TOTAL_BITS) // most) for x in each]
    mix = tuple(map(_rounded, wanted))
    fixed = tuple(_rounded(max(1, (x << (_TOTAL_BITS + _UNIT_BITS)) // most)) if x else 0 for x in besides)
    rows = zip(stages.unit.tolist(), tops, strict=True)
    unit = np.array([[(u << _UNIT_BITS) // top for u in row] for row, top in rows], dtype=np.int64)
    kept = _kept(order.graph.tobytes(), order.num_slots, unit.tobytes(), mix, fixed)
    ratios = read_only(np.array([x / r for x, r in zip(wanted, mix, strict=True)]))
    scale = np.tile(ratios, order.num_slots)
    solved = _solve(kept.problem, ratios, kept.share * scale, kept.smooth * scale, kept.basis, _NEXT_WORK, _NEXT_SLACK)
    share = solved.smooth.reshape(order.num_slots, -1) / ratios
    return Profile(share, cut_of(solved.basis, order)[0], kept.problem, ratios)


def _rounded(number: int) -> int:
    """Keep the first bits of a number alone; a power of two, such as the largest of a mix, stays."""
    drop = max(0, number.bit_length() - _MIX_BITS)
    return number if number == 1 << (number.bit_length() - 1) else ((number >> drop) << drop) + ((1 << drop) >> 1)


def cut_of(basis: tuple[NDArray[Any], ...], order: OpOrder) -> tuple[PipelineCut, int]:
    """Return the paths of a basis with weights in integers, and the weight of what is elsewhere."""
    paths, table, kinds = basis[:3]
    weights = np.where(kinds == kinds.max(), np.maximum(0.0, table[:-1, -1]), 0.0)
    whole: NDArray[np.int64] = np.floor(weights / fsum(weights) * 2**BITS).astype(np.int64)
    whole[int(np.argmax(whole))] += 2**BITS - int(whole.sum())
    rest = paths[:, 0] == REST
    elsewhere, whole = int(whole[rest].sum()), np.where(rest, 0, whole)
    along, across = (np.tensordot(whole, paths == mark, axes=(0, 0))[order.place] for mark in (1, 2))
    return PipelineCut(along, across, BITS), elsewhere


@lru_cache(maxsize=24)
def _kept(
    graph_bytes: bytes, num_slots: int, unit_bytes: bytes, mix: tuple[int, ...], besides: tuple[int, ...]
) -> _Kept:
    graph = read_only(np.frombuffer(graph_bytes, dtype=np.int64).reshape(4, -1))
    modules, rows = len(mix), num_slots * len(mix)
    unit = read_only(np.frombuffer(unit_bytes, dtype=np.int64).reshape(modules, -1))
    fixed, hop = read_only(np.array(besides[:-1], dtype=np.int64)), besides[-1]
    problem = read_only(np.array(mix, dtype=np.float64)), unit, fixed, graph, hop, num_slots
    even, basis = np.full(rows, 1 / num_slots), empty_basis(rows, graph.shape[1])
    return _solve(problem, read_only(np.ones(modules)), even, even, basis, _FIRST_WORK, _FIRST_SLACK)


def empty_basis(rows: int, num_ops: int) -> tuple[NDArray[Any], ...]:
    """Return room for a basis of the program."""
    return (
        np.zeros((rows + 1, num_ops), dtype=np.int8), np.zeros((rows + 2, rows + 2)),
        np.zeros(rows + 1, dtype=np.int64), np.zeros(rows + 1), np.zeros(1),
    )  # fmt: skip


def _solve(
    problem: tuple[Any, ...], ratios: NDArray[np.float64], share: NDArray[np.float64], smooth: NDArray[np.float64],
    basis: tuple[NDArray[Any], ...], work: float, slack: float,
) -> _Kept:  # fmt: skip
    """Go on from a share, a smooth one and a basis, none of which are changed."""
    totals, unit, fixed, graph, hop, num_slots = problem
    share, smooth, basis = share.copy(), smooth.copy(), tuple(array.copy() for array in basis)
    pivots = 16 + int(work / (len(share) ** 2 + 4 * graph.shape[1]))
    nothing = np.zeros((num_slots, len(unit)), dtype=np.int64), np.empty(0), np.inf
    makespan, proven, _ = solve_fluid(totals, ratios, unit, fixed, graph, hop, *nothing, pivots, share, *basis)
    steps = 16 + min(_MOST_STEPS, int(work / (8 * graph.shape[1])))
    level = proven * (1 + slack)
    none = np.zeros_like(smooth)
    met = smooth_fluid(totals, ratios, unit, fixed, graph, hop, num_slots, none, level, steps, smooth)
    if met > makespan * (1 + 4 * slack):  # in vain
        smooth = share.copy()
    return _Kept(problem, share, smooth, basis)
