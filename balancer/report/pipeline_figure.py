"""The timeline of pipelines, which is a Gantt chart: which stage computes which micro-batch when."""

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from balancer.plan.gaps import Between
from balancer.planning.timed import Timeline
from balancer.report.canvas import IN_PAGE, Colors, svg_of
from balancer.report.numbers import ops
from balancer.report.skeleton import chart, section, table
from balancer.report.table import as_bytes, as_percent
from solvers.pipeline import MultiplexResult, PipelineRun

__all__ = ["gantt", "pipeline_section", "timeline_section"]

Floats = NDArray[np.float64]
Runs = Mapping[str, PipelineRun | MultiplexResult]
Boxes = Mapping[str, Between]

_FORWARD, _TASK, _BACKWARD, _LATE = 0, 1, 2, 3  # of the colours of phases
_DIGIT_WIDTH = 0.085  # inches; the number of a micro-batch is written where it fits into its op


def pipeline_section(
    title: str, words: str, runs: Mapping[str, PipelineRun], unit: tuple[float, str], held: str,
    between: Boxes | None = None,
) -> str:  # fmt: skip
    """Return the section that shows a replica's stages in each of some runs; `title` and `words` are HTML.

    Runs are of pipelines of equally many devices, by names that no user chose, and `between` what runs in the gaps of
    those that have some. `unit` is what times are divided by, and what they then are; `held` what is in flight:
    "tokens" or "bytes".
    """
    devices, boxes = max(len(run.busy) for run in runs.values()), between or {}
    height = 0.7 + len(runs) * (0.5 + 0.24 * devices)
    svg = svg_of("pipeline", lambda figure: gantt(figure, runs, unit, between=boxes), height, 9.5)
    columns = [("device", True)]
    for name in runs:
        columns += [(f"bubble, {name}", True), (f"most in flight, {name}", True)]
    columns += [(f"beside the pipeline, {name}", True) for name in boxes]
    shown = as_bytes if held == "bytes" else "{:,}".format
    shares = [_shares(runs[name], each) for name, each in boxes.items()]
    rows = [
        [str(device), *(cell for run in runs.values() for cell in _cells(run, device, shown))]
        + [as_percent(share[device]) for share in shares]
        for device in range(devices)
    ]
    of_all = ((as_percent(run.bubble), shown(int(run.in_flight.max()))) for run in runs.values())
    rows.append(["all", *(cell for cells in of_all for cell in cells), *(as_percent(each.mean()) for each in shares)])
    note = f"In flight is what a device holds between forwards and backwards, in {held}; the last row has the mean " \
           "of shares and the most of any device."  # fmt: skip
    ends = ", ".join(f"{name} {run.makespan / unit[0]:.4g}" for name, run in runs.items())
    described = f"Timeline of the stages of one pipeline, which ends at: {ends}"
    drawn = chart("pipeline", "", described, svg, ops(runs, unit[0]), note, wide=True)
    return section(title, words, [drawn], _keys(boxes.values()), table(columns, [("", rows)]))


def _cells(run: PipelineRun, device: int, shown: Callable[[int], str]) -> tuple[str, str]:
    bubble = int(run.idle[device]) / run.makespan if run.makespan else 0.0
    return as_percent(bubble), shown(int(run.in_flight[device]))


def _shares(run: PipelineRun | MultiplexResult, between: Between) -> Floats:
    """Return the part of each device's time that what is between takes: float64[D]."""
    return np.bincount(between.device, between.takes, len(run.busy)) / max(run.makespan, 1)


def timeline_section(title: str, words: str, shown: Timeline, unit: tuple[float, str]) -> str:
    """Return the section that shows one pipeline, with encoders and generators in its gaps if there are some."""
    name = "slowest replica"
    runs, boxes = {name: shown.run}, {} if shown.between is None else {name: shown.between}
    height = 1.2 + 0.24 * len(shown.run.busy)
    svg = svg_of("timeline", lambda figure: gantt(figure, runs, unit, between=boxes), height, 9.5)
    drawn = chart("timeline", "", "Timeline of the stages of one pipeline", svg, ops(runs, unit[0]), wide=True)
    return section(title, words, [drawn], _keys(boxes.values()))


def _keys(between: Collection[Between]) -> str:
    """Return which colour stands for what."""
    kinds = [("forward", _FORWARD), ("backward", _BACKWARD)]
    kinds += [("encoders", _TASK)] * any((~each.late).any() for each in between)
    kinds += [("generators", _LATE)] * any(each.late.any() for each in between)
    colors = "".join(
        f'<li><span class="key" style="background:var(--phase-{color})"></span>{name}</li>' for name, color in kinds
    )
    return f'<ul class="keys">{colors}</ul>'


def gantt(
    figure: Any, runs: Runs, unit: tuple[float, str], colors: Colors = IN_PAGE, between: Boxes | None = None
) -> Any:
    """Draw a panel a run: a row a device, a box an op, with its micro-batch's number where that fits; return them.

    Of what runs in the gaps of a run, `between`, boxes have no number.
    """
    axes = figure.subplots(len(runs), 1, sharex=True, squeeze=False)[:, 0]
    scale, name = unit
    end = max(run.makespan for run in runs.values()) / scale or 1.0
    for axis, (title, run) in zip(axes, runs.items(), strict=True):
        devices = len(run.busy)
        for starts, ends, color in (
            (run.forward_start, run.forward_end, colors.phases[_FORWARD]),
            (run.backward_start, run.backward_end, colors.phases[_BACKWARD]),
        ):
            for stage in range(starts.shape[1]):
                _draw_ops(
                    axis, starts[:, stage] / scale, ends[:, stage] / scale, stage % devices, (color, colors.page), end
                )
        if (tasks := (between or {}).get(title)) is not None:
            _draw_tasks(axis, tasks, scale, colors, end)
        axis.axvline(run.makespan / scale, color=colors.ink, linewidth=0.8)
        axis.set(ylabel="device", ylim=(devices - 0.5, -0.5), xlim=(0, end * 1.005), yticks=range(devices))
        axis.set_title(
            f"{title}: {run.makespan / scale:,.4g}, bubble {as_percent(run.bubble)}", loc="left", fontsize=10
        )
    axes[-1].set_xlabel(name)
    return axes


def _draw_ops(axis: Any, starts: Floats, ends: Floats, row: int, colors: tuple[str, str], end: float) -> None:
    there = [k for k in range(len(starts)) if starts[k] >= 0 and ends[k] > starts[k]]
    spans = [(starts[k], ends[k] - starts[k]) for k in there]
    edges = _edges(axis, spans, end)
    axis.broken_barh(spans, (row - 0.44, 0.88), facecolors=colors[0], edgecolors=colors[1], linewidth=edges)
    digit = _DIGIT_WIDTH / axis.figure.get_figwidth()
    for k, (start, width) in zip(there, spans, strict=True):
        if width >= len(str(k)) * digit * end:
            axis.text(start + width / 2, row, str(k), ha="center", va="center", fontsize=9, color=colors[1])


def _edges(axis: Any, spans: Iterable[tuple[float, float]], end: float) -> list[float]:
    """Return how broad edges are, in points: less than a tenth of their boxes, whose colour they would hide else."""
    tenth = 7.2 * axis.figure.get_figwidth() / end
    return [min(0.3, tenth * width) for _, width in spans]


def _draw_tasks(axis: Any, between: Between, scale: float, colors: Colors, end: float) -> None:
    """Draw what runs between the ops."""
    for color, late in ((_TASK, False), (_LATE, True)):
        for device in np.unique(between.device[between.late == late]).tolist():
            here = (between.late == late) & (between.device == device)
            spans = list(zip(between.start[here] / scale, between.takes[here] / scale, strict=True))
            face = {"facecolors": colors.phases[color], "edgecolors": colors.page}
            axis.broken_barh(spans, (device - 0.44, 0.88), linewidth=_edges(axis, spans, end), **face)
