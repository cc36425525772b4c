"""The border: what is unusable is refused with its name, its place, its value and the rule, and nothing else is."""

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import solvers

EVERYONE: dict[str, Callable[[Any], Any]] = {
    "partition": lambda costs: solvers.partition(costs, 2),
    "padded": lambda costs: solvers.padded(costs, 2),
    "mixed": lambda costs: solvers.mixed(costs, [0, 0], 2),
    "makespan_lower_bound": lambda costs: solvers.makespan_lower_bound(costs, 2),
    "check_partition": lambda costs: solvers.check_partition(costs, solvers.partition([1, 2], 2, "lpt")),
}
NAN, INF = float("nan"), float("inf")

BAD_COSTS: dict[str, tuple[Any, type[Exception], str]] = {
    "scalar": (5, ValueError, "costs must be one-dimensional, got shape ()"),
    "two dimensions": (np.ones((3, 2), dtype=int), ValueError, "costs must be one-dimensional, got shape (3, 2)"),
    "a string": ("12", ValueError, "costs must be one-dimensional, got shape ()"),
    "ragged": ([[1], [2, 3]], TypeError, "costs must be one-dimensional integers: "),
    "strings": (["1", "2"], TypeError, "costs must be integers, got dtype <U1"),
    "booleans": ([True, False], TypeError, "costs must be integers, got dtype bool"),
    "with a boolean": (np.array([True, 3], dtype=object), TypeError, "costs must be integers, got dtype object"),
    "negative": ([3, 0, -1, -5], ValueError, "costs[2] must be >= 0, got -1"),
    "negative and too large a sum": ([2**62, 2**62, -1], ValueError, "costs[2] must be >= 0, got -1"),
    "NaN": ([1.0, NAN], ValueError, "costs[1] must be a finite whole number, got nan"),
    "fractional": ([1.0, 2.0, 2.5], ValueError, "costs[2] must be a finite whole number, got 2.5"),
    "float past int64": ([1.0, 2.0**63], ValueError, "costs[1] must fit int64, got 9.223372036854776e+18"),
    "uint64 past int64": (np.array([1, 2**63], dtype=np.uint64), ValueError, f"costs[1] must fit int64, got {2**63}"),
    "Python integer past int64": ([1, 2**64], ValueError, f"costs[1] must fit int64, got {2**64}"),
    "sum past int64": (
        [1, 2**62, 0, 2**62, 5, 2**62, 2**62],
        ValueError,
        f"the sum of costs must fit int64: it overflows at costs[3] = {2**62}",
    ),
}


TAKES_VECTORS = {"partition", "makespan_lower_bound", "check_partition"}


@pytest.mark.parametrize("what", BAD_COSTS)
def test_bad_costs(what: str) -> None:
    costs, error, message = BAD_COSTS[what]
    for who, call in EVERYONE.items():
        if what == "two dimensions" and who in TAKES_VECTORS:
            continue
        with pytest.raises(error, match="^" + re.escape(message)) as caught:
            call(costs)
        assert caught.value.__suppress_context__ or caught.value.__context__ is None


def test_the_largest_sum_that_fits() -> None:
    assert solvers.partition([2**62, 2**62 - 1], 1, "lpt").makespan == 2**63 - 1


class LikeTorch:
    """What a CPU tensor offers to NumPy."""

    def __init__(self, values: list[int]) -> None:
        self.values = values

    def __array__(self, dtype: object = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self.values, dtype=dtype)


class OnAnotherDevice:
    """What a tensor on an accelerator does when NumPy asks."""

    def __array__(self, dtype: object = None, copy: bool | None = None) -> np.ndarray:
        raise TypeError("can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() first.")


KINDS = ["b", "H", "Q", "e", "d", ">i8", ">f4"]
GOOD_COSTS = {
    "list": [5, 4, 3, 3, 3],
    "range": range(1, 6),
    "list of floats": [5.0, 4.0, 3.0],
    "empty floats": np.empty(0, dtype=np.float32),
    "like torch": LikeTorch([5, 4, 3, 3, 3]),
    "memoryview": memoryview(np.array([5, 4, 3])),
    "object array of integers": np.array([5, 4, 3], dtype=object),
    "minus zero": [-0.0, 3.0],
    **{f"dtype {kind}": np.array([5, 4, 3, 3, 3], dtype=kind) for kind in KINDS},
}


@pytest.mark.parametrize("what", GOOD_COSTS)
def test_good_costs(what: str) -> None:
    costs = GOOD_COSTS[what]
    as_list = [int(c) for c in (costs.values if isinstance(costs, LikeTorch) else costs)]
    assert solvers.partition(costs, 2) == solvers.partition(as_list, 2)


def test_a_tensor_elsewhere_says_what_to_do() -> None:
    with pytest.raises(TypeError, match=r"^costs must be one-dimensional integers: .*Use Tensor\.cpu\(\) first"):
        solvers.partition(OnAnotherDevice(), 2)


@given(st.lists(st.floats() | st.integers(-3, 3).map(float), max_size=6))
def test_any_floats(costs: list[float]) -> None:
    usable = all(c not in (INF, -INF) and c >= 0 and c == c // 1 for c in costs) and sum(costs) < 2**63
    if usable:
        assert solvers.partition(costs, 2, "lpt").loads.sum() == sum(map(int, costs))
    else:
        with pytest.raises(ValueError, match=r"^(costs\[\d\] must |the sum of costs must fit int64)"):
            solvers.partition(costs, 2, "lpt")


BAD_COUNTS: list[tuple[Any, type[Exception], str]] = [
    (0, ValueError, "num_groups must be >= 1, got 0"),
    (10**30, ValueError, f"num_groups must be <= 2147483647, got {10**30}"),
    (2.0, TypeError, "num_groups must be an integer, got 2.0"),
    (np.True_, TypeError, "num_groups must be an integer, got "),
    ("2", TypeError, "num_groups must be an integer, got '2'"),
]


@pytest.mark.parametrize(("num_groups", "error", "message"), BAD_COUNTS)
@pytest.mark.parametrize("who", ["padded", "partition", "makespan_lower_bound"])
def test_bad_num_groups(who: str, num_groups: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match="^" + re.escape(message)):
        getattr(solvers, who)([], num_groups)


@pytest.mark.parametrize("num_groups", [np.uint8(2), np.array(2)])
def test_good_num_groups(num_groups: Any) -> None:
    assert solvers.partition([3, 2, 1], num_groups) == solvers.partition([3, 2, 1], 2)


POSITIVE = "time_budget must be positive and finite (seconds), got "
NUMBER = "time_budget must be a number of seconds, got "
BAD_BUDGETS: list[tuple[Any, type[Exception], str]] = [
    (0, ValueError, POSITIVE + "0"),
    (NAN, ValueError, POSITIVE + "nan"),
    (INF, ValueError, POSITIVE + "inf"),
    (10**400, ValueError, POSITIVE),
    ("0.5", TypeError, NUMBER + "'0.5'"),
    ([1], TypeError, NUMBER + "[1]"),
]


@pytest.mark.parametrize("method", solvers.PARTITIONERS)
def test_budgets(method: str) -> None:
    """Also where the method does not read it: what one method refuses, no other may let pass."""
    for budget, error, message in BAD_BUDGETS:
        with pytest.raises(error, match="^" + re.escape(message)):
            solvers.partition([3, 2, 1], 2, method, budget)
    for budget in (1e-300, np.float32(0.01), np.int64(1)):
        assert solvers.partition([3, 2, 1], 2, method, budget).loads.sum() == 6


@pytest.mark.parametrize("method", ["LPT", None])
def test_unknown_method(method: Any) -> None:
    known = ", ".join(solvers.PARTITIONERS)
    with pytest.raises(
        ValueError, match="^" + re.escape(f"unknown method {method!r}; known methods are {known}") + "$"
    ):
        solvers.partition([1], 2, method)


def test_options_are_named() -> None:
    with pytest.raises(TypeError, match="positional"):
        solvers.partition([1], 2, "lpt", 0.1, True)  # type: ignore[misc]
