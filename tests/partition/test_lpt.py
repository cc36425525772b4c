"""LPT against its definition and its guarantee."""

import numpy as np
import oracles
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nightly import examples

import solvers
from solvers.partitioning.lpt import lpt_in_order

problems = st.tuples(
    st.one_of(
        st.lists(st.integers(0, 5), max_size=60),
        st.lists(st.integers(0, 10**6), max_size=60),
        st.lists(st.integers(1, 10).map(lambda k: 2**k), max_size=60),
    ),
    st.integers(1, 12) | st.sampled_from([63, 64, 65, 200]),
)


@given(problem=problems)
def test_plan_is_the_oracles(problem: tuple[list[int], int]) -> None:
    costs, num_groups = problem
    for equal_counts, oracle in ((False, oracles.lpt), (True, oracles.lpt_with_quotas)):
        result = solvers.partition(costs, num_groups, "lpt", equal_counts=equal_counts)
        assert result.group_of_item.tolist() == oracle(costs, num_groups)


def test_grahams_worst_case() -> None:
    """2m + 1 items on which LPT is exactly 4/3 - 1/(3m) times the optimum."""
    m = 4
    costs = [*range(2 * m - 1, m, -1), *range(2 * m - 1, m, -1), m, m, m]
    assert solvers.partition(costs, m, "lpt").makespan == 4 * m - 1
    assert solvers.partition(costs, m).makespan == 3 * m


@pytest.mark.parametrize(
    ("count", "num_groups"), [(1, 300), (50, 1), (600, 5), (63, 64), (700, 64), (900, 65), (900, 512)]
)
@pytest.mark.parametrize("kind", ["lognormal", "few values", "powers of two"])
def test_larger_plans_are_the_oracles(kind: str, count: int, num_groups: int) -> None:
    rng = np.random.default_rng(count)
    costs = {
        "lognormal": lambda: rng.lognormal(6, 1, count).astype(np.int64) + 1,
        "few values": lambda: rng.integers(1, 4, count),
        "powers of two": lambda: 2 ** rng.integers(0, 40, count),
    }[kind]()
    costs = np.sort(costs)[::-1].copy()
    for equal_counts, oracle in ((False, oracles.lpt), (True, oracles.lpt_with_quotas)):
        found = lpt_in_order(costs, num_groups, equal_counts)
        assert found.tolist() == oracle(costs.tolist(), num_groups)


@settings(max_examples=examples(20))
@given(
    st.lists(st.integers(2**54, 2**55) | st.integers(0, 9), min_size=65, max_size=120),
    st.integers(0, 2**62 - 1),
)
def test_loads_near_the_end_of_int64(costs: list[int], giant: int) -> None:
    costs = [*costs, giant]
    result = solvers.partition(costs, 64, "lpt")
    assert result.group_of_item.tolist() == oracles.lpt(costs, 64)
    assert result.makespan == max(oracles.loads_of(costs, result.group_of_item.tolist(), 64))
