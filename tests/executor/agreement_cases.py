"""What ranks do in tests of agreement and of failures: something goes wrong on some rank, and all must hear of it."""

import os
import time
from dataclasses import replace
from datetime import timedelta
from itertools import pairwise
from unittest import mock

import numpy as np
import torch
import torch.distributed as dist
from dispatch_cases import WIDTH, dispatcher

from balancer import MicroBatches, Phase, Pipelines
from balancer.executor import Dispatcher, PrefetchDispatcher
from balancer.executor import dispatcher as module
from balancer.executor.ranks import Ranks
from balancer.plan.step_plan import as_step_plan
from balancer.problem.ragged import Ragged

LENGTHS = [5, 1, 9]
SHORT = timedelta(seconds=20)

made = None


def step(made, rank):
    return made.dispatch({"id": [f"{rank}.{i}" for i in range(3)]}, {"tokens": [length + rank for length in LENGTHS]})


def nothing_moves():
    """Fail if a payload is moved, for as long as this is entered."""
    return mock.patch.object(Ranks, "all_to_all", side_effect=AssertionError("payload moved"))


def other_version(rank, odd):
    with mock.patch.object(module, "__version__", "9.9" if rank in odd else "1.0"):
        Dispatcher(length="tokens")


def misheard(rank, odd, change):
    """Rank `odd` puts something else together than was said, as a faulty link would have it."""
    together = module.put_together

    def otherwise(said):
        gathered = together(said)
        return replace(gathered, columns=change(gathered.columns))

    return mock.patch.object(module, "put_together", otherwise if rank == odd else together)


def other_lengths(rank, odd):
    def longer(columns):
        return {"tokens": columns["tokens"] + np.eye(1, 3 * dist.get_world_size(), dtype=np.int64)[0]}

    with misheard(rank, odd, longer), nothing_moves():
        step(dispatcher(length="tokens"), rank)


def other_ends(rank, odd):
    """Rank `odd` heard the same numbers, but otherwise where those of a sample end."""
    made = dispatcher(phases=[Phase("vision", "images"), Phase("llm", "tokens")])

    def earlier(columns):
        ends = columns["images"].offsets.copy()
        ends[1] -= 1
        return {**columns, "images": Ragged(columns["images"].values, ends)}

    with misheard(rank, odd, earlier), nothing_moves():
        made.dispatch({"id": [f"{rank}.{i}" for i in range(3)]}, {"images": [[3, 4], [5], []], "tokens": LENGTHS})


def other_settings(rank, odd):
    Dispatcher(length="tokens", cost="quadratic:a=1,b=1" if rank == odd else "linear")


def other_micro_batches(rank, odd):
    Dispatcher(length="tokens", cut=MicroBatches(20, allow_empty=rank == odd))


def other_phases(rank, odd):
    """Rank `odd` was given another cost of one phase."""
    odd_ones = {"cost": "quadratic:a=1,b=1"} if rank == odd else {}
    Dispatcher(phases=[Phase("vision", "tokens"), Phase("llm", "tokens", **odd_ones)])


def settings_that_cannot_be(rank, odd):
    Dispatcher(length="tokens", **({"method": "best"} if rank == odd else {}))


def other_plan(rank, odd):
    """Rank `odd` computes another plan of the same inputs, as an unstable sort would."""
    plan_step = module.plan_step

    def other(step):
        return as_step_plan(plan_step(step).last.inverse())

    with mock.patch.object(module, "plan_step", other if rank == odd else plan_step), nothing_moves():
        step(dispatcher(length="tokens"), rank)


def one_cannot_plan(rank, odd, way):
    plan_step = module.plan_step

    def fails(step):
        raise MemoryError("no room to plan")

    with mock.patch.object(module, "plan_step", fails if rank == odd else plan_step), nothing_moves():
        step(dispatcher(length="tokens", planning=way), rank)


def all_cannot_plan(rank, odd):
    """Every rank but one fails, two of them alike, with a long message."""
    plan_step = module.plan_step

    def fails(step):
        if rank == odd:
            return plan_step(step)
        raise MemoryError(f"no room for {rank % 2} " + "and more " * 99)

    with mock.patch.object(module, "plan_step", fails), nothing_moves():
        step(dispatcher(length="tokens"), rank)


def infeasible(rank):
    dispatcher(length="tokens", max_tokens_per_rank=3).dispatch({"id": [1]}, {"tokens": [4]})


def goes_on(rank):
    """After all of these errors the same dispatcher works."""
    return step(dispatcher(length="tokens"), rank)["id"]


def clock(rank, way):
    return step(Dispatcher(length="tokens", planning=way, method="exact", time_budget=0.2), rank).plan.digest()


def plans_for_all(rank):
    """A plan told by another rank equals the one it made, certificate and all."""
    from dispatch_cases import FIELDS, PHASES, multimodal_batch

    told, own = (
        step(dispatcher(length="tokens", planning=way, equal_counts=True), rank).plan
        for way in ("broadcast", "replicate")
    )
    assert told == own
    data, lengths = multimodal_batch(1, rank, 4)
    told, own = (
        dispatcher(phases=PHASES, fields=FIELDS, planning=way).dispatch(data, lengths).plan
        for way in ("broadcast", "replicate")
    )
    assert told.digest() == own.digest()
    assert all(told[name] == own[name] for name in own.phases)
    lengths = np.random.default_rng(rank).integers(1, 20, 8)
    told, own = (
        dispatcher(length="tokens", planning=way, cut=MicroBatches(50)).dispatch(
            {"id": list(range(8))}, {"tokens": lengths}
        ).plan
        for way in ("broadcast", "replicate")
    )  # fmt: skip
    assert told == own


# Replicas: ranks 2k and 2k + 1 hold the same share.


def replica_groups(rank):
    size = dist.get_world_size()
    peers = [dist.new_group(list(range(place, size, 2))) for place in range(2)]
    replicas = [dist.new_group([first, first + 1]) for first in range(0, size, 2)]
    return peers[rank % 2], replicas[rank // 2]


def replicas_get_the_same(rank, way):
    from dispatch_cases import FIELDS, PHASES, Encoders, multimodal_batch, stacked

    group, replica = replica_groups(rank)
    made = Dispatcher(group, phases=PHASES, fields=FIELDS, planning=way, replica_group=replica)
    data, lengths = multimodal_batch(3, rank // 2, 4)
    out = made.dispatch(*((data, lengths) if rank % 2 == 0 else (None,)))
    model = Encoders()
    pixels = stacked(out["pixels"], 4)
    own = model.embed(torch.cat(out["text"])) if out["text"] else torch.empty(0, WIDTH, dtype=torch.float64)
    inputs = out.inputs("llm", {"vision": model.images(pixels), "audio": model.audio(stacked(out["mel"], 3))}, own)
    inputs.values.sum().backward()
    home = out.restore()
    assert home["id"] == data["id"]
    assert out.restore(out["id"]) == data["id"]
    grads = [None if p.grad is None else p.grad.tolist() for p in model.parameters()]
    return out.plan.digest(), out["id"], pixels.tolist(), inputs.values.tolist(), grads


def pipelines_get_their_slots(rank, way):
    from balancer import PipelineStages

    group, replica = replica_groups(rank)
    stages = PipelineStages.of({"vision": 1, "llm": 1})
    made = Dispatcher(
        group, phases=[Phase("vision", "patches"), Phase("llm", "tokens", own="tokens")], planning=way,
        replica_group=replica, cut=Pipelines(90, count=3, stages=stages),
    )  # fmt: skip
    lengths = np.random.default_rng(rank // 2).integers(1, 20, (2, 8))
    given = {"patches": lengths[0], "tokens": lengths[1]}
    out = made.dispatch(*(({"id": [10 * rank + i for i in range(8)]}, given) if rank % 2 == 0 else (None,)))
    plan, mine = out.plan["llm"], rank // 2
    bounds = out.slot_bounds("llm")
    assert out["id"] == [20 * (s // 8) + s % 8 for s in plan.samples_on_rank(mine).tolist()]
    slots = [out["id"][start:stop] for start, stop in pairwise(bounds)]
    return out.plan.digest(), slots, plan.makespan, plan.pipeline_run(mine).makespan


def replica_with_other_version(rank):
    group, replica = replica_groups(rank)
    with mock.patch.object(module, "__version__", "9.9" if rank == 3 else "1.0"):
        Dispatcher(group, length="tokens", replica_group=replica)


def replica_with_another_plan(rank):
    group, replica = replica_groups(rank)
    made, plan_step = Dispatcher(group, length="tokens", replica_group=replica), module.plan_step

    def other(step):
        return as_step_plan(plan_step(step).last.inverse())

    with mock.patch.object(module, "plan_step", other if rank == 3 else plan_step), nothing_moves():
        step(made, rank // 2)


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
        with mock.patch.object(Ranks, "all_to_all", side_effect=lambda *_: _end(way)):
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


def rank_that_joins_late(rank):
    """A rank may be late by less than the timeout."""
    made = Dispatcher(length="tokens", timeout=timedelta(seconds=4.5))
    if rank == 0:
        time.sleep(2)
    return step(made, rank)["id"]


def one_rank_over_the_cap(rank):
    from balancer.compat.verl import rearrange_micro_batches_idx

    return rearrange_micro_batches_idx([[7, 9, 7], [1, 1]][rank], 8, dp_group=dist.group.WORLD)


def as_many_micro_batches(rank):
    from balancer.compat.verl import rearrange_micro_batches_idx

    return rearrange_micro_batches_idx([[7, 7, 7], [1, 1]][rank], 8, dp_group=dist.group.WORLD)
