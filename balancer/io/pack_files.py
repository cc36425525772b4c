"""Files of packs: one Parquet file, of which a row is a pack, with lists of its pieces.

Readers that know nothing of this package see columns alone; what was asked for, and what came out, is JSON under the
key ``balancer.packs`` of the schema's metadata.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from balancer.errors import InputError
from balancer.io._atomic import reported, write_whole
from balancer.io.plan_format import from_json, to_json

PACKS_KEY = b"balancer.packs"
PIECES = ("rows", "starts", "lengths")
_FORMAT, _VERSION = "balancer-packs", 3
_ROWS_OF_GROUP = 1 << 16


def write_packs(path: str, table: Any, description: Mapping[str, object]) -> None:
    """Write packs and what they are; the same ones are the same bytes. What is there is replaced as a whole."""
    about = to_json({"format": _FORMAT, "version": _VERSION, "description": description})
    file = pa.BufferOutputStream()
    described = table.replace_schema_metadata({PACKS_KEY: about})
    pq.write_table(described, file, row_group_size=_ROWS_OF_GROUP, write_page_checksum=True)
    write_whole(path, file.getvalue(), "write packs here")


def describe_packs(path: str) -> dict[str, Any]:
    """Return the description of a file of packs; InputError where it holds none that this release reads."""
    with reported(path, "read packs"):
        metadata = pq.read_metadata(path).metadata or {}
    found = from_json(metadata.get(PACKS_KEY, b""))
    if found is None:
        raise InputError(f"{path}: holds no packs: nothing stands under the metadata key '{PACKS_KEY.decode()}'")
    if found.get("format") != _FORMAT or not isinstance(found.get("description"), dict):
        raise InputError(f'{path}: packs must say "format": "{_FORMAT}", got {found.get("format")!r:.80}')
    if found.get("version") != _VERSION:
        version = repr(found.get("version"))[:80]
        raise InputError(f"{path}: holds packs of format {version}, and format {_VERSION} is read: pack the log again")
    return dict(found["description"])


def read_packs(path: str) -> tuple[Any, dict[str, Any]]:
    """Return the packs of a file as an Arrow table, and their description.

    Raises InputError where the file is missing, damaged, or holds no packs.
    """
    description = describe_packs(path)
    with reported(path, "read packs"):
        table = pq.ParquetFile(path, page_checksum_verification=True).read()
    if missing := [name for name in (*PIECES, "tokens", "cost") if name not in table.column_names]:
        raise InputError(f"{path}: holds no packs: has no column {', '.join(map(repr, missing))}")
    return table.combine_chunks().replace_schema_metadata(None), description
