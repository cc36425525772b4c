"""What the planner of a cut returns, what is known of plans made elsewhere, and the bound that every cut has."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from balancer.plan.placed import WholeShares
from balancer.problem.problem import Problem
from solvers.bounds import Bound, makespan_bound
from solvers.partitioning.prefix_bound import prefix_bound
from solvers.types import SolveStatus


class Found(NamedTuple):
    """Samples where and when they run, and the proof."""

    placed: WholeShares
    prove: Callable[[int], Bound]  # from the plan's makespan to a lower bound on any plan's
    status: SolveStatus | None = None  # how the solver ended
    fell_back: str = ""  # why samples were not relocated, where that was asked for


@dataclass(frozen=True)
class Claim:
    """What is known of a plan besides where its samples are; by default nothing."""

    fell_back: str = ""  # why samples were not relocated
    status: SolveStatus | None = None  # how the solver ended
    bound: Bound | None = None  # what was proven where it was planned

    def settle(self, proven: Bound, makespan: int) -> Bound:
        """Return the bound to keep, given the one that is proven here and the plan's makespan: the larger."""
        return proven if self.bound is None or self.bound.value <= proven.value else self.bound


def closed_form_bound(problem: Problem) -> Bound:
    """Return the best closed-form bound on what a step takes."""
    num_ranks, constraints = problem.topology.num_ranks, problem.constraints
    if not constraints.names():
        return problem.cost.lower_bound(problem.costs, num_ranks)
    if constraints.prefix is not None and problem.prompts is not None:
        keys, equal = constraints.prefix.keys, constraints.equal_counts
        return Bound(prefix_bound(problem.costs, num_ranks, keys, problem.prompts, equal_counts=equal), "parts")
    if not problem.cost.additive:
        return problem.cost.lower_bound(
            problem.costs, num_ranks, constraints.equal_counts, constraints.min_samples_per_rank
        )
    return makespan_bound(problem.costs, num_ranks, **constraints.solver_keywords(problem.batch.lengths))
