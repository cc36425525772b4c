"""The command line: ``balancer plan | report | compare | simulate | solve | fit``. It reads arguments and prints."""

import io
import json
import os
import re
import sys
import time
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, NoReturn

import click

from balancer import __version__
from balancer.cli.compare_command import compare_command
from balancer.cli.fit_command import fit_command
from balancer.cli.parser import Command
from balancer.cli.parts import (
    READY_BUDGET,
    PlanJob,
    add_options,
    budget_option,
    compiling,
    json_option,
    make_ready,
    method_option,
    micro_batch_options,
    micro_batches_of,
    print_run,
    progress,
    run_plan,
)
from balancer.cli.phases import (
    PHASES_ALONE,
    batch_options,
    constraints_of_one,
    cost_option,
    phase_constraint_options,
    phase_options,
    phases_job,
    refuse,
)
from balancer.cli.pictures import Pictures, picture_options
from balancer.cli.simulate_command import simulate_command
from balancer.cost import parse_cost
from balancer.errors import FitError, InputError, PlanError
from balancer.io.logs import LengthLog, choose_length, default_columns, open_log
from balancer.io.plan_writer import PlanWriter
from balancer.offline.one_phase import describe, holds_phases, load_plans, log_of, plan_log
from balancer.offline.settings import LogSettings
from balancer.offline.steps import load_steps
from balancer.plan.dispatch_plan import SINGLE_PHASE, DispatchPlan
from balancer.planning.planner import METHODS, PLACEMENTS
from balancer.problem.topology import MAX_RANKS, Topology
from balancer.report.summary import RunSummary
from solvers import PARTITIONERS, SolverError, partition

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
    except InputError as error:  # these name files and columns, which are not ours to rename
        _fail(BAD_INPUT, str(error))
    except OSError as error:
        _fail(BAD_INPUT, str(error) if error.filename else f"cannot read or write: {error.strerror or error}")
    except MemoryError:
        _fail(BAD_INPUT, "out of memory; are the numbers what they should be?")
    except (ValueError, TypeError) as error:
        _fail(BAD_INPUT, _as_options(str(error)))
    except (KeyboardInterrupt, click.Abort):
        _fail(130, "interrupted")


_OPTION_OF = {
    "num_ranks": "--ranks",
    "num_groups": "--groups",
    "num_steps": "--steps",
    "num_micro_batches": "--micro-batches",
    "caps": "--cap",
    "eps": "--eps",
    "num_slots": "--micro-batches",
    "min_slots": "--min-micro-batches",
    "slots_multiple_of": "--micro-batches-multiple-of",
    **{
        name: f"--{name.replace('_', '-')}"
        for name in (
            "ranks_per_node", "batch_per_rank", "time_budget", "max_tokens_per_rank", "min_samples_per_rank",
            "max_samples_per_rank", "keep_together", "allowed_ranks", "rank_speeds", "initial_loads",
            "micro_batch_tokens", "schedule", "min_micro_batches", "micro_batches_multiple_of", "pipeline_stages",
            "over_long", "equal_counts", "group_size", "every_rank_nonempty", "gpus_per_rank", "overlap",
        )
    },
}  # fmt: skip


_ADVICE = {
    "; spell uneven nodes out with Topology(node_sizes=[...])": "",
    ", over_long='drop' leaves them out": ", --over-long drop leaves them out",
    ", over_long='drop' leaves it out": ", --over-long drop leaves it out",
    "over_long='own'": "--over-long own",
    "over_long='drop'": "--over-long drop",
    "allow_empty=True": "--allow-empty-micro-batches",
    "a finite number or Fraction": "a finite number",
    "mode='separate'": "--mode separate",
    "method='auto'": "--method auto",
    "method='exact'": "--method exact",
}


def _as_options(message: str) -> str:
    """Call the library's arguments by the names of the options that set them, and leave its advice to programs out.

    The log and what stands in quotes have names of their own.
    """
    if located := re.match(r"(.*?: step \d+: )(.*)", message, re.DOTALL):
        return located[1] + _as_options(located[2])
    message = re.sub(r"MicroBatches\(\d+, (over_long='own')\)", r"\1", message)
    for text, option in _ADVICE.items():
        message = message.replace(text, option)
    message = re.sub("^(steps|window) must", r"--\1 must", message)
    names = rf"\"[^\"\n]*\"|(?<!\w)'[^'\n]*'|\b(?:{'|'.join(_OPTION_OF)})\b"
    return re.sub(names, lambda match: _OPTION_OF.get(match[0], match[0]), message)


def _fail(code: int, message: str) -> NoReturn:
    if sys.stderr is not None:
        print(f"balancer: {message}", file=sys.stderr)  # noqa: T201
    sys.exit(code)


class _Commands(click.Group):
    command_class = Command


@click.group(
    cls=_Commands,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
@click.version_option(__version__, prog_name="balancer", message="%(prog)s %(version)s")
@click.pass_context
def cli(context: click.Context) -> None:
    """Balance sequence lengths over data-parallel ranks, with a proof of how far from perfect the plan is."""
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


cli.add_command(compare_command)
cli.add_command(fit_command)
cli.add_command(simulate_command)


def _constraint_options(command: Any) -> Any:
    """Add what else a plan of one phase must keep to on every rank."""
    options = (
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
    return add_options(command, options)


def _caps(texts: Iterable[str]) -> tuple[tuple[str, int], ...]:
    """Read ``--cap``, each quantity once."""
    found: dict[str, int] = {}
    for text in texts:
        columns, equals, limit = text.rpartition("=")
        if not equals or not columns or not re.fullmatch("[0-9]{1,18}", limit):
            raise InputError(f"--cap {text!r} must be COL[+COL...]=MAX, such as image_patches=60000")
        if int(limit) < 1:
            raise InputError(f"--cap {text!r}: MAX must be >= 1")
        if columns in found:
            raise InputError(f"--cap names {columns!r} twice; name each quantity once")
        found[columns] = int(limit)
    return tuple(found.items())


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
@batch_options
@click.option(
    "--length",
    metavar="COL[+COL...]",
    help="Columns whose sum is the length [default: the only integer one, if it looks like lengths].",
)
@cost_option
@click.option("--compare-placements", is_flag=True, help="Also say what the other placements would give.")
@phase_options
@phase_constraint_options
@_constraint_options
@micro_batch_options
@method_option(METHODS)
@budget_option
@click.option("--out", metavar="FILE|DIR/", help="Write the plan: one Parquet file, or parts in a folder.")
@json_option
def plan_command(log: str, out: str | None, as_json: bool, **options: Any) -> None:
    """Plan every global batch of LOG (Parquet, CSV, JSONL, Arrow, NumPy): which sample goes to which rank.

    \b
    balancer plan log.parquet --ranks 64 --ranks-per-node 8 --batch-per-rank 16 --length text_tokens+image_tokens
    balancer plan log.parquet --ranks 64 --ranks-per-node 8 --batch-per-rank 16 --phase vision=image_patches \\
        --outputs vision=image_tokens --phase llm=text_tokens+image_tokens
    """  # noqa: D301 (click's mark, not an escape)
    if options["phases"]:
        refuse(options, ("length",), "--phase, which names the columns of each phase")
        refuse(options, ("compare_placements",), "--phase; balancer compare has strategies to compare")
        refuse(options, _ONE_PHASE_ALONE, f"--phase: {_WHY_NOT}")
        alone = ("length", *_ONE_PHASE_ALONE)
        job = phases_job(log, {name: value for name, value in options.items() if name not in alone})
    else:
        refuse(options, PHASES_ALONE, "--length; name the phases with --phase NAME=COL[+COL...]")
        job = _single_job(log, {name: value for name, value in options.items() if name not in PHASES_ALONE})
    run_plan(job, log, out, as_json)


_ONE_PHASE_ALONE = (
    "min_samples_per_rank", "max_samples_per_rank", "caps", "keep_together",
    "allowed_ranks", "rank_speeds", "initial_loads", "compare_placements",
)  # fmt: skip
_WHY_NOT = "a phase of several keeps to --max-tokens-per-rank, --equal-counts and --every-rank-nonempty alone"


def _single_job(log: str, options: dict[str, Any]) -> PlanJob:
    """Read the options that plan one phase."""
    topology = Topology.uniform(options.pop("ranks"), options.pop("ranks_per_node"))
    costs, length = options.pop("costs"), options.pop("length")
    compare = options.pop("compare_placements")
    if len(costs) > 1:
        raise InputError(f"--cost must be given once, got {len(costs)}; several are for --phase")
    of_every_rank = constraints_of_one(options)
    caps = _caps(options.pop("caps"))
    per_rank: dict[str, Any] = {
        name: _one_a_rank(f"--{name.replace('_', '-')}", options.pop(name)) for name in ("rank_speeds", "initial_loads")
    }
    cost, micro_batches = parse_cost(costs[0] if costs else "linear"), micro_batches_of(options)
    opened = open_log(log)
    columns = default_columns(opened) if length is None else choose_length(opened, length)
    settings = LogSettings(
        topology=topology, columns=columns, cost=cost, caps=caps, micro_batches=micro_batches,
        **of_every_rank, **per_rank, **options,
    )  # fmt: skip
    short = replace(settings, time_budget=min(settings.time_budget, READY_BUDGET))
    make_ready(plan_log(opened, short), settings.method)

    def append(writer: PlanWriter, step: int, first_row: int, plan: DispatchPlan) -> None:
        samples, target = first_row + plan.kept, plan.target
        slot = plan.slot_of_sample if plan.num_slots > 1 else 0
        writer.append(step, SINGLE_PHASE, samples, target.rank_of_sample, slot, target.position_of_sample)

    return PlanJob(
        f"{os.path.basename(log)}: {'+'.join(columns)}, {topology.num_ranks} ranks x {settings.batch_per_rank}, {cost}",
        settings.samples_per_step,
        plan_log(opened, settings),
        append,
        lambda steps, samples, digest: describe(opened, settings, steps, samples, digest),
        others=(lambda: _other_placements(opened, settings)) if compare else dict,
    )


def _other_placements(log: LengthLog, settings: LogSettings) -> dict[str, RunSummary]:
    """Plan the log under every other placement, for comparison."""
    others = {}
    for placement in PLACEMENTS:
        if placement != settings.placement:
            others[placement] = RunSummary()
            for plan in plan_log(log, replace(settings, placement=placement)):
                others[placement].add(SINGLE_PHASE, plan)
    return others


@cli.command("report", short_help="Check a plan against its log and say what it is worth.")
@click.argument("plan", type=click.Path())
@click.option("--log", type=click.Path(), help="The log that PLAN was made from, if it is not where PLAN says.")
@picture_options("the load of ranks", "the one in which the plan saves most")
@json_option
def report_command(
    plan: str, log: str | None, as_json: bool, page: str | None, plot: str | None, step: int | None
) -> None:
    """Check PLAN against its log and report what it is worth; every number is recomputed, none copied."""
    pictures = Pictures.of(page, plot, step)
    started = time.perf_counter()
    summary = RunSummary()
    with progress(as_json) as tick, compiling() as compiled:
        for replayed in load_steps(plan, log) if holds_phases(plan) else load_plans(plan, log):
            summary.add_step(replayed)
            pictures.add(replayed)
            tick(replayed.num_samples)
    pictures.write(summary, plan, log or log_of(plan))
    runtime_s = time.perf_counter() - started
    print_run(summary, f"{plan}: complete, checked", runtime_s, as_json, None, compile_s=sum(compiled))
    pictures.files.say(as_json)


@cli.command(
    "solve", short_help="Split one list of numbers into groups.", context_settings={"ignore_unknown_options": True}
)
@click.argument("numbers", nargs=-1)
@click.option("--groups", type=int, required=True, metavar="M", help="Into how many groups.")
@method_option(PARTITIONERS)
@click.option("--equal-counts", is_flag=True, help="As many in each as in any other, within one.")
@budget_option
@json_option
def solve_command(
    numbers: tuple[str, ...], groups: int, method: str, equal_counts: bool, time_budget: float, as_json: bool
) -> None:
    """Split NUMBERS (or those on standard input) into groups whose largest sum is as small as possible.

    \b
    balancer solve 5 4 3 3 3 --groups 2
    """  # noqa: D301 (click's mark, not an escape)
    text = " ".join(numbers) if numbers and numbers != ("-",) else _standard_input()
    words = text.replace(",", " ").split()
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
    if not re.fullmatch(r"[+]?[0-9]{1,19}|-0+", word):
        raise InputError(f"number {index + 1}: {word[:40]!r} must be a whole number >= 0 that fits int64")
    return int(word)
