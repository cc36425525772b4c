"""What is asked for, checked once: items and slots, and tasks that run beside them.

Modules that take the same in every stage are made one. Tasks are sorted by slot, as kernels want them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, SupportsIndex

import numpy as np
from numpy.typing import ArrayLike, NDArray

from solvers.arguments import as_costs, as_count, as_labels, unknown
from solvers.errors import ArgumentError, InfeasibilityCertificate, InfeasibleError, Named, UsageError
from solvers.groups import read_only
from solvers.pipeline.orders import OpOrder, gpipe, interleaved, one_f_one_b
from solvers.pipeline.run import MOST_TIME, Stages, as_table
from solvers.pipeline.types import PipelineRequest, TaskRequest

Ints = NDArray[np.int64]
ORDERS = ("1f1b", "gpipe")
# More than devices ever hold; a sum with what they hold fits int64.
NO_CAP = 2**60
TASK = np.dtype(
    [
        ("number", np.int64),  # which of the tasks given it is
        ("slot", np.int64),
        ("forward", np.int64),
        ("backward", np.int64),  # 0 where there is none
        ("size", np.int64),  # what it holds between both
    ]
)
"""A task, as kernels take it: one record, as they need all of it at once."""


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
    flight_caps: Ints | None  # int64[num_devices]: what may be in flight on each device
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
            flight = _as_flight(asked.in_flight_cap, asked.sizes, ops.num_devices)
        items, merged = _merge(table, stages)
        problem = cls(
            table, stages, items, merged, volumes, read_only(caps), bool(asked.allow_empty), flight, ops, replicas,
            bool(asked.tied),
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
    caps = as_costs(np.atleast_1d(np.asarray(cap)), "cap")[0]
    if len(caps) not in (1, len(table)):
        raise ArgumentError("cap", f"be one number, or one for each of {len(table)} stages", len(caps))
    return read_only(table), np.broadcast_to(caps, len(table)).astype(np.int64)


def _as_flight(given: ArrayLike, sizes: ArrayLike | None, num_devices: int) -> Ints:
    if sizes is None:
        raise UsageError("{in_flight_cap} is a cap on {sizes}: give {sizes}")
    caps = as_costs(np.atleast_1d(np.asarray(given)), "in_flight_cap")[0]
    if len(caps) not in (1, num_devices):
        raise ArgumentError("in_flight_cap", f"be one number, or one for each of {num_devices} devices", len(caps))
    return np.broadcast_to(caps, num_devices).astype(np.int64)


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


@dataclass(frozen=True, slots=True, eq=False)
class Tasks:
    """Tasks of items or slots, and the rules of their devices."""

    owner: Ints  # int64[t], read-only: the slot, or item, that each belongs to
    forward: Ints  # int64[t], read-only
    backward: Ints  # int64[t], read-only
    size: Ints  # int64[t], read-only
    allowed: NDArray[np.bool_]  # bool[t, D], read-only: on which devices each may run
    caps: Ints  # int64[D], read-only: the sizes that each device may hold between forwards and backwards
    window: int

    @classmethod
    def from_request(cls, name: str, asked: TaskRequest, num_owners: int, order: OpOrder) -> "Tasks":
        """Check; owners are called `name`. Raises TypeError, ValueError that name argument, entry and rule."""
        num_devices = order.num_devices
        begun = order.slot[(order.stage == 0) & ~order.backward]
        if (np.diff(begun) < 0).any():
            raise ArgumentError("order", "begin slots 0, 1, ... in turn, where tasks come before them", begun.tolist())
        owners = as_labels(name, asked.owner, num_owners).astype(np.int64)
        n = len(owners)
        ahead, back = _as_column("task_forward", asked.forward, n), _as_column("task_backward", asked.backward, n)
        sizes = _as_column("task_size", np.ones(n, dtype=np.int64) if asked.size is None else asked.size, n)
        spent = sum(map(int, ahead)) + sum(map(int, back))
        if spent >= MOST_TIME:
            raise UsageError(f"all tasks together must be below 2**58, got {spent}: measure times in larger units")
        if order.forward_only and back.any():
            where = int(np.argmax(back > 0))
            rule = "be 0 where the first stage has no backward: no gradient comes to a task"
            raise ArgumentError("task_backward", rule, back[where], where)
        caps = _as_held_caps(asked.held_cap, num_devices)
        allowed = _as_allowed(asked.devices, n, num_devices)
        over = (back > 0) & ~(allowed & (sizes[:, None] <= caps)).any(axis=1)
        if over.any():
            where = int(np.argmax(over))
            raise ArgumentError(
                "task_size", "be at most what {held_cap} is on some device where the task may run", sizes[where], where
            )
        return cls(
            read_only(owners), read_only(ahead), read_only(back), sizes, read_only(allowed), read_only(caps),
            as_count("window", asked.window),
        )  # fmt: skip

    def of_slots(self, slot: Ints, num_slots: int, chosen: Ints) -> "SlotTasks":
        """Return the tasks with these numbers, in the slots given, in the order in which kernels want them."""
        order = np.lexsort((-self.forward[chosen], slot))
        number = chosen[order]
        each = np.empty(len(order), dtype=TASK)
        each["number"], each["slot"] = order, slot[order]
        for name in ("forward", "backward", "size"):
            each[name] = getattr(self, name)[number]
        first = np.searchsorted(each["slot"], np.arange(num_slots + 1)).astype(np.int64)
        return SlotTasks(read_only(each), read_only(self.allowed[number]), read_only(first), self.caps)

    def check_room(self, order: OpOrder, least: int) -> None:
        """Raise InfeasibleError where what all devices of a pipeline must hold at once is more than they may."""
        room = sum(map(int, self.caps))
        if least > room:
            raise InfeasibleError(
                f"slots that are at once between forward and backward in the first stage have tasks that hold {least}, "
                f"over the {room} of all devices under {{held_cap}}",
                InfeasibilityCertificate("held_cap", [], range(order.num_devices), least, room),
                f"give {{held_cap}} = {-(-least // order.num_devices)} or more on every device",
            )


class SlotTasks(NamedTuple):
    """Tasks of one pipeline, sorted by slot, longest forward first, as kernels take them. Read-only."""

    each: NDArray[np.void]  # TASK[t]
    allowed: NDArray[np.bool_]  # bool[t, D]: on which devices it may run
    first: Ints  # int64[K + 1]: where those of each slot begin
    caps: Ints  # int64[D]: the sizes that each device may hold


def held_by_given(order: OpOrder, tasks: "SlotTasks") -> int:
    """Return what any schedule of these slots holds at once on all devices together.

    A slot's tasks are held while it is between its forward and its backward in the first stage, whatever runs where.
    """
    held = np.zeros(order.num_slots, dtype=np.int64)
    each = tasks.each
    np.add.at(held, each["slot"], np.where(each["backward"] > 0, each["size"], 0))
    return max((sum(int(held[k]) for k in slots) for slots in in_flight_sets(order)), default=0)


def held_by_any(order: OpOrder, tasks: Tasks, num_replicas: int) -> int:
    """Return what any schedule of any slots holds at once on all devices of some replica.

    Of sets of slots that are in flight together, and in which every slot is, one holds its share at least.
    """
    # few sets that cover all slots: the latest that has the next slot goes furthest
    sets, cover, seen = in_flight_sets(order), 0, set[int]()
    for slot in range(order.num_slots):
        if slot not in seen and sets:
            seen.update(next(each for each in reversed(sets) if slot in each))
            cover += 1
    total = sum(map(int, tasks.size[tasks.backward > 0]))
    return -(-total // (cover * num_replicas)) if cover else 0


def in_flight_sets(order: OpOrder) -> list[list[int]]:
    """Return which slots are at once between forward and backward in the first stage, wherever these are most."""
    found: list[list[int]] = []
    now: list[int] = []
    grew = False
    for slot, stage, back in order.ops_of(0):
        if stage == 0 and not back:
            now, grew = [*now, slot], True
        elif stage == 0:
            found += [now] if grew else []
            now, grew = [k for k in now if k != slot], False
    return found


def _as_held_caps(held_cap: ArrayLike | None, num_devices: int) -> Ints:
    if held_cap is None:
        return np.full(num_devices, NO_CAP)
    caps = as_costs(np.atleast_1d(np.asarray(held_cap)), "held_cap")[0]
    if len(caps) not in (1, num_devices):
        raise ArgumentError("held_cap", f"be one number, or one for each of {num_devices} devices", len(caps))
    return np.broadcast_to(caps, num_devices).astype(np.int64)


def _as_column(name: str, values: ArrayLike, n: int) -> Ints:
    column = as_costs(values, name)[0]
    if len(column) != n:
        raise ArgumentError(name, f"hold one for each of {n} tasks", len(column))
    return column


def _as_allowed(devices: ArrayLike | str, n: int, num_devices: int) -> NDArray[np.bool_]:
    if isinstance(devices, str):
        if devices == "any":
            return np.ones((n, num_devices), dtype=np.bool_)
        if devices == "all":
            raise UsageError(
                "task_devices='all': a task on all devices at once stops the whole pipeline twice in every slot, and "
                "devices that come to it in different orders wait for each other forever",
                "give task_devices='any' (every device has the encoder), or run it before the pipeline",
            )
        raise ArgumentError("task_devices", f"be 'any' or a table of booleans [{n}, {num_devices}]", repr(devices))
    table = np.asarray(devices)
    if table.dtype != np.bool_ or table.shape != (n, num_devices):
        raise ArgumentError("task_devices", f"be 'any' or a table of booleans [{n}, {num_devices}]", table.shape)
    if not table.any(axis=1).all():
        where = int(np.argmin(table.any(axis=1)))
        raise ArgumentError("task_devices", "allow every task a device", "none", where)
    return table
