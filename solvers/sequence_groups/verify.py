"""The check of sequence groups, from scratch, with no code of the solver: plain loops, exact numbers."""

import itertools

import numpy as np
from numpy.typing import ArrayLike

from solvers.arguments import as_costs
from solvers.errors import CertificateError
from solvers.sequence_groups.types import SequenceBound, SequenceBoundCertificate, SequenceGroupsResult
from solvers.types import SolveStatus

__all__ = ["check_sequence_bound", "check_sequence_groups"]


def _require(holds: bool, rule: str) -> None:
    if not holds:
        raise CertificateError(rule)


def check_sequence_groups(
    times: ArrayLike,
    sizes: ArrayLike,
    result: SequenceGroupsResult,
    *,
    degrees: ArrayLike,
    num_ranks: int,
    cap: int | None,
    overhead: int = 0,
    group_overhead: ArrayLike | None = None,
    num_slots: int | None = None,
    min_slots: int = 1,
    slots_multiple_of: int = 1,
    ranks_per_node: int | None = None,
) -> None:
    """Check sequence groups against the items and rules they were made from; return nothing if all holds.

    Parameters
    ----------
    times, sizes, degrees, num_ranks, cap, overhead, group_overhead, num_slots, min_slots, slots_multiple_of, \
ranks_per_node
        As given to :func:`solvers.sequence_groups`.
    result : SequenceGroupsResult

    Raises
    ------
    CertificateError
        Naming the first violated rule.
    TypeError, ValueError
        If times or sizes themselves are unusable.

    Examples
    --------
    >>> import solvers
    >>> result = solvers.sequence_groups([[4, 2], [2, 1]], [4, 2], [1, 2], 4, 4)
    >>> check_sequence_groups([[4, 2], [2, 1]], [4, 2], result, degrees=[1, 2], num_ranks=4, cap=4)
    """
    listed = np.asarray(degrees).tolist()
    table = [as_costs(row, f"times[{d}]")[0].tolist() for d, row in enumerate(np.asarray(times))]
    rows = np.asarray(sizes)
    volumes = [as_costs(rows if rows.ndim == 1 else rows[d], "sizes")[0].tolist() for d in range(len(listed))]
    extra = [0] * len(listed) if group_overhead is None else np.asarray(group_overhead).tolist()
    node = num_ranks if ranks_per_node is None else ranks_per_node
    _check_arrays(result, len(table[0]))
    _check_slots(result, num_slots, min_slots, slots_multiple_of)
    _check_ranks(result, listed, num_ranks, node)
    members: dict[int, list[int]] = {}
    for item, group in enumerate(result.group_of_item.tolist()):
        _require(0 <= group < result.num_groups, f"item {item} is in group {group}, outside 0..{result.num_groups - 1}")
        slot = int(result.slot_of_group[group])
        _require(
            slot == result.slot_of_item[item], f"item {item} is in slot {result.slot_of_item[item]}, its group {slot}"
        )
        members.setdefault(group, []).append(item)
    heights = [overhead] * result.num_slots
    for group, degree in enumerate(result.degree_of_group.tolist()):
        _require(group in members, f"group {group} is empty")
        d = listed.index(degree)
        held = sum(volumes[d][item] for item in members[group])
        _require(cap is None or held <= degree * cap, f"group {group} holds {held}, over degree {degree} * cap = {cap}")
        spent = extra[d] + sum(table[d][item] for item in members[group])
        _require(spent == result.group_times[group], f"group {group} takes {spent}, not {result.group_times[group]}")
        slot = int(result.slot_of_group[group])
        heights[slot] = max(heights[slot], overhead + spent)
    _require(heights == result.slot_times.tolist(), f"slot_times are {heights}, not {result.slot_times.tolist()}")
    _require(heights == sorted(heights, reverse=True), "slots must be in descending order of their times")
    _require(sum(heights) == result.makespan, f"makespan is {sum(heights)}, not {result.makespan}")
    _check_bound(
        result, table, volumes, listed, extra, num_ranks, cap, overhead, num_slots, min_slots, slots_multiple_of
    )


def _check_arrays(result: SequenceGroupsResult, n: int) -> None:
    counts = dict.fromkeys(("slot_of_item", "group_of_item"), n)
    counts |= dict.fromkeys(("degree_of_group", "slot_of_group", "first_rank_of_group"), result.num_groups)
    for name, count in counts.items():
        array = getattr(result, name)
        _require(
            array.dtype == np.int32 and array.shape == (count,) and not array.flags.writeable,
            f"{name} must be read-only int32[{count}], got {array.dtype} of shape {array.shape}",
        )


def _check_slots(result: SequenceGroupsResult, num_slots: int | None, least: int, multiple: int) -> None:
    k = result.num_slots
    _require(num_slots in (None, k), f"num_slots = {num_slots} was asked for, not {k}")
    _require(k >= least, f"there are {k} slots, below min_slots = {least}")
    _require(k % multiple == 0, f"{k} slots are no multiple of slots_multiple_of = {multiple}")


def _check_ranks(result: SequenceGroupsResult, degrees: list[int], num_ranks: int, node: int) -> None:
    """Check that groups of a slot share no rank, and lie in nodes, aligned where degrees divide each other."""
    used: set[tuple[int, int]] = set()
    place = list(zip(result.slot_of_group.tolist(), result.first_rank_of_group.tolist(), strict=True))
    _require(place == sorted(place), "groups must be numbered slot by slot, in each by first rank")
    usable = sorted(degree for degree in degrees if degree <= num_ranks)
    chain = all(b % a == 0 for a, b in itertools.pairwise(usable))
    chain = chain and all(node % d == 0 if d <= node else d % node == 0 for d in usable)
    for group, (slot, first) in enumerate(place):
        degree = int(result.degree_of_group[group])
        _require(degree in degrees, f"group {group} has degree {degree}, which is none of {degrees}")
        _require(0 <= slot < result.num_slots, f"group {group} is in slot {slot}, outside 0..{result.num_slots - 1}")
        last = first + degree - 1
        _require(first >= 0 and last < num_ranks, f"group {group} is on ranks {first} to {last} of {num_ranks}")
        crosses = first // node != last // node
        _require(
            degree > node or not crosses, f"group {group} of degree {degree} crosses a node: ranks {first} to {last}"
        )
        _require(degree <= node or first % node == 0, f"group {group} of degree {degree} starts inside a node")
        _require(not chain or first % degree == 0, f"group {group} of degree {degree} starts at rank {first}")
        for rank in range(first, last + 1):
            _require((slot, rank) not in used, f"rank {rank} is in two groups of slot {slot}")
            used.add((slot, rank))


def _check_bound(
    result: SequenceGroupsResult, times: list[list[int]], sizes: list[list[int]], degrees: list[int], extra: list[int],
    num_ranks: int, cap: int | None, overhead: int, num_slots: int | None, least: int, multiple: int,
) -> None:  # fmt: skip
    """Recompute the bound by refuting what is one less, from every item's permitted degrees."""
    bound = result.lower_bound
    _require(0 <= bound <= result.makespan, f"lower_bound = {bound} must be within 0..makespan = {result.makespan}")
    optimal = result.status is SolveStatus.OPTIMAL
    _require(
        optimal == (bound == result.makespan),
        f"status is {result.status.value} with makespan {result.makespan} and lower_bound {bound}",
    )
    _require(result.bound_name in ("area", "longest"), f"lower_bound is by an unknown argument {result.bound_name!r}")
    permitted: list[list[tuple[int, int]]] = []  # of each item: time with overhead, and rank-time
    volume = 0
    for item in range(len(times[0])):
        may = [
            d for d, degree in enumerate(degrees)
            if degree <= num_ranks and (cap is None or sizes[d][item] <= degree * cap)
        ]  # fmt: skip
        permitted.append([(times[d][item] + extra[d], times[d][item] * degrees[d]) for d in may])
        volume += min(sizes[d][item] for d in may)
    needed = 1 if cap is None else max(1, -(-volume // (num_ranks * cap)))
    slots = num_slots or -(-max(needed, least) // multiple) * multiple
    below = bound - overhead * slots - 1
    if below < 0:
        return
    area = [min((work for time, work in each if time <= below), default=None) for each in permitted]
    proven = None in area or sum(work for work in area if work is not None) > num_ranks * below
    _require(proven, f"lower_bound = {bound}, but '{result.bound_name}' does not prove it")


def check_sequence_bound(
    times: ArrayLike,
    sizes: ArrayLike,
    bound: SequenceBound,
    *,
    degrees: ArrayLike,
    num_ranks: int,
    cap: int | None,
    upper: int,
    overhead: int = 0,
    group_overhead: ArrayLike | None = None,
    num_slots: int | None = None,
    min_slots: int = 1,
    slots_multiple_of: int = 1,
) -> None:
    """Check a bound from its certificate, in exact integers: that no solution has a makespan below it and `upper`.

    Every number of :class:`solvers.sequence_groups.SequenceBoundCertificate` may be anything non-negative. What it
    proves is recomputed: in each class of slots and degree, an item is charged for its time and size, and for being one
    of the few that fit a group; it is worth at most the least such charge. A group sells at most its time, its room and
    those places; a slot is ranks times the best sale of a rank, and what it costs beyond is left over.

    Parameters
    ----------
    times, sizes, degrees, num_ranks, cap, overhead, group_overhead, num_slots, min_slots, slots_multiple_of
        As given to :func:`solvers.sequence_groups_lower_bound`.
    bound : SequenceBound
        With a certificate.
    upper : int
        A makespan that some solution has.

    Raises
    ------
    CertificateError
        If the certificate does not prove the bound, or there is none.
    """
    given = bound.certificate
    if given is None:
        raise CertificateError(f"lower_bound is by '{bound.name}', of which no certificate is kept")
    listed = sorted(degree for degree in np.asarray(degrees).tolist() if degree <= num_ranks)
    place = [np.asarray(degrees).tolist().index(degree) for degree in listed]
    table = [np.asarray(times)[d].tolist() for d in place]
    rows = np.asarray(sizes)
    volumes = [(rows if rows.ndim == 1 else rows[d]).tolist() for d in place]
    extra = [0 if group_overhead is None else int(np.asarray(group_overhead)[d]) for d in place]
    total = max(1, sum(map(max, zip(*volumes, strict=True))))  # more than that a group never holds
    rooms = [total if cap is None else min(degree * cap, total) for degree in listed]
    volume = sum(
        min(v for v, room in zip(each, rooms, strict=True) if v <= room) for each in zip(*volumes, strict=True)
    )
    needed = 1 if cap is None else max(1, -(-volume // (num_ranks * cap)))
    slots = num_slots or -(-max(needed, min_slots) // slots_multiple_of) * slots_multiple_of
    edges, one = given.edges.tolist(), 1 << given.bits
    _require(
        edges[0] == 0 and edges == sorted(edges) and edges[-1] >= upper - overhead * slots,
        f"classes must cover slots of 0 to {upper - overhead * slots}, got {edges[0]} to {edges[-1]}",
    )
    names = ("time_price", "room_price", "long_price", "large_price")
    _require(all(getattr(given, name).min() >= 0 for name in names), "prices must be >= 0")
    worth, left = [-1] * len(table[0]), one * overhead
    for j, top in enumerate(edges[1:]):
        for d, degree in enumerate(listed):
            charges, places = _charges(given, j, d, table[d], volumes[d], top - extra[d], rooms[d])
            for item, charge in charges.items():
                worth[item] = charge if worth[item] < 0 else min(worth[item], charge)
            for height in (edges[j], top) if charges else ():
                sold = places + int(given.time_price[j, d]) * max(0, height - extra[d])
                left = min(left, one * (height + overhead) - -(-num_ranks * sold // degree))
    _require(min(worth, default=0) >= 0, "some item is in no class")
    _require(left >= 0 or num_slots is not None, "a slot sells more than it costs")
    proven = min(upper, -(-(sum(worth) + left * slots) // one))
    _require(bound.value <= proven, f"lower_bound = {bound.value}, but the certificate proves {proven} at most")


def _charges(
    given: SequenceBoundCertificate, j: int, d: int, times: list[int], sizes: list[int], offered: int, room: int
) -> tuple[dict[int, int], int]:
    """Return what each item that a group may hold is charged in a class and degree, and what a group sells but time."""
    time, space = int(given.time_price[j, d]), int(given.room_price[j, d])
    prices = list(zip(given.long_price[:, j, d].tolist(), given.large_price[:, j, d].tolist(), strict=True))
    charges = {}
    for item, (t, v) in enumerate(zip(times, sizes, strict=True)):
        if t <= offered and v <= room:
            charges[item] = time * t + space * v
            for q, (long, large) in enumerate(prices, 2):
                charges[item] += (long if t * q > offered else 0) + (large if v * q > room else 0)
    return charges, space * room + sum(q * (long + large) for q, (long, large) in enumerate(prices, 1))
