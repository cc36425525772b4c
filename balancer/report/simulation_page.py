"""The page of a simulation: what each strategy gains on a cluster, where the time goes, and what was assumed."""

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np
import pyarrow.compute as pc

from balancer.report import charts
from balancer.report.charts import Bar
from balancer.report.page import Card, Chart, Page, Section, html, named
from balancer.report.plan_page import pipeline_chart
from balancer.report.simulation_table import (
    Assumptions,
    assumed_time,
    assumptions_of,
    faster,
    held_by,
    phases_of,
    remarks_of,
    times_of,
)
from balancer.report.table import Table, as_percent, as_seconds
from balancer.report.text import counted
from balancer.simulate import Simulation

__all__ = ["Assumptions", "simulation_page", "time_split"]

_MOST_SLOW = 8  # steps of a strategy in the table of the slowest ones
_MOST_LINES = 6  # strategies of which every step is drawn


def simulation_page(found: Simulation, assumed: Assumptions, title: str) -> Page:
    """Return the page of a simulation; `title` says of what."""
    cards = [_card(name, found) for name in found.strategies]
    return Page(title, _lead(found), _about(found, assumed), cards, list(_sections(found, assumed)))


def time_split(runs: Mapping[str, Mapping[str, Any]]) -> partial[None]:
    """Return what draws what a step's seconds are spent on, by strategy."""
    looks = (("compute", "after", ""), ("waiting", "before", "//"), ("exchange", "faint", ""))
    parts = [Bar([run[f"{name}_s"] for run in runs.values()], color, name, hatch) for name, color, hatch in looks]
    ends = [f"{run['step_s']['mean']:.3g} ± {run['step_s']['deviation']:.2g}" for run in runs.values()]
    xlabel = "seconds a step, ± standard deviation"
    return partial(charts.bars, names=[name.replace("_", " ") for name in runs], parts=parts, xlabel=xlabel, ends=ends)


def _best(found: Simulation) -> str:
    return max(found.strategies, key=lambda name: found.strategies[name]["samples_per_s"])


def _lead(found: Simulation) -> str:
    """Return what is predicted in one sentence."""
    runs, best = found.strategies, _best(found)
    base = next(iter(runs))
    step, mfu = as_seconds(runs[best]["step_s"]["mean"]), as_percent(runs[best]["mfu"])
    if len(runs) == 1:
        return html("By this prediction a step takes <strong>{}</strong>, at an MFU of {}.", step, mfu)
    times = faster(found, best)
    if times < 1.0005:
        return f"By this prediction nothing is faster than {base}: {step} a step, at an MFU of {mfu}."
    return html(
        "By this prediction the same GPUs train <strong>{:.2f} times as fast</strong>: a step takes {} {}, instead of "
        "{} {}.", times, step, best, as_seconds(runs[base]["step_s"]["mean"]), base,
    )  # fmt: skip


def _about(found: Simulation, assumed: Assumptions) -> str:
    settings, size = assumed.settings, assumed.cluster.gpus_per_rank
    ranks, batch = settings.setup.topology.num_ranks, settings.batch_per_rank
    return html(
        "{} ({}), {}{}, {}. {} A prediction from lengths, shapes and data sheets by the assumptions below, not a "
        "measurement.",
        counted(ranks * size, "GPU"), named(assumed.cluster_name), counted(ranks, "rank"),
        f" of {size} GPUs" * (size > 1),
        "steps cut by tokens" if batch is None else f"{counted(batch, 'sample')} a rank",
        " ".join(remarks_of(found, assumed)),
    )  # fmt: skip


def _card(name: str, found: Simulation) -> Card:
    """Return the card of a strategy: its throughput beside the first one's."""
    first = next(iter(found.strategies))
    if len(found.strategies) == 1:
        mfu = as_percent(found.strategies[name]["mfu"])
        return Card(name, mfu, "MFU: useful FLOPs over what the GPUs could do in that time")
    words = f"the throughput of {first}" if name != first else "the throughput that others are compared with"
    return Card(name, f"{faster(found, name):.2f} ×", words)


def _sections(found: Simulation, assumed: Assumptions) -> Iterator[Section]:
    """Yield the parts below the headline."""
    words = (
        "A step is the mean of what ranks compute, what they wait for the slowest, and what of the exchanges is not "
        "hidden."
    )
    means = ", ".join(f"{name} {as_seconds(run['step_s']['mean'])}" for name, run in found.strategies.items())
    says = f"seconds of a step by strategy, of compute, waiting and exchange: {means}"
    split = Chart(says, time_split(found.strategies), height=1.2 + 0.34 * len(found.strategies), width=6.4)
    yield Section("Where the time goes", words, [split], times_of(found))
    yield Section("Phases", "Where ranks compute and wait, and the most that any rank holds.", table=phases_of(found))
    words = (
        "The most activations on any GPU in any step, estimated; weights, gradients and the optimizer's state come on "
        "top of it. What all ranks move in a step: inputs there, outputs there and their gradients back."
    )
    yield Section("What a step holds and moves", words, table=held_by(found))
    if pipelines := {name: step.pipeline for name, step in found.first.items() if step.pipeline is not None}:
        words = (
            "The first step by each strategy, and of its replicas the one that takes longest; what is blank is bubble. "
            "It is not picked for what it shows."
        )
        runs = {name: each.slowest for name, each in pipelines.items()}
        yield Section("Stages of one pipeline", words, [pipeline_chart(runs, (1e9, "seconds"), {})])
    lines = {name: found.seconds(name) for name in [*found.strategies][:_MOST_LINES]}
    says = f"seconds of every step by strategy; on average {means}"
    draw = partial(charts.over_steps, lines=lines, ylabel="seconds", least=0.0)
    yield Section("Step by step", f"{counted(found.steps, 'step')} of the same samples.", [Chart(says, draw)])
    yield _slow(found)
    yield Section("What is assumed", assumed_time(assumed), table=Table((), [*assumptions_of(assumed)]))


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
            strategy, f"{step:,}", f"{seconds[step]:.3g}", f"{phases[-1]['step_waiting_s']:.3g}",
            named(worst["phase"], 40), *(("—", "—") if row is None else (f"{row % found.rows:,}", f"{length:,}")),
        )  # fmt: skip
