"""The page of a configuration: layouts by time and memory, the timeline of the fastest, what was excluded and how."""

from collections.abc import Iterator
from functools import partial

from balancer.layout_choice.bounds import room_of
from balancer.layout_choice.choose import Configuration
from balancer.layout_choice.price import Priced, timeline
from balancer.report import charts
from balancer.report.layouts import assumptions, excluded, in_words, numbers_of
from balancer.report.page import Card, Chart, Page, Section, Table, html
from balancer.report.plan_page import pipeline_chart
from balancer.report.simulation_page import as_seconds
from balancer.report.text import counted

__all__ = ["layout_page"]

_TIMELINE_S = 0.2


def layout_page(found: Configuration, source: str) -> Page:
    """Return the page of a configuration of a log."""
    given, first = found.case.given, found.winner
    cards = [_card(mode, each, found) for mode, each in found.best.items()]
    if found.formula is not None:
        cards.append(_card("DFLOP's formula", found.formula, found))
    shape = f"{counted(given.num_gpus, 'GPU')}, {counted(given.steps[0].num_samples, 'sample')} a step"
    about = (
        f"{shape}. {in_words(first)}. A prediction from lengths, shapes and data sheets by the assumptions below, not "
        "a measurement."
    )
    others = [each.seconds for mode, each in found.best.items() if mode != first.layout.mode]
    lead = f"The fastest layout found takes {as_seconds(first.seconds)} a step"
    lead += f", where the best of another mode takes {as_seconds(min(others))}." if others else "."
    return Page(source, lead, about, cards, list(_sections(found)))


def _fits(each: Priced, found: Configuration) -> bool:
    return each.bytes <= room_of(found.case.given)


def _card(name: str, each: Priced, found: Configuration) -> Card:
    over, idle, mfu, gib = numbers_of(each)
    rows = [("beside the fastest", f"{each.seconds / found.winner.seconds:.3f}"), ("over its bound", over),
            ("idle", idle), ("MFU", mfu), ("GiB a GPU", gib)]  # fmt: skip
    fits = _fits(each, found)
    return Card(name, as_seconds(each.seconds), "a step" if fits else "a step, and it does not fit", rows, bad=not fits)


def _sections(found: Configuration) -> Iterator[Section]:
    yield _time_and_memory(found)
    given = found.case.given
    lines = [*excluded(found), *assumptions(given), f"Cluster: {given.cluster.source or 'of a file'}."]
    yield Section("Layouts, and what was assumed", " ".join(lines))
    run = timeline(found.case, _TIMELINE_S)
    if run is not None:
        words = (
            "The replica that takes longest in the first step; what is blank is idle. "
            f"Besides, a step has {as_seconds(found.winner.sync_s)} at gradients and parameters"
        )
        ahead = found.winner.encoder_s
        words += f", and {as_seconds(ahead)} of encoders before the pipeline and after it." if ahead else "."
        name = "slowest replica"
        between = {} if run.between is None else {name: run.between}
        drawn = pipeline_chart({name: run.run}, (1e10, "seconds"), between)
        yield Section("Timeline of the fastest layout", words, [drawn])


def _time_and_memory(found: Configuration) -> Section:
    """Return layouts by time and memory: those that no other beats, and beside them the best of other modes."""
    others = [each for each in found.best.values() if each not in found.table]
    formula = [] if found.formula is None or found.formula in (*found.table, *others) else [found.formula]
    beside = [*others, *formula]
    points, hollow = (
        [(each.layout.mode, each.bytes / 2**30, each.seconds) for each in some] for some in (found.table, beside)
    )
    room = room_of(found.case.given) / 2**30
    draw = partial(charts.time_over_memory, table=points, others=hollow, room=room, bound=found.lower_bound_s)
    note = " Hollow: the best of the other modes, and what DFLOP's formula chooses." * bool(beside)
    drawn = Chart("Seconds of a step by gibibytes of a GPU", draw, height=3.2, width=6.0)
    rows = [
        (f"{each.layout.mode}; {in_words(each)}", f"{each.seconds:.4g}", *numbers_of(each)[:-1], _gib(each, found))
        for each in (*found.table, *beside)
    ]
    words = (
        "The layouts that no other one beats in both time and memory, of all that were scheduled, the fastest first. "
        f"Of a GPU's memory {room:,.1f} GiB are room; what needs more is red.{note}"
    )
    columns = ("layout", "s a step", "over its bound", "idle", "MFU", "GiB")
    return Section("Time and memory", words, [drawn], Table(columns, rows))


def _gib(each: Priced, found: Configuration) -> str:
    """Return what a GPU holds, in red if that is too much."""
    gib = numbers_of(each)[-1]
    return gib if _fits(each, found) else html('<span class="bad">{}</span>', gib)
