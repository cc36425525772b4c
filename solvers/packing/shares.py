"""Shares cut into micro-batches, by each rank for the samples that it has; ranks agree only on their number.

It is what a trainer does that plans no micro-batches. To choose rank and slot together, see
:func:`solvers.packing.schedule_micro_batches`.
"""

from __future__ import annotations

import time
from typing import Literal, NamedTuple, SupportsIndex

import numpy as np
from numpy.typing import ArrayLike, NDArray

from solvers._sort import sort_descending
from solvers.arguments import INT64_MAX, as_costs, as_count, as_flag, as_labels
from solvers.errors import ArgumentError, InfeasibilityCertificate, InfeasibleError, Named, SolverError, UsageError
from solvers.groups import group_loads, members_by_group, read_only
from solvers.packing._arguments import (
    as_cap,
    as_choice,
    as_slots,
    check_as_many,
    check_bins,
    check_over_long,
    slots_for,
)
from solvers.packing._schedule_types import OVER_LONG
from solvers.packing._shares_kernels import level_shares, meet_targets, pack_shares
from solvers.packing._shares_types import SharesResult
from solvers.types import status_of


class _Rules(NamedTuple):
    """Checked arguments."""

    num_ranks: int
    cap: int
    num_slots: int | Literal["fewest"] | None
    min_slots: int
    multiple: int
    allow_empty: bool

    def slots_for(self, bins: int) -> int:
        """Return the least K that the rules permit and that has room for so many bins a rank."""
        return slots_for(bins, self.min_slots, self.multiple)


class _Shares(NamedTuple):
    """The samples, rank by rank; "positions" are theirs in that order."""

    costs: NDArray[np.int64]  # in the order given, as the next two
    tokens: NDArray[np.int64]
    ranks: NDArray[np.int32]
    offsets: NDArray[np.int64]  # of the positions of each rank
    by_tokens: NDArray[np.int64]  # the sample at each position: descending tokens, and descending costs
    by_costs: NDArray[np.int64]

    @classmethod
    def from_samples(
        cls, costs: NDArray[np.int64], tokens: NDArray[np.int64], ranks: NDArray[np.int32], num_ranks: int
    ) -> _Shares:
        by_tokens, offsets = _by_rank(tokens, ranks, num_ranks)
        by_costs, _ = _by_rank(costs, ranks, num_ranks)
        return cls(costs, tokens, ranks, offsets, by_tokens, by_costs)


def _by_rank(
    values: NDArray[np.int64], ranks: NDArray[np.int32], num_ranks: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the samples rank by rank, in stable descending order of `values` within each, and where ranks begin."""
    order, _ = sort_descending(values, int(values.max(initial=0)))
    members, offsets, _ = members_by_group(ranks[order], num_ranks)
    return order[members].astype(np.int64), offsets


def _as_ranks(rank_of_item: ArrayLike, n: int, num_ranks: int) -> NDArray[np.int32]:
    ranks = as_labels("rank_of_item", rank_of_item, num_ranks)
    check_as_many("rank_of_item", len(ranks), n)
    return ranks


def _as_targets(targets: ArrayLike, num_slots: object, costs: NDArray[np.int64]) -> NDArray[np.int64]:
    array, largest, _ = as_costs(targets, "targets")
    if len(array) != num_slots:
        raise ArgumentError("targets", f"be one for each of {{num_slots}} = {num_slots}", len(array))
    if (np.diff(array) > 0).any():
        raise ArgumentError("targets", "descend")
    if largest + int(costs.sum()) > INT64_MAX:
        raise UsageError("the sum of {costs} and the largest of {targets} must fit int64")
    return array


def _fewest(shares: _Shares, rules: _Rules) -> tuple[NDArray[np.int64], str]:
    """Return how many micro-batches each rank needs at least, proven, and what proves it for the neediest."""
    over = shares.tokens > rules.cap
    alone = np.bincount(shares.ranks[over], minlength=rules.num_ranks)
    volume = -(-group_loads(np.where(over, 0, shares.tokens), shares.ranks, rules.num_ranks) // rules.cap)
    half = ~over & (shares.tokens > rules.cap - shares.tokens)
    halves = np.bincount(shares.ranks[half], minlength=rules.num_ranks)
    name = "volume" if int((alone + volume).max()) >= int((alone + halves).max()) else "halves"
    return alone + np.maximum(volume, halves), name


def _choose_slots(shares: _Shares, rules: _Rules, bins: NDArray[np.int64], least: NDArray[np.int64]) -> int:
    """Return K, or raise an error that names the rank for which there is none."""
    most = int(np.argmax(bins))
    num_slots = rules.slots_for(int(bins[most]))
    if isinstance(rules.num_slots, int):
        num_slots = rules.num_slots
        needy = int(np.argmax(least))
        if least[needy] > num_slots:
            raise InfeasibleError(
                f"{{num_slots}} = {num_slots} is too few: under {{cap}} = {rules.cap} the {_held(shares, needy)} "
                f"samples of {{rank}} need at least {least[needy]} micro-batches, short by {least[needy] - num_slots}",
                _certificate("num_slots", shares, needy, int(least[needy]), num_slots),
                f"the least {{num_slots}} that may do is {rules.slots_for(int(least[needy]))}",
                rank=Named("rank", needy),
            )
        if bins[most] > num_slots:
            raise SolverError(
                f"found no packing under {{cap}} = {rules.cap} of the {_held(shares, most)} samples of {{rank}} into "
                f"{{num_slots}} = {num_slots}, which {least[most]} micro-batches at least do not exclude",
                f"{rules.slots_for(int(bins[most]))} would do: give more {{slots}} or a larger {{cap}}",
                rank=Named("rank", most),
            )
    check_bins(rules.num_ranks, num_slots)
    held = np.diff(shares.offsets)
    if not rules.allow_empty and held.min() < num_slots:
        poor = int(np.argmax(held < num_slots))
        raise InfeasibleError(
            f"{{rank}} has {held[poor]} samples for {{num_slots}} = {num_slots} micro-batches, as many as every rank "
            f"has, short by {num_slots - held[poor]}",
            _certificate("allow_empty", shares, poor, num_slots, int(held[poor])),
            "{allow_empty=True} permits empty micro-batches",
            rank=Named("rank", poor),
        )
    return num_slots


def _certificate(constraint: str, shares: _Shares, rank: int, needed: int, available: int) -> InfeasibilityCertificate:
    items = np.flatnonzero(shares.ranks == rank).tolist()
    return InfeasibilityCertificate(constraint, items, [rank], needed, available)


def _held(shares: _Shares, rank: int) -> int:
    return int(shares.offsets[rank + 1] - shares.offsets[rank])


def _cut(shares: _Shares, rules: _Rules, targets: NDArray[np.int64] | None) -> tuple[NDArray[np.int32], int, int, str]:
    """Return the slot of each sample, K, and the bound on it."""
    tokens = read_only(shares.tokens[shares.by_tokens])
    packed, bins = np.empty(len(tokens), dtype=np.int32), np.zeros(rules.num_ranks, dtype=np.int64)
    pack_shares(tokens, read_only(shares.offsets), rules.cap, packed, bins)
    least, name = _fewest(shares, rules)
    num_slots = _choose_slots(shares, rules, bins, least)
    packed_of_item = np.empty_like(packed)
    packed_of_item[shares.by_tokens] = packed
    found = np.empty_like(packed)
    costs, tokens = read_only(shares.costs[shares.by_costs]), read_only(shares.tokens[shares.by_costs])
    # With targets of 0 the kernel's rule is LPT: each sample to the slot of least cost that has room.
    aims = np.zeros(num_slots, dtype=np.int64) if targets is None else targets
    offsets, bins_of_item = read_only(shares.offsets), read_only(packed_of_item[shares.by_costs])
    level_shares(costs, tokens, offsets, rules.cap, read_only(aims), bins_of_item, found)
    if targets is not None:
        meet_targets(costs, tokens, offsets, rules.cap, read_only(targets), found)
    slots = np.empty_like(found)
    slots[shares.by_costs] = found
    return slots, num_slots, rules.slots_for(int(least.max())), name


def cut_shares(
    costs: ArrayLike,
    tokens: ArrayLike,
    rank_of_item: ArrayLike,
    num_ranks: int,
    cap: int,
    *,
    num_slots: SupportsIndex | str | None = None,
    min_slots: int = 1,
    slots_multiple_of: int = 1,
    allow_empty: bool = False,
    over_long: str = "error",
    targets: ArrayLike | None = None,
) -> SharesResult:
    """Cut what every rank holds into micro-batches: the same number K on every rank, none of more than `cap` tokens.

    Every rank packs its own samples by first fit decreasing; K is the largest number that one of them needs, raised to
    what the rules ask for. Then each rank deals its samples anew over its K micro-batches by LPT under the cap: the
    costliest first, to the micro-batch of least cost that has room. A rank on which this leaves a sample without room
    keeps to its packing. Each rank's micro-batches are put in descending order of cost, so that the costliest of all
    ranks meet. No sample leaves its rank, and no rank looks at another's samples.

    Parameters
    ----------
    costs, tokens, num_ranks, cap, min_slots, slots_multiple_of, allow_empty, over_long
        As for :func:`solvers.packing.schedule_micro_batches`.
    rank_of_item : int[n]
        The rank of each sample, within 0..R-1.
    num_slots : int, "fewest" or None
        K; ``"fewest"`` and None alike: as few as first fit decreasing needs.
    targets : int64[K], optional
        The most that micro-batches of each slot should cost, descending; needs a `num_slots`. Where some are higher,
        the costliest samples fill those first. By default the micro-batches of a rank should cost the same.

    Returns
    -------
    SharesResult
        The slot of each sample, the micro-batches' costs and tokens, and a lower bound on K. First fit decreasing
        gives a rank at most 11/9 of its fewest micro-batches and 6/9 (Dósa 2007).

    Raises
    ------
    TypeError, ValueError
        On arguments of the wrong kind, negative numbers, sums past int64, a rank out of range, or a `num_slots` that
        contradicts `min_slots` or `slots_multiple_of`.
    InfeasibleError
        If a sample is over the cap and ``over_long="error"``, if a rank's samples cannot fit in `num_slots` slots, or
        if a rank has fewer samples than slots and none may be empty.
    SolverError
        If first fit decreasing does not fit a rank's samples into `num_slots` slots, though a fit is not excluded.

    Notes
    -----
    Deterministic: every order is stable and ties go to the lowest index. O(n log n + n K + R K log K) time and
    O(n + R K) memory.

    References
    ----------
    Dósa, "The tight bound of first fit decreasing bin-packing algorithm is FFD(I) <= 11/9 OPT(I) + 6/9", ESCAPE 2007.
    Graham, "Bounds on multiprocessing timing anomalies", SIAM Journal on Applied Mathematics 17(2), 1969 (LPT).

    Examples
    --------
    >>> from solvers import check_shares
    >>> lengths, ranks = [5, 3, 3, 2, 1, 6, 1, 1], [0, 0, 0, 0, 0, 1, 1, 1]
    >>> result = cut_shares(lengths, lengths, ranks, num_ranks=2, cap=7)
    >>> result.num_slots, result.slot_of_item.tolist(), result.slot_loads.tolist()
    (2, [0, 1, 1, 0, 1, 0, 1, 1], [[7, 7], [6, 2]])
    >>> check_shares(lengths, lengths, ranks, result, num_ranks=2, cap=7)
    """
    started = time.perf_counter()
    min_slots, multiple = as_count("min_slots", min_slots), as_count("slots_multiple_of", slots_multiple_of)
    rules = _Rules(
        as_count("num_ranks", num_ranks), as_cap(cap), as_slots(num_slots, min_slots, multiple), min_slots, multiple,
        as_flag("allow_empty", allow_empty),
    )  # fmt: skip
    check_bins(rules.num_ranks, rules.slots_for(1))  # before anything of that size is made
    as_choice("over_long", over_long, OVER_LONG)
    all_costs, all_tokens = as_costs(costs)[0], as_costs(tokens, "tokens")[0]
    check_as_many("tokens", len(all_tokens), len(all_costs))
    all_ranks = _as_ranks(rank_of_item, len(all_costs), rules.num_ranks)
    own = check_over_long(all_tokens, rules.cap, over_long)
    shares = _Shares.from_samples(all_costs, all_tokens, all_ranks, rules.num_ranks)
    wanted = None if targets is None else _as_targets(targets, rules.num_slots, all_costs)
    slots, found, least, name = _cut(shares, rules, wanted)
    num_bins = rules.num_ranks * found
    bins = (shares.ranks * np.int64(found) + slots).astype(np.int32)
    loads = group_loads(shares.costs, bins, num_bins).reshape(rules.num_ranks, found)
    volumes = group_loads(shares.tokens, bins, num_bins).reshape(rules.num_ranks, found)
    return SharesResult(
        shares.ranks, slots, found, loads, volumes, rules.cap, own, lower_bound=least, bound_name=name,
        status=status_of(found, least), runtime_s=time.perf_counter() - started,
    )  # fmt: skip
