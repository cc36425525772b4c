"""``balancer simulate``: what a log's steps would take on a cluster, by each strategy, side by side."""

import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from balancer.cli.layouts import by_phase, compare_layouts
from balancer.cli.run import check_page, progress, say, say_json, say_page, table_console
from balancer.cli.said import said_step
from balancer.cli.settings import open_job
from balancer.cost import EXCHANGES, CostModel, flops, module
from balancer.cost.throughput import SaturatingThroughput, Throughput, ThroughputCurve
from balancer.described import changed
from balancer.errors import InputError
from balancer.io.log import open_log
from balancer.io.log_files import LogPath
from balancer.offline.of_step import OfModels
from balancer.offline.settings import LogSettings
from balancer.offline.step_table import JSON_VERSION
from balancer.problem.cuts.sequence_groups import LongShort, SequenceGroups
from balancer.report.plan_log import about
from balancer.report.simulation_table import Assumptions, print_simulation, saved_seconds
from balancer.report.table import print_lines
from balancer.simulate import Cluster, PhaseModel, read_cluster, simulate_log
from balancer.step import StepFile
from balancer.strategies import strategies_for


def run(
    log: LogPath, compared: tuple[str, ...], strategies: str | None, num_steps: int | None, as_json: bool,
    page: str | None, efficiency: float, curves: tuple[str, ...], overlap: float, waits: str, checkpointing: bool,
    **options: Any,
) -> None:  # fmt: skip
    """Simulate strategies, or price layouts."""
    check_page(page)
    opened = open_log(log)
    step = said_step(options)
    cluster = read_cluster(step.need("cluster"))
    if step.gpus_per_rank is not None:
        cluster = cluster.with_ranks_of(step.gpus_per_rank)
    if compared:
        if strategies is not None or page is not None:
            raise InputError(
                "--layout compares layouts in a table, without --strategies and --html; what strategies gain with a "
                "layout is simulated with --set layout=FILE.json"
            )
        rates = {"efficiency": efficiency, "curves": curves, "overlap": overlap}
        compare_layouts(log, compared, step, rates, cluster, 1 if num_steps is None else num_steps, as_json)
        return
    step = step.with_keys(ranks_per_node=_ranks_per_node(cluster, step.need("ranks"), step.ranks_per_node))
    if checkpointing and step.cut is not None and step.cut.kind == "pipelines":
        step = step.with_keys(cut=changed(step.cut, recompute=True))
    names, pieces = step.of_phases("model"), step.of_phases("pieces")
    models = _models(step, cluster, efficiency, curves, checkpointing)
    costs = _costs(step, models, cluster, efficiency, checkpointing)
    job = open_job(opened, step, OfModels(costs, names, pieces))
    if job.settings.setup.in_gaps:
        raise InputError("a layout with encoders in gaps has no strategies to compare: see it with --layout FILE.json")
    chosen = strategies_for(job.settings.setup)
    if strategies is not None:
        chosen = tuple(dict.fromkeys(name.strip() for name in strategies.split(",")))
    started = time.perf_counter()
    with progress(as_json) as tick:
        found = simulate_log(
            job.log, job.settings, models, cluster, strategies=chosen, num_steps=num_steps, overlap=overlap,
            waits=waits, tick=tick,
        )  # fmt: skip
    runtime_s = time.perf_counter() - started
    bytes_given = bool(step.of_phases("bytes_in") or step.of_phases("bytes_out"))
    parameters = {name: module(names[name]).parameters for name in step.names}
    stated = Assumptions(
        step.need("cluster"), cluster, job.settings, names, parameters, models, checkpointing, overlap, waits,
        bytes_given,
    )  # fmt: skip
    if page is not None:
        from balancer.report.page import write_page
        from balancer.report.simulation_page import simulation_page

        write_page(page, simulation_page(found, stated, str(job.log.path)))
    if as_json:
        saved = saved_seconds(found).items()
        pairs = {name: {"saved_s": {"mean": mean, "standard_error": error}} for name, (mean, error) in saved}
        say_json({
            "version": JSON_VERSION, **about(job.log, job.settings),
            "cost": {phase.name: str(phase.cost) for phase in job.settings.setup.phases},
            "steps": found.steps, "rows": found.rows, "passes": found.passes, "runtime_s": runtime_s,
            "assumed": {
                "efficiency": efficiency, "checkpointing": checkpointing, "overlap": overlap, "waits": waits,
            },
            "strategies": {name: run | pairs.get(name, {}) for name, run in found.strategies.items()},
        })  # fmt: skip
        return
    console = table_console()
    console.print(job.title, style="bold", markup=False, highlight=False, soft_wrap=True)
    print_simulation(console, found, stated)
    print_lines(console, f"{runtime_s:.2f} s")
    say(*_unconstrained(job.settings, chosen))
    say_page(page)


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
    step: StepFile, cluster: Cluster, efficiency: float, curves: Iterable[str], checkpointing: bool
) -> dict[str, PhaseModel]:
    """Return what runs in each phase."""
    names, pieces = step.of_phases("model"), step.of_phases("pieces")
    files = by_phase("--throughput", curves, step.names)
    if not 0 < efficiency <= 1:
        raise InputError(f"--efficiency must be > 0 and <= 1, a fraction of the peak, got {efficiency}")
    models = {}
    for name in step.names:
        if name not in names:
            raise InputError(f"phase {name!r} has no model; name one: --set phase.{name}.model=MODEL")
        rate: Throughput = SaturatingThroughput(efficiency * cluster.peak_flops)
        if name in files:
            rate = ThroughputCurve.from_csv(files[name])
        models[name] = PhaseModel.of(module(names[name]), rate, piece=pieces.get(name), checkpointing=checkpointing)
    return models


def _costs(
    step: StepFile, models: Mapping[str, PhaseModel], cluster: Cluster, efficiency: float, checkpointing: bool
) -> dict[str, CostModel]:
    """Return the cost of each phase of which none is said: the FLOPs of its model."""
    names = step.of_phases("model")
    costs = {name: model.cost_model() for name, model in models.items()}
    shared = {}  # by phase whose samples ranks share: over how many, and what they exchange
    for name, size in step.of_phases("sequence_parallel").items():
        sharing = LongShort.from_size(size)
        sharing.check_attention(module(names[name]).attention)
        shared[name] = sharing.degrees, EXCHANGES[0]
    if step.cut is not None and step.cut.kind == "sequence_groups":
        groups = step.made_cut()
        if isinstance(groups, SequenceGroups):  # which share the samples of the last phase alone
            shared[step.names[-1]] = groups.degrees, groups.exchange or EXCHANGES[0]
    # What ranks that share a sample exchange is part of its cost, and depends on the cluster.
    for name, (degrees, exchange) in shared.items():
        costs[name] = cluster.shared_cost(
            flops(names[name]).integer_cost(), module(names[name]), degrees, efficiency=efficiency, exchange=exchange,
            checkpointing=checkpointing,
        )  # fmt: skip
    return costs


def _unconstrained(settings: LogSettings, chosen: Iterable[str]) -> Iterator[str]:
    """Yield a line if some of these strategies ignore constraints of the phases."""
    phases = settings.setup.phases
    # `every_rank_nonempty` is a wish: it holds where it can, so leaving it out breaks no promise.
    asking = [phase for phase in phases if set(phase.constraints) - {"every_rank_nonempty"}]
    # Of each strategy, the phases whose samples it leaves where they were drawn.
    staying = {"as_sampled": asking, "llm_only": [phase for phase in asking if phase is not phases[-1]]}
    if names := [name for name in chosen if staying.get(name)]:
        asked = dict.fromkeys(name for phase in asking for name in phase.constraints if name != "every_rank_nonempty")
        which = " and ".join(asked)
        yield (
            f"{which} hold for phases that are balanced; {', '.join(names)} "
            f"leave{'s' * (len(names) == 1)} some where they lie."
        )
