"""What a simulation found, as tables and sentences: a screen and a page show the same."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from statistics import fmean, stdev

from rich.console import Console

from balancer.cost.throughput import SaturatingThroughput
from balancer.offline.settings import LogSettings
from balancer.problem.phases import SINGLE_PHASE
from balancer.report.table import (
    Table,
    as_alike,
    as_bytes,
    as_percent,
    as_range,
    as_seconds,
    print_lines,
    print_table,
)
from balancer.report.text import counted, shortened
from balancer.simulate import Cluster, PhaseModel, Simulation


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


def print_simulation(console: Console, found: Simulation, assumed: Assumptions) -> None:
    """Print what a step takes, moves and holds by each strategy, and what must be said of it."""
    for table in (times_of(found), held_by(found), phases_of(found)):
        print_table(console, table)
    print_lines(console, *remarks_of(found, assumed), f"Assumed: {assumed_time(assumed)}")


def times_of(found: Simulation) -> Table:
    """Return seconds of a step by strategy."""
    runs = found.strategies.values()
    parts = [
        as_alike([run["step_s"]["mean"] for run in runs]),
        as_alike([run["step_s"]["deviation"] for run in runs]),
        as_alike([run["compute_s"] for run in runs]),
        as_alike([run["waiting_s"] for run in runs]),
        as_alike([run["exchange_s"] for run in runs], 2, least=True),
        [as_percent(run["mfu"]) for run in runs],
        [f"{faster(found, name):.2f}x" for name in found.strategies],
    ]
    columns = ("seconds a step", "total", "±", "compute", "waits", "exchange", "MFU", "faster")
    return Table(columns, [*zip(found.strategies, *parts, strict=True)])


def held_by(found: Simulation) -> Table:
    """Return what a step holds and moves by strategy: inputs there, outputs there and their gradients back."""
    runs = found.strategies.values()
    columns, parts = ["a step"], [[*found.strategies]]
    for name, cells in (
        ("GiB a GPU", [f"{run['activation_bytes'] / 2**30:,.1f}" for run in runs]),
        ("micro-batches", [as_range(**run["micro_batches"]) for run in runs]),
        ("across nodes", [_moved(run["streams"], "inter_node_bytes") for run in runs]),
        ("within nodes", [_moved(run["streams"], "intra_node_bytes") for run in runs]),
        ("samples/s", as_alike([run["samples_per_s"] for run in runs], 4)),
    ):
        if name != "micro-batches" or set(cells) != {"1"}:
            columns.append(name)
            parts.append(cells)
    return Table(columns, [*zip(*parts, strict=True)])


def _moved(streams: Mapping[str, Mapping[str, float]], how: str) -> str:
    return as_bytes(sum(stream[how] for stream in streams.values()))


def phases_of(found: Simulation) -> Table:
    """Return what each phase takes by strategy, and the most elements that a rank holds of it, padding included."""
    names = [*next(iter(found.strategies.values()))["phases"]]
    rows: list[tuple[str, ...]] = []
    for strategy, run in found.strategies.items():
        phases = run["phases"].values()
        cells = [
            [as_seconds(phase["compute_s"]) for phase in phases], [as_seconds(phase["waiting_s"]) for phase in phases],
            [f"{phase['peak_tokens']:,}" for phase in phases],
        ]  # fmt: skip
        if names == [SINGLE_PHASE]:
            rows += zip([strategy], *cells, strict=True)
        else:
            rows += [(strategy,), *zip((shortened(name, 40) for name in names), *cells, strict=True)]
    return Table(("by phase", "compute", "waits", "elements at a time"), rows)


def faster(found: Simulation, strategy: str) -> float:
    """Return a strategy's throughput over that of the first one."""
    run, base = found.strategies[strategy], next(iter(found.strategies.values()))
    return float(run["samples_per_s"] / base["samples_per_s"]) if base["samples_per_s"] else 1.0


def saved_seconds(found: Simulation) -> dict[str, tuple[float, float]]:
    """Return, by strategy but the first, the seconds that it saves a step: mean and standard error.

    Steps of the same samples are compared: they differ by far less than those of one strategy.
    """
    first, *others = found.strategies
    saved: dict[str, tuple[float, float]] = {}
    for name in others:
        apart = [before - after for before, after in zip(found.seconds(first), found.seconds(name), strict=True)]
        error = stdev(apart) / math.sqrt(len(apart)) if len(apart) > 1 else 0.0
        saved[name] = fmean(apart), error
    return saved


def remarks_of(found: Simulation, assumed: Assumptions) -> Iterator[str]:
    """Say how many steps there were, what each strategy saves, and what cannot fit a GPU."""
    again = f"; the log's {found.rows:,} rows were read {found.passes:.3g} times" if found.passes > 1 else ""
    yield f"{counted(found.steps, 'step')} by each strategy{again}. ± is the standard deviation over steps."
    first, *others = found.strategies
    if others:
        told = ", ".join(f"{name} {mean:.3g} ± {error:.1g}" for name, (mean, error) in saved_seconds(found).items())
        yield f"Seconds a step saved beside {first}, ± standard error, of the same samples: {told}."
    room = assumed.cluster.memory_bytes
    if over := [name for name, run in found.strategies.items() if run["activation_bytes"] > room]:
        yield (
            f"Activations alone take more than the {room / 2**30:.3g} GiB of a GPU with {', '.join(over)}: cut into "
            "(smaller) micro-batches."
        )
    if not assumed.bytes_given:
        yield "Exchanges move 1 byte an element: say what they move: bytes_in and bytes_out of phases."


def assumed_time(assumed: Assumptions) -> str:
    """Say what of the time is assumed, and what is not in it."""
    computing = {
        f"at {as_percent(rate.peak / assumed.cluster.peak_flops)} of a GPU's peak"
        if isinstance(rate, SaturatingThroughput)
        else "as fast as was measured"
        for rate in (model.throughput for model in assumed.models.values())
    }
    kept = "activations recomputed" if assumed.checkpointing else "activations kept"
    return (
        f"computing {' or '.join(sorted(computing))}, {as_percent(assumed.overlap)} of exchanges hidden, ranks wait "
        f"once a {assumed.waits}, {kept} for the backward pass. Not in the time: collectives of gradients and "
        "parameters, the optimizer, planning, data loading, stragglers, congestion. They are nearly the same for all "
        "strategies: real ratios are nearer to 1, and MFU is lower."
    )


def assumptions_of(assumed: Assumptions) -> Iterator[tuple[str, str]]:
    """Yield what all this stands on: a name, and what it is."""
    for phase in assumed.settings.setup.phases:
        said = [
            shortened(assumed.model_names[phase.name], 120),
            f"{assumed.parameters[phase.name] / 1e9:,.3g} billion parameters",
            f"length {shortened(phase.length, 120)}", f"planned by cost {phase.cost.in_words}",
        ]  # fmt: skip
        if (piece := assumed.models[phase.name].piece) is not None:
            said.append(f"in pieces of {piece:,}, within which attention stays")
        if assumed.bytes_given:
            said.append(f"an element moves {phase.bytes_in:,} bytes in, {phase.bytes_out:,} bytes out")
        yield shortened(phase.name, 40), "; ".join(said)
    cluster, plan = assumed.cluster, assumed.settings.setup.settings
    yield "plan", "; ".join(filter(None, (f"placement {plan.placement}, eps {plan.eps}", plan.cut.in_words())))
    links = (
        f"{bandwidth / 1e9:,.4g} GB/s a GPU and direction, {as_seconds(latency)} a message"
        for bandwidth, latency in (
            (cluster.intra_node_bytes_per_s, cluster.intra_node_latency_s),
            (cluster.inter_node_bytes_per_s, cluster.inter_node_latency_s),
        )
    )
    yield "GPU", f"{cluster.peak_flops / 1e12:,.4g} TFLOP/s, {cluster.memory_bytes / 2**30:,.3g} GiB"
    yield from zip(("within a node", "between nodes"), links, strict=True)
    if cluster.source:
        yield "source", f"{shortened(cluster.source, 400)}; latencies are assumed"
