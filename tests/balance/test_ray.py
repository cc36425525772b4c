"""The same runs on a Ray cluster of two workers on this machine."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ray = pytest.importorskip("ray")

from nightly import examples  # noqa: E402
from run_cases import (  # noqa: E402
    PHASES,
    Hooked,
    called,
    children_of,
    fatal,
    kill_at_random,
    paths,
    settings_of,
    snapshot,
)

from balancer import InputError, Phase  # noqa: E402
from balancer.io.log import open_log  # noqa: E402
from balancer.offline.check import check_run  # noqa: E402
from balancer.offline.engines import LostWorkerError  # noqa: E402
from balancer.offline.ray_executor import RayExecutor  # noqa: E402
from balancer.offline.run import plan_run  # noqa: E402
from solvers import InfeasibleError  # noqa: E402

pytestmark = pytest.mark.filterwarnings("default")  # Ray's own
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    kills = tmp_path_factory.mktemp("kills") / "kills"
    given = {"PYTHONPATH": paths(), "FATAL": str(kills), "RAY_USAGE_STATS_ENABLED": "0"}
    before = {name: os.environ.get(name) for name in given}
    os.environ.update(given)
    ray.init(num_cpus=2, log_to_driver=False, logging_level="error", include_dashboard=False)
    yield kills
    ray.shutdown()
    for name, value in before.items():
        os.environ.pop(name)
        if value is not None:
            os.environ[name] = value


def test_a_cluster_writes_the_same_folder(folder, cluster, tmp_path):
    log, settings = open_log(folder / "many"), settings_of(PHASES, steps_per_part=2)
    one = plan_run(log, settings, f"{tmp_path}/one/", who=1)
    two = plan_run(log, settings, f"{tmp_path}/two/", who=RayExecutor())
    assert snapshot(tmp_path / "one") == snapshot(tmp_path / "two")
    assert one == two
    assert check_run(f"{tmp_path}/two/", who=RayExecutor()).steps == one


def test_tasks_have_the_names_of_their_parts(folder, cluster, tmp_path):
    """As the cluster's own record of tasks has them, which its dashboard and ``ray list tasks`` show."""
    plan_run(open_log(folder / "log.parquet"), settings_of(), f"{tmp_path}/out/", who=RayExecutor())
    wanted = {f"task::part {number}" for number in range(len(snapshot(tmp_path / "out")) - 1)}
    for _ in range(100):  # workers report every second
        if wanted <= {event["cat"] for event in ray.timeline()}:
            return
        time.sleep(0.1)
    assert wanted <= {event["cat"] for event in ray.timeline()}


def test_the_cluster_does_the_tasks_of_killed_workers_again(folder, cluster, tmp_path):
    log = open_log(folder / "log.parquet")
    plan_run(log, settings_of(), f"{tmp_path}/one/", who=1)
    cluster.write_text("2")
    plan_run(log, settings_of(), f"{tmp_path}/two/", who=Hooked(RayExecutor(), fatal))
    assert snapshot(tmp_path / "one") == snapshot(tmp_path / "two")
    assert cluster.read_text() == "0"


def test_a_step_that_cannot_be_planned_is_told_as_by_one_process(folder, cluster, tmp_path):
    settings = settings_of([Phase("all", "tokens", max_tokens_per_rank=11_000)], steps_per_part=2)
    told = []
    for who in (1, RayExecutor()):
        with pytest.raises(InfeasibleError) as caught:
            plan_run(open_log(folder / "log.parquet"), settings, who=who)
        told.append(str(caught.value))
    assert told[0] == told[1]


def test_a_killed_run_is_resumed(folder, cluster, tmp_path):
    """The driver's part of it: tasks that are lost for good end the run, and what is whole is kept."""
    log, out = open_log(folder / "log.parquet"), f"{tmp_path}/two/"
    plan_run(log, settings_of(), f"{tmp_path}/one/", who=1)
    cluster.write_text("4")
    with pytest.raises(LostWorkerError, match="part 6: the Ray worker that had it was lost"):
        plan_run(log, settings_of(), out, who=Hooked(RayExecutor(), fatal))
    plan_run(log, settings_of(), out, who=RayExecutor())
    assert snapshot(tmp_path / "one") == snapshot(tmp_path / "two")


def below(pid):
    """Processes that one started, and those that they started."""
    found, left = [], [pid]
    while left:
        found += (mine := children_of(left.pop()))
        left += mine
    return found


def of_ray(what):
    """Processes of this one's cluster that are called so."""
    return called(below(os.getpid()), what)


def workers_of_ray(_):
    """Those that have a task now."""
    return of_ray(b"ray::part ")


COMMAND = """
from balancer.cli.main import main
main()
"""


@pytest.mark.parametrize("how", [None, signal.SIGINT])
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="finds processes in /proc")
def test_a_command_s_own_cluster_ends_with_it(folder, tmp_path, how):
    """Also by Ctrl-C; where it is killed, Ray's daemons see to it."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    words = ["--ranks", "8", "--batch-per-rank", "4", "--length", "tokens", "--engine", "ray"]
    run = [sys.executable, "-c", COMMAND, "plan", str(folder / "log.parquet"), *words, "--out", f"{tmp_path}/out/"]
    with subprocess.Popen(run, cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True) as command:
        started = []
        while not called(started, b"raylet") and command.poll() is None:
            started = below(command.pid)
            time.sleep(0.05)
        if how is not None:
            command.send_signal(how)
        _, printed = command.communicate()
    assert "Traceback" not in printed
    assert command.returncode == {None: 0, signal.SIGINT: 130}[how], printed
    for _ in range(600):
        if not any(Path(f"/proc/{pid}").exists() for pid in started):
            break
        time.sleep(0.1)
    assert not [pid for pid in started if Path(f"/proc/{pid}").exists()]


@pytest.mark.more_by_night
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="finds workers in /proc")
def test_random_kills_of_workers_and_driver_change_no_byte(folder, cluster, tmp_path):
    """By day twice, by night twenty times."""
    cluster.write_text("0")
    address = ray.get_runtime_context().gcs_address
    kill_at_random(folder / "log.parquet", tmp_path, 20 if examples(1) > 1 else 2, workers_of_ray, address)


def test_a_cluster_that_is_not_there_is_told():
    if ray.is_initialized():
        ray.shutdown()
    with pytest.raises(InputError, match=r"the Ray cluster at '127.0.0.1:1' cannot be had"):
        RayExecutor("127.0.0.1:1").submit(signal.getsignal, signal.SIGINT)
