"""The page of a simulation: what each strategy gains on a cluster, where the time goes, and what was assumed."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow.compute as pc

from balancer.cost.throughput import SaturatingThroughput
from balancer.offline.settings import LogSettings
from balancer.report import charts
from balancer.report.charts import Bar
from balancer.report.page import Card, Chart, Page, Section, Table, html, named
from balancer.report.plan_page import pipeline_chart
from balancer.report.table import Numbers, as_alike, as_bytes, as_percent, as_range
from balancer.report.text import counted
from balancer.simulate import Cluster, PhaseModel, Simulation

__all__ = ["Assumptions", "as_seconds", "simulation_page", "time_split"]

_MOST_SLOW = 8  # steps of a strategy in the table of the slowest ones
_MOST_LINES = 6  # strategies of which every step is drawn


@dataclass(frozen=True, slots=True)
class Assumptions:
    """What was simulated, beside the log."""

    cluster_name: str
    cluster: Cluster
    settings: LogSettings
    model_names: Mapping[str, str]  # of every phase
    parameters: Mapping[str, int]
    models: Mapping[str, PhaseModel]
    checkpointing: bool
    overlap: float
    waits: str
    bytes_given: bool  # whether the user gave the bytes that exchanges move


def simulation_page(found: Simulation, assumed: Assumptions, title: str) -> Page:
    """Return the page of a simulation; `title` says of what."""
    cards = [_card(name, found) for name in found.strategies]
    return Page(title, _lead(found), _about(found, assumed), cards, list(_sections(found, assumed)))


def time_split(runs: Mapping[str, Numbers]) -> partial[None]:
    """Return what draws what a step's seconds are spent on, by strategy."""
    looks = (("compute", "after", ""), ("waiting", "before", "//"), ("exchange", "faint", ""))
    parts = [Bar([run[f"{name}_s"] for run in runs.values()], color, name, hatch) for name, color, hatch in looks]
    ends = [f"{run['step_s']['mean']:.3g} ± {run['step_s']['deviation']:.2g}" for run in runs.values()]
    xlabel = "seconds a step, ± standard deviation"
    return partial(charts.bars, names=[*map(_plain, runs)], parts=parts, xlabel=xlabel, ends=ends)


def as_seconds(value: float) -> str:
    """Show a time in three digits."""
    for least, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if value >= 0.9995 * least:
            number = value / least
            return f"{number:,.0f} {unit}" if number >= 999.5 else f"{number:.3g} {unit}"
    return "0 s" if value == 0 else f"{value:.1e} s"


def _plain(strategy: str) -> str:
    return strategy.replace("_", " ")


def _best(found: Simulation) -> str:
    return max(found.strategies, key=lambda name: found.strategies[name]["samples_per_s"])


def _faster(run: Numbers, base: Numbers) -> float:
    return float(run["samples_per_s"] / base["samples_per_s"]) if base["samples_per_s"] else 1.0


def _lead(found: Simulation) -> str:
    """Return what is predicted in one sentence."""
    runs, best = found.strategies, _best(found)
    base = next(iter(runs))
    step, mfu = as_seconds(runs[best]["step_s"]["mean"]), as_percent(runs[best]["mfu"])
    if len(runs) == 1:
        return html("By this prediction a step takes <strong>{}</strong>, at an MFU of {}.", step, mfu)
    faster = _faster(runs[best], runs[base])
    if faster < 1.0005:
        return f"By this prediction nothing is faster than {_plain(base)}: {step} a step, at an MFU of {mfu}."
    return html(
        "By this prediction the same GPUs train <strong>{:.2f} times as fast</strong>: a step takes {} {}, instead of "
        "{} {}.", faster, step, _plain(best), as_seconds(runs[base]["step_s"]["mean"]), _plain(base),
    )  # fmt: skip


def _about(found: Simulation, assumed: Assumptions) -> str:
    settings, size = assumed.settings, assumed.cluster.gpus_per_rank
    ranks, batch = settings.setup.topology.num_ranks, settings.batch_per_rank
    again = f"; the log's {found.rows:,} rows were read {found.passes:.3g} times" if found.passes > 1 else ""
    return html(
        "{} by each strategy{}. {} ({}), {}{}, {}. ± is the standard deviation over steps. A prediction from lengths, "
        "shapes and data sheets by the assumptions below, not a measurement.",
        counted(found.steps, "step"), again, counted(ranks * size, "GPU"), named(assumed.cluster_name),
        counted(ranks, "rank"), f" of {size} GPUs" * (size > 1),
        "steps cut by tokens" if batch is None else f"{counted(batch, 'sample')} a rank",
    )  # fmt: skip


def _card(name: str, found: Simulation) -> Card:
    """Return the card of a strategy: its throughput beside the first one's, and MFU."""
    run, (first, base) = found.strategies[name], next(iter(found.strategies.items()))
    of_step, mean = run["step_s"], run["step_s"]["mean"]
    rows = [
        ("MFU", as_percent(run["mfu"])),
        ("a step", f"{as_seconds(mean)} ± {as_seconds(of_step['deviation'])}"),
        ("range of steps", f"{as_seconds(of_step['fastest'])} to {as_seconds(of_step['slowest'])}"),
        ("samples a second", as_alike([run["samples_per_s"]], 4)[0]),
        ("waiting", as_percent(run["waiting_s"] / mean if mean else 0.0)),
        ("exchange", as_percent(run["exchange_s"] / mean if mean else 0.0)),
    ]
    if run["micro_batches"]["most"] > 1:
        rows.append(("micro-batches", as_range(**run["micro_batches"])))
    if len(found.strategies) == 1:
        return Card(_plain(name), rows[0][1], "MFU: useful FLOPs over what the GPUs could do in that time", rows[1:])
    if name == first:
        return Card(_plain(name), "1.00 ×", "the throughput that others are compared with", rows)
    ratios = [a / b for a, b in zip(found.seconds(first), found.seconds(name), strict=True) if b]
    if len(ratios) > 1:
        rows.insert(0, ("step by step", f"{min(ratios):.2f} to {max(ratios):.2f} ×"))
    return Card(_plain(name), f"{_faster(run, base):.2f} ×", f"the throughput of {_plain(first)}", rows)


def _sections(found: Simulation, assumed: Assumptions) -> Iterator[Section]:
    """Yield the parts below the headline."""
    yield _where_time_goes(found)
    if pipelines := {_plain(name): step.pipeline for name, step in found.first.items() if step.pipeline is not None}:
        words = (
            "The first step by each strategy, and of its replicas the one that takes longest; what is blank is bubble. "
            "It is not picked for what it shows."
        )
        runs = {name: each.slowest for name, each in pipelines.items()}
        yield Section("Stages of one pipeline", words, [pipeline_chart(runs, (1e9, "seconds"), {})])
    lines = {_plain(name): found.seconds(name) for name in [*found.strategies][:_MOST_LINES]}
    says = f"seconds of every step by strategy; on average {_means(found)}"
    draw = partial(charts.over_steps, lines=lines, ylabel="seconds", least=0.0)
    yield Section("Step by step", f"{counted(found.steps, 'step')} of the same samples.", [Chart(says, draw)])
    yield _memory(found, assumed)
    yield _slow(found)
    yield _assumptions(found, assumed)


def _means(found: Simulation) -> str:
    return ", ".join(f"{_plain(name)} {as_seconds(run['step_s']['mean'])}" for name, run in found.strategies.items())


def _where_time_goes(found: Simulation) -> Section:
    runs = found.strategies
    words = (
        "A step is the mean of what ranks compute, what they wait for the slowest, and what of the exchanges is not "
        "hidden. The table says in which phase they wait, and what all ranks and streams move in a step: inputs there, "
        "outputs there and their gradients back."
    )
    says = f"seconds of a step by strategy, of compute, waiting and exchange: {_means(found)}"
    phases = next(iter(runs.values()))["phases"]
    columns = ["strategy", *(html("waiting, {}", named(name, 40)) for name in phases), "across nodes", "within nodes"]
    rows = [
        (_plain(name), *(as_seconds(phase["waiting_s"]) for phase in run["phases"].values()),
         *(as_bytes(sum(stream[f"{where}_node_bytes"] for stream in run["streams"].values()))
           for where in ("inter", "intra")))
        for name, run in runs.items()
    ]  # fmt: skip
    drawn = Chart(says, time_split(runs), height=1.2 + 0.34 * len(runs), width=6.4)
    return Section("Where the time goes", words, [drawn], Table(columns, rows))


def _memory(found: Simulation, assumed: Assumptions) -> Section:
    """Return the section of what ranks hold."""
    size, runs = assumed.cluster.memory_bytes, found.strategies
    held = [run["activation_bytes"] / 2**30 for run in runs.values()]
    draw = partial(
        charts.bars, names=[*map(_plain, runs)], parts=[Bar(held, "after")], ends=[f"{gib:,.3g}" for gib in held],
        xlabel="GiB of activations on a GPU, at most", limit=("memory of a GPU", size / 2**30),
    )  # fmt: skip
    over = [_plain(name) for name, run in runs.items() if run["activation_bytes"] > size]
    which = "every strategy" if len(over) == len(runs) else ", ".join(over)
    warning = "Weights, gradients and the optimizer's state come on top of it."
    if over:
        warning = f"With {which} activations alone take more than a GPU has: cut into (smaller) micro-batches."
    cut = ", in a micro-batch" if assumed.settings.setup.settings.cut.in_words() else ""
    words = (
        "The most activations on any GPU in any step, estimated, and below, the most elements that any rank holds of a "
        f"phase at a time, padding included{cut}. {warning}"
    )
    columns = ["strategy", *(named(name, 40) for name in next(iter(runs.values()))["phases"])]
    rows = [(_plain(name), *(f"{phase['peak_tokens']:,}" for phase in run["phases"].values()))
            for name, run in runs.items()]  # fmt: skip
    drawn = Chart("activations of the fullest GPU by strategy", draw, height=1.2 + 0.34 * len(runs), width=6.4)
    return Section("What a rank holds", words, [drawn], Table(columns, rows))


def _slow(found: Simulation) -> Section:
    """Return the table of the slowest steps, and what caps them."""
    rows = [
        row for name in dict.fromkeys((next(iter(found.strategies)), _best(found))) for row in _slowest(found, name)
    ]
    words = (
        "The slowest steps, what of them ranks wait on average, and in which phase most. Where one sample costs more "
        "than a rank's fair share of that phase, its rank is the slowest whatever is planned; its row in the log, from "
        "0, says which."
    )
    columns = ("strategy", "step", "seconds", "waiting", "most in", "capped by row", "length")
    return Section("What caps it", words, table=Table(columns, rows))


def _slowest(found: Simulation, strategy: str) -> Iterator[tuple[str, ...]]:
    """Yield the slowest steps of a strategy, the slowest first."""
    of = found.of(strategy)
    seconds = found.seconds(strategy)
    for step in np.argsort(-np.array(seconds), kind="stable")[:_MOST_SLOW].tolist():
        phases = of.filter(pc.and_(pc.equal(of["step"], step), pc.is_valid(of["compute_s"]))).to_pylist()
        worst: dict[str, Any] = max(phases, key=lambda row: row["waiting_s"])
        row, length = worst["cap_row"], worst["cap_length"]
        yield (
            _plain(strategy), f"{step:,}", f"{seconds[step]:.3g}", f"{phases[-1]['step_waiting_s']:.3g}",
            named(worst["phase"], 40), *(("—", "—") if row is None else (f"{row % found.rows:,}", f"{length:,}")),
        )  # fmt: skip


def _assumptions(found: Simulation, assumed: Assumptions) -> Section:
    """Return the table of what all this stands on."""
    rows: list[tuple[str, object]] = []
    for name in assumed.models:
        rows += [(html("{}: {}", named(name), what), said) for what, said in _of_phase(name, assumed)]
    rows.append(("cluster", named(assumed.cluster_name)))
    rows += [*_of_cluster(assumed.cluster), *_of_step(found, assumed)]
    words = (
        "Not in the time: collectives of gradients and parameters, the optimizer, planning, data loading, stragglers, "
        "congestion. They are the same for all strategies, or nearly so: real ratios are nearer to 1 and MFU is lower."
    )
    return Section("What is assumed", words, table=Table((), rows))


def _of_phase(name: str, assumed: Assumptions) -> Iterable[tuple[str, str]]:
    model = assumed.models[name]
    phase = next(phase for phase in assumed.settings.setup.phases if phase.name == name)
    billions = f"{assumed.parameters[name] / 1e9:,.3g} billion parameters"
    yield "model", html("{}, {}", named(assumed.model_names[name]), billions)
    yield "length", named(phase.length)
    areas = ((factor, f" {area}(l)") for area, factor in model.useful.areas)
    terms = ((model.useful.constant, ""), (model.useful.a, " l"), (model.useful.b, " l²"), *areas)
    yield "FLOPs of length l", " + ".join(f"{factor:,}{power}" for factor, power in terms if factor)
    if model.piece is not None:
        yield "pieces", f"of {model.piece:,}; attention stays within one"
    yield "planned by cost", named(phase.cost.in_words)
    rate, peak = model.throughput, assumed.cluster.peak_flops
    if isinstance(rate, SaturatingThroughput):
        yield "computes at", f"{as_percent(rate.peak / peak)} of a GPU's peak"
    else:
        yield "computes at", "what was measured, by the elements on the rank"
    if assumed.bytes_given:
        yield "an element moves", f"{phase.bytes_in:,} bytes in, {phase.bytes_out:,} bytes out"


def _of_cluster(cluster: Cluster) -> Iterable[tuple[str, str]]:
    yield "GPUs a node, a rank", f"{cluster.gpus_per_node:,}, {cluster.gpus_per_rank:,}"
    yield "peak of a GPU", f"{cluster.peak_flops / 1e12:,.4g} TFLOP/s"
    yield "memory of a GPU", f"{cluster.memory_bytes / 2**30:,.3g} GiB"
    for name, bandwidth, latency in (
        ("within a node", cluster.intra_node_bytes_per_s, cluster.intra_node_latency_s),
        ("between nodes", cluster.inter_node_bytes_per_s, cluster.inter_node_latency_s),
    ):
        yield name, f"{bandwidth / 1e9:,.4g} GB/s a GPU and direction, {as_seconds(latency)} a message"
    if cluster.source:
        yield "source of the cluster", html("{}; latencies are assumed", named(cluster.source, 400))


def _of_step(found: Simulation, assumed: Assumptions) -> Iterable[tuple[str, str]]:
    settings, plan = assumed.settings, assumed.settings.setup.settings
    size = f"{settings.samples_per_step:,}" if settings.samples_per_step else "as many as its tokens hold"
    yield "samples of a step", f"{size}, {settings.home} on ranks before"
    yield "steps", f"{found.steps:,}, all full; the log's {found.rows:,} rows {found.passes:.3g} times over"
    yield "planned with", f"method {plan.method}, placement {plan.placement}, eps {plan.eps}"
    yield "ranks wait", f"once a {assumed.waits}"
    unsaid = "" if assumed.bytes_given else "; 1 byte an element (no bytes_in, bytes_out given)"
    yield "exchanges", f"{as_percent(assumed.overlap)} hidden{unsaid}"
    yield "activations", "recomputed for the backward pass" if assumed.checkpointing else "kept"
    if words := plan.cut.in_words():
        yield "slots", words
        if len(settings.setup.phases) > 1:
            each, early = "an item in the micro-batch of its sample", "all items before the first micro-batch"
            yield "encoders compute", each if plan.cut.encoders == "slot" else early
