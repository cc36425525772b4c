"""A packing scheduler for Megatron-core and Megatron-Bridge, in place of ``dp_balanced``."""

from collections.abc import Iterable

from balancer.compat.grid import micro_batch_grid
from balancer.compat.verl import WORKLOAD
from solvers.arguments import as_count
from solvers.errors import UsageError

__all__ = ["BalancedPackingScheduler", "patch"]


class BalancedPackingScheduler:
    """Packs samples into micro-batches of like work for all data-parallel ranks, as many on each.

    It has the constructor of Megatron-core's ``DefaultDynamicCPScheduler`` and its ``get_groups_and_subsamples``; what
    moves the samples is Megatron's own ``run`` (:func:`patch`). Context parallelism is that of the job: `cp_size`
    consecutive ranks share every pack, as with ``dp_balanced``; none is chosen by length.

    Parameters
    ----------
    max_seqlen_per_dp_cp_rank : int
        Tokens that a rank holds: a pack has at most `cp_size` times as many.
    cp_size, dp_size : int
    microbatch_group_size_per_vp_stage : int, optional
        The number of micro-batches is a multiple of this.
    max_num_seqs : int, optional
        Not kept here, and refused.
    min_cp_size : int
        Must be 1: no sample gets more ranks than another.

    Attributes
    ----------
    cost : str
        What a sample costs, for all schedulers; as :func:`balancer.balance` takes it.
    """

    cost = WORKLOAD

    def __init__(
        self,
        max_seqlen_per_dp_cp_rank: int,
        cp_size: int,
        dp_size: int,
        microbatch_group_size_per_vp_stage: int | None = None,
        max_num_seqs: int | None = None,
        min_cp_size: int = 1,
    ) -> None:
        self.max_seqlen_per_dp_cp_rank = as_count("max_seqlen_per_dp_cp_rank", max_seqlen_per_dp_cp_rank)
        self.cp_size, self.dp_size = as_count("cp_size", cp_size), as_count("dp_size", dp_size)
        self.microbatch_group_size_per_vp_stage = microbatch_group_size_per_vp_stage
        self.max_num_seqs, self.min_cp_size = max_num_seqs, min_cp_size
        self.max_seq_len_all_ranks = self.max_seqlen_per_dp_cp_rank * self.cp_size
        self.is_dynamic_cp = False
        for name, value, kept in ("max_num_seqs", max_num_seqs, None), ("min_cp_size", min_cp_size, 1):
            if value != kept:
                raise UsageError(f"{name} must be {kept}, got {value}: this scheduler packs by tokens alone")

    def get_groups_and_subsamples(self, sample_id_seqlens: Iterable[tuple[int, int]]) -> list[list[list[int]]]:
        """Return of each micro-batch and rank the ids that it computes.

        Parameters
        ----------
        sample_id_seqlens : sequence of (int, int)
            Ids and lengths.

        Returns
        -------
        list of list of list of int
            ``groups[k][rank]``, of ``cp_size * dp_size`` ranks; an id stands on the `cp_size` ranks that share it.

        Raises
        ------
        InfeasibleError
            A sample longer than a pack, or fewer samples than packs.

        Examples
        --------
        >>> scheduler = BalancedPackingScheduler(8, cp_size=1, dp_size=2, microbatch_group_size_per_vp_stage=None)
        >>> scheduler.get_groups_and_subsamples([(10, 7), (11, 5), (12, 4), (13, 4), (14, 3), (15, 1)])
        [[[10], [12, 14]], [[11], [13, 15]]]
        """
        ids, lengths = zip(*sample_id_seqlens, strict=True)
        grid = micro_batch_grid(
            [int(length) for length in lengths], self.dp_size, self.max_seq_len_all_ranks, cost=self.cost,
            multiple_of=self.microbatch_group_size_per_vp_stage or 1,
        )  # fmt: skip
        packs = [[[ids[sample] for sample in pack] for pack in slot] for slot in grid]
        return [[pack for pack in slot for _ in range(self.cp_size)] for slot in packs]


def patch() -> None:
    """Make an installed Megatron-core's ``sequence_packing_scheduler="dp_balanced"`` this one.

    Raises
    ------
    ImportError
        Megatron-core is not installed, or its release has no packing schedulers.
    """
    from megatron.core.datasets import data_schedule

    if not hasattr(data_schedule, "scheduler_map"):
        raise ImportError("this release of megatron-core has no scheduler_map: a newer one has packing schedulers")
    stock = data_schedule.DpBalancedScheduler
    # Behind ours in the order of resolution: what samples need and how they move stays Megatron's.
    data_schedule.scheduler_map["dp_balanced"] = type("BalancedPackingScheduler", (BalancedPackingScheduler, stock), {})
