"""Checks of what solvers claim, from scratch: every number recomputed in NumPy, with no code of the solvers.

A lower bound that has a closed form is recomputed too, by the argument that it names (:mod:`solvers.bounds` says why
each holds), and must prove what is claimed. Of other bounds (:data:`TRUSTED_BOUNDS`) the proof is not kept, or takes as
much code as the search itself: they are believed if they are no larger than what was found.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from solvers.arguments import INT64_MAX, as_costs, as_count, as_int64, as_integer, as_share
from solvers.constraints import ConstrainedProblem, Constraints, keys_as_numbers
from solvers.errors import CertificateError
from solvers.groups import check_padded_overflow
from solvers.packing._schedule_types import OVER_LONG, SYNCS, ScheduleResult
from solvers.packing._shares_types import SharesResult
from solvers.packing.limits import BatchLimits
from solvers.packing.types import PackingResult
from solvers.types import STOP_AT, PartitionResult, Proven, SolveStatus

Ints = NDArray[np.int64]

SEARCHES = frozenset({"cp_sat", "search"})
"""Names of bounds that a search proved: nothing below was left to try."""

TRUSTED_BOUNDS: Mapping[str, frozenset[str]] = {
    "partition": SEARCHES,
    "padded": frozenset(),
    "mixed": frozenset({"prefix"}),
    "mixed, equal counts": frozenset({"quota"}),
    "prefix": frozenset({"parts"}),
    "micro_batch": frozenset({"tall_slots"}),
    "step": frozenset(),
    "pipeline": frozenset({"room"}),
    "packing": frozenset({"fekete_schepers", "ccm1", "search"}),
}
"""Names of bounds that are believed, by what they are bounds of."""

# Masks up to which the solvers look at unions of two, and up to which they look at any.
_MASKS, _MOST_MASKS = 48, 1024


def require(holds: bool, rule: str) -> None:
    """Raise CertificateError unless the rule holds."""
    if not holds:
        raise CertificateError(rule)


def require_status(
    status: SolveStatus, bound: int, found: int, what: str = "makespan", stop_at: Fraction = STOP_AT
) -> None:
    """Require a bound that what was found reaches, and a status that says how near they are."""
    require(0 <= bound <= found, f"lower_bound = {bound} must be within 0..{what} = {found}")
    near = int(found) <= int(bound) * (1 + stop_at)
    proven = SolveStatus.OPTIMAL if bound == found else SolveStatus.WITHIN if near else SolveStatus.FEASIBLE
    # Both ways: neither may a result claim too much, nor hide what is proven; but who searches for the optimum alone
    # may say that time was up.
    right = status is proven or (status is SolveStatus.TIME_LIMIT and bound < found)
    require(right, f"status is {status.value} with {what} {found} and lower_bound {bound}")


def _require_bound(result: Proven, proven: Mapping[str, int], trusted: frozenset[str]) -> None:
    """Require that the argument that a result names is one of `trusted`, or proves its bound."""
    bound, name = result.lower_bound, result.bound_name
    if name in trusted:
        return
    known = ", ".join([*proven, *sorted(trusted)])
    require(name in proven, f"lower_bound is by an unknown argument {name!r}; known here are {known}")
    require(bound <= proven[name], f"lower_bound = {bound}, but {name!r} proves {proven[name]} at most")


def _require_groups(groups: NDArray[np.int32], num_items: int, num_groups: int) -> None:
    require(
        groups.shape == (num_items,), f"every item has one group: {num_items} items, groups of shape {groups.shape}"
    )
    require(groups.dtype == np.int32, f"group_of_item must be int32, got {groups.dtype}")
    for item in _first(~((groups >= 0) & (groups < num_groups))):
        raise CertificateError(f"item {item} is in group {groups[item]}, outside 0..{num_groups - 1}")


def _require_loads(loads: Ints, claimed: Ints) -> None:
    wrong = loads != claimed
    for group in _first(wrong if wrong.ndim == 1 else wrong.any(axis=1)):
        raise CertificateError(f"the load of group {group} is {loads[group].tolist()}, not {claimed[group].tolist()}")


def _first(wrong: NDArray[np.bool_]) -> list[int]:
    """Return the first place that is marked, or none."""
    first: list[int] = np.flatnonzero(wrong)[:1].tolist()
    return first


# --- partitions ------------------------------------------------------------------------------------------------------


def check_partition(
    costs: ArrayLike,
    result: PartitionResult,
    *,
    num_groups: int | None = None,
    equal_counts: bool = False,
    padded: bool = False,
    sizes: ArrayLike | None = None,
    caps: ArrayLike | None = None,
    min_items: int = 0,
    max_items: int | None = None,
    allowed: ArrayLike | Sequence[Sequence[int] | None] | None = None,
    keep_together: ArrayLike | Sequence[int | str | None] | None = None,
    initial_loads: ArrayLike | None = None,
    speeds: ArrayLike | None = None,
    objective: str = "sum",
    row_costs: ArrayLike | None = None,
    prefix: ArrayLike | Sequence[int | str | None] | None = None,
    prefix_costs: ArrayLike | None = None,
    stop_at: float | str | Fraction = "0.1%",
) -> None:
    """Check a partition result against the costs it was made from; return nothing if all holds.

    Groups, loads, counts, rules, makespan and status are recomputed in plain NumPy, and so is the lower bound, by the
    argument it names; those of :data:`TRUSTED_BOUNDS` are believed.

    Parameters
    ----------
    costs : int64[n] or int64[n, c]
        The costs the result was made from.
    result : PartitionResult
    num_groups : int, optional
        The number of groups asked for; by default, that of ``result.loads``.
    equal_counts, padded : bool
        Whether the result was made under equal counts, or for padded costs.
    sizes, caps, min_items, max_items, allowed, keep_together, initial_loads, speeds, objective
        The constraints it was made under, as given to :func:`solvers.partition`.
    row_costs : int64[n], optional
        Given if the result was made for mixed costs, as :func:`solvers.mixed` has them.
    prefix, prefix_costs : array[n], optional
        Given if items share prefixes, as given to :func:`solvers.partition`.
    stop_at : float, str or Fraction
        The gap that was asked for: up to it the status must be ``within``.

    Raises
    ------
    CertificateError
        Naming the first violated rule.
    TypeError, ValueError
        If the costs themselves are unusable.

    Examples
    --------
    >>> import solvers
    >>> check_partition([5, 4, 3, 3, 3], solvers.partition([5, 4, 3, 3, 3], 2))
    """
    share = as_share("stop_at", stop_at)
    constraints = Constraints(
        equal_counts, sizes, caps, min_items, max_items, allowed, keep_together, initial_loads, speeds, objective
    )
    _check_together(constraints, padded, row_costs is not None, (prefix is not None) + (prefix_costs is not None))
    problem = constraints.check(costs, max(1, len(result.loads)) if num_groups is None else num_groups)
    n, m = len(problem.costs), problem.num_groups
    shape = (m, problem.costs.shape[1]) if problem.vector else (m,)
    require(
        result.loads.shape == shape and result.loads.dtype == np.int64,
        f"loads must be int64 of shape {shape}, got {result.loads.dtype} of shape {result.loads.shape}",
    )
    groups = result.group_of_item
    _require_groups(groups, n, m)
    _check_rules(problem, groups)
    own = problem.costs[:, 0]
    if padded:
        check_padded_overflow(int(own.max(initial=0)), n)
        loads = _longest(own, groups, m) * np.bincount(groups, minlength=m)
        kind, proven = "padded", {"padded": _padded(own, m, equal_counts, min_items)}
    elif row_costs is not None:
        rows = _as_rows(row_costs, own)
        loads = _sums(own, groups, m) + _longest(rows, groups, m) * np.bincount(groups, minlength=m)
        kind = "mixed, equal counts" if equal_counts else "mixed"
        proven = _plain(own + rows, m, equal_counts)
    elif prefix is not None and prefix_costs is not None:
        keys, once = keys_as_numbers("prefix", prefix, n), as_costs(prefix_costs, "prefix_costs")[0]
        loads = _sums(own + _borne(groups, keys, once), groups, m)
        kind, proven = "prefix", {}
    else:
        loads = problem.initial.copy()
        np.add.at(loads, groups, problem.costs)
        kind, proven = "partition", _bounds(problem)
    loads = loads.reshape(m, -1)
    _require_loads(loads if problem.vector else loads[:, 0], result.loads)
    times = (-(-loads // problem.speeds[:, None])).max(axis=0)
    makespan = int(times.sum() if objective == "sum" else times.max())
    require(result.makespan == makespan, f"the loads make a makespan of {makespan}, not makespan = {result.makespan}")
    require_status(result.status, result.lower_bound, makespan, stop_at=share)
    _require_bound(result, proven, TRUSTED_BOUNDS[kind])


def _check_together(constraints: Constraints, padded: bool, mixed: bool, prefixes: int) -> None:
    """Raise ValueError where arguments of the check do not go together; `prefixes` is how many of two are given."""
    if padded and mixed:
        raise ValueError("give row_costs for mixed costs or padded=True for padded ones, not both")
    asked = [name for name in constraints.names() if name != "equal_counts" and not (padded and name == "min_items")]
    if prefixes and (prefixes < 2 or padded or mixed or asked):
        raise ValueError("prefix and prefix_costs are given together, and with no constraint but equal_counts")
    if (padded or mixed) and (asked or constraints.objective != "sum"):
        raise ValueError(
            "padded and mixed costs take no constraint but equal_counts (padded ones min_items too), got "
            f"{', '.join(constraints.names())}"
        )


def _as_rows(row_costs: ArrayLike, costs: Ints) -> Ints:
    rows, longest, _ = as_costs(row_costs, "row_costs")
    if len(rows) != len(costs):
        raise ValueError(f"costs and row_costs must have one entry an item, got {len(costs)} and {len(rows)}")
    if (total := int(costs.sum())) + longest * len(rows) > INT64_MAX:
        raise ValueError(f"mixed costs must fit int64: {len(rows)} rows of {longest} and the sum {total} do not")
    return rows


def _sums(values: Ints, groups: NDArray[np.int32], num_groups: int) -> Ints:
    sums = np.zeros(num_groups, dtype=np.int64)
    np.add.at(sums, groups, values)
    return sums


def _longest(rows: Ints, groups: NDArray[np.int32], num_groups: int) -> Ints:
    longest = np.zeros(num_groups, dtype=np.int64)
    np.maximum.at(longest, groups, rows)
    return longest


def _borne(places: NDArray[Any], keys: Ints, once: Ints) -> Ints:
    """Return what each item bears of its prefix: all of it, if it is the first with it in its place, else nothing."""
    _, first = np.unique(places.astype(np.int64) * (int(keys.max(initial=0)) + 1) + keys, return_index=True)
    borne = np.zeros(len(keys), dtype=np.int64)
    borne[first] = once[first]
    return borne


def _check_rules(problem: ConstrainedProblem, groups: NDArray[np.int32]) -> None:
    m = problem.num_groups
    for item in _first(~problem.masks[problem.mask_of_item, groups]):
        raise CertificateError(f"allowed: item {item} may not be in group {groups[item]}")
    if problem.key_of_item is not None:
        _, first = np.unique(problem.key_of_item, return_index=True)
        other = first[problem.key_of_item] if len(groups) else first
        for item in _first(groups != groups[other]):
            raise CertificateError(
                f"keep_together: items {other[item]} and {item} have one key and are in groups {groups[other[item]]} "
                f"and {groups[item]}"
            )
    for q in range(problem.sizes.shape[1]):
        held = _sums(problem.sizes[:, q], groups, m)
        for group in _first(held > problem.caps[:, q]):
            raise CertificateError(
                f"caps: group {group} holds {held[group]} of quantity {q}, over its cap {problem.caps[group, q]}"
            )
    counts = np.bincount(groups, minlength=m)
    for group in _first((counts < problem.least_items) | (counts > problem.most_items)):
        names = [name for name in ("equal_counts", "min_items", "max_items") if name in problem.names]
        raise CertificateError(
            f"{', '.join(names)}: group {group} holds {counts[group]} items, "
            f"not {problem.least_items} to {problem.most_items}"
        )


# --- bounds on a makespan --------------------------------------------------------------------------------------------


def _plain(costs: Ints, m: int, equal_counts: bool) -> dict[str, int]:
    """Return what each argument proves that needs no constraint, but perhaps equal counts."""
    costs, n = np.sort(costs)[::-1], len(costs)
    proven = {"mean": -(-int(costs.sum()) // m), "largest": int(costs.max(initial=0))}
    proven["pigeonhole"] = _shared(costs, m, np.zeros(m + 1, dtype=np.int64))
    if equal_counts:
        quotas = np.sort(-(-(n - np.arange(m)) // m))  # of n/m items, within one; some groups hold the smallest
        proven["filler"] = _shared(costs, m, np.concatenate(([0], np.cumsum(quotas))))
        pairs = np.concatenate((costs, np.zeros(2 * m - n, dtype=np.int64))) if m < n <= 2 * m else costs[:0]
        proven["folding"] = int((pairs + pairs[::-1]).max(initial=0))
    return proven


def _shared(costs: Ints, m: int, least: Ints) -> int:
    """Return the share of one of the j groups with most of the first items, which hold ``least[j]`` items in all."""
    n, sums = len(costs), np.concatenate(([0], np.cumsum(costs)))
    if n <= m:
        return 0
    first = np.arange(1, n + 1)
    k = -(-first // m)
    j = first - (k - 1) * m
    others = np.maximum(least[j] - k * j, 0)
    weight = sums[first] - sums[first - k * j] + sums[n] - sums[n - others]
    return int((-(-weight // j)).max())


def _bounds(problem: ConstrainedProblem) -> dict[str, int]:
    """Return what each argument proves of a makespan under constraints."""
    n, m = len(problem.costs), problem.num_groups
    costs, masks, mask_of_unit = _units(problem)
    # What all other groups can take at most leaves so many to each, and what they need at least leaves no more.
    least = max(problem.least_items, n - (m - 1) * problem.most_items)
    most = min(problem.most_items, n - (m - 1) * problem.least_items)
    even = least >= n // m and most <= -(-n // m) and len(costs) == n
    parts = [
        _of_component(costs[:, k], problem.initial[:, k], problem.speeds, even, masks, mask_of_unit)
        for k in range(costs.shape[1])
    ]
    if len(parts) == 1:
        return parts[0]
    best = [max(part.values()) for part in parts]
    return {"components": sum(best) if problem.objective == "sum" else max(best)}


def _units(problem: ConstrainedProblem) -> tuple[Ints, NDArray[np.bool_], NDArray[Any]]:
    """Return costs of items, or of those that stay together, and the sets of groups that they may be in."""
    keys = problem.key_of_item
    if keys is None:
        return problem.costs, problem.masks, problem.mask_of_item
    count = int(keys.max(initial=-1)) + 1
    costs = np.zeros((count, problem.costs.shape[1]), dtype=np.int64)
    np.add.at(costs, keys, problem.costs)
    if problem.masks.all():
        return costs, problem.masks[:1], np.zeros(count, dtype=np.int64)
    allowed = np.ones((count, problem.num_groups), dtype=np.bool_)
    np.logical_and.at(allowed, keys, problem.masks[problem.mask_of_item])
    masks, mask_of_unit = np.unique(allowed, axis=0, return_inverse=True)
    return costs, masks, mask_of_unit.reshape(-1)


def _of_component(
    costs: Ints, initial: Ints, speeds: Ints, even: bool, masks: NDArray[np.bool_], mask_of_unit: NDArray[Any]
) -> dict[str, int]:
    """Return what each argument proves of the largest time of one component."""
    m, fastest = len(speeds), int(speeds.max())
    # An initial load is an item more, which other groups could have had too; equal counts do not count it. No group
    # is faster than the fastest.
    items = np.concatenate((costs, initial[initial > 0]))
    loads = _plain(costs, m, even) | _plain(items, m, equal_counts=False)
    proven = {name: -(-load // fastest) for name, load in loads.items()}
    high = int((-(-(initial + costs.sum()) // speeds)).max())  # where each group alone has room for all

    def least(holds: Callable[[NDArray[Any]], bool]) -> int:
        """Return the smallest time at which `holds` is true of the rooms of the groups; no larger one needs more."""
        low, most = 0, high
        while low < most:
            middle = (low + most) // 2
            # Python's integers, which no sum of rooms leaves.
            room = np.maximum(middle * speeds - initial, 0).astype(object)
            low, most = (low, middle) if holds(room) else (middle + 1, most)
        return low

    total = int(costs.sum())
    proven["water"] = max(int((-(-initial // speeds)).max()), least(lambda room: room.sum() >= total))
    largest = np.cumsum(np.sort(costs)[::-1][: m - 1])
    proven["fastest"] = least(lambda room: bool((np.cumsum(np.sort(room)[::-1][: len(largest)]) >= largest).all()))
    if not masks.all() and len(masks) <= _MOST_MASKS:
        pairs = itertools.combinations(masks, 2) if len(masks) <= _MASKS else ()
        sets = np.array([*masks, *(one | other for one, other in pairs)])
        weight = _sums(costs, mask_of_unit, len(masks))
        inside = np.array([weight[~(masks & ~groups).any(axis=1)].sum() for groups in sets])
        sets, inside = sets[sets.any(axis=1)], inside[sets.any(axis=1)]
        proven["masks"] = least(lambda room: bool((sets @ room >= inside).all()))
    return proven


def _padded(rows: Ints, m: int, equal_counts: bool, least: int) -> int:
    """Return the least load under which m runs of `least` rows at least, in sorted order, cover all rows."""
    rows, n = np.sort(rows)[::-1], len(rows)
    few, more = divmod(n, m)
    if equal_counts or n == 0:
        longer = (few + 1) * int(rows[few * (m - more)]) if more else 0
        return max(few * int(rows[0]), longer) if n else 0

    def covers(load: int) -> bool:
        covered = 0
        for behind in reversed(range(m)):
            if covered < n:
                fit = load // int(rows[covered]) if rows[covered] else n
                # As many rows as fit, but `least` are left for each group that follows.
                covered = min(covered + fit, n - least * behind) if fit >= least else n + 1
        return covered == n

    low, high = int(rows[0]), int(rows[0]) * n
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if covers(middle) else (middle + 1, high)
    return low


# --- micro-batches ---------------------------------------------------------------------------------------------------


def _require_limits(result: ScheduleResult, tokens: NDArray[np.int64], limits: BatchLimits, num_ranks: int) -> None:
    """Require that each micro-batch keeps to the limits besides its tokens, micro-batch by micro-batch."""
    for k in range(result.num_slots):
        there = []
        for rank in range(num_ranks):
            mine = (result.rank_of_item == rank) & (result.slot_of_item == k)
            where, count = f"micro-batch {k} of rank {rank}", int(mine.sum())
            for q, most in enumerate(limits.caps.tolist()):
                held = int(limits.sizes[mine, q].sum())
                require(held <= most, f"{where} holds {held} of quantity {q}, over its limit {most}")
            if limits.most_items is not None:
                require(count <= limits.most_items, f"{where} holds {count} items, over {limits.most_items}")
            if limits.padded is not None:
                padded = count * int(tokens[mine].max(initial=0))
                require(padded <= limits.padded, f"{where} is padded to {padded}, over {limits.padded}")
            if limits.kinds is not None:
                require(len(set(limits.kinds[mine].tolist())) <= 1, f"{where} holds items of two kinds")
            there.append(limits.everywhere is not None and bool(limits.everywhere[mine].any()))
        require(len(set(there)) <= 1, f"in slot {k} some ranks have an item that all should have, and others none")


def check_schedule(
    costs: ArrayLike,
    tokens: ArrayLike,
    result: ScheduleResult,
    *,
    num_ranks: int,
    cap: int,
    sync: str = "micro_batch",
    num_slots: int | str | None = None,
    min_slots: int = 1,
    slots_multiple_of: int = 1,
    stages: int = 1,
    allow_empty: bool = False,
    over_long: str = "error",
    prefix: ArrayLike | Sequence[int | str | None] | None = None,
    prefix_costs: ArrayLike | None = None,
    prefix_tokens: ArrayLike | None = None,
    limits: BatchLimits | None = None,
) -> None:
    """Check a schedule against the samples and the rules it was made from; return nothing if all holds.

    Parameters
    ----------
    costs, tokens : int64[n]
        As given to :func:`schedule_micro_batches`.
    result : ScheduleResult
    num_ranks, cap, sync, num_slots, min_slots, slots_multiple_of, stages, allow_empty, over_long
        As given to :func:`schedule_micro_batches`. That ``"fewest"`` slots are the fewest is not checked.
    prefix, prefix_costs, prefix_tokens : array[n], optional
        Of items that share prefixes, as given to :func:`solvers.packing.schedule_with_prefixes`.
    limits : BatchLimits, optional
        As given to :func:`schedule_micro_batches`.

    Raises
    ------
    CertificateError
        Naming the first violated rule.
    TypeError, ValueError
        If the costs or tokens themselves, `sync` or `over_long` are unusable.

    Examples
    --------
    >>> from solvers.packing.schedule import schedule_micro_batches
    >>> check_schedule([3, 2, 1], [3, 2, 1], schedule_micro_batches([3, 2, 1], [3, 2, 1], 1, 4), num_ranks=1, cap=4)
    """
    own, own_tokens = as_costs(costs)[0], as_costs(tokens, "tokens")[0]
    if sync not in SYNCS or over_long not in OVER_LONG:
        raise ValueError(f"sync and over_long must be known, got {sync!r} and {over_long!r}")
    require(result.cap == cap, f"cap is {cap}, not {result.cap}")
    require(result.sync == sync, f"sync is {sync!r}, not {result.sync!r}")
    _require_places(result, num_ranks, len(own), num_slots, min_slots, slots_multiple_of)
    _require_over_long(result, own_tokens, cap, over_long)
    whole, whole_tokens = own, own_tokens
    if prefix is not None:
        if prefix_costs is None or prefix_tokens is None:
            raise ValueError("prefix, prefix_costs and prefix_tokens are given together")
        keys = keys_as_numbers("prefix", prefix, len(own))
        places = result.rank_of_item.astype(np.int64) * result.num_slots + result.slot_of_item
        whole = own + _borne(places, keys, as_costs(prefix_costs, "prefix_costs")[0])
        whole_tokens = own_tokens + _borne(places, keys, as_costs(prefix_tokens, "prefix_tokens")[0])
    _require_cells(result, whole, whole_tokens, cap, allow_empty)
    if limits is not None:
        _require_limits(result, own_tokens, limits, num_ranks)
    loads, ahead = result.slot_loads, result.num_slots + stages - 1
    if sync == "micro_batch":
        value, even = int(loads.max(axis=0).sum()), -(-int(whole.sum()) // num_ranks)
    elif sync == "step":
        value, even = int(loads.sum(axis=1).max()), -(-int(whole.sum()) // num_ranks)
    else:
        value, even = ahead * int(loads.max()), ahead * -(-int(whole.sum()) // (num_ranks * result.num_slots))
    require(result.value == value, f"with sync {sync!r} it takes {value}, not value = {result.value}")
    require(result.perfect == even, f"perfect is {even}, not {result.perfect}")
    require_status(result.status, result.lower_bound, value, "value")
    if prefix is not None:
        _require_bound(result, {}, TRUSTED_BOUNDS["prefix"])
        return
    proven = _plain(own, num_ranks, equal_counts=False)
    if sync == "pipeline":
        slots: Iterable[int] = [result.num_slots]
        if num_slots is None:
            most = None if allow_empty else len(own) // num_ranks
            slots = _permitted(np.minimum(own_tokens, cap), num_ranks, cap, min_slots, slots_multiple_of, most)
        proven = dict.fromkeys(proven, _best_pipeline(own, num_ranks, slots, stages))
    _require_bound(result, proven, TRUSTED_BOUNDS[sync])


def _require_places(
    result: ScheduleResult | SharesResult, num_ranks: int, num_items: int, asked: int | str | None, least: int,
    multiple: int,
) -> None:  # fmt: skip
    k = result.num_slots
    for name, table in (("slot_loads", result.slot_loads), ("slot_tokens", result.slot_tokens)):
        require(
            table.dtype == np.int64 and table.shape == (num_ranks, k),
            f"every rank has num_slots = {k} slots: {name} must be int64[{num_ranks}, {k}], got {table.dtype} of shape "
            f"{table.shape}",
        )
    require(k >= least, f"num_slots = {k} is below min_slots = {least}")
    require(k % multiple == 0, f"num_slots = {k} is no multiple of slots_multiple_of = {multiple}")
    require(asked in (None, "fewest", k), f"num_slots = {asked} was asked for, not {k}")
    ends = (("rank_of_item", result.rank_of_item, num_ranks), ("slot_of_item", result.slot_of_item, k))
    for name, array, _ in ends:
        require(
            array.dtype == np.int32 and array.shape == (num_items,),
            f"every sample has one place: {name} must be int32[{num_items}], got {array.dtype} of shape {array.shape}",
        )
    for name, array, end in ends:
        where = "on rank" if name == "rank_of_item" else "in slot"
        for item in _first(~((array >= 0) & (array < end))):
            raise CertificateError(f"sample {item} is {where} {array[item]}, outside 0..{end - 1}")


def _require_over_long(result: ScheduleResult | SharesResult, tokens: Ints, cap: int, over_long: str) -> None:
    over = np.flatnonzero(tokens > cap).tolist()
    if over_long == "error" and over:
        raise CertificateError(f"sample {over[0]} is over the cap, which over_long refuses")
    require(result.own.tolist() == over, f"own must be {over}, got {result.own.tolist()}")


def _require_cells(
    result: ScheduleResult | SharesResult, costs: Ints, tokens: Ints, cap: int, allow_empty: bool
) -> None:
    """Require that each micro-batch costs and holds what is claimed, and keeps to the cap."""
    places = result.rank_of_item, result.slot_of_item
    shape = result.slot_loads.shape
    counts, alone, loads, volumes = (np.zeros(shape, dtype=np.int64) for _ in range(4))
    for table, values in ((counts, np.ones_like(costs)), (loads, costs), (volumes, tokens)):
        np.add.at(table, places, values)
    alone[result.rank_of_item[result.own], result.slot_of_item[result.own]] = 1
    rules: list[tuple[NDArray[np.bool_], Callable[[tuple[int, int]], str]]] = [
        ((alone == 1) & (counts > 1), lambda at: f"holds {counts[at]} samples, among them one of `own`"),
        ((counts == 0) & (not allow_empty), lambda at: "is empty"),
        ((alone == 0) & (volumes > cap), lambda at: f"holds {volumes[at]} tokens, over cap = {cap}"),
        (loads != result.slot_loads, lambda at: f"costs {loads[at]}, not slot_loads = {result.slot_loads[at]}"),
        (volumes != result.slot_tokens, lambda at: f"holds {volumes[at]} tokens, not {result.slot_tokens[at]}"),
    ]
    for wrong, says in rules:
        for rank, slot in np.argwhere(wrong)[:1].tolist():
            raise CertificateError(f"the micro-batch of rank {rank}, slot {slot} {says((rank, slot))}")


def _permitted(tokens: Ints, num_ranks: int, cap: int, least: int, multiple: int, most: int | None) -> Iterable[int]:
    """Return the numbers of slots that the rules and the cap permit, ascending."""
    bins = max(-(-int(tokens.sum()) // cap), int((tokens > cap - tokens).sum()))
    first = -(-max(least, -(-bins // num_ranks)) // multiple) * multiple
    return itertools.count(first, multiple) if most is None else range(first, most + 1, multiple)


def _best_pipeline(costs: Ints, num_ranks: int, slots: Iterable[int], stages: int) -> int:
    """Return the least of (K + stages - 1) * (what the largest of R * K micro-batches costs at least)."""
    best, largest = -1, int(costs.max(initial=0))
    for k in slots:
        if 0 <= best <= (k + stages - 1) * largest:
            break  # more slots make the pipeline longer, and none is shorter than the largest sample
        here = (k + stages - 1) * max(_plain(costs, num_ranks * k, equal_counts=False).values())
        best = here if best < 0 else min(best, here)
    return max(best, 0)


def check_shares(
    costs: ArrayLike,
    tokens: ArrayLike,
    rank_of_item: ArrayLike,
    result: SharesResult,
    *,
    num_ranks: int,
    cap: int,
    num_slots: int | str | None = None,
    min_slots: int = 1,
    slots_multiple_of: int = 1,
    allow_empty: bool = False,
    over_long: str = "error",
) -> None:
    """Check cut shares against the samples, their ranks and the rules; return nothing if all holds.

    Parameters
    ----------
    costs, tokens, rank_of_item : int64[n]
        As given to :func:`cut_shares`.
    result : SharesResult
    num_ranks, cap, num_slots, min_slots, slots_multiple_of, allow_empty, over_long
        As given to :func:`cut_shares`. That K is what first fit decreasing needs is not checked.

    Raises
    ------
    CertificateError
        Naming the first violated rule.
    TypeError, ValueError
        If costs, tokens or ranks themselves, or `over_long`, are unusable.

    Examples
    --------
    >>> from solvers.packing.shares import cut_shares
    >>> check_shares([3, 2], [3, 2], [0, 0], cut_shares([3, 2], [3, 2], [0, 0], 1, 4), num_ranks=1, cap=4)
    """
    own, own_tokens = as_costs(costs)[0], as_costs(tokens, "tokens")[0]
    ranks = as_int64("rank_of_item", rank_of_item)
    if over_long not in OVER_LONG:
        raise ValueError(f"over_long must be known, got {over_long!r}")
    require(result.cap == cap, f"cap is {cap}, not {result.cap}")
    _require_places(result, num_ranks, len(own), num_slots, min_slots, slots_multiple_of)
    _require_over_long(result, own_tokens, cap, over_long)
    for item in _first(result.rank_of_item != ranks):
        raise CertificateError(
            f"sample {item} lies on rank {ranks[item]} and was put on rank {result.rank_of_item[item]}"
        )
    _require_cells(result, own, own_tokens, cap, allow_empty)
    for rank in _first(np.any(np.diff(result.slot_loads, axis=1) > 0, axis=1)):
        raise CertificateError(f"the micro-batches of rank {rank} must descend in cost")
    over = own_tokens > cap
    alone = _sums(over.astype(np.int64), result.rank_of_item, num_ranks)
    rest = np.where(over, 0, own_tokens)
    needed = {
        "volume": -(-_sums(rest, result.rank_of_item, num_ranks) // cap),
        "halves": _sums((rest > cap - rest).astype(np.int64), result.rank_of_item, num_ranks),
    }
    proven = {
        name: -(-max(min_slots, int((alone + bins).max())) // slots_multiple_of) * slots_multiple_of
        for name, bins in needed.items()
    }
    _require_bound(result, proven, frozenset())
    require(
        1 <= result.lower_bound <= result.num_slots,
        f"lower_bound = {result.lower_bound} must be within 1..num_slots = {result.num_slots}",
    )
    require_status(result.status, result.lower_bound, result.num_slots, "num_slots")


# --- packs -----------------------------------------------------------------------------------------------------------


def check_packing(
    sizes: ArrayLike, cap: int, result: PackingResult, *, max_items: int | None = None,
    limits: Sequence[tuple[ArrayLike, int]] = (),
) -> None:  # fmt: skip
    """Check a packing result against the sizes it was made from; return nothing if all holds.

    Every number is recomputed, the lower bound by the argument it names; those of :data:`TRUSTED_BOUNDS` are believed.

    Parameters
    ----------
    sizes : int64[n]
        The sizes the result was made from.
    cap : int
        The cap that was asked for.
    result : PackingResult
    max_items, limits
        The rules that were asked for, as in :func:`solvers.pack`.

    Raises
    ------
    CertificateError
        Naming the first violated rule.
    TypeError, ValueError
        If the sizes, the cap or the rules themselves are unusable.

    Examples
    --------
    >>> from solvers.packing import pack
    >>> check_packing([4, 5, 6, 5], 10, pack([4, 5, 6, 5], 10))
    """
    cap, (array, _, _) = as_integer("cap", cap, 1), as_costs(sizes, "sizes")
    most = len(array) if max_items is None else as_count("max_items", max_items)
    require(result.cap == cap, f"the cap is {cap}, not {result.cap}")
    loads, groups = result.loads, result.group_of_item
    require(
        loads.ndim == 1 and loads.dtype == np.int64,
        f"loads must be int64[num_groups], got {loads.dtype} of shape {loads.shape}",
    )
    _require_groups(groups, len(array), len(loads))
    counts = np.bincount(groups, minlength=len(loads))
    for group in _first(counts == 0):
        raise CertificateError(f"every group holds an item, but group {group} is empty")
    _require_loads(_sums(array, groups, len(loads)), loads)
    for group in _first(np.greater(loads, cap)):
        raise CertificateError(f"group {group} weighs {loads[group]}, over cap = {cap}")
    for group in _first(np.greater(counts, most)):
        raise CertificateError(f"group {group} holds {counts[group]} items, over max_items = {most}")
    require_status(result.status, result.lower_bound, result.num_groups, "num_groups")
    proven = {"volume": max(min(len(array), 1), -(-int(array.sum()) // cap)), "l2": _stand_alone(array, cap)}
    if max_items is not None:
        proven["counts"] = -(-len(array) // most)
    for k, (amounts, largest) in enumerate(limits):
        column = as_costs(amounts, f"limits[{k}][0]")[0]
        held = _sums(column, groups, len(loads))
        for group in _first(np.greater(held, largest)):
            raise CertificateError(f"group {group} holds {held[group]} of limits[{k}], over {largest}")
        proven["limits"] = max(proven.get("limits", 0), -(-int(column.sum()) // largest))
    _require_bound(result, proven, TRUSTED_BOUNDS["packing"])


def _stand_alone(sizes: Ints, cap: int) -> int:
    """Return Martello and Toth's L2: items over cap - a stand alone, those from a to that fill groups of their own."""
    sizes = np.sort(sizes)
    sums = np.concatenate(([0], np.cumsum(sizes)))
    half = int(np.count_nonzero(sizes <= cap - sizes))
    start = np.concatenate((np.arange(half), [half]))  # where a begins: up to half of the cap, or none
    low = np.concatenate((sizes[:half], [cap // 2 + 1]))
    end = np.maximum(np.searchsorted(sizes, cap - low, side="right"), half)
    return int((len(sizes) - end + -(-(sums[end] - sums[start]) // cap)).max())
