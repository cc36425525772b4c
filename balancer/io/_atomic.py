"""Replacing files as a whole or not at all: locked temporary files, removal of those of killed runs, syncing.

Whatever this package writes comes here: :func:`target_of` refuses what is no regular file. A new file grows under a
temporary name, locked as long as its process lives, and is then renamed into place. A temporary whose lock is free is
what a killed run left; the next write of that file that succeeds removes it.
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
        if os.path.lexists(path) and not _is_regular(path):
            raise InputError(f"{path}: is no regular file, and none of ours: remove it, or choose another folder")
        # Appending leaves what is there as it is, until the lock says that nobody writes it.
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


def _is_regular(path: str) -> bool:
    """Whether this is a regular file, and no link to one."""
    return stat.S_ISREG(os.lstat(path).st_mode)


def write_whole(path: str, content: bytes, doing: str) -> None:
    """Write a file that is there as a whole or not at all; raises InputError, in which `doing` says what failed."""
    target = target_of(path, doing)
    with reported(path, doing):
        folder, name = os.path.split(target)
        file, temporary, token = open_temporary(folder, name)
        try:
            with file:  # whose lock is held until it is in its place
                file.write(content)
                file.flush()
                # Listed before the file is in place, removed after: what is listed later may be a newer run's.
                leftovers = leftovers_of(folder, name, token, None)
                os.replace(temporary, target)
        except BaseException:
            remove_files([temporary])
            raise
        remove_leftovers(leftovers)


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
        path = os.path.join(folder, entry)
        with suppress(FileNotFoundError):
            if not _is_regular(path):
                continue  # none of ours, and to open it might wait forever
            alive.add(match[1])  # also where it may not be opened: nobody knows
            with suppress(PermissionError), open(path, "rb") as file:
                if _lock(file):
                    alive.remove(match[1])
                    gone.append(entry)
    if part_name is not None:
        parts = [match for entry in entries if (match := part_name.fullmatch(entry))]
        gone += [match[0] for match in parts if match[1] not in alive]
    return [os.path.join(folder, entry) for entry in gone]


def remove_files(paths: Iterable[str]) -> None:
    """Delete files; one that cannot be deleted is litter, not a failure."""
    for path in paths:
        with suppress(OSError):
            os.unlink(path)


def remove_leftovers(paths: Iterable[str]) -> None:
    """Delete what :func:`leftovers_of` found, but for what another run has taken over since."""
    for path in paths:
        with suppress(OSError):
            if _is_regular(path):
                with open(path, "rb") as file:
                    if not _is_held(file):
                        os.unlink(path)
