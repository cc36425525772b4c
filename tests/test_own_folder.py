"""A folder in which others could put code of theirs is not read: kernels on disk are pickles."""

import os

import pytest
from another_user import another_user, open_folder

from solvers import _jit
from solvers._own_folder import is_ours

NOBODY = 65534


def chowned(path, user=-1, group=-1):
    try:
        os.chown(path, user, group)
    except PermissionError:
        pytest.skip("who is not root gives no folder away")


def made(path, mode):
    path.mkdir()
    path.chmod(mode)
    return path


@pytest.mark.parametrize(
    ("mode", "ours"), [(0o755, True), (0o700, True), (0o777, False), (0o1777, False), (0o757, False)]
)
def test_by_who_may_write(tmp_path, mode, ours):
    folder = made(tmp_path / "kernels", mode)
    assert is_ours(folder) == ours
    assert is_ours(folder / "not" / "yet") == ours
    below = made(folder / "below", 0o755)
    assert is_ours(below) == (ours or mode == 0o1777)  # which is made by us, and which nobody else can replace
    (tmp_path / "link").symlink_to(folder)
    assert is_ours(tmp_path / "link") == ours


def test_by_its_owner(tmp_path):
    folder = made(tmp_path / "kernels", 0o755)
    below = made(folder / "below", 0o755)
    chowned(folder, user=NOBODY)
    assert not is_ours(folder)
    assert not is_ours(below)


def test_by_its_group(tmp_path):
    """One of our own, or root's, is as good as ourselves; any other has members whom nobody knows."""
    folder = made(tmp_path / "kernels", 0o775)
    chowned(folder, group=0)
    assert is_ours(folder)
    chowned(folder, group=NOBODY)
    assert not is_ours(folder)
    folder.chmod(0o755)
    assert is_ours(folder)


def test_what_root_made_is_everybodys():
    with open_folder() as folder, another_user():
        assert is_ours(folder)


def kept_in(monkeypatch, **environment):
    """Return the folders in which this process would keep and look for kernels."""
    for name in ("NUMBA_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, folder in environment.items():
        monkeypatch.setenv(name, str(folder))
    return _jit.folders.__wrapped__()


@pytest.mark.parametrize(("mode", "taken"), [(0o755, True), (0o777, False)])
def test_a_folder_that_nobody_named_is_left_out_if_others_can_write_to_it(tmp_path, monkeypatch, mode, taken):
    home = made(tmp_path / "home", mode)
    assert (home in [folder.parent for folder in kept_in(monkeypatch, XDG_CACHE_HOME=home)]) == taken


def test_a_folder_that_the_user_names_is_taken_as_it_is(tmp_path, monkeypatch):
    named = made(tmp_path / "named", 0o777)
    assert kept_in(monkeypatch, NUMBA_CACHE_DIR=named)[0].parent == named
