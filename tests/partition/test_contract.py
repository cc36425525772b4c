"""What every way to partition must hold, on every shape of problem, judged by the checker and by plain Python."""

import dataclasses

import numpy as np
import oracles
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nightly import examples

import solvers
from solvers import PARTITIONERS, USES_CLOCK, SolveStatus

BUDGET = 0.05  # seconds that CP-SAT may take in each of its runs here
EVERY = [*PARTITIONERS, "padded", "mixed"]
CLOCKLESS = [name for name in EVERY if name not in USES_CLOCK]
NO_COUNTS = {"karmarkar_karp"}  # methods without equal counts
EVERY_COUNT_RULE = pytest.mark.parametrize("equal_counts", [False, True], ids=["free", "equal_counts"])


def methods(equal_counts: bool, of: list[str] = CLOCKLESS) -> list[str]:
    return [name for name in of if not equal_counts or name not in NO_COUNTS]


EVERY_METHOD = pytest.mark.parametrize(
    ("method", "equal_counts"), [(name, equal) for equal in (False, True) for name in methods(equal, EVERY)]
)


def rows_of(costs: list[int]) -> list[int]:
    """What rows cost where costs are mixed: more than half is padding."""
    return [3 * c for c in costs]


def solved(method: str, costs: object, num_groups: int, equal_counts: bool, **more: object) -> solvers.PartitionResult:
    if method == "padded":
        return solvers.padded(costs, num_groups, equal_counts=equal_counts)
    if method == "mixed":
        rows = np.asarray(costs, dtype=np.int64).tolist()
        return solvers.mixed(costs, rows_of(rows), num_groups, equal_counts=equal_counts)
    return solvers.partition(costs, num_groups, method, BUDGET, equal_counts=equal_counts, **more)


def loads_of(method: str, costs: list[int], groups: list[int], num_groups: int) -> list[int]:
    whole, padded = oracles.loads_of(costs, groups, num_groups), oracles.padded_loads_of(costs, groups, num_groups)
    if method == "mixed":
        return [x + 3 * y for x, y in zip(whole, padded, strict=True)]
    return padded if method == "padded" else whole


def optimum_of(method: str, costs: list[int], num_groups: int, equal_counts: bool) -> int:
    loads = {"padded": oracles.padded_loads_of, "mixed": lambda *given: loads_of("mixed", *given)}
    return oracles.optimum(costs, num_groups, equal_counts, loads.get(method, oracles.loads_of))


def lognormal(count: int, sigma: float = 1.0, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).lognormal(6, sigma, count).astype(np.int64).tolist()


SHAPES = {
    "no items": ([], 3),
    "one item": ([7], 4),
    "one group": ([5, 0, 3, 5, 1, 9, 2], 1),
    "fewer items than groups": ([3, 0, 8], 8),
    "one item more than groups": ([4, 4, 4, 4], 3),
    "all equal": ([6] * 12, 4),
    "all zero": ([0] * 7, 3),
    "mostly zero": ([0, 0, 5, 0, 0, 0, 2, 0, 0, 0], 3),
    "one giant": ([10**12, *range(1, 30)], 4),
    "long tail": (lognormal(203, 2.5), 16),
    "does not divide": (lognormal(23), 5),
    "many groups": (lognormal(390), 150),
    "near the end of int64": ([2**62 - 1, 2**61, 2**60, 2**60 - 7, 3, 2, 1, 0], 3),
    "near the end of int64, many groups": ([2**62 - 1] + [2**54 - k for k in range(250)], 140),
    "sum is int64's largest": ([2**62, 2**62 - 1], 2),
}
EVERY_SHAPE = pytest.mark.parametrize("shape", SHAPES)

small_costs = st.one_of(
    st.lists(st.integers(0, 4), max_size=7),
    st.lists(st.integers(0, 1000), max_size=7),
    st.lists(st.one_of(st.integers(0, 3), st.integers(2**59 - 3, 2**59)), max_size=4),
)
costs_and_groups = st.tuples(st.lists(st.integers(0, 50) | st.integers(0, 10**9), max_size=40), st.integers(1, 12))


def check(method: str, costs: list[int], num_groups: int, result: solvers.PartitionResult, equal_counts: bool) -> None:
    """All that a result promises, from scratch."""
    groups, loads = result.group_of_item.tolist(), result.loads.tolist()
    assert result.method == method
    assert (result.group_of_item.dtype, result.loads.dtype) == (np.int32, np.int64)
    assert len(groups) == len(costs)
    assert all(0 <= g < num_groups for g in groups)
    assert loads == loads_of(method, costs, groups, num_groups)
    assert type(result.makespan) is type(result.lower_bound) is int
    assert result.makespan == max(loads)
    assert oracles.mean_bound(costs, num_groups) <= result.lower_bound <= result.makespan
    assert (result.status is SolveStatus.OPTIMAL) == (result.lower_bound == result.makespan) == (result.gap == 0.0)
    assert result.num_groups == num_groups
    if equal_counts:
        counts = oracles.counts_of(groups, num_groups)
        assert max(counts) - min(counts) <= 1
    of = {"padded": {"padded": True}, "mixed": {"row_costs": rows_of(costs)}}.get(method, {})
    solvers.check_partition(costs, result, num_groups=num_groups, equal_counts=equal_counts, **of)


def same_costs(costs: list[int]) -> dict[str, object]:
    """The same numbers in forms that callers may have them in."""
    array = np.array(costs, dtype=np.int64)
    array.flags.writeable = False
    forms: dict[str, object] = {
        "read-only": array,
        "strided": np.repeat(array, 2)[::2],
        "big-endian": array.astype(">i8"),
        "uint64": array.astype(np.uint64),
    }
    return forms | ({"float64": array.astype(np.float64)} if max(costs, default=0) < 2**53 else {})


@EVERY_METHOD
@EVERY_SHAPE
def test_result_holds_what_it_promises_and_the_same_input_gives_the_same(
    method: str, equal_counts: bool, shape: str
) -> None:
    costs, num_groups = SHAPES[shape]
    if method in ("padded", "mixed") and 5 * len(costs) * max(costs, default=0) >= 2**63:
        pytest.skip("rows padded to the longest would not fit int64")
    result = solved(method, costs, num_groups, equal_counts)
    check(method, costs, num_groups, result, equal_counts)
    for form, given_costs in same_costs(costs).items() if method not in USES_CLOCK else ():
        assert solved(method, given_costs, num_groups, equal_counts) == result, form


def test_auto_is_the_default_and_clocks_are_declared() -> None:
    assert solvers.partition([5, 4, 3, 3, 3], 2).method == "auto"
    assert "auto" not in USES_CLOCK


@pytest.mark.parametrize(("makespan", "bound", "gap"), [(0, 0, 0.0), (5, 5, 0.0), (6, 5, 0.2), (3, 0, float("inf"))])
def test_gap(makespan: int, bound: int, gap: float) -> None:
    result = dataclasses.replace(solvers.partition([1], 1, "lpt"), makespan=makespan, lower_bound=bound)
    assert result.gap == pytest.approx(gap)


@EVERY_COUNT_RULE
@settings(max_examples=examples(25))
@given(costs=small_costs, num_groups=st.integers(1, 4))
def test_bound_optimum_makespan(equal_counts: bool, costs: list[int], num_groups: int) -> None:
    optimum = optimum_of("auto", costs, num_groups, equal_counts)
    for method in methods(equal_counts):
        result = solved(method, costs, num_groups, equal_counts)
        check(method, costs, num_groups, result, equal_counts)
        best = optimum_of(method, costs, num_groups, equal_counts) if method in ("padded", "mixed") else optimum
        assert result.lower_bound <= best <= result.makespan, method
        if method == "padded":
            assert result.lower_bound == result.makespan
        if method == "lpt" and not equal_counts:  # Graham's guarantee
            assert 3 * num_groups * result.makespan <= (4 * num_groups - 1) * optimum
    last = solvers.partition(costs, num_groups, equal_counts=equal_counts, stop_at=0)
    assert last.makespan == last.lower_bound == optimum  # so few items are tried in all ways


@EVERY_COUNT_RULE
@settings(max_examples=examples(40))
@given(problem=costs_and_groups)
def test_any_problem(equal_counts: bool, problem: tuple[list[int], int]) -> None:
    costs, num_groups = problem
    results = {name: solved(name, costs, num_groups, equal_counts) for name in methods(equal_counts)}
    for method, result in results.items():
        check(method, costs, num_groups, result, equal_counts)
    last = solvers.partition(costs, num_groups, equal_counts=equal_counts, stop_at=0)
    (closed_form,) = {results[method].lower_bound for method in methods(equal_counts, ["lpt", "karmarkar_karp"])}
    assert last.lower_bound >= closed_form  # an exhaustive search may prove more
    for method in methods(equal_counts, [*PARTITIONERS]):
        assert method not in results or last.makespan <= 1.001 * results[method].makespan


@settings(max_examples=examples(40))
@given(problem=costs_and_groups, factor=st.sampled_from([2, 7, 1000]))
def test_a_factor_scales_the_makespan(problem: tuple[list[int], int], factor: int) -> None:
    costs, num_groups = problem
    for method, equal_counts in (("lpt", False), ("lpt", True), ("karmarkar_karp", False), ("padded", True)):
        one, many = (solved(method, [k * c for c in costs], num_groups, equal_counts) for k in (1, factor))
        assert many.makespan == factor * one.makespan
        assert equal_counts or np.array_equal(one.group_of_item, many.group_of_item)


@EVERY_COUNT_RULE
@settings(max_examples=examples(20))
@given(problem=costs_and_groups, data=st.data())
def test_permuting_items_permutes_the_plan(
    equal_counts: bool, problem: tuple[list[int], int], data: st.DataObject
) -> None:
    costs, num_groups = problem
    permuted = data.draw(st.permutations(costs))
    for method in ("auto", "lpt", "padded", "mixed"):
        one, other = (solved(method, c, num_groups, equal_counts) for c in (costs, permuted))
        assert one.loads.tolist() == other.loads.tolist()
        in_order = [
            [result.group_of_item[i] for i in oracles.descending(c)] for result, c in ((one, costs), (other, permuted))
        ]
        assert in_order[0] == in_order[1]


@given(problem=costs_and_groups)
def test_an_empty_group_more_never_raises_the_bound(problem: tuple[list[int], int]) -> None:
    costs, num_groups = problem
    assert solvers.makespan_lower_bound(costs, num_groups + 1) <= solvers.makespan_lower_bound(costs, num_groups)
