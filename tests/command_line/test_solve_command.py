"""`balancer solve`: one list of numbers."""

import json

import oracles
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from nightly import examples

import solvers


def test_numbers_as_arguments(command):
    outcome = command("solve", 5, 4, 3, 3, 3, "--groups", 2)
    assert (outcome.code, outcome.err) == (0, "")
    assert "makespan 9, lower bound 9 ('mean'): proven optimal" in outcome.words
    assert "5 4" in outcome.words
    assert "3 3 3" in outcome.words


@pytest.mark.parametrize("words", [("5,4,3,3,3",), ("5,", "4", "3,3", "3"), ("+5", "4", "3", "3", "3", "-0")])
def test_commas_are_blanks(words, command):
    outcome = command("solve", *words, "--groups", 2, "--json")
    assert (outcome.code, outcome.err) == (0, "")
    assert json.loads(outcome.out)["loads"] == [9, 9]


@pytest.mark.parametrize("stdin", ["5 4 3 3 3", "5\n4\n3\n3\n3\n", "5, 4, 3,3,3\n", "  5,4\n\n3 3 3"])
@pytest.mark.parametrize("dash", [(), ("-",)], ids=["none", "dash"])
def test_numbers_on_standard_input(stdin, dash, command):
    outcome = command("solve", *dash, "--groups", 2, "--json", stdin=stdin)
    assert (outcome.code, outcome.err) == (0, "")
    assert json.loads(outcome.out)["loads"] == [9, 9]


@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=12), st.integers(1, 5), st.booleans())
@settings(max_examples=examples(25), suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_json_against_loops(command, numbers, groups, equal_counts):
    flags = ("--equal-counts",) if equal_counts else ()
    outcome = command("solve", *numbers, "--groups", groups, "--json", *flags)
    assert (outcome.code, outcome.err) == (0, "")
    found = json.loads(outcome.out)
    assert found["loads"] == oracles.loads_of(numbers, found["group_of_item"], groups)
    assert found["groups"] == [
        [n for n, g in zip(numbers, found["group_of_item"], strict=True) if g == group] for group in range(groups)
    ]
    assert found["makespan"] == max(found["loads"])
    assert found["lower_bound"] <= found["makespan"]
    assert (found["status"] == "optimal") == (found["gap"] == 0.0) == (found["lower_bound"] == found["makespan"])
    if equal_counts:
        counts = [len(members) for members in found["groups"]]
        assert max(counts) - min(counts) <= 1


def test_keys(command):
    found = json.loads(command("solve", 1, 2, "--groups", 1, "--json").out)
    assert set(found) == {
        *("groups", "group_of_item", "loads", "makespan", "lower_bound", "bound_name"),
        *("gap", "status", "method", "runtime_s"),
    }


@pytest.mark.parametrize("method", solvers.PARTITIONERS)
def test_every_method(method, command):
    found = json.loads(command("solve", 8, 7, 6, 5, 4, "--groups", 2, "--method", method, "--json").out)
    assert found["method"] == method
    assert sorted(n for members in found["groups"] for n in members) == [4, 5, 6, 7, 8]


def test_exact_proves_what_bounds_cannot(command):
    outcome = command("solve", *[7] * 5, *[5] * 4, "--groups", 3, "--method", "exact", "--time-budget", 5, "--json")
    found = json.loads(outcome.out)
    assert found["makespan"] == oracles.optimal_makespan([7] * 5 + [5] * 4, 3)
    assert found["status"] == "optimal"


def test_a_gap_is_shown(command):
    outcome = command("solve", 5, 4, 3, 3, 3, "--groups", 2, "--method", "lpt")
    assert "makespan 10, lower bound 9 ('mean'): gap 11.111%" in outcome.words


def test_more_groups_than_numbers(command):
    found = json.loads(command("solve", 3, "--groups", 4, "--json").out)
    assert sorted(found["loads"]) == [0, 0, 0, 3]
    assert command("solve", 3, "--groups", 4).code == 0


def test_zeros(command):
    found = json.loads(command("solve", 0, 0, "--groups", 2, "--json").out)
    assert (found["makespan"], found["gap"], found["status"]) == (0, 0.0, "optimal")


def test_help_names_the_methods_that_solve_takes(command):
    words = command("solve", "--help").words
    for name in solvers.PARTITIONERS:
        assert name in words
    listed = words.split("One of ")[1].split(".")[0].split(", ")
    assert listed == list(solvers.PARTITIONERS)
