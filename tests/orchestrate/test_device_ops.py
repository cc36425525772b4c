"""What device_ops says of stages: their order, their kind of backward, what is recomputed; saved and loaded."""

import numpy as np
import pytest

import balancer
from balancer import Pipelines, PipelineStages
from solvers.errors import SolverError

PHASES = {"vision": "images", "llm": "text"}


def planned(**given):
    rng = np.random.default_rng(0)
    batch = {"images": rng.integers(0, 9, 12), "text": rng.integers(1, 9, 12)}
    cut = Pipelines(100, count=3, stages=PipelineStages.of({"vision": 1, "llm": 2}, **given))
    return balancer.orchestrate(batch, PHASES, 2, cut=cut, time_budget=1e-3)


def kinds(plan):
    ops = [op for device in range(3) for op in plan["llm"].device_ops(0, device)]
    return {op.stage: (op.kind, op.recompute) for op in ops}


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({}, [("full", False)] * 3),
        ({"frozen": ("vision",)}, [("none", False), ("full", False), ("full", False)]),
        ({"frozen": ("llm",), "recompute": ("llm",)}, [("full", False), ("input", True), ("input", True)]),
        ({"recompute": True}, [("full", True)] * 3),
        ({"frozen": ("vision",), "recompute": True}, [("none", False), ("full", True), ("full", True)]),
    ],
)
def test_each_stage_says_what_its_backward_is(given, told, tmp_path):
    plan = planned(**given)
    assert [kinds(plan)[stage] for stage in range(3)] == told
    plan.save(tmp_path / "plan.parquet")
    again = balancer.load_plan(tmp_path / "plan.parquet")
    assert kinds(again) == kinds(plan)
    assert again.digest() == plan.digest()


def test_gpipe_runs_all_forwards_first(tmp_path):
    plan = planned(op_order="gpipe")
    for device in range(3):
        ops = plan["llm"].device_ops(0, device)
        assert [(op.slot, op.backward) for op in ops] == [(k, back) for back in (False, True) for k in range(3)]
    assert "GPipe" in plan["llm"].cut.stages.in_words()
    assert plan["llm"].pipeline_run(0).makespan == plan["llm"].pipeline_makespans()[0]
    plan.save(tmp_path / "plan.parquet")
    assert balancer.load_plan(tmp_path / "plan.parquet")["llm"].cut.stages.op_order == "gpipe"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"op_order": "zigzag"}, "op_order must be '1f1b' or 'gpipe', got 'zigzag'"),
        ({"op_order": "gpipe", "chunks": 3}, "are interleaved"),
        ({"frozen": ("audio",)}, "frozen must be phases of"),
    ],
)
def test_what_cannot_be_said_is_refused(given, said):
    with pytest.raises((ValueError, SolverError), match=said):
        planned(**given)
