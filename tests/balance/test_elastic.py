"""A sampler's place on other ranks: the rest of the epoch, each sample once, whatever its batches are there."""

import copy
import gc
import json
import os
import signal
import threading
import tracemalloc
import warnings

import numpy as np
import pytest

from balancer.compat import BalancedBatchSampler
from balancer.compat.sampler import _BLOCK
from balancer.planning import planned_ahead
from balancer.planning.epoch_position import Position, check_same

LENGTHS = np.random.default_rng(0).lognormal(5, 1.2, 203).astype(int) + 1
CHEAP = {"time_budget": 0.0001}


def ranks_of(count, batch=4, epoch=1, **options):
    found = [BalancedBatchSampler(LENGTHS, batch, count, rank, **CHEAP, **options) for rank in range(count)]
    for sampler in found:
        sampler.set_epoch(epoch)
    return found


def run(samplers, micro_steps):
    """Let all ranks run so many micro-steps, and stop there; return the rows that they had."""
    running = [iter(sampler) for sampler in samplers]
    return [row for _ in range(micro_steps) for batches in running for row in next(batches)]


def resumed(state, count, batch=4, **options):
    found = [BalancedBatchSampler(LENGTHS, batch, count, rank, **CHEAP, **options) for rank in range(count)]
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


@pytest.mark.parametrize("every", [7, pytest.param(1, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("saved_on", [1, 2, 3, 4])
@pytest.mark.parametrize("loaded_on", [1, 2, 3, 4])
def test_saved_after_any_step_and_loaded_on_others(saved_on, loaded_on, every):
    """The batch a rank is kept; so steps change."""
    samplers = ranks_of(saved_on)
    running, seen = [iter(sampler) for sampler in samplers], []
    for step in range(samplers[0].num_steps):
        states = [sampler.state_dict() for sampler in samplers]
        assert all(state == states[0] for state in states)
        assert (states[0]["samples"], states[0]["batches"]) == (len(seen), step)
        if step % every == 0 or step == samplers[0].num_steps - 1:
            check_rest(seen, resumed(states[-1], loaded_on), loaded_on)
        seen += [row for batches in running for row in next(batches)]


@pytest.mark.parametrize(("ranks", "batch", "accumulation"), [(1, 8, 2), (2, 4, 2), (4, 4, 1), (2, 8, 1), (1, 4, 4)])
def test_the_global_batch_is_kept_by_ranks_that_can_share_it(ranks, batch, accumulation):
    samplers = ranks_of(2, 4, gradient_accumulation_steps=2)
    seen = run(samplers, 6)
    others = resumed(samplers[0].state_dict(), ranks, batch, gradient_accumulation_steps=accumulation)
    steps = [
        sorted(row for batches in step for batch in batches for row in batch)
        for step in (samplers[0].plan_step(number, 1) for number in range(3, samplers[0].num_steps))
    ]
    found = [list(sampler) for sampler in others]
    of_step = range(0, len(found[0]), accumulation)
    assert [sorted(r for rank in found for b in rank[i : i + accumulation] for r in b) for i in of_step] == steps
    assert len(set(seen)) == 48


def test_other_costs_caps_and_counts_go_on_too():
    samplers = ranks_of(2)
    seen = run(samplers, 7)
    options = {"cost": "padded", "equal_counts": False, "micro_batch_tokens": int(LENGTHS.max()) * 8}
    check_rest(seen, resumed(samplers[0].state_dict(), 3, **options), 1)


def test_again_and_again_until_the_epoch_ends():
    samplers, seen, batches = ranks_of(2), [], 0
    for ranks, steps in (2, 3), (3, 2), (4, 4), (1, 5), (2, 1):
        samplers = resumed(samplers[0].state_dict(), ranks)
        seen += run(samplers, steps)
        batches += steps
        assert samplers[-1].state_dict() == samplers[-1].state_dict(batches=batches)
    assert len(seen) == len(set(seen)) == samplers[0].state_dict()["samples"]
    check_rest(seen, resumed(samplers[0].state_dict(), 3), 3)
    samplers[0].set_epoch(2)
    assert len(list(samplers[0])) == len(samplers[0]) == samplers[0].num_steps, "the next epoch is whole"


@pytest.mark.parametrize("loaded_on", [2, 3])
def test_within_an_accumulation_the_step_is_begun_anew_and_it_is_said(loaded_on):
    samplers = ranks_of(2, gradient_accumulation_steps=3)
    seen = run(samplers, 6)
    again = resumed(samplers[0].state_dict(), 2, gradient_accumulation_steps=3)
    inside = run(again, 2)
    state = again[0].state_dict()
    assert (state["samples"], state["begun"], state["batches"]) == (48, 2, 8)
    with pytest.warns(UserWarning, match=r"after 2 of its micro-steps; it is begun anew behind sample 48"):
        others = resumed(state, loaded_on, gradient_accumulation_steps=3)
    begun = others[0].state_dict()
    assert (begun["batches"], begun["begun"]) == (8, 0), "batches are what the trainer has counted"
    assert set(inside) <= {row for sampler in copy.deepcopy(others) for batch in sampler for row in batch}
    check_rest(seen, others, loaded_on * 3)


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


JUNK = [None, True, -1, 10**9, 1.5, "3", "", [], [1], {}, {"a": 1}, object(), float("nan"), 2**70, np.int64(3)]


@pytest.mark.parametrize("name", ["version", "epoch", "samples", "begun", "batches", "of", "digest"])
def test_every_change_of_a_state_is_refused(name):
    sampler = ranks_of(2)[0]
    run([sampler], 3)
    state = sampler.state_dict()
    for junk in JUNK:
        if type(junk) is type(state[name]) and junk == state[name]:
            continue
        with pytest.raises(ValueError, match=r"was changed|is of version|state_dict\(\)|returned"):
            sampler.load_state_dict({**state, name: junk})
    for inner in state["of"]:
        for junk in JUNK:
            with pytest.raises(ValueError, match="was changed"):
                sampler.load_state_dict({**state, "of": {**state["of"], inner: junk}})
    with pytest.raises(ValueError, match=f"it has no {name}|of version 1"):
        sampler.load_state_dict({key: value for key, value in state.items() if key != name})


@pytest.mark.parametrize("state", [None, 3, [], {}, "state", {"epoch": 3}])
def test_what_is_no_state_is_refused(state):
    with pytest.raises(ValueError, match=r"state must be what state_dict\(\) returned"):
        ranks_of(1)[0].load_state_dict(state)


def test_what_no_digest_covers_is_refused():
    state = ranks_of(1)[0].state_dict()
    for name, junk in ("of", object()), ("samples", np.int64(3)), ("version", np.arange(2)):
        for digest in None, np.arange(2):
            with pytest.raises(ValueError, match="was changed"):
                ranks_of(1)[0].load_state_dict({**state, name: junk, "digest": digest})


def test_more_ranks_than_any_cluster_has_are_refused_at_once():
    with pytest.raises(ValueError, match="num_replicas must be <= 4194304"):
        BalancedBatchSampler(LENGTHS, 4, 10**9, 0)


def test_a_place_fits_where_data_and_order_are_alike():
    state = Position(2, 40, 0, 5).saved({"seed": 3})
    assert Position.loaded(json.loads(json.dumps(state))) == Position(2, 40, 0, 5)
    check_same(state, {"seed": 3})
    for other in {"seed": 4}, {}, {"seed": 3, "lengths": "x"}:
        with pytest.raises(ValueError, match="the state is of other batches"):
            check_same(state, other)


# Steps that are planned ahead.


def threads():
    return [thread for thread in threading.enumerate() if thread.name.startswith("seqbalancer-plans")]


def test_a_thread_makes_the_plans_that_are_made_without():
    sampler = ranks_of(3)[1]
    assert threads() == []
    running = iter(sampler)
    assert threads() == [], "a DataLoader makes its workers before it asks for a batch"
    next(running)
    assert len(threads()) == 1
    del running
    assert threads() == [], "a loop that is left leaves none behind"
    wanted = [grid[0][1] for grid in (sampler.plan_step(step, 1) for step in range(sampler.num_steps))]
    sampler.set_epoch(0)
    sampler.set_epoch(1)
    assert list(sampler) == wanted
    assert threads() == []


def test_an_error_comes_where_its_plan_would_have():
    def plan(number):
        if number == 3:
            raise ValueError("the third")
        return number

    found = []
    with pytest.raises(ValueError, match="the third"):
        found.extend(planned_ahead.planned_ahead(plan, range(9)))
    assert found == [0, 1, 2]
    assert threads() == []


@pytest.mark.skipif(not hasattr(os, "fork"), reason="nothing to fork")
def test_no_thread_runs_while_the_process_forks():
    """A child has the plans that were made, and goes on with a thread of its own; so does its parent."""
    sampler = ranks_of(2)[0]
    whole = list(sampler)
    running = iter(sampler)
    first = next(running)
    here, there = os.pipe()
    with warnings.catch_warnings(action="error"):  # Python warns where a process with threads forks
        child = os.fork()
    if child == 0:
        try:
            signal.alarm(60)  # rather than wait for a thread that it does not have
            os.write(there, json.dumps([first, *running]).encode())
        finally:
            os._exit(0)
    os.close(there)
    with open(here, "rb") as pipe:
        assert json.loads(pipe.read()) == whole
    os.waitpid(child, 0)
    assert [first, *running] == whole


def memory_after(steps):
    sampler = BalancedBatchSampler(np.tile(LENGTHS, -(-steps * 8 // len(LENGTHS)))[: steps * 8], 4, 2, 0, **CHEAP)
    running = iter(sampler)
    for _ in range(100):
        next(running)
    gc.collect()
    tracemalloc.start()
    for _ in range(steps - 200):
        next(running)
    gc.collect()
    grown = tracemalloc.get_traced_memory()[0]
    # Python before 3.12.9 crashes where tracing stops while a kernel allocates (gh-128679): end the planning thread.
    running.close()
    tracemalloc.stop()
    return grown


@pytest.mark.parametrize("steps", [600, pytest.param(10_000, marks=pytest.mark.nightly)])
def test_memory_stays_as_it_is(steps):
    assert memory_after(steps) < 100_000 + 4 * 8 * _BLOCK  # the rows of four blocks of the order are kept
