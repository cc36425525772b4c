"""What all ranks tell each other before a step: their samples' fields and lengths, as one integer tensor."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import ArrayLike, NDArray

from balancer.executor.arguments import ONLY_LENGTH
from balancer.executor.errors import FieldMismatchError, PeerError, listed, outside_majority
from balancer.executor.fields import Field, Spec
from balancer.executor.peers import Peers
from balancer.planning.step import Step, make_step
from balancer.planning.told import words_of
from balancer.problem.phases import SINGLE_PHASE, columns_of_none
from balancer.problem.placement import Placement
from balancer.problem.ragged import Ragged, offsets_of
from balancer.problem.setup import Setup
from solvers.arguments import as_int64
from solvers.errors import WordedError, Wording

__all__ = ["Gathered", "MiniBatch", "Status", "gather"]


class Status(IntEnum):
    """How a rank is."""

    READY = 0
    ENDED = 1
    CLOSING = 2
    FAILED = 3


@dataclass(frozen=True, slots=True, eq=False)
class MiniBatch:
    """One rank's samples, read.

    Attributes
    ----------
    num_samples : int
    fields : dict of str to Field
    columns : dict of str to int64[n] or Ragged
        Lengths that the caller gives besides those of the fields.
    """

    num_samples: int
    fields: Mapping[str, Field]
    columns: Mapping[str, NDArray[np.int64] | Ragged]


@dataclass(frozen=True, slots=True, eq=False)
class Gathered:
    """All ranks' mini-batches but for their payload; samples are numbered rank after rank.

    Attributes
    ----------
    statuses : tuple of Status
    home : Placement
        Of all samples.
    specs : dict of str to Spec
        What the ranks agree on.
    lengths : dict of str to int64[k]
        Elements of every row of each field.
    counts : dict of str to int64[n] or None
        Rows of each sample, where that is not one.
    columns : dict of str to int64[n] or Ragged
    words : tuple of int64[]
        What the ranks said, for a digest.
    """

    statuses: tuple[Status, ...]
    home: Placement
    specs: Mapping[str, Spec]
    lengths: Mapping[str, NDArray[np.int64]]
    counts: Mapping[str, NDArray[np.int64] | None]
    columns: Mapping[str, NDArray[np.int64] | Ragged]
    words: tuple[NDArray[np.int64], ...]

    def all_columns(self) -> dict[str, ArrayLike | Ragged]:
        """Return what phases may name: the given columns, and every field for its lengths."""
        found: dict[str, ArrayLike | Ragged] = {}
        for name, lengths in self.lengths.items():
            counts = self.counts[name]
            found[name] = lengths if counts is None else Ragged(lengths, offsets_of(counts))
        return found | dict(self.columns)

    def where(self, sample: int) -> str:
        """Return what the rank that handed in a sample knows it as."""
        return f"entry {self.home.position_of_sample[sample]} of rank {self.home.rank_of_sample[sample]}"

    def step(self, setup: Setup) -> Step:
        """Return what there is to plan; errors that name a sample say on which rank it is."""
        columns = self.all_columns()
        if not len(self.home.samples):
            columns = columns_of_none(setup.phases) or {"": []}
        elif setup.phases[0].name == SINGLE_PHASE:  # whole samples, for which lists count with all that is in them
            columns = {
                name: column.sums() if isinstance(column, Ragged) else column for name, column in columns.items()
            }
            if setup.phases[0].items == ONLY_LENGTH:
                columns[ONLY_LENGTH] = columns[self._only_ragged_field()]
        return make_step(setup, columns, self.home, self.columns if len(self.home.samples) else columns)

    def _only_ragged_field(self) -> str:
        ragged = [name for name, spec in self.specs.items() if not spec.fixed and spec.form not in ("str", "bytes")]
        if len(ragged) != 1:
            raise ValueError(
                f"length must name the columns whose sum is a sample's length: there are {len(ragged)} ragged "
                f"fields ({', '.join(ragged) or 'none'})"
            )
        return ragged[0]

    @contextmanager
    def located(self) -> Iterator[None]:
        """Let errors say of each sample what the rank that handed it in knows it as."""
        try:
            yield
        except WordedError as error:
            told = Wording({"over_long='drop'": None, "row": "sample"}, notes={"sample": self.where})
            raise error.in_words(told) from None


def as_columns(columns: Mapping[str, ArrayLike | Ragged]) -> dict[str, NDArray[np.int64] | Ragged]:
    """Read the lengths that a caller gives: a number a sample, or a list a sample."""
    read: dict[str, NDArray[np.int64] | Ragged] = {}
    for name, column in columns.items():
        if isinstance(column, Ragged):
            read[name] = column
        elif isinstance(column, list | tuple) and len(column) and isinstance(column[0], list | tuple | np.ndarray):
            read[name] = Ragged.of(column)
        else:
            read[name] = as_int64(f"lengths[{name!r}]", column)
    return read


def gather(peers: Peers, batch: MiniBatch | None, status: Status = Status.READY, version: str = "") -> Gathered:
    """Tell the peers about this rank's mini-batch and return what all told.

    Parameters
    ----------
    peers : Peers
    batch : MiniBatch or None
        None where `status` says why there is none, and on replica peers, who are not asked.
    status : Status
    version : str
        Of the package.

    Raises
    ------
    PeerError
        If a rank failed; the ranks that did.
    FieldMismatchError
        If the fields do not fit together.
    """
    messages = peers.gather_ragged(_message(batch or MiniBatch(0, {}, {}), status, version))
    statuses = tuple(Status(int(words[0])) for words in messages)
    failed = [rank for rank, at in enumerate(statuses) if at is Status.FAILED]
    if failed and status is not Status.FAILED:
        raise PeerError(f"{listed(failed)} failed before the exchange, each with an error of its own", failed)
    return _joined([_Told.of(words) for words in messages], statuses, messages)


def _message(batch: MiniBatch, status: Status, version: str) -> NDArray[np.int64]:
    described = {
        "fields": [
            [
                name,
                field.spec.form,
                field.spec.dtype,
                field.spec.trailing,
                field.spec.device,
                field.outline.counts is not None,
            ]
            for name, field in sorted(batch.fields.items())
        ],
        "columns": [[name, isinstance(column, Ragged)] for name, column in sorted(batch.columns.items())],
        "version": version,
    }
    text = json.dumps(described, separators=(",", ":")).encode()
    parts = [np.asarray([status, batch.num_samples, len(text)]), words_of(text)]
    for _, field in sorted(batch.fields.items()):
        if field.outline.counts is not None:
            parts.append(field.outline.counts)
        if not field.spec.fixed:
            parts.append(field.outline.lengths)
    for _, column in sorted(batch.columns.items()):
        parts += [column.counts, column.values] if isinstance(column, Ragged) else [column]
    return np.concatenate(parts).astype(np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class _Told:
    """What one rank said."""

    num_samples: int
    version: str
    specs: dict[str, Spec]
    itemised: dict[str, bool]
    listed: dict[str, bool]
    data: NDArray[np.int64]

    @classmethod
    def of(cls, words: NDArray[np.int64]) -> "_Told":
        num_samples, size = int(words[1]), int(words[2])
        end = 3 + -(-size // 8)
        described = json.loads(words[3:end].astype("<i8").tobytes()[:size])
        fields = described["fields"]
        return cls(
            num_samples,
            described["version"],
            {name: Spec(form, dtype, tuple(trailing), device) for name, form, dtype, trailing, device, _ in fields},
            {field[0]: field[5] for field in fields},
            dict(described["columns"]),
            words[end:],
        )

    def kind(self) -> tuple[object, ...]:
        return tuple(self.specs), tuple(self.itemised.items()), tuple(self.listed.items())

    def arrays(self, specs: Mapping[str, Spec]) -> dict[str, NDArray[np.int64]]:
        """Cut the data into arrays: a field's lengths under its name, its counts under ``name#``."""
        found, at = {}, 0

        def take(name: str, count: int) -> NDArray[np.int64]:
            nonlocal at
            found[name] = self.data[at : at + count]
            at += count
            return found[name]

        for name, itemised in self.itemised.items():
            rows = int(take(f"{name}#", self.num_samples).sum()) if itemised else self.num_samples
            if self.specs[name].fixed:
                found[name] = np.ones(rows, dtype=np.int64)
            else:
                take(name, rows)
        for name, is_list in self.listed.items():
            count = int(take(f"{name}#", self.num_samples).sum()) if is_list else self.num_samples
            take(f"{name}=", count)
        return found


def _joined(told: list[_Told], statuses: tuple[Status, ...], words: list[NDArray[np.int64]]) -> Gathered:
    holders = [rank for rank, one in enumerate(told) if one.num_samples > 0]
    first = told[holders[0]] if holders else told[0]
    _check_kinds(told, holders)
    specs = {name: _agreed(name, told, holders) for name in first.specs}
    arrays = [told[rank].arrays(specs) for rank in holders]
    counts = np.asarray([one.num_samples for one in told], dtype=np.int64)
    home = Placement.by_sample_order(np.repeat(np.arange(len(told), dtype=np.int32), counts), len(told))

    def whole(key: str) -> NDArray[np.int64]:
        return np.concatenate([np.empty(0, dtype=np.int64), *(one[key] for one in arrays)])

    columns: dict[str, NDArray[np.int64] | Ragged] = {}
    for name, is_list in first.listed.items():
        columns[name] = Ragged(whole(f"{name}="), offsets_of(whole(f"{name}#"))) if is_list else whole(f"{name}=")
    return Gathered(
        statuses,
        home,
        specs,
        {name: whole(name) for name in specs},
        {name: whole(f"{name}#") if first.itemised[name] else None for name in specs},
        columns,
        tuple(words),
    )


def _check_kinds(told: list[_Told], holders: list[int]) -> None:
    if not holders:
        return
    odd = [holders[index] for index in outside_majority([told[rank].kind() for rank in holders])]
    if odd:
        usual = told[next(rank for rank in holders if rank not in odd)]
        raise FieldMismatchError(
            f"{listed(odd)} handed in other fields than the others: {_names(told[odd[0]])}, not {_names(usual)}", odd
        )


def _names(told: _Told) -> str:
    fields = [f"{name}{' (several items a sample)' if told.itemised[name] else ''}" for name in told.specs]
    return ", ".join(fields + [f"lengths of {name}" for name in told.listed]) or "none"


def _agreed(name: str, told: list[_Told], holders: list[int]) -> Spec:
    """Return what the ranks that have any row of a field say about it."""
    known = [rank for rank in holders if told[rank].specs[name].form]
    if not known:
        return told[holders[0]].specs[name] if holders else told[0].specs[name]
    odd = [known[index] for index in outside_majority([told[rank].specs[name] for rank in known])]
    usual = told[next(rank for rank in known if rank not in odd)].specs[name]
    if odd:
        raise FieldMismatchError(
            f"{listed(odd)} handed in field {name!r} as {_described(told[odd[0]].specs[name])}, the others as "
            f"{_described(usual)}", odd,
        )  # fmt: skip
    return usual


def _described(spec: Spec) -> str:
    return f"{spec.form} of {spec.dtype} [*{''.join(f', {size}' for size in spec.trailing)}] on {spec.device}"
