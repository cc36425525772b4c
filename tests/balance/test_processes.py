"""Processes that plan together: who gets which part, and what becomes of runs that are interrupted or killed."""

import multiprocessing
import os
import signal
import sys
import time
from pathlib import Path

import pyarrow as pa
import pytest
from run_cases import (
    COMMAND,
    Hooked,
    called,
    children_of,
    command,
    gone,
    kill_at_random,
    killed,
    planned,
    settings_of,
    slow,
    snapshot,
)

from balancer import InputError
from balancer.cli.main import main
from balancer.io.log import open_log
from balancer.offline.engines import LostWorkerError, Processes, done_by
from balancer.offline.ray_executor import RayExecutor
from balancer.offline.run import plan_run

needs_proc = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="finds processes in /proc")


KILLED = "a process that worked was killed, perhaps because memory ran out; use fewer jobs"


def nothing(_):
    """Ticks nothing."""


def looked_at(task, tick=None):
    """What a process is: which one, its driver, threads of Arrow, whether it ignores Ctrl-C, and a variable."""
    driver = multiprocessing.parent_process()
    ignores = signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    told = os.getpid(), driver and driver.pid, pa.cpu_count(), ignores, os.environ.get("SET")
    return {"samples": 1, "told": told}


def test_what_a_worker_is(monkeypatch):
    list(done_by(2, looked_at, range(2), nothing))  # a fork server has begun
    monkeypatch.setenv("SET", "later")
    for found in done_by(2, looked_at, range(2), nothing):
        assert found["told"][0] != os.getpid()
        assert found["told"][1:] == (os.getpid(), 1, True, "later")


@pytest.mark.parametrize(("jobs", "tasks"), [(1000, 3), (1, 3), (5, 0)])
def test_no_more_processes_are_started_than_have_something_to_do(jobs, tasks):
    ticked = []
    found = [each["told"] for each in done_by(jobs, looked_at, range(tasks), ticked.append)]
    assert len(found) == tasks
    assert ticked == ([] if jobs == 1 else [1] * tasks)  # this process ticks within tasks
    assert len({pid for pid, *_ in found} - {os.getpid()}) <= (0 if jobs == 1 else min(jobs, tasks))
    assert not multiprocessing.active_children()


class UnreadableError(Exception):
    """Cannot be read back from what is written of it."""

    def __init__(self, one, other):
        super().__init__(f"{one} and {other}")


def raises(task, tick=None):
    """Fails at two numbers; the larger first."""
    if task == 3:
        time.sleep(0.5)
    if task in (3, 5):
        raise UnreadableError(task, "other")
    return {"samples": task}


def test_what_the_first_task_raised_is_told_though_it_cannot_be_sent():
    told, done = [], []
    with pytest.raises((InputError, UnreadableError), match="3 and other"):
        done.extend(each["samples"] for each in done_by(3, raises, range(40), told.append))
    assert done == told == [0, 1, 2]
    assert not multiprocessing.active_children()


def until(found):
    """Wait for something that will be there, and return it."""
    for _ in range(2400):
        if there := found():
            return there
        time.sleep(0.05)
    raise AssertionError("it is not there")


def test_an_interrupted_run_leaves_no_worker_and_no_half_part(folder, tmp_path):
    def interrupt(samples):
        until(lambda: list(out.glob(".part-*")))
        raise KeyboardInterrupt

    log, out = open_log(folder / "log.parquet"), tmp_path / "out"
    with pytest.raises(KeyboardInterrupt), Hooked(Processes(2), slow) as who:
        plan_run(log, settings_of(steps_per_part=2), f"{out}/", who=who, tick=interrupt)
    assert not multiprocessing.active_children()
    assert not list(out.glob(".*"))


def test_a_killed_worker_ends_the_run_and_costs_its_part_alone(folder, tmp_path, monkeypatch):
    armed = tmp_path / "armed"
    armed.touch()
    monkeypatch.setenv("FATAL", str(armed))
    expected, _ = planned(folder / "log.parquet", settings_of(), tmp_path / "expected")
    log, out = open_log(folder / "log.parquet"), tmp_path / "out"
    with pytest.raises(LostWorkerError, match=KILLED), Hooked(Processes(2), killed) as who:
        plan_run(log, settings_of(), f"{out}/", who=who)
    assert not multiprocessing.active_children()
    left = snapshot(out)
    assert len(left) >= 1  # of the first that came to its second part
    assert left.items() < expected.items()
    armed.unlink()
    kept = {name: (out / name).stat().st_mtime_ns for name in left}
    with Hooked(Processes(2), killed) as who:
        plan_run(log, settings_of(), f"{out}/", who=who)
    assert snapshot(out) == expected
    assert {name: (out / name).stat().st_mtime_ns for name in left} == kept


UNGUARDED = """
import sys
from run_cases import open_log, plan_run, settings_of
from balancer.offline.engines import LostWorkerError
try:
    plan_run(open_log(sys.argv[1]), settings_of(), who=2)
except LostWorkerError as error:
    sys.exit(f"told: {error}")
"""


def test_workers_that_cannot_begin_are_told_from_those_that_were_killed(folder, tmp_path):
    """As in a script that does not ask whether it is the main module, which they import."""
    script = command(UNGUARDED, tmp_path, folder / "log.parquet")
    _, printed = script.communicate()
    assert script.returncode == 1
    assert "\ntold: processes ended before they began to work, as what they printed says" in printed


# ----------------------------------------------------------------------------------------- a command and its processes


def workers_of(driver):
    """Those that the process has forked which the driver started for that."""
    return [pid for server in called(children_of(driver), b"forkserver import main") for pid in children_of(server)]


def words_of(folder, tmp_path, *more):
    """What the command is called with."""
    asked = ["--ranks", "8", "--batch-per-rank", "4", "--length", "tokens"]
    asked += ["--set", "plan.method=lpt", "--set", "plan.placement=any"]
    return ["plan", f"{folder}/log.parquet", *asked, "--overwrite", "--out", f"{tmp_path}/out/", *more]


def plan_command(folder, tmp_path, *more):
    """The command, which waits in each process's second part, of one step each, while ``held`` is there."""
    os.environ["HELD"] = str(tmp_path / "held")
    return command(COMMAND, tmp_path, *words_of(folder, tmp_path, *more))


def plan_here(folder, tmp_path, *more):
    """Do what the command does, in this process alone, and return the files."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("balancer.offline.settings._SAMPLES_PER_PART", 32)
        with pytest.raises(SystemExit, match="0"):
            main(words_of(folder, tmp_path, "--jobs", "1", *more))
    return snapshot(tmp_path / "out")


@pytest.fixture(scope="module")
def whole(folder, tmp_path_factory):
    """The plan that one process makes."""
    return plan_here(folder, tmp_path_factory.mktemp("whole"))


@needs_proc
@pytest.mark.parametrize("what", ["interrupt", "kill worker", "kill driver", "end driver"])
def test_no_process_is_left_what_was_finished_is_kept_and_a_line_is_told(folder, whole, tmp_path, what):
    out, held = tmp_path / "out", tmp_path / "held"
    held.touch()
    run = plan_command(folder, tmp_path, "--jobs", "3")
    until(lambda: len(list(out.glob("part-*"))) == 3 and len(list(out.glob(".part-*"))) == 3)
    if what == "interrupt":
        os.killpg(run.pid, signal.SIGINT)  # as a terminal does
    elif what == "kill worker":
        os.kill(workers_of(run.pid)[0], signal.SIGKILL)
        held.unlink()  # for the driver, to see it behind its own part
    else:
        os.kill(run.pid, signal.SIGKILL if what == "kill driver" else signal.SIGTERM)
    _, printed = run.communicate()
    assert gone(run.pid)
    goes_on = f"the same command goes on from the parts in {out}/"
    code, told = {
        "interrupt": (130, [f"balancer: interrupted; {goes_on}"]),
        "kill worker": (2, [f"balancer: {KILLED}; {goes_on}"]),
        "kill driver": (-signal.SIGKILL, []),
        "end driver": (-signal.SIGTERM, []),
    }[what]
    told_by_python = "resource_tracker"  # which clears up
    lines = [line for line in printed.splitlines() if line and told_by_python not in line]
    assert (run.returncode, lines) == (code, told)
    left = snapshot(out)
    kept = {name: (out / name).stat().st_mtime_ns for name in left if name.startswith("part-")}
    assert 3 <= len(kept) < len(whole)
    held.unlink(missing_ok=True)
    assert plan_here(folder, tmp_path) == whole
    assert {name: (out / name).stat().st_mtime_ns for name in kept} == kept


# Python loses an interrupt that comes in a finalizer or in a callback of LLVM: on busy cores once in six runs
@pytest.mark.nightly
@needs_proc
def test_an_interrupt_while_workers_begin_is_told_in_a_line(folder, tmp_path):
    """The process from which they are forked would say where it was, while it imports."""
    run = plan_command(folder, tmp_path, "--jobs", "3")
    until(lambda: called(children_of(run.pid), b"forkserver import main"))
    os.killpg(run.pid, signal.SIGINT)
    _, printed = run.communicate()
    assert gone(run.pid)
    assert (run.returncode, len(printed.split("\n"))) == (130, 3), printed  # click's is empty


# By day they are killed where a run is known to be: the test of four ends above
@pytest.mark.nightly
@needs_proc
def test_random_kills_of_workers_and_driver_change_no_byte(folder, tmp_path):
    kill_at_random(folder / "log.parquet", tmp_path, 20, workers_of)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (None, r'needs Ray, which is not installed; .* pip install "seqbalancer\[ray\]"'),
        ("1 / 0", "Ray cannot be imported: ZeroDivisionError"),
    ],
)
def test_a_ray_that_cannot_be_imported_is_told(tmp_path, monkeypatch, content, told):
    (tmp_path / "ray").mkdir()
    if content is not None:
        (tmp_path / "ray" / "__init__.py").write_text(content)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    for name in [name for name in sys.modules if name.partition(".")[0] == "ray"]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(InputError, match=told):
        RayExecutor("1.2.3.4:5")
