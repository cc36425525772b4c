"""What comes out of micro-batches: each sample on one rank and in one slot, in which ranks may wait for each other."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from balancer.plan.dispatch_plan import DispatchPlan
from balancer.problem.cuts.micro_batches import MicroBatches
from solvers.arguments import INT64_MAX
from solvers.relocation import crossing_bound

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class MicroBatchPlan(DispatchPlan):
    """Samples in the micro-batches of ranks; a rank's are in order of slots."""

    @property
    def cut(self) -> MicroBatches:
        """What was asked for."""
        return self.problem.cut  # type: ignore[return-value]  # which is what this class comes from

    def measure(self) -> tuple[Ints, int]:
        """Return the load of each rank, int64[num_ranks], and what the schedule of its micro-batches takes."""
        slots = self.slot_loads  # in each of which a prompt that samples share counts once
        return slots.sum(axis=1), self.cut.makespan(slots)

    def perfect(self, home: bool = False) -> tuple[int, int]:
        """Return the makespan of equal micro-batches, as a fraction; before dispatch there are none."""
        if home:
            return DispatchPlan.perfect(self, home)
        return self.cut.perfect(int(self.loads.sum()), self.num_ranks, self.num_slots)

    def least_crossing(self) -> int:
        """Return how many elements cross nodes at least, by tokens that micro-batches have room for, and by time."""
        room = min(self.cut.tokens * self.num_slots, INT64_MAX)
        taken = self.cut.taken_tokens(self.problem.costs, self.lengths, self.makespan, self.num_slots)
        full = crossing_bound(taken, self.lengths, self.home.rank_of_sample, self.topology.node_of_rank, room)
        return max(full, DispatchPlan.least_crossing(self))

    def held_by_a_rank(self) -> tuple[Ints, int]:
        """Return a cost of samples, and how much of it a rank's micro-batches hold at most."""
        tokens = np.minimum(self.lengths, self.cut.tokens)
        return self.cut.held_by_a_rank(self.problem.costs, tokens, self.makespan, self.num_ranks, self.num_slots)
