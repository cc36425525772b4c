"""The check of a micro-batch schedule, from scratch, with no code of the scheduler: plain loops, exact numbers."""

import functools
import itertools
import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from fractions import Fraction

import numpy as np
from numpy.typing import ArrayLike

from solvers._checking import require, require_status
from solvers.arguments import as_costs
from solvers.errors import CertificateError
from solvers.packing._schedule_types import OBJECTIVES, OVER_LONG, ScheduleResult
from solvers.packing._shares_types import SharesResult


def check_schedule(
    costs: ArrayLike,
    tokens: ArrayLike,
    result: ScheduleResult,
    *,
    num_ranks: int,
    cap: int,
    objective: str = "lockstep",
    num_slots: int | str | None = None,
    min_slots: int = 1,
    slots_multiple_of: int = 1,
    stages: int = 1,
    allow_empty: bool = False,
    over_long: str = "error",
) -> None:
    """Check a schedule against the samples and the rules it was made from; return nothing if all holds.

    Parameters
    ----------
    costs, tokens : int64[n]
        As given to :func:`schedule_micro_batches`.
    result : ScheduleResult
    num_ranks, cap, objective, num_slots, min_slots, slots_multiple_of, stages, allow_empty, over_long
        As given to :func:`schedule_micro_batches`. That ``"fewest"`` slots are the fewest is not checked.

    Raises
    ------
    CertificateError
        Naming the first violated rule.
    TypeError, ValueError
        If the costs or tokens themselves, the objective or `over_long` are unusable.

    Examples
    --------
    >>> from solvers.packing.schedule import schedule_micro_batches
    >>> check_schedule([3, 2, 1], [3, 2, 1], schedule_micro_batches([3, 2, 1], [3, 2, 1], 1, 4), num_ranks=1, cap=4)
    """
    cost_list, token_list = as_costs(costs)[0].tolist(), as_costs(tokens, "tokens")[0].tolist()
    if objective not in OBJECTIVES or over_long not in OVER_LONG:
        raise ValueError(f"objective and over_long must be known, got {objective!r} and {over_long!r}")
    require(result.cap == cap, f"cap is {cap}, not {result.cap}")
    require(result.objective == objective, f"objective is {objective!r}, not {result.objective!r}")
    require_slots(result, num_ranks, num_slots, min_slots, slots_multiple_of)
    require_over_long(result, token_list, cap, over_long)
    cells = require_places(result, len(cost_list))
    require_cells(result, cells, cost_list, token_list, cap, allow_empty)
    require_value(result, sum(cost_list), stages)
    samples = sorted(zip(cost_list, (min(t, cap) for t in token_list), strict=True), key=lambda sample: -sample[0])
    if num_slots is None:
        most = None if allow_empty else len(samples) // num_ranks
        _check_bound(result, samples, _permitted(samples, num_ranks, cap, min_slots, slots_multiple_of, most), stages)
    else:
        _check_bound(result, samples, [result.num_slots], stages)


def require_slots(
    result: ScheduleResult | SharesResult, num_ranks: int, num_slots: int | str | None, least: int, multiple: int
) -> None:
    k = result.num_slots
    for name, array in (("slot_loads", result.slot_loads), ("slot_tokens", result.slot_tokens)):
        require(
            array.dtype == np.int64 and array.shape == (num_ranks, k),
            f"every rank has num_slots = {k} slots: {name} must be int64[{num_ranks}, {k}], got {array.dtype} of shape "
            f"{array.shape}",
        )
    require(k >= least, f"num_slots = {k} is below min_slots = {least}")
    require(k % multiple == 0, f"num_slots = {k} is no multiple of slots_multiple_of = {multiple}")
    require(num_slots in (None, "fewest", k), f"num_slots = {num_slots} was asked for, not {k}")


def require_over_long(result: ScheduleResult | SharesResult, tokens: list[int], cap: int, over_long: str) -> None:
    over = [item for item, t in enumerate(tokens) if t > cap]
    require(
        over_long != "error" or not over, f"sample {over[0] if over else -1} is over the cap, which over_long refuses"
    )
    require(result.own.tolist() == over, f"own must be {over}, got {result.own.tolist()}")


def require_places(result: ScheduleResult | SharesResult, n: int) -> dict[tuple[int, int], list[int]]:
    """Return the samples of each micro-batch."""
    ranks, slots = result.rank_of_item, result.slot_of_item
    for name, array in (("rank_of_item", ranks), ("slot_of_item", slots)):
        require(
            array.dtype == np.int32 and array.shape == (n,),
            f"every sample has one place: {name} must be int32[{n}], got {array.dtype} of shape {array.shape}",
        )
    num_ranks, num_slots = result.slot_loads.shape
    cells: dict[tuple[int, int], list[int]] = {}
    for item, (rank, slot) in enumerate(zip(ranks.tolist(), slots.tolist(), strict=True)):
        require(0 <= rank < num_ranks, f"sample {item} is on rank {rank}, outside 0..{num_ranks - 1}")
        require(0 <= slot < num_slots, f"sample {item} is in slot {slot}, outside 0..{num_slots - 1}")
        cells.setdefault((rank, slot), []).append(item)
    return cells


def require_cells(
    result: ScheduleResult | SharesResult,
    cells: dict[tuple[int, int], list[int]],
    costs: list[int],
    tokens: list[int],
    cap: int,
    allow_empty: bool,
) -> None:
    own = set(result.own.tolist())
    loads, volumes = result.slot_loads.tolist(), result.slot_tokens.tolist()
    for rank, slot in itertools.product(range(len(loads)), range(result.num_slots)):
        items = cells.get((rank, slot), [])
        where = f"micro-batch of rank {rank}, slot {slot}"
        require(bool(items) or allow_empty, f"the {where} is empty")
        load, volume = sum(costs[item] for item in items), sum(tokens[item] for item in items)
        alone = own.intersection(items)
        require(not alone or len(items) == 1, f"the {where} holds {len(items)} samples, among them {alone} of `own`")
        require(bool(alone) or volume <= cap, f"the {where} holds {volume} tokens, over cap = {cap}")
        require(load == loads[rank][slot], f"the {where} costs {load}, not slot_loads = {loads[rank][slot]}")
        require(volume == volumes[rank][slot], f"the {where} holds {volume} tokens, not {volumes[rank][slot]}")


def require_value(result: ScheduleResult, total: int, stages: int) -> None:
    loads: list[list[int]] = result.slot_loads.tolist()
    ranks, k = len(loads), result.num_slots
    perfect = -(-total // ranks)
    if result.objective == "lockstep":
        value = sum(max(slot) for slot in zip(*loads, strict=True))
    elif result.objective == "step":
        value = max(sum(rank) for rank in loads)
    else:
        value = (k + stages - 1) * max(max(rank) for rank in loads)
        perfect = (k + stages - 1) * -(-total // (ranks * k))
    require(result.value == value, f"the {result.objective} objective is {value}, not value = {result.value}")
    require(result.perfect == perfect, f"perfect is {perfect}, not {result.perfect}")
    bound = result.lower_bound
    require_status(result.status, bound, value, "value")


def _check_bound(result: ScheduleResult, samples: list[tuple[int, int]], slots: Iterable[int], stages: int) -> None:
    """`samples` are pairs of cost and tokens (at most the cap) in descending order of cost."""
    ranks, name = len(result.slot_loads), result.bound_name
    costs = [cost for cost, _ in samples]
    if name == "tall_slots" and result.objective == "lockstep":
        proven = _tall_slots(samples, ranks, result.cap)
    elif result.objective == "pipeline" and name in ("mean", "largest", "pigeonhole", "room"):
        room = result.cap if name == "room" else None
        proven = _best_pipeline(samples, ranks, slots, stages, room)
    elif name in ("mean", "largest", "pigeonhole"):
        proven = _largest_group(costs, ranks)
    else:
        raise CertificateError(f"lower_bound is by an unknown argument {name!r}")
    require(result.lower_bound <= proven, f"lower_bound = {result.lower_bound}, but '{name}' proves {proven} at most")


def _permitted(
    samples: list[tuple[int, int]], ranks: int, cap: int, least: int, multiple: int, most: int | None
) -> Iterable[int]:
    halves = sum(2 * t > cap for _, t in samples)
    bins = max(-(-sum(t for _, t in samples) // cap), halves)
    first = max(least, -(-bins // ranks))
    permitted = (k for k in itertools.count(first) if k % multiple == 0)
    return itertools.takewhile(lambda k: most is None or k <= most, permitted)


def _largest_group(costs: list[int], m: int) -> int:
    """Return what the largest of m groups costs at least: mean, largest, or a share of what j groups hold together."""
    if not costs:
        return 0
    sums = [0, *itertools.accumulate(costs)]
    best = max(-(-sums[-1] // m), costs[0])
    for first in range(1, len(costs) + 1):
        k = -(-first // m)
        j = first - (k - 1) * m
        best = max(best, -(-(sums[first] - sums[first - k * j]) // j))
    return best


def _best_pipeline(
    samples: list[tuple[int, int]], ranks: int, slots: Iterable[int], stages: int, cap: int | None
) -> int:
    costs = [cost for cost, _ in samples]
    best: int | None = None
    for k in slots:
        if best is not None and (k + stages - 1) * max(costs, default=0) >= best:
            break
        height = _largest_group(costs, ranks * k)
        here = (k + stages - 1) * (height if cap is None else max(height, _with_room(samples, ranks * k, cap, height)))
        best = here if best is None else min(best, here)
    return best or 0


def _with_room(samples: list[tuple[int, int]], bins: int, cap: int, height: int) -> int:
    """Return the least height, from `height` on, at which samples with what cannot be beside them fit all bins.

    Known where a cap of the cheapest tokens fits below a height, and then below all greater ones.
    """
    # Fractions, not floats: the solver's bound allows for rounding, and this says whether that was enough.
    least = min((Fraction(cost, t) for cost, t in samples if t), default=Fraction(0))
    if not least or sum(t for _, t in samples) > bins * cap:
        return height

    def fits(top: int) -> bool:
        return sum(max(Fraction(t), cap - (top - cost) / least) for cost, t in samples) <= bins * cap

    known = max(height, math.ceil(least * cap))
    if fits(known):
        return height
    return known + 1 + bisect_left(range(known + 1, known + math.ceil(least * cap) + 2), True, key=fits)


def _denser(a: tuple[int, int], b: tuple[int, int]) -> int:
    return b[0] * a[1] - a[0] * b[1]


def _tall_slots(samples: list[tuple[int, int]], ranks: int, cap: int) -> int:
    """Return the best over j of the j heights that are forced, and the rest that j slots cannot absorb."""
    total = sum(cost for cost, _ in samples)
    volume = list(itertools.accumulate(t for _, t in samples))
    halves = list(itertools.accumulate(int(2 * t > cap) for _, t in samples))
    # Compared by products, which are exact; samples of no tokens are denser than all others, and stand apart.
    dense = sorted(samples, key=functools.cmp_to_key(_denser))
    dense = [s for s in samples if s[1] == 0] + [s for s in dense if s[1] > 0]
    dense_costs = [0, *itertools.accumulate(cost for cost, _ in dense)]
    dense_volume = list(itertools.accumulate(t for _, t in dense))
    best, tall, j, where = 0, 0, 0, 0
    while where < len(samples):
        j += 1
        tall += samples[where][0]
        full = bisect_right(dense_volume, j * ranks * cap)
        most = Fraction(dense_costs[full])
        if full < len(dense):
            before = dense_volume[full - 1] if full else 0
            # The first that does not fit goes in as a part: no choice of whole samples holds more (Dantzig 1957).
            most += Fraction(dense[full][0] * (j * ranks * cap - before), dense[full][1])
        best = max(best, tall + -((most - total) // ranks))
        where = min(bisect_right(volume, j * ranks * cap), bisect_right(halves, j * ranks))
    return best
