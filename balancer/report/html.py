"""A run as one page: no script, nothing fetched, names as text; light, dark, on a phone and on paper."""

import html
import os
from collections.abc import Callable, Iterator
from functools import partial

from balancer._version import __version__
from balancer.io._atomic import open_temporary, remove_files, reported
from balancer.report import figures
from balancer.report.page_data import PageData, PhaseData, StepPicture
from balancer.report.style import STYLE
from balancer.report.summary import PhaseSummary, RunSummary
from balancer.report.table import as_bytes, as_percent, as_ratio, left_out

__all__ = ["page", "write_page"]

LONGEST_NAME = 120
"""Characters of a name that are shown."""

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


def write_page(path: str, summary: RunSummary, data: PageData, source: str) -> None:
    """Write the page of a run to a file, which is there as a whole or not at all.

    Raises
    ------
    InputError
        If the file cannot be written.
    """
    text = page(summary, data, source).encode("utf-8", errors="backslashreplace")  # file names need not be text
    folder, name = os.path.split(path)
    with reported(path, "write the report"):
        file, temporary, _ = open_temporary(folder or ".", name)
        try:
            with file:
                file.write(text)
            os.replace(temporary, path)
        except OSError:
            remove_files([temporary])
            raise


def page(summary: RunSummary, data: PageData, source: str) -> str:
    """Return the page of a run as HTML.

    Parameters
    ----------
    summary : RunSummary
    data : PageData
        Of the same steps, at least one.
    source : str
        What the run was of, such as the plan's path.
    """
    header = f"<header><h1>{named(source)}</h1><p>{_about(summary, data)}</p></header>"
    cards = "".join(_headline(name, phase) for name, phase in summary.phases.items()) + _traffic_headline(summary)
    body = f'{header}<section class="cards">{cards}</section>{"".join(_sections(summary, data))}'
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{_plain(source)}: rank balance</title><style>{STYLE}</style></head>\n"
        f"<body><main>{body}</main>"
        f"<footer>seqbalancer {html.escape(__version__)}. Every number is recomputed from the plan and its log."
        "</footer></body></html>\n"
    )


def named(name: str) -> str:
    """Return a name that a person chose as HTML text that keeps its direction to itself."""
    return f"<bdi>{_plain(name)}</bdi>"


def _plain(name: str) -> str:
    return html.escape(_short(name))


def _short(name: str) -> str:
    """Leave out the middle of a very long name: streams differ at the end."""
    half = LONGEST_NAME // 2
    return name if len(name) <= LONGEST_NAME else f"{name[:half]}…{name[-half:]}"


def _about(summary: RunSummary, data: PageData) -> str:
    shape = (
        f"{data.num_ranks:,} ranks on {data.num_nodes:,} nodes" if data.num_nodes > 1 else f"{data.num_ranks:,} ranks"
    )
    dropped = f" {left_out(summary)}" if summary.dropped else ""
    return f"{summary.samples:,} samples in {summary.steps:,} steps, {shape}.{dropped}"


def _headline(name: str, phase: PhaseSummary) -> str:
    """Return the card of one phase: what waiting costs before and after."""
    before, after, bound = (
        as_percent(1 - 1 / ratio) for ratio in (phase.ratio_before, phase.ratio_after, phase.ratio_bound)
    )
    numbers = phase.as_json()
    rows = {
        "imbalance ratio": f"{as_ratio(phase.ratio_before)} → {as_ratio(phase.ratio_after)}",
        "best possible, proven": as_ratio(phase.ratio_bound),
        "gap to the bound, mean": as_percent(numbers["gap_mean"]),
        "gap to the bound, largest": as_percent(numbers["gap_max"]),
        "steps proven optimal": f"{phase.proven_optimal_steps:,} of {phase.steps:,}",
    }
    if phase.eps and phase.placement == "relocate":
        rows[f"steps proven within {as_percent(phase.eps)}"] = f"{phase.within_eps_steps:,} of {phase.steps:,}"
    listed = "".join(f"<dt>{html.escape(key)}</dt><dd>{value}</dd>" for key, value in rows.items())
    return (
        f'<article class="card"><h2>{named(name)}</h2>'
        f'<p class="big"><span class="before">{before}</span> → <span class="after">{after}</span></p>'
        f"<p>of rank-time is waiting, before and after; at least {bound} under any plan</p><dl>{listed}</dl></article>"
    )


def _traffic_headline(summary: RunSummary) -> str:
    """Return the card of what moves, where there are streams or several nodes."""
    if summary.streams:
        rows = [
            (named(name), f"{as_bytes(stream.inter_node / summary.steps)} of {as_bytes(stream.total / summary.steps)}")
            for name, stream in summary.streams.items()
        ]
        big, what = as_bytes(summary.inter_node_bytes / summary.steps), "cross nodes in a step, on average"
    else:
        phase = next(iter(summary.phases.values()))
        if not phase.several_nodes:
            return ""
        numbers = phase.as_json()
        rows = [("within nodes", as_percent(numbers["intra_node_fraction"]))]
        if phase.inter_node_bound:
            rows.append(("must cross, proven", as_percent(numbers["inter_node_bound"])))
        big, what = as_percent(numbers["inter_node_fraction"]), "of all volume crosses nodes"
    listed = "".join(f"<dt>{key}</dt><dd>{value}</dd>" for key, value in rows)
    return f'<article class="card"><h2>traffic</h2><p class="big">{big}</p><p>{what}</p><dl>{listed}</dl></article>'


def _sections(summary: RunSummary, data: PageData) -> Iterator[str]:
    """Yield the parts below the headline."""
    yield _section(
        "Where ranks wait",
        "Load of each rank over the mean, ranks from the busiest to the idlest, mean of all steps. A phase lasts as "
        "long as its busiest rank; below its load, all others wait.",
        _charts(data, "profile", "Load of ranks, before and after", figures.profile),
    )
    if data.picture is not None:
        yield _timeline(data.picture, data.asked_step is not None)
    if data.num_nodes > 1:
        yield _between_nodes(data)
    yield _section(
        "Step by step",
        "Imbalance ratio of each step: largest load over mean load. Between plan and proven bound lies the gap.",
        _charts(data, "steps", "Imbalance of each step", figures.by_step),
    )
    yield _worst(data)
    yield _section(
        "How long items are",
        "Items by length, on a logarithmic axis. The longest set what no plan can mend.",
        _charts(data, "lengths", "Distribution of lengths", figures.lengths),
    )


def _section(title: str, words: str, charts: list[str]) -> str:
    return f'<section><h2>{title}</h2><p>{words}</p><div class="charts">{"".join(charts)}</div></section>'


def _charts(data: PageData, kind: str, description: str, draw: Callable[..., None]) -> list[str]:
    """Return a chart of one kind for each phase."""
    charts = []
    for i, (name, phase) in enumerate(data.phases.items()):
        svg = figures.svg_of(f"{kind}-{i}", partial(draw, phase=phase))
        note = f"{phase.zeros:,} items of length 0 are left out" if kind == "lengths" and phase.zeros else ""
        charts.append(_chart(f"{kind}-{i}", named(name), f"{description}, phase {name}", svg, note))
    return charts


def _chart(key: str, caption: str, description: str, svg: str, note: str = "") -> str:
    """Return one figure; the description is for those who do not see it."""
    below = f'<p class="note">{note}</p>' if note else ""
    head = f"<figcaption>{caption}</figcaption>" if caption else ""
    return (
        f'<figure id="{key}">{head}<div role="img" aria-label="{html.escape(_short(description))}">{svg}</div>'
        f"{below}</figure>"
    )


def _timeline(picture: StepPicture, asked_for: bool) -> str:
    """Return the section that shows one step by rank."""
    which = "the step asked for" if asked_for else "the step in which the plan saves most"
    each = (
        f" Each row stands for {picture.ranks_a_row} ranks, and shows the busiest." if picture.ranks_a_row > 1 else ""
    )
    keys = "".join(
        f'<li><span class="key" style="background:var({figures.phase_variable(i)})"></span>{named(name)}</li>'
        for i, name in enumerate(picture.phases)
    )
    svg = figures.svg_of("timeline", lambda figure: figures.timeline(figure, picture), height=6)
    return _section(
        f"Step {picture.step:,} by rank",
        f"This is {which}. A phase starts when the slowest rank has ended the one before; what is blank is waiting. "
        f"Phases are drawn in units of their own mean load.{each}</p><ul class='keys'>{keys}</ul><p>",
        [_chart("timeline", "", "Timeline of one step by rank, before and after", svg)],
    )


def _between_nodes(data: PageData) -> str:
    """Return the section of the heat map."""
    title = "What travels between nodes"
    if not data.traffic.any():
        return _section(title, "Nothing crosses nodes.", [])
    each = f" Each row and column stands for {data.nodes_a_row} nodes." if data.nodes_a_row > 1 else ""
    svg = figures.svg_of("traffic", lambda figure: figures.traffic(figure, data), height=4)
    words = f"From each node to each other, all steps together; what stays within a node is left out.{each}"
    return _section(title, words, [_chart("traffic", "", "Heat map of traffic between nodes", svg)])


def _worst(data: PageData) -> str:
    """Return the table of the most uneven steps and what caps them."""
    rows = []
    for name, phase in data.phases.items():
        rows += [_worst_row(name, phase, i) for i in range(len(phase.worst))]
    head = "".join(
        f"<th{' class=num' if right else ''}>{text}</th>"
        for text, right in (
            ("phase", False), ("step", True), ("before", True), ("after", True), ("best possible", True),
            ("capped by", False),
        )
    )  # fmt: skip
    return (
        "<section><h2>The worst steps</h2><p>The steps whose plans are the most uneven, and what caps each: "
        "where one sample costs more than a rank's fair share, its rank is the slowest whatever is planned. Rows of "
        'the log count from 0.</p><div class="wide"><table>'
        f"<thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table></div></section>"
    )


def _worst_row(name: str, phase: PhaseData, index: int) -> str:
    worst = sorted(phase.worst, reverse=True)[index]
    cap = "—" if worst.cap_row is None else f"row {worst.cap_row:,}, length {worst.cap_length:,}"
    numbers = "".join(
        f"<td class=num>{text}</td>"
        for text in (
            f"{worst.step:,}", as_ratio(worst.ratio_before), as_ratio(worst.ratio_after), as_ratio(worst.ratio_bound)
        )
    )  # fmt: skip
    return f"<tr><td>{named(name)}</td>{numbers}<td>{cap}</td></tr>"
