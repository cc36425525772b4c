"""Ranks that disagree, and ranks that are lost: every other rank raises, names them, and does not hang."""

import multiprocessing
import signal
import time

import pytest

pytest.importorskip("torch")

import agreement_cases as cases
from rank_processes import Ranks
from ranks_of import ranks_of

ranks = ranks_of(2, 4)


@pytest.fixture(scope="module")
def four():
    with Ranks(4) as started:
        yield started


def assert_blamed(errors, name, blamed, text):
    for found, ranks, traceback in errors:
        assert (found, ranks) == (name, blamed), traceback
        assert text in traceback


@pytest.mark.parametrize("odd", [[3], [0, 1, 2], [2, 3], [0, 1]])
def test_versions_that_differ_from_the_majority_are_named(four, odd):
    blamed = {(3,): (3,), (0, 1, 2): (3,), (2, 3): (2, 3), (0, 1): (2, 3)}[tuple(odd)]  # ties to the lowest rank
    versions = "('9.9', not '1.0')" if 0 not in odd else "('1.0', not '9.9')"
    text = f" {'differs' if len(blamed) == 1 else 'differ'} from the others in package version {versions};"
    assert_blamed(four.errors(cases.other_version, odd), "ExecutorError", blamed, text)
    four.run(cases.goes_on)


def test_a_version_is_named_where_there_are_two_ranks(ranks):
    odd = ranks.size - 1
    assert_blamed(ranks.errors(cases.other_version, [odd]), "ExecutorError", (odd,), "package version")


def test_lengths_that_differ_are_named(ranks):
    odd = ranks.size - 1
    errors = ranks.errors(cases.other_lengths, odd)
    assert_blamed(errors, "ExecutorError", (odd,), "differs from the others in column 'tokens' (")
    ranks.run(cases.goes_on)


def test_lists_that_end_elsewhere_are_named(four):
    text = "differs from the others in column 'images' ("
    assert_blamed(four.errors(cases.other_ends, 3), "ExecutorError", (3,), text)
    four.run(cases.goes_on)


def test_settings_that_differ_are_named(four):
    text = "rank 1 differs from the others in setting 'cost' ('quadratic:a=1,b=1', not 'linear');"
    assert_blamed(four.errors(cases.other_settings, 1), "ExecutorError", (1,), text)
    text = "rank 3 differs from the others in setting 'cut.allow_empty' (True, not False);"
    assert_blamed(four.errors(cases.other_micro_batches, 3), "ExecutorError", (3,), text)
    text = "in setting 'cost' of phase 'llm' ('quadratic:a=1,b=1', not 'linear');"
    assert_blamed(four.errors(cases.other_phases, 2), "ExecutorError", (2,), text)


def test_settings_that_cannot_be_are_an_error_on_all(four):
    for rank, (name, blamed, text) in enumerate(four.errors(cases.settings_that_cannot_be, 1)):
        assert (name, blamed) == (("ArgumentError", ()) if rank == 1 else ("ExecutorError", (1,)))
        assert rank == 1 or "rank 1 failed at making a dispatcher: ArgumentError: method must be" in text


def test_a_plan_that_differs_is_named(four):
    assert_blamed(four.errors(cases.other_plan, 2), "ExecutorError", (2,), "in the plan (")
    four.run(cases.goes_on)


@pytest.mark.parametrize("way", ["replicate", "broadcast"])
def test_a_rank_that_cannot_plan_is_an_error_on_all(ranks, way):
    odd = 0 if way == "broadcast" else ranks.size - 1
    for rank, (name, blamed, text) in enumerate(ranks.errors(cases.one_cannot_plan, odd, way)):
        assert (name, blamed) == (("MemoryError", ()) if rank == odd else ("ExecutorError", (odd,)))
        assert rank == odd or f"rank {odd} failed at planning: MemoryError: no room to plan" in text
    ranks.run(cases.goes_on)


def test_errors_of_several_ranks_are_told_once_each_and_cut_short(four):
    errors = four.errors(cases.all_cannot_plan, 1)
    assert [name for name, _, _ in errors] == ["MemoryError", "ExecutorError", "MemoryError", "MemoryError"]
    _, blamed, text = errors[1]
    assert blamed == (0, 2, 3)
    assert "ExecutorError: ranks 0, 2 failed at planning: MemoryError: no room for 0 and more" in text
    assert "...; rank 3 failed at planning: MemoryError: no room for 1 and more" in text
    assert len(text.splitlines()[-1]) < 800


def test_what_nobody_can_plan_is_the_planners_error(ranks):
    for name, _, text in ranks.errors(cases.infeasible):
        assert name == "InfeasibleError"
        assert "max_tokens_per_rank" in text


def test_methods_that_read_the_clock_are_planned_by_one(ranks):
    assert len(set(ranks.run(cases.clock, "broadcast"))) == 1
    for name, _, text in ranks.errors(cases.clock, "replicate"):
        assert name == "ValueError"
        assert "planning='broadcast'" in text


def test_a_plan_that_was_told_equals_the_plan_that_was_made(ranks):
    ranks.run(cases.plans_for_all)


@pytest.mark.parametrize("way", ["replicate", "broadcast"])
def test_replica_peers_get_the_samples_and_the_plan_of_their_leader(four, way):
    results = four.run(cases.replicas_get_the_same, way)
    assert results[0] == results[1]
    assert results[2] == results[3]
    assert results[0][0] == results[2][0]


@pytest.mark.parametrize("way", ["replicate", "broadcast"])
def test_peers_of_a_pipeline_get_its_slots_in_order(four, way):
    results = four.run(cases.pipelines_get_their_slots, way)
    assert results[0] == results[1]
    assert results[2] == results[3]
    assert results[0][0] == results[2][0]
    assert all(len(slots) == 3 and all(slots) for _, slots, _, _ in results)
    assert max(own for _, _, _, own in results) == results[0][2]


def test_a_replica_peer_that_differs_is_an_error_on_all(four):
    text = "replica peers of rank 1 differ in package version ('9.9', not '1.0')"
    assert_blamed(four.errors(cases.replica_with_other_version), "ExecutorError", (1,), text)
    text = "replica peers of rank 1 differ in the plan ("
    assert_blamed(four.errors(cases.replica_with_another_plan), "ExecutorError", (1,), text)


def assert_all_end(size, victim, function, *arguments, stopped=False):
    """Lose a rank: all others raise within the timeout, and no process is left."""
    with Ranks(size) as started:
        started.run(cases.prepares)
        began = time.monotonic()
        started.start(function, victim, *arguments)
        replies = started.collect(patience=40, but=victim if stopped else None)
        assert time.monotonic() - began < cases.SHORT.total_seconds() + 15  # of a machine that is busy
        if stopped:
            started.kill(victim, signal.SIGKILL)
        processes = [process.pid for process in started.processes]
    assert replies.pop(victim) is None
    for _, name, _, traceback in replies:
        assert name == "ExecutorError", traceback
        assert "some rank is gone or stands still" in traceback
    assert not [process for process in multiprocessing.active_children() if process.pid in processes]


@pytest.mark.parametrize("where", ["lengths", "payload"])
@pytest.mark.parametrize(("way", "size"), [("killed", 2), ("killed", 4), ("stopped", 4)])
def test_a_lost_rank_ends_all_others_in_time(where, way, size):
    assert_all_end(size, size - 2, cases.loses_one, where, way, stopped=way == "stopped")


def test_a_rank_lost_while_steps_are_made_ahead_ends_all_others():
    assert_all_end(4, 2, cases.loses_one_ahead)


def test_a_late_rank_is_waited_for(four):
    four.run(cases.rank_that_joins_late)
