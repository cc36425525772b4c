"""What the devices of a pipeline send each other: read off the lists of their ops, and matched before the first send.

A message is known by its key: what it is (``"output"`` or ``"gradient"``), the slot, and the stage that computed what
it carries, or the sample and part of a task. Every process reads the lists of all devices, so that the receiver knows
in which order messages come from each sender.
"""

from collections.abc import Collection, Iterator, Sequence

from balancer.plan.gaps import DeviceOp
from solvers.errors import UsageError

__all__ = ["Key", "Messages", "named"]

Key = tuple[str, int, int, int]
"""What a message is, its slot, its stage or -1 - part of a task, and its sample or -1."""


def named(op: DeviceOp) -> str:
    """Say what an op is, for an error."""
    what = f"the {'backward' if op.backward else 'forward'} of slot {op.slot}"
    return f"{what} in stage {op.stage}" if op.stage is not None else f"{what}, sample {op.sample}, part {op.part}"


def _of_task(what: str, op: DeviceOp) -> Key:
    return what, op.slot, -1 - op.part, -1 if op.sample is None else op.sample


class Messages:
    """The messages of one replica's step.

    `lists` are those of all devices, `filled` the slots that have samples: the ops of others are left out. UsageError
    names ops that would wait for each other, or for what nobody sends.
    """

    def __init__(self, lists: Sequence[Sequence[DeviceOp]], filled: Collection[int], num_stages: int) -> None:
        self.lists = [[op for op in ops if op.slot in filled] for ops in lists]
        self.num_stages = num_stages
        self.tasks: dict[int, list[DeviceOp]] = {}  # the forwards of each slot's tasks, by sample and part
        self._trained: set[tuple[int, int]] = set()  # slots and stages that have backwards
        self._device: dict[Key, int] = {}  # of tasks
        for device, ops in enumerate(self.lists):
            for op in ops:
                if op.stage is not None:
                    self._trained |= {(op.slot, op.stage)} if op.backward else set()
                elif not op.backward:
                    self.tasks.setdefault(op.slot, []).append(op)
                    self._device[_of_task("output", op)] = device
        for of_slot in self.tasks.values():
            of_slot.sort(key=lambda op: (op.sample or 0, op.part))
        self._check()

    def needs(self, op: DeviceOp) -> list[Key]:
        """Return what an op waits for."""
        if op.stage is None:
            return [_of_task("gradient", op)] if op.backward else []
        if op.backward:
            return [("gradient", op.slot, op.stage, -1)] if op.stage < self.num_stages - 1 else []
        if op.stage:
            return [("output", op.slot, op.stage - 1, -1)]
        return [_of_task("output", task) for task in self.tasks.get(op.slot, ())]

    def makes(self, op: DeviceOp) -> list[tuple[Key, int]]:
        """Return what an op sends, and to which device each goes."""
        devices = len(self.lists)
        if op.stage is None:
            return [] if op.backward else [(_of_task("output", op), 0)]
        if not op.backward:
            last = op.stage == self.num_stages - 1
            return [] if last else [(("output", op.slot, op.stage, -1), (op.stage + 1) % devices)]
        if op.stage:
            trained = (op.slot, op.stage - 1) in self._trained
            return [(("gradient", op.slot, op.stage - 1, -1), (op.stage - 1) % devices)] if trained else []
        tasks = [task for task in self.tasks.get(op.slot, ()) if task.kind != "none"]
        return [(_of_task("gradient", task), self._device[_of_task("output", task)]) for task in tasks]

    def between(self, source: int, target: int) -> Iterator[Key]:
        """Yield what one device sends another, in its order."""
        for op in self.lists[source]:
            for key, device in self.makes(op):
                if device == target:
                    yield key

    def _check(self) -> None:
        """Run the lists without their work: sends end at once, and an op begins when all that it needs was sent."""
        sent: set[tuple[Key, int]] = set()
        turn, waits = [0] * len(self.lists), True
        while waits:
            waits = False
            for device, ops in enumerate(self.lists):
                while turn[device] < len(ops) and all((key, device) in sent for key in self.needs(ops[turn[device]])):
                    sent.update(self.makes(ops[turn[device]]))
                    turn[device], waits = turn[device] + 1, True
        if stuck := [(d, ops[turn[d]]) for d, ops in enumerate(self.lists) if turn[d] < len(ops)]:
            what = "; ".join(f"device {device} waits in {named(op)}" for device, op in stuck[:4])
            raise UsageError(f"the lists of ops would wait for each other: {what}")
        wanted = {(key, device) for device, ops in enumerate(self.lists) for op in ops for key in self.needs(op)}
        if left := sorted(sent - wanted):
            (what, slot, _, _), device = left[0]
            raise UsageError(f"the lists of ops send device {device} the {what} of slot {slot}, for which it has no op")
