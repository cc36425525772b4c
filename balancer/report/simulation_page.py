"""The page of a simulation: what each strategy gains on a cluster, where the time goes, and what was assumed."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from balancer.cost.throughput import SaturatingThroughput
from balancer.offline.settings import LogSettings
from balancer.report import charts
from balancer.report.charts import Bar, mean_steps, of_phase
from balancer.report.page import Card, Chart, Page, Section, Table, as_cell, html, named, numbers_of
from balancer.report.page_data import MOST_BARS
from balancer.report.plan_page import pipeline_section
from balancer.report.simulation_data import SimulationData, SlowStep
from balancer.report.table import as_bytes, as_percent, as_range
from balancer.report.text import counted
from balancer.simulate import Cluster, PhaseModel, Simulation
from balancer.simulate.run import StrategyTotals

__all__ = ["Assumptions", "as_seconds", "simulation_page", "time_split"]

Totals = Mapping[str, StrategyTotals]


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


def simulation_page(found: Simulation, data: SimulationData, assumed: Assumptions, source: str) -> Page:
    """Return the page of a simulation, from data of the same steps, at least one; `source` says of what."""
    first, base = next(iter(found.strategies.items()))
    cards = [_headline(name, run, first, base, data) for name, run in found.strategies.items()]
    footer = "A prediction from lengths, shapes and data sheets by the assumptions above, not a measurement."
    sections = list(_sections(found, data, assumed))
    return Page(source, "predicted step time", _lead(found), _about(found, assumed), cards, sections, footer)


def time_split(totals: Totals) -> partial[None]:
    """Return what draws what a step's seconds are spent on, with the standard deviation over steps."""
    parts = [Bar(values, *look) for values, look in zip(_split(totals).values(), _LOOK_OF_SPLIT, strict=True)]
    spread = [run.deviation_s for run in totals.values()]
    ends = [f"{run.seconds / run.steps:.3g} ± {run.deviation_s:.2g}" for run in totals.values()]
    return partial(charts.bars, names=_plain_names(totals), parts=parts, xlabel="seconds a step, ± standard deviation",
                   ends=ends, spread=spread)  # fmt: skip


_LOOK_OF_SPLIT = (("after", "compute"), ("before", "waiting", "//"), ("faint", "exchange"))


def _split(totals: Totals) -> dict[str, list[float]]:
    return {
        f"{name}, s": [getattr(run, f"{name}_s") / run.steps for run in totals.values()]
        for name in ("compute", "waiting", "exchange")
    }


def _plain_names(names: Iterable[str]) -> list[str]:
    return [_plain(name) for name in names]


def _of_strategies(totals: Totals, columns: Mapping[str, Sequence[float]]) -> Table:
    return numbers_of({"strategy": _plain_names(totals), **columns}, ["strategy"])


def as_seconds(value: float) -> str:
    """Show a time in three digits."""
    for least, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if value >= 0.9995 * least:
            number = value / least
            return f"{number:,.0f} {unit}" if number >= 999.5 else f"{number:.3g} {unit}"
    return "0 s" if value == 0 else f"{value:.1e} s"


def _lead(found: Simulation) -> str:
    """Return what is predicted in one sentence."""
    totals = found.strategies
    base, best = next(iter(totals)), max(totals, key=lambda name: totals[name].samples_per_s)
    first, run = totals[base], totals[best]
    step, mfu = as_seconds(run.seconds / run.steps), as_percent(run.mfu)
    if len(totals) == 1:
        return html("By this prediction a step takes <strong>{}</strong>, at an MFU of {}.", step, mfu)
    faster = run.samples_per_s / first.samples_per_s if first.samples_per_s else 1.0
    if faster < 1.0005:
        return f"By this prediction nothing is faster than {_plain(base)}: {step} a step, at an MFU of {mfu}."
    return html(
        "By this prediction the same GPUs train <strong>{:.2f} times as fast</strong>: a step takes "
        '<span class="after">{}</span> {}, instead of <span class="before">{}</span> {}.', faster, step, _plain(best),
        as_seconds(first.seconds / first.steps), _plain(base),
    )  # fmt: skip


def _about(found: Simulation, assumed: Assumptions) -> str:
    settings, size = assumed.settings, assumed.cluster.gpus_per_rank
    num_ranks = settings.setup.topology.num_ranks
    again = f"; the log's {found.rows:,} rows were read {found.passes:.3g} times" if found.passes > 1 else ""
    each = f" of {size} GPUs" if size > 1 else ""
    return html(
        "{} by each strategy{}. {} ({}), {}{}, {}. ± is the standard deviation over steps.",
        counted(found.steps, "step"), again, counted(num_ranks * size, "GPU"), named(assumed.cluster_name),
        counted(num_ranks, "rank"), each, _drawn(settings),
    )  # fmt: skip


def _drawn(settings: LogSettings) -> str:
    """Say what a rank draws for each step."""
    if settings.batch_per_rank is not None:
        return f"{counted(settings.batch_per_rank, 'sample')} a rank"
    return "steps cut by tokens"


def _headline(name: str, run: StrategyTotals, first: str, base: StrategyTotals, data: SimulationData) -> Card:
    """Return the card of a strategy: its throughput beside the first one's, and MFU."""
    mean = run.seconds / run.steps
    rows = [
        ("MFU", as_percent(run.mfu)),
        ("a step", f"{as_seconds(mean)} ± {as_seconds(run.deviation_s)}"),
        ("range of steps", f"{as_seconds(run.fastest_s)} to {as_seconds(run.slowest_s)}"),
        ("samples a second", as_cell(run.samples_per_s)),
        ("waiting", as_percent(run.waiting_s / run.seconds if run.seconds else 0.0)),
        ("exchange", as_percent(run.exchange_s / run.seconds if run.seconds else 0.0)),
    ]
    if run.most_slots > 1:
        rows.append(("micro-batches", as_range(run.fewest_slots, run.most_slots)))
    faster = run.samples_per_s / base.samples_per_s if base.samples_per_s else 1.0
    words = "the throughput that others are compared with"
    if len(data.seconds) == 1:
        return Card(_plain(name), rows[0][1], "MFU: useful FLOPs over what the GPUs could do in that time", rows[1:])
    if name != first:
        words = f"the throughput of {_plain(first)}"
        ratios = [a / b for a, b in zip(data.seconds[first], data.seconds[name], strict=True) if b]
        if len(ratios) > 1:
            rows.insert(0, ("step by step", f"{min(ratios):.2f} to {max(ratios):.2f} ×"))
    return Card(_plain(name), f"{faster:.2f} ×", words, rows)


def _plain(strategy: str) -> str:
    return strategy.replace("_", " ")


def _sections(found: Simulation, data: SimulationData, assumed: Assumptions) -> Iterator[Section]:
    """Yield the parts below the headline."""
    phases = list(next(iter(found.strategies.values())).phases)
    yield _where_time_goes(found, data, phases)
    if data.pipelines:
        yield _pipelines(data)
    elif data.bars:
        yield _timeline(data, phases)
    yield _step_by_step(found, data)
    yield _memory(found.strategies, phases, assumed)
    yield _slow(found, data)
    yield _exchanges(found.strategies)
    yield _assumptions(found, assumed)


def _where_time_goes(found: Simulation, data: SimulationData, phases: Sequence[str]) -> Section:
    totals, height = found.strategies, _height(found.strategies)
    words = (
        "A step is the mean of what ranks compute, what they wait for the slowest, and what of the exchanges is not "
        "hidden."
    )
    says = f"Seconds of a step by strategy, of compute, waiting and exchange: {_steps_of(totals)}"
    numbers = _of_strategies(totals, {**_split(totals), "±, s": [run.deviation_s for run in totals.values()]})
    drawn = [Chart("split", says, time_split(totals), numbers, height=height)]
    if data.waits == "phase" and len(phases) > 1 and not data.pipelines:
        waits = [[run.phases[name].waiting_s / run.steps for run in totals.values()] for name in phases]
        parts = [Bar(each, of_phase(i)) for i, each in enumerate(waits)]
        xlabel = "seconds of waiting in a step, mean of ranks"
        draw = partial(charts.bars, names=_plain_names(totals), parts=parts, xlabel=xlabel)
        numbers = _of_strategies(totals, {html("{}, s", named(name, 40)): waits[i] for i, name in enumerate(phases)})
        says, keys = "Waiting by phase and strategy", _keys(phases)
        drawn.append(Chart("waiting", says, draw, numbers, keys=keys, height=height))
        words += " Ranks wait after every phase: the second chart says in which."
    return Section("Where the time goes", words, drawn)


def _keys(phases: Sequence[str]) -> list[tuple[str, str]]:
    """Return which colour stands for which phase."""
    return [(named(name), of_phase(i)) for i, name in enumerate(phases)]


def _height(totals: Totals) -> float:
    """Return inches of a chart with a bar a strategy."""
    return 1.2 + 0.34 * len(totals)


def _step_by_step(found: Simulation, data: SimulationData) -> Section:
    totals = found.strategies
    base, best = next(iter(totals)), max(totals, key=lambda name: totals[name].samples_per_s)
    of = {name: str(i % 3) for i, name in enumerate(data.seconds)} | {base: "before"} | {best: "after"}
    lines = {_plain(name): (seconds, of[name]) for name, seconds in data.seconds.items()}
    means = {name: mean_steps(values) for name, (values, _) in lines.items()}
    columns = {"from step": next(iter(means.values()))[0].tolist()}
    columns |= {f"{name}, s": mean.tolist() for name, (*_, mean) in means.items()}
    draw = partial(charts.over_steps, lines=lines, ylabel="seconds", least=0.0)
    says = f"Seconds of every step by strategy; on average {_steps_of(found.strategies)}"
    words = f"Seconds of each step; the numbers above are the mean of {counted(found.steps, 'step')}."
    return Section("Step by step", words, [Chart("steps", says, draw, numbers_of(columns))])


def _steps_of(totals: Totals) -> str:
    return ", ".join(f"{_plain(name)} {as_seconds(run.seconds / run.steps)}" for name, run in totals.items())


def _pipelines(data: SimulationData) -> Section:
    """Return the section that shows the slowest pipeline of one step by each strategy."""
    words = (
        "The same samples by each strategy, and of the replicas the one that takes longest. Numbers are micro-batches; "
        "what is blank is bubble. This is the first step of many, not picked for what it shows."
    )
    shown = {_plain(name): run for name, run in data.pipelines.items()}
    return pipeline_section("Step 0: stages of one pipeline", words, shown, (1e9, "seconds"), "bytes")


def _timeline(data: SimulationData, phases: Sequence[str]) -> Section:
    """Return the section that shows one step by rank."""
    bars = data.bars
    each = next(iter(bars.values())).ranks_a_row
    many = f" Each row stands for {each} ranks, and shows the busiest." if each > 1 else ""
    met = "each phase starts when the slowest rank has ended the one before, and has an order of its own"
    if data.waits != "phase":
        met = "ranks wait for each other once, at its end"
    words = (
        f"The same samples by each strategy, the busiest rank first; {met}. What is blank is waiting, grey is exchange "
        f"that is not hidden.{many} This is the first step of many, not picked for what it shows."
    )
    ends = ", ".join(f"{_plain(name)} {as_seconds(step.seconds)}" for name, step in bars.items())
    says = f"Timeline of one step by rank, a panel a strategy, which takes: {ends}"
    titled = {f"{_plain(name)}: {step.seconds:.3g} s": step for name, step in bars.items()}
    rows = len(next(iter(next(iter(bars.values())).phases.values())))
    columns: dict[str, list[float]] = {
        html("{}: {}, s", _plain(name), named(phase, 40)): seconds.tolist()
        for name, step in bars.items()
        for phase, seconds in step.phases.items()
    }
    numbers = numbers_of({"from rank": range(1, rows * each + 1, each), **columns})
    draw, keys, height = partial(charts.timeline, steps=titled), _keys(phases), 0.7 + 1.4 * len(bars)
    drawn = Chart("timeline", says, draw, numbers, keys=keys, height=height)
    return Section("Step 0 by rank", words, [drawn], tall=True)


def _memory(totals: Totals, phases: Sequence[str], assumed: Assumptions) -> Section:
    """Return the section of what ranks hold."""
    size, height = assumed.cluster.memory_bytes, _height(totals)
    held = [run.activation_bytes / 2**30 for run in totals.values()]
    draw = partial(
        charts.bars, names=_plain_names(totals), parts=[Bar(held, "after")], ends=list(map(as_cell, held)),
        xlabel="GiB of activations on a GPU, at most", limit=("memory of a GPU", size / 2**30),
    )  # fmt: skip
    says = "Activations of the fullest GPU by strategy"
    drawn = Chart("memory", says, draw, _of_strategies(totals, {"GiB": held}), height=height)
    tokens: dict[str, Sequence[float]] = {
        named(phase, 40): [run.phases[phase].peak_tokens for run in totals.values()] for phase in phases
    }
    over = [_plain(name) for name, run in totals.items() if run.activation_bytes > size]
    which = "every strategy" if len(over) == len(totals) else ", ".join(over)
    warning = (
        f" With {which} activations alone take more than a GPU has: cut into (smaller) micro-batches."
        if over
        else " Weights, gradients and the optimizer's state come on top of it."
    )
    words = (
        "The most activations on any GPU in any step, estimated, and below, the most elements that any rank holds of a "
        f"phase at a time, padding included{_in_micro_batches(assumed)}.{warning}"
    )
    return Section("What a rank holds", words, [drawn], table=_of_strategies(totals, tokens))


def _in_micro_batches(assumed: Assumptions) -> str:
    return ", in a micro-batch" if assumed.settings.setup.settings.cut.in_words() else ""


def _slow(found: Simulation, data: SimulationData) -> Section:
    """Return the table of the slowest steps, and what caps them."""
    names = list(found.strategies)
    best = max(names, key=lambda name: found.strategies[name].samples_per_s)
    columns = ("step", "seconds", "waiting", "most in", "capped by row", "length")
    groups = [
        (_plain(name), [_slow_row(slow, found.rows) for slow in sorted(data.slow[name], reverse=True)])
        for name in dict.fromkeys((names[0], best))
    ]
    return Section(
        "What caps it",
        "The slowest steps, what of them ranks wait on average, and in which phase most. Where one sample costs more "
        "than a rank's fair share of that phase, its rank is the slowest whatever is planned; its row in the log, from "
        "0, says which.",
        table=Table(columns, groups, ["most in"]),
    )


def _slow_row(slow: SlowStep, rows: int) -> tuple[str, ...]:
    row = "—" if slow.cap is None else f"{slow.cap % rows:,}"
    length = f"{slow.cap_length:,}" if slow.cap_length else "—"
    return f"{slow.step:,}", f"{slow.seconds:.3g}", f"{slow.waiting_s:.3g}", named(slow.phase, 40), row, length


def _exchanges(totals: Totals) -> Section:
    """Return the table of what exchanges move."""
    columns = ("strategy", "not hidden", "across nodes", "within nodes")
    rows = []
    for name, run in totals.items():
        moved = [sum(stream[i] for stream in run.streams.values()) / run.steps for i in (1, 2)]
        rows.append((_plain(name), as_seconds(run.exchange_s / run.steps), *map(as_bytes, moved)))
    words = "A step's mean, of all ranks and streams together: inputs there, outputs there and their gradients back."
    return Section("What is exchanged", words, table=Table(columns, [("", rows)], ["strategy"]))


def _assumptions(found: Simulation, assumed: Assumptions) -> Section:
    """Return the table of what all this stands on."""
    groups = [
        *((named(name), _of_phase(name, assumed)) for name in assumed.models),
        (html("cluster {}", named(assumed.cluster_name)), _of_cluster(assumed.cluster)),
        ("a step", _of_step(found, assumed)),
    ]
    return Section(
        "What is assumed",
        "Not in the time: collectives of gradients and parameters, the optimizer, planning, data loading, stragglers, "
        "congestion. They are the same for all strategies, or nearly so: real ratios are nearer to 1 and MFU is lower.",
        table=Table((), [(heading, list(pairs)) for heading, pairs in groups]),
    )


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
        yield "source", html("{}; latencies are assumed", named(cluster.source, 400))


def _of_step(found: Simulation, assumed: Assumptions) -> Iterable[tuple[str, str]]:
    settings, plan = assumed.settings, assumed.settings.setup.settings
    cut = plan.cut
    size = f"{settings.samples_per_step:,}" if settings.samples_per_step else "as many as its tokens hold"
    yield "samples", f"{size}, {settings.home} on ranks before"
    yield "steps", f"{found.steps:,}, all full; the log's {found.rows:,} rows {found.passes:.3g} times over"
    yield "planned with", f"method {plan.method}, placement {plan.placement}, eps {plan.eps}"
    yield "ranks wait", f"once a {assumed.waits}"
    yield (
        "exchanges",
        f"{as_percent(assumed.overlap)} hidden"
        + ("" if assumed.bytes_given else "; 1 byte an element (no bytes_in, bytes_out given)"),
    )
    yield "activations", "recomputed for the backward pass" if assumed.checkpointing else "kept"
    if words := cut.in_words():
        yield "slots", words
        if len(settings.setup.phases) > 1:
            each, early = "an item in the micro-batch of its sample", "all items before the first micro-batch"
            yield "encoders compute", each if cut.encoders == "slot" else early
    if settings.setup.topology.num_ranks > MOST_BARS:
        yield "charts", "take ranks and steps together; no mark stands for one sample"
