"""Bin packing and micro-batch schedules: one file per algorithm, and the registry of packers."""

from __future__ import annotations

from typing import Protocol

from numpy.typing import ArrayLike

from solvers.arguments import as_budget, unknown
from solvers.packing._arguments import MOST_BINS, slots_for
from solvers.packing._schedule_bounds import taken_tokens
from solvers.packing._schedule_types import SYNCS, ScheduleResult
from solvers.packing._shares_types import SharesResult
from solvers.packing.auto import auto
from solvers.packing.best_fit import best_fit_decreasing
from solvers.packing.exact import exact
from solvers.packing.fill_sorted import fill_sorted
from solvers.packing.first_fit import first_fit_decreasing
from solvers.packing.limits import BatchLimits
from solvers.packing.pair_fit import pair_fit
from solvers.packing.prefix_schedule import prefix_schedule_bound, schedule_with_prefixes
from solvers.packing.prices import Priced, price_tokens, rests_of_slots
from solvers.packing.schedule import schedule_micro_batches
from solvers.packing.shares import cut_shares
from solvers.packing.types import PackingResult

__all__ = [
    "MOST_BINS",
    "PACKERS",
    "SYNCS",
    "BatchLimits",
    "PackingResult",
    "Priced",
    "ScheduleResult",
    "SharesResult",
    "auto",
    "best_fit_decreasing",
    "cut_shares",
    "exact",
    "fill_sorted",
    "first_fit_decreasing",
    "pack",
    "pair_fit",
    "prefix_schedule_bound",
    "price_tokens",
    "rests_of_slots",
    "schedule_micro_batches",
    "schedule_with_prefixes",
    "slots_for",
    "taken_tokens",
]  # fmt: skip


class Packer(Protocol):
    """What every entry of :data:`PACKERS` is; arguments and errors are those of :func:`pack`.

    One pass over the items does not read the budget.
    """

    def __call__(
        self, sizes: ArrayLike, cap: int, *, max_items: int | None = None, time_budget: float = 0.01
    ) -> PackingResult: ...


PACKERS: dict[str, Packer] = {
    "auto": auto,
    "first_fit_decreasing": first_fit_decreasing,
    "best_fit_decreasing": best_fit_decreasing,
    "pair_fit": pair_fit,
    "exact": exact,
}
"""Every method, by name; none reads a clock. Errors and tests derive their lists from it."""


def pack(
    sizes: ArrayLike,
    cap: int,
    method: str = "auto",
    time_budget: float = 0.01,
    *,
    max_items: int | None = None,
) -> PackingResult:
    """Put items into as few groups as possible, none of them over a cap (bin packing).

    Parameters
    ----------
    sizes : int64[n]
        Non-negative integers, none over `cap`, whose sum fits int64. Integral floats are accepted.
    cap : int
        The most that a group may weigh, at least 1.
    method : str
        A name in :data:`PACKERS`.
    time_budget : float
        Seconds' worth of work, counted and not timed.
    max_items : int, optional
        The most items that a group may hold.

    Returns
    -------
    PackingResult
        Groups, loads, and a proven lower bound on the number of groups.

    Raises
    ------
    TypeError
        Sizes, cap or counts of the wrong type.
    ValueError
        An unknown method, a negative size, sizes of the wrong shape, a sum past int64, a budget that is not positive.
    InfeasibleError
        If an item is larger than the cap.

    Examples
    --------
    >>> result = pack([4, 5, 6, 5], 10)
    >>> result.group_of_item.tolist(), result.loads.tolist(), result.gap
    ([0, 1, 0, 1], [10, 10], 0.0)
    """
    packer = PACKERS.get(method)
    if packer is None:
        raise unknown("method", method, PACKERS)
    as_budget(time_budget)  # refused by all if by one
    return packer(sizes, cap, max_items=max_items, time_budget=time_budget)
