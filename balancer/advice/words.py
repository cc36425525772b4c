"""Findings as a screen of text, and the lines of it that are pasted into a shell and a trainer."""

import shlex
from collections.abc import Iterator, Mapping, Sequence

from balancer.advice.findings import WORTH, Finding, Findings
from balancer.report.text import counted, of_costs

__all__ = ["HEADER", "assumed", "gained", "lines_of", "measured_line", "percent", "rows_of", "to_paste", "travels",
           "verdict"]  # fmt: skip

ID_BYTES = 8
"""Of a token of a single phase that travels: an int64 id."""

SHOWN = 0.0005
"""A standard error that is not 0.0 in points."""

_SHARING = ("sequence_groups", "context_shards")

HEADER = ("", "time", "waiting", "GPUs that wait", "bound", "saves", "compared with")


def lines_of(advice: Findings, command: Sequence[str] = ()) -> Iterator[str]:
    """Yield the screen; `command` are the words of a ``balancer plan`` of the same log, if somebody typed them.

    Nothing in it is of a clock: see :func:`measured_line`.
    """
    num_ranks = advice.settings.setup.topology.num_ranks
    gpus = f" of {advice.gpus // num_ranks} GPUs" * (advice.gpus != num_ranks)
    batch = "" if advice.settings.batch_per_rank is None else f" x {advice.settings.batch_per_rank}"
    sample = advice.sample.in_words(advice.within.steps)
    yield f"{advice.log.path.name}: planned {sample}, {counted(num_ranks, 'rank')}{gpus}{batch}"
    yield ""
    yield from _table([HEADER, *rows_of(advice)])
    yield from ("", *said) if (said := list(verdict(advice))) else ()
    for finding in advice.chosen:
        yield ""
        yield f"{finding.title}: {gained(advice, finding)}"
        yield f"  asks for: {finding.asks}"
        yield f"  {travels(advice, finding)}"
        yield from (f"    {line}" for line in to_paste(finding, command))
    first, *others = assumed(advice)
    yield from ("", first, *(f"  {each}" for each in others))


def measured_line(advice: Findings) -> str:
    """Say what the clock gave."""
    parts = [f"{each.title} {each.plan_ms:,.1f}" for each in advice.rows[1:] if not each.why_not]
    return f"planning took, in ms a step (median): {'; '.join(parts)}"


def rows_of(advice: Findings) -> Iterator[tuple[str, ...]]:
    """Yield the cells of the table: today, a plan within the step, and what could be done beyond it.

    A row of two cells is of what was not tried, and says why.
    """
    for each in advice.rows:
        if each.why_not:
            yield each.title, each.why_not
            continue
        error = f" ± {100 * each.waiting_error:.1f}" * (each.waiting_error >= SHOWN)
        waits = percent(each.waiting) + error, f"{advice.gpus * each.waiting:,.1f}"
        saves = percent(each.saves) if each.is_worth_it else "nothing to gain"
        compared = (f"{each.best_possible:.3f}", saves, each.beside) if each.beside else ("", "", "")
        yield each.title, f"{each.time:.3f}", *waits, *compared


def _table(rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    """Align numbers to the right, and text at both ends to the left."""
    full = [row for row in rows if len(row) > 2]
    first = max(len(row[0]) for row in rows)
    widths = [max(len(row[i]) for row in full) for i in range(1, len(HEADER) - 1)]
    for row in rows:
        numbers = [f"{cell:>{width}}" for cell, width in zip(row[1:-1], widths, strict=False)]
        yield "  ".join((f"{row[0]:<{first}}", *numbers, row[-1])).rstrip()


def percent(share: float) -> str:
    """Show a share; one that rounds to nothing without a sign."""
    return f"{abs(share) if abs(share) < SHOWN else share:.1%}".replace("%", " %")


def verdict(advice: Findings) -> Iterator[str]:
    """Say what is to be done, and what no plan can do."""
    if advice.sample.is_short:
        samples = counted(advice.sample.samples_per_step, "sample")
        yield (
            f"The log holds less than one step ({samples}): ranks without a sample wait in every plan, so "
            "these numbers say nothing of full steps."
        )
    if not advice.tokens:
        yield "All lengths are 0, so there is nothing to balance; is this the column that you mean?"
    least, cap = advice.least, advice.cap
    if least - 1 >= WORTH and advice.settings.setup.settings.cut.meets:  # then slots bound a plan too
        yield f"Cut as asked, no plan within a step can do better than {least:.3f} times the even share."
    elif least - 1 >= WORTH and cap.steps:
        yield (
            f"No plan of whole samples within a step can do better than {least:.3f} times the even share: in "
            f"{cap.steps:,} of {advice.within.steps:,} steps one sample alone is longer than a rank's fair share; the "
            f"worst, row {cap.row:,} of length {cap.length:,}, makes its step {cap.ratio:.2f} times as long."
        )
    if not advice.chosen:
        waits, worth = percent(advice.today.waiting), percent(WORTH)
        yield f"There is nothing to gain here: ranks wait {waits} of the time, and no remedy tried saves {worth} of it."
    elif not advice.within.is_worth_it:
        yield "A plan within the step alone has nothing to gain here."
    elif advice.best is None:
        yield "No other remedy has anything to gain here."


def gained(advice: Findings, finding: Finding) -> str:
    """Say what it gains, in GPUs, in hours and in money."""
    now, then = (f"{advice.gpus * each.waiting:,.1f}" for each in (advice.today, finding))
    hours = advice.hours_a_day(finding)
    money = "" if advice.price is None else f", {advice.price * hours:,.0f} at {advice.price:g} a GPU hour"
    gpus = counted(advice.gpus, "GPU")
    return f"{then} of {gpus} wait, {now} now; a day's training takes {hours:,.0f} GPU hours less{money}"


def travels(advice: Findings, finding: Finding) -> str:
    """Say what a rank sends, in MB."""
    if len(advice.settings.setup.phases) > 1:
        return f"costs: a rank sends {finding.moved / 1e6:,.2g} MB a step"
    rest = "and what attention exchanges" if finding.name in _SHARING else "none if the loader reads by the plan"
    size = finding.moved * ID_BYTES / 1e6
    return f"costs: a rank sends {finding.moved:,.0f} tokens a step, {size:.2g} MB as ids of {ID_BYTES} bytes; {rest}"


def to_paste(finding: Finding, command: Sequence[str] = ()) -> Iterator[str]:
    """Yield what makes the plan, and what trains by it."""
    out = f"{finding.name}.parquet"  # a file each, as none is written over another request's
    if command:
        yield shlex.join(["balancer", "plan", *_with(command, finding.options), "--out", out])
    else:
        more = f", {finding.keywords}" * bool(finding.keywords)
        yield f'balancer.plan_log(log, ...{more}, out="{out}")'
    if finding.name in _SHARING:
        yield f'balancer.load_plan("{out}", step=k).pieces_on_rank(rank, slot=0)'
        return
    yield "from balancer.compat import PlannedBatchSampler"
    yield f'loader = DataLoader(dataset, batch_sampler=PlannedBatchSampler("{out}", rank))'


def _with(words: Sequence[str], changed: Mapping[str, str | None]) -> Iterator[str]:
    """Yield the words of a command with keys set, or left out: None, which a step file may say, too."""
    rest = iter(words)
    for word in rest:
        option, equals, value = word.partition("=")
        key = option.removeprefix("--").replace("-", "_")
        if option != "--set" and key not in changed:
            yield word
            continue
        text = value if equals else next(rest, "")
        key = text.partition("=")[0].strip() if option == "--set" else key
        if not (key in changed or (key.startswith("cut.") and "cut.kind" in changed)):
            yield from (word,) if equals else (word, text)
    for key, wanted in changed.items():
        if wanted is not None or any(word.partition("=")[0] == "--step" for word in words):
            yield from ("--set", f"{key}={wanted or ''}")


def assumed(advice: Findings) -> Iterator[str]:
    """Yield what the numbers take for granted."""
    phases = advice.settings.setup.phases
    costs = of_costs({phase.name: str(phase.cost) for phase in phases}).removeprefix("cost: ")
    unit = ", all in one unit of time" * (len(phases) > 1)
    yield (
        f"Assumed: steps take what their samples cost, {costs}{unit}; ranks wait for each other in every phase; "
        "exchanges, gradients and loading take no time; rows are drawn in the log's order."
    )
    if max(each.waiting_error for each in advice.rows) >= SHOWN:
        yield (
            "± is one standard error: only some of the log's steps were planned; they are treated as independent, and "
            "no sample leaves its stretch of them, so that deferral may gain more."
        )
    if fewer := [each for each in advice.remedies if not each.why_not and each.steps < advice.within.steps]:
        told = ", ".join(f"{each.title} on {each.steps:,}" for each in fewer)
        yield f"Remedies that take long were planned on fewer steps; time and bound are scaled to all steps: {told}."
