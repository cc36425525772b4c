"""A log packed, window after window: the packs as arrays, and as a file."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import ArrayLike, NDArray

from balancer.errors import InputError
from balancer.io._atomic import target_of
from balancer.io.log_files import LogPath
from balancer.io.logs import LengthLog, choose_length, default_columns, open_log, read_columns
from balancer.io.pack_files import PIECES, describe_packs, read_packs, write_packs
from balancer.io.store import is_remote
from balancer.io.tables import is_table, write_table
from balancer.offline.pack_window import COST, WINDOW_ROWS, PackedWindow, PackSettings, pack_window, too_large
from balancer.problem.limits import AnyLimit, HeldLimits, held_limits
from balancer.problem.ragged import Ragged
from solvers.arguments import as_int64
from solvers.errors import UsageError, WordedError


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
        Settings, the SHA-256 of the lengths, and what of the log is in packs.
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

    @property
    def tokens(self) -> NDArray[np.int64]:
        """Tokens of each pack: int64[num_packs]."""
        ends = np.concatenate([[0], np.cumsum(self.lengths.values)])[self.rows.offsets]
        return np.diff(ends)

    def summary(self) -> dict[str, Any]:
        """Return the numbers by name, as ``balancer pack --json`` prints them.

        ``gap`` is how far the packs are above the bound at most, ``waste`` the part of what packs could hold that is
        empty, ``cost_max_over_mean`` the most costly pack over the mean. With steps, ``short_steps`` have fewer packs
        than the others, and ``step_idle`` is the part of ranks' time that they wait where every pack of a step runs on
        a rank of its own.
        """
        totals: dict[str, Any] = self.description["totals"]
        settings = self.description["settings"]
        tokens, costs = self.tokens, self.costs.astype(np.float64)
        room, size = np.maximum(settings["tokens"] - tokens, 0).sum(), settings["per_step"]
        of_steps: dict[str, Any] = {"steps": 0, "short_steps": 0, "step_idle": None}
        if size and len(self):
            packs_of_step = np.bincount(self.steps)
            slowest = np.maximum.reduceat(costs, np.cumsum(packs_of_step) - packs_of_step)
            # Ranks of a step wait for its most costly pack.
            idle = 1 - float(costs.sum() / (slowest.sum() * size)) if slowest.any() else 0.0
            of_steps = {"steps": len(slowest), "short_steps": int((packs_of_step < size).sum()), "step_idle": idle}
        return (
            totals
            | of_steps
            | {
                "gap": len(self) / self.lower_bound - 1 if len(self) else 0.0,
                "waste": float(room / (room + tokens.sum())) if len(self) else 0.0,
                "cost_max_over_mean": float(costs.max() / costs.mean()) if costs.any() else 1.0,
            }
        )

    def to_arrow(self) -> Any:
        """Return an Arrow table: lists ``rows``, ``starts``, ``lengths``; ``tokens``, ``cost``, maybe ``step``."""
        numbers = {"tokens": self.tokens, "cost": self.costs} | ({"step": self.steps} if len(self.steps) else {})
        offsets = pa.array(self.rows.offsets, pa.int32())
        lists = [pa.ListArray.from_arrays(offsets, pa.array(getattr(self, name).values, pa.int64())) for name in PIECES]
        return pa.table([*lists, *(pa.array(each, pa.int64()) for each in numbers.values())], [*PIECES, *numbers])

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write one Parquet file, as ``balancer pack --out`` does; what is there is replaced."""
        write_packs(os.fspath(path), self.to_arrow(), self.description)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Packs:
        """Read a file of packs, and check that it says what it holds.

        Raises
        ------
        InputError
            The file is no packs, is damaged, or its numbers contradict each other.
        """
        where = os.fspath(path)
        table, description = read_packs(where)
        rows, starts, lengths = (_ragged(table, name) for name in PIECES)
        numbers = {name: table[name].to_numpy() for name in table.column_names[3:]}
        found = cls(rows, starts, lengths, numbers["cost"], numbers.get("step", np.empty(0, np.int64)), description)
        _check(where, found, numbers["tokens"])
        return found

    def __repr__(self) -> str:
        s = self.summary()
        proof = "no fewer are possible" if not s["gap"] else f"at most {s['gap']:.3%} above the fewest"
        size, short = self.description["settings"]["per_step"], s["short_steps"]
        steps = f", {s['steps']:,} steps of {size}" if size else ""
        if short:
            is_last = short == 1 and np.count_nonzero(self.steps == self.steps[-1]) < size
            steps += ", the last step is short" if is_last else f", {short} steps are short"
        return f"Packs({len(self):,} packs of {s['tokens']:,} tokens, {proof}, {s['waste']:.3%} empty{steps})"


def _ragged(table: Any, name: str) -> Ragged:
    column = table[name].combine_chunks()
    column = column.chunk(0) if hasattr(column, "chunks") else column
    return Ragged.checked(column.values.to_numpy().astype(np.int64), column.offsets.to_numpy().astype(np.int64))


def _check(where: str, packs: Packs, tokens: NDArray[np.int64]) -> None:
    """Refuse packs that contradict their own description."""
    try:
        totals, settings = packs.description["totals"], packs.description["settings"]
        said, cap, _ = (
            (totals["packs"], totals["tokens"]),
            settings["tokens"],
            (settings["per_step"], packs.lower_bound),
        )
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
        sums, counts = packs.tokens, np.diff(offsets)
        pieces = np.stack([packs.rows.values, packs.starts.values])
        rules |= {
            "tokens must be the sum of a pack's lengths": np.array_equal(sums, tokens),
            f"no pack of several pieces may hold more than {cap} tokens": not ((sums > cap) & (counts > 1)).any(),
            "no piece may be in two packs": len(np.unique(pieces, axis=1).T) == len(lengths),
            "its totals must be those of its packs": said == (len(packs), int(sums.sum())),
        }
    if broken := [rule for rule, holds in rules.items() if not holds]:
        raise InputError(f"{where}: {broken[0]}")


def pack(
    log: LogPath | ArrayLike | Any, tokens: int, *, length: str | None = None, limits: Sequence[AnyLimit] = (),
    window_rows: int = WINDOW_ROWS, over_long: str = "error", even_cost: bool = False, cost: str = COST,
    per_step: int | None = None, out: str | os.PathLike[str] | None = None, overwrite: bool = False,
) -> Packs:  # fmt: skip
    """Pack samples for training: as few packs of at most `tokens` as were found, and a proof of how few there can be.

    Packs come in an order that does not drift: wherever an epoch is, its packs are of the same lengths, on average.

    Parameters
    ----------
    log : path, paths, table or int64[n]
        A log of lengths as ``balancer plan`` reads it; a DataFrame, an Arrow table, a data set of Hugging Face's or
        arrays by name; or the lengths themselves, in tokens.
    tokens : int
        The most tokens of a pack.
    length : str, optional
        Columns whose sum is the length; by default the only integer one, if it looks like lengths.
    limits : sequence of Limit and CountLimit
        What else a pack may hold: images, loss tokens; samples. A `Limit`'s amounts are columns, or of each row.
    window_rows : int
        Consecutive rows that are packed together, so that a sample stays near its place in the log.
    over_long : str
        A row over `tokens`, or over a limit, is an ``error``, gets its ``own`` pack, is left out (``drop``), or is
        ``cut`` into pieces of `tokens`.
    even_cost : bool
        Packs of even cost, without using more packs.
    cost : str
        What a sample costs; a pack costs the sum, as attention stays inside documents.
    per_step : int, optional
        Packs of a step, such as one for each rank. Packs of a step cost nearly the same. Their number is a multiple as
        far as samples can be divided: with fewer samples than that, the last step of a window is short.
    out : path, optional
        Also write the packs, to a Parquet file.
    overwrite : bool
        Replace what is there, even if it is not packs of the same request.

    Returns
    -------
    Packs
        Without limits, never more than best fit decreasing makes of the same windows.

    Raises
    ------
    InfeasibleError
        Naming the first row over `tokens` or a limit, with ``over_long="error"``, before anything is packed.
    InputError
        The log cannot be read, or `out` cannot be written.
    UsageError
        A setting is none, or `out` holds something else.

    Notes
    -----
    O(n log n) time: a million rows take about half a second, and up to 40 times as long where a limit on samples binds.
    The same packs everywhere: no clock is read.

    Examples
    --------
    >>> packs = pack([4, 5, 6, 5], 10)
    >>> packs.rows.to_lists(), packs.num_packs, packs.lower_bound
    ([[1, 3], [0, 2]], 2, 2)
    >>> pack([5, 7, 3, 5, 7], 7, per_step=3)
    Packs(5 packs of 27 tokens, no fewer are possible, 22.857% empty, 2 steps of 3, the last step is short)
    """
    settings = PackSettings(tokens, window_rows, over_long, cost, even_cost, per_step, limits)
    return pack_log(log, length, settings, None if out is None else os.fspath(out), overwrite)


def pack_log(
    log: Any, length: str | None, settings: PackSettings, out: str | None, overwrite: bool,
    tick: Callable[[int], None] = lambda _: None,
) -> Packs:  # fmt: skip
    """Do what :func:`pack` does; `tick` is called with the rows of each window that is packed."""
    where, lengths, held = _read(log, length, settings, out)
    digest = hashlib.sha256(lengths.astype("<i8").tobytes())
    if held is not None:
        digest.update(held.sizes.astype("<i8").tobytes())
    request = {"settings": settings.to_json(), "sha256": digest.hexdigest()}
    if out is not None and not overwrite:
        _check_there(out, request)
    try:
        over = too_large(lengths, settings, held)
        windows, size = [], settings.window_rows
        for first in range(0, max(len(lengths), 1), size):
            part = slice(first, first + size)
            held_here = None if held is None else held.of_samples(part)
            windows.append(pack_window(lengths[part], settings, first, held_here))
            tick(len(lengths[part]))
    except WordedError as error:
        raise error if where is None else error.within(where) from None
    totals = {
        "rows": len(lengths), "windows": len(windows), "empty": int((lengths == 0).sum()), "over_long": int(over.sum()),
        "dropped_tokens": int(lengths[over].sum()) if settings.over_long == "drop" else 0,
        "packs": sum(len(window.costs) for window in windows),
        "tokens": sum(int(window.lengths.sum()) for window in windows),
        "lower_bound": sum(window.lower_bound for window in windows),
    }  # fmt: skip
    packs = _joined(windows, settings.per_step, request | {"totals": totals})
    if out is not None:
        packs.save(out)
    return packs


def _read(
    log: Any, length: str | None, settings: PackSettings, out: str | None
) -> tuple[str | None, NDArray[np.int64], HeldLimits | None]:
    """Return the name of the log if it has one, the lengths of its rows, and the limits as arrays of them."""
    if out is not None and is_remote(out):
        raise InputError(f"{out}: packs are written to this machine's files; choose a local --out, and copy it")
    if out is not None and (suffix := Path(out).suffix.lower()) not in ("", ".parquet", ".pq"):
        raise InputError(f"{out}: packs are written as Parquet, so the name must not end in {suffix}; choose .parquet")
    if out is not None:
        target_of(out, "write packs here")
    if _are_lengths(log):  # as trainers call it, step by step
        lengths = as_int64("lengths", np.asarray(log))
        if lengths.min(initial=0) < 0:
            row = int(lengths.argmin())
            raise UsageError(f"{{lengths}}[{row}] must be >= 0, got {lengths[row]}")
        return None, lengths, held_limits(settings.limits, len(lengths), 1)
    with tempfile.TemporaryDirectory(prefix="seqbalancer-log-") as folder:
        if is_table(log):
            write_table(log, path := os.path.join(folder, "table.arrow"))
            log = path
        opened = open_log(log)
        if out is not None and any(_is_same(file, out) for file in opened.files):
            raise InputError(f"{out}: the packs would overwrite their log; choose another --out")
        lengths = _column(opened, default_columns(opened) if length is None else choose_length(opened, length))
        held = held_limits(
            settings.limits, len(lengths), 1, lambda name, _: _column(opened, choose_length(opened, name))
        )
        return str(opened.path), lengths, held


def _are_lengths(log: Any) -> bool:
    """Whether this is a list or an array of numbers."""
    is_numbers = isinstance(log, list | tuple) and not any(isinstance(each, str | os.PathLike) for each in log)
    return is_numbers or (isinstance(log, np.ndarray) and log.dtype.names is None)


def _column(log: LengthLog, columns: tuple[str, ...]) -> NDArray[np.int64]:
    return np.concatenate([block.sums[""] for block in read_columns(log, {"": columns})])


def _is_same(file: Path, out: str) -> bool:
    return os.path.exists(out) and not is_remote(file) and os.path.samefile(file, out)


def _check_there(out: str, request: dict[str, Any]) -> None:
    """Refuse to replace anything but what would be written again."""
    if not os.path.isfile(out):
        return
    try:
        found = describe_packs(out)
    except InputError:
        found = {}
    if any(found.get(name) != value for name, value in request.items()):
        raise UsageError("{there} holds something else than these packs", "{overwrite} replaces it", there=out)


def _joined(windows: Sequence[PackedWindow], per_step: int | None, description: dict[str, Any]) -> Packs:
    """Return windows as one set of packs."""
    joined = {name: np.concatenate([getattr(window, name) for window in windows]) for name in (*PIECES, "costs")}
    offsets = np.concatenate([[0], np.cumsum(np.concatenate([np.diff(window.offsets) for window in windows]))])
    # Steps are numbered on from window to window, each of which begins one.
    steps, first = [np.empty(0, np.int64)], 0
    if per_step is not None:
        for window in windows:
            steps.append(np.arange(window.num_packs) // per_step + first)
            first += -(-window.num_packs // per_step)
    rows, starts, lengths = (Ragged.checked(joined[name], offsets) for name in PIECES)
    return Packs(rows, starts, lengths, joined["costs"], np.concatenate(steps), description)
