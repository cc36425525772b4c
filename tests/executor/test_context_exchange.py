"""Context shards on real ranks: attention, loss and gradients are those of one process; what travels is as planned."""

import contextlib
import signal
import time

import pytest

pytest.importorskip("torch")

import context_cases as cases
from rank_processes import RankFailedError, Ranks
from ranks_of import ranks_of

MASKS = [
    {"full": 1},
    {"window3": 2},
    {"full": 1, "window5": 2, "chunk8": 1},
]

ranks = ranks_of(2, 4)


@pytest.mark.parametrize("masks", MASKS, ids=lambda masks: "+".join(masks))
def test_attention_and_gradients_are_those_of_one_process(ranks, masks):
    received = [sum(ranks.run(cases.agrees_with_one_process, seed, masks)) for seed in range(3)]
    assert any(received)  # rows did travel


def test_checkpointed_layers_gather_again(ranks):
    ranks.run(cases.agrees_with_one_process, 1, MASKS[-1], True)


@pytest.mark.parametrize("kind", ["full", "window3", "chunk4"])
def test_what_kernels_take_says_what_the_mask_says(ranks, kind):
    told = [text for seed in range(4) for text in ranks.run(cases.kernels_inputs, seed, kind)]
    assert "" in told
    assert all("several parts of document" in text for text in told if text)


def test_flex_attention_takes_the_mask(ranks):
    for kind in ("full", "window3"):
        ranks.run(cases.flexes, 1, kind)


def test_dtypes_and_sums_in_float32(ranks):
    for seed in range(4):
        ranks.run(cases.dtypes, seed)


def test_labels_are_shifted_before_they_are_sharded(ranks):
    for seed in range(3):
        ranks.run(cases.shifted_loss, seed)


def test_packs_of_a_plan():
    with Ranks(4) as four:
        assert any(sum(four.run(cases.of_a_plan, seed)) for seed in range(3))


@pytest.mark.parametrize(
    ("what", "name", "text"),
    [
        ("others", "ExecutorError", "rank 2 differs from the others in the shards or masks ("),
        ("masks", "UsageError", "the shards were made for other masks than window2"),
        ("size", "ArgumentError", "group must have the 2 ranks that share the pack, got 4"),
        ("cap", "ArgumentError", "rows at least that a rank holds"),
        ("type", "ArgumentTypeError", "shards must be what solvers.context_shards returns"),
        ("rows", "ArgumentError", "rows of this rank"),
        ("kind", "ArgumentError", "kind must be one of full, got 'window2'"),
        ("none", "UsageError", "give tensors, of which rows are gathered"),
        ("labels", "ArgumentError", "labels must have the 2 tokens of the documents, got 3"),
    ],
)
def test_bad_input_is_a_line_on_all_ranks(what, name, text):
    with Ranks(4) as four, pytest.raises(RankFailedError) as failed:
        four.run(cases.refuses, what)
    said = str(failed.value)
    assert said.count(f"{name}: ") >= 4
    assert text in said


def test_all_ranks_hear_of_one_whose_shards_cannot_be_used():
    with Ranks(4) as four:
        for rank, (name, blamed, text) in enumerate(four.errors(cases.refuses, "failed")):
            assert name == ("ArgumentTypeError" if rank == 2 else "ExecutorError")
            assert rank == 2 or blamed == (2,)
            assert rank == 2 or "rank 2 failed at taking the shards: ArgumentTypeError: shards must be what" in text


@pytest.mark.parametrize(
    ("what", "odd_one"),
    [
        ("dtype", "1 tensor for kind 'window3': bfloat16 [*, 2]"),
        ("wider", "1 tensor for kind 'window3': float16 [*, 3]"),
        ("double", "1 tensor for kind 'window3': float64 [*, 2]"),
        ("two", "2 tensors for kind 'window3': float16 [*, 2] and float16 [*, 2]"),
    ],
)
def test_ranks_that_gather_unlike_tensors_are_named(ranks, what, odd_one):
    odd, usual = ranks.size - 1, "1 tensor for kind 'window3': float16 [*, 2]"
    for name, blamed, said in ranks.errors(cases.gathers_unlike, what):
        assert (name, blamed) == ("ExecutorError", (odd,))
        assert f'rank {odd} differs from the others in what they gather ("{odd_one}", not "{usual}")' in said


@pytest.mark.parametrize(
    ("what", "text"),
    [("list", "tensors[0] must be a tensor, got list"), ("kind", "kind must be one of full, window3, got 'full3'")],
)
def test_all_hear_of_a_rank_that_cannot_gather(ranks, what, text):
    odd = ranks.size - 1
    for rank, (name, blamed, said) in enumerate(ranks.errors(cases.gathers_unlike, what)):
        assert (name, blamed) == (("ArgumentError", ()) if rank == odd else ("ExecutorError", (odd,)))
        assert text in said


def test_what_is_gathered_is_agreed_on_once(ranks):
    assert ranks.run(cases.agrees_once) == [1] * ranks.size


def test_nobody_waits_where_no_rank_needs_anothers_rows(ranks):
    assert not any(ranks.run(cases.needs_nothing))


def test_a_rank_without_a_token_joins(ranks):
    ranks.run(cases.one_has_nothing)


def test_a_rank_that_is_lost_ends_all_others():
    with Ranks(4) as four:
        four.run(cases.prepares)
        four.start(cases.works_until_one_is_lost, 1)
        four.end_after()
        time.sleep(0.3)
        four.kill(2, signal.SIGKILL)
        replies = four.collect(but=2)
        with contextlib.suppress(ProcessLookupError):
            four.kill(2, signal.SIGKILL)
    replies.pop(2)
    for _, (name, _, text) in replies:
        assert name == "ExecutorError", text
        assert "some rank is gone or stands still" in text
