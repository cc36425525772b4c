"""Replacing files as a whole or not at all.

Whatever this package writes comes here: :func:`target_of` refuses what is no regular file. A new file grows under a
temporary name that begins with a dot, and is then renamed into place. A killed run leaves such a file, which nobody
reads.
"""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import BinaryIO

import pyarrow as pa

from balancer.errors import InputError, on_a_line


@contextmanager
def reported(where: str, doing: str) -> Iterator[None]:
    """Turn what the system or pyarrow raises into an InputError of one line that names the path."""
    try:
        yield
    except (OSError, pa.ArrowException) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise InputError(f"{where}: cannot {doing}: {reason.split(chr(10))[0]}") from error


def check_regular(path: str | os.PathLike[str], remedy: str = "") -> None:
    """Refuse pipes and devices, which may never end; folders are not checked here."""
    mode = os.stat(path).st_mode
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        raise InputError(f"{on_a_line(os.fspath(path))}: is {_kind(mode)}, and no regular file{remedy}")


def _kind(mode: int) -> str:
    return "a pipe" if stat.S_ISFIFO(mode) else "a socket or device"


def check_folder(where: str, folder: str, doing: str) -> None:
    """Refuse a place below what is no folder."""
    if not os.path.isdir(folder):
        rule = "is not a folder" if os.path.lexists(folder) else "does not exist"
        raise InputError(f"{where}: cannot {doing}: the folder {folder} {rule}")


def target_of(where: str, doing: str) -> str:
    """Return the file that a write replaces, which is what a link points to; refuse all but regular files.

    Who works long before it writes asks before the work. Raises InputError.
    """
    if not where or "\0" in where:
        raise InputError(f"{where!r}: cannot {doing}: this is not a path")
    target = os.path.realpath(where)
    if where.endswith((os.sep, "/")) or os.path.isdir(target):
        raise InputError(f"{where}: cannot {doing}: it is one file, and this is a folder; choose another name")
    with reported(where, doing):
        check_folder(where, os.path.dirname(target), doing)
        with suppress(FileNotFoundError):
            mode = os.stat(where).st_mode  # of the name given: what /dev/stdout leads to has no other
            if not stat.S_ISREG(mode):
                rule = "only regular files are replaced; choose another name"
                raise InputError(f"{where}: cannot {doing}: it is {_kind(mode)}, and {rule}")
    return target


def sync_file(file: BinaryIO) -> None:
    """Make what was written to a file survive a power cut."""
    file.flush()
    os.fsync(file.fileno())


def sync_folder(folder: str) -> None:
    """Make renames in a folder survive a power cut, where the system lets a folder be synced."""
    with suppress(OSError):
        # A rename is an entry of the folder: the file's own sync does not write it to disk.
        fd = os.open(folder, os.O_RDONLY)
        with suppress(OSError):
            os.fsync(fd)
        os.close(fd)


def open_temporary(folder: str, name: str) -> tuple[BinaryIO, str]:
    """Create ``.<name>.<token>.tmp``, and return file and path; readers of folders pass such names over."""
    path = os.path.join(folder, f".{name}.{secrets.token_hex(4)}.tmp")
    return open(path, "xb"), path  # open until it is renamed


def write_whole(path: str, content: bytes, doing: str) -> None:
    """Write a file that is there as a whole or not at all; raises InputError, in which `doing` says what failed."""
    target = target_of(path, doing)
    with reported(path, doing):
        file, temporary = open_temporary(*os.path.split(target))
        try:
            with file:
                file.write(content)
            os.replace(temporary, target)
        except BaseException:
            remove_files([temporary])
            raise


def remove_files(paths: Iterable[str]) -> None:
    """Delete files; one that cannot be deleted is litter, not a failure."""
    for path in paths:
        with suppress(OSError):
            os.unlink(path)
