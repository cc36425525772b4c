"""Why no plan can exist: each proof with its certificate. What is cheap is asked before the search, the rest after it.

A certificate names the constraint, the items, the groups, what is needed and what there is.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from solvers._sort import sort_descending
from solvers._units import Units
from solvers.bounds import groups_bound, mask_sets
from solvers.constraints import ConstrainedProblem, check_enough_items
from solvers.errors import InfeasibilityCertificate, InfeasibleError, Named

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

# Masks times groups from which on the largest flow takes longer than a search.
_MOST_EDGES = 200_000


def check_feasible(problem: ConstrainedProblem, units: Units) -> None:
    """Raise InfeasibleError where a look at each item, cap and sum shows that nothing can be feasible. O(n)."""
    _check_counts(problem, units)
    if "allowed" in problem.names:
        _check_masks(problem, units)
    _check_totals(problem)
    _check_each_unit(problem, units)


def prove_infeasible(problem: ConstrainedProblem, units: Units) -> None:
    """Raise InfeasibleError where reachable counts, the room inside sets of groups, or a packing bound prove it."""
    _check_reachable_counts(problem, units)
    if "allowed" in problem.names:
        _check_sets_of_groups(problem, units)
    _check_packing(problem, units)


def _refuse(
    rule: str, constraint: str, items: Sequence[int], groups: Sequence[int], needed: int, available: int,
    quantity: int | None = None, column: str = "",
) -> NoReturn:  # fmt: skip
    certificate = InfeasibilityCertificate(constraint, items, groups, needed, available, quantity)
    these: dict[str, Any] = {"these items": Named("item", items), "these groups": Named("group", groups)}
    raise InfeasibleError(rule, certificate, column=column, **these)


def _counted_by(problem: ConstrainedProblem, name: str) -> str:
    """What to call a limit on counts: equal counts are one from both sides."""
    return "equal_counts" if "equal_counts" in problem.names else name


def _column(problem: ConstrainedProblem, q: int) -> str:
    return f"[:, {q}]" if problem.sizes.shape[1] > 1 else ""


def _one(units: Units, unit: int) -> list[int]:
    """Return the items of one unit."""
    return units.items_of(np.arange(len(units.items)) == unit)


# Before the search ---------------------------------------------------------------------------------------------------


def _check_counts(problem: ConstrainedProblem, units: Units) -> None:
    n, m = len(problem.costs), problem.num_groups
    if problem.most_items * m < n:
        _refuse(
            f"{{max_items}}: {n} {{items}} do not fit {m} {{groups}} of at most {problem.most_items}, which hold "
            f"{problem.most_items * m}",
            "max_items", range(n), range(m), n, problem.most_items * m,
        )  # fmt: skip
    check_enough_items(n, m, problem.least_items)
    if problem.key_of_item is not None and len(units.items) and int(units.items.max()) > problem.most_items:
        name = _counted_by(problem, "max_items")
        items = _one(units, int(np.argmax(units.items)))
        _refuse(
            f"{{{name}}}: {{these items}} must stay together, {len(items)} of them, and a {{group}} may hold "
            f"{problem.most_items}",
            f"{name} + keep_together", items, range(m), len(items), problem.most_items,
        )  # fmt: skip
    if problem.least_items > 0 and len(units.items) < m:
        name = _counted_by(problem, "min_items")
        _refuse(
            f"{{{name}}}: no {{group}} may be empty, and {n} {{items}} that stay together by key make only "
            f"{len(units.items)} units for {m} {{groups}}",
            f"{name} + keep_together", range(n), range(m), m, len(units.items),
        )  # fmt: skip


def _check_masks(problem: ConstrainedProblem, units: Units) -> None:
    has_none: Bools = ~np.asarray(problem.masks.any(axis=1))[problem.mask_of_item]
    if has_none.any():
        _refuse("{allowed}: {these items} may be in no {group}", "allowed", [int(np.argmax(has_none))], [], 1, 0)
    empty: Bools = ~np.asarray(units.masks.any(axis=1))[units.mask_of_unit]
    if empty.any():
        _refuse(
            "{allowed}: {these items} must stay together, and no {group} may hold them all",
            "allowed + keep_together", _one(units, int(np.argmax(empty))), [], 1, 0,
        )  # fmt: skip


def _check_totals(problem: ConstrainedProblem) -> None:
    sizes, caps = problem.sizes, problem.caps
    for q in range(sizes.shape[1]):
        total, room = int(sizes[:, q].sum()), sum(caps[:, q].tolist())
        if total > room:
            _refuse(
                f"{{caps}}: the {{sizes}}{{column}} of all {{items}} sum to {total}, and the {len(caps)} {{groups}} "
                f"hold {room}: {total - room} too much",
                "caps", range(len(sizes)), range(len(caps)), total, room, q, _column(problem, q),
            )  # fmt: skip


def _check_each_unit(problem: ConstrainedProblem, units: Units) -> None:
    """Every unit must fit one of its groups alone, in all its quantities at once."""
    sizes = units.sizes
    # Units that are within the smallest caps fit wherever they may be: mostly that is all of them.
    large = np.flatnonzero((sizes > problem.caps.min(axis=0)).any(axis=1))
    mask_of_large = units.mask_of_unit[large]
    for k in np.unique(mask_of_large).tolist():
        mine, mask = large[mask_of_large == k], units.masks[k]
        rows = np.unique(problem.caps[mask], axis=0)
        fits = np.zeros(len(mine), dtype=np.bool_)
        for row in rows[::-1]:  # the largest caps come last, and most units fit there
            fits |= (sizes[mine] <= row).all(axis=1)
            if fits.all():
                break
        else:
            _refuse_unit(problem, units, int(mine[np.argmin(fits)]), mask, rows)


def _refuse_unit(problem: ConstrainedProblem, units: Units, unit: int, mask: Bools, rows: Ints) -> NoReturn:
    """A unit fits under none of the `rows` of caps."""
    items, size, groups = _one(units, unit), units.sizes[unit], np.flatnonzero(mask).tolist()
    together = " together" if len(items) > 1 else ""
    constraint = "caps + keep_together" if len(items) > 1 else "caps"
    constraint += " + allowed" if len(groups) < problem.num_groups else ""
    over = size - rows.max(axis=0)
    q = int(np.argmax(over))
    if over[q] > 0:
        _refuse(
            f"{{caps}}: {{these items}} of {{size}}{{column}} {size[q]}{together} exceeds every cap that it may be "
            f"under, the largest is {rows[:, q].max()}: {over[q]} too much",
            constraint, items, groups, int(size[q]), int(rows[:, q].max()), q, _column(problem, q),
        )  # fmt: skip
    q = int(np.argmax((size > rows).any(axis=0)))
    room = int(rows[(np.delete(size, q) <= np.delete(rows, q, axis=1)).all(axis=1), q].max(initial=0))
    _refuse(
        f"{{caps}}: {{these items}} of {{sizes}} {size.tolist()}{together} fits no {{group}} in all quantities at once",
        constraint, items, groups, int(size[q]), room, q,
    )  # fmt: skip


# After it ------------------------------------------------------------------------------------------------------------


def _check_reachable_counts(problem: ConstrainedProblem, units: Units) -> None:
    """With keys, some numbers of items cannot be made of whole units at all."""
    least, most = problem.least_items, problem.most_items
    if least == 0 or problem.key_of_item is None:
        return
    # A bit for each number of items that whole units make, up to the most that a group may hold.
    window, reachable = (1 << (most + 1)) - 1, 1
    for items, count in zip(*np.unique(units.items, return_counts=True), strict=True):
        for _ in range(min(int(count), most // int(items))):
            reachable |= (reachable << int(items)) & window
    if reachable >> least == 0:
        name = _counted_by(problem, "min_items")
        below = (reachable & ((1 << least) - 1)).bit_length() - 1
        _refuse(
            f"{{{name}}}: no whole number of units that stay together makes a {{group}} of {least} to {most} "
            f"{{items}}; the most below is {below}",
            f"{name} + keep_together", range(len(problem.costs)), range(problem.num_groups), least, below,
        )  # fmt: skip


def _limits(problem: ConstrainedProblem, units: Units) -> Iterator[tuple[int | None, Ints, Ints]]:
    """Yield each limited quantity: its number (None: items), what units have of it, and what groups may hold."""
    for q in range(units.sizes.shape[1]):
        yield q, units.sizes[:, q], problem.caps[:, q]
    yield None, units.items, np.full(problem.num_groups, problem.most_items)


def _check_sets_of_groups(problem: ConstrainedProblem, units: Units) -> None:
    """Hall: what may be nowhere but in a set of groups must fit it; and who needs items must be allowed some."""
    sets, masks = mask_sets(units.masks), units.masks
    # Units stay inside a set of groups where no group of their mask is outside.
    stay = (~sets).astype(np.float32) @ masks.T.astype(np.float32) == 0
    for quantity, amounts, room in _limits(problem, units):
        needed = stay @ _by_mask(units, amounts)
        # Compared as floats, as rooms together may not fit int64; what is near is then added up exactly.
        for groups in sets[needed > 0.999999 * (sets @ room.astype(np.float64))]:
            _check_set(problem, units, groups, quantity, amounts, room)
        violator = _hall_violator(units, amounts, room)
        if violator is not None:
            _check_set(problem, units, violator, quantity, amounts, room)
    there = _by_mask(units, units.items) @ masks
    if problem.least_items > there.min():
        group, name = int(np.argmax(there < problem.least_items)), _counted_by(problem, "min_items")
        _refuse(
            f"{{{name}}}: {{these groups}} must hold {problem.least_items} {{items}} and only {there[group]} may be in "
            "it",
            f"{name} + allowed", units.items_of(masks[:, group][units.mask_of_unit]), [group], problem.least_items,
            int(there[group]),
        )  # fmt: skip


def _by_mask(units: Units, amounts: Ints) -> Ints:
    """Return what the units of each mask have together."""
    sums = np.zeros(len(units.masks), dtype=np.int64)
    np.add.at(sums, units.mask_of_unit, amounts)
    return sums


def _check_set(
    problem: ConstrainedProblem, units: Units, groups: Bools, quantity: int | None, amounts: Ints, room: Ints
) -> None:
    inside: Bools = ~np.asarray((units.masks & ~groups).any(axis=1))[units.mask_of_unit]
    needed, there = int(amounts[inside].sum()), sum(room[groups].tolist())
    if needed <= there:
        return
    column = "" if quantity is None else _column(problem, quantity)
    name = _counted_by(problem, "max_items") if quantity is None else "caps"
    what = f"{needed} {{items}}" if quantity is None else f"{{size}}{{column}} {needed}"
    _refuse(
        f"{{{name}}}: {{these items}} ({what} together) may be in {{these groups}} only, with room for {there}: "
        f"{needed - there} too much",
        f"{name} + allowed", units.items_of(inside), np.flatnonzero(groups).tolist(), needed, there, quantity, column,
    )  # fmt: skip


def _hall_violator(units: Units, amounts: Ints, room: Ints) -> Bools | None:
    """The groups of a smallest cut, if what masks have, as sand, cannot flow into the room of groups."""
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import breadth_first_order, maximum_flow

    (k, m), masks = units.masks.shape, units.masks
    if k * m > _MOST_EDGES:
        return None
    supply = _by_mask(units, amounts)
    # SciPy's flows are int32. Supplies rounded down and room up: what then still has no room has none.
    shift = max(0, int(supply.sum()).bit_length() - 30)
    rooms = np.minimum((room >> shift) + ((room & ((1 << shift) - 1)) > 0), 1 << 30)
    supply >>= shift
    source, sink = k + m, k + m + 1
    capacity = np.zeros((k + m + 2, k + m + 2), dtype=np.int32)
    capacity[source, :k] = supply
    capacity[:k, k : k + m] = np.where(masks, supply[:, None], 0)
    capacity[k : k + m, sink] = rooms
    found = maximum_flow(csr_array(capacity), source, sink)
    if found.flow_value == supply.sum():
        return None
    # From the source, along edges with capacity left: groups that are reached are full, and all that reaches them may
    # be nowhere else.
    left = csr_array(capacity - found.flow.toarray())
    left.eliminate_zeros()
    reached = breadth_first_order(left, source, return_predecessors=False)
    cut = np.zeros(m, dtype=np.bool_)
    cut[reached[(reached >= k) & (reached < k + m)] - k] = True
    return cut


def _check_packing(problem: ConstrainedProblem, units: Units) -> None:
    """Even at the largest cap everywhere, the units need more groups than there are."""
    m, limited = problem.num_groups, problem.most_items < len(problem.costs)
    for quantity, amounts, room in _limits(problem, units):
        cap = int(room.max())
        if cap == 0 or len(amounts) == 0 or (quantity is None and (not limited or problem.key_of_item is None)):
            continue
        ordered = sort_descending(np.ascontiguousarray(amounts), int(amounts.max()))[1]
        most = problem.most_items if limited else None  # units hold one item at least
        bound = groups_bound(ordered, int(amounts.sum()), cap, most, enough=m + 1)
        if bound.value <= m:
            continue
        name = _counted_by(problem, "max_items") if quantity is None else "caps"
        what = "units of {items} that stay together" if quantity is None else "{sizes}{column}"
        _refuse(
            f"{{{name}}}: the {what} need at least {bound.value} {{groups}} of {cap} (by '{bound.name}', "
            f"solvers.packing), there are {m}",
            name if problem.key_of_item is None else f"{name} + keep_together", range(len(problem.costs)), range(m),
            bound.value, m, quantity, "" if quantity is None else _column(problem, quantity),
        )  # fmt: skip
