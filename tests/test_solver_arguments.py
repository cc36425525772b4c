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
    "two dimensions, empty": (np.ones((0, 2)), ValueError, "costs must be one-dimensional, got shape (0, 2)"),
    "None": (None, ValueError, "costs must be one-dimensional, got shape ()"),
    "a string": ("12", ValueError, "costs must be one-dimensional, got shape ()"),
    "a set": ({1, 2}, ValueError, "costs must be one-dimensional, got shape ()"),
    "ragged": ([[1], [2, 3]], TypeError, "costs must be one-dimensional integers: "),
    "strings": (["1", "2"], TypeError, "costs must be integers, got dtype <U1"),
    "bytes": ([b"1"], TypeError, "costs must be integers, got dtype |S1"),
    "booleans": ([True, False], TypeError, "costs must be integers, got dtype bool"),
    "complex": ([1j, 2], TypeError, "costs must be integers, got dtype complex128"),
    "dates": (np.array(["2020"], dtype="M8[D]"), TypeError, "costs must be integers, got dtype datetime64[D]"),
    "durations": (np.array([3], dtype="m8[s]"), TypeError, "costs must be integers, got dtype timedelta64[s]"),
    "with a boolean": (np.array([True, 3], dtype=object), TypeError, "costs must be integers, got dtype object"),
    "with None": ([1, None], TypeError, "costs must be integers, got dtype object"),
    "negative": ([3, 0, -1, -5], ValueError, "costs[2] must be >= 0, got -1"),
    "negative first": (np.array([-(2**63), 1]), ValueError, f"costs[0] must be >= 0, got {-(2**63)}"),
    "negative int8": (np.array([1, -1], dtype=np.int8), ValueError, "costs[1] must be >= 0, got -1"),
    "negative float": ([1.0, -2.0], ValueError, "costs[1] must be >= 0, got -2"),
    "negative and too large a sum": ([2**62, 2**62, -1], ValueError, "costs[2] must be >= 0, got -1"),
    "NaN": ([1.0, NAN], ValueError, "costs[1] must be a finite whole number, got nan"),
    "infinite": ([1.0, 2.0, INF], ValueError, "costs[2] must be a finite whole number, got inf"),
    "minus infinity": ([-INF], ValueError, "costs[0] must be a finite whole number, got -inf"),
    "fractional": ([1.0, 2.0, 2.5], ValueError, "costs[2] must be a finite whole number, got 2.5"),
    "fractional float32": (np.array([0.5], np.float32), ValueError, "costs[0] must be a finite whole number, got 0.5"),
    "float past int64": ([1.0, 2.0**63], ValueError, "costs[1] must fit int64, got 9.223372036854776e+18"),
    "uint64 past int64": (
        np.array([1, 2**63], dtype=np.uint64),
        ValueError,
        f"costs[1] must fit int64, got {2**63}",
    ),
    "Python integer past int64": ([1, 2**64], ValueError, f"costs[1] must fit int64, got {2**64}"),
    "Python integer below int64": ([1, -(2**70)], ValueError, f"costs[1] must fit int64, got {-(2**70)}"),
    "sum past int64": (
        [1, 2**62, 0, 2**62, 5, 2**62, 2**62],
        ValueError,
        f"the sum of costs must fit int64: it overflows at costs[3] = {2**62}",
    ),
    "sum past int64 by one": (
        [2**63 - 1, 0, 1],
        ValueError,
        "the sum of costs must fit int64: it overflows at costs[2] = 1",
    ),
}


TAKES_VECTORS = {"partition", "makespan_lower_bound", "check_partition"}


@pytest.mark.parametrize("who", EVERYONE)
@pytest.mark.parametrize("what", BAD_COSTS)
def test_bad_costs(who: str, what: str) -> None:
    costs, error, message = BAD_COSTS[what]
    if what.startswith("two dimensions") and who in TAKES_VECTORS:
        pytest.skip("two dimensions are vector costs here")
    with pytest.raises(error, match="^" + re.escape(message)) as caught:
        EVERYONE[who](costs)
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


KINDS = ["b", "B", "h", "H", "i", "I", "q", "Q", "e", "f", "d", "g", ">i8", ">f4"]
GOOD_COSTS = {
    "list": [5, 4, 3, 3, 3],
    "tuple": (5, 4, 3, 3, 3),
    "range": range(1, 6),
    "list of floats": [5.0, 4.0, 3.0],
    "list of NumPy scalars": [np.int16(5), np.int16(4)],
    "empty list": [],
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
    (-1, ValueError, "num_groups must be >= 1, got -1"),
    (2**31, ValueError, "num_groups must be <= 2147483647, got 2147483648"),
    (10**30, ValueError, f"num_groups must be <= 2147483647, got {10**30}"),
    (1.5, TypeError, "num_groups must be an integer, got 1.5"),
    (2.0, TypeError, "num_groups must be an integer, got 2.0"),
    (True, TypeError, "num_groups must be an integer, got True"),
    (np.True_, TypeError, "num_groups must be an integer, got "),
    ("2", TypeError, "num_groups must be an integer, got '2'"),
    (None, TypeError, "num_groups must be an integer, got None"),
    ([2], TypeError, "num_groups must be an integer, got [2]"),
]


@pytest.mark.parametrize(("num_groups", "error", "message"), BAD_COUNTS)
@pytest.mark.parametrize("who", ["padded", "partition", "makespan_lower_bound"])
def test_bad_num_groups(who: str, num_groups: Any, error: type[Exception], message: str) -> None:
    for costs in ([1, 2], []):
        with pytest.raises(error, match="^" + re.escape(message)):
            getattr(solvers, who)(costs, num_groups)


@pytest.mark.parametrize("num_groups", [np.int32(2), np.uint8(2), np.array(2)])
def test_good_num_groups(num_groups: Any) -> None:
    assert solvers.partition([3, 2, 1], num_groups) == solvers.partition([3, 2, 1], 2)


POSITIVE = "time_budget must be positive and finite (seconds), got "
NUMBER = "time_budget must be a number of seconds, got "
BAD_BUDGETS: list[tuple[Any, type[Exception], str]] = [
    (0, ValueError, POSITIVE + "0"),
    (-0.5, ValueError, POSITIVE + "-0.5"),
    (NAN, ValueError, POSITIVE + "nan"),
    (INF, ValueError, POSITIVE + "inf"),
    (-INF, ValueError, POSITIVE + "-inf"),
    (10**400, ValueError, POSITIVE),
    ("soon", TypeError, NUMBER + "'soon'"),
    ("0.5", TypeError, NUMBER + "'0.5'"),
    (None, TypeError, NUMBER + "None"),
    ([1], TypeError, NUMBER + "[1]"),
]


@pytest.mark.parametrize(("budget", "error", "message"), BAD_BUDGETS, ids=[repr(b[0])[:9] for b in BAD_BUDGETS])
@pytest.mark.parametrize("method", solvers.PARTITIONERS)
def test_bad_budget(method: str, budget: Any, error: type[Exception], message: str) -> None:
    """Also where the method does not read it: what one method refuses, no other may let pass."""
    with pytest.raises(error, match="^" + re.escape(message)):
        solvers.partition([3, 2, 1], 2, method, budget)


@pytest.mark.parametrize("budget", [1, 1e-300, np.float32(0.01), np.int64(1)])
@pytest.mark.parametrize("method", solvers.PARTITIONERS)
def test_good_budget(method: str, budget: Any) -> None:
    assert solvers.partition([3, 2, 1], 2, method, budget).loads.sum() == 6


@pytest.mark.parametrize("method", ["LPT", "", "padded", "kk", None, 3])
def test_unknown_method(method: Any) -> None:
    known = ", ".join(solvers.PARTITIONERS)
    with pytest.raises(
        ValueError, match="^" + re.escape(f"unknown method {method!r}; known methods are {known}") + "$"
    ):
        solvers.partition([1], 2, method)


def test_options_are_named() -> None:
    with pytest.raises(TypeError, match="positional"):
        solvers.partition([1], 2, "lpt", 0.1, True)  # type: ignore[misc]
