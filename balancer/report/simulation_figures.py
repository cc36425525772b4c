"""The charts of the page of a simulation, and of its ``--plot``; they name strategies, but never phases."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from balancer.report.canvas import IN_PAGE, NUM_PHASE_COLORS, ON_PAPER, Colors, plot_to_file
from balancer.report.figures import mean_steps
from balancer.report.simulation_data import StepBars
from balancer.simulate.run import StrategyTotals

__all__ = ["memory", "plot_split", "steps", "time_split", "timeline", "waiting_by_phase"]

_LINES = ("--", "-.", ":", (0, (5, 1)), "-")

Totals = Mapping[str, StrategyTotals]


def _rows(axis: Any, totals: Totals) -> np.ndarray:
    """Prepare an axis with a row a strategy, the first on top."""
    rows = np.arange(len(totals))
    axis.set_yticks(rows, [name.replace("_", " ") for name in totals])
    axis.set_ylim(len(totals) - 0.4, -0.6)
    axis.tick_params(axis="y", length=0)
    return rows


def time_split(figure: Any, totals: Totals, colors: Colors = IN_PAGE) -> None:
    """Draw what a step's seconds are spent on, a bar a strategy, with the standard deviation over steps."""
    axis = figure.subplots()
    rows = _rows(axis, totals)
    left = np.zeros(len(totals))
    for label, color, hatch, values in (
        ("compute", colors.after, "", [run.compute_s / run.steps for run in totals.values()]),
        ("waiting", colors.before, "//", [run.waiting_s / run.steps for run in totals.values()]),
        ("exchange", colors.faint, "", [run.exchange_s / run.steps for run in totals.values()]),
    ):
        bars = {"color": color, "height": 0.62, "linewidth": 0}
        axis.barh(rows, values, left=left, label=label, **bars)
        if hatch:  # told from computing without colours, too
            axis.barh(rows, values, left=left, height=0.62, fill=False, hatch=hatch, edgecolor=colors.ink, linewidth=0)
        left += values
    spread = np.array([run.deviation_s for run in totals.values()])
    below = np.minimum(spread, left)
    axis.errorbar(left, rows, xerr=(below, spread), fmt="none", ecolor=colors.ink, elinewidth=1, capsize=3)
    end = float((left + spread).max()) or 1.0
    for row, seconds, wide in zip(rows, left, spread, strict=True):
        axis.text(seconds + wide + 0.015 * end, row, f"{seconds:.3g} ± {wide:.2g}", va="center")
    axis.set(xlabel="seconds a step, ± standard deviation", xlim=(0, 1.35 * end))
    axis.legend(ncols=3, loc="lower left", bbox_to_anchor=(0, 1), borderaxespad=0, handlelength=1.2)


def waiting_by_phase(figure: Any, totals: Totals, colors: Colors = IN_PAGE) -> None:
    """Draw in which phases ranks wait, a bar a strategy."""
    axis = figure.subplots()
    rows = _rows(axis, totals)
    left = np.zeros(len(totals))
    for i, name in enumerate(next(iter(totals.values())).phases):
        values = np.array([run.phases[name].waiting_s / run.steps for run in totals.values()])
        axis.barh(rows, values, 0.62, left, color=colors.phases[i % NUM_PHASE_COLORS], linewidth=0)
        left += values
    axis.set(xlabel="seconds of waiting in a step, mean of ranks", xlim=(0, 1.05 * float(left.max()) or 1.0))


def memory(figure: Any, totals: Totals, memory_bytes: float, colors: Colors = IN_PAGE) -> None:
    """Draw the most activations of any GPU, a bar a strategy, beside what a GPU has."""
    axis = figure.subplots()
    rows = _rows(axis, totals)
    held = np.array([run.activation_bytes for run in totals.values()]) / 2**30
    axis.barh(rows, held, 0.62, color=colors.after, linewidth=0)
    end = max(float(held.max()), memory_bytes / 2**30)
    for row, most in zip(rows, held, strict=True):
        axis.text(most + 0.015 * end, row, f"{most:,.3g}", va="center")
    axis.axvline(memory_bytes / 2**30, color=colors.before, linestyle="--", linewidth=1.5, label="memory of a GPU")
    axis.set(xlabel="GiB of activations on a GPU, at most", xlim=(0, 1.14 * end))
    axis.legend(loc="lower left", bbox_to_anchor=(0, 1), borderaxespad=0)


def steps(figure: Any, seconds: Mapping[str, Sequence[float]], colors: Colors = IN_PAGE) -> None:
    """Draw how long every step takes, a line a strategy."""
    axis = figure.subplots()
    width = 1
    for i, (name, values) in enumerate(seconds.items()):
        starts, width, mean = mean_steps(values)
        style: dict[str, Any] = {
            "color": colors.phases[i % NUM_PHASE_COLORS],
            "marker": "o" if len(values) == 1 else "",
        }
        thick = 2 if i == len(seconds) - 1 else 1.2
        axis.plot(
            starts, mean, linestyle=_LINES[i % len(_LINES)], linewidth=thick, label=name.replace("_", " "), **style
        )
    axis.set(xlabel="step" if width == 1 else f"step, means of {width}", ylabel="seconds", ylim=0)
    axis.xaxis.get_major_locator().set_params(integer=True)
    axis.legend(ncols=2, loc="lower left", bbox_to_anchor=(0, 1), borderaxespad=0)


def timeline(figure: Any, bars: Mapping[str, StepBars], colors: Colors = IN_PAGE) -> None:
    """Draw one step by rank, a panel a strategy; what is blank within a step is waiting, a grey end is exchange."""
    axes = figure.subplots(len(bars), 1, sharex=True, squeeze=False)[:, 0]
    for axis, (name, step) in zip(axes, bars.items(), strict=True):
        start: Any = 0.0
        for i, (phase, seconds) in enumerate(step.phases.items()):
            ranks = np.arange(len(seconds)) * step.ranks_a_row
            color = colors.phases[i % NUM_PHASE_COLORS]
            axis.barh(ranks, seconds, 0.9 * step.ranks_a_row, start, color=color, align="edge", linewidth=0)
            start = step.ends[phase] if step.ends else start + seconds
            if step.ends:
                axis.axvline(start, color=colors.ink, linewidth=0.8)
        axis.axvspan(step.compute_end, step.seconds, color=colors.faint, linewidth=0)
        axis.axvline(step.seconds, color=colors.ink, linewidth=0.8)
        axis.set(ylabel="rank", ylim=(len(seconds) * step.ranks_a_row, 0), xlim=0)
        axis.set_title(f"{name.replace('_', ' ')}: {step.seconds:.3g} s", loc="left", fontsize=10)
    axes[-1].set_xlabel("seconds")


def plot_split(totals: Totals, path: str) -> None:
    """Write what a step's seconds are spent on, a bar a strategy, to a PNG or SVG file."""
    plot_to_file(path, 7, 1.3 + 0.45 * len(totals), lambda figure: time_split(figure, totals, ON_PAPER))
