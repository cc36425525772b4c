"""Residuals of a fitted cost model, as a picture."""

from typing import Any

from balancer.cost.fit import Fit
from balancer.report.canvas import ON_PAPER, plot_to_file

__all__ = ["plot_residuals"]


def plot_residuals(fit: Fit, path: str) -> None:
    """Write measured against predicted seconds, and relative residuals against sum(l), to a PNG or SVG file."""
    plot_to_file(path, 10, 4, lambda figure: _residuals(figure, fit))


def _residuals(figure: Any, fit: Fit) -> None:
    left, right = figure.subplots(1, 2)
    left.scatter(fit.predicted, fit.measured, s=8, color=ON_PAPER.after)
    ends = [float(min(fit.predicted.min(), fit.measured.min())), float(max(fit.predicted.max(), fit.measured.max()))]
    left.plot(ends, ends, color=ON_PAPER.faint, linewidth=1)
    left.set(xlabel="predicted, s", ylabel="measured, s", title=f"{fit.steps:,} steps")
    right.scatter(fit.total_lengths, 100 * (fit.measured / fit.predicted - 1), s=8, color=ON_PAPER.after)
    right.axhline(0, color=ON_PAPER.faint, linewidth=1)
    title = f"held-out error {fit.held_out_error:.1%}, worst {fit.held_out_worst:.1%}"
    right.set(xlabel="sum of lengths", ylabel="measured over predicted, %", title=title)
