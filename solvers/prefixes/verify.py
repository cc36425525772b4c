"""The check of groups with shared prefixes, from scratch: plain loops, exact numbers, nothing of the solver."""

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from solvers._checking import require, require_status
from solvers.types import PartitionResult


def check_with_prefixes(
    costs: ArrayLike, result: PartitionResult, num_groups: int, prefix: ArrayLike | Sequence[int | str | None],
    prefix_costs: ArrayLike, equal_counts: bool, stop_at: Fraction,
) -> None:  # fmt: skip
    """Raise CertificateError unless groups, loads and the bound hold: see :func:`solvers.check_partition`.

    The bound is believed if no loads below it could hold all items and the copies of prefixes that they need.
    """
    items = [int(cost) for cost in np.asarray(costs).tolist()]
    once = [int(cost) for cost in np.asarray(prefix_costs).tolist()]
    keys = list(np.asarray(prefix).tolist() if isinstance(prefix, np.ndarray) else prefix)  # type: ignore[arg-type]
    groups = np.asarray(result.group_of_item)
    require(groups.shape == (len(items),), f"group_of_item must have shape ({len(items)},), got {groups.shape}")
    group = [int(g) for g in groups.tolist()]
    for i, g in enumerate(group):
        require(0 <= g < num_groups, f"item {i} is in group {g}, outside 0..{num_groups - 1}")
    loads, seen, counts = [0] * num_groups, set(), [0] * num_groups
    for g, key, cost, prefix_cost in zip(group, keys, items, once, strict=True):
        loads[g] += cost + (0 if (g, key) in seen else prefix_cost)
        seen.add((g, key))
        counts[g] += 1
    for g, load in enumerate(loads):
        require(load == int(result.loads[g]), f"the load of group {g} is {load}, not {result.loads[g]}")
    require(result.makespan == max(loads), f"the largest load is {max(loads)}, not makespan = {result.makespan}")
    if equal_counts:
        few, many = len(items) // num_groups, -(-len(items) // num_groups)
        for g, count in enumerate(counts):
            require(few <= count <= many, f"equal counts: group {g} holds {count} items, not {few} to {many}")
    require(result.bound_name == "parts", f"unknown bound {result.bound_name!r:.40}")
    bound = int(result.lower_bound)
    holds = bound == 0 or refuted(items, once, keys, num_groups, equal_counts, bound - 1)
    require(holds, f"lower_bound = {bound} is not proven: loads of {bound - 1} are not refuted")
    require_status(result.status, bound, result.makespan, stop_at=stop_at)


def refuted(
    items: list[int], once: list[int], keys: list[Any], num_groups: int, equal: bool, makespan: int,
    copies: Mapping[Any, int] | None = None,
) -> bool:  # fmt: skip
    """Whether no loads are all at most `makespan`; each prefix counts `copies` times at least, if they are given."""
    least, most = (len(items) // num_groups, -(-len(items) // num_groups)) if equal else (0, len(items))
    members: dict[object, list[int]] = {}
    cost_of: dict[object, int] = {}
    for cost, key, prefix_cost in zip(items, keys, once, strict=True):
        members.setdefault(key, []).append(cost)
        cost_of[key] = prefix_cost
    longest = max(map(len, members.values()))
    lightest, cheapest = sorted(items), sorted(cost_of.values())

    def others(r: int) -> int:
        """Return what a group with r items of a prefix holds besides, at least."""
        missing = max(0, least - r)
        whole, rest = min(missing // longest, len(cheapest)), missing % longest
        step = cheapest[whole] if whole < len(cheapest) else 0
        return sum(lightest[:missing]) + sum(cheapest[:whole]) + step // longest * rest

    needed = sum(items)
    for key, own in members.items():
        room = makespan - cost_of[key]
        if max(own) + sum(lightest[: max(0, least - 1)]) > room:
            return True
        parts = max(bins_of(own, room), _parts(own, room, most, others), (copies or {}).get(key, 1))
        needed += parts * cost_of[key]
    return needed > num_groups * makespan


def _parts(own: list[int], room: int, most: int, others) -> int:  # type: ignore[no-untyped-def]
    """Return the least number of parts, of as many items each, that have room for all beside other items."""
    for parts in range(1, len(own)):
        sizes = [len(own) * (k + 1) // parts - len(own) * k // parts for k in range(parts)]
        if max(sizes) <= most and sum(room - others(size) for size in sizes) >= sum(own):
            return parts
    return len(own)


def bins_of(own: list[int], room: int) -> int:
    """Return Martello and Toth's L2, of every threshold."""
    best = 1
    for threshold in {0, *(cost for cost in own if 2 * cost <= room)}:
        alone = [cost for cost in own if cost > room - threshold]
        large = [cost for cost in own if 2 * cost > room and cost <= room - threshold]
        small = [cost for cost in own if threshold <= cost and 2 * cost <= room]
        free = len(large) * room - sum(large)
        best = max(best, len(alone) + len(large) + max(0, -((free - sum(small)) // room)) if room else best)
    return best
