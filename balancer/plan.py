"""The dispatch plan: which sample runs on which rank, in which order, and the proof of how good that is. Pure data."""

import hashlib
import os
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from balancer._version import __version__
from balancer.cost import CostModel
from balancer.errors import PlanError
from balancer.exchange import RankExchange, rank_exchange
from balancer.placement import Placement
from balancer.topology import Topology
from solvers.bounds import Bound
from solvers.types import SolveStatus, relative_gap

__all__ = ["SINGLE_PHASE", "DispatchPlan"]

SINGLE_PHASE = "all"
"""What the phase of a plan with one phase is called."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class DispatchPlan:
    """A plan for one phase of one step; arrays are read-only.

    Attributes
    ----------
    topology : Topology
    cost : CostModel
    lengths : int64[n]
        Elements (tokens, frames, patches) of each sample.
    home, target : Placement
        Where the samples lie before dispatch, and where they run.
    home_loads, loads : int64[num_ranks]
        Load of each rank in cost units, before and after.
    lower_bound : int
        Proven: no placement under the same constraints has a smaller makespan.
    bound_name : str
        The argument that proves it; see :mod:`solvers.bounds`.
    status : SolveStatus
    method : str
        The partition method asked for.
    equal_counts : bool
        Whether every rank holds the same number of samples, within one.
    binding_sample : int or None
        The sample whose cost alone exceeds a fair share, so that it and nothing else sets the makespan's bound.
    runtime_s : float
        Seconds that planning took; not part of the digest nor of equality.
    """

    topology: Topology
    cost: CostModel
    lengths: NDArray[np.int64]
    home: Placement
    target: Placement
    home_loads: NDArray[np.int64]
    loads: NDArray[np.int64]
    lower_bound: int
    bound_name: str
    status: SolveStatus
    method: str
    equal_counts: bool = False
    binding_sample: int | None = None
    runtime_s: float = field(default=0.0, compare=False)

    def __post_init__(self) -> None:
        self.home_loads.flags.writeable = False
        self.loads.flags.writeable = False

    @property
    def num_samples(self) -> int:
        """Samples in the step."""
        return len(self.lengths)

    @property
    def num_ranks(self) -> int:
        """Ranks, empty ones included."""
        return self.topology.num_ranks

    @property
    def rank_of_sample(self) -> NDArray[np.int32]:
        """The rank that each sample runs on: int32[n]."""
        return self.target.rank_of_sample

    def samples_on_rank(self, rank: int) -> NDArray[np.int64]:
        """Sample indices that run on `rank`, in dispatch order: int64[k]."""
        return self.target.samples_on_rank(rank)

    @property
    def makespan(self) -> int:
        """The largest load of any rank, in cost units."""
        return int(self.loads.max())

    @property
    def gap(self) -> float:
        """``(makespan - lower_bound) / lower_bound``: 0.0 is proven optimal; infinite if only the bound is 0."""
        return relative_gap(self.makespan, self.lower_bound)

    @property
    def imbalance_ratio(self) -> float:
        """Largest load over mean load; 1.0 is perfect, and also what all-zero loads have."""
        return imbalance_ratio(self.loads)

    @property
    def home_imbalance_ratio(self) -> float:
        """:attr:`imbalance_ratio` of the placement before dispatch."""
        return imbalance_ratio(self.home_loads)

    @property
    def inter_node_volume(self) -> int:
        """Elements that dispatch moves from one node to another."""
        node = self.topology.node_of_rank
        crosses = node[self.home.rank_of_sample] != node[self.target.rank_of_sample]
        return int(self.lengths[crosses].sum())

    def exchange(self, rank: int) -> RankExchange:
        """What `rank` sends and receives to go from home to target; built when asked for. O(ranks + its samples)."""
        return rank_exchange(self.home, self.target, self.lengths, rank)

    def inverse(self) -> "DispatchPlan":
        """Return the plan of the way back: each sample from where it runs to its home, with the loads exchanged."""
        bound = Bound(self.lower_bound, self.bound_name)
        if self.equal_counts:  # that bound does not hold for homes of any count
            bound = self.cost.lower_bound(self.cost.sample_costs(self.lengths), self.num_ranks)
        optimal = int(self.home_loads.max()) == bound.value
        return DispatchPlan(
            self.topology,
            self.cost,
            self.lengths,
            home=self.target,
            target=self.home,
            home_loads=self.loads,
            loads=self.home_loads,
            lower_bound=bound.value,
            bound_name=bound.name,
            status=SolveStatus.OPTIMAL if optimal else SolveStatus.FEASIBLE,
            method=self.method,
        )

    def digest(self) -> str:
        """SHA-256, in hex, of topology and both placements: ranks whose digests agree hold the same plan.

        Not of runtime, paths or versions; and not of lengths and costs, which are the plan's input.
        """
        return placements_digest(self.topology, self.home, self.target)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a plan file that holds all of this plan; :func:`balancer.load_plan` reads it. Atomic, and no pickle.

        Raises
        ------
        InputError
            If the path cannot be written.
        """
        from balancer.io.plan_writer import PlanWriter  # those who plan at run time need no files

        if self.home != Placement.by_sample_order(self.home.rank_of_sample, self.num_ranks):
            raise PlanError("a plan file tells home ranks but no home positions: home must be in sample order")
        n = self.num_samples
        with PlanWriter(os.fspath(path), extra_columns=True) as writer:
            writer.append(
                0,
                SINGLE_PHASE,
                np.arange(n),
                self.rank_of_sample,
                0,
                self.target.position_of_sample,
                self.lengths,
                self.home.rank_of_sample,
            )
            writer.close(
                {
                    "topology": {"node_sizes": list(self.topology.node_sizes)},
                    "cost": str(self.cost),
                    "solver": {"method": self.method, "equal_counts": self.equal_counts},
                    "certificate": {
                        "makespan": self.makespan,
                        "lower_bound": self.lower_bound,
                        "bound_name": self.bound_name,
                        "status": self.status.value,
                    },
                    "steps": 1,
                    "samples": n,
                    "digest": self.digest(),
                    "version": __version__,
                }
            )

    def __repr__(self) -> str:
        return (
            f"<DispatchPlan: {self.num_samples} samples on {self.num_ranks} ranks, cost {self.cost}, "
            f"imbalance {self.home_imbalance_ratio:.4g} -> {self.imbalance_ratio:.6g}, gap {self.gap:.3g}>"
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, DispatchPlan):
            return NotImplemented
        mine, theirs = (
            (p.topology, p.cost, p.home, p.target, p.lower_bound, p.bound_name, p.status, p.method, p.equal_counts)
            for p in (self, other)
        )
        return (
            mine == theirs
            and np.array_equal(self.lengths, other.lengths)
            and np.array_equal(self.loads, other.loads)
            and np.array_equal(self.home_loads, other.home_loads)
        )

    __hash__ = None  # type: ignore[assignment]


def imbalance_ratio(loads: NDArray[np.int64]) -> float:
    """Largest over mean load; 1.0 where all are 0."""
    total = int(loads.sum())
    return int(loads.max()) * len(loads) / total if total else 1.0  # of integers, so that equal loads give 1.0


def placements_digest(topology: Topology, home: Placement, target: Placement) -> str:
    """SHA-256, in hex, over counts, node sizes, ranks and positions as little-endian integers."""
    header = topology.num_nodes, len(home.samples), *topology.node_sizes
    digest = hashlib.sha256(np.asarray(header, dtype="<i8").data)
    for placement in (home, target):
        for array in (placement.rank_of_sample, placement.position_of_sample):
            digest.update(np.ascontiguousarray(array, dtype="<i4").data)
    return digest.hexdigest()
