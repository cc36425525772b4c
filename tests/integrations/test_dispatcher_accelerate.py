"""Accelerate under torchrun, with gradient accumulation: the training it was, killed and resumed."""

import pytest

pytest.importorskip("torch")
pytest.importorskip("accelerate")

import run_accelerate as run
import tiny
from torchrun import launch

SCRIPT = "run_accelerate.py"


def test_training_is_the_same_and_resumes_bit_for_bit(tmp_path):
    whole = launch(SCRIPT, "killed", tmp_path, killed=True)
    for usual, found in whole:
        assert len(found[0]) == 3 * run.EPOCHS
        tiny.assert_same_training(found, usual)
    for (losses, weights), (_, found) in zip(launch(SCRIPT, "resumed", tmp_path), whole, strict=True):
        tiny.assert_equal((found[0][: run.SAVED_AT] + losses, weights), found)
