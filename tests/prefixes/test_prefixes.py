"""Items that share prefixes: the bound below all ways there are, the result near them, both checked from scratch."""

import dataclasses
import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import solvers
from solvers import CertificateError, SolveStatus, check_partition, partition


def tiny(seed):
    rng = np.random.default_rng(seed)
    n, num_groups, prefixes = int(rng.integers(1, 8)), int(rng.integers(1, 4)), int(rng.integers(1, 4))
    keys = rng.integers(0, prefixes, n)
    once = rng.integers(0, rng.choice([3, 15, 60]), prefixes)[keys]
    return rng.integers(0, rng.choice([3, 20, 50]), n), num_groups, keys, once, bool(seed % 2)


def least_makespan(costs, num_groups, keys, once, equal):
    """Return the optimum by trying all groups; those that differ in names alone are tried once."""
    n, best = len(costs), None
    for groups in itertools.product(range(num_groups), repeat=n):
        if any(groups[i] > max(groups[:i], default=-1) + 1 for i in range(n)):
            continue
        counts = [groups.count(g) for g in range(num_groups)]
        if equal and (min(counts) < n // num_groups or max(counts) > -(-n // num_groups)):
            continue
        loads, seen = [0] * num_groups, set()
        for g, key, cost, prefix_cost in zip(groups, keys, costs, once, strict=True):
            loads[g] += cost + (0 if (g, key) in seen else prefix_cost)
            seen.add((g, key))
        best = max(loads) if best is None else min(best, max(loads))
    return best


def test_bound_optimum_and_result_of_tiny_cases():
    exact = found_best = 0
    for seed in range(400):
        costs, num_groups, keys, once, equal = tiny(seed)
        found = partition(costs, num_groups, equal_counts=equal, prefix=keys, prefix_costs=once)
        check_partition(costs, found, num_groups=num_groups, equal_counts=equal, prefix=keys, prefix_costs=once)
        best = least_makespan(*(each.tolist() for each in (costs,)), num_groups, keys.tolist(), once.tolist(), equal)
        assert found.lower_bound <= best <= found.makespan, seed
        exact += found.lower_bound == best
        found_best += found.makespan == best
    assert exact > 0.8 * 400
    assert found_best > 0.95 * 400


@given(
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 1000)), min_size=0, max_size=40),
    st.lists(st.integers(0, 2000), min_size=6, max_size=6), st.integers(1, 9), st.booleans(),
)  # fmt: skip
def test_what_holds_for_all(items, prefixes, num_groups, equal):
    keys, costs = [key for key, _ in items], [cost for _, cost in items]
    once = [prefixes[key] for key in keys]
    found = partition(costs, num_groups, equal_counts=equal, prefix=keys, prefix_costs=once)
    check_partition(costs, found, equal_counts=equal, prefix=keys, prefix_costs=once)
    assert found == partition(costs, num_groups, equal_counts=equal, prefix=keys, prefix_costs=once)
    assert found.makespan <= sum(costs) + sum({key: prefixes[key] for key in keys}.values()) or equal
    free = partition(costs, num_groups, equal_counts=equal, prefix=keys, prefix_costs=[0] * len(costs))
    assert free.lower_bound <= found.makespan


def test_it_splits_where_that_pays():
    kept = partition([5] * 8, 4, prefix=[0] * 4 + [1] * 4, prefix_costs=[100] * 8)
    assert sorted(kept.loads.tolist()) in ([0, 0, 120, 120], [105, 105, 115, 115], [110, 110, 110, 110])
    assert kept.makespan == 110  # two copies of each prompt
    dear = partition([5] * 8, 2, prefix=[0] * 4 + [1] * 4, prefix_costs=[1000] * 8)
    assert dear.loads.tolist() == [1020, 1020]
    assert dear.status is SolveStatus.OPTIMAL


def test_keys_are_strings_or_numbers():
    by_number = partition([3, 4, 5, 6], 2, prefix=np.array([7, 7, -1, -1]), prefix_costs=[2] * 4)
    by_name = partition([3, 4, 5, 6], 2, prefix=["x", "x", "y", "y"], prefix_costs=[2] * 4)
    assert by_number == by_name


WRONG = {
    "prefix says which items share one: give prefix_costs as well": {"prefix": [0, 0, 1]},
    "prefix_costs say what a prefix costs: give prefix as well": {"prefix_costs": [1, 1, 1]},
    "must be the same for all items of a prefix, got 1 for item 0 and 2 for item 1": {
        "prefix": [0, 0, 1], "prefix_costs": [1, 2, 1]},
    "prefix must have one entry": {"prefix": [0, 0], "prefix_costs": [1, 1, 1]},
    "prefix_costs must have one entry for each item, 3, got 2": {"prefix": [0, 0, 1], "prefix_costs": [1, 1]},
    "must be >= 0": {"prefix": [0, 0, 1], "prefix_costs": [1, 1, -1]},
    "must be at most 2": {"prefix": [0, 0, 1], "prefix_costs": [2**59, 2**59, 2**60]},
    "prefix cannot be combined with keep_together": {
        "prefix": [0, 0, 1], "prefix_costs": [1, 1, 1], "keep_together": [0, 0, 1]},
    "prefix cannot be combined with speeds": {"prefix": [0, 0, 1], "prefix_costs": [1, 1, 1], "speeds": [1, 2]},
    "prefix is for method 'auto', not for 'lpt'": {"prefix": [0, 0, 1], "prefix_costs": [1, 1, 1], "method": "lpt"},
}  # fmt: skip


@pytest.mark.parametrize("told", WRONG)
def test_wrong_arguments_in_a_line(told):
    with pytest.raises((ValueError, TypeError)) as caught:
        partition([1, 2, 3], 2, **WRONG[told])
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "change",
    [
        {"lower_bound": 13, "status": SolveStatus.OPTIMAL},
        {"loads": np.array([12, 13])},
        {"makespan": 13},
        {"bound_name": "mean"},
        {"group_of_item": np.array([0, 0, 0, 2], dtype=np.int32)},
        {"group_of_item": np.array([0, 1, 1, 1], dtype=np.int32)},
    ],
)
def test_changed_results_are_found(change):
    given = {"prefix": [0, 0, 0, 1], "prefix_costs": [4, 4, 4, 4]}
    found = partition([3, 3, 3, 1], 2, **given)
    check_partition([3, 3, 3, 1], found, **given)
    with pytest.raises(CertificateError):
        check_partition([3, 3, 3, 1], dataclasses.replace(found, **change), **given)


def test_more_groups_than_items_and_none():
    assert partition([], 3, prefix=[], prefix_costs=[]).loads.tolist() == [0, 0, 0]
    assert sorted(partition([1, 2], 5, prefix=[0, 0], prefix_costs=[9, 9]).loads.tolist()) == [0, 0, 0, 10, 11]
    assert solvers.partition([7], 1, prefix=[0], prefix_costs=[3]).makespan == 10


def test_a_check_takes_no_half_of_what_was_asked():
    found = partition([1, 2, 3], 2, prefix=[0, 0, 1], prefix_costs=[1, 1, 1])
    for asked in ({"prefix": [0, 0, 1]}, {"prefix_costs": [1, 1, 1]},
                  {"prefix": [0, 0, 1], "prefix_costs": [1, 1, 1], "max_items": 2}):  # fmt: skip
        with pytest.raises(ValueError, match="are given together, and with no constraint but equal_counts"):
            check_partition([1, 2, 3], found, **asked)


@pytest.mark.parametrize("seed", range(1, 60, 2))
def test_costs_near_the_end_of_int64_prove_what_small_ones_do(seed):
    """Nothing overflows: in a unit of 2**k the bound is 2**k times as large, less what is rounded."""
    rng = np.random.default_rng(seed)
    n, keys = 48, rng.integers(0, 3, 48)
    costs, once = rng.integers(1, 9, n), rng.integers(1, 20, 3)[keys]
    unit = 1 << (59 - int(costs.sum() + once.sum()).bit_length())
    small = partition(costs, 6, equal_counts=True, prefix=keys, prefix_costs=once)
    large = partition(costs * unit, 6, equal_counts=True, prefix=keys, prefix_costs=once * unit)
    check_partition(costs * unit, large, equal_counts=True, prefix=keys, prefix_costs=once * unit)
    assert (small.lower_bound - 1) * unit < large.lower_bound <= small.makespan * unit
