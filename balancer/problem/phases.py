"""Phases: the modules of a multimodal model, and which items of a batch each of them computes.

An encoder's items are parts of samples: the images of a page, the clips of a video. The last phase takes what the
encoders put out, and computes whole samples: one item a sample.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Annotated, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from balancer.cost import CostModel, parse_cost
from balancer.described import (
    A_SIZE,
    MOST_COUNT,
    Amount,
    Amounts,
    Count,
    Flag,
    Kind,
    RuleError,
    Size,
    Sizes,
    Text,
    described,
    key,
    settle,
    whole,
)
from balancer.errors import on_a_line
from balancer.problem.constraints import COLUMNS, MAX_TOKENS, NONE, Constraints
from balancer.problem.constraints import CONSTRAINTS as OF_PLANS
from balancer.problem.items import parse_items
from balancer.problem.limits import AnyLimit, Everywhere, HeldLimits, Kinds, Limit, held_limits
from balancer.problem.ragged import Ragged, offsets_of
from solvers.arguments import as_int64
from solvers.errors import ArgumentError, Named, UsageError, WordedError
from solvers.types import Record

SINGLE_PHASE = "all"
"""The name of the only phase of a step whose phases nobody named."""

Columns = Mapping[str, ArrayLike | Ragged]


def _name(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError
    if not value.strip() or set(value) & set(":=\n"):
        raise ValueError
    return str(value)


def _amounts_by_columns(value: Any) -> dict[str, int]:
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        raise TypeError
    for columns, most in value.items():
        if not columns.strip() or isinstance(most, bool) or not isinstance(most, int | np.integer) or most < 1:
            raise RuleError(f"map columns to whole numbers >= 1; {columns!r} has {most!r:.60}")
    return {columns: A_SIZE.take(most) for columns, most in value.items()}


Name = Annotated[str, Kind("text, not empty, without ':' and '='", {"type": "string", "pattern": "^[^:=]+$"}, _name)]
Cost = Annotated[CostModel, Kind("", {"type": "string"}, parse_cost)]
SizesByColumns = Annotated[
    Mapping[str, int],
    Kind("a table of columns, such as patches or text+image, each with the most of a rank",
         {"type": "object", "additionalProperties": A_SIZE.schema}, _amounts_by_columns),
]  # fmt: skip
SharingRanks = Annotated[int, whole(2, MOST_COUNT)]


@described
class Phase:
    """A module, its items, their costs, their inputs and their outputs, and what every rank's share of it keeps to.

    A key may be given by its name; ``Phase("vision", "image_patches")`` gives name and length.

    Attributes
    ----------
    name : str
    length : str
        The items' lengths. Columns with one number for each sample, ``"image_patches"`` or ``"text+image"``: an encoder
        has one item, or none if it is 0. A column with a list of numbers for each sample, ``"clips"``: each is an item.
        Or a function of such columns, ``"qwen2vl_patches(widths,heights)"``.
    cost : str or CostModel
        As :func:`balancer.balance` takes it. Phases that are balanced jointly need costs in one unit.
    outputs : str, optional
        The elements that each item puts out, in the same form; by default its length.
    own : str, optional
        For the last phase: the elements that each sample adds from home, such as ``"text_tokens"``. By default its
        length minus what it is fed, at least 0. A column of lists says it of text in several segments.
    bytes_in, bytes_out : int
        Bytes of an element on its way in and out.
    equal_counts : bool
        Every rank gets the same number of items, within one.
    max_tokens_per_rank : int or None
        No rank gets a larger sum of lengths.
    every_rank_nonempty : bool
        Every rank gets an item in a step, if there are enough. In a micro-batch ranks may have none all the same:
        ``plan[phase].empty_ranks(slot)`` names those that need a dummy.
    min_samples_per_rank, max_samples_per_rank : int, int or None
        The least and the most items of a rank.
    keep_together : str, optional
        A column of integers or text: items of samples with equal keys run on one rank.
    prefix, prefix_length : str, optional
        For the last phase: a column of keys, and one of lengths. Samples of equal keys begin with one prompt of that
        length, which a rank computes once.
    caps : mapping of str to int
        Further quantities, in the form of `outputs`, each with its cap on a rank's sum.
    allowed_ranks : str, optional
        A column with the rank, or a list of the ranks, on which a sample's items may run.
    initial_loads, rank_speeds : tuple of int or None
        One number for each rank, as :func:`balancer.balance` takes them.
    sequence_parallel : int, optional
        For an encoder: items go to aligned groups of this many ranks. In each group some or all ranks share the long
        items, so that all ranks end together. The price of sharing is in the cost, as for
        :class:`balancer.SequenceGroups`; attention goes all-to-all.
    share_multiple_of : int
        With `sequence_parallel`, a rank's share of an item is padded to a multiple of this: the number of elements that
        make one output, so that each output is on one rank.
    model, pieces, frozen
        Not for plans: what the command line's simulate and configure need to know of the module.
    """

    name: Name = key("The module; the only phase needs none. The last is the language model.", default=SINGLE_PHASE)
    length: Text = key("Its length: columns, text+image; or, of an encoder, one of lists of items.", default="")
    cost: Cost = key("linear, quadratic:a=24576,b=1, padded, flops:qwen2-7b, ...", default=parse_cost("linear"))
    outputs: Text | None = key("What each item puts out; by default its length.", default=None)
    own: Text | None = key("Of the last phase: what each sample adds besides what encoders put out.", default=None)
    bytes_in: Size = key("Bytes of an element as input.", default=1)
    bytes_out: Size = key("Bytes of an element as output.", default=1)
    equal_counts: Flag = key("Every rank gets equally many samples, within one.", default=False)
    max_tokens_per_rank: Size | None = key("Cap on a rank's sum of lengths.", default=None)
    min_samples_per_rank: Amount = key("Samples a rank gets at least.", default=0)
    max_samples_per_rank: Count | None = key("Samples a rank gets at most.", default=None)
    caps: SizesByColumns = key(
        "Caps on a rank's sums of other columns: {images = 90}.", default_factory=dict, hash=False
    )
    keep_together: Text | None = key("Rows with equal values in this column run on one rank.", default=None)
    prefix: Text | None = key(
        "Rows with equal values in this column share a prompt, computed once a rank.", default=None
    )
    prefix_length: Text | None = key("The column with the length of a row's prompt.", default=None)
    allowed_ranks: Text | None = key("The column that lists the ranks of a row.", default=None)
    rank_speeds: Sizes | None = key("Work units that each rank does in a unit of time.", default=None)
    initial_loads: Amounts | None = key("Work units that each rank has already.", default=None)
    sequence_parallel: SharingRanks | None = key("Ranks that share an encoder's long items.", default=None)
    share_multiple_of: Count = key("With sequence_parallel, what shares are padded to.", default=1)
    every_rank_nonempty: Flag = key("Every rank gets an item, if possible.", default=False)
    model: Text | None = key("Its model, for simulate and configure: qwen2-7b.", default=None)
    pieces: Count | None = key(
        "Attention stays within pieces of so many elements, such as tiles; for simulate and configure.", default=None
    )
    frozen: Flag = key("It is not trained; for pipelines and configure.", default=False)
    limits: Sequence[AnyLimit] = field(default=(), kw_only=True, repr=False)  # the cut's; of the last phase

    def __post_init__(self) -> None:
        with of_phase(self.name if isinstance(self.name, str) else SINGLE_PHASE):
            settle(self)
            if self.sequence_parallel is None and self.share_multiple_of > 1:
                raise UsageError("{share_multiple_of} needs {sequence_parallel}: no item is shared without")
            self._check_prompts()

    def _check_prompts(self) -> None:
        own = self.cost.needs_prefixes
        if (self.prefix is None and not own) != (self.prefix_length is None):
            if self.prefix_length is not None:
                raise UsageError("{prefix} and {prefix_length} need each other: give {prefix} as well")
            whose = "cost 'prefix', without a number," if own else "{prefix}"
            raise UsageError(f"{whose} needs {{prefix_length}}, a column with the length of each sample's prompt")

    @property
    def constraints(self) -> tuple[str, ...]:
        """Names of the constraints that its plan must keep to."""
        return tuple(name for name in CONSTRAINTS if getattr(self, name))

    @property
    def is_free(self) -> bool:
        """Whether nothing is asked of its plan, not even in vain; `every_rank_nonempty` does not count."""
        return all(getattr(self, name) in (declared.unset, None, {}) for name, declared in OF_PLANS.items())

    @property
    def columns_asked(self) -> tuple[str, ...]:
        """The columns that its constraints name."""
        return (*(column for name in COLUMNS if (column := getattr(self, name))), *self.kinds_asked)

    @property
    def kinds_asked(self) -> tuple[str, ...]:
        """The columns by which samples are told apart that share no micro-batch."""
        named = (limit.values for limit in self.limits if isinstance(limit, Kinds))
        return tuple(column for column in named if isinstance(column, str))

    @property
    def numbers(self) -> tuple[str, ...]:
        """Every expression here that names columns: of numbers, which are added up, or one of lists."""
        return tuple(text for text in self._expressions() if "(" not in text)

    @property
    def lists(self) -> tuple[str, ...]:
        """Every column of lists that a function here reads."""
        return tuple(name for text in self._expressions() if "(" in text for name in parse_items(text).columns)

    def _expressions(self) -> list[str]:
        summed = [limit.amounts for limit in self.limits if isinstance(limit, Limit)]
        counted = [limit.values for limit in self.limits if isinstance(limit, Everywhere)]
        given = self.length, self.outputs, self.own, self.prefix_length, *self.caps, *summed, *counted
        return [text for text in given if isinstance(text, str)]


def texts_of_items(phases: Sequence[Phase]) -> frozenset[str]:
    """Return what may name a column with a list of numbers for each sample: in all else, samples have one each."""
    found = [text for phase in phases[:-1] for text in (phase.length, phase.outputs, *phase.caps)]
    return frozenset(text for text in (*found, phases[-1].own) if text is not None and "(" not in text)


CONSTRAINTS = ("equal_counts", MAX_TOKENS, "every_rank_nonempty", *tuple(OF_PLANS)[2:], "prefix_length")
"""The fields of a phase that say what its plan must keep to; one of them says so where there are items enough."""


@contextmanager
def of_phase(name: str) -> Iterator[None]:
    """Let errors say which phase they are about, unless it is the only one."""
    try:
        yield
    except WordedError as error:
        raise in_phase(name, error) from None


def in_phase(name: str, error: WordedError) -> WordedError:
    """Return an error with the phase that it is about, unless that is the only one."""
    return error if name == SINGLE_PHASE else error.within(f"phase {name!r}")


@dataclass(frozen=True, slots=True, eq=False)
class PhaseItems(Record):
    """A phase's items in one batch; arrays are read-only."""

    phase: Phase
    cost: CostModel
    is_last: bool  # whether it takes the outputs of all others
    # int64[k]: the sample of each item, ascending; an item is an index into these arrays
    sample_of_item: NDArray[np.int64]
    # int64[k]: elements of each item, and elements that it puts out
    lengths: NDArray[np.int64]
    outputs: NDArray[np.int64]
    own: Ragged  # of the last phase: lengths of the pieces that each sample brings in from home; else no pieces
    keep_together: NDArray[Any] | None = None  # array[k]: each item's key
    cap_amounts: tuple[NDArray[np.int64], ...] = ()  # int64[k]: what each item has of the phase's capped quantities
    allowed_ranks: Ragged | None = None  # the ranks on which each item may run
    # array[k], int64[k]: the key of each item's prompt, None where none are shared, and the length of each prefix
    prefix: tuple[NDArray[Any] | None, NDArray[np.int64]] | None = None
    limits: HeldLimits | None = None  # on the micro-batches of the last phase

    def constraints(self, num_ranks: int, least: int = 0) -> Constraints:
        """Return what the plan of these items must keep to; every rank gets at least `least` of them."""
        phase, mask = self.phase, None
        # The usual case, asked at every step: no constraint is read or checked.
        if not least and phase.is_free:
            return NONE
        if self.allowed_ranks is not None:
            mask = np.zeros((len(self.lengths), num_ranks), dtype=np.bool_)
            mask[self.allowed_ranks.row_of_value, self.allowed_ranks.values] = True
        amounts = zip(phase.caps.items(), self.cap_amounts, strict=True)
        of_items = {
            "min_samples_per_rank": max(least, phase.min_samples_per_rank),
            "keep_together": self.keep_together,
            "prefix": None if self.prefix is None or self.prefix[0] is None else self.prefix,
            "caps": {text: (amount, limit) for (text, limit), amount in amounts},
            "allowed_ranks": mask,
        }
        asked = {name: getattr(phase, name) for name in OF_PLANS if name not in of_items} | of_items
        return Constraints.from_given(len(self.lengths), num_ranks, **asked)

    def between(self, start: int, stop: int) -> PhaseItems:
        """Return the items of samples ``start..stop - 1``, which are numbered anew; the arrays are shared."""
        if stop - start == len(self.own):
            return self
        if self.is_last:
            first, last, sample_of_item = start, stop, one_each(stop - start)[:-1]
        else:
            first, last = np.searchsorted(self.sample_of_item, (start, stop)).tolist()
            sample_of_item = self.sample_of_item[first:last] - start
        lengths, allowed = self.lengths[first:last], self.allowed_ranks
        return PhaseItems(
            self.phase, self.cost, self.is_last, sample_of_item, lengths,
            lengths if self.outputs is self.lengths else self.outputs[first:last],
            self.own[start:stop],
            None if self.keep_together is None else self.keep_together[first:last],
            tuple(amounts[first:last] for amounts in self.cap_amounts),
            None if allowed is None else allowed[first:last],
            _taken(self.prefix, slice(first, last)),
            None if self.limits is None else self.limits.of_samples(slice(first, last)),
        )  # fmt: skip

    @property
    def own_prefixes(self) -> NDArray[np.int64] | None:
        """The prefix of each item where the cost's mask has one: int64[k]."""
        return self.prefix[1] if self.prefix is not None and self.cost.needs_prefixes else None

    @property
    def item_in_sample(self) -> NDArray[np.int64]:
        """Which item of its sample each is, from 0: int64[k]."""
        index = np.arange(len(self.sample_of_item))
        first = np.ones(len(index), dtype=bool)
        first[1:] = self.sample_of_item[1:] != self.sample_of_item[:-1]
        return index - np.maximum.accumulate(np.where(first, index, 0))


def _taken(
    prefix: tuple[NDArray[Any] | None, NDArray[np.int64]] | None, items: NDArray[np.int64] | slice
) -> tuple[NDArray[Any] | None, NDArray[np.int64]] | None:
    """Return the prefixes of some items."""
    return None if prefix is None else (None if prefix[0] is None else prefix[0][items], prefix[1][items])


def resolve_phases(
    columns: Columns, phases: Sequence[Phase], num_ranks: int, keys: Columns | None = None
) -> tuple[PhaseItems, ...]:
    """Find every phase's items in the columns of a batch, and what constraints ask of each.

    `columns` have one number, or one list, for each of n samples; ``keep_together`` and ``allowed_ranks`` find theirs
    in `keys`, by default among the others. Phases are in the order in which they compute; all others feed the last.
    """
    _check_names(phases)
    batch = _Batch(columns)
    asked = batch if keys is None else _Batch(keys, batch.num_samples)
    found: dict[str, PhaseItems] = {}
    for phase in phases:
        is_last = phase is phases[-1]
        items = batch.items(phase.length, phase, is_last)
        outputs = items if phase.outputs is None else batch.items(phase.outputs, phase, is_last, like=items)
        if is_last:
            sample_of_item = one_each(batch.num_samples)[:-1]
            own = batch.own(phase, items, found.values())
        else:
            sample_of_item = items.row_of_value
            own = Ragged(np.empty(0, dtype=np.int64), np.zeros(batch.num_samples + 1, dtype=np.int64))
        check_volumes(phase, "bytes_in", phase.bytes_in, items.values, own.values)
        if outputs is not items or phase.bytes_out > phase.bytes_in:
            check_volumes(phase, "bytes_out", phase.bytes_out, outputs.values)
        found[phase.name] = PhaseItems(
            phase, phase.cost, is_last, sample_of_item, items.values, outputs.values,
            own, asked.keys(phase, "keep_together", sample_of_item),
            tuple(batch.items(text, phase, is_last, like=items, of="caps").values for text in phase.caps),
            asked.allowed(phase, sample_of_item, num_ranks), batch.prompts(phase, asked, sample_of_item),
            batch.limits(phase, asked, num_ranks),
        )  # fmt: skip
    return tuple(found.values())


def check_volumes(phase: Phase, name: str, size: int, *lengths: NDArray[np.int64]) -> None:
    """Refuse bytes whose sums would wrap around; in floats, which do not, and with room for their rounding."""
    # Outputs are often the very array of lengths: its largest is looked for once.
    distinct = {id(array): array for array in lengths}.values()
    if len(lengths) * max(int(array.max(initial=0)) * len(array) for array in distinct) * size < 2**62:
        return
    if (
        phase.name == SINGLE_PHASE and size == 1
    ):  # nobody spoke of bytes: what it costs is refused, and names the sample
        return
    # The product above is a quick bound, which long logs may exceed; only then are sums formed.
    total = sum(float(array.sum(dtype=np.float64)) for array in lengths) * size
    if total > 2.0**62:
        raise ValueError(f"phase {phase.name!r}: {name} = {size} makes about {total:.3g} bytes in all; must be < 2**62")


class _Batch:
    """The columns of a batch, checked when they are used."""

    def __init__(self, columns: Columns, num_samples: int | None = None) -> None:
        if not isinstance(columns, Mapping) or (num_samples is None and not columns):
            raise TypeError(f"columns must be a mapping of at least one name to values, got {columns!r}")
        for name, column in columns.items():
            if not hasattr(column, "__len__") or isinstance(column, str):
                raise TypeError(f"column {name!r} must have a value for each sample, got {column!r:.80}")
        self._columns = columns
        first = next(iter(columns.values())) if num_samples is None else range(num_samples)
        self.num_samples = len(first)  # type: ignore[arg-type]

    def _column(self, name: str) -> ArrayLike | Ragged:
        if name not in self._columns:
            raise ValueError(
                f"no column {name!r}; columns there are: {', '.join(map(on_a_line, self._columns)) or 'none'}"
            )
        column = self._columns[name]
        if len(column) != self.num_samples:  # type: ignore[arg-type]
            raise ValueError(
                f"columns must be of one length: {next(iter(self._columns))!r} has {self.num_samples} samples, "
                f"{name!r} {len(column)}"  # type: ignore[arg-type]
            )
        return column

    def _numbers(self, expression: str) -> NDArray[np.int64]:
        """Return the sum of columns, one where there is a column of that whole name."""
        whole = expression in self._columns
        first, *others = [expression] if whole else [part.strip() for part in expression.split("+")]
        total = self._one(first)
        for name in others:
            total = total + self._one(name)
            if total.size and total.min() < 0:
                sample = Named("sample", int(np.argmax(total < 0)))
                raise UsageError("{name} of {sample} must fit int64", name=expression, sample=sample)
        return total.copy() if total.flags.writeable else total  # the caller may go on to change theirs

    def _one(self, name: str) -> NDArray[np.int64]:
        column: Any = self._column(name)
        if _holds_lists(column):
            raise ValueError(f"column {name!r} holds a list for each sample, where one number is asked for")
        array = as_int64(name, column)
        if array.size and array.min() < 0:
            sample = int(np.argmax(array < 0))
            raise UsageError(
                "{name} of {sample} must be >= 0, got {value}",
                name=name, sample=Named("sample", sample), value=array[sample],
            )  # fmt: skip
        return array

    def _lists(self, expression: str) -> Ragged | None:
        """Return what a function of columns of lists gives, or such a column itself; None of columns of numbers."""
        if "(" not in expression:
            name = expression if expression in self._columns else expression.strip()
            if not _holds_lists(self._columns.get(name)):
                return None
            found = _ragged(self._column(name))
        else:
            parsed = parse_items(expression)
            found = parsed.evaluate({name: _ragged(self._column(name)) for name in parsed.columns})
        if found.values.size and found.values.min() < 0:
            raise ValueError(f"{expression} must be >= 0, got {found.values.min()}")
        return found

    def items(
        self, expression: str, phase: Phase, whole: bool, like: Ragged | None = None, of: str = "outputs"
    ) -> Ragged:
        """Return the lengths of a phase's items, or, as many as those `like` them, their outputs or capped amounts."""
        listed = self._lists(expression)
        if listed is not None:
            if whole:
                raise ValueError(
                    f"phase {phase.name!r} computes whole samples: {expression!r} must be columns of numbers"
                )
            found = listed
        else:
            lengths = self._numbers(expression)
            if whole:
                return Ragged(lengths, one_each(len(lengths)))
            # Whole numbers as columns: one item a sample, and none of length 0, unless its like says that there is
            # one.
            there = lengths > 0
            if like is not None and bool((like.counts <= 1).all()):
                there = like.counts == 1
            found = Ragged(lengths[there], offsets_of(there))
        if like is not None and not np.array_equal(found.counts, like.counts):
            sample = int(np.argmax(found.counts != like.counts))
            per_item = "name a column of lists with a number for each item"
            raise UsageError(
                f"{{sample}} has {{count}} items but {{{of}}} = {{text!r}} gives {{found}}",
                () if listed is not None else per_item, sample=Named("sample", sample), count=like.counts[sample],
                text=expression, found=found.counts[sample],
            ).within(f"phase {phase.name!r}")  # fmt: skip
        return found

    def keys(self, phase: Phase, name: str, sample_of_item: NDArray[np.int64]) -> NDArray[Any] | None:
        """Return the key of each item by a constraint that names a column of keys."""
        if (text := getattr(phase, name)) is None:
            return None
        column = self._column(text)
        if isinstance(column, Ragged) or np.ndim(column) != 1:
            raise ArgumentError(name, "name a column of one key a sample", f"{text!r}, of lists")
        return np.asarray(column)[sample_of_item]

    def limits(self, phase: Phase, asked: _Batch, num_ranks: int) -> HeldLimits | None:
        """Return what the micro-batches of samples keep to."""

        def column(name: str, is_key: bool) -> Any:
            if is_key:
                return asked._column(name)
            given = self._columns.get(name)
            truths = getattr(given, "dtype", None) == np.bool_
            return np.asarray(given).astype(np.int64) if truths else self._numbers(name)

        return held_limits(phase.limits, self.num_samples, num_ranks, column)

    def prompts(
        self, phase: Phase, asked: _Batch, sample_of_item: NDArray[np.int64]
    ) -> tuple[NDArray[Any] | None, NDArray[np.int64]] | None:
        """Return the key of each item's prompt, where prompts are shared, and the length of its prefix."""
        if phase.prefix_length is None:
            return None
        return asked.keys(phase, "prefix", sample_of_item), self._numbers(phase.prefix_length)[sample_of_item]

    def allowed(self, phase: Phase, sample_of_item: NDArray[np.int64], num_ranks: int) -> Ragged | None:
        """Return the ranks on which each item may run: those that are listed for its sample, or the one named."""
        if phase.allowed_ranks is None:
            return None
        column = self._column(phase.allowed_ranks)
        if not isinstance(column, Ragged):
            listed = len(column) and isinstance(column[0], list | tuple | np.ndarray)  # type: ignore[arg-type, index]
            if listed:
                column = Ragged.of(column)  # type: ignore[arg-type]
            else:
                ranks = as_int64(phase.allowed_ranks, column)
                column = Ragged(ranks.copy(), np.arange(len(ranks) + 1))
        if (outside := (column.values < 0) | (column.values >= num_ranks)).any():
            at = int(np.argmax(outside))
            raise UsageError(
                "{name} of {sample} must be ranks within 0..{last}, got {rank}", name=phase.allowed_ranks,
                sample=Named("sample", int(column.row_of_value[at])), last=num_ranks - 1, rank=column.values[at],
            )  # fmt: skip
        return column.take(sample_of_item)

    def own(self, phase: Phase, items: Ragged, feeders: Iterable[PhaseItems]) -> Ragged:
        """Return the pieces that each sample brings in from home besides what it is fed."""
        if phase.own is None:
            return default_own(items.values, feeders)
        listed = self._lists(phase.own)
        return _pieces(self._numbers(phase.own)) if listed is None else listed


def _holds_lists(column: Any) -> bool:
    """Whether a column has a list for each sample, as far as the first one tells."""
    if isinstance(column, Ragged):
        return True
    listed = isinstance(column, list | tuple) or (isinstance(column, np.ndarray) and column.dtype == np.object_)
    return listed and len(column) > 0 and isinstance(column[0], list | tuple | np.ndarray)


def _ragged(column: Any) -> Ragged:
    return column if isinstance(column, Ragged) else Ragged.of(column)


def default_own(lengths: NDArray[np.int64], feeders: Iterable[PhaseItems]) -> Ragged:
    """Return the default piece that each whole sample adds: its length less what it is fed."""
    rest = lengths
    for feeder in feeders:
        fed = np.zeros(len(lengths), dtype=np.int64)
        np.add.at(fed, feeder.sample_of_item, feeder.outputs)
        # Never below 0: a sample may be shorter than what it is fed, where outputs are not part of its length.
        rest = rest - np.minimum(rest, fed)
    return _pieces(rest)


def _pieces(lengths: NDArray[np.int64]) -> Ragged:
    """Return one piece a sample, and none of length 0."""
    if len(lengths) and np.count_nonzero(lengths) == len(lengths):
        return Ragged(lengths, one_each(len(lengths)))
    return Ragged(lengths[lengths > 0], offsets_of(lengths > 0))


@functools.lru_cache(maxsize=4)
def one_each(count: int) -> NDArray[np.int64]:
    """Return the offsets of rows of one value each: int64[count + 1], read-only; most steps have the same."""
    offsets: NDArray[np.int64] = np.arange(count + 1)
    offsets.flags.writeable = False
    return offsets


def _check_names(phases: Sequence[Phase]) -> None:
    names = [phase.name for phase in phases]
    if not phases:
        raise ValueError("there must be at least one phase")
    if len(set(names)) < len(names):
        raise ValueError(f"phases must have different names, got {', '.join(names)}")


def columns_of_none(phases: Sequence[Phase]) -> dict[str, ArrayLike | Ragged]:
    """Return the columns that phases name, with no samples: errors about them would come in every step."""
    names = dict.fromkeys(part.strip() for phase in phases for text in phase.numbers for part in text.split("+"))
    keys = [name for phase in phases for name in phase.columns_asked]
    columns: dict[str, ArrayLike | Ragged] = {name: np.empty(0, dtype=np.int64) for name in (*names, *keys) if name}
    return columns | {name: Ragged.of([]) for phase in phases for name in phase.lists}
