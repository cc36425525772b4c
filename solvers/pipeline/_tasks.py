"""Tasks that run beside a pipeline, checked once and sorted by slot."""

from dataclasses import dataclass
from typing import SupportsIndex

import numpy as np
from numpy.typing import ArrayLike, NDArray

from solvers.arguments import as_costs, as_count, as_labels
from solvers.errors import ArgumentError, UsageError
from solvers.groups import read_only
from solvers.pipeline._stages import MOST_TIME
from solvers.pipeline.orders import OpOrder

__all__ = ["NO_CAP", "Tasks"]

Ints = NDArray[np.int64]
NO_CAP = 2**60


@dataclass(frozen=True, slots=True, eq=False)
class Tasks:
    """Tasks of items or slots, and the rules of their devices.

    Attributes
    ----------
    owner : int64[t], read-only
        The slot, or item, that each belongs to.
    forward, backward, size : int64[t], read-only
    allowed : bool[t, D], read-only
        On which devices each may run.
    caps : int64[D], read-only
        The sizes that each device may hold between forwards and backwards.
    window : int
    """

    owner: Ints
    forward: Ints
    backward: Ints
    size: Ints
    allowed: NDArray[np.bool_]
    caps: Ints
    window: int

    @classmethod
    def of(
        cls, name: str, owner: ArrayLike, num_owners: int, forward: ArrayLike, backward: ArrayLike,
        size: ArrayLike | None, devices: ArrayLike | str, held_cap: ArrayLike | None, window: SupportsIndex,
        order: OpOrder,
    ) -> "Tasks":  # fmt: skip
        """Check. Raises TypeError, ValueError that name argument, entry and rule."""
        num_devices = order.num_devices
        begun = order.slot[(order.stage == 0) & ~order.backward]
        if (np.diff(begun) < 0).any():
            raise ArgumentError("order", "begin slots 0, 1, ... in turn, where tasks come before them", begun.tolist())
        owners = as_labels(name, owner, num_owners).astype(np.int64)
        n = len(owners)
        ahead, back = _as_column("task_forward", forward, n), _as_column("task_backward", backward, n)
        sizes = _as_column("task_size", np.ones(n, dtype=np.int64) if size is None else size, n)
        spent = sum(map(int, ahead)) + sum(map(int, back))
        if spent >= MOST_TIME:
            raise UsageError(f"all tasks together must be below 2**58, got {spent}: measure times in larger units")
        if order.forward_only and back.any():
            where = int(np.argmax(back > 0))
            rule = "be 0 where the first stage has no backward: no gradient comes to a task"
            raise ArgumentError("task_backward", rule, back[where], where)
        caps = np.full(num_devices, NO_CAP)
        if held_cap is not None:
            caps = as_costs(np.atleast_1d(np.asarray(held_cap)), "held_cap")[0]
            if len(caps) not in (1, num_devices):
                raise ArgumentError("held_cap", f"be one number, or one for each of {num_devices} devices", len(caps))
            caps = np.broadcast_to(caps, num_devices).astype(np.int64)
        allowed = _as_allowed(devices, n, num_devices)
        over = (back > 0) & ~(allowed & (sizes[:, None] <= caps)).any(axis=1)
        if over.any():
            where = int(np.argmax(over))
            raise ArgumentError(
                "task_size", "be at most what {held_cap} is on some device where the task may run", sizes[where], where
            )
        return cls(
            read_only(owners), ahead, back, sizes, read_only(allowed), read_only(caps), as_count("window", window)
        )

    def of_slots(self, slot: Ints, num_slots: int, chosen: Ints) -> "SlotTasks":
        """Return the tasks with these numbers, in the slots given, in the order in which kernels want them."""
        order = np.lexsort((-self.forward[chosen], slot))
        number = chosen[order]
        table = np.stack([slot[order], self.forward[number], self.backward[number], self.size[number]])
        first = np.searchsorted(table[0], np.arange(num_slots + 1)).astype(np.int64)
        return SlotTasks(order, read_only(table), read_only(first), read_only(self.allowed[number]))


@dataclass(frozen=True, slots=True, eq=False)
class SlotTasks:
    """Tasks of one pipeline, sorted by slot, longest first.

    Attributes
    ----------
    order : int64[t]
        Which of those given each is.
    table : int64[4, t], read-only
        Slot, forward, backward, size.
    first : int64[K + 1], read-only
        Where those of each slot begin.
    allowed : bool[t, D], read-only
    """

    order: Ints
    table: Ints
    first: Ints
    allowed: NDArray[np.bool_]


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
