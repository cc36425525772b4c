"""Windows: what each GPU of a tensor group has of a buffer that all of them hold, gathered and cut; gradients too."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from balancer.executor.collectives import Collectives
from balancer.executor.memory import bytes_of
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

    def joined(self, window: Tensor) -> Tensor:
        """Return the buffer, of any dtype: it travels as bytes. Its gradient is summed over the group."""
        whole: Tensor = _Gather.apply(window, self)
        return whole

    def cut(self, buffer: Tensor) -> Tensor:
        """Return this GPU's window of a buffer that all of the group have; each gets the gradient of all windows."""
        window: Tensor = _Window.apply(buffer, self)
        return window

    def in_buffer(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return where in the buffer elements of this GPU's window are."""
        found = np.empty(self.size * self.group.size, dtype=np.int64)
        found[self.order] = np.arange(len(self.order))
        return found[self.mine][places]

    def gathered(self, window: Tensor) -> Tensor:
        """Return the buffer without gradients."""
        width = window[:1].numel() * window.element_size()
        if not width:
            return window.new_empty((len(self.order), *window.shape[1:]))
        found = self.group.all_gather(bytes_of(window).view(self.size, width))[self.index(window)]
        return found.view(-1).view(window.dtype).view(-1, *window.shape[1:])

    def divided(self, buffer: Tensor) -> Tensor:
        """Return all windows of a buffer, one after the other."""
        windows = buffer.new_zeros((self.size * self.group.size, *buffer.shape[1:]))
        windows[self.index(buffer)] = buffer
        return windows

    def index(self, like: Tensor) -> Tensor:
        """Return the order where a tensor is."""
        return torch.from_numpy(self.order).to(like.device)


class _Gather(torch.autograd.Function):
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
        return of.divided(buffer)[of.mine]

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return ctx.of.gathered(gradient), None
