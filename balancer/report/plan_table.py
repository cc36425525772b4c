"""The tables of a run: how even each phase is before and after, and what moves. A screen and a page show the same."""

from collections.abc import Iterator, Sequence

import pyarrow as pa
from rich.console import Console

from balancer.offline.step_table import allowed_gap, full_steps, phases_in, summary
from balancer.problem.phases import SINGLE_PHASE
from balancer.report.remarks import Numbers, how_many, remarks_of
from balancer.report.table import Table, as_bytes, as_percent, as_range, as_ratios, print_lines, print_table
from balancer.report.text import shortened

WHEN = ("before", "after", "best_possible")
_LONGEST_NAME = 120


def print_summary(
    console: Console, steps: pa.Table, title: str, runtime_s: float, compile_s: float = 0.0, kept: int = 0,
    memory_mb: float | None = None, doing: str = "planned",
) -> None:  # fmt: skip
    """Print the tables of a run, what must be said of it, and what it took, with what compiling took on top of it.

    So many samples were `kept` from a run before; `doing` is what the seconds were spent on.
    """
    found = summary(steps)
    console.print(title, style="bold", markup=False, highlight=False, soft_wrap=True)
    for table in tables_of(steps):
        print_table(console, table)
    for line in remarks_of(steps):
        console.print(f"{line}\n", highlight=False, markup=False)
    planned = found["samples"] - kept
    of_steps = found["steps"] * planned / max(1, found["samples"])
    speed = f": {_rounded(1000 * runtime_s / of_steps)} ms a step" if of_steps else ""
    memory = "" if memory_mb is None else f", in {_rounded(memory_mb)} MB of memory"
    there = f"; {kept:,} of them were planned before" if kept else ""
    rate = f"{speed}{memory}{there}" if planned else "; all parts were there already"
    compiled = f"; kernels compiled, which are kept: {compile_s:.0f} s" if compile_s >= 0.5 else ""
    print_lines(console, f"{how_many(found)}, {doing} in {runtime_s:.2f} s{rate}{compiled}")


def tables_of(steps: pa.Table) -> Iterator[Table]:
    """Yield the table of phases, and of streams if there are some."""
    found, judged = summary(steps), phases_in(full_steps(steps))
    phases = found["phases"]
    ratios = as_ratios(phase[f"imbalance_ratio_{when}"] for phase in phases.values() for when in WHEN)
    rows: list[Sequence[str]] = []
    for number, (name, phase) in enumerate(phases.items()):
        if [*phases] != [SINGLE_PHASE]:
            rows.append((shortened(name, _LONGEST_NAME),))
        rows += _rows(phase, judged[name], ratios[3 * number : 3 * number + 3])
    yield Table(("", "before", "after", "best possible"), rows)
    if "streams" in found:
        yield _of_streams(found["streams"], found["steps"])


def _rows(phase: Numbers, steps: pa.Table, ratios: Sequence[str]) -> Iterator[Sequence[str]]:
    if "in_pipeline" in phase:
        yield "imbalance ratio, in the pipeline", *ratios[:2], ""
        return
    yield "imbalance ratio", *ratios
    waits = "waiting (bubble)" if "pipeline_stages" in phase else "waiting"
    yield waits, *(as_percent(phase[f"waiting_{when}"]) for when in WHEN)
    for name, value in _of_plan(phase, steps):
        yield name, "", value, ""


def _of_plan(phase: Numbers, steps: pa.Table) -> Iterator[tuple[str, str]]:
    """Yield what is known of a plan alone, and not of the samples as they lay."""
    yield "gap, mean", as_percent(phase["gap_mean"])
    yield "gap, largest", as_percent(phase["gap_largest"])
    if phase["eps"] and phase["placement"] == "relocate":
        allowed = as_percent(allowed_gap(phase["eps"], phase["stop_at"]))
        within = f"steps within {allowed} (eps, stop_at)" if phase["stop_at"] else f"steps within eps ({allowed})"
        yield within, f"{phase['steps_within_eps']:,} of {len(steps):,}"
    else:
        proven = f"within {as_percent(phase['stop_at'])}" if phase["stop_at"] else "optimal"
        yield f"steps proven {proven}", f"{phase['steps_proven_within']:,} of {len(steps):,}"
    if "sync" in phase:
        yield f"micro-batches ({phase['sync']})", as_range(phase["micro_batches_fewest"], phase["micro_batches_most"])
    if "shared_items" in phase:
        yield "shared items, of all elements", f"{phase['shared_items']:,}, {as_percent(phase['shared_fraction'])}"
    if "pipeline_stages" in phase:
        yield "pipeline stages", f"{phase['pipeline_stages']:,}"
    if phase.get("idle_ranks_most"):
        yield "idle ranks, mean and most", f"{phase['idle_ranks_mean']:,.3g}, {phase['idle_ranks_most']:,}"
    if steps["must_cross"].null_count < len(steps):
        yield "crosses nodes", as_percent(phase["crosses_nodes"])
        if phase["must_cross_nodes"]:
            yield "must cross nodes", as_percent(phase["must_cross_nodes"])
        yield "moves within nodes", as_percent(phase["moves_within_nodes"])


def _of_streams(streams: Numbers, steps: int) -> Table:
    """Return a row a stream: what a step moves, and how far."""
    bounded = any("must_cross_nodes_bytes" in stream for stream in streams.values())
    columns = ("stream", "a step", "crosses nodes", *["must cross"] * bounded, "within nodes", "largest send")
    rows = []
    for name, stream in streams.items():
        volume, must = max(stream["bytes"], 1), stream.get("must_cross_nodes_bytes")
        rows.append((
            shortened(name, _LONGEST_NAME), as_bytes(stream["bytes"] / steps), as_percent(stream["crosses_nodes"]),
            *["" if must is None else as_percent(must / volume)] * bounded,
            as_percent(stream["within_nodes_bytes"] / volume), as_bytes(stream["largest_send_bytes"]),
        ))  # fmt: skip
    return Table(columns, rows)


def _rounded(value: float) -> str:
    digits = float(f"{value:.2g}")
    return f"{digits:,.0f}" if digits >= 10 else f"{digits:g}"  # 2,900,000: 'g' alone would write 2.9e+06
