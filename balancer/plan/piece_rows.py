"""Rows that place pieces of samples, back to the groups of ranks that share these, and checked against them."""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from balancer.errors import PlanError
from balancer.io.plan_rows import PlanStep
from balancer.plan.item_rows import ItemRows, OneEach
from balancer.plan.pieces import GroupTable, Pieces
from balancer.problem.cuts.sequence_groups import SequenceGroups
from balancer.problem.topology import Topology


def read_pieces(where: str, rows: PlanStep) -> OneEach:
    """Read groups off the rows of pieces; PlanError if they are none."""
    firsts = first_rows(where, rows)
    labels, label = np.unique(rows.group, return_inverse=True)  # type: ignore[call-overload]  # which are there
    first, last = np.full((2, len(labels)), np.iinfo(np.int32).max, dtype=np.int32)
    slot = np.zeros(len(labels), dtype=np.int32)
    np.minimum.at(first, label, rows.rank)
    last[:] = -1
    np.maximum.at(last, label, rows.rank)
    slot[label] = rows.slot
    degree = last.astype(np.int64) - first + 1
    if not np.array_equal(np.lexsort((first, slot)), np.arange(len(labels))):
        raise PlanError(f"{where}: groups must be numbered by slot and rank")
    own = np.searchsorted(labels, firsts.group)  # type: ignore[arg-type]  # which are there
    return OneEach(rows, firsts, GroupTable(own.astype(np.int32), degree.astype(np.int32), slot, first))


def first_rows(where: str, rows: PlanStep) -> PlanStep:
    """Return the row of each item's first piece; PlanError if the rows are of no pieces."""
    if rows.start is None or rows.stop is None or rows.group is None:
        raise PlanError(f"{where}: its samples are shared, but columns 'start', 'stop' and 'group' are not there")
    item = item_of(rows)
    order = np.lexsort((rows.start, item, rows.sample))
    begins = np.ones(len(order), dtype=bool)
    begins[1:] = (np.diff(rows.sample[order]) != 0) | (np.diff(item[order]) != 0)
    chosen = np.sort(order[begins])
    arrays = ("sample", "rank", "slot", "position", "start", "stop", "group", "length", "home_rank", "item")
    taken = {name: getattr(rows, name)[chosen] for name in arrays if getattr(rows, name) is not None}
    return replace(rows, **taken)


def check_pieces(
    rows: ItemRows, groups: GroupTable, lengths: NDArray[np.int64], cut: SequenceGroups, topology: Topology
) -> None:
    """Raise PlanError unless the groups, of items in their order, keep to the rules and the rows are their pieces."""
    where, num_slots, numbers = rows.where, rows.num_slots, (rows.sample, rows.item)
    broken = groups.violation(lengths, cut, topology, num_slots)
    if broken is not None:
        raise PlanError(f"{where}: {broken}")
    pieces = Pieces.of_groups(groups, lengths, cut, topology.num_ranks, num_slots)
    there, group = rows.read.rows, groups.group_of_sample[pieces.sample]
    held = np.stack((
        there.sample, item_of(there), there.start, there.stop, there.rank, there.position, there.slot, there.group
    ))  # type: ignore[arg-type]  # fmt: skip
    wanted = np.stack((
        *(of[pieces.sample] for of in numbers), pieces.start, pieces.stop, pieces.place.rank_of_sample,
        pieces.place.position_of_sample, groups.slot[group], group,
    ))  # fmt: skip
    held, wanted = (each[:, np.lexsort((each[2], each[1], each[0]))] for each in (held, wanted))
    if held.shape != wanted.shape:
        raise PlanError(f"{where}: {held.shape[1]} pieces are placed, its groups have {wanted.shape[1]}")
    wrong = (held != wanted).any(axis=0)
    if wrong.any():
        at = int(np.argmax(wrong))
        names = "sample, item, start, stop, rank, position, slot and group"
        raise PlanError(
            f"{where}: a piece has {names} {held[:, at].tolist()}, where its group has {wanted[:, at].tolist()}"
        )


def item_of(rows: PlanStep) -> NDArray[np.int64]:
    """Return which item of its sample each row is of."""
    return np.zeros(len(rows.sample), dtype=np.int64) if rows.item is None else rows.item.astype(np.int64)
