"""The charts of the page, and of ``--plot``. Needs matplotlib, which is an extra and is loaded here alone, when used.

Charts hold no name that a person chose: those stand in the page around them, as text.
"""

import importlib.util
import io
import os
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from balancer.errors import InputError
from balancer.report.page_data import BINS_AN_OCTAVE, PageData, PhaseData, StepPicture

__all__ = ["IN_PAGE", "ON_PAPER", "Colors", "by_step", "lengths", "phase_variable", "plot_loads", "profile",
           "require_matplotlib", "svg_of", "timeline", "traffic"]  # fmt: skip

MOST_STEPS = 150
"""Points of a curve over steps; more are averaged."""
NUM_PHASE_COLORS = 6


@dataclass(frozen=True, slots=True)
class Colors:
    """What a chart is drawn in."""

    ink: str
    faint: str
    before: str
    after: str
    phases: tuple[str, ...]


ON_PAPER = Colors(
    "#1a1a1a", "#8a8a8a", "#d55e00", "#0072b2", ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#a6761d")
)
"""Okabe and Ito's (2008), which colour-blind eyes tell apart."""

IN_PAGE = Colors("#010101", "#010102", "#010103", "#010104", tuple(f"#01011{i}" for i in range(NUM_PHASE_COLORS)))
"""Marks that :func:`svg_of` replaces by the page's variables, so that one chart suits light, dark and print."""

_VARIABLE_OF = {
    IN_PAGE.ink: "--ink",
    IN_PAGE.faint: "--faint",
    IN_PAGE.before: "--before",
    IN_PAGE.after: "--after",
    **{mark: f"--phase-{i}" for i, mark in enumerate(IN_PAGE.phases)},
}


def phase_variable(index: int) -> str:
    """Return the page's variable for the colour of a phase."""
    return f"--phase-{index % NUM_PHASE_COLORS}"


def require_matplotlib(option: str) -> None:
    """Raise InputError, with the remedy, if matplotlib is not installed."""
    if importlib.util.find_spec("matplotlib") is None:
        raise InputError(
            f"{option} needs matplotlib, which is not installed; install it with: pip install 'seqbalancer[plot]'"
        )


@contextmanager
def _drawing(width: float, height: float, colors: Colors) -> Iterator[Any]:
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
        "axes.edgecolor": colors.faint,
        **dict.fromkeys(("text.color", "axes.labelcolor", "xtick.color", "ytick.color"), colors.ink),
        "legend.frameon": False,
        "legend.fontsize": 9,
    }
    with matplotlib.rc_context(settings), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # such as of characters that its font lacks
        figure = Figure(figsize=(width, height), layout="constrained", facecolor="none")
        FigureCanvasAgg(figure)
        yield figure


def svg_of(name: str, draw: Callable[[Any], None], height: float = 2.6) -> str:
    """Draw a chart and return it as inline SVG that refers to nothing outside itself.

    Parameters
    ----------
    name : str
        Ours, not a person's; it keeps the ids of the page's charts apart.
    draw : callable
        Takes a matplotlib figure and draws in :data:`IN_PAGE`.
    """
    buffer = io.StringIO()
    with _drawing(5, height, IN_PAGE) as figure:
        draw(figure)
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->|<style.*?</style>", "", svg, flags=re.DOTALL)
    head, rest = svg.split(">", 1)
    view = re.search(r'viewBox="[^"]*"', head)
    svg = f'<svg {view[0] if view else ""} aria-hidden="true">{rest}'
    svg = svg.replace("xlink:href", "href").replace('id="', f'id="{name}-')
    svg = svg.replace("url(#", f"url(#{name}-").replace('href="#', f'href="#{name}-')
    svg = re.sub(r"font: (?:\w+ )*([0-9.]+)px [^;\"]*", r"font-size: \1px", svg)  # the page's own font
    svg = re.sub(r"font-family: [^;\"]*(?:; )?", "", svg)
    for mark, variable in _VARIABLE_OF.items():
        svg = svg.replace(mark, f"var({variable})")
    return svg.strip()


def profile(figure: Any, phase: PhaseData, colors: Colors = IN_PAGE, axis: Any = None) -> None:
    """Draw load over mean load, ranks busiest first, mean of the steps."""
    axis = axis or figure.subplots()
    steps = len(phase.ratios)
    share = np.linspace(0, 100, len(phase.profile_before) + 1)
    ends = {"baseline": None, "linewidth": 2}
    axis.stairs(phase.profile_before / steps, share, color=colors.before, linestyle="--", label="before", **ends)
    axis.stairs(phase.profile_after / steps, share, color=colors.after, label="after", **ends)
    bound = float(np.mean([ratio[2] for ratio in phase.ratios]))
    axis.axhline(bound, color=colors.ink, linestyle=":", linewidth=1.2, label="proven bound on the first")
    axis.set(xlabel="ranks, busiest first, %", ylabel="load / mean load", xlim=(0, 100), ylim=0)
    axis.legend()


def timeline(figure: Any, picture: StepPicture, colors: Colors = IN_PAGE) -> None:
    """Draw one step by rank, before above after: each phase starts once the slowest rank has ended the one before."""
    axes = figure.subplots(2, 1, sharex=True)
    for when, (axis, title) in enumerate(zip(axes, ("before", "after"), strict=True)):
        start = 0.0
        for i, loads in enumerate(picture.phases.values()):
            color = colors.phases[i % NUM_PHASE_COLORS]
            rows = np.arange(len(loads[when])) * picture.ranks_a_row
            axis.barh(rows, loads[when], 0.9 * picture.ranks_a_row, start, color=color, align="edge", linewidth=0)
            start += float(loads[when].max())
            axis.axvline(start, color=colors.ink, linewidth=0.8)
        axis.set(ylabel="rank", ylim=(len(rows) * picture.ranks_a_row, 0), xlim=0)
        axis.set_title(f"{title}: {start:.2f}", loc="left", fontsize=10)
    axes[1].set_xlabel("time, each phase in units of its mean load")


def traffic(figure: Any, data: PageData, colors: Colors = IN_PAGE) -> None:
    """Draw what moves from node to node."""
    axis = figure.subplots()
    scale, unit = _scaled(float(data.traffic.max()), "B" if data.of_bytes else "elements")
    end = len(data.traffic) * data.nodes_a_row
    image = axis.imshow(data.traffic / scale, cmap="cividis", vmin=0, extent=(0, end, end, 0), interpolation="none")
    axis.set(xlabel="to node", ylabel="from node")
    figure.colorbar(image, ax=axis, label=f"{unit} over all steps")


def _scaled(largest: float, unit: str) -> tuple[float, str]:
    for power, prefix in ((12, "T"), (9, "G"), (6, "M"), (3, "k")):
        if largest >= 10.0**power:
            return 10.0**power, f"{prefix}{unit}" if unit == "B" else f"10^{power} {unit}"
    return 1.0, unit


def lengths(figure: Any, phase: PhaseData, colors: Colors = IN_PAGE) -> None:
    """Draw how many items have which length."""
    axis = figure.subplots()
    there = np.flatnonzero(phase.length_counts)
    if not len(there):
        axis.text(0.5, 0.5, "no item longer than 0", ha="center", transform=axis.transAxes)
        axis.set_axis_off()
        return
    bins = np.arange(there[0], there[-1] + 2)
    counts = phase.length_counts[bins[:-1]]
    axis.stairs(counts, 2.0 ** (bins / BINS_AN_OCTAVE), color=colors.after, fill=True)
    axis.set(xscale="log", xlabel="length", ylabel="items", ylim=0)
    axis.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")


def by_step(figure: Any, phase: PhaseData, colors: Colors = IN_PAGE) -> None:
    """Draw the imbalance of every step: before, after, and what is proven to be out of reach."""
    axis = figure.subplots()
    ratios = np.asarray(phase.ratios)
    width = -(-len(ratios) // MOST_STEPS)
    starts = np.arange(0, len(ratios), width)
    mean = np.add.reduceat(ratios, starts, axis=0) / np.diff(np.append(starts, len(ratios)))[:, None]
    marker = "o" if len(starts) == 1 else ""
    axis.plot(starts, mean[:, 0], color=colors.before, linestyle="--", linewidth=1.2, marker=marker, label="before")
    axis.plot(starts, mean[:, 1], color=colors.after, linewidth=2, marker=marker, label="after")
    axis.plot(starts, mean[:, 2], color=colors.ink, linestyle=":", linewidth=1.2, marker=marker, label="proven bound")
    axis.set(xlabel="step" if width == 1 else f"step, means of {width}", ylabel="imbalance ratio")
    axis.xaxis.get_major_locator().set_params(integer=True)
    axis.legend()


def plot_loads(data: PageData, path: str) -> None:
    """Write the load of ranks before and after, a panel a phase, to a PNG or SVG file.

    Raises
    ------
    InputError
        If the file cannot be written.
    """
    names: Sequence[str] = list(data.phases)
    with _drawing(4.5 * len(names), 3.4, ON_PAPER) as figure:
        axes = figure.subplots(1, len(names), squeeze=False)[0]
        for axis, name in zip(axes, names, strict=True):
            profile(figure, data.phases[name], ON_PAPER, axis)
            axis.set_title(name if len(name) <= 40 else f"{name[:39]}…", parse_math=False)
        options: dict[str, Any] = {"metadata": {"Date": None}} if path.lower().endswith(".svg") else {}
        try:
            figure.savefig(path, dpi=150, facecolor="white", format=os.path.splitext(path)[1][1:].lower(), **options)
        except OSError as error:
            raise InputError(f"{path}: cannot be written: {error.strerror or error}") from error
