"""Plan files: dispatch plans on disk, written and read as a stream, replaced as a whole or not at all.

A plan file is one Parquet file, or a folder of part files with a ``manifest.json`` that alone makes it valid.
One row places one sample in one phase of one step; the description is JSON under the key ``balancer`` of the
schema metadata (in the manifest, for a folder). This module knows arrays and JSON: what a plan means, others
check.

Why this encoding: 10 million rows in steps of 1,024 (64 ranks and 21 positions at random, consecutive
samples, slot 0), encoded and decoded by pyarrow 26 on one core, in million rows a second and bytes a row:
dictionary and snappy, pyarrow's default: 32 and 75, 5.67; delta for ``sample``, else dictionary: 51 and 273,
1.40; delta and zstd: 47 and 131, 1.67; delta alone: 66 and 217, 1.79; delta and snappy, chosen: 62 and 206,
1.71. Delta keeps its speed with many ranks, and snappy folds what it leaves of sorted columns. Nullable
columns would cost 28 % of the writing speed and half of the reading speed; statistics on all columns a third
of the writing speed, so ``step`` alone has them: who filters by step skips row groups. Page checksums (1 %)
tell damaged files. With the buffering and the cutting into steps of this module: 43 written and 137 read.
"""

from __future__ import annotations

import base64
import json
import os
import re
import secrets
import stat
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from balancer.errors import InputError, PlanError

if sys.platform != "win32":
    import fcntl

METADATA_KEY = b"balancer"
MANIFEST = "manifest.json"
ROWS_PER_GROUP = 1_000_000  # 32 MB of buffers; a reader that skips by step skips in these units
ROWS_PER_BATCH = 1 << 17  # decoded at once: 4 MB, about what a core's cache holds

_FORMAT, _PART_FORMAT, _VERSION = "balancer-plan", "balancer-plan-part", 1
_ARRAYS = {"sample": np.int64, "rank": np.int32, "slot": np.int32, "position": np.int32}
_EXTRA = {"length": np.int64, "home_rank": np.int32}
_TYPES = {"step": pa.int64(), "phase": pa.dictionary(pa.int32(), pa.string())}
_TYPES |= {name: pa.from_numpy_dtype(dtype) for name, dtype in (_ARRAYS | _EXTRA).items()}
_PART_NAME = re.compile(r"part-([0-9a-f]{8})-\d{5,}\.parquet")


@contextmanager
def _reported(where: str, doing: str) -> Iterator[None]:
    """Turn what the system or pyarrow raises into an InputError of one line that names the path."""
    try:
        yield
    except (OSError, pa.ArrowException) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise InputError(f"{where}: cannot {doing}: {reason.split(chr(10))[0]}") from error


def _sync(folder: str) -> None:
    """Make renames in a folder survive a power cut, where the system lets a folder be synced."""
    with suppress(OSError):
        fd = os.open(folder, os.O_RDONLY)
        with suppress(OSError):
            os.fsync(fd)
        os.close(fd)


def _lock(file: BinaryIO) -> bool:
    """Take the lock of an open file; False where another process has it or the system has no locks."""
    if sys.platform == "win32":
        return False
    with suppress(OSError):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False


def _temporary(folder: str, name: str) -> tuple[BinaryIO, str, str]:
    """Create ``.<name>.<token>.tmp``; its lock says that it is no leftover as long as this process lives."""
    while True:
        token = secrets.token_hex(4)
        path = os.path.join(folder, f".{name}.{token}.tmp")
        file = open(path, "xb")  # noqa: SIM115 (open until the plan is closed)
        _lock(file)
        if os.path.exists(path):
            return file, path, token
        file.close()  # another run's clean-up came between creating and locking: take a new name


def _leftovers(folder: str, name: str, own: str) -> list[str]:
    """Return the temporary files of killed runs and, in a plan folder, all parts but those of runs alive."""
    entries, gone, alive = os.listdir(folder), [], {own}
    # Parts are listed before locks are tried: a run that commits in between is replaced by this one.
    for entry in entries:
        match = re.fullmatch(rf"\.{re.escape(name)}\.([0-9a-f]{{8}})\.tmp", entry)
        if match is None or match[1] == own:
            continue
        with suppress(OSError), open(os.path.join(folder, entry), "rb") as file:
            if _lock(file):
                gone.append(entry)
            else:
                alive.add(match[1])
    if name == MANIFEST:
        parts = [match for entry in entries if (match := _PART_NAME.fullmatch(entry))]
        gone += [match[0] for match in parts if match[1] not in alive]
    return [os.path.join(folder, entry) for entry in gone]


def _remove(paths: Iterable[str]) -> None:
    """Delete files; one that cannot be deleted is litter, not a failure."""
    for path in paths:
        with suppress(OSError):
            os.unlink(path)


def _make_folder(where: str, path: str) -> bool:
    """Create a plan folder if need be (True); refuse one whose manifest belongs to something else."""
    if not os.path.lexists(path):
        _check_folder(where, os.path.dirname(path))
        os.mkdir(path)
        return True
    _check_folder(where, path)
    if os.path.lexists(os.path.join(path, MANIFEST)):
        try:
            _read_manifest(where)
        except InputError as error:
            rule = f"the {MANIFEST} in it is not a plan's; choose another folder"
            raise InputError(f"{where}: cannot write a plan here: {rule}") from error
    return False


def _check_folder(where: str, folder: str) -> None:
    if not os.path.isdir(folder):
        rule = "is not a folder" if os.path.lexists(folder) else "does not exist"
        raise InputError(f"{where}: cannot write a plan here: the folder {folder} {rule}")


def _to_json(value: Mapping[str, object]) -> bytes:
    return json.dumps(value, sort_keys=True, allow_nan=False).encode()


class _Sink:
    """One Parquet file being written into an open binary file."""

    def __init__(self, file: BinaryIO, schema: Any) -> None:
        self.file = file
        self._schema = schema
        self.about: dict[str, Any] = {"rows": 0, "first_step": None, "last_step": None}
        self._writer = pq.ParquetWriter(
            file,
            schema,
            use_dictionary=["phase"],
            column_encoding={name: "DELTA_BINARY_PACKED" for name in schema.names if name != "phase"},
            compression="snappy",
            write_statistics=["step"],
            write_page_checksum=True,
            store_schema=False,
        )

    def write(self, batch: Any, first_step: int, last_step: int) -> None:
        self._writer.write_batch(batch, row_group_size=batch.num_rows)
        first_step = self.about["first_step"] if self.about["rows"] else first_step
        rows = self.about["rows"] + batch.num_rows
        self.about = {"rows": rows, "first_step": first_step, "last_step": last_step}

    def finish(self, description: bytes) -> None:
        # An Arrow schema that the writer stores at the start hides metadata added later from read_schema and
        # read_table; so it stores none, and the end gets one that has the description within, and the key too.
        arrow = self._schema.with_metadata({METADATA_KEY: description}).serialize().to_pybytes()
        metadata = {METADATA_KEY: description, b"ARROW:schema": base64.b64encode(arrow)}
        self._writer.add_key_value_metadata(metadata)
        self._writer.close()
        self.file.flush()
        os.fsync(self.file.fileno())

    def discard(self) -> None:
        with suppress(Exception):  # the disk may be full; nobody reads this file again
            self._writer.close()
        with suppress(OSError):
            self.file.close()


class PlanWriter:
    """Write a plan as a stream; the target changes when :meth:`close` succeeds, and then all at once.

    Leaving its ``with`` block before ``close``, by an exception or not, leaves what was there before and
    removes what was written. A kill leaves what was there before too; the next successful write tidies up.

    Parameters
    ----------
    path : str or path
        With a trailing slash, or an existing folder: parts and a manifest in that folder, which is created if
        only its last component is missing. Otherwise one file.
    extra_columns : bool
        Also store ``length`` and ``home_rank``, for a plan that has no log to go back to.
    rows_per_part : int
        A part file holds at most so many rows (folder form only).

    Raises
    ------
    InputError
        If the target cannot be written: at once, before anything is planned, or later, when the disk is full.

    Examples
    --------
    >>> import tempfile
    >>> path = os.path.join(tempfile.mkdtemp(), "plan.parquet")
    >>> with PlanWriter(path) as writer:
    ...     rank = np.array([1, 0, 1], np.int32)
    ...     writer.append(0, "llm", np.arange(3), rank, 0, np.array([0, 0, 1], np.int32))
    ...     _ = writer.close({"num_ranks": 2})
    >>> plan = open_plan(path)
    >>> plan.description, [(step.step, step.phase, step.rank.tolist()) for step in plan.steps()]
    ({'num_ranks': 2}, [(0, 'llm', [1, 0, 1])])
    """

    def __init__(
        self, path: str | os.PathLike[str], *, extra_columns: bool = False, rows_per_part: int = 8_000_000
    ) -> None:
        if rows_per_part < 1:
            raise ValueError(f"rows_per_part must be >= 1, got {rows_per_part}")
        arrays = _ARRAYS | _EXTRA if extra_columns else _ARRAYS
        fields = [pa.field(name, _TYPES[name], nullable=False) for name in ("step", "phase", *arrays)]
        self._schema = pa.schema(fields)
        self._names = tuple(arrays)
        self._rows_per_part = rows_per_part
        self._capacity = min(ROWS_PER_GROUP, rows_per_part)
        # Step and phase are constant over a call: kept as runs (step, phase code, rows) until flushed.
        self._buffers = [np.empty(self._capacity, dtype) for dtype in arrays.values()]
        self._runs: list[tuple[int, int, int]] = []
        self._phases: dict[str, int] = {}
        self._filled = 0
        self._parts: list[dict[str, Any]] = []
        self._sink: _Sink | None = None
        self._where = os.fspath(path)
        with _reported(self._where, "write a plan here"):
            self._open_target()
        self._open = True

    def _open_target(self) -> None:
        where = self._where
        if not where or "\0" in where:
            raise InputError(f"{where!r}: cannot write a plan here: this is not a path")
        target = os.path.realpath(where)  # what a link points to is replaced, not the link
        self._in_folder = where.endswith((os.sep, "/")) or os.path.isdir(target)
        self._made_folder = self._in_folder and _make_folder(where, target)
        self._folder, self._name = (target, MANIFEST) if self._in_folder else os.path.split(target)
        self._target = os.path.join(self._folder, self._name)
        if not self._in_folder:
            _check_folder(where, self._folder)
            if os.path.exists(target) and not stat.S_ISREG(os.stat(target).st_mode):
                raise InputError(f"{where}: cannot write a plan here: a plan replaces regular files only")
        self._file, self._temporary, self._token = _temporary(self._folder, self._name)
        if not self._in_folder:
            self._sink = _Sink(self._file, self._schema)

    def append(
        self,
        step: int,
        phase: str,
        sample: NDArray[np.int64],
        rank: NDArray[np.int32],
        slot: NDArray[np.int32] | int,
        position: NDArray[np.int32],
        length: NDArray[np.int64] | None = None,
        home_rank: NDArray[np.int32] | None = None,
    ) -> None:
        """Add the rows of one phase of one step; no rows are legal and leave no trace.

        Parameters
        ----------
        step, phase : int and str
            The same for all rows of the call.
        sample, rank, position : int64[n], int32[n], int32[n]
            Row in the log, and the place it goes to.
        slot : int32[n] or int
            The micro-batch; a number stands for all rows.
        length, home_rank : int64[n], int32[n]
            Exactly when the writer was made with ``extra_columns=True``.

        Raises
        ------
        TypeError
            For an array of another dtype or shape than stated: converting could wrap or broadcast silently.
        InputError
            If the disk does not take the rows; the plan is then discarded.
        """
        self._check_open()
        columns: list[Any] = [sample, rank, slot, position]
        if length is not None or home_rank is not None:
            columns += [length, home_rank]
        count = len(sample)
        self._check_columns(columns, count)
        code = self._phases.setdefault(phase, len(self._phases))
        done = 0
        while done < count:
            start = self._filled
            stop = min(self._capacity, start + count - done)
            more = done + stop - start
            for buffer, values in zip(self._buffers, columns, strict=True):
                buffer[start:stop] = values[done:more] if isinstance(values, np.ndarray) else values
            self._runs.append((step, code, stop - start))
            self._filled, done = stop, more
            if stop == self._capacity:
                self._flush()

    def _flush(self) -> None:
        """Write the buffered rows as one row group, in a new part if the present one would hold too many."""
        runs, rows = np.array(self._runs, np.int64), self._filled
        step, codes = np.repeat(runs[:, 0], runs[:, 2]), np.repeat(runs[:, 1].astype(np.int32), runs[:, 2])
        phase = pa.DictionaryArray.from_arrays(pa.array(codes), pa.array(list(self._phases), pa.string()))
        # Views of the buffers, not copies: they are encoded before the next row overwrites them.
        views = [pa.array(buffer[:rows]) for buffer in self._buffers]
        batch = pa.record_batch([pa.array(step), phase, *views], schema=self._schema)
        with self._discarded_on_error():
            if self._in_folder and self._sink and self._sink.about["rows"] + rows > self._rows_per_part:
                self._finish_part(self._sink)
            sink = self._sink = self._sink or self._start_part()
            sink.write(batch, int(step[0]), int(step[-1]))
        self._runs.clear()
        self._filled = 0

    def _check_columns(self, columns: list[Any], count: int) -> None:
        if len(columns) != len(self._buffers):
            raise TypeError("length and home_rank must be given exactly when extra_columns=True")
        for name, buffer, values in zip(self._names, self._buffers, columns, strict=True):
            if isinstance(values, np.ndarray):
                if values.dtype == buffer.dtype and values.shape == (count,):
                    continue
                got = f"{values.dtype}{[*values.shape]}"
            elif name == "slot" and isinstance(values, int | np.integer):
                continue
            else:
                got = type(values).__name__
            raise TypeError(f"{name} must be an array {buffer.dtype}[{count}], got {got}")

    def _check_open(self) -> None:
        if not self._open:
            raise RuntimeError("this plan writer is closed")

    def _start_part(self) -> _Sink:
        # The run's token keeps its parts apart from those that a manifest already in place names.
        name = f"part-{self._token}-{len(self._parts):05d}.parquet"
        self._parts.append({"file": name})
        return _Sink(open(os.path.join(self._folder, name), "xb"), self._schema)

    def _finish_part(self, sink: _Sink) -> None:
        number = len(self._parts) - 1
        sink.finish(_to_json({"format": _PART_FORMAT, "version": _VERSION, "part": number}))
        sink.file.close()
        self._parts[number] |= sink.about
        self._sink = None

    def close(self, description: Mapping[str, object]) -> Path:
        """Finish the plan, put it in place of what was there and return its path, as the writer was given it.

        Raises
        ------
        InputError
            If the disk does not take it; what was there before is still there.
        TypeError, ValueError
            If the description is not what JSON can hold (NaN and infinity are not).
        """
        self._check_open()
        text = _to_json(dict(description))
        if self._filled:
            self._flush()
        with self._discarded_on_error():
            if self._in_folder:
                self._finish_part(self._sink or self._start_part())  # even an empty plan shows its columns
                manifest = {"format": _FORMAT, "version": _VERSION, "parts": self._parts}
                self._file.write(_to_json({**manifest, "description": json.loads(text)}))
                self._file.flush()
                os.fsync(self._file.fileno())
                _sync(self._folder)
            elif self._sink:
                self._sink.finish(text)
            leftovers = _leftovers(self._folder, self._name, self._token)
            self._open = False  # discard nothing from here on: an interrupt may find the plan in place
            os.replace(self._temporary, self._target)
        _sync(self._folder)
        self._file.close()
        _remove(leftovers)
        return Path(self._where)

    def discard(self) -> None:
        """Remove what was written and leave what was there before; after :meth:`close`, do nothing."""
        if not self._open:
            return
        self._open = False
        if self._sink:
            self._sink.discard()
        with suppress(OSError):
            self._file.close()
        _remove([os.path.join(self._folder, part["file"]) for part in self._parts] + [self._temporary])
        if self._made_folder:
            with suppress(OSError):
                os.rmdir(self._folder)

    @contextmanager
    def _discarded_on_error(self) -> Iterator[None]:
        try:
            with _reported(self._where, "write the plan"):
                yield
        except BaseException:
            self.discard()
            raise

    def __enter__(self) -> PlanWriter:
        return self

    def __exit__(self, *error: object) -> None:
        self.discard()


@dataclass(frozen=True, slots=True, eq=False)
class PlanStep:
    """The rows of one phase of one step, in file order: arrays[n], read-only, None where a plan has none."""

    step: int
    phase: str
    sample: NDArray[np.int64]
    rank: NDArray[np.int32]
    slot: NDArray[np.int32]
    position: NDArray[np.int32]
    length: NDArray[np.int64] | None = None
    home_rank: NDArray[np.int32] | None = None

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, PlanStep):
            return NotImplemented
        return all(np.array_equal(getattr(self, name), getattr(other, name)) for name in _TYPES)

    __hash__ = None  # type: ignore[assignment]


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

        Raises
        ------
        InputError
            If a value is missing or the file is damaged, where reading gets there.
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


def _join(pieces: list[PlanStep]) -> PlanStep:
    """Join the pieces of a run; a single one is passed on as the view that it is."""
    if len(pieces) == 1:
        return pieces[0]
    arrays: dict[str, Any] = {}
    for name in _ARRAYS | _EXTRA:
        if getattr(pieces[0], name) is not None:
            arrays[name] = np.concatenate([getattr(piece, name) for piece in pieces])
            arrays[name].flags.writeable = False
    return PlanStep(pieces[0].step, pieces[0].phase, **arrays)


@contextmanager
def _parquet(path: Path) -> Iterator[Any]:
    """Open a Parquet file; whatever is wrong with it becomes an InputError."""
    # An opened file, as pyarrow takes some names for URIs; phase as codes even without a stored Arrow schema.
    options = {"read_dictionary": ["phase"], "page_checksum_verification": True}
    try:
        with (
            _reported(str(path), "read the plan"),
            pa.OSFile(os.fspath(path), "rb") as file,
            pq.ParquetFile(file, **options) as parquet,
        ):
            yield parquet
    except KeyError as error:
        if error.args == (b"phase",):  # asked for above, as a dictionary
            raise InputError(f"{path}: not a plan: has no column 'phase'") from None
        raise InputError(f"{path}: cannot read the plan: the file is damaged ({error})") from error
    except (LookupError, UnicodeError) as error:  # what a footer that parses, but lies, ends in
        raise InputError(f"{path}: cannot read the plan: the file is damaged ({error})") from error


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
            phase, step = arrays.pop("phase"), arrays.pop("step").to_numpy()
            codes, phases = phase.indices.to_numpy(), phase.dictionary.to_pylist()
            values = {name: array.to_numpy() for name, array in arrays.items()}
            cuts = np.flatnonzero((step[1:] != step[:-1]) | (codes[1:] != codes[:-1])) + 1
            for start, stop in pairwise((0, *cuts.tolist(), len(step))):
                run = {name: array[start:stop] for name, array in values.items()}
                yield PlanStep(int(step[start]), phases[codes[start]], **run)
            row += len(step)
        if row != parquet.metadata.num_rows:
            raise InputError(f"{path}: must hold {parquet.metadata.num_rows} rows, as it says, got {row}")


def open_plan(path: str | os.PathLike[str]) -> PlanFile:
    """Open a plan file, or a folder of parts with a manifest; only footers and descriptions are read.

    Raises
    ------
    InputError
        If there is nothing, or something truncated, or something else than a plan.
    PlanError
        If a part does not hold as many rows as the manifest says.
    """
    where = os.fspath(path)
    if not os.path.isdir(where):
        columns, rows, description = _read_footer(Path(where))
        if description.get("format") == _PART_FORMAT:
            raise InputError(f"{where}: this is one part of a plan; open its folder, where {MANIFEST} is")
        return PlanFile(Path(where), description, rows, columns, (Path(where),))
    manifest = _read_manifest(where)
    parts, found = [Path(where, claim["file"]) for claim in manifest["parts"]], set()
    for part, claim in zip(parts, manifest["parts"], strict=True):
        if not part.exists():
            raise InputError(f"{where}: its {MANIFEST} names {part.name}, which is not there")
        columns, rows, _ = _read_footer(part)
        found.add(columns)
        if rows != claim["rows"]:
            raise PlanError(f"{part}: must hold the {claim['rows']} rows that {MANIFEST} says, got {rows}")
        if len(found) > 1:
            raise InputError(f"{part}: every part must have the same columns as the first, got {columns}")
    total = sum(claim["rows"] for claim in manifest["parts"])
    return PlanFile(Path(where), manifest["description"], total, columns, tuple(parts))


def _read_manifest(where: str) -> dict[str, Any]:
    """Read the manifest of a plan folder and check its form."""
    path = os.path.join(where, MANIFEST)
    if not os.path.lexists(path):
        raise InputError(f"{where}: a plan folder must have a {MANIFEST}, and this one has none")
    manifest: Any = None
    with _reported(path, "read the manifest"), suppress(ValueError):
        manifest = json.loads(Path(path).read_bytes())
    if not isinstance(manifest, dict) or manifest.get("format") != _FORMAT:
        raise InputError(f'{path}: the manifest of a plan must be a JSON object with "format": "{_FORMAT}"')
    if manifest.get("version") != _VERSION:
        found = manifest.get("version")
        raise InputError(f"{path}: this release reads manifests of version {_VERSION}, got {found!r}")
    try:
        # Names are matched, not trusted: a manifest must not lead out of its folder.
        fine = all(_PART_NAME.fullmatch(part["file"]) and part["rows"] >= 0 for part in manifest["parts"])
        fine = fine and len(manifest["parts"]) > 0 and isinstance(manifest["description"], dict)
    except (LookupError, TypeError):
        fine = False
    if not fine:
        raise InputError(f"{path}: must hold a description and parts, each with its file name and rows")
    return manifest


def _read_footer(path: Path) -> tuple[tuple[str, ...], int, dict[str, Any]]:
    """Return columns, number of rows and description of one Parquet file, checked for being a plan's."""
    with _parquet(path) as parquet:
        schema, rows, metadata = parquet.schema_arrow, parquet.metadata.num_rows, parquet.metadata.metadata
    columns = tuple(name for name in _TYPES if name in schema.names)
    missing = [name for name in _TYPES if name not in columns and name not in _EXTRA]
    if missing:
        raise InputError(f"{path}: not a plan: has no column {', '.join(map(repr, missing))}")
    for name in columns:
        found = schema.field(name).type
        if found != _TYPES[name]:
            raise InputError(f"{path}: column {name!r} of a plan must be {_TYPES[name]}, got {found}")
    if METADATA_KEY not in (metadata or {}):
        raise InputError(f"{path}: not a plan: has no description under the metadata key 'balancer'")
    description: Any = None
    with suppress(ValueError):
        description = json.loads(metadata[METADATA_KEY])
    if not isinstance(description, dict):
        raise InputError(f"{path}: the description of a plan must be a JSON object")
    return columns, rows, description
