"""Windows: what each GPU of a tensor group has of a buffer that all of them hold, gathered and cut; gradients too."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from balancer.executor.collectives import Collectives
from balancer.executor.peers import Peers
from balancer.plan.resharding import Shards

__all__ = ["Windows"]


@dataclass(frozen=True, slots=True, eq=False)
class Windows:
    """The windows of a GPU's tensor group."""

    group: Collectives
    order: NDArray[np.int64]  # where each element of the buffer is among the windows, one GPU's after the other
    size: int  # elements of each window

    @classmethod
    def of(cls, shards: Shards, phase: str, peers: Peers) -> "Windows | None":
        """Return them; None where the GPU has the whole buffer itself."""
        return None if shards.mesh.layout.tp == 1 else cls(peers.tensor[phase], *shards.gathered(peers.rank))

    @property
    def mine(self) -> slice:
        """The window of this GPU among all of them."""
        return slice(self.group.rank * self.size, (self.group.rank + 1) * self.size)

    def gathered(self, window: Tensor) -> Tensor:
        """Return the buffer, of any dtype, without gradients: it travels as bytes."""
        width = window[:1].numel() * window.element_size()
        if not width:
            return window.new_empty((len(self.order), *window.shape[1:]))
        as_bytes = window.reshape(-1).view(torch.uint8).view(self.size, width)
        found = self.group.all_gather(as_bytes)[_index(self.order, window)]
        return found.view(-1).view(window.dtype).view(-1, *window.shape[1:])

    def joined(self, window: Tensor) -> Tensor:
        """Return the buffer; its gradient is summed over the group."""
        whole: Tensor = _Gather.apply(window, _index(self.order, window), self.group)
        return whole

    def cut(self, buffer: Tensor) -> Tensor:
        """Return this GPU's window of a buffer that all of the group have; each gets the gradient of all windows."""
        window: Tensor = _Window.apply(buffer, _index(self.order, buffer), self)
        return window

    def taken(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return where in the buffer elements of this GPU's window are."""
        found = np.empty(self.size * self.group.size, dtype=np.int64)
        found[self.order] = np.arange(len(self.order))
        return found[self.mine][places]


class _Gather(torch.autograd.Function):
    """A GPU's buffer of the windows of its tensor group; backward, what all of them have for its window, summed."""

    @staticmethod
    def forward(ctx: Any, window: Tensor, order: Tensor, group: Collectives) -> Tensor:
        ctx.save_for_backward(order)
        ctx.group, ctx.size = group, len(window) * group.size
        return group.all_gather(window)[order]

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        (order,) = ctx.saved_tensors
        windows = gradient.new_zeros((ctx.size, *gradient.shape[1:]))
        windows[order] = gradient
        return ctx.group.reduce_scatter(windows), None, None


class _Window(torch.autograd.Function):
    """A GPU's window of a buffer that all of its tensor group have; backward, the buffer of their windows."""

    @staticmethod
    def forward(ctx: Any, buffer: Tensor, order: Tensor, of: Windows) -> Tensor:
        ctx.save_for_backward(order)
        ctx.group = of.group
        windows = buffer.new_zeros((of.size * of.group.size, *buffer.shape[1:]))
        windows[order] = buffer
        return windows[of.mine]

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        (order,) = ctx.saved_tensors
        return ctx.group.all_gather(gradient)[order], None, None


def _index(order: NDArray[np.int64], like: Tensor) -> Tensor:
    return torch.from_numpy(order).to(like.device)
