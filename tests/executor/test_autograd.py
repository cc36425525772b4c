"""Exchanges that gradients take back: their derivatives, mixed precision, compilation, and ranks that have nothing."""

import pytest

pytest.importorskip("torch")

import autograd_cases as cases
from hypothesis import given, settings
from hypothesis import strategies as st
from nightly import examples
from ranks_of import ranks_of

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
        ("phase", "KeyError", "phases that are: llm"),
    ],
)
def test_inputs_that_do_not_fit(ranks, what, name, text):
    for found, _, traceback in ranks.errors(cases.wrong_rows, what):
        assert found == name
        assert text in traceback


def test_widths_that_differ_between_ranks_are_named(ranks):
    if ranks.size == 1:
        pytest.skip("nobody else")
    for found, blamed, _ in ranks.errors(cases.wrong_rows, "width"):
        assert (found, blamed) == ("FieldMismatchError", (1,))


def test_a_dtype_that_grows_later_is_refused(ranks):
    for found, _, text in ranks.errors(cases.wider_later):
        assert found == "ValueError"
        assert "forget_features" in text


@pytest.mark.parametrize("gradients", ["averaged", "summed"])
def test_global_token_mean(ranks, gradients):
    ranks.run(cases.token_mean, gradients)
