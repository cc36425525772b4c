"""Writers of logs: each takes a mapping of column name to Python values and writes it down its own way; readers."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from balancer.errors import InputError
from balancer.io.log import default_length, open_log, read_columns

LARGEST = 2**63 - 1


def _table(data):
    return pa.table({name: pa.array(values) for name, values in data.items()})


def write_parquet(path, data):
    pq.write_table(_table(data), path)


def write_arrow_file(path, data):
    table = _table(data)
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)


def write_arrow_stream(path, data):
    table = _table(data)
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)


def write_feather(path, data):
    table = _table(data)
    options = pa.ipc.IpcWriteOptions(compression="lz4")
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema, options=options) as writer:
        writer.write_table(table)


def write_csv(path, data, delimiter=","):
    def text(value):
        return "" if value is None else str(value)

    lines = [delimiter.join(data)]
    lines += [delimiter.join(map(text, row)) for row in zip(*data.values(), strict=True)]
    path.write_text("\n".join(lines) + "\n")


def write_tsv(path, data):
    write_csv(path, data, delimiter="\t")


def write_jsonl(path, data):
    rows = [dict(zip(data, row, strict=True)) for row in zip(*data.values(), strict=True)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def write_npy(path, data):
    """Write a structured array; its dtypes are numpy's own choice for the values."""
    arrays = {name: np.array(values) for name, values in data.items()}
    table = np.empty(len(next(iter(arrays.values()))), dtype=[(name, a.dtype) for name, a in arrays.items()])
    for name, array in arrays.items():
        table[name] = array
    np.save(path, table)


WRITERS = {
    "parquet": (write_parquet, "log.parquet", "parquet"),
    "arrow_file": (write_arrow_file, "log.arrow", "arrow"),
    "arrow_stream": (write_arrow_stream, "log.arrows", "arrow"),
    "feather": (write_feather, "log.feather", "arrow"),
    "csv": (write_csv, "log.csv", "csv"),
    "tsv": (write_tsv, "log.tsv", "csv"),
    "jsonl": (write_jsonl, "log.jsonl", "jsonl"),
    "npy": (write_npy, "log.npy", "npy"),
}
NO_NULLS = {"npy"}
every_format = pytest.mark.parametrize("kind", WRITERS)
every_format_with_nulls = pytest.mark.parametrize("kind", [kind for kind in WRITERS if kind not in NO_NULLS])


def write(kind, folder, data):
    writer, name, _ = WRITERS[kind]
    path = folder / name
    writer(path, data)
    return path


def lengths_of(path, *columns):
    log = open_log(path)
    columns = columns or default_length(log)
    return read_columns(log, {"all": columns}).sums["all"].tolist()


def failure(path, *columns):
    """Give the message of the error that reading ends in, after checking the form that all of them share."""
    with pytest.raises(InputError) as caught:
        lengths_of(path, *columns)
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert len(message.splitlines()) <= 2
    return message.removeprefix(f"{path}: ")
