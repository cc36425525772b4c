"""Planned pipelines on four processes: losses and gradients of one process, and bad input told on all."""

import pytest

pytest.importorskip("torch")

import pipeline_cases as cases
from rank_processes import Ranks
from ranks_of import ranks_of

from solvers.errors import UsageError

ranks = ranks_of(4)


@pytest.mark.parametrize(
    ("devices", "num_stages", "slots", "given"),
    [
        (4, 4, 6, {}),
        (4, 4, 5, {"vision": True, "frozen": ("vision",)}),
        (4, 4, 5, {"vision": True, "frozen": ("llm",), "recompute": ("llm",)}),
        (2, 4, 4, {"chunks": 2, "vision": True, "recompute": True}),
        (2, 2, 9, {"allow_empty": True, "op_order": "gpipe"}),
    ],
)
def test_losses_and_gradients_are_those_of_one_process(ranks, devices, num_stages, slots, given):
    told = ranks.run(cases.trains, devices, num_stages, slots, given)
    assert len(set(told)) == 1


def test_a_dispatcher_brings_samples_to_the_devices_that_run_encoders_in_gaps(ranks):
    assert any(ranks.run(cases.dispatched_in_gaps, 2, 4))


@pytest.mark.parametrize(
    ("devices", "backwards", "chunks"),
    [
        (4, {"llm": 3, "vision": 2, "audio": 0}, 1),
        (2, {"llm": 1, "vision": 2, "audio": 2}, 1),
        (2, {"llm": 2, "vision": 2, "audio": 2}, 2),
    ],
)
def test_encoders_in_gaps_are_trained_as_in_one_process(ranks, devices, backwards, chunks):
    assert sum(ranks.run(cases.trains_in_gaps, devices, 4, backwards, chunks)) > 0


def test_a_run_that_was_stopped_goes_on_as_if_it_had_not_been(ranks):
    assert ranks.run(cases.resumes) == [True] * 4


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("plans", "replica 0, device 1 hold another plan, or other outputs; nothing has been sent"),
        ("ranks", "plan must have 1 ranks, as the processes do, got 2"),
        ("devices", "plan must have 4 devices, as the processes do, got 5"),
        ("labels", "labels must have an entry for each of 3 slots, got 1"),
        ("missing", "modules must be stages of device 2 of 4"),
        ("modules", "modules must have a stage of device 3"),
    ],
)
def test_what_cannot_be_run_is_told_on_all_processes_before_any_waits(ranks, how, said):
    for name, _, text in ranks.errors(cases.breaks, how):
        assert said in text.strip().splitlines()[-1], text
        assert name in ("ArgumentError", "PipelineError")
        assert name == "ArgumentError" or how == "plans" or "replica 0, device " in text


@pytest.mark.parametrize(
    ("how", "stage", "said"),
    [
        ("rows", 2, "in stage 2 must put out"),
        ("detached", 3, "the forward of slot 0 in stage 3 puts out a loss that needs no gradient"),
    ],
)
def test_a_stage_that_does_what_was_not_planned_ends_all(how, stage, said):
    with Ranks(4) as ranks:
        ranks.start(cases.breaks, how)
        ranks.end_after()  # so that nobody waits for messages until it has waited too long
        for rank, (_, name, _, text) in enumerate(ranks.collect()):
            assert name in (("UsageError",) if rank == stage else ("RuntimeError", "DistNetworkError"))
            assert rank != stage or said in text.strip().splitlines()[-1]


def test_a_process_that_dies_ends_the_others():
    with Ranks(4) as ranks:
        ranks.start(cases.dies, 2)
        ranks.end_after()
        replies = ranks.collect()
    assert replies.pop(2) is None
    assert all(reply[0] for reply in replies)


def test_lists_that_would_wait_for_each_other_are_refused():
    op = cases.op
    good = [[op(0, 0, False), op(0, 0, True)], [op(0, 1, False), op(0, 1, True)]]
    assert [*cases.matched(good).between(0, 1)] == [("output", 0, 0, -1)]
    crossed = [good[0][::-1], good[1]]
    with pytest.raises(
        UsageError, match="device 0 waits in the backward of slot 0 in stage 0; device 1 waits in the f"
    ):
        cases.matched(crossed)
    with pytest.raises(UsageError, match="send device 1 the output of slot 0, for which it has no op"):
        cases.matched([[op(0, 0, False)], []])
