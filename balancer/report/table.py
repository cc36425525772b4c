"""The tables that commands print on a terminal."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from balancer.errors import on_a_line
from balancer.offline.step_table import allowed_gap, full_steps, phases_in, summary
from balancer.problem.phases import SINGLE_PHASE
from balancer.report.remarks import warnings_of
from balancer.report.text import counted, of_phase

NARROWEST = 76
"""Columns that the table needs; on a narrower terminal lines wrap, but no number is cut."""

LOSS_ASSUMED = (
    "ranks that share a sample are assumed to lose 5 % of their speed with each doubling of their number; --cost says "
    "what was measured (balancer fit), or flexsp-7b-a100."
)
Numbers = Mapping[str, Any]
"""What a run, or a phase of it, adds up to, by the names of ``--json``: see ``balancer.offline.step_table``."""

BEFORE_SLOTS = "before: as the samples lie, not cut into micro-batches; ranks meet once a step."
"""A note of tables and pages where ranks wait in every micro-batch."""
BEFORE_STAGES = "before: each rank's samples as they lie, cut into as many micro-batches of equally many."
"""The same where there are pipeline stages."""


def numbers_table(first: str, headers: Iterable[str]) -> Table:
    """Return a table of names, under the first header, and of numbers."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    table.add_column(first, no_wrap=True)
    for header in headers:
        table.add_column(Text(header), justify="right", no_wrap=True)
    return table


def print_lines(console: Console, *lines: str) -> None:
    """Print lines as they are: of any length, and nothing in them is taken for markup."""
    for line in lines:
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def print_summary(
    console: Console, steps: pa.Table, title: str, runtime_s: float, compile_s: float = 0.0, kept: int = 0,
    memory_mb: float | None = None, doing: str = "planned",
) -> None:  # fmt: skip
    """Print one row a phase, what caps the plan, and what planning took, with what compiling took on top of it.

    So many samples were `kept` from a run before; `doing` is what the seconds were spent on.
    """
    found = summary(steps)
    console.print(title, style="bold", markup=False, highlight=False, soft_wrap=True)
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    named = [*found["phases"]] != [SINGLE_PHASE]
    if named:  # where a terminal is narrow, names are broken, and numbers are not
        table.add_column("phase", overflow="fold", min_width=5)
    table.add_column("", no_wrap=True)
    for header in ("before", "after", "best possible"):
        table.add_column(header, justify="right", no_wrap=True, style="bold green" if header == "after" else "")
    judged = phases_in(full_steps(steps))
    ratios = as_ratios(ratio for phase in found["phases"].values() for ratio in _three(phase, "imbalance_ratio"))
    for n, (name, phase) in enumerate(found["phases"].items()):
        for i, row in enumerate(_rows(phase, judged[name], ratios[3 * n : 3 * n + 3])):
            table.add_row(*[Text(name if i == 0 else "")] * named, *row)
        table.add_section()
    console.print(table)
    if meets_in_slots(found):
        console.print(f"{before_slots(found)}\n", highlight=False)
    if "streams" in found:
        _print_streams(console, found["streams"], found["steps"])
    for line in (*warnings_of(steps), *_said_of(found, judged), *across_lines(found)):
        console.print(f"{line}\n", highlight=False, markup=False)
    planned = found["samples"] - kept
    of_steps = found["steps"] * planned / max(1, found["samples"])
    speed = f": {_rounded(1000 * runtime_s / of_steps)} ms a step" if of_steps else ""
    memory = "" if memory_mb is None else f", in {_rounded(memory_mb)} MB of memory"
    there = f"; {kept:,} of them were planned before" if kept else ""
    rate = f"{speed}{memory}{there}" if planned else "; all parts were there already"
    compiled = f"; kernels compiled, which are kept: {compile_s:.0f} s" if compile_s >= 0.5 else ""
    console.print(f"{how_many(found)}, {doing} in {runtime_s:.2f} s{rate}{compiled}", highlight=False, soft_wrap=True)


def _said_of(found: Numbers, judged: Mapping[str, pa.Table]) -> Iterator[str]:
    """Yield what must be said of phases: what caps them, and what was not done."""
    for name, phase in found["phases"].items():
        rows = judged[name]
        if phase["capped_steps"]:
            yield _what_caps(name, phase, rows)
        if "copies_of_a_prompt" in phase:
            where = "in {:.2f} micro-batches" if "sync" in phase else "on {:.2f} ranks"
            copies = where.format(phase["copies_of_a_prompt"])
            yield of_phase(name, f"a prompt is computed {copies} on average.")
        if "groups_of_degree" in phase:
            yield of_phase(name, groups_of(phase, len(rows)))
        if pc.any(rows["loss_assumed"]).as_py():
            yield of_phase(name, LOSS_ASSUMED)
        if phase["fell_back"]:
            yield of_phase(name, why_not_relocated(phase, len(rows)))


def meets_in_slots(found: Numbers) -> bool:
    """Whether ranks of some phase meet in every micro-batch or along a pipeline."""
    return any(phase.get("sync") not in (None, "step") for phase in found["phases"].values())


def in_pipeline(found: Numbers) -> bool:
    """Whether the last phase is planned for pipeline stages."""
    return any("pipeline_stages" in phase for phase in found["phases"].values())


def costs_of(found: Numbers) -> dict[str, str]:
    """Say what each phase is priced by, and whose FLOPs that is, where it is known."""
    models = found.get("models", {})
    return {name: f"{cost} of {models[name]}" if name in models else cost for name, cost in found["cost"].items()}


def before_slots(found: Numbers) -> str:
    """Say what is compared with, where there are micro-batches."""
    if not in_pipeline(found):
        return BEFORE_SLOTS
    if not any("in_pipeline" in phase for phase in found["phases"].values()):
        return BEFORE_STAGES
    return f"{BEFORE_STAGES[:-1]}; encoders that the plan has in gaps run before them, evenly on all devices."


def why_not_relocated(phase: Numbers, steps: int) -> str:
    """Say which of so many steps were rearranged instead of relocated."""
    reasons = [(on_a_line(reason), count) for reason, count in phase["fell_back"].items()]
    why = " ".join(f"{counted(count, 'step')}: {reason}." for reason, count in reasons)
    if len(reasons) == 1:
        why = f"{reasons[0][0][:1].upper()}{reasons[0][0][1:]}."
    what = "balanced first and laid on nodes afterwards, which moves more."
    fell = f"in {sum(phase['fell_back'].values()):,} of {counted(steps, 'step')}"
    return f"{fell} samples were {what} {why}"


def how_many(found: Numbers) -> str:
    """Say how many samples and steps there are."""
    return f"{counted(found['samples'], 'sample')} in {counted(found['steps'], 'step')}"


def _print_streams(console: Console, streams: Mapping[str, Numbers], steps: int) -> None:
    """Print one row a stream: what a step moves, and how far."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("stream", overflow="fold", min_width=6)
    bounded = any("must_cross_nodes_bytes" in stream for stream in streams.values())
    for header in ("a step", "crosses nodes", *["must cross"] * bounded, "within nodes", "largest send"):
        table.add_column(header, justify="right", no_wrap=True)
    for name, stream in streams.items():
        total, must = max(stream["bytes"], 1), stream.get("must_cross_nodes_bytes")
        table.add_row(
            Text(name), as_bytes(stream["bytes"] / steps), as_percent(stream["crosses_nodes"]),
            *["" if must is None else as_percent(must / total)] * bounded,
            as_percent(stream["within_nodes_bytes"] / total), as_bytes(stream["largest_send_bytes"]),
        )  # fmt: skip
    console.print(table)


def across_lines(found: Numbers) -> Iterator[str]:
    """Say in sentences what runs early or late, if anything may, what that can gain, and what it does to training."""
    if (across := found.get("across_steps")) is None:
        return
    if not across["moved"]:
        yield (
            f"across steps: no sample moved; steps take at least {across['imbalance_ratio_without']:.3f} of the even "
            f"share, and {across['imbalance_ratio_best_possible']:.3f} whatever is moved within the limits (proven)."
        )
        return
    yield (
        f"across steps: {across['moved']:.0%} of the samples run in another step than the one they were drawn for, "
        f"{across['mean_displacement']:.2f} steps away on average over all samples, "
        f"{across['largest_displacement']} at most."
    ).replace("%", " %")
    yield (
        f"without deferral steps take at least {across['imbalance_ratio_without']:.3f} of the even share, these steps "
        f"{across['imbalance_ratio_of_steps']:.3f}, any within the limits "
        f"{across['imbalance_ratio_best_possible']:.3f} (proven)."
    )
    before, after = across["long_share"]
    yield (
        f"to training: long samples, of {across['long_from']:,} and more, have {before:.0%} of a step's tokens before "
        f"and {after:.0%} after, on average. Their tokens weigh {across['sample_mean_weight']:.2f} of what they did "
        "where a step's loss is divided by its samples, and exactly 1 where by a constant. Clipping and Adam's moments "
        "see the gathering in any case."
    ).replace("%", " %")


def as_bytes(count: float) -> str:
    """Show a number of bytes in three digits and a unit."""
    # From here on three digits would round up to 1,000 of the unit.
    if count < 999.5:
        return f"{count:.3g} B"
    for unit in ("KB", "MB", "GB", "TB"):
        count /= 1000
        if count < 999.5 or unit == "TB":
            break
    return f"{as_alike([count])[0]} {unit}"


def as_alike(values: Sequence[float], digits: int = 3, least: bool = False) -> list[str]:
    """Show numbers with equally many decimals: so many digits of the largest, or of the `least`."""
    there = [value for value in values if value > 0]
    if not there:
        return ["0"] * len(values)
    shown = min(there) if least else max(there)
    power = int(f"{shown:.{digits - 1}e}".partition("e")[2])  # of ten, once rounded
    decimals = min(9, max(0, digits - 1 - power))
    return [f"{value:,.{decimals}f}" for value in values]


def _three(phase: Numbers, what: str) -> list[float]:
    """Return a number before, after, and at best."""
    return [phase[f"{what}_{when}"] for when in ("before", "after", "best_possible")]


def _rows(phase: Numbers, steps: pa.Table, ratios: Sequence[str]) -> Iterator[Sequence[str]]:
    if "in_pipeline" in phase:
        yield "imbalance ratio, in the pipeline", *ratios[:2], ""
        return
    yield "imbalance ratio", *ratios
    waits = "waiting (bubble)" if "pipeline_stages" in phase else "waiting"
    yield waits, *map(as_percent, _three(phase, "waiting"))
    yield "gap, mean", "", as_percent(phase["gap_mean"]), ""
    yield "gap, largest", "", as_percent(phase["gap_largest"]), ""
    if phase["eps"] and phase["placement"] == "relocate":
        yield within_eps(phase), "", f"{phase['steps_within_eps']:,} of {len(steps):,}", ""
    else:
        yield proven_to(phase), "", f"{phase['steps_proven_within']:,} of {len(steps):,}", ""
    if "sync" in phase:
        yield f"micro-batches ({phase['sync']})", "", slots_of(phase), ""
    if "shared_items" in phase:
        what = f"{phase['shared_items']:,}, {as_percent(phase['shared_fraction'])}"
        yield "shared items, of all elements", "", what, ""
    if "pipeline_stages" in phase:
        yield "pipeline stages", "", f"{phase['pipeline_stages']:,}", ""
    if phase.get("idle_ranks_most"):
        yield "idle ranks, mean and most", "", f"{phase['idle_ranks_mean']:,.3g}, {phase['idle_ranks_most']:,}", ""
    if steps["must_cross"].null_count < len(steps):
        yield "crosses nodes", "", as_percent(phase["crosses_nodes"]), ""
        if phase["must_cross_nodes"]:
            yield "must cross nodes", "", as_percent(phase["must_cross_nodes"]), ""
        yield "moves within nodes", "", as_percent(phase["moves_within_nodes"]), ""


def slots_of(phase: Numbers) -> str:
    """Show how many micro-batches a phase's ranks have."""
    return as_range(phase["micro_batches_fewest"], phase["micro_batches_most"])


def as_range(fewest: int, most: int) -> str:
    """Show a range, or one number where both ends are equal."""
    return f"{fewest:,}" if fewest == most else f"{fewest:,} to {most:,}"


def proven_to(phase: Numbers) -> str:
    """Say of which steps it is counted that they are proven to be as good as was asked for."""
    return f"steps proven within {as_percent(phase['stop_at'])}" if phase["stop_at"] else "steps proven optimal"


def within_eps(phase: Numbers) -> str:
    """Say of which steps it is counted that relocation keeps them as even as was asked for."""
    allowed = as_percent(allowed_gap(phase["eps"], phase["stop_at"]))
    return f"steps within {allowed} (eps, stop_at)" if phase["stop_at"] else f"steps within eps ({allowed})"


def groups_of(phase: Numbers, steps: int) -> str:
    """Say how many groups of ranks of each degree there are, over all slots and steps, and what `eps` is not of."""
    counts = ", ".join(f"{count:,} of {degree}" for degree, count in phase["groups_of_degree"].items())
    told = f"groups of ranks in all slots and steps: {counts}."
    over = steps - phase["steps_within_eps"]
    if "shared_items" in phase and phase["eps"] and phase["placement"] == "relocate" and over:
        allowed = as_percent(allowed_gap(phase["eps"], phase["stop_at"]))
        told += (
            f" In {over:,} of {counted(steps, 'step')} ranks take over {allowed} "
            "more than the bound: eps is of the rank-time of groups, within which ranks are less even."
        )
    return told


def as_ratios(values: Iterable[float]) -> list[str]:
    """Show ratios with equally many decimals, enough that none looks perfect that is not."""
    values = list(values)
    closest = min((value - 1 for value in values if value > 1 + 1e-9), default=1.0)
    decimals = next((digits for digits in (3, 4, 5) if closest >= 0.5 * 10.0**-digits), 6)
    return [f"{value:.{decimals}f}" for value in values]


def as_percent(value: float | None) -> str:
    """Show a fraction as per cent, a small one in one digit; None is infinite.

    Under a thousandth of a part per million is what rounding to whole units leaves: none.

    Examples
    --------
    >>> as_percent(0.05), as_percent(0.0005), as_percent(2e-6), as_percent(6e-12)
    ('5.0 %', '0.05 %', 'under 0.001 %', '0 %')
    """
    if value is None:
        return "unbounded"
    if value < 1e-9:
        return "0 %"
    if value < 1e-5:
        return "under 0.001 %"
    return f"{100 * value:.1f} %" if value >= 0.00095 else f"{float(f'{100 * value:.1g}')} %"


def _rounded(value: float) -> str:
    digits = float(f"{value:.2g}")
    return f"{digits:,.0f}" if digits >= 10 else f"{digits:g}"  # 2,900,000: 'g' alone would write 2.9e+06


def _what_caps(name: str, phase: Numbers, rows: pa.Table) -> str:
    worst, holder = phase["capping_sample"], rows["holder"][0].as_py()
    steps = f"{phase['capped_steps']:,} of {counted(len(rows), 'step')}"
    which = f"row {worst['row']:,} (from 0), length {worst['length']:,}, in step {worst['step']:,}"
    mended = "no plan of whole samples mends that" if holder == "rank" else "replicas of more ranks mend that"
    return of_phase(
        name,
        f"in {steps} one sample alone costs more than a {holder}'s fair share; {mended}. "
        f"The worst: {which}; its {holder} takes {worst['imbalance_ratio_best_possible']:.2f} times the mean.",
    )
