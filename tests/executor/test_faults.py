"""Ranks killed and stopped at random moments: no call outlives three timeouts, and all survivors name the lost one."""

import contextlib
import random
import signal
import time

import pytest

pytest.importorskip("torch")

import fault_cases as cases
from rank_processes import Ranks

SIZE = 4


def lose(victim, how, seed, prefetches, exchange="direct", store_on_rank_0=False, hasty=None):
    """Lose a rank at a random moment and return what the others say of it."""
    with Ranks(SIZE, store_on_rank_0=store_on_rank_0) as ranks:
        ranks.run(cases.prepares, prefetches, exchange)
        ranks.start(cases.works_until_one_is_lost, seed, hasty)
        ranks.end_after()  # a survivor that has told leaves at once, with the store if it has that
        time.sleep(random.Random(seed).uniform(0.05, 1))
        ranks.kill(victim, how)
        replies = ranks.collect(but=victim)
        with contextlib.suppress(ProcessLookupError):
            ranks.kill(victim, signal.SIGKILL)
    replies.pop(victim)
    assert all(reply and reply[0] for reply in replies), replies
    return [said for _, said in replies]


def assert_named(said, lost):
    for name, blamed, text in said:
        assert (name, blamed) == ("PeerLostError", lost), text


def test_rank_0_killed_is_named_by_all():
    assert_named(lose(0, signal.SIGKILL, 1, prefetches=True), (0,))


def test_rank_0_stopped_is_named_by_all():
    assert_named(lose(0, signal.SIGSTOP, 2, prefetches=False), (0,))


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_rank_lost_with_the_store_holds_nobody_up(how):
    said = lose(0, how, 3, prefetches=how == signal.SIGKILL, store_on_rank_0=True)
    assert_named(said, ())
    assert all("as the job's store (usually on global rank 0) does not answer" in text for _, _, text in said)


def test_a_store_that_ends_with_its_rank_has_told_the_others_before():
    """Rank 0, which holds it, is the first to hear of a loss, and leaves."""
    assert_named(lose(1, signal.SIGKILL, 4, prefetches=False, store_on_rank_0=True, hasty=0), (1,))


@pytest.mark.nightly
@pytest.mark.parametrize("prefetches", [False, True])
@pytest.mark.parametrize(
    ("how", "seed"), [(signal.SIGKILL, s) for s in range(20)] + [(signal.SIGSTOP, s) for s in range(10)]
)
@pytest.mark.parametrize("store_on_rank_0", [False, True])
def test_ranks_lost_at_random(prefetches, how, seed, store_on_rank_0):
    victim, exchange = seed % SIZE, "node_wise" if seed % 3 == 2 else "direct"
    said = lose(victim, how, 100 + seed, prefetches, exchange, store_on_rank_0)
    assert_named(said, () if store_on_rank_0 and victim == 0 else (victim,))
