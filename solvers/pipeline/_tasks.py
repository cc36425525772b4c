"""Tasks beside a pipeline, checked once, and sorted by slot as kernels want them."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from solvers.arguments import as_costs, as_count, as_labels
from solvers.errors import ArgumentError, InfeasibilityCertificate, InfeasibleError, UsageError
from solvers.groups import read_only
from solvers.pipeline._flight import moments
from solvers.pipeline.orders import OpOrder
from solvers.pipeline.run import MOST_TIME, as_each
from solvers.pipeline.types import TaskRequest

Ints = NDArray[np.int64]
NO_CAP = 2**60
"""More than devices ever hold; a sum with what they hold fits int64."""
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
        caps = np.full(num_devices, NO_CAP)
        if asked.held_cap is not None:
            caps = as_each("held_cap", asked.held_cap, num_devices, "devices")
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
    return max((sum(int(held[k]) for k in slots) for slots in _in_flight(order)), default=0)


def held_by_any(order: OpOrder, tasks: Tasks, num_replicas: int) -> int:
    """Return what any schedule of any slots holds at once on all devices of some replica.

    Of sets of slots that are in flight together, and in which every slot is, one holds its share at least.
    """
    # few sets that cover all slots: the latest that has the next slot goes furthest
    sets, cover, seen = _in_flight(order), 0, set[int]()
    for slot in range(order.num_slots):
        if slot not in seen and sets:
            seen.update(next(each for each in reversed(sets) if slot in each))
            cover += 1
    total = sum(map(int, tasks.size[tasks.backward > 0]))
    return -(-total // (cover * num_replicas)) if cover else 0


def _in_flight(order: OpOrder) -> list[list[int]]:
    """Return which slots are at once between forward and backward in the first stage, wherever these are most."""
    first = np.arange(0, order.num_stages, order.num_devices)
    return [np.flatnonzero(held[:, 0]).tolist() for held in moments(order, 0, first) if held[:, 0].any()]


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
