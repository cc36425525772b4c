"""The numbers behind each chart, as tables of the page."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import zip_longest

import numpy as np

from balancer.report.figures import mean_steps, shown_lengths, traffic_unit
from balancer.report.page_data import BINS_AN_OCTAVE, PageData, PhaseData, StepPicture
from balancer.report.simulation_data import StepBars
from balancer.report.skeleton import named, table
from balancer.simulate.run import StrategyTotals
from solvers.pipeline import MultiplexResult, PipelineRun

__all__ = ["bars_by_rank", "by_step", "lengths", "memory", "ops", "profile", "seconds_by_step", "split", "timeline",
           "traffic", "waiting"]  # fmt: skip


def _table(columns: Iterable[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table of numbers."""
    return table([(column, True) for column in columns], [("", rows)])


def profile(phase: PhaseData) -> str:
    """Return load over mean load, by share of the ranks."""
    before, after, _ = phase.profiles()
    share = np.linspace(0, 100, len(before) + 1)
    rows = zip(share[1:], before, after, strict=True)
    return _table(("ranks, %", "before", "after"), [(f"{a:.1f}", f"{b:.3f}", f"{c:.3f}") for a, b, c in rows])


def by_step(phase: PhaseData) -> str:
    """Return the imbalance ratio of every step."""
    starts, _, means = mean_steps(phase.ratios)
    rows = [(f"{start:,}", *(f"{ratio:.4f}" for ratio in mean)) for start, mean in zip(starts, means, strict=True)]
    return _table(("from step", "before", "after", "proven bound"), rows)


def lengths(phase: PhaseData) -> str:
    """Return how many items have which length."""
    bins = shown_lengths(phase)
    edges = np.ceil(2.0 ** (np.asarray(bins) / BINS_AN_OCTAVE)).astype(np.int64)
    rows = [(f"{edges[i]:,}", f"{phase.length_counts[b]:,}") for i, b in enumerate(bins[:-1])]
    return _table(("length from", "items"), rows)


def timeline(picture: StepPicture) -> str:
    """Return one step by rank, before and after; with layouts some phases have fewer replicas than others."""
    columns = [f"{named(name, 40)}, {when}" for name in picture.phases for when in ("before", "after")]
    of_ranks = zip_longest(*(loads for both in picture.phases.values() for loads in both))
    rows = [
        (f"{i * picture.ranks_a_row:,}", *("" if load is None else f"{load:.3f}" for load in loads))
        for i, loads in enumerate(of_ranks)
    ]
    return _table(("from rank", *columns), rows)


def traffic(data: PageData) -> str:
    """Return what moves from node to node."""
    scale, unit = traffic_unit(data)
    nodes = [f"{i * data.nodes_a_row:,}" for i in range(len(data.traffic))]
    rows = [(node, *(f"{volume / scale:.3g}" for volume in row)) for node, row in zip(nodes, data.traffic, strict=True)]
    return _table((f"{unit}, from node", *(f"to {node}" for node in nodes)), rows)


def ops(runs: Mapping[str, PipelineRun | MultiplexResult], unit: float) -> str:
    """Return when each stage starts each micro-batch, forward and backward, in each run."""
    stages = next(iter(runs.values())).forward_start.shape[1]
    columns = [f"{way} {stage}" for way in ("forward", "backward") for stage in range(stages)]
    groups = []
    for name, run in runs.items():
        starts = np.concatenate([run.forward_start, run.backward_start], axis=1)
        groups.append(
            (name, [(f"{k}", *("" if s < 0 else f"{s / unit:.3f}" for s in row)) for k, row in enumerate(starts)])
        )
    return table([(column, True) for column in ("micro-batch starts", *columns)], groups)


Totals = Mapping[str, StrategyTotals]


def _plain(strategy: str) -> str:
    return strategy.replace("_", " ")


def _of_strategies(totals: Totals, columns: Iterable[str], cells: Iterable[Sequence[float]]) -> str:
    rows = [
        (_plain(name), *(f"{cell:.4g}" for cell in of_strategy))
        for name, of_strategy in zip(totals, cells, strict=True)
    ]
    return table([("strategy", False), *((column, True) for column in columns)], [("", rows)])


def split(totals: Totals) -> str:
    """Return what a step's seconds are spent on."""
    cells = [
        [seconds / run.steps for seconds in (run.compute_s, run.waiting_s, run.exchange_s)] + [run.deviation_s]
        for run in totals.values()
    ]
    return _of_strategies(totals, ("compute, s", "waiting, s", "exchange, s", "±, s"), cells)


def memory(totals: Totals) -> str:
    """Return the most activations of any GPU."""
    return _of_strategies(totals, ("GiB",), [[run.activation_bytes / 2**30] for run in totals.values()])


def waiting(totals: Totals) -> str:
    """Return in which phases ranks wait."""
    phases = list(next(iter(totals.values())).phases)
    cells = [[run.phases[name].waiting_s / run.steps for name in phases] for run in totals.values()]
    return _of_strategies(totals, (f"{named(name, 40)}, s" for name in phases), cells)


def seconds_by_step(seconds: Mapping[str, Sequence[float]]) -> str:
    """Return how long every step takes."""
    found = {name: mean_steps(values) for name, values in seconds.items()}
    starts = next(iter(found.values()))[0]
    rows = [(f"{start:,}", *(f"{means[i]:.4g}" for _, _, means in found.values())) for i, start in enumerate(starts)]
    return _table(("from step", *(f"{_plain(name)}, s" for name in found)), rows)


def bars_by_rank(bars: Mapping[str, StepBars]) -> str:
    """Return what ranks compute in one step, a column a strategy and phase."""
    columns = [f"{_plain(name)}: {named(phase, 40)}, s" for name, step in bars.items() for phase in step.phases]
    of_ranks = zip(*(seconds for step in bars.values() for seconds in step.phases.values()), strict=True)
    each = next(iter(bars.values())).ranks_a_row
    rows = [(f"{i * each:,}", *(f"{value:.4g}" for value in values)) for i, values in enumerate(of_ranks)]
    return _table(("from rank", *columns), rows)
