"""Where logs and plans lie: on a local disk, or, by URI (``s3://bucket/key``), in any store that fsspec opens.

What is in a store is read by ranges and written in one request, so that it is there as a whole or not at all.
Credentials are taken as the store's own library takes them, from its environment and files, and are none of ours: a URI
must hold none, as plan files and errors name it.
"""

import hashlib
import io
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any, cast

import pyarrow as pa

from balancer.errors import InputError
from solvers.errors import not_installed

_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")
_BUFFER_BYTES = 4 << 20
_FOOTER_BYTES = 1 << 16


class RemotePath(PurePosixPath):
    """A URI, with the names that paths have.

    Examples
    --------
    >>> path = RemotePath("s3://bucket/logs/a.parquet")
    >>> str(path), path.name, str(path.parent / "b.csv")
    ('s3://bucket/logs/a.parquet', 'a.parquet', 's3://bucket/logs/b.csv')
    """

    __slots__ = ()

    def __str__(self) -> str:
        scheme, *parts = self.parts
        return f"{scheme}//{'/'.join(parts)}"

    def __fspath__(self) -> str:
        return str(self)


def is_remote(path: str | os.PathLike[str]) -> bool:
    """Whether this is a URI."""
    return isinstance(path, RemotePath) or _URI.match(os.fspath(path)) is not None


def as_path(path: str | os.PathLike[str]) -> Path:
    """Return a path, or a URI, which must hold no user, as what has a path's names; errors come where it is opened."""
    if not is_remote(path):
        return Path(path)
    uri = os.fspath(path)
    scheme, _, rest = uri.partition("://")
    # Plan files and errors repeat the URI, so a password in it would be written down.
    if "@" in rest.split("/")[0]:
        raise InputError(f"a URI ({scheme}://...) must hold no user or password: give them as fsspec's {scheme} does")
    return cast(Path, RemotePath(uri))  # of which only names are asked for, outside of this file


@contextmanager
def _told(path: object, doing: str) -> Iterator[None]:
    """Turn whatever a store's library raises into an InputError of one line that names the URI."""
    try:
        yield
    except InputError:
        raise
    except FileNotFoundError:
        raise InputError(f"{path}: cannot {doing}: there is no such file or bucket") from None
    except Exception as error:  # each library has its own
        reason = str(getattr(error, "strerror", None) or error).splitlines() or [""]
        raise InputError(f"{path}: cannot {doing}: {type(error).__name__}: {reason[0][:200]}") from None


def _file_system(path: str | os.PathLike[str]) -> tuple[Any, str]:
    """Return the file system of a URI, and the path in it."""
    uri = os.fspath(path)
    try:
        from fsspec.core import url_to_fs
    except ImportError:
        raise InputError(not_installed(f"{uri}: a URI", "fsspec", "remote")) from None
    with _told(uri, "open its store"):
        found: tuple[Any, str] = url_to_fs(uri)
        found[0].invalidate_cache()  # others write there too
        return found


class _Remote(io.RawIOBase):
    """A file in a store, read by ranges."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = path
        file_system, name = _file_system(path)
        with _told(path, "read"):
            # Arrow asks for the ranges that it needs; fsspec's read-ahead would fetch bytes that nobody asked for.
            self._file = file_system.open(name, "rb", cache_type="none")
            self._size = int(self._file.size)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return int(self._file.tell())

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        return int(self._file.seek(offset, whence))

    def readinto(self, buffer: Any) -> int:
        with _told(self._path, "read"):
            content = self._file.read(len(buffer))
            # An answer that was cut short must not pass for the end of the file.
            if len(content) < min(len(buffer), self._size - self._file.tell() + len(content)):
                raise OSError("the answer is shorter than the file was said to be")
        buffer[: len(content)] = content
        return len(content)

    def close(self) -> None:
        if not self.closed:
            self._file.close()
        super().close()


def raw_reader(path: str | os.PathLike[str]) -> Any:
    """Open a file for Arrow, which reads what it needs of it."""
    return pa.PythonFile(_Remote(path), mode="r") if is_remote(path) else pa.OSFile(os.fspath(path))


def text_reader(path: str | os.PathLike[str]) -> Any:
    """Open a file to be read from its beginning, through a buffer."""
    return io.BufferedReader(_Remote(path), _BUFFER_BYTES) if is_remote(path) else open(path, "rb")


@contextmanager
def opened(path: str | os.PathLike[str]) -> Iterator[Any]:
    """Open a file for Arrow, and close it."""
    with raw_reader(path) as source:
        yield source


def size_and_tag(path: str | os.PathLike[str]) -> tuple[int, str]:
    """Return the size of a file in a store, and its ETag, or what else the store has to tell versions apart."""
    file_system, name = _file_system(path)
    with _told(path, "look at"):
        about = file_system.info(name)
    # Each store has a name of its own for it; the first that is there is taken.
    tags = (about.get(key) for key in ("ETag", "etag", "md5Hash", "content_md5", "LastModified", "mtime"))
    return int(about["size"]), str(next((tag for tag in tags if tag), "")).strip('"')


def footer_sha256(path: str | os.PathLike[str]) -> str:
    """Return the SHA-256 of a Parquet file's footer, or of the last 64 KiB of another file, in hexadecimal digits."""
    with opened(path) as source:
        size = source.size()
        end = source.read_at(min(size, 8), max(0, size - 8))
        # Parquet ends with the footer's length in 4 bytes and its magic number in 4.
        length = int.from_bytes(end[:4], "little") + 8 if end[4:] == b"PAR1" else _FOOTER_BYTES
        return hashlib.sha256(source.read_at(min(length, size), size - min(length, size))).hexdigest()


def file_sha256(path: str | os.PathLike[str]) -> str:
    """Return the SHA-256 of a file in 64 hexadecimal digits, without holding the file in memory."""
    try:
        with open(path, "rb") as handle:
            return hashlib.file_digest(handle, "sha256").hexdigest()
    except OSError as error:
        raise InputError(f"{os.fspath(path)}: cannot be read: {error.strerror or error}") from error


def exists(path: str | os.PathLike[str]) -> bool:
    """Whether there is a file by this name."""
    if not is_remote(path):
        return os.path.exists(path)
    file_system, name = _file_system(path)
    with _told(path, "look at"):
        return bool(file_system.exists(name))


def is_folder(path: str | os.PathLike[str]) -> bool:
    """Whether this is a folder that is there."""
    if not is_remote(path):
        return os.path.isdir(path)
    file_system, name = _file_system(path)
    with _told(path, "look at"):
        return bool(file_system.isdir(name))


def names_in(folder: str | os.PathLike[str]) -> list[str]:
    """Return the names of all that is in a folder; none if there is no such folder."""
    if not is_remote(folder):
        return os.listdir(folder)
    file_system, name = _file_system(folder)
    with _told(folder, "list"):
        try:
            found = file_system.ls(name.rstrip("/"), detail=False)
        except FileNotFoundError:
            return []
    # Some stores list the folder itself among what is in it.
    return [entry.rstrip("/").rpartition("/")[2] for entry in found if entry.rstrip("/") != name.rstrip("/")]


def find(path: str | os.PathLike[str]) -> list[RemotePath]:
    """Return the files of a store that are below a folder, or that match a pattern, in order of their names."""
    file_system, name = _file_system(path)
    with _told(path, "list"):
        names = file_system.glob(name) if any(sign in name for sign in "*?[") else file_system.find(name)
        return sorted(RemotePath(file_system.unstrip_protocol(each)) for each in names)


def write(path: str | os.PathLike[str], content: bytes) -> None:
    """Write a file of a store as a whole."""
    file_system, name = _file_system(path)
    with _told(path, "write"):
        file_system.pipe_file(name, content)


def remove(path: str | os.PathLike[str]) -> None:
    """Delete a file of a store; one that cannot be deleted is litter, not a failure."""
    try:
        file_system, name = _file_system(path)
        file_system.rm_file(name)
    except Exception:
        return
