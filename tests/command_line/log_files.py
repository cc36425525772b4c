"""Length logs in every format, and the rows of plan files."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq


def _ipc(path: Path, table: Any, make: Any) -> None:
    with pa.OSFile(str(path), "wb") as sink, make(sink, table.schema) as writer:
        writer.write_table(table)


def _csv(path: Path, columns: dict[str, list]) -> None:
    rows = [",".join(columns), *(",".join(map(str, row)) for row in zip(*columns.values(), strict=True))]
    path.write_text("\n".join(rows) + "\n")


def _jsonl(path: Path, columns: dict[str, list]) -> None:
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def _npy(path: Path, columns: dict[str, list]) -> None:
    np.save(path, np.rec.fromarrays([np.array(c) for c in columns.values()], names=",".join(columns)))


WRITERS = {
    "log.parquet": lambda path, columns: pq.write_table(pa.table(columns), path),
    "log.csv": _csv,
    "log.jsonl": _jsonl,
    "log.arrow": lambda path, columns: _ipc(path, pa.table(columns), pa.ipc.new_file),
    "log.arrows": lambda path, columns: _ipc(path, pa.table(columns), pa.ipc.new_stream),
    "log.feather": lambda path, columns: feather.write_feather(pa.table(columns), str(path)),
    "log.npy": _npy,
}


def write_log(path: Path, columns: dict[str, list]) -> Path:
    WRITERS[path.name](path, columns)
    return path


def write_csv(path: Path, lengths: list, column: str = "tokens") -> Path:
    _csv(path, {column: lengths})
    return path


def write_manifest(path: Path, durations: list) -> Path:
    rows = [{"audio_filepath": f"{i}.wav", "duration": d, "text": "a b"} for i, d in enumerate(durations)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def plan_rows(path: Path) -> list[dict[str, Any]]:
    return pq.read_table(path).to_pylist()
