"""``balancer advise``: what would help a training job, before anything is changed."""

from collections.abc import Iterator, Sequence
from typing import Any

import click

from balancer.advice.advise import advise_opened
from balancer.advice.words import lines_of, measured_line
from balancer.cli.parser import WORDS
from balancer.cli.run import check_page, say, say_json, say_page
from balancer.cli.said import said_step
from balancer.cli.settings import open_job
from balancer.io.log_files import LogPath

_OWN = ("--price", "--html")
"""Options with a value that ``balancer plan`` does not have."""


def run(log: LogPath, price: float | None, page: str | None, as_json: bool, **options: Any) -> None:
    """Advise, and write the page if one is wanted."""
    check_page(page)
    step = said_step(options)
    job = open_job(log, step)
    found = advise_opened(job.log, job.settings, price=price, gpus_per_rank=step.gpus_per_rank)
    # Remedies are commands to paste: they repeat what was typed, but `balancer plan` must know every option.
    typed = list(_without_own(click.get_current_context().meta[WORDS]))
    if page is not None:
        from balancer.advice.page import advice_page
        from balancer.report.page import write_page

        write_page(page, advice_page(found, typed))
    if as_json:
        # Apart from the summary, which is the same in every run of the same log.
        ms = {each.name: each.plan_ms for each in found.rows[1:] if not each.why_not}
        say_json(found.summary() | {"plan_ms_a_step": ms})
        return
    say(*lines_of(found, typed), "", measured_line(found))
    say_page(page)


def _without_own(words: Sequence[str]) -> Iterator[str]:
    """Yield the words that ``balancer plan`` understands."""
    rest = iter(words)
    for word in rest:
        if word in _OWN:
            # The next word is the value, whatever it looks like: click reads it so, too.
            next(rest, None)
        elif word != "--json" and word.partition("=")[0] not in _OWN:
            yield word
