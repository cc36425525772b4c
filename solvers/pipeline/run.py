"""The exact run of a pipeline: when each forward and backward ends, what waits, what is held."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from solvers.errors import ArgumentError
from solvers.pipeline._kernels import all_ends_kernel
from solvers.pipeline._stages import Stages, as_table
from solvers.pipeline.orders import OpOrder
from solvers.types import Record


@dataclass(frozen=True, slots=True, eq=False)
class PipelineRun(Record):
    """One step of one pipeline, exactly.

    Attributes
    ----------
    makespan : int
        When the last op ends; the first starts at 0.
    forward_start, forward_end, backward_start, backward_end : int64[K, S], read-only
        When the ops of each slot start and end in each stage. Where a stage has no backward, -1.
    busy : int64[D], read-only
        Time that each device spends in ops.
    idle : int64[D], read-only
        The rest of `makespan`: waiting for others, and before the first op and after the last.
    in_flight : int64[D], read-only
        The most that is held on each device at once between forward and backward: stages of slots, or their sizes.
    """

    makespan: int
    forward_start: NDArray[np.int64]
    forward_end: NDArray[np.int64]
    backward_start: NDArray[np.int64]
    backward_end: NDArray[np.int64]
    busy: NDArray[np.int64]
    idle: NDArray[np.int64]
    in_flight: NDArray[np.int64]

    @property
    def bubble(self) -> float:
        """Idle time of all devices as a part of all their time; 0.0 if nothing takes any."""
        return float(self.idle.sum() / (len(self.idle) * self.makespan)) if self.makespan else 0.0


def run(
    loads: ArrayLike,
    forward: ArrayLike,
    backward: ArrayLike,
    order: OpOrder,
    *,
    forward_overhead: ArrayLike | None = None,
    backward_overhead: ArrayLike | None = None,
    hop: int = 0,
    sizes: ArrayLike | None = None,
) -> PipelineRun:
    """Run the slots of one replica through its pipeline, every op as early as its order lets it.

    Parameters
    ----------
    loads : int64[K, M]
        Work of each slot in each module.
    forward, backward : int64[M, S]
        Time of one unit of a module's work in each stage. First stages whose backward takes nothing have none.
    order : OpOrder
        Such as :func:`solvers.pipeline.one_f_one_b`.
    forward_overhead, backward_overhead : int64[S], optional
        What an op takes besides, in every slot.
    hop : int
        What passes between the end of an op and the start of the next on another device, for the same slot.
    sizes : int64[K] or int64[K, S], optional
        What each slot holds in every stage, or in each; by default 1.

    Returns
    -------
    PipelineRun

    Raises
    ------
    TypeError, ValueError
        Arguments of the wrong type or shape, negative, or of sums that do not fit.

    Examples
    --------
    >>> from solvers.pipeline import one_f_one_b
    >>> found = run([[2], [4]], [[1, 1]], [[2, 2]], one_f_one_b(2, 2))
    >>> found.makespan, found.idle.tolist(), found.in_flight.tolist(), found.backward_end.tolist()
    (28, [10, 10], [2, 1], [[12, 8], [28, 20]])
    """
    stages = Stages.of(forward, backward, forward_overhead, backward_overhead, hop)
    table = as_table("loads", loads)
    if table.shape != (order.num_slots, len(stages.unit)):
        raise ArgumentError("loads", f"have the shape ({order.num_slots}, {len(stages.unit)})", table.shape)
    if stages.num_stages != order.num_stages:
        raise ArgumentError("forward", f"be of the {order.num_stages} stages of {{order}}", stages.num_stages)
    if order.forward_only > stages.forward_only:
        raise ArgumentError("order", f"have backwards in the stages from {stages.forward_only} on", order.forward_only)
    stages.check_sums(table.sum(axis=0, dtype=object), order.num_slots)
    volumes = np.ones((order.num_slots, order.num_stages), dtype=np.int64)
    if sizes is not None:
        one = np.asarray(sizes).ndim == 1
        given = as_table("sizes", np.asarray(sizes)[:, None] if one else sizes)
        if len(given) != order.num_slots or not (one or given.shape == volumes.shape):
            raise ArgumentError("sizes", f"have the shape ({order.num_slots},) or {volumes.shape}", given.shape)
        volumes = volumes * given
    durations = stages.durations(table)
    ends = np.empty(len(order.slot), dtype=np.int64)
    makespan = int(all_ends_kernel(order.graph, durations, stages.hop, ends))
    both = np.full((order.num_slots, 2 * order.num_stages), -1, dtype=np.int64)
    cells = order.slot * 2 * order.num_stages + order.backward * order.num_stages + order.stage
    both.reshape(-1)[cells] = ends[order.place]
    starts = np.where(both >= 0, both - durations, -1)
    busy = np.zeros(order.num_devices, dtype=np.int64)
    np.add.at(busy, order.stage % order.num_devices, durations.reshape(-1)[cells])
    s = order.num_stages
    return PipelineRun(
        makespan, starts[:, :s].copy(), both[:, :s].copy(), starts[:, s:].copy(), both[:, s:].copy(), busy,
        makespan - busy, _most_in_flight(volumes, order),
    )  # fmt: skip


def _most_in_flight(volumes: NDArray[np.int64], order: OpOrder) -> NDArray[np.int64]:
    """Return the most that each device holds at once, ``volumes``, int64[K, S], being what a slot holds in a stage."""
    signed = volumes[order.slot, order.stage] * np.where(order.backward, -1, 1)
    signed[order.stage < order.forward_only] = 0
    most = np.zeros(order.num_devices, dtype=np.int64)
    for d in range(order.num_devices):
        here = slice(order.device_offsets[d], order.device_offsets[d + 1])
        most[d] = max(0, int(np.cumsum(signed[here]).max(initial=0)))
    return most
