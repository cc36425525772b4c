"""``balancer report``: a plan file checked against its log, and what it gains."""

from typing import Any

import click

from balancer.cli.options import engine_options, json_option
from balancer.cli.parser import command
from balancer.cli.pictures import Pictures, picture_options
from balancer.cli.run import print_run, progress, timed
from balancer.cli.settings import engine_of
from balancer.errors import InputError
from balancer.offline.check import check_run
from balancer.offline.engines import Serial
from balancer.offline.load import log_of
from balancer.report.summary import RunSummary

__all__ = ["report_command"]


@command("report", short_help="Check a plan against its log and say what it gains.")
@click.argument("plan", type=click.Path())
@click.option("--log", type=click.Path(), help="The log that PLAN was made from, if it is not where PLAN says.")
@picture_options("the load of ranks", "the one in which the plan saves most")
@engine_options
@json_option
def report_command(
    plan: str, log: str | None, as_json: bool, page: str | None, plot: str | None, step: int | None, **options: Any
) -> None:
    """Check PLAN against its log and report what it gains; every number is recomputed, none copied."""
    engine = engine_of(options)
    pictures = Pictures.of(page, plot, step)
    if (page or plot) and not isinstance(engine, Serial | None):
        raise InputError("--html and --plot look at every step, which one process does: leave --engine and --jobs out")
    with timed() as seconds:
        with progress(as_json) as tick:
            summary = check_run(plan, RunSummary, log, engine=engine, tick=tick, each=pictures.add)
        pictures.write(summary, plan, log or log_of(plan))
    print_run(summary, f"{plan}: complete, checked", seconds[0], as_json, None)
    pictures.files.say(as_json)
