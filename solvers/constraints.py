"""Constraints on groups, as callers give them, and as checked arrays.

Names, shapes and rules are defined only here: :func:`solvers.partition`, :func:`solvers.check_partition` and
:func:`solvers.makespan_lower_bound` take the same keywords and hand them to :class:`Constraints`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from solvers.arguments import INT64_MAX, as_array, as_costs, as_count, as_flag, as_int64
from solvers.errors import (
    ArgumentError,
    ArgumentTypeError,
    ContradictionError,
    InfeasibilityCertificate,
    InfeasibleError,
    UsageError,
)

OBJECTIVES = ("sum", "max")
"""How the largest loads of several cost components are combined to one makespan."""

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Constraints:
    """Constraints on a partition of n items into m groups; all of them hold at once.

    Attributes
    ----------
    equal_counts : bool
        Every group holds n/m items, within one where m does not divide n.
    sizes : int64[n] or int64[n, q], optional
        One or several second quantities of each item, at least 0, such as its tokens where costs are FLOPs.
    caps : int, int64[m], int64[q] or int64[m, q], optional
        What a group may hold of each quantity, never exceeded. An integer holds for every group (one quantity). With
        ``sizes[n]`` a list is one cap a group (or a single one for all); with ``sizes[n, q]`` a list is one cap a
        quantity, also where q = 1. A table is one cap a group and quantity.
    min_items : int
        The fewest items that a group may hold.
    max_items : int, optional
        The most.
    allowed : bool[n, m] or sequence of sequences of int, optional
        The groups that each item may be in: a table, or for each item a list of groups (None: all of them).
    keep_together : int[n] or sequence of int, str or None, optional
        A key for each item; items with equal keys share a group, adjacent or not. No key is special: negative numbers
        and None are keys like any other.
    initial_loads : int64[m] or int64[m, c], optional
        The load that each group has before any item; part of the loads of the result.
    speeds : int64[m], optional
        At least 1. The makespan is the largest ``ceil(load / speed)``.
    objective : str
        With vector costs, ``"sum"``: the sum over components of the largest load; ``"max"``: the largest of them.

    Examples
    --------
    >>> Constraints(sizes=[3, 1, 2], caps=4, max_items=2).names()
    ('caps', 'max_items')
    """

    equal_counts: bool = False
    sizes: ArrayLike | None = None
    caps: ArrayLike | None = None
    min_items: int = 0
    max_items: int | None = None
    allowed: ArrayLike | Sequence[Sequence[int] | None] | None = None
    keep_together: ArrayLike | Sequence[int | str | None] | None = None
    initial_loads: ArrayLike | None = None
    speeds: ArrayLike | None = None
    objective: str = "sum"

    def names(self) -> tuple[str, ...]:
        """Return the constraints that are set, by the name of their argument (``caps`` stands for ``sizes`` too)."""
        given = []
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name in ("objective", "sizes"):
                continue
            if field.name in ("equal_counts", "min_items"):
                if not _is_zero(value):
                    given.append(field.name)
            elif value is not None or (field.name == "caps" and self.sizes is not None):
                given.append(field.name)
        return tuple(given)

    @property
    def beyond_counts(self) -> bool:
        """Whether anything but `equal_counts`, which every method supports, is set (valid or not)."""
        others = (self.sizes, self.caps, self.max_items, self.allowed, self.keep_together, self.initial_loads)
        is_set = any(other is not None for other in others) or self.speeds is not None
        is_sum = isinstance(self.objective, str) and self.objective == "sum"
        return is_set or not (_is_zero(self.min_items) and is_sum)

    def check(self, costs: ArrayLike, num_groups: int) -> ConstrainedProblem:
        """Check everything once and return it as arrays.

        Raises
        ------
        TypeError, ValueError
            Naming the argument, the index, the value and the rule.
        ContradictionError
            Where two arguments contradict each other.
        """
        m = as_count("num_groups", num_groups)
        vector = is_vector(costs)
        matrix = _as_matrix("costs", costs) if vector else as_costs(costs)[0].reshape(-1, 1)
        n = len(matrix)
        names = self.names()
        # What is not asked for costs nothing: of most problems only counts are.
        least, most = _check_counts(self, n, m) if names else (0, max(n, 1))
        sizes, caps = np.zeros((n, 0), dtype=np.int64), np.zeros((m, 0), dtype=np.int64)
        if "caps" in names:
            sizes, caps = _check_caps(self.sizes, self.caps, n, m)
        mask_of_item, masks = np.zeros(n, dtype=np.int32), np.ones((1, m), dtype=np.bool_)
        if self.allowed is not None:
            mask_of_item, masks = _check_allowed(self.allowed, n, m)
        initial, speeds = np.zeros((m, matrix.shape[1]), dtype=np.int64), np.ones(m, dtype=np.int64)
        if self.initial_loads is not None:
            initial = _check_initial_loads(self.initial_loads, m, matrix.shape[1], vector)
        if self.speeds is not None:
            speeds = _check_speeds(self.speeds, m)
        if not isinstance(self.objective, str) or self.objective not in OBJECTIVES:
            raise ArgumentError("objective", f"be one of {', '.join(OBJECTIVES)}", repr(self.objective))
        if self.initial_loads is not None or self.speeds is not None:
            _check_products(matrix, initial, speeds)
        return ConstrainedProblem(
            names=(*names, *(["vector_costs"] if vector else [])),
            costs=matrix,
            vector=vector,
            num_groups=m,
            sizes=sizes,
            caps=caps,
            least_items=least,
            most_items=most,
            mask_of_item=mask_of_item,
            masks=masks,
            key_of_item=None if self.keep_together is None else keys_as_numbers("keep_together", self.keep_together, n),
            initial=initial,
            speeds=speeds,
            objective=self.objective,
        )


@dataclass(frozen=True, slots=True, eq=False)
class ConstrainedProblem:
    """Checked costs and constraints as arrays, every default filled in."""

    names: tuple[str, ...]  # the constraints that are set, ``vector_costs`` included
    costs: Ints  # int64[n, c]
    vector: bool  # whether the costs were given as int64[n, c]
    num_groups: int
    sizes: Ints  # int64[n, q]: q may be 0
    caps: Ints  # int64[m, q]
    # Of a group, equal counts included
    least_items: int
    most_items: int
    mask_of_item: NDArray[np.int32]  # int32[n]: a row of `masks`
    masks: NDArray[np.bool_]  # bool[k, m]: the distinct sets of allowed groups
    key_of_item: Ints | None  # int64[n]: keys as 0, 1, ..., numbered by their first item
    initial: Ints  # int64[m, c]
    speeds: Ints  # int64[m]
    objective: str

    def makespan(self, loads: Ints) -> int:
        """Return the makespan of int64[m, c] loads."""
        times = -(-loads // self.speeds[:, None])
        largest = times.max(axis=0)
        return int(largest.sum() if self.objective == "sum" else largest.max())


def is_vector(costs: Any) -> bool:
    """Whether `costs` look like int64[n, c] rather than int64[n], without converting them."""
    ndim = getattr(costs, "ndim", None)
    if ndim is not None:
        return bool(ndim == 2)
    if not isinstance(costs, list | tuple) or not costs or not isinstance(costs[0], list | tuple | np.ndarray):
        return False
    try:
        return np.asarray(costs).ndim == 2
    except (TypeError, ValueError):
        return False


def _as_matrix(name: str, values: ArrayLike, total_fits: bool = True) -> Ints:
    """Return non-negative int64[rows, columns]; with `total_fits`, the sum of all fits int64."""
    array = np.asarray(values)
    if array.ndim != 2 or array.shape[1] == 0:
        raise ArgumentError(name, "have one or two dimensions and a column at least", f"shape {array.shape}")
    columns = []
    for k in range(array.shape[1]):
        column = as_int64(f"{name}[:, {k}]", array[:, k])
        _check_at_least(f"{name}[:, {k}]", column, 0)
        columns.append(column)
    matrix = np.ascontiguousarray(np.stack(columns, axis=1))
    if total_fits and sum(int(column.astype(object).sum()) if len(column) else 0 for column in columns) > INT64_MAX:
        raise UsageError(f"the sum of {{{name}}} must fit int64")
    return matrix


def _check_at_least(name: str, array: Ints, least: int) -> None:
    if len(array) and array.min() < least:
        where = int(np.argmax(array < least))
        raise ArgumentError(name, f"be >= {least}", array[where], where)


def _check_length(name: str, got: int, expected: int, of: str) -> None:
    if got != expected:
        raise ArgumentError(name, f"have one entry for each {{{of}}}, {expected}", got)


def _check_caps(sizes: ArrayLike | None, caps: ArrayLike | None, n: int, m: int) -> tuple[Ints, Ints]:
    if sizes is None:
        raise UsageError("{caps} limit {sizes}: give {sizes} as well")
    if caps is None:
        raise UsageError("{sizes} are limited by {caps}: give {caps} as well")
    sizes, caps = as_array("sizes", sizes), as_array("caps", caps)
    one_quantity = sizes.ndim != 2
    table = as_costs(sizes, "sizes")[0].reshape(-1, 1) if one_quantity else _as_matrix("sizes", sizes)
    _check_length("sizes", len(table), n, "item")
    return table, _caps_table(caps, table, m, one_quantity)


def _caps_table(caps: NDArray[Any], sizes: Ints, m: int, one_quantity: bool) -> Ints:
    q = sizes.shape[1]
    shape = np.shape(caps)
    if shape == ():
        if q != 1:
            raise ArgumentError("caps", f"have one entry for each quantity, {q}", f"the single number {caps}")
        table = np.full((m, 1), as_int64("caps", np.reshape(caps, 1))[0])
    elif len(shape) == 1:
        flat = as_int64("caps", caps)
        if one_quantity and len(flat) == m:
            table = flat.reshape(m, 1)
        elif len(flat) == q:
            table = np.broadcast_to(flat, (m, q))
        else:
            each, number = ("{group}", m) if one_quantity else ("quantity", q)
            raise ArgumentError("caps", f"have one entry for each {each}, {number}", len(flat))
    else:
        table = _as_matrix("caps", caps, total_fits=False)
        if table.shape != (m, q):
            raise ArgumentError("caps", f"be one number, or of shape ({m}, {q})", f"shape {table.shape}")
    if (table < 0).any():
        group, quantity = np.argwhere(table < 0)[0].tolist()
        where = None if shape == () else group if one_quantity or len(shape) == 2 else quantity
        raise ArgumentError("caps", "be >= 0", table[group, quantity], where)
    return np.ascontiguousarray(np.minimum(table, sizes.sum(axis=0)))  # more than all there is caps nothing


def check_enough_items(n: int, m: int, least: int) -> None:
    """Raise InfeasibleError where n items are fewer than m groups of at least `least` hold."""
    if least * m > n:
        raise InfeasibleError(
            f"{{min_items}}: {m} {{groups}} of at least {least} need {least * m} {{items}}, there are {n}",
            InfeasibilityCertificate("min_items", range(n), range(m), least * m, n),
        )


def _is_zero(value: object) -> bool:
    """Whether it is False or 0, of Python or NumPy; an array is not, nor anything else that is wrong here."""
    return isinstance(value, int | np.integer | np.bool_) and not value


def _check_counts(given: Constraints, n: int, m: int) -> tuple[int, int]:
    least = as_count("min_items", given.min_items, 0)
    most = max(n, 1) if given.max_items is None else as_count("max_items", given.max_items)
    if given.max_items is not None and most < least:
        raise ContradictionError(
            f"{{min_items}} = {least} contradicts {{max_items}} = {most}",
            InfeasibilityCertificate("min_items + max_items", range(n), range(m), least, most),
        )
    if as_flag("equal_counts", given.equal_counts):
        few, many = n // m, -(-n // m)
        make = f"{n} {{items}} in {m} {{groups}} make"
        if most < many:
            raise ContradictionError(
                f"{{equal_counts}} contradicts {{max_items}} = {most}: {make} {many} in a {{group}}",
                InfeasibilityCertificate("equal_counts + max_items", range(n), range(m), many, most),
            )
        if least > few:
            raise ContradictionError(
                f"{{equal_counts}} contradicts {{min_items}} = {least}: {make} {few} in a {{group}}",
                InfeasibilityCertificate("equal_counts + min_items", range(n), range(m), least, few),
            )
        least, most = few, many
    return least, min(most, max(n, 1))


def _check_allowed(allowed: Any, n: int, m: int) -> tuple[NDArray[np.int32], NDArray[np.bool_]]:
    if isinstance(allowed, np.ndarray) or hasattr(allowed, "__array__"):
        return _distinct_rows(_mask_table(np.asarray(allowed), n, m))
    if not isinstance(allowed, Sequence) or isinstance(allowed, str):
        raise ArgumentTypeError("allowed", "be bool[n, m] or a list of groups an item", type(allowed).__name__)
    _check_length("allowed", len(allowed), n, "item")
    first = next((row for row in allowed if isinstance(row, Sequence | np.ndarray) and len(row)), None)
    if first is not None and isinstance(first[0], bool | np.bool_):
        return _distinct_rows(_mask_table(as_array("allowed", allowed), n, m))
    known: dict[tuple[int, ...], int] = {}
    same_object: dict[int, int] = {}
    mask_of_item = np.empty(n, dtype=np.int32)
    for item, row in enumerate(allowed):  # lists that many items share are looked at once
        if id(row) not in same_object:
            groups = tuple(range(m)) if row is None else _groups_of_row(item, row, m)
            same_object[id(row)] = known.setdefault(groups, len(known))
        mask_of_item[item] = same_object[id(row)]
    masks = np.zeros((max(len(known), 1), m), dtype=np.bool_)
    for groups, k in known.items():
        masks[k, list(groups)] = True
    return mask_of_item, masks


def _groups_of_row(item: int, row: Any, m: int) -> tuple[int, ...]:
    groups = as_int64(f"allowed[{item}]", row)
    outside = (groups < 0) | (groups >= m)
    if outside.any():
        raise ArgumentError("allowed", f"name {{groups}} 0..{m - 1}", groups[np.argmax(outside)], item)
    return tuple(sorted(set(groups.tolist())))


def _mask_table(table: NDArray[Any], n: int, m: int) -> NDArray[np.bool_]:
    if table.dtype != np.bool_:
        raise ArgumentTypeError("allowed as a table", "be bool[n, m]", f"dtype {table.dtype}")
    if table.shape != (n, m):
        raise ArgumentError("allowed", f"have shape ({n}, {m})", table.shape)
    return table


def _distinct_rows(table: NDArray[np.bool_]) -> tuple[NDArray[np.int32], NDArray[np.bool_]]:
    n, m = table.shape
    if n == 0:
        return np.zeros(0, dtype=np.int32), np.ones((1, m), dtype=np.bool_)
    # Rows as bytes, eight groups in each: `unique` then compares one value a row and not m columns.
    packed = np.ascontiguousarray(np.packbits(table, axis=1))
    rows = packed.view(np.dtype((np.void, packed.shape[1]))).ravel()
    _, first, mask_of_item = np.unique(rows, return_index=True, return_inverse=True)
    return mask_of_item.reshape(n).astype(np.int32), np.ascontiguousarray(table[first])


def keys_as_numbers(name: str, keys: Any, n: int) -> Ints:
    """Return keys, integers or strings, as 0, 1, ..., numbered by their first item: int64[n]."""
    if isinstance(keys, str) or not (hasattr(keys, "__len__") and hasattr(keys, "__iter__")):
        raise ArgumentTypeError(name, "be one key an item", type(keys).__name__)
    if np.ndim(keys) != 1 if isinstance(keys, np.ndarray) else False:
        raise ArgumentError(name, "be one-dimensional", f"shape {keys.shape}")
    _check_length(name, len(keys), n, "item")
    if isinstance(keys, np.ndarray) and keys.dtype.kind in "iuUS":
        _, first, key_of_item = np.unique(keys, return_index=True, return_inverse=True)
        # `unique` numbers keys by value. By first item the numbers do not hang on what keys are called.
        rank = np.empty(len(first), dtype=np.int64)
        rank[np.argsort(first, kind="stable")] = np.arange(len(first))
        return np.asarray(rank[key_of_item.reshape(n)])
    number: dict[Any, int] = {}
    key_of_item = np.empty(n, dtype=np.int64)
    for item, key in enumerate(keys.tolist() if isinstance(keys, np.ndarray) else keys):
        if not isinstance(key, int | np.integer | str | None) or isinstance(key, bool):
            raise ArgumentTypeError(name, "be an integer, a string or None", repr(key), item)
        key_of_item[item] = number.setdefault(key, len(number))
    return key_of_item


def _check_initial_loads(loads: ArrayLike, m: int, components: int, vector: bool) -> Ints:
    if vector:
        loads = as_array("initial_loads", loads)
        if loads.shape != (m, components):
            raise ArgumentError("initial_loads", f"have shape ({m}, {components})", loads.shape)
        return _as_matrix("initial_loads", loads)
    flat = as_costs(loads, "initial_loads")[0]
    _check_length("initial_loads", len(flat), m, "group")
    return flat.reshape(m, 1)


def _check_speeds(speeds: ArrayLike, m: int) -> Ints:
    flat = as_int64("speeds", speeds)
    _check_length("speeds", len(flat), m, "group")
    _check_at_least("speeds", flat, 1)
    return flat


def _check_products(costs: Ints, initial: Ints, speeds: Ints) -> None:
    """No load, and no makespan times a speed, may leave int64."""
    # In Python's integers, as the sum that is asked about may not fit int64 itself.
    total = int(costs.sum()) + int(initial.astype(object).sum())
    if total > INT64_MAX:
        raise UsageError(f"the sum of {{costs}} and {{initial_loads}} must fit int64, got {total}")
    if speeds.max() > 1 and (total + 1) * int(speeds.max()) > INT64_MAX:
        raise UsageError(
            f"the sum of {{costs}} and {{initial_loads}} times the largest of {{speeds}} must fit int64, got {total} * "
            f"{speeds.max()}"
        )
