"""The largest send: swaps, multipliers, and what CP-SAT adds. Few runs of the last: they are slow."""

import sys

import numpy as np
import pytest
import rearrangement_oracles as oracles

import solvers
from solvers import SolveStatus
from solvers.rearrangement import least_max
from solvers.rearrangement._largest_send import SwapSearch, best_node_bound, even_multipliers, shift_multipliers
from solvers.rearrangement._problem import UNLIMITED, RearrangementProblem

MODULE = sys.modules[least_max.__module__]


def volumes_of(m: int, items_per_rank: int, seed: int) -> solvers.Volumes:
    lengths = np.random.default_rng(seed).lognormal(6, 1, m * items_per_rank).astype(np.int64)
    groups = solvers.lpt(lengths, m).group_of_item
    return solvers.group_volumes(groups, np.repeat(np.arange(m), items_per_rank), lengths, m)


def problem_of(volumes: solvers.Volumes, levels: object, **more: object) -> RearrangementProblem:
    given = {"weights": None, "class_of_group": None, "class_of_rank": None} | more
    return RearrangementProblem.prepare(volumes, levels, "max", **given)  # type: ignore[arg-type]


@pytest.mark.parametrize("classes", [None, [0, 1] * 12])
@pytest.mark.parametrize("deep", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_swaps_lower_the_largest_send_and_end_where_none_helps(
    seed: int, deep: bool, classes: list[int] | None
) -> None:
    volumes = volumes_of(24, 4, seed)
    nodes = np.repeat(np.arange(6), [4, 2, 6, 4, 5, 3])
    levels, weights = ([nodes, nodes // 3], [2, 3]) if deep else ([nodes], [2])
    problem = problem_of(volumes, levels, weights=weights, class_of_group=classes, class_of_rank=classes)
    search = SwapSearch(problem)
    ranks = problem.identity()
    before = problem.value_of(ranks)
    assert search.lower(ranks, 0, UNLIMITED) > 0
    nested = [level.tolist() for level in levels]
    sends = oracles.weighted_sends(oracles.dense(volumes), nested, weights, ranks.tolist())
    assert sends == problem.sends(ranks).tolist()
    assert max(sends) < before
    if classes:
        assert all(classes[g] == classes[r] for g, r in enumerate(ranks.tolist()))
    top = int(np.argmax(sends))
    for g in np.flatnonzero(nodes[ranks] == nodes[top]).tolist():  # no one swap into its node makes it better
        for h in range(24):
            if classes and classes[g] != classes[h]:
                continue
            other = ranks.copy()
            other[[g, h]] = other[[h, g]]
            after = oracles.weighted_sends(oracles.dense(volumes), nested, weights, other.tolist())
            changed = [a for a, b in zip(after, sends, strict=True) if a != b]
            assert not changed or after[top] >= sends[top] or max(changed) >= sends[top]


def test_swaps_stop_at_the_goal_and_at_the_budget() -> None:
    problem = problem_of(volumes_of(24, 4, 0), np.arange(24) // 4)
    search = SwapSearch(problem)
    for goal, work in ((problem.value_of(problem.identity()), UNLIMITED), (0, -1)):
        ranks = problem.identity()
        search.lower(ranks, goal, work)
        assert ranks.tolist() == problem.identity().tolist()


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("nodes", [[0, 0, 0, 1, 1, 1], [0, 0, 1, 1, 2, 2], [0, 1, 1, 1, 2, 2]])
@pytest.mark.parametrize("classes", [None, [0, 0, 1, 0, 1, 1]])
def test_a_node_proves_no_more_than_is_true(seed: int, nodes: list[int], classes: list[int] | None) -> None:
    volumes = volumes_of(6, 5, seed)
    problem = problem_of(volumes, nodes, weights=[3], class_of_group=classes, class_of_rank=classes)
    bound, work = best_node_bound(problem, SwapSearch(problem), problem.rows(), 6, problem.sends(problem.identity()))
    assert bound is not None
    assert work > 0
    optimum = oracles.optimum(oracles.dense(volumes), [nodes], [3], "max", classes, classes)
    assert 0 < bound.value <= optimum
    result = problem.result([problem.identity()], bound, "identity", 0.0)
    solvers.check_rearrangement(volumes, nodes, result, weights=[3], class_of_group=classes, class_of_rank=classes)


def test_multipliers_follow_the_sends() -> None:
    problem = problem_of(volumes_of(24, 4, 0), np.arange(24) // 4)
    sends = problem.sends(problem.identity())
    multiplier = shift_multipliers(even_multipliers(problem), sends, 0)
    assert multiplier.min() >= 1
    assert (np.diff(multiplier[np.argsort(sends)]) >= 0).all()
    assert multiplier[np.argmax(sends)] > multiplier[np.argmin(sends)]


def test_auto_comes_close_to_what_cp_sat_proves() -> None:
    volumes = volumes_of(32, 8, 1)
    nodes = np.arange(32) // 8
    start = solvers.rearrange(volumes, nodes, "sum", "max")
    auto = solvers.rearrange(volumes, nodes, "auto", "max", 0.05)
    exact = solvers.rearrange(volumes, nodes, "max", time_budget=20)
    for result in (start, auto, exact):
        solvers.check_rearrangement(volumes, nodes, result)
    assert exact.status is SolveStatus.OPTIMAL
    assert auto.lower_bound <= exact.value <= auto.value < start.value
    assert auto.value <= 1.1 * exact.value


def test_one_node_proves_many_optimal() -> None:
    """At 256 ranks the whole model is out of reach of the time; the node whose rank sends most decides alone."""
    volumes = volumes_of(256, 16, 0)
    nodes = np.arange(256) // 8
    result = solvers.rearrange(volumes, nodes, "max", time_budget=30)
    assert (result.status, result.bound_name) == (SolveStatus.OPTIMAL, "cp_sat")
    solvers.check_rearrangement(volumes, nodes, result)


def test_a_mean_that_is_no_whole_number_is_rounded_up() -> None:
    """At least 3 cross in all, so one of the two ranks sends 2."""
    result = solvers.rearrange([[2, 2], [2, 1]], [0, 1], "sum", "max")
    assert (result.value, result.lower_bound, result.status) == (2, 2, SolveStatus.OPTIMAL)


def test_no_search_where_the_start_is_optimal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MODULE, "load_cp_model", lambda _: pytest.fail("CP-SAT was called"))
    assert solvers.rearrange([[0, 5], [4, 0]], [0, 1], "max").status is SolveStatus.OPTIMAL
    assert solvers.rearrange([[3, 5], [4, 1]], [0, 0], "max").value == 0


def test_volumes_that_cp_sat_would_refuse(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MODULE, "load_cp_model", lambda _: pytest.fail("CP-SAT called"))
    volumes = [[2**58 + 5, 2**58, 3], [2**57, 2**56, 2**58], [7, 2**57, 2**58]]
    result = solvers.rearrange(volumes, [0, 1, 2], "max")
    solvers.check_rearrangement(volumes, [0, 1, 2], result)
    assert result.lower_bound <= oracles.optimum(volumes, [[0, 1, 2]], [1], "max") <= result.value
    assert result.status is SolveStatus.TIME_LIMIT


@pytest.mark.parametrize("budget", [1e-6, 0.01])
def test_out_of_time_returns_an_incumbent_with_its_bound(budget: float) -> None:
    volumes = volumes_of(64, 16, 2)
    nodes = np.arange(64) // 8
    result = solvers.rearrange(volumes, nodes, "max", time_budget=budget)
    solvers.check_rearrangement(volumes, nodes, result)
    assert result.status in (SolveStatus.TIME_LIMIT, SolveStatus.OPTIMAL)
    assert result.value <= solvers.rearrange(volumes, nodes, "greedy", "max").value
