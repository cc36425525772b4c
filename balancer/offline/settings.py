"""How a log is planned, in one phase: what the command line asks for, and what a plan file's description says again."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from balancer.cost import CostModel, parse_cost
from balancer.planning.planner import EPS, check_method
from balancer.planning.ranks import check_placement
from balancer.problem.batch import HOMES
from balancer.problem.constraints import Constraints
from balancer.problem.micro_batches import MicroBatches
from balancer.problem.problem import check_together
from balancer.problem.topology import Topology
from solvers.arguments import as_budget, as_count
from solvers.relocation import as_eps

__all__ = ["LogSettings"]


@dataclass(frozen=True, slots=True)
class LogSettings:
    """How a log is cut into global batches, and how each is planned.

    Attributes
    ----------
    topology : Topology
    batch_per_rank : int
        Consecutive rows make global batches of ``num_ranks * batch_per_rank``.
    columns : tuple of str
        The columns whose sum is a row's length.
    home : str
        A name in :data:`balancer.problem.batch.HOMES`.
    cost, method, equal_counts, max_tokens_per_rank, min_samples_per_rank, max_samples_per_rank, time_budget
        As :func:`balancer.balance` takes them.
    keep_together : str or None
        The column whose equal values keep samples on one rank.
    caps : tuple of (str, int)
        Columns, as ``"a"`` or ``"a+b"``, and the most of their sum that a rank may get.
    allowed_ranks : str or None
        The column that lists the ranks on which a sample may run.
    initial_loads, rank_speeds : tuple of int or None
        One number a rank.
    micro_batches : MicroBatches or None
        How each rank's share is cut into slots.
    placement, eps
        As :func:`balancer.balance` takes them.
    drop_last : bool
        Leave out the last global batch if it is short.
    """

    topology: Topology
    batch_per_rank: int
    columns: tuple[str, ...]
    home: str = "contiguous"
    cost: CostModel = CostModel()  # noqa: RUF009 (frozen)
    method: str = "auto"
    equal_counts: bool = False
    max_tokens_per_rank: int | None = None
    time_budget: float = 0.01
    drop_last: bool = False
    min_samples_per_rank: int = 0
    max_samples_per_rank: int | None = None
    keep_together: str | None = None
    caps: tuple[tuple[str, int], ...] = ()
    allowed_ranks: str | None = None
    initial_loads: tuple[int, ...] | None = None
    rank_speeds: tuple[int, ...] | None = None
    micro_batches: MicroBatches | None = None
    placement: str = "relocate"
    eps: float = EPS

    def __post_init__(self) -> None:
        as_count("batch_per_rank", self.batch_per_rank)
        as_count("global batch (ranks * batch_per_rank)", self.topology.num_ranks * self.batch_per_rank)
        as_budget(self.time_budget)
        check_method(self.method, self.cost)
        check_placement(self.placement)
        as_eps(self.eps)
        names = [name for name in ("equal_counts", "max_tokens_per_rank", *_RARE) if getattr(self, name)]
        check_together(self.cost, names, self.micro_batches)
        Constraints.of(0, self.topology.num_ranks, **self.constraints_of_ranks())
        if self.home not in HOMES:
            raise ValueError(f"unknown home {self.home!r}; known homes are {', '.join(HOMES)}")

    @property
    def samples_per_step(self) -> int:
        """Samples of a full global batch."""
        return self.topology.num_ranks * self.batch_per_rank

    def constraints_of_ranks(self) -> dict[str, Any]:
        """Return the constraints that need no column of the log, as :meth:`Constraints.of` takes them."""
        names = (
            "equal_counts", "max_tokens_per_rank", "min_samples_per_rank", "max_samples_per_rank", "initial_loads",
            "rank_speeds",
        )  # fmt: skip
        return {name: getattr(self, name) for name in names}

    def to_json(self) -> dict[str, Any]:
        """Return the settings as the plan file's description holds them."""
        return {
            "topology": {"node_sizes": list(self.topology.node_sizes)},
            "batch_per_rank": self.batch_per_rank,
            "columns": list(self.columns),
            "home": self.home,
            "cost": str(self.cost),
            "solver": {
                "method": self.method,
                "equal_counts": self.equal_counts,
                "max_tokens_per_rank": self.max_tokens_per_rank,
                "time_budget": self.time_budget,
                **{name: value for name in _RARE if (value := getattr(self, name))},
            },
            **({"micro_batches": self.micro_batches.to_json()} if self.micro_batches else {}),
            "placement": self.placement,
            "eps": self.eps,
            "drop_last": self.drop_last,
        }

    @classmethod
    def from_json(cls, description: Mapping[str, Any]) -> "LogSettings":
        """Read back what :meth:`to_json` wrote; KeyError, TypeError or ValueError if it did not."""
        solver, micro_batches = dict(description["solver"]), description.get("micro_batches")
        for name in ("initial_loads", "rank_speeds"):
            solver[name] = None if solver.get(name) is None else tuple(solver[name])
        return cls(
            topology=Topology(description["topology"]["node_sizes"]),
            batch_per_rank=description["batch_per_rank"],
            columns=tuple(description["columns"]),
            home=description["home"],
            cost=parse_cost(description["cost"]),
            drop_last=description["drop_last"],
            placement=description["placement"],
            eps=description["eps"],
            caps=tuple((columns, limit) for columns, limit in solver.pop("caps", ())),
            micro_batches=MicroBatches(**micro_batches) if micro_batches else None,
            **solver,
        )


_RARE = (
    "min_samples_per_rank", "max_samples_per_rank", "keep_together", "caps", "allowed_ranks", "initial_loads",
    "rank_speeds",
)  # fmt: skip
"""Settings that a plan file's description has only where they are set."""
