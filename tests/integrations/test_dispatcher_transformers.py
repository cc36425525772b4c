"""Hugging Face's Trainer under torchrun, with gradient accumulation: the training it was, killed and resumed."""

from importlib.util import find_spec

import pytest

pytest.importorskip("torch")
if not (find_spec("transformers") and find_spec("datasets")):
    pytest.skip("transformers and datasets are not installed", allow_module_level=True)

import tiny
from runs import TRANSFORMERS as RUN
from torchrun import launch

SCRIPT = "run_transformers.py"


def test_training_is_the_same_and_resumes_bit_for_bit(tmp_path):
    whole = launch(SCRIPT, "killed", tmp_path, killed=True)
    for of_rank in whole:
        for usual, found in of_rank:
            assert len(found[0]) == RUN.steps
            tiny.assert_same_training(found, usual, rounding=1e-6)  # the model takes its loss in float32
    for (losses, weights), of_rank in zip(launch(SCRIPT, "resumed", tmp_path), whole, strict=True):
        found = of_rank[0][1]
        tiny.assert_equal((found[0][: RUN.saved_at] + losses, weights), found)
