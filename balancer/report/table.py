"""The tables that commands print on a terminal."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from balancer.errors import on_a_line
from balancer.problem.phases import SINGLE_PHASE
from balancer.report.across import across_lines
from balancer.report.remarks import warnings_of
from balancer.report.summary import PhaseSummary, RunSummary, StreamSummary, allowed_gap, as_range, waiting
from balancer.report.text import counted, of_phase

NARROWEST = 76
"""Columns that the table needs; on a narrower terminal lines wrap, but no number is cut."""

LOSS_ASSUMED = (
    "ranks that share a sample are assumed to lose 5 % of their speed with each doubling of their number; --cost says "
    "what was measured (balancer fit), or flexsp-7b-a100."
)
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
    console: Console, summary: RunSummary, title: str, runtime_s: float, compile_s: float = 0.0, kept: int = 0,
    memory_mb: float | None = None, doing: str = "planned",
) -> None:  # fmt: skip
    """Print one row a phase, what caps the plan, and what planning took, with what compiling took on top of it.

    So many samples were `kept` from a run before; `doing` is what the seconds were spent on.
    """
    console.print(title, style="bold", markup=False, highlight=False, soft_wrap=True)
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    named = [*summary.phases] != [SINGLE_PHASE]
    if named:  # where a terminal is narrow, names are broken, and numbers are not
        table.add_column("phase", overflow="fold", min_width=5)
    table.add_column("", no_wrap=True)
    for header in ("before", "after", "best possible"):
        table.add_column(header, justify="right", no_wrap=True, style="bold green" if header == "after" else "")
    ratios = as_ratios(ratio for phase in summary.phases.values() for ratio in _ratios(phase))
    for n, (name, phase) in enumerate(summary.phases.items()):
        for i, row in enumerate(_rows(phase, ratios[3 * n : 3 * n + 3])):
            table.add_row(*[Text(name if i == 0 else "")] * named, *row)
        table.add_section()
    console.print(table)
    if summary.in_slots:
        console.print(f"{before_slots(summary)}\n", highlight=False)
    if summary.streams:
        _print_streams(console, summary.streams, summary.steps)
    for line in warnings_of(summary):
        console.print(f"{line}\n", highlight=False, markup=False)
    for name, phase in summary.phases.items():
        if phase.capped_steps:
            console.print(_what_caps(name, phase), highlight=False, markup=False)
        if phase.prompts:
            console.print(_what_prompts_do(name, phase), highlight=False, markup=False)
        if phase.groups:
            console.print(f"{of_phase(name, groups_of(phase))}\n", highlight=False)
        if phase.loss_assumed:
            console.print(f"{of_phase(name, LOSS_ASSUMED)}\n", highlight=False)
        if phase.fell_back:
            console.print(f"{of_phase(name, why_not_relocated(phase))}\n", highlight=False, markup=False)
    for line in across_lines(summary.across) if summary.across else ():
        console.print(f"{line}\n", highlight=False, markup=False)
    planned = summary.samples - kept
    steps = summary.steps * planned / max(1, summary.samples)
    speed = f": {_rounded(1000 * runtime_s / steps)} ms a step" if steps else ""
    memory = "" if memory_mb is None else f", in {_rounded(memory_mb)} MB of memory"
    there = f"; {kept:,} of them were planned before" if kept else ""
    rate = f"{speed}{memory}{there}" if planned else "; all parts were there already"
    compiled = f"; kernels compiled, which are kept: {compile_s:.0f} s" if compile_s >= 0.5 else ""
    console.print(f"{how_many(summary)}, {doing} in {runtime_s:.2f} s{rate}{compiled}", highlight=False, soft_wrap=True)


def before_slots(summary: RunSummary) -> str:
    """Say what is compared with, where there are micro-batches."""
    if not summary.in_pipeline:
        return BEFORE_SLOTS
    if not any(phase.follows for phase in summary.phases.values()):
        return BEFORE_STAGES
    return f"{BEFORE_STAGES[:-1]}; encoders that the plan has in gaps run before them, evenly on all devices."


def why_not_relocated(phase: PhaseSummary) -> str:
    """Say which steps were rearranged instead of relocated."""
    reasons = [(on_a_line(reason), count) for reason, count in phase.fell_back.counted()]
    why = " ".join(f"{counted(count, 'step')}: {reason}." for reason, count in reasons)
    if len(reasons) == 1:
        why = f"{reasons[0][0][:1].upper()}{reasons[0][0][1:]}."
    what = "balanced first and laid on nodes afterwards, which moves more."
    steps = f"in {len(phase.fell_back):,} of {counted(phase.steps, 'step')}"
    return f"{steps} samples were {what} {why}"


def how_many(summary: RunSummary) -> str:
    """Say how many samples and steps there are."""
    return f"{counted(summary.samples, 'sample')} in {counted(summary.steps, 'step')}"


def _print_streams(console: Console, streams: Mapping[str, StreamSummary], steps: int) -> None:
    """Print one row a stream: what a step moves, and how far."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("stream", overflow="fold", min_width=6)
    bounded = any(stream.bounded for stream in streams.values())
    for header in ("a step", "crosses nodes", *["must cross"] * bounded, "within nodes", "largest send"):
        table.add_column(header, justify="right", no_wrap=True)
    for name, stream in streams.items():
        within, must = (part / max(stream.total, 1) for part in (stream.intra_node, stream.inter_node_bound))
        table.add_row(
            Text(name), as_bytes(stream.total / steps), as_percent(stream.inter_node_fraction),
            *[as_percent(must) if stream.bounded else ""] * bounded, as_percent(within), as_bytes(stream.largest_send),
        )  # fmt: skip
    console.print(table)


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


def _ratios(phase: PhaseSummary) -> tuple[float, float, float]:
    return phase.ratio_before, phase.ratio_after, phase.ratio_bound


def _rows(phase: PhaseSummary, ratios: Sequence[str]) -> Iterator[Sequence[str]]:
    numbers = phase.as_json()
    if phase.follows:
        yield "imbalance ratio, in the pipeline", *ratios[:2], ""
        return
    idle = [waiting(ratio) for ratio in _ratios(phase)]
    yield "imbalance ratio", *ratios
    yield "waiting (bubble)" if phase.num_stages else "waiting", *map(as_percent, idle)
    yield "gap, mean", "", as_percent(numbers["gap_mean"]), ""
    yield "gap, largest", "", as_percent(numbers["gap_largest"]), ""
    if phase.eps and phase.placement == "relocate":
        yield within_eps(phase), "", f"{phase.within_eps_steps:,} of {phase.steps:,}", ""
    else:
        yield proven_to(phase), "", f"{phase.proven_within_steps:,} of {phase.steps:,}", ""
    if phase.sync is not None:
        yield f"micro-batches ({phase.sync})", "", as_range(phase.fewest_slots, phase.most_slots), ""
    if phase.items_volume:
        what = f"{phase.shared_items:,}, {as_percent(phase.shared_fraction)}"
        yield "shared items, of all elements", "", what, ""
    if phase.num_stages:
        yield "pipeline stages", "", f"{phase.num_stages:,}", ""
    if phase.most_idle_ranks:
        mean = f"{phase.idle_ranks / phase.steps:,.3g}"
        yield "idle ranks, mean and most", "", f"{mean}, {phase.most_idle_ranks:,}", ""
    if phase.several_nodes:
        yield "crosses nodes", "", as_percent(numbers["crosses_nodes"]), ""
        if phase.inter_node_bound:
            yield "must cross nodes", "", as_percent(numbers["must_cross_nodes"]), ""
        yield "moves within nodes", "", as_percent(numbers["moves_within_nodes"]), ""


def proven_to(phase: PhaseSummary) -> str:
    """Say of which steps it is counted that they are proven to be as good as was asked for."""
    return f"steps proven within {as_percent(phase.stop_at)}" if phase.stop_at else "steps proven optimal"


def within_eps(phase: PhaseSummary) -> str:
    """Say of which steps it is counted that relocation keeps them as even as was asked for."""
    allowed = as_percent(allowed_gap(phase.eps, phase.stop_at))
    return f"steps within {allowed} (eps, stop_at)" if phase.stop_at else f"steps within eps ({allowed})"


def groups_of(phase: PhaseSummary) -> str:
    """Say how many groups of ranks of each degree there are, over all slots and steps, and what `eps` is not of."""
    counts = ", ".join(f"{count:,} of {degree}" for degree, count in phase.groups_by_degree.items())
    told = f"groups of ranks in all slots and steps: {counts}."
    over = phase.steps - phase.within_eps_steps
    if phase.items_volume and phase.eps and phase.placement == "relocate" and over:
        allowed = as_percent(allowed_gap(phase.eps, phase.stop_at))
        told += (
            f" In {over:,} of {counted(phase.steps, 'step')} ranks take over {allowed} "
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


def _what_prompts_do(name: str, phase: PhaseSummary) -> str:
    copies = phase.prompt_copies / phase.prompts
    where = "on {:.2f} ranks" if phase.sync is None else "in {:.2f} micro-batches"
    return of_phase(name, f"a prompt is computed {where.format(copies)} on average.\n")


def _what_caps(name: str, phase: PhaseSummary) -> str:
    steps = f"{phase.capped_steps:,} of {counted(phase.steps, 'step')}"
    worst = f"row {phase.cap_row:,} (from 0), length {phase.cap_length:,}, in step {phase.cap_step:,}"
    whole = phase.holder == "rank"
    mended = "no plan of whole samples mends that" if whole else "replicas of more ranks mend that"
    return of_phase(
        name,
        f"in {steps} one sample alone costs more than a {phase.holder}'s fair share; {mended}. "
        f"The worst: {worst}; its {phase.holder} takes {phase.cap_ratio:.2f} times the mean.\n",
    )
