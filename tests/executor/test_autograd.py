"""Exchanges that gradients take back: their derivatives, mixed precision, compilation, and ranks that have nothing."""

from itertools import chain

import pytest

pytest.importorskip("torch")

import autograd_cases as cases
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from nightly import examples
from ranks_of import ranks_of

from balancer.executor import RaggedTensor, count_labels

ranks = ranks_of(1, 2, 4)


@settings(max_examples=examples(10))
@given(st.data(), st.integers(0, 1000))
def test_the_backward_is_the_transposed_exchange(ranks, data, seed):
    counts = data.draw(st.lists(st.integers(0, 4), min_size=ranks.size, max_size=ranks.size).filter(any))
    ranks.run(cases.transposed, seed, counts)


@pytest.mark.parametrize("enabled", [True, False])
def test_mixed_precision(ranks, enabled):
    assert all(ranks.run(cases.mixed_precision, [3] + [0] * (ranks.size - 1), enabled))
    assert all(ranks.run(cases.mixed_precision, [4] * ranks.size, enabled))


def test_ranks_without_a_row_adopt_dtype_and_shape(ranks):
    ranks.run(cases.only_half, [1] + [0] * (ranks.size - 1))


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled(ranks, backend):
    if ranks.size != 2:
        pytest.skip("slow")
    ranks.run(cases.compiled, [3, 2], backend)


def test_frozen_encoders(ranks):
    ranks.run(cases.frozen, [2] * ranks.size)


@pytest.mark.parametrize(
    ("what", "name", "text"),
    [
        ("rows", "ValueError", "rows on this rank, one for each element, but has"),
        ("missing", "KeyError", "outputs must have what 'vision' puts out"),
        ("strange", "KeyError", "'smell' does not feed phase 'llm'"),
        ("own", "ValueError", "own must have"),
        ("phase", "KeyError", "encoders feed the last, 'llm'"),
    ],
)
def test_inputs_that_do_not_fit(ranks, what, name, text):
    for found, _, traceback in ranks.errors(cases.wrong_rows, what):
        assert found == name
        assert text in traceback


def test_widths_that_differ_between_ranks_are_named(ranks):
    if ranks.size == 1:
        pytest.skip("nobody else")
    for found, blamed, text in ranks.errors(cases.wrong_rows, "width"):
        assert (found, blamed) == ("ExecutorError", (1,))
        assert "in the shape of an element of the inputs of phase 'llm' ([3], not [2])" in text


def test_a_dtype_that_grows_later_is_refused(ranks):
    for found, _, text in ranks.errors(cases.wider_later):
        assert found == "ValueError"
        assert "a model that changes them needs a new Dispatcher" in text


@pytest.mark.parametrize("gradients", ["averaged", "summed"])
def test_global_token_mean(ranks, gradients):
    ranks.run(cases.token_mean, gradients)


def test_masked_labels_are_not_counted(ranks):
    for found, by_lengths in ranks.run(cases.masked_labels):
        assert by_lengths < 0.6 * found


@pytest.mark.parametrize(
    ("count", "loss", "why"),
    [
        (-2, 1.5, "count must be a finite number >= 0, got -2"),
        (float("nan"), 1.5, "count must be a finite number >= 0, got nan"),
        (float("inf"), 1.5, "count must be a finite number >= 0, got inf"),
        (0, 1.5, "got 0 beside a loss_sum of 1.5"),
        (torch.tensor(0), float("nan"), "got 0 beside a loss_sum of nan"),
    ],
)
def test_a_count_that_cannot_be_the_batchs_is_refused_on_all_ranks(ranks, count, loss, why):
    odd = ranks.size - 1
    for rank, (name, _, text) in enumerate(ranks.errors(cases.counts_that_cannot_be, odd, count, loss)):
        assert name == "ValueError"
        assert (why if rank == odd else "count of another rank") in text


@pytest.mark.parametrize("listed", [False, True])
def test_labels_in_place_of_a_count_are_refused(ranks, listed):
    for name, _, text in ranks.errors(cases.labels_for_a_count, listed):
        assert name == "ValueError"
        assert text.endswith("of labels it is count_labels(labels)\n")


ROWS = [[-100, 4, 5], [6], [-100, -100, 1, -100, 2]]
FORMS = {
    "list": lambda rows: list(map(torch.tensor, rows)),
    "padded": lambda rows: torch.tensor([row + [-100] * (5 - len(row)) for row in rows]),
    "jagged": lambda rows: torch.nested.nested_tensor(list(map(torch.tensor, rows)), layout=torch.jagged),
    "ragged": lambda rows: RaggedTensor(torch.tensor(list(chain(*rows))), list(map(len, rows))),
    "packed": lambda rows: torch.tensor([list(chain(*rows))]),
}


@pytest.mark.parametrize("form", FORMS)
def test_labels_that_a_loss_counts(form):
    labels = FORMS[form](ROWS)
    assert int(count_labels(labels, shift=False)) == 5
    assert int(count_labels(labels)) == (5 if form == "packed" else 4)  # packed, 6 is the label of the token before it


def test_labels_of_nothing_and_labels_that_are_no_rows():
    assert int(count_labels([])) == int(count_labels([torch.empty(0, dtype=torch.int64)])) == 0
    assert int(count_labels(torch.empty(0, 4))) == 0
    with pytest.raises(ValueError, match="a row of labels for each sample, got one number a sample"):
        count_labels([torch.tensor(3)])
    for labels in torch.tensor([1, 2, 3]), torch.tensor(3):
        with pytest.raises(ValueError, match=r"a row of labels for each sample, got shape .*shift=False, for one row"):
            count_labels(labels)
    assert int(count_labels(torch.tensor([1, -100, 3]), shift=False)) == 2
