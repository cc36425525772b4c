"""Limits on the micro-batches of a dataset's rows: what is asked, what tells it apart, and what rows are over."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from balancer.described import described, key
from balancer.problem.limits import HeldLimits, Limits, held_limits

__all__ = ["digest_of", "exchanged", "no_limits", "read_limits", "why_not"]

Ints = NDArray[np.int64]


@described
class _Asked:
    """Limits as a caller gives them."""

    limits: Limits = key("What a micro-batch may hold.")


def read_limits(limits: Any, lengths: Ints, num_ranks: int) -> HeldLimits | None:
    """Check limits on the micro-batches of rows, if there are any; no row is over one by itself."""
    if limits is None or (isinstance(limits, Sequence) and not len(limits)):
        return None
    held = held_limits(_Asked(limits).limits, len(lengths), num_ranks)
    if held is not None:
        held.check_alone(lengths)
    return held


def no_limits(count: int) -> HeldLimits:
    """Return what permits all: counts of micro-batches are free."""
    return HeldLimits((), np.zeros((count, 0), dtype=np.int64), np.zeros((0, 1), dtype=np.int64))


def digest_of(held: HeldLimits) -> str:
    """Return what tells limits apart."""
    found = hashlib.sha256(repr((held.most.tolist(), held.most_items, held.padded)).encode())
    for values in held.sizes, held.kinds, held.everywhere:
        found.update(b"none" if values is None else np.ascontiguousarray(values).tobytes())
    return found.hexdigest()[:16]


def why_not(held: HeldLimits, num_ranks: int, micro_steps: int) -> str | None:
    """Say which limit the rows of a step are over, if sums tell."""
    count, batches = len(held.sizes), num_ranks * micro_steps
    if held.everywhere is not None and 0 < (found := int(held.everywhere.sum())) < num_ranks:
        return f"{found} of them are to be on all {num_ranks} ranks of a micro-step or on none (Everywhere)"
    for name, amounts, most in zip(held.names, held.sizes.T, held.most, strict=True):
        room = int(np.broadcast_to(most, num_ranks).sum()) * micro_steps
        if (total := int(amounts.sum())) > room:
            return f"{name} adds up to {total}, and they hold {room}, short by {total - room}"
    if held.most_items is not None and count > (room := held.most_items * batches):
        return f"CountLimit lets them hold {room}"
    if held.kinds is not None and (kinds := len(np.unique(held.kinds))) > batches:
        return f"they are of {kinds} kinds, and a micro-batch holds one (Kinds)"
    return None


def exchanged(unit: Ints, flagged: NDArray[np.bool_], costs: Ints, least: int) -> Ints:
    """Exchange rows between units until each has `least` that are flagged, or none, if that can be.

    Each unit keeps its size, and gets rows of like cost for those that it gives. Returns the unit of each row.
    """
    unit, counts = unit.copy(), np.bincount(unit[flagged], minlength=int(unit.max()) + 1)
    few = [each for each in np.argsort(-counts, kind="stable").tolist() if 0 < counts[each] < least]
    enough = np.flatnonzero(counts >= least).tolist()
    while few:
        # The one with fewest gives all it has: to fill up others, and what is left to those with enough.
        giver = few.pop()
        for taker in [*few, *few, *enough]:
            full = counts[taker] >= least
            while counts[giver] and (full or counts[taker] < least):
                others = np.flatnonzero((unit == taker) & ~flagged)
                if not len(others):
                    break
                gives = np.flatnonzero((unit == giver) & flagged)[0]
                takes = others[np.argmin(np.abs(costs[others] - costs[gives]))]
                unit[gives], unit[takes] = taker, giver
                counts[giver], counts[taker] = counts[giver] - 1, counts[taker] + 1
        enough += [each for each in few if counts[each] >= least]
        few = [each for each in few if counts[each] < least]
    return unit
