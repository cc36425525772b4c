"""A budget is work, not a clock: what a number of seconds buys, by a table that ships with the package.

By default no clock is read, so that every rank of a job computes the same plan however busy its processor is. A *work
unit* is one step of an inner loop of the local search, about 2.5 nanoseconds on a server core.
"""

# Measured by benchmarks/calibrate_budget.py, whose table (docs/benchmarks/speed.md) says how well it holds: 0.86 to
# 1.16 of what was asked, but for budgets that are shorter than sorting and LPT.
_UNITS_PER_SECOND = 4e8


def work_units(seconds: float) -> int:
    """Work units that `seconds` buy."""
    return max(1, int(min(seconds, 1e6) * _UNITS_PER_SECOND))


def cost_of_dual_feasible(num_items: int) -> int:
    """Work units that the bound by dual feasible functions takes, about."""
    # It changes no more costs than `bounds._MOST_CHANGED`, however many items there are.
    return min(600 * num_items, 1 << 20)


def cost_of_karmarkar_karp(num_items: int, num_groups: int) -> int:
    """Work units that one run of Karmarkar-Karp takes: each item moves one sum past about m/2 others."""
    return int(num_items * (30 + 0.12 * num_groups))


def cost_of_lpt(num_items: int) -> int:
    """Work units that sorting, LPT and the result take."""
    return 6 * num_items


def cost_of_slack(num_items: int) -> int:
    """Work units that SLACK takes."""
    return 8 * num_items
