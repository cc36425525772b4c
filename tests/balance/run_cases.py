"""Settings, and drivers and workers that die, for tests of whole runs."""

import contextlib
import functools
import itertools
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import Executor
from pathlib import Path

from balancer import Phase, Topology
from balancer.io.log import open_log
from balancer.offline.run import plan_run
from balancer.offline.settings import LogSettings
from balancer.problem.settings import PlanSettings
from balancer.problem.setup import Setup

ROOT = Path(__file__).parents[2]
PHASES = (Phase("vision", "patches"), Phase("llm", "tokens"))
ALONE = (Phase("all", "tokens"),)


def settings_of(phases=ALONE, placement="relocate", **of_log):
    planned = PlanSettings(placement=placement, eps=0.001, time_budget=0.001)  # who plans is tested, not how well
    setup = Setup(Topology((4, 4)), tuple(phases), planned)
    return LogSettings(setup, **{"batch_per_rank": 4, "steps_per_part": 3} | of_log)


def snapshot(folder):
    return {file.name: file.read_bytes() for file in Path(folder).iterdir()}


def planned(log, settings, out, who=1, overwrite=False):
    out = f"{out}{os.sep}"
    summary = plan_run(open_log(log), settings, out, who=who, overwrite=overwrite)
    return snapshot(out), summary


class Hooked(Executor):
    """An executor in whose processes something is called after each step, with its part and number."""

    def __init__(self, executor, hook):
        self.executor, self.hook = executor, hook

    def submit(self, fn, work, task):
        return self.executor.submit(fn, functools.partial(_hooked, self.hook, work), task)

    def shutdown(self, *given, **more):
        self.executor.shutdown()


def _hooked(hook, work, task):
    part = task.part
    steps = itertools.count(part.first_step)

    def after_step(samples):
        hook(part.number, next(steps))

    return work(task, after_step)


BEGUN = set()  # parts that this process has begun, where a hook notes them


def fatal(part, step):
    """Kill the worker that plans step 20, as often as a file says."""
    counter = Path(os.environ["FATAL"])
    if step == 20 and (left := int(counter.read_text())):
        counter.write_text(str(left - 1))
        os.kill(os.getpid(), signal.SIGKILL)


def killed(part, step):
    """Kill a worker in its second part, if the file is there that is named."""
    BEGUN.add(part)
    if len(BEGUN) > 1 and Path(os.environ["FATAL"]).exists():
        os.kill(os.getpid(), signal.SIGKILL)


def held(part, step):
    """Wait in a process's second part as long as the file is there that is named."""
    BEGUN.add(part)
    while len(BEGUN) > 1 and Path(os.environ["HELD"]).exists():
        time.sleep(0.01)


def slow(part, step):
    """Leave others time to begin: a driver would have planned all before they are there."""
    time.sleep(0.2)


DRIVER = """
import sys
if __name__ == "__main__":
    from balancer.offline.engines import Processes
    from balancer.offline.ray_executor import RayExecutor
    from run_cases import Hooked, open_log, plan_run, settings_of, slow
    with Hooked(RayExecutor(sys.argv[3]) if len(sys.argv) > 3 else Processes(2), slow) as who:
        plan_run(open_log(sys.argv[1]), settings_of(steps_per_part=1), sys.argv[2], who=who)
"""


COMMAND = """
import sys
if __name__ == "__main__":
    from balancer.cli import main, plan_command
    from balancer.offline import settings
    from balancer.offline.engines import Processes
    from run_cases import Hooked, held
    settings._SAMPLES_PER_PART = 32
    plan_command.who_works = lambda _, jobs: Hooked(Processes(jobs), held)
    main.main(sys.argv[1:])
"""


def paths():
    """Where processes find this package, this file, and what this process finds."""
    return os.pathsep.join(
        [str(ROOT), str(ROOT / "tests"), str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    )


def command(script, folder, *words):
    """Start a script in a session of its own, as a terminal does; its processes find this file.

    It hears Ctrl-C also where the tests run in a shell's background, which has it ignored.
    """
    hears = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    (folder / "script.py").write_text(hears + script)
    return subprocess.Popen(
        [sys.executable, str(folder / "script.py"), *map(str, words)], env=os.environ | {"PYTHONPATH": paths()},
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip


def children_of(pid):
    """Processes whose parent this is."""
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            if int(status.read_text().rpartition(")")[2].split()[1]) == pid:
                found.append(int(status.parent.name))
        except (OSError, ValueError):
            continue
    return found


def of_session(leader):
    """Processes of a session, which are there."""
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError):
            state, _, _, session = status.read_text().rpartition(")")[2].split()[:4]
            if int(session) == leader and state != "Z":
                found.append(int(status.parent.name))
    return found


def gone(leader):
    """Whether all processes of a session end; soon, that is."""
    for _ in range(600):
        if not of_session(leader):
            return True
        time.sleep(0.1)
    return False


def called(pids, what):
    """Those of some processes whose command line has `what` in it."""
    found = []
    for pid in pids:
        with contextlib.suppress(OSError):
            if what in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(pid)
    return found


def kill_at_random(log, folder, kills, workers, *engine):
    """Plan to `folder`'s `out`, kill the driver or a worker in turns, each time after a part or so, and plan again.

    A plan that is complete before all kills are done is compared, and made anew.
    """
    expected, _ = planned(log, settings_of(steps_per_part=1), folder / "expected")
    out, chance, killed = folder / "out", random.Random(7), []
    (folder / "driver.py").write_text(DRIVER)
    run, given = [sys.executable, str(folder / "driver.py"), str(log), f"{out}/", *engine], {"PYTHONPATH": paths()}
    for _ in range(4 * kills):
        if len(killed) == kills:
            break
        child = subprocess.Popen(run, env=os.environ | given, stderr=subprocess.DEVNULL)
        parts, deadline = len(list(out.glob("part-*"))), time.monotonic() + 120
        while child.poll() is None and time.monotonic() < deadline:
            victims = [child.pid] if len(killed) % 2 else workers(child.pid)
            if victims and len(list(out.glob("part-*"))) != parts:
                break
            time.sleep(0.01)
        time.sleep(chance.random() * 0.05)
        if child.poll() is None and victims:
            with contextlib.suppress(ProcessLookupError):  # its run has just ended
                os.kill(victims[0], signal.SIGKILL)
                killed.append(victims[0])
            time.sleep(chance.random() * 0.2)  # for what is left of the run to go on
        child.kill()
        if child.wait() == 0:
            assert snapshot(out) == expected
            shutil.rmtree(out)
    assert len(killed) == kills
    assert subprocess.run(run, env=os.environ | given, check=True).returncode == 0
    assert snapshot(out) == expected
