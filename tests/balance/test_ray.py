"""The same runs on a Ray cluster of two workers on this machine."""

import os
import signal
from pathlib import Path

import pytest

ray = pytest.importorskip("ray")

from test_run import PHASES, Fatal, folder, settings_of, snapshot  # noqa: E402, F401 (a fixture)

from balancer import InputError, Phase  # noqa: E402
from balancer.io.logs import open_log  # noqa: E402
from balancer.offline.check import check_run  # noqa: E402
from balancer.offline.engines import Cluster, Serial  # noqa: E402
from balancer.offline.run import plan_run  # noqa: E402
from balancer.report.summary import RunSummary  # noqa: E402
from solvers import InfeasibleError  # noqa: E402

pytestmark = pytest.mark.filterwarnings("default")  # Ray's own
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    paths = os.pathsep.join(map(str, (ROOT, ROOT / "tests", ROOT / "tests" / "balance")))
    kills = tmp_path_factory.mktemp("kills") / "kills"
    given = {"PYTHONPATH": paths, "FATAL": str(kills), "RAY_USAGE_STATS_ENABLED": "0"}
    before = {name: os.environ.get(name) for name in given}
    os.environ.update(given)
    ray.init(num_cpus=2, log_to_driver=False, logging_level="error", include_dashboard=False)
    yield kills
    ray.shutdown()
    for name, value in before.items():
        os.environ.pop(name)
        if value is not None:
            os.environ[name] = value


def test_a_cluster_writes_the_same_folder(folder, cluster, tmp_path):  # noqa: F811
    log, settings = open_log(folder / "many"), settings_of(PHASES, steps_per_part=2)
    one = plan_run(log, settings, RunSummary, f"{tmp_path}/one/", engine=Serial())
    two = plan_run(log, settings, RunSummary, f"{tmp_path}/two/", engine=Cluster())
    assert snapshot(tmp_path / "one") == snapshot(tmp_path / "two")
    assert one.as_json(1.0) == two.as_json(1.0)
    assert check_run(f"{tmp_path}/two/", RunSummary, engine=Cluster()).as_json(1.0) == one.as_json(1.0)


def test_the_cluster_does_the_tasks_of_killed_workers_again(folder, cluster, tmp_path):  # noqa: F811
    log = open_log(folder / "log.parquet")
    plan_run(log, settings_of(), RunSummary, f"{tmp_path}/one/", engine=Serial())
    cluster.write_text("2")
    plan_run(log, settings_of(), Fatal, f"{tmp_path}/two/", engine=Cluster())
    assert snapshot(tmp_path / "one") == snapshot(tmp_path / "two")
    assert cluster.read_text() == "0"


def test_a_step_that_cannot_be_planned_is_told_as_by_one_process(folder, cluster, tmp_path):  # noqa: F811
    settings = settings_of([Phase("all", "tokens", max_tokens_per_rank=11_000)], steps_per_part=2)
    told = []
    for engine in (Serial(), Cluster()):
        with pytest.raises(InfeasibleError) as caught:
            plan_run(open_log(folder / "log.parquet"), settings, RunSummary, engine=engine)
        told.append(str(caught.value))
    assert told[0] == told[1]


def test_a_killed_run_is_resumed(folder, cluster, tmp_path):  # noqa: F811
    """The driver's part of it: tasks that are lost for good end the run, and what is whole is kept."""
    log, out = open_log(folder / "log.parquet"), f"{tmp_path}/two/"
    plan_run(log, settings_of(), RunSummary, f"{tmp_path}/one/", engine=Serial())
    cluster.write_text("4")
    with pytest.raises(InputError, match="part 6: the Ray worker that had it was lost"):
        plan_run(log, settings_of(), Fatal, out, engine=Cluster())
    plan_run(log, settings_of(), RunSummary, out, engine=Cluster(), resume=True)
    assert snapshot(tmp_path / "one") == snapshot(tmp_path / "two")


def test_a_cluster_that_is_not_there_is_told():
    if ray.is_initialized():
        ray.shutdown()
    with pytest.raises(InputError, match=r"the Ray cluster at '127.0.0.1:1' cannot be had"):
        list(Cluster("127.0.0.1:1").run(signal.getsignal, [], print))
