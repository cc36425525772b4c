"""The charts of the page of a plan, and of its ``--plot``."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from balancer.report.canvas import IN_PAGE, NUM_PHASE_COLORS, ON_PAPER, Colors, plot_to_file
from balancer.report.page_data import BINS_AN_OCTAVE, PageData, PhaseData, StepPicture
from balancer.report.text import printable

__all__ = ["by_step", "lengths", "log_ticks", "mean_steps", "plot_loads", "profile", "shown_lengths", "timeline",
           "traffic", "traffic_unit"]  # fmt: skip

Floats = NDArray[np.float64]

MOST_STEPS = 150
"""Points of a curve over steps; more are averaged."""
_MOST_TICKS = 6


def profile(figure: Any, phase: PhaseData, colors: Colors = IN_PAGE, axis: Any = None) -> None:
    """Draw load over mean load, ranks busiest first, of all steps together."""
    axis = axis or figure.subplots()
    before, after, bound = phase.profiles()
    share = np.linspace(0, 100, len(before) + 1)
    ends = {"baseline": None, "linewidth": 2}
    axis.stairs(before, share, color=colors.before, linestyle="--", label="before", **ends)
    axis.stairs(after, share, color=colors.after, label="after", **ends)
    axis.axhline(bound, color=colors.ink, linestyle=":", linewidth=1.2, label="proven bound on the first")
    axis.set(xlabel="ranks, busiest first, %", ylabel="load / mean load", xlim=(0, 100), ylim=0)
    axis.legend()


def timeline(figure: Any, picture: StepPicture, colors: Colors = IN_PAGE) -> None:
    """Draw one step by rank, before above after: each phase starts once the slowest rank has ended the one before."""
    axes = figure.subplots(2, 1, sharex=True)
    most = max(len(after) for _, after in picture.phases.values()) * picture.ranks_a_row
    for when, (axis, title) in enumerate(zip(axes, ("before", "after"), strict=True)):
        start = 0.0
        for i, loads in enumerate(picture.phases.values()):
            color = colors.phases[i % NUM_PHASE_COLORS]
            each = most / len(loads[when])  # with layouts a phase may have fewer replicas, each of more ranks
            rows = np.arange(len(loads[when])) * each
            axis.barh(rows, loads[when], 0.9 * each, start, color=color, align="edge", linewidth=0)
            start += float(loads[when].max())
            axis.axvline(start, color=colors.ink, linewidth=0.8)
        axis.set(ylabel="rank", ylim=(most, 0), xlim=0)
        axis.set_title(f"{title}: {start:.2f}", loc="left", fontsize=10)
    axes[1].set_xlabel("time, each phase in units of its mean load")


def traffic(figure: Any, data: PageData, colors: Colors = IN_PAGE) -> None:
    """Draw what moves from node to node."""
    axis = figure.subplots()
    scale, unit = traffic_unit(data)
    end = len(data.traffic) * data.nodes_a_row
    extent = (-0.5, end - 0.5, end - 0.5, -0.5)  # ticks in the middle of nodes
    image = axis.imshow(data.traffic / scale, cmap="cividis", vmin=0, extent=extent, interpolation="none")
    for ticks in (axis.xaxis, axis.yaxis):
        ticks.get_major_locator().set_params(integer=True)
    axis.set(xlabel="to node", ylabel="from node")
    figure.colorbar(image, ax=axis, label=f"{unit} over all steps")


def traffic_unit(data: PageData) -> tuple[float, str]:
    """Return what volumes are divided by to be shown, and what they then are."""
    largest, unit = float(data.traffic.max()), "B" if data.of_bytes else "elements"
    for power, prefix, word in ((12, "T", "trillion"), (9, "G", "billion"), (6, "M", "million"), (3, "K", "thousand")):
        if largest >= 10.0**power:
            return 10.0**power, f"{prefix}{unit}" if unit == "B" else f"{word} {unit}"
    return 1.0, unit


def lengths(figure: Any, phase: PhaseData, colors: Colors = IN_PAGE) -> None:
    """Draw how many items have which length."""
    axis = figure.subplots()
    bins = shown_lengths(phase)
    if not len(bins):
        axis.text(0.5, 0.5, "no item longer than 0", ha="center", transform=axis.transAxes)
        axis.set_axis_off()
        return
    counts = phase.length_counts[bins[:-1]]
    edges = 2.0 ** (bins / BINS_AN_OCTAVE)
    axis.stairs(counts, edges, color=colors.after, fill=True)
    axis.set(xscale="log", xlabel="length", ylabel="items", ylim=0)
    axis.set_xticks(*log_ticks(edges[0], edges[-1]))
    axis.xaxis.set_minor_formatter("")
    axis.yaxis.get_major_locator().set_params(integer=True)
    axis.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")


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


def shown_lengths(phase: PhaseData) -> NDArray[np.int64]:
    """Return the bins of lengths from the first that holds items to the one behind the last; none if all are 0."""
    there = np.flatnonzero(phase.length_counts)
    return np.arange(there[0], there[-1] + 2) if len(there) else there


def mean_steps(values: ArrayLike) -> tuple[NDArray[np.int64], int, Floats]:
    """Average neighbours, so that at most :data:`MOST_STEPS` are left: where each begins, how many make one, means."""
    of_steps = np.asarray(values, dtype=np.float64)
    width = -(-len(of_steps) // MOST_STEPS)
    starts = np.arange(0, len(of_steps), width)
    counts = np.diff(np.append(starts, len(of_steps))).reshape(-1, *[1] * (of_steps.ndim - 1))
    return starts, width, np.add.reduceat(of_steps, starts, axis=0) / counts


def by_step(figure: Any, phase: PhaseData, colors: Colors = IN_PAGE) -> None:
    """Draw the imbalance ratio of every step: before, after, and at the proven lower bound."""
    axis = figure.subplots()
    starts, width, mean = mean_steps(phase.ratios)
    marker = "o" if len(starts) == 1 else ""
    axis.plot(starts, mean[:, 0], color=colors.before, linestyle="--", linewidth=1.2, marker=marker, label="before")
    axis.plot(starts, mean[:, 1], color=colors.after, linewidth=2, marker=marker, label="after")
    axis.plot(starts, mean[:, 2], color=colors.ink, linestyle=":", linewidth=1.2, marker=marker, label="proven bound")
    axis.set(xlabel="step" if width == 1 else f"step, means of {width}", ylabel="imbalance ratio")
    axis.xaxis.get_major_locator().set_params(integer=True)
    axis.legend()


def plot_loads(data: PageData, path: str) -> None:
    """Write the load of ranks before and after, a panel a phase, to a PNG or SVG file."""
    names: Sequence[str] = [name for name in data.phases if name not in data.following]

    def draw(figure: Any) -> None:
        axes = figure.subplots(1, len(names), squeeze=False)[0]
        for axis, name in zip(axes, names, strict=True):
            profile(figure, data.phases[name], ON_PAPER, axis)
            shown = printable(name)
            axis.set_title(shown if len(shown) <= 40 else f"{shown[:39]}…", parse_math=False)

    plot_to_file(path, 4.5 * len(names), 3.4, draw)
