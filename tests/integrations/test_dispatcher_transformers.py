"""A wrapped loader under Hugging Face's Trainer, with gradient accumulation: the training it was, less padded."""

from importlib.util import find_spec

import pytest

pytest.importorskip("torch")
if not (find_spec("transformers") and find_spec("datasets")):
    pytest.skip("transformers and datasets are not installed", allow_module_level=True)

import tiny
from launched import launch, left


def test_training_is_the_same_with_less_padding(tmp_path):
    assert launch("run_transformers.py", "whole", tmp_path) == 0
    per_rank = left("whole", tmp_path)
    for (usual, _), (found, _) in per_rank:
        assert len(found[0]) == 3
        tiny.assert_same_training(found, usual, rounding=1e-6)  # the model takes its loss in float32
    usual, found = (sum(map(max, zip(*(of_rank[kind][1] for of_rank in per_rank), strict=True))) for kind in range(2))
    assert found < 0.9 * usual
