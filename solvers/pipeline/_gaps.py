"""One pipeline with tasks in its gaps: the best of some list schedules, which a search then makes shorter."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from solvers.errors import TimeLimitError
from solvers.groups import read_only
from solvers.pipeline._dispatch import NEVER, dispatch
from solvers.pipeline._gap_search import search_gaps
from solvers.pipeline._tasks import NO_CAP, SlotTasks, Tasks, held_by_given
from solvers.pipeline.orders import OpOrder

Ints = NDArray[np.int64]
_RULES = (
    (1, 64, 0), (2, 64, 0.01), (2, 64, 0), (1, 0, 0.1), (1, 64, 0.03), (1, 64, 0.1), (2, 0, 0), (3, 64, 0),
    (1, 64, 0.01), (1, 0, 0), (3, 64, 0.01), (1, 0, 0.01), (2, 0, 0.01), (1, 32, 0), (2, 32, 0), (4, 64, 0),
)  # fmt: skip
"""Slots ahead that are urgent, parts of 256 by which a task may exceed its gap, parts of the mean over it."""
_CAPPED = (
    (1, 128, 0.01), (2, 128, 0.005), (2, 64, 0.01), (1, 64, 0.01), (2, 128, 0.01), (1, 128, 0.005), (1, 64, 0.02),
    (3, 128, 0.01), (1, 64, 0),
)  # fmt: skip
"""The same where what is held has a cap."""
_UNITS = 160  # of work for each op of a list schedule
_SEED = 20_260_101


def no_items() -> tuple[Ints, ...]:
    """Return what the search takes where slots are given."""
    rest = (read_only(np.zeros(shape, dtype=np.int64)) for shape in ((0, 1), 1, 0, (0, 0), 1, 0))
    return (np.zeros(0, dtype=np.int64), *rest)


@dataclass(slots=True, eq=False)
class Gaps:
    """A schedule; see :mod:`solvers.pipeline._gap_search` for the arrays."""

    order: OpOrder
    hop: int
    tasks: Tasks
    given: SlotTasks
    makespan: int
    device: Ints
    starts: Ints
    slots: Ints
    ops: Ints
    sequence: Ints
    items: tuple[Any, ...]
    state: Ints

    @classmethod
    def listed(
        cls, durations: Ints, order: OpOrder, hop: int, tasks: Tasks, given: SlotTasks, items: tuple[Any, ...],
        units: int, goal: int,
    ) -> "Gaps":  # fmt: skip
        """Make list schedules for so much work, or until there is one, and keep the best.

        Raises TimeLimitError where caps let none of them go on.
        """
        k, width, n = len(durations), durations.shape[1], given.table.shape[1]
        cells, slots = read_only(order.stage + width // 2 * order.backward), read_only(order.slot)
        mean = (int(durations.sum()) + int(given.table[1:3].sum())) // order.num_devices
        rules = [(*rule, False) for rule in _RULES]
        if (tasks.caps < NO_CAP).any():
            rules = [(*rule, True) for rule in _CAPPED] + rules
        most = max(1, units // (_UNITS * (len(cells) + 2 * n)))
        best, kept, window = NEVER, (durations,) * 4, tasks.window
        while best == NEVER and window:  # the less runs ahead, the less is held
            for at, (lead, over, slack, capped) in enumerate(rules):
                if at >= most and best < NEVER:
                    break
                rule = np.array([lead, over, int(slack * mean), capped], dtype=np.int64)
                ends, device = np.empty((k, width), dtype=np.int64), np.empty(n, dtype=np.int64)
                starts, turns = np.empty((2, n), dtype=np.int64), np.empty(durations.size + 2 * n, dtype=np.int64)
                makespan = dispatch(
                    rule, durations, order.device_offsets, slots, cells, given.table, given.first, given.allowed,
                    tasks.caps, window, hop, ends, device, starts, turns,
                )  # fmt: skip
                if makespan < best:
                    best, kept = int(makespan), (ends, device, starts, turns)
                if best <= goal:
                    break
            window //= 2
        if best == NEVER:
            least = -(-held_by_given(order, given) // order.num_devices)
            raise TimeLimitError(
                f"found no schedule under {{held_cap}}; with less than {least} on every device there is none",
                "give a larger {held_cap}",
            )
        ends, device, starts, turns = kept
        ran = np.where(ends >= 0, ends - durations, -1)
        started = np.concatenate([ran.ravel(), starts.ravel()])
        ops = ops_of(durations, order, hop, given, tasks.window)
        return cls(
            order, hop, tasks, given, best, device, started, given.table[0].copy(), ops,
            _sequences(turns, device, started, order, n), items, np.array([_SEED], dtype=np.int64),
        )  # fmt: skip

    @property
    def num_ops(self) -> int:
        """Of the pipeline and the tasks."""
        return len(self.starts)

    @property
    def durations(self) -> Ints:
        """Of the pipeline's ops: int64[K, 2 S]."""
        front = self.num_ops - 2 * len(self.device)
        return np.ascontiguousarray(self.ops[:front, 0]).reshape(self.order.num_slots, -1)

    @property
    def shape(self) -> tuple[int, ...]:
        """What runs and moves know of the numbers of ops."""
        stages, slots, n = self.order.num_stages, self.order.num_slots, len(self.device)
        front = self.num_ops - 2 * n
        home = (stages - 1) % self.order.num_devices
        return front, front + n, 2 * stages, slots, self.tasks.window, self.hop, home

    def search(self, units: int, goal: int) -> int:
        """Search for so much work; returns what was done."""
        rules = self.given.table[3], self.slots, self.given.allowed, self.tasks.caps
        makespan, work = search_gaps(
            self.state, units, goal, (self.sequence, self.ops, self.device), self.starts, self.order.graph,
            self.shape, rules, self.items,
        )  # fmt: skip
        self.makespan = int(makespan)
        return int(work)


def ops_of(durations: Ints, order: OpOrder, hop: int, given: SlotTasks, window: int) -> Ints:
    """Return what the search knows of each op."""
    slots, width = durations.shape
    stages, devices, n = width // 2, order.num_devices, given.table.shape[1]
    front = slots * width
    ops = np.full((front + 2 * n, 5), -1, dtype=np.int64)
    ops[:, 0] = np.concatenate([durations.ravel(), given.table[1], given.table[2]])
    ops[:, 2] = 0
    cell = np.arange(width)
    before = np.where(cell < stages, cell - 1, np.where(cell == width - 1, stages - 1, cell + 1))
    base = np.arange(slots)[:, None] * width
    ops[:front, 1] = np.where(before >= 0, base + before, -1).ravel()
    far = (before >= 0) & (cell % stages % devices != before % stages % devices)
    ops[:front, 2] = np.tile(np.where(far, hop, 0), slots)
    ops[:front:width, 3] = np.arange(slots)
    ops[width - 1 : front : width, 3] = slots + np.arange(slots)
    slot, late = given.table[0], given.table[4] > 0
    ahead = np.where(slot >= window, (slot - window) * width, -1)
    ops[front : front + n, 1] = np.where(late, slot * width + stages - 1, ahead)
    ops[front : front + n, 4] = np.where(late, slots + slot, slot)
    ops[front + n :, 1] = slot * width + stages
    return ops


def _sequences(turns: Ints, device: Ints, starts: Ints, order: OpOrder, n: int) -> Ints:
    """Return each device's ops in turn, with room for all tasks."""
    stages, devices = order.num_stages, order.num_devices
    stage = np.tile(np.arange(2 * stages) % stages % devices, order.num_slots)
    owner = np.concatenate([stage, device, device])
    ran = np.flatnonzero(starts >= 0)
    turn = ran[np.argsort(-turns[ran], kind="stable")]
    counts = np.bincount(owner[turn], minlength=devices)
    most = np.bincount(stage, minlength=devices).max() + 2 * n
    sequence = np.zeros((devices, most + 2), dtype=np.int64)
    for d in range(devices):
        sequence[d, 0] = counts[d]
        sequence[d, 1 : counts[d] + 1] = turn[owner[turn] == d]
    return sequence
