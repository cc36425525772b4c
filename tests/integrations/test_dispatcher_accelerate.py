"""Accelerate under torchrun, with gradient accumulation: the training it was, killed and resumed."""

import signal
from importlib.util import find_spec

import pytest

pytest.importorskip("torch")
pytest.importorskip("torchdata")
if not find_spec("accelerate"):
    pytest.skip("accelerate is not installed", allow_module_level=True)

import plain_cases as cases
import tiny
from launched import launch, left
from rank_processes import Ranks
from runs import ACCELERATE as RUN

SCRIPT = "run_accelerate.py"


def test_training_is_the_same_and_resumes_bit_for_bit(tmp_path):
    assert launch(SCRIPT, "killed", tmp_path) == -signal.SIGKILL
    whole = left("killed", tmp_path)
    for usual, found in whole:
        assert len(found[0]) == RUN.steps
        tiny.assert_same_training(found, usual)
    assert launch(SCRIPT, "resumed", tmp_path) == 0
    for (losses, weights), (_, found) in zip(left("resumed", tmp_path), whole, strict=True):
        tiny.assert_equal((found[0][: RUN.saved_at] + losses, weights), found)


def test_a_loader_with_a_state_resumes():
    with Ranks(2) as ranks:
        for at in (1, 4):
            ranks.run(cases.resumes_behind_accelerate, at)
