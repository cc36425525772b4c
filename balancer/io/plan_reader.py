"""Plan files read as a stream: step by step, in constant memory.

Only the form is checked here: a file that is damaged or no plan is refused when reading gets there.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from balancer.errors import InputError, PlanError
from balancer.io._atomic import check_regular, reported
from balancer.io.cells import as_numpy
from balancer.io.pack_files import PACKS_KEY
from balancer.io.plan_format import (
    ARRAYS,
    MANIFEST,
    METADATA_KEY,
    OPTIONAL,
    PART_FORMAT,
    TYPES,
    described_in,
    from_json,
    read_manifest,
)
from balancer.io.plan_rows import PlanStep
from balancer.io.store import as_path, exists, is_folder, is_remote, names_in, opened

_MAGIC = b"PAR1"  # with which a Parquet file begins
ROWS_PER_BATCH = 1 << 17  # decoded at once: 4 MB, about what a core's cache holds


@dataclass(frozen=True)
class PlanFile:
    """An opened plan, its rows not read yet: ``columns`` says which are there, ``parts`` in which files."""

    path: Path
    description: dict[str, Any]
    num_rows: int
    columns: tuple[str, ...]
    parts: tuple[Path, ...]

    def steps(self) -> Iterator[PlanStep]:
        """Yield every run of rows of one step and phase, in file order and constant memory.

        Runs that a row group or a part cuts are joined. Nothing is checked but that no value is missing.
        """
        run: list[PlanStep] = []
        for part in self.parts:
            for piece in _pieces(part, self.columns):
                if run and (piece.step, piece.phase) != (run[0].step, run[0].phase):
                    yield _join(run)
                    run = []
                run.append(piece)
        if run:
            yield _join(run)

    def whole_steps(self) -> Iterator[tuple[int, dict[str, PlanStep]]]:
        """Yield number and phases of each step in file order; PlanError where a phase stands there twice."""
        for number, runs in groupby(self.steps(), key=lambda run: run.step):
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
    with opened(path) as file:
        metadata = pq.read_metadata(file).metadata or {}
    if PACKS_KEY in metadata:
        return "these are packs, and no plan; to plan them: balancer plan with --length tokens"
    return "not a plan: has no column 'phase'"


def _pieces(path: Path, columns: tuple[str, ...]) -> Iterator[PlanStep]:
    """Yield the runs of equal step and phase of one Parquet file, cut where a batch ends."""
    row = 0
    with _parquet(path) as parquet:
        for batch in parquet.iter_batches(batch_size=ROWS_PER_BATCH, columns=list(columns)):
            arrays = {name: batch.column(name) for name in columns}
            for name, array in arrays.items():
                if array.null_count:
                    at = row + array.is_null().index(True).as_py()
                    raise InputError(f"{path}: row {at}, column {name!r}: a plan has no missing values")
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
        if row != parquet.metadata.num_rows:
            raise InputError(f"{path}: must hold {parquet.metadata.num_rows} rows, as it says, got {row}")


def open_plan(path: str | os.PathLike[str]) -> PlanFile:
    """Open a plan file, or a folder of parts with a manifest; only footers and descriptions are read."""
    where = os.fspath(path)
    if not _has_parts(where):
        columns, rows, found = read_footer(as_path(where))
        if found.get("format") == PART_FORMAT:
            raise InputError(f"{where}: this is one part of a plan; open its folder, where {MANIFEST} is")
        return PlanFile(as_path(where), described_in(where, found), rows, columns, (as_path(where),))
    manifest = read_manifest(where)
    parts, kinds = [as_path(where) / claim["file"] for claim in manifest["parts"]], set()
    # One listing instead of one request for each part.
    there = set(names_in(where)) if is_remote(where) else None
    for part, claim in zip(parts, manifest["parts"], strict=True):
        if part.name not in there if there is not None else not part.exists():
            raise InputError(f"{where}: its {MANIFEST} names {part.name}, which is not there")
        columns, rows, _ = read_footer(part)
        kinds.add(columns)
        if rows != claim["rows"]:
            raise PlanError(f"{part}: must hold the {claim['rows']} rows that {MANIFEST} says, got {rows}")
        if len(kinds) > 1:
            raise InputError(f"{part}: every part must have the same columns as the first, got {columns}")
    total = sum(claim["rows"] for claim in manifest["parts"])
    return PlanFile(as_path(where), manifest["description"], total, columns, tuple(parts))


def _has_parts(where: str) -> bool:
    """Whether a plan is a folder; in a store, a name that ends with a slash or holds a manifest is one."""
    return is_folder(where) if not is_remote(where) else where.endswith("/") or exists(f"{where}/{MANIFEST}")


def read_footer(path: Path) -> tuple[tuple[str, ...], int, dict[str, Any]]:
    """Return columns, number of rows and metadata of one Parquet file, checked for being a plan's."""
    with _parquet(path) as parquet:
        schema, rows, metadata = parquet.schema_arrow, parquet.metadata.num_rows, parquet.metadata.metadata
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
    return columns, rows, found
