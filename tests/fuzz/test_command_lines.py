"""Whatever is typed ends: in time, with an exit code that says how, in a few lines, and with no half of a file."""

import contextlib
import faulthandler
import io
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from command_lines import command_line, write_files
from hypothesis import settings

import balancer
from balancer.cli.main import main
from balancer.cli.run import Compiled
from balancer.offline.load import checked_steps

BY_NIGHT = settings.get_current_profile_name() == "nightly"
LINES, PART, SEED = (10_000, 100, None) if BY_NIGHT else (300, 50, 20260)
HANGS_S = 900
"""A command line that has not ended by then never will."""

pytestmark = pytest.mark.more_by_night


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with all that command lines name, and plans to report on."""
    where = tmp_path_factory.mktemp("typed")
    write_files(where)
    with contextlib.chdir(where):
        shape = ["plan", "log.csv", "--ranks", "4", "--ranks-per-node", "2", "--batch-per-rank", "3"]
        for out in ("done.parquet", "done/"):
            assert run([*shape, "--length", "tokens", "--out", out])[0] == 0
        balancer.balance([5, 4, 3], 2).save("saved.parquet")
    return where


def run(words):
    """Run a command line in this process: exit code, output, errors."""
    out, err = io.StringIO(), io.StringIO()
    code = None
    faulthandler.dump_traceback_later(HANGS_S, exit=True)  # a kernel that does not end stops for nothing else
    with Compiled.watched(quiet=True), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main(list(words))
        except SystemExit as ended:
            code = ended.code
        finally:
            faulthandler.cancel_dump_traceback_later()
    return code, out.getvalue(), err.getvalue()


def assert_ended(words, code, out, err):
    """What holds of every command line, whatever it was."""
    assert code in (0, 1, 2), (words, code, err)
    assert "Traceback" not in err, (words, err)
    if code == 0:
        assert out, words
        return
    lines = err.splitlines()
    assert 1 <= len(lines) <= 4, (words, err)
    assert lines[0].startswith("balancer: "), (words, err)
    assert out == "", words


def assert_whole(path, words):
    """A file that a command line left."""
    content = path.read_bytes() if path.is_file() else b""
    ends = {".html": b"</html>\n", ".svg": b"</svg>\n", ".png": b"IEND\xaeB`\x82"}
    if path.suffix in ends:
        assert content.endswith(ends[path.suffix]), words
    else:
        assert list(checked_steps(path)), words


def new_in(folder, before):
    """What is there now that was not before: files, and folders of a plan's parts as one."""
    found = sorted(set(folder.rglob("*")) - set(before))
    plans = {path.parent for path in found if path.name.startswith("part-")}
    return sorted(plans | {path for path in found if path.parent not in plans and path not in plans})


@pytest.mark.parametrize("part", range(LINES // PART))
def test_random_command_lines(part, folder, monkeypatch):
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    seed = np.random.SeedSequence(None if SEED is None else (SEED, part))
    rng = np.random.default_rng(seed)
    before = sorted(folder.rglob("*"))
    for _ in range(PART):
        words = command_line(rng)
        try:
            code, out, err = run(words)
        except BaseException as error:
            raise AssertionError(f"a traceback: {words} (seed {seed.entropy})") from error
        assert_ended(words, code, out, err)
        left = new_in(folder, before)
        assert code == 0 or not left, (words, left)
        for path in left:
            assert_whole(path, words)
            remove(path)


def remove(path):
    """Make room for the next."""
    for inner in path.iterdir() if path.is_dir() else ():
        inner.unlink()
    path.rmdir() if path.is_dir() else path.unlink()


def test_command_lines_as_processes(folder):
    """A few of them as a shell runs them."""
    rng = np.random.default_rng(SEED)
    before = sorted(folder.rglob("*"))
    environment = {**os.environ, "PYTHONPATH": str(Path(balancer.__file__).parents[1])}
    for _ in range(40 if BY_NIGHT else 2):
        words = command_line(rng)
        ended = subprocess.run(
            [sys.executable, "-m", "balancer", *words], cwd=folder, env=environment, input="", capture_output=True,
            text=True, timeout=HANGS_S, check=False,
        )  # fmt: skip
        assert_ended(words, ended.returncode, ended.stdout, ended.stderr)
        for path in new_in(folder, before):
            assert_whole(path, words)
            remove(path)
