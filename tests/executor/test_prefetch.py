"""Steps made ahead by a thread: what comes, in which order, how it ends, and how it goes on."""

import pytest

pytest.importorskip("torch")

import prefetch_cases as cases
from ranks_of import ranks_of

ranks = ranks_of(1, 2, 4)


def uneven(size):
    """Loaders that end at different steps, with mini-batches of different sizes, the last ones short."""
    return [[4 - rank % 2] * (5 - rank) + [1] for rank in range(size)]


@pytest.mark.parametrize("kind", sorted(cases.LOADERS))
@pytest.mark.parametrize("overlap", [True, False])
def test_every_sample_comes_once_until_all_loaders_have_ended(ranks, kind, overlap):
    sizes = uneven(ranks.size)
    steps = ranks.run(cases.runs, sizes, kind, {"overlap": overlap})
    assert {len(of_rank) for of_rank in steps} == {max(map(len, sizes))}
    seen = sorted(name for of_rank in steps for step in of_rank for name in step)
    assert seen == [1000 * rank + i for rank, of_rank in enumerate(sizes) for i in range(sum(of_rank))]


def test_all_stop_with_the_first_loader_that_ends(ranks):
    sizes = uneven(ranks.size)
    steps = ranks.run(cases.runs, sizes, "list", {"uneven": "stop"})
    assert {len(of_rank) for of_rank in steps} == {min(map(len, sizes))}


def test_overlap_changes_nothing(ranks):
    sizes = uneven(ranks.size)
    one, other = (ranks.run(cases.runs, sizes, "list", {"overlap": overlap}) for overlap in (True, False))
    assert one == other


@pytest.mark.parametrize("kind", sorted(cases.LOADERS))
@pytest.mark.parametrize("at", [1, 3, 5])
def test_resuming_is_exact(ranks, kind, at):
    ranks.run(cases.resumes, uneven(ranks.size), kind, at, {"depth": 2})


def test_the_next_step_is_made_meanwhile(ranks):
    ranks.run(cases.runs_ahead)


def test_a_loop_that_all_leave_can_begin_again(ranks):
    assert all(ranks.run(cases.leaves, True))


def test_a_rank_that_leaves_alone_is_named(ranks):
    if ranks.size == 1:
        pytest.skip("nobody else")
    ranks.start(cases.leaves, False)
    first, *others = ranks.collect()
    assert first == (True, None)
    for _, name, blamed, text in others:
        assert (name, blamed) == ("ExecutorError", (0,)), text
        assert "rank 0 left the loop" in text


def test_a_loader_that_fails_is_an_error_on_all(ranks):
    odd = ranks.size - 1
    for rank, (name, blamed, text) in enumerate(ranks.errors(cases.breaks, odd)):
        assert (name, blamed) == (("OSError", ()) if rank == odd else ("ExecutorError", (odd,))), text
        assert rank == odd or f"rank {odd} failed at reading a mini-batch: OSError: the disk is gone" in text


def test_overlap_is_refused_where_it_deadlocks(ranks):
    ranks.run(cases.refuses)


def test_one_loop_at_a_time(ranks):
    ranks.run(cases.one_loop_at_a_time)


def test_what_comes_is_a_plain_dictionary_and_the_step_is_at_hand(ranks):
    ranks.run(cases.yields_plain_dictionaries)


def test_samples_are_collated_after_the_exchange(ranks):
    ranks.run(cases.collates)


def test_the_length_is_that_of_the_loop(ranks):
    sizes = uneven(ranks.size)
    assert set(ranks.run(cases.lengths_are_told, sizes)) == {(max(map(len, sizes)), min(map(len, sizes)))}


def test_samplers_are_told_the_epoch_and_a_state_is_of_its_epoch(ranks):
    ranks.run(cases.epochs_are_told)


def test_accelerate_may_not_end_an_accumulation_with_a_loader_that_is_ahead(ranks):
    ranks.run(cases.refuses_to_end_an_accumulation_too_early)
