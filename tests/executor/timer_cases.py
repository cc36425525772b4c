"""A model that moves a clock by what its samples cost, alone and under DDP."""

import csv
from pathlib import Path
from unittest import mock

import torch
from torch.nn.parallel import DistributedDataParallel

from balancer.executor import StepTimer, step_timer

FIXED = 10


class Clock:
    now = 0.0


class _Moves(torch.autograd.Function):
    """Moves a clock forward in the forward pass, and in the backward pass before the gradients of the weights."""

    @staticmethod
    def forward(ctx, value, clock, lengths):
        ctx.clock, ctx.lengths = clock, lengths
        clock.now += sum(lengths) + FIXED
        return value.clone()

    @staticmethod
    def backward(ctx, gradient):
        ctx.clock.now += sum(n * n for n in ctx.lengths)
        return gradient, None, None


class Model(torch.nn.Module):
    """Takes the sum of lengths and ten forward, and the sum of their squares backward."""

    def __init__(self, clock):
        super().__init__()
        self.clock = clock
        self.first, self.last = torch.nn.Parameter(torch.ones(1)), torch.nn.Parameter(torch.ones(1))

    def forward(self, held):
        return (_Moves.apply(self.first, self.clock, [len(one) for one in held]) * self.last).sum()


def rows_of(path):
    with path.open(newline="") as file:
        header, *rows = csv.reader(file)
    assert header == ["step", "rank", "lengths", "seconds"]
    return [tuple(row) for row in rows]


def times_ddp(rank, folder):
    """Train a few steps with unequal lengths, where every all-reduce takes ages by the clock."""
    clock = Clock()
    model = DistributedDataParallel(Model(clock))

    def late(state, bucket):
        clock.now += 1000
        future = torch.futures.Future()
        future.set_result(bucket.buffer())
        return future

    model.register_comm_hook(None, late)
    lengths = [3 + rank, 20 - rank, 7]
    patched = mock.patch.object(step_timer.time, "thread_time", side_effect=lambda: clock.now)
    with patched, StepTimer(model, Path(folder) / "steps.csv", rank) as timer:
        for timer.step, length in enumerate(lengths):
            model([torch.zeros(length)]).backward()
    assert clock.now >= 3000
    return lengths, rows_of(Path(folder) / f"steps.{rank}.csv")
