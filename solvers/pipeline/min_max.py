"""DFLOP's objective by CP-SAT: the largest component of any slot as small as possible, whatever a pipeline takes."""

import numpy as np
from numpy.typing import NDArray

from solvers._cp_sat import load_cp_model, solver_until
from solvers.errors import TimeLimitError
from solvers.pipeline._problem import PipelineProblem

__all__ = ["least_largest"]

_MOST_LITERALS = 2_000_000
_MOST_TIME = 2**40  # of a slot: times are divided so that sums stay small


def least_largest(
    problem: PipelineProblem, start: NDArray[np.int64], deadline: float
) -> tuple[NDArray[np.int64], bool]:
    """Minimise the most that any stage takes with any slot, from a start; return cells, and whether that is optimal."""
    cells, n = problem.num_cells, len(start)
    if cells * n > _MOST_LITERALS:
        raise TimeLimitError(
            f"{{method='min_max'}} has a variable for each of {n} {{items}} in each of {cells} slots: too many",
            "give {method='auto'}",
        )
    stages = problem.merged
    half = stages.num_stages
    spent = np.unique((stages.unit[:, :half] + stages.unit[:, half:]).T @ problem.items, axis=0)
    shift = max(0, int(spent.sum(axis=1).max(initial=1)).bit_length() - _MOST_TIME.bit_length())
    spent = -(-spent >> shift)
    cp_model = load_cp_model("min_max")
    model = cp_model.CpModel()
    inside = [[model.new_bool_var("") for _ in range(cells)] for _ in range(n)]
    largest = model.new_int_var(0, int(spent.sum(axis=1).max(initial=0)), "")
    for item, row in enumerate(inside):
        model.add_exactly_one(row)
        for cell, literal in enumerate(row):
            model.add_hint(literal, bool(start[item] == cell))
    for cell in range(cells):
        column = [row[cell] for row in inside]
        for times in spent:
            model.add(cp_model.LinearExpr.weighted_sum(column, times.tolist()) <= largest)
        for held, cap in zip(problem.sizes, problem.caps[:-1].tolist(), strict=True):
            model.add(cp_model.LinearExpr.weighted_sum(column, held.tolist()) <= cap)
        if not problem.caps[-1]:
            model.add_bool_or(column)
    model.minimize(largest)
    solver = solver_until(cp_model, deadline)
    status = solver.solve(model)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return start, False
    found = [next(cell for cell, literal in enumerate(row) if solver.boolean_value(literal)) for row in inside]
    return np.array(found, dtype=np.int64), status == cp_model.OPTIMAL
