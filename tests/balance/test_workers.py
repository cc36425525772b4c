"""Processes that plan together: who gets which part, and what becomes of runs that are interrupted or killed."""

import multiprocessing
import os
import re
import time
from collections import deque
from pathlib import Path
from types import SimpleNamespace

import pytest
from nightly import examples
from run_cases import (
    Fatal,
    Others,
    Slow,
    called,
    children_of,
    kill_at_random,
    planned,
    settings_of,
    snapshot,
)

from balancer import InputError
from balancer.io.logs import open_log
from balancer.offline.engines import Processes
from balancer.offline.run import plan_run
from balancer.offline.workers import Workers
from balancer.report.summary import RunSummary


@pytest.mark.parametrize(("jobs", "tasks", "most"), [(1000, 3, 2), (2, 3, 1), (5, 0, 0)])
def test_no_more_processes_are_started_than_have_something_to_do(monkeypatch, jobs, tasks, most):
    started = []

    class Counted(Workers):
        def __init__(self, work, count):
            started.append(count)
            super().__init__(work, 0)

    monkeypatch.setattr("balancer.offline.engines.Workers", Counted)
    done = Processes(jobs).run(
        lambda task, tick: {"totals": {"samples": task}}, enumerate(range(tasks)), lambda _: None
    )
    assert len(list(done)) == tasks
    assert started == [most]


class Meeting(RunSummary):
    """Notes which process plans; one that is alone takes its time, and may not be so until the end of its part."""

    def add_step(self, plan):
        there = Path(os.environ["MEETING"])
        (there / str(os.getpid())).touch()
        if len(list(there.iterdir())) < 2:
            assert self.rows < 15 * 32
            time.sleep(1)
        super().add_step(plan)


def test_a_worker_gets_its_part_while_this_process_is_at_its_own(folder, tmp_path, monkeypatch):
    monkeypatch.setenv("MEETING", str(tmp_path))
    plan_run(open_log(folder / "log.parquet"), settings_of(steps_per_part=16), Meeting, engine=Processes(2))
    assert len(list(tmp_path.iterdir())) == 2
    assert (tmp_path / str(os.getpid())).exists()


def test_an_interrupted_run_leaves_no_worker_and_no_half_part(folder, tmp_path):
    """A step after the worker's part is begun: at the instant itself its file may be left to the next run."""

    def interrupt(samples):
        if begun and len(list(out.glob(".part-*"))) == 2:  # this process's and the worker's
            raise KeyboardInterrupt
        begun.extend(out.glob(".part-*-00001.*"))

    begun: list[Path] = []
    log, out = open_log(folder / "log.parquet"), tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        plan_run(log, settings_of(steps_per_part=2), Slow, f"{out}/", engine=Processes(2), tick=interrupt)
    assert not multiprocessing.active_children()
    assert not list(out.glob(".*"))


@pytest.mark.parametrize("kills", [1, 4])
def test_a_killed_worker_costs_its_part_alone(folder, tmp_path, monkeypatch, kills):
    (tmp_path / "kills").write_text(str(kills))
    monkeypatch.setenv("FATAL", str(tmp_path / "kills"))
    expected, _ = planned(folder / "log.parquet", settings_of(), tmp_path / "expected")
    log, out = open_log(folder / "log.parquet"), f"{tmp_path}/out/"
    if kills == 4:
        with pytest.raises(InputError, match="part 6: the process that planned it was killed 4 times"):
            plan_run(log, settings_of(), Fatal, out, engine=Others())
    plan_run(log, settings_of(), Fatal, out, engine=Others(), resume=True)
    assert snapshot(tmp_path / "out") == expected


@pytest.mark.parametrize(
    ("code", "told"), [(-9, "part 3: .* was killed 4 times"), (143, "was killed"), (1, "part 3: 4 .* could not begin")]
)
def test_workers_that_cannot_begin_are_told_from_those_that_were_killed(code, told):
    """As in a script that does not ask whether it is the main module, which they import."""
    workers = Workers(print, 1)
    for _ in range(4):
        ended = SimpleNamespace(exitcode=code, join=lambda: None)
        worker = SimpleNamespace(held=deque([(3, "task")]), leave=lambda: None, process=ended)
        workers._workers.append(worker)
        ((number, _, error),) = list(workers._buried(worker)) or [(3, None, None)]
    assert (number, type(error)) == (3, InputError)
    assert re.match(f".*{told}", str(error))


def workers_of(driver):
    """Those that the process has forked which the driver started for that."""
    return [pid for server in called(children_of(driver), b"forkserver import main") for pid in children_of(server)]


@pytest.mark.more_by_night
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="finds workers in /proc")
def test_random_kills_of_workers_and_driver_change_no_byte(folder, tmp_path):
    """By day twice, by night twenty times."""
    kill_at_random(folder / "log.parquet", tmp_path, 20 if examples(1) > 1 else 2, workers_of)
