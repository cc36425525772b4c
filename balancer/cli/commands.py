"""The commands and their options. What a command runs is ``run`` of the module of its name, imported when it is run.

Nothing here imports more than click, so that help is there at once.
"""

import gc
from importlib import import_module
from typing import Any

import click

from balancer.cli.options import (
    engine_options,
    html_option,
    json_option,
    log_argument,
    planning_options,
    rate_options,
    step_options,
)
from balancer.cli.parser import Command


def _work_of(name: str) -> Any:
    found = import_module(f"balancer.cli.{name}_command")
    gc.freeze()  # what was imported stays: looking through it for garbage would take 0.3 s at the end alone
    return found


@click.command("advise", cls=Command, short_help="Say what would help a training job, and what it costs.")
@log_argument
@planning_options
@click.option("--price", type=float, metavar="P", help="Price of a GPU hour, in any currency.")
@html_option
@json_option
def _advise(**given: Any) -> None:
    """Say what waiting costs in steps of LOG, what each remedy would gain, with proof, and how to get it.

    \b
    balancer advise log.parquet --ranks 64 --ranks-per-node 8 --batch-per-rank 16 --length text_tokens+image_tokens
    balancer advise log.parquet --ranks 64 --batch-per-rank 16 --cost flops:qwen2-7b --price 2 --html advice.html
    """  # noqa: D301 (click's mark, not an escape)
    _work_of("advise").run(**given)


@click.command("plan", cls=Command, short_help="Plan every global batch of a length log.")
@log_argument
@planning_options
@click.option(
    "--continue",
    "continued",
    metavar="PLAN",
    type=click.Path(),
    help="Plan the rest of PLAN's epochs, in their order, on other ranks; with --at-step.",
)
@click.option("--at-step", type=int, metavar="S", help="Steps of PLAN that were trained.")
@click.option("--out", metavar="FILE|DIR/", help="Write the plan: one Parquet file, or parts in a folder.")
@click.option("--overwrite", is_flag=True, help="Replace what is there, even if it is not a plan of the same request.")
@click.option("--resume", is_flag=True, help="Continue from the parts that a killed run left in the folder.")
@engine_options
@json_option
def _plan(**given: Any) -> None:
    """Plan every global batch of LOG: which sample goes to which rank.

    LOG is a file (Parquet, CSV, JSON lines, one number a line, Arrow, NumPy, Megatron's .idx; text may be .gz or .zst),
    several of one kind, a pattern or a folder of them, what Hugging Face's save_to_disk wrote, or - (standard input).

    \b
    balancer plan log.parquet --ranks 64 --ranks-per-node 8 --batch-per-rank 16 --length text_tokens+image_tokens
    balancer plan log.parquet --step step.toml --set phase.llm.cost=flops:qwen2-7b --out plan.parquet
    """  # noqa: D301 (click's mark, not an escape)
    _work_of("plan").run(**given)


@click.command("report", cls=Command, short_help="Check a plan against its log and say what it gains.")
@click.argument("plan", type=click.Path())
@click.option("--log", type=click.Path(), help="The log that PLAN was made from, if it is not where PLAN says.")
@html_option
@click.option(
    "--measured", metavar="FILE", help="Compare measured times (columns step, rank, seconds) with PLAN's predictions."
)
@click.option("--step", "step_file", metavar="FILE.toml", help="Check that PLAN was made by this step file.")
@engine_options
@json_option
def _report(**given: Any) -> None:
    """Check PLAN against its log and report what it gains; every number is recomputed, none copied."""
    _work_of("report").run(**given)


@click.command("simulate", cls=Command, short_help="Predict step time and MFU on a cluster, by strategy.")
@log_argument
@step_options("ranks", "ranks_per_node", "batch_per_rank", "length", "cost", "model", "cluster")
@click.option(
    "--layout",
    "compared",
    metavar="FILE.json",
    multiple=True,
    help="Layouts, such as configure --out writes: step times of the same samples are compared, and no strategies.",
)
@click.option("--checkpointing", is_flag=True, help="Activations are recomputed for the backward pass.")
@rate_options
@click.option(
    "--waits",
    type=click.Choice(("phase", "step")),
    default="phase",
    help="Ranks wait for each other after every phase, or once a step.",
)
@click.option(
    "--strategies",
    metavar="S,S,...",
    help="Of as_sampled, llm_only, orchestrated; with sequence groups also static_degree, sequence_groups, with "
    "context shards context_shards [default: all].",
)
@click.option(
    "--steps",
    "num_steps",
    type=int,
    metavar="K",
    help="Steps to simulate [default: as many as the log has; one where layouts are compared]; a short log is "
    "read again.",
)
@html_option
@json_option
def _simulate(**given: Any) -> None:
    """Predict what steps of LOG take on a cluster: compute, waiting, exchange; MFU, samples a second, memory.

    \b
    balancer simulate log.parquet --cluster h100 --ranks 64 --batch-per-rank 16 --model qwen2-7b
    balancer simulate log.parquet --step step.toml --cluster h100 --set gpus_per_rank=8 --steps 20
    """  # noqa: D301 (click's mark, not an escape)
    _work_of("simulate").run(**given)


@click.command("configure", cls=Command, short_help="Choose how the GPUs of a cluster are split.")
@log_argument
@step_options("gpus", "ranks", "batch_per_rank", "cluster")
@rate_options
@click.option(
    "--generator",
    "generators",
    metavar="NAME",
    multiple=True,
    help="A phase after the language model that takes its outputs, a decoder of audio or images: last stages.",
)
@click.option(
    "--mode",
    default="any",
    metavar="M[+M]",
    help="Encoders are stages | before | multiplexed: first stages, or on all GPUs before them, or in gaps.",
)
@click.option(
    "--steps",
    "num_steps",
    type=int,
    default=1,
    metavar="K",
    help="Global batches of the log that every layout is judged by, evenly spread.",
)
@click.option(
    "--time-budget",
    type=float,
    default=5.0,
    metavar="S",
    help="Schedules to make, in seconds of work; counted, not timed.",
)
@click.option("--out", metavar="FILE.json", help="Write the fastest, for --layout of plan and simulate.")
@html_option
@json_option
def _configure(**given: Any) -> None:
    """Choose tensor, pipeline, context and data ranks for every module, and where encoders run, for steps of LOG.

    \b
    balancer configure log.parquet --step step.toml --gpus 512 --batch-per-rank 8 --cluster h100 --out layout.json
    """  # noqa: D301 (click's mark, not an escape)
    _work_of("configure").run(**given)


@click.command("fit", cls=Command, short_help="Fit a cost model to measured step times.")
@click.argument("measurements", type=click.Path())
@click.option("--skip", type=click.IntRange(0), default=0, metavar="N", help="Leave out the first N steps (warm-up).")
@click.option(
    "--areas",
    metavar="NAME,NAME",
    help="Fit a term for each kind of layer, such as full,window1024, chosen by held-out error.",
)
@click.option("--where", "only", multiple=True, metavar="COLUMN=VALUE", help="Only rows with this value in a column.")
@click.option("--force", is_flag=True, help="Accept a fit whose error is too large, and say so.")
@json_option
def _fit(**given: Any) -> None:
    """Fit seconds = c0 + a*sum(l) + b*sum(l^2) to MEASUREMENTS (CSV, Parquet, JSONL).

    One row per step has columns lengths (a list) and seconds; one row per sample: step, length and seconds; one row per
    call on one sample: length and seconds. Times may be in milliseconds. A column degree says how many ranks shared the
    step; then what they exchange is fitted too.

    \b
    balancer fit steps.csv --skip 10
    """  # noqa: D301 (click's mark, not an escape)
    _work_of("fit").run(**given)


@click.command("pack", cls=Command, short_help="Join samples to packs for fine-tuning.")
@log_argument
@click.option("--tokens", type=int, required=True, metavar="T", help="The most tokens of a pack.")
@click.option(
    "--length",
    metavar="COL[+COL...]",
    help="Columns whose sum is the length [default: the only integer one, if it looks like lengths].",
)
@click.option(
    "--over-long",
    type=click.Choice(("error", "own", "drop", "cut")),
    default="error",
    metavar="W",
    help="A row over T: error | own | drop | cut (its own pack, left out, pieces of T).",
)
@click.option(
    "--window-rows",
    type=int,
    default=1 << 20,
    metavar="N",
    help="Consecutive rows that are packed together; no sample leaves its window.",
)
@click.option(
    "--per-step",
    type=int,
    metavar="N",
    help="Packs of a step: their number is a multiple; packs of a step cost nearly the same.",
)
@click.option("--even-cost", is_flag=True, help="Packs of even cost, without using more packs.")
@click.option(
    "--cost",
    default="quadratic:a=24576,b=1",
    metavar="SPEC",
    help="What a sample costs, as for balancer plan; a pack costs the sum.",
)
@click.option("--out", metavar="FILE|DIR/", help="Write the packs: one Parquet file, or a part a window in a folder.")
@click.option("--overwrite", is_flag=True, help="Replace what is there, even if it is not packs of the same request.")
@click.option("--resume", is_flag=True, help="Continue from the parts that a killed run left in the folder.")
@json_option
def _pack(**given: Any) -> None:
    """Join the samples of LOG to as few packs of at most T tokens as there are, with a proof of how few can be.

    \b
    balancer pack log.parquet --tokens 8192 --out packs.parquet
    balancer pack log.parquet --tokens 8192 --over-long cut --per-step 64 --even-cost --out packs/
    """  # noqa: D301 (click's mark, not an escape)
    _work_of("pack").run(**given)


def _instead(name: str) -> Any:
    """Return what a flag does that needs no log."""

    def call(context: click.Context, _: click.Parameter, wanted: bool) -> None:
        if wanted:
            getattr(_work_of("step"), name)()
            context.exit()

    return {"is_flag": True, "is_eager": True, "expose_value": False, "callback": call}


@click.command("step", cls=Command, short_help="Write a step file for a log, to be edited; list its keys.")
@log_argument
@click.option("--keys", **_instead("print_keys"), help="List all keys.")
@click.option("--schema", **_instead("print_schema"), help="Print the JSON schema of step files, for editors.")
def _step(**given: Any) -> None:
    """Print a step file for LOG, with comments: what --step of the other commands takes.

    \b
    balancer step log.parquet > step.toml
    """  # noqa: D301 (click's mark, not an escape)
    _work_of("step").run(**given)


@click.command("warmup", cls=Command, short_help="Compile every kernel now, and keep it on disk.")
@click.option(
    "--for",
    "purpose",
    type=click.Choice(("plan", "runtime", "all")),
    default="all",
    help="What to make ready: the command line, a trainer's steps, or every method.",
)
@click.option("--jobs", type=click.IntRange(min=1), metavar="N", help="Processes; by default one a core.")
@json_option
def _warmup(**given: Any) -> None:
    """Compile what planning needs, and keep it in the cache on disk, of which later processes load it.

    \b
    balancer warmup --jobs 16
    NUMBA_CACHE_DIR=/opt/kernels balancer warmup --for runtime
    """  # noqa: D301 (click's mark, not an escape)
    _work_of("warmup").run(**given)


COMMANDS: dict[str, click.Command] = {
    each.name or "": each for each in (_advise, _plan, _report, _simulate, _configure, _fit, _step, _pack, _warmup)
}
"""The commands by name."""
