"""The process that starts and ends a Ray cluster; a stand-in for Ray says what it was asked."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from balancer import InputError
from balancer.offline import ahead, local_ray
from balancer.offline.ahead import LocalCluster
from balancer.offline.engines import Cluster

RAY = """
import os, sys
from types import SimpleNamespace
from ray._private import parameter

def told(what):
    with open(os.environ["TOLD"], "a") as file:
        file.write(what + "\\n")

def init(address, num_cpus, **how):
    params = parameter.RayParams()
    told(f"init {address} {num_cpus} {getattr(params, 'no_monitor', False)}")
    print("to nobody")
    if os.environ["HOW"] == "fails":
        raise OSError("no memory\\nat all")
    if os.environ["HOW"] == "hangs":
        while True:
            __import__("time").sleep(1)

def shutdown():
    told("shutdown")

def get_runtime_context():
    return SimpleNamespace(gcs_address="1.2.3.4:5")
"""
DRIVE = """
import sys
from balancer.offline import local_ray
local_ray._GIVE_UP_S = 0.1
local_ray.main()
"""


@pytest.fixture
def told(tmp_path, monkeypatch):
    """What Ray was asked for, line by line; processes find this one."""
    (tmp_path / "ray" / "_private").mkdir(parents=True)
    (tmp_path / "ray" / "__init__.py").write_text(RAY)
    (tmp_path / "ray" / "_private" / "parameter.py").write_text("class RayParams: pass\n")
    (tmp_path / "told").touch()
    paths = os.pathsep.join([str(tmp_path), str(Path(local_ray.__file__).parents[2])])
    for name, value in {"PYTHONPATH": paths, "TOLD": str(tmp_path / "told"), "RAY_AUTH_MODE": "disabled"}.items():
        monkeypatch.setenv(name, value)
    return lambda: (tmp_path / "told").read_text().splitlines()


def begun(how, *code):
    return subprocess.Popen(
        [sys.executable, *(code or ("-P", local_ray.__file__)), "3"], env=os.environ | {"HOW": how},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
    )  # fmt: skip


@pytest.mark.parametrize(("mode", "has_token"), [("disabled", False), ("token", True)])
def test_a_new_cluster_has_no_monitors_and_ends_with_its_input(told, monkeypatch, mode, has_token):
    monkeypatch.setenv("RAY_AUTH_MODE", mode)
    with begun("new") as process:
        found = json.loads(process.stdout.readline())
        assert found == {"address": "1.2.3.4:5", "has_token": has_token}
        assert told() == ["init local 3 True"]
        assert process.communicate()[0] == b""
    assert (process.returncode, told()) == (0, ["init local 3 True", "shutdown"])


def test_what_ray_raised_is_told(told):
    with begun("fails") as process:
        assert json.loads(process.stdout.readline()) == {"error": "no memory\nat all"}
        process.wait()
    assert told() == ["init local 3 True"]


def test_a_start_that_takes_for_ever_is_given_up_once_input_ends(told):
    with begun("hangs", "-c", DRIVE) as process:
        process.stdin.close()
        assert process.wait() == 1


@pytest.fixture
def cluster(told, monkeypatch):
    """One that is begun, in the way that is asked for."""
    made = []

    def begin(how):
        monkeypatch.setenv("HOW", how)
        made.append(LocalCluster())
        while not made[-1].is_there():
            time.sleep(0.01)
        return made[-1]

    yield begin
    made[0].end()
    made[0]._process.wait()


def test_a_process_connects_to_the_cluster_that_another_one_started(cluster):
    asked = []
    cluster("new").connect(SimpleNamespace(init=lambda **how: asked.append(how)))
    assert asked[0]["address"] == "1.2.3.4:5"


def test_a_cluster_ends_where_another_process_holds_its_input(told, cluster):
    mine = cluster("new")
    with subprocess.Popen(["sleep", "60"], pass_fds=[mine._process.stdin.fileno()]) as other:
        mine.end()
        mine._process.wait()
        assert told()[-1] == "shutdown"
        other.kill()


def test_ray_leaves_the_handler_of_sigterm_as_it_was():
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        ahead.init(SimpleNamespace(init=lambda **_: signal.signal(signal.SIGTERM, signal.SIG_DFL)))
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize(
    ("content", "told"), [(None, "needs Ray: pip install"), ("1 / 0", "Ray cannot be imported: ZeroDivisionError")]
)
def test_a_ray_that_cannot_be_imported_is_told(tmp_path, monkeypatch, content, told):
    (tmp_path / "ray").mkdir()
    if content is not None:
        (tmp_path / "ray" / "__init__.py").write_text(content)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    for name in [name for name in sys.modules if name.partition(".")[0] == "ray"]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(InputError, match=told):
        Cluster("1.2.3.4:5")


def test_why_there_is_no_cluster_is_told(cluster):
    with pytest.raises(RuntimeError, match="no memory"):
        cluster("fails").connect(None)
