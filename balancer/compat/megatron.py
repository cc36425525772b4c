"""A packing scheduler for Megatron-core and Megatron-Bridge, instead of ``dp_balanced`` and ``default_dynamic_cp``."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

from balancer.compat.grid import micro_batch_grid
from balancer.compat.verl import WORKLOAD
from balancer.planner import balance
from balancer.problem.cuts.sequence_groups import SequenceGroups
from solvers.arguments import as_count
from solvers.errors import InfeasibleError, UsageError

__all__ = ["BalancedPackingScheduler"]


class BalancedPackingScheduler:
    """Packs samples into micro-batches of like work for all ranks, as many on each.

    It has the constructor of Megatron-core's ``DefaultDynamicCPScheduler`` and its ``get_groups_and_subsamples``; what
    moves the samples is ``run`` of Megatron's own scheduler, so stand before that in ``scheduler_map``, as below.
    Without `min_cp_size`, context parallelism is that of the job, as with ``dp_balanced``: `cp_size` consecutive ranks
    share every pack. With it, as Megatron gives it to ``default_dynamic_cp`` alone, it is dynamic: in each micro-batch
    the ranks are divided into groups of unequal size.

    Parameters
    ----------
    max_seqlen_per_dp_cp_rank : int
        Tokens that a rank holds: a pack has at most as many times the ranks that share it.
    cp_size, dp_size : int
    microbatch_group_size_per_vp_stage : int, optional
        The number of micro-batches is a multiple of this.
    max_num_seqs : int, optional
        Not kept here, and refused.
    min_cp_size : int, optional
        The fewest ranks that share a pack: a power of two, or all ranks. Larger groups are of powers of two, or all.

    Attributes
    ----------
    cost : str
        What a sample costs, for all schedulers; as :func:`balancer.balance` takes it.

    Examples
    --------
    ::

        from megatron.core.datasets.data_schedule import scheduler_map

        class Balanced(BalancedPackingScheduler, scheduler_map["dp_balanced"]):
            pass

        scheduler_map["dp_balanced"] = Balanced
    """

    cost = WORKLOAD

    def __init__(
        self,
        max_seqlen_per_dp_cp_rank: int,
        cp_size: int,
        dp_size: int,
        microbatch_group_size_per_vp_stage: int | None = None,
        max_num_seqs: int | None = None,
        min_cp_size: int | None = None,
    ) -> None:
        self.max_seqlen_per_dp_cp_rank = as_count("max_seqlen_per_dp_cp_rank", max_seqlen_per_dp_cp_rank)
        self.cp_size, self.dp_size = as_count("cp_size", cp_size), as_count("dp_size", dp_size)
        self.microbatch_group_size_per_vp_stage = microbatch_group_size_per_vp_stage
        self.max_num_seqs, self.min_cp_size = max_num_seqs, min_cp_size
        self.max_seq_len_all_ranks = self.max_seqlen_per_dp_cp_rank * self.cp_size
        self.is_dynamic_cp = min_cp_size is not None
        if max_num_seqs is not None:
            raise UsageError(f"max_num_seqs must be None, got {max_num_seqs}: this scheduler packs by tokens alone")
        self._degrees: tuple[int, ...] = ()
        if min_cp_size is not None:
            ranks, least = self.cp_size * self.dp_size, as_count("min_cp_size", min_cp_size)
            if least > ranks or (least & (least - 1) and least != ranks):
                raise UsageError(f"min_cp_size must be a power of two up to {ranks}, or all {ranks} ranks, got {least}")
            self._degrees = (*(d for d in (least << i for i in range(ranks.bit_length())) if d < ranks), ranks)

    def get_groups_and_subsamples(self, sample_id_seqlens: Iterable[tuple[int, int]]) -> list[list[list[int]]]:
        """Return of each micro-batch and rank the ids that it computes.

        Parameters
        ----------
        sample_id_seqlens : sequence of (int, int)
            Ids and lengths.

        Returns
        -------
        list of list of list of int
            ``groups[k][rank]``, of ``cp_size * dp_size`` ranks, none without ids; an id stands on all the ranks that
            share it, which follow each other. How many those are is the size that Megatron gives its group.

        Raises
        ------
        InfeasibleError
            A sample longer than a pack, or fewer samples than packs.

        Examples
        --------
        >>> scheduler = BalancedPackingScheduler(8, cp_size=1, dp_size=2, microbatch_group_size_per_vp_stage=None)
        >>> scheduler.get_groups_and_subsamples([(10, 7), (11, 5), (12, 4), (13, 4), (14, 3), (15, 1)])
        [[[10], [12, 14]], [[13, 15], [11]]]
        >>> scheduler = BalancedPackingScheduler(8, cp_size=1, dp_size=4, min_cp_size=1)
        >>> scheduler.get_groups_and_subsamples([(10, 16), (11, 7), (12, 4), (13, 4)])
        [[[10], [10], [12, 13], [11]]]
        """
        ids, lengths = zip(*sample_id_seqlens, strict=True)
        if self.is_dynamic_cp:
            return self._dynamic(ids, [int(length) for length in lengths])
        grid = micro_batch_grid(
            [int(length) for length in lengths], self.dp_size, self.max_seq_len_all_ranks, cost=self.cost,
            multiple_of=self.microbatch_group_size_per_vp_stage or 1,
        )  # fmt: skip
        packs = [[[ids[sample] for sample in pack] for pack in slot] for slot in grid]
        return [[pack for pack in slot for _ in range(self.cp_size)] for slot in packs]

    def _dynamic(self, ids: Sequence[int], lengths: Sequence[int]) -> list[list[list[int]]]:
        """As :meth:`get_groups_and_subsamples`, with ranks divided anew in each micro-batch."""
        cap, multiple = self.max_seqlen_per_dp_cp_rank, self.microbatch_group_size_per_vp_stage or 1
        cut = SequenceGroups(self._degrees, cap, multiple_of=multiple)
        plan = balance(lengths, self._degrees[-1], cost=self.cost, cut=cut)
        if plan.num_slots > len(lengths) >= multiple:  # as none may be empty
            most = len(lengths) // multiple * multiple
            plan = balance(lengths, self._degrees[-1], cost=self.cost, cut=replace(cut, count=most))
        work = plan.cost.sample_costs(plan.lengths).tolist()
        slots = [
            [_Pack(group.degree, [(work[i], i) for i in group.samples.tolist()]) for group in plan.groups(slot)]
            for slot in range(plan.num_slots)
        ]
        found = []
        for slot in _none_empty(slots):
            packs = sorted(_on_all_ranks(slot, self._degrees), key=lambda pack: -pack.degree)  # which aligns them
            held = [(sorted(ids[sample] for _, sample in pack.samples), pack.degree) for pack in packs]
            found.append([list(pack) for pack, degree in held for _ in range(degree)])
        return found


class _Pack(NamedTuple):
    """Samples that some ranks share: work and number of each."""

    degree: int
    samples: list[tuple[int, int]]

    @property
    def time(self) -> float:
        return sum(work for work, _ in self.samples) / self.degree


def _none_empty(slots: Sequence[list[_Pack]]) -> list[list[_Pack]]:
    """Halve the slots with most samples until none is empty."""
    filled = [slot for slot in slots if slot]
    while len(filled) < len(slots):
        counts = [sum(len(pack.samples) for pack in slot) for slot in filled]
        packs = filled.pop(counts.index(max(counts)))
        if len(packs) == 1:
            degree, samples = packs[0].degree, sorted(packs[0].samples, reverse=True)
            # Sorted by work and dealt in turn, the two halves take nearly the same time.
            packs = [_Pack(degree, samples[i::2]) for i in range(2)]
        if max(counts) < 2:
            raise InfeasibleError(f"{sum(counts)} samples are too few for {len(slots)} micro-batches of at least one")
        packs = sorted(packs, key=lambda pack: pack.time, reverse=True)
        # Dealt in turn, the slowest first: ranks wait in every slot, so both slots get packs of like time.
        filled += [packs[0::2], packs[1::2]]
    return filled


def _on_all_ranks(packs: list[_Pack], degrees: Sequence[int]) -> list[_Pack]:
    """Give ranks that have nothing to the packs, doubling the slowest first; or all to one pack, if they do not fit."""
    packs = list(packs)
    while left := degrees[-1] - sum(pack.degree for pack in packs):
        fit = [i for i, pack in enumerate(packs) if pack.degree <= left and 2 * pack.degree in degrees]
        if not fit:
            return [_Pack(degrees[-1], [sample for pack in packs for sample in pack.samples])]
        # Only doubled: Megatron has groups of powers of two.
        slowest = max(fit, key=lambda i: packs[i].time)
        packs[slowest] = packs[slowest]._replace(degree=2 * packs[slowest].degree)
    return packs
