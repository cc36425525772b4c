"""Cuts: registries agree, and a cut that no file of the package names goes through all of it."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from small_cluster import CLUSTER, model
from toy_cut import InTurn, InTurnPlan

import balancer
from balancer.cli.main import main
from balancer.cuts.rooms import ROOMS
from balancer.io.log import open_log
from balancer.offline.run import plan_run
from balancer.offline.settings import LogSettings
from balancer.planner import replay_plan
from balancer.problem.cuts import CUTS, cut_from_json
from balancer.problem.phases import Phase
from balancer.problem.settings import PlanSettings
from balancer.problem.setup import Setup
from balancer.problem.topology import Topology
from balancer.simulate import step_time

LENGTHS = [5, 3, 2, 7]


@pytest.fixture
def plan():
    return balancer.balance(LENGTHS, 2, 1, cut=InTurn(1))


def test_each_cut_has_a_room():
    assert list(CUTS) == list(ROOMS)


def test_each_cut_is_read_back():
    cuts = [InTurn(3), balancer.MicroBatches(9), balancer.SequenceGroups((1, 2), 9), PlanSettings().cut]
    cuts.append(balancer.Pipelines(9, stages=balancer.PipelineStages.of(2)))
    for cut in cuts:
        assert cut_from_json(json.loads(json.dumps(cut.to_json()))) == cut


def test_another_cut_is_planned_measured_and_moved(plan):
    assert type(plan) is InTurnPlan
    assert plan.rank_of_sample.tolist() == [1, 0, 1, 0]
    assert (plan.makespan, plan.lower_bound, plan.status) == (17, 17, "optimal")
    assert (plan.loads.tolist(), plan.home_makespan, plan.imbalance_ratio) == ([10, 7], 17, 1.0)
    assert (plan.traffic.inter_node, plan.exchange(0).output_split_sizes.tolist()) == (12, [1, 1])
    assert plan.inverse().rank_of_sample.tolist() == plan.home.rank_of_sample.tolist()


def test_another_cut_is_replayed(plan):
    again = replay_plan(plan, PlanSettings(cut=plan.cut))
    assert (again.digest(), again, again.lower_bound) == (plan.digest(), plan, 17)


def test_another_cut_is_saved_and_loaded(plan, tmp_path):
    plan.save(tmp_path / "plan.parquet")
    loaded = balancer.load_plan(tmp_path / "plan.parquet")
    assert (loaded.cut, loaded.digest(), loaded.makespan) == (InTurn(1), plan.digest(), 17)
    assert type(loaded) is InTurnPlan


def test_another_cut_is_simulated(plan):
    step = step_time(plan, model(), CLUSTER)
    assert step.phases["all"].rank_seconds.tolist() == [10 * 6 / 500, 7 * 6 / 500]
    assert step.compute_s + step.waiting_s == pytest.approx(17 * 6 / 500)  # one rank after the other


def test_another_cut_of_phases():
    batch = {"patches": [4, 0, 8, 4], "tokens": [9, 4, 12, 6]}
    step = balancer.orchestrate(batch, {"vision": "patches", "llm": "tokens"}, 2, cut=InTurn(1))
    assert step["llm"].rank_of_sample.tolist() == [1, 0, 1, 0]
    assert step["vision"].loads.tolist() == [8, 8]


def test_a_log_is_planned_by_another_cut_and_reported(tmp_path, capsys):
    pq.write_table(pa.table({"length": np.arange(1, 25)}), tmp_path / "log.parquet")
    setup = Setup(Topology([1, 1]), (Phase("all", "length"),), PlanSettings(cut=InTurn(1)))
    plan_run(open_log(tmp_path / "log.parquet"), LogSettings(setup, 4), str(tmp_path / "plan.parquet"))
    page = tmp_path / "report.html"
    with pytest.raises(SystemExit) as ended:
        main(["report", str(tmp_path / "plan.parquet"), "--html", str(page), "--json"])
    assert ended.value.code in (None, 0)
    said = json.loads(capsys.readouterr().out)
    assert (said["steps"], said["samples"]) == (3, 24)
    assert "in turn from rank 1" in page.read_text()


def test_another_cut_is_dispatched():
    pytest.importorskip("torch")
    from rank_processes import Ranks
    from toy_cut import dispatched

    with Ranks(2) as ranks:
        assert ranks.run(dispatched) == [[1], [0, 10]]
