"""Lower bounds: proven, and each of them the best somewhere."""

import oracles
import pytest
from hypothesis import given
from hypothesis import strategies as st

import solvers
from solvers.bounds import (
    makespan_bound,
)

NAMED = {
    "mean": oracles.mean_bound,
    "largest": oracles.largest_bound,
    "pigeonhole": oracles.pigeonhole_bound,
    "filler": oracles.filler_bound,
    "folding": oracles.folding_bound,
}
COUNTED = ("filler", "folding")
SIMPLEST = list(NAMED)

# On each of these one bound is above all others.
BINDING = [
    ("mean", [5, 4, 3, 3, 2], 2, False, 9),
    ("largest", [20, 1, 2, 3], 2, False, 20),
    ("pigeonhole", [5, 5, 5, 5], 3, False, 10),  # k = 1: two of four items share a group
    ("pigeonhole", [7, 7, 7, 7, 7], 2, False, 21),  # k = 2: three of five
    ("pigeonhole", [9, 9, 9, 9, 9, 9, 9, 1, 1], 2, False, 36),  # k = 3, and the items after the seventh do not matter
    ("filler", [100, 4, 4, 4, 4, 4], 2, True, 108),
    ("filler", [100, 9, 5, 3, 2, 1, 1], 3, True, 101),  # n // m = 2, so one companion, the smallest
    # Four of the five groups hold eight of the nine large items.
    ("pigeonhole", [100, 100, 100, 100, 90, 90, 90, 90, 90], 5, False, 188),
    ("filler", [50, 50, 50, 7, 7, 7], 2, True, 107),  # k = 2: two of three, and one filler
    ("filler", [60, 60, 60, 9, 9, 9, 9, 9, 9, 9, 0, 0], 4, True, 72),  # the three large ones share six fillers
    ("folding", [9, 9, 5, 5, 4, 1], 3, True, 13),
]


@pytest.mark.parametrize(("name", "costs", "num_groups", "equal_counts", "value"), BINDING)
def test_each_bound_binds_somewhere(
    name: str, costs: list[int], num_groups: int, equal_counts: bool, value: int
) -> None:
    result = solvers.partition(costs, num_groups, "lpt", equal_counts=equal_counts)
    assert (result.lower_bound, result.bound_name) == (value, name)
    assert solvers.makespan_lower_bound(costs, num_groups, equal_counts) == value
    assert NAMED[name](costs, num_groups) == value
    simpler = [
        bound(costs, num_groups) for other, bound in NAMED.items() if SIMPLEST.index(other) < SIMPLEST.index(name)
    ]
    assert max(simpler, default=0) < value
    assert oracles.optimal_makespan(costs, num_groups, equal_counts) >= value


def test_ties_go_to_the_simpler_argument() -> None:
    assert solvers.partition([4, 2, 2], 2, "lpt").bound_name == "mean"  # and largest
    assert solvers.partition([4, 1, 1, 2], 3, "lpt").bound_name == "largest"
    assert solvers.partition([2, 2, 2, 2], 2, "lpt").bound_name == "mean"
    assert solvers.partition([3, 3], 1, "lpt").bound_name == "mean"  # and pigeonhole
    assert (
        solvers.partition([9, 1, 1], 3, "lpt", equal_counts=True).bound_name == "largest"
    )  # and filler, with no companions
    assert solvers.partition([8, 0, 0, 0], 2, "lpt", equal_counts=True).bound_name == "largest"  # and filler, with one
    assert solvers.partition([], 3, "lpt").bound_name == "mean"


@given(
    costs=st.lists(st.integers(0, 9), max_size=8) | st.lists(st.integers(0, 10**6), max_size=8),
    num_groups=st.integers(1, 5),
    equal_counts=st.booleans(),
)
def test_proven(costs: list[int], num_groups: int, equal_counts: bool) -> None:
    """No bound is above the optimum: not the package's and not those of the oracles it is compared with."""
    optimum = oracles.optimal_makespan(costs, num_groups, equal_counts)
    assert solvers.makespan_lower_bound(costs, num_groups, equal_counts) <= optimum
    assert all(
        bound(costs, num_groups) <= optimum for name, bound in NAMED.items() if equal_counts or name not in COUNTED
    )


@given(
    costs=st.lists(st.integers(0, 9) | st.integers(90, 99), max_size=40) | st.lists(st.just(5), max_size=40),
    num_groups=st.integers(1, 9),
    equal_counts=st.booleans(),
)
def test_equal_to_the_definition(costs: list[int], num_groups: int, equal_counts: bool) -> None:
    expected = oracles.lower_bound(costs, num_groups, equal_counts)
    result = solvers.partition(costs, num_groups, "lpt", equal_counts=equal_counts)
    assert (result.lower_bound, result.bound_name) == expected
    assert solvers.makespan_lower_bound(costs, num_groups, equal_counts) == expected[0]


RULED = [
    ("pigeonhole", [5, 5], 2, {"initial_loads": [5, 0]}, 10),  # an initial load is an item that cannot move
    ("largest", [6, 6, 6], 2, {"initial_loads": [20, 0]}, 20),
    ("fastest", [9], 3, {"initial_loads": [7, 5, 4]}, 13),
    ("water", [4, 4, 4, 4, 4, 4], 2, {"speeds": [2, 1]}, 8),
    ("water", [1], 2, {"speeds": [2, 1], "initial_loads": [0, 5]}, 5),
    ("fastest", [8, 8], 3, {"speeds": [4, 1, 1]}, 4),
    ("pigeonhole", [8, 8, 8], 2, {"speeds": [2, 2]}, 8),
    ("masks", [4, 4, 4, 1], 3, {"allowed": [[0], [0, 1], [1], None]}, 6),  # two masks together
    ("filler", [60, 60, 60, 9, 9, 9, 9, 9, 9, 9, 0, 0], 4, {"min_items": 3, "max_items": 3}, 72),
    ("components", [[4, 1], [4, 1], [1, 9]], 2, {}, 5 + 9),
    ("components", [[4, 1], [4, 1], [1, 9]], 2, {"objective": "max"}, 9),
]


@pytest.mark.parametrize(("name", "costs", "num_groups", "rules", "value"), RULED)
def test_each_bound_under_rules(name, costs, num_groups, rules, value) -> None:
    assert makespan_bound(costs, num_groups, **rules) == (value, name)
    assert solvers.partition(costs, num_groups, stop_at=0, **rules).makespan >= value


def test_room_that_leaves_int64_is_still_summed_right() -> None:
    """64 groups of 2^58 have more room than int64 counts: a sum cut there once made a bound of twice the optimum."""
    costs, before = [2**58] * 2 + [1] * 61, [1] + [0] * 63
    assert solvers.makespan_lower_bound(costs, 64, initial_loads=before) == 2**58


def test_bounds_near_the_end_of_int64() -> None:
    costs = [2**61 - 1] * 4
    assert solvers.makespan_lower_bound(costs, 3) == 2**62 - 2
    assert solvers.makespan_lower_bound([2**62, *[2**59] * 7], 4, equal_counts=True) == 2**62 + 2**59
    assert solvers.makespan_lower_bound([2**63 - 1], 1) == 2**63 - 1
