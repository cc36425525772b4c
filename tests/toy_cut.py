"""A way to cut a step that the package does not know: its three faces, and one line for each to be known."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from balancer.described import Amount, described, key
from balancer.plan.placed import PLACED, WholeShares
from balancer.planning.found import Found
from balancer.planning.planner import PLANNERS, Planner
from balancer.problem.cuts import CUTS, Cut
from balancer.problem.placement import Placement
from solvers.bounds import Bound


@described
class InTurn(Cut):
    """Asked for: ranks compute one after another, samples being dealt out from a rank on, downwards."""

    last: Amount = key("The rank at which dealing begins.", default=0)

    name: ClassVar[str] = "in_turn"

    def span(self, slots):
        return slots.sum().item()

    def in_words(self):
        return f"in turn from rank {self.last}"


@dataclass(frozen=True, slots=True, eq=False)
class PlacedInTurn(WholeShares):
    """Came out: a step takes the sum of all."""

    def measured(self):
        loads = self._loads()
        return loads, int(loads.sum())

    def home_makespan(self, home_loads):
        return int(home_loads.sum())

    def ideal(self, loads, home_loads, home=False):
        return int(loads.sum()), 1


def plan_in_turn(problem, cut, settings):
    """Is found: sample i on the i-th rank downwards."""
    num_ranks = problem.topology.num_ranks
    ranks = (cut.last - np.arange(len(problem.costs))) % num_ranks
    target = Placement.by_sample_order(ranks.astype(np.int32), num_ranks)
    return Found(PlacedInTurn(problem, target), lambda _: Bound(int(problem.costs.sum()), "sum"))


def bound_in_turn(placed, makespan, settings, search):
    return Bound(int(placed.problem.costs.sum()), "sum")


CUTS["in_turn"] = InTurn
PLACED["in_turn"] = PlacedInTurn
PLANNERS["in_turn"] = Planner(plan_in_turn, bound_in_turn)


def dispatched(rank):
    """Dispatch a sample or two of each rank by this cut, and bring them home; to run on each of several ranks."""
    from balancer.executor import Dispatcher

    lengths = [5, 3] if rank == 0 else [2]
    mine = {"id": [10 * rank + i for i in range(len(lengths))]}
    out = Dispatcher(cut=InTurn(1), length="tokens").dispatch(mine, {"tokens": lengths})
    assert out.restore() == mine
    return out["id"]
