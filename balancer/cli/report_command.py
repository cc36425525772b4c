"""``balancer report``: a plan file checked against its log, and what it gains."""

import click

from balancer.cli.options import json_option
from balancer.cli.parser import command
from balancer.cli.pictures import Pictures, picture_options
from balancer.cli.run import print_run, progress, timed
from balancer.offline.load import load_steps, log_of
from balancer.report.summary import RunSummary

__all__ = ["report_command"]


@command("report", short_help="Check a plan against its log and say what it gains.")
@click.argument("plan", type=click.Path())
@click.option("--log", type=click.Path(), help="The log that PLAN was made from, if it is not where PLAN says.")
@picture_options("the load of ranks", "the one in which the plan saves most")
@json_option
def report_command(
    plan: str, log: str | None, as_json: bool, page: str | None, plot: str | None, step: int | None
) -> None:
    """Check PLAN against its log and report what it gains; every number is recomputed, none copied."""
    pictures = Pictures.of(page, plot, step)
    summary = RunSummary()
    with timed() as seconds:
        with progress(as_json) as tick:
            for replayed in load_steps(plan, log):
                summary.add_step(replayed)
                pictures.add(replayed)
                tick(replayed.num_samples)
        pictures.write(summary, plan, log or log_of(plan))
    print_run(summary, f"{plan}: complete, checked", seconds[0], as_json, None)
    pictures.files.say(as_json)
