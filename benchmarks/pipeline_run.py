"""Planned pipelines run by PipelineRunner, beside what was predicted: stages sleep for their planned time.

Run: python benchmarks/pipeline_run.py. Samples of log-normal lengths, one replica, 4 and 8 processes on gloo; two cores
cannot compute in so many stages at once, so forwards and backwards sleep for what the plan says they take. A step is
measured from the begin of its first op to the end of its last, on any process, the lesser of two; predicted is the
plan's exact run. Planned ramps, equal micro-batches (as many samples in each) and LPT (loads as even as can be).
"""

import os
import sys
import time
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing
from torch import nn

import balancer
from balancer import Pipelines, PipelineStages
from balancer.problem.placement import Placement
from balancer.problem.step_times import ModuleRate, StepTimes

sys.path.insert(0, str(Path(__file__).parent.parent / "examples"))

from pipeline_runner import PipelineRunner

SECONDS, STEPS, PORT = 6.0, 2, 29577  # of a planned step, measured steps, of the store


class Sleeps(torch.autograd.Function):
    """Sleeps in the forward and in the backward."""

    @staticmethod
    def forward(ctx, x, ahead, back):
        ctx.back = back
        time.sleep(ahead)
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        time.sleep(ctx.back)
        NOTED.append(time.monotonic())
        return gradient, None, None


NOTED: list[float] = []


class Stage(nn.Module):
    """Takes and puts out one number a row."""

    def __init__(self):
        super().__init__()
        self.one = nn.Parameter(torch.ones(1))

    def forward(self, *given):
        times = next(each for each in given if isinstance(each, tuple))
        x = given[0] if isinstance(given[0], torch.Tensor) else torch.zeros(times[2], 1)
        NOTED.append(time.monotonic())
        return Sleeps.apply(x * self.one, *times[:2])


class Encoder(Stage):
    """Sleeps for what its rows say: each holds its part of the task's forward."""

    def forward(self, rows):
        seconds = float(rows.sum())
        NOTED.append(time.monotonic())
        return Sleeps.apply(rows.float() * self.one, seconds, 2 * seconds)


def placed(plan, slot):
    """Return a plan with its samples in other slots."""
    target = Placement.by_slots(np.zeros(len(slot), np.int32), slot, 1, plan.num_slots)
    return replace(plan, target=target, slot_of_sample=slot)


def lpt(lengths, slots):
    loads, slot = np.zeros(slots), np.zeros(len(lengths), np.int32)
    for i in np.argsort(-lengths, kind="stable"):
        slot[i] = loads.argmin()
        loads[slot[i]] += lengths[i]
    return slot


def plans(devices):
    """Yield the order, how samples came to slots, and the plan."""
    lengths = np.maximum(1, np.random.default_rng(0).lognormal(6, 0.9, 12 * devices)).astype(np.int64)
    slots = 3 * devices
    equal = (np.arange(len(lengths)) * slots // len(lengths)).astype(np.int32)
    for order, chunks in (("1F1B", 1), ("interleaved", 2)):
        stages = PipelineStages.of(devices * chunks, chunks=chunks)
        plan = balancer.balance(lengths, 1, cut=Pipelines(1 << 20, count=slots, stages=stages))
        yield order, "planned", plan
        yield order, "equal", placed(plan, equal)
        yield order, "LPT", placed(plan, lpt(lengths, slots))
    each, both = (1.0,) * devices, ("llm", "vision")
    times = StepTimes(
        "of the benchmark", ("llm",), ("vision",), 1, slots, 1, dict.fromkeys(both, (0, 1, 0)), {"vision": 64},
        dict.fromkeys(both, ModuleRate(1e-6, 0.0, 2)), ((1,) * devices,), (0.0,) * devices, (0.0,) * devices, 0.0,
        dict.fromkeys(both, each), dict.fromkeys(both, each), (1e12,) * devices,
    )  # fmt: skip
    table = {"text": lengths, "images": np.random.default_rng(1).integers(0, 5, len(lengths)) * 128}
    cut = Pipelines.in_gaps(times)
    step = balancer.orchestrate(table, {"vision": "images", "llm": "text"}, 1, cut=cut, time_budget=0.2)
    yield "1F1B, encoders in gaps", "planned", step


def seconds_of(llm, scale):
    """Return what each op takes, by stage and slot: forward, backward and rows."""
    stages = llm.cut.stages
    took = scale * (llm.work_of_slots[0] @ stages.both_ways)
    rows = np.bincount(llm.slot_of_sample, llm.lengths, llm.num_slots).astype(int)
    s = stages.num_stages
    return {i: [(took[k, i], took[k, s + i], int(rows[k])) for k in range(llm.num_slots)] for i in range(s)}


def images_of(llm, scale):
    """Return rows that add up to what each task's forward takes, by sample and item."""
    if llm.gaps is None:
        return {}
    takes = dict(zip(zip(*(each.tolist() for each in (llm.gaps.tasks.sample, llm.gaps.tasks.number)), strict=True),
                     llm.gaps.tasks.forward.tolist(), strict=True))  # fmt: skip
    found = {}
    for op in (op for device in range(llm.cut.stages.num_devices) for op in llm.device_ops(0, device)):
        if op.stage is None and not op.backward:
            (piece,) = op.pieces
            rows = found.setdefault((op.sample, piece.item), torch.zeros(1 << 10, 1, dtype=torch.float64))
            rows[piece.start : piece.stop] = scale * takes[op.sample, op.part] / (piece.stop - piece.start)
    return found


def measure(rank, devices, results):
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", f"tcp://127.0.0.1:{PORT}", rank=rank, world_size=devices)
    for order, how, plan in plans(devices):
        llm = plan["llm"] if order.endswith("gaps") else plan
        stages, makespan = llm.cut.stages, llm.pipeline_run(0).makespan
        if how == "planned":
            scale = SECONDS / makespan  # of all plans of this order, so that they can be compared
        outputs = dict.fromkeys([*range(stages.num_stages), "vision"], ((1,), torch.float32))
        modules = {s: Stage() for s in range(rank, stages.num_stages, devices)}
        encoders = {"vision": Encoder()} if llm.gaps is not None else {}
        runner = PipelineRunner(modules, outputs=outputs, loss=lambda out, _: out.sum(), encoders=encoders,
                                timeout=timedelta(minutes=1))  # fmt: skip
        inputs = {s: each for s, each in seconds_of(llm, scale).items() if s in modules}
        inputs["vision"] = images_of(llm, scale)
        took = []
        for _ in range(STEPS):
            NOTED.clear()
            runner.step(plan, inputs, [None] * llm.num_slots)
            ends = [None] * devices
            dist.all_gather_object(ends, (min(NOTED), max(NOTED)))
            took.append(max(last for _, last in ends) - min(first for first, _ in ends))
        if rank == 0:
            results.put((devices, order, how, scale * makespan, min(took)))
    dist.destroy_process_group()


def main():
    columns = "processes", "order", "slots", "predicted s", "measured s", "measured/predicted", "predicted/planned"
    print(f"| {' | '.join(columns)} | measured/planned |")
    print("|---|---|---|---|---|---|---|---|")
    for devices in [int(each) for each in sys.argv[1:]] or (4, 8):
        results = torch.multiprocessing.get_context("spawn").SimpleQueue()
        torch.multiprocessing.spawn(measure, (devices, results), devices)
        while not results.empty():
            processes, order, how, told, took = results.get()
            if how == "planned":
                base = told, took
            print(f"| {processes} | {order} | {how} | {told:.3f} | {took:.3f} | {took / told:.3f} | "
                  f"{told / base[0]:.3f} | {took / base[1]:.3f} |")  # fmt: skip


if __name__ == "__main__":
    main()
