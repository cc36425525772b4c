"""Whatever writes a file: it replaces regular files alone, follows links, and clears what killed writes left."""

import os
import signal
import socket
import stat
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from typed_words import keys

from balancer import Phase, balance, orchestrate
from balancer.cli.main import cli
from balancer.errors import InputError
from balancer.io._atomic import write_whole
from balancer.io.plan_writer import PlanWriter

ROOT = Path(__file__).parents[2]
SHAPE = ("--ranks", 2, "--batch-per-rank", 4, "--length", "tokens")
MODEL = (*keys("phase.llm.length=tokens", "phase.llm.model=qwen2-7b"), "--cluster", "h200")
# Every option that writes a file: what it is given to, and what its file is called
OPTIONS = {
    ("plan", "--out"): (("log.csv", *SHAPE, "--overwrite"), "new.parquet"),
    ("pack", "--out"): (("log.csv", "--tokens", 100, "--length", "tokens", "--overwrite"), "new.parquet"),
    ("advise", "--html"): (("log.csv", *SHAPE), "new.html"),
    ("report", "--html"): (("plan.parquet",), "new.html"),
    ("fit", "--html"): (("steps.csv",), "new.html"),
    ("simulate", "--html"): (("log.csv", *MODEL, "--ranks", 2, "--batch-per-rank", 4), "new.html"),
    ("configure", "--out"): (("log.csv", *MODEL, "--gpus", 2, "--ranks", 1, "--batch-per-rank", 8), "new.json"),
    ("configure", "--html"): (("log.csv", *MODEL, "--gpus", 2, "--ranks", 1, "--batch-per-rank", 8), "new.html"),
}


def of_a_device(path):
    try:
        os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 7))  # one of our own, like /dev/full
    except PermissionError:
        pytest.skip("who is not root makes no devices")


def of_a_socket(path):
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(os.path.basename(path))  # the names of sockets are short


NODES = {"pipe": os.mkfifo, "device": of_a_device, "socket": of_a_socket, "folder": os.mkdir}
REPLACED = [(option, "pipe", True) for option in OPTIONS] + [
    (("report", "--html"), kind, through_a_link) for kind in NODES for through_a_link in (False, True)
]
"""Every option with one kind of node, and one option with every kind: the option, the kind, whether by a link."""


@pytest.fixture
def files(command, tmp_path):
    """A folder, which is where we are, with a log and a plan of it; and the command line there."""
    rng = np.random.default_rng(0)
    (tmp_path / "log.csv").write_text("tokens\n" + "".join(f"{n}\n" for n in rng.integers(1, 99, 32)))
    assert command("plan", "log.csv", *SHAPE, "--out", "plan.parquet").code == 0
    return command


def test_every_option_that_writes_a_file_is_tried_here():
    told = {
        (name, option.opts[0])
        for name, command in cli.commands.items()
        for option in command.params
        if (getattr(option, "help", None) or "").startswith("Write")
    }
    assert told == set(OPTIONS)


@pytest.mark.parametrize(("option", "kind", "through_a_link"), REPLACED)
def test_the_command_line_replaces_no_node(option, kind, through_a_link, files, tmp_path):
    pytest.importorskip("matplotlib")
    given, name = OPTIONS[option]
    node = tmp_path / f"node-{name}" if through_a_link else tmp_path / name
    NODES[kind](node)
    if through_a_link:
        (tmp_path / name).symlink_to(node)
    before = os.lstat(node)
    outcome = files(option[0], *given, option[1], name)
    assert (outcome.code, outcome.out) == (2, "")
    (line,) = outcome.err.splitlines()
    assert f"{name}: cannot write" in line
    assert kind in line
    assert os.lstat(node) == before
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize(
    "write",
    [
        lambda path: PlanWriter(path),
        lambda path: balance([3, 2, 1], num_ranks=2).save(path),
        lambda path: orchestrate({"n": [3, 2, 1]}, [Phase("all", "n")], 2).save(path),
    ],
    ids=["writer", "plan", "step"],
)
def test_python_replaces_no_node(write, tmp_path, monkeypatch):
    kind = "device"
    monkeypatch.chdir(tmp_path)
    NODES[kind]("node")
    before = os.lstat("node")
    with pytest.raises(InputError, match=f"node: cannot write.*{kind}"):
        write("node")
    assert os.lstat("node") == before
    assert os.listdir() == ["node"]


@pytest.mark.parametrize("option", [option for option in OPTIONS if option[0] in ("report", "plan")], ids=" ".join)
def test_a_link_stays_and_what_it_leads_to_is_replaced(option, files, tmp_path):
    pytest.importorskip("matplotlib")
    given, name = OPTIONS[option]
    (tmp_path / "far").mkdir()
    (tmp_path / "far" / name).write_text("old")
    (tmp_path / name).symlink_to(tmp_path / "far" / name)
    assert files(option[0], *given, option[1], name).code == 0
    assert (tmp_path / name).is_symlink()
    assert (tmp_path / "far" / name).read_bytes() != b"old"
    assert os.listdir(tmp_path / "far") == [name]


def test_a_standard_output_that_is_a_pipe_is_named():
    """Its name leads to no file of the file system."""
    if not os.path.exists("/dev/stdout"):
        pytest.skip("this system has no name for standard output")
    code = "from balancer.io._atomic import target_of; target_of('/dev/stdout', 'write')"
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert "InputError: /dev/stdout: cannot write: it is a pipe" in run.stderr


# --------------------------------------------------------------------------------------------- what killed writes leave

KILLED = """
import os, signal, sys
from balancer.io import _atomic
_atomic.os.replace = lambda *names: os.kill(os.getpid(), signal.SIGKILL)
_atomic.write_whole(sys.argv[1], b"new", "write")
"""
WAITING = """
import sys
from balancer.io import _atomic
def wait(*names):
    print("written", flush=True)
    sys.stdin.read()
    really(*names)
really, _atomic.os.replace = _atomic.os.replace, wait
_atomic.write_whole(sys.argv[1], b"slow", "write")
"""


def test_a_killed_write_leaves_what_was_there(tmp_path):
    page = tmp_path / "page.html"
    page.write_bytes(b"old")
    killed = subprocess.run([sys.executable, "-c", KILLED, str(page)], cwd=ROOT, check=False)
    assert killed.returncode == -signal.SIGKILL
    assert page.read_bytes() == b"old"
    assert all(name == "page.html" or name.startswith(".page.html.") for name in os.listdir(tmp_path))
    write_whole(str(page), b"next", "write")
    assert page.read_bytes() == b"next"


ENDED = """
import os, signal
from balancer.cli.main import main
from balancer.io.plan_writer import PlanWriter
def end(*given, **named):
    print(*os.listdir(), flush=True)
    os.kill(os.getpid(), signal.SIGTERM)
PlanWriter.append = end
main("plan log.txt --ranks 2 --batch-per-rank 2 --out plan.parquet".split())
"""


def test_a_plan_that_is_ended_leaves_nothing_and_the_signal_is_seen(tmp_path):
    (tmp_path / "log.txt").write_text("5\n3\n9\n1\n")
    ended = subprocess.run(
        [sys.executable, "-c", ENDED], cwd=tmp_path, capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert ".plan.parquet." in ended.stdout  # it had begun
    assert (ended.returncode, os.listdir(tmp_path)) == (-signal.SIGTERM, ["log.txt"])
    assert "Traceback" not in ended.stderr


def test_a_writer_that_lives_keeps_its_file_and_comes_last(tmp_path):
    page = tmp_path / "page.html"
    with subprocess.Popen(
        [sys.executable, "-c", WAITING, str(page)], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as slow:
        assert slow.stdout.readline() == b"written\n"
        write_whole(str(page), b"fast", "write")
        assert page.read_bytes() == b"fast"
        slow.communicate()
    assert slow.returncode == 0
    assert page.read_bytes() == b"slow"
    assert os.listdir(tmp_path) == ["page.html"]


def test_what_is_not_ours_stays(tmp_path):
    """Also what is called as ours would be: a pipe, which nobody writes to, a link, a folder."""
    (tmp_path / "mine").write_text("mine")
    (tmp_path / ".page.html.tmp").write_text("mine")
    (tmp_path / ".page.html.0123456.tmp").write_text("mine")
    (tmp_path / ".page.html.00000001.tmp").symlink_to(tmp_path / "mine")
    (tmp_path / ".page.html.00000002.tmp").mkdir()
    os.mkfifo(tmp_path / ".page.html.00000003.tmp")
    before = sorted(os.listdir(tmp_path))
    write_whole(str(tmp_path / "page.html"), b"new", "write")
    assert sorted(os.listdir(tmp_path)) == sorted([*before, "page.html"])
    assert (tmp_path / "mine").read_text() == "mine"
