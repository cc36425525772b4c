"""What devices hold in flight at once: sets of slots, each under a cap."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from solvers.groups import read_only
from solvers.pipeline.orders import OpOrder

Ints = NDArray[np.int64]
IN_SET = np.dtype(
    [
        ("number", np.int64),  # of the set
        ("column", np.int64),  # the column of sizes that counts there
        ("times", np.int64),  # how often, by the stages of the device
    ]
)
"""That a slot is in a set."""


class FlightSets(NamedTuple):
    """What each device has in flight at once, wherever in its order that may be most: sets of slots. Read-only.

    Slot k is in the sets of ``entries[first[k] : first[k + 1]]``.
    """

    first: Ints  # int64[K + 1]
    entries: NDArray[np.void]  # IN_SET[e], sorted by slot
    caps: Ints  # int64[sets]: the most that each may hold

    @classmethod
    def of(cls, order: OpOrder, caps: Ints | None, num_columns: int) -> "FlightSets":
        """Return those of an order; with no caps, none."""
        rows, limits = [np.zeros((4, 0), dtype=np.int64)], list[int]()  # of sets: number, slot, column, times
        one = num_columns < 2  # column for all stages, so that a device's set may be part of another device's
        seen = np.zeros((0, order.num_slots, 1), dtype=np.int64)
        for device, cap in enumerate([] if caps is None else caps.tolist()):
            columns = np.zeros(1, int) if one else np.arange(device, order.num_stages, order.num_devices)
            each = moments(order, device, columns)
            found = largest(each, seen[np.array(limits, dtype=np.int64) <= cap] if one else each[:0])
            seen = np.concatenate([seen, found]) if one else seen
            for each in found:
                slot, place = np.nonzero(each)
                rows.append(np.stack([np.full(len(slot), len(limits)), slot, columns[place], each[slot, place]]))
                limits.append(cap)
        number, slots, column, times = np.concatenate(rows, axis=1)
        by_slot = np.argsort(slots, kind="stable")
        entries = np.empty(len(slots), IN_SET)
        entries["number"], entries["column"], entries["times"] = number[by_slot], column[by_slot], times[by_slot]
        first = np.searchsorted(slots[by_slot], np.arange(order.num_slots + 1)).astype(np.int64)
        return cls(read_only(first), read_only(entries), read_only(np.array(limits, dtype=np.int64)))


def moments(order: OpOrder, device: int, columns: Ints) -> Ints:
    """Return how often a device holds each slot in each of its columns, by stage or one for all: int64[moments, K, C].

    What is held is most right before a backward, or at the end.
    """
    held, found = np.zeros((order.num_slots, len(columns)), dtype=np.int64), list[Ints]()
    ops = [op for op in order.ops_of(device) if op[1] >= order.forward_only]
    for at, (slot, stage, backward) in enumerate(ops):
        held[slot, stage // order.num_devices if len(columns) > 1 else 0] += -1 if backward else 1
        if not backward and (at + 1 == len(ops) or ops[at + 1][2]):
            found.append(held.copy())
    return np.array(found, dtype=np.int64).reshape(-1, *held.shape)


def largest(rows: NDArray[Any], beside: NDArray[Any]) -> NDArray[Any]:
    """Return rows that are no part of another, or of what stands beside: under one cap these are under it anyway."""
    found = np.concatenate([beside, rows])
    count = len(beside)
    for each in rows[np.argsort(-rows.sum(axis=(1, 2)), kind="stable")]:
        if not (each <= found[:count]).all(axis=(1, 2)).any():
            found[count] = each
            count += 1
    return found[len(beside) : count]
