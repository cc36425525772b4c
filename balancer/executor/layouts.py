"""Unlike layouts: a GPU gets its window of its shard's buffer, and gathers the others' in its tensor group."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from balancer.executor.exchange import bytes_of
from balancer.executor.moves import OwnPart, Segments
from balancer.executor.ranks import Ranks
from balancer.layouts.resharding import Resharding, Shards, Source
from balancer.layouts.setup import LaidOutSetup
from balancer.layouts.step_plan import ends_of, reshard_on
from balancer.plan.pieces import Pieces
from balancer.plan.step_plan import StepPlan, own_name
from balancer.problem.placement import Placement
from balancer.problem.ragged import Ragged, offsets_of
from balancer.problem.setup import Setup

__all__ = ["Windows", "inputs_in_windows", "parts_from_home", "put_out_by", "rows_of_gpus", "tensor_groups"]


def tensor_groups(setup: Setup, ranks: Ranks) -> dict[str, Ranks]:
    """Make by phase the tensor group of this GPU, where it has several. All GPUs call this."""
    found: dict[str, Ranks] = {}
    if not isinstance(setup, LaidOutSetup):
        return found
    for name in setup.layout.modules:
        mesh = setup.mesh_of(name)
        if mesh.layout.tp > 1:
            device, replica, shard, _ = mesh.place_of(ranks.rank)
            # Its members alone take part: no GPU waits for groups that it is not in.
            found[name] = Ranks(ranks.group_of(mesh.gpus[device, replica, shard].tolist()), None, ranks.timeout)
    return found


def rows_of_gpus(shards: Shards, num_gpus: int) -> Ragged:
    """Return the items of each GPU: all of its replica's."""
    of_replica = Ragged(shards.place.samples, shards.place.offsets)
    return of_replica.take(shards.mesh.replica_of_gpu(num_gpus).astype(np.int64))


def parts_from_home(
    name: str, home: Placement, shards: Shards, gpu: int, num_gpus: int, devices: Sequence[int]
) -> OwnPart:
    """Return a GPU's part in how items get from home into the windows of all GPUs of some pipeline devices."""
    whole = Source(Pieces.whole(home, shards.lengths))
    return OwnPart.of_resharding(Resharding.on(gpu, name, [whole], shards, num_gpus, devices))


class Windows(NamedTuple):
    """The windows of a GPU's tensor group, each a part of a buffer that all of them are to have."""

    group: Ranks
    order: Tensor  # int64[elements]: where each element of the buffer is among the windows, one GPU's after the other
    size: int  # elements of each window

    @classmethod
    def of(cls, shards: Shards, phase: str, ranks: Ranks) -> "Windows | None":
        """Return them; None where the GPU has the whole buffer itself."""
        if shards.mesh.layout.tp == 1:
            return None
        order, size = shards.gathered(ranks.rank)
        return cls(ranks.tensor[phase], torch.from_numpy(order), size)

    def joined(self, window: Tensor) -> Tensor:
        """Return the buffer, of any dtype. Its gradient is summed over the group."""
        whole: Tensor = _Joined.apply(window, self)
        return whole

    def cut(self, buffer: Tensor) -> Tensor:
        """Return this GPU's window of a buffer that all of the group have; each gets the gradient of all windows."""
        window: Tensor = _Window.apply(buffer, self)
        return window

    def gathered(self, window: Tensor) -> Tensor:
        """Return the buffer without gradients; it travels as bytes."""
        width = window[:1].numel() * window.element_size()
        if not width:
            return window.new_empty((len(self.order), *window.shape[1:]))
        found = self.group.all_gather(bytes_of(window).view(self.size, width))[self.order.to(window.device)]
        return found.view(-1).view(window.dtype).view(-1, *window.shape[1:])

    def divided(self, buffer: Tensor) -> Tensor:
        """Return all windows of a buffer, one after the other."""
        windows = buffer.new_zeros((self.size * self.group.size, *buffer.shape[1:]))
        windows[self.order.to(buffer.device)] = buffer
        return windows

    def mine(self, buffer: Tensor) -> Tensor:
        """Return this GPU's window of a buffer."""
        return self.divided(buffer)[self.group.rank * self.size : (self.group.rank + 1) * self.size]


class _Joined(torch.autograd.Function):
    """A GPU's buffer of the windows of its tensor group; backward, what all of them have for its window, summed."""

    @staticmethod
    def forward(ctx: Any, window: Tensor, of: Windows) -> Tensor:
        ctx.of = of
        return of.gathered(window)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return ctx.of.group.reduce_scatter(ctx.of.divided(gradient)), None


class _Window(torch.autograd.Function):
    """A GPU's window of a buffer that all of its tensor group have; backward, the buffer of their windows."""

    @staticmethod
    def forward(ctx: Any, buffer: Tensor, of: Windows) -> Tensor:
        ctx.of = of
        return of.mine(buffer)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return ctx.of.gathered(gradient), None


def inputs_in_windows(step: StepPlan, phase: str, gpu: int) -> OwnPart:
    """Return a GPU's part in how what encoders put out comes into windows.

    Behind what it puts in stand its own pieces, which only move there: one move does both, so that one backward brings
    all gradients.
    """
    outs, own = step.parts[phase].streams[:-1], own_name(phase)
    moved = OwnPart.of_resharding(reshard_on(step, gpu, f"{phase}:inputs", outs))
    there = Segments.of_resharding(reshard_on(step, gpu, own)[1])  # side by side before, in the order they arrived in
    size = np.zeros_like(there.before)
    size[gpu] = there.size.sum()
    kept = there._replace(source=there.target, source_at=offsets_of(there.size)[:-1], before=size)
    return OwnPart(*(Segments.one_after_another([each, kept]) for each in moved))


def put_out_by(step: StepPlan, phase: str) -> Shards:
    """Return what an encoder puts out on its GPUs."""
    (source,), _, _ = ends_of(step, f"{phase}:out")
    if not isinstance(source.held, Shards):
        raise TypeError(f"{phase!r} must put out shards")
    return source.held
