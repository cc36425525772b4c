"""Replacing files as a whole or not at all: locked temporary files, removal of those of killed runs, syncing.

A new file grows under a temporary name, locked as long as its process lives, and is then renamed into place. A
temporary whose lock is free is what a killed run left; the next run that succeeds removes it.
"""

from __future__ import annotations

import os
import re
import secrets
import stat
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import BinaryIO

import pyarrow as pa

from balancer.errors import InputError, on_a_line

if sys.platform != "win32":
    import fcntl


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
        kind = "a pipe" if stat.S_ISFIFO(mode) else "a socket or device"
        raise InputError(f"{on_a_line(os.fspath(path))}: is {kind}, and no regular file{remedy}")


def sync_file(file: BinaryIO) -> None:
    """Make what was written to a file survive a power cut."""
    file.flush()
    os.fsync(file.fileno())


def sync_folder(folder: str) -> None:
    """Make renames in a folder survive a power cut, where the system lets a folder be synced."""
    with suppress(OSError):
        fd = os.open(folder, os.O_RDONLY)
        with suppress(OSError):
            os.fsync(fd)
        os.close(fd)


def _lock(file: BinaryIO) -> bool:
    """Take the lock of an open file; False where another process has it or the system has no locks."""
    if sys.platform == "win32":
        return False
    with suppress(OSError):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False


def open_temporary(folder: str, name: str) -> tuple[BinaryIO, str, str]:
    """Create ``.<name>.<token>.tmp``, locked, and return file, path and token."""
    while True:
        token = secrets.token_hex(4)
        path = os.path.join(folder, f".{name}.{token}.tmp")
        file = open(path, "xb")  # noqa: SIM115 (open until it is renamed)
        _lock(file)
        if os.path.exists(path):
            return file, path, token
        file.close()  # another run's clean-up came between creating and locking: take a new name


def claim_temporary(folder: str, name: str, token: str) -> tuple[BinaryIO, str]:
    """Create ``.<name>.<token>.tmp``, locked and empty, or take over what a killed run left; never a living one's."""
    path = os.path.join(folder, f".{name}.{token}.tmp")
    while True:
        file = open(path, "ab")  # noqa: SIM115 (open until it is renamed)
        if _is_held(file):
            file.close()
            raise InputError(f"{path}: another process is writing this plan; wait for it, or choose another folder")
        if os.path.exists(path):
            file.truncate(0)
            return file, path
        file.close()  # it was put in place, or cleaned up, between opening and locking


def _is_held(file: BinaryIO) -> bool:
    """Take the lock of an open file, if the system has locks; whether another process has it."""
    if sys.platform == "win32":
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def write_whole(path: str, content: bytes) -> None:
    """Write a file that is there as a whole or not at all; raises OSError."""
    folder, name = os.path.split(path)
    file, temporary, _ = open_temporary(folder or ".", name)
    try:
        with file:
            file.write(content)
        os.replace(temporary, path)
    except OSError:
        remove_files([temporary])
        raise


def leftovers_of(folder: str, name: str, own: str, part_name: re.Pattern[str] | None) -> list[str]:
    """Return the temporary files of killed runs and all parts but those of runs alive and of the token ``own``.

    ``part_name`` matches the names of parts, its first group their run's token; None where there are no parts.
    """
    entries, gone, alive = os.listdir(folder), [], {own}
    # Parts are listed before locks are tried: a run that commits in between is replaced by this one.
    for entry in entries:
        match = re.fullmatch(rf"\.{re.escape(name)}\.([0-9a-f]{{8}})\.tmp", entry)
        if match is None or match[1] == own:
            continue
        with suppress(OSError), open(os.path.join(folder, entry), "rb") as file:
            if _lock(file):
                gone.append(entry)
            else:
                alive.add(match[1])
    if part_name is not None:
        parts = [match for entry in entries if (match := part_name.fullmatch(entry))]
        gone += [match[0] for match in parts if match[1] not in alive]
    return [os.path.join(folder, entry) for entry in gone]


def remove_files(paths: Iterable[str]) -> None:
    """Delete files; one that cannot be deleted is litter, not a failure."""
    for path in paths:
        with suppress(OSError):
            os.unlink(path)
