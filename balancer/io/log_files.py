"""Which files a log is: one, those that a pattern matches, or those of a folder that holds one data set."""

import glob
import json
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from balancer.errors import InputError
from balancer.io.store import as_path, find, is_folder, is_remote

__all__ = ["files_of"]

_SHARD = re.compile(r"-(\d{5})-of-(\d{5})$")


def files_of(path: str | os.PathLike[str]) -> tuple[Path, ...]:
    """Return the files of a log in the order of their rows; nothing of their contents is read.

    The path is a file or a URI, which need not be there; a pattern such as ``logs/*.parquet``; or a folder: what
    Hugging Face's ``save_to_disk`` wrote or its cache holds, or Parquet files, in folders of it too, in the order of
    their names.
    """
    if is_remote(path):
        return _in_store(path)
    where = Path(path)
    if os.path.isdir(where):
        return _of_folder(where)
    if glob.has_magic(os.fspath(path)) and not os.path.exists(where):
        found = sorted(name for name in glob.glob(os.fspath(path), recursive=True) if os.path.isfile(name))
        if not found:
            raise InputError(f"{path}: no file matches this pattern")
        return tuple(map(Path, found))
    return (where,)


def _in_store(path: str | os.PathLike[str]) -> tuple[Path, ...]:
    """Return the files of a store: one, those of a pattern, or the Parquet files below a folder."""
    where = as_path(path)
    if glob.has_magic(os.fspath(path)):
        found = find(path)
        if not found:
            raise InputError(f"{path}: no file matches this pattern")
    elif os.fspath(path).endswith("/") or (not where.suffix and is_folder(path)):
        below = find(path)
        found = [
            file for file in below
            if file.suffix == ".parquet" and not any(n.startswith((".", "_")) for n in file.relative_to(where).parts)
        ]  # fmt: skip
        if str(where / "manifest.json") in map(str, below):
            raise InputError(f"{path}: is the folder of a plan, or of something else with a manifest.json, and no log")
        if not found:
            raise InputError(f"{path}: there are no Parquet files below this folder")
    else:
        return (where,)
    return tuple(as_path(file) for file in found)


def _of_folder(folder: Path) -> tuple[Path, ...]:
    if (folder / "dataset_dict.json").is_file():
        splits = sorted(child.name for child in folder.iterdir() if child.is_dir())
        raise InputError(f"{folder}: holds several splits ({', '.join(splits)}); name the folder of one")
    if (folder / "state.json").is_file():
        return _saved_to_disk(folder)
    arrow = sorted(file for file in folder.glob("*.arrow") if not file.name.startswith(("cache-", ".", "tmp")))
    if arrow:
        return _cached(folder, arrow)
    if (folder / "manifest.json").is_file():
        raise InputError(f"{folder}: is the folder of a plan, or of something else with a manifest.json, and no log")
    parquet = sorted(
        file for file in folder.rglob("*.parquet") if not any(n.startswith((".", "_")) for n in _below(folder, file))
    )
    if not parquet:
        rule = "a log is one file, a pattern, or a folder of Parquet files or of a data set of Hugging Face's"
        raise InputError(f"{folder}: is a directory without any; {rule}, so name a file in it")
    return tuple(parquet)


def _below(folder: Path, file: Path) -> Sequence[str]:
    return file.relative_to(folder).parts


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
    if numbered and [int(match[1]) for match in numbered] != list(range(int(numbered[0][2]))):
        raise InputError(f"{folder}: has {len(files)} of the {int(numbered[0][2])} files of its data set")
    return tuple(files)
