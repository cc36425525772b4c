"""Mixed costs: never worse than LPT, its bounds against enumeration, its certificate checked from scratch."""

import dataclasses
from itertools import pairwise, product

import numpy as np
import oracles
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import solvers
from solvers import CertificateError
from solvers.partitioning import _mixed_bounds
from solvers.partitioning.mixed import _swap, mixed_bound

EVERY_COUNT_RULE = pytest.mark.parametrize("equal_counts", [False, True], ids=["free", "equal_counts"])
WHISPER = (4608, 1, 408, 1)  # a, b, c, p
LOGNORMAL = np.clip(np.random.default_rng(0).lognormal(6.5, 1, 300), 1, 3000).astype(int).tolist()
SHAPES = {
    "no items": ([], 3, WHISPER),
    "one item": ([7], 4, WHISPER),
    "one group": ([5, 0, 3, 5], 1, WHISPER),
    "fewer items than groups": ([3, 0, 8], 8, WHISPER),
    "all equal": ([6] * 11, 4, WHISPER),
    "all zero": ([0] * 7, 3, WHISPER),
    "one giant": ([10**6, *range(1, 30)], 4, WHISPER),
    "speech": (LOGNORMAL, 16, WHISPER),
    "padding is all": (LOGNORMAL, 16, (0, 0, 3, 2)),
    "no padding": (LOGNORMAL, 16, (3, 1, 0, 1)),
    "padding is half": (LOGNORMAL, 16, (1, 0, 1, 1)),
    "near the end of int64": ([2**58, 2**58 - 1, 2**57, 3, 2, 1, 0], 3, (1, 0, 4, 1)),
    "two a group": (LOGNORMAL[:40], 20, WHISPER),
}


def mixed_costs(lengths, coefficients):
    a, b, c, p = coefficients
    return [a * x + b * x * x for x in lengths], [c * x**p for x in lengths]


def mixed_loads_of(costs, rows, groups, num_groups):
    padding = oracles.padded_loads_of(rows, groups, num_groups)
    return [x + y for x, y in zip(oracles.loads_of(costs, groups, num_groups), padding, strict=True)]


def optimum_of(costs, rows, num_groups, equal_counts):
    found = []
    for groups in oracles.all_assignments(len(costs), num_groups):
        counts = oracles.counts_of(groups, num_groups)
        if not equal_counts or max(counts) - min(counts) <= 1:
            found.append(max(mixed_loads_of(costs, rows, groups, num_groups)))
    return min(found)


coefficients_in = st.tuples(st.integers(0, 9), st.integers(0, 2), st.integers(0, 30), st.integers(1, 2))
lengths_in = st.lists(st.integers(0, 5), max_size=8) | st.lists(st.integers(0, 1000), max_size=8)


@EVERY_COUNT_RULE
@pytest.mark.parametrize("shape", SHAPES)
def test_result_holds_what_it_promises(equal_counts, shape):
    lengths, num_groups, coefficients = SHAPES[shape]
    costs, rows = mixed_costs(lengths, coefficients)
    result = solvers.mixed(costs, rows, num_groups, equal_counts=equal_counts)
    assert result.loads.tolist() == mixed_loads_of(costs, rows, result.group_of_item.tolist(), num_groups)
    assert result.lower_bound <= result.makespan == max(result.loads.tolist())
    assert result.method == "mixed"
    assert result.group_of_item.dtype == np.int32
    assert not result.group_of_item.flags.writeable
    assert not result.loads.flags.writeable
    solvers.check_partition(costs, result, num_groups=num_groups, equal_counts=equal_counts, row_costs=rows)
    assert result == solvers.mixed(costs, rows, num_groups, equal_counts=equal_counts)


@EVERY_COUNT_RULE
@given(lengths=lengths_in, num_groups=st.integers(1, 4), coefficients=coefficients_in)
def test_optimum_lies_between_bound_and_makespan(equal_counts, lengths, num_groups, coefficients):
    costs, rows = mixed_costs(lengths, coefficients)
    best = optimum_of(costs, rows, num_groups, equal_counts)
    result = solvers.mixed(costs, rows, num_groups, equal_counts=equal_counts)
    assert result.lower_bound <= best <= result.makespan
    assert result.makespan <= 1.1 * best  # a heuristic; in thousands of cases it found the optimum
    assert mixed_bound(costs, rows, num_groups, equal_counts).value <= best
    solvers.check_partition(costs, result, equal_counts=equal_counts, row_costs=rows)


@given(lengths=lengths_in, num_groups=st.integers(1, 4), coefficients=coefficients_in)
def test_blocks_of_several_items_prove_no_more(lengths, num_groups, coefficients):
    costs, rows = mixed_costs(lengths, coefficients)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_mixed_bounds, "_MOST_BLOCKS", 3)
        bound = mixed_bound(costs, rows, num_groups).value
    assert bound <= min(mixed_bound(costs, rows, num_groups).value, optimum_of(costs, rows, num_groups, False))


@pytest.mark.parametrize("equal_counts", [False, True])
def test_nearly_always_optimal_where_few(equal_counts):
    rng = np.random.default_rng(1)
    found = 0
    for _ in range(100):
        lengths = rng.integers(0, 200, rng.integers(5, 9)).tolist()
        costs, rows = mixed_costs(lengths, (int(rng.integers(0, 20)), 1, int(rng.integers(1, 60)), 1))
        best = optimum_of(costs, rows, 3, equal_counts)
        found += solvers.mixed(costs, rows, 3, equal_counts=equal_counts).makespan == best
    assert found >= 95


@EVERY_COUNT_RULE
@given(lengths=st.lists(st.integers(0, 3000), min_size=1, max_size=60), num_groups=st.integers(1, 9),
       coefficients=coefficients_in)  # fmt: skip
def test_certificate_and_never_worse_than_lpt(equal_counts, lengths, num_groups, coefficients):
    costs, rows = mixed_costs(lengths, coefficients)
    result = solvers.mixed(costs, rows, num_groups, equal_counts=equal_counts)
    solvers.check_partition(costs, result, equal_counts=equal_counts, row_costs=rows)
    both = [u + g for u, g in zip(costs, rows, strict=True)]
    groups = solvers.partition(both, num_groups, "lpt", equal_counts=equal_counts).group_of_item.tolist()
    assert result.makespan <= max(mixed_loads_of(costs, rows, groups, num_groups))


@given(
    items=st.lists(st.tuples(st.integers(0, 300), st.integers(0, 3)), min_size=1, max_size=14),
    coefficients=coefficients_in,
)
@example(items=[(11, 2), (10, 2), (8, 2), (5, 1), (4, 1), (3, 2), (2, 2), (0, 1), (0, 1)], coefficients=(0, 0, 1, 1))
def test_swaps_end_where_none_with_the_largest_group_helps(items, coefficients):
    items.sort(reverse=True)
    costs, rows = mixed_costs([length for length, _ in items], coefficients)
    groups = np.array([group for _, group in items], dtype=np.int32)
    before = max(mixed_loads_of(costs, rows, groups.tolist(), 4))
    assert _swap(np.array(costs), np.array(rows), 4, 0, 10**9, groups) >= 0
    loads = mixed_loads_of(costs, rows, groups.tolist(), 4)
    assert max(loads) <= before
    largest = int(np.argmax(loads))
    for i, j in product(range(len(items)), repeat=2):
        if groups[i] == largest != groups[j]:
            swapped = groups.tolist()
            swapped[i], swapped[j] = swapped[j], swapped[i]
            after = mixed_loads_of(costs, rows, swapped, 4)
            assert max(after[largest], after[groups[j]]) >= max(loads)


@EVERY_COUNT_RULE
@given(lengths=st.lists(st.integers(0, 50), max_size=30), num_groups=st.integers(1, 8), data=st.data())
def test_permuting(equal_counts, lengths, num_groups, data):
    result = solvers.mixed(*mixed_costs(lengths, WHISPER), num_groups, equal_counts=equal_counts)
    shuffled = data.draw(st.permutations(lengths))
    again = solvers.mixed(*mixed_costs(shuffled, WHISPER), num_groups, equal_counts=equal_counts)
    assert again.loads.tolist() == result.loads.tolist()


@EVERY_COUNT_RULE
@pytest.mark.parametrize("shape", ["speech", "padding is half", "two a group"])
def test_a_larger_budget_is_never_worse(equal_counts, shape):
    lengths, num_groups, coefficients = SHAPES[shape]
    costs, rows = mixed_costs(lengths, coefficients)
    results = [
        solvers.mixed(costs, rows, num_groups, equal_counts=equal_counts, time_budget=budget)
        for budget in (1e-9, 1e-6, 3e-6, 1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 3e-3, 1e-2, 3e-2, 0.1)
    ]
    for less, more in pairwise(results):
        assert more.makespan <= less.makespan
        assert more.lower_bound == less.lower_bound
    assert mixed_bound(costs, rows, num_groups, equal_counts).value == results[0].lower_bound


@pytest.mark.parametrize("num_groups", [1, 3, 8])
@pytest.mark.parametrize("lengths", [LOGNORMAL[:60], [9] * 20, list(range(50))])
def test_without_costs_of_their_own_it_is_padded(lengths, num_groups):
    rows = [7 * length for length in lengths]
    result = solvers.mixed([0] * len(rows), rows, num_groups)
    assert result.makespan == solvers.padded(rows, num_groups).makespan


@pytest.mark.parametrize(("equal_counts", "bound"), [(False, "prefix"), (True, "quota")])
def test_speech_is_close_to_its_bound(equal_counts, bound):
    costs, rows = mixed_costs(LOGNORMAL, WHISPER)
    result = solvers.mixed(costs, rows, 8, equal_counts=equal_counts)
    assert result.bound_name == bound
    assert result.gap < 0.01


# --- arguments and certificates --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("costs", "rows", "words"),
    [
        ([1, 2], [1], "one entry an item, got 2 and 1"),
        ([1, -2], [1, 2], r"costs\[1\] must be >= 0"),
        ([1, 2], [1, -2], r"row_costs\[1\] must be >= 0"),
        ([5, 2, 1], [1, 1, 9], r"must rise together.*item 2 and item 0 cost 1 and 5, their rows 9 and 1"),
        ([2**62, 1], [2**61, 2**60], "mixed costs must fit int64: 2 rows of the largest row cost"),
    ],
)
def test_unusable_costs_are_named(costs, rows, words):
    with pytest.raises(ValueError, match=words):
        solvers.mixed(costs, rows, 2)


WITHIN = solvers.SolveStatus.WITHIN  # of a bound that is one below the makespan: else the status is the lie


def test_a_lie_is_found():
    costs, rows = mixed_costs(LOGNORMAL, WHISPER)
    result = solvers.mixed(costs, rows, 8)
    for name, lie in {
        "'mean' proves": {"bound_name": "mean"},
        "unknown argument 'quota'": {"bound_name": "quota"},
        "unknown argument 'search'": {"bound_name": "search"},
        "not makespan": {"makespan": result.makespan + 1},
        "load of group 0": {"loads": result.loads + 1},
    }.items():
        with pytest.raises(CertificateError, match=name):
            solvers.check_partition(costs, dataclasses.replace(result, **lie), row_costs=rows)


def test_a_lie_under_equal_counts_is_found():
    costs, rows = mixed_costs(LOGNORMAL, WHISPER)
    result = solvers.mixed(costs, rows, 8, equal_counts=True)
    lie = dataclasses.replace(result, lower_bound=result.makespan - 1, bound_name="filler", status=WITHIN)
    with pytest.raises(CertificateError, match="'filler' proves"):
        solvers.check_partition(costs, lie, equal_counts=True, row_costs=rows)


def test_padded_and_mixed_at_once():
    with pytest.raises(ValueError, match="not both"):
        solvers.check_partition([1, 2], solvers.partition([1, 2], 2, "lpt"), padded=True, row_costs=[1, 2])
