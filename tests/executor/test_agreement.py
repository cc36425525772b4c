"""Ranks that disagree, replica peers, and ranks that are lost: all others raise, name them, and do not hang."""

import multiprocessing
import os
import signal
import time
from dataclasses import replace
from datetime import timedelta
from unittest import mock

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
import torch.distributed as dist
from dispatch_cases import FIELDS, PHASES, WIDTH, Encoders, dispatcher, multimodal_batch, stacked
from each_rank import each_rank, everywhere, raises_on, same_everywhere
from rank_processes import Ranks
from ranks_of import ranks_of

from balancer import MicroBatches, Phase
from balancer.executor import Dispatcher, ExecutorError, PrefetchDispatcher
from balancer.executor import dispatcher as module
from balancer.executor.ranks import Ranks as Talking
from balancer.plan.step_plan import as_step_plan
from balancer.problem.ragged import Ragged
from solvers.errors import ArgumentError, InfeasibleError

SHORT = timedelta(seconds=6)

ranks = ranks_of(4)
made = None


def step(made, rank):
    return made.dispatch({"id": [f"{rank}.{i}" for i in range(3)]}, {"tokens": [length + rank for length in (5, 1, 9)]})


def nothing_moves():
    """Fail if a payload is moved, for as long as this is entered."""
    return mock.patch.object(Talking, "all_to_all", side_effect=AssertionError("payload moved"))


def last():
    return dist.get_world_size() - 1


@pytest.mark.parametrize(("odd", "blamed"), [([0, 1, 2], [3]), ([2, 3], [2, 3])])  # ties to the lowest rank
@each_rank
def test_versions_that_differ_from_the_majority_are_named(rank, odd, blamed):
    versions = "('9.9', not '1.0')" if 0 not in odd else "('1.0', not '9.9')"
    text = f" {'differs' if len(blamed) == 1 else 'differ'} from the others in package version {versions};"
    with (
        mock.patch.object(module, "__version__", "9.9" if rank in odd else "1.0"),
        raises_on(blamed, ExecutorError, text),
    ):
        Dispatcher(length="tokens")


@each_rank
def test_settings_that_differ_are_named(rank):
    is_odd, phases = rank == last(), [Phase("vision", "tokens"), Phase("llm", "tokens")]
    dear = [phases[0], Phase("llm", "tokens", cost="quadratic:a=1,b=1")]
    for arguments, text in [
        ({"cost": "quadratic:a=1,b=1" if is_odd else "linear"}, "'cost' ('quadratic:a=1,b=1', not 'linear');"),
        ({"cut": MicroBatches(20, allow_empty=is_odd)}, "'cut.allow_empty' (True, not False);"),
        ({"phases": dear if is_odd else phases}, "'cost' of phase 'llm' ('quadratic:a=1,b=1', not 'linear');"),
    ]:
        with raises_on([last()], ExecutorError, f"rank {last()} differs from the others in setting {text}"):
            Dispatcher(**({} if "phases" in arguments else {"length": "tokens"}), **arguments)
    with raises_on([1], ArgumentError, "method must be"):
        Dispatcher(length="tokens", method="best" if rank == 1 else "auto")


def misheard(rank, change):
    """The last rank puts something else together than was said, as a faulty link would have it."""
    together = module.put_together

    def otherwise(said):
        gathered = together(said)
        return replace(gathered, columns=change(gathered.columns))

    return mock.patch.object(module, "put_together", otherwise if rank == last() else together)


@each_rank
def test_lengths_that_differ_are_named(rank):
    def longer(columns):
        return {"tokens": columns["tokens"] + np.eye(1, 3 * dist.get_world_size(), dtype=np.int64)[0]}

    def earlier(columns):  # the same numbers, but otherwise where those of a sample end
        ends = columns["images"].offsets.copy()
        ends[1] -= 1
        return {**columns, "images": Ragged(columns["images"].values, ends)}

    with (
        misheard(rank, longer),
        nothing_moves(),
        raises_on([last()], ExecutorError, "differs from the others in column 'tokens' ("),
    ):
        step(dispatcher(length="tokens"), rank)
    made = dispatcher(phases=[Phase("vision", "images"), Phase("llm", "tokens")])
    with (
        misheard(rank, earlier),
        nothing_moves(),
        raises_on([last()], ExecutorError, "differs from the others in column 'images' ("),
    ):
        made.dispatch({"id": [1, 2, 3]}, {"images": [[3, 4], [5], []], "tokens": [5, 1, 9]})
    step(dispatcher(length="tokens"), rank)  # and all go on


def planning(rank, odd, otherwise):
    return mock.patch.object(module, "plan_step", otherwise if rank in odd else module.plan_step)


@each_rank
def test_a_plan_that_differs_is_named(rank):
    plan_step = module.plan_step
    with (
        planning(rank, [last()], lambda step: as_step_plan(plan_step(step).last.inverse())),
        nothing_moves(),
        raises_on([last()], ExecutorError, "in the plan ("),
    ):
        step(dispatcher(length="tokens"), rank)
    step(dispatcher(length="tokens"), rank)


@pytest.mark.parametrize("way", ["replicate", "broadcast"])
@each_rank
def test_a_rank_that_cannot_plan_is_an_error_on_all(rank, way):
    odd = 0 if way == "broadcast" else last()
    with (
        planning(rank, [odd], mock.Mock(side_effect=MemoryError("no room to plan"))),
        nothing_moves(),
        raises_on([odd], MemoryError, "no room to plan"),
    ):
        step(dispatcher(length="tokens", planning=way), rank)
    step(dispatcher(length="tokens"), rank)
    for _ in range(2):
        with pytest.raises(InfeasibleError, match="max_tokens_per_rank"):  # what nobody can plan
            dispatcher(length="tokens", max_tokens_per_rank=3, planning="replicate").dispatch(
                {"id": [1]}, {"tokens": [4]}
            )


@each_rank
def test_errors_of_several_ranks_are_told_once_each_and_cut_short(rank):
    fails = mock.Mock(side_effect=MemoryError(f"no room for {rank % 2} " + "and more " * 99))
    with planning(rank, [0, 2, 3], fails), pytest.raises(MemoryError if rank != 1 else ExecutorError) as caught:
        step(dispatcher(length="tokens"), rank)
    if rank == 1:
        text = str(caught.value)
        assert caught.value.ranks == (0, 2, 3)
        assert text.startswith("ranks 0, 2 failed at planning: MemoryError: no room for 0 and more")
        assert "...; rank 3 failed at planning: MemoryError: no room for 1 and more" in text
        assert len(text) < 800


@each_rank
def test_methods_that_read_the_clock_are_planned_by_one(rank):
    made = Dispatcher(length="tokens", planning="broadcast", method="exact", time_budget=0.2)
    same_everywhere(step(made, rank).plan.digest())
    with pytest.raises(ValueError, match="planning='broadcast'"):
        Dispatcher(length="tokens", method="exact", time_budget=0.2)
    for arguments in ({"equal_counts": True}, {"cut": MicroBatches(50)}):  # a plan that was told is the one made
        told, own = (
            step(dispatcher(length="tokens", planning=way, **arguments), rank).plan
            for way in ("broadcast", "replicate")
        )
        assert told == own


# Replicas: ranks 2k and 2k + 1 hold the same share.


def replica_groups(rank):
    size = dist.get_world_size()
    peers = [dist.new_group(list(range(place, size, 2))) for place in range(2)]
    replicas = [dist.new_group([first, first + 1]) for first in range(0, size, 2)]
    return peers[rank % 2], replicas[rank // 2]


def same_as_peers(told):
    of_ranks = everywhere(told)
    assert of_ranks[0::2] == of_ranks[1::2]
    assert len({each[0] for each in of_ranks}) == 1  # the plan
    return of_ranks


@pytest.mark.parametrize("way", ["replicate", "broadcast"])
@each_rank
def test_replica_peers_get_the_samples_and_the_plan_of_their_leader(rank, way):
    group, replica = replica_groups(rank)
    made = Dispatcher(group, phases=PHASES, fields=FIELDS, planning=way, replica_group=replica)
    data, lengths = multimodal_batch(3, rank // 2, 4)
    out = made.dispatch(*((data, lengths) if rank % 2 == 0 else (None,)))
    model, pixels = Encoders(), stacked(out["pixels"], 4)
    own = model.embed(torch.cat(out["text"])) if out["text"] else torch.empty(0, WIDTH, dtype=torch.float64)
    inputs = out.inputs("llm", {"vision": model.images(pixels), "audio": model.audio(stacked(out["mel"], 3))}, own)
    inputs.values.sum().backward()
    assert out.restore()["id"] == data["id"] == out.restore(out["id"])
    grads = [None if p.grad is None else p.grad.tolist() for p in model.parameters()]
    same_as_peers((out.plan.digest(), out["id"], pixels.tolist(), inputs.values.tolist(), grads))


@each_rank
def test_a_replica_peer_that_differs_is_an_error_on_all(rank):
    group, replica = replica_groups(rank)
    with (
        mock.patch.object(module, "__version__", "9.9" if rank == 3 else "1.0"),
        pytest.raises(ExecutorError, match=r"replica peers of rank 1 differ in package version \('9\.9', not '1\.0'\)"),
    ):
        Dispatcher(group, length="tokens", replica_group=replica)
    made, plan_step = Dispatcher(group, length="tokens", replica_group=replica), module.plan_step
    with (
        planning(rank, [3], lambda step: as_step_plan(plan_step(step).last.inverse())),
        nothing_moves(),
        pytest.raises(ExecutorError, match=r"replica peers of rank 1 differ in the plan \(") as caught,
    ):
        step(made, rank // 2)
    assert caught.value.ranks == (1,)


# Ranks that are lost.


def prepares(rank):
    """Make what the cases below lose a rank of, and a first step, which may have kernels to compile."""
    global made
    made = Dispatcher(length="tokens", timeout=SHORT)
    step(made, rank)


def loses_one(rank, victim, where, way):
    """Make a step of which a rank is gone or stands still: before its lengths, or in the middle of the payload."""
    if rank == victim and where == "lengths":
        _end(way)
    if rank == victim:
        with mock.patch.object(Talking, "all_to_all", side_effect=lambda *_: _end(way)):
            step(made, rank)
    step(made, rank)


def loses_one_ahead(rank, victim):
    """A rank is gone while the others' threads make steps ahead."""
    batches = [{"id": [rank, rank]}] * 50
    loader = PrefetchDispatcher(batches, made, columns=lambda batch: {"tokens": [rank + 1, 5]})
    for number, _ in enumerate(loader):
        if rank == victim and number == 3:
            os._exit(7)


def _end(way):
    if way == "killed":
        os._exit(7)
    time.sleep(3600)


def assert_all_end(victim, function, *arguments, stopped=False, ends=False):
    """Lose a rank: all others raise within the timeout, and no process is left; each may end with its error."""
    with Ranks(4) as started:
        started.run(prepares)
        began = time.monotonic()
        started.start(function, victim, *arguments)
        if ends:
            started.end_after()
        replies = started.collect(patience=40, but=victim if stopped else None)
        assert time.monotonic() - began < SHORT.total_seconds() + 15  # of a machine that is busy
        if stopped:
            started.kill(victim, signal.SIGKILL)
        processes = [process.pid for process in started.processes]
    assert replies.pop(victim) is None
    for _, name, _, traceback in replies:
        assert name == "ExecutorError", traceback
        assert "some rank is gone or stands still" in traceback
    assert not [process for process in multiprocessing.active_children() if process.pid in processes]


@pytest.mark.parametrize("where", ["lengths", "payload"])
@pytest.mark.parametrize("way", ["killed", "stopped"])
def test_a_lost_rank_ends_all_others_in_time(where, way):
    assert_all_end(2, loses_one, where, way, stopped=way == "stopped")


def test_a_rank_lost_while_steps_are_made_ahead_ends_all_others():
    assert_all_end(2, loses_one_ahead, ends=True)


@each_rank
def test_a_late_rank_is_waited_for(rank):
    """A rank may be late by less than the timeout."""
    made = Dispatcher(length="tokens", timeout=SHORT)
    if rank == 0:
        time.sleep(0.5)
    step(made, rank)
