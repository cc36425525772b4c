"""The loss that does not change under rearrangement: a sum over the global batch, divided by a global count."""

from numbers import Real
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from balancer.executor.fields import RaggedTensor

__all__ = ["anchored", "count_labels", "global_token_mean"]

IGNORED = -100
"""The label of a token that no loss counts."""


class _GlobalMean(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, loss_sum: Tensor, mean: Tensor, scale: Tensor) -> Tensor:
        ctx.save_for_backward(scale)
        return mean.to(loss_sum.dtype).reshape(loss_sum.shape)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (scale,) = ctx.saved_tensors
        return gradients[0] * scale.to(gradients[0].dtype), None, None


def count_labels(labels: Any, *, shift: bool = True) -> Tensor:
    """Return how many labels the loss of a language model counts: those that are not -100.

    Parameters
    ----------
    labels : list of Tensor[..., length], Tensor[rows, length], nested tensor, or RaggedTensor
        A row a sample, padded with -100 or not at all.
    shift : bool
        Whether the model shifts labels, as causal language models of transformers do: then the first of a row is the
        label of no token. False for labels that are shifted before, or belong to the token at their own place.

    Returns
    -------
    Tensor, int64 scalar
        Where the labels are; no device is waited for.

    Raises
    ------
    ValueError
        Labels that are no rows: one number a sample, or a Tensor of one dimension of which the first would be left out.

    Examples
    --------
    >>> rows = [torch.tensor([-100, -100, 5, 7]), torch.tensor([3, 1])]
    >>> int(count_labels(rows)), int(count_labels(rows, shift=False))
    (3, 4)
    """
    if isinstance(labels, RaggedTensor):
        labels = labels.rows()
    elif isinstance(labels, Tensor):
        if labels.ndim < 2 and shift:
            raise ValueError(
                f"labels must have a row of labels for each sample, got shape {tuple(labels.shape)}; for one label a "
                "sample give shift=False, for one row labels[None]"
            )
        labels = labels.unbind() if labels.is_nested else [labels]
    rows = [torch.as_tensor(row) for row in labels]
    if any(row.ndim == 0 for row in rows):
        raise ValueError("labels must have a row of labels for each sample, got one number a sample")
    counted = [row[..., int(shift) :].reshape(-1) for row in rows]
    return (torch.cat(counted) != IGNORED).sum() if counted else torch.zeros((), dtype=torch.int64)


def global_token_mean(loss_sum: Tensor, count: Tensor | int, group: Any = None, gradients: str = "averaged") -> Tensor:
    """Return the mean loss of the global batch, the same whichever rank computed which sample.

    Parameters
    ----------
    loss_sum : Tensor, scalar
        Sum of the losses of this rank's tokens; 0 with a graph where it has none, see :func:`anchored`. Where `count`
        is 0 it may be not a number, as a mean over no token is.
    count : int or Tensor
        Tokens, or whatever was summed over, on this rank: what the loss counts, see :func:`count_labels`.
    group : ProcessGroup, optional
        The data-parallel group; by default all ranks, or this process alone where torch.distributed was not begun.
    gradients : str
        What the trainer does with the ranks' gradients: ``"averaged"`` (DDP, FSDP) or ``"summed"``.

    Returns
    -------
    Tensor, scalar
        Its value is (sum of all losses) / (sum of all counts) on every rank, 0 where there is no token; its gradient,
        averaged or summed over the ranks, is the gradient of that. Both sums are taken in float64, in one collective.

    Raises
    ------
    ValueError
        On all ranks, if some rank's count cannot be that of its batch: negative, infinite or not a number, or 0 beside
        a loss that is not 0. On a device that would be waited for the loss is not a number instead.
    """
    if gradients not in ("averaged", "summed"):
        raise ValueError(f"gradients must be 'averaged' or 'summed', got {gradients!r}")
    if not isinstance(loss_sum, Tensor) or loss_sum.numel() != 1:
        shown = f"shape {tuple(loss_sum.shape)}; sum it" if isinstance(loss_sum, Tensor) else type(loss_sum).__name__
        raise ValueError(f"loss_sum must be a scalar tensor, got {shown}")
    if not isinstance(count, Real) and not (isinstance(count, Tensor) and count.numel() == 1):
        shown = f"shape {tuple(count.shape)}" if isinstance(count, Tensor) else type(count).__name__
        raise ValueError(f"count must be one number, got {shown}; of labels it is count_labels(labels)")
    total = loss_sum.detach().to(torch.float64).reshape(())
    tokens = torch.as_tensor(count, dtype=torch.float64, device=loss_sum.device).detach().reshape(())
    total = torch.where((tokens == 0) & total.isnan(), 0.0, total)
    possible = tokens.isfinite() & (tokens >= 0) & ((tokens > 0) | (total == 0))
    # Both sums in one collective; a count that cannot be makes them not a number on all ranks, which then raise alike.
    totals = torch.stack([total, torch.where(possible, tokens, torch.nan)])
    alone = group is None and not dist.is_initialized()  # one process, as where a loop is tried out
    if not alone:
        dist.all_reduce(totals, group=group)
    if totals.device.type == "cpu" and totals[1].isnan():
        raise ValueError(
            _why_not(float(tokens), float(total)) if not possible else "count of another rank cannot be so"
        )
    share = torch.where(totals[1] == 0, 0.0, 1.0 / totals[1])
    ranks = dist.get_world_size(group) if gradients == "averaged" and not alone else 1
    return _GlobalMean.apply(loss_sum, totals[0] * share, share * ranks)


def _why_not(tokens: float, total: float) -> str:
    if tokens == 0:
        return f"count must be that of the tokens whose losses were summed, got 0 beside a loss_sum of {total:g}"
    return f"count must be a finite number >= 0, got {tokens:g}; of labels it is count_labels(labels)"


def anchored(loss: Tensor, *exchanged: Tensor) -> Tensor:
    """Return the loss, with a graph that reaches the tensors even where a rank has none of their rows.

    Every rank must run the backward of every exchange. One that got no sample has a loss that depends on nothing; this
    adds the sum of no element of each tensor: 0, with gradients of 0.
    """
    for tensor in exchanged:
        loss = loss + tensor[:0].sum().to(loss.dtype)
    return loss
