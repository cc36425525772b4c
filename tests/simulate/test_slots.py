"""Steps of micro-batches, and of padded rows before a convolution: by hand, and against loops."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from naive_step import slot_seconds, time_of_slots
from nightly import examples
from small_cluster import CLUSTER, model

import balancer
from balancer import MicroBatches, Phase
from balancer.cost import LengthPolynomial, module
from balancer.problem.cuts.in_slots import ENCODERS
from balancer.simulate import PhaseModel, step_time
from balancer.strategies import STRATEGIES, plan_with

SYNCS = {"micro_batch": 1, "step": 1, "pipeline": 3}
LENGTHS = [9, 7, 6, 5, 4, 4, 3, 2, 1, 1]


def planned(sync):
    stages = SYNCS[sync]
    return balancer.balance(LENGTHS, num_ranks=2, cut=MicroBatches(11, sync, pipeline_stages=stages))


@pytest.mark.parametrize("sync", SYNCS)
def test_schedules_by_hand(sync):
    plan = planned(sync)
    loads = plan.slot_loads  # cost is tokens here
    step = step_time(plan, model(a=6, kept_bytes=5, working_bytes=2), CLUSTER)
    expected = {
        "micro_batch": loads.max(axis=0).sum(),
        "step": loads.sum(axis=1).max(),
        "pipeline": (plan.num_slots + 2) * loads.max(),
    }[sync]
    assert step.compute_s + step.waiting_s == pytest.approx(expected * 6 / 500)
    assert step.compute_s + step.waiting_s == pytest.approx(plan.makespan * 6 / 500)
    assert step.compute_s == pytest.approx(sum(LENGTHS) / 2 * 6 / 500)
    assert step.phases["all"].peak_tokens == loads.max()
    under_way = min(SYNCS[sync], plan.num_slots)
    assert step.activation_bytes == (5 * under_way + 2) * loads.max()


def test_micro_batches_hold_less_and_wait_no_less_than_none():
    whole = step_time(balancer.balance(LENGTHS, num_ranks=2), model(kept_bytes=1), CLUSTER)
    cut = step_time(planned("micro_batch"), model(kept_bytes=1), CLUSTER)
    assert cut.activation_bytes <= 11 < whole.activation_bytes
    assert cut.compute_s == pytest.approx(whole.compute_s)
    assert cut.useful_flops == whole.useful_flops


ITEMS = st.lists(st.tuples(st.integers(0, 30), st.integers(1, 20)), min_size=6, max_size=24)


@pytest.mark.parametrize("encoders", ENCODERS)
@settings(max_examples=examples(60))
@given(
    st.sampled_from(sorted(STRATEGIES)),
    ITEMS,
    st.sampled_from(sorted(SYNCS)),
    st.sampled_from(["phase", "step"]),
    st.integers(1, 3),
)
def test_any_step_of_micro_batches_against_loops(encoders, strategy, items, sync, waits, num_ranks):
    patches, tokens = zip(*items, strict=True)
    phases = [Phase("vision", "patches"), Phase("llm", "tokens")]
    stages = SYNCS[sync]
    cut = MicroBatches(30, sync, pipeline_stages=stages, allow_empty=True, encoders=encoders)
    batch = {"patches": patches, "tokens": tokens}
    plan = plan_with(strategy, batch, phases, num_ranks, cut=cut)
    rates = {"vision": (2, 3, 1), "llm": (0, 7, 2)}
    models = {name: model(*values, kept_bytes=4, working_bytes=i) for i, (name, values) in enumerate(rates.items())}
    step = step_time(plan, models, CLUSTER, waits=waits)
    found = {}
    for name, phase in plan.phases.items():
        one = phase.plan
        found[name] = slot_seconds(
            phase.items.lengths.tolist(), one.rank_of_sample.tolist(), one.slot_of_sample.tolist(),
            num_ranks, plan.num_slots, rates[name], 500.0,
        )  # fmt: skip
    if waits == "phase" or (encoders == "step" and sync == "pipeline"):
        taken = time_of_slots(found["vision"], "micro_batch", 1) + time_of_slots(found["llm"], sync, stages)
    else:
        both = [[a + b for a, b in zip(*rows, strict=True)] for rows in zip(*found.values(), strict=True)]
        taken = time_of_slots(both, sync, stages)
    assert step.compute_s + step.waiting_s == pytest.approx(taken)
    assert step.compute_s == pytest.approx(sum(sum(map(sum, rows)) for rows in found.values()) / num_ranks)
    for name, rows in found.items():
        assert step.phases[name].rank_seconds.tolist() == pytest.approx([sum(row) for row in rows])
    most = 0
    for rank in range(num_ranks):
        for slot in range(plan.num_slots):
            held = {
                name: sum(
                    length
                    for length, r, s in zip(
                        phase.items.lengths.tolist(), phase.plan.rank_of_sample, phase.plan.slot_of_sample, strict=True
                    )
                    if (r, s) == (rank, slot)
                )
                for name, phase in plan.phases.items()
            }
            under_way = min(stages, plan.num_slots)
            kept = under_way * held["llm"]
            if encoders == "slot":
                kept += under_way * held["vision"]
            else:  # all of them, for as long as the step takes
                vision = plan["vision"]
                kept += sum(n for n, r in zip(vision.lengths.tolist(), vision.rank_of_sample, strict=True) if r == rank)
            most = max(most, 4 * kept + held["llm"])
    assert step.activation_bytes == most


# --- padded rows before a convolution --------------------------------------------------------------------------------


def test_a_convolution_sees_rows_as_long_as_the_longest():
    flops, stem = LengthPolynomial(0, 10, 1), LengthPolynomial(0, 4, 0)
    audio = PhaseModel(flops, flops, model(rate=500.0).throughput, stem=stem)
    plan = balancer.balance([10, 3, 0], num_ranks=1, cost="convolution:a=6,b=1,c=4", home_rank=[0] * 3)
    step = step_time(plan, audio, CLUSTER)
    packed = 6 * 13 + 100 + 9
    assert step.phases["all"].executed_flops == packed + 3 * 4 * 10
    assert step.useful_flops == packed + 4 * 13
    assert step.compute_s == pytest.approx((packed + 120) / 500)
    additive = step_time(balancer.balance([10, 3, 0], num_ranks=1, home_rank=[0] * 3), audio, CLUSTER)
    assert additive.phases["all"].executed_flops == additive.useful_flops == step.useful_flops


def test_the_stem_of_whisper_is_part_of_what_runs():
    whisper = module("whisper-large-v3-encoder")
    rate = model().throughput
    for checkpointing, passes in ((False, 3), (True, 4)):
        known = PhaseModel.of(whisper, rate, checkpointing=checkpointing)
        # 3 wide kernels: 128 to 1,280 channels on every frame, 1,280 to 1,280 on every other; two FLOPs a product
        assert known.stem == LengthPolynomial(0, passes * 2 * 3 * (128 * 1280 + 1280 * 1280 // 2), 0, "frames")
        assert known.executed.a > known.stem.a
    assert PhaseModel.of("qwen2-7b", rate).stem is None
    lengths = np.array([3000, 100, 200, 2900])
    both = []
    for cost in ("linear", "convolution:a=1,c=1"):
        plan = balancer.balance(lengths, num_ranks=2, cost=cost, home_rank=[0, 0, 1, 1])
        both.append(step_time(plan, PhaseModel.of(whisper, rate), CLUSTER).phases["all"])
    assert both[0].useful_flops == both[1].useful_flops
    assert both[0].executed_flops == both[0].useful_flops
    assert both[1].executed_flops > both[1].useful_flops
