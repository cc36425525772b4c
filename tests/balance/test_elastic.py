"""A sampler's place on other ranks: the rest of the epoch, each sample once, whatever its batches are there."""

import copy
import json

import numpy as np
import pytest

from balancer.compat import BalancedBatchSampler, step_grid

LENGTHS = np.random.default_rng(0).lognormal(5, 1.2, 203).astype(int) + 1


@pytest.fixture(autouse=True)
def _cheap(monkeypatch):
    monkeypatch.setattr(step_grid, "BUDGET", 1e-6)


def ranks_of(count, batch=4, epoch=1, **options):
    found = [BalancedBatchSampler(LENGTHS, batch, count, rank, **options) for rank in range(count)]
    for sampler in found:
        sampler.set_epoch(epoch)
    return found


def run(samplers, micro_steps):
    """Let all ranks run so many micro-steps, and stop there; return the rows that they had."""
    running = [iter(sampler) for sampler in samplers]
    return [row for _ in range(micro_steps) for batches in running for row in next(batches)]


def resumed(state, count, batch=4, **options):
    found = [BalancedBatchSampler(LENGTHS, batch, count, rank, **options) for rank in range(count)]
    for sampler in found:
        sampler.load_state_dict(json.loads(json.dumps(state)))
        sampler.set_epoch(1)  # as a trainer's loop does
    return found


def check_rest(seen, samplers, groups):
    """What is left comes once; the last step alone takes rows again, from the epoch's beginning, to be even."""
    told = [len(sampler) - sampler.state_dict()["batches"] for sampler in samplers]
    rest = [list(sampler) for sampler in samplers]
    assert told == [len(batches) for batches in rest]
    rows = [row for batches in rest for batch in batches for row in batch]
    assert set(seen) | set(rows) == set(range(len(LENGTHS)))
    again = len(seen) + len(rows) - len(LENGTHS)
    assert again == -(len(LENGTHS) - len(seen)) % groups
    assert len(set(rows) - set(seen)) == len(LENGTHS) - len(seen)


@pytest.mark.parametrize(("ranks", "batch", "accumulation"), [(1, 8, 2), (4, 4, 1), (2, 8, 1)])
def test_the_global_batch_is_kept_by_ranks_that_can_share_it(ranks, batch, accumulation):
    """So the steps are those that would have come, in a window too."""
    samplers = ranks_of(2, 4, gradient_accumulation_steps=2, window=4)
    run(samplers, 6)
    others = resumed(samplers[0].state_dict(), ranks, batch, gradient_accumulation_steps=accumulation, window=4)
    whole = [sorted(row for slot in step for each in slot for row in each) for step in samplers[0].plan(1)]
    batches = zip(*others, strict=True)
    for step in whole[3:-1]:
        found = [row for _ in range(accumulation) for each in next(batches) for row in each]
        assert sorted(found) == step


def test_again_and_again_until_the_epoch_ends():
    samplers, seen, batches = ranks_of(2, window=5), [], 0
    for ranks, steps in (2, 3), (3, 2), (4, 4), (1, 5), (2, 1):
        samplers = resumed(samplers[0].state_dict(), ranks, window=ranks)
        seen += run(samplers, steps)
        batches += steps
        assert samplers[-1].state_dict() == samplers[-1].state_dict(batches=batches)
    assert len(seen) == len(set(seen))
    check_rest(seen, resumed(samplers[0].state_dict(), 3), 3)
    assert len(list(samplers[0])) == len(samplers[0]) == 26, "the next iteration is a whole epoch"


def test_another_cost_goes_on_too():
    samplers = ranks_of(2, window=5)
    seen = run(samplers, 9)
    state = samplers[0].state_dict()
    for cost in "padded", np.random.default_rng(0).random(203):
        check_rest(seen, resumed(state, 2, cost=cost, window=5), 2)


@pytest.mark.parametrize("loaded_on", [2, 3])
def test_within_an_accumulation_the_step_is_begun_anew_and_it_is_said(loaded_on):
    samplers = ranks_of(2, gradient_accumulation_steps=3)
    seen = run(samplers, 6)
    again = resumed(samplers[0].state_dict(), 2, gradient_accumulation_steps=3)
    inside = run(again, 2)
    state = again[0].state_dict()
    assert state == again[1].state_dict(batches=8)
    assert (state["samples"], state["begun"], state["batches"]) == (48, 2, 8)
    with pytest.warns(
        UserWarning, match=r"after 2 of its micro-steps; the step is begun anew.*next batch is its first"
    ):
        others = resumed(state, loaded_on, gradient_accumulation_steps=3)
    begun = others[0].state_dict()
    assert (begun["batches"], begun["begun"]) == (8, 0), "batches are what the trainer has counted"
    assert set(inside) <= {row for sampler in copy.deepcopy(others) for batch in sampler for row in batch}
    check_rest(seen, others, loaded_on * 3)


def test_batches_are_counted_in_the_epoch_that_is_trained():
    """Workers fetch ahead: the sampler may have ended the epoch of which a trainer saves the third batch."""
    sampler = ranks_of(2, window=3)[0]
    whole = list(sampler)
    state = sampler.state_dict(batches=3)
    assert (state["epoch"], sampler.epoch) == (1, 2)
    assert list(resumed(state, 2, window=3)[0]) == whole[3:]
    assert list(resumed(sampler.state_dict(batches=26), 2)[0]) == []


def test_places_that_an_epoch_does_not_have_are_refused():
    sampler = ranks_of(2)[0]
    sampler.load_state_dict(sampler.state_dict(batches=5))
    with pytest.raises(ValueError, match="batches must be >= 5, which were had before the state was loaded, got 4"):
        sampler.state_dict(batches=4)
    with pytest.raises(ValueError, match="batches must be <= 26, as many as the epoch has, got 27"):
        sampler.state_dict(batches=27)


def test_a_length_that_was_told_and_is_another_now_is_said():
    """Lightning asks for the length before a StatefulDataLoader loads its state."""
    state = ranks_of(2)[0].state_dict(batches=10)
    sampler = ranks_of(4)[0]
    assert len(sampler) == 13
    with pytest.warns(UserWarning, match="the epoch has 18 batches a rank, of which 10 are done, and 13 were told"):
        sampler.load_state_dict(state)
    same = ranks_of(2)[0]
    assert len(same) == 26
    same.load_state_dict(state)


def test_a_state_of_other_data_or_another_order_is_refused():
    state = BalancedBatchSampler(LENGTHS, 4, 2, 1).state_dict()
    for name, other in {
        "lengths": BalancedBatchSampler(LENGTHS + 1, 4, 2, 1),
        "seed": BalancedBatchSampler(LENGTHS, 4, 2, 1, seed=1),
        "order": BalancedBatchSampler(LENGTHS, 4, 2, 1, order=range(203)),
    }.items():
        with pytest.raises(ValueError, match=f"the state is of other batches: its {name} is"):
            other.load_state_dict(state)


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("of", "x", "state.of must be what"), ("steps", "1", r"state.window.steps must be an integer, got '1'"),
        ("samples", 10**6, r"state.samples must be within 0\.\.203"), ("epoch", "1", "state.epoch must be an integer"),
        ("batches", None, "state.batches must be an int"), ("window", {}, "state.window must be what"),
        ("carried", [0, "xy"], r"state.window.carried must be \[first, bits in hex\] of positions below"),
        ("end", 204, r"state.window.end must be within"),
        ("left", [-8, "ff"], "state.window.left must be"),
    ],
)  # fmt: skip
def test_a_damaged_state_is_named(field, value, said):
    window = 5 if field in ("steps", "carried") else 4  # what else it reads
    samplers = ranks_of(2, window=5)
    run(samplers, 9)
    state = samplers[0].state_dict()
    ranks_of(2, window=window)[0].load_state_dict(state)
    (state if field in state and field != "steps" else state["window"])[field] = value
    with pytest.raises((ValueError, TypeError), match=said):
        ranks_of(2, window=window)[0].load_state_dict(state)


def test_an_order_that_draws_anew_cannot_be_resumed():
    def made():
        random = np.random.default_rng(0)
        return BalancedBatchSampler(LENGTHS, 4, 2, 0, order=lambda epoch: random.permutation(203))

    sampler = made()
    list(sampler)
    with pytest.raises(
        ValueError, match=r"its order is.*RandomSampler.*order=lambda epoch: .*default_rng\(\[0, epoch\]\)"
    ):
        made().load_state_dict(sampler.state_dict())


@pytest.mark.parametrize("state", [None, {}, {"epoch": 3}])
def test_what_is_no_state_is_refused(state):
    with pytest.raises(ValueError, match=r"state must be what state_dict\(\) returned.*it has no .*samples"):
        ranks_of(1)[0].load_state_dict(state)
