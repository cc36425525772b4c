"""A bound by patterns, raised step by step from below.

Every target that the linear program of :mod:`solvers.partitioning.patterns` refutes raises the bound, by one at least:
its weights refute all targets under which no pattern becomes heavier, and the table of the knapsack says which those
are. The first target that it does not refute is nearly always the optimum; what reaches it are the other searches.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from solvers.bounds import Bound
from solvers.partitioning._problem import PartitionProblem
from solvers.partitioning.bin_completion import distinct_costs
from solvers.partitioning.patterns import MOST_ITEMS, Program, begin, make_program, refuted_below, solve

# Limits beyond which patterns do not pay. Within them they are worth 218 +- 60 ppm of few items and 1.2 +- 0.4 points
# proven (row *patterns* of benchmarks/ablation.py, free). Cells of the knapsack's table: 32 MB, and 1.4 ms of work to
# fill. A quarter of them loses nothing on the steps of benchmarks/constants.py.
_MOST_CELLS = 8_000_000
# Distinct costs: a pivot takes their square. A quarter of them does as well.
_MOST_VALUES = 400
# Items in a pattern, which are the columns of the pool: 1.2 MB with all its patterns.
_LONGEST = 100
# Items a group, on average: with more, exchanges are better at finding, and simple bounds tight. Any value from 5 to
# 10 does the same.
_MOST_A_GROUP = 7


@dataclass(slots=True)
class PatternSearch:
    """The search on one problem; it can be stopped and resumed."""

    problem: PartitionProblem
    program: Program
    table: NDArray[np.int32]
    bound: int  # no makespan below it can be had
    solved: bool = False  # whether the linear program has nothing more to say: it does not refute `bound`

    @classmethod
    def from_problem(cls, problem: PartitionProblem, reached: int) -> "PatternSearch | None":
        """Return the search for less than `reached`, or None where costs are too wide or items too many for it."""
        values, counts = distinct_costs(problem)
        items = int(counts.sum())
        if (
            not 0 < items <= min(MOST_ITEMS, _MOST_A_GROUP * problem.num_groups)
            or len(values) > _MOST_VALUES
            or (items + 1) * reached > _MOST_CELLS
        ):
            return None
        longest = int(np.searchsorted(np.cumsum(problem.sorted_costs[items - 1 :: -1]), reached))
        if problem.equal_counts or longest > _LONGEST:
            return None
        program = make_program(values, counts, longest)
        begin(program, problem.bound.value)
        return cls(problem, program, np.empty((items + 1, reached), dtype=np.int32), problem.bound.value)

    @property
    def least_work(self) -> int:
        """Work units below which :meth:`raise_bound` would hardly begin: twenty tables."""
        return int(self.table.size) * 20 // 14

    def raise_bound(self, reached: int, work: int) -> int:
        """Raise the bound, to `reached` at most, until solved or `work` is spent; return the work left."""
        m = self.problem.num_groups
        while work > 0 and not self.solved:
            verdict, work = solve(self.program, self.bound, m, False, self.table, work)
            if verdict < 0:
                break
            if verdict == 0:
                self.bound = int(refuted_below(self.program, self.bound, reached, m, self.table))
                work -= self.table.size // 16
            self.solved = verdict == 1 or self.bound >= reached
        return int(work)

    def as_bound(self) -> Bound:
        """Return the bound with its name."""
        return Bound(self.bound, "patterns")
