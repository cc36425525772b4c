"""``balancer report``: a plan file checked against its log, and what it gains."""

import os
from typing import Any

import click

from balancer.cli.pages import PlanPage
from balancer.cli.run import print_run, progress, table_console, timed
from balancer.cli.said import check_step_file
from balancer.cli.settings import engine_of
from balancer.errors import InputError
from balancer.io.measurements import read_rank_times
from balancer.offline.check import check_run
from balancer.offline.engines import Serial
from balancer.offline.load import log_of
from balancer.offline.of_step import check_made_by
from balancer.plan.step_plan import StepPlan
from balancer.report.measured import MeasuredSteps
from balancer.report.plan_log import about_plan
from balancer.report.shards import SharedPacks
from balancer.report.summary import RunSummary
from balancer.report.text import of_costs, printable
from balancer.step import read_step


def run(
    plan: str, log: str | None, as_json: bool, page: str | None, step: int | None, measured: str | None,
    step_file: str | None, **options: Any,
) -> None:  # fmt: skip
    """Check a plan, and write the page if one is wanted."""
    engine = engine_of(options)
    if step_file is not None:
        check_step_file(step_file)
        # First, as it is cheap: a plan of another step need not be replayed.
        check_made_by(plan, read_step(step_file), log)
    drawn = PlanPage.of(page, step)
    if (page or measured) and not isinstance(engine, Serial | None):
        raise InputError(
            "--html and --measured look at every step, which one process does: leave --engine and --jobs out"
        )
    steps = MeasuredSteps(measured or "", {} if measured is None else read_rank_times(measured))
    packs = SharedPacks()

    def each(of_step: StepPlan, short: bool) -> None:
        drawn.add(of_step, short)
        steps.add(of_step)
        packs.add(of_step)

    with timed() as seconds:
        with progress(as_json) as tick:
            summary = check_run(plan, RunSummary, log, engine=engine, tick=tick, each=each)
        drawn.write(summary, plan, log or log_of(plan))
    fit = None if measured is None else steps.fit()
    more = about_plan(plan, log) if as_json else {}
    more |= {} if fit is None else {"measured": fit.as_json()}
    more |= {"layouts_of_packs": packs.as_json()} if packs.sums else {}
    title = f"{plan}: complete, checked\n{of_costs(summary.costs)}"
    print_run(summary, title, seconds[0], as_json, more=more or None, doing="checked")
    if not as_json:
        packs.print_on(table_console())
    for line in () if fit is None or as_json else fit.lines(os.path.basename(measured or "")):
        click.echo(printable(line))
    drawn.file.say(as_json)
