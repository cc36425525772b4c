"""Pipelines in seconds: by hand, against the plan's own units, frozen and recomputed, and what devices hold."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nightly import examples
from small_cluster import CLUSTER, model

import balancer
from balancer import Phase, Pipelines, PipelineStages
from balancer.cost import LengthPolynomial
from balancer.simulate import step_time

PHASES = [Phase("vision", "patches"), Phase("llm", "tokens")]
BATCH = {"patches": [9, 0, 4, 7, 0, 1, 3, 8], "tokens": [10, 20, 5, 6, 30, 12, 7, 9]}
OF_FOUR = replace(CLUSTER, gpus_per_node=8, gpus_per_rank=4)


def planned(stages, count=2, phases=PHASES, ranks=2):
    cut = Pipelines(100, count=count, stages=stages)
    return balancer.orchestrate(BATCH, phases, ranks, cut=cut)


def seconds_of(plan, models, cluster=OF_FOUR, **more):
    return step_time(plan, models, cluster, **more)


@settings(max_examples=examples(20))
@given(st.lists(st.integers(1, 40), min_size=8, max_size=8), st.integers(0, 2), st.integers(0, 2))
def test_seconds_are_the_plan_in_other_units(tokens, hop, overhead):
    stages = PipelineStages.of(4, hop=hop, overhead=overhead)
    plan = balancer.balance(tokens, 2, cut=Pipelines(200, count=4, stages=stages))
    step = step_time(plan, model(a=6), OF_FOUR)
    unit = 6 / 500 / 12 * 4 / 4  # a token is 12 units of time, over 4 devices of a GPU each
    assert step.compute_s + step.waiting_s == pytest.approx(plan.makespan * unit, rel=1e-6)
    assert step.pipeline.seconds == pytest.approx(plan.makespan * unit, rel=1e-6)
    rank = step.pipeline.slowest_rank
    assert plan.pipeline_makespans()[rank] == plan.makespan
    assert step.pipeline.slowest.bubble == pytest.approx(plan.pipeline_run(rank).bubble, abs=1e-6)


def test_tied_replicas_wait_in_every_op():
    tokens = np.random.default_rng(0).integers(1, 40, 16)
    seconds = []
    for tied in (False, True):
        stages = PipelineStages.of(4, tied=tied)
        plan = balancer.balance(tokens, 2, cut=Pipelines(200, count=4, stages=stages))
        seconds.append(step_time(plan, model(a=6), OF_FOUR).pipeline.seconds)
        assert seconds[-1] == pytest.approx(plan.makespan * 6 / 500 / 12, rel=1e-6)
    assert seconds[1] > seconds[0]


@pytest.mark.parametrize("waits", ["phase", "step"])
def test_encoders_and_the_last_phase_are_one_pipeline(waits):
    plan = planned(PipelineStages.of({"vision": 1, "llm": 3}))
    alike = {"vision": model(a=6), "llm": model(a=6)}
    step = seconds_of(plan, alike, waits=waits)
    unit = 6 / 500 / 9 * 4 / 4  # over the 9 units of time of a patch or token
    assert step.compute_s + step.waiting_s == pytest.approx(plan["llm"].makespan * unit, rel=1e-6)
    total = sum(BATCH["patches"]) + sum(BATCH["tokens"])
    assert step.compute_s == pytest.approx(total / 2 * 6 / 500 / 4)
    assert step.phases["vision"].waiting_s == 0
    assert step.useful_flops == total * 6


def test_frozen_phases_run_no_backward():
    trained, frozen = (
        seconds_of(
            planned(PipelineStages.of({"vision": 1, "llm": 3}, frozen=names)), {"vision": model(), "llm": model()}
        )
        for names in ((), ("vision",))
    )
    third = trained.phases["vision"].compute_s / 3
    assert frozen.phases["vision"].compute_s == pytest.approx(third)
    assert frozen.phases["vision"].useful_flops == pytest.approx(trained.phases["vision"].useful_flops / 3)
    assert frozen.phases["llm"].useful_flops == pytest.approx(trained.phases["llm"].useful_flops)


def test_recomputing_takes_a_third_more_and_is_not_useful():
    once = model(a=6)
    twice = replace(once, executed=LengthPolynomial(0, 8, 0))
    plain = planned(PipelineStages.of({"vision": 1, "llm": 3}))
    again = planned(PipelineStages.of({"vision": 1, "llm": 3}, recompute=True))
    before = seconds_of(plain, {"vision": once, "llm": once})
    after = seconds_of(again, {"vision": twice, "llm": twice})
    assert after.compute_s == pytest.approx(4 / 3 * before.compute_s)
    assert after.useful_flops == pytest.approx(before.useful_flops)


def test_a_device_holds_its_stages_of_what_is_in_flight():
    stages = PipelineStages.of(4)
    tokens = [10] * 16
    plan = balancer.balance(tokens, 2, cut=Pipelines(20, count=8, stages=stages))
    step = step_time(plan, model(kept_bytes=8, working_bytes=3), OF_FOUR)
    # of the first stage four micro-batches of 10 tokens, each with a quarter of 8 bytes; a GPU a device
    assert step.activation_bytes == 4 * 10 * 2 + 10 * 3
    assert step.pipeline.slowest.in_flight.tolist() == [80, 60, 40, 20]


def test_a_rank_needs_a_gpu_for_each_device():
    plan = planned(PipelineStages.of({"vision": 1, "llm": 3}))
    with pytest.raises(ValueError, match="gpus_per_rank must be a multiple of 4"):
        step_time(plan, {"vision": model(), "llm": model()}, CLUSTER)


def test_encoders_before_the_first_micro_batch_come_before_the_pipeline():
    cut = Pipelines(100, count=2, stages=PipelineStages.of({"llm": 4}), encoders="step")
    plan = balancer.orchestrate(BATCH, PHASES, 2, cut=cut)
    step = seconds_of(plan, {"vision": model(), "llm": model()})
    early = plan["vision"].loads.max() * 6 / 500 / 4
    llm = plan["llm"].makespan * 6 / 500 / 12
    assert step.compute_s + step.waiting_s == pytest.approx(early + llm, rel=1e-6)


def test_empty_micro_batches_take_nothing():
    cut = Pipelines(100, count=4, allow_empty=True, stages=PipelineStages.of(4))
    plan = balancer.balance([5, 5], 2, cut=cut)
    step = step_time(plan, model(), OF_FOUR)
    assert step.compute_s + step.waiting_s == pytest.approx(plan.makespan * 6 / 500 / 12)
    assert np.isfinite(step.mfu)
