"""A constrained problem as numbers that kernels take: every rule is a lower and an upper limit on what a group holds.

The *dimensions* of a unit are its cost components first, then the capped quantities, then its number of items. What a
group holds of a dimension, initial loads included, must lie within ``lower[g, d] .. upper[g, d]``. For a cost component
the upper limit is a makespan aimed at, times the speed of the group: so a better makespan and a missing feasibility are
one search problem.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from solvers._units import Units, merge
from solvers.arguments import INT64_MAX
from solvers.constraints import ConstrainedProblem

Ints = NDArray[np.int64]

# An average group's load is worth this many bits in a violation, whatever its unit: a part in 16 million still shows,
# and the sum over all groups and dimensions fits int64.
_SCALE_BITS = 24


@dataclass(frozen=True, slots=True, eq=False)
class State:
    """Units, limits and groups for the kernels; see the module."""

    problem: ConstrainedProblem
    units: Units
    amounts: Ints  # int64[u, d]: what each unit has of each dimension
    components: int  # how many of the dimensions are costs; they stand first
    held_before: Ints  # int64[m, d]: initial loads; 0 elsewhere
    # int64[m, d]: with no limit on costs
    upper: Ints
    lower: Ints
    # int64[d]: a violation v of dimension d weighs ``((v + 2^shift - 1) >> shift) * factor``, at least 1 for v >= 1
    factor: Ints
    shift: Ints
    allowed: NDArray[np.bool_]  # bool[k, m]
    mask_of_unit: Ints  # int64[u]

    @classmethod
    def from_problem(cls, problem: ConstrainedProblem) -> "State":
        """Merge units and lay out the dimensions."""
        units = merge(problem)
        m, c = problem.num_groups, problem.costs.shape[1]
        amounts = np.ascontiguousarray(np.column_stack([units.costs, units.sizes, units.items]))
        upper = np.column_stack(
            [np.full((m, c), INT64_MAX), problem.caps, np.full(m, problem.most_items, dtype=np.int64)]
        )
        lower = np.zeros_like(upper)
        lower[:, -1] = problem.least_items
        before = np.zeros_like(upper)
        before[:, :c] = problem.initial
        factor, shift = _weights(amounts.sum(axis=0) + before.sum(axis=0), m)
        return cls(
            problem,
            units,
            amounts,
            c,
            before,
            np.ascontiguousarray(upper),
            lower,
            factor,
            shift,
            np.ascontiguousarray(units.masks),
            units.mask_of_unit.astype(np.int64),
        )

    @property
    def count_limited(self) -> bool:
        """Whether the number of items in a group is limited at all."""
        return self.problem.least_items > 0 or self.problem.most_items < len(self.problem.costs)

    @property
    def masked(self) -> bool:
        """Whether any unit may not be in any group."""
        return "allowed" in self.problem.names

    def loads(self, assignment: Ints) -> Ints:
        """Return int64[m, c] loads, initial ones included."""
        return self.held(assignment)[:, : self.components]

    def held(self, assignment: Ints) -> Ints:
        """Return what each group holds, int64[m, d]."""
        return held_by_groups(self.amounts, assignment, self.held_before)

    def makespan(self, assignment: Ints) -> int:
        """Return the makespan of `assignment`."""
        return self.problem.makespan(self.loads(assignment))

    def feasible(self, assignment: Ints) -> bool:
        """Whether `assignment` keeps every constraint."""
        held = self.held(assignment)
        if ((held > self.upper) | (held < self.lower)).any():
            return False
        return not self.masked or bool(self.allowed[self.mask_of_unit, assignment].all())

    def limits_for(self, targets: list[int]) -> Ints:
        """Return the upper limits where component k is to have a largest time of ``targets[k]``."""
        upper = self.upper.copy()
        for k, target in enumerate(targets):
            upper[:, k] = target * self.problem.speeds
        return upper

    def times(self, assignment: Ints) -> list[int]:
        """Return the largest time of each component."""
        times = -(-self.loads(assignment) // self.problem.speeds[:, None])
        return [int(t) for t in times.max(axis=0)]


def held_by_groups(amounts: Ints, assignment: Ints, held_before: Ints) -> Ints:
    """Sum the amounts of each group's units. O(u d)."""
    held = held_before.copy()
    for d in range(amounts.shape[1]):
        np.add.at(held[:, d], assignment, amounts[:, d])
    return held


def _weights(totals: Ints, m: int) -> tuple[Ints, Ints]:
    """Make an average group's load worth about 2^24 in each dimension, in integers."""
    factor = np.ones(len(totals), dtype=np.int64)
    shift = np.zeros(len(totals), dtype=np.int64)
    for d, total in enumerate(totals.tolist()):
        mean = max(1, total // m)
        if mean < 1 << _SCALE_BITS:
            factor[d] = (1 << _SCALE_BITS) // mean
        else:
            shift[d] = mean.bit_length() - _SCALE_BITS - 1
    return factor, shift
