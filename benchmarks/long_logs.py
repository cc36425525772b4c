"""How fast are long logs planned and simulated?

    python benchmarks/long_logs.py [plan] [engines] [simulate] [--quick]

The shipped log over and over, 64 ranks x 16 on nodes of 8, by the command line: reading, checking, planning and writing
included. Seconds are of all processors together, but for `engines`, whose seconds are the clock's: on a machine with
other work they mean little. About three minutes of two cores; `--quick` half a minute.
"""

import hashlib
import json
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import common
import phases
import pyarrow as pa
import pyarrow.parquet as pq
from common import Table

_, COLUMNS = common.LOGS["mix"]
ROWS_A_GROUP = 1_000_000


def write_log(path: Path, rows: int) -> None:
    """Write the shipped log again and again, in row groups of a million rows."""
    once = pq.read_table(phases.LOG, columns=list(COLUMNS)).replace_schema_metadata(None)
    group = pa.concat_tables([once] * (ROWS_A_GROUP // len(once) + 1)).slice(0, ROWS_A_GROUP).combine_chunks()
    with pq.ParquetWriter(path, once.schema) as writer:
        for first in range(0, rows, ROWS_A_GROUP):
            writer.write_table(group.slice(0, min(ROWS_A_GROUP, rows - first)))


def command(*words: Any) -> tuple[dict[str, Any], float]:
    """Run `balancer` in a process of its own: what it prints as JSON, and the processor's seconds of it and its own."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    run = [sys.executable, "-c", "from balancer.cli.main import main; main()", *map(str, words), "--json"]
    done = subprocess.run(run, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return json.loads(done.stdout), seconds


def asked(log: Path, method: str = "lpt", placement: str = "any") -> list[Any]:
    shape = ["plan", log, "--ranks", 64, "--ranks-per-node", 8, "--batch-per-rank", 16, "--length", "+".join(COLUMNS)]
    return [*shape, "--set", f"plan.method={method}", "--set", f"plan.placement={placement}"]


def plan(quick: bool) -> None:
    """One process: million samples a second of a processor, its start included; bytes of the plan a row; memory."""
    rows = 200_000 if quick else 5_000_000
    table = Table(f"{rows:,} rows: method, placement", "s", "million samples a second", "over the first", "bytes a row",
                  "peak MiB so far")  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        log, out, first = Path(folder) / "log.parquet", Path(folder) / "plan.parquet", 0.0
        write_log(log, rows)
        for method, placement in (("lpt", "any"), ("auto", "any"), ("auto", "relocate")):
            _, seconds = command(*asked(log, method, placement), "--jobs", 1, "--out", out, "--overwrite")
            first = first or seconds
            peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss >> 10
            table.row(f"{method}, {placement}", f"{seconds:.1f}", f"{rows / seconds / 1e6:.2f}", seconds / first,
                      f"{out.stat().st_size / rows:.2f}", peak)  # fmt: skip


def digest_of(folder: Path) -> str:
    digest = hashlib.sha256()
    for file in sorted(folder.iterdir()):
        digest.update(file.name.encode() + file.read_bytes())
    return digest.hexdigest()


def engines(quick: bool) -> None:
    """One process, two, and Ray where it is installed: seconds over one process's; all plans are the same bytes."""
    rows = 400_000 if quick else 10_000_000
    ways = {"one process": ["--jobs", 1], "two processes": ["--jobs", 2]}
    ways |= {"Ray, a cluster of its own": ["--engine", "ray"]} if find_spec("ray") else {}
    table, first, digests = Table(f"{rows:,} rows", "s, clock", "over one process", "s, processors"), 0.0, set()
    with tempfile.TemporaryDirectory() as folder:
        write_log(log := Path(folder) / "log.parquet", rows)
        for name, way in ways.items():
            out, began = Path(folder) / "plan", time.perf_counter()
            _, processors = command(*asked(log), *way, "--out", f"{out}/")
            seconds = time.perf_counter() - began
            digests.add(digest_of(out))
            shutil.rmtree(out)
            first = first or seconds
            table.row(name, f"{seconds:.1f}", seconds / first, f"{processors:.1f}")
    assert len(digests) == 1, "the plans differ"


def simulate(quick: bool) -> None:
    """2,560 ranks in three phases: ms of a step and strategy, planning included; without and with micro-batches."""
    few, many = (1, 3) if quick else (2, 12)
    table = Table("samples a rank", "ms a step and strategy", "peak MiB so far")
    with tempfile.TemporaryDirectory() as folder:
        (file := Path(folder) / "step.toml").write_text(phases.STEP)
        shape = ["simulate", phases.LOG, "--step", file, "--ranks", 2560, "--ranks-per-node", 8, "--batch-per-rank", 16]
        for name, cut in {"16": [], "16, in micro-batches of 16,384 tokens":
                          ["--set", "cut.tokens=16384", "--set", "cut.over_long=own"]}.items():  # fmt: skip
            spent = [command(*shape, *cut, "--steps", steps)[1] for steps in (few, many)]
            each = 1e3 * (spent[1] - spent[0]) / (many - few) / len(phases.STRATEGIES)
            table.row(name, f"{each:.0f}", resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss >> 10)


if __name__ == "__main__":
    common.main(__doc__, plan, engines, simulate)
