"""How long every rank computes a phase, micro-batch by micro-batch, and what it holds meanwhile."""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from balancer.layouts.mesh import Mesh
from balancer.plan.dispatch_plan import DispatchPlan
from balancer.problem.cuts import Cut
from balancer.simulate.phase_model import PhaseModel
from solvers.errors import UsageError, braced
from solvers.groups import padded_loads


@dataclass(frozen=True, slots=True, eq=False)
class Computed:
    """What the ranks do in one phase, forward and backward."""

    seconds: NDArray[np.float64]  # float64[num_ranks, num_slots]: of every micro-batch; a rank without them has one
    tokens: NDArray[np.int64]  # int64[num_ranks, num_slots]: elements in it, padding included
    # Of all ranks; executed with padding and recomputation
    useful_flops: float
    executed_flops: float

    def in_slots(self, num_slots: int) -> "Computed":
        """Return the same in a step of so many micro-batches, before whose first a phase is that has one."""
        num_ranks, there = self.seconds.shape
        if there == num_slots:
            return self
        nothing = np.zeros((num_ranks, num_slots - there), dtype=np.int64)
        seconds, tokens = np.hstack((self.seconds, nothing)), np.hstack((self.tokens, nothing))
        return replace(self, seconds=seconds, tokens=tokens)


def on_gpus(found: Computed, mesh: Mesh, num_gpus: int) -> Computed:
    """Return what each GPU does of what replicas do: as long, and an equal share of the elements."""
    replica = mesh.replica_of_gpu(num_gpus)
    tokens = -(-found.tokens[replica] // mesh.layout.device_gpus)
    return replace(found, seconds=found.seconds[replica], tokens=tokens)


def compute_phase(name: str, plan: DispatchPlan, model: PhaseModel, gpus: int) -> Computed:
    """Compute a phase's items where its plan puts them, on ranks of so many GPUs. O(items + ranks * micro-batches)."""
    if plan.constraints.prefix is not None:
        where = f"phase {braced(repr(name))}"
        raise UsageError(
            f"{where} computes prompts once for several samples, which is not simulated", "leave {prefix} out"
        )
    if plan.cut.shares:
        return _compute_shared(plan, model, gpus)
    lengths, shape = plan.lengths, (plan.num_ranks, plan.num_slots)
    bins = plan.rank_of_sample * np.int32(plan.num_slots) + plan.slot_of_sample
    num_bins = plan.num_ranks * plan.num_slots
    tokens = plan.cost.tokens(lengths, bins, num_bins)
    rows, longest = np.zeros((2, num_bins), dtype=np.int64)
    if not plan.cost.additive:
        rows = np.bincount(bins, minlength=num_bins)
        longest = padded_loads(lengths, bins, num_bins) // np.maximum(rows, 1)
    if plan.cost.padded:
        executed = rows * model.executed_flops(longest)  # every row as long as the longest
    else:
        each = model.executed_flops(lengths)
        if plan.cost.c:
            if model.stem is None:
                raise ValueError(
                    f"phase {name!r}: cost '{plan.cost}' is of padded rows before a convolution, and its model has no "
                    "convolution; use another cost, or the model of an audio encoder"
                )
            each = each - model.stem(lengths)
        executed = np.bincount(bins, weights=each, minlength=num_bins).astype(np.float64)
        if plan.cost.c and model.stem is not None:
            executed += rows * model.stem(longest)
    seconds = model.throughput.seconds(executed / gpus, tokens)
    useful = float(model.useful_flops(lengths).sum())
    return Computed(seconds.reshape(shape), tokens.reshape(shape), useful, float(executed.sum()))


def _compute_shared(plan: DispatchPlan, model: PhaseModel, gpus: int) -> Computed:
    """Compute samples that ranks share: each rank is busy with one for as long as the plan's cost says.

    Of the time that the sample takes alone, that is; what sharing loses and exchanges is in it.
    """
    lengths, shares, num_bins = plan.lengths, plan.shares, plan.num_ranks * plan.num_slots
    each = model.executed_flops(lengths)
    bins = shares.place.rank_of_sample * np.int64(plan.num_slots) + plan.slot_of_sample[shares.sample]
    tokens = np.bincount(bins, weights=shares.lengths, minlength=num_bins).astype(np.int64)
    busy = np.bincount(bins, weights=each[shares.sample] * plan.busy(shares), minlength=num_bins)
    seconds = model.throughput.seconds(busy / gpus, tokens)
    shape, useful = (plan.num_ranks, plan.num_slots), float(model.useful_flops(lengths).sum())
    seconds, tokens = seconds.reshape(shape), tokens.reshape(shape)
    if plan.cut.own_slots:  # before the first micro-batch, one degree after another without waiting
        seconds, tokens = seconds.sum(axis=1, keepdims=True), tokens.sum(axis=1, keepdims=True)
    return Computed(seconds, tokens, useful, float(each.sum()))


def span(seconds: NDArray[np.float64], cut: Cut) -> float:
    """Seconds until all ranks are done, from those of every micro-batch, float64[num_ranks, num_slots].

    Never less than the mean of what ranks compute, whatever rounding does.
    """
    return max(float(cut.span(seconds)), float(seconds.sum(axis=1).mean()))
