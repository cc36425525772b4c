"""Which files a log is: one, several, those that a pattern matches, or those of a folder that holds one data set."""

import glob
import json
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from balancer.errors import InputError
from balancer.io.store import as_path, find, is_folder, is_remote

LogPath = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
"""What names a log: a path, or several whose rows follow one another."""

_SHARD = re.compile(r"-(\d{5})-of-(\d{5})$")
_KINDS = {
    ".parquet": "Parquet", ".pq": "Parquet", ".csv": "CSV", ".tsv": "CSV", ".jsonl": "JSON lines",
    ".ndjson": "JSON lines", ".arrow": "Arrow", ".arrows": "Arrow", ".feather": "Arrow", ".ipc": "Arrow",
    ".npy": "NumPy",
}  # fmt: skip
"""Names of files that make a folder a log. Not .json and .txt, as what is told of a data set is called."""
_COMPRESSED = re.compile(r"\.(gz|zst|zstd)$", re.IGNORECASE)


def files_of(path: LogPath) -> tuple[Path, ...]:
    """Return the files of a log in the order of their rows; nothing of their contents is read.

    The path is a file or a URI, which need not be there; a pattern such as ``logs/*.parquet``; or a folder: what
    Hugging Face's ``save_to_disk`` wrote or its cache holds, or files of one kind (Parquet, CSV, JSON lines, Arrow,
    NumPy), in folders of it too, in the order of their names. Several paths have their files one after the other.
    """
    if not isinstance(path, str | os.PathLike):
        return tuple(file for each in path for file in files_of(each))
    if "\0" in os.fspath(path):
        return (Path(path),)  # which is complained of where it is opened
    if is_remote(path):
        return _in_store(path)
    where = Path(path)
    if os.path.isdir(where):
        return _of_folder(where)
    # A file whose name holds `*` or `[` is taken as it is.
    if glob.has_magic(os.fspath(path)) and not os.path.exists(where):
        found = sorted(name for name in glob.glob(os.fspath(path), recursive=True) if os.path.isfile(name))
        if not found:
            raise InputError(f"{path}: no file matches this pattern")
        return tuple(map(Path, found))
    return (where,)


def _in_store(path: str | os.PathLike[str]) -> tuple[Path, ...]:
    """Return the files of a store: one, those of a pattern, or those of one kind below a folder."""
    where = as_path(path)
    if glob.has_magic(os.fspath(path)):
        found = find(path)
        if not found:
            raise InputError(f"{path}: no file matches this pattern")
    elif os.fspath(path).endswith("/") or (not where.suffix and is_folder(path)):
        return tuple(map(as_path, _of_one_kind(where, find(path))))
    else:
        return (where,)
    return tuple(as_path(file) for file in found)


def _of_folder(folder: Path) -> tuple[Path, ...]:
    if (folder / "dataset_dict.json").is_file():
        splits = sorted(child.name for child in folder.iterdir() if child.is_dir())
        raise InputError(f"{folder}: holds several splits ({', '.join(splits)}); name the folder of one")
    if (folder / "state.json").is_file():
        return _saved_to_disk(folder)
    # `cache-*` holds results of map() and filter(), `tmp*` is still being written: neither has the data set's rows.
    arrow = sorted(file for file in folder.glob("*.arrow") if not file.name.startswith(("cache-", ".", "tmp")))
    if arrow:
        return _cached(folder, arrow)
    return tuple(_of_one_kind(folder, (file for file in folder.rglob("*") if file.is_file())))


def _of_one_kind(folder: Path, files: Iterable[Any]) -> list[Path]:
    """Return which of the files below a folder are a log, in the order of their names; two kinds are refused."""
    kinds: dict[str, list[Path]] = {}
    for file in sorted(files):
        kind = _KINDS.get(Path(_COMPRESSED.sub("", file.name)).suffix.lower())
        # Spark and others put markers such as `_SUCCESS` beside their files; hidden ones are not finished.
        if kind is not None and not any(name.startswith((".", "_")) for name in file.relative_to(folder).parts):
            kinds.setdefault(kind, []).append(file)
    if not kinds:
        known = ", ".join(dict.fromkeys(_KINDS.values()))
        rule = f"a log is a file, a pattern, or a folder of files of one kind ({known})"
        raise InputError(f"{folder}: is a directory without any log; {rule}, so name a file in it")
    if len(kinds) > 1:
        shown = " and ".join(f"{kind} ({len(of)}, such as {of[0].relative_to(folder)})" for kind, of in kinds.items())
        pattern = folder / "**" / f"*{next(iter(kinds.values()))[0].suffix}"
        raise InputError(f"{folder}: holds files of several kinds: {shown}; a log is of one: name it, as '{pattern}'")
    return next(iter(kinds.values()))


def _saved_to_disk(folder: Path) -> tuple[Path, ...]:
    """Return the files that a ``state.json`` names."""
    state: Any = None
    try:
        state = json.loads((folder / "state.json").read_bytes())
        names = [entry["filename"] for entry in state["_data_files"]]
        plain = all(type(name) is str and name == os.path.basename(name) for name in names)
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        plain = False
    if not plain or not names:  # a name must not lead out of its folder
        raise InputError(f"{folder}: its state.json does not name the files of a data set; it may be damaged")
    for name in names:
        if not (folder / name).is_file():
            raise InputError(f"{folder}: its state.json names {name}, which is not there")
    return tuple(folder / name for name in names)


def _cached(folder: Path, files: Sequence[Path]) -> tuple[Path, ...]:
    """Return the shards of the one data set that a folder of Arrow files holds, all of them."""
    sets: dict[str, list[Path]] = {}
    for file in files:
        sets.setdefault(_SHARD.sub("", file.stem), []).append(file)
    if len(sets) > 1:
        name, shown = next(iter(sets)), ", ".join(sets)
        raise InputError(f"{folder}: holds several data sets ({shown}); name one, such as {folder / name}*.arrow")
    numbered = [match for file in files if (match := _SHARD.search(file.stem))]
    # A shard that is missing would shorten the log, and nobody would notice.
    if numbered and [int(match[1]) for match in numbered] != list(range(int(numbered[0][2]))):
        raise InputError(f"{folder}: has {len(files)} of the {int(numbered[0][2])} files of its data set")
    return tuple(files)
