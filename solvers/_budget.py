"""A budget is work, not a clock: what a number of seconds buys, by a table that ships with the package.

By default no clock is read, so that every rank of a job computes the same plan however busy its processor is. A *work
unit* is one step of an inner loop of the local search, about 2.5 nanoseconds on a server core.
"""

# Measured by benchmarks/speed.py, budget. A start always runs, also where a small budget says less.
_UNITS_PER_SECOND = 4e8


def work_units(seconds: float) -> int:
    """Work units that `seconds` buy."""
    return max(1, int(min(seconds, 1e6) * _UNITS_PER_SECOND))
