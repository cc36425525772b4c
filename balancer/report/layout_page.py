"""The page of a configuration: layouts by time and memory, the timeline of the fastest, what was excluded and how."""

from typing import Any

from balancer.report.canvas import IN_PAGE, Colors, svg_of
from balancer.report.layouts import assumptions, excluded, in_words, numbers_of
from balancer.report.pipeline_figure import timeline_section
from balancer.report.simulation_page import as_seconds
from balancer.report.skeleton import card, chart, document, section, table, write_document
from balancer.report.text import counted, escaped
from balancer.simulate.configure import Configuration
from balancer.simulate.layout_price import Priced, timeline

__all__ = ["layout_page", "write_layout_page"]

_TIMELINE_S = 0.2
_MARKERS = {"stages": "o", "before": "s", "multiplexed": "^"}


def write_layout_page(path: str, found: Configuration, source: str) -> None:
    """Write the page to a file, which is there as a whole or not at all."""
    write_document(path, layout_page(found, source))


def layout_page(found: Configuration, source: str) -> str:
    """Return the page of a configuration of a log as HTML."""
    given, first = found.case.given, found.winner
    cards = [_card(mode, each, first) for mode, each in found.best.items()]
    if found.formula is not None:
        cards.append(_card("DFLOP's formula", found.formula, first))
    shape = f"{counted(given.num_gpus, 'GPU')}, {counted(given.steps[0].num_samples, 'sample')} a step"
    about = f"{shape}. {escaped(in_words(first))}."
    footer = "A prediction from lengths, shapes and data sheets by the assumptions above, not a measurement."
    others = [each.seconds for mode, each in found.best.items() if mode != first.layout.mode]
    lead = f"The fastest layout found takes {as_seconds(first.seconds)} a step"
    lead += f", where the best of another mode takes {as_seconds(min(others))}." if others else "."
    return document(source, "layouts", lead, about, cards, list(_sections(found)), footer)


def _card(name: str, each: Priced, first: Priced) -> str:
    over, idle, mfu, gib = numbers_of(each)
    rows = [("beside the fastest", f"{each.seconds / first.seconds:.3f}"), ("over its bound", over), ("idle", idle),
            ("MFU", mfu), ("GiB a GPU", gib)]  # fmt: skip
    return card(escaped(name), as_seconds(each.seconds), "a step", rows)


def _sections(found: Configuration) -> list[str]:
    svg = svg_of("pareto", lambda figure: _pareto(figure, found), 3.2, 6.0)
    columns = [("layout", False), ("s a step", True), ("over its bound", True), ("idle", True), ("MFU", True),
               ("GiB", True)]  # fmt: skip
    rows = [
        [f"{each.layout.mode}; {escaped(in_words(each))}", f"{each.seconds:.4g}", *numbers_of(each)]
        for each in found.table
    ]
    words = (
        "The layouts that no other one beats in both time and memory, of all that were scheduled, the fastest first."
    )
    others = [each for mode, each in found.best.items() if each not in found.table]
    points = [(escaped(in_words(each)), f"{each.seconds:.4g}", numbers_of(each)[-1]) for each in others]
    numbers = table([("layout", False), ("s a step", True), ("GiB", True)], [("hollow", points)])
    note = "Hollow: the best of the other modes." * bool(others)
    drawn = chart("pareto", "", "Seconds of a step by gibibytes of a GPU", svg, numbers, note)
    parts = [section("Time and memory", words, [drawn], after=table(columns, [("", rows)]))]
    first, *rest = map(escaped, _lines(found))
    lines = "".join(f"<p>{line}</p>" for line in rest)
    parts.append(section("Layouts, and what was assumed", first, after=lines))
    run = timeline(found.case, _TIMELINE_S)
    if run is not None:
        words = (
            "The replica that takes longest in the first step. Numbers are micro-batches; what is blank is idle. "
            f"Besides, a step has {as_seconds(found.winner.sync_s)} at gradients and parameters"
        )
        first_s = found.winner.encoder_s
        words += f", and {as_seconds(first_s)} of encoders before the pipeline and after it." if first_s else "."
        parts.append(timeline_section("Timeline of the fastest layout", words, run, (1e10, "seconds")))
    return parts


def _lines(found: Configuration) -> list[str]:
    given = found.case.given
    return [*excluded(found), *assumptions(given), f"Cluster: {given.cluster.source or 'of a file'}"]


def _pareto(figure: Any, found: Configuration, colors: Colors = IN_PAGE) -> None:
    """Draw time over memory: a step line of what none is better than, and the best of each mode."""
    axis = figure.subplots()
    axis.step(
        [each.bytes / 2**30 for each in found.table], [each.seconds for each in found.table], where="post",
        color=colors.faint, linewidth=1,
    )  # fmt: skip
    shown = {id(each): each for each in (*found.table, *found.best.values())}
    for each in shown.values():
        filled = colors.after if each in found.table else "none"
        axis.plot(
            each.bytes / 2**30, each.seconds, marker=_MARKERS[each.layout.mode], color=filled,
            markeredgecolor=colors.after, linestyle="none",
        )  # fmt: skip
    for mode, marker in _MARKERS.items():
        if mode in found.best:
            axis.plot([], [], marker=marker, color=colors.after, linestyle="none", label=mode)
    axis.axhline(found.lower_bound_s, color=colors.before, linestyle="--", linewidth=1, label="proven: none is faster")
    axis.set(xlabel="GiB of a GPU", ylabel="seconds a step")
    axis.legend(ncols=2, loc="lower left", bbox_to_anchor=(0, 1), borderaxespad=0)
