"""The loss that does not change under rearrangement: a sum over the global batch, divided by a global count."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

__all__ = ["anchored", "global_token_mean"]


class _GlobalMean(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, loss_sum: Tensor, mean: Tensor, scale: Tensor) -> Tensor:
        ctx.save_for_backward(scale)
        return mean.to(loss_sum.dtype).reshape(loss_sum.shape)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (scale,) = ctx.saved_tensors
        return gradients[0] * scale.to(gradients[0].dtype), None, None


def global_token_mean(loss_sum: Tensor, count: Tensor | int, group: Any = None, gradients: str = "averaged") -> Tensor:
    """Return the mean loss of the global batch, the same whichever rank computed which sample.

    Parameters
    ----------
    loss_sum : Tensor, scalar
        Sum of the losses of this rank's tokens; 0 with a graph where it has none, see :func:`anchored`.
    count : int or Tensor
        Tokens, or whatever was summed over, on this rank.
    group : ProcessGroup, optional
        The data-parallel group.
    gradients : str
        What the trainer does with the ranks' gradients: ``"averaged"`` (DDP, FSDP) or ``"summed"``.

    Returns
    -------
    Tensor, scalar
        Its value is (sum of all losses) / (sum of all counts) on every rank, 0 where there is no token; its gradient,
        averaged or summed over the ranks, is the gradient of that. Both sums are taken in float64, in one collective.
    """
    if gradients not in ("averaged", "summed"):
        raise ValueError(f"gradients must be 'averaged' or 'summed', got {gradients!r}")
    if loss_sum.numel() != 1:
        raise ValueError(f"loss_sum must be a scalar, got shape {tuple(loss_sum.shape)}; sum it")
    tokens = torch.as_tensor(count, dtype=torch.float64, device=loss_sum.device).detach().reshape(())
    totals = torch.stack([loss_sum.detach().to(torch.float64).reshape(()), tokens])
    dist.all_reduce(totals, group=group)
    share = torch.where(totals[1] > 0, 1.0 / totals[1].clamp(min=1e-300), 0.0)
    ranks = dist.get_world_size(group) if gradients == "averaged" else 1
    return _GlobalMean.apply(loss_sum, totals[0] * share, share * ranks)


def anchored(loss: Tensor, *exchanged: Tensor) -> Tensor:
    """Return the loss, with a graph that reaches the tensors even where a rank has none of their rows.

    Every rank must run the backward of every exchange. One that got no sample has a loss that depends on nothing; this
    adds the sum of no element of each tensor: 0, with gradients of 0.
    """
    for tensor in exchanged:
        loss = loss + tensor[:0].sum().to(loss.dtype)
    return loss
