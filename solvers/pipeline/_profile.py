"""The ramp to aim at, and the cut that proves it good: from the linear program, kept per order, stages and mix."""

from functools import lru_cache
from math import fsum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from solvers.groups import read_only
from solvers.pipeline._fluid import Basis, Program, empty_basis, smooth_fluid, solve_fluid
from solvers.pipeline.orders import OpOrder
from solvers.pipeline.run import Stages
from solvers.pipeline.types import PipelineCut

Floats = NDArray[np.float64]
BITS = 20
"""Of the weights of paths: what is lost by rounding them is a millionth, as much as a plan counts."""
_UNIT_BITS, _TOTAL_BITS = 16, 30
"""Of times and totals in the program: a product of both, times all ops, leaves room in int64."""
_MIX_BITS = 5
"""Of what a module has to do, relative to the others, that tell one mix from another: a log has few mixes."""
_FIRST_WORK, _NEXT_WORK = 4e9, 2e7
"""Steps of the innermost loop: up to a few seconds once a mix, then some milliseconds a step."""
_MOST_STEPS = 20_000
"""Of smoothing: a hundred times what most mixes take."""
_FIRST_SLACK, _NEXT_SLACK = 5e-4, 1e-3
"""Of the makespan, that is given up for a profile that is smoother than the program's own."""
_CLOSER = (0.02, 0.01, 0.005, 0.0025, 0.001)
"""Parts of the makespan by which the targets of a bent profile fall short of what was met, one after the other: halves,
so that the last steps are small."""


class Profile(NamedTuple):
    """The ramp, what proves it good, and the program behind both, to solve it for other totals."""

    share: Floats  # float64[K, M]: of every module's work, what each slot has
    cut: PipelineCut
    program: Program
    ratios: Floats  # float64[M], read-only: what there is to do, in parts of the program's totals

    def bent(self, least: Floats, scale: float, steps: int) -> tuple[Floats, float]:
        """Return shares that are at least so much, and sum up to `scale`; and their makespan over the profile's own.

        In so many steps, a fifth each with a target that is closer.
        """
        program = self.program
        rates = np.tile(self.ratios, program.num_slots)
        share = np.maximum(self.share, least).ravel() * rates
        none, floor = np.zeros_like(share), np.ascontiguousarray(least.ravel()) * rates
        alone = smooth_fluid(program, read_only(self.ratios), none, 0.0, 0, self.share.ravel() * rates)
        own, ratios = max(1, alone), read_only(self.ratios * scale)
        met = 2.0 * own
        for part in _CLOSER:
            met = smooth_fluid(program, ratios, floor, met * (1 - part), steps // len(_CLOSER), share)
        return (share / rates).reshape(program.num_slots, -1), met / own


class _Kept(NamedTuple):
    """A program with rounded numbers, and its solution: see :mod:`solvers.pipeline._fluid`."""

    program: Program
    share: Floats  # float64[K M]: the program's own best point
    smooth: Floats  # float64[K M]: one that is nearly as good, and gentler
    basis: Basis


def profile_of(totals: NDArray[np.int64], stages: Stages, order: OpOrder, num_replicas: int) -> Profile:
    """Return the profile for these totals over all replicas.

    The program is solved for totals rounded to a mix, which is kept, so that the next step pays nothing for it; then
    for the totals themselves, from there on. What is kept depends on nothing but the rounded numbers: a process that
    has just begun gets the same.
    """
    # numbers of the program, rounded so that few mixes are told apart: totals in parts of the largest, times of a stage
    # in parts of the module's largest
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
    begin = kept._replace(share=kept.share * scale, smooth=kept.smooth * scale)
    solved = _solved(begin, ratios, _NEXT_WORK, _NEXT_SLACK)
    share = solved.smooth.reshape(order.num_slots, -1) / ratios
    return Profile(share, _cut_of(solved.basis, order), kept.program, ratios)


def _rounded(number: int) -> int:
    """Keep the first bits of a number alone; a power of two, such as the largest of a mix, stays."""
    drop = max(0, number.bit_length() - _MIX_BITS)
    return number if number == 1 << (number.bit_length() - 1) else ((number >> drop) << drop) + ((1 << drop) >> 1)


def _cut_of(basis: Basis, order: OpOrder) -> PipelineCut:
    """Return the paths of a basis with weights in integers."""
    paths, table, kinds = basis.paths, basis.table, basis.kinds
    # weights rounded down prove a little less, and what that leaves goes to the largest: they sum to 2**BITS exactly
    weights = np.where(kinds == kinds.max(), np.maximum(0.0, table[:-1, -1]), 0.0)
    whole: NDArray[np.int64] = np.floor(weights / fsum(weights) * 2**BITS).astype(np.int64)
    whole[int(np.argmax(whole))] += 2**BITS - int(whole.sum())
    along, across = (np.tensordot(whole, paths == mark, axes=(0, 0))[order.place] for mark in (1, 2))
    return PipelineCut(along, across, BITS)


@lru_cache(maxsize=24)
def _kept(
    graph_bytes: bytes, num_slots: int, unit_bytes: bytes, mix: tuple[int, ...], besides: tuple[int, ...]
) -> _Kept:
    graph = read_only(np.frombuffer(graph_bytes, dtype=np.int64).reshape(4, -1))
    modules, rows = len(mix), num_slots * len(mix)
    unit = read_only(np.frombuffer(unit_bytes, dtype=np.int64).reshape(modules, -1))
    fixed, hop = read_only(np.array(besides[:-1], dtype=np.int64)), besides[-1]
    program = Program(read_only(np.array(mix, dtype=np.float64)), unit, fixed, graph, hop, num_slots)
    even = np.full(rows, 1 / num_slots)
    begin = _Kept(program, even, even, empty_basis(rows, graph.shape[1]))
    return _solved(begin, read_only(np.ones(modules)), _FIRST_WORK, _FIRST_SLACK)


def _solved(begin: _Kept, ratios: Floats, work: float, slack: float) -> _Kept:
    """Go on from a share, a smooth one and a basis, none of which are changed."""
    program = begin.program
    share, smooth = begin.share.copy(), begin.smooth.copy()
    basis = begin.basis.copied()
    num_ops = program.graph.shape[1]
    pivots = 16 + int(work / (len(share) ** 2 + 4 * num_ops))
    solved = solve_fluid(program, ratios, pivots, share, basis)
    steps = 16 + min(_MOST_STEPS, int(work / (8 * num_ops)))
    level = solved.proven * (1 + slack)
    met = smooth_fluid(program, ratios, np.zeros_like(smooth), level, steps, smooth)
    if met > solved.makespan * (1 + 4 * slack):  # in vain
        smooth = share.copy()
    return _Kept(program, share, smooth, basis)
