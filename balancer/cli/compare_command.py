"""``balancer compare``: what each strategy would make of a log, side by side."""

import json
import time
from typing import Any

import click

from balancer.cli.options import comparison_options, json_option, log_argument, planning_options
from balancer.cli.parser import command
from balancer.cli.run import progress, table_console
from balancer.cli.settings import chosen_strategies, open_job, unconstrained
from balancer.cli.typed import said_step
from balancer.errors import InputError
from balancer.io.log_files import LogPath
from balancer.offline.steps import compare_log
from balancer.report.plan_log import about
from balancer.report.summary import JSON_VERSION, RunSummary


@command("compare", short_help="Plan a log by several strategies, side by side.")
@log_argument
@planning_options
@comparison_options("Plan only the first K steps.")
@json_option
def compare_command(
    log: LogPath, strategies: str | None, steps: int | None, window: int, as_json: bool, **options: Any
) -> None:
    """Plan LOG by several strategies: imbalance of every phase, and what crosses nodes.

    \b
    balancer compare log.parquet --ranks 64 --ranks-per-node 8 --batch-per-rank 16 --phase vision=image_patches \\
        --outputs vision=image_tokens --phase llm=text_tokens+image_tokens
    """  # noqa: D301 (click's mark, not an escape)
    job = open_job(log, said_step(options))
    settings = job.settings
    chosen = chosen_strategies(strategies, settings)
    started = time.perf_counter()
    summaries = {strategy: RunSummary() for strategy in chosen}
    with progress(as_json) as tick:
        for strategy, plan in compare_log(job.log, settings, chosen, steps, window):
            summaries[strategy].add_step(plan, settings.is_short(plan.batch_size))
            tick(plan.num_samples)
    runtime_s = time.perf_counter() - started
    # Steps, samples and costs follow from the log alone: any strategy's summary has them.
    first = summaries[chosen[0]]
    if not first.steps:
        raise InputError(
            f"{job.log.path}: holds fewer rows than one global batch of {settings.samples_per_step}: no steps"
        )
    if as_json:
        document = {
            "version": JSON_VERSION,
            **about(job.log, settings),
            "cost": first.costs_by_name,
            "steps": first.steps,
            "samples": first.samples,
            "runtime_s": runtime_s,
            "strategies": {
                name: {
                    # 0.0: all strategies were planned together, so none has a runtime, or a rate, of its own.
                    **{key: told for key, told in summary.as_json(0.0).items() if key in ("phases", "short_steps")},
                    "streams": {stream: part.as_json() for stream, part in summary.streams.items()},
                    "crosses_nodes_bytes": summary.inter_node_bytes,
                }
                for name, summary in summaries.items()
            },
        }
        click.echo(json.dumps(document, indent=2))
        return
    from balancer.report.table import print_comparison

    console = table_console()
    print_comparison(console, summaries, job.title, runtime_s)
    for line in unconstrained(settings, chosen):
        console.print(line, markup=False, highlight=False, soft_wrap=True)
