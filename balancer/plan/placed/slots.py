"""Micro-batches: each sample on one rank and in one slot, in which ranks may wait for each other."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from balancer.plan.placed.whole import WholeShares
from balancer.problem.cuts.micro_batches import MicroBatches
from solvers.arguments import INT64_MAX
from solvers.relocation import crossing_bound

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class PlacedSlots(WholeShares):
    """Samples in the micro-batches of ranks; a rank's are in order of slots."""

    @property
    def cut(self) -> MicroBatches:
        """What was asked for."""
        return self.problem.cut  # type: ignore[return-value]  # which is what this class comes from

    def measured(self) -> tuple[Ints, int]:
        """Return the load of each rank, int64[num_ranks], and what the schedule of its micro-batches takes."""
        slots = self.slot_loads  # in each of which a prompt that samples share counts once
        return slots.sum(axis=1), self.cut.makespan(slots)

    def ideal(self, loads: Ints, home_loads: Ints, home: bool = False) -> tuple[int, int]:
        """Return the makespan of equal micro-batches, as a fraction; before dispatch there are none."""
        if home:
            return WholeShares.ideal(self, loads, home_loads, home)
        return self.cut.perfect(int(loads.sum()), len(loads), self.num_slots)

    def least_crossing(self, makespan: int) -> int:
        """Return how many elements cross nodes at least, by tokens that micro-batches have room for, and by time."""
        batch, node = self.problem.batch, self.problem.topology.node_of_rank
        room = min(self.cut.tokens * self.num_slots, INT64_MAX)
        taken = self.cut.taken_tokens(self.problem.costs, batch.lengths, makespan, self.num_slots)
        full = crossing_bound(taken, batch.lengths, batch.home.rank_of_sample, node, room)
        return max(full, WholeShares.least_crossing(self, makespan))

    def held_by_a_rank(self, makespan: int) -> tuple[Ints, int]:
        """Return a cost of samples, and how much of it a rank's micro-batches hold at most."""
        num_ranks, tokens = self.problem.topology.num_ranks, np.minimum(self.problem.batch.lengths, self.cut.tokens)
        return self.cut.held_by_a_rank(self.problem.costs, tokens, makespan, num_ranks, self.num_slots)
