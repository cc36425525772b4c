"""A log in the order of its epochs, without holding it: rows are sorted into files, from which parts are gathered.

A task reads some rows, finds where each stands in the epoch's order, and writes them in that order to one file, part by
part; whoever plans a part reads what is of it from all files. The order is that of
:func:`balancer.problem.shuffle.shuffled`, so it does not matter how many files there are.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from balancer.io._atomic import write_whole
from balancer.io.columns import as_numpy
from balancer.io.logs import LengthLog, Span
from balancer.io.store import exists, is_remote, opened, write
from balancer.offline.engines import Engine
from balancer.offline.settings import LogSettings
from balancer.problem.block import Block
from balancer.problem.ragged import Ragged
from balancer.problem.shuffle import unshuffled

_ROWS_PER_FILE = 2_000_000
_MOST_HELD = 1 << 25  # values of a log, which one process holds and orders in memory


class Scattered(NamedTuple):
    """Consecutive steps of an epoch that is shuffled: the number of the first one, and a batch of each of its files."""

    first_step: int
    batch: int
    files: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Task:
    """Rows to sort into a file, and what reads them."""

    settings: LogSettings
    span: Span
    num_rows: int
    epoch: int
    file: str
    read: Callable[..., Iterator[Block]]


def is_large(num_rows: int, num_columns: int) -> bool:
    """Whether a log is too large to be held by one process."""
    return num_rows * num_columns > _MOST_HELD


def scattered(
    log: LengthLog, counts: Sequence[int], settings: LogSettings, read: Callable[..., Iterator[Block]], folder: str,
    engine: Engine,
) -> list[tuple[str, ...]]:  # fmt: skip
    """Write the rows of all epochs to files in `folder`, which is there; return those of each epoch.

    A file that is there already is taken as it is.
    """
    num_rows, files, tasks = sum(counts), [], []
    for epoch in range(settings.epochs):
        names: list[str] = []
        for first in range(0, num_rows, _ROWS_PER_FILE):
            names.append(os.path.join(folder, f"rows-{epoch:03d}-{len(names):05d}.arrow"))
            span = Span.of(log, counts, first, min(first + _ROWS_PER_FILE, num_rows))
            tasks.append(_Task(settings, span, num_rows, epoch, names[-1], read))
        files.append(tuple(names))
    # Files are put in place whole, so one that is there was finished by a run before.
    left = [task for task in tasks if not exists(task.file)]
    for _ in engine.run(_scatter, enumerate(left), lambda _: None):
        pass
    return files


def _scatter(task: _Task, _: Any = None) -> dict[str, Any]:
    """Sort some rows by their position, and write a batch of those of each part."""
    settings, whole = task.settings, Block.concatenate(list(task.read(span=task.span)))
    rows = np.arange(task.span.first_row, task.span.first_row + len(whole))
    positions = unshuffled(rows, task.num_rows, int(settings.shuffle or 0), settings.first_epoch + task.epoch)
    size, begin = settings.samples_per_step, settings.begin_of(task.epoch)
    first_step, stop_step = (settings.first_step_of(epoch, task.num_rows) for epoch in (task.epoch, task.epoch + 1))
    order = np.argsort(positions, kind="stable")
    planned = np.searchsorted(positions[order], (begin, begin + (stop_step - first_step) * size)).tolist()
    order = order[slice(*planned)]
    parts = (first_step + (positions[order] - begin) // size) // settings.steps_per_part
    table = _as_arrow(whole.taken(order), positions[order], rows[order])
    first, last = first_step // settings.steps_per_part, (stop_step - 1) // settings.steps_per_part
    bounds = np.searchsorted(parts, np.arange(first, last + 2)).tolist()
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema) as writer:
        # A batch for each part, empty ones too: a part finds its rows by the batch's number alone.
        for start, stop in pairwise(bounds):
            writer.write_batch(table.slice(start, stop - start))
    content = sink.getvalue().to_pybytes()
    if is_remote(task.file):
        write(task.file, content)
    else:
        write_whole(task.file, content, "write rows of an epoch")
    return {}


def _as_arrow(block: Block, positions: NDArray[np.int64], rows: NDArray[np.int64]) -> Any:
    columns = {"position": pa.array(positions), "row": pa.array(rows)}
    columns |= {f"sum {name}": pa.array(values) for name, values in block.sums.items()}
    columns |= {f"key {name}": pa.array(values) for name, values in block.keys.items()}
    columns |= {
        f"list {name}": pa.LargeListArray.from_arrays(pa.array(lists.offsets), pa.array(lists.values))
        for name, lists in block.lists.items()
    }
    return pa.RecordBatch.from_pydict(columns)


def gathered(found: Scattered) -> tuple[Block, NDArray[np.int64]]:
    """Return the rows of some steps in their order, and which rows of the log they are."""
    batches = []
    for file in found.files:
        with opened(file) as source:
            batches.append(pa.ipc.open_file(source).get_batch(found.batch))
    table = pa.Table.from_batches(batches).combine_chunks()
    whole = {name: table.column(name).chunk(0) for name in table.schema.names}
    order = np.argsort(as_numpy(whole["position"]), kind="stable")
    named: dict[str, dict[str, Any]] = {"sum": {}, "key": {}, "list": {}}
    for full, column in whole.items():
        kind, _, name = full.partition(" ")
        if kind == "list":
            named[kind][name] = Ragged(as_numpy(column.values), as_numpy(column.offsets).astype(np.int64))
        elif kind in named:
            is_text = pa.types.is_string(column.type)
            named[kind][name] = np.array(column.to_pylist(), dtype=object) if is_text else as_numpy(column)
    block = Block(named["sum"], named["key"], named["list"]).taken(order)
    return block, as_numpy(whole["row"])[order]
