"""Plans with pipeline stages: makespans against events, phases in one pipeline, files, what is refused."""

import pickle
from fractions import Fraction

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pipeline_oracles import ends_by_events
from plan_files import tamper, write_plan

import balancer
from balancer import Phase, Pipelines, PipelineStages, PlanError
from balancer.io.log import open_log
from balancer.offline.load import checked_steps
from balancer.offline.settings import LogSettings
from balancer.problem.settings import PlanSettings
from balancer.problem.setup import Setup
from balancer.problem.topology import Topology
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
    again = balancer.load_plan(path)
    assert (again, again.num_slots, again.makespan) == (plan, 3, plan.makespan)
    tamper(path, description=lambda said: said.update(slots={"all": 1}))
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
    assert [plan.num_slots for plan in checked_steps(f"{tmp_path}/{form}")] == slots


def test_an_item_away_from_the_pipeline_of_its_sample_is_refused(tmp_path):
    step_plan(allow_empty=True).save(tmp_path / "step.parquet")

    def change(rows):
        first = next(row for row in rows if row["phase"] == "vision")
        first["rank"] = 1 - first["rank"]

    tamper(tmp_path / "step.parquet", rows=change)
    with pytest.raises(PlanError, match="pipeline is on rank"):
        list(checked_steps(tmp_path / "step.parquet"))


def test_modules_have_one_order_whoever_names_them():
    names = list(STAGES.forward)
    turned = [{name: rows[name] for name in reversed(names)} for rows in (STAGES.forward, STAGES.backward)]
    again = PipelineStages(*turned)
    assert list(again.forward) == list(again.backward) == names
    assert step_plan(again).digest() == step_plan().digest()
