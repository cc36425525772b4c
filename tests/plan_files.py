"""Plan files written as `balancer plan` writes them, read as anyone with pyarrow reads them, and changed by hand."""

import hashlib
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from balancer.offline.run import plan_run
from balancer.offline.step_table import restored, stored, table_of
from balancer.offline.steps import plan_log


def write_plan(path, log, settings):
    """Plan a log, write the plan, a file or a folder of parts, and return the step plans."""
    plan_run(log, settings, str(path), who=1, overwrite=True)
    return list(plan_log(log, settings))


def header_of(path):
    """What stands before the rows in a file, or in the first part of a folder."""
    return json.loads(pq.read_schema(first_of(path)).metadata[b"balancer"])


def first_of(path):
    """The file itself, or the first part of a folder."""
    return min(Path(path).glob("part-*")) if Path(path).is_dir() else path


def description_of(path):
    return header_of(path)["description"]


def with_header(path, header, rows=None):
    """Replace what stands before the rows, an object or text as it is, and the rows where there are others."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path = first_of(path)
    rows = pq.read_table(path) if rows is None else rows
    pq.write_table(rows.replace_schema_metadata({b"balancer": text}), path)


def sealed(header):
    """Return a header that says of all that is in it that it is what was written."""
    own = ("format", "version", "description_sha256", "beside_sha256", "description")
    beside = {name: value for name, value in header.items() if name not in own}
    found = {"description_sha256": header["description"], "beside_sha256": beside}
    texts = {name: json.dumps(value, sort_keys=True).encode() for name, value in found.items()}
    return header | {name: hashlib.sha256(text).hexdigest() for name, text in texts.items()}


def retold(path, **columns):
    """Change whole columns of a plan's table of steps, as if it had been written so: a function of each row's cell."""
    header = header_of(path)
    rows = restored(header["table_of_steps"]).to_pylist()
    for row in rows:
        row |= {name: change(row[name]) for name, change in columns.items()}
    with_header(path, sealed(header | {"table_of_steps": stored(table_of(rows))}))


def tamper(path, rows=lambda rows: None, description=lambda description: None):
    """Rewrite a plan file with its rows and its description changed in place, as if it had been written so."""
    table, header = pq.read_table(path), header_of(path)
    cells = table.to_pylist()
    rows(cells)
    description(header["description"])
    with_header(path, sealed(header), pa.Table.from_pylist(cells, schema=table.schema))
