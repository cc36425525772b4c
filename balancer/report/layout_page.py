"""The page of a configuration: layouts by time and memory, the timeline of the fastest, what was excluded and how."""

from collections.abc import Iterator
from functools import partial

from balancer.layout_choice.bounds import room_of
from balancer.layout_choice.choose import Configuration
from balancer.layout_choice.price import Priced, timeline
from balancer.report import charts
from balancer.report.layouts import assumptions, beside, excluded, in_words, table_of
from balancer.report.page import Card, Chart, Page, Section
from balancer.report.plan_page import pipeline_chart
from balancer.report.table import as_seconds
from balancer.report.text import counted

__all__ = ["layout_page"]

_TIMELINE_S = 0.2


def layout_page(found: Configuration, source: str) -> Page:
    """Return the page of a configuration of a log."""
    given, first = found.case.given, found.winner
    cards = [_card(mode, each, found) for mode, each in found.best.items()]
    if found.formula is not None:
        cards.append(_card("DFLOP's formula", found.formula, found))
    about = (
        f"{counted(given.num_gpus, 'GPU')}, {counted(given.steps[0].num_samples, 'sample')} a step. {in_words(first)}. "
        "A prediction from lengths, shapes and data sheets by the assumptions below, not a measurement."
    )
    others = [each.seconds for mode, each in found.best.items() if mode != first.layout.mode]
    lead = f"The fastest layout found takes {as_seconds(first.seconds)} a step"
    lead += f", where the best of another mode takes {as_seconds(min(others))}." if others else "."
    return Page(source, lead, about, cards, list(_sections(found)))


def _card(name: str, each: Priced, found: Configuration) -> Card:
    misfit = _misfit(each, found)
    words = f"a step, {each.seconds / found.winner.seconds:.3f} of the fastest's{misfit}"
    return Card(name, as_seconds(each.seconds), words, bad=bool(misfit))


def _misfit(each: Priced, found: Configuration) -> str:
    return ", and it does not fit" if each.bytes > room_of(found.case.given) else ""


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
    room, others = room_of(found.case.given) / 2**30, [each for _, each in beside(found)]
    points, hollow = (
        [(each.layout.mode, each.bytes / 2**30, each.seconds) for each in some] for some in (found.table, others)
    )
    draw = partial(charts.time_over_memory, table=points, others=hollow, room=room, bound=found.lower_bound_s)
    drawn = Chart("Seconds of a step by gibibytes of a GPU", draw, height=3.2, width=6.0)
    rows = [(f"{each.layout.mode}; {in_words(each)}{_misfit(each, found)}", each) for each in (*found.table, *others)]
    words = (
        "The layouts that no other one beats in both time and memory, of all that were scheduled, the fastest first. "
        f"Of a GPU's memory {room:,.1f} GiB are room; what needs more is a red cross."
    )
    if others:
        words += " Hollow: the best of the other modes, and what DFLOP's formula chooses."
    return Section("Time and memory", words, [drawn], table_of("layout", rows))
