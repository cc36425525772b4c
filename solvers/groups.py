"""Groups as arrays: what is in them and what they weigh. The inputs are checked by the callers, once."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from solvers._jit import kernel
from solvers._loops import largest_of
from solvers.errors import UsageError

_INT64_MAX = 2**63 - 1


@kernel
def _sum_loads(costs, group_of_item, loads):
    for i in range(len(costs)):
        loads[group_of_item[i]] += costs[i]


@kernel
def _longest_and_count(costs, group_of_item, longest, count):
    for i in range(len(costs)):
        g = group_of_item[i]
        count[g] += 1
        longest[g] = max(longest[g], costs[i])


@kernel
def moved_amounts(source, target, node, amounts):
    """Add up what items on their way from rank `source` to rank `target` move: all of it, what changes rank, what
    changes node, and the most that one rank sends to, and receives from, other nodes.
    """  # noqa: D205 (one sentence)
    total, moved, crossing = np.int64(0), np.int64(0), np.int64(0)
    sent, received = np.zeros(len(node), np.int64), np.zeros(len(node), np.int64)
    for i in range(len(source)):
        a, b, amount = source[i], target[i], amounts[i]
        total += amount
        if a != b:
            moved += amount
        if node[a] != node[b]:
            crossing += amount
            sent[a] += amount
            received[b] += amount
    return total, moved, crossing, largest_of(sent), largest_of(received)


@kernel
def _members(group_of_item, members, offsets, position_of_item):
    for g in group_of_item:
        offsets[g + 1] += 1
    for g in range(1, len(offsets)):
        offsets[g] += offsets[g - 1]
    # Items ascend within a group, because they are passed over in order: callers rely on it.
    filled = np.zeros(len(offsets), dtype=np.int32)
    for i in range(len(group_of_item)):
        g = group_of_item[i]
        position_of_item[i] = filled[g]
        members[offsets[g] + filled[g]] = i
        filled[g] += 1


@kernel
def _members_of_owners(owners, offsets, owner_of_part, first_of_owner, members, part_offsets, position_of_part):
    for owner in owner_of_part:
        first_of_owner[owner + 1] += 1
    for i in range(1, len(first_of_owner)):
        first_of_owner[i] += first_of_owner[i - 1]
    at = 0
    for g in range(len(offsets) - 1):
        part_offsets[g] = at
        for i in range(offsets[g], offsets[g + 1]):
            for part in range(first_of_owner[owners[i]], first_of_owner[owners[i] + 1]):
                members[at] = part
                position_of_part[part] = at - part_offsets[g]
                at += 1
    part_offsets[len(offsets) - 1] = at


def read_only(array: NDArray[Any]) -> NDArray[Any]:
    """View `array` read-only and contiguous: kernels are compiled apart for arrays that are not, or may be written."""
    flags = array.flags
    if flags.c_contiguous and not flags.writeable:
        return array
    view = np.ascontiguousarray(array).view()
    view.setflags(write=False)
    return view


def group_loads(costs: NDArray[np.int64], group_of_item: NDArray[np.int32], num_groups: int) -> NDArray[np.int64]:
    """Sum of the costs in each group: int64[num_groups]. O(n + m)."""
    loads = np.zeros(num_groups, dtype=np.int64)
    _sum_loads(read_only(costs), read_only(group_of_item.astype(np.int32, copy=False)), loads)
    return loads


def padded_loads(costs: NDArray[np.int64], group_of_item: NDArray[np.int32], num_groups: int) -> NDArray[np.int64]:
    """Count times largest cost of each group: int64[num_groups]. O(n + m)."""
    longest = np.zeros(num_groups, dtype=np.int64)
    count = np.zeros(num_groups, dtype=np.int64)
    _longest_and_count(read_only(costs), read_only(group_of_item), longest, count)
    return longest * count


def mixed_loads(
    costs: NDArray[np.int64], row_costs: NDArray[np.int64], group_of_item: NDArray[np.int32], num_groups: int
) -> NDArray[np.int64]:
    """Sum of the costs, and count times largest row cost, of each group: int64[num_groups]. O(n + m)."""
    return group_loads(costs, group_of_item, num_groups) + padded_loads(row_costs, group_of_item, num_groups)


def check_padded_overflow(largest: int, num_items: int) -> None:
    """Raise UsageError unless every group of `num_items` rows of at most `largest` has a load that fits int64."""
    if largest * num_items > _INT64_MAX:
        raise UsageError(
            f"padded costs must fit int64: {num_items} rows of the largest cost {largest} would cost "
            f"{largest * num_items}"
        )


def members_by_group(
    group_of_item: NDArray[np.int32], num_groups: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int32]]:
    """Items listed by group, ascending within each (compressed sparse rows). O(n + m).

    Returns members, offsets and where in its group each item stands; g holds ``members[offsets[g] : offsets[g + 1]]``.
    """
    members = np.empty(len(group_of_item), dtype=np.int64)
    offsets = np.zeros(num_groups + 1, dtype=np.int64)
    position_of_item = np.empty(len(group_of_item), dtype=np.int32)
    _members(read_only(group_of_item), members, offsets, position_of_item)
    return members, offsets, position_of_item


def parts_by_group(
    owners: NDArray[np.int64], offsets: NDArray[np.int64], owner_of_part: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int32]]:
    """List parts by the group of their owner: in the order of the owners there, and ascending within one. O(n + k + m).

    Group g holds ``owners[offsets[g] : offsets[g + 1]]``, each owner once; `owner_of_part` ascends. Returns the same as
    :func:`members_by_group`.
    """
    num_parts = len(owner_of_part)
    members, part_offsets = np.empty(num_parts, dtype=np.int64), np.empty(len(offsets), dtype=np.int64)
    position_of_part = np.empty(num_parts, dtype=np.int32)
    first_of_owner = np.zeros(len(owners) + 1, dtype=np.int64)
    _members_of_owners(
        read_only(owners), read_only(offsets), read_only(owner_of_part), first_of_owner, members, part_offsets,
        position_of_part,
    )  # fmt: skip
    return members, part_offsets, position_of_part
