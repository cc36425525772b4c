"""The command line: ``balancer plan | report | solve | fit``. It reads arguments, calls the library, and prints."""

import contextlib
import io
import json
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any, NoReturn

import click

from balancer import __version__
from balancer.batch import HOMES
from balancer.cost import CostModel, parse_cost
from balancer.errors import FitError, InputError, PlanError
from balancer.fit_command import fit_command
from balancer.io.logs import LengthLog, choose_length, open_log
from balancer.io.plan_writer import PlanWriter
from balancer.micro_batches import OVER_LONG, SCHEDULES, MicroBatches
from balancer.offline import LogSettings, PlanDigest, describe, load_plans, plan_log
from balancer.plan import SINGLE_PHASE
from balancer.planner import EPS, METHODS, PLACEMENTS, balance
from balancer.report.summary import RunSummary
from balancer.topology import MAX_RANKS, Topology
from solvers import PARTITIONERS, USES_CLOCK, SolverError, partition

__all__ = ["main"]

DONE, FAILED, BAD_INPUT = 0, 1, 2


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run the command line; exits with 0 (done), 1 (failed check, infeasible) or 2 (bad usage or input)."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a name that the terminal cannot show ends no run
    try:
        code = cli.main(arguments, prog_name="balancer", standalone_mode=False)
        sys.exit(code if isinstance(code, int) else DONE)
    except click.ClickException as error:
        context = getattr(error, "ctx", None)
        hint = f"\ntry: {context.command_path} --help" if context is not None else ""
        _fail(BAD_INPUT, f"{error.format_message()}{hint}")
    except (FitError, PlanError) as error:
        _fail(FAILED, str(error))
    except SolverError as error:
        _fail(FAILED, _as_options(str(error)))
    except BrokenPipeError:  # whoever read our output has enough of it
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        sys.exit(DONE)
    except (InputError, OSError) as error:  # these name files and columns, which are not ours to rename
        _fail(BAD_INPUT, str(error))
    except MemoryError:
        _fail(BAD_INPUT, "out of memory; are the numbers what they should be?")
    except (ValueError, TypeError) as error:
        _fail(BAD_INPUT, _as_options(str(error)))
    except (KeyboardInterrupt, click.Abort):
        _fail(130, "interrupted")


_OPTION_OF = {
    "num_ranks": "--ranks",
    "num_groups": "--groups",
    "num_micro_batches": "--micro-batches",
    "caps": "--cap",
    **{
        name: f"--{name.replace('_', '-')}"
        for name in (
            "ranks_per_node", "batch_per_rank", "time_budget", "max_tokens_per_rank", "min_samples_per_rank",
            "max_samples_per_rank", "keep_together", "allowed_ranks", "rank_speeds", "initial_loads",
            "micro_batch_tokens", "schedule", "min_micro_batches", "micro_batches_multiple_of", "pipeline_stages",
            "over_long", "equal_counts",
        )
    },
}  # fmt: skip


def _as_options(message: str) -> str:
    """Call the library's arguments by the names of the options that set them, and leave its advice to programs out."""
    message = message.split("; spell uneven nodes out")[0]
    return re.sub(rf"\b({'|'.join(_OPTION_OF)})\b", lambda match: _OPTION_OF[match[0]], message)


def _fail(code: int, message: str) -> NoReturn:
    if sys.stderr is not None:
        print(f"balancer: {message}", file=sys.stderr)  # noqa: T201
    sys.exit(code)


@click.group(
    invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110}
)
@click.version_option(__version__, prog_name="balancer", message="%(prog)s %(version)s")
@click.pass_context
def cli(context: click.Context) -> None:
    """Balance sequence lengths over data-parallel ranks, with a proof of how far from perfect the plan is."""
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


cli.add_command(fit_command)


_json_option = click.option("--json", "as_json", is_flag=True, help="One JSON document on standard output.")


def _method_option(methods: Iterable[str]) -> Callable[[Any], Any]:
    known = f"One of {', '.join(methods)}."
    return click.option("--method", default="auto", show_default=True, metavar="M", help=known)


_budget_option = click.option(
    "--time-budget",
    type=float,
    default=0.01,
    show_default=True,
    metavar="S",
    help="Seconds' worth of solver work a step; counted, not timed (but for exact).",
)
_equal_counts_option = click.option("--equal-counts", is_flag=True, help="As many in each as in any other, within one.")


def _constraint_options(command: Any) -> Any:
    """Add what a plan must keep to on every rank."""
    options = (
        _equal_counts_option,
        click.option("--max-tokens-per-rank", type=int, metavar="T", help="No rank gets a larger sum of lengths."),
        click.option("--min-samples-per-rank", type=int, default=0, metavar="K", help="Every rank gets K or more."),
        click.option("--max-samples-per-rank", type=int, metavar="K", help="No rank gets more than K samples."),
        click.option(
            "--cap", "caps", multiple=True, metavar="COL[+COL...]=MAX",
            help="No rank gets more than MAX of another quantity; may be given several times.",
        ),
        click.option("--keep-together", metavar="COL", help="Rows with equal values in COL run on one rank."),
        click.option("--allowed-ranks", metavar="COL", help="COL lists the ranks on which a row may run."),
        click.option(
            "--rank-speeds", metavar="S,S,...", help="Work units that each rank does in a unit of time, as integers."
        ),
        click.option("--initial-loads", metavar="L,L,...", help="Work units that each rank has already."),
    )  # fmt: skip
    for option in reversed(options):
        command = option(command)
    return command


def _micro_batch_options(command: Any) -> Any:
    """Add how a rank's share is cut into micro-batches."""
    options = (
        click.option("--micro-batch-tokens", type=int, metavar="T", help="Cut shares into micro-batches of at most T."),
        click.option(
            "--schedule", metavar="S", default=None,
            help=f"Where ranks wait for each other with micro-batches: {' | '.join(SCHEDULES)} [default: lockstep].",
        ),
        click.option("--micro-batches", metavar="K", help="How many a rank; or 'fewest' [default: the fastest]."),
        click.option("--min-micro-batches", type=int, metavar="K", help="At least K [default: 1]."),
        click.option("--micro-batches-multiple-of", type=int, metavar="K", help="A multiple of K [default: 1]."),
        click.option("--pipeline-stages", type=int, metavar="P", help="With --schedule pipeline [default: 1]."),
        click.option("--over-long", metavar="W", help=f"A row over the cap: {' | '.join(OVER_LONG)} [default: error]."),
    )  # fmt: skip
    for option in reversed(options):
        command = option(command)
    return command


_FIELD_OF = {
    "schedule": "schedule",
    "micro_batches": "count",
    "min_micro_batches": "at_least",
    "micro_batches_multiple_of": "multiple_of",
    "pipeline_stages": "pipeline_stages",
    "over_long": "over_long",
}


def _micro_batches(options: dict[str, Any]) -> MicroBatches | None:
    """Take the micro-batch options out of all options."""
    tokens = options.pop("micro_batch_tokens")
    given = {name: value for name in _FIELD_OF if (value := options.pop(name)) is not None}
    if tokens is None:
        if given:
            names = ", ".join(f"--{name.replace('_', '-')}" for name in given)
            raise InputError(f"{names} needs --micro-batch-tokens, the cap on a micro-batch")
        return None
    count = given.get("micro_batches")
    if count is not None and count != "fewest":
        if not re.fullmatch("[0-9]{1,9}", count):
            raise InputError(f"--micro-batches must be a whole number or 'fewest', got {count!r}")
        given["micro_batches"] = int(count)
    return MicroBatches(tokens, **{_FIELD_OF[name]: value for name, value in given.items()})


def _capped(text: str) -> tuple[str, int]:
    columns, equals, limit = text.rpartition("=")
    if not equals or not columns or not re.fullmatch("[0-9]{1,18}", limit):
        raise InputError(f"--cap {text!r} must be COL[+COL...]=MAX, such as image_patches=60000")
    return columns, int(limit)


def _one_a_rank(name: str, text: str | None) -> tuple[int, ...] | None:
    if text is None:
        return None
    words = text.split(",")
    for word in words:
        if not re.fullmatch("[0-9]{1,18}", word.strip()):
            raise InputError(f"{name} must be whole numbers with commas between them, got {word!r}")
    return tuple(map(int, words))


@cli.command("plan", short_help="Plan every global batch of a length log.")
@click.argument("log", type=click.Path())
@click.option("--ranks", type=int, required=True, metavar="N", help="Data-parallel ranks.")
@click.option("--ranks-per-node", type=int, metavar="C", help="Ranks a node; without it, all share one node.")
@click.option("--batch-per-rank", type=int, required=True, metavar="B", help="Samples a rank draws for each step.")
@click.option(
    "--length", metavar="COL[+COL...]", help="Columns whose sum is the length [default: the only integer one]."
)
@click.option(
    "--cost",
    default="linear",
    show_default=True,
    help="linear | quadratic:a=24576,b=1 | padded | convolution:a=24576,c=100 | flops:qwen2-7b",
)
@_method_option(METHODS)
@click.option("--home", default="contiguous", show_default=True, help=f"Where samples lie before: {' | '.join(HOMES)}")
@click.option(
    "--placement",
    default="relocate",
    show_default=True,
    metavar="P",
    help=f"How rows come to ranks: {' | '.join(PLACEMENTS)}",
)
@click.option(
    "--eps", type=float, default=EPS, show_default=True, metavar="E",
    help="With relocate, the fraction of the makespan that may be given up so that less moves.",
)  # fmt: skip
@click.option("--compare-placements", is_flag=True, help="Also say what the other placements would give.")
@click.option("--drop-last", is_flag=True, help="Leave out a last, short step.")
@_constraint_options
@_micro_batch_options
@_budget_option
@click.option("--out", metavar="FILE|DIR/", help="Write the plan: one Parquet file, or parts in a folder.")
@_json_option
def plan_command(log: str, out: str | None, as_json: bool, **options: Any) -> None:
    """Plan every global batch of LOG (Parquet, CSV, JSONL, Arrow, NumPy): which sample goes to which rank.

    \b
    balancer plan log.parquet --ranks 64 --ranks-per-node 8 --batch-per-rank 16 --length text_tokens+image_tokens
    """  # noqa: D301 (click's mark, not an escape)
    topology = Topology.uniform(options.pop("ranks"), options.pop("ranks_per_node"))
    cost = parse_cost(options.pop("cost"))
    length = options.pop("length")
    compare = options.pop("compare_placements")
    caps = tuple(_capped(text) for text in options.pop("caps"))
    per_rank: dict[str, Any] = {
        name: _one_a_rank(f"--{name.replace('_', '-')}", options.pop(name)) for name in ("rank_speeds", "initial_loads")
    }
    micro_batches = _micro_batches(options)
    opened = open_log(log)
    columns = choose_length(opened, length)
    settings = LogSettings(
        topology=topology, columns=columns, cost=cost, caps=caps, micro_batches=micro_batches, **per_rank, **options
    )
    if out is not None and os.path.exists(out) and os.path.samefile(log, out):
        raise InputError(f"{out}: the plan would overwrite its log; choose another --out")
    _make_ready(settings)
    started = time.perf_counter()
    summary, digest = RunSummary(), PlanDigest()
    with PlanWriter(out) if out is not None else contextlib.nullcontext() as writer, _progress(as_json) as tick:
        for step, plan in enumerate(plan_log(opened, settings)):
            first = summary.samples
            summary.add(SINGLE_PHASE, plan)
            if writer is not None:
                digest.add(plan)
                target = plan.target
                samples = _consecutive(first, plan.num_samples)
                slot = plan.slot_of_sample if plan.num_slots > 1 else 0
                writer.append(step, SINGLE_PHASE, samples, target.rank_of_sample, slot, target.position_of_sample)
            tick(plan.num_samples)
        if summary.steps == 0:
            raise InputError(f"{log}: holds fewer rows than one global batch of {settings.samples_per_step}: no steps")
        if writer is not None:
            writer.close(describe(opened, settings, summary.steps, summary.samples, digest))
    title = (
        f"{os.path.basename(log)}: {'+'.join(columns)}, {topology.num_ranks} ranks x {settings.batch_per_rank}, {cost}"
    )
    others = _other_placements(opened, settings) if compare else {}
    _print_summary(summary, title, time.perf_counter() - started, as_json, out, others)


def _other_placements(log: LengthLog, settings: LogSettings) -> dict[str, RunSummary]:
    """Plan the log under every other placement, for comparison."""
    others = {}
    for placement in PLACEMENTS:
        if placement != settings.placement:
            others[placement] = RunSummary()
            for plan in plan_log(log, replace(settings, placement=placement)):
                others[placement].add(SINGLE_PHASE, plan)
    return others


def _make_ready(settings: LogSettings) -> None:
    """Compile the kernels, or load them; the first time takes seconds, and someone who waits should know why."""
    timer = threading.Timer(1, lambda: _say("compiling the kernels, which is done once ..."))
    timer.start()
    ranks, cost = settings.topology.num_ranks, CostModel(padded=settings.cost.padded, c=min(settings.cost.c, 1))
    if settings.method not in USES_CLOCK:
        balance(range(2 * ranks), ranks, cost=cost, method=settings.method, equal_counts=settings.equal_counts)
    timer.cancel()


def _say(message: str) -> None:
    if sys.stderr is not None and sys.stderr.isatty():
        print(f"balancer: {message}", file=sys.stderr)  # noqa: T201


def _consecutive(first: int, count: int) -> Any:
    import numpy as np

    return np.arange(first, first + count)


def _print_summary(
    summary: RunSummary,
    title: str,
    runtime_s: float,
    as_json: bool,
    out: str | None,
    others: dict[str, RunSummary] | None = None,
) -> None:
    if as_json:
        document = summary.as_json(runtime_s)
        if others:
            document["other_placements"] = {name: other.as_json(0)["phases"] for name, other in others.items()}
        click.echo(json.dumps(document, indent=2))
        return
    from rich.console import Console

    from balancer.report.table import NARROWEST, print_placements, print_summary

    console = Console(emoji=False)
    console.width = max(console.width, NARROWEST)
    print_summary(console, summary, title, runtime_s)
    if others:
        print_placements(console, {"": summary, **others})
    if out is not None:
        console.print(f"plan written to {out}", markup=False, highlight=False, soft_wrap=True)


@contextlib.contextmanager
def _progress(quiet: bool) -> Iterator[Callable[[int], None]]:
    """Show a bar on standard error once a second has passed, if a person is looking."""
    if quiet or sys.stderr is None or not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = SpinnerColumn(), TextColumn("{task.completed:,} samples planned"), TimeElapsedColumn()
    bar = Progress(*columns, console=Console(stderr=True, emoji=False), transient=True)
    task = bar.add_task("planning", total=None)
    begun = time.perf_counter()
    running = False

    def tick(samples: int) -> None:
        nonlocal running
        if not running and time.perf_counter() - begun > 1:
            bar.start()
            running = True
        bar.advance(task, samples)

    try:
        yield tick
    finally:
        if running:
            bar.stop()


@cli.command("report", short_help="Check a plan against its log and say what it is worth.")
@click.argument("plan", type=click.Path())
@click.option("--log", type=click.Path(), help="The log that PLAN was made from, if it is not where PLAN says.")
@_json_option
def report_command(plan: str, log: str | None, as_json: bool) -> None:
    """Check PLAN against its log and report what it is worth; every number is recomputed, none copied."""
    started = time.perf_counter()
    summary = RunSummary()
    with _progress(as_json) as tick:
        for replayed in load_plans(plan, log):
            summary.add(SINGLE_PHASE, replayed)
            tick(replayed.num_samples)
    _print_summary(summary, f"{plan}: complete, checked", time.perf_counter() - started, as_json, None)


@cli.command(
    "solve", short_help="Split one list of numbers into groups.", context_settings={"ignore_unknown_options": True}
)
@click.argument("numbers", nargs=-1)
@click.option("--groups", type=int, required=True, metavar="M", help="Into how many groups.")
@_method_option(PARTITIONERS)
@_equal_counts_option
@_budget_option
@_json_option
def solve_command(
    numbers: tuple[str, ...], groups: int, method: str, equal_counts: bool, time_budget: float, as_json: bool
) -> None:
    """Split NUMBERS (or those on standard input) into groups whose largest sum is as small as possible.

    \b
    balancer solve 5 4 3 3 3 --groups 2
    """  # noqa: D301 (click's mark, not an escape)
    words = numbers if numbers and numbers != ("-",) else tuple(_standard_input().replace(",", " ").split())
    if not words:
        raise InputError("no numbers to solve: give them as arguments or on standard input")
    if groups > MAX_RANKS:
        raise InputError(f"--groups must be <= {MAX_RANKS}, got {groups}")
    costs = [_whole_number(i, word) for i, word in enumerate(words)]
    result = partition(costs, groups, method, time_budget, equal_counts=equal_counts)
    members: list[list[int]] = [[] for _ in range(groups)]
    for cost, group in zip(costs, result.group_of_item.tolist(), strict=True):
        members[group].append(cost)
    if as_json:
        document = {
            "groups": members,
            "group_of_item": result.group_of_item.tolist(),
            "loads": result.loads.tolist(),
            "makespan": result.makespan,
            "lower_bound": result.lower_bound,
            "bound_name": result.bound_name,
            "gap": result.gap if result.lower_bound or not result.makespan else None,
            "status": result.status.value,
            "method": result.method,
            "runtime_s": result.runtime_s,
        }
        click.echo(json.dumps(document, indent=2))
        return
    from rich.console import Console

    from balancer.report.table import print_loads

    console = Console(emoji=False)
    print_loads(console, members, result.loads.tolist())
    proof = "proven optimal" if result.gap == 0 else f"gap {result.gap:.3%}"
    console.print(
        f"makespan {result.makespan:,}, lower bound {result.lower_bound:,} ('{result.bound_name}'): {proof}",
        highlight=False,
    )


def _standard_input() -> str:
    return sys.stdin.read() if sys.stdin is not None else ""


def _whole_number(index: int, word: str) -> int:
    if not re.fullmatch(r"[+-]?[0-9]{1,19}", word):
        raise InputError(f"number {index + 1}: {word[:40]!r} must be a whole number >= 0 that fits int64")
    return int(word)
