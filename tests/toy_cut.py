"""A way to cut a step that the package does not know: what is asked, planned and comes out."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from balancer.cuts.rooms import ROOMS, Room
from balancer.described import Amount, described, key
from balancer.plan.dispatch_plan import DispatchPlan
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


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class InTurnPlan(DispatchPlan):
    """Came out: a step takes the sum of all."""

    def measure(self):
        loads = self.problem.loads(self.rank_of_sample)
        return loads, int(loads.sum())

    @property
    def home_makespan(self):
        return int(self.home_loads.sum())

    def perfect(self, home=False):
        return int(self.loads.sum()), 1


def plan_in_turn(problem, cut, settings):
    """Is found: sample i on the i-th rank downwards."""
    num_ranks = problem.topology.num_ranks
    ranks = (cut.last - np.arange(len(problem.costs))) % num_ranks
    plan = InTurnPlan(problem, Placement.by_sample_order(ranks.astype(np.int32), num_ranks))
    return plan.finished(bound_in_turn(plan, settings, search=False), settings)


def bound_in_turn(plan, settings, search):
    return Bound(int(plan.problem.costs.sum()), "sum")


CUTS["in_turn"] = InTurn
ROOMS["in_turn"] = Room(plan_in_turn, bound_in_turn, InTurnPlan)


def dispatched(rank):
    """Dispatch a sample or two of each rank by this cut, and bring them home; to run on each of several ranks."""
    from balancer.executor import Dispatcher

    lengths = [5, 3] if rank == 0 else [2]
    mine = {"id": [10 * rank + i for i in range(len(lengths))]}
    out = Dispatcher(cut=InTurn(1), length="tokens").dispatch(mine, {"tokens": lengths})
    assert out.restore() == mine
    return out["id"]
