"""The rows of a plan file that place a phase's items, matched with these items."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from balancer.errors import PlanError
from balancer.io.plan_rows import PlanStep
from balancer.plan.pieces import GroupTable
from balancer.problem.phases import PhaseItems
from balancer.problem.placement import Placement
from balancer.problem.problem import Problem

Ints = NDArray[np.int64]


class OneEach(NamedTuple):
    """The rows of a phase, and which of them begins each item; of items in pieces the groups that share these too."""

    rows: PlanStep  # as they are in the file
    firsts: PlanStep  # a row an item
    groups: GroupTable | None = None


class RowsBeside(NamedTuple):
    """Rows of what runs besides a phase's items, each on the rank and in the slot of its sample."""

    sample: Ints  # int64[t]
    item: NDArray[np.int32]  # int32[t]: which of its sample's each is
    position: NDArray[np.int32]  # int32[t]: its turn
    device: NDArray[np.int32]  # int32[t]
    backward: NDArray[np.int32]  # int32[t]: the turn of its backward


class ItemRows(NamedTuple):
    """What a cut reads back from a plan file, its items in the order of the problem."""

    where: str  # file, step and phase, for errors
    read: OneEach
    order: Ints  # int64[n]: the row of each item among those that begin one
    sample: Ints  # int64[n]: the number of each item's sample in the file
    item: NDArray[np.int64]  # int64[n]: which of its sample's items each is
    num_slots: int
    beside: Mapping[str, PlanStep]  # rows of what runs besides the phase's items, by name

    @property
    def rank(self) -> NDArray[np.int32]:
        """The rank of each item: int32[n]."""
        return self.read.firsts.rank[self.order]

    @property
    def position(self) -> NDArray[np.int32]:
        """The place of each item on its rank: int32[n]."""
        return self.read.firsts.position[self.order]

    @property
    def slot(self) -> NDArray[np.int32]:
        """The slot of each item: int32[n]."""
        return self.read.firsts.slot[self.order]


def in_order_of(items: PhaseItems, sample: Ints, rows: PlanStep, where: str) -> Ints:
    """Return the row of each item, int64[n], `sample` being the number of each item's; PlanError if they do not match.

    O(n log n).
    """
    item = np.zeros(len(rows.sample), dtype=np.int32) if rows.item is None else rows.item
    order, which = np.lexsort((item, rows.sample)), items.item_in_sample
    if len(order) == len(sample):  # a shuffled step's rows do not ascend
        ascending, order = order, np.empty_like(order)
        order[np.lexsort((which, sample))] = ascending
    if np.array_equal(rows.sample[order], sample) and np.array_equal(item[order], which):
        return order
    found = set(zip(rows.sample.tolist(), item.tolist(), strict=True))
    for number, index in zip(sample.tolist(), which.tolist(), strict=True):
        if (number, index) not in found:
            what = f"sample {number}" if items.is_last else f"item {index} of sample {number}"
            raise PlanError(f"{where}: {what} is not placed")
    what = "samples" if items.is_last else "items"
    raise PlanError(f"{where}: {what} are placed twice or belong elsewhere")


def checked_target(problem: Problem, rows: ItemRows) -> Placement:
    """Return where rows place whole samples; PlanError if that is nowhere, or not what the problem asks for."""
    num_ranks, num_slots = problem.topology.num_ranks, rows.num_slots
    if num_slots > problem.cut.slots_for(max(1, len(rows.order))) or num_slots * num_ranks >= 2**31:
        raise PlanError(f"{rows.where}: {len(rows.order)} samples cannot be in {num_slots} micro-batches a rank")
    try:
        target = Placement.checked(rows.rank, num_ranks, rows.position)
    except ValueError as error:
        raise PlanError(f"{rows.where}: {error}") from None
    lengths, ranks = problem.batch.lengths, target.rank_of_sample
    tokens = problem.cost.tokens(lengths, ranks, num_ranks)
    broken = problem.constraints.violation(ranks, tokens)
    if not broken and rows.slot.min(initial=0) < 0:
        broken = f"slot must be >= 0, got {rows.slot.min()}"
    if problem.constraints.prefix is not None and not broken:  # a prompt counts once a micro-batch
        shared = problem.constraints.prefix
        lengths = lengths - shared.lengths + shared.once(shared.lengths, ranks * np.int64(num_slots) + rows.slot)
    broken = broken or problem.cut.violation(lengths, ranks, rows.slot, num_ranks, num_slots)
    if problem.limits is not None and not broken:
        broken = problem.limits.violation(lengths, ranks, rows.slot, num_ranks, num_slots)
    if broken := broken or _out_of_order(target, rows.slot):
        raise PlanError(f"{rows.where}: {broken}")
    return target


def _out_of_order(target: Placement, slots: NDArray[np.int32]) -> str:
    """Say if the samples of a rank do not stand in order of their slots."""
    ordered, rank = slots[target.samples], target.rank_of_sample[target.samples]
    unordered = ((ordered[1:] < ordered[:-1]) & (rank[1:] == rank[:-1])).any()
    return "a rank's samples must stand in order of their slots" if unordered else ""
