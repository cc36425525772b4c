"""Packs that ranks share, beside what the rules that frameworks ship make of the same packs."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from balancer.cuts.context_shards.plan import ShardPlan
from balancer.plan.step_plan import StepPlan
from balancer.report.table import Table, print_table
from balancer.report.text import counted
from solvers.context import MeasuredLayout

_MOST_STEPS = 16
"""Steps that are looked at, the first: rules of tiles take some 10 ms a pack, and packs of a log are much alike."""

_CALLED = {
    "given": "this plan", "head_tail": "head-tail", "per_document": "head-tail of each document",
    "round_robin": "PTRR, tiles by turns",
}  # fmt: skip


def _counted_in(found: MeasuredLayout, layers: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return what a layout of one pack takes in all layers, of each kind as many as there are.

    Work of the busiest rank, and of the mean one; rows that all receive, that one receives or sends, that cross nodes;
    and ranges.
    """
    work, received = layers @ found.work, layers @ found.received
    busiest = (layers @ np.maximum(found.received, found.sent)).max()
    return np.array([work.max(), work.mean(), received.sum(), busiest, found.crossing, found.ranges.sum()], dtype=float)


@dataclass(slots=True)
class SharedPacks:
    """Adds up, step by step, what layouts of packs take."""

    steps: int = 0
    packs: int = 0
    ranks: int = 0  # of packs, each counted as often as it has one
    rows: int = 0  # of keys in all layers
    sums: dict[str, NDArray[np.float64]] = field(default_factory=dict)

    def add(self, step: StepPlan) -> None:
        """Take in the next step, if it is among the first and its ranks share packs."""
        before = self.packs
        for phase in step.phases.values() if self.steps < _MOST_STEPS else ():
            if not isinstance(phase.plan, ShardPlan):
                continue
            for tokens, layers, layouts in phase.plan.layouts_beside():
                self.packs += 1
                self.rows += tokens * int(layers.sum())
                self.ranks += len(layouts["given"].ranges)
                for name, found in layouts.items():
                    self.sums[name] = self.sums.get(name, 0) + _counted_in(found, layers)
        self.steps += self.packs > before

    def as_json(self) -> dict[str, Any]:
        """Return, by layout, evenness of work, rows of keys over those of a pack, and ranges of tokens a rank."""
        told = {}
        for name, sums in self.sums.items():
            slowest, mean, received, busiest, crossing, ranges = sums.tolist()
            told[name] = {
                "work_ratio": slowest / mean if mean else 1.0, "received": received / self.rows,
                "busiest_rank": busiest * self.ranks / self.packs / received if received else 0.0,
                "crossing": crossing / self.rows, "ranges_per_rank": ranges / self.ranks,
            }  # fmt: skip
        return told

    def print_on(self, console: Console) -> None:
        """Print a row a layout, if there are any."""
        if not self.sums:
            return
        columns = ("layout of packs", "work", "received", "busiest", "crosses nodes", "ranges")
        rows = [
            (_CALLED[name], f"{found['work_ratio']:.3f}", f"{found['received']:.3f}", f"{found['busiest_rank']:.1f}",
             f"{found['crossing']:.3f}", f"{found['ranges_per_rank']:.1f}")
            for name, found in self.as_json().items()
        ]  # fmt: skip
        print_table(console, Table(columns, rows))
        console.print(
            f"{counted(self.packs, 'pack')} of the first {counted(self.steps, 'step')}. work: of the busiest rank over "
            "the mean. received: rows of keys that ranks get, a layer, over a pack's. busiest: what one rank receives "
            "or sends, over the mean. ranges: of tokens, on a rank. What is received takes time only where the rows "
            "that are needed are sent, and not all.\n",
            highlight=False, markup=False,
        )  # fmt: skip
