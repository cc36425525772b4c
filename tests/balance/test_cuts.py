"""Cuts: registries agree, and whatever makes and holds a plan knows no cut by itself."""

from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import pytest

from balancer.cost import parse_cost
from balancer.plan.placed import PLACED, WholeShares, placed
from balancer.planning.found import Found
from balancer.planning.planner import PLANNERS, Planner, plan_problem, replay_plan
from balancer.problem.batch import GlobalBatch
from balancer.problem.placement import Placement
from balancer.problem.problem import Problem
from balancer.problem.settings import PlanSettings
from balancer.problem.topology import Topology
from solvers.bounds import Bound


@dataclass(frozen=True, slots=True, eq=False)
class InTurn(WholeShares):
    """Ranks compute one after another, so that a step takes the sum of all."""

    def measured(self):
        loads = self._loads()
        return loads, int(loads.sum())

    def home_makespan(self, home_loads):
        return int(home_loads.sum())

    def ideal(self, loads, home_loads, home=False):
        return int(loads.sum()), 1


def plan_in_turn(problem, cut, settings):
    """Deal samples out from the last rank on."""
    ranks = (cut.last - np.arange(len(problem.costs), dtype=np.int32)) % problem.topology.num_ranks
    target = Placement.by_sample_order(ranks.astype(np.int32), problem.topology.num_ranks)
    return Found(InTurn(problem, target), lambda _: Bound(int(problem.costs.sum()), "sum"))


def bound_in_turn(placed, makespan, settings, search):
    return Bound(int(placed.problem.costs.sum()) - 1, "less")


@pytest.fixture
def problem(monkeypatch):
    monkeypatch.setitem(PLACED, "in_turn", InTurn)
    monkeypatch.setitem(PLANNERS, "in_turn", Planner(plan_in_turn, bound_in_turn))
    lengths, cost = np.array([5, 3, 2, 7]), parse_cost("linear")
    batch = GlobalBatch.of(lengths, 2)
    cut = SimpleNamespace(name="in_turn", last=1)
    return Problem(batch, Topology.uniform(2, 1), cost, cost.sample_costs(batch.lengths), micro_batches=cut)


def test_each_cut_has_a_class_and_a_planner():
    assert list(PLACED) == list(PLANNERS)


def test_another_cut_is_planned_measured_and_moved(problem):
    plan = plan_problem(problem, PlanSettings())
    assert type(plan.placed) is InTurn
    assert plan.rank_of_sample.tolist() == [1, 0, 1, 0]
    assert (plan.makespan, plan.lower_bound, plan.status) == (17, 17, "optimal")
    assert (plan.loads.tolist(), plan.home_makespan, plan.imbalance_ratio) == ([10, 7], 17, 1.0)
    assert (plan.traffic.inter_node, plan.exchange(0).output_split_sizes.tolist()) == (12, [1, 1])
    assert plan.inverse().rank_of_sample.tolist() == plan.home.rank_of_sample.tolist()


def test_another_cut_is_replayed_with_its_own_bound(problem):
    plan = plan_problem(problem, PlanSettings())
    again = replay_plan(placed(problem, plan.target), PlanSettings())
    assert (again.digest(), again.placed, again.lower_bound) == (plan.digest(), plan.placed, 16)
    moved = replay_plan(placed(problem, plan.home), PlanSettings())
    assert moved.placed != plan.placed
    assert moved.digest() != plan.digest()
