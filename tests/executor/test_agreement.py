"""Ranks that disagree, and ranks that are lost: every other rank raises, names them, and does not hang."""

import multiprocessing
import signal

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
    text = f" of 4 {'differs' if len(blamed) == 1 else 'differ'} from the majority in package version {versions};"
    assert_blamed(four.errors(cases.other_version, odd), "PlanMismatchError", blamed, text)
    four.run(cases.goes_on)


def test_a_version_is_named_where_there_are_two_ranks(ranks):
    odd = ranks.size - 1
    assert_blamed(ranks.errors(cases.other_version, [odd]), "PlanMismatchError", (odd,), "package version")


def test_lengths_that_differ_are_named(ranks):
    odd = ranks.size - 1
    errors = ranks.errors(cases.other_lengths, odd)
    assert_blamed(errors, "PlanMismatchError", (odd,), "differs from the majority in lengths['tokens'];")
    ranks.run(cases.goes_on)


def test_lists_that_end_elsewhere_are_named(four):
    text = "differs from the majority in lengths['images'];"
    assert_blamed(four.errors(cases.other_ends, 3), "PlanMismatchError", (3,), text)
    four.run(cases.goes_on)


def test_settings_that_differ_are_named(four):
    text = "rank 1 of 4 differs from the majority in setting 'cost' ('quadratic:a=1,b=1', not 'linear');"
    assert_blamed(four.errors(cases.other_settings, 1), "PlanMismatchError", (1,), text)
    text = "rank 3 of 4 differs from the majority in setting 'cut.allow_empty' (True, not False);"
    assert_blamed(four.errors(cases.other_micro_batches, 3), "PlanMismatchError", (3,), text)
    text = (
        "in setting 'cost' of phase 'llm' ('quadratic:a=1,b=1', not 'linear') and setting 'max_tokens_per_rank' of "
        "phase 'llm' (99, not None);"
    )
    assert_blamed(four.errors(cases.other_phases, 2), "PlanMismatchError", (2,), text)


def test_a_plan_that_differs_is_named(four):
    assert_blamed(four.errors(cases.other_plan, 2), "PlanMismatchError", (2,), "in plan;")
    four.run(cases.goes_on)


@pytest.mark.parametrize("way", ["replicate", "broadcast"])
def test_a_rank_that_cannot_plan_is_an_error_on_all(ranks, way):
    odd = ranks.size - 1
    for rank, (name, blamed, text) in enumerate(ranks.errors(cases.one_cannot_plan, odd, way)):
        assert (name, blamed) == (("MemoryError", ()) if rank == odd else ("PeerError", (odd,)))
        assert rank == odd or f"rank {odd} could not plan: MemoryError: no room to plan" in text
    ranks.run(cases.goes_on)


def test_errors_of_several_ranks_are_told_once_each_and_cut_short(four):
    errors = four.errors(cases.all_cannot_plan, 1)
    assert [name for name, _, _ in errors] == ["MemoryError", "PeerError", "MemoryError", "MemoryError"]
    _, blamed, text = errors[1]
    assert blamed == (0, 2, 3)
    assert "PeerError: ranks 0, 2 could not plan: MemoryError: no room for 0 and more" in text
    assert "...; rank 3 could not plan: MemoryError: no room for 1 and more" in text
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


def test_a_replica_peer_with_another_version_is_an_error_on_all(four):
    text = "replica peers of rank 1 differ in package version ('9.9', not '1.0')"
    assert_blamed(four.errors(cases.replica_with_other_version), "PlanMismatchError", (1,), text)


@pytest.mark.parametrize("where", ["lengths", "payload"])
@pytest.mark.parametrize(("way", "size"), [("killed", 2), ("killed", 4), ("stopped", 4)])
def test_a_lost_rank_is_named_in_time_and_leaves_no_process_behind(where, way, size):
    victim = size - 2
    with Ranks(size) as started:
        started.start(cases.loses_one, victim, where, way)
        if way == "stopped":
            replies = started.collect(patience=30, but=victim)
            started.kill(victim, signal.SIGKILL)
        else:
            replies = started.collect(patience=30)
        processes = [process.pid for process in started.processes]
    assert replies.pop(victim) is None
    for _, name, blamed, traceback in replies:
        assert (name, blamed) == ("PeerLostError", (victim,)), traceback
        assert f"waited for rank {victim}" in traceback
    assert not [process for process in multiprocessing.active_children() if process.pid in processes]


def test_a_rank_lost_while_steps_are_made_ahead_is_named():
    with Ranks(4) as started:
        started.start(cases.loses_one_ahead, 2)
        replies = started.collect(patience=30)
    assert replies.pop(2) is None
    assert_blamed([reply[1:] for reply in replies], "PeerLostError", (2,), "waited for rank 2")


def test_ranks_in_different_calls_hear_of_it():
    with Ranks(2) as started:
        assert_blamed(started.errors(cases.calls_that_differ), "PeerLostError", (), "they stand in different calls")


def test_a_late_rank_is_waited_for(four):
    four.run(cases.rank_that_joins_late)
