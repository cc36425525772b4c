"""Plans with pipeline stages: makespans against events, phases in one pipeline, files, what is refused."""

import itertools
import json
import pickle
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pipeline_oracles import ends_by_events
from plan_files import description_of, header_of, tamper, write_plan

import balancer
import solvers
from balancer import MicroBatches, Phase, Pipelines, PipelineStages, PlanError
from balancer.cost import flops
from balancer.io.log import open_log
from balancer.offline.load import checked_steps
from balancer.offline.settings import LogSettings
from balancer.problem.problem import work_of_slots
from balancer.problem.settings import PlanSettings
from balancer.problem.setup import Setup
from balancer.problem.topology import Topology
from balancer.step_planner import make_step, plan_step
from balancer.strategies import plan_with

CAP = 400


def cut(stages, count=4, **more):
    return Pipelines(CAP, count=count, stages=stages, **more)


def naive_makespan(work, rank, slot, plan, stages):
    """The longest pipeline, op by op."""
    order = stages.order(plan.num_slots)
    lists = [order.ops_of(device) for device in range(order.num_devices)]
    forward, backward = list(stages.forward.values()), list(stages.backward.values())
    fixed = [stages.overhead] * stages.num_stages
    longest = 0
    for replica in range(plan.num_ranks):
        loads = [
            [
                sum(work[i][m] for i in range(len(work)) if (rank[i], slot[i]) == (replica, k))
                for m in range(len(forward))
            ]
            for k in range(plan.num_slots)
        ]
        ends = ends_by_events(lists, loads, forward, backward, stages.hop, (fixed, fixed))
        longest = max(longest, *ends.values())
    return longest


@st.composite
def stages_of_one_phase(draw):
    count = draw(st.integers(1, 4))
    times = st.lists(st.integers(0, 3), min_size=count, max_size=count)
    forward = [1 + t for t in draw(times)]
    chunks = draw(st.sampled_from([c for c in (1, 2) if count % c == 0]))
    return PipelineStages(
        {"all": forward}, {"all": draw(times)}, chunks=chunks, hop=draw(st.integers(0, 2)),
        overhead=draw(st.integers(0, 2)),
    )  # fmt: skip


@given(stages_of_one_phase(), st.lists(st.integers(0, 60), min_size=8, max_size=20), st.integers(1, 2))
def test_makespans_are_what_events_say_and_files_hold_them(tmp_path_factory, stages, lengths, ranks):
    plan = balancer.balance(lengths, ranks, cut=cut(stages))
    work = [[length] for length in lengths]
    assert plan.makespan == naive_makespan(work, plan.rank_of_sample, plan.slot_of_sample, plan, stages)
    assert plan.lower_bound <= plan.makespan
    runs = [plan.pipeline_run(rank) for rank in range(ranks)]
    assert max(run.makespan for run in runs) == plan.makespan
    busy = sum(int(run.busy.sum()) for run in runs)
    assert Fraction(*plan.perfect()) == Fraction(busy, ranks * stages.num_devices)
    assert (plan.slot_loads.sum(axis=1) == plan.loads).all()
    again = balancer.balance(lengths, ranks, cut=cut(stages))
    assert again == plan
    path = tmp_path_factory.mktemp("plans") / "plan.parquet"
    plan.save(path)
    read = balancer.load_plan(path)
    assert read == plan
    assert read.digest() == plan.digest()


def test_before_dispatch_samples_are_cut_as_they_lie():
    stages = PipelineStages.of(2)
    lengths = [9, 1, 5, 5, 2, 2, 7, 3]
    plan = balancer.balance(lengths, 2, cut=cut(stages, 2))
    slot = [0, 0, 1, 1, 0, 0, 1, 1]
    before = naive_makespan([[x] for x in lengths], plan.home.rank_of_sample, slot, plan, stages)
    assert plan.home_makespan == before
    total, share = plan.perfect()
    assert plan.home_imbalance_ratio == before * share / total
    assert plan.imbalance_ratio == plan.makespan * share / total > 1
    assert plan.pipeline_run(0, home=True).makespan <= before


def test_a_ramp_beats_even_micro_batches():
    lengths = np.random.default_rng(0).integers(1, 60, 2 * 16 * 8)
    exact = balancer.balance(lengths, 2, cut=cut(PipelineStages.of(4), 16))
    even = balancer.balance(lengths, 2, cut=MicroBatches(CAP, "pipeline", count=16, pipeline_stages=4))
    priced = max(PipelineStages.of(4).run(even.slot_loads[rank][:, None]).makespan for rank in range(2))
    assert exact.makespan < 0.95 * priced
    assert exact.gap < 0.02
    loads = exact.slot_loads[0]
    assert loads[0] < loads[8] > loads[-1]


# Several phases in one pipeline.

BATCH = {"patches": [64, 0, 256, 64, 12, 0, 90, 3] * 4, "tokens": [90, 40, 80, 30, 60, 20, 70, 10] * 4}
PHASES = [Phase("vision", "patches"), Phase("llm", "tokens")]
STAGES = PipelineStages.of({"vision": 1, "llm": 3})


def step_plan(stages=STAGES, **more):
    return balancer.orchestrate(BATCH, PHASES, 2, cut=cut(stages, **more))


def test_encoders_are_stages_of_the_pipeline_of_their_samples():
    plan = step_plan()
    vision, llm = plan["vision"], plan["llm"]
    sample = plan.phases["vision"].items.sample_of_item
    assert (vision.rank_of_sample == llm.rank_of_sample[sample]).all()
    assert (vision.slot_of_sample == llm.slot_of_sample[sample]).all()
    modules = list(STAGES.forward)
    work = [[0] * len(modules) for _ in BATCH["tokens"]]
    for i, (patches, tokens) in enumerate(zip(BATCH["patches"], BATCH["tokens"], strict=True)):
        work[i][modules.index("vision")], work[i][modules.index("llm")] = patches, tokens
    assert llm.makespan == naive_makespan(work, llm.rank_of_sample, llm.slot_of_sample, llm, STAGES)


@pytest.mark.parametrize("strategy", ["as_sampled", "llm_only", "orchestrated"])
def test_every_strategy_is_priced_by_its_own_run(strategy):
    plan = plan_with(strategy, BATCH, PHASES, 2, cut=cut(STAGES))
    llm, best = plan["llm"], step_plan()["llm"]
    assert llm.makespan == max(llm.pipeline_run(rank).makespan for rank in range(2))
    assert best.lower_bound <= best.makespan
    assert best.makespan <= llm.makespan


def test_a_step_is_saved_and_told_to_other_ranks(tmp_path):
    plan = step_plan()
    plan.save(tmp_path / "step.parquet")
    (read,) = checked_steps(tmp_path / "step.parquet")
    assert read.digest() == plan.digest()
    assert all(read[name] == plan[name] for name in plan.phases)
    told = pickle.loads(pickle.dumps(plan))  # noqa: S301 (our own)
    assert all(told[name] == plan[name] for name in plan.phases)


LAST_IS_EMPTY = Pipelines(19, allow_empty=True, stages=PipelineStages.of(3))


def test_a_plan_whose_last_micro_batch_is_empty_everywhere_is_read_back(tmp_path):
    plan, path = balancer.balance([1, 1, 9], 1, cut=LAST_IS_EMPTY, time_budget=1e-4), tmp_path / "plan.parquet"
    assert (plan.num_slots, plan.slot_of_sample.max()) == (3, 1)
    plan.save(path)
    assert header_of(path)["features"] == ["pipeline stages", "empty slots"]
    again = balancer.load_plan(path)
    assert (again, again.num_slots, again.makespan) == (plan, 3, plan.makespan)
    tamper(path, description=lambda said: said.update(slots={"all": {"1": [[0, 0]]}}))
    with pytest.raises(PlanError, match="claims 1 micro-batches a rank, which cannot be with 2 in its rows"):
        balancer.load_plan(path)


@pytest.mark.parametrize("form", ["plan.parquet", "folder/"])
def test_steps_of_a_log_whose_last_micro_batches_are_empty_are_read_back(tmp_path, form):
    pq.write_table(pa.table({"length": [1, 1, 9, 2, 2, 2, 1, 1, 9, 1, 1, 9]}), tmp_path / "log.parquet")
    planned = PlanSettings(cut=LAST_IS_EMPTY, time_budget=1e-4)
    settings = LogSettings(Setup(Topology([1]), (Phase("all", "length"),), planned), 3, steps_per_part=3)
    plans = write_plan(f"{tmp_path}/{form}", open_log(tmp_path / "log.parquet"), settings)
    slots = [plan.num_slots for plan in plans]
    assert slots[2:] == [3, 3]
    assert slots[1] == plans[1]["all"].slot_of_sample.max() + 1  # of which rows show all
    last = 2 if form == "folder/" else 3  # of a folder, what its first part says of its own steps
    assert description_of(f"{tmp_path}/{form}")["slots"] == {"all": {"3": [[0, 0], [2, last]]}}
    assert [plan.num_slots for plan in checked_steps(f"{tmp_path}/{form}")] == slots


def tampered(path, change):
    table = pq.read_table(path)
    columns = {name: table.column(name).to_pylist() for name in table.column_names}
    change(columns)
    arrays = [pa.array(columns[name], type=table.schema.field(name).type) for name in table.column_names]
    pq.write_table(pa.Table.from_arrays(arrays, schema=table.schema), path)


def test_an_item_away_from_the_pipeline_of_its_sample_is_refused(tmp_path):
    plan, path = step_plan(allow_empty=True), tmp_path / "step.parquet"
    plan.save(path)

    def change(columns):
        first = columns["phase"].index("vision")
        columns["rank"][first] = 1 - columns["rank"][first]

    tampered(path, change)
    with pytest.raises(PlanError, match="pipeline is on rank"):
        list(checked_steps(path))


def test_modules_have_one_order_whoever_names_them():
    names = list(STAGES.forward)
    turned = [{name: rows[name] for name in reversed(names)} for rows in (STAGES.forward, STAGES.backward)]
    again = PipelineStages(*turned)
    assert list(again.forward) == list(again.backward) == names
    assert step_plan(again).digest() == step_plan().digest()


def test_a_plan_read_from_a_file_is_made_again_by_its_settings(tmp_path):
    plan = step_plan()
    plan.save(tmp_path / "step.parquet")
    (read,) = checked_steps(tmp_path / "step.parquet")
    again = plan_step(make_step(read.setup, BATCH))
    assert again.digest() == plan.digest()
    assert again["llm"].lower_bound == read["llm"].lower_bound == plan["llm"].lower_bound


def test_a_file_names_the_feature(tmp_path):
    path = tmp_path / "plan.parquet"
    step_plan().save(path)
    header = json.loads(pq.read_schema(path).metadata[b"balancer"])
    assert header["features"] == ["pipeline stages"]
    balancer.balance([1, 2], 2, cut=MicroBatches(9, "pipeline", pipeline_stages=2)).save(path)
    assert json.loads(pq.read_schema(path).metadata[b"balancer"])["features"] == []


def test_encoders_before_the_first_micro_batch_are_no_stages():
    plan = step_plan(PipelineStages.of({"llm": 2}), encoders="step")
    assert (plan["vision"].slot_of_sample == 0).all()
    assert not plan.encoders_in_pipeline


# What stages are made of.


def test_models_are_cut_into_layers_with_the_vocabulary_in_the_last_stage():
    stages = PipelineStages.of({"vision+audio": 2, "llm": 3}, {
        "vision": "internvit-6b", "audio": "whisper-large-v3-encoder", "llm": "qwen2-7b",
    })  # fmt: skip
    assert stages.forward["vision"] == (23, 22, 0, 0, 0)
    assert stages.forward["audio"] == (1, 1, 0, 0, 0)
    assert stages.forward["llm"] == (0, 0, 160, 144, 144 + 35)
    lengths = {"vision": 1024, "audio": 3000, "llm": 4096}
    items = {name: (balancer.CostModel(), np.array([length]), np.array([0])) for name, length in lengths.items()}
    work = stages.work(items, 1)[0]
    time = {name: work[m] * sum(row) for m, (name, row) in enumerate(stages.forward.items())}
    exact = {
        name: flops(model, backward=False).exact(lengths[name])
        for name, model in (("vision", "internvit-6b"), ("audio", "whisper-large-v3-encoder"), ("llm", "qwen2-7b"))
    }
    for name in lengths:
        assert time[name] / time["llm"] == pytest.approx(exact[name] / exact["llm"], rel=5e-3)


def test_frozen_and_recomputed():
    layout = {"vision": 1, "llm": 2}
    assert PipelineStages.of(layout, recompute=True).backward == {"llm": (0, 3, 3), "vision": (6, 0, 0)}
    encoder = PipelineStages.of(layout, frozen=["vision"])
    assert (encoder.backward["vision"], encoder.forward_only) == ((0, 0, 0), 1)
    language = PipelineStages.of(layout, frozen=["llm"])
    assert (language.backward["llm"], language.forward_only) == ((0, 1, 1), 0)
    all_but_nothing = PipelineStages.of(layout, frozen=["llm", "vision"])
    assert all_but_nothing.forward_only == 3


def test_fractions_are_made_whole():
    stages = PipelineStages({"all": ["1/2", Fraction(1, 3)]}, hop=1, overhead="1/6")
    assert (stages.forward["all"], stages.backward["all"]) == ((3, 2), (6, 4))
    assert (stages.hop, stages.overhead) == (6, 1)
    assert PipelineStages(**stages.to_json()) == stages


def test_tied_replicas_wait_for_the_slowest_in_every_op(tmp_path):
    lengths = np.random.default_rng(1).integers(1, 100, 60)
    stages = PipelineStages.of(3, tied=True, hop=4, overhead=2)
    plan = balancer.balance(lengths, 2, cut=cut(stages, 6))
    slots = plan.work_of_slots[:, :, 0]
    slowest = PipelineStages.of(3, hop=4, overhead=2).run(slots.max(axis=0)[:, None])
    assert plan.pipeline_makespans().tolist() == [slowest.makespan] * 2 == [plan.makespan] * 2
    assert plan.pipeline_run(1).makespan == plan.makespan
    free = balancer.balance(lengths, 2, cut=cut(PipelineStages.of(3, hop=4, overhead=2), 6))
    assert stages.makespans(free.work_of_slots).max() >= plan.makespan  # which is planned for it
    plan.save(tmp_path / "plan.parquet")
    assert balancer.load_plan(tmp_path / "plan.parquet") == plan


def placed(stages, eps=0.02, **more):
    lengths, home = np.random.default_rng(2).integers(1, 100, 144), np.repeat(np.arange(4), 36)
    return {
        name: balancer.balance(
            lengths, 4, ranks_per_node=2, home_rank=home, placement=name, cut=cut(stages, 6, **more), eps=eps,
            cost="quadratic:a=100,b=1", time_budget=0.05,
        )
        for name in ("any", "rearrange", "relocate")
    }  # fmt: skip


@pytest.mark.parametrize("more", [{}, {"tied": True}, {"in_flight_tokens": 1500}])
def test_samples_of_pipelines_stay_near_home(tmp_path, more):
    made = placed(PipelineStages.of(3, hop=5, **more), eps=0.1)
    assert made["rearrange"].inter_node_volume < made["any"].inter_node_volume
    assert made["rearrange"].makespan == made["any"].makespan
    near = made["relocate"]
    assert near.fell_back == ""
    assert near.makespan <= 1.1 * made["any"].makespan
    assert near.makespan == near.cut.makespan(near.work_of_slots)
    assert near.inter_node_volume < 0.2 * made["rearrange"].inter_node_volume
    assert near.cut.violation(near.lengths, near.rank_of_sample, near.slot_of_sample, 4, 6) is None
    near.save(tmp_path / "plan.parquet")
    assert balancer.load_plan(tmp_path / "plan.parquet") == near


def test_pipelines_that_do_not_end_in_time_near_home_are_laid_out_for_all():
    made = placed(PipelineStages.of(3, tied=True), eps=0)
    assert made["relocate"].rank_of_sample.tolist() == made["rearrange"].rank_of_sample.tolist()
    assert "by nodes, pipelines would take" in made["relocate"].fell_back


@given(stages_of_one_phase(), st.integers(1, 4), st.lists(st.integers(0, 40), max_size=12), st.integers(0, 99))
def test_no_replica_holds_more_than_its_time_allows(stages, num_slots, lengths, seed):
    """The bound on what must cross nodes rests on it, whatever runs where."""
    rng, num_slots = np.random.default_rng(seed), num_slots * stages.num_devices
    work, (rank, slot) = np.array([lengths]).T.astype(np.int64), rng.integers(0, [[3], [num_slots]], (2, len(lengths)))
    makespan = int(stages.makespans(work_of_slots(work, rank, slot, 3, num_slots)).max())
    costs, most = stages.held_by_a_rank(work, makespan, 3, num_slots)
    assert np.bincount(rank, weights=costs, minlength=3).max() <= most


@pytest.mark.parametrize("count", [None, "fewest"])
def test_a_free_number_of_micro_batches_keeps_to_the_rules(count):
    lengths = np.random.default_rng(1).integers(1, 100, 200)
    plan = balancer.balance(lengths, 2, cut=cut(PipelineStages.of(4, chunks=2), count))
    assert plan.num_slots % 2 == 0
    assert plan.slot_loads.max() <= CAP
    given = balancer.balance(lengths, 2, cut=cut(PipelineStages.of(4, chunks=2), plan.num_slots))
    assert given.num_slots == plan.num_slots


def test_what_is_in_flight_is_capped(tmp_path):
    lengths = np.random.default_rng(1).integers(50, 60, 64)
    free = balancer.balance(lengths, 2, cut=cut(PipelineStages.of(4), 8))
    held = max(int(free.pipeline_run(rank).in_flight.max()) for rank in range(2))
    capped = balancer.balance(lengths, 2, cut=cut(PipelineStages.of(4, in_flight_tokens=held - 20), 8))
    assert max(int(capped.pipeline_run(rank).in_flight.max()) for rank in range(2)) <= held - 20
    said = replace(capped.cut, stages=PipelineStages.of(4, in_flight_tokens=held - 200))
    broken = said.violation(lengths, capped.rank_of_sample, capped.slot_of_sample, 2, 8)
    assert "tokens in flight" in broken


def test_a_sample_over_the_cap_has_a_micro_batch_alone():
    lengths = [CAP + 50, *[30] * 30]
    plan = balancer.balance(lengths, 2, cut=cut(PipelineStages.of(2), over_long="own"))
    rank, slot = plan.rank_of_sample[0], plan.slot_of_sample[0]
    assert plan.samples_in_slot(rank, slot).tolist() == [0]


def there_is_a_way(lengths, cells, cap, allow_empty):
    """Whether samples fit, each one over the cap alone."""
    for cell in itertools.product(range(cells), repeat=len(lengths)):
        held = [[length for length, c in zip(lengths, cell, strict=True) if c == k] for k in range(cells)]
        if (allow_empty or all(held)) and all(sum(one) <= cap or len(one) == 1 for one in held):
            return True
    return False


@pytest.mark.parametrize("sync", ["micro_batch", "step", "pipeline", "stages"])
@given(
    st.lists(st.sampled_from([0, 0, 0, 1, 4, 7, 10, 11, 25]), min_size=1, max_size=6), st.integers(1, 2),
    st.sampled_from([None, "fewest", 1, 2, 3]), st.booleans(),
)  # fmt: skip
def test_no_sample_not_even_of_length_0_is_beside_one_over_the_cap(sync, lengths, ranks, count, allow_empty):
    rules = {"count": count, "over_long": "own", "allow_empty": allow_empty}
    asked = Pipelines(10, PipelineStages.of(2), **rules) if sync == "stages" else MicroBatches(10, sync, **rules)
    try:
        plan = balancer.balance(lengths, ranks, cut=asked, time_budget=1e-3)
    except solvers.InfeasibleError:
        assert not isinstance(count, int) or not there_is_a_way(lengths, ranks * count, 10, allow_empty)
        return
    for sample in np.flatnonzero(np.array(lengths) > 10):
        beside = plan.samples_in_slot(plan.rank_of_sample[sample], plan.slot_of_sample[sample])
        assert beside.tolist() == [sample]


def test_a_plan_with_a_sample_of_length_0_beside_one_over_the_cap_is_refused():
    asked = Pipelines(10, count=2, over_long="own", stages=PipelineStages.of(2))
    lengths, rank = np.array([25, 0, 7]), np.zeros(3, dtype=np.int32)
    assert asked.violation(lengths, rank, np.array([0, 1, 1], dtype=np.int32), 1, 2) is None
    broken = asked.violation(lengths, rank, np.array([0, 0, 1], dtype=np.int32), 1, 2)
    assert broken == "micro-batch 0 of rank 0 holds 25 tokens, cap 10"


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: Pipelines(9, stages=4), "stages must be PipelineStages"),
        (lambda: cut(PipelineStages.of(4, chunks=2), 3), "cut.count must be a multiple of the 2 devices"),
        (lambda: PipelineStages.of(4, chunks=3), "chunks must divide the 4 stages"),
        (lambda: PipelineStages.of({"a": 1, "a+b": 2}), "name each phase once"),
        (lambda: PipelineStages.of({"a": 1}, frozen="b"), "frozen must be phases of layout: a"),
        (lambda: PipelineStages.of({"a": 1}, {"b": "qwen2-7b"}), "models must be of the phases of layout: a"),
        (lambda: PipelineStages.of({"a": 29}, {"a": "qwen2-7b"}), "must be <= 28, the model's layers"),
        (lambda: PipelineStages({"a": [1, 2.5]}), "integers or fractions"),
        (lambda: PipelineStages({"a": [1, 2], "b": [1]}), "a time for each of 2 stages"),
        (lambda: PipelineStages({"a": [1]}, {"b": [1]}), "backward must be of the modules of forward: a"),
        (lambda: PipelineStages({}), "forward must have an entry"),
        (lambda: step_plan(PipelineStages.of({"llm": 2})), "stages must be of the phases vision, llm, got llm"),
        (lambda: balancer.balance([1] * 9, 2, cut=cut(STAGES)), "of the phases all, got"),
        (lambda: balancer.balance([1] * 9, 2, equal_counts=True, cut=cut(PipelineStages.of(2))),
         "stages cannot be combined with equal_counts"),
        (lambda: balancer.balance([1] * 7, 2, cut=cut(PipelineStages.of(2))), "are too few for 4 slots"),
        (lambda: balancer.balance([CAP] * 9, 2, cut=cut(PipelineStages.of(2))), "8 slots hold 3200"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_named(make, told):
    with pytest.raises((ValueError, TypeError, solvers.SolverError), match=told):
        make()
