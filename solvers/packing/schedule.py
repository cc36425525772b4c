"""Micro-batch schedules: a rank and a slot for every sample, under a cap on tokens and balanced where ranks wait.

Every rank runs the same number K of micro-batches. What has to be even depends on where ranks wait for each other: once
a step, in every slot, or along a pipeline. Where they wait in every slot, slots should differ in cost: if costs grow
faster than tokens, the longest samples of all ranks share one expensive slot under the cap, and the other slots share
the rest evenly.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from solvers._sort import sort_descending
from solvers.arguments import as_budget, as_costs, as_count, as_flag
from solvers.bounds import Bound, best_bound, goal_above
from solvers.errors import InfeasibilityCertificate, InfeasibleError, TimeLimitError, UsageError
from solvers.groups import group_loads
from solvers.packing._arguments import (
    MOST_BINS,
    as_cap,
    as_choice,
    as_slots,
    check_as_many,
    check_bins,
    check_over_long,
    slots_for,
)
from solvers.packing._schedule_bounds import (
    forced_heights,
    least_micro_batches,
    pipeline_bound,
    slot_counts,
    tall_slots_bound,
)
from solvers.packing._schedule_search import (
    CLOSE,
    Layout,
    Samples,
    deal_evenly,
    ranks_first,
    search_pipeline,
    search_slots,
    search_step,
)
from solvers.packing._schedule_types import OVER_LONG, SYNCS, ScheduleResult
from solvers.packing.bins import PackingProblem, count_of, deal, pair_fit
from solvers.packing.fill_sorted import fill_sorted
from solvers.packing.limits import BatchLimits, Needed, check_enough, classes_of_bins, needed
from solvers.types import status_of

# Numbers of slots that are tried where the number is free. Row *more slots* of benchmarks/ablation.py: with
# two, steps are 19 +- 13 ppm longer.
_MOST_TRIED = 4
# Seconds' worth of dealing out anew for the fewest micro-batches, where these decide on K.
_PACKING_BUDGET = 0.01


class _Request(NamedTuple):
    """Checked arguments."""

    num_ranks: int
    cap: int
    sync: str
    num_slots: int | Literal["fewest"] | None
    min_slots: int
    multiple: int
    stages: int
    allow_empty: bool
    over_long: str
    seconds: float
    limits: BatchLimits | None


class _Prepared(NamedTuple):
    """The samples that are to be scheduled."""

    samples: Samples
    order: NDArray[np.int32]  # the sample at each position of these
    own: NDArray[np.int64]
    packed: Layout  # int32[n]: a packing into few micro-batches under the cap
    num_packed: int  # how many these are
    least: int  # proven: no packing under the cap has fewer
    need: Needed | None = None  # with limits: micro-batches of each class of samples; nothing is packed then


class _Found(NamedTuple):
    layout: Layout  # int32[n]: rank * K + slot
    value: int
    num_slots: int


def _prepare(costs: ArrayLike, tokens: ArrayLike, request: _Request) -> _Prepared:
    """Check the samples, set apart those over the cap, sort all, and pack them under the cap."""
    all_costs, _, _ = as_costs(costs)
    all_tokens, _, _ = as_costs(tokens, "tokens")
    check_as_many("tokens", len(all_tokens), len(all_costs))
    own = check_over_long(all_tokens, request.cap, request.over_long)
    if request.limits is not None and len(all_costs):
        return _with_limits(all_costs, all_tokens, own, request, request.limits)
    order, sorted_costs = sort_descending(all_costs, int(all_costs.max(initial=0)))
    true_tokens = all_tokens[order]
    cap = max(1, min(request.cap, int(true_tokens.sum())))  # no cap above that does anything
    alone = true_tokens > request.cap
    fits = np.flatnonzero(~alone)
    # A pass is enough wherever it is proven to need no slot more than any packing; only else is searched for better.
    bins = PackingProblem.prepare(true_tokens[fits], cap)
    groups = pair_fit(bins)
    least = bins.bound(enough=count_of(groups))
    given = request.num_slots if isinstance(request.num_slots, int) else 0
    if _slots_for(count_of(groups) + len(own), request) > max(given, _slots_for(least.value + len(own), request)):
        groups, least = deal(bins, groups, least, _PACKING_BUDGET)
    packed = np.empty(len(order), dtype=np.int32)
    packed[fits] = groups
    packed[alone] = count_of(groups) + np.arange(len(own))
    samples = Samples(sorted_costs, np.minimum(true_tokens, cap), alone, cap, request.allow_empty)
    return _Prepared(samples, order, own, packed, count_of(groups) + len(own), least.value + len(own))


def _with_limits(
    costs: NDArray[np.int64], tokens: NDArray[np.int64], own: NDArray[np.int64], request: _Request, given: BatchLimits
) -> _Prepared:
    """Sort the samples, and count the micro-batches that each class of them needs."""
    if request.over_long == "own":
        raise UsageError("{limits} cannot be combined with {over_long='own'}, which is over them")
    checked = given.checked(len(costs), tokens)
    check_enough(checked, request.num_ranks)
    order, sorted_costs = sort_descending(costs, int(costs.max(initial=0)))
    cap, limits = max(1, min(request.cap, int(tokens.sum()))), checked.of(order)
    need = needed(sorted_costs, tokens[order], cap, limits)
    alone = np.zeros(len(order), dtype=np.bool_)
    samples = Samples(sorted_costs, tokens[order], alone, cap, request.allow_empty, limits)
    nothing = np.zeros(len(order), dtype=np.int32)
    return _Prepared(samples, order, own, nothing, int(need.packed.sum()), int(need.least.sum()), need)


def _slots_for(micro_batches: int, request: _Request) -> int:
    """Return the least K that the rules permit and that has room for so many micro-batches."""
    return slots_for(-(-micro_batches // request.num_ranks), request.min_slots, request.multiple)


def _first_slots(prepared: _Prepared, request: _Request) -> int:
    """Return the least K that nothing speaks against, or raise InfeasibleError that says what speaks against all."""
    num_ranks, n = request.num_ranks, len(prepared.order)
    first = _slots_for(prepared.least, request)
    if isinstance(request.num_slots, int):
        bins = num_ranks * request.num_slots
        if first > request.num_slots:
            raise InfeasibleError(
                f"{{num_slots}} = {request.num_slots} is too few: under {{cap}} = {request.cap} the {n} samples need "
                f"at least {prepared.least} micro-batches, {num_ranks} ranks of {request.num_slots} {{slots}} hold "
                f"{bins}, short by {prepared.least - bins}",
                InfeasibilityCertificate("num_slots", prepared.order.tolist(), range(num_ranks), prepared.least, bins),
                f"the least {{num_slots}} that may do is {first}",
            )
        first = request.num_slots
    bins = num_ranks * first
    if not request.allow_empty and bins > n:
        why = "{min_slots}, {slots_multiple_of} and the cap make it"
        why = "{num_slots}" if isinstance(request.num_slots, int) else why
        raise InfeasibleError(
            f"{num_ranks} ranks of {first} {{slots}} ({why}) are {bins} micro-batches, but there are {n} samples, "
            f"short by {bins - n}",
            InfeasibilityCertificate("allow_empty", prepared.order.tolist(), range(num_ranks), bins, n),
            "{allow_empty=True} permits empty micro-batches",
        )
    check_bins(num_ranks, first)
    return first


def _bound(prepared: _Prepared, request: _Request, num_slots: int | None) -> Bound:
    """Return a bound on every schedule, or, for a pipeline with `num_slots`, on those with that many."""
    costs, tokens, cap = prepared.samples.costs, prepared.samples.tokens, prepared.samples.cap
    total, num_ranks = int(costs.sum()), request.num_ranks
    if request.sync == "step":
        return best_bound(costs, total, num_ranks)
    if request.sync == "micro_batch":
        return tall_slots_bound(costs, tokens, total, num_ranks, cap)
    if num_slots is not None:
        return pipeline_bound(costs, tokens, total, num_ranks, cap, [num_slots], request.stages)
    least = least_micro_batches(tokens, cap)
    most = None if request.allow_empty else len(costs) // num_ranks
    slots = slot_counts(least, num_ranks, request.min_slots, request.multiple, most)
    return pipeline_bound(costs, tokens, total, num_ranks, cap, slots, request.stages)


def _search(
    prepared: _Prepared, request: _Request, num_slots: int, forced: list[int], bound: Bound, seconds: float
) -> _Found | None:
    """Search the schedules with `num_slots` slots."""
    samples, num_ranks = prepared.samples, request.num_ranks
    packed = prepared.packed if prepared.num_packed <= num_ranks * num_slots else None
    if samples.limits is not None:
        layout = _under_limits(prepared, request, samples.limits, num_slots, forced, bound, seconds)
    elif request.sync == "micro_batch":
        layout = search_slots(samples, num_ranks, num_slots, forced, bound, packed, seconds)
    elif request.sync == "step":
        layout = search_step(samples, num_ranks, num_slots, packed, seconds)
    else:
        layout = search_pipeline(
            samples, num_ranks, num_slots, _pipeline_goal(prepared, request, num_slots), packed, seconds
        )
    if layout is None:
        return None
    loads = group_loads(samples.costs, layout, num_ranks * num_slots).reshape(num_ranks, num_slots)
    return _Found(layout, _value(loads, request), num_slots)


def _pipeline_goal(prepared: _Prepared, request: _Request, num_slots: int) -> Bound:
    """Return a bound on the costliest micro-batch of a pipeline with so many slots."""
    return Bound(_bound(prepared, request, num_slots).value // (num_slots + request.stages - 1), "mean")


def _under_limits(
    prepared: _Prepared, request: _Request, limits: BatchLimits, num_slots: int, forced: list[int], bound: Bound,
    seconds: float,
) -> Layout | None:  # fmt: skip
    """Search where micro-batches keep to more than a cap; where ranks wait once a step, even slots make even sums."""
    samples, num_ranks = prepared.samples, request.num_ranks
    if limits.padded is not None:
        return fill_sorted(
            samples.costs, samples.tokens, num_ranks, num_slots, samples.cap, limits, sync=request.sync,
            allow_empty=request.allow_empty,
        )  # fmt: skip
    if request.sync == "step" and (limits.everywhere is None or not limits.everywhere.any()):
        layout = ranks_first(samples, num_ranks, num_slots, seconds)
        if layout is not None:
            return layout
    best, least = None, math.inf
    if prepared.need is None:
        return None
    along = request.sync == "pipeline"  # which takes as long as the costliest micro-batch of all
    ways = list(classes_of_bins(limits, prepared.need, num_ranks, num_slots, request.allow_empty, alone=along))
    usual = len(ways)
    if limits.everywhere is not None and not along:  # where none of these fits: the costliest are placed first
        ways += classes_of_bins(limits, prepared.need, num_ranks, num_slots, request.allow_empty, alone=True)
    for number, classes in enumerate(ways):
        if best is not None and number >= usual:
            break
        if along:
            goal = _pipeline_goal(prepared, request, num_slots)
            layout = search_pipeline(samples, num_ranks, num_slots, goal, None, seconds, classes)
        else:
            layout = search_slots(samples, num_ranks, num_slots, forced, bound, None, seconds, classes)
        if layout is None:
            continue
        loads = group_loads(samples.costs, layout, num_ranks * num_slots).reshape(num_ranks, num_slots)
        if (value := _value(loads, request)) < least:
            best, least = layout, value
        if least <= goal_above(bound, CLOSE):
            break
        seconds /= 2  # others are tried with less
    return best


def _value(loads: NDArray[np.int64], request: _Request) -> int:
    """Return what is minimised of the costs of micro-batches, int64[R, K]."""
    if request.sync == "micro_batch":
        return int(loads.max(axis=0).sum())
    if request.sync == "step":
        return int(loads.sum(axis=1).max())
    num_slots: int = loads.shape[1]
    return (num_slots + request.stages - 1) * int(loads.max())


def _free_slots(prepared: _Prepared, request: _Request, first: int) -> Iterator[int]:
    """Numbers of slots worth trying where the number is free: the next few; for a pipeline, the best by their bound."""
    most = MOST_BINS // request.num_ranks
    if not request.allow_empty:
        most = min(most, len(prepared.order) // request.num_ranks)
    if request.sync != "pipeline":
        yield from range(first, min(most, first + (_MOST_TRIED - 1) * request.multiple) + 1, request.multiple)
        return
    bounds: list[tuple[int, int]] = []
    largest = int(prepared.samples.costs.max(initial=0))
    least: int | None = None
    for k in range(first, most + 1, request.multiple):
        if least is not None and (k + request.stages - 1) * largest >= least:
            break
        value = _bound(prepared, request, k).value
        bounds.append((value, k))
        least = value if least is None else min(least, value)
    yield from (k for _, k in sorted(bounds)[:_MOST_TRIED])


def _choose(prepared: _Prepared, request: _Request, first: int) -> tuple[_Found, Bound]:
    """Try the numbers of slots that the caller allows and return the best schedule with its bound."""
    samples, num_ranks = prepared.samples, request.num_ranks
    free = request.num_slots is None
    bound = _bound(prepared, request, None if free else first)
    forced = forced_heights(samples.costs, samples.tokens, num_ranks, samples.cap)
    if (
        prepared.need is None and prepared.num_packed > first * num_ranks
    ):  # dealt evenly, samples sometimes need fewer than packed one by one
        dealt = deal_evenly(samples, first * num_ranks)
        if dealt is not None:
            prepared = prepared._replace(packed=dealt, num_packed=first * num_ranks)
    most = len(samples.costs)
    if request.allow_empty:  # as many slots as samples hold whatever can be held
        most = min(MOST_BINS, num_ranks * max(first, _slots_for(num_ranks * len(samples.costs), request)))
    fits = max(first, _slots_for(prepared.num_packed, request))  # with fewer slots there may be no packing
    if not isinstance(request.num_slots, int) and fits * num_ranks <= most:
        first = fits
    best: _Found | None = None
    if free:
        share = request.seconds / 2  # half for the first, and the rest for the others together
        for num_slots in _free_slots(prepared, request, first):
            found = _search(prepared, request, num_slots, forced, bound, share)
            share = request.seconds / (2 * (_MOST_TRIED - 1))
            if found is not None and (best is None or found.value < best.value):
                best = found
            if best is not None and best.value <= goal_above(bound, CLOSE):
                break
    num_slots, more = first, request.multiple
    while best is None:
        best = _search(prepared, request, num_slots, forced, bound, request.seconds)
        last = most // num_ranks - most // num_ranks % request.multiple
        if best is None and (isinstance(request.num_slots, int) or num_slots >= last):
            raise _none_found(prepared, request, num_slots)
        num_slots, more = min(num_slots + more, last), 2 * more  # further and further: each is a search
    if request.sync == "pipeline" and not free:
        bound = _bound(prepared, request, best.num_slots)
    return best, bound


def _none_found(prepared: _Prepared, request: _Request, num_slots: int) -> TimeLimitError:
    """Return the error that no packing was found, with what would do where nothing but tokens is limited."""
    found = (
        f"found no packing under {{cap}} = {request.cap} into {request.num_ranks} ranks of {num_slots} {{slots}}, "
        f"which {prepared.least} micro-batches at least do not exclude"
    )
    if request.limits is not None:
        return TimeLimitError(found, "give more {slots}, or higher {limits}")
    return TimeLimitError(found, f"{prepared.num_packed} would do: give more {{slots}} or a larger {{cap}}")


def _result(
    costs: NDArray[np.int64],
    tokens: NDArray[np.int64],
    prepared: _Prepared,
    request: _Request,
    found: _Found,
    bound: Bound,
    started: float,
) -> ScheduleResult:
    """Give the micro-batches to ranks, and build the result in the order in which the samples were given."""
    num_ranks, num_slots, bins = request.num_ranks, found.num_slots, found.layout
    num_bins = num_ranks * num_slots
    rank_of_item, slot_of_item = (np.empty(len(costs), dtype=np.int32) for _ in range(2))
    rank_of_item[prepared.order], slot_of_item[prepared.order] = np.divmod(bins, num_slots)
    loads = group_loads(costs[prepared.order], bins, num_bins).reshape(num_ranks, num_slots)
    volumes = group_loads(tokens[prepared.order], bins, num_bins).reshape(num_ranks, num_slots)
    total = int(costs.sum())
    perfect = -(-total // num_ranks)
    if request.sync == "pipeline":
        perfect = (num_slots + request.stages - 1) * -(-total // num_bins)
    return ScheduleResult(
        rank_of_item, slot_of_item, num_slots, loads, volumes, request.cap, request.sync, found.value, perfect,
        prepared.own, lower_bound=bound.value, bound_name=bound.name,
        status=status_of(found.value, bound.value), runtime_s=time.perf_counter() - started,
    )  # fmt: skip


def schedule_micro_batches(
    costs: ArrayLike,
    tokens: ArrayLike,
    num_ranks: int,
    cap: int,
    *,
    sync: str = "micro_batch",
    num_slots: int | Literal["fewest"] | None = None,
    min_slots: int = 1,
    slots_multiple_of: int = 1,
    stages: int = 1,
    allow_empty: bool = False,
    over_long: str = "error",
    time_budget: float = 1.0,
    limits: BatchLimits | None = None,
) -> ScheduleResult:
    """Schedule samples into micro-batches: the same number K on every rank, none of more than `cap` tokens.

    Parameters
    ----------
    costs : int64[n]
        Non-negative integers: the work of each sample.
    tokens : int64[n]
        Non-negative integers: what each sample takes of the cap.
    num_ranks : int
        R, at least 1.
    cap : int
        The most tokens that a micro-batch may hold, at least 1.
    sync : str
        Where ranks wait, and so what is minimised. ``"micro_batch"``: in every slot; the sum over the slots of the
        costliest micro-batch. ``"step"``: once a step; the largest sum of a rank. ``"pipeline"``:
        (K + stages - 1) times the costliest micro-batch.
    num_slots : int, "fewest" or None
        K; ``"fewest"``: as few as the cap permits; None: the best of the fewest and up to three more numbers, which are
        tried unless `value` is within 1/4096 of its bound.
    min_slots, slots_multiple_of : int
        What K must be at least, and a multiple of.
    stages : int
        Stages of the pipeline; 1 unless `sync` is ``"pipeline"``.
    allow_empty : bool
        Whether a micro-batch may hold no sample.
    over_long : str
        What to do with samples of more than `cap` tokens. ``"error"``: refuse them; ``"own"``: a micro-batch for each
        of them alone, reported in ``own``.
    time_budget : float
        Seconds' worth of work, counted and not timed.
    limits : BatchLimits, optional
        What micro-batches keep to besides: sums, counts, padding, kinds, samples that all ranks of a slot have or none.

    Returns
    -------
    ScheduleResult
        Rank and slot of each sample, the micro-batches' costs and tokens, what is minimised and a lower bound.

    Raises
    ------
    TypeError, ValueError
        On arguments of the wrong kind, negative numbers, sums past int64, or a `num_slots` that contradicts `min_slots`
        or `slots_multiple_of`.
    InfeasibleError
        If a sample is over the cap and ``over_long="error"``, if the samples do not fit in `num_slots` slots, or if
        there are fewer samples than micro-batches and none may be empty.
    TimeLimitError
        If no packing into the slots was found and none was excluded.

    Notes
    -----
    Deterministic: no clock is read and ties go to the lowest index. Building takes O(n (log n + R * tall slots)) time,
    levelling what the budget buys. O(n + R * K) memory. ``"fewest"`` finds the least K unless bin packing is hard: then
    a K that the packing bound does not reach may be one too many.

    References
    ----------
    Dantzig, "Discrete-variable extremum problems", Operations Research 5(2), 1957 (the bound on what a slot absorbs).

    Examples
    --------
    >>> from solvers import check_schedule
    >>> lengths = np.array([8, 5, 4, 4, 3, 3, 2, 2, 1])
    >>> result = schedule_micro_batches(lengths**2, lengths, num_ranks=2, cap=9)
    >>> result.num_slots, result.slot_loads.tolist(), result.value, result.lower_bound
    (2, [[64, 21], [41, 22]], 86, 84)
    >>> check_schedule(lengths**2, lengths, result, num_ranks=2, cap=9)
    """
    started = time.perf_counter()
    min_slots = as_count("min_slots", min_slots)
    multiple = as_count("slots_multiple_of", slots_multiple_of)
    request = _Request(
        as_count("num_ranks", num_ranks), as_cap(cap), as_choice("sync", sync, SYNCS),
        as_slots(num_slots, min_slots, multiple), min_slots, multiple, as_count("stages", stages),
        as_flag("allow_empty", allow_empty), as_choice("over_long", over_long, OVER_LONG),
        as_budget(time_budget), limits,
    )  # fmt: skip
    if request.stages > 1 and request.sync != "pipeline":
        raise UsageError(f"{{stages}} = {stages} contradicts {{sync}} = {sync!r}: only a pipeline has stages")
    prepared = _prepare(costs, tokens, request)
    found, bound = _choose(prepared, request, _first_slots(prepared, request))
    return _result(as_costs(costs)[0], as_costs(tokens, "tokens")[0], prepared, request, found, bound, started)
