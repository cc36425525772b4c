"""Balanced batches of a stream: every sample once, as the sampler plans them, and resumed where a state says."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nightly import examples

import balancer
from balancer.compat import BalancedBatchSampler, BalancedStream

LENGTHS = np.minimum(np.random.default_rng(0).lognormal(4, 1, 200).astype(int) + 1, 900).tolist()
SAMPLES = [(number, length) for number, length in enumerate(LENGTHS)]


def length(sample):
    return sample[1]


def made(samples=SAMPLES, rank="all", **more):
    given = {"batch_size": 2, "num_replicas": 3, "gradient_accumulation_steps": 2, "window": 2} | more
    return BalancedStream(samples, length, rank=rank, **given)


class Stateful:
    """A stream that goes on by itself, and counts what was read of it."""

    def __init__(self):
        self.at, self.read, self.epoch = 0, 0, 0

    def set_epoch(self, epoch):
        self.epoch, self.at = epoch, 0

    def __iter__(self):
        while self.at < len(SAMPLES):
            self.at, self.read = self.at + 1, self.read + 1
            yield SAMPLES[(self.at - 1 + self.epoch) % len(SAMPLES)]

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]


@settings(max_examples=examples(15))
@given(
    st.integers(0, 60), st.integers(1, 3), st.integers(1, 3), st.integers(1, 3), st.integers(0, 3), st.booleans(),
    st.sampled_from(["step", "micro_batch"]), st.sampled_from(["linear", "padded"]),
)  # fmt: skip
def test_every_sample_comes_once_and_ranks_have_as_many(count, size, ranks, micro, window, drop, sync, cost):
    step = size * ranks * micro
    given = {"batch_size": size, "num_replicas": ranks, "gradient_accumulation_steps": micro, "window": window,
             "drop_last": drop, "sync": sync, "cost": cost}  # fmt: skip
    found = [list(made(SAMPLES[:count], rank, **given)) for rank in range(ranks)]
    flat = [number for batches in found for batch in batches for number, _ in batch]
    steps = count // step if drop else -(-count // step)
    assert [len(batches) for batches in found] == [steps * micro] * ranks
    if drop:
        assert len(flat) == len(set(flat)) == steps * step
        assert all(number < (window + 1) * step * -(-count // ((window + 1) * step)) for number in flat)
    else:
        assert set(flat) == set(range(count))
        assert len(flat) - count == -(count % step) % (ranks * micro) if count else not flat
    for slot in zip(*found, strict=True):
        assert len({len(batch) for batch in slot}) == 1
    # No sample is further from where it was drawn than its window.
    for batches in found:
        for place, batch in enumerate(batches[: count // step * micro]):
            assert all(abs(number // step - place // micro) <= window for number, _ in batch)


def test_a_window_is_planned_as_the_sampler_plans_a_dataset():
    for first in 0, 36:
        lengths = LENGTHS[first : first + 36]
        sampler = BalancedBatchSampler(
            lengths, 2, 3, "all", gradient_accumulation_steps=2, window=2, shuffle=False, seed=5 + first
        )
        wanted = [[(row + first, lengths[row]) for row in batch] for batch in sampler]
        assert list(made(seed=5))[first // 2 :][:18] == wanted


def slowest_over_mean(batches, ranks, micro):
    work = np.array([sum(length for _, length in batch) for batch in batches]).reshape(-1, micro, ranks).sum(axis=1)
    return work.max(axis=1).sum() / work.mean(axis=1).sum()


def test_ranks_are_even_where_in_the_plain_order_they_are_not():
    shape = {"batch_size": 4, "num_replicas": 4, "gradient_accumulation_steps": 2}
    plain = [SAMPLES[start : start + 4] for start in range(0, 192, 4)]
    still, moved = (list(made(SAMPLES[:192], window=window, **shape)) for window in (0, 2))
    assert slowest_over_mean(plain, 4, 2) > 1.3
    assert slowest_over_mean(still, 4, 2) < 1.05
    assert slowest_over_mean(moved, 4, 2) < 1.01
    given = list(made(SAMPLES[:192], window=0, cost=lambda sample: 1 / sample[1], **shape))
    assert slowest_over_mean(given, 4, 2) > 1.05, "another cost"
    work = np.array([sum(1 / length for _, length in batch) for batch in given]).reshape(-1, 2, 4).sum(axis=1)
    assert work.max(axis=1).sum() / work.mean(axis=1).sum() < 1.05


def test_limits_are_kept_in_every_micro_batch_and_named_where_they_cannot_be():
    most = {"batch_size": 4, "num_replicas": 2, "limits": lambda drawn: [
        balancer.CountLimit(5), balancer.Limit([number % 3 for number, _ in drawn], 6)]}  # fmt: skip
    batches = list(made(SAMPLES[:96], **most))
    assert sorted(number for batch in batches for number, _ in batch) == list(range(96))
    assert all(0 < len(batch) <= 5 and sum(number % 3 for number, _ in batch) <= 6 for batch in batches)
    resumed = made(SAMPLES[:96], **most)
    resumed.load_state_dict(made(SAMPLES[:96], **most).state_dict(batches=8))
    assert list(resumed) == batches[16:]
    assert all(len(batch) <= 4 for batch in made(SAMPLES[:96], batch_size=4, limits=[balancer.CountLimit(4)]))
    with pytest.raises(ValueError, match=r"behind sample 0 of the stream: step 0 .* its 24 samples do not fit"):
        list(made(SAMPLES[:96], batch_size=4, limits=[balancer.CountLimit(3)]))


@pytest.mark.parametrize("source", [lambda: SAMPLES, Stateful, lambda: lambda epoch: iter(SAMPLES[epoch:])])
def test_a_run_goes_on_from_any_step_bit_for_bit(source):
    whole = made(source(), 1)
    first, second = list(whole), list(whole)
    assert len(first) == 34
    assert first != second, "the next epoch comes by itself, with other random numbers"
    running = iter(stream := made(source(), 1))
    for batches in range(0, 34, 2):
        if batches in (0, 4, 32):  # where a window begins, and within one
            for saved in stream.state_dict(), made(source(), 1).state_dict(batches=batches):
                assert saved["batches"] == batches
                resumed = made(given := source(), 1)
                resumed.load_state_dict(json.loads(json.dumps(saved)))
                assert list(resumed) == first[batches:]
                if isinstance(given, Stateful):
                    assert given.read == 200 - saved["samples"], "what ran is not read again"
        assert [next(running), next(running)] == first[batches : batches + 2]
    assert list(resumed) == second


def test_a_step_that_was_begun_is_begun_anew():
    stream = made(rank=0)
    batches = list(stream)
    resumed = made(rank=0)
    with pytest.warns(UserWarning, match="after 1 of its micro-steps"):
        resumed.load_state_dict(made(rank=0).state_dict(batches=5))
    assert list(resumed) == batches[4:]


@pytest.mark.parametrize(
    ("more", "name"),
    [
        ({"batch_size": 1}, "batch_size"), ({"num_replicas": 2}, "num_replicas"), ({"window": 1}, "window"),
        ({"cost": "padded"}, "cost"), ({"seed": 1}, "seed"),
    ],
)  # fmt: skip
def test_a_state_of_other_settings_is_named(more, name):
    with pytest.raises(ValueError, match=f"the state is of other batches: its {name} is"):
        made(**more).load_state_dict(made().state_dict())


def test_a_state_of_another_stream_is_named():
    stream = made(rank=0)
    running = iter(stream)
    for _ in range(8):  # into the second window, which begins behind sample 36
        next(running)
    state = stream.state_dict()
    assert state["samples"] == 36
    other = made([*SAMPLES[:50], (50, 901), *SAMPLES[51:]], 0)
    other.load_state_dict(state)
    with pytest.raises(ValueError, match="other samples than when the state was saved: lengths behind sample 36"):
        next(iter(other))
    short = made(SAMPLES[:30], 0)
    short.load_state_dict(state)
    with pytest.raises(ValueError, match="behind 36 samples, and the stream ended after 30"):
        next(iter(short))
    with pytest.raises(ValueError, match="it has no epoch"):
        stream.load_state_dict({})


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: made(iter(SAMPLES)), TypeError, "samples must be an iterable that begins anew each time"),
        (lambda: BalancedStream(SAMPLES, LENGTHS, 2, 1, 0), TypeError, "length must be a function from a sample"),
        (lambda: made(cost=[1, 2]), TypeError, "cost must be a cost by its name, or a function"),
        (lambda: made(window=-1), ValueError, "window must be"),
        (lambda: made(seed="a"), TypeError, "seed must be"),
        (lambda: len(made()), TypeError, "known only at its end"),
        (lambda: list(made([(0, 5), (1, -2)])), ValueError, r"length\[1\].*>= 0|length must be >= 0"),
    ],
)
def test_what_cannot_be_used_is_named(call, error, words):
    with pytest.raises(error, match=words):
        call()


def test_a_loader_yields_the_same_and_refuses_several_workers():
    data = pytest.importorskip("torch.utils.data")
    wanted = list(made(rank=2))
    for workers in 0, 1:
        loader = data.DataLoader(made(rank=2), batch_size=None, collate_fn=list, num_workers=workers)
        assert list(loader) == wanted
    loader = data.DataLoader(made(rank=2), batch_size=None, collate_fn=list, num_workers=2)
    with pytest.raises(ValueError, match="read by one worker, and there are 2"):
        next(iter(loader))


@pytest.mark.filterwarnings("default")  # of torchdata's, which look through torch
def test_a_stateful_loader_saves_the_place_of_its_worker():
    loaders = pytest.importorskip("torchdata.stateful_dataloader")
    wanted = list(made(rank=2))

    def loader():
        return loaders.StatefulDataLoader(made(rank=2), batch_size=None, collate_fn=list, num_workers=1)

    running = iter(first := loader())
    assert [next(running) for _ in range(20)] == wanted[:20]
    second = loader()
    second.load_state_dict(first.state_dict())
    assert list(second) == wanted[20:]
