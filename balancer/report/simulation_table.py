"""The tables of a simulation: what a step takes by each strategy, and what it holds."""

import math
from collections.abc import Iterator
from statistics import fmean, stdev

from rich.console import Console

from balancer.problem.phases import SINGLE_PHASE
from balancer.report.simulation_page import Assumptions
from balancer.report.table import as_alike, as_percent, as_range, numbers_table, print_lines
from balancer.report.text import counted
from balancer.simulate import Simulation


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


def print_simulation(console: Console, found: Simulation, assumed: Assumptions, efficiency: float) -> None:
    """Print a row a strategy of what a step takes, one of what it holds, and what was assumed."""
    first_name, first = next(iter(found.strategies.items()))
    runs = found.strategies.values()
    times = numbers_table("seconds a step", ("total", "±", "compute", "waits", "exchange", "MFU", "faster"))
    cut = any(run["micro_batches"]["most"] > 1 for run in runs)
    names = ["elements"] if [*first["phases"]] == [SINGLE_PHASE] else first["phases"]
    peaks = numbers_table("most at a time", (*names, "GiB a GPU", *["micro-batches"] * cut, "samples/s"))
    parts = [
        as_alike([run["step_s"]["mean"] for run in runs]),
        as_alike([run["step_s"]["deviation"] for run in runs]),
        as_alike([run["compute_s"] for run in runs]),
        as_alike([run["waiting_s"] for run in runs]),
        as_alike([run["exchange_s"] for run in runs], 2, least=True),
    ]
    rates = as_alike([run["samples_per_s"] for run in runs], 4)
    for i, (name, run) in enumerate(found.strategies.items()):
        faster = run["samples_per_s"] / first["samples_per_s"] if first["samples_per_s"] else 1.0
        times.add_row(name, *[part[i] for part in parts], as_percent(run["mfu"]), f"{faster:.2f}x")
        tokens = [f"{phase['peak_tokens']:,}" for phase in run["phases"].values()]
        slots = [as_range(**run["micro_batches"])] * cut
        peaks.add_row(name, *tokens, f"{run['activation_bytes'] / 2**30:,.1f}", *slots, rates[i])
    console.print(times)
    if saved := saved_seconds(found):
        pairs = numbers_table(f"seconds a step saved beside {first_name}", ("mean", "±"))
        for name, (mean, error) in saved.items():
            pairs.add_row(name, f"{mean:.3g}", f"{error:.1g}")
        console.print(pairs)
    console.print(peaks)
    print_lines(console, *_remarks(found, assumed, efficiency))


def _remarks(found: Simulation, assumed: Assumptions, efficiency: float) -> Iterator[str]:
    """Say how many steps there were, what was assumed, and what cannot fit a GPU."""
    again = f"; the log's {found.rows:,} rows were read {found.passes:.3g} times" if found.passes > 1 else ""
    yield (
        f"{counted(found.steps, 'step')} by each strategy{again}. ± is the standard deviation over steps; of what a "
        "step saves, which is of the same samples, its standard error."
    )
    yield (
        f"Assumed: computing at {efficiency:.0%} of the peak where no --throughput says, "
        f"{assumed.overlap:.0%} of exchanges hidden, ranks wait for each other each {assumed.waits}; the "
        "collectives of gradients and parameters take no time."
    )
    room = assumed.cluster.memory_bytes
    if over := [name for name, run in found.strategies.items() if run["activation_bytes"] > room]:
        yield (
            f"Activations alone take more than the {room / 2**30:.3g} GiB of a GPU with {', '.join(over)}: cut into "
            "(smaller) micro-batches."
        )
    if not assumed.bytes_given:
        yield "Exchanges move 1 byte an element: say what they move: bytes_in and bytes_out of phases."
