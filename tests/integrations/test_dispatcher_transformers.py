"""Hugging Face's Trainer under torchrun, with gradient accumulation: the training it was, killed and resumed."""

import signal
from functools import partial
from importlib.util import find_spec

import pytest

pytest.importorskip("torch")
if not (find_spec("transformers") and find_spec("datasets")):
    pytest.skip("transformers and datasets are not installed", allow_module_level=True)

import oracles
import tiny
from launched import launch, left
from runs import TRANSFORMERS as RUN

SCRIPT = "run_transformers.py"


def test_training_is_the_same_and_resumes_bit_for_bit(tmp_path):
    assert launch(SCRIPT, "killed", tmp_path) == -signal.SIGKILL
    whole = left("killed", tmp_path)
    for of_rank in whole:
        for usual, found in of_rank:
            assert len(found[0]) == RUN.steps
            tiny.assert_same_training(found, usual, rounding=1e-6)  # the model takes its loss in float32
    assert launch(SCRIPT, "resumed", tmp_path) == 0
    for (losses, weights), of_rank in zip(left("resumed", tmp_path), whole, strict=True):
        found = of_rank[0][1]
        tiny.assert_equal((found[0][: RUN.saved_at] + losses, weights), found)


def test_nothing_is_silent_and_the_collator_says_what_is_balanced(tmp_path):
    assert launch(SCRIPT, "silent", tmp_path) == 0
    per_rank = left("silent", tmp_path)
    for (said, warned), looked_at in per_rank:
        assert "average_tokens_across_devices must be True" in said["rank means"]
        assert "train_sampling_strategy='group_by_length' chooses samples by length" in said["grouped"]
        assert "train_sampling_strategy='batch_rebalance' chooses samples by length" in said["rebalanced"]
        assert len(warned) == 1, "of tokens balanced before a collator that pads"
        assert {name: cost for name, (cost, _) in looked_at.items()} == {"flattens": "linear", "pads": "padded"}
    for name, optimum in (
        ("pads", partial(oracles.optimal_padded_makespan, least=1)),
        ("flattens", oracles.optimal_makespan),
    ):
        of_steps = zip(*(looked_at[name][1] for _, looked_at in per_rank), strict=True)
        for (shape, lengths), (other, _) in of_steps:
            assert max(shape[0] * shape[1], other[0] * other[1]) <= 1.001 * optimum(lengths, 2)
