"""What a user's program looks like to mypy and basedpyright: types come from the installed package."""

from typing import assert_type

import numpy as np
from numpy.typing import NDArray

import balancer
import solvers


def most_waiting(lengths: list[int], num_ranks: int) -> float:
    """Return how much of the ranks' time is waiting, planned."""
    plan = balancer.balance(lengths, num_ranks, cost="quadratic:a=24576,b=1", equal_counts=True)
    assert_type(plan, balancer.DispatchPlan)
    assert_type(plan.makespan, int)
    assert_type(plan.gap, float)
    assert_type(plan.rank_of_sample, NDArray[np.int32])
    assert_type(plan.exchange(0), balancer.RankExchange)
    assert_type(plan.digest(), str)
    return 1 - 1 / plan.imbalance_ratio


def phases() -> balancer.StepPlan:
    """Plan two phases."""
    batch = {"patches": [16, 0, 64], "tokens": [300, 900, 120]}
    cut = balancer.MicroBatches(1024, "micro_batch")
    step = balancer.orchestrate(batch, {"vision": "patches", "llm": "tokens"}, 2, cut=cut)
    assert_type(step["llm"], balancer.DispatchPlan)
    return step


def groups() -> list[int]:
    """Call a solver."""
    result = solvers.partition([8, 7, 6, 5, 4], num_groups=2)
    assert_type(result, solvers.PartitionResult)
    assert_type(result.lower_bound, int)
    assert_type(result.status, solvers.SolveStatus)
    solvers.check_partition([8, 7, 6, 5, 4], result)
    return [int(load) for load in result.loads]


if __name__ == "__main__":
    print(most_waiting([5, 4, 3, 3, 3, 6], 2), phases(), groups())
