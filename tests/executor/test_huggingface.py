"""What the mixin for a dispatcher finds out about a collator, without drawing a number that training draws."""

import random

import pytest

torch = pytest.importorskip("torch")

import numpy as np  # noqa: E402

from balancer.compat.huggingface import _as_fields, _pads  # noqa: E402
from balancer.executor.padding import padding_of  # noqa: E402


class Loader:
    """As the Trainer's, with its dataset and collator."""

    collate_fn = staticmethod(_as_fields)

    def __init__(self, dataset):
        self.dataset = dataset


def rows(lengths, name="ids"):
    return [{name: list(range(length)), "text": "x", "label": length % 2} for length in lengths]


def pads(samples, name="ids"):
    return {"ids": torch.nn.utils.rnn.pad_sequence([sample[name] for sample in samples], batch_first=True)}


def pads_at_random(samples):
    random.random(), np.random.random(), torch.rand(1)  # noqa: NPY002 (as collators that mask words do)
    return pads(samples)


def packs(samples):
    return {"ids": torch.cat([sample["ids"] for sample in samples])[None]}


@pytest.mark.parametrize(("collate", "wanted"), [(pads, True), (pads_at_random, True), (packs, False)])
def test_a_collator_is_tried_on_rows_of_unlike_length(collate, wanted):
    before = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()  # noqa: NPY002
    assert _pads(collate, Loader(rows([5, 5, 2, 9])), "ids") is wanted
    assert before == (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist())  # noqa: NPY002


def test_rows_that_are_all_alike_are_not_padded():
    assert not _pads(pads, Loader(rows([7] * 5)), "ids")


def test_what_cannot_be_tried_must_be_said():
    with pytest.raises(ValueError, match=r"dataset has no length.*give dispatch = dict\(cost='padded'\)"):
        _pads(pads, Loader(iter(rows([1, 2]))), "ids")
    with pytest.raises(ValueError, match="the collator returns none of chosen_ids"):
        _pads(lambda samples: pads(samples, "chosen_ids"), Loader(rows([1, 2], "chosen_ids")), "chosen_ids")


def test_padding_is_rows_times_longest_beside_the_sum_of_lengths():
    samples = [{"ids": torch.ones(length), "one": torch.ones(4)} for length in (2, 6, 3)]
    found = padding_of(samples, {"ids": torch.zeros(3, 8), "one": torch.zeros(3, 4), "lengths": torch.ones(3)})
    assert found == ("ids", 3, 8, 11)
    assert found.share == 1 - 11 / 24
    assert padding_of(samples, torch.zeros(3, 8)) is None
    assert padding_of([], {"ids": torch.zeros(0, 0)}) is None
