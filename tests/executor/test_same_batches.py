"""Ranks that all draw the same mini-batches train on all of the data each: seen from lengths, and refused."""

import pytest

pytest.importorskip("torch")

import same_batches_cases as cases
from ranks_of import ranks_of

ranks = ranks_of(2, 4)

SAME = [[9, 2, 5], [4, 4, 8], [7, 1, 3]]
REFUSED = "ranks drew the same mini-batches in the first 3 steps, so that each of them trains on all of the data; give"


def refused(ranks, function, *arguments):
    for name, _, text in ranks.errors(function, *arguments):
        assert name == "UsageError"
        assert REFUSED in text
        assert "torch.utils.data.DistributedSampler" in text
        assert "same_batches=True" in text


def test_three_steps_alike_are_refused_on_all_ranks(ranks):
    refused(ranks, cases.dispatches, SAME, {})
    assert ranks.run(cases.dispatches, SAME[:2], {}) == [2] * ranks.size


def test_steps_made_ahead_are_refused_too(ranks):
    refused(ranks, cases.prefetches, SAME)


def test_lengths_told_in_columns(ranks):
    refused(ranks, cases.dispatches_columns, SAME, {})


def test_what_is_meant_goes_on(ranks):
    assert ranks.run(cases.dispatches, 2 * SAME, {"same_batches": True}) == [6] * ranks.size


def test_one_sample_a_step_is_seen_as_soon_as_lengths_rise_and_fall(ranks):
    refused(ranks, cases.dispatches, [[9], [2], [5]], {})


@pytest.mark.parametrize(
    "steps",
    [
        [[4, 4, 4]] * 5,  # all alike, as packed samples are
        [[1, 2, 2], [2, 3, 3], [3, 4, 5], [5, 6, 6]],  # ranks that share a sorted list out
        [[], [5, 3], [], [2, 8]],  # two steps
    ],
    ids=["alike", "sorted", "empty"],
)
def test_what_may_be_chance_is_none(ranks, steps):
    assert ranks.run(cases.dispatches, steps, {}) == [len(steps)] * ranks.size


def test_ranks_that_differed_once_are_believed(ranks):
    one_other = [[9, 2, 5]] * (ranks.size - 1) + [[9, 5, 2]]
    assert ranks.run(cases.dispatches, [one_other, *SAME, *SAME], {}) == [7] * ranks.size


def test_keys_are_no_lengths(ranks):
    """Prompts are numbered on every rank, and lengths are alike."""
    steps = [[4, 4, 4]] * 4
    assert ranks.run(cases.dispatches_columns, steps, {"keep_together": "prompt"}) == [4] * ranks.size
