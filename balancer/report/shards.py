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


@dataclass(slots=True)
class _Sums:
    """What a layout takes, summed over packs and layers, of each kind as many as there are."""

    slowest: int = 0  # work of the busiest rank of each pack
    mean: float = 0.0  # work of the mean rank
    received: int = 0  # rows
    busiest: int = 0  # rows that one rank of each pack receives, or sends
    crossing: int = 0
    ranges: int = 0

    def add(self, layers: NDArray[np.int64], found: MeasuredLayout) -> None:
        work = layers @ found.work
        self.slowest += int(work.max())
        self.mean += float(work.mean())
        self.received += int((layers @ found.received).sum())
        self.busiest += int((layers @ np.maximum(found.received, found.sent)).max())
        self.crossing += found.crossing
        self.ranges += int(found.ranges.sum())


@dataclass(slots=True)
class SharedPacks:
    """Adds up, step by step, what layouts of packs take."""

    steps: int = 0
    packs: int = 0
    ranks: int = 0  # of packs, each counted as often as it has one
    rows: int = 0  # of keys in all layers
    sums: dict[str, _Sums] = field(default_factory=dict)

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
                    self.sums.setdefault(name, _Sums()).add(layers, found)
        self.steps += self.packs > before

    def as_json(self) -> dict[str, Any]:
        """Return, by layout, evenness of work, rows of keys over those of a pack, and ranges of tokens a rank."""
        size = self.ranks / max(1, self.packs)
        return {
            name: {
                "work_ratio": each.slowest / each.mean if each.mean else 1.0,
                "received": each.received / self.rows,
                "busiest_rank": each.busiest * size / each.received if each.received else 0.0,
                "crossing": each.crossing / self.rows,
                "ranges_per_rank": each.ranges / self.ranks,
            }
            for name, each in self.sums.items()
        }  # fmt: skip

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
