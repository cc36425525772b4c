"""The border: a bad constraint is refused with its name, place, value and rule; a method with what it takes."""

import re
from typing import Any

import numpy as np
import pytest

import balancer
import solvers
from solvers import PARTITIONERS
from solvers.constraints import Constraints

COSTS = [5, 4, 3]

BAD: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "sizes alone": ({"sizes": [1, 2, 3]}, ValueError, "sizes are limited by caps: give caps as well"),
    "caps alone": ({"caps": 5}, ValueError, "caps limit sizes: give sizes as well"),
    "negative size": ({"sizes": [1, -2, 3], "caps": 5}, ValueError, "sizes[1] must be >= 0, got -2"),
    "negative second size": (
        {"sizes": [[1, 1], [1, 1], [1, -4]], "caps": [5, 5]}, ValueError, "sizes[:, 1][2] must be >= 0, got -4",
    ),
    "no column of sizes": (
        {"sizes": np.ones((3, 0), int), "caps": [1]}, ValueError,
        "sizes must have one or two dimensions and a column at least, got shape (3, 0)",
    ),
    "one cap for two quantities": (
        {"sizes": [[1, 1]] * 3, "caps": 5}, ValueError,
        "caps must have one entry for each quantity, 2, got the single number 5",
    ),
    "keys of two dimensions": (
        {"keep_together": np.ones((3, 1), int)}, ValueError, "keep_together must be one-dimensional, got shape (3, 1)",
    ),
    "negative cap": ({"sizes": COSTS, "caps": -1}, ValueError, "caps must be >= 0, got -1"),
    "caps for three groups": (
        {"sizes": COSTS, "caps": [1, 2, 3]}, ValueError, "caps must have one entry for each group, 2, got 3",
    ),
    "caps for three quantities": (
        {"sizes": [[1, 1]] * 3, "caps": [5, 5, 5]}, ValueError, "caps must have one entry for each quantity, 2, got 3",
    ),
    "a table of caps transposed": (
        {"sizes": [[1, 1, 1]] * 3, "caps": [[5, 5]] * 3}, ValueError,
        "caps must be one number, or of shape (2, 3), got shape (3, 2)",
    ),
    "max_items zero": ({"max_items": 0}, ValueError, "max_items must be >= 1, got 0"),
    "mask of numbers": (
        {"allowed": np.ones((3, 2), int)}, TypeError, "allowed as a table must be bool[n, m], got dtype int64",
    ),
    "mask transposed": ({"allowed": np.ones((2, 3), bool)}, ValueError, "allowed must have shape (3, 2), got (2, 3)"),
    "mask too short": ({"allowed": [[0], None]}, ValueError, "allowed must have one entry for each item, 3, got 2"),
    "no such group": ({"allowed": [[0], [1, 2], None]}, ValueError, "allowed[1] must name groups 0..1, got 2"),
    "mask a number": ({"allowed": 1}, TypeError, "allowed must be bool[n, m] or a list of groups an item, got int"),
    "keys too short": (
        {"keep_together": [1, 2]}, ValueError, "keep_together must have one entry for each item, 3, got 2",
    ),
    "a fractional key": (
        {"keep_together": [1, 2, 2.5]}, TypeError, "keep_together[2] must be an integer, a string or None, got 2.5",
    ),
    "keys a string": ({"keep_together": "abc"}, TypeError, "keep_together must be one key an item, got str"),
    "negative initial load": ({"initial_loads": [0, -1]}, ValueError, "initial_loads[1] must be >= 0, got -1"),
    "speed zero": ({"speeds": [1, 0]}, ValueError, "speeds[1] must be >= 1, got 0"),
    "speeds too large": (
        {"speeds": [1, 2**61]}, ValueError,
        "the sum of costs and initial_loads times the largest of speeds must fit int64, got 12 * ",
    ),
    "initial loads too large": (
        {"initial_loads": [2**63 - 5, 0]}, ValueError, "the sum of costs and initial_loads must fit int64, got ",
    ),
    "objective": ({"objective": "mean"}, ValueError, "objective must be one of sum, max, got 'mean'"),
    "masks numbers": ({"allowed": [0, 1, 1]}, ValueError, "allowed[0] must be one-dimensional, got shape ()"),
}  # fmt: skip

CALLS = {
    "partition": lambda costs, given: solvers.partition(costs, 2, **given),
    "makespan_lower_bound": lambda costs, given: solvers.makespan_lower_bound(costs, 2, **given),
    "check_partition": lambda costs, given: solvers.check_partition(
        costs, solvers.partition([5, 4, 3], 2, "lpt"), **given
    ),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_constraints(what: str) -> None:
    given, error, message = BAD[what]
    for call in CALLS.values():
        with pytest.raises(error, match="^" + re.escape(message)):
            call(COSTS, given)


def test_bad_vectors() -> None:
    with pytest.raises(ValueError, match=re.escape("costs[:, 1][2] must be >= 0, got -1")):
        solvers.partition([[1, 1], [2, 2], [3, -1]], 2)
    with pytest.raises(ValueError, match="the sum of costs must fit int64"):
        solvers.partition([[2**62, 2**62]], 2)
    with pytest.raises(ValueError, match=re.escape("initial_loads must have shape (2, 2), got (2,)")):
        solvers.partition([[1, 1]], 2, initial_loads=[1, 1])
    with pytest.raises(TypeError, match="initial_loads must be an array: "):
        solvers.partition([[1, 1]], 2, initial_loads=[[1], [1, 1]])
    with pytest.raises(ValueError, match=r"but equal_counts \(padded ones min_items too\), got max_items"):
        solvers.check_partition([1, 2], solvers.padded([1, 2], 2), padded=True, max_items=1)


ONE_OF_EACH: dict[str, tuple[Any, dict[str, Any]]] = {
    "equal_counts": ([4, 3, 2, 1], {"equal_counts": True}),
    "caps": ([4, 3, 2, 1], {"sizes": [1, 1, 2, 2], "caps": 4}),
    "min_items": ([4, 3, 2, 1], {"min_items": 1}),
    "max_items": ([4, 3, 2, 1], {"max_items": 3}),
    "allowed": ([4, 3, 2, 1], {"allowed": [[0], None, [1], None]}),
    "keep_together": ([4, 3, 2, 1], {"keep_together": [-1, 5, -1, None]}),
    "initial_loads": ([4, 3, 2, 1], {"initial_loads": [0, 4]}),
    "speeds": ([4, 3, 2, 1], {"speeds": [2, 1]}),
    "vector_costs": ([[4, 1], [3, 2], [2, 3], [1, 4]], {}),
}


@pytest.mark.parametrize("method", PARTITIONERS)
@pytest.mark.parametrize("constraint", ONE_OF_EACH)
def test_every_method_takes_every_rule_but_one(method: str, constraint: str) -> None:
    costs, given = ONE_OF_EACH[constraint]
    if method != "karmarkar_karp" or constraint == "keep_together":
        result = solvers.partition(costs, 2, method, 0.2, **given)
        assert result.method == method
        solvers.check_partition(costs, result, num_groups=2, **given)
        return
    message = f"method 'karmarkar_karp' does not support {constraint}; methods that do: auto, lpt, exact"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        solvers.partition(costs, 2, method, **given)


def test_names_of_what_is_set() -> None:
    assert Constraints().names() == ()
    for constraint, (_, given) in ONE_OF_EACH.items():
        assert Constraints(**given).names() == (() if constraint == "vector_costs" else (constraint,))
    assert Constraints(min_items=0, max_items=None, objective="max").names() == ()
    nothing = Constraints(equal_counts=np.False_, min_items=np.int64(0))  # type: ignore[arg-type]
    assert nothing.names() == ()
    assert not nothing.beyond_counts


SHAPES_OF_CAPS: dict[str, tuple[Any, Any, list[list[int]]]] = {
    "a number": ([1, 2, 3], 4, [[4], [4]]),
    "a group": ([1, 2, 3], [4, 5], [[4], [5]]),
    "a quantity": ([[1, 2], [1, 2], [1, 2]], [2, 5], [[2, 5], [2, 5]]),
    "one quantity in a table": ([[1], [2], [3]], [4], [[4], [4]]),
    "group and quantity": ([[1, 2], [1, 2], [1, 2]], [[1, 5], [2, 4]], [[1, 5], [2, 4]]),
    "more than all there is": ([1, 2, 3], 10**18, [[6], [6]]),
}


def test_shapes_of_caps() -> None:
    for case, (sizes, caps, expected) in SHAPES_OF_CAPS.items():
        assert Constraints(sizes=sizes, caps=caps).check(COSTS, 2).caps.tolist() == expected, case


def test_forms_of_masks_and_keys_agree() -> None:
    table = np.array([[True, False, True], [True, True, True], [False, True, False]])
    lists = [[2, 0, 0], None, (1,)]
    costs = [3, 2, 1]
    assert solvers.partition(costs, 3, allowed=table) == solvers.partition(costs, 3, allowed=lists)
    assert solvers.partition(costs, 3, allowed=table.tolist()) == solvers.partition(costs, 3, allowed=lists)
    assert solvers.partition([], 3, allowed=table[:0]) == solvers.partition([], 3, allowed=[])
    forms: list[Any] = [[7, -1, 7], ["b", "a", "b"], np.array([7, -1, 7]), np.array(["b", "a", "b"]), [None, 3, None]]
    found = [solvers.partition(costs, 2, keep_together=keys) for keys in forms]
    assert all(one == found[0] for one in found)
    assert found[0].loads.tolist() == [4, 2]
    assert solvers.partition([2, 2], 2, keep_together=[1, "1"]).makespan == 2  # a number is not a string


def test_choices_of_the_wrong_kind() -> None:
    with pytest.raises(ValueError, match=r"unknown method \['lpt'\]; known methods are auto, "):
        solvers.partition([2, 1], 2, ["lpt"])  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="stop_at must be a finite number or Fraction, got '1e999%'"):
        solvers.partition([2, 1], 2, stop_at="1e999%")
    wrong: Any = "no"  # a string that is not empty counts as true
    for call in (
        lambda: solvers.padded([2, 1], 2, equal_counts=wrong),
        lambda: solvers.mixed([2, 1], [2, 1], 2, equal_counts=wrong),
        lambda: solvers.makespan_lower_bound([2, 1], 2, equal_counts=wrong),
        lambda: solvers.partition([2, 1], 2, equal_counts=wrong, prefix=[1, 1], prefix_costs=[1, 1]),
        lambda: balancer.balance([2, 1], 2, equal_counts=wrong),
    ):
        with pytest.raises(TypeError, match="equal_counts must be True or False, got 'no'"):
            call()
    with pytest.raises(TypeError, match="keep_together must be an array: "):
        balancer.balance([2, 1], 2, keep_together=[[1], [1, 2]])
