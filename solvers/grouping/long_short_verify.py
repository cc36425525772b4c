"""The checks of long and short, from scratch, with no code of the solver: plain loops, exact numbers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from solvers.arguments import as_costs
from solvers.check import require, require_status
from solvers.grouping.long_short import LongShortResult


@dataclass(frozen=True, slots=True)
class _Given:
    """What was asked, in Python's integers; `fits` says of each item what it takes at each degree that caps allow."""

    times: dict[int, list[int]]
    size: int
    overhead: int
    held: list[dict[int, list[int]]]  # of each quantity, what a rank holds of each item, by degree
    caps: list[int]

    @classmethod
    def read(
        cls, alone: ArrayLike, shared: ArrayLike, size: int, degrees: ArrayLike | None, overhead: int,
        shares: ArrayLike | None = None, caps: ArrayLike | None = None,
    ) -> _Given:  # fmt: skip
        single = as_costs(alone, "alone")[0].tolist()
        listed = [size] if degrees is None else np.asarray(degrees).tolist()
        rows = np.asarray(shared)
        times = dict(zip(listed, [rows.tolist()] if rows.ndim == 1 else rows.tolist(), strict=True)) | {1: single}
        ascending = sorted(times)
        tables = [] if shares is None else np.asarray(shares).tolist()
        held = [dict(zip(ascending, table, strict=True)) for table in tables]
        return cls(times, size, overhead, held, [] if caps is None else np.asarray(caps).tolist())

    @property
    def num_items(self) -> int:
        return len(self.times[1])

    def fits(self, item: int, target: int, extra: int) -> dict[int, int]:
        """What an item takes at each degree at which it ends by `target`, given what sharing takes besides."""
        return {
            degree: row[item] for degree, row in self.times.items()
            if row[item] + (extra if degree > 1 else 0) <= target
            and all(held[degree][item] <= cap for held, cap in zip(self.held, self.caps, strict=True))
        }  # fmt: skip

    def check_places(self, degree: list[int], first: list[int], num_ranks: int) -> None:
        """Raise unless every item is on an aligned group of ranks of a degree."""
        require(len(degree) == len(first) == self.num_items, f"every item has one place: {self.num_items} items")
        for i, (d, start) in enumerate(zip(degree, first, strict=True)):
            require(d in self.times, f"item {i} is on {d} ranks, which is none of {sorted(self.times)}")
            require(start % d == 0 and 0 <= start < num_ranks, f"item {i} of degree {d} starts at rank {start}")

    def loads(self, degree: list[int], first: list[int], num_ranks: int) -> list[int]:
        """Add up what each rank takes; the overhead in groups where any item is shared."""
        loads = [0] * num_ranks
        sharing = {start // self.size for d, start in zip(degree, first, strict=True) if d > 1}
        for i, (d, start) in enumerate(zip(degree, first, strict=True)):
            for rank in range(start, start + d):
                loads[rank] += self.times[d][i]
        return [load + self.overhead * (rank // self.size in sharing) for rank, load in enumerate(loads)]


def check_long_short(
    alone: ArrayLike,
    shared: ArrayLike,
    result: LongShortResult,
    *,
    group_size: int,
    degrees: ArrayLike | None = None,
    overhead: int = 0,
) -> None:
    """Check what is shared against the items it was made from, in plain loops; return nothing if all holds.

    Parameters
    ----------
    alone, shared, group_size, degrees, overhead
        As given to :func:`long_short`.
    result : LongShortResult

    Raises
    ------
    CertificateError
        Naming the first violated rule.
    TypeError, ValueError
        If the times themselves are unusable.
    """
    given = _Given.read(alone, shared, group_size, degrees, overhead)
    degree, first = result.degree_of_item.tolist(), result.first_rank_of_item.tolist()
    given.check_places(degree, first, group_size)
    named = result.bound_name in ("longest", "area", "chain")
    require(named, f"lower_bound is by an unknown argument {result.bound_name!r}")
    require(
        len(result.is_shared) == len(result.rank_of_item) == len(degree),
        f"is_shared and rank_of_item have one entry for each of {len(degree)} items",
    )
    for i, d in enumerate(degree):
        require(bool(result.is_shared[i]) == (d > 1), f"item {i} is on {d} ranks, is_shared says otherwise")
        require(result.rank_of_item[i] == (first[i] if d == 1 else -1), f"rank_of_item is wrong for item {i}")
    loads = given.loads(degree, first, group_size)
    require(loads == result.loads.tolist(), f"loads are {loads}, not {result.loads.tolist()}")
    require(max(loads) == result.makespan, f"makespan is {max(loads)}, not {result.makespan}")
    _require_bound(given, result.lower_bound, result.bound_name, group_size)
    require_status(result.status, result.lower_bound, result.makespan)


def check_long_short_groups(
    alone: ArrayLike,
    shared: ArrayLike,
    degree_of_item: ArrayLike,
    first_rank_of_item: ArrayLike,
    *,
    num_ranks: int,
    group_size: int,
    makespan: int,
    lower_bound: int = 0,
    degrees: ArrayLike | None = None,
    overhead: int = 0,
    shares: ArrayLike | None = None,
    caps: ArrayLike | None = None,
) -> None:
    """Check who shares which items in many groups of ranks, and what is proven of that, in plain loops.

    Parameters
    ----------
    alone, shared, group_size, degrees, overhead, shares, caps
        As given to :func:`long_short_groups`.
    degree_of_item, first_rank_of_item : int[n]
        Ranks are counted over all groups.
    num_ranks : int
        Ranks of all groups.
    makespan : int
        What the slowest rank takes.
    lower_bound : int
        What no plan undercuts, whichever group has which items.

    Raises
    ------
    CertificateError
        Naming the first violated rule.
    TypeError, ValueError
        If the times themselves are unusable.

    Examples
    --------
    >>> check_long_short_groups(
    ...     [40, 9, 8], [11, 3, 2], [4, 1, 1], [0, 4, 5], num_ranks=8, group_size=4, makespan=11, lower_bound=11
    ... )
    """
    given = _Given.read(alone, shared, group_size, degrees, overhead, shares, caps)
    degree, first = np.asarray(degree_of_item).tolist(), np.asarray(first_rank_of_item).tolist()
    require(num_ranks % group_size == 0, f"{num_ranks} ranks are no groups of {group_size}")
    given.check_places(degree, first, num_ranks)
    for q, (held, cap) in enumerate(zip(given.held, given.caps, strict=True)):
        amounts = [0] * num_ranks
        for i, (d, start) in enumerate(zip(degree, first, strict=True)):
            for rank in range(start, start + d):
                amounts[rank] += held[d][i]
        most = max(amounts)
        require(most <= cap, f"rank {amounts.index(most)} holds {most} of quantity {q}, cap {cap}")
    slowest = max(given.loads(degree, first, num_ranks))
    require(slowest == makespan, f"makespan is {slowest}, not {makespan}")
    require(lower_bound <= makespan, f"lower_bound = {lower_bound} exceeds makespan = {makespan}")
    _require_bound(given, lower_bound, "lower_bound", num_ranks)


def _require_bound(given: _Given, bound: int, name: str, num_ranks: int) -> None:
    """Raise unless something proves that nothing ends before the bound."""
    below = bound - 1
    if below < 0 or _no_place(given, below, num_ranks):
        return
    single = given.times[1]
    whole = max([-(-sum(single) // given.size), *single]) > below
    one_group = num_ranks == given.size and whole and (
        given.size == 1 or _too_short(given, below - given.overhead)
    )  # fmt: skip
    require(one_group, f"lower_bound = {bound}, but '{name}' does not prove it")


def _no_place(given: _Given, target: int, num_ranks: int) -> bool:
    """Whether items cannot all end by `target` for one that is too long, or for lack of rank-time."""
    needed = forced = 0
    for i in range(given.num_items):
        fits = given.fits(i, target, given.overhead)
        if not fits:
            return True
        least = min(degree * taken for degree, taken in fits.items())
        needed += least
        forced += 0 if 1 in fits else least
    if forced:  # in so many groups at least some item is shared
        needed += -(-forced // (given.size * (target - given.overhead))) * given.size * given.overhead
    return needed > num_ranks * target


def _too_short(given: _Given, target: int) -> bool:
    """Whether no choice of degrees lets all items of one group end by `target`, whichever is first not on all ranks."""
    fits = [given.fits(i, target, 0) for i in range(given.num_items)]
    if not all(fits):
        return True
    times, size = given.times, given.size
    area = [min(d * t for d, t in here.items()) for here in fits]
    order = sorted(range(len(fits)), key=lambda i: -times[1][i])
    for k, i in enumerate(order):
        chain = [times[size][j] for j in order[:k]]
        partly = [t for d, t in fits[i].items() if d < size]
        needed = size * sum(chain) + sum(area[j] for j in order[k:])
        if partly and sum(chain) + min(partly) <= target and needed <= size * target:
            return False
    return sum(times[size]) > target
