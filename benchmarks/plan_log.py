"""Plan the shipped log repeated to ten million rows, reading and writing included: samples a second and peak memory.

Run: python benchmarks/plan_log.py [rows], and with --profile for where the time goes. On Linux it keeps to one core.
Seconds are of the processor, which others on the machine disturb less than a clock's.
"""

import contextlib
import io
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import FrameType

import pyarrow as pa
import pyarrow.parquet as pq

LOG = Path(__file__).parent.parent / "data" / "omni_mix_dev.parquet"
LOOK_S = 0.001
STAGES = {  # functions whose time, with all that they call, is that of a stage
    "reading the log and checking its cells": [("logs.py", "_blocks")],
    "cutting steps, finding the items of each": [("steps.py", "rows_of_steps"), ("steps.py", "items")],
    "costs, constraints, problem": [("step.py", "_from_parts")],
    "groups (and their bound)": [("planner.py", "_solve")],
    "ranks: relocation": [("ranks.py", "place")],
    "ranks: relocation, its kernel": [("relocation.py", "search")],
    "sorting and checking, before groups": [("_problem.py", "prepare")],
    "the plan, its loads and its proof": [("dispatch_plan.py", "of"), ("placement.py", "by_sample_order")],
    "digest": [("description.py", "add")],
    "totals: what moves, what must": [("summary.py", "add_step")],
    "rows, and Parquet": [("rows.py", "append_phase")],
}
LENGTH = ["text_tokens", "image_tokens", "audio_tokens"]


def options(log: Path, plan: Path, method: str, placement: str) -> list[str]:
    shape = ["plan", str(log), "--json", "--jobs", "1", "--ranks", "64", "--ranks-per-node", "8"]
    shape += ["--batch-per-rank", "16", "--set", f"plan.method={method}", "--set", f"plan.placement={placement}"]
    return [*shape, "--length", "+".join(LENGTH), "--out", str(plan)]


def profiled(log: Path, plan: Path, method: str, placement: str, rows: int) -> None:
    """Print what each stage takes of the processor's time, as looks at the stack after every few milliseconds tell."""
    from balancer.cli.main import main as command

    seen: list[tuple[float, set[tuple[str, str]]]] = []

    def look(_: int, frame: FrameType | None) -> None:
        nonlocal last  # a signal waits for compiled code to return: a look stands for all the time since the one before
        now, stack = time.process_time(), set()
        seen.append((now - last, stack))
        last = now
        while frame is not None:
            stack.add((os.path.basename(frame.f_code.co_filename), frame.f_code.co_name))
            frame = frame.f_back

    signal.signal(signal.SIGPROF, look)
    for every in (0, LOOK_S):  # once to load the kernels
        last = time.process_time()
        signal.setitimer(signal.ITIMER_PROF, every, every)
        with (
            contextlib.suppress(SystemExit),
            contextlib.redirect_stdout(io.StringIO()),
            contextlib.redirect_stderr(io.StringIO()),
        ):
            command(options(log, plan, method, placement))
        signal.setitimer(signal.ITIMER_PROF, 0)
    whole = sum(spent for spent, stack in seen if ("run.py", "plan_run") in stack)
    print(f"| {method}, {placement} | us a step | share |\n|---|--:|--:|")
    for stage, functions in STAGES.items():
        taken = sum(spent for spent, stack in seen if not stack.isdisjoint(functions))
        print(f"| {stage} | {1e6 * taken / (rows / 1024):.0f} | {taken / whole:.0%} |")
    print(f"| all | {1e6 * whole / (rows / 1024):.0f} | |\n")


def main() -> None:
    given = [word for word in sys.argv[1:] if word != "--profile"]
    rows = int(given[0]) if given else 10_000_000
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    with tempfile.TemporaryDirectory() as folder:
        log, plan = Path(folder) / "repeated.parquet", Path(folder) / "plan.parquet"
        once = pq.read_table(LOG, columns=LENGTH)
        pq.write_table(pa.concat_tables([once] * (rows // len(once) + 1)).slice(0, rows), log)
        for method, placement in (("lpt", "any"), ("auto", "any"), ("auto", "relocate")):
            if "--profile" in sys.argv:
                profiled(log, plan, method, placement, rows)
                continue
            command = [sys.executable, "-c", "from balancer.cli.main import main; main()"]
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            run = subprocess.run([*command, *options(log, plan, method, placement)], check=True, capture_output=True)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
            clock = json.loads(run.stdout)["runtime_s"]
            print(
                f"{method:5} {placement:9} {rows:,} samples in {seconds:.2f} s of the processor, its start included: "
                f"{rows / seconds / 1e6:.2f} million samples a second ({rows / clock / 1e6:.2f} by the clock); "
                f"plan file {plan.stat().st_size / rows:.2f} bytes a row"
            )
    if "--profile" in sys.argv:
        return
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**10
    print(f"peak memory of the largest run: {peak:.0f} MiB")


if __name__ == "__main__":
    main()
