"""Hugging Face's Trainer under torchrun: balanced batches train what unbalanced ones do, and resume bit for bit."""

import json
import signal
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("transformers")
torch = pytest.importorskip("torch")
datasets = pytest.importorskip("datasets")

from launched import launch  # noqa: E402

from balancer.compat.huggingface import sample_lengths  # noqa: E402

pytestmark = pytest.mark.filterwarnings("default")  # of the trainers, which are not ours


PAGE = Path(__file__).parents[2] / "docs" / "how_to" / "sampler.md"
DROPOUT = {"dropout": 0.1, "trainer": "moved"}
REFUSED = {
    "rank_means": {"arguments": {"average_tokens_across_devices": False}},
    "no_column": {"attributes": {"sample_length": "tokens"}},
    "grouped": {"arguments": {"train_sampling_strategy": "group_by_length"}},
    "sequential": {"arguments": {"train_sampling_strategy": "sequential"}},
    "short": {"trainer": "short"},
}


def run(folder, code=0, **runs):
    assert launch("huggingface_run.py", folder, json.dumps(list(runs.items()))) == code
    return {mode: torch.load(folder / f"{mode}.pt") for mode in runs if code == 0}


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    runs = {"balanced": {}, "unbalanced": {"trainer": "unbalanced"}, "page": {"page": str(PAGE)}} | REFUSED
    return run(tmp_path_factory.mktemp("runs"), **runs)


def test_the_block_of_the_page_trains(found):
    assert found["page"] == 2


def assert_trained_alike(balanced, unbalanced, rel):
    assert balanced["losses"] == pytest.approx(unbalanced["losses"], rel=rel)  # losses are of 32 bits
    assert torch.allclose(balanced["weights"], unbalanced["weights"], rtol=0, atol=1e-7)
    assert not torch.equal(balanced["weights"], unbalanced["weights"]), "not rearranged at all"


def test_ten_steps_are_those_of_unbalanced_training(found):
    assert len(found["balanced"]["losses"]) == 10
    assert found["balanced"]["epoch"] > 1, "the second epoch has begun"
    assert_trained_alike(found["balanced"], found["unbalanced"], 1e-6)


@pytest.mark.skipif(not find_spec("trl"), reason="TRL is not installed")
def test_trls_steps_are_those_of_unbalanced_training(tmp_path):
    found = run(tmp_path, tuned={"balanced": True}, untuned={"balanced": False})
    assert len(found["tuned"]["losses"]) == 6
    assert_trained_alike(found["tuned"], found["untuned"], 1e-5)


def test_killed_and_resumed_in_the_second_epoch_is_bit_for_bit_the_same(tmp_path):
    whole = run(tmp_path, whole=DROPOUT)["whole"]
    run(tmp_path, -signal.SIGKILL, killed=DROPOUT | {"kill_at": 9})
    resumed = run(tmp_path, killed=DROPOUT | {"resume": True})["killed"]
    assert torch.equal(resumed["weights"], whole["weights"])
    assert resumed["losses"] == whole["losses"]


def test_what_would_change_what_is_learnt_is_refused(found):
    assert "average_tokens_across_devices must be True" in found["rank_means"]["error"]
    assert "has no column 'tokens'; columns there are: input_ids, length" in found["no_column"]["error"]
    assert (
        "train_sampling_strategy='group_by_length' chooses samples by length, and so does this mixin"
        in found["grouped"]["error"]
    )
    assert "train_sampling_strategy='sequential' is not seen" in found["sequential"]["error"]
    assert "lengths must have one for each of the 44 samples of the dataset, got 20" in found["short"]["error"]


def test_lengths_come_from_a_column_from_lists_or_from_a_function():
    rows = [[1] * count for count in (3, 0, 7)]
    data = datasets.Dataset.from_dict({"input_ids": rows, "length": [30, 5, 70], "text": ["a", "b", "c"]})
    assert sample_lengths(data).tolist() == [30, 5, 70]
    assert sample_lengths(data, "input_ids").tolist() == sample_lengths(data, column="n").tolist() == [3, 0, 7]
    assert sample_lengths(data, lambda sample: len(sample["text"])).tolist() == [1, 1, 1]
    assert sample_lengths(data.select([2, 0]), "input_ids").tolist() == [7, 3]
    plain = [{"input_ids": row} for row in rows]
    assert sample_lengths(plain).tolist() == [3, 0, 7]
    assert sample_lengths(plain).dtype == np.int64
    with pytest.raises(TypeError, match="column of whole numbers or of lists"):
        sample_lengths(data, "text")
    with pytest.raises(TypeError, match="row 0"):
        sample_lengths([{"text": "a"}], "text")
