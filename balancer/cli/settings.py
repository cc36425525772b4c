"""From options to settings: which phases there are, what each keeps to, and how a log is planned."""

import contextlib
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import click
import numpy as np
from click.core import ParameterSource

from balancer.cli.run import READY_BUDGET, make_ready
from balancer.cli.step_options import BARE
from balancer.cli.wording import GIVEN_IN, of_layout
from balancer.cost import parse_cost
from balancer.deferral.across_steps import AcrossSteps
from balancer.errors import InputError
from balancer.io.log_files import LogPath
from balancer.io.logs import LengthLog, choose_length, default_columns, open_log
from balancer.offline.across import request_of
from balancer.offline.engines import ENGINES, Cluster, Engine, Processes, Serial
from balancer.offline.settings import LogSettings
from balancer.offline.steps import plan_log, strategies_of
from balancer.plan.step_plan import StepPlan
from balancer.problem.constraints import CONSTRAINTS
from balancer.problem.cuts import as_cut
from balancer.problem.cuts.micro_batches import MicroBatches
from balancer.problem.cuts.pipeline_stages import PipelineStages
from balancer.problem.cuts.sequence_groups import SequenceGroups
from balancer.problem.layout import StepLayout, read_layout
from balancer.problem.phases import SINGLE_PHASE, Phase
from balancer.problem.settings import PlanSettings
from balancer.problem.setup import Setup
from balancer.problem.topology import Topology
from balancer.report.text import counted, of_costs
from solvers.arguments import as_count
from solvers.errors import SolverError, UsageError

__all__ = ["Job", "by_phase", "chosen_strategies", "engine_of", "open_job", "phase_names", "read_degrees",
           "read_pieces", "read_sharing", "refuse", "unconstrained"]  # fmt: skip

_OPTION_OF = {"phases": "--phase", "caps": "--cap", "byte_sizes": "--bytes", "costs": "--cost"}
_FOR_A_PHASE = "is for a phase, but there are none: name them with --phase NAME=COL[+COL...]"
_NEED_PHASES = ("items", "outputs", "own", "feeds", "sequence_parallel", "every_rank_nonempty", "mode", "encoders")


@dataclass(frozen=True, slots=True)
class Job:
    """A log, how it is planned, and the lines that tell this and the assumptions where options are missing."""

    log: LengthLog
    settings: LogSettings
    title: str


def refuse(options: dict[str, Any], names: Iterable[str], beside: str) -> None:
    """Refuse options that do not go with another, or say why."""
    given = [_OPTION_OF.get(name, f"--{name.replace('_', '-')}") for name in names if options[name]]
    if given:
        raise InputError(f"{', '.join(given)} cannot be combined with {beside}")


def phase_names(options: dict[str, Any]) -> tuple[str, ...]:
    """Return the names of the phases: the one there is where none is named."""
    return tuple(by_phase("--phase", options["phases"])) or (SINGLE_PHASE,)


def by_phase(option: str, texts: Iterable[str], names: Collection[str] | None = None) -> dict[str, str]:
    """Read ``NAME=VALUE`` words, each name once; where no phases are named, values alone."""
    found: dict[str, str] = {}
    for text in texts:
        name, _, value = (part.strip() for part in text.partition("="))
        if names is not None and tuple(names) == (SINGLE_PHASE,) and name != SINGLE_PHASE:
            name, value = SINGLE_PHASE, text.strip()
        if not name or not value:
            raise InputError(f"{option} {text!r} must be NAME=VALUE, with the name of a phase")
        if names is not None and name not in names:
            raise InputError(f"{option} {text!r}: there is no phase {name!r}; phases are {', '.join(names)}")
        if name in found:
            raise InputError(f"{option} names phase {name!r} twice")
        found[name] = value
    return found


def _of_last(option: str, texts: Iterable[str], names: Sequence[str], form: str = "[^=]*") -> dict[str, str]:
    """Read ``[NAME=]VALUE`` words, each phase once; a value without a name, which has this form, is the last one's."""
    alone = tuple(names) == (SINGLE_PHASE,)
    given = list(texts)
    if alone and len(given) > 1:
        raise InputError(f"{option} must be given once, got {', '.join(given)}; several are for --phase")
    if alone and given and not re.fullmatch(form, given[0]):
        raise InputError(f"{option} {given[0]} {_FOR_A_PHASE}")
    named = [text if not re.fullmatch(form, text) else f"{names[-1]}={text}" for text in given]
    return by_phase(option, named, names)


def _costs(texts: Iterable[str], names: Sequence[str]) -> dict[str, str]:
    """Read costs: of one phase each, and at most one of all others."""
    of_phase = [text for text in texts if text.partition("=")[0].strip() in names]
    of_all = [text for text in texts if text not in of_phase]
    if len(of_all) > 1 and tuple(names) == (SINGLE_PHASE,):
        raise InputError(f"--cost must be given once, got {len(of_all)}; several are for --phase")
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


def read_sharing(options: dict[str, Any], names: Sequence[str]) -> dict[str, tuple[int, int]]:
    """Read ``--sequence-parallel``: of each phase how many ranks share items, and what shares are padded to."""
    found = {}
    for name, text in by_phase("--sequence-parallel", options["sequence_parallel"], names).items():
        if not re.fullmatch("[0-9]{1,9}( *, *[0-9]{1,9})?", text):
            raise InputError(f"--sequence-parallel must be NAME=D or NAME=D,M with whole numbers, got {name}={text}")
        size, _, multiple = text.partition(",")
        found[name] = int(size), int(multiple or 1)
    return found


def read_pieces(options: dict[str, Any], names: Collection[str]) -> dict[str, int]:
    """Read ``--pieces``: of each phase whose items are cut into pieces, how long these are."""
    found = by_phase("--pieces", options["pieces"], names)
    for name, text in found.items():
        if not re.fullmatch("0*[1-9][0-9]{0,8}", text):
            raise InputError(f"--pieces {name} must be a whole number >= 1, got {text!r}")
    return {name: int(text) for name, text in found.items()}


def _whole(option: str, text: str) -> int:
    if not re.fullmatch("[+-]?[0-9]{1,19}", text):
        raise InputError(f"{option} must be a whole number, or NAME= and one for a phase, got {text!r}")
    return int(text)


def _one_a_rank(option: str, text: str) -> tuple[int, ...]:
    words = text.split(",")
    for word in words:
        if not re.fullmatch("[0-9]{1,18}", word.strip()):
            raise InputError(f"{option} must be whole numbers with commas between them, got {word!r}")
    return tuple(map(int, words))


_READ: dict[str, Callable[[str, str], Any]] = {
    "number": _whole, "sample": lambda _, column: column, "rank": _one_a_rank
}  # fmt: skip
_OF_RANKS = {name: _READ[given.value] for name, given in CONSTRAINTS.items() if given.value in _READ}
_OF_RANKS["prefix_length"] = _READ["sample"]
"""Constraints of one value a phase, and how that is read."""


def _caps(texts: Iterable[str], names: Sequence[str]) -> dict[str, dict[str, int]]:
    """Read ``--cap``, each quantity of a phase once."""
    found: dict[str, dict[str, int]] = {}
    for text in texts:
        phase, _, rest = text.partition("=")
        named = phase.strip() in names and "=" in rest
        columns, equals, limit = (rest if named else text).rpartition("=")
        if not equals or not columns or not re.fullmatch("[0-9]{1,18}", limit):
            raise InputError(f"--cap {text!r} must be COL[+COL...]=MAX, such as image_patches=60000")
        if int(limit) < 1:
            raise InputError(f"--cap {text!r}: MAX must be >= 1")
        caps = found.setdefault(phase.strip() if named else names[-1], {})
        if columns in caps:
            raise InputError(f"--cap names {columns!r} twice; name each quantity once")
        caps[columns] = int(limit)
    return found


def _constraints(options: dict[str, Any], names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Take what each phase's shares must keep to out of all options; where no phase is named, the last is meant."""
    found: dict[str, dict[str, Any]] = {name: {} for name in names}
    for field, read in _OF_RANKS.items():
        option = f"--{field.replace('_', '-')}"
        for name, text in _of_last(option, options.pop(field), names).items():
            found[name][field] = read(option, text)
    for name, caps in _caps(options.pop("caps"), names).items():
        found[name]["caps"] = caps
    for given in options.pop("equal_counts"):
        name = names[-1] if given == BARE else given.strip()
        if name not in names and tuple(names) == (SINGLE_PHASE,):
            raise InputError(f"--equal-counts {name} {_FOR_A_PHASE}")
        if name not in names:
            raise InputError(f"--equal-counts {name}: there is no such phase; phases are {', '.join(names)}")
        found[name]["equal_counts"] = True
    return found


def _phases(options: dict[str, Any], columns: dict[str, str]) -> tuple[Phase, ...]:
    """Take the options that say what each phase is out of all options, given the columns of each."""
    names = tuple(columns)
    items = by_phase("--items", options.pop("items"), names)
    texts: dict[str, dict[str, str]] = {
        name: by_phase(f"--{name}", options.pop(name), names) for name in ("outputs", "own", "feeds")
    }
    sizes = by_phase("--bytes", options.pop("byte_sizes"), names)
    sharing = read_sharing(options, names)
    del options["sequence_parallel"]
    nonempty = options.pop("every_rank_nonempty")
    costs, constraints = _costs(options.pop("costs"), names), _constraints(options, names)
    for name in nonempty:
        if name not in names:
            raise InputError(f"--every-rank-nonempty {name}: there is no such phase; phases are {', '.join(names)}")
    phases = []
    for name, column in columns.items():
        chosen: dict[str, Any] = {option: given[name] for option, given in texts.items() if name in given}
        chosen |= constraints[name] | (_bytes(sizes[name]) if name in sizes else {})
        if name in sharing:
            chosen["sequence_parallel"], chosen["share_multiple_of"] = sharing[name]
        if name in items:
            chosen["totals"] = column
        cost = parse_cost(costs[name])
        phases.append(Phase(name, items.get(name, column), cost, every_rank_nonempty=name in nonempty, **chosen))
    return tuple(phases)


_FIELD_OF = {
    "schedule": "schedule",
    "micro_batches": "count",
    "min_micro_batches": "at_least",
    "micro_batches_multiple_of": "multiple_of",
    "pipeline_stages": "pipeline_stages",
    "allow_empty_micro_batches": "allow_empty",
    "over_long": "over_long",
    "encoders": "encoders",
}


_WITH_STAGES = ("chunks", "recompute", "frozen", "tied", "in_flight_tokens")
"""The options that say more of pipeline stages."""


def stage_layout(text: str, names: Sequence[str]) -> dict[str, int]:
    """Read ``--stages``."""
    words = [word.strip() for word in text.split(",")]
    if len(names) == 1 and re.fullmatch("[0-9]{1,9}", words[0]) and len(words) == 1:
        return {names[0]: int(words[0])}
    layout: dict[str, int] = {}
    for word in words:
        name, _, count = (part.strip() for part in word.rpartition("="))
        if not name or not re.fullmatch("[0-9]{1,9}", count):
            raise InputError(f"--stages must be NAME[+NAME]=N for each of {', '.join(names)}, got {text!r:.80}")
        if name in layout:
            raise InputError(f"--stages names {name!r} twice")
        layout[name] = int(count)
    return layout


def _stages(options: dict[str, Any], names: Sequence[str]) -> PipelineStages | None:
    """Take the options of pipeline stages out of all options; `names` are of all phases."""
    text, models, pieces = options.pop("stages"), options.pop("stage_models", None), options.pop("stage_pieces", None)
    more: dict[str, Any] = {
        name: value for name in _WITH_STAGES if (value := options.pop(name)) or type(value) is int
    }  # a zero is given, too
    if text is None:
        if more:
            given = ", ".join(f"--{name.replace('_', '-')}" for name in more)
            raise InputError(f"{given} needs --stages, how many stages each phase is cut into")
        return None
    if options["schedule"] is None:
        options["schedule"] = "pipeline"
    piped = names[-1:] if options["encoders"] == "step" else names
    if models is None:
        costs = _costs(options["costs"], names)
        named = {name: costs[name].removeprefix("flops:") for name in piped if costs[name].startswith("flops:")}
        if named and len(named) < len(piped):
            other = next(name for name in piped if name not in named)
            raise UsageError(
                "{stages} needs costs of one unit, flops:MODEL of all phases or of none, got {cost} of {other}",
                cost=costs[other], other=other,
            )  # fmt: skip
        models = named or None
    models = None if models is None else {name: models[name] for name in piped}
    return PipelineStages.of(stage_layout(text, piped), models, pieces=pieces or {}, **more)


def _take_layout(options: dict[str, Any], names: Sequence[str], num_ranks: int) -> StepLayout | MicroBatches | None:
    """Set the options that a layout stands for; returns it where ranks are its GPUs, else they are its replicas.

    Of encoders in gaps, whose micro-batches no options say, these.
    """
    paths = options.pop("layouts")
    if not paths:
        return None
    if len(paths) > 1:
        raise InputError(
            f"--layout must be given once, got {', '.join(paths)}; simulate takes several, without --strategies"
        )
    refuse(options, ("stages", *_WITH_STAGES[:2], "group_degrees", "pipeline_stages"), "--layout")
    layout = read_layout(paths[0])
    said = {name: getattr(layout, name) for name in ("micro_batches", "micro_batch_tokens")}
    taken = {name: value for name, value in said.items() if value is not None and options[name] is None}
    click.get_current_context().meta[GIVEN_IN] = of_layout(paths[0], taken)
    layout.check_phases(names)
    if layout.mode == "multiplexed" and (layout.encoders or layout.generators):
        return _in_gaps(options, layout, paths[0], num_ranks)
    if layout.generators:
        raise InputError(
            f"{paths[0]}: a plan does not say what generators do ({', '.join(layout.generators)}) that are stages, and "
            "not in gaps; see it with simulate --layout, or configure --mode multiplexed"
        )
    laid_out = layout.mode == "before" or not layout.encoders
    of_gpus = laid_out and num_ranks == layout.num_gpus != layout.llm.dp
    if not of_gpus and layout.llm.dp != num_ranks:
        gpus = f", or {layout.num_gpus}, its GPUs" if laid_out else ""
        raise InputError(f"--ranks must be {layout.llm.dp}, the replicas of {paths[0]}{gpus}, got {num_ranks}")
    if not of_gpus or layout.num_stages > 1:
        keywords = layout.pipeline_keywords()
        options["stages"] = ",".join(f"{name}={count}" for name, count in layout.stage_counts.items())
        options["chunks"], options["recompute"] = keywords["chunks"], keywords["recompute"]
        if layout.encoders:
            _check_encoders(paths[0], layout, options["encoders"])
        if layout.encoders and layout.mode == "before":
            options["encoders"] = "step"
    options.update(taken)
    return layout if of_gpus else None


def _check_encoders(path: str, layout: StepLayout, given: str | None) -> None:
    when = "step" if layout.mode == "before" else "slot"
    if given not in (None, when):
        raise InputError(f"--encoders {given} contradicts mode {layout.mode!r} of {path}, which says when they compute")


def _in_gaps(options: dict[str, Any], layout: StepLayout, path: str, num_ranks: int) -> MicroBatches:
    """Return the micro-batches of a layout whose encoders run in gaps; its file says all of them."""
    if layout.times is None:
        raise InputError(
            f"{path}: does not say what its modules take, of which what runs in which gap is planned: plan a file that "
            "configure --out writes, or see this one with simulate --layout"
        )
    if layout.llm.dp != num_ranks:
        raise InputError(f"--ranks must be {layout.llm.dp}, the replicas of {path}, got {num_ranks}")
    source = click.get_current_context().get_parameter_source("costs")
    typed = ("costs",) * (
        source in (ParameterSource.COMMANDLINE, ParameterSource.DEFAULT_MAP)
    )  # simulate sets them, of its models
    said = (*typed, "micro_batch_tokens", *_FIELD_OF, *_WITH_STAGES)
    refuse(options, said, "--layout of mode 'multiplexed', which says it")
    return MicroBatches.in_gaps(layout.times)


def _micro_batches(options: dict[str, Any], stages: PipelineStages | None) -> MicroBatches | None:
    """Take the micro-batch options out of all options."""
    tokens = options.pop("micro_batch_tokens")
    given = {name: value for name in _FIELD_OF if (value := options.pop(name, None)) is not None}
    if tokens is None:
        if given:
            names = "{stages}" if stages else ", ".join(f"--{name.replace('_', '-')}" for name in given)
            raise UsageError(f"{names} needs {{micro_batch_tokens}}, the cap on a micro-batch")
        return None
    count = given.get("micro_batches")
    if isinstance(count, str) and count != "fewest":
        if not re.fullmatch("[0-9]{1,9}", count):
            raise InputError(f"--micro-batches must be a whole number or 'fewest', got {count!r}")
        given["micro_batches"] = int(count)
    return MicroBatches(tokens, stages=stages, **{_FIELD_OF[name]: value for name, value in given.items()})


def read_degrees(text: str) -> tuple[int, ...]:
    """Read ``--group-degrees``."""
    if not re.fullmatch(" *[0-9]{1,9} *(, *[0-9]{1,9} *)*", text):
        raise InputError(f"--group-degrees must be numbers of ranks, such as 1,2,4,8, got {text!r:.80}")
    return tuple(map(int, text.split(",")))


_WITH_GROUPS = ("micro_batches", "micro_batches_multiple_of", "encoders")
"""The options of micro-batches that sequence groups take too."""


def _sequence_groups(
    options: dict[str, Any], phases: tuple[Phase, ...]
) -> tuple[tuple[Phase, ...], SequenceGroups | None]:
    """Take the options of sequence groups out of all options; a rank's cap in the last phase is then one of theirs."""
    degrees, exchange = options.pop("group_degrees"), options.pop("group_exchange")
    if degrees is None:
        if exchange is not None:
            raise InputError("--group-exchange needs --group-degrees, how many ranks a group may have")
        return phases, None
    given = {name: options.pop(name, None) for name in (*_FIELD_OF, "micro_batch_tokens")}
    for name, value in given.items():
        if value is not None and name not in _WITH_GROUPS:
            raise InputError(f"--{name.replace('_', '-')} cannot be combined with --group-degrees")
    count = given["micro_batches"]
    if count is not None and not re.fullmatch("[0-9]{1,9}", count):
        raise InputError(f"--micro-batches must be a whole number with --group-degrees, got {count!r}")
    fields = {
        "exchange": exchange, "num_slots": None if count is None else int(count),
        "slots_multiple_of": given["micro_batches_multiple_of"], "encoders": given["encoders"],
    }  # fmt: skip
    cut = SequenceGroups(
        read_degrees(degrees), phases[-1].max_tokens_per_rank,
        **{name: value for name, value in fields.items() if value is not None},
    )  # fmt: skip
    return (*phases[:-1], replace(phases[-1], max_tokens_per_rank=None)), cut


_OF_DEFERRAL = {
    "defer": "defer", "defer_early": "early", "defer_late": "late", "step_tokens": "step_tokens",
    "step_tokens_within": "tokens_within", "step_counts": "counts", "most_long_share": "most_long_share",
    "stage": "stage",
}  # fmt: skip
"""Options that say which samples form a step, and what :class:`AcrossSteps` calls them."""


def _across(options: dict[str, Any]) -> AcrossSteps | None:
    """Take which samples form a step out of all options."""
    across = AcrossSteps.from_options(**{name: options.pop(option) for option, name in _OF_DEFERRAL.items()})
    if options["batch_per_rank"] is None and (across is None or across.step_tokens is None):
        context = click.get_current_context()
        wanted = next(option for option in context.command.params if option.name == "batch_per_rank")
        raise click.MissingParameter(ctx=context, param=wanted)
    return across


_OF_ORDER = ("epochs", "shuffle", "first_epoch", "first_sample")
"""Which samples of a log are planned, in which order."""


def open_job(log: LogPath, options: dict[str, Any]) -> Job:
    """Read the options that say how a log is planned, and make its first plan, so that kernels are ready."""
    across = _across(options)
    topology = Topology.uniform(options.pop("ranks"), options.pop("ranks_per_node"))
    columns, length = by_phase("--phase", options.pop("phases")), options.pop("length")
    if columns and length is not None:
        raise InputError("--length cannot be combined with --phase, which names the columns of each phase")
    opened = None
    if not columns:
        refuse(options, _NEED_PHASES, "--length; name the phases with --phase NAME=COL[+COL...]")
        opened = open_log(log)
        of_log = default_columns(opened) if length is None else choose_length(opened, length)
        columns = {SINGLE_PHASE: "+".join(of_log)}
    if options["group_degrees"] is not None:
        refuse(options, ("stages", *_WITH_STAGES), "--group-degrees")
    taken = _take_layout(options, tuple(columns), topology.num_ranks)
    layout, slots = (None, taken) if isinstance(taken, MicroBatches) else (taken, None)
    piped = () if slots is None or slots.stages is None else slots.stages.forward
    columns = dict(sorted(columns.items(), key=lambda each: each[0] in piped))  # the LLM behind generators in its gaps
    stages = _stages(options, tuple(columns))
    phases, groups = _sequence_groups(options, _phases(options, columns))
    cut = groups or _micro_batches(options, stages) or slots
    of_batches = {name: options.pop(name) for name in ("batch_per_rank", "home", "drop_last")}
    of_batches |= {name: value for name in _OF_ORDER if (value := options.pop(name, None)) is not None}
    plan = PlanSettings(cut=as_cut(cut), **{name: value for name, value in options.items() if value is not None})
    settings = LogSettings(Setup(topology, phases, plan, layout), **of_batches, across=across)
    opened = opened or open_log(log)
    hurried = replace(plan, time_budget=min(plan.time_budget, READY_BUDGET))
    short = replace(settings, setup=replace(settings.setup, settings=hurried))
    if across is None:
        first = make_ready(plan_log(opened, short), plan.method)
    else:
        request_of(settings)  # refuses what cannot be deferred before anything is planned
        short, first = replace(short, across=None, batch_per_rank=settings.batch_per_rank or 1), None
        # A step that nothing is deferred from may hold no plan where the deferred ones do
        with contextlib.suppress(SolverError):
            first = make_ready(plan_log(opened, short), plan.method)
    return Job(opened, settings, _title_of(opened, settings, first))


def engine_of(options: dict[str, Any]) -> Engine | None:
    """Take who works out of all options; None where nobody says."""
    name, jobs, address = (options.pop(each) for each in ("engine", "jobs", "address"))
    if name is None and jobs is None and address is None:
        return None
    if jobs is not None:
        as_count("jobs", jobs)
    if address is not None and name not in (None, "ray"):
        raise InputError(f"--address is for --engine ray, not {name}")
    name = "ray" if address is not None else name
    name = name or ("processes" if jobs > 1 else "serial")
    if name not in ENGINES:
        raise InputError(f"unknown --engine {name!r}; known engines are {', '.join(ENGINES)}")
    if name == "serial":
        if jobs not in (None, 1):
            raise InputError(f"--jobs {jobs} is for --engine processes; serial works alone")
        return Serial()
    if name == "ray":
        if jobs is not None:
            raise InputError("--jobs is for --engine processes; a Ray cluster has the workers that it has")
        return Cluster(address)
    return Processes(jobs)


def chosen_strategies(text: str | None, settings: LogSettings) -> tuple[str, ...]:
    """Read ``--strategies``, each name once."""
    if text is None:
        return strategies_of(settings)
    return tuple(dict.fromkeys(name.strip() for name in text.split(",")))


def unconstrained(settings: LogSettings, chosen: Iterable[str]) -> Iterator[str]:
    """Yield a line if some of these strategies ignore constraints of the phases."""
    phases = settings.setup.phases
    asking = [phase for phase in phases if set(phase.constraints) - {"every_rank_nonempty"}]
    staying = {"as_sampled": asking, "llm_only": [phase for phase in asking if phase is not phases[-1]],
               "sorted_batches": asking}  # fmt: skip
    if names := [name for name in chosen if staying.get(name)]:
        asked = dict.fromkeys(name for phase in asking for name in phase.constraints if name != "every_rank_nonempty")
        which = " and ".join(_OPTION_OF.get(name, f"--{name.replace('_', '-')}") for name in asked)
        yield (
            f"{which} hold for phases that are balanced; {', '.join(names)} "
            f"leave{'s' * (len(names) == 1)} some where they lie."
        )


def _title_of(log: LengthLog, settings: LogSettings, first: StepPlan | None) -> str:
    """Return what is planned, in a line, and what is assumed for want of options, on lines of their own."""
    phases = settings.setup.phases
    costs = {phase.name: parse_cost(phase.cost).in_words for phase in phases}
    num_ranks = settings.setup.topology.num_ranks
    several = f" and {len(log.files) - 1:,} more" * (log.path == log.files[0] and len(log.files) > 1)
    name, ranks = f"{log.path.name}{several}", f"{counted(num_ranks, 'rank')} x {settings.batch_per_rank}"
    if (across := settings.across) is not None:
        tokens = across.step_tokens
        ranks = ranks if tokens is None else f"{counted(num_ranks, 'rank')}, steps of {counted(tokens, 'token')}"
        if across.early or across.late:
            ranks += f", up to {across.early} early and {counted(across.late, 'step')} late"
    if settings.first_epoch or settings.first_sample:
        ranks += f", from sample {settings.first_sample:,} of epoch {settings.first_epoch} on"
    if settings.epochs > 1 or settings.shuffle is not None:
        seed = "" if settings.shuffle is None else f", shuffled by {settings.shuffle}"
        ranks += f", {counted(settings.epochs, 'epoch')}{seed}"
    if tuple(phase.name for phase in phases) == (SINGLE_PHASE,):
        columns = () if "(" in phases[0].items else choose_length(log, phases[0].items)
        lists = set(columns) & set(log.list_columns)
        told = f"{phases[0].items}{' (values of a list)' if lists else ''}"
        return f"{name}: {told}, {ranks}, {costs[SINGLE_PHASE]}"
    by_default = all(phase.bytes_in == phase.bytes_out == 1 for phase in phases)
    unit = "; 1 byte an element, for want of --bytes" if by_default else ""
    lines = [f"{name}: {', '.join(phase.name for phase in phases)}, {ranks}{unit}", of_costs(costs)]
    silent = [phase.name for phase in phases[:-1] if phase.outputs is None and not phase.generates]
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
