"""What all ranks' mini-batches are like, all but their payload: read, said to all, checked and put together."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from balancer.executor.arguments import ONLY_LENGTH
from balancer.executor.fields import Column, Field, Kind, Room, read
from balancer.executor.ranks import ExecutorError, check_alike
from balancer.problem.phases import SINGLE_PHASE, columns_of_none
from balancer.problem.placement import Placement
from balancer.problem.ragged import Ragged
from balancer.problem.setup import Setup
from balancer.step_planner import Step, make_step
from solvers.arguments import as_int64
from solvers.errors import Named, UsageError, Wording

__all__ = ["SINGLE_FIELD", "Gathered", "Message", "put_together", "read_batch", "read_fields"]

SINGLE_FIELD = ""
"""What the one field is called of a mini-batch that came without names."""


@dataclass(frozen=True, slots=True)
class Message:
    """What a rank says of its mini-batch."""

    status: str = "ready"  # or "ended", "left": why there is no mini-batch
    error: str | None = None
    count: int = 0  # samples
    fields: Mapping[str, tuple[Kind, Column]] = field(default_factory=dict)  # kind, and elements of each row
    columns: Mapping[str, Column] = field(default_factory=dict)  # further lengths, given by callers
    costs: Mapping[str, Any] = field(default_factory=dict)  # measured times, and costs corrected by them


def read_batch(
    samples: Any, columns: Mapping[str, ArrayLike | Ragged], asked: set[str], room: Room
) -> tuple[dict[str, Field], Message]:
    """Read what a caller hands in to dispatch; `asked` are the columns that lengths are read from."""
    held = read_fields(samples, room)
    # A field of whole numbers is the lengths themselves, not rows of one element.
    given = named_fields(samples)
    numbers = {name: found for name in asked & set(held) if (found := _numbers(held[name], given[name])) is not None}
    read = {name: _column(name, column) for name, column in {**numbers, **columns}.items()}
    sizes = {name: len(one.rows) for name, one in held.items()}
    sizes |= {f"column {name!r}": len(column) for name, column in read.items()}
    if len(set(sizes.values())) > 1:
        raise ValueError(f"fields must have the same number of samples, got {sizes}")
    kinds = {name: (one.kind, one.rows) for name, one in held.items()}
    return held, Message(count=next(iter(sizes.values()), 0), fields=kinds, columns=read)


def named_fields(samples: Any) -> dict[str, Any]:
    """Return fields by name; one without a name under :data:`SINGLE_FIELD`."""
    return dict(samples) if isinstance(samples, Mapping) else {SINGLE_FIELD: samples}


def read_fields(samples: Any, room: Room, what: str = "samples") -> dict[str, Field]:
    """Read fields by name, or one field without; they stay until the next are read into the same memory."""
    named = named_fields(samples)
    if not all(isinstance(name, str) for name in named):
        raise TypeError(f"fields must have names that are str, got {list(named)}")
    return {name: read(name or what, data, room) for name, data in named.items()}


def _numbers(read: Field, data: Any) -> Any:
    """Return the numbers of a field that has a whole one for each sample, or a list of them, else None."""
    if read.kind.form == "dense" and not read.kind.trailing and not read.kind.dtype.is_floating_point:
        return read.flat.tolist()
    return list(data) if read.kind.form == "object" else None


def _column(name: str, given: Any) -> Column:
    """Read what a caller gives: a number a sample, or a list a sample."""
    if isinstance(given, Ragged):
        return given
    if isinstance(given, list | tuple) and len(given) and isinstance(given[0], list | tuple | np.ndarray):
        return Ragged.of(given)
    return as_int64(f"column {name!r}", given)


@dataclass(frozen=True, slots=True, eq=False)
class Gathered:
    """What there is on all ranks; samples are numbered rank after rank."""

    home: Placement  # of all samples
    kinds: Mapping[str, Kind]  # of the fields, as the ranks agree on them
    rows: Mapping[str, Column]  # of each field
    columns: Mapping[str, Column]  # further lengths, given by callers
    costs: Sequence[Mapping[str, Any]] = ()  # of each rank

    def rows_at(self, name: str, rank: int) -> Column:
        """Return the rows of a field that one rank handed in."""
        return self.rows[name][slice(*self.home.offsets[rank : rank + 2].tolist())]

    def where(self, sample: int) -> str:
        """Return what the rank that handed in a sample knows it as."""
        return f"entry {self.home.position_of_sample[sample]} of rank {self.home.rank_of_sample[sample]}"

    def is_the_same_on_all_ranks(self) -> bool:
        """Whether all ranks have the same lengths in the same order, which rise and fall: where loaders sort, that of
        ranks which share a sorted list out is chance.
        """  # noqa: D205 (one sentence)
        columns = [*(rows for name, rows in self.rows.items() if self.kinds[name].by_token), *self.columns.values()]
        cuts = list(pairwise(self.home.offsets.tolist()))
        of_ranks = [[_numbers_in(column[start:stop]) for column in columns] for start, stop in cuts]
        steps = [np.sign(np.diff(numbers)) for numbers in of_ranks[0]]
        return any(1 in each and -1 in each for each in steps) and all(
            np.array_equal(mine, first)
            for of_rank in of_ranks
            for mine, first in zip(of_rank, of_ranks[0], strict=True)
        )

    def digests(self) -> dict[str, str]:
        """Return by name all that a plan and its exchange depend on, by digests."""
        found = {"numbers of samples": _sha(self.home.offsets)}
        found |= {f"field {name!r}": f"{self.kinds[name]} {_sha(rows)}" for name, rows in self.rows.items()}
        return found | {f"column {name!r}": _sha(column) for name, column in self.columns.items()}

    def step(self, setup: Setup) -> Step:
        """Return what there is to plan."""
        self._check_lengths(setup)
        columns: dict[str, ArrayLike | Ragged] = {**self.rows, **self.columns}
        if not len(self.home.samples):
            columns = columns_of_none(setup.phases) or {"": []}
        elif setup.phases[0].name == SINGLE_PHASE:  # whole samples, for which lists count with all that is in them
            columns = {name: col.sums() if isinstance(col, Ragged) else col for name, col in columns.items()}
            if setup.phases[0].length == ONLY_LENGTH:
                columns[ONLY_LENGTH] = columns[self._only_ragged_field()]
        return make_step(setup, columns, self.home, self.columns if len(self.home.samples) else columns)

    def _check_lengths(self, setup: Setup) -> None:
        """Refuse a negative number in any column but those of keys and ranks, whether or not a phase uses it."""
        others = {name for phase in setup.phases for name in phase.columns_asked}
        for name, column in self.columns.items():
            numbers = column.values if isinstance(column, Ragged) else column
            if name not in others and numbers.size and numbers.min() < 0:
                at = int(np.argmax(numbers < 0))
                sample = int(column.row_of_value[at]) if isinstance(column, Ragged) else at
                raise UsageError(
                    "{column} of {sample} must be >= 0, got {value}",
                    column=f"column {name!r}", sample=Named("sample", sample), value=numbers[at],
                )  # fmt: skip

    def _only_ragged_field(self) -> str:
        ragged = [name for name, kind in self.kinds.items() if kind.by_token]
        if len(ragged) != 1:
            raise ValueError(
                f"length must name the columns whose sum is a sample's length: there are {len(ragged)} ragged "
                f"fields ({', '.join(ragged) or 'none'})"
            )
        return ragged[0]

    def wording(self) -> Wording:
        """Return how errors name a sample here, and say what the rank that handed it in knows it as."""
        return Wording({"row": "sample"}, notes={"sample": self.where})


def put_together(said: Sequence[Message]) -> Gathered:
    """Put together what all ranks said; ExecutorError if their fields do not fit together."""
    # A rank without samples has no fields to compare; where no rank has any, the first one's message stands for all.
    holders = {rank: message for rank, message in enumerate(said) if message.count} or {0: said[0]}
    kinds = _agreed(holders)
    counts = [message.count for message in said]
    first, of_all = next(iter(holders.values())), list(holders.values())
    return Gathered(
        Placement.by_sample_order(np.repeat(np.arange(len(counts), dtype=np.int32), counts), len(counts)),
        {name: kinds[name] for name in first.fields},
        {name: _joined([message.fields[name][1] for message in of_all]) for name in first.fields},
        {name: _joined([message.columns[name] for message in of_all]) for name in first.columns},
        [message.costs for message in said],
    )


def _agreed(holders: Mapping[int, Message]) -> dict[str, Kind]:
    """Return what the ranks that have a row of a field say about it; ExecutorError if they do not say the same."""
    kinds: dict[str, Kind] = {}
    for message in holders.values():
        for name, (kind, _) in message.fields.items():
            if name not in kinds or not kinds[name].form:  # who has no row of a field takes over what the others have
                kinds[name] = kind
    try:
        check_alike({rank: _shown(message, kinds) for rank, message in holders.items()})
    except ExecutorError as error:
        if not any(_differ_in_width(name, holders) for name in kinds):
            raise
        raise ExecutorError(
            f"{error}. Padding makes rows of unlike widths: hand in unpadded samples, as a list of tensors, and pad "
            "after the exchange, with PrefetchDispatcher(..., collate=...)", error.ranks,
        ) from None  # fmt: skip
    return kinds


def _differ_in_width(name: str, holders: Mapping[int, Message]) -> bool:
    """Whether ranks' rows of a tensor are alike but for the width of what is padded."""
    kinds = {message.fields[name][0] for message in holders.values() if name in message.fields}
    same = {kind._replace(trailing=kind.trailing[1:]) for kind in kinds}
    return len(kinds) > len(same) == 1 and next(iter(same)).form == "dense"


def _shown(message: Message, kinds: Mapping[str, Kind]) -> dict[str, str]:
    """Return by name what a rank has of each sample."""
    found = {
        f"field {name!r}": f"{'several items' if isinstance(rows, Ragged) else 'one entry'} a sample, "
                           f"{kind if kind.form else kinds[name]}"
        for name, (kind, rows) in message.fields.items()
    }  # fmt: skip
    return found | {
        f"column {name!r}": "lists" if isinstance(column, Ragged) else "numbers"
        for name, column in message.columns.items()
    }


def _numbers_in(column: Any) -> Any:
    return column.values if isinstance(column, Ragged) else column


def _joined(columns: Sequence[Any]) -> Column:
    return Ragged.concatenate(columns) if isinstance(columns[0], Ragged) else np.concatenate(columns)


def _sha(column: Column) -> str:
    digest = hashlib.sha256()
    for array in (column.values, column.offsets) if isinstance(column, Ragged) else (column,):
        digest.update(np.ascontiguousarray(array, dtype="<i8").data)
    return digest.hexdigest()
