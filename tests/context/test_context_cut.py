"""Context shards as a cut of a step: documents to packs, packs to pieces, and all that follows from these."""

import json
import pickle

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from context_oracles import seen

import balancer
from balancer import ContextShards
from balancer.cli.main import main
from balancer.cost import parse_cost
from balancer.planner import replay_plan
from balancer.problem.cuts import cut_from_json
from balancer.problem.settings import PlanSettings
from solvers.errors import InfeasibleError

COSTS = {
    "attention:a=5,constant=7,full=2,window3=4": [("full", 0, 2), ("window", 3, 4)],
    "attention:a=5,chunk4=3,window2=3": [("chunk", 4, 3), ("window", 2, 3)],
}


def drawn(count, seed=0, longest=400):
    return np.minimum(np.random.default_rng(seed).lognormal(3.5, 1.5, count).astype(np.int64) + 1, longest)


def planned(lengths, num_ranks=8, ranks_per_node=4, degree=2, pack_tokens=512, cost="quadratic:a=8,b=1", **asked):
    cut = ContextShards(degree, pack_tokens, block=4, **asked)
    return balancer.balance(lengths, num_ranks, ranks_per_node, cost=cost, cut=cut, time_budget=1e-3)


@pytest.mark.parametrize("cost", COSTS)
def test_loads_are_what_queries_cost_one_by_one(cost):
    lengths = [9, 0, 17, 1, 12, 8, 30]
    plan = planned(lengths, 4, 2, 2, 40, cost)
    model, held, loads = parse_cost(cost), plan.pieces, np.zeros((4, plan.num_slots), dtype=np.int64)
    for sample, start, stop, rank in zip(held.sample, held.start, held.stop, held.place.rank_of_sample, strict=True):
        for i in range(start, stop):
            each = sum(n * len(seen(kind, size, lengths[sample], i)) for kind, size, n in COSTS[cost])
            loads[rank, plan.slot_of_sample[sample]] += model.a + each + model.constant * (i == 0)
    assert plan.slot_loads.tolist() == loads.tolist()
    assert plan.loads.sum() == model.sample_costs(np.array(lengths)).sum()
    assert plan.makespan == loads.max(axis=0).sum()


@pytest.mark.parametrize("sync", ["micro_batch", "step"])
def test_packs_keep_to_their_cap_and_shards_are_even(sync):
    lengths = drawn(90)
    plan = planned(lengths, degree=4, sync=sync)
    tokens = plan.tokens
    packs = tokens.reshape(2, 4, -1).sum(axis=1)
    assert packs.max() <= 512
    assert packs.sum() == lengths.sum()
    assert (tokens <= -(-packs // 4).repeat(4, axis=0)).all()
    assert plan.lower_bound <= plan.makespan <= 1.1 * plan.lower_bound
    slowest = plan.slot_loads.reshape(2, 4, -1).max(axis=1)
    assert plan.makespan == (slowest.max(axis=0).sum() if sync == "micro_batch" else slowest.sum(axis=1).max())


def test_masks_are_those_of_the_cost_unless_others_are_given():
    assert ContextShards(2, 8).masks_of(parse_cost("quadratic:a=3,b=1")) == {"full": 1}
    cost = parse_cost("attention:a=3,full=16,window64=80")
    assert ContextShards(2, 8).masks_of(cost) == {"full": 1, "window64": 5}
    assert ContextShards(2, 8, masks={"chunk8": 3}).masks_of(cost) == {"chunk8": 3}
    assert ContextShards(2, 8).masks_of(parse_cost(f"attention:full={2**40},window9=1")) == {
        "full": 2**20 - 1,
        "window9": 1,
    }


def test_a_replica_of_two_nodes_and_one_of_one_rank():
    lengths = drawn(40)
    for num_ranks, node, degree in ((16, 4, 8), (4, 2, 1), (8, None, 4)):
        plan = planned(lengths, num_ranks, node, degree)
        assert plan.violation() == ""
        assert plan.inter_node_bound <= plan.inter_node_volume
        assert sum(len(group.samples) for k in range(plan.num_slots) for group in plan.groups(k)) == 40


def test_every_element_travels_once_to_where_its_piece_is():
    lengths = np.append(drawn(30, 3), [0, 0])
    plan = planned(lengths)
    stream = plan.stream
    assert stream.lengths.sum() == lengths.sum()
    assert np.bincount(stream.target.rank_of_sample, stream.lengths, 8).tolist() == plan.tokens.sum(axis=1).tolist()
    shares = plan.shares
    assert np.bincount(shares.sample, shares.lengths, 32).tolist() == lengths.tolist()
    assert plan.samples_on_rank(0).tolist() == shares.sample[shares.place.samples_on_rank(0)].tolist()
    held = plan.pieces_on_rank(3, 0)
    assert (np.diff(held.position) == (held.stop - held.start)[:-1]).all()


def test_it_is_saved_loaded_and_replayed(tmp_path):
    plan = planned(np.append(drawn(50), 0), masks={"full": 1, "window16": 3})
    assert pickle.loads(pickle.dumps(plan)).digest() == plan.digest()  # noqa: S301 (our own)
    plan.save(tmp_path / "plan.parquet")
    loaded = balancer.load_plan(tmp_path / "plan.parquet")
    assert (loaded.cut, loaded.digest(), loaded.makespan) == (plan.cut, plan.digest(), plan.makespan)
    assert loaded == plan
    again = replay_plan(plan, PlanSettings(cut=plan.cut), search=True)
    assert (again.digest(), again.makespan) == (plan.digest(), plan.makespan)
    assert again.lower_bound <= plan.makespan
    assert cut_from_json(json.loads(json.dumps(plan.cut.to_json()))) == plan.cut
    balancer.balance([], 4, cut=ContextShards(4, 60)).save(tmp_path / "nothing.parquet")
    assert balancer.load_plan(tmp_path / "nothing.parquet").makespan == 0


@pytest.mark.parametrize(("column", "change", "said"), [
    ("stop", -1, "do not tile"), ("start", 1, "do not tile"), ("position", 1, "position"),
    ("slot", 1, "several packs|slots"),
    ("group", 1, "group"), ("rank", -2, "several replicas|position|group"), ("rank", 999, "ranks must be within"),
])  # fmt: skip
def test_rows_that_are_no_shards_are_refused(tmp_path, column, change, said):
    plan = planned(drawn(12))
    plan.save(tmp_path / "plan.parquet")
    table = pq.read_table(tmp_path / "plan.parquet")
    at = int(np.argmax(np.bincount(table["sample"].to_numpy())))
    values = table[column].to_numpy().copy()
    values[np.flatnonzero(table["sample"].to_numpy() == at)[-1]] += change
    place = table.column_names.index(column)
    table = table.set_column(place, table.schema.field(place), pa.array(values))
    pq.write_table(table, tmp_path / "plan.parquet")
    with pytest.raises(balancer.PlanError, match=said):
        balancer.load_plan(tmp_path / "plan.parquet")


def test_encoders_feed_documents_in_shards():
    lengths = drawn(24, 5)
    batch = {"patches": lengths // 2, "tokens": lengths}
    step = balancer.orchestrate(batch, {"vision": "patches", "llm": "tokens"}, 4, cut=ContextShards(2, 512))
    inputs = step.inputs("llm") if hasattr(step, "inputs") else step["llm"].stream
    assert inputs is not None
    assert step["llm"].violation() == ""


@pytest.mark.parametrize(("asked", "said"), [
    ({"degree": 3}, "cut.degree = 3 must divide the 8 ranks"),
    ({"degree": 0}, "cut.degree must be a whole number >= 1, got 0"),
    ({"masks": {"mamba": 4}}, "state runs along the sequence"),
    ({"masks": 3}, "cut.masks must be a table of whole numbers >= 1, got 3"),
    ({"sync": "pipeline"}, "sync must be one of"),
    ({"cost": "padded"}, "cannot be combined with cost"),
    ({"cost": "attention:a=1,band64=3"}, "masks"),
    ({"cost": "attention:a=1,bidirectional=1,full=3", "masks": {"full": 1}}, "has bidirectional layers"),
])  # fmt: skip
def test_what_cannot_be_asked_for(asked, said):
    with pytest.raises((ValueError, TypeError), match=said):
        planned([5, 3], **asked)


def test_a_document_longer_than_a_pack_and_constraints_are_refused():
    with pytest.raises(InfeasibleError, match="sample 1 has length 600, 88 more than pack_tokens = 512"):
        planned([5, 600])
    with pytest.raises(ValueError, match="cannot be combined with equal_counts"):
        balancer.balance([5, 3], 4, equal_counts=True, cut=ContextShards(2, 8))
    with pytest.raises(InfeasibleError, match="pack_tokens"):
        planned([500] * 9, count=1)


def test_a_log_is_planned_and_reported(tmp_path, capsys):
    asked = {"num_ranks": 4, "ranks_per_node": 2, "batch_per_rank": 8, "cut": ContextShards(2, 512)}
    pq.write_table(pa.table({"length": drawn(96)}), tmp_path / "log.parquet")
    balancer.plan_log(tmp_path / "log.parquet", out=tmp_path / "plan.parquet", **asked)
    with pytest.raises(SystemExit) as ended:
        main(["report", str(tmp_path / "plan.parquet"), "--html", str(tmp_path / "report.html"), "--json"])
    assert ended.value.code in (None, 0)
    said = json.loads(capsys.readouterr().out)
    assert (said["steps"], said["samples"]) == (3, 96)
    assert "context shards of 2 ranks" in (tmp_path / "report.html").read_text()
