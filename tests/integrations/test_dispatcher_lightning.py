"""Lightning under torchrun: the training it was; killed and resumed within an epoch, and behind the end of one."""

import signal
from importlib.util import find_spec

import pytest

pytest.importorskip("torch")
if not find_spec("lightning"):
    pytest.skip("lightning is not installed", allow_module_level=True)

import tiny
from launched import launch, left
from runs import LIGHTNING as RUN

SCRIPT = "run_lightning.py"


def test_training_is_the_same_and_resumes_bit_for_bit(tmp_path):
    assert launch(SCRIPT, "killed", tmp_path) == -signal.SIGKILL
    whole = left("killed", tmp_path)
    for usual, found in whole:
        assert len(found[0]) == RUN.steps
        tiny.assert_same_training(found, usual)
    assert launch(SCRIPT, "resumed", tmp_path) == 0
    for resumed, (_, found) in zip(left("resumed", tmp_path), whole, strict=True):
        for (losses, weights), done in zip(resumed, (RUN.saved_at, 2 * RUN.batches), strict=True):
            tiny.assert_equal((found[0][:done] + losses, weights), found)
