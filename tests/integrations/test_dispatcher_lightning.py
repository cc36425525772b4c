"""Lightning under torchrun: the training it was; killed and resumed within an epoch, and behind the end of one."""

import pytest

pytest.importorskip("torch")
pytest.importorskip("lightning")

import run_lightning as run
import tiny
from torchrun import launch

SCRIPT = "run_lightning.py"


def test_training_is_the_same_and_resumes_bit_for_bit(tmp_path):
    whole = launch(SCRIPT, "killed", tmp_path, killed=True)
    for usual, found in whole:
        assert len(found[0]) == run.BATCHES * run.EPOCHS
        tiny.assert_same_training(found, usual)
    for resumed, (_, found) in zip(launch(SCRIPT, "resumed", tmp_path), whole, strict=True):
        for (losses, weights), done in zip(resumed, (run.SAVED_AT, run.AT_END), strict=True):
            tiny.assert_equal((found[0][:done] + losses, weights), found)
