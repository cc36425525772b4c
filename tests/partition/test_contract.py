"""What every registered method must hold, on every shape of problem, judged by the checker and by plain Python."""

import dataclasses

import numpy as np
import oracles
import pytest
from hypothesis import given
from hypothesis import strategies as st

import solvers
from solvers import PARTITIONERS, USES_CLOCK, SolveStatus

BUDGET = 0.05  # seconds that CP-SAT may take in each of its runs here
CLOCKLESS = [name for name in PARTITIONERS if name not in USES_CLOCK]
EVERY_COUNT_RULE = pytest.mark.parametrize("equal_counts", [False, True], ids=["free", "equal_counts"])
NO_COUNTS = {"karmarkar_karp"}  # methods without equal counts


def methods(equal_counts: bool) -> list[str]:
    return [name for name in CLOCKLESS if not equal_counts or name not in NO_COUNTS]


EVERY_METHOD = pytest.mark.parametrize(
    ("method", "equal_counts"),
    [(name, equal) for equal in (False, True) for name in PARTITIONERS if not equal or name not in NO_COUNTS],
)


def lognormal(count: int, sigma: float = 1.0, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).lognormal(6, sigma, count).astype(np.int64).tolist()


SHAPES = {
    "no items": ([], 3),
    "no items, one group": ([], 1),
    "one item": ([7], 4),
    "one item of cost zero": ([0], 2),
    "one group": ([5, 0, 3, 5, 1, 9, 2], 1),
    "two items, one group": ([4, 4], 1),
    "fewer items than groups": ([3, 0, 8], 8),
    "as many items as groups": ([4, 1, 1, 9, 0], 5),
    "one item more than groups": ([4, 4, 4, 4], 3),
    "all equal": ([6] * 12, 4),
    "all equal, does not divide": ([6] * 11, 4),
    "all zero": ([0] * 7, 3),
    "mostly zero": ([0, 0, 5, 0, 0, 0, 2, 0, 0, 0], 3),
    "one giant": ([10**12, *range(1, 30)], 4),
    "two values": ([1000, 1] * 15, 4),
    "long tail": (lognormal(203, 2.5), 16),
    "does not divide": (lognormal(23), 5),
    "many groups": (lognormal(390), 150),
    "descending": (list(range(40, 0, -1)), 6),
    "near the end of int64": ([2**62 - 1, 2**61, 2**60, 2**60 - 7, 3, 2, 1, 0], 3),
    "near the end of int64, many groups": ([2**62 - 1] + [2**54 - k for k in range(250)], 140),
    "sum is int64's largest": ([2**62, 2**62 - 1], 2),
}
EVERY_SHAPE = pytest.mark.parametrize("shape", SHAPES)

small_costs = st.one_of(
    st.lists(st.integers(0, 4), max_size=8),
    st.lists(st.integers(0, 1000), max_size=8),
    st.lists(st.one_of(st.integers(0, 3), st.integers(2**59 - 3, 2**59)), max_size=8),
)
costs_and_groups = st.tuples(st.lists(st.integers(0, 50) | st.integers(0, 10**9), max_size=40), st.integers(1, 12))


def check(costs: list[int], num_groups: int, result: solvers.PartitionResult, equal_counts: bool) -> None:
    """All that a result promises, from scratch."""
    groups, loads = result.group_of_item.tolist(), result.loads.tolist()
    assert result.group_of_item.dtype == np.int32
    assert result.loads.dtype == np.int64
    assert not result.group_of_item.flags.writeable
    assert not result.loads.flags.writeable
    assert len(groups) == len(costs)
    assert all(0 <= g < num_groups for g in groups)
    assert loads == oracles.loads_of(costs, groups, num_groups)
    assert type(result.makespan) is type(result.lower_bound) is int
    assert result.makespan == max(loads)
    assert oracles.mean_bound(costs, num_groups) <= result.lower_bound <= result.makespan
    assert (result.status is SolveStatus.OPTIMAL) == (result.lower_bound == result.makespan)
    assert (result.gap == 0.0) == (result.lower_bound == result.makespan)
    assert result.num_groups == num_groups
    assert result.runtime_s >= 0
    if equal_counts:
        counts = oracles.counts_of(groups, num_groups)
        assert max(counts) - min(counts) <= 1
    solvers.check_partition(costs, result, num_groups=num_groups, equal_counts=equal_counts)


@EVERY_METHOD
@EVERY_SHAPE
def test_result_holds_what_it_promises(method: str, equal_counts: bool, shape: str) -> None:
    costs, num_groups = SHAPES[shape]
    result = solvers.partition(costs, num_groups, method, BUDGET, equal_counts=equal_counts)
    assert result.method == method
    check(costs, num_groups, result, equal_counts)


def test_auto_is_the_default_and_clocks_are_declared() -> None:
    assert solvers.partition([5, 4, 3, 3, 3], 2).method == "auto"
    assert set(PARTITIONERS) >= USES_CLOCK
    assert "auto" not in USES_CLOCK


@pytest.mark.parametrize(("makespan", "bound", "gap"), [(0, 0, 0.0), (5, 5, 0.0), (6, 5, 0.2), (3, 0, float("inf"))])
def test_gap(makespan: int, bound: int, gap: float) -> None:
    result = dataclasses.replace(solvers.partition([1], 1, "lpt"), makespan=makespan, lower_bound=bound)
    assert result.gap == pytest.approx(gap)


# --- invariant 2: bound <= optimum <= makespan -----------------------------------------------------------------------


@EVERY_COUNT_RULE
@given(costs=small_costs, num_groups=st.integers(1, 4))
def test_bound_optimum_makespan(equal_counts: bool, costs: list[int], num_groups: int) -> None:
    optimum = oracles.optimal_makespan(costs, num_groups, equal_counts)
    for method in methods(equal_counts):
        result = solvers.partition(costs, num_groups, method, equal_counts=equal_counts)
        check(costs, num_groups, result, equal_counts)
        assert result.lower_bound <= optimum <= result.makespan, method


@EVERY_COUNT_RULE
@given(problem=costs_and_groups)
def test_any_problem(equal_counts: bool, problem: tuple[list[int], int]) -> None:
    costs, num_groups = problem
    results = {m: solvers.partition(costs, num_groups, m, equal_counts=equal_counts) for m in methods(equal_counts)}
    for result in results.values():
        check(costs, num_groups, result, equal_counts)
    results["auto"] = solvers.partition(costs, num_groups, equal_counts=equal_counts, stop_at=0)
    closed_form = {result.lower_bound for method, result in results.items() if method != "auto"}
    assert len(closed_form) == 1
    assert results["auto"].lower_bound >= max(closed_form)  # an exhaustive search may prove more
    for other in methods(equal_counts):
        assert results["auto"].makespan <= 1.001 * results[other].makespan


# --- invariant 3: same input, same plan ------------------------------------------------------------------------------


def same_costs(costs: list[int]) -> dict[str, object]:
    """The same numbers in every form in which callers may have them."""
    array = np.array(costs, dtype=np.int64)
    read_only = array.copy()
    read_only.flags.writeable = False
    forms: dict[str, object] = {
        "int64": array,
        "tuple": tuple(costs),
        "read-only": read_only,
        "strided": np.repeat(array, 2)[::2],
        "reversed view": array[::-1].copy()[::-1],
        "big-endian": array.astype(">i8"),
        "uint64": array.astype(np.uint64),
        "column": np.stack([array, array], axis=1)[:, 0],
    }
    if max(costs, default=0) < 2**31:
        forms |= {"int32": array.astype(np.int32), "uint32": array.astype(np.uint32)}
    if max(costs, default=0) < 2**53:
        forms["float64"] = array.astype(np.float64)
    if max(costs, default=0) < 2**24:
        forms["float32"] = array.astype(np.float32)
    return forms


@EVERY_METHOD
@EVERY_SHAPE
def test_same_input_same_plan(method: str, equal_counts: bool, shape: str) -> None:
    if method in USES_CLOCK:
        return
    costs, num_groups = SHAPES[shape]
    expected = solvers.partition(costs, num_groups, method, equal_counts=equal_counts)
    for form, given_costs in same_costs(costs).items():
        before = np.array(given_costs)
        assert solvers.partition(given_costs, num_groups, method, equal_counts=equal_counts) == expected, form
        assert np.array_equal(np.array(given_costs), before), f"{form}: the input was changed"


# --- invariant 5: scaling, permuting, an empty group more ------------------------------------------------------------


@pytest.mark.parametrize("factor", [2, 7, 1000])
@given(problem=costs_and_groups)
def test_a_factor_scales_the_makespan(factor: int, problem: tuple[list[int], int]) -> None:
    costs, num_groups = problem
    scaled = [factor * c for c in costs]
    for method in ("lpt", "karmarkar_karp"):
        one, many = solvers.partition(costs, num_groups, method), solvers.partition(scaled, num_groups, method)
        assert many.makespan == factor * one.makespan
        assert np.array_equal(one.group_of_item, many.group_of_item)
    one, many = (solvers.partition(c, num_groups, "lpt", equal_counts=True) for c in (costs, scaled))
    assert many.makespan == factor * one.makespan


@pytest.mark.parametrize("method", [name for name in CLOCKLESS if name not in NO_COUNTS])
@EVERY_COUNT_RULE
@given(problem=costs_and_groups, data=st.data())
def test_permuting_items_permutes_the_plan(
    method: str, equal_counts: bool, problem: tuple[list[int], int], data: st.DataObject
) -> None:
    costs, num_groups = problem
    permuted = data.draw(st.permutations(costs))
    one, other = (solvers.partition(c, num_groups, method, equal_counts=equal_counts) for c in (costs, permuted))
    assert one.loads.tolist() == other.loads.tolist()
    in_order = [
        [result.group_of_item[i] for i in oracles.descending(c)] for result, c in ((one, costs), (other, permuted))
    ]
    assert in_order[0] == in_order[1]


@given(problem=costs_and_groups)
def test_an_empty_group_more_never_raises_the_bound(problem: tuple[list[int], int]) -> None:
    costs, num_groups = problem
    assert solvers.makespan_lower_bound(costs, num_groups + 1) <= solvers.makespan_lower_bound(costs, num_groups)
