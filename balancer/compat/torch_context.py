"""A load balancer for PyTorch's context parallelism: which tokens of a pack each rank gets, from this package's shards.

It is PyTorch's private ``_LoadBalancer``, which has no promise to stay; releases not tried are refused by name.
"""

from typing import Any

import numpy as np
import torch

from balancer.plan.context_rows import ShardRows
from solvers.context import ContextShardsResult
from solvers.errors import UsageError

__all__ = ["DocumentLoadBalancer"]

TRIED = ("2.13",)
"""Releases of PyTorch whose load balancers are as this one is."""

_RELEASE = ".".join(torch.__version__.split(".")[:2])


def check_release(release: str) -> None:
    """Raise ImportError unless a release of PyTorch was tried."""
    if release not in TRIED:
        raise ImportError(
            f"balancer.compat.torch_context was tried with torch {', '.join(TRIED)} alone, got torch {release}: it "
            "builds on a private class of PyTorch; take the order from ContextExchange.index instead"
        )


# Before the import: another release may lack the class or, worse, mean something else by it.
check_release(_RELEASE)

from torch.distributed.tensor.experimental._context_parallel._load_balancer import _LoadBalancer  # noqa: E402


class DocumentLoadBalancer(_LoadBalancer):  # type: ignore[misc]  # which PyTorch does not type
    """Orders a pack's tokens so that PyTorch's equal chunks are the shards of :func:`solvers.context_shards`.

    For ``_context_parallel_shard`` and ``context_parallel_unshard``, and wherever a trainer takes a load balancer of
    PyTorch's or its indices. PyTorch gathers all keys and values whatever the order: it gains even work, and nothing of
    what travels. :class:`balancer.executor.ContextExchange` brings the rows that are needed alone.

    Parameters
    ----------
    shards : ContextShardsResult or ShardRows
        What the solver found with as many tokens on each rank: without ``token_slack``, padded if need be.
    masks : optional
        Those the shards were made with.
    device : torch.device or str
        Where the indices are.

    Raises
    ------
    UsageError
        Ranks have unequal numbers of tokens; shards of other masks.

    Examples
    --------
    >>> import solvers
    >>> balancer = DocumentLoadBalancer(solvers.context_shards([6, 2], 2, block=1))
    >>> balancer.indices().shape
    torch.Size([8])
    """

    def __init__(
        self, shards: ContextShardsResult | ShardRows, *, masks: Any = None, device: torch.device | str = "cpu",
    ) -> None:  # fmt: skip
        rows = shards if isinstance(shards, ShardRows) else ShardRows.from_result(shards, masks)
        tokens = [rows.tokens_of(rank) for rank in range(rows.num_ranks)]
        counts = [len(each) for each in tokens]
        if min(counts) < max(counts):
            raise UsageError(
                f"shards must have as many tokens on each rank, as PyTorch cuts equal chunks, got {min(counts)} to "
                f"{max(counts)}; leave token_slack out, and take pad=True"
            )
        order = np.concatenate(tokens)
        self._order, self._back = (torch.from_numpy(each).to(device) for each in (order, np.argsort(order)))

    def indices(self, restore: bool = False) -> torch.Tensor:
        """Return where each token of the new order was, or, to restore, where each token is in it: int64[T]."""
        return self._back if restore else self._order

    def _generate_indices(self, restore: bool = False) -> torch.Tensor:
        """Return the same as PyTorch asks for it: int64[1, T], for all rows of a batch."""
        return self.indices(restore).unsqueeze(0)
