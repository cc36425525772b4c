"""Step times against closed forms, by hand, and against loops."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from naive_step import exchange_seconds, rank_seconds
from small_cluster import CLUSTER, model
from step_cases import cases

import balancer
from balancer import Ragged, Topology
from balancer.cost import LengthPolynomial, SaturatingThroughput, ThroughputCurve
from balancer.simulate import PhaseModel, step_time
from balancer.strategies import STRATEGIES, plan_with

# --- closed forms ----------------------------------------------------------------------------------------------------


def two_ranks():
    """Lengths 30 and 10 on rank 0, 20 on rank 1: the sample of 10 goes over. Vision of 4 from rank 0 feeds sample 2."""
    batch = {"patches": [0, 0, 4], "tokens": [30, 10, 20]}
    phases = [
        balancer.Phase("vision", "patches", bytes_in=3, bytes_out=5),
        balancer.Phase("llm", "tokens", own="tokens", bytes_in=2),
    ]
    return batch, phases


def test_two_ranks_by_hand():
    batch, phases = two_ranks()
    plan = plan_with("orchestrated", batch, phases, Topology((1, 1)), home_rank=[0, 0, 1], eps=0)
    assert sorted(plan["llm"].loads.tolist()) == [30, 30]
    assert plan["llm"].rank_of_sample.tolist() == [0, 1, 1]
    assert plan["vision"].rank_of_sample.tolist() == [1]
    models = {"vision": model(a=50, kept_bytes=3), "llm": model(a=6, kept_bytes=2, working_bytes=1)}
    step = step_time(plan, models, CLUSTER)
    # vision: 200 FLOPs on rank 1; llm: 180 FLOPs on each; at 500 FLOP/s
    assert step.compute_s == pytest.approx(0.2 + 0.36)
    assert step.waiting_s == pytest.approx(0.4 - 0.2)
    # sample 1 of 10 tokens and 2 bytes each crosses nodes, once: raw inputs have no gradient
    assert step.exchanges["llm:own"].seconds == pytest.approx(2.0 + 20 / 10)
    assert step.exchanges["vision:out"].seconds == 0
    assert step.seconds == pytest.approx(0.4 + 0.36 + 4)
    assert step.mfu == pytest.approx((200 + 360) / (2 * 1000 * 4.76))
    assert step.activation_bytes == pytest.approx(4 * 3 + 30 * 2 + 30)
    half = step_time(plan, models, CLUSTER, overlap=0.5)
    assert half.exchange_s == pytest.approx(2)
    assert half.compute_s == step.compute_s
    # without a barrier between them, rank 1 alone decides: 0.4 + 0.36 either way
    assert step_time(plan, models, CLUSTER, waits="step").waiting_s == pytest.approx(0.76 - 0.56)


def test_waiting_once_a_step_lets_phases_make_up_for_each_other():
    batch = {"patches": [4, 1], "tokens": [10, 40]}
    phases = [balancer.Phase("vision", "patches"), balancer.Phase("llm", "tokens")]
    plan = plan_with("as_sampled", batch, phases, 2, home_rank=[0, 1])
    models = {"vision": model(a=50), "llm": model(a=5)}  # 200, 50 and 50, 200 FLOPs
    by_phase, by_step = (step_time(plan, models, CLUSTER, waits=waits) for waits in ("phase", "step"))
    assert by_phase.waiting_s == pytest.approx(2 * (200 - 125) / 500)
    assert by_step.waiting_s == pytest.approx(0)
    assert by_phase.compute_s == by_step.compute_s


def test_outputs_travel_back_as_gradients_and_inputs_do_not():
    batch = {"patches": [4], "tokens": [9], "here": Ragged.of([[0]]), "there": Ragged.of([[1]])}
    vision, llm = two_ranks()[1]
    phases = replace(vision, allowed_ranks="there"), replace(llm, allowed_ranks="here")
    plan = balancer.orchestrate(batch, phases, 2, home_rank=[0])
    step = step_time(plan, {"vision": model(), "llm": model()}, CLUSTER)
    assert step.exchanges["vision:in"].seconds == pytest.approx(0.5 + 12 / 100)
    assert step.exchanges["vision:out"].seconds == pytest.approx(2 * (0.5 + 20 / 100))
    assert step.exchanges["vision:out"].intra_node_bytes == 40
    assert step.exchanges["vision:out"].inter_node_bytes == 0


def test_gpus_of_a_rank_share_its_work_and_traffic():
    lengths, home = [30, 10, 20], [0, 0, 1]
    plan = balancer.balance(lengths, num_ranks=2, home_rank=home, eps=0)
    one = step_time(plan, model(kept_bytes=2), CLUSTER, bytes_per_element=50)
    two = step_time(plan, model(kept_bytes=2), CLUSTER.with_ranks_of(2), bytes_per_element=50)
    assert two.compute_s == pytest.approx(one.compute_s / 2)
    assert one.exchange_s == pytest.approx(0.5 + 500 / 100)
    assert two.exchange_s == pytest.approx(0.5 + 500 / 200)
    assert two.activation_bytes == one.activation_bytes / 2
    assert two.peak_flops == 2 * one.peak_flops


def test_padding_takes_time_and_is_no_useful_work():
    plan = balancer.balance([10, 10, 10, 40], num_ranks=1, cost="padded", home_rank=[0] * 4)
    step = step_time(plan, model(), CLUSTER)
    assert step.compute_s == pytest.approx(4 * 40 * 6 / 500)
    assert step.useful_flops == 70 * 6
    assert step.phases["all"].executed_flops == 160 * 6
    assert step.phases["all"].peak_tokens == 160


def test_recomputation_takes_time_and_is_no_useful_work():
    rate = SaturatingThroughput(500.0)
    plain, again = (PhaseModel.of("qwen2-7b", rate, checkpointing=on) for on in (False, True))
    plan = balancer.balance([100], num_ranks=1, home_rank=[0])
    steps = [step_time(plan, each, CLUSTER) for each in (plain, again)]
    assert steps[1].compute_s / steps[0].compute_s == pytest.approx(4 / 3)
    assert steps[0].useful_flops == steps[1].useful_flops
    assert steps[1].activation_bytes < steps[0].activation_bytes


def test_throughput_curves_are_looked_up_by_what_the_rank_holds():
    curve = ThroughputCurve.from_points([10, 100], [50.0, 200.0])
    flops = LengthPolynomial(0, 6, 0)
    plan = balancer.balance([55], num_ranks=1, home_rank=[0])
    step = step_time(plan, PhaseModel(flops, flops, curve), CLUSTER)
    assert step.compute_s == pytest.approx(55 * 6 / 125)


def test_pieces_keep_attention_within():
    whole = PhaseModel.of("internvit-6b", SaturatingThroughput(500.0))
    tiles = PhaseModel.of("internvit-6b", SaturatingThroughput(500.0), piece=1024)
    lengths = np.array([0, 512, 1024, 4096])
    one = float(balancer.cost.flops("internvit-6b").exact(1024))
    assert tiles.useful_flops(lengths) == pytest.approx([0, one / 2, one, 4 * one])
    assert whole.useful_flops(lengths)[3] > tiles.useful_flops(lengths)[3]
    assert whole.useful_flops(lengths)[0] == 0
    assert str(tiles.cost_model()) == "linear"


def test_activations_of_a_plain_transformer_as_published():
    """34 bytes a token, layer and hidden unit (Korthikanti et al. 2022), less 2 of dropout masks."""
    from balancer.cost.hf_config import modules_of

    encoder = modules_of({
        "model_type": "clip_vision_model", "hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 256,
        "num_hidden_layers": 3, "patch_size": 2, "image_size": 8,
    })["vision"]  # fmt: skip
    rate = SaturatingThroughput(1.0)
    assert PhaseModel.of(encoder, rate).kept_bytes == 32 * 64 * 3
    checkpointed = PhaseModel.of(encoder, rate, checkpointing=True)
    assert (checkpointed.kept_bytes, checkpointed.working_bytes) == (2 * 64 * 3, 32 * 64)


def test_empty_phases_and_batches():
    batch, phases = {"patches": [0, 0], "tokens": [3, 5]}, two_ranks()[1]
    plan = plan_with("orchestrated", batch, phases, 2)
    step = step_time(plan, {"vision": model(constant=9), "llm": model()}, CLUSTER)
    assert step.phases["vision"].compute_s == 0
    assert step.phases["vision"].waiting_s == 0
    none = step_time(balancer.balance([], num_ranks=2), model(), CLUSTER)
    assert (none.seconds, none.mfu, none.samples) == (0, 0, 0)


# --- against loops ---------------------------------------------------------------------------------------------------


@given(cases(), st.sampled_from(list(STRATEGIES)), st.integers(1, 2))
def test_any_step_against_loops(case, strategy, gpus):
    plan = plan_with(strategy, case.batch, case.phases, case.topology, home_rank=case.home_rank)
    coefficients = {name: (3, 5 + i, i) for i, name in enumerate(plan.phases)}
    models = {name: model(*values) for name, values in coefficients.items()}
    cluster = CLUSTER.with_ranks_of(gpus)
    step = step_time(plan, models, cluster)
    compute = waiting = 0.0
    for name, phase in plan.phases.items():
        lengths, ranks = phase.items.lengths.tolist(), phase.plan.rank_of_sample.tolist()
        seconds = rank_seconds(lengths, ranks, plan.num_ranks, *coefficients[name], 500.0 * gpus)
        mean = sum(seconds) / plan.num_ranks
        compute += mean
        waiting += max(seconds) - mean
        assert step.phases[name].compute_s == pytest.approx(mean)
    exchange = 0.0
    for name, stream in plan.streams.items():
        once = exchange_seconds(
            stream.source.rank_of_sample.tolist(),
            stream.target.rank_of_sample.tolist(),
            stream.bytes_of_item.tolist(),
            plan.topology.node_of_rank.tolist(),
            (0.5, 100.0 * gpus),
            (2.0, 10.0 * gpus),
        )
        exchange += once if name.split(":")[1] in ("in", "own") else 2 * once
    assert step.compute_s == pytest.approx(compute)
    assert step.waiting_s == pytest.approx(waiting, abs=1e-12)
    assert step.exchange_s == pytest.approx(exchange)
    assert step.seconds == pytest.approx(compute + waiting + exchange)
    assert 0 <= step.mfu <= 0.5 + 1e-12
    assert step_time(plan, models, cluster, waits="step").waiting_s <= step.waiting_s + 1e-12


# --- bad input -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"overlap": 1.5}, "overlap must be a fraction from 0 to 1, got 1.5"),
        ({"overlap": float("nan")}, "overlap must be a fraction"),
        ({"waits": "never"}, "unknown waits 'never'; known are phase, step"),
        ({"models": model(rate=1e-300)}, r"a step would take .* s; are peak FLOP/s, efficiency and bandwidths"),
        ({"models": {"vision": model()}}, "phase 'all' has no model; there are models for vision"),
    ],
)
def test_bad_arguments(arguments, message):
    plan = balancer.balance([1, 2], num_ranks=2)
    keywords = {"models": model(), **arguments}
    with pytest.raises(ValueError, match=message):
        step_time(plan, keywords.pop("models"), CLUSTER, **keywords)


def test_a_convolution_needs_a_model_that_has_one():
    mixed = balancer.balance([5, 5, 5, 5], num_ranks=2, cost="convolution:a=3,c=2")
    with pytest.raises(ValueError, match=r"phase 'all': cost 'convolution:.*' is of padded rows before a convolution"):
        step_time(mixed, model(), CLUSTER)
