"""The options that name phases, for ``balancer plan`` and ``balancer compare``."""

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import click
import numpy as np

from balancer.cli.parser import BARE, NamedFlag
from balancer.cli.parts import READY_BUDGET, PlanJob, add_options, make_ready, micro_batches_of
from balancer.cost import parse_cost
from balancer.errors import InputError
from balancer.io.logs import LengthLog, open_log
from balancer.io.plan_writer import PlanWriter
from balancer.offline.steps import StepSettings, append_step, describe_steps, plan_steps
from balancer.plan.step_plan import StepPlan
from balancer.planning.planner import EPS, PLACEMENTS
from balancer.planning.step import MODES
from balancer.planning.strategies import STRATEGIES
from balancer.problem.batch import HOMES
from balancer.problem.phases import Phase
from balancer.problem.topology import Topology

__all__ = [
    "PHASES_ALONE",
    "batch_options",
    "by_phase",
    "chosen_strategies",
    "constraints_of_one",
    "cost_option",
    "open_phases",
    "phase_constraint_options",
    "phase_options",
    "phases_job",
    "refuse",
    "strategies_option",
    "unconstrained",
]

PHASES_ALONE = (
    "phases", "items", "outputs", "own", "feeds", "byte_sizes", "every_rank_nonempty", "mode", "group_size",
    "encoders",
)  # fmt: skip
"""The options that need phases."""

_OPTION_OF = {"phases": "--phase", "caps": "--cap", "byte_sizes": "--bytes"}

cost_option = click.option(
    "--cost", "costs", multiple=True, metavar="[NAME=]SPEC",
    help="linear | quadratic:a=24576,b=1 | padded | convolution:a=24576,c=100 | flops:qwen2-7b [default: linear]; "
    "NAME=: of one phase.",
)  # fmt: skip

strategies_option = click.option(
    "--strategies", metavar="S,S,...",
    help=f"Of {', '.join(STRATEGIES)} [default: all].",
)  # fmt: skip


def batch_options(command: Any) -> Any:
    """Add how a log becomes global batches."""
    options = (
        click.option("--ranks", type=int, required=True, metavar="N", help="Data-parallel ranks."),
        click.option(
            "--ranks-per-node", type=int, metavar="C", help="Ranks a node; without it, all share one node."
        ),
        click.option(
            "--batch-per-rank", type=int, required=True, metavar="B", help="Samples a rank draws for each step."
        ),
        click.option(
            "--home", default="contiguous", show_default=True, metavar="H",
            help=f"Where samples lie before: {' | '.join(HOMES)}",
        ),
        click.option("--drop-last", is_flag=True, help="Leave out a last, short step."),
        click.option(
            "--placement", default="relocate", show_default=True, metavar="P",
            help=f"How rows come to ranks: {' | '.join(PLACEMENTS)}",
        ),
        click.option(
            "--eps", type=float, default=EPS, show_default=True, metavar="E",
            help="With relocate, the fraction of the makespan that may be given up so that less moves.",
        ),
    )  # fmt: skip
    return add_options(command, options)


def phase_options(command: Any) -> Any:
    """Add what names phases and says how they are planned together."""
    several: dict[str, Any] = {"multiple": True}
    options = (
        click.option(
            "--phase", "phases", metavar="NAME=COL[+COL...]", **several,
            help="A module and the columns whose sum is its length; several, in order, each feeding the last.",
        ),
        click.option(
            "--items", metavar="NAME=F(COL,...)", **several,
            help="Several items a sample, from lists: qwen2vl_patches(widths,heights), lengths(clips).",
        ),
        click.option(
            "--outputs", metavar="NAME=COL|F(COL,...)", **several, help="What each item puts out [default: its length]."
        ),
        click.option(
            "--own", metavar="NAME=COL|F(COL,...)", **several,
            help="What samples of a phase that is fed bring in besides [default: their length less what it is fed].",
        ),
        click.option("--feeds", metavar="NAME=NAME", **several, help="Which phase takes the outputs, if not the last."),
        click.option(
            "--bytes", "byte_sizes", metavar="NAME=IN[,OUT]", **several,
            help="Bytes of an element, in and out [default: 1].",
        ),
        click.option("--every-rank-nonempty", metavar="NAME", **several, help="Every rank gets an item, if enough."),
        click.option(
            "--mode", metavar="M", help=f"How encoders are balanced: {' | '.join(MODES)} [default: separate]."
        ),
        click.option(
            "--encoders", metavar="W",
            help="With micro-batches, encoders compute items in the slot of their sample (slot) or before all (step) "
            "[default: slot].",
        ),
        click.option("--group-size", type=int, metavar="G", help="Exchange within groups of G ranks alone."),
    )  # fmt: skip
    return add_options(command, options)


def phase_constraint_options(command: Any) -> Any:
    """Add what every rank's share of a phase must keep to; without phases, of the one there is."""
    options = (
        click.option(
            "--equal-counts", cls=NamedFlag,
            help="Every rank gets as many as any other, within one; with phases, items of NAME [default: of the last].",
        ),
        click.option(
            "--max-tokens-per-rank", multiple=True, metavar="[NAME=]T",
            help="No rank gets a larger sum of lengths; with phases, in NAME [default: in the last].",
        ),
    )  # fmt: skip
    return add_options(command, options)


def refuse(options: dict[str, Any], names: Iterable[str], beside: str) -> None:
    """Refuse options that do not go with another, or say why."""
    given = [_OPTION_OF.get(name, f"--{name.replace('_', '-')}") for name in names if options[name]]
    if given:
        raise InputError(f"{', '.join(given)} cannot be combined with {beside}")


def by_phase(option: str, texts: Iterable[str], names: Iterable[str] | None = None) -> dict[str, str]:
    """Read ``NAME=VALUE`` words, each name once."""
    found: dict[str, str] = {}
    for text in texts:
        name, _, value = (part.strip() for part in text.partition("="))
        if not name or not value:
            raise InputError(f"{option} {text!r} must be NAME=VALUE, with the name of a phase")
        if names is not None and name not in names:
            raise InputError(f"{option} {text!r}: there is no phase {name!r}; phases are {', '.join(names)}")
        if name in found:
            raise InputError(f"{option} names phase {name!r} twice")
        found[name] = value
    return found


def _costs(texts: Iterable[str], names: Iterable[str]) -> dict[str, str]:
    """Read costs: of one phase each, and at most one of all others."""
    of_phase = [text for text in texts if text.partition("=")[0].strip() in names]
    of_all = [text for text in texts if text not in of_phase]
    if len(of_all) > 1:
        raise InputError(f"--cost without NAME= must be given once, got {', '.join(map(repr, of_all))}")
    if of_all and re.match(r"[^:=]*=", of_all[0]):
        raise InputError(f"--cost {of_all[0]!r}: there is no such phase; phases are {', '.join(names)}")
    costs = dict.fromkeys(names, of_all[0] if of_all else "linear")
    return costs | by_phase("--cost", of_phase)


def _bytes(text: str) -> dict[str, int]:
    words = [word.strip() for word in text.split(",")]
    if len(words) > 2 or not all(re.fullmatch("[0-9]{1,18}", word) for word in words):
        raise InputError(f"--bytes must be NAME=IN or NAME=IN,OUT with whole numbers, got {text!r}")
    return dict(zip(("bytes_in", "bytes_out"), map(int, words), strict=False))


def _max_tokens(text: str) -> int:
    """Read the number of ``--max-tokens-per-rank``."""
    if not re.fullmatch("[+-]?[0-9]{1,19}", text):
        raise InputError(f"--max-tokens-per-rank must be a whole number T, or NAME=T for a phase, got {text!r}")
    return int(text)


def _constraints(options: dict[str, Any], names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Take what each phase's shares must keep to out of all options; where no phase is named, the last is meant."""
    found: dict[str, dict[str, Any]] = {name: {} for name in names}
    texts = [text if "=" in text else f"{names[-1]}={text}" for text in options.pop("max_tokens_per_rank")]
    for name, text in by_phase("--max-tokens-per-rank", texts, names).items():
        found[name]["max_tokens_per_rank"] = _max_tokens(text)
    for given in options.pop("equal_counts"):
        name = names[-1] if given == BARE else given.strip()
        if name not in names:
            raise InputError(f"--equal-counts {name}: there is no such phase; phases are {', '.join(names)}")
        found[name]["equal_counts"] = True
    return found


def constraints_of_one(options: dict[str, Any]) -> dict[str, Any]:
    """Take the same out of all options where no phases are named."""
    tokens, counts = options.pop("max_tokens_per_rank"), options.pop("equal_counts")
    named = [f"--max-tokens-per-rank {text}" for text in tokens if "=" in text]
    named += [f"--equal-counts {name}" for name in counts if name != BARE]
    if named:
        raise InputError(f"{named[0]} is for a phase, but there are none: name them with --phase NAME=COL[+COL...]")
    if len(tokens) > 1:
        raise InputError(f"--max-tokens-per-rank must be given once, got {', '.join(tokens)}; several are for --phase")
    return {"max_tokens_per_rank": _max_tokens(tokens[0]) if tokens else None, "equal_counts": bool(counts)}


def _phases(options: dict[str, Any]) -> tuple[Phase, ...]:
    """Take the options that say what each phase is out of all options."""
    columns = by_phase("--phase", options.pop("phases"))
    items = by_phase("--items", options.pop("items"), columns)
    texts: dict[str, dict[str, str]] = {
        name: by_phase(f"--{name}", options.pop(name), columns) for name in ("outputs", "own", "feeds")
    }
    sizes = by_phase("--bytes", options.pop("byte_sizes"), columns)
    nonempty = options.pop("every_rank_nonempty")
    costs, constraints = _costs(options.pop("costs"), columns), _constraints(options, tuple(columns))
    for name in nonempty:
        if name not in columns:
            raise InputError(f"--every-rank-nonempty {name}: there is no such phase; phases are {', '.join(columns)}")
    phases = []
    for name, column in columns.items():
        chosen: dict[str, Any] = {option: given[name] for option, given in texts.items() if name in given}
        chosen |= constraints[name] | (_bytes(sizes[name]) if name in sizes else {})
        if name in items:
            chosen["totals"] = column
        cost = parse_cost(costs[name])
        phases.append(Phase(name, items.get(name, column), cost, every_rank_nonempty=name in nonempty, **chosen))
    return tuple(phases)


def open_phases(log: str, options: dict[str, Any]) -> tuple[LengthLog, StepSettings, str]:
    """Read the options that plan several phases; the third is a title, of several lines where something is assumed."""
    topology = Topology.uniform(options.pop("ranks"), options.pop("ranks_per_node"))
    options.pop("length", None)
    phases, micro_batches = _phases(options), micro_batches_of(options)
    chosen = {name: value for name, value in options.items() if value is not None}
    opened = open_log(log)
    settings = StepSettings(topology=topology, phases=phases, micro_batches=micro_batches, **chosen)
    short = replace(settings, time_budget=min(settings.time_budget, READY_BUDGET))
    first = make_ready(plan_steps(opened, short), settings.method)
    return opened, settings, _title_of(log, settings, first)


def chosen_strategies(text: str | None) -> tuple[str, ...]:
    """Read ``--strategies``, each name once."""
    if text is None:
        return tuple(STRATEGIES)
    return tuple(dict.fromkeys(name.strip() for name in text.split(",")))


def unconstrained(settings: StepSettings, chosen: Iterable[str]) -> Iterator[str]:
    """Say, if it is so, that some of these strategies do not keep to what the phases ask for."""
    asking = [phase for phase in settings.phases if phase.equal_counts or phase.max_tokens_per_rank is not None]
    staying = {"as_sampled": asking, "llm_only": [phase for phase in asking if phase is not settings.phases[-1]],
               "sorted_batches": asking}  # fmt: skip
    if names := [name for name in chosen if staying.get(name)]:
        yield (
            f"--max-tokens-per-rank and --equal-counts hold for phases that are balanced; {', '.join(names)} "
            f"leave{'s' * (len(names) == 1)} some where they lie."
        )


def _title_of(log: str, settings: StepSettings, first: StepPlan | None) -> str:
    """Return what is planned, in a line, and what is assumed for want of options, on lines of their own."""
    ranks = f"{settings.topology.num_ranks} ranks x {settings.batch_per_rank}"
    names = ", ".join(phase.name for phase in settings.phases)
    by_default = all(phase.bytes_in == phase.bytes_out == 1 for phase in settings.phases)
    unit = "; 1 byte an element, for want of --bytes" if by_default else ""
    lines = [f"{os.path.basename(log)}: {names}, {ranks}{unit}"]
    silent = [phase.name for phase in settings.phases[:-1] if phase.outputs is None]
    if silent:
        put = "puts out" if len(silent) == 1 else "put out"
        lines.append(f"{', '.join(silent)}: {put} as many elements as taken in, for want of --outputs")
    return "\n".join((*lines, *(_overfed(first) if first is not None else ())))


def _overfed(plan: StepPlan) -> Iterator[str]:
    """Say of each phase without ``--own`` that it is fed more than its length, as far as the first step shows."""
    for name, phase in plan.phases.items():
        items = phase.items
        if not items.fed_by or items.phase.own is not None:
            continue
        fed = np.zeros(plan.num_samples, dtype=np.int64)
        for feeder in items.fed_by:
            np.add.at(fed, plan.phases[feeder].items.sample_of_item, plan.phases[feeder].items.outputs)
        if over := int((fed > items.lengths).sum()):
            yield (
                f"{name}: in {over:,} of the first {plan.num_samples:,} samples it is fed more than its length: check "
                f"--outputs, and that --phase {name}=... counts what it is fed, or say with --own what it has besides"
            )


def phases_job(log: str, options: dict[str, Any]) -> PlanJob:
    """Read the options of ``balancer plan`` that plan several phases."""
    opened, settings, title = open_phases(log, options)

    def append(writer: PlanWriter, step: int, first_row: int, plan: StepPlan) -> None:
        append_step(writer, step, first_row, plan, settings.several_items)

    return PlanJob(
        title,
        settings.samples_per_step,
        plan_steps(opened, settings),
        append,
        lambda steps, samples, digest: describe_steps(opened, settings, steps, samples, digest),
        settings.several_items,
    )
