"""``balancer report``: a plan file checked against its log, and what it gains."""

import time

import click

from balancer.cli.options import json_option
from balancer.cli.parser import command
from balancer.cli.pictures import Pictures, picture_options
from balancer.cli.run import compiling, print_run, progress
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
    started = time.perf_counter()
    summary = RunSummary()
    with progress(as_json) as tick, compiling() as compiled:
        for replayed in load_steps(plan, log):
            summary.add_step(replayed)
            pictures.add(replayed)
            tick(replayed.num_samples)
    pictures.write(summary, plan, log or log_of(plan))
    runtime_s = time.perf_counter() - started
    print_run(summary, f"{plan}: complete, checked", runtime_s, as_json, None, compile_s=sum(compiled))
    pictures.files.say(as_json)
