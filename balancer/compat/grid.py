"""A global batch as micro-batches under a cap, for trainers with a batcher of their own: torchtitan, VeOmni."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from numpy.typing import ArrayLike

from balancer.cost import CostModel
from balancer.planner import balance
from balancer.problem.cuts.micro_batches import MicroBatches
from balancer.problem.limits import AnyLimit

__all__ = ["micro_batch_grid"]


def micro_batch_grid(
    lengths: ArrayLike,
    num_ranks: int,
    micro_batch_tokens: int,
    *,
    cost: str | CostModel | ArrayLike = "linear",
    sync: str = "micro_batch",
    micro_batches: int | None = None,
    multiple_of: int = 1,
    over_long: str = "error",
    limits: Sequence[AnyLimit] = (),
    **constraints: Any,
) -> list[list[list[int]]]:
    """Plan a global batch as micro-batches under a cap on tokens, equally many on every rank and of like cost.

    Parameters
    ----------
    lengths : int64[n]
    num_ranks : int
    micro_batch_tokens : int
        Never exceeded.
    cost : str, CostModel, or one number a sample
        As :func:`balancer.balance` takes it.
    sync : str
        As :class:`balancer.MicroBatches` has it.
    micro_batches : int, optional
        Number for each rank; by default the number that takes the least time.
    multiple_of : int
        Their number is a multiple of this, such as the pipeline's micro-batches.
    over_long : str
        What happens to a sample above the cap, as in :class:`balancer.MicroBatches`.
    limits : list of Limit, CountLimit, PaddedLimit, Kinds or Everywhere
        What else a micro-batch may hold, as in :class:`balancer.MicroBatches`.
    **constraints
        Of :func:`balancer.balance`: ``caps``, ``keep_together``, ``equal_counts``.

    Returns
    -------
    list of list of list of int
        ``grid[k][rank]``: which samples, ascending; none is empty, and each sample is there once.

    Raises
    ------
    InfeasibleError
        No such grid.

    Examples
    --------
    >>> micro_batch_grid([7, 5, 4, 4, 3, 1, 8], num_ranks=2, micro_batch_tokens=8)
    [[[6], [0, 5]], [[1, 4], [2, 3]]]
    """
    cut = MicroBatches(
        micro_batch_tokens,
        sync,
        count=micro_batches,
        multiple_of=multiple_of,
        over_long=over_long,
        limits=tuple(limits),
    )
    plan = balance(lengths, num_ranks, cost=cost, cut=cut, **constraints)
    return [
        [sorted(plan.samples_in_slot(rank, slot).tolist()) for rank in range(num_ranks)]
        for slot in range(plan.num_slots)
    ]
