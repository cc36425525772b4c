"""A log packed: window after window, into a file, a folder of parts, or arrays."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from balancer._version import __version__
from balancer.errors import InputError
from balancer.io.log_files import LogPath
from balancer.io.logs import LengthLog, choose_length, default_columns, open_log, read_columns
from balancer.io.pack_files import PackFile, PackFolder, about_packs, described, of_part, pack_table, read_packs
from balancer.io.plan_format import MANIFEST, to_json
from balancer.io.store import is_remote
from balancer.io.tables import is_table, write_table
from balancer.offline.description import contents_of
from balancer.offline.pack_window import COST, WINDOW_ROWS, PackedWindow, PackSettings, pack_window
from balancer.offline.target import is_parts
from balancer.problem.ragged import Ragged
from solvers.arguments import as_int64
from solvers.errors import UsageError, WordedError


@dataclass(slots=True)
class PackTotals:
    """What windows of packs add up to; every number is an exact integer, so that parts join in any order."""

    windows: int = 0
    rows: int = 0
    empty: int = 0
    over_long: int = 0
    dropped_tokens: int = 0
    packs: int = 0
    lower_bound: int = 0
    tokens: int = 0
    room: int = 0  # tokens that packs could hold and do not
    cost: int = 0
    largest_cost: int = 0
    steps: int = 0
    short_steps: int = 0
    step_cost: int = 0  # sum over steps of their most costly pack, times the packs of a step

    def add(self, window: PackedWindow, settings: PackSettings) -> None:
        """Take in a window."""
        tokens = window.tokens
        found = PackTotals(
            1, window.num_rows, window.empty, window.over_long, window.dropped_tokens, window.num_packs,
            window.lower_bound, int(tokens.sum()), int(np.maximum(settings.tokens - tokens, 0).sum()),
            sum(window.costs.tolist()), int(window.costs.max(initial=0)),
        )  # fmt: skip
        if settings.per_step is not None and window.num_packs:
            begins = np.arange(0, window.num_packs, settings.per_step)
            found.steps = len(begins)
            found.short_steps = int(window.num_packs % settings.per_step > 0)
            # Ranks of a step wait for its most costly pack. As a sum over steps it is an exact integer, and parts
            # join in any order.
            found.step_cost = sum(np.maximum.reduceat(window.costs, begins).tolist()) * settings.per_step
        self.join(found)

    def join(self, other: PackTotals) -> None:
        """Take in what others add up to."""
        for each in fields(self):
            mine, theirs = getattr(self, each.name), getattr(other, each.name)
            setattr(self, each.name, max(mine, theirs) if each.name == "largest_cost" else mine + theirs)

    def stored(self) -> dict[str, int]:
        """Return the numbers by name."""
        return {each.name: getattr(self, each.name) for each in fields(self)}

    def summary(self) -> dict[str, Any]:
        """Return the numbers by name, and what follows from them.

        ``gap`` is how far the packs are above the bound at most, ``waste`` the part of what packs could hold that is
        empty, ``cost_max_over_mean`` the most costly pack over the mean, and ``step_idle`` the part of ranks' time that
        they wait where every pack of a step runs on a rank of its own.
        """
        even = self.packs * self.largest_cost / self.cost if self.cost else 1.0
        ratios: dict[str, float | None] = {
            "gap": self.packs / self.lower_bound - 1 if self.lower_bound else 0.0,
            "waste": self.room / (self.room + self.tokens) if self.tokens else 0.0,
            "cost_max_over_mean": even,
            "step_idle": 1 - self.cost / self.step_cost if self.step_cost else None,
        }
        return self.stored() | ratios


@dataclass(frozen=True, slots=True, eq=False)
class Packs:
    """Samples in packs, with a proof of how few packs there can be.

    Attributes
    ----------
    rows, starts, lengths : Ragged
        The pieces of each pack: the row of the log, where in the sample the piece begins, and its length. The tokens of
        a piece are ``start .. start + length - 1`` of its row; their position ids begin at 0.
    costs : int64[num_packs]
    steps : int64[num_packs]
        The step of each pack; empty unless packs were made for steps.
    description : dict
        Settings, sources and totals.
    """

    rows: Ragged
    starts: Ragged
    lengths: Ragged
    costs: NDArray[np.int64]
    steps: NDArray[np.int64]
    description: dict[str, Any]

    def __len__(self) -> int:
        return len(self.costs)

    @property
    def num_packs(self) -> int:
        """Number of packs."""
        return len(self)

    @property
    def lower_bound(self) -> int:
        """Proven: the same windows need at least so many packs."""
        return int(self.description["totals"]["lower_bound"])

    def summary(self) -> dict[str, Any]:
        """Return the numbers by name, as ``balancer pack --json`` prints them."""
        return PackTotals(**self.description["totals"]).summary()

    def to_arrow(self) -> Any:
        """Return an Arrow table: lists ``rows``, ``starts``, ``lengths``; ``tokens``, ``cost``, maybe ``step``."""
        ends = np.concatenate([[0], np.cumsum(self.lengths.values)])[self.rows.offsets]
        numbers = {"tokens": np.diff(ends), "cost": self.costs} | ({"step": self.steps} if len(self.steps) else {})
        return pack_table(self.rows.offsets, [each.values for each in (self.rows, self.starts, self.lengths)], numbers)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write one Parquet file, as ``balancer pack --out`` does; what is there is replaced."""
        with PackFile(os.fspath(path)) as file:
            file.write(self.to_arrow())
            file.close(described(self.description))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Packs:
        """Read a file or folder of packs, and check that it says what it holds.

        Raises
        ------
        InputError
            The file is no packs, is damaged, or its numbers contradict each other.
        """
        where = os.fspath(path)
        table, description = read_packs(where)
        rows, starts, lengths = (_ragged(table, name) for name in ("rows", "starts", "lengths"))
        numbers = {name: table[name].to_numpy() for name in table.column_names[3:]}
        found = cls(rows, starts, lengths, numbers["cost"], numbers.get("step", np.empty(0, np.int64)), description)
        _check(where, found, numbers["tokens"])
        return found

    def __repr__(self) -> str:
        s = self.summary()
        proof = "no fewer are possible" if not s["gap"] else f"at most {s['gap']:.3%} above the fewest"
        return f"Packs({len(self):,} packs of {s['tokens']:,} tokens, {proof}, {s['waste']:.3%} empty)"


def _ragged(table: Any, name: str) -> Ragged:
    column = table[name].combine_chunks()
    column = column.chunk(0) if hasattr(column, "chunks") else column
    return Ragged.checked(column.values.to_numpy().astype(np.int64), column.offsets.to_numpy().astype(np.int64))


def _check(where: str, packs: Packs, tokens: NDArray[np.int64]) -> None:
    """Refuse packs that contradict their own description."""
    try:
        totals, cap = PackTotals(**packs.description["totals"]), packs.description["settings"]["tokens"]
    except (LookupError, TypeError):
        raise InputError(f"{where}: its description says no settings or no totals of its packs") from None
    offsets, lengths = packs.rows.offsets, packs.lengths.values
    rules = {
        "each of its lists must be as long as the others of its pack": np.array_equal(offsets, packs.starts.offsets)
        and np.array_equal(offsets, packs.lengths.offsets),
        "each pack must hold a piece, of length 1 or more": bool((np.diff(offsets) > 0).all() and (lengths > 0).all()),
        "rows and starts must be 0 or more": bool((packs.rows.values >= 0).all() and (packs.starts.values >= 0).all()),
    }
    # The rules below read lists side by side, which only makes sense once these are as long as each other.
    if all(rules.values()):
        ends = np.concatenate([[0], np.cumsum(lengths)])[offsets]
        sums, counts = np.diff(ends), np.diff(offsets)
        pieces = np.stack([packs.rows.values, packs.starts.values])
        rules |= {
            "tokens must be the sum of a pack's lengths": np.array_equal(sums, tokens),
            f"no pack of several pieces may hold more than {cap} tokens": not ((sums > cap) & (counts > 1)).any(),
            "no piece may be in two packs": len(np.unique(pieces, axis=1).T) == len(lengths),
            "its totals must be those of its packs": (totals.packs, totals.tokens) == (len(packs), int(sums.sum())),
        }
    if broken := [rule for rule, holds in rules.items() if not holds]:
        raise InputError(f"{where}: {broken[0]}")


def pack(
    log: LogPath | ArrayLike | Any, tokens: int, *, length: str | None = None, window_rows: int = WINDOW_ROWS,
    over_long: str = "error", even_cost: bool = False, cost: str = COST, per_step: int | None = None,
    out: str | os.PathLike[str] | None = None, resume: bool = False, overwrite: bool = False,
) -> Packs:  # fmt: skip
    """Pack samples for training: as few packs of at most `tokens` as were found, and a proof of how few there can be.

    Parameters
    ----------
    log : path, paths, table or int64[n]
        A log of lengths as ``balancer plan`` reads it; a DataFrame, an Arrow table, a data set of Hugging Face's or
        arrays by name; or the lengths themselves, in tokens.
    tokens : int
        The most tokens of a pack.
    length : str, optional
        Columns whose sum is the length; by default the only integer one, if it looks like lengths.
    window_rows : int
        Consecutive rows that are packed together, so that a sample stays near its place in the log.
    over_long : str
        A row over `tokens` is an ``error``, gets its ``own`` pack, is left out (``drop``), or is ``cut`` into
        pieces of `tokens`.
    even_cost : bool
        Packs of even cost, without using more packs.
    cost : str
        What a sample costs; a pack costs the sum, as attention stays inside documents.
    per_step : int, optional
        Packs of a step, such as one for each rank: the number of packs is a multiple, and packs of a step cost nearly
        the same.
    out : path, optional
        Also write the packs: a Parquet file, or with a trailing slash a folder with a part for each window.
    resume : bool
        Keep the parts that a killed run left in the folder.
    overwrite : bool
        Replace what is there, even if it is not packs of the same request.

    Returns
    -------
    Packs
        Never more than first fit or best fit decreasing make of the same windows.

    Raises
    ------
    InfeasibleError
        Naming the first row over `tokens`, with ``over_long="error"``.
    InputError
        The log cannot be read, changed while it was, or `out` cannot be written.
    UsageError
        A setting is none, or `out` holds something else.

    Notes
    -----
    O(n log n) time: a million rows take about half a second. The same packs everywhere: no clock is read.

    Examples
    --------
    >>> packs = pack([4, 5, 6, 5], 10)
    >>> packs.rows.to_lists(), packs.num_packs, packs.lower_bound
    ([[0, 2], [1, 3]], 2, 2)
    """
    settings = PackSettings(tokens, window_rows, over_long, cost, even_cost, per_step)
    _check_resumed(out, resume)
    if _are_lengths(log) and out is None:  # as trainers call it, step by step: no file is made of the lengths
        return _of_lengths(as_int64("lengths", np.asarray(log)), settings)
    kept: list[PackedWindow] = []
    target = None if out is None else os.fspath(out)
    with tempfile.TemporaryDirectory(prefix="seqbalancer-log-") as folder:
        source: Any = {"length": np.asarray(log)} if _are_lengths(log) else log
        if is_table(source):
            source = _written(source, folder)
        opened = open_log(source)
        totals = pack_run(opened, length, settings, target, resume=resume, overwrite=overwrite, kept=kept.append)
    if target is not None:
        return Packs.load(target)
    return _joined(kept, {"settings": settings.to_json(), "totals": totals.stored()})


def _check_resumed(out: str | os.PathLike[str] | None, resume: bool) -> None:
    """Refuse to go on from parts that are nowhere."""
    if resume and out is None:
        raise UsageError("{resume} needs {out}, the folder that the killed run wrote")


def _of_lengths(lengths: NDArray[np.int64], settings: PackSettings) -> Packs:
    """Pack lengths that are in memory."""
    if lengths.min(initial=0) < 0:
        row = int(lengths.argmin())
        raise UsageError(f"{{lengths}}[{row}] must be >= 0, got {lengths[row]}")
    totals, windows = PackTotals(), []
    for first in range(0, max(len(lengths), 1), settings.window_rows):
        windows.append(pack_window(lengths[first : first + settings.window_rows], settings, first))
        totals.add(windows[-1], settings)
    return _joined(windows, {"settings": settings.to_json(), "totals": totals.stored()})


def _are_lengths(log: Any) -> bool:
    """Whether this is a list or an array of numbers."""
    is_numbers = isinstance(log, list | tuple) and not any(isinstance(each, str | os.PathLike) for each in log)
    return is_numbers or (isinstance(log, np.ndarray) and log.dtype.names is None)


def _written(table: Any, folder: str) -> str:
    path = os.path.join(folder, "table.arrow")
    write_table(table, path)
    return path


def _joined(windows: Sequence[PackedWindow], description: dict[str, Any]) -> Packs:
    """Return windows as one set of packs."""
    pieces = {name: np.concatenate([getattr(window, name) for window in windows])
              for name in ("rows", "starts", "lengths", "costs")}  # fmt: skip
    begins = np.cumsum([0, *(int(window.offsets[-1]) for window in windows)])
    offsets = np.concatenate([[0], *(w.offsets[1:] + begin for w, begin in zip(windows, begins[:-1], strict=True))])
    steps, first = [], 0
    for window in windows:
        steps.append(window.steps + first)
        first += int(window.steps.max(initial=-1)) + 1
    rows, starts, lengths = (Ragged.checked(pieces[name], offsets) for name in ("rows", "starts", "lengths"))
    return Packs(rows, starts, lengths, pieces["costs"], np.concatenate(steps), description)


def pack_run(
    log: LengthLog, length: str | None, settings: PackSettings, out: str | None, *, resume: bool = False,
    overwrite: bool = False, kept: Callable[[PackedWindow], None] = lambda _: None,
    tick: Callable[[int], None] = lambda _: None,
) -> PackTotals:  # fmt: skip
    """Pack a log window by window and write the packs if `out` says where; return what they add up to.

    `out` is a file, or with a trailing slash, or where one exists, a folder, whose parts of a killed run are kept to
    `resume`. `kept` gets every window that is packed, and `tick` the rows done since. Memory is of one window.
    """
    _check_resumed(out, resume)
    columns = default_columns(log) if length is None else choose_length(log, length)
    request: dict[str, Any] = {"settings": settings.to_json(), "length": list(columns)}
    if out is not None:
        request["sources"] = _check_target(out, log, request, resume, overwrite)
    windows = _windows(log, columns, settings)
    if out is None:
        totals = PackTotals()
        for first, lengths in windows:
            window = _packed(log, lengths, settings, first)
            totals.add(window, settings)
            kept(window)
            tick(len(lengths))
    elif is_parts(out):
        totals = _into_parts(out, log, windows, settings, request, resume, tick)
    else:
        totals = _into_file(out, log, windows, settings, request, tick)
    return totals


def _windows(
    log: LengthLog, columns: tuple[str, ...], settings: PackSettings
) -> Iterator[tuple[int, NDArray[np.int64]]]:
    """Yield the lengths of each window, and the number of its first row."""
    held: list[NDArray[np.int64]] = []
    count = first = 0
    for block in read_columns(log, {"": columns}):
        lengths = block.sums[""]
        while len(lengths):
            taken = lengths[: settings.window_rows - count]
            held.append(taken)
            count, lengths = count + len(taken), lengths[len(taken) :]
            if count == settings.window_rows:
                yield first, np.concatenate(held)
                first, held, count = first + count, [], 0
    if count:
        yield first, np.concatenate(held)


def _packed(log: LengthLog, lengths: NDArray[np.int64], settings: PackSettings, first: int) -> PackedWindow:
    """Pack a window; errors name the log."""
    try:
        return pack_window(lengths, settings, first)
    except WordedError as error:
        raise error.within(str(log.path)) from None


def _table(window: PackedWindow, first_step: int) -> Any:
    numbers = {"tokens": window.tokens, "cost": window.costs}
    if len(window.steps):
        numbers["step"] = window.steps + first_step
    return pack_table(window.offsets, (window.rows, window.starts, window.lengths), numbers)


def _digest(window: PackedWindow) -> str:
    digest = hashlib.sha256()
    for array in (window.offsets, window.rows, window.starts, window.lengths, window.steps):
        digest.update(array.astype("<i8").tobytes())
    return digest.hexdigest()


def _into_file(
    out: str, log: LengthLog, windows: Iterator[tuple[int, NDArray[np.int64]]], settings: PackSettings,
    request: dict[str, Any], tick: Callable[[int], None],
) -> PackTotals:  # fmt: skip
    """Write one file."""
    totals, digests = PackTotals(), []
    with PackFile(out) as file:
        for first, lengths in windows:
            window = _packed(log, lengths, settings, first)
            file.write(_table(window, totals.steps))
            totals.add(window, settings)
            digests.append(_digest(window))
            tick(len(lengths))
        file.close(described(_description(log, request, totals, digests)))
    return totals


def _into_parts(
    out: str, log: LengthLog, windows: Iterator[tuple[int, NDArray[np.int64]]], settings: PackSettings,
    request: dict[str, Any], resume: bool, tick: Callable[[int], None],
) -> PackTotals:  # fmt: skip
    """Write a part for each window, and then the manifest; parts that are there are kept to resume."""
    totals = PackTotals()
    parts: list[dict[str, Any]] = []
    key = hashlib.sha256(to_json(request | {"producer": __version__, "sources": _contents(request)})).hexdigest()
    with PackFolder(out, key, resume=resume) as folder:
        for number, (first, lengths) in enumerate(windows):
            # A part is kept if it is whole and of this very request. A killed run leaves no half part behind.
            part = folder.whole(number)
            if part is None:
                window, of_window = _packed(log, lengths, settings, first), PackTotals()
                of_window.add(window, settings)
                about = {"key": key, "part": number, "rows": window.num_packs, "digest": _digest(window),
                         "totals": of_window.stored()}  # fmt: skip
                with PackFile(folder.part(number)) as file:
                    file.write(_table(window, totals.steps))
                    file.close(part := of_part(**about))
            totals.join(PackTotals(**part["totals"]))
            parts.append(part)
            tick(len(lengths))
        digests = [part["digest"] for part in parts]
        folder.commit(_description(log, request, totals, digests), parts)
    return totals


def _description(log: LengthLog, request: dict[str, Any], totals: PackTotals, digests: list[str]) -> dict[str, Any]:
    """Return what the file says, if the log is still the one that it was."""
    if _sources(log) != request["sources"]:
        raise InputError(f"{log.path}: changed while it was packed; pack it again once nobody writes to it")
    digest = hashlib.sha256("".join(digests).encode()).hexdigest()
    return request | {"totals": totals.stored(), "digest": digest, "producer": __version__}


def _sources(log: LengthLog) -> list[dict[str, Any]]:
    return [{"file": str(file), **contents_of(file), "format": log.format} for file in log.files]


def _contents(request: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the sources of a request without their names: a log that was moved is the same log."""
    return [{name: value for name, value in source.items() if name != "file"} for source in request["sources"]]


def _check_target(
    out: str, log: LengthLog, request: dict[str, Any], resume: bool, overwrite: bool
) -> list[dict[str, Any]]:
    """Refuse a place for packs before the work; the same request may write over what it wrote. Returns the sources."""
    if is_remote(out):
        raise InputError(f"{out}: packs are written to this machine's files; choose a local --out, and copy it")
    if resume and not is_parts(out):
        raise InputError(f"{out}: one file has no parts to resume; write a folder: {out}{os.sep}")
    if any(os.path.exists(out) and not is_remote(file) and os.path.samefile(file, out) for file in log.files):
        raise InputError(f"{out}: the packs would overwrite their log; choose another --out")
    suffix = Path(out).suffix.lower()
    if not is_parts(out) and suffix not in ("", ".parquet", ".pq"):
        raise InputError(f"{out}: packs are written as Parquet, so the name must not end in {suffix}; choose .parquet")
    sources = _sources(log)
    there = os.path.exists(os.path.join(out, MANIFEST)) if is_parts(out) else os.path.isfile(out)
    # What is there may be replaced without a word only if it is what would be written again.
    if there and not (overwrite or resume):
        asked = {**request, "sources": sources}
        try:
            found = about_packs(out)["description"]
            same = all(found[name] == asked[name] for name in ("settings", "length"))
            same = same and _contents(found) == _contents(asked)
        except (InputError, LookupError, TypeError):
            same = False
        if not same:
            raise UsageError("{there} holds something else than these packs", "{overwrite} replaces it", there=out)
    return sources
