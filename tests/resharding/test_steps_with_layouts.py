"""Steps whose phases have layouts of their own: plans over replicas, streams between GPUs, files, and refusals."""

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nightly import examples

import balancer
from balancer import (
    Mesh,
    MicroBatches,
    ModuleLayout,
    Phase,
    Pipelines,
    PipelineStages,
    Ragged,
    SequenceGroups,
    StepLayout,
    Topology,
    orchestrate,
    reshard,
)
from balancer.offline.load import checked_steps
from balancer.offline.step_table import StepRows, summary
from balancer.simulate import CLUSTERS, PhaseModel, step_time
from balancer.simulate.step import exchange_seconds

PHASES = [
    Phase("vision", "patches", outputs="outputs", bytes_in=3, bytes_out=4),
    Phase("audio", "frames", bytes_out=2),
    Phase("llm", "tokens", bytes_in=2),
]
LAYOUTS = {
    "vision": ModuleLayout(dp=8),
    "audio": ModuleLayout(tp=2, dp=4),
    "llm": ModuleLayout(tp=2, cp=2, dp=2),
}
NODES = Topology.uniform(8, 4)


def batch_of(rng, n=12):
    patches = [rng.integers(1, 60, rng.integers(0, 4)).tolist() for _ in range(n)]
    outputs = [[-(-k // 4) for k in each] for each in patches]
    frames = rng.integers(0, 30, n) * rng.integers(0, 2, n)
    tokens = frames + [sum(each) for each in outputs] + rng.integers(0, 40, n)
    return {"patches": Ragged.of(patches), "outputs": Ragged.of(outputs), "frames": frames, "tokens": tokens}


@settings(max_examples=examples(15), deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from([None, MicroBatches(200, over_long="own", allow_empty=True)]))
def test_everything_a_phase_takes_arrives_once(seed, cut):
    """Streams of a fed phase bring each element of its samples once; one exchange of all brings the same."""
    rng = np.random.default_rng(seed)
    step = orchestrate(batch_of(rng), PHASES, NODES, layouts=LAYOUTS, cut=cut, home_rank=rng.integers(0, 8, 12))
    assert [step[name].num_ranks for name in step.phases] == [8, 4, 2]
    seen = [np.zeros(length, dtype=int) for length in step["llm"].lengths]
    for name in ("vision:out", "audio:out", "llm:own"):
        found = reshard(step, name)
        assert found.stream == step.streams[name]
        assert found.stream.traffic(NODES).inter_node == found.least_inter_node(NODES)
        sample = found.target_pieces.sample[found.segments.target_piece]
        for k, start, size in zip(sample, found.segments.start, found.stream.lengths, strict=True):
            seen[k][start : start + size] += 1
    assert all((each == 1).all() for each in seen)
    together = reshard(step, "llm:inputs")
    assert step.inputs_of("llm") == together.stream
    each = [step.streams[name] for name in step.parts["llm"].streams]
    assert together.stream.bytes_of_item.sum() == sum(stream.bytes_of_item.sum() for stream in each)
    for gpu in range(8):
        sent = sum(len(reshard(step, name).sent(gpu)) for name in step.parts["llm"].streams)
        assert len(together.sent(gpu)) == sent
        assert len(set(together.arriving(gpu).tolist())) == len(together.arriving(gpu))
    assert step.streams["vision:in"].bytes_of_item.sum() == 3 * step["vision"].lengths.sum()


H100 = CLUSTERS["h100"]
RATE = PhaseModel.on("qwen2-7b", H100.peak_flops, efficiency=0.5)


def test_a_plan_over_replicas_takes_what_its_gpus_do():
    """Replicas compute with all their GPUs; exchanges take what GPUs' links do, and windows are gathered."""
    step = orchestrate(batch_of(np.random.default_rng(1)), PHASES, NODES, layouts=LAYOUTS)
    found = step_time(step, RATE, H100)
    flops = RATE.executed_flops(step["llm"].lengths)
    of_replica = np.bincount(step["llm"].rank_of_sample, weights=flops, minlength=2)
    assert found.phases["llm"].rank_seconds == pytest.approx(of_replica / (0.5 * H100.peak_flops * 4))
    assert found.peak_flops == 8 * H100.peak_flops
    means = [phase.compute_s for phase in found.phases.values()]
    assert found.compute_s == pytest.approx(sum(means))
    there = step.streams["audio:out"]
    seconds = exchange_seconds(there, NODES, H100)
    windows = np.bincount(there.target.rank_of_sample, there.bytes_of_item, minlength=8).reshape(4, 2)
    gathered = H100.intra_node_latency_s + windows.max(axis=1) / H100.intra_node_bytes_per_s
    sent = np.bincount(there.source.rank_of_sample, there.bytes_of_item, minlength=8).reshape(4, 2)
    back = H100.intra_node_latency_s + sent.max(axis=1) / H100.intra_node_bytes_per_s
    forth = seconds + np.repeat(gathered * (windows.sum(axis=1) > 0), 2)
    expected = forth.max() + (forth + np.repeat(back * (sent.sum(axis=1) > 0), 2)).max()
    assert found.exchanges["audio:out"].seconds == pytest.approx(expected)
    volume = there.bytes_of_item.sum()
    moved = there.traffic(NODES)
    assert found.exchanges["audio:out"].intra_node_bytes == 2 * moved.intra_node + 3 * volume
    assert found.exchanges["audio:out"].inter_node_bytes == 2 * moved.inter_node


@pytest.mark.parametrize(
    ("layouts", "cluster", "what"),
    [
        (LAYOUTS, H100.with_ranks_of(2), "gpus_per_rank must be 1 with layouts"),
        (LAYOUTS | {"llm": ModuleLayout(tp=2, pp=2, dp=2)}, H100, "layouts in pipelines is not simulated"),
    ],
)
def test_what_is_not_simulated(layouts, cluster, what):
    step = orchestrate(batch_of(np.random.default_rng(1)), PHASES, NODES, layouts=layouts)
    with pytest.raises(ValueError, match=what):
        step_time(step, RATE, cluster)


def test_what_must_cross_nodes_is_summed_up():
    steps = [orchestrate(batch_of(np.random.default_rng(seed)), PHASES, NODES, layouts=LAYOUTS) for seed in (1, 2)]
    rows = StepRows()
    for number, step in enumerate(steps):
        rows.add(number, step)
    streams = summary(rows.table())["streams"]
    for name, stream in streams.items():
        least = [reshard(step, name).least_inter_node(NODES) for step in steps]
        assert stream["must_cross_nodes_bytes"] == sum(least)
    assert sum(stream["must_cross_nodes_bytes"] for stream in streams.values()) > 0
    assert orchestrate(batch_of(np.random.default_rng(1)), PHASES, NODES).least_inter_node("vision:out") is None


def test_what_must_cross_is_of_the_stream_alone():
    """Tensor groups over nodes gather across them too: that is in no stream, and no bound on one."""
    spread = orchestrate(batch_of(np.random.default_rng(1)), PHASES, Topology.uniform(8, 1), layouts=LAYOUTS)
    crossing = spread.streams["audio:out"].traffic(spread.topology).inter_node
    assert reshard(spread, "audio:out").least_inter_node(spread.topology) > crossing
    assert spread.least_inter_node("audio:out") is None


def test_homes_and_nodes_are_those_of_replicas():
    rng = np.random.default_rng(3)
    home = rng.integers(0, 8, 12)
    step = orchestrate(batch_of(rng), PHASES, NODES, layouts=LAYOUTS, home_rank=home)
    assert step["llm"].home.rank_of_sample.tolist() == (home // 4).tolist()
    assert step["audio"].home.rank_of_sample.tolist() == (home // 2)[step.phases["audio"].items.sample_of_item].tolist()
    assert step["audio"].topology.node_sizes == (2, 2)
    assert step["llm"].topology.node_sizes == (1, 1)


def test_layouts_of_one_gpu_a_replica_are_ranks():
    rng = np.random.default_rng(5)
    batch, plain = batch_of(rng), {name: ModuleLayout(dp=8) for name in LAYOUTS}
    with_layouts, without = (orchestrate(batch, PHASES, NODES, layouts=each) for each in (plain, None))
    assert with_layouts.digest() == without.digest()
    for name, stream in without.streams.items():
        assert with_layouts.streams[name].traffic(NODES) == stream.traffic(NODES)


def test_a_plan_file_holds_layouts(tmp_path):
    rng = np.random.default_rng(7)
    step = orchestrate(batch_of(rng), PHASES, NODES, layouts=LAYOUTS, home_rank=np.sort(rng.integers(0, 8, 12)))
    step.save(tmp_path / "plan.parquet")
    (read,) = checked_steps(tmp_path / "plan.parquet")
    assert read.setup == step.setup
    assert read.digest() == step.digest()
    assert all(read.streams[name] == stream for name, stream in step.streams.items())


def test_gpus_of_ones_own_are_planned_for_and_saved(tmp_path):
    turned = Mesh.of(LAYOUTS["llm"], np.arange(8).reshape(1, 2, 2, 2).transpose(0, 3, 2, 1))
    rng = np.random.default_rng(3)
    step = orchestrate(batch_of(rng), PHASES, NODES, layouts=LAYOUTS | {"llm": turned})
    assert reshard(step, "llm:inputs").target.mesh == turned
    step.save(tmp_path / "plan.parquet")
    (loaded,) = checked_steps(tmp_path / "plan.parquet")
    assert loaded.setup == step.setup
    assert loaded.streams["llm:own"] == step.streams["llm:own"]
    with pytest.raises(ValueError, match="its replicas must be on GPUs of one group each"):
        orchestrate(batch_of(rng), PHASES, NODES, layouts=LAYOUTS | {"llm": turned}, group_size=4)


def test_groups_of_gpus_are_planned_by_themselves():
    rng = np.random.default_rng(9)
    step = orchestrate(batch_of(rng, 40), PHASES, NODES, layouts=LAYOUTS, group_size=4)
    for stream in step.streams.values():
        assert (stream.source.rank_of_sample // 4 == stream.target.rank_of_sample // 4).all()


def test_a_step_of_replicas_takes_layouts_and_meshes_of_a_caller():
    batch = {"patches": [64, 0, 256, 64], "tokens": [90, 40, 280, 70]}
    step = orchestrate(batch, {"vision": "patches", "llm": "tokens"}, 2)
    gpus = np.arange(8)[::-1].reshape(1, 2, 2, 2)
    mesh = balancer.Mesh.of(ModuleLayout(dp=2, cp=2, tp=2), gpus)
    found = reshard(step, "vision:out", source=ModuleLayout(dp=2, pp=2), target=mesh)
    assert set(found.stream.source.rank_of_sample.tolist()) <= {2, 3}  # the last pipeline devices put out
    assert found.stream.lengths.sum() == 384
    for given_, what in (
        ({"source": ModuleLayout(dp=2)}, "the layout of phase 'llm' must be given"),
        ({"source": ModuleLayout(dp=3), "target": mesh}, "must have the 2 replicas that phase 'vision' was planned"),
    ):
        with pytest.raises(ValueError, match=re.escape(what)):
            reshard(step, "vision:out", **given_)
    with pytest.raises(ValueError, match="begins where samples lie"):
        reshard(step, "llm:own", target=mesh)
    with pytest.raises(KeyError, match="no stream 'vision'"):
        reshard(step, "vision", target=mesh)


STAGES = PipelineStages.of(2)


@pytest.mark.parametrize(
    ("layouts", "more", "what"),
    [
        ({"vision": ModuleLayout(dp=8), "llm": ModuleLayout(dp=4)}, {}, "must be on the 4 GPUs of 'llm'"),
        (
            {"vision": ModuleLayout(dp=4), "llm": ModuleLayout(dp=4)},
            {},
            "layouts must be of the 8 GPUs there are, got 4",
        ),
        ({"llm": ModuleLayout(dp=8)}, {}, "must be of the phases vision, llm"),
        (StepLayout({"vision": ModuleLayout(dp=4), "llm": ModuleLayout(dp=4)}), {}, "of mode 'stages' are not planned"),
        ([1], {}, "layouts must map phases to ModuleLayout(...), or be a StepLayout"),
        (None, {"cut": SequenceGroups((1, 2))}, "sequence_groups cannot be combined with layouts"),
        (
            None,
            {"cut": Pipelines(500, count=2, stages=STAGES)},
            "stages that encoders are part of cannot be combined",
        ),
        (None, {"group_size": 2}, "group_size = 2 cannot be combined with the layout of phase 'llm'"),
    ],
)
def test_what_is_refused(layouts, more, what):
    whole = {"vision": ModuleLayout(dp=8), "llm": ModuleLayout(tp=2, cp=2, dp=2)}
    with pytest.raises((ValueError, TypeError), match=re.escape(what)):
        orchestrate(
            {"patches": [3, 4], "tokens": [9, 9]}, {"vision": "patches", "llm": "tokens"}, NODES,
            layouts=layouts or whole, **more,
        )  # fmt: skip


def test_a_sample_that_its_parts_do_not_make_up_is_refused():
    with pytest.raises(ValueError, match="with layouts a sample must be as long as its parts: sample 1 has length 3"):
        orchestrate(
            {"patches": [3, 4], "tokens": [9, 3]}, {"vision": "patches", "llm": "tokens"}, NODES,
            layouts={"vision": ModuleLayout(dp=8), "llm": ModuleLayout(dp=8)},
        )  # fmt: skip
