"""Plan the shipped log repeated to ten and a hundred million rows by one process, several, and a local Ray cluster.

Every run has a folder of its own, and all folders must be the same byte for byte. Cores are pinned: one for one
process, as many as there are workers for the others, of which the driver is one. *Ray* is a cluster that the command
starts; *Ray, there before* one that runs already. *Side by side* are runs of one process at once, a core each, that
have nothing to do with one another: what the machine gives at most. All take turns; the shortest of the runs counts.
Before that, sources are compiled to bytecode, as pip does when it installs, and kernels to machine code, as a first
command does. What 10**9 and 10**10 rows take on more cores is arithmetic from the last figures: the rows' time over the
cores at the rate that two have, and what the driver does for each part, one after the other.

Run: python benchmarks/plan_cluster.py [--rows N ...] [--runs N] [--workers W] [--placement P] [--method M] [--no-ray],
on Linux.
"""

import argparse
import compileall
import contextlib
import ctypes
import hashlib
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

ROOT = Path(__file__).parent.parent
LOG = ROOT / "data" / "omni_mix_dev.parquet"
LENGTH = ["text_tokens", "image_tokens", "audio_tokens"]
ROWS_A_PART = 1_000_000
_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER
RUN = "from balancer.cli.main import main; main()"
CLUSTER = """
import json, os, sys, ray
context = ray.init(num_cpus=int(sys.argv[1]), log_to_driver=False, logging_level="error")
print(json.dumps([context.address_info["address"], os.environ.get("RAY_AUTH_MODE", "disabled")]), flush=True)
sys.stdin.read()
"""
COMPILE = "from solvers._jit import compile_at_once; compile_at_once(); " + RUN


def write_log(path: Path, rows: int) -> None:
    """Write the shipped log again and again, in row groups of a million rows."""
    once = pq.read_table(LOG, columns=LENGTH).replace_schema_metadata(None)
    group = pa.concat_tables([once] * (ROWS_A_PART // len(once) + 1)).slice(0, ROWS_A_PART).combine_chunks()
    with pq.ParquetWriter(path, once.schema) as writer:
        for first in range(0, rows, ROWS_A_PART):
            writer.write_table(group.slice(0, min(ROWS_A_PART, rows - first)))


def descendants(pid: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError):
            continue
        children.setdefault(parent, []).append(int(stat.parent.name))
    found, left = [], [pid]
    while left:
        found += (mine := children.get(left.pop(), []))
        left += mine
    return found


def planning(pid: int) -> bool:
    """Whether a process imports this package: a worker, not a daemon of Ray's."""
    try:
        return "_lpt" in (maps := Path(f"/proc/{pid}/maps").read_text()) or "llvmlite" in maps
    except OSError:
        return False


class Peaks(threading.Thread):
    """The most memory that any process below one that plans has held, what it shares with others included."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self.pid, self.most, self.over = pid, 0, threading.Event()

    def run(self) -> None:
        while not self.over.wait(0.5):
            for pid in [self.pid, *descendants(self.pid)]:
                if planning(pid):
                    try:
                        status = Path(f"/proc/{pid}/status").read_text()
                    except OSError:
                        continue
                    if "VmHWM" in status:
                        self.most = max(self.most, int(status.partition("VmHWM:")[2].split()[0]))


def pinned(command: list[str], cores: list[int]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        preexec_fn=lambda: os.sched_setaffinity(0, cores),
    )  # fmt: skip


def spent() -> float:
    """Return the processor's seconds of all that have ended below this process, whoever started them."""
    with contextlib.suppress(ChildProcessError):
        while True:
            os.waitpid(-1, 0)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def timed(command: list[str], cores: int) -> tuple[float, int]:
    """Return seconds of the whole command, and the peak memory of a worker in MiB."""
    started = time.perf_counter()
    child = pinned(command, sorted(os.sched_getaffinity(0))[:cores])
    peaks = Peaks(child.pid)
    peaks.start()
    child.wait()
    seconds = time.perf_counter() - started
    peaks.over.set()
    if child.returncode:
        sys.exit(f"failed: {command}")
    return seconds, peaks.most >> 10


@contextlib.contextmanager
def cluster(workers: int) -> Iterator[None]:
    """Have a Ray cluster, which shares the cores of all others and is found by its address in the environment."""
    command = [sys.executable, "-c", CLUSTER, str(workers)]
    cores = sorted(os.sched_getaffinity(0))[:workers]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, preexec_fn=lambda: os.sched_setaffinity(0, cores)
    ) as process:
        assert process.stdout
        os.environ["RAY_ADDRESS"], os.environ["RAY_AUTH_MODE"] = json.loads(process.stdout.readline())
        yield
    del os.environ["RAY_ADDRESS"], os.environ["RAY_AUTH_MODE"]


def side_by_side(command: list[str], out: Path, copies: int) -> float:
    """Return seconds of as many runs by themselves at once, a core each: no engine can be faster on this machine."""
    started = time.perf_counter()
    cores = sorted(os.sched_getaffinity(0))[:copies]
    for child in [pinned([*command, "--out", f"{out}-{core}/"], [core]) for core in cores]:
        if child.wait():
            sys.exit(f"failed: {command}")
    seconds = time.perf_counter() - started
    for core in cores:
        shutil.rmtree(f"{out}-{core}")
    return seconds


def digest_of(folder: Path) -> str:
    digest = hashlib.sha256()
    for file in sorted(folder.iterdir()):
        digest.update(file.name.encode() + file.read_bytes())
    return digest.hexdigest()


def driver_s_a_part(engine: str, workers: int) -> float:
    """Return the processor's seconds that the driver spends on each part, of 1,000 small ones."""
    from balancer.io.log import open_log
    from balancer.offline.engines import Cluster, Processes, _dealt, _Workers
    from balancer.offline.run import plan_run
    from balancer.offline.settings import LogSettings
    from balancer.problem.phases import Phase
    from balancer.problem.settings import PlanSettings
    from balancer.problem.setup import Setup
    from balancer.problem.topology import Topology

    class Handed(Processes):  # and a driver that does no part itself
        def run(self, work, tasks, tick):
            with _Workers(work, self.jobs) as them:
                yield from _dealt(tasks, them, tick)

    if engine == "ray":
        import ray

        ray.init(num_cpus=workers, log_to_driver=False, logging_level="error")
    setup = Setup(Topology.uniform(64, 8), (Phase("all", "+".join(LENGTH)),), PlanSettings("lpt", "any"))
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log.parquet"
        write_log(log, 1024 * 1000)
        spent = []
        for per_part in (1, 1000):  # what is left of 1,000 parts, less that of one
            before = time.process_time()
            who = Cluster() if engine == "ray" else Handed(workers)
            settings = LogSettings(setup, 16, steps_per_part=per_part)
            plan_run(open_log(log), settings, f"{folder}/{per_part}/", engine=who)
            spent.append(time.process_time() - before)
    return (spent[0] - spent[1]) / 999


def measured(folder: Path, rows: int, asked: argparse.Namespace) -> dict[str, float]:
    """Plan a log of so many rows in every way; print a table, and return rows a second by way."""
    write_log(folder / "log.parquet", rows)
    shape = ["plan", str(folder / "log.parquet"), "--json", "--ranks", "64", "--ranks-per-node", "8"]
    shape += ["--batch-per-rank", "16", "--length", "+".join(LENGTH), "--set", f"plan.method={asked.method}"]
    shape += ["--set", f"plan.placement={asked.placement}"]
    workers, here = asked.workers, [sys.executable, "-c", RUN]
    ways = {
        "serial": ([*here, *shape, "--jobs", "1"], 1),
        "side by side": ([*here, *shape, "--jobs", "1"], workers),
        "processes": ([*here, *shape, "--jobs", str(workers)], workers),
    }
    if not asked.no_ray:
        ways["ray"] = [*here, *shape, "--engine", "ray"], workers
        ways["ray, there before"] = ways["ray"]
    first = ["plan", str(LOG), *shape[2:], "--jobs", "1", "--out", f"{folder / 'first'}/"]
    timed([sys.executable, "-c", COMPILE, *first], 1)
    least, digests = {}, set()
    for _ in range(asked.runs):
        for way, (command, cores) in ways.items():
            out, before = folder / way.replace(" ", "-"), spent()
            if way == "side by side":
                seconds, peak = side_by_side(command, out, workers) / workers, 0
            else:
                with cluster(workers) if way == "ray, there before" else contextlib.nullcontext():
                    seconds, peak = timed([*command, "--out", f"{out}/"], cores)
                digests.add(digest_of(out))
                shutil.rmtree(out)
            processors = (spent() - before) / (workers if way == "side by side" else 1)
            found = seconds, processors, peak
            least[way] = min(least.get(way, found), found)
    rates = {way: rows / seconds for way, (seconds, _, _) in least.items()}
    print(f"\n{rows:,} rows\n")
    print("| | cores | seconds | of processors | rows a second | of one process | peak memory of a process, MiB |")
    print("|---|--:|--:|--:|--:|--:|--:|")
    for way, (seconds, processors, peak) in least.items():
        told = f"{seconds:.1f} | {processors:.1f} | {rates[way]:,.0f} | {rates[way] / rates['serial']:.2f} | {peak}"
        print(f"| {way} | {ways[way][1]} | {told} |", flush=True)
    assert len(digests) == 1, "the folders differ"
    print("all folders are the same byte for byte", flush=True)
    return rates


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, nargs="+", default=[10_000_000, 100_000_000])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--placement", default="any")
    parser.add_argument("--method", default="lpt")
    parser.add_argument("--no-ray", action="store_true")
    asked = parser.parse_args()
    ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)  # so that workers and daemons whose parents end come to be ours
    for package in ("balancer", "solvers"):
        compileall.compile_dir(ROOT / package, quiet=1)
    for number in asked.rows:
        with tempfile.TemporaryDirectory() as name:
            rates = measured(Path(name), number, asked)
    part = ROWS_A_PART // 1024 * 1024
    print("\n| rows | engine | cores | seconds of cores | and of the driver |\n|---|---|--:|--:|--:|")
    for rows in (10**9, 10**10):
        print(f"| {rows:.0e} | serial | 1 | {rows / rates['serial']:,.0f} | |")
    for engine, cores in (("processes", 64), ("ray", 1024)):
        if engine in rates:
            driver, rate = driver_s_a_part(engine, asked.workers), rates[engine] / asked.workers
            for rows in (10**9, 10**10):
                told = f"{rows / (rate * cores):,.1f} | {rows / part * driver:.1f}"
                print(f"| {rows:.0e} | {engine}, {1e3 * driver:.2f} ms a part | {cores} | {told} |", flush=True)


if __name__ == "__main__":
    main()
