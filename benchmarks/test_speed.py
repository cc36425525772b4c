"""Speed as ratios. Every group holds the same yardstick, NumPy's stable argsort of 163,840 int64, in the same run.

Run ``make bench``. The number in parentheses behind a time is its ratio to the fastest of its group.
"""

import numpy as np
import pytest
from workloads import lognormal_lengths

import balancer
import solvers

YARDSTICK = lognormal_lengths(163_840)


def argsort():
    return np.argsort(YARDSTICK, kind="stable")


def measure(benchmark, group, function, *arguments, rounds=20, **options):
    benchmark.group = group
    benchmark.pedantic(function, arguments, options, rounds=rounds, iterations=1, warmup_rounds=2)


@pytest.mark.parametrize("what", ["argsort", "lpt", "lpt, equal counts"])
@pytest.mark.parametrize(("num_items", "num_groups"), [(163840, 2560), (65536, 1024), (16384, 256)])
def test_lpt(benchmark, num_items, num_groups, what):
    group = f"LPT: {num_items:,} on {num_groups:,}, sort included"
    if what == "argsort":
        measure(benchmark, group, argsort)
    else:
        equal = what.endswith("counts")
        measure(
            benchmark, group, solvers.partition, lognormal_lengths(num_items), num_groups, "lpt", equal_counts=equal
        )


@pytest.mark.parametrize("what", ["argsort", "karmarkar_karp"])
@pytest.mark.parametrize(("num_items", "num_groups"), [(65536, 1024), (16384, 256)])
def test_karmarkar_karp(benchmark, num_items, num_groups, what):
    group = f"Karmarkar-Karp: {num_items:,} on {num_groups:,}, sort included"
    if what == "argsort":
        measure(benchmark, group, argsort)
    else:
        measure(benchmark, group, solvers.partition, lognormal_lengths(num_items), num_groups, "karmarkar_karp")


@pytest.mark.parametrize("what", ["argsort", "auto"])
@pytest.mark.parametrize(("num_items", "num_groups"), [(4096, 64), (512, 8)])
def test_auto(benchmark, num_items, num_groups, what):
    group = f"auto, linear costs: {num_items:,} on {num_groups:,}, proven optimal"
    if what == "argsort":
        measure(benchmark, group, argsort)
    else:
        measure(benchmark, group, solvers.partition, lognormal_lengths(num_items), num_groups, rounds=1000, stop_at=0)


@pytest.mark.parametrize("what", ["argsort", "lpt", "auto"])
@pytest.mark.parametrize(("num_samples", "num_ranks"), [(163840, 2560), (4096, 256), (1024, 64)])
def test_balance(benchmark, num_samples, num_ranks, what):
    group = f"balancer.balance, lengths to plan: {num_samples:,} on {num_ranks:,}"
    if what == "argsort":
        measure(benchmark, group, argsort)
    else:
        arguments = lognormal_lengths(num_samples), num_ranks, 8
        options = {"method": what, "time_budget": 1, "placement": "rearrange", "stop_at": 0}
        measure(benchmark, group, balancer.balance, *arguments, **options)
