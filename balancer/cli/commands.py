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
    option,
    out_options,
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
@option("--price P", "Price of a GPU hour, in any currency.", type=float)
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
@option(
    "--continue PLAN",
    "Plan the rest of PLAN's epochs, in their order, on other ranks; with --at-step.",
    to="continued",
    type=click.Path(),
)
@option("--at-step S", "Steps of PLAN that were trained.", type=int)
@out_options
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
@option("--log", "The log that PLAN was made from, if it is not where PLAN says.", type=click.Path())
@html_option
@option("--measured FILE", "Compare measured times (columns step, rank, seconds) with PLAN's predictions.")
@option("--step FILE.toml", "Check that PLAN was made by this step file.", to="step_file")
@engine_options
@json_option
def _report(**given: Any) -> None:
    """Check PLAN against its log and report what it gains; every number is recomputed, none copied."""
    _work_of("report").run(**given)


@click.command("simulate", cls=Command, short_help="Predict step time and MFU on a cluster, by strategy.")
@log_argument
@step_options("ranks", "ranks_per_node", "batch_per_rank", "length", "cost", "model", "cluster")
@option(
    "--layout FILE.json",
    "Layouts, such as configure --out writes: step times of the same samples are compared, and no strategies.",
    to="compared",
    multiple=True,
)
@option("--checkpointing", "Activations are recomputed for the backward pass.", is_flag=True)
@rate_options
@option(
    "--waits",
    "Ranks wait for each other after every phase, or once a step.",
    type=click.Choice(("phase", "step")),
    default="phase",
)
@option(
    "--strategies S,S,...",
    "Of as_sampled, llm_only, orchestrated; with sequence groups also static_degree, sequence_groups, with "
    "context shards context_shards [default: all].",
)
@option(
    "--steps K",
    "Steps to simulate [default: as many as the log has; one where layouts are compared]; a short log is read again.",
    to="num_steps",
    type=int,
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
@option(
    "--generator NAME",
    "A phase after the language model that takes its outputs, a decoder of audio or images: last stages.",
    to="generators",
    multiple=True,
)
@option(
    "--mode M[+M]",
    "Encoders are stages | before | multiplexed: first stages, or on all GPUs before them, or in gaps.",
    default="any",
)
@option(
    "--steps K",
    "Global batches of the log that every layout is judged by, evenly spread.",
    to="num_steps",
    type=int,
    default=1,
)
@option("--layouts N", "Layouts of each mode to schedule, the best by estimate.", type=int, default=16)
@option("--out FILE.json", "Write the fastest, for --set layout=FILE.json and simulate --layout.")
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
@option("--skip N", "Leave out the first N steps (warm-up).", type=click.IntRange(0), default=0)
@option("--areas NAME,NAME", "Fit a term for each kind of layer, such as full,window1024, chosen by held-out error.")
@option("--where COLUMN=VALUE", "Only rows with this value in a column.", to="only", multiple=True)
@option("--force", "Accept a fit whose error is too large, and say so.", is_flag=True)
@html_option
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
@option("--tokens T", "The most tokens of a pack.", type=int, required=True)
@option(
    "--length COL[+COL...]",
    "Columns whose sum is the length [default: the only integer one, if it looks like lengths].",
)
@option(
    "--over-long W",
    "A row over T or a limit: error | own | drop | cut (its own pack, left out, pieces of T).",
    type=click.Choice(("error", "own", "drop", "cut")),
    default="error",
)
@option("--limit COL[+COL...]=N", "The most of these in a pack, such as images=16.", to="limits", multiple=True)
@option("--max-samples N", "The most samples of a pack.", type=int)
@option(
    "--per-step N", "Packs of a step; these cost nearly the same. Steps are full if samples can be divided.", type=int
)
@option("--even-cost", "Packs of even cost, without using more packs.", is_flag=True)
@option(
    "--cost SPEC", "What a sample costs, as for balancer plan; a pack costs the sum.", default="quadratic:a=24576,b=1"
)
@option("--out FILE", "Write the packs, to a Parquet file.")
@option("--overwrite", "Replace what is there, even if it is of another request.", is_flag=True)
@json_option
def _pack(**given: Any) -> None:
    """Join the samples of LOG to as few packs of at most T tokens as there are, with a proof of how few can be.

    \b
    balancer pack log.parquet --tokens 8192 --out packs.parquet
    balancer pack log.parquet --tokens 8192 --over-long cut --per-step 64 --even-cost --out packs.parquet
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
@option(
    "--for",
    "What to make ready: the command line, a trainer's steps, or every method.",
    to="purpose",
    type=click.Choice(("plan", "runtime", "all")),
    default="all",
)
@option("--jobs N", "Processes; by default one a core.", type=click.IntRange(min=1))
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
