"""Files of packs: one Parquet file, or a folder of parts with a manifest. A row is a pack, with lists of its pieces.

Readers that know nothing of this package see columns alone; what was asked for, and what came out, is JSON under the
key ``balancer.packs`` of the schema's metadata.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from balancer.errors import InputError
from balancer.io._atomic import (
    leftovers_of,
    open_temporary,
    remove_files,
    remove_leftovers,
    reported,
    sync_file,
    target_of,
)
from balancer.io.plan_folder import PlanFolder
from balancer.io.plan_format import MANIFEST, PART_NAME, from_json, manifest_of, to_json

PACKS_KEY = b"balancer.packs"
PACK_FORMAT, PACK_PART_FORMAT, PACK_VERSION = "balancer-packs", "balancer-packs-part", 1
PIECES = ("rows", "starts", "lengths")
_WRITE = "write packs here"
_ROWS_OF_GROUP = 1 << 16


def pack_table(
    offsets: NDArray[np.int64], pieces: Sequence[NDArray[np.int64]], numbers: Mapping[str, NDArray[np.int64]]
) -> Any:
    """Return packs as an Arrow table: lists ``rows``, ``starts``, ``lengths``, then one number a pack each."""
    lists = [pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pa.array(each, pa.int64())) for each in pieces]
    return pa.table([*lists, *(pa.array(each, pa.int64()) for each in numbers.values())], [*PIECES, *numbers])


class PackFile:
    """One Parquet file of packs, put in place by :meth:`close` as a whole or not at all."""

    def __init__(self, path: str) -> None:
        self._where = path
        self._target = target_of(path, _WRITE)
        self._folder, self._name = os.path.split(self._target)
        with reported(path, _WRITE):
            self._file, self._temporary, self._token = open_temporary(self._folder, self._name)
        self._writer: Any = None
        self.rows = 0

    def write(self, table: Any) -> None:
        """Append packs."""
        with reported(self._where, _WRITE):
            if self._writer is None:  # no Arrow schema at the start: it would hide the metadata of the end
                self._writer = pq.ParquetWriter(self._file, table.schema, store_schema=False, write_page_checksum=True)
            self._writer.write_table(table, row_group_size=_ROWS_OF_GROUP)
        self.rows += len(table)

    def close(self, about: Mapping[str, object]) -> None:
        """Finish the file, which says `about` itself."""
        with reported(self._where, _WRITE):
            self._writer.add_key_value_metadata({PACKS_KEY: to_json(about)})
            self._writer.close()
            # The content must be on disk before the name is: a power cut must not leave an empty file.
            sync_file(self._file)
            leftovers = leftovers_of(self._folder, self._name, self._token, None)
            os.replace(self._temporary, self._target)
            self._file.close()
        remove_leftovers(leftovers)

    def __enter__(self) -> PackFile:
        return self

    def __exit__(self, *error: object) -> None:
        if self._file.closed:
            return
        with suppress(Exception):  # the disk may be full; nobody reads this file again
            self._writer.close()
        self._file.close()
        remove_files([self._temporary])


class PackFolder(PlanFolder):
    """The folder of parts of packs while it is written; see :class:`PlanFolder`."""

    _noun, _whose, _verb = "set of packs", "that of packs", "pack"
    _format, _part_format, _version = PACK_FORMAT, PACK_PART_FORMAT, PACK_VERSION
    _of_part: ClassVar[tuple[str, ...]] = ("file", "rows", "digest")

    def _footer(self, path: Path) -> tuple[int, dict[str, Any]]:
        return _footer(path)

    def _header(self, description: Mapping[str, object], parts: Sequence[Mapping[str, Any]]) -> Mapping[str, object]:
        return described(description, key=self._key, parts=parts)


def described(description: Mapping[str, object], **more: object) -> dict[str, object]:
    """Return what a file or a manifest says of its packs."""
    return {"format": PACK_FORMAT, "version": PACK_VERSION, "description": description, **more}


def of_part(**about: object) -> dict[str, Any]:
    """Return what a part says of itself."""
    return {"format": PACK_PART_FORMAT, "version": PACK_VERSION, **about}


def _footer(path: Path) -> tuple[int, dict[str, Any]]:
    """Return the number of packs in a file and what it says of itself."""
    with reported(str(path), "read packs"):
        metadata = pq.read_metadata(path)
    found = from_json((metadata.metadata or {}).get(PACKS_KEY, b""))
    if found is None:
        raise InputError(f"{path}: holds no packs: nothing stands under the metadata key '{PACKS_KEY.decode()}'")
    return int(metadata.num_rows), found


def about_packs(path: str) -> dict[str, Any]:
    """Return the description of a file or folder of packs."""
    found = manifest_of(path) if os.path.isdir(path) else _footer(Path(path))[1]
    if found.get("format") == PACK_PART_FORMAT:
        raise InputError(f"{path}: is one part of several; name its folder")
    if found.get("format") != PACK_FORMAT or not isinstance(found.get("description"), dict):
        raise InputError(f'{path}: packs must say "format": "{PACK_FORMAT}", got {found.get("format")!r:.80}')
    if found.get("version") != PACK_VERSION:
        raise InputError(f"{path}: this release reads packs of format {PACK_VERSION}, got {found.get('version')!r:.80}")
    return found


def read_packs(path: str) -> tuple[Any, dict[str, Any]]:
    """Return the packs of a file or folder as an Arrow table, and their description.

    Raises InputError where a file is missing, damaged, or holds no packs.
    """
    found = about_packs(path)
    files = [path] if not os.path.isdir(path) else _parts_of(path, found)
    tables = []
    for file in files:
        with reported(file, "read packs"):
            tables.append(pq.ParquetFile(file, page_checksum_verification=True).read())
        if missing := [name for name in (*PIECES, "tokens", "cost") if name not in tables[-1].column_names]:
            raise InputError(f"{file}: holds no packs: has no column {', '.join(map(repr, missing))}")
    return pa.concat_tables(tables).combine_chunks().replace_schema_metadata(None), found["description"]


def _parts_of(path: str, manifest: Mapping[str, Any]) -> list[str]:
    """Return the files that a manifest names; names are matched, so that none leads out of the folder."""
    try:
        names = [part["file"] for part in manifest["parts"]]
        fine = bool(names) and all(PART_NAME.fullmatch(name) for name in names)
    except (LookupError, TypeError):
        fine = False
    if not fine:
        raise InputError(f"{os.path.join(path, MANIFEST)}: must name the parts of its packs")
    return [os.path.join(path, name) for name in names]
