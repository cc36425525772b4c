"""eps="knee": as much longer a step as is worth it, the same whoever asks, and told."""

import json
from fractions import Fraction

import numpy as np
import pytest

import balancer
import solvers
from balancer.problem.settings import PlanSettings
from solvers.relocation import KNEE_GRID, RelocationProblem, relocated_at_knee

LENGTHS = np.random.default_rng(1).integers(100, 3000, 64)
HOMES = np.repeat(np.arange(16), 4)
NODES = HOMES[::4] // 4


def test_the_knee_is_where_a_longer_step_saves_next_to_nothing_more() -> None:
    problem = RelocationProblem.prepare(LENGTHS, HOMES, NODES, None, None, False, None, None)
    groups = solvers.partition(LENGTHS, 16).group_of_item
    knee = relocated_at_knee(problem, groups, 0.01)
    tightest, at, balanced = knee.points
    assert (tightest.eps, at.eps, balanced.eps) == (KNEE_GRID[0], knee.eps, 0)
    assert knee.eps in KNEE_GRID[1:], "the instance has a knee past the tightest"
    assert at.inter_node_volume < tightest.inter_node_volume <= balanced.inter_node_volume
    saved = Fraction(tightest.inter_node_volume - at.inter_node_volume, int(LENGTHS.sum()))
    assert saved >= 5 * (knee.eps - KNEE_GRID[0]), "0.5 % of the volume for each 0.1 % of the makespan"
    assert all(point.inter_bound <= point.inter_node_volume <= point.volume == LENGTHS.sum() for point in knee.points)
    found = solvers.relocate(LENGTHS, HOMES, NODES, eps="knee", groups=groups, time_budget=0.01)
    solvers.check_relocation(LENGTHS, HOMES, NODES, found)
    assert found.rank_of_item.tolist() == knee.rank_of_item.tolist()
    reference = np.bincount(groups, weights=LENGTHS).max()
    assert found.cap == int((1 + knee.eps) * int(reference))


def test_a_plan_says_which_eps_was_taken() -> None:
    plan = balancer.balance(LENGTHS, 16, ranks_per_node=4, home_rank=HOMES, eps="knee")
    assert Fraction(str(plan.eps)) == plan.trade[1].eps in KNEE_GRID
    assert plan.trade[1].inter_node_volume == plan.traffic.inter_node
    assert plan.makespan <= (1 + plan.trade[1].eps) * plan.lower_bound * Fraction(101, 100)
    other = balancer.balance(LENGTHS, 16, ranks_per_node=4, home_rank=HOMES, eps=0.001)
    assert (other.trade, other.eps) == ((), 0.001)


def test_what_has_no_knee_is_refused() -> None:
    with pytest.raises(ValueError, match="not cut into slots"):
        balancer.balance(LENGTHS, 16, home_rank=HOMES, eps="knee", micro_batch_tokens=8000)
    with pytest.raises(ValueError, match="chooses cap itself"):
        solvers.relocate(LENGTHS, HOMES, NODES, eps="knee", cap=9000)
    with pytest.raises(ValueError, match="eps = 'knee' is what relocation aims at; give placement = 'relocate', not"):
        balancer.balance(LENGTHS, 16, ranks_per_node=4, home_rank=HOMES, eps="knee", placement="rearrange")
    with pytest.raises(TypeError, match="eps must be a finite number or Fraction, or 'knee', got 'elbow'"):
        balancer.balance(LENGTHS, 16, home_rank=HOMES, eps="elbow")


def test_settings_keep_it_in_a_plan_file() -> None:
    settings = PlanSettings(eps="knee")
    assert PlanSettings.from_json(json.loads(json.dumps(settings.to_json()))) == settings


def test_a_file_tells_the_same_of_phases_that_others_feed(tmp_path) -> None:
    """What a phase is fed lies where the other's plan has put it, not at home."""
    batch = {"images": LENGTHS // 2, "text": LENGTHS - LENGTHS // 3}
    phases = [balancer.Phase("vision", "images", bytes_out=3), balancer.Phase("llm", "images+text", bytes_in=2)]
    step = balancer.orchestrate(batch, phases, balancer.Topology.uniform(16, 4), home_rank=HOMES, eps="knee")
    step.save(tmp_path / "plan.parquet")
    read = balancer.load_plan(tmp_path / "plan.parquet")
    for name in step.phases:
        assert (read[name].trade, read[name].eps) == (step[name].trade, step[name].eps)
    assert len(step["llm"].trade) == 3
