"""CP-SAT as the exact methods use it: imported where one runs, until a deadline, with a bound that can be trusted."""

import math
import os
import time
from typing import Any

# CP-SAT reports its bound as a float, which holds integers exactly up to 2**53. Half of that leaves room for rounding
# up.
_SURE_FLOAT = 2**52


def load_cp_model(method: str = "exact") -> Any:
    """Import CP-SAT's model, which takes a second or two: only where it is used."""
    try:
        from ortools.sat.python import cp_model
    except ImportError as error:  # pragma: no cover - OR-Tools is a dependency; this is for broken installs
        raise ImportError(f"method {method!r} needs OR-Tools: pip install ortools") from error
    return cp_model


def solver_until(cp_model: Any, deadline: float) -> Any:
    """Return a solver that ends when ``time.perf_counter()`` is past `deadline`."""
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = max(1e-3, deadline - time.perf_counter())
    # CP-SAT gives each of eight workers a strategy of its own; more workers than cores would only take turns.
    solver.parameters.num_workers = min(8, os.cpu_count() or 1)
    return solver


def reported_bound(reported: float) -> int:
    """Return the lower bound that CP-SAT reported, rounded up; 0 where a float's digits cannot be trusted."""
    # An integer bound may come as one that is a little too large by rounding.
    return math.ceil(reported - 1e-6) if 0 < reported < _SURE_FLOAT else 0
