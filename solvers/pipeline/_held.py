"""Which slots are held at once on a device, by an order of ops."""

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from solvers.groups import read_only
from solvers.pipeline.orders import OpOrder

Ints = NDArray[np.int64]
HeldSets = tuple[Ints, Ints, Ints]
"""Where each slot's entries begin, int64[K + 1]; set, column of sizes and times of each, int64[3, e]; caps."""
_MOST_COMPARED = 2_000
Ops = tuple[tuple[tuple[int, int, bool], ...], ...]


def held_sets(order: OpOrder, caps: Ints | None, num_columns: int) -> HeldSets:
    """Return what is held at once wherever that may be most; with no caps, nothing."""
    if caps is None:
        return np.zeros(order.num_slots + 1, np.int64), np.zeros((3, 0), np.int64), np.zeros(0, np.int64)
    lists = tuple(tuple(order.ops_of(device)) for device in range(order.num_devices))
    return _entries(lists, order.num_slots, order.forward_only, tuple(caps.tolist()), num_columns)


@lru_cache(maxsize=8)
def _entries(lists: Ops, num_slots: int, lead: int, caps: tuple[int, ...], num_columns: int) -> HeldSets:
    counts, limits = _moments(lists, num_slots, lead, caps, num_columns)
    sets, slots, columns = np.nonzero(counts)
    by_slot = np.lexsort((columns, sets, slots))
    entries = np.stack([sets, columns, counts[sets, slots, columns]])[:, by_slot].astype(np.int64)
    first = np.searchsorted(slots[by_slot], np.arange(num_slots + 1)).astype(np.int64)
    return read_only(first), read_only(entries), read_only(limits)


def _moments(lists: Ops, num_slots: int, lead: int, caps: tuple[int, ...], num_columns: int) -> tuple[Ints, Ints]:
    """Return how often each set holds each slot and column, int64[sets, K, C], and the cap of each set."""
    found: list[Ints] = []
    limits: list[int] = []
    for listed, cap in zip(lists, caps, strict=True):
        held = np.zeros((num_slots, num_columns), dtype=np.int64)
        ops = [op for op in listed if op[1] >= lead]
        for at, (slot, stage, backward) in enumerate(ops):
            held[slot, stage if num_columns > 1 else 0] += -1 if backward else 1
            if not backward and (at + 1 == len(ops) or ops[at + 1][2]):
                found.append(held.copy())
                limits.append(cap)
    if not found:
        return np.zeros((0, num_slots, num_columns), dtype=np.int64), np.zeros(0, dtype=np.int64)
    flat = np.array([[*each.ravel(), limit] for each, limit in zip(found, limits, strict=True)])
    flat = np.unique(flat, axis=0)
    if len(flat) <= _MOST_COMPARED:  # a set that is part of another with no larger a cap is under its own
        part = (flat[:, None, :-1] <= flat[None, :, :-1]).all(axis=2) & (flat[:, None, -1] >= flat[None, :, -1])
        np.fill_diagonal(part, False)
        flat = flat[~part.any(axis=1)]
    return flat[:, :-1].reshape(-1, num_slots, num_columns), flat[:, -1]
