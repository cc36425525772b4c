"""Files as another user meets them: root may read and write whatever permissions say."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

_NOBODY = 65534


@contextmanager
def another_user() -> Iterator[None]:
    """Run as a user who is not root: as nobody, if root runs this."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(_NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


@contextmanager
def open_folder() -> Iterator[Path]:
    """A folder that another user can come to, which pytest's are not; skips the test where there is none."""
    if not hasattr(os, "geteuid"):
        pytest.skip("this system has no users to change to")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        with another_user():
            reachable = os.access(folder, os.X_OK, effective_ids=True)
        if not reachable:
            pytest.skip(f"another user cannot come to {folder}")
        try:
            yield folder
        finally:
            for path in (folder, *folder.rglob("*")):
                path.chmod(0o755)
