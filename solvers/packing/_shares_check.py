"""The check of shares cut into micro-batches, from scratch, with no code of the cutter: plain loops, exact numbers."""

from numpy.typing import ArrayLike

from solvers._checking import require, require_status
from solvers.arguments import as_costs, as_int64
from solvers.packing._schedule_check import require_cells, require_over_long, require_places, require_slots
from solvers.packing._schedule_types import OVER_LONG
from solvers.packing._shares_types import SharesResult


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
    cost_list, token_list = as_costs(costs)[0].tolist(), as_costs(tokens, "tokens")[0].tolist()
    ranks = as_int64("rank_of_item", rank_of_item).tolist()
    if over_long not in OVER_LONG:
        raise ValueError(f"over_long must be known, got {over_long!r}")
    require(result.cap == cap, f"cap is {cap}, not {result.cap}")
    require_slots(result, num_ranks, num_slots, min_slots, slots_multiple_of)
    require_over_long(result, token_list, cap, over_long)
    cells = require_places(result, len(cost_list))
    for item, (found, given) in enumerate(zip(result.rank_of_item.tolist(), ranks, strict=True)):
        require(found == given, f"sample {item} lies on rank {given} and was put on rank {found}")
    require_cells(result, cells, cost_list, token_list, cap, allow_empty)
    for rank, loads in enumerate(result.slot_loads.tolist()):
        require(loads == sorted(loads, reverse=True), f"the micro-batches of rank {rank} must descend in cost")
    samples = list(zip(ranks, token_list, strict=True))
    _check_bound(result, samples, num_ranks, -(-min_slots // slots_multiple_of) * slots_multiple_of, slots_multiple_of)


def _check_bound(
    result: SharesResult, samples: list[tuple[int, int]], num_ranks: int, least: int, multiple: int
) -> None:
    """`samples` are pairs of rank and tokens; `least` is the fewest slots that the rules permit."""
    bound, slots = result.lower_bound, result.num_slots
    require(result.bound_name in ("volume", "halves"), f"lower_bound is by an unknown argument {result.bound_name!r}")
    alone, volume, halves = [0] * num_ranks, [0] * num_ranks, [0] * num_ranks
    for rank, t in samples:
        if t > result.cap:
            alone[rank] += 1
        else:
            volume[rank] += t
            halves[rank] += 2 * t > result.cap
    needed = [-(-v // result.cap) for v in volume] if result.bound_name == "volume" else halves
    most = max(own + of_rest for own, of_rest in zip(alone, needed, strict=True))
    proven = max(least, -(-most // multiple) * multiple)
    require(bound <= proven, f"lower_bound = {bound}, but '{result.bound_name}' proves {proven} at most")
    require(1 <= bound <= slots, f"lower_bound = {bound} must be within 1..num_slots = {slots}")
    require_status(result.status, bound, slots, "num_slots")
