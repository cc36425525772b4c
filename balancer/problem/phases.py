"""Phases: the modules of a multimodal model, and which items of a batch each of them computes.

An encoder's items are parts of samples: the images of a page, the clips of a video. A phase that is fed by others, and
the last one, computes whole samples: one item a sample.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from balancer.cost import CostModel, parse_cost
from balancer.problem.items import parse_items
from balancer.problem.limits import as_limit
from balancer.problem.ragged import Ragged
from solvers.arguments import as_count, as_int64

__all__ = ["Phase", "PhaseItems", "resolve_phases"]

Columns = Mapping[str, ArrayLike | Ragged]


@dataclass(frozen=True, slots=True)
class Phase:
    """A module, its items, what they cost, and what they bring in and put out.

    Attributes
    ----------
    name : str
    items : str
        What gives the items' lengths: columns of one number a sample, ``"image_patches"`` or ``"text+image"`` (an
        encoder has no item where that is 0), or a function of columns of lists, ``"qwen2vl_patches(widths,heights)"``
        or ``"lengths(clips)"``, for several items a sample.
    cost : str or CostModel
        As :func:`balancer.balance` takes it. Phases that are balanced jointly need one unit of work.
    outputs : str, optional
        What gives the elements that each item puts out, in the same form; by default its length.
    own : str, optional
        Of a phase that is fed: what each sample brings in from home besides, such as ``"text_tokens"``; by default
        its length less what it is fed, and nothing where that is less than 0. Also as a function of lists, for text in
        several segments.
    feeds : str, optional
        The phase that takes the outputs; by default the last one.
    bytes_in, bytes_out : int
        Bytes of an element on its way in and out.
    equal_counts : bool
        Every rank gets the same number of items, within one.
    max_tokens_per_rank : int or None
        No rank gets a larger sum of lengths.
    every_rank_nonempty : bool
        Every rank gets an item, where there are enough; where not, the plan names the ranks that need a dummy.
    totals : str, optional
        Columns of numbers that the lengths of each sample's items must add up to: a check.
    """

    name: str
    items: str
    cost: str | CostModel = "linear"
    outputs: str | None = None
    own: str | None = None
    feeds: str | None = None
    bytes_in: int = 1
    bytes_out: int = 1
    equal_counts: bool = False
    max_tokens_per_rank: int | None = None
    every_rank_nonempty: bool = False
    totals: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name or set(self.name) & set(":="):
            raise ValueError(f"a phase needs a name without ':' and '=', got {self.name!r}")
        object.__setattr__(self, "cost", parse_cost(self.cost))
        if not isinstance(self.items, str) or not self.items.strip():
            raise ValueError(f"phase {self.name!r}: items must name columns, got {self.items!r}")
        for name in ("outputs", "own", "feeds", "totals"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, str):
                raise TypeError(f"phase {self.name!r}: {name} must be text or None, got {value!r}")
        if self.max_tokens_per_rank is not None:
            cap = as_limit(f"max_tokens_per_rank of phase {self.name!r}", self.max_tokens_per_rank)
            object.__setattr__(self, "max_tokens_per_rank", cap)
        for name in ("equal_counts", "every_rank_nonempty"):
            object.__setattr__(self, name, bool(getattr(self, name)))
        for name in ("bytes_in", "bytes_out"):
            object.__setattr__(self, name, as_count(f"{name} of phase {self.name!r}", getattr(self, name)))


@dataclass(frozen=True, slots=True, eq=False)
class PhaseItems:
    """A phase's items in one batch; arrays are read-only.

    Attributes
    ----------
    phase : Phase
    cost : CostModel
    feeds : str or None
        The phase that takes the outputs; None for the last.
    fed_by : tuple of str
        The phases whose outputs it takes, in order.
    sample_of_item : int64[k]
        Ascending; an item is what stands at an index of these arrays.
    lengths, outputs : int64[k]
        Elements of each item, and elements that it puts out.
    own : Ragged
        Of a fed phase: lengths of the pieces that each sample brings in from home; else no pieces.
    """

    phase: Phase
    cost: CostModel
    feeds: str | None
    fed_by: tuple[str, ...]
    sample_of_item: NDArray[np.int64]
    lengths: NDArray[np.int64]
    outputs: NDArray[np.int64]
    own: Ragged

    def __post_init__(self) -> None:
        for array in (self.sample_of_item, self.lengths, self.outputs):
            array.flags.writeable = False

    @property
    def item_in_sample(self) -> NDArray[np.int64]:
        """Which item of its sample each is, from 0: int64[k]."""
        index = np.arange(len(self.sample_of_item))
        first = np.ones(len(index), dtype=bool)
        first[1:] = self.sample_of_item[1:] != self.sample_of_item[:-1]
        return index - np.maximum.accumulate(np.where(first, index, 0))


def resolve_phases(columns: Columns, phases: Sequence[Phase]) -> tuple[PhaseItems, ...]:
    """Find every phase's items in the columns of a batch.

    Parameters
    ----------
    columns : mapping of str to int64[n] or Ragged
        One number, or one list, for each of n samples.
    phases : sequence of Phase
        In the order in which they compute; the last is the one that all others feed unless they say otherwise.

    Returns
    -------
    tuple of PhaseItems
        In the same order.

    Raises
    ------
    TypeError, ValueError
        A name that is not there or twice, a phase that feeds an earlier one, columns of unequal length, outputs that
        are not as many as the items; it names them.
    """
    names = [phase.name for phase in phases]
    if not phases:
        raise ValueError("there must be at least one phase")
    if len(set(names)) < len(names):
        raise ValueError(f"phases must have different names, got {', '.join(names)}")
    feeds = {phase.name: _fed_phase(phase, names) for phase in phases}
    fed_by = {name: tuple(other for other in names if feeds[other] == name) for name in names}
    batch = _Batch(columns)
    found: dict[str, PhaseItems] = {}
    for phase in phases:
        whole = phase is phases[-1] or bool(fed_by[phase.name])
        items = batch.items(phase.items, phase, whole)
        if phase.totals is not None:
            batch.check_totals(phase, phase.totals, items)
        outputs = items if phase.outputs is None else batch.items(phase.outputs, phase, whole, like=items)
        sample_of_item = items.row_of_value
        own = Ragged(np.empty(0, dtype=np.int64), np.zeros(batch.num_samples + 1, dtype=np.int64))
        if whole:
            own = batch.own(phase, items, [found[name] for name in fed_by[phase.name]])
        _check_volumes(phase, "bytes_in", phase.bytes_in, items.values, own.values)
        _check_volumes(phase, "bytes_out", phase.bytes_out, outputs.values)
        found[phase.name] = PhaseItems(
            phase, parse_cost(phase.cost), feeds[phase.name], fed_by[phase.name], sample_of_item, items.values,
            outputs.values, own,
        )  # fmt: skip
    return tuple(found.values())


def _check_volumes(phase: Phase, name: str, size: int, *lengths: NDArray[np.int64]) -> None:
    """Refuse bytes whose sums would wrap around; in floats, which do not, and with room for their rounding."""
    total = sum(float(array.sum(dtype=np.float64)) for array in lengths) * size
    if total > 2.0**62:
        raise ValueError(f"phase {phase.name!r}: {name} = {size} makes about {total:.3g} bytes in all; must be < 2**62")


def _fed_phase(phase: Phase, names: list[str]) -> str | None:
    if phase.name == names[-1]:
        if phase.feeds is not None:
            raise ValueError(f"phase {phase.name!r} is the last and feeds none, got feeds = {phase.feeds!r}")
        return None
    target = names[-1] if phase.feeds is None else phase.feeds
    if target not in names[names.index(phase.name) + 1 :]:
        raise ValueError(f"phase {phase.name!r} must feed a later phase, got {target!r}; phases are {', '.join(names)}")
    return target


class _Batch:
    """The columns of a batch, checked when they are used."""

    def __init__(self, columns: Columns) -> None:
        if not isinstance(columns, Mapping) or not columns:
            raise TypeError(f"columns must be a mapping of at least one name to values, got {columns!r}")
        self._columns = columns
        self.num_samples = len(next(iter(columns.values())))  # type: ignore[arg-type]

    def _column(self, name: str) -> ArrayLike | Ragged:
        if name not in self._columns:
            raise ValueError(f"no column {name!r}; columns there are: {', '.join(self._columns)}")
        column = self._columns[name]
        if len(column) != self.num_samples:  # type: ignore[arg-type]
            raise ValueError(
                f"columns must be of one length: {next(iter(self._columns))!r} has {self.num_samples} samples, "
                f"{name!r} {len(column)}"  # type: ignore[arg-type]
            )
        return column

    def _numbers(self, expression: str) -> NDArray[np.int64]:
        total = np.zeros(self.num_samples, dtype=np.int64)
        for name in [expression] if expression in self._columns else [part.strip() for part in expression.split("+")]:
            column = self._column(name)
            if isinstance(column, Ragged):
                raise ValueError(f"column {name!r} holds lists; write lengths({name}) for an item an entry")
            array = as_int64(name, column)
            if array.size and array.min() < 0:
                sample = int(np.argmax(array < 0))
                raise ValueError(f"{name}[{sample}] must be >= 0, got {array[sample]}")
            total = total + array
            if total.size and total.min() < 0:
                raise ValueError(f"{expression} of sample {int(np.argmax(total < 0))} must fit int64")
        return total

    def _lists(self, expression: str) -> Ragged:
        parsed = parse_items(expression)
        lists = {}
        for name in parsed.columns:
            column = self._column(name)
            lists[name] = column if isinstance(column, Ragged) else Ragged.of(column)  # type: ignore[arg-type]
        found = parsed.evaluate(lists)
        if found.values.size and found.values.min() < 0:
            raise ValueError(f"{expression} must be >= 0, got {found.values.min()}")
        return found

    def items(self, expression: str, phase: Phase, whole: bool, like: Ragged | None = None) -> Ragged:
        """Return the lengths of a phase's items, or of their outputs."""
        if "(" in expression:
            if whole:
                raise ValueError(
                    f"phase {phase.name!r} computes whole samples, so items = {expression!r} must be columns of numbers"
                )
            found = self._lists(expression)
        else:
            lengths = self._numbers(expression)
            there = np.ones(len(lengths), dtype=bool) if whole else lengths > 0
            if like is not None and not whole and bool((like.counts <= 1).all()):
                there = like.counts == 1
            offsets = np.zeros(len(lengths) + 1, dtype=np.int64)
            np.cumsum(there, out=offsets[1:])
            found = Ragged(lengths[there], offsets)
        if like is not None and not np.array_equal(found.counts, like.counts):
            sample = int(np.argmax(found.counts != like.counts))
            raise ValueError(
                f"phase {phase.name!r}: sample {sample} has {like.counts[sample]} items but outputs = {expression!r} "
                f"gives {found.counts[sample]}"
            )
        return found

    def check_totals(self, phase: Phase, totals: str, items: Ragged) -> None:
        """Refuse items that do not add up to what the columns say."""
        expected, found = self._numbers(totals), items.sums()
        if not np.array_equal(expected, found):
            sample = int(np.argmax(expected != found))
            raise ValueError(
                f"phase {phase.name!r}: items = {phase.items!r} of sample {sample} add up to {found[sample]}, but "
                f"{totals} is {expected[sample]}"
            )

    def own(self, phase: Phase, items: Ragged, feeders: Sequence[PhaseItems]) -> Ragged:
        """Return the pieces that each sample brings in from home besides what it is fed."""
        if phase.own is not None and "(" in phase.own:
            return self._lists(phase.own)
        if phase.own is not None:
            lengths = self._numbers(phase.own)
        else:
            lengths = items.values.copy()
            for feeder in feeders:
                fed = np.zeros(self.num_samples, dtype=np.int64)
                np.add.at(fed, feeder.sample_of_item, feeder.outputs)
                lengths -= np.minimum(lengths, fed)
        there = lengths > 0
        offsets = np.zeros(self.num_samples + 1, dtype=np.int64)
        np.cumsum(there, out=offsets[1:])
        return Ragged(lengths[there], offsets)
