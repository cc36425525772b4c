"""``balancer configure``: which layout a cluster is to have for a log and its models."""

import json
import shlex
import time
from typing import Any

import click

from balancer.cli.layouts import layout_arguments
from balancer.cli.options import add_options, cluster_option, json_option, module_options, rate_options
from balancer.cli.parser import command
from balancer.cli.pictures import PictureFiles, check_folder
from balancer.cli.run import bar_of, table_console
from balancer.io._atomic import reported, write_whole
from balancer.problem.layout import LAYOUT_MODES
from balancer.report.text import printable
from balancer.simulate.configure import LAST_S, Configuration, configure

__all__ = ["configure_command"]


def _own_options(command: Any) -> Any:
    """Add what there is to choose from."""
    options = (
        click.option("--gpus", "num_gpus", type=int, required=True, metavar="N", help="GPUs of the cluster."),
        click.option("--batch", type=int, required=True, metavar="B", help="Samples of a global batch."),
        click.option(
            "--phase", "phases", metavar="NAME=COL[+COL...]", multiple=True, required=True,
            help="A module and the columns whose sum is its length; the last but generators is the language model.",
        ),
        click.option(
            "--items", metavar="NAME=F(COL,...)", multiple=True,
            help="Several items per sample, from columns of lists: qwen2vl_patches(widths,heights), lengths(clips).",
        ),
        cluster_option,
        *module_options,
        *rate_options,
        click.option("--frozen", metavar="NAME", multiple=True, help="A phase that is not trained."),
        click.option(
            "--generator", "generators", metavar="NAME", multiple=True,
            help="A phase behind the language model that takes its outputs: a decoder of audio or images.",
        ),
        click.option(
            "--mode", default="any", show_default=True, metavar="M[+M]",
            help=f"Encoders are {' | '.join(LAYOUT_MODES)}: first stages, or on all GPUs before them, or in gaps.",
        ),
        click.option(
            "--steps", "num_steps", type=int, default=1, show_default=True, metavar="K",
            help="Global batches of the log that every layout is judged by, evenly spread.",
        ),
        click.option(
            "--time-budget", type=float, default=5.0, show_default=True, metavar="S",
            help="Schedules to make, in seconds of work; counted, not timed.",
        ),
        click.option("--out", metavar="FILE.json", help="Write the fastest, for --layout of plan and simulate."),
        click.option("--html", "page", metavar="FILE.html", help="Write a page with charts; needs the extra 'plot'."),
    )  # fmt: skip
    return add_options(command, options)


@command("configure", short_help="Choose how the GPUs of a cluster are split.")
@click.argument("log", type=click.Path())
@_own_options
@json_option
def configure_command(log: str, as_json: bool, out: str | None, page: str | None, **options: Any) -> None:
    """Choose tensor, pipeline, context and data ranks for every module, and where encoders run, for steps of LOG.

    \b
    balancer configure log.parquet --gpus 512 --batch 4096 --cluster h100 --phase vision=image_patches \\
        --model vision=internvit-6b --pieces vision=1024 --phase llm=text_tokens+image_tokens --model llm=qwen2-72b
    """  # noqa: D301 (click's mark, not an escape)
    files = PictureFiles(page, None, None)
    if out is not None:
        check_folder(out)
    own = {name: options[name] for name in ("num_gpus", "batch", "cluster", "mode", "num_steps", "time_budget")}
    asked = own | layout_arguments(options) | {"generators": options["generators"]}
    started = time.perf_counter()
    with bar_of("layouts scheduled", None, as_json) as tick:
        found = configure(log, tick=tick, **asked)
    runtime_s = time.perf_counter() - started
    if out is not None:
        text = json.dumps(found.winner.layout.to_json() | {"found": _told(found)}, indent=2) + "\n"
        with reported(out, "write the layout"):
            write_whole(out, text.encode())
    if page is not None:
        from balancer.report.layout_page import write_layout_page

        write_layout_page(page, found, log)
    if as_json:
        click.echo(json.dumps({**found.to_json(), "runtime_s": runtime_s}, indent=2))
        return
    from balancer.report.layouts import print_configuration

    print_configuration(table_console(), found, runtime_s)
    if out is not None:
        click.echo(printable(f"layout written to {out}; to see it beside others:"))
        click.echo(printable(f"  {_next_command(log, found, out, options)}"))
        layout = found.winner.layout
        if layout.times is not None and not layout.generators:
            budget = f"--time-budget {LAST_S:g}, to search as long as here"
            click.echo(f"plan takes --ranks {layout.llm.dp} with it, its replicas, and {budget}")
        elif not layout.generators:
            gpus = f", or --ranks {layout.num_gpus}, its GPUs, to plan all modules" * (layout.mode == "before")
            click.echo(f"plan takes --ranks {layout.llm.dp} with it, its replicas, to plan their pipelines{gpus}")
    files.say(as_json)


def _told(found: Configuration) -> dict[str, Any]:
    """Return what the winner's file says of it, besides the layout."""
    each = found.winner.to_json()
    return {name: value for name, value in each.items() if name != "layout"} | {"lower_bound_s": found.lower_bound_s}


def _next_command(log: str, found: Configuration, out: str, options: dict[str, Any]) -> str:
    """Return the command that prices the winner at the same samples, whole."""
    replicas, batch = found.winner.layout.llm.dp, options["batch"]
    ranks = replicas if batch % replicas == 0 else 1
    words = ["balancer", "simulate", log, "--ranks", ranks, "--batch-per-rank", batch // ranks, "--layout", out]
    words += ["--cluster", options["cluster"]]
    for name, values in (("phase", options["phases"]), ("items", options["items"]), ("model", options["models"]),
                         ("pieces", options["pieces"]), ("throughput", options["curves"]),
                         ("frozen", options["frozen"])):  # fmt: skip
        words += [word for value in values for word in (f"--{name}", value)]
    for name, usual in (("num_steps", 1), ("efficiency", 0.5), ("overlap", 0.0)):
        words += [f"--{name.removeprefix('num_')}", options[name]] * (options[name] != usual)
    return shlex.join(map(str, words))
