"""Plan files read as a stream: step by step, in constant memory.

Only the form is checked here: a file that is damaged or no plan is refused when reading gets there.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from balancer.errors import InputError, PlanError
from balancer.io._atomic import check_regular, reported
from balancer.io.cells import as_numpy
from balancer.io.pack_files import PACKS_KEY
from balancer.io.plan_folder import whole_plan
from balancer.io.plan_format import (
    ARRAYS,
    METADATA_KEY,
    OF_PART,
    OPTIONAL,
    TYPES,
    described_in,
    from_json,
    joined,
)
from balancer.io.plan_rows import PlanStep
from balancer.io.store import as_path, is_folder, is_remote, opened
from solvers.errors import ArgumentTypeError

_MAGIC = b"PAR1"  # with which a Parquet file begins
ROWS_PER_BATCH = 1 << 17  # decoded at once: 4 MB, about what a core's cache holds


@dataclass(frozen=True)
class PlanFile:
    """An opened plan, its rows not read yet.

    ``columns`` says which are there, ``parts`` in which files, and ``groups`` the first and the last step of each row
    group of each.
    """

    path: Path
    description: dict[str, Any]
    num_rows: int
    columns: tuple[str, ...]
    parts: tuple[Path, ...]
    groups: tuple[tuple[tuple[int, int], ...], ...]
    headers: tuple[dict[str, Any], ...]  # what each file says of itself, its description within

    def steps(self, first: int | None = None, last: int | None = None) -> Iterator[PlanStep]:
        """Yield every run of rows of one step and phase, in file order and constant memory.

        Given the first step or the one after the last, row groups without any of these steps are not read. Runs that a
        row group or a part cuts are joined. Nothing is checked but that no value is missing.
        """
        run: list[PlanStep] = []
        first, last = -(2**63) if first is None else first, 2**63 if last is None else last
        for part, groups in zip(self.parts, self.groups, strict=True):
            wanted = [i for i, (begin, end) in enumerate(groups) if end >= first and begin < last]
            for piece in _pieces(part, self.columns, wanted) if wanted else ():
                if not first <= piece.step < last:
                    continue
                if run and (piece.step, piece.phase) != (run[0].step, run[0].phase):
                    yield _join(run)
                    run = []
                run.append(piece)
        if run:
            yield _join(run)

    def columns_in(self, part: int) -> tuple[dict[str, NDArray[Any]], list[str]]:
        """Return the columns of one file, but for names of phases, and which names there are."""
        path = self.parts[part]
        with _parquet(path) as parquet:
            table = parquet.read(list(self.columns)).combine_chunks()
        _check_whole(path, table, 0)
        names, phases = [name for name in self.columns if name != "phase"], table["phase"].unique().to_pylist()
        columns = {name: as_numpy(table[name].chunk(0)) if len(table) else np.empty(0, np.int64) for name in names}
        return columns, phases

    def check_groups(self, part: int) -> None:
        """Raise PlanError unless the row groups of one file have the steps that its header says."""
        path, found = self.parts[part], list[list[int]]()
        with _parquet(path) as parquet:
            for group in range(parquet.metadata.num_row_groups):
                steps = as_numpy(parquet.read_row_group(group, ["step"])["step"].combine_chunks())
                found.append([int(steps.min()), int(steps.max())] if len(steps) else [])
        if (said := self.headers[part].get("row_groups")) != found:
            raise PlanError(f"{path}: its row groups have the steps {found!r:.60}, and it says {said!r:.60}")

    def whole_steps(
        self, first: int | None = None, last: int | None = None
    ) -> Iterator[tuple[int, dict[str, PlanStep]]]:
        """Yield number and phases of each step in file order; PlanError where a phase stands there twice."""
        for number, runs in groupby(self.steps(first, last), key=lambda run: run.step):
            found: dict[str, PlanStep] = {}
            for run in runs:
                if run.phase in found:
                    raise PlanError(f"{self.path}: step {number}: phase {run.phase!r} stands there twice")
                found[run.phase] = run
            yield number, found


def _join(pieces: list[PlanStep]) -> PlanStep:
    """Join the pieces of a run; a single one is passed on as the view that it is."""
    if len(pieces) == 1:
        return pieces[0]
    arrays: dict[str, Any] = {}
    for name in ARRAYS | OPTIONAL:
        if getattr(pieces[0], name) is not None:
            arrays[name] = np.concatenate([getattr(piece, name) for piece in pieces])
    return PlanStep(pieces[0].step, pieces[0].phase, **arrays)


@contextmanager
def _parquet(path: Path) -> Iterator[Any]:
    """Open a Parquet file; whatever is wrong with it becomes an InputError."""
    # An opened file, as pyarrow takes some names for URIs; phase as codes even without a stored Arrow schema.
    options = {"read_dictionary": ["phase"], "page_checksum_verification": True}
    try:
        with reported(str(path), "read the plan"):
            if not is_remote(path):
                check_regular(path)
        with reported(str(path), "read the plan"), opened(path) as file:
            try:
                parquet = pq.ParquetFile(file, **options)
            except pa.ArrowInvalid:
                file.seek(0)
                if file.read(len(_MAGIC)) in (_MAGIC, b""):
                    raise
                rule = "a plan is a Parquet file; to make one of a log, use balancer plan"
                raise InputError(f"{path}: is not a plan: {rule}") from None
            with parquet:
                yield parquet
    except KeyError as error:
        if error.args == (b"phase",):  # asked for above, as a dictionary
            raise InputError(f"{path}: {_instead(path)}") from None
        raise InputError(f"{path}: cannot read the plan: the file is damaged ({error})") from error
    except (LookupError, UnicodeError) as error:  # what a footer that parses, but lies, ends in
        raise InputError(f"{path}: cannot read the plan: the file is damaged ({error})") from error


def _instead(path: Path) -> str:
    """Say what a Parquet file without a column of phases is."""
    metadata: dict[bytes, bytes] = {}
    with opened(path) as file, suppress(UnicodeError, pa.ArrowException):  # a name that is damaged is none
        metadata = pq.read_metadata(file).metadata or {}
    if PACKS_KEY in metadata:
        return "these are packs, and no plan; to plan them: balancer plan with --length tokens"
    return "not a plan: has no column 'phase'"


def _pieces(path: Path, columns: tuple[str, ...], groups: list[int]) -> Iterator[PlanStep]:
    """Yield the runs of equal step and phase of some row groups of one Parquet file, cut where a batch ends."""
    row = 0
    with _parquet(path) as parquet:
        for batch in parquet.iter_batches(ROWS_PER_BATCH, groups, list(columns)):
            _check_whole(path, batch, row)
            arrays = {name: batch.column(name) for name in columns}
            phase, step = arrays.pop("phase"), as_numpy(arrays.pop("step"))
            codes, phases = as_numpy(phase.indices), phase.dictionary.to_pylist()
            values = {name: as_numpy(array) for name, array in arrays.items()}
            # Codes, not names, are compared: a batch has one dictionary.
            cuts = np.flatnonzero((step[1:] != step[:-1]) | (codes[1:] != codes[:-1])) + 1
            for start, stop in pairwise((0, *cuts.tolist(), len(step))):
                run = {name: array[start:stop] for name, array in values.items()}
                yield PlanStep(int(step[start]), phases[codes[start]], **run)
            row += len(step)
        # A damaged file must not pass for a shorter plan.
        if row != (rows := sum(parquet.metadata.row_group(group).num_rows for group in groups)):
            raise InputError(f"{path}: must hold {rows} rows, as it says, got {row}")


def _check_whole(path: Path, rows: Any, first: int) -> None:
    """Refuse rows without values; `first` is the number of their first one."""
    for name, array in zip(rows.schema.names, rows.columns, strict=True):
        if array.null_count:
            at = first + array.is_null().index(True).as_py()
            raise InputError(f"{path}: row {at}, column {name!r}: a plan has no missing values")


def read_through(path: Path) -> None:
    """Read all pages of a part, whose checksums are compared; InputError if one was damaged."""
    with _parquet(path) as parquet:
        for _ in parquet.iter_batches(ROWS_PER_BATCH):
            pass


def open_plan(path: str | os.PathLike[str]) -> PlanFile:
    """Open a plan file, or a folder of parts; only footers and descriptions are read."""
    if not isinstance(path, str | os.PathLike):
        raise ArgumentTypeError("path", "be a path of a plan", repr(path)[:80])
    where = os.fspath(path)
    parts = whole_plan(where) if _is_folder(where) else [as_path(where)]
    read = [read_footer(part) for part in parts]
    described = [described_in(str(part), found) for part, (_, _, _, found) in zip(parts, read, strict=True)]
    try:
        if _is_folder(where):
            for number, (part, about) in enumerate(zip(parts, described, strict=True)):
                _check_part(part, number, about, read[number], described[0], read[0])
        elif "part" in described[0]:
            raise InputError(f"{where}: this is one part of a plan; open its folder")
        description = joined(described)
    except (LookupError, TypeError, AttributeError, ValueError) as error:
        if isinstance(error, InputError | PlanError):
            raise
        raise InputError(f"{where}: the description of a part is not one this version reads: {error!r:.80}") from None
    columns, total = read[0][0], sum(rows for _, _, rows, _ in read)
    headers = tuple(found for _, _, _, found in read)
    groups = tuple(found for _, found, _, _ in read)
    return PlanFile(as_path(where), description, total, columns, tuple(parts), groups, headers)


def _is_folder(where: str) -> bool:
    """Whether a plan is a folder; in a store, a name that ends with a slash is one."""
    return where.endswith("/") or is_folder(where) if is_remote(where) else is_folder(where)


def _check_part(
    part: Path, number: int, about: dict[str, Any], read: tuple[Any, ...], first: dict[str, Any], of_first: Any
) -> None:
    """Refuse a part whose file says other things than its name, or is of another plan than the first."""
    if read[0] != of_first[0]:
        raise InputError(f"{part}: every part must have the same columns as the first, got {read[0]}")
    for name in ("part", "first_step", "steps", "samples"):
        if type(about.get(name)) is not int or about[name] < 0:
            raise PlanError(f"{part}: must say {name}, a whole number >= 0, got {about.get(name)!r:.40}")
    said = about["part"], read[3].get("key")
    if said[0] != number or said[1] not in part.name.split("-"):
        raise PlanError(f"{part}: says that it is part {said[0]!r:.20} of the plan {said[1]!r:.40}")
    mine, firsts = _of_plan(about), _of_plan(first)
    if odd := [name for name in {**mine, **firsts} if mine.get(name) != firsts.get(name)]:
        raise PlanError(f"{part}: is of another plan than the first part: {min(odd)} differs")


def _of_plan(about: dict[str, Any]) -> dict[str, Any]:
    """Return what the description of a part says of the whole plan, but for the names of the log's files."""
    sources = [{name: value for name, value in source.items() if name != "file"} for source in about.get("sources", ())]
    return {name: value for name, value in about.items() if name not in (*OF_PART, "log")} | {"sources": sources}


def read_footer(path: Path) -> tuple[tuple[str, ...], tuple[tuple[int, int], ...], int, dict[str, Any]]:
    """Return columns, steps of row groups, number of rows and metadata of a Parquet file, checked for being a plan's.

    Of a row group they are the first and the last step.
    """
    with _parquet(path) as parquet:
        schema, rows, metadata = parquet.schema_arrow, parquet.metadata.num_rows, parquet.metadata.metadata
        count = parquet.metadata.num_row_groups
    columns = tuple(name for name in TYPES if name in schema.names)
    missing = [name for name in TYPES if name not in columns and name not in OPTIONAL]
    if missing:
        raise InputError(f"{path}: not a plan: has no column {', '.join(map(repr, missing))}")
    for name in columns:
        found = schema.field(name).type
        # Exact types, as arrays are views of Arrow's memory and are never converted.
        if found != TYPES[name]:
            raise InputError(f"{path}: column {name!r} of a plan must be {TYPES[name]}, got {found}")
    if METADATA_KEY not in (metadata or {}):
        raise InputError(f"{path}: not a plan: has no description under the metadata key 'balancer'")
    found = from_json(metadata[METADATA_KEY])
    if found is None:
        raise InputError(f"{path}: the description of a plan must be a JSON object")
    return columns, _steps_of_groups(found.get("row_groups"), count), rows, found


def _steps_of_groups(said: Any, count: int) -> tuple[tuple[int, int], ...]:
    """Return the first and the last step of each of so many row groups; any step, where the header does not tell."""
    # Parquet has statistics, too: pyarrow ends the process over those of some damaged files.
    if not isinstance(said, list) or len(said) != count or not all(map(_is_pair, said)):
        return ((-(2**63), 2**63),) * count
    return tuple((first, last) for first, last in said)


def _is_pair(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(type(each) is int for each in value)
