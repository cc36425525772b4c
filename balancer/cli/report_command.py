"""``balancer report``: a plan file checked against its log, and what it gains."""

import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import pyarrow as pa

from balancer.cli.run import check_page, print_run, progress, say, say_page, table_console, timed
from balancer.cli.settings import who_works
from balancer.errors import InputError
from balancer.io.measurements import read_rank_times
from balancer.offline.check import check_run
from balancer.offline.load import load_steps, log_of
from balancer.offline.of_step import check_made_by
from balancer.offline.step_table import summary
from balancer.plan.step_plan import StepPlan
from balancer.report.measured import MeasuredSteps
from balancer.report.plan_log import about_plan
from balancer.report.remarks import costs_of
from balancer.report.shards import SharedPacks
from balancer.report.text import of_costs
from balancer.step import read_step

if TYPE_CHECKING:
    from balancer.report.plan_page import Drawn


def run(
    plan: str, log: str | None, as_json: bool, page: str | None, measured: str | None, step_file: str | None,
    engine: str | None, jobs: int | None,
) -> None:  # fmt: skip
    """Check a plan, and write the page if one is wanted."""
    workers = who_works(engine, jobs)
    if step_file is not None:
        # First, as it is cheap: a plan of another step need not be replayed.
        check_made_by(plan, read_step(step_file), log)
    check_page(page)
    if (page or measured) and (engine or jobs not in (None, 1)):
        raise InputError(
            "--html and --measured look at every step, which one process does: leave --engine and --jobs out"
        )
    times = MeasuredSteps(measured or "", {} if measured is None else read_rank_times(measured))
    packs, drawn = SharedPacks(), None if page is None else _drawn(plan)

    def each(of_step: StepPlan) -> None:
        if drawn is not None:
            drawn.add(of_step)
        times.add(of_step)
        packs.add(of_step)

    with timed() as seconds:
        with progress(as_json) as tick, workers as who:
            looks = bool(page or measured)
            steps, bounds = check_run(plan, log, who=who, tick=tick, each=each, rebuilds=looks)
        if page is not None and drawn is not None:
            _write_page(page, steps, drawn, plan, log or log_of(plan))
    fit = None if measured is None else times.fit()
    more = about_plan(plan, log) if as_json else {}
    more |= {} if fit is None else {"measured": fit.as_json()}
    more |= {"bounds": bounds} if bounds else {}
    more |= {"layouts_of_packs": packs.as_json()} if packs.sums else {}
    title = f"{plan}: complete, checked\n{of_costs(costs_of(summary(steps)))}"
    print_run(steps, title, seconds[0], as_json, more=more or None, doing="checked")
    if not as_json:
        say(*_of_bounds(bounds))
        packs.print_on(table_console())
        say(*(() if fit is None else fit.lines(os.path.basename(measured or ""))))
        say_page(page)


_PROVEN = {"formula": "proven by a formula", "planning": "by planning the step again", "claimed": "only claimed"}


def _of_bounds(bounds: Mapping[str, int]) -> Iterator[str]:
    """Say how lower bounds are proven."""
    if told := [f"{bounds[way]:,} {what}" for way, what in _PROVEN.items() if bounds.get(way)]:
        yield f"lower bounds: {', '.join(told)}"


def _drawn(plan: str) -> "Drawn":
    """Return what gathers what the page draws; which step that is, the table in the file says."""
    from balancer.report.plan_page import Drawn

    return Drawn(load_steps(plan))


def _write_page(page: str, steps: pa.Table, drawn: "Drawn", plan: str, log: str | None) -> None:
    from balancer.report.page import write_page
    from balancer.report.plan_page import plan_page

    of_log = "" if log is None else f", a plan of {os.path.basename(log)}"
    write_page(page, plan_page(steps, drawn, f"{plan}{of_log}", plan, log or ""))
