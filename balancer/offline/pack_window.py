"""One window of a log packed: consecutive rows into as few packs as fit, and the proof of how few there can be."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from balancer.cost import CostModel, parse_cost
from balancer.problem.limits import AnyLimit, CountLimit, HeldLimits, Limit, as_limits
from balancer.problem.shuffle import shuffled
from solvers import pack, partition
from solvers.arguments import as_count
from solvers.errors import (
    ArgumentError,
    InfeasibilityCertificate,
    InfeasibleError,
    Named,
    SolverError,
    UsageError,
    Wording,
    braced,
)

OVER_LONG = ("error", "own", "drop", "cut")
"""What a sample over the tokens of a pack gets."""

# Rows of a window: a million take half a second, or five with even costs (docs/benchmarks/packs.md).
WINDOW_ROWS = 1 << 20
COST = "quadratic:a=24576,b=1"
"""By default, what a sample costs: of a model of 4,096 hidden units, attention inside documents."""

_LEFT_OVER = (0.02, 0.05, 0.1, 0.2, 0.3, 0.4)
"""Of all tokens: small samples that fill up packs which are even in cost; benchmarks/ablation.py, even_packs."""


@dataclass(frozen=True, slots=True)
class PackSettings:
    """How a log is packed.

    Attributes
    ----------
    tokens : int
        The most tokens of a pack.
    window_rows : int
        So many consecutive rows are packed together; no sample leaves its window.
    over_long : str
        A name in :data:`OVER_LONG`.
    cost : str
        What a sample costs, as :func:`balancer.cost.parse_cost` reads it; a pack costs the sum.
    even_cost : bool
        Packs that cost the same, as far as no more of them are needed.
    per_step : int or None
        Packs of a step: those of one cost nearly the same, and steps are full as far as samples can be divided.
    limits : sequence of Limit and CountLimit
        What else a pack may hold.
    """

    tokens: int
    window_rows: int = WINDOW_ROWS
    over_long: str = "error"
    cost: str = COST
    even_cost: bool = False
    per_step: int | None = None
    limits: Sequence[AnyLimit] = ()
    model: CostModel = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        as_count("tokens", self.tokens)
        as_count("window_rows", self.window_rows)
        if self.per_step is not None:
            as_count("per_step", self.per_step)
        if self.over_long not in OVER_LONG:
            raise ArgumentError("over_long", f"be one of {', '.join(map(repr, OVER_LONG))}", repr(self.over_long))
        model = parse_cost(self.cost)
        if not model.additive or model.needs_prefixes:
            raise UsageError("packs cost the sum of their samples; {cost} = '{model}' is no such cost", model=model)
        object.__setattr__(self, "model", model)
        object.__setattr__(self, "limits", as_limits(self.limits))
        for limit in self.limits:
            if not isinstance(limit, Limit | CountLimit):
                kind = type(limit).__name__
                raise UsageError("packs keep Limit and CountLimit; {kind} is for micro-batches alone", kind=kind)
        if self.limits and self.even_cost:
            raise UsageError("{even_cost} deals samples out by cost and tokens alone; leave it or {limits} out")
        if self.over_long == "cut" and any(isinstance(limit, Limit) for limit in self.limits):
            raise UsageError(
                "{over_long='cut'} would leave unknown which piece has what {limits} count; choose another"
            )

    def to_json(self) -> dict[str, Any]:
        """Return the settings as the description of a file of packs holds them."""
        names = ("tokens", "window_rows", "over_long", "even_cost", "per_step")
        return {name: getattr(self, name) for name in names} | {
            "cost": str(self.model), "limits": [repr(limit) for limit in self.limits],
        }  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class PackedWindow:
    """The packs of a window: pack i is pieces ``offsets[i]..offsets[i + 1] - 1``, in the order of their rows."""

    offsets: NDArray[np.int64]  # int64[p + 1]
    rows: NDArray[np.int64]  # int64[k]: the row of each piece, in the log
    starts: NDArray[np.int64]  # int64[k]: where in its sample it begins; 0 but for later pieces of one that was cut
    lengths: NDArray[np.int64]  # int64[k]: at least 1
    costs: NDArray[np.int64]  # int64[p]: of each pack
    lower_bound: int  # proven: no packs of this window, under the same settings, are fewer

    @property
    def num_packs(self) -> int:
        """Number of packs."""
        return len(self.costs)


def too_large(lengths: NDArray[np.int64], settings: PackSettings, held: HeldLimits | None) -> NDArray[np.bool_]:
    """Return which rows no pack can hold; InfeasibleError names the first, unless settings say what becomes of them."""
    measured = [("length", lengths, settings.tokens)]
    if held is not None:
        measured += zip(held.names, held.sizes.T, held.most[:, 0].tolist(), strict=True)
    over = np.zeros(len(lengths), dtype=np.bool_)
    for name, amounts, most in measured:
        here = amounts > most
        over |= here
        if settings.over_long != "error" or not here.any():
            continue
        row = int(here.argmax())
        limit = "{tokens} =" if amounts is lengths else "the limit"
        remedies = ["{over_long='own'} gives each a pack of its own", "{over_long='drop'} leaves them out"]
        if not settings.limits:
            remedies.append("{over_long='cut'} cuts them into pieces of so many tokens")
        raise InfeasibleError(
            f"no pack can hold {{row}}: its {braced(name)} {amounts[row]} is over {limit} {most} by "
            f"{amounts[row] - most} (rows over it: {here.sum()})",
            InfeasibilityCertificate("cap", [row], [], int(amounts[row]), most), remedies, row=Named("row", row),
        )  # fmt: skip
    return over


def pack_window(
    lengths: NDArray[np.int64], settings: PackSettings, first_row: int = 0, held: HeldLimits | None = None
) -> PackedWindow:
    """Pack consecutive rows, of which `first_row` of the log is the first, and which none of :func:`too_large` stops.

    Empty rows are in no pack. A pack's rows ascend. Packs come in an order drawn by the window's number, so that none
    of their lengths, costs or rows drift from the first to the last; with `per_step` whole steps do.

    Raises
    ------
    UsageError
        A cost that does not fit int64.

    References
    ----------
    Martello & Toth, "Knapsack Problems", chapter 8, 1990: the bound L2. Ding et al., "Fewer truncations improve
    language modeling", 2024: best fit decreasing for training, as trainers pack.
    """
    over = too_large(lengths, settings, held)
    used = np.flatnonzero((lengths > 0) & ~over) if settings.over_long == "drop" else np.flatnonzero(lengths)
    rows, starts, pieces = _pieces(lengths, used, settings)
    try:
        costs = settings.model.sample_costs(pieces)
    except UsageError as error:  # a cost that does not fit: it names the piece
        raise error.in_words(Wording({"sample": "row"}, {"row": lambda i: int(rows[i]) + first_row})) from None
    alone = over[rows] if settings.over_long == "own" else np.zeros(len(rows), dtype=np.bool_)
    group, bound = _grouped(pieces, costs, alone, settings, None if held is None else held.of_samples(rows))
    counts = np.bincount(group, minlength=int(group.max(initial=-1)) + 1)
    pack_costs = _sums(group, costs, len(counts))
    order = _order(pack_costs, settings.per_step, first_row // settings.window_rows)
    place = np.empty(len(order), dtype=np.int64)
    place[order] = np.arange(len(order))
    # Within a pack, pieces keep the log's order.
    at = np.argsort(place[group], kind="stable")
    return PackedWindow(
        np.concatenate([[0], np.cumsum(counts[order])]).astype(np.int64), rows[at] + first_row, starts[at], pieces[at],
        pack_costs[order], bound,
    )  # fmt: skip


def _pieces(
    lengths: NDArray[np.int64], used: NDArray[np.int64], settings: PackSettings
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return row, start and length of what is packed: whole samples, or pieces where they are cut."""
    whole = lengths[used]
    if settings.over_long != "cut" or not (whole > settings.tokens).any():
        return used, np.zeros(len(used), dtype=np.int64), whole
    count = -(-whole // settings.tokens)
    rows = np.repeat(used, count)
    number = np.arange(len(rows)) - np.repeat(np.cumsum(count) - count, count)  # of each piece in its sample
    starts = number * settings.tokens
    return rows, starts, np.minimum(np.repeat(whole, count) - starts, settings.tokens)


def _grouped(
    pieces: NDArray[np.int64], costs: NDArray[np.int64], alone: NDArray[np.bool_], settings: PackSettings,
    held: HeldLimits | None,
) -> tuple[NDArray[np.int64], int]:  # fmt: skip
    """Return the pack of each piece, and the proven least number of packs; those `alone` have one of their own."""
    fits, more = ~alone, int(alone.sum())
    sums = [] if held is None else list(zip(held.sizes[fits].T, held.most[:, 0].tolist(), strict=True))
    most_items = None if held is None else held.most_items
    packed = partial(pack, pieces[fits], settings.tokens, max_items=most_items, limits=sums)
    found = packed("best_fit_decreasing" if sums else "pair_fit")
    if found.gap and not sums:
        found = min(found, packed("best_fit_decreasing"), key=lambda each: each.num_groups)
    inside = found.group_of_item.astype(np.int64)
    per_step = settings.per_step or 1
    # Steps are whole: so many packs more are wanted as the last step lacks, as far as there are pieces for them.
    wanted, bound = (
        min(-(-(each + more) // per_step) * per_step, len(pieces)) for each in (found.num_groups, found.lower_bound)
    )
    if settings.even_cost:
        inside = _evened(pieces[fits], costs[fits], settings.tokens, wanted - more, inside)
    group = np.empty(len(pieces), dtype=np.int64)
    group[fits] = inside
    group[alone] = np.arange(more) + int(inside.max(initial=-1)) + 1
    return _split(group, costs, wanted), bound


def _evened(
    lengths: NDArray[np.int64], costs: NDArray[np.int64], cap: int, count: int, packed: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return packs, at most `count`, that cost the same as nearly as was found; else those there are.

    All but the smallest samples are dealt out evenly in cost. Then each share is one item, and the small samples fill
    the shares up by pair fit. The fewer are left for that, the more even; so each part of the tokens is tried.
    """
    best, least = packed, _unevenness(packed, costs)
    order = np.argsort(-lengths, kind="stable")
    held = np.cumsum(lengths[order])
    for left_over in _LEFT_OVER:
        # The large samples are dealt out by cost, and small ones fill what room is left: these cost little beside
        # their tokens.
        large = order[: int(np.searchsorted(held, held[-1] * (1 - left_over)))] if len(order) else order
        if not len(large) or count < 1:
            continue
        small = order[len(large) :]
        try:
            shares = partition(
                costs[large], count, "lpt", sizes=lengths[large], caps=np.full(count, cap)
            ).group_of_item.astype(np.int64)
        except SolverError:
            continue  # the cap leaves no room for so many samples dealt out by cost
        used, shares = np.unique(shares, return_inverse=True)
        # Each share of large samples is one item of the packer, which fills it up with small ones.
        filled = pack(np.concatenate([_sums(shares, lengths[large], len(used)), lengths[small]]), cap)
        if filled.num_groups > count:
            continue
        group = np.empty(len(lengths), dtype=np.int64)
        group[large] = filled.group_of_item[: len(used)][shares]
        group[small] = filled.group_of_item[len(used) :]
        if (found := _unevenness(group, costs)) < least:
            best, least = group, found
    return best


def _sums(group: NDArray[np.int64], values: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """Return the sum of the values of each group, exactly."""
    sums = np.zeros(count, dtype=np.int64)
    np.add.at(sums, group, values)
    return sums


def _unevenness(group: NDArray[np.int64], costs: NDArray[np.int64]) -> tuple[int, float]:
    """Return the cost of the largest group, and then what tells apart packings whose largest is one sample."""
    sums = _sums(group, costs, int(group.max(initial=-1)) + 1)
    return int(sums.max(initial=0)), float(sums.astype(np.float64).std()) if len(sums) else 0.0


def _split(group: NDArray[np.int64], costs: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """Split the most costly packs of several samples in two until there are `count`, one fewer than `per_step` times.

    Halves are as even in cost as the largest first gives. O(n) time for each of them, which are fewer than a step has.
    """
    there = int(group.max(initial=-1)) + 1
    if there >= count:
        return group
    sums = _sums(group, costs, count)
    sizes = np.bincount(group, minlength=count)
    for new in range(there, count):
        old = int(np.where(sizes > 1, sums, -1).argmax())
        inside = np.flatnonzero(group == old)
        halves: tuple[list[int], list[int]] = [], []
        loads = [0, 0]
        for item in inside[np.argsort(-costs[inside], kind="stable")].tolist():
            to = int(loads[1] < loads[0]) if halves[0] else 0
            halves[to].append(item)
            loads[to] += int(costs[item])
        group[halves[1]] = new
        sums[[old, new]] = loads
        sizes[[old, new]] = len(halves[0]), len(halves[1])
    return group


def _order(costs: NDArray[np.int64], per_step: int | None, window: int) -> NDArray[np.int64]:
    """Return packs in the order in which they are trained; packs of a step are those of nearly one cost.

    In the order of their rows, or of the packer, packs of few long samples would come last, and the end of an epoch
    would have other lengths than its beginning.
    """
    by_cost, size = (np.arange(len(costs)), 1) if per_step is None else (np.argsort(-costs, kind="stable"), per_step)
    full = len(costs) // size
    if not full:
        return by_cost
    # A short step is the last: trainers drop it, or run it alone.
    drawn = by_cost[: full * size].reshape(full, size)[shuffled(np.arange(full), full, seed=0, epoch=window)]
    return np.concatenate([drawn.ravel(), by_cost[full * size :]])
