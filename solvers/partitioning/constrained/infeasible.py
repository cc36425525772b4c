"""Why no assignment can exist: each proof with its certificate, the cheap ones before the search, the others after."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from solvers._sort import sort_descending
from solvers.constraints import check_enough_items
from solvers.errors import InfeasibilityCertificate, InfeasibleError, Named
from solvers.group_bounds import best_bound
from solvers.makespan_bounds import mask_sets
from solvers.partitioning.constrained.state import State

Ints = NDArray[np.int64]


def _refuse(
    rule: str,
    constraint: str,
    items: Sequence[int],
    groups: Sequence[int],
    needed: int,
    available: int,
    quantity: int | None = None,
    column: str = "",
) -> None:
    certificate = InfeasibilityCertificate(constraint, items, groups, needed, available, quantity)
    these: dict[str, Any] = {"these items": Named("item", items), "these groups": Named("group", groups)}
    raise InfeasibleError(rule, certificate, column=column, **these)


def check_feasible(state: State) -> None:
    """Raise InfeasibleError where a look at each item, cap and sum shows that nothing can be feasible. O(n)."""
    _check_counts(state)
    _check_masks(state)
    _check_totals(state)
    _check_units(state)


def prove_infeasible(state: State) -> None:
    """Raise InfeasibleError where a packing bound, the sums inside sets of groups, or the reachable counts prove it."""
    _check_reachable_counts(state)
    _check_inside_sets(state)
    _check_packing(state)


def _with_keys(state: State, constraint: str) -> str:
    return constraint if state.problem.key_of_item is None else f"{constraint} + keep_together"


def _check_counts(state: State) -> None:
    problem = state.problem
    n, m = len(problem.costs), problem.num_groups
    if problem.most_items * m < n:
        _refuse(
            f"{{max_items}}: {n} {{items}} do not fit {m} {{groups}} of at most {problem.most_items}, which hold "
            f"{problem.most_items * m}",
            "max_items", range(n), range(m), n, problem.most_items * m,
        )  # fmt: skip
    check_enough_items(n, m, problem.least_items)
    units = state.units
    if len(units.items) and int(units.items.max()) > problem.most_items:
        name = "equal_counts" if "equal_counts" in problem.names else "max_items"
        items = units.items_of(np.arange(len(units.items)) == int(np.argmax(units.items)))
        _refuse(
            f"{{{name}}}: {{these items}} must stay together, {len(items)} of them, and a {{group}} may hold "
            f"{problem.most_items}",
            f"{name} + keep_together", items, range(m), len(items), problem.most_items,
        )  # fmt: skip
    if problem.least_items > 0 and len(units.items) < m:
        name = "equal_counts" if "equal_counts" in problem.names else "min_items"
        _refuse(
            f"{{{name}}}: no {{group}} may be empty, and {n} {{items}} that stay together by key make only "
            f"{len(units.items)} units for {m} {{groups}}",
            f"{name} + keep_together", range(n), range(m), m, len(units.items),
        )  # fmt: skip


def _check_masks(state: State) -> None:
    empty: NDArray[np.bool_] = ~np.asarray(state.allowed.any(axis=1))
    if not empty.any():
        return
    has_none: NDArray[np.bool_] = ~np.asarray(state.problem.masks.any(axis=1))
    alone = has_none[state.problem.mask_of_item]
    if alone.any():
        item = int(np.argmax(alone))
        _refuse("{allowed}: {these items} may be in no {group}", "allowed", [item], [], 1, 0)
    unit = int(np.argmax(empty[state.mask_of_unit])) if len(state.mask_of_unit) else -1
    if unit >= 0 and empty[state.mask_of_unit[unit]]:
        items = state.units.items_of(np.arange(len(state.mask_of_unit)) == unit)
        _refuse(
            "{allowed}: {these items} must stay together, and no {group} may hold them all",
            "allowed + keep_together", items, [], 1, 0,
        )  # fmt: skip


def _check_totals(state: State) -> None:
    sizes, caps = state.problem.sizes, state.problem.caps
    for q in range(sizes.shape[1]):
        total, room = int(sizes[:, q].sum()), sum(caps[:, q].tolist())
        if total > room:
            _refuse(
                f"{{caps}}: the {{sizes}}{{column}} of all {{items}} sum to {total}, and the {len(caps)} {{groups}} "
                f"hold {room}: {total - room} too much",
                "caps", range(len(sizes)), range(len(caps)), total, room, q, _column(state, q),
            )  # fmt: skip


def _column(state: State, q: int) -> str:
    return f"[:, {q}]" if state.problem.sizes.shape[1] > 1 else ""


def _check_units(state: State) -> None:
    """Every unit must fit one of its groups alone, in all its quantities at once."""
    sizes, problem = state.units.sizes, state.problem
    if sizes.shape[1] == 0:
        return
    for k, mask in enumerate(state.allowed):
        mine = np.flatnonzero(state.mask_of_unit == k)
        rows = np.unique(problem.caps[mask], axis=0)
        fits = np.zeros(len(mine), dtype=np.bool_)
        # The largest caps come last in order, and are where most units fit.
        for row in rows[::-1]:
            fits |= (sizes[mine] <= row).all(axis=1)
            if fits.all():
                break
        if fits.all():
            continue
        unit = int(mine[np.argmin(fits)])
        items = state.units.items_of(np.arange(len(sizes)) == unit)
        over = sizes[unit] - rows.max(axis=0)
        q = int(np.argmax(over))
        groups = np.flatnonzero(mask).tolist()
        together = " together" if len(items) > 1 else ""
        constraint = _with_keys(state, "caps") if len(items) > 1 else "caps"
        constraint += " + allowed" if len(groups) < problem.num_groups else ""
        if over[q] > 0:
            _refuse(
                f"{{caps}}: {{these items}} of {{size}}{{column}} {sizes[unit, q]}{together} exceeds every cap that "
                f"it may be under, the largest is {rows[:, q].max()}: {over[q]} too much",
                constraint, items, groups, int(sizes[unit, q]), int(rows[:, q].max()), q, _column(state, q),
            )  # fmt: skip
        q = int(np.argmax((sizes[unit] > rows).any(axis=0)))
        room = int(rows[(np.delete(sizes[unit], q) <= np.delete(rows, q, axis=1)).all(axis=1), q].max(initial=0))
        _refuse(
            f"{{caps}}: {{these items}} of {{sizes}} {sizes[unit].tolist()}{together} fits no {{group}} in all "
            "quantities at once",
            constraint, items, groups, int(sizes[unit, q]), room, q,
        )  # fmt: skip


def _check_reachable_counts(state: State) -> None:
    """With keys, some numbers of items cannot be made of whole units at all."""
    problem = state.problem
    least, most = problem.least_items, problem.most_items
    if least == 0 or problem.key_of_item is None:
        return
    # A bit for each number of items that whole units make, up to the most that a group may hold.
    window = (1 << (most + 1)) - 1
    reachable = 1
    for items, count in zip(*np.unique(state.units.items, return_counts=True), strict=True):
        for _ in range(min(int(count), most // int(items))):
            reachable |= (reachable << int(items)) & window
    if reachable >> least == 0:
        name = "equal_counts" if "equal_counts" in problem.names else "min_items"
        below = (reachable & ((1 << least) - 1)).bit_length() - 1
        _refuse(
            f"{{{name}}}: no whole number of units that stay together makes a {{group}} of {least} to {most} "
            f"{{items}}; the most below is {below}",
            f"{name} + keep_together", range(len(problem.costs)), range(problem.num_groups), least, below,
        )  # fmt: skip


def _check_inside_sets(state: State) -> None:
    """Hall: what may be nowhere but in a set of groups must fit it, in every quantity and in number."""
    if not state.masked:
        return
    c, amounts = state.components, state.amounts
    for groups in mask_sets(state.allowed):
        _check_set(state, groups)
    for d in range(c, amounts.shape[1]):
        violator = _hall_violator(state, d)
        if violator is not None:
            _check_set(state, violator)
    if state.problem.least_items:
        for group in range(state.problem.num_groups):
            mine = state.allowed[:, group][state.mask_of_unit]
            there = int(state.units.items[mine].sum())
            if there < state.problem.least_items:
                name = "equal_counts" if "equal_counts" in state.problem.names else "min_items"
                _refuse(
                    f"{{{name}}}: {{these groups}} must hold {state.problem.least_items} {{items}} and only {there} "
                    "may be in it",
                    f"{name} + allowed", state.units.items_of(mine), [group], state.problem.least_items, there,
                )  # fmt: skip


def _check_set(state: State, groups: NDArray[np.bool_]) -> None:
    outside: NDArray[np.bool_] = np.asarray((state.allowed & ~groups).any(axis=1))
    inside = ~outside[state.mask_of_unit]
    for d in range(state.components, state.amounts.shape[1]):
        needed = int(state.amounts[inside, d].sum())
        room = sum(state.upper[groups, d].tolist())
        if needed <= room:
            continue
        items, where = state.units.items_of(inside), np.flatnonzero(groups).tolist()
        q = d - state.components
        if q < state.problem.sizes.shape[1]:
            name, what, quantity = "caps", f"{{size}}{{column}} {needed}", q
        else:
            name, what, quantity = "max_items", f"{needed} {{items}}", None
            name = "equal_counts" if "equal_counts" in state.problem.names else name
        _refuse(
            f"{{{name}}}: {{these items}} ({what} together) may be in {{these groups}} only, with room for {room}: "
            f"{needed - room} too much",
            f"{name} + allowed", items, where, needed, room, quantity, _column(state, q),
        )  # fmt: skip


def _hall_violator(state: State, d: int) -> NDArray[np.bool_] | None:
    """The groups of a smallest cut, if masks of items (as sand) cannot flow into the room of groups; by augmenting."""
    masks, m = state.allowed, state.problem.num_groups
    supply = [int(state.amounts[state.mask_of_unit == k, d].sum()) for k in range(len(masks))]
    room = [min(r, sum(supply)) for r in state.upper[:, d].tolist()]
    # Beyond that the proof would take longer than a search.
    if len(masks) * m > 200_000:
        return None
    neighbours = [np.flatnonzero(mask).tolist() for mask in masks]
    flow: list[dict[int, int]] = [{} for _ in range(m)]  # of each group: mask -> amount
    for k in range(len(masks)):
        # Augmenting paths from one mask, breadth first, so that each is among the shortest (Edmonds & Karp 1972).
        while supply[k] > 0:
            came_from: dict[int, int] = {}  # group -> mask
            via: dict[int, int] = {k: -1}  # mask -> group
            queue, end = [k], -1
            while queue and end < 0:
                mask = queue.pop(0)
                for g in neighbours[mask]:
                    if g in came_from:
                        continue
                    came_from[g] = mask
                    if room[g] > 0:
                        end = g
                        break
                    for other, amount in flow[g].items():
                        if amount > 0 and other not in via:
                            via[other] = g
                            queue.append(other)
            if end < 0:
                # No way on: the groups that were reached are full, and all that reaches them may be nowhere else.
                # That is Hall's violator, and a certificate.
                cut = np.zeros(m, dtype=np.bool_)
                cut[list(came_from)] = True
                return cut
            _augment(k, end, came_from, via, flow, supply, room)
    return None


def _augment(
    k: int,
    end: int,
    came_from: dict[int, int],
    via: dict[int, int],
    flow: list[dict[int, int]],
    supply: list[int],
    room: list[int],
) -> None:
    amount, g = min(supply[k], room[end]), end
    while via[came_from[g]] >= 0:
        mask = came_from[g]
        g = via[mask]
        amount = min(amount, flow[g][mask])
    supply[k] -= amount
    room[end] -= amount
    g = end
    while True:
        mask = came_from[g]
        flow[g][mask] = flow[g].get(mask, 0) + amount
        if via[mask] < 0:
            return
        g = via[mask]
        flow[g][mask] -= amount


def _check_packing(state: State) -> None:
    """Even at the largest cap everywhere, the units need more groups than there are."""
    m = state.problem.num_groups
    limited = state.problem.most_items < len(state.problem.costs)
    columns = [
        (state.units.sizes[:, q], int(state.problem.caps[:, q].max()), q) for q in range(state.problem.sizes.shape[1])
    ]
    if limited and state.problem.key_of_item is not None:
        columns.append((state.units.items, state.problem.most_items, -1))
    for sizes, cap, q in columns:
        if cap == 0 or len(sizes) == 0:
            continue
        per_group = None
        if limited:  # units hold one item at least
            per_group = state.problem.most_items
        ordered = sort_descending(np.ascontiguousarray(sizes), int(sizes.max()))[1]
        bound = best_bound(ordered, int(sizes.sum()), cap, per_group, enough=m + 1)
        if bound.value <= m:
            continue
        name = "caps" if q >= 0 else ("equal_counts" if "equal_counts" in state.problem.names else "max_items")
        what = "{sizes}{column}" if q >= 0 else "units of {items} that stay together"
        _refuse(
            f"{{{name}}}: the {what} need at least {bound.value} {{groups}} of {cap} (by '{bound.name}', "
            f"solvers.packing), there are {m}",
            _with_keys(state, name), range(len(state.problem.costs)), range(m), bound.value, m, q if q >= 0 else None,
            _column(state, q),
        )  # fmt: skip
