"""Lengths to packs: into as few as fit, and the proof of how few there can be; their order, and their steps."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

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
from solvers.groups import group_loads

OVER_LONG = ("error", "own", "drop", "cut")
"""What a sample over the tokens of a pack gets."""

COST = "quadratic:a=24576,b=1"
"""By default, what a sample costs: of a model of 4,096 hidden units, attention inside documents."""

_LEFT_OVER = (0.05, 0.2)
"""Of all tokens: small samples that fill up packs which are even in cost."""

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class PackSettings:
    """How lengths are packed, checked: arguments of :func:`balancer.pack`."""

    tokens: int
    over_long: str = "error"
    cost: str = COST
    even_cost: bool = False
    per_step: int | None = None
    limits: Sequence[AnyLimit] = ()
    model: CostModel = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        as_count("tokens", self.tokens)
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
        names = ("tokens", "over_long", "even_cost", "per_step")
        return {name: getattr(self, name) for name in names} | {
            "cost": str(self.model), "limits": [repr(limit) for limit in self.limits],
        }  # fmt: skip


class PackedRows(NamedTuple):
    """Pack i is pieces ``offsets[i]..offsets[i + 1] - 1``, in the order of their rows."""

    offsets: Ints  # int64[p + 1]
    rows: Ints  # int64[k]: the row of each piece
    starts: Ints  # int64[k]: where in its sample it begins; 0 but for later pieces of one that was cut
    lengths: Ints  # int64[k]: at least 1
    costs: Ints  # int64[p]: of each pack
    over: NDArray[np.bool_]  # bool[n]: rows that are over the tokens of a pack, or over a limit
    lower_bound: int  # proven: under the same settings no packs are fewer


def pack_rows(lengths: Ints, settings: PackSettings, held: HeldLimits | None = None) -> PackedRows:
    """Pack rows of these lengths; those of length 0 are in no pack.

    A pack's rows ascend. Packs come in a drawn order, so that none of their lengths, costs or rows drift from the first
    to the last; with `per_step` whole steps do.

    Raises
    ------
    InfeasibleError
        Naming the first row that is too large, with ``over_long="error"``, before anything is packed.
    UsageError
        A cost that does not fit int64.

    References
    ----------
    Martello & Toth, "Knapsack Problems", chapter 8, 1990: the bound L2. Ding et al., "Fewer truncations improve
    language modeling", 2024: best fit decreasing for training, as trainers pack.
    """
    over = _too_large(lengths, settings, held)
    rows, starts, pieces = _pieces(lengths, over, settings)
    try:
        costs = settings.model.sample_costs(pieces)
    except UsageError as error:  # a cost that does not fit: it names the piece
        raise error.in_words(Wording({"sample": "row"}, {"row": lambda i: int(rows[i])})) from None
    alone = over[rows] & (settings.over_long == "own")
    group, bound = _grouped(pieces, costs, alone, settings, None if held is None else held.of_samples(rows))
    counts = np.bincount(group)
    pack_costs = _sums(group, costs)
    order = _order(pack_costs, settings.per_step)
    place = np.empty(len(order), dtype=np.int64)
    place[order] = np.arange(len(order))
    # Within a pack, pieces keep the log's order.
    at = np.argsort(place[group], kind="stable")
    offsets = np.concatenate([[0], np.cumsum(counts[order])]).astype(np.int64)
    return PackedRows(offsets, rows[at], starts[at], pieces[at], pack_costs[order], over, bound)


def _too_large(lengths: Ints, settings: PackSettings, held: HeldLimits | None) -> NDArray[np.bool_]:
    """Return which rows no pack can hold; InfeasibleError names the first, unless settings say what becomes of them."""
    measured = [("length", "{tokens} =", lengths, settings.tokens)]
    if held is not None:
        of_limits = zip(held.names, held.sizes.T, held.most[:, 0].tolist(), strict=True)
        measured += [(name, "the limit", amounts, most) for name, amounts, most in of_limits]
    over = np.zeros(len(lengths), dtype=np.bool_)
    for name, limit, amounts, most in measured:
        here = amounts > most
        over |= here
        if settings.over_long != "error" or not here.any():
            continue
        row = int(here.argmax())
        remedies = ["{over_long='own'} gives each a pack of its own", "{over_long='drop'} leaves them out"]
        if not settings.limits:
            remedies.append("{over_long='cut'} cuts them into pieces of so many tokens")
        raise InfeasibleError(
            f"no pack can hold {{row}}: its {braced(name)} {amounts[row]} is over {limit} {most} by "
            f"{amounts[row] - most} (rows over it: {here.sum()})",
            InfeasibilityCertificate("cap", [row], [], int(amounts[row]), most), remedies, row=Named("row", row),
        )  # fmt: skip
    return over


def _pieces(lengths: Ints, over: NDArray[np.bool_], settings: PackSettings) -> tuple[Ints, Ints, Ints]:
    """Return row, start and length of what is packed: whole samples, or pieces where they are cut."""
    used = np.flatnonzero((lengths > 0) & ~(over & (settings.over_long == "drop")))
    whole = lengths[used]
    count = -(-whole // settings.tokens) if settings.over_long == "cut" else np.ones_like(whole)
    rows, whole = np.repeat(used, count), np.repeat(whole, count)
    number = np.arange(len(rows)) - np.repeat(np.cumsum(count) - count, count)  # of each piece in its sample
    starts = number * settings.tokens
    return rows, starts, np.minimum(whole - starts, settings.tokens) if settings.over_long == "cut" else whole


def _grouped(
    pieces: Ints, costs: Ints, alone: NDArray[np.bool_], settings: PackSettings, held: HeldLimits | None
) -> tuple[Ints, int]:
    """Return the pack of each piece, and the proven least number of packs; those `alone` have one of their own."""
    fits, more = ~alone, int(alone.sum())
    sums = [] if held is None else list(zip(held.sizes[fits].T, held.most[:, 0].tolist(), strict=True))
    most_items = None if held is None else held.most_items
    packed = partial(pack, pieces[fits], settings.tokens, max_items=most_items, limits=sums)
    found = packed("first_fit_decreasing" if sums else "pair_fit")
    if found.gap and not sums:
        found = min(found, packed("best_fit_decreasing"), key=lambda each: each.num_groups)
    inside = found.group_of_item.astype(np.int64)
    # Steps are whole: so many packs more are wanted as the last step lacks, as far as there are pieces for them.
    per_step = settings.per_step or 1
    wanted, bound = (
        min(-(-(each + more) // per_step) * per_step, len(pieces)) for each in (found.num_groups, found.lower_bound)
    )
    if settings.even_cost:
        inside = _evened(pieces[fits], costs[fits], settings.tokens, wanted - more, inside)
    group = np.empty(len(pieces), dtype=np.int64)
    group[fits] = inside
    group[alone] = np.arange(more) + int(inside.max(initial=-1)) + 1
    return _split(group, costs, wanted), bound


def _evened(lengths: Ints, costs: Ints, cap: int, count: int, packed: Ints) -> Ints:
    """Return packs, at most `count`, that cost the same as nearly as was found; else those there are.

    All but the smallest samples are dealt out evenly in cost. Then each share is one item, and the small samples fill
    the shares up by pair fit. The fewer are left for that, the more even; so each part of the tokens is tried.
    """
    best, least = packed, _unevenness(packed, costs)
    order = np.argsort(-lengths, kind="stable")
    filled = np.cumsum(lengths[order])
    for left_over in _LEFT_OVER if count else ():
        # The large samples are dealt out by cost, and small ones fill what room is left: these cost little beside
        # their tokens.
        large, small = np.split(order, [int(np.searchsorted(filled, filled[-1] * (1 - left_over)))])
        try:
            dealt = partition(costs[large], count, "lpt", sizes=lengths[large], caps=[cap] * count)
        except SolverError:
            continue  # the cap leaves no room for so many samples dealt out by cost
        used, shares = np.unique(dealt.group_of_item, return_inverse=True)
        # Each share of large samples is one item of the packer, which fills it up with small ones.
        whole = pack(np.concatenate([_sums(shares, lengths[large]), lengths[small]]), cap)
        if whole.num_groups > count:
            continue
        group = np.empty(len(lengths), dtype=np.int64)
        group[large] = whole.group_of_item[: len(used)][shares]
        group[small] = whole.group_of_item[len(used) :]
        if (found := _unevenness(group, costs)) < least:
            best, least = group, found
    return best


def _sums(group: NDArray[np.integer[Any]], values: Ints) -> Ints:
    """Return the sum of the values of each group."""
    return group_loads(values, group.astype(np.int32), int(group.max(initial=-1)) + 1)


def _unevenness(group: Ints, costs: Ints) -> tuple[int, float]:
    """Return the cost of the largest group, and then what tells apart packings whose largest is one sample."""
    sums = _sums(group, costs)
    return int(sums.max(initial=0)), float(sums.astype(np.float64).std()) if len(sums) else 0.0


def _split(group: Ints, costs: Ints, count: int) -> Ints:
    """Split the most costly packs of several samples in two until there are `count`, one fewer than `per_step` times.

    O(n) time for each of them, which are fewer than a step has.
    """
    there = int(group.max(initial=-1)) + 1
    sums, sizes = np.zeros(count, dtype=np.int64), np.zeros(count, dtype=np.int64)
    sums[:there], sizes[:there] = _sums(group, costs), np.bincount(group)
    for new in range(there, count):
        old = int(np.where(sizes > 1, sums, -1).argmax())
        inside = np.flatnonzero(group == old)
        # The largest goes to one half, the next two to the other, and so on.
        turns = (np.arange(len(inside)) + 1) // 2 % 2
        moved = inside[np.argsort(-costs[inside], kind="stable")][turns == 1]
        group[moved] = new
        sums[new], sizes[new] = costs[moved].sum(), len(moved)
        sums[old], sizes[old] = sums[old] - sums[new], sizes[old] - sizes[new]
    return group


def _order(costs: Ints, per_step: int | None) -> Ints:
    """Return packs in the order in which they are trained; packs of a step are those of nearly one cost.

    In the order of their rows, or of the packer, packs of few long samples would come last, and the end of an epoch
    would have other lengths than its beginning.
    """
    by_cost, size = (np.arange(len(costs)), 1) if per_step is None else (np.argsort(-costs, kind="stable"), per_step)
    full = len(costs) // size
    if not full:
        return by_cost
    # A short step is the last: trainers drop it, or run it alone.
    drawn = by_cost[: full * size].reshape(full, size)[shuffled(np.arange(full), full, seed=0)]
    return np.concatenate([drawn.ravel(), by_cost[full * size :]])
