"""What is asked of pipelines, checked once. Modules that take the same in every stage are made one."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import SupportsIndex

import numpy as np
from numpy.typing import ArrayLike, NDArray

from solvers.arguments import as_costs, as_count, unknown
from solvers.errors import ArgumentError, InfeasibilityCertificate, InfeasibleError, Named, UsageError
from solvers.groups import read_only
from solvers.pipeline._flight import FlightSets
from solvers.pipeline.orders import OpOrder, gpipe, interleaved, one_f_one_b
from solvers.pipeline.run import Stages, as_each, as_table
from solvers.pipeline.types import PipelineRequest

Ints = NDArray[np.int64]
ORDERS = ("1f1b", "gpipe")


@dataclass(frozen=True, slots=True, eq=False)
class PipelineProblem:
    """Checked."""

    work: Ints  # int64[n, M], read-only: as given
    stages: Stages  # as given
    # int64[M', n], read-only: work by module; modules that are alike in all stages are added up, modules that take no
    # time are left out
    items: Ints
    merged: Stages  # of these modules
    sizes: Ints  # int64[C, n], read-only: what items hold
    caps: Ints  # int64[C], read-only: what a slot may hold of each
    may_be_empty: bool  # whether a slot may hold no item
    flight: FlightSets  # what may be in flight on each device
    order: OpOrder
    num_replicas: int
    tied: bool

    @property
    def num_slots(self) -> int:
        """K."""
        return self.order.num_slots

    @property
    def num_cells(self) -> int:
        """Slots of all replicas."""
        return self.num_replicas * self.num_slots

    @classmethod
    def from_request(cls, asked: PipelineRequest) -> "PipelineProblem":
        """Check what :func:`solvers.schedule_pipeline` takes."""
        stages = Stages.from_request(asked)
        table = as_table("work", asked.work)
        if table.shape[1] != len(stages.unit):
            raise ArgumentError("work", f"have a column for each of {len(stages.unit)} modules", table.shape)
        replicas, slots = as_count("num_replicas", asked.num_replicas), as_count("num_slots", asked.num_slots)
        multiple = as_count("slots_multiple_of", asked.slots_multiple_of)
        if slots % multiple:
            rule = f"be a multiple of {{slots_multiple_of}} = {multiple}"
            raise ArgumentError("num_slots", rule, slots, remedy=f"give {slots + -slots % multiple}")
        ops = as_order(asked.order, asked.chunks, slots, stages)
        stages.check_sums(table.sum(axis=0, dtype=object), replicas * slots)
        volumes, caps = _as_caps(asked.sizes, asked.cap, len(table), stages.num_stages)
        flight = None
        if asked.in_flight_cap is not None:
            if asked.sizes is None:
                raise UsageError("{in_flight_cap} is a cap on {sizes}: give {sizes}")
            flight = as_each("in_flight_cap", asked.in_flight_cap, ops.num_devices, "devices")
        items, merged = _merge(table, stages)
        problem = cls(
            table, stages, items, merged, volumes, read_only(caps), bool(asked.allow_empty),
            FlightSets.of(ops, flight, len(volumes)), ops, replicas, bool(asked.tied),
        )  # fmt: skip
        return problem.checked()

    def checked(self) -> "PipelineProblem":
        """Raise InfeasibleError where items are too few, too large, or too large together; else return this."""
        n, cells = len(self.work), self.num_cells
        if n < cells and not self.may_be_empty:
            raise InfeasibleError(
                f"{n} {{items}} are too few for {self.num_slots} slots on each of {self.num_replicas} replicas: one of "
                f"{cells} slots would be empty",
                InfeasibilityCertificate("allow_empty", range(n), range(cells), cells, n),
                "give fewer {num_slots}, or {allow_empty=True}",
            )
        for column, cap in zip(self.sizes, self.caps.tolist(), strict=True):
            if n and int(column.max()) > cap:
                item = int(np.argmax(column > cap))
                raise InfeasibleError(
                    f"{{item}} has size {column[item]}, over {{cap}} = {cap} by {column[item] - cap}",
                    InfeasibilityCertificate("cap", [item], [], int(column[item]), cap),
                    item=Named("item", item),
                )
            if int(column.sum()) > cap * cells:
                raise InfeasibleError(
                    f"the {n} {{items}} are of size {int(column.sum())}, and {cells} slots hold {cap * cells} under "
                    f"{{cap}} = {cap}",
                    InfeasibilityCertificate("cap", range(n), range(cells), int(column.sum()), cap * cells),
                    "give more {num_slots}, or a larger {cap}",
                )
        return self


def as_order(order: str | OpOrder, chunks: SupportsIndex, num_slots: int, stages: Stages) -> OpOrder:
    """Return an order by its name, or one that is given, if it is of so many slots and these stages."""
    parts = as_count("chunks", chunks)
    if isinstance(order, OpOrder):
        if (order.num_slots, order.num_stages) != (num_slots, stages.num_stages):
            rule = f"be of {num_slots} slots and {stages.num_stages} stages"
            raise ArgumentError("order", rule, f"{order.num_slots} and {order.num_stages}")
        if order.forward_only > stages.forward_only:
            raise ArgumentError(
                "order", f"have backwards in the stages from {stages.forward_only} on", order.forward_only
            )
        if parts > 1 and order.num_devices * parts != order.num_stages:
            raise ArgumentError("chunks", f"be {order.num_stages // order.num_devices} as in {{order}}", parts)
        return order
    if order not in ORDERS:
        raise unknown("order", order, ORDERS)
    if parts == 1:
        made = one_f_one_b if order == "1f1b" else gpipe
        return made(num_slots, stages.num_stages, stages.forward_only)
    if order != "1f1b":
        raise UsageError("{chunks} > 1 are interleaved, which is an {order} of '1f1b'")
    if stages.num_stages % parts:
        raise ArgumentError("chunks", f"divide the {stages.num_stages} stages", parts)
    return interleaved(num_slots, stages.num_stages // parts, parts, stages.forward_only)


def _as_caps(sizes: ArrayLike | None, cap: ArrayLike | None, n: int, num_stages: int) -> tuple[Ints, Ints]:
    """Return sizes, int64[C, n], and the cap of each row; C is 0 where nothing is given."""
    if sizes is None:
        if cap is not None:
            raise UsageError("{cap} is a cap on {sizes}: give {sizes}")
        return read_only(np.zeros((0, n), dtype=np.int64)), np.zeros(0, dtype=np.int64)
    one = np.asarray(sizes).ndim == 1
    table = as_costs(sizes, "sizes")[0][None, :] if one else as_table("sizes", sizes).T
    if table.shape[1] != n or (not one and len(table) != num_stages):
        raise ArgumentError("sizes", f"have the shape ({n},) or ({n}, {num_stages})", table.T.shape)
    total = max((sum(map(int, row)) for row in table), default=0)
    if total >= 2**58:
        raise UsageError(f"the sum of {{sizes}} must be below 2**58, got {total}")
    if cap is None:
        return read_only(table), np.full(len(table), max(1, total), dtype=np.int64)
    return read_only(table), as_each("cap", cap, len(table), "stages")


def _merge(work: Ints, stages: Stages) -> tuple[Ints, Stages]:
    """Add up modules whose rows of `stages.unit` are the same, and leave out modules that take nothing."""
    alike: dict[bytes, list[int]] = {}
    for m, row in enumerate(stages.unit):
        if row.any():
            alike.setdefault(row.tobytes(), []).append(m)
    groups: Sequence[list[int]] = list(alike.values()) or [[0]]
    items = np.stack([work[:, group].sum(axis=1) for group in groups])
    unit = stages.unit[[group[0] for group in groups]]
    return read_only(items), Stages(read_only(unit), stages.fixed, stages.hop, stages.forward_only)
