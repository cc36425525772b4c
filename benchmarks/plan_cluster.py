"""Plan the shipped log repeated to a hundred million rows by one process, by several, and by a local Ray cluster.

Every run has a folder of its own, and all folders must be the same byte for byte. Cores are pinned: one for one
process, as many as there are workers for the others, the driver included. What 10**9 and 10**10 rows take on more cores
is arithmetic from these figures: the rows' time on one core over the cores, and what the driver does for each part, one
after the other.

Run: python benchmarks/plan_cluster.py [--rows N] [--workers W] [--placement P] [--method M] [--no-ray]. Linux alone.
"""

import argparse
import hashlib
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

LOG = Path(__file__).parent.parent / "data" / "omni_mix_dev.parquet"
LENGTH = ["text_tokens", "image_tokens", "audio_tokens"]
ROWS_A_PART = 1_000_000
RUN = "from balancer.cli.main import main; main()"
ON_RAY = "import ray, sys; ray.init(num_cpus=int(sys.argv.pop(1)), log_to_driver=False, logging_level='error'); " + RUN


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
    """The most memory that any process below one has held: resident, less what it shares."""

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


def timed(command: list[str], cores: int) -> tuple[float, float, int]:
    """Return seconds of the whole command by the clock and of processors, and the peak memory of a worker in MiB."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    pinned = sorted(os.sched_getaffinity(0))[:cores]
    started = time.perf_counter()
    child = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, preexec_fn=lambda: os.sched_setaffinity(0, pinned)
    )
    peaks = Peaks(child.pid)
    peaks.start()
    child.communicate()
    peaks.over.set()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    if child.returncode:
        sys.exit(f"failed: {command}")
    return time.perf_counter() - started, spent, peaks.most >> 10


def digest_of(folder: Path) -> str:
    digest = hashlib.sha256()
    for file in sorted(folder.iterdir()):
        digest.update(file.name.encode() + file.read_bytes())
    return digest.hexdigest()


def driver_s_a_part(engine: str, workers: int) -> float:
    """Return the processor's seconds that the driver spends on each part, of 1,000 small ones."""
    from balancer.io.logs import open_log
    from balancer.offline.engines import Cluster, Processes
    from balancer.offline.run import plan_run
    from balancer.offline.settings import LogSettings
    from balancer.problem.phases import Phase
    from balancer.problem.settings import PlanSettings
    from balancer.problem.setup import Setup
    from balancer.problem.topology import Topology
    from balancer.report.summary import RunSummary

    setup = Setup(Topology.uniform(64, 8), (Phase("all", "+".join(LENGTH)),), PlanSettings("lpt", "any"))
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log.parquet"
        write_log(log, 1024 * 1000)
        spent = []
        for per_part in (1, 1000):  # what is left of 1,000 parts, less that of one
            before = time.process_time()
            who = Cluster() if engine == "ray" else Processes(workers)
            settings = LogSettings(setup, 16, steps_per_part=per_part)
            plan_run(open_log(log), settings, RunSummary, f"{folder}/{per_part}/", engine=who)
            spent.append(time.process_time() - before)
    return (spent[0] - spent[1]) / 999


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=100_000_000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--placement", default="any")
    parser.add_argument("--method", default="lpt")
    parser.add_argument("--no-ray", action="store_true")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_log(folder / "log.parquet", asked.rows)
        shape = ["plan", str(folder / "log.parquet"), "--json", "--ranks", "64", "--ranks-per-node", "8"]
        shape += ["--batch-per-rank", "16", "--length", "+".join(LENGTH), "--method", asked.method]
        shape += ["--placement", asked.placement]
        ways = {
            "one process": ([sys.executable, "-c", RUN], ["--engine", "serial"], 1),
            f"{asked.workers} processes": ([sys.executable, "-c", RUN], ["--jobs", str(asked.workers)], asked.workers),
        }
        if not asked.no_ray:
            ray = [sys.executable, "-c", ON_RAY, str(asked.workers)]
            ways[f"Ray, {asked.workers} workers"] = ray, ["--engine", "ray"], asked.workers
        rates, digests = {}, set()
        print("| | cores | seconds | of processors | rows a second | of one process | peak memory of a process, MiB |")
        print("|---|--:|--:|--:|--:|--:|--:|")
        for way, (program, engine, cores) in ways.items():
            out = folder / way.replace(" ", "-")
            seconds, spent, peak = timed([*program, *shape, *engine, "--out", f"{out}/"], cores)
            rates[way] = asked.rows / seconds
            digests.add(digest_of(out))
            ratio = rates[way] / rates["one process"]
            told = f"{seconds:.1f} | {spent:.1f} | {rates[way]:,.0f} | {ratio:.2f} | {peak}"
            print(f"| {way} | {cores} | {told} |", flush=True)
        assert len(digests) == 1, "the folders differ"
        print(f"all folders are the same byte for byte; {asked.rows:,} rows")
    each, part = rates.pop("one process"), 1_000_000 // 1024 * 1024
    print("\n| rows | engine | cores | seconds of cores | and of the driver |\n|---|---|--:|--:|--:|")
    for rows in (10**9, 10**10):
        print(f"| {rows:.0e} | serial | 1 | {rows / each:,.0f} | |")
    for engine, cores, rate in zip(("processes", "ray"), (64, 1024), rates.values(), strict=False):
        driver = driver_s_a_part(engine, asked.workers)
        for rows in (10**9, 10**10):
            told = f"{rows / (rate / asked.workers * cores):,.1f} | {rows / part * driver:.1f}"
            print(f"| {rows:.0e} | {engine}, {1e3 * driver:.2f} ms a part | {cores} | {told} |", flush=True)


if __name__ == "__main__":
    main()
