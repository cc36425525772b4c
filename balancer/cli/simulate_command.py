"""``balancer simulate``: what a log's steps would take on a cluster, by each strategy, side by side."""

import json
import math
import time
from collections.abc import Iterable, Iterator, Mapping
from statistics import fmean, stdev
from typing import Any

import click

from balancer.cli.layouts import by_phase, compare_layouts
from balancer.cli.pages import PageFile
from balancer.cli.run import progress, table_console
from balancer.cli.said import said_step
from balancer.cli.settings import Job, chosen_strategies, open_job, unconstrained
from balancer.cost import EXCHANGES, CostModel, flops, module, parse_cost
from balancer.cost.throughput import SaturatingThroughput, Throughput, ThroughputCurve
from balancer.described import changed
from balancer.errors import InputError
from balancer.io.log_files import LogPath
from balancer.offline.of_step import OfModels
from balancer.plan.step_plan import StepPlan
from balancer.problem.cuts.sequence_groups import LongShort, SequenceGroups
from balancer.problem.phases import SINGLE_PHASE
from balancer.report.plan_log import about
from balancer.report.simulation_data import SimulationData
from balancer.report.summary import JSON_VERSION, as_range
from balancer.report.text import counted, printable
from balancer.simulate import Cluster, PhaseModel, Simulation, StepTime, read_cluster, simulate_log
from balancer.step import PipelinesKeys, SequenceGroupsKeys, StepFile


def run(
    log: LogPath, strategies: str | None, steps: int | None, as_json: bool, page: str | None,
    step: int | None, **options: Any,
) -> None:  # fmt: skip
    """Simulate strategies, or price layouts."""
    file = PageFile(page, step)
    # Before the work, if --steps is known; it is checked again below, for a log may hold fewer steps.
    if step is not None and steps is not None and step >= steps:
        raise file.missing_step("the simulation", steps)
    step_said, layouts = said_step(options), options["layouts"]
    cluster = read_cluster(step_said.need("cluster"))
    if step_said.gpus_per_rank is not None:
        cluster = cluster.with_ranks_of(step_said.gpus_per_rank)
    if layouts and strategies is None:
        if page is not None:
            raise InputError("--html needs --strategies beside --layout: layouts are compared in a table")
        compare_layouts(log, step_said, options, cluster, 1 if steps is None else steps, as_json)
        return
    if len(layouts) > 1:
        raise InputError(f"--layout must be given once with --strategies, got {', '.join(layouts)}")
    step_said = _said_on(cluster, step_said.with_keys(layout=layouts[0]) if layouts else step_said, options)
    overlap, waits = options["overlap"], options["waits"]
    bytes_given = bool(step_said.of_phases("bytes_in") or step_said.of_phases("bytes_out"))
    assumed = {"efficiency": options["efficiency"], "checkpointing": options["checkpointing"], "overlap": overlap,
               "waits": waits, "bytes_given": bytes_given}  # fmt: skip
    model_names = step_said.of_phases("model")
    models, parameters = _models(step_said, options, cluster)
    costs = _costs(step_said, options, models, cluster)
    job = open_job(log, step_said, OfModels(costs, model_names, step_said.of_phases("pieces")))
    settings = job.settings
    if settings.setup.in_gaps:
        raise InputError("--strategies: a layout with encoders in gaps is priced without: leave --strategies out")
    chosen = chosen_strategies(strategies, settings)
    started = time.perf_counter()
    data, taken = SimulationData(waits, step or 0), dict[str, list[float]]()

    def watch(strategy: str, plan: StepPlan, time_of: StepTime) -> None:
        taken.setdefault(strategy, []).append(time_of.seconds)
        if page is not None:
            data.add(strategy, plan, time_of)

    with progress(as_json) as tick:
        found = simulate_log(
            job.log, settings, models, cluster, strategies=chosen, num_steps=steps, overlap=overlap, waits=waits,
            tick=tick, watch=watch,
        )  # fmt: skip
    runtime_s = time.perf_counter() - started
    if page is not None:
        from balancer.report.page import write_page
        from balancer.report.simulation_page import Assumptions, simulation_page

        stated = Assumptions(
            step_said.need("cluster"), cluster, settings, model_names, parameters, models, assumed["checkpointing"],
            overlap, waits, assumed["bytes_given"],
        )  # fmt: skip
        if data.drawn_step >= found.steps:
            raise file.missing_step("the simulation", found.steps)
        write_page(page, simulation_page(found, data, stated, str(job.log.path)))
    if as_json:
        click.echo(json.dumps(_document(job, found, assumed, _paired(taken), runtime_s), indent=2))
        return
    _print(found, cluster, assumed, _paired(taken), job.title, runtime_s)
    for line in unconstrained(settings, chosen):
        click.echo(printable(line))
    file.say(as_json)


def _said_on(cluster: Cluster, said: StepFile, options: Mapping[str, Any]) -> StepFile:
    """Return what is said of a step, and what follows from the cluster and from recomputing activations."""
    said = said.with_keys(ranks_per_node=_ranks_per_node(cluster, said.need("ranks"), said.ranks_per_node))
    if options["checkpointing"] and isinstance(said.cut, PipelinesKeys):
        return said.with_keys(cut=changed(said.cut, recompute=True))
    return said


def _ranks_per_node(cluster: Cluster, ranks: int, given: int | None) -> int:
    """Return what the cluster says, unless fewer are asked for."""
    if given is None:
        inside = min(cluster.ranks_per_node, max(1, ranks))
        if ranks % inside:
            raise InputError(
                f"ranks must be a multiple of the {inside} ranks that a node of the cluster has, or fewer, got "
                f"{ranks}; say with ranks_per_node if nodes have fewer"
            )
        return inside
    if given > cluster.ranks_per_node:
        raise InputError(
            f"ranks_per_node must be <= {cluster.ranks_per_node}: a node has {cluster.gpus_per_node} GPUs and a rank "
            f"{cluster.gpus_per_rank}; got {given}"
        )
    return given


def _models(
    step: StepFile, options: Mapping[str, Any], cluster: Cluster
) -> tuple[dict[str, PhaseModel], dict[str, int]]:
    """Return what runs in each phase, and how many parameters it has."""
    names, pieces = step.of_phases("model"), step.of_phases("pieces")
    curves = by_phase("--throughput", options["curves"], step.names)
    efficiency = options["efficiency"]
    if not 0 < efficiency <= 1:
        raise InputError(f"--efficiency must be > 0 and <= 1, a fraction of the peak, got {efficiency}")
    models, parameters = {}, {}
    for name in step.names:
        if name not in names:
            raise InputError(f"phase {name!r} has no model; name one: --set phase.{name}.model=MODEL")
        rate: Throughput = SaturatingThroughput(efficiency * cluster.peak_flops)
        if name in curves:
            rate = ThroughputCurve.from_csv(curves[name])
        shape = module(names[name])
        parameters[name] = shape.parameters
        models[name] = PhaseModel.of(shape, rate, piece=pieces.get(name), checkpointing=options["checkpointing"])
    return models, parameters


def _costs(
    step: StepFile, options: Mapping[str, Any], models: Mapping[str, PhaseModel], cluster: Cluster
) -> dict[str, CostModel]:
    """Return the cost of each phase if no --cost says another: the FLOPs of its model."""
    names = step.of_phases("model")
    sharing = {name: LongShort.from_size(size) for name, size in step.of_phases("sequence_parallel").items()}
    for name, cut in sharing.items():
        cut.check_attention(module(names[name]).block.attention)
    degrees = {name: cut.degrees for name, cut in sharing.items()}
    groups = step.made_cut() if isinstance(step.cut, SequenceGroupsKeys) else None
    if isinstance(groups, SequenceGroups):
        # Sequence groups share the samples of the last phase alone.
        degrees[step.names[-1]] = groups.degrees
    costs = {name: model.cost_model() for name, model in models.items()}
    # What ranks that share a sample exchange is part of its cost, and depends on the cluster.
    for name, each in degrees.items():
        exchange = groups.exchange if isinstance(groups, SequenceGroups) and name == step.names[-1] else None
        costs[name] = cluster.shared_cost(
            flops(names[name]).integer_cost(), module(names[name]), each, efficiency=options["efficiency"],
            exchange=exchange or EXCHANGES[0], checkpointing=options["checkpointing"],
        )  # fmt: skip
    return costs


_Saved = Mapping[str, tuple[float, float]]
"""Of strategies but the first: seconds saved a step, mean and standard error."""


def _paired(taken: Mapping[str, list[float]]) -> _Saved:
    """Compare steps of the same samples, whose seconds differ by far less than those of one strategy's steps."""
    first, *others = taken
    saved: dict[str, tuple[float, float]] = {}
    for name in others:
        apart = [before - after for before, after in zip(taken[first], taken[name], strict=True)]
        error = stdev(apart) / math.sqrt(len(apart)) if len(apart) > 1 else 0.0
        saved[name] = fmean(apart), error
    return saved


def _document(
    job: Job, found: Simulation, assumed: Mapping[str, Any], saved: _Saved, runtime_s: float
) -> dict[str, Any]:
    pairs = {name: {"mean": mean, "standard_error": error} for name, (mean, error) in saved.items()}
    return {
        "version": JSON_VERSION,
        **about(job.log, job.settings),
        "cost": {phase.name: str(parse_cost(phase.cost)) for phase in job.settings.setup.phases},
        "steps": found.steps,
        "rows": found.rows,
        "passes": found.passes,
        "runtime_s": runtime_s,
        "assumed": {name: value for name, value in assumed.items() if name != "bytes_given"},
        "strategies": {
            name: totals.as_json() | ({"saved_s": pairs[name]} if name in pairs else {})
            for name, totals in found.strategies.items()
        },
    }


def _print(
    found: Simulation, cluster: Cluster, assumed: Mapping[str, Any], saved: _Saved, title: str, runtime_s: float
) -> None:
    """Print a row a strategy of what a step takes, one of what it holds, and what was assumed."""
    from balancer.report.table import as_alike

    console = table_console()
    console.print(title, style="bold", markup=False, highlight=False, soft_wrap=True)
    first = next(iter(found.strategies.values()))
    times = _table("seconds a step", ("total", "±", "compute", "waits", "exchange", "MFU", "faster"))
    cut = any(run.most_slots > 1 for run in found.strategies.values())
    names = ["elements"] if [*first.phases] == [SINGLE_PHASE] else first.phases
    peaks = _table("most at a time", (*names, "GiB a GPU", *["micro-batches"] * cut, "samples/s"))
    runs = found.strategies.values()
    parts = [
        as_alike([run.seconds / run.steps for run in runs]),
        as_alike([run.deviation_s for run in runs]),
        as_alike([run.compute_s / run.steps for run in runs]),
        as_alike([run.waiting_s / run.steps for run in runs]),
        as_alike([run.exchange_s / run.steps for run in runs], 2, least=True),
    ]
    rates = as_alike([run.samples_per_s for run in runs], 4)
    for i, (name, run) in enumerate(found.strategies.items()):
        faster = run.samples_per_s / first.samples_per_s if first.samples_per_s else 1.0
        times.add_row(name, *[part[i] for part in parts], f"{run.mfu:.1%}".replace("%", " %"), f"{faster:.2f}x")
        tokens = [f"{phase.peak_tokens:,}" for phase in run.phases.values()]
        slots = [as_range(run.fewest_slots, run.most_slots)] * cut
        peaks.add_row(name, *tokens, f"{run.activation_bytes / 2**30:,.1f}", *slots, rates[i])
    console.print(times)
    if saved:
        pairs = _table(f"seconds a step saved beside {next(iter(found.strategies))}", ("mean", "±"))
        for name, (mean, error) in saved.items():
            pairs.add_row(name, f"{mean:.3g}", f"{error:.1g}")
        console.print(pairs)
    console.print(peaks)
    for line in (*_remarks(found, cluster, assumed), f"{runtime_s:.2f} s"):
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def _table(first: str, headers: Iterable[str]) -> Any:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    table.add_column(first, no_wrap=True)
    for header in headers:
        table.add_column(Text(header), justify="right", no_wrap=True)
    return table


def _remarks(found: Simulation, cluster: Cluster, assumed: Mapping[str, Any]) -> Iterator[str]:
    """Say how many steps there were, what was assumed, and what cannot fit a GPU."""
    again = f"; the log's {found.rows:,} rows were read {found.passes:.3g} times" if found.passes > 1 else ""
    yield (
        f"{counted(found.steps, 'step')} by each strategy{again}. ± is the standard deviation over steps; of what a "
        "step saves, which is of the same samples, its standard error."
    )
    yield (
        f"Assumed: computing at {assumed['efficiency']:.0%} of the peak where no --throughput says, "
        f"{assumed['overlap']:.0%} of exchanges hidden, ranks wait for each other each {assumed['waits']}; the "
        "collectives of gradients and parameters take no time."
    )
    over = [name for name, run in found.strategies.items() if run.activation_bytes > cluster.memory_bytes]
    if over:
        memory = f"{cluster.memory_bytes / 2**30:.3g} GiB"
        which = ", ".join(over)
        yield f"Activations alone take more than the {memory} of a GPU with {which}: cut into (smaller) micro-batches."
    if not assumed["bytes_given"]:
        yield "Exchanges move 1 byte an element: say what they move: bytes_in and bytes_out of phases."
