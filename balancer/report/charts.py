"""All charts: their colours, how each is drawn from arrays, and how it becomes inline SVG.

Needs matplotlib, which is an extra and is loaded only here, when used. Charts hold no names that users chose (phases,
files): those are text of the page.
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
from balancer.report.page_data import RankLoads
from balancer.report.simulation_data import StepBars
from balancer.report.table import as_percent
from solvers.errors import not_installed
from solvers.pipeline import MultiplexResult, PipelineRun

__all__ = ["BACKWARD", "DARK", "FORWARD", "IN_PAGE", "LIGHT", "TASK", "Bar", "bars", "gantt", "heat_map",
           "histogram", "loads", "log_ticks", "mean_steps", "of_phase", "over_steps", "require_plotting",
           "svg_of", "time_over_memory", "timeline"]  # fmt: skip

Floats = NDArray[np.float64]

LIGHT = {
    "page": "#ffffff", "card": "#f4f5f7", "ink": "#1a1a1a", "faint": "#666666", "line": "#d8d8d8", "before": "#b84d00",
    "after": "#0069a6", "bad": "#c0152f", "phase-0": "#0072b2", "phase-1": "#e69f00", "phase-2": "#007f5c",
    "phase-3": "#cc79a7", "phase-4": "#56b4e9", "phase-5": "#a6761d",
}  # fmt: skip
"""Colours by name; after Okabe and Ito (2008), whose colours colour-blind readers can tell apart."""
DARK = {
    "page": "#15171a", "card": "#202328", "ink": "#ececec", "faint": "#a6a6a6", "line": "#3a3d42", "before": "#ff9a4d",
    "after": "#6cc0f5", "bad": "#ff7b8a", "phase-0": "#4da3dd", "phase-1": "#f0b429", "phase-2": "#2fc299",
    "phase-3": "#e39ac2", "phase-4": "#8fd0f5", "phase-5": "#cf9f4a",
}  # fmt: skip
"""The same for dark screens."""

NUM_PHASE_COLORS = 6
MOST_STEPS = 150
"""Points of a curve over steps; more are averaged."""
_GAPS_UP_TO = 64  # bars; more stand without gaps
_MOST_TICKS = 6

IN_PAGE = {name: f"#0101{i:02}" for i, name in enumerate(LIGHT)}
"""Marks that :func:`svg_of` replaces by the page's variables, so that one chart suits light, dark and print."""


def of_phase(index: int) -> str:
    """Return the name of the colour of a phase; there are only so many."""
    return f"phase-{index % NUM_PHASE_COLORS}"


# Where charts go.


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
        "axes.edgecolor": IN_PAGE["faint"],
        "axes.titlesize": 10,
        **dict.fromkeys(("text.color", "axes.labelcolor", "xtick.color", "ytick.color"), IN_PAGE["ink"]),
        "legend.frameon": False,
        "legend.fontsize": 9,
    }
    with matplotlib.rc_context(settings), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # such as of characters that its font lacks
        figure = Figure(figsize=(width, height), layout="constrained", facecolor="none")
        # Not through pyplot: that keeps every figure alive, and may look for a display.
        FigureCanvasAgg(figure)
        yield figure


def svg_of(name: str, draw: Callable[[Any], Any], height: float = 2.6, width: float = 4.6) -> str:
    """Draw a chart in :data:`IN_PAGE` and return it as inline SVG that refers to nothing outside itself.

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
    # Ids are unique in a page, not in a chart: without a prefix charts would take each other's clip paths.
    svg = svg.replace("xlink:href", "href").replace('id="', f'id="{name}-')
    svg = svg.replace("url(#", f"url(#{name}-").replace('href="#', f'href="#{name}-')
    svg = re.sub(r"font: (?:\w+ )*([0-9.]+)px [^;\"]*", r"font-size: \1px", svg)  # the page's own font
    svg = re.sub(r"font-family: [^;\"]*(?:; )?", "", svg)
    for variable, mark in IN_PAGE.items():
        svg = svg.replace(mark, f"var(--{variable})")
    return svg.strip()


# Axes.


def _legend_above(axis: Any, columns: int) -> None:
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


# Charts.


def loads(axis: Any, shown: RankLoads, title: str, ylabel: str, before: bool, most: float) -> None:
    """Draw load over mean load of ranks, the busiest first, and how long all wait for it; `most` is where it ends.

    What the sample that caps the step costs is hatched, and a proven bound dotted.
    """
    color, width = IN_PAGE["before"] if before else IN_PAGE["after"], shown.ranks_a_bar
    # Every other step of the stairs is a gap between two bars.
    held = np.zeros(2 * len(shown.loads))
    held[::2] = shown.loads
    starts = width * np.arange(len(shown.loads), dtype=np.float64)
    filled = 0.86 if len(starts) <= _GAPS_UP_TO else 1.0
    edges = np.append(np.column_stack([starts, starts + filled * width]).ravel(), width * len(starts))
    axis.stairs(held, edges, color=color, fill=True, linewidth=0)
    if shown.cap:
        axis.bar(starts[shown.cap_bar], shown.cap, filled * width, align="edge", color=color, edgecolor=IN_PAGE["page"],
                 hatch="////", linewidth=0)  # fmt: skip
    axis.axhline(shown.loads[0], color=IN_PAGE["ink"], linestyle="--", linewidth=1)
    if shown.bound is not None:
        axis.axhline(shown.bound, color=IN_PAGE["ink"], linestyle=":", linewidth=1.2)
    axis.set(xlabel="rank, the busiest first", ylabel=ylabel, ylim=(0, 1.05 * most))
    axis.set_xlim(0, edges[-1])
    axis.set_title(title, loc="left", color=color)
    _whole_ticks(axis.xaxis, 1, shown.num_ranks, shift=filled / 2 - 1)  # in the middle of bars


LINES: dict[str, tuple[str, Any, float]] = {
    "before": ("before", "--", 1.2), "after": ("after", "-", 2), "bound": ("ink", ":", 1.2),
    "0": ("phase-1", "-.", 1.2), "1": ("phase-2", (0, (5, 1)), 1.2), "2": ("phase-3", (0, (1, 1)), 1.2),
}  # fmt: skip
"""Colour, dashes and width of lines, which are told apart without colours, too."""


def mean_steps(values: ArrayLike) -> tuple[NDArray[np.int64], int, Floats]:
    """Average neighbours, so that at most :data:`MOST_STEPS` are left: where each begins, how many make one, means."""
    of_steps = np.asarray(values, dtype=np.float64)
    width = -(-len(of_steps) // MOST_STEPS)
    starts = np.arange(0, len(of_steps), width)
    counts = np.diff(np.append(starts, len(of_steps)))
    return starts, width, np.add.reduceat(of_steps, starts) / counts


def over_steps(
    figure: Any, lines: Mapping[str, tuple[ArrayLike, str]], ylabel: str, least: float | None = None
) -> None:
    """Draw a line a name over the steps, in a look of :data:`LINES`; the axis begins at `least`, if that is given."""
    axis, starts, width = figure.subplots(), np.zeros(1, dtype=np.int64), 1
    for name, (values, of) in lines.items():
        color, dashes, thick = LINES[of]
        starts, width, means = mean_steps(values)
        marker = "o" if len(starts) == 1 else ""
        axis.plot(starts, means, color=IN_PAGE[color], linestyle=dashes, linewidth=thick, marker=marker, label=name)
    axis.set(xlabel="step" if width == 1 else f"step, means of {width}", ylabel=ylabel)
    axis.set_ylim(least)
    _whole_ticks(axis.xaxis, 0, int(starts[-1]))
    _legend_above(axis, 3)


@dataclass(frozen=True, slots=True)
class Bar:
    """A part of each bar, with the name of its colour; one without a label is told by the page."""

    values: Sequence[float]
    color: str
    label: str = ""
    hatch: str = ""


def bars(figure: Any, names: Sequence[str], parts: Sequence[Bar], xlabel: str, ends: Sequence[str] = (),
         spread: Sequence[float] | None = None, limit: tuple[str, float] | None = None) -> None:  # fmt: skip
    """Draw a bar a name, of parts one behind the other, and at the end of each its text and what it varies by.

    A `limit` is a line, and what lies over it red.
    """
    axis, rows, left = figure.subplots(), np.arange(len(names)), np.zeros(len(names))
    for part in parts:
        over = [limit is not None and value > limit[1] for value in part.values]
        color = np.where(over, IN_PAGE["bad"], IN_PAGE[part.color])
        axis.barh(rows, part.values, 0.62, left, color=color, linewidth=0, label=part.label)
        if part.hatch:  # told from the others without colours, too
            axis.barh(
                rows, part.values, 0.62, left, fill=False, hatch=part.hatch, edgecolor=IN_PAGE["ink"], linewidth=0
            )
        left = left + np.asarray(part.values)
    wide = np.zeros(len(names)) if spread is None else np.asarray(spread)
    if spread is not None:
        axis.errorbar(left, rows, xerr=(np.minimum(wide, left), wide), fmt="none", ecolor=IN_PAGE["ink"], elinewidth=1,
                      capsize=3)  # fmt: skip
    end = max(float((left + wide).max()), 0.0 if limit is None else limit[1]) or 1.0
    for row, text in enumerate(ends):
        axis.text(left[row] + wide[row] + 0.015 * end, row, text, va="center")
    if limit is not None:
        axis.axvline(limit[1], color=IN_PAGE["ink"], linestyle="--", linewidth=1.5, label=limit[0])
    # Room for the longest text behind a bar: a letter takes some two hundredths of the axis.
    room = 1.04 + 0.022 * max(map(len, ends), default=0)
    axis.set(xlabel=xlabel, xlim=(0, room * end), ylim=(len(names) - 0.4, -0.6))
    axis.locator_params(axis="x", nbins=5)
    axis.set_yticks(rows, names)
    axis.tick_params(axis="y", length=0)
    if axis.get_legend_handles_labels()[1]:
        _legend_above(axis, 3)


def timeline(figure: Any, steps: Mapping[str, StepBars]) -> None:
    """Draw one step by rank, a panel a title; blank within a step is waiting, a grey end is exchange."""
    axes = figure.subplots(len(steps), 1, sharex=True, squeeze=False)[:, 0]
    for axis, (title, step) in zip(axes, steps.items(), strict=True):
        edges = step.ranks_a_row * np.arange(len(next(iter(step.phases.values()))) + 1)
        for i, (name, takes) in enumerate(step.phases.items()):
            axis.stairs(step.starts[name] + takes, edges, baseline=step.starts[name], orientation="horizontal",
                        fill=True, color=IN_PAGE[of_phase(i)], linewidth=0)  # fmt: skip
        for end in (*step.ends.values(), step.seconds):
            axis.axvline(end, color=IN_PAGE["ink"], linewidth=0.8)
        axis.axvspan(step.compute_end, step.seconds, color=IN_PAGE["faint"], linewidth=0)
        axis.set(ylabel="rank, busiest first", ylim=(edges[-1], 0), xlim=0)
        _whole_ticks(axis.yaxis, 1, int(edges[-1]), shift=-0.5)
        axis.set_title(title, loc="left")
    axes[-1].set_xlabel("seconds")


def heat_map(figure: Any, volumes: Floats, nodes_a_row: int, label: str) -> None:
    """Draw what moves from node to node."""
    axis, end = figure.subplots(), len(volumes) * nodes_a_row
    extent = (-0.5, end - 0.5, end - 0.5, -0.5)  # ticks in the middle of nodes
    image = axis.imshow(volumes, cmap="cividis", vmin=0, extent=extent, interpolation="none")
    for ticks in (axis.xaxis, axis.yaxis):
        _whole_ticks(ticks, 0, end - 1)
    axis.set(xlabel="to node", ylabel="from node")
    figure.colorbar(image, ax=axis, label=label)


def histogram(figure: Any, counts: NDArray[np.int64], edges: Floats) -> None:
    """Draw how many items have which length; `edges` are those of the bins, one more than there are counts."""
    axis = figure.subplots()
    if not len(counts):
        axis.text(0.5, 0.5, "no item longer than 0", ha="center", transform=axis.transAxes)
        axis.set_axis_off()
        return
    axis.stairs(counts, edges, color=IN_PAGE["faint"], fill=True)
    axis.set(xscale="log", xlabel="length", ylabel="items", ylim=0)
    axis.set_xticks(*log_ticks(edges[0], edges[-1]))
    axis.xaxis.set_minor_formatter("")
    _whole_ticks(axis.yaxis, 0, int(counts.max()))


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
    blue, red = IN_PAGE["after"], IN_PAGE["bad"]
    axis.step([gib for _, gib, _ in best], [seconds for *_, seconds in best], where="post", color=IN_PAGE["faint"],
              linewidth=1)  # fmt: skip
    named: set[str] = set()
    for (mode, gib, seconds), face in [*((each, blue) for each in best), *((each, "none") for each in others)]:
        what, marker, edge = (mode, _MARKERS[mode], blue) if gib <= room else ("does not fit", "X", red)
        axis.plot(gib, seconds, marker=marker, color=face if gib <= room else red, markeredgecolor=edge,
                  linestyle="none", label="" if what in named else what)  # fmt: skip
        named.add(what)
    axis.axhline(bound, color=IN_PAGE["ink"], linestyle=":", linewidth=1.2, label="proven: none is faster")
    if "does not fit" in named:
        axis.axvline(room, color=IN_PAGE["bad"], linestyle="--", linewidth=1, label="room")
    axis.set(xlabel="GiB of a GPU", ylabel="seconds a step")
    _legend_above(axis, 3)


# Pipelines: which stage computes which micro-batch when.

Runs = Mapping[str, PipelineRun | MultiplexResult]
FORWARD, TASK, BACKWARD = 0, 1, 2
"""Of the colours of phases: forwards and backwards, and what encoders do between them."""
_DIGIT_WIDTH = 0.085  # inches; the number of a micro-batch is written where it fits into its op


def gantt(figure: Any, runs: Runs, unit: tuple[float, str], between: Mapping[str, Between] | None = None) -> Any:
    """Draw a panel a run: a row a device, a box an op, with its micro-batch's number where that fits; return them.

    Of what runs in the gaps of a run, `between`, boxes have no number.
    """
    axes = figure.subplots(len(runs), 1, sharex=True, squeeze=False)[:, 0]
    scale, name = unit
    end = max(run.makespan for run in runs.values()) / scale or 1.0
    for axis, (title, run) in zip(axes, runs.items(), strict=True):
        devices = len(run.busy)
        for starts, ends, color in (
            (run.forward_start / scale, run.forward_end / scale, FORWARD),
            (run.backward_start / scale, run.backward_end / scale, BACKWARD),
        ):
            for stage in range(starts.shape[1]):
                _draw_ops(axis, starts[:, stage], ends[:, stage], stage % devices, IN_PAGE[of_phase(color)], end)
        if (tasks := (between or {}).get(title)) is not None:
            _draw_tasks(axis, tasks, scale, end)
        axis.axvline(run.makespan / scale, color=IN_PAGE["ink"], linewidth=0.8)
        axis.set(ylabel="device", ylim=(devices - 0.5, -0.5), xlim=(0, end * 1.005))
        _whole_ticks(axis.yaxis, 0, devices - 1)
        axis.set_title(f"{title}: {run.makespan / scale:,.4g}, bubble {as_percent(run.bubble)}", loc="left")
    axes[-1].set_xlabel(name)
    return axes


def _draw_ops(axis: Any, starts: Floats, ends: Floats, row: int, color: str, end: float) -> None:
    there = [k for k in range(len(starts)) if starts[k] >= 0 and ends[k] > starts[k]]
    spans = [(starts[k], ends[k] - starts[k]) for k in there]
    edges = _edges(axis, spans, end)
    axis.broken_barh(spans, (row - 0.44, 0.88), facecolors=color, edgecolors=IN_PAGE["page"], linewidth=edges)
    digit = _DIGIT_WIDTH / axis.figure.get_figwidth()
    for k, (start, width) in zip(there, spans, strict=True):
        if width >= len(str(k)) * digit * end:
            axis.text(start + width / 2, row, str(k), ha="center", va="center", fontsize=9, color=IN_PAGE["page"])


def _edges(axis: Any, spans: Iterable[tuple[float, float]], end: float) -> list[float]:
    """Return how broad edges are, in points: less than a tenth of their boxes, whose colour they would hide else."""
    tenth = 7.2 * axis.figure.get_figwidth() / end
    return [min(0.3, tenth * width) for _, width in spans]


def _draw_tasks(axis: Any, between: Between, scale: float, end: float) -> None:
    """Draw what runs between the ops."""
    face = {"facecolors": IN_PAGE[of_phase(TASK)], "edgecolors": IN_PAGE["page"]}
    for device in np.unique(between.device).tolist():
        here = between.device == device
        spans = list(zip(between.start[here] / scale, between.takes[here] / scale, strict=True))
        axis.broken_barh(spans, (device - 0.44, 0.88), linewidth=_edges(axis, spans, end), **face)
