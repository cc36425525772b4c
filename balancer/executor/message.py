"""Messages: what a rank sends all others about its mini-batch, everything but the payload, as one row of integers."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from balancer.executor.broadcast import as_words, from_words
from balancer.executor.errors import summary
from balancer.executor.fields import Column, Field, Spec
from balancer.problem.ragged import Ragged, offsets_of
from solvers.arguments import as_int64

__all__ = ["Message", "MiniBatch", "Status", "as_columns", "decoded", "encoded"]


class Status(IntEnum):
    """How a rank is."""

    READY = 0
    ENDED = 1
    CLOSING = 2
    FAILED = 3


@dataclass(frozen=True, slots=True, eq=False)
class MiniBatch:
    """One rank's samples, read."""

    num_samples: int
    fields: Mapping[str, Field]
    columns: Mapping[str, Column]  # further lengths, given by the caller


@dataclass(frozen=True, slots=True, eq=False)
class Message:
    """What one rank sends about its mini-batch."""

    status: Status
    error: str  # why it failed
    num_samples: int
    specs: dict[str, Spec]  # of its fields, by name in order, as all of these are
    rows: dict[str, Column]  # of each field
    columns: dict[str, Column]
    costs: Mapping[str, Any]  # measured times, and costs corrected by them


def as_columns(columns: Mapping[str, ArrayLike | Ragged]) -> dict[str, Column]:
    """Read the lengths that a caller gives: a number a sample, or a list a sample."""
    read: dict[str, Column] = {}
    for name, column in columns.items():
        if isinstance(column, Ragged):
            read[name] = column
        elif isinstance(column, list | tuple) and len(column) and isinstance(column[0], list | tuple | np.ndarray):
            read[name] = Ragged.of(column)
        else:
            read[name] = as_int64(f"lengths[{name!r}]", column)
    return read


def encoded(
    batch: MiniBatch | None, status: Status, failure: Exception | None, costs: Mapping[str, Any] | None = None
) -> NDArray[np.int64]:
    """Return the message of a rank; `batch` is None where `status` says why there is none."""
    batch = batch or MiniBatch(0, {}, {})
    fields, columns = sorted(batch.fields.items()), sorted(batch.columns.items())
    header = {
        "status": status,
        "error": "" if failure is None else summary(failure),
        "num_samples": batch.num_samples,
        "fields": [
            [name, isinstance(field.rows, Ragged), spec.form, spec.dtype, spec.trailing, spec.device]
            for name, field in fields
            for spec in [field.spec]
        ],
        "columns": [[name, isinstance(column, Ragged)] for name, column in columns],
        **({"costs": costs} if costs else {}),
    }
    parts: list[NDArray[np.int64]] = []
    for column in [field.rows for _, field in fields if not field.spec.fixed] + [column for _, column in columns]:
        parts += [column.counts, column.values] if isinstance(column, Ragged) else [column]
    return as_words(header, parts)


def decoded(words: NDArray[np.int64]) -> Message:
    """Return what :func:`encoded` made words of."""
    header, rest = from_words(words)
    count = header["num_samples"]

    def column(is_list: bool) -> Column:
        nonlocal rest
        numbers, rest = rest[:count], rest[count:]
        if not is_list:
            return numbers
        values, rest = np.split(rest, [numbers.sum()])
        return Ragged(values, offsets_of(numbers))

    specs, rows = {}, {}
    for name, is_list, form, dtype, trailing, device in header["fields"]:
        specs[name] = Spec(form, dtype, tuple(trailing), device)
        rows[name] = np.ones(count, dtype=np.int64) if specs[name].fixed else column(is_list)
    columns = {name: column(is_list) for name, is_list in header["columns"]}
    costs = header.get("costs", {})
    return Message(Status(header["status"]), header["error"], count, specs, rows, columns, costs)
