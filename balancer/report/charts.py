"""The pictures of pages: how each is drawn from arrays, and how it becomes inline SVG.

Needs matplotlib, which is an extra and is loaded only here, when used. Charts hold no names that users chose (phases,
files): those are text of the page. Colours are for light; a page inverts charts on dark screens.
"""

import importlib.util
import io
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from balancer.errors import InputError
from balancer.plan.gaps import Between
from balancer.report.table import as_percent
from solvers.errors import not_installed
from solvers.pipeline import MultiplexResult, PipelineRun

__all__ = ["COLORS", "Bar", "bars", "gantt", "histogram", "loads", "log_ticks", "over_steps", "require_plotting",
           "residuals", "svg_of", "time_over_memory"]  # fmt: skip

Floats = NDArray[np.float64]

COLORS = {
    "page": "#ffffff", "ink": "#1a1a1a", "faint": "#666666", "before": "#b84d00", "after": "#0069a6", "bad": "#c0152f",
    "phase-0": "#0072b2", "phase-1": "#e69f00", "phase-2": "#007f5c", "phase-3": "#cc79a7", "phase-4": "#56b4e9",
    "phase-5": "#a6761d",
}  # fmt: skip
"""By name; after Okabe and Ito (2008), whose colours colour-blind readers can tell apart."""

MOST_RANKS = 64
"""Points of a curve over ranks; if there are more ranks, neighbours are joined, the busiest standing for all."""
MOST_STEPS = 100
"""Points of a curve over steps; more are averaged."""
_MOST_TICKS = 6


# Where charts go ---------------------------------------------------------------------------------------------------


def require_plotting(option: str) -> None:
    """Raise InputError, with the remedy, if what draws charts and pages is not installed."""
    for module, name in (("matplotlib", "matplotlib"), ("jinja2", "Jinja2")):
        if importlib.util.find_spec(module) is None:
            raise InputError(not_installed(option, name, "plot"))


@contextmanager
def _drawing(width: float, height: float) -> Iterator[Any]:
    """Open a figure that needs no display."""
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    settings = {
        "svg.fonttype": "none",
        "svg.hashsalt": "seqbalancer",  # the same page at every run
        "font.size": 10,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.facecolor": "none",
        "axes.titlesize": 10,
        "xtick.bottom": False,
        "ytick.left": False,
        "legend.frameon": False,
        "legend.fontsize": 9,
    }
    with matplotlib.rc_context(settings), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # such as of characters that its font lacks
        figure = Figure(figsize=(width, height), layout="constrained", facecolor="none")
        # Not through pyplot: that keeps every figure alive, and may look for a display.
        FigureCanvasAgg(figure)
        yield figure


def svg_of(name: str, draw: Callable[[Any], Any], height: float = 2.6, width: float = 5.4) -> str:
    """Draw a chart and return it as inline SVG that refers to nothing outside itself.

    `name`, which no user chose, keeps the ids of the page's charts apart; `draw` takes a matplotlib figure.
    """
    buffer = io.StringIO()
    with _drawing(width, height) as figure:
        draw(figure)
        # Without a date the same numbers give the same bytes.
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :]
    # A style inside an SVG that stands in a page would apply to the whole page.
    svg = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->|<style.*?</style>", "", svg, flags=re.DOTALL)
    head, rest = svg.split(">", 1)
    view = re.search(r'viewBox="[^"]*"', head)
    svg = f'<svg {view[0] if view else ""} aria-hidden="true">{rest}'
    # A tenth of a point is less than anyone sees, and half of all bytes were digits behind it.
    svg = re.sub(r"<[^>]*>", lambda tag: _DECIMALS.sub(_to_a_tenth, tag[0]), svg)
    svg = re.sub(r'<g id="[^"]*">', "<g>", svg)
    svg = re.sub(r"\s*\n\s*", " ", svg).replace("> <", "><")
    # Ids are unique in a page, not in a chart: without a prefix charts would take each other's clip paths.
    svg = svg.replace("xlink:href", "href").replace('id="', f'id="{name}-')
    svg = svg.replace("url(#", f"url(#{name}-").replace('href="#', f'href="#{name}-')
    svg = re.sub(r"font: (?:\w+ )*([0-9.]+)px [^;\"]*", r"font-size: \1px", svg)  # the page's own font
    return re.sub(r"font-family: [^;\"]*(?:; )?", "", svg).strip()


_DECIMALS = re.compile(r"-?\d+\.\d\d+")


def _to_a_tenth(number: re.Match[str]) -> str:
    return f"{float(number[0]):.1f}".removesuffix(".0")


# Axes --------------------------------------------------------------------------------------------------------------


def _legend_above(axis: Any, columns: int = 3) -> None:
    """Put the legend where no line runs; in two columns if it has several rows, as long names need the width."""
    columns = columns if len(axis.get_legend_handles_labels()[1]) <= columns else 2
    axis.legend(ncols=columns, loc="lower left", bbox_to_anchor=(0, 1), borderaxespad=0, handlelength=1.6)


def _whole_ticks(axis: Any, least: int, most: int, shift: float = 0.0) -> None:
    """Let an axis of whole numbers have ticks at some of those that are there, the first among them."""
    each = next(10**power * digit for power in range(20) for digit in (1, 2, 5)
                if (most - least) / (10**power * digit) <= _MOST_TICKS)  # fmt: skip
    ticks = [least, *(tick for tick in range(each * (least // each), most + 1, each) if tick > least + each / 2)]
    axis.set_ticks([tick + shift for tick in ticks], [f"{tick:,}" for tick in ticks])


def log_ticks(least: float, most: float) -> tuple[list[float], list[str]]:
    """Return ticks of a logarithmic axis with labels that do not meet: of 1, 2, 5, 10 and so on, or of powers of ten.

    Of an axis in which there are none of these, its ends.
    """
    powers = range(int(np.log10(least)), int(np.log10(most)) + 1)
    fine, coarse = (
        [tick for power in powers for digit in digits if least <= (tick := digit * 10.0**power) <= most]
        for digits in ((1, 2, 5), (1,))
    )
    ticks = coarse if len(fine) > _MOST_TICKS else fine or [least, most]
    ticks = ticks[:: -(-len(ticks) // _MOST_TICKS)]
    labels = [_short(tick) for tick in ticks]
    return ticks, labels if len(set(labels)) == len(labels) else [_short(tick, 1) for tick in ticks]


def _short(value: float, decimals: int = 0) -> str:
    prefixes = ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"))
    scale, prefix = next((found for found in prefixes if value >= found[0]), (1.0, ""))
    return f"{value / scale:,.{decimals}f}{prefix}"


# Charts ------------------------------------------------------------------------------------------------------------


def loads(figure: Any, before: ArrayLike, after: ArrayLike, bound: float | None, ylabel: str) -> None:
    """Draw loads over the mean load, the busiest rank first, as sampled and planned; a proven bound is dotted."""
    axis = figure.subplots()
    for values, name, color, dashes in ((before, "as sampled", "before", "--"), (after, "planned", "after", "-")):
        relative = np.sort(np.asarray(values, dtype=np.float64))[::-1]
        width = -(-len(relative) // MOST_RANKS)
        busiest = relative[::width]  # of each few neighbours
        edges = np.minimum(width * np.arange(len(busiest) + 1), len(relative)) + 0.5
        axis.stairs(busiest, edges, baseline=None, color=COLORS[color], linestyle=dashes, linewidth=1.6, label=name)
    if bound is not None:
        axis.axhline(bound, color=COLORS["ink"], linestyle=":", linewidth=1.6, label="proven bound")
    axis.set(xlabel="rank, the busiest first", ylabel=ylabel, ylim=0, xlim=(0.5, len(relative) + 0.5))
    _whole_ticks(axis.xaxis, 1, len(relative))
    _legend_above(axis)


_LINES: tuple[tuple[str, Any, float], ...] = (
    ("before", "--", 1.4), ("after", "-", 1.8), ("ink", ":", 1.6), ("phase-1", "-.", 1.4),
    ("phase-2", (0, (5, 1)), 1.4), ("phase-3", (0, (1, 1)), 1.4),
)  # fmt: skip
"""Colour, dashes and width of lines in their order, which are told apart without colours, too."""


def over_steps(figure: Any, lines: Mapping[str, ArrayLike], ylabel: str, least: float | None = None) -> None:
    """Draw a line a name over the steps, means of neighbours where there are many; the axis begins at `least`."""
    axis, starts, width = figure.subplots(), np.zeros(1, dtype=np.int64), 1
    for (name, values), (color, dashes, thick) in zip(lines.items(), _LINES, strict=False):
        of_steps = np.asarray(values, dtype=np.float64)
        width = -(-len(of_steps) // MOST_STEPS)
        starts = np.arange(0, len(of_steps), width)
        means = np.add.reduceat(of_steps, starts) / np.diff(np.append(starts, len(of_steps)))
        marker = "o" if len(starts) == 1 else ""
        axis.plot(starts, means, color=COLORS[color], linestyle=dashes, linewidth=thick, marker=marker, label=name)
    axis.set(xlabel="step" if width == 1 else f"step, means of {width}", ylabel=ylabel)
    axis.set_ylim(least)
    _whole_ticks(axis.xaxis, 0, int(starts[-1]))
    _legend_above(axis)


def histogram(figure: Any, counts: NDArray[np.int64], edges: Floats) -> None:
    """Draw how many items have which length; `edges` are those of the bins, one more than there are counts."""
    axis = figure.subplots()
    if not len(counts):
        axis.text(0.5, 0.5, "no item longer than 0", ha="center", transform=axis.transAxes)
        axis.set_axis_off()
        return
    axis.stairs(counts, edges, color=COLORS["faint"], fill=True)
    axis.set(xscale="log", xlabel="length", ylabel="items", ylim=0)
    axis.minorticks_off()
    axis.set_xticks(*log_ticks(edges[0], edges[-1]))
    _whole_ticks(axis.yaxis, 0, int(counts.max()))


@dataclass(frozen=True, slots=True)
class Bar:
    """A part of each bar, with the name of its colour."""

    values: Sequence[float]
    color: str
    label: str = ""
    hatch: str = ""


def bars(figure: Any, names: Sequence[str], parts: Sequence[Bar], xlabel: str, ends: Sequence[str] = ()) -> None:
    """Draw a bar a name, of parts one after the other, and at the end of each its text."""
    axis, rows, left = figure.subplots(), np.arange(len(names)), np.zeros(len(names))
    for part in parts:
        axis.barh(rows, part.values, 0.62, left, color=COLORS[part.color], linewidth=0, label=part.label)
        if part.hatch:  # told from the others without colours, too
            axis.barh(rows, part.values, 0.62, left, fill=False, hatch=part.hatch, edgecolor=COLORS["ink"], linewidth=0)
        left = left + np.asarray(part.values)
    end = float(left.max()) or 1.0
    for row, text in enumerate(ends):
        axis.text(left[row] + 0.015 * end, row, text, va="center")
    # Room for the longest text after a bar: a letter takes some two hundredths of the axis.
    room = 1.04 + 0.022 * max(map(len, ends), default=0)
    axis.set(xlabel=xlabel, xlim=(0, room * end), ylim=(len(names) - 0.4, -0.6))
    axis.locator_params(axis="x", nbins=5)
    axis.set_yticks(rows, names)
    _legend_above(axis)


_MARKERS = {"stages": "o", "before": "s", "multiplexed": "^"}


def time_over_memory(
    figure: Any,
    table: Iterable[tuple[str, float, float]],
    others: Iterable[tuple[str, float, float]],
    room: float,
    bound: float,
) -> None:
    """Draw layouts by mode, GiB and seconds: a step line of what none is better than, and hollow the others.

    What takes more memory than there is room for is a red cross.
    """
    axis, best = figure.subplots(), list(table)
    blue, red = COLORS["after"], COLORS["bad"]
    axis.step([gib for _, gib, _ in best], [seconds for *_, seconds in best], where="post", color=COLORS["faint"],
              linewidth=1)  # fmt: skip
    named: set[str] = set()
    for (mode, gib, seconds), face in [*((each, blue) for each in best), *((each, "none") for each in others)]:
        what, marker, edge = (mode, _MARKERS[mode], blue) if gib <= room else ("does not fit", "X", red)
        axis.plot(gib, seconds, marker=marker, color=face if gib <= room else red, markeredgecolor=edge,
                  linestyle="none", label="" if what in named else what)  # fmt: skip
        named.add(what)
    axis.axhline(bound, color=COLORS["ink"], linestyle=":", linewidth=1.2, label="proven: none is faster")
    if "does not fit" in named:
        axis.axvline(room, color=red, linestyle="--", linewidth=1, label="room")
    axis.set(xlabel="GiB of a GPU", ylabel="seconds a step")
    _legend_above(axis)


def residuals(figure: Any, predicted: ArrayLike, measured: ArrayLike) -> None:
    """Draw how far measured seconds are from those that a fit predicts, in per cent, over the prediction."""
    axis, fitted = figure.subplots(), np.asarray(predicted, dtype=np.float64)
    apart = 100 * (np.asarray(measured, dtype=np.float64) / fitted - 1)
    axis.plot(fitted, apart, color=COLORS["after"], marker=".", markersize=3, linestyle="none")
    axis.axhline(0, color=COLORS["ink"], linewidth=0.8)
    axis.set(xscale="log", xlabel="predicted seconds", ylabel="measured beside it, %")
    axis.minorticks_off()


# Pipelines: which stage computes which micro-batch when.

Runs = Mapping[str, PipelineRun | MultiplexResult]
FORWARD, TASK, BACKWARD = "phase-0", "phase-1", "phase-2"
"""Colours of forwards and backwards, and of what encoders do between them."""
DEVICE_HEIGHT = 0.24
"""Inches of a device's row."""
_MOST_NUMBERS = 64  # ops of a run in which their micro-batches' numbers are written
_DIGIT_WIDTH = 0.085  # inches; a number is written where it fits into its op


def gantt(figure: Any, runs: Runs, unit: tuple[float, str], between: Mapping[str, Between] | None = None) -> Any:
    """Draw a panel a run: a row a device, a bar an op; return the panels.

    Where there are few ops, each has its micro-batch's number. `between` is what runs in the gaps of a run.
    """
    axes = figure.subplots(len(runs), 1, sharex=True, squeeze=False)[:, 0]
    scale, name = unit
    end = max(run.makespan for run in runs.values()) / scale or 1.0
    for axis, (title, run) in zip(axes, runs.items(), strict=True):
        devices = len(run.busy)
        for kind, starts, ends, color in (
            ("forward", run.forward_start / scale, run.forward_end / scale, FORWARD),
            ("backward", run.backward_start / scale, run.backward_end / scale, BACKWARD),
        ):
            _draw_ops(axis, kind, starts, ends, devices, color, end)
        if (tasks := (between or {}).get(title)) is not None:
            begins = tasks.start / scale
            _draw_spans(axis, "encoders", begins, begins + tasks.takes / scale, tasks.device, TASK, end)
        axis.axvline(run.makespan / scale, color=COLORS["ink"], linewidth=0.8)
        axis.set(ylabel="device", ylim=(devices - 0.5, -0.5), xlim=(0, end * 1.005))
        _whole_ticks(axis.yaxis, 0, devices - 1)
        axis.set_title(f"{title}: {run.makespan / scale:,.4g}, bubble {as_percent(run.bubble)}", loc="left")
    axes[-1].set_xlabel(name)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper left", ncols=3, handlelength=1.2)
    return axes


def _draw_ops(axis: Any, kind: str, starts: Floats, ends: Floats, devices: int, color: str, end: float) -> None:
    slot, stage = np.nonzero((starts >= 0) & (ends > starts))
    begins, stops = starts[slot, stage], ends[slot, stage]
    _draw_spans(axis, kind, begins, stops, stage % devices, color, end)
    digit = _DIGIT_WIDTH / axis.figure.get_figwidth() * end
    for k, row, begin, stop in zip(slot, stage % devices, begins, stops, strict=True):
        if len(slot) <= _MOST_NUMBERS and stop - begin >= len(str(k)) * digit:
            axis.text((begin + stop) / 2, row, str(k), ha="center", va="center", fontsize=9, color=COLORS["page"])


def _draw_spans(axis: Any, kind: str, begins: Floats, stops: Floats, rows: ArrayLike, color: str, end: float) -> None:
    """Draw bars as one line with gaps, thick as a row: a path of few bytes, however many there are."""
    tenth = np.minimum(end / 1500, (stops - begins) / 10)  # between neighbours
    across = np.column_stack([begins + tenth, stops - tenth, np.full(len(begins), np.nan)]).ravel()
    along = np.repeat(np.asarray(rows, dtype=np.float64), 3)
    thick = 72 * DEVICE_HEIGHT * 0.85
    axis.plot(across, along, color=COLORS[color], linewidth=thick, solid_capstyle="butt", label=kind)
