"""A log packed: the packs as arrays, and as a file."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import ArrayLike, NDArray

from balancer.errors import InputError
from balancer.io._atomic import target_of
from balancer.io.log import LengthLog, choose_length, default_columns, open_log, read_columns
from balancer.io.log_files import LogPath
from balancer.io.pack_files import PIECES, describe_packs, read_packs, write_packs
from balancer.io.plan_format import to_json
from balancer.io.store import is_remote
from balancer.offline.packed_rows import COST, PackSettings, pack_rows
from balancer.offline.target import is_same
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
    description : dict
        Settings, the SHA-256 of the lengths, and what of the log is in packs.
    """

    rows: Ragged
    starts: Ragged
    lengths: Ragged
    costs: NDArray[np.int64]
    description: dict[str, Any]

    def __len__(self) -> int:
        return len(self.costs)

    @property
    def lower_bound(self) -> int:
        """Proven: under the same settings no packs are fewer."""
        return int(self.description["totals"]["lower_bound"])

    @property
    def tokens(self) -> NDArray[np.int64]:
        """Tokens of each pack: int64[num_packs]."""
        ends = np.concatenate([[0], np.cumsum(self.lengths.values)])[self.rows.offsets]
        return np.diff(ends)

    @property
    def steps(self) -> NDArray[np.int64]:
        """The step of each pack: int64[num_packs]; empty unless packs were made for steps."""
        size = self.description["settings"]["per_step"]
        return np.arange(len(self) if size else 0) // (size or 1)

    def summary(self) -> dict[str, Any]:
        """Return the numbers by name, as ``balancer pack --json`` prints them.

        ``gap`` is how far the packs are above the bound at most, ``waste`` the part of what packs could hold that is
        empty, ``cost_max_over_mean`` the most costly pack over the mean. With steps, ``last_step_lacks`` is how many
        packs the last one has fewer than the others, and ``step_idle`` the part of ranks' time that they wait where
        every pack of a step runs on a rank of its own.
        """
        totals: dict[str, Any] = self.description["totals"]
        settings = self.description["settings"]
        tokens, costs = self.tokens, self.costs.astype(np.float64)
        room, size = np.maximum(settings["tokens"] - tokens, 0).sum(), settings["per_step"]
        of_steps: dict[str, Any] = {"steps": 0, "last_step_lacks": 0, "step_idle": None}
        if size and len(self):
            # Ranks of a step wait for its most costly pack.
            slowest = np.maximum.reduceat(costs, np.arange(0, len(self), size))
            idle = 1 - float(costs.sum() / (slowest.sum() * size)) if slowest.any() else 0.0
            of_steps = {"steps": len(slowest), "last_step_lacks": -len(self) % size, "step_idle": idle}
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
        numbers = {"tokens": self.tokens, "cost": self.costs}
        if self.description["settings"]["per_step"]:
            numbers["step"] = self.steps
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
            The file holds no packs, or others than were written.
        """
        where = os.fspath(path)
        table, description = read_packs(where)
        rows, starts, lengths = (_ragged(table, name) for name in PIECES)
        found = cls(rows, starts, lengths, table["cost"].to_numpy(), description)
        if description.get("digest") != found.digest() or not found.to_arrow().equals(table):
            raise InputError(f"{where}: its packs, or what is said of them, are not what was written: pack again")
        return found

    def digest(self) -> str:
        """Return the SHA-256 of the packs and what they are, the same on every machine."""
        about = {name: value for name, value in self.description.items() if name != "digest"}
        found = hashlib.sha256(to_json(about))
        for each in (self.rows, self.starts, self.lengths):
            found.update(each.offsets.astype("<i8").tobytes() + each.values.astype("<i8").tobytes())
        found.update(self.costs.astype("<i8").tobytes())
        return found.hexdigest()

    def words(self) -> list[str]:
        """Say how many packs there are, that no fewer may be possible, and how full they are; and their steps."""
        found, size = self.summary(), self.description["settings"]["per_step"]
        proof = "no fewer are possible"
        if found["gap"]:
            proof = f"at least {self.lower_bound:,} are needed: at most {found['gap']:.3%} more"
        steps = [f"{found['steps']:,} steps of {size}"] if size else []
        short = ["the last step is short"] if found["last_step_lacks"] else []
        return [
            f"{len(self):,} packs of {found['tokens']:,} tokens", proof, f"{found['waste']:.3%} empty", *steps, *short
        ]  # fmt: skip

    def __repr__(self) -> str:
        return f"Packs({', '.join(self.words())})"


def _ragged(table: Any, name: str) -> Ragged:
    column = table[name].combine_chunks()
    column = column.chunk(0) if hasattr(column, "chunks") else column
    return Ragged.checked(column.values.to_numpy().astype(np.int64), column.offsets.to_numpy().astype(np.int64))


def pack(
    log: LogPath | ArrayLike | Any, tokens: int, *, length: str | None = None, limits: Sequence[AnyLimit] = (),
    over_long: str = "error", even_cost: bool = False, cost: str = COST, per_step: int | None = None,
    out: str | os.PathLike[str] | None = None, overwrite: bool = False,
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
    over_long : str
        A row over `tokens`, or over a limit, is an ``error``, gets its ``own`` pack, is left out (``drop``), or is
        ``cut`` into pieces of `tokens`.
    even_cost : bool
        Packs of even cost, without using more packs.
    cost : str
        What a sample costs; a pack costs the sum, as attention stays inside documents.
    per_step : int, optional
        Packs of a step, such as one for each rank. Packs of a step cost nearly the same. Their number is a multiple as
        far as samples can be divided: with fewer samples than that, the last step is short.
    out : path, optional
        Also write the packs, to a Parquet file.
    overwrite : bool
        Replace what is there, even if it is not packs of the same request.

    Returns
    -------
    Packs
        Without limits on sums, never more than best fit decreasing makes.

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
    O(n log n) time: a million rows take about half a second. The same packs everywhere: no clock is read.

    Examples
    --------
    >>> packs = pack([4, 5, 6, 5], 10)
    >>> packs.rows.to_lists(), len(packs), packs.lower_bound
    ([[1, 3], [0, 2]], 2, 2)
    >>> pack([5, 7, 3, 5, 7], 7, per_step=3)
    Packs(5 packs of 27 tokens, no fewer are possible, 22.857% empty, 2 steps of 3, the last step is short)
    """
    settings = PackSettings(tokens, over_long, cost, even_cost, per_step, limits)
    target = None if out is None else os.fspath(out)
    where, lengths, held = _read(log, length, settings, target)
    digest = hashlib.sha256(lengths.astype("<i8").tobytes())
    if held is not None:
        digest.update(held.sizes.astype("<i8").tobytes())
    request = {"settings": settings.to_json(), "sha256": digest.hexdigest()}
    if target is not None and not overwrite:
        _check_there(target, request)
    try:
        found = pack_rows(lengths, settings, held)
    except WordedError as error:
        raise error if where is None else error.within(where) from None
    totals = {
        "rows": len(lengths), "empty": int((lengths == 0).sum()), "over_long": int(found.over.sum()),
        "dropped_tokens": int(lengths[found.over].sum()) if settings.over_long == "drop" else 0,
        "packs": len(found.costs), "tokens": int(found.lengths.sum()), "lower_bound": found.lower_bound,
    }  # fmt: skip
    rows, starts, pieces = (Ragged(each, found.offsets) for each in (found.rows, found.starts, found.lengths))
    packs = Packs(rows, starts, pieces, found.costs, request | {"totals": totals})
    packs.description["digest"] = packs.digest()
    if target is not None:
        packs.save(target)
    return packs


def _read(
    log: Any, length: str | None, settings: PackSettings, out: str | None
) -> tuple[str | None, NDArray[np.int64], HeldLimits | None]:
    """Return the name of the log if it has one, the lengths of its rows, and the limits as arrays of them."""
    if out is not None:
        _check_target(out)
    if _are_lengths(log):  # as trainers call it, step by step
        lengths = as_int64("lengths", np.asarray(log))
        if lengths.min(initial=0) < 0:
            row = int(lengths.argmin())
            raise UsageError(f"{{lengths}}[{row}] must be >= 0, got {lengths[row]}")
        return None, lengths, held_limits(settings.limits, len(lengths), 1)
    opened = open_log(log)
    if out is not None and any(is_same(file, out) for file in opened.files):
        raise InputError(f"{out}: the packs would overwrite their log; choose another --out")
    lengths = _column(opened, default_columns(opened) if length is None else choose_length(opened, length))
    held = held_limits(settings.limits, len(lengths), 1, lambda name, _: _column(opened, choose_length(opened, name)))
    return str(opened.path), lengths, held


def _check_target(out: str) -> None:
    """Refuse a place where no packs can be written, before the work."""
    if is_remote(out):
        raise InputError(f"{out}: packs are written to this machine's files; choose a local --out, and copy it")
    if (suffix := Path(out).suffix.lower()) not in ("", ".parquet", ".pq"):
        raise InputError(f"{out}: packs are written as Parquet, so the name must not end in {suffix}; choose .parquet")
    target_of(out, "write packs here")


def _are_lengths(log: Any) -> bool:
    """Whether this is a list or an array of numbers."""
    is_numbers = isinstance(log, list | tuple) and not any(isinstance(each, str | os.PathLike) for each in log)
    return is_numbers or (isinstance(log, np.ndarray) and log.dtype.names is None)


def _column(log: LengthLog, columns: tuple[str, ...]) -> NDArray[np.int64]:
    return read_columns(log, {"": columns}).sums[""]


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
