"""Residuals of a fitted cost model, as a picture. Needs matplotlib, which is an extra."""

import importlib.util
import os

from balancer.cost.fit import CostFit
from balancer.errors import InputError

__all__ = ["check_plot", "plot_residuals"]

_SUFFIXES = (".png", ".svg")


def check_plot(path: str) -> None:
    """Raise InputError, with the remedy, if `path` names no picture or matplotlib is not installed."""
    if os.path.splitext(path)[1].lower() not in _SUFFIXES:
        raise InputError(f"{path}: a plot is written as {' or '.join(_SUFFIXES)}; choose such a name")
    if importlib.util.find_spec("matplotlib") is None:
        raise InputError(
            "--plot needs matplotlib, which is not installed; install it with: pip install 'seqbalancer[plot]'"
        )


def plot_residuals(fit: CostFit, path: str) -> None:
    """Write measured against predicted seconds, and relative residuals against sum(l), to a PNG or SVG file.

    Raises
    ------
    InputError
        As :func:`check_plot`, or if the file cannot be written.
    """
    check_plot(path)
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4), layout="constrained")
    FigureCanvasAgg(figure)  # no display, whatever the machine's default
    left, right = figure.subplots(1, 2)
    left.scatter(fit.predicted, fit.measured, s=8)
    ends = [float(min(fit.predicted.min(), fit.measured.min())), float(max(fit.predicted.max(), fit.measured.max()))]
    left.plot(ends, ends, color="0.5", linewidth=1)
    left.set(xlabel="predicted, s", ylabel="measured, s", title=f"{fit.steps:,} steps")
    right.scatter(fit.total_lengths, 100 * (fit.measured / fit.predicted - 1), s=8)
    right.axhline(0, color="0.5", linewidth=1)
    title = f"held-out error {fit.held_out_error:.1%}, worst {fit.held_out_worst:.1%}"
    right.set(xlabel="sum of lengths", ylabel="measured over predicted, %", title=title)
    try:
        figure.savefig(path, dpi=150)
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror or error}") from error
