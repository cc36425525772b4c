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
    with opened(path) as file:
        metadata = pq.read_metadata(file).metadata or {}
    if PACKS_KEY in metadata:
        return "these are packs, and no plan; to plan them: balancer plan with --length tokens"
    return "not a plan: has no column 'phase'"


def _pieces(path: Path, columns: tuple[str, ...], groups: list[int]) -> Iterator[PlanStep]:
    """Yield the runs of equal step and phase of some row groups of one Parquet file, cut where a batch ends."""
    row = 0
    with _parquet(path) as parquet:
        for batch in parquet.iter_batches(ROWS_PER_BATCH, groups, list(columns)):
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
        if row != (rows := sum(parquet.metadata.row_group(group).num_rows for group in groups)):
            raise InputError(f"{path}: must hold {rows} rows, as it says, got {row}")


def open_plan(path: str | os.PathLike[str]) -> PlanFile:
    """Open a plan file, or a folder of parts with a manifest; only footers and descriptions are read."""
    where = os.fspath(path)
    if not _has_parts(where):
        columns, groups, rows, found = read_footer(as_path(where))
        if found.get("format") == PART_FORMAT:
            raise InputError(f"{where}: this is one part of a plan; open its folder, where {MANIFEST} is")
        return PlanFile(as_path(where), described_in(where, found), rows, columns, (as_path(where),), (groups,))
    manifest = read_manifest(where)
    parts, kinds, of_parts = [as_path(where) / claim["file"] for claim in manifest["parts"]], set(), []
    # One listing instead of one request for each part.
    there = set(names_in(where)) if is_remote(where) else None
    for part, claim in zip(parts, manifest["parts"], strict=True):
        if part.name not in there if there is not None else not part.exists():
            raise InputError(f"{where}: its {MANIFEST} names {part.name}, which is not there")
        columns, groups, rows, _ = read_footer(part)
        kinds.add(columns)
        of_parts.append(groups)
        if rows != claim["rows"]:
            raise PlanError(f"{part}: must hold the {claim['rows']} rows that {MANIFEST} says, got {rows}")
        if len(kinds) > 1:
            raise InputError(f"{part}: every part must have the same columns as the first, got {columns}")
    total = sum(claim["rows"] for claim in manifest["parts"])
    return PlanFile(as_path(where), manifest["description"], total, columns, tuple(parts), tuple(of_parts))


def _has_parts(where: str) -> bool:
    """Whether a plan is a folder; in a store, a name that ends with a slash or holds a manifest is one."""
    return is_folder(where) if not is_remote(where) else where.endswith("/") or exists(f"{where}/{MANIFEST}")


def read_footer(path: Path) -> tuple[tuple[str, ...], tuple[tuple[int, int], ...], int, dict[str, Any]]:
    """Return columns, steps of row groups, number of rows and metadata of a Parquet file, checked for being a plan's.

    Of a row group they are the first and the last step.
    """
    with _parquet(path) as parquet:
        schema, rows, metadata = parquet.schema_arrow, parquet.metadata.num_rows, parquet.metadata.metadata
        groups = _steps_of_groups(parquet.metadata)
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
    return columns, groups, rows, found


def _steps_of_groups(metadata: Any) -> tuple[tuple[int, int], ...]:
    """Return the first and the last step of each row group; where its statistics do not tell, any step may be in it."""
    names = [metadata.schema.column(i).path for i in range(metadata.num_columns)]
    found = []
    for group in range(metadata.num_row_groups if "step" in names else 0):
        about = metadata.row_group(group).column(names.index("step")).statistics
        known = about is not None and about.has_min_max and isinstance(about.min, int)
        found.append((about.min, about.max) if known else (0, 2**63 - 1))
    return tuple(found)
