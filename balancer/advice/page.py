"""Advice as a page: what waits now and then, every way that was tried, lines to paste, and what was assumed."""

from collections.abc import Sequence

from balancer.advice.findings import Findings
from balancer.advice.words import HEADER, assumed, gained, measured_line, percent, rows_of, to_paste, travels, verdict
from balancer.report.skeleton import card, document, section, table, write_document
from balancer.report.text import escaped

__all__ = ["write_advice_page"]


def write_advice_page(path: str, advice: Findings, command: Sequence[str] = ()) -> None:
    """Write the page; `command` are the words of a ``balancer plan`` of the same log, if somebody typed them."""
    cards = [_card("today", advice.waiting, advice, "as samples are drawn", [])]
    for each in advice.chosen:
        rows = [("time", f"{each.time:.3f} of today's"), ("bound", f"{each.best_possible:.3f}"),
                ("GPU hours a day less", f"{advice.hours_a_day(each):,.0f}")]  # fmt: skip
        if advice.price is not None:
            rows.append(("money a day less", f"{advice.price * advice.hours_a_day(each):,.0f}"))
        cards.append(_card(each.title, each.waiting, advice, "if this is done", rows))
    columns = [(HEADER[0], False), *((name, True) for name in HEADER[1:])]
    rows_told = list(rows_of(advice))
    cells = [list(map(escaped, row)) for row in rows_told if len(row) > 2]
    said = list(verdict(advice))
    lead = escaped(said[0] if said else _sentence(gained(advice, advice.chosen[-1])))
    untried = [_sentence(": ".join(row)) for row in rows_told if len(row) == 2]
    told = escaped(" ".join((*said[1:], *untried)))
    sections = [section("What was tried", told, after=table(columns, [("", cells)]))]
    for each in advice.chosen:
        lines = escaped("\n".join(to_paste(each, command)))
        words = gained(advice, each), f"it asks for {each.changes}", travels(advice, each)
        pasted = f'<pre style="white-space: pre-wrap; overflow-wrap: anywhere">{lines}</pre>'
        told = escaped(" ".join(map(_sentence, words)))
        sections.append(section(escaped(_sentence(each.title)[:-1]), told, after=pasted))
    taken = "</p><p>".join(map(escaped, assumed(advice)))
    sections.append(section("What was assumed", f"{taken}</p><p>{escaped(measured_line(advice))}."))
    about = escaped(f"Planned {advice.sample.in_words(advice.within.steps)}.")
    page = document(
        str(advice.log.path), "advice", lead, about, cards, sections, "Every number is computed on this log."
    )
    write_document(path, page)


def _sentence(words: str) -> str:
    return f"{words[:1].upper()}{words[1:]}."


def _card(title: str, waiting: float, advice: Findings, words: str, rows: list[tuple[str, str]]) -> str:
    waits = [("GPUs that wait", f"{advice.gpus * waiting:.1f} of {advice.gpus:,}")]
    return card(escaped(title), percent(waiting), f"of the time ranks wait, {words}", [*waits, *rows])
