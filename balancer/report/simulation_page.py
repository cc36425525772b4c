"""The page of a simulation: what each strategy gains on a cluster, where the time goes, and what was assumed."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from balancer.cost import parse_cost
from balancer.cost.throughput import SaturatingThroughput
from balancer.offline.settings import LogSettings
from balancer.report import numbers
from balancer.report import simulation_figures as figures
from balancer.report.canvas import svg_of
from balancer.report.page_data import MOST_ROWS
from balancer.report.pipeline_figure import pipeline_section
from balancer.report.simulation_data import SimulationData, SlowStep
from balancer.report.skeleton import card, chart, document, facts, keys, named, section, table, write_document
from balancer.report.summary import as_range
from balancer.report.table import as_bytes, as_percent
from balancer.report.text import counted, escaped
from balancer.simulate import Cluster, PhaseModel, Simulation
from balancer.simulate.run import StrategyTotals

__all__ = ["Assumptions", "simulation_page", "write_simulation_page"]


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


def write_simulation_page(
    path: str, found: Simulation, data: SimulationData, assumed: Assumptions, source: str
) -> None:
    """Write the page of a simulation to a file, which is there as a whole or not at all."""
    write_document(path, simulation_page(found, data, assumed, source))


def simulation_page(found: Simulation, data: SimulationData, assumed: Assumptions, source: str) -> str:
    """Return the page of a simulation as HTML, from data of the same steps, at least one; `source` says of what."""
    first, base = next(iter(found.strategies.items()))
    cards = [_headline(name, run, first, base, data) for name, run in found.strategies.items()]
    footer = "A prediction from lengths, shapes and data sheets by the assumptions above, not a measurement."
    return document(
        source,
        "predicted step time",
        _lead(found),
        _about(found, assumed),
        cards,
        _sections(found, data, assumed),
        footer,
    )


def as_seconds(value: float) -> str:
    """Show a time in three digits."""
    for least, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if value >= 0.9995 * least:
            number = value / least
            return f"{number:,.0f} {unit}" if number >= 999.5 else f"{number:.3g} {unit}"
    return "0 s" if value == 0 else f"{value:.1e} s"


def _of_same_batches(totals: Mapping[str, StrategyTotals]) -> list[str]:
    """Return the strategies that see the batches as they come, if there are any."""
    return [name for name in totals if name != "sorted_batches"] or list(totals)


def _lead(found: Simulation) -> str:
    """Return what is predicted in one sentence."""
    totals = found.strategies
    alike = _of_same_batches(totals)
    first, best = totals[alike[0]], max(alike, key=lambda name: totals[name].samples_per_s)
    run = totals[best]
    step, mfu = as_seconds(run.seconds / run.steps), as_percent(run.mfu)
    if len(alike) == 1:
        return f"By this prediction a step takes <strong>{step}</strong>, at an MFU of {mfu}."
    faster = run.samples_per_s / first.samples_per_s if first.samples_per_s else 1.0
    if faster < 1.0005:
        return f"By this prediction nothing is faster than {_plain(alike[0])}: {step} a step, at an MFU of {mfu}."
    return (
        f"By this prediction the same GPUs train <strong>{faster:.2f} times as fast</strong>: a step takes "
        f'<span class="after">{step}</span> {_plain(best)}, in place of '
        f'<span class="before">{as_seconds(first.seconds / first.steps)}</span> {_plain(alike[0])}.'
    )


def _about(found: Simulation, assumed: Assumptions) -> str:
    settings, size = assumed.settings, assumed.cluster.gpus_per_rank
    num_ranks = settings.setup.topology.num_ranks
    again = f"; the log's {found.rows:,} rows were read {found.passes:.3g} times" if found.passes > 1 else ""
    each = f" of {size} GPUs" if size > 1 else ""
    return (
        f"{counted(found.steps, 'step')} by each strategy{again}. "
        f"{counted(num_ranks * size, 'GPU')} ({named(assumed.cluster_name)}), "
        f"{counted(num_ranks, 'rank')}{each}, {_drawn(settings)}. "
        "± is the standard deviation over steps."
    )


def _drawn(settings: LogSettings) -> str:
    """Say what a rank draws for each step."""
    if settings.batch_per_rank is not None:
        return f"{counted(settings.batch_per_rank, 'sample')} a rank"
    return "steps cut by tokens"


def _headline(name: str, run: StrategyTotals, first: str, base: StrategyTotals, data: SimulationData) -> str:
    """Return the card of a strategy: its throughput beside the first one's, and MFU."""
    mean = run.seconds / run.steps
    rows = [
        ("MFU", as_percent(run.mfu)),
        ("a step", f"{as_seconds(mean)} ± {as_seconds(run.deviation_s)}"),
        ("range of steps", f"{as_seconds(run.fastest_s)} to {as_seconds(run.slowest_s)}"),
        ("samples a second", f"{run.samples_per_s:,.4g}"),
        ("waiting", as_percent(run.waiting_s / run.seconds if run.seconds else 0.0)),
        ("exchange", as_percent(run.exchange_s / run.seconds if run.seconds else 0.0)),
    ]
    if run.most_slots > 1:
        rows.append(("micro-batches", as_range(run.fewest_slots, run.most_slots)))
    faster = run.samples_per_s / base.samples_per_s if base.samples_per_s else 1.0
    words = "the throughput that others are compared with"
    if len(data.seconds) == 1:
        return card(_plain(name), rows[0][1], "MFU: useful FLOPs over what the GPUs could do in that time", rows[1:])
    if name != first:
        words = f"the throughput of {_plain(first)}"
        same_batches = "sorted_batches" not in (name, first)
        ratios = [a / b for a, b in zip(data.seconds[first], data.seconds[name], strict=True) if b]
        if same_batches and len(ratios) > 1:
            rows.insert(0, ("step by step", f"{min(ratios):.2f} to {max(ratios):.2f} ×"))
    return card(_plain(name), f"{faster:.2f} ×", words, rows)


def _plain(strategy: str) -> str:
    return strategy.replace("_", " ")


def _sections(found: Simulation, data: SimulationData, assumed: Assumptions) -> Iterator[str]:
    """Yield the parts below the headline."""
    totals = found.strategies
    phases = list(next(iter(totals.values())).phases)
    height = 1.2 + 0.34 * len(totals)
    split = svg_of("split", lambda figure: figures.time_split(figure, totals), height)
    described = f"Seconds of a step by strategy, of compute, waiting and exchange: {_steps_of(totals)}"
    charts = [chart("split", "", described, split, numbers.split(totals))]
    words = (
        "A step is the mean of what ranks compute, what they wait for the slowest, and what of the exchanges is not "
        "hidden."
    )
    if data.waits == "phase" and len(phases) > 1 and not data.pipelines:
        each = svg_of("waiting", lambda figure: figures.waiting_by_phase(figure, totals), height)
        charts.append(chart("waiting", keys(phases), "Waiting by phase and strategy", each, numbers.waiting(totals)))
        words += " Ranks wait after every phase: the second chart says in which."
    yield section("Where the time goes", words + _other_batches(found), charts)
    if data.pipelines:
        yield _pipelines(data)
    elif data.bars:
        yield _timeline(data, phases)
    each = svg_of("steps", lambda figure: figures.steps(figure, data.seconds))
    described = f"Seconds of every step by strategy; on average {_steps_of(totals)}"
    words = f"Seconds of each step; the numbers above are the mean of {counted(found.steps, 'step')}."
    yield section("Step by step", words, [chart("steps", "", described, each, numbers.seconds_by_step(data.seconds))])
    yield _memory(totals, phases, assumed, height)
    yield _slow(found, data)
    yield _exchanges(totals)
    yield _assumptions(found, assumed)


def _steps_of(totals: Mapping[str, StrategyTotals]) -> str:
    return ", ".join(f"{_plain(name)} {as_seconds(run.seconds / run.steps)}" for name, run in totals.items())


def _other_batches(found: Simulation) -> str:
    return " Sorted batches has other batches than the rest." if "sorted_batches" in found.strategies else ""


def _pipelines(data: SimulationData) -> str:
    """Return the section that shows the slowest pipeline of one step by each strategy."""
    runs = {name: run for name, run in data.pipelines.items() if name != "sorted_batches"} or data.pipelines
    words = (
        "The same samples by each strategy, and of the replicas the one that takes longest. Numbers are micro-batches; "
        "what is blank is bubble. This is one step of many, not picked for what it shows; --step draws another."
    )
    shown = {_plain(name): run for name, run in runs.items()}
    return pipeline_section(
        f"Step {data.drawn_step:,}: stages of one pipeline", words, shown, (1e9, "seconds"), "bytes"
    )


def _timeline(data: SimulationData, phases: Sequence[str]) -> str:
    """Return the section that shows one step by rank."""
    bars = {name: step for name, step in data.bars.items() if name != "sorted_batches"} or data.bars
    each = next(iter(bars.values())).ranks_a_row
    many = f" Each row stands for {each} ranks, and shows the busiest." if each > 1 else ""
    met = "each phase starts when the slowest rank has ended the one before" if data.waits == "phase" else (
        "ranks wait for each other once, at its end"
    )  # fmt: skip
    svg = svg_of("timeline", lambda figure: figures.timeline(figure, bars), height=0.7 + 1.4 * len(bars))
    words = (
        f"The same samples by each strategy; {met}. What is blank is waiting, grey is exchange that is not hidden."
        f"{many} This is one step of many, not picked for what it shows; --step draws another."
    )
    ends = ", ".join(f"{_plain(name)} {as_seconds(step.seconds)}" for name, step in bars.items())
    described = f"Timeline of one step by rank, a panel a strategy, which takes: {ends}"
    drawn = [chart("timeline", "", described, svg, numbers.bars_by_rank(bars))]
    return section(f"Step {data.drawn_step:,} by rank", words, drawn, before=keys(phases), tall=True)


def _memory(totals: Mapping[str, StrategyTotals], phases: Sequence[str], assumed: Assumptions, height: float) -> str:
    """Return the section of what ranks hold."""
    size = assumed.cluster.memory_bytes
    svg = svg_of("memory", lambda figure: figures.memory(figure, totals, size), height)
    columns = [("strategy", False), *((named(name, 40), True) for name in phases)]
    rows = [[_plain(name), *(f"{run.phases[phase].peak_tokens:,}" for phase in phases)] for name, run in totals.items()]
    over = [_plain(name) for name, run in totals.items() if run.activation_bytes > size]
    which = "every strategy" if len(over) == len(totals) else ", ".join(over)
    warning = (
        f" With {which} activations alone take more than a GPU has: cut into (smaller) micro-batches."
        if over
        else " Weights, gradients and the optimizer's state come on top of it."
    )
    return section(
        "What a rank holds",
        "The most activations on any GPU in any step, estimated, and below, the most elements that any rank holds of a "
        f"phase at a time, padding included{_in_micro_batches(assumed)}.{warning}",
        [chart("memory", "", "Activations of the fullest GPU by strategy", svg, numbers.memory(totals))],
        after=table(columns, [("", rows)]),
    )


def _in_micro_batches(assumed: Assumptions) -> str:
    return ", in a micro-batch" if assumed.settings.setup.settings.cut.in_words() else ""


def _slow(found: Simulation, data: SimulationData) -> str:
    """Return the table of the slowest steps, and what caps them."""
    names = list(found.strategies)
    best = max(_of_same_batches(found.strategies), key=lambda name: found.strategies[name].samples_per_s)
    columns = (
        ("step", True), ("seconds", True), ("waiting", True), ("most in", False), ("capped by row", True),
        ("length", True),
    )  # fmt: skip
    groups = [
        (_plain(name), [_slow_row(slow, found.rows) for slow in sorted(data.slow[name], reverse=True)])
        for name in dict.fromkeys((names[0], best))
    ]
    return section(
        "What caps it",
        "The slowest steps, what of them ranks wait on average, and in which phase most. Where one sample costs more "
        "than a rank's fair share of that phase, its rank is the slowest whatever is planned; its row in the log, from "
        "0, says which.",
        after=table(columns, groups),
    )


def _slow_row(slow: SlowStep, rows: int) -> tuple[str, ...]:
    row = "—" if slow.cap is None else f"{slow.cap % rows:,}"
    length = f"{slow.cap_length:,}" if slow.cap_length else "—"
    return f"{slow.step:,}", f"{slow.seconds:.3g}", f"{slow.waiting_s:.3g}", named(slow.phase, 40), row, length


def _exchanges(totals: Mapping[str, StrategyTotals]) -> str:
    """Return the table of what exchanges move."""
    columns = (("strategy", False), ("not hidden", True), ("across nodes", True), ("within nodes", True))
    rows = []
    for name, run in totals.items():
        moved = [sum(stream[i] for stream in run.streams.values()) / run.steps for i in (1, 2)]
        rows.append((_plain(name), as_seconds(run.exchange_s / run.steps), *map(as_bytes, moved)))
    words = "A step's mean, of all ranks and streams together: inputs there, outputs there and their gradients back."
    return section("What is exchanged", words, after=table(columns, [("", rows)]))


def _assumptions(found: Simulation, assumed: Assumptions) -> str:
    """Return the table of what all this stands on."""
    groups = [
        *((named(name), _of_phase(name, assumed)) for name in assumed.models),
        (f"cluster {named(assumed.cluster_name)}", _of_cluster(assumed.cluster)),
        ("a step", _of_step(found, assumed)),
    ]
    return section(
        "What is assumed",
        "Not in the time: collectives of gradients and parameters, the optimizer, planning, data loading, stragglers, "
        "congestion. They are the same for all strategies, or nearly so: real ratios are nearer to 1 and MFU is lower.",
        after=facts(groups),
    )


def _of_phase(name: str, assumed: Assumptions) -> Iterable[tuple[str, str]]:
    model = assumed.models[name]
    phase = next(phase for phase in assumed.settings.setup.phases if phase.name == name)
    yield "model", f"{named(assumed.model_names[name])}, {assumed.parameters[name] / 1e9:,.3g} billion parameters"
    yield "length", named(phase.items)
    areas = ((factor, f" {area}(l)") for area, factor in model.useful.areas)
    terms = ((model.useful.constant, ""), (model.useful.a, " l"), (model.useful.b, " l²"), *areas)
    yield "FLOPs of length l", " + ".join(f"{factor:,}{power}" for factor, power in terms if factor)
    if model.piece is not None:
        yield "pieces", f"of {model.piece:,}; attention stays within one"
    yield "planned by cost", named(parse_cost(phase.cost).in_words)
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
        yield "source", f"{named(cluster.source, 400)}; latencies are assumed"


def _of_step(found: Simulation, assumed: Assumptions) -> Iterable[tuple[str, str]]:
    settings, plan = assumed.settings, assumed.settings.setup.settings
    cut = plan.cut
    size = f"{settings.samples_per_step:,}" if settings.samples_per_step else "as many as its tokens hold"
    yield "samples", f"{size}, {escaped(settings.home)} on ranks before"
    yield "steps", f"{found.steps:,}, all full; the log's {found.rows:,} rows {found.passes:.3g} times over"
    yield "planned with", escaped(f"method {plan.method}, placement {plan.placement}, eps {plan.eps}")
    yield "ranks wait", f"once a {assumed.waits}"
    yield (
        "exchanges",
        f"{as_percent(assumed.overlap)} hidden"
        + ("" if assumed.bytes_given else "; 1 byte an element, for want of --bytes"),
    )
    yield "activations", "recomputed for the backward pass" if assumed.checkpointing else "kept"
    if words := cut.in_words():
        yield "slots", escaped(words)
        if len(settings.setup.phases) > 1:
            each, early = "an item in the micro-batch of its sample", "all items before the first micro-batch"
            yield "encoders compute", each if cut.encoders == "slot" else early
    if settings.setup.topology.num_ranks > MOST_ROWS:
        yield "charts", "take ranks and steps together; no mark stands for one sample"
