"""One phase's problem: a global batch, the ranks it is for, what it costs, and what the plan must keep to."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from balancer.batch import GlobalBatch
from balancer.cost import CostModel
from balancer.topology import Topology
from solvers.arguments import as_count
from solvers.errors import InfeasibleError

__all__ = ["Problem"]


@dataclass(frozen=True, slots=True, eq=False)
class Problem:
    """What the planner solves; :meth:`of` checks it.

    Attributes
    ----------
    batch : GlobalBatch
    topology : Topology
    cost : CostModel
    costs : int64[n]
        Cost of each sample.
    equal_counts : bool
        Every rank gets n/ranks samples, within one where that does not divide.
    max_tokens_per_rank : int or None
        No rank gets more elements than this, padding included where the cost model pads.
    """

    batch: GlobalBatch
    topology: Topology
    cost: CostModel
    costs: NDArray[np.int64]
    equal_counts: bool = False
    max_tokens_per_rank: int | None = None

    @classmethod
    def of(
        cls,
        batch: GlobalBatch,
        topology: Topology,
        cost: CostModel,
        *,
        equal_counts: bool = False,
        max_tokens_per_rank: int | None = None,
    ) -> "Problem":
        """Cost the batch and check that the problem can have a solution.

        Raises
        ------
        ValueError
            A cost or a sum of costs that does not fit int64, naming the sample.
        InfeasibleError
            A token cap that a sample, or all of them together, exceed; it says by how much.
        """
        costs = cost.sample_costs(batch.lengths, batch.first_sample)
        if max_tokens_per_rank is not None:
            max_tokens_per_rank = as_count("max_tokens_per_rank", max_tokens_per_rank)
            _check_cap(batch, topology.num_ranks, max_tokens_per_rank)
        return cls(batch, topology, cost, costs, bool(equal_counts), max_tokens_per_rank)


def _check_cap(batch: GlobalBatch, num_ranks: int, cap: int) -> None:
    lengths = batch.lengths
    if len(lengths) and lengths.max() > cap:
        sample = int(np.argmax(lengths))
        raise InfeasibleError(
            f"sample {batch.first_sample + sample} has length {lengths[sample]}, {lengths[sample] - cap} more than "
            f"max_tokens_per_rank = {cap}"
        )
    total, room = sum(lengths.tolist()), cap * num_ranks
    if total > room:
        raise InfeasibleError(
            f"the batch has {total} tokens, {total - room} more than {num_ranks} ranks hold with "
            f"max_tokens_per_rank = {cap}"
        )
