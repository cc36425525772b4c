"""Unlike layouts on 8 processes: rows where they belong, losses and gradients those of one process."""

import numpy as np
import pytest

pytest.importorskip("torch")

import reshard_cases as cases
from ranks_of import ranks_of

from balancer import Mesh, ModuleLayout

ALONE, SPLIT = ModuleLayout(dp=8), ModuleLayout(tp=2, cp=2, dp=2)


ranks = ranks_of(8)


@pytest.mark.parametrize(
    ("vision", "llm"),
    [
        (ALONE, SPLIT),
        (SPLIT, ALONE),
        (ModuleLayout(tp=2, dp=4), ModuleLayout(tp=2, sp=2, pp=2)),
        (ModuleLayout(sp=2, dp=4), ModuleLayout(tp=4, dp=2)),
    ],
)
@pytest.mark.parametrize(("samples", "slots"), [(13, None), (2, None), (9, 2)])
def test_as_in_one_process(ranks, vision, llm, samples, slots):
    ranks.run(cases.one_step, {"vision": vision, "llm": llm}, 1, samples, False, slots)


def test_frozen_encoders(ranks):
    ranks.run(cases.one_step, {"vision": ModuleLayout(tp=2, dp=4), "llm": SPLIT}, 2, 11, True)


def test_gpus_numbered_otherwise(ranks):
    turned = Mesh.of(SPLIT, np.arange(8).reshape(1, 2, 2, 2).transpose(0, 3, 2, 1))
    ranks.run(cases.one_step, {"vision": ModuleLayout(tp=2, dp=4), "llm": turned}, 3, 11)


@pytest.mark.parametrize(
    ("vision", "llm"),
    [(ModuleLayout(dp=4), ModuleLayout(tp=2, cp=2)), (ModuleLayout(tp=2, sp=2), ModuleLayout(dp=2, cp=2))],
)
def test_meshes_of_four(ranks, vision, llm):
    ranks.run(cases.in_halves, {"vision": vision, "llm": llm}, 4, 7)


def test_the_next_step_is_made_meanwhile(ranks):
    ranks.run(cases.ahead, {"vision": ModuleLayout(tp=2, dp=4), "llm": SPLIT})


def test_costs_that_follow_what_replicas_take(ranks):
    assert all(ranks.run(cases.corrected, {"vision": ALONE, "llm": SPLIT}))


def test_outputs_that_do_not_fit(ranks):
    for found, _, traceback in ranks.errors(cases.wrong, {"vision": ALONE, "llm": SPLIT}, "rows"):
        assert found == "ValueError"
        assert "outputs['vision'] must have " in traceback


@pytest.mark.parametrize(
    ("what", "name", "text"),
    [
        ("settings", "ExecutorError", "setting 'eps'"),
        ("layout", "ExecutorError", "setting 'layouts'"),
        ("lengths", "UsageError", "must be >= 0, got -1"),
    ],
)
def test_plans_that_are_not_agreed_on(ranks, what, name, text):
    for found, _, traceback in ranks.errors(cases.wrong, {"vision": ALONE, "llm": SPLIT}, what):
        assert found == name
        assert text in traceback
