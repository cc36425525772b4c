"""Findings as a page: what waits now and then, every way that was tried, lines to paste, and what was assumed."""

from collections.abc import Iterator, Sequence
from functools import partial

from balancer.advice.findings import Findings
from balancer.advice.words import HEADER, assumed, gained, measured_line, percent, rows_of, to_paste, travels, verdict
from balancer.report import charts
from balancer.report.page import Chart, Page, Section
from balancer.report.table import Table
from balancer.report.text import counted, folded

__all__ = ["advice_page"]


def advice_page(advice: Findings, command: Sequence[str] = ()) -> Page:
    """Return the page; `command` are the words of a ``balancer plan`` of the same log, if somebody typed them."""
    said = list(verdict(advice))
    lead = _lead(advice) if advice.chosen else said.pop()
    about = " ".join((f"Planned {advice.sample.in_words(advice.within.steps)}.", *said))
    sections = [_tried(advice), *_to_do(advice, command)]
    taken = [_sentence(each.removeprefix("Assumed: ")[:-1]) for each in assumed(advice)]
    sections.append(Section("What was assumed", " ".join([*taken, _sentence(measured_line(advice))])))
    return Page(str(advice.log.path), lead, about, [], sections)


def _sentence(words: str) -> str:
    return f"{words[:1].upper()}{words[1:]}."


def _lead(advice: Findings) -> str:
    """Say how many GPUs wait today, and how much less time steps then take."""
    waits = f"Today {advice.gpus * advice.today.waiting:,.1f} of {counted(advice.gpus, 'GPU')} wait."
    then = (f"{each.title}: {percent(1 - each.time)} less time" for each in advice.chosen)
    return " ".join((waits, *map(_sentence, then)))


def _tried(advice: Findings) -> Section:
    """Return what today takes and what each remedy would, with the table of the screen."""
    found = [each for each in advice.rows if not each.why_not]
    names, times = [each.title for each in found], [each.time for each in found]
    waiting = [each.time * each.waiting for each in found]
    working = [time - share for time, share in zip(times, waiting, strict=True)]
    parts = [charts.Bar(working, "after", "compute"), charts.Bar(waiting, "before", "waiting", "//")]
    draw = partial(charts.bars, names=names, parts=parts, xlabel="time of the same samples, today's being 1",
                   ends=[f"{time:.3f}" for time in times])  # fmt: skip
    says = f"Time by what is done, of compute and waiting: today 1, at best {min(times):.3f}"
    drawn = Chart(says, draw, height=1.2 + 0.3 * len(names), width=9.5, broad=True)
    told = list(rows_of(advice))
    untried = [_sentence(": ".join(row)) for row in told if len(row) == 2]
    table = Table(HEADER, [row for row in told if len(row) > 2])
    return Section("What was tried", " ".join(untried), [drawn], table=table)


def _to_do(advice: Findings, command: Sequence[str]) -> Iterator[Section]:
    """Yield what each remedy asks for that was chosen, and lines to paste."""
    for each in advice.chosen:
        words = gained(advice, each), f"it asks for {each.asks}", travels(advice, each)
        lines = "\n".join(folded(line) if line.startswith("balancer ") else line for line in to_paste(each, command))
        yield Section(_sentence(each.title)[:-1], " ".join(map(_sentence, words)), pasted=[("To paste:", lines)])
