"""The exact run of a pipeline: what its stages take, when each op ends, what waits, what is held.

Durations are int64[K, 2 S]: of each slot its forwards in stages 0 to S - 1, then its backwards. An order's graph is
int64[4, T], ops in an order in which each comes after what it waits for: its cell in the durations, the op before it on
its device, the op of the same slot that it follows (-1: none), and whether what that sends has to hop.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from solvers._jit import helper, kernel
from solvers.arguments import as_costs, as_integer
from solvers.errors import ArgumentError, UsageError
from solvers.groups import read_only
from solvers.pipeline.orders import OpOrder
from solvers.pipeline.types import PipelineRequest
from solvers.types import Record

Ints = NDArray[np.int64]
MOST_TIME = 2**58
"""All ops of a step together take less, so that no sum of theirs leaves int64."""


class Pipe(NamedTuple):
    """What ops take, and in which order they run, as kernels want it. Read-only."""

    unit: Ints  # int64[M, 2 S]: time of one unit of each module's work in every forward and backward
    fixed: Ints  # int64[2 S]: what each takes besides
    graph: Ints  # int64[4, T]: see above
    hop: int


@dataclass(frozen=True, slots=True, eq=False)
class Stages:
    """What ops take."""

    # int64[M, 2 S], read-only: time of one unit of each module's work in the forward of each stage, then in the
    # backward
    unit: Ints
    fixed: Ints  # int64[2 S], read-only: what each takes besides, in every slot
    hop: int  # what passes between the end of an op and the start of the next stage's on another device
    forward_only: int  # so many first stages have no backward: all that is in them and before them takes none

    @property
    def num_stages(self) -> int:
        """S."""
        return len(self.fixed) // 2

    @classmethod
    def from_request(cls, asked: PipelineRequest) -> "Stages":
        """Check those of a request. Raises TypeError or ValueError that name argument, entry and rule."""
        ahead = as_table("forward", asked.forward)
        modules, stages = ahead.shape
        if modules < 1 or stages < 1:
            raise ArgumentError("forward", "have the shape (M, S), a row for each module", ahead.shape)
        back, fixed = as_table("backward", asked.backward, (modules, stages), "forward"), []
        for name in ("forward_overhead", "backward_overhead"):
            given = getattr(asked, name)
            fixed.append(as_costs(np.zeros(stages, dtype=np.int64) if given is None else given, name)[0])
            if len(fixed[-1]) != stages:
                raise ArgumentError(name, f"hold one for each of {stages} stages", len(fixed[-1]))
        # stages before the first that takes any time backwards are frozen, and so is all before them
        trained = (back.max(axis=0) + fixed[1]) > 0
        lead = int(np.argmax(trained)) if trained.any() else stages
        return cls(
            read_only(np.hstack([ahead, back])), read_only(np.concatenate(fixed)), as_integer("hop", asked.hop), lead
        )

    def check_sums(self, totals: Ints, num_slots: int) -> None:
        """Raise UsageError where all ops of `num_slots` slots with these loads together take too long."""
        busy = sum(int(t) * int(u) for t, u in zip(totals, self.unit.sum(axis=1, dtype=object), strict=True))
        every = sum(self.fixed.tolist()) + 2 * self.num_stages * self.hop
        if busy + num_slots * every >= MOST_TIME:
            raise UsageError(
                f"all forwards and backwards, overheads and hops together must be below 2**58, got "
                f"{busy + num_slots * every}: measure times in larger units"
            )

    def durations(self, loads: Ints) -> Ints:
        """Return what every op takes: int64[K, 2 S]."""
        durations = np.empty((len(loads), len(self.fixed)), dtype=np.int64)
        durations_of_kernel(read_only(loads), self.unit, self.fixed, durations)
        return durations


def as_table(name: str, values: ArrayLike, shape: tuple[int, int] | None = None, like: str = "") -> Ints:
    """Return int64 of two dimensions, non-negative, of a given shape if there is one."""
    try:
        array = np.asarray(values)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ArgumentError(name, "be rows of integers", str(error)) from None
    if array.ndim != 2 or (shape is not None and array.shape != shape):
        rule = "have two dimensions" if shape is None else f"have the shape {shape} of {{{like}}}"
        raise ArgumentError(name, rule, array.shape)
    flat, _, _ = as_costs(array.reshape(-1), name)
    return read_only(flat.reshape(array.shape))


def as_each(name: str, given: ArrayLike, count: int, what: str) -> Ints:
    """Return int64[count], non-negative, from one number for all or one for each."""
    values = as_costs(np.atleast_1d(np.asarray(given)), name)[0]
    if len(values) not in (1, count):
        raise ArgumentError(name, f"be one number, or one for each of {count} {what}", len(values))
    return np.broadcast_to(values, count).astype(np.int64)


@helper
def durations_of(loads, unit, fixed, durations):
    """Set the duration of every op: ``fixed``, int64[2 S], and what the loads, int64[K, M], take by ``unit``."""
    for k in range(loads.shape[0]):
        for j in range(len(fixed)):
            durations[k, j] = fixed[j]
        for m in range(loads.shape[1]):
            load = loads[k, m]
            for j in range(len(fixed)):
                durations[k, j] += load * unit[m, j]


durations_of_kernel = kernel(durations_of)


@helper
def ends_from(begin, graph, durations, hop, ends):
    """Set the end of every op from one of them on, where those before it are set; return the largest of all. O(T)."""
    cells, before, follows, hops = graph[0], graph[1], graph[2], graph[3]
    flat, makespan = durations.reshape(-1), np.int64(0)
    for op in range(begin):
        makespan = max(makespan, ends[op])
    for op in range(begin, len(ends)):
        start = np.int64(0)
        if before[op] >= 0:
            start = ends[before[op]]
        if follows[op] >= 0:
            start = max(start, ends[follows[op]] + hop * hops[op])
        ends[op] = start + flat[cells[op]]
        makespan = max(makespan, ends[op])
    return makespan


@helper
def all_ends(graph, durations, hop, ends):
    """Set the end of every op; return the largest. O(T)."""
    return ends_from(0, graph, durations, hop, ends)


all_ends_kernel = kernel(all_ends)


@helper
def critical_path(graph, durations, ends, path):
    """Follow one longest path from its end, along the device where two are as long; 1 or 2 in ``path`` for every op.

    1: it comes from the op before it on its device, or is the first; 2: from the op of the same slot; 0: not on it.
    """
    cells, before, follows = graph[0], graph[1], graph[2]
    flat = durations.reshape(-1)
    op = 0
    for other in range(len(ends)):
        path[other] = 0
        if ends[other] > ends[op]:
            op = other
    while op >= 0:
        # what this op waited for last is what ends just as it starts (with the hop between)
        start = ends[op] - flat[cells[op]]
        if before[op] >= 0 and ends[before[op]] == start:
            path[op] = 1
            op = before[op]
        elif before[op] < 0 and start == 0:
            path[op] = 1
            op = -1
        else:
            path[op] = 2
            op = follows[op]


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
    asked = PipelineRequest(
        loads, forward, backward, forward_overhead=forward_overhead, backward_overhead=backward_overhead, hop=hop
    )
    stages = Stages.from_request(asked)
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
    # a slot is held from its forward to its backward, but in frozen stages not at all
    signed = volumes[order.slot, order.stage] * np.where(order.backward, -1, 1)
    signed[order.stage < order.forward_only] = 0
    most = np.zeros(order.num_devices, dtype=np.int64)
    for d in range(order.num_devices):
        here = slice(order.device_offsets[d], order.device_offsets[d + 1])
        most[d] = max(0, int(np.cumsum(signed[here]).max(initial=0)))
    return most
