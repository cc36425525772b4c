"""Op orders: which forward or backward each device of a pipeline runs after which, and that none waits for itself."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from solvers._jit import kernel
from solvers.arguments import as_count
from solvers.errors import ArgumentError, UsageError
from solvers.groups import read_only
from solvers.types import Record

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class OpOrder(Record):
    """The ops of every device in the order in which it runs them, free of deadlock; see :meth:`of`.

    Attributes
    ----------
    name : str
    num_slots, num_stages : int
        K and S; a stage is one of the model's, several of which may be on one device.
    num_devices : int
        Stage s is on device ``s % num_devices``.
    forward_only : int
        So many stages, the first ones, run no backward: nothing in them or before them is trained.
    device_offsets : int64[num_devices + 1], read-only
        The ops of device d are numbers ``device_offsets[d]`` to ``device_offsets[d + 1] - 1``.
    slot, stage, backward : int64[T], int64[T], bool[T], read-only
        Of each op.
    graph : int64[4, T], read-only
        Ops sorted so that each follows what it waits for: cell of the op's duration in a table [K, 2 S], the op before
        it on its device and the op of the same slot that it follows (places in this sorted order, or -1), and whether
        what it is sent comes from another device.
    place : int64[T], read-only
        Where each op stands in `graph`.
    """

    name: str
    num_slots: int
    num_stages: int
    num_devices: int
    forward_only: int
    device_offsets: Ints
    slot: Ints
    stage: Ints
    backward: NDArray[np.bool_]
    graph: Ints
    place: Ints

    @classmethod
    def of(
        cls, ops: Sequence[Iterable[tuple[int, int, bool]]], num_slots: int, num_stages: int, name: str = "given"
    ) -> "OpOrder":
        """Check lists of ops, one for each device.

        Parameters
        ----------
        ops : sequence of sequence of (int, int, bool)
            Slot, stage, and whether it is the backward. Stage s belongs on device ``s % len(ops)``.
        num_slots, num_stages : int
            Every stage runs the forward of every slot, and the backward too, but for some first stages perhaps.
        name : str

        Returns
        -------
        OpOrder

        Raises
        ------
        TypeError, ValueError
            An op out of range, twice, missing or on the wrong device, or ops that wait for each other in a circle,
            which is named.

        Examples
        --------
        >>> OpOrder.of([[(0, 0, False), (0, 0, True)], [(0, 1, False), (0, 1, True)]], 1, 2).num_devices
        2
        >>> OpOrder.of([[(0, 0, True), (0, 0, False)], [(0, 1, False), (0, 1, True)]], 1, 2)
        Traceback (most recent call last):
        solvers.errors.UsageError: ops must not wait for each other: backward of slot 0 in stage 0 waits for backward \
of slot 0 in stage 1, which waits for forward of slot 0 in stage 1, which waits for forward of slot 0 in stage 0, \
which waits for backward of slot 0 in stage 0
        """
        num_slots, num_stages = as_count("num_slots", num_slots), as_count("num_stages", num_stages)
        lists = [np.array([tuple(op) for op in each], dtype=np.int64).reshape(-1, 3) for each in ops]
        if not 1 <= len(lists) <= num_stages:
            raise ArgumentError("ops", f"be a list for each of 1 to {num_stages} devices", len(lists))
        table = np.concatenate(lists)
        offsets = np.concatenate([[0], np.cumsum([len(each) for each in lists])]).astype(np.int64)
        devices = np.repeat(np.arange(len(lists)), np.diff(offsets))
        lead = _check_ops(table, devices, num_slots, num_stages)
        slot, stage, backward = table[:, 0], table[:, 1], table[:, 2]
        # the op that each one follows: of the stage before, backwards of the stage behind, and in the last the forward
        number = np.full((num_slots, 2 * num_stages + 1), -1, dtype=np.int64)  # one column for stages that are not
        cell = backward * num_stages + stage
        number[slot, cell] = np.arange(len(table))
        last = (backward == 1) & (stage == num_stages - 1)
        follows = number[slot, np.where(last, stage, np.where(backward == 1, cell + 1, np.where(stage, cell - 1, -1)))]
        before = np.arange(len(table)) - 1
        before[offsets[:-1][np.diff(offsets) > 0]] = -1
        # an order in which each op comes after what it waits for is the proof that nothing waits forever
        place = np.empty(len(table), dtype=np.int64)
        if _find_order(read_only(offsets), read_only(follows), place) < len(table):
            raise UsageError(f"ops must not wait for each other: {_circle(table, before, follows, place)}")
        graph = np.empty((4, len(table)), dtype=np.int64)
        hops = (follows >= 0) & (devices[follows] != devices)
        for row, values in enumerate((slot * 2 * num_stages + cell, _at(place, before), _at(place, follows), hops)):
            graph[row, place] = values
        return cls(
            name, num_slots, num_stages, len(lists), lead, offsets, slot, stage, backward == 1, read_only(graph), place
        )

    def ops_of(self, device: int) -> list[tuple[int, int, bool]]:
        """Slot, stage, and whether it is the backward, of each op of a device in turn."""
        here = slice(self.device_offsets[device], self.device_offsets[device + 1])
        each = (self.slot[here].tolist(), self.stage[here].tolist(), self.backward[here].tolist())
        return list(zip(*each, strict=True))


@kernel
def _find_order(offsets, follows, place):
    """Put ops in an order in which each comes after what it waits for; ``place`` is -1 where there is none.

    ``offsets``, int64[D + 1], says which ops are a device's, one after another; ``follows`` is the op of the same slot
    that must come before, or -1. Returns how many could be placed, all unless the order deadlocks. O(T D).
    """
    for op in range(len(follows)):
        place[op] = -1
    at = offsets[:-1].copy()
    # devices in turn, each as far as it gets; a whole round in vain means that all that are left wait for each other
    count = np.int64(0)
    moved = True
    while moved:
        moved = False
        for d in range(len(at)):
            while at[d] < offsets[d + 1] and (follows[at[d]] < 0 or place[follows[at[d]]] >= 0):
                place[at[d]] = count
                count += 1
                at[d] += 1
                moved = True
    return count


def _at(place: Ints, ops: Ints) -> Ints:
    return np.where(ops >= 0, place[ops], -1)


def _check_ops(table: Ints, devices: Ints, num_slots: int, num_stages: int) -> int:
    """Check that every op is there once and where it belongs; return how many first stages run forwards alone."""
    count = np.zeros((2, num_slots, num_stages), dtype=np.int64)
    num_devices = int(devices.max(initial=0)) + 1
    for (slot, stage, backward), device in zip(table.tolist(), devices.tolist(), strict=True):
        if not (0 <= slot < num_slots and 0 <= stage < num_stages and backward in (0, 1)):
            rule = f"be (slot below {num_slots}, stage below {num_stages}, whether it is the backward)"
            raise ArgumentError("ops", rule, (slot, stage, backward), device)
        if stage % num_devices != device:
            raise ArgumentError("ops", f"hold stages s with s % {num_devices} = {device}", stage, device)
        count[backward, slot, stage] += 1
    for backward, slot, stage in np.argwhere(count > 1):
        raise ArgumentError("ops", f"hold every op once; twice is {_named(slot, stage, backward)}")
    # first stages without any backward are frozen; in all others every backward has to be there
    lead = int(np.argmax(np.append(count[1].any(axis=0), True)))
    count[1, :, :lead] = 1
    for backward, slot, stage in np.argwhere(count == 0):
        raise ArgumentError("ops", f"hold every op; there is no {_named(slot, stage, backward)}")
    return lead


def _named(slot: int, stage: int, backward: int) -> str:
    return f"{'backward' if backward else 'forward'} of slot {slot} in stage {stage}"


def _circle(table: Ints, before: Ints, follows: Ints, place: Ints) -> str:
    """Name ops that wait for each other, each with what it waits for."""
    # from any op that has no place to one that it waits for, and so on: some op comes again
    op, seen = int(np.argmin(place)), []
    while op not in seen:
        seen.append(op)
        blocked = [int(other) for other in (follows[op], before[op]) if other >= 0 and place[other] < 0]
        op = blocked[0]
    circle = [*seen[seen.index(op) :], op]
    start = min(range(len(circle) - 1), key=lambda i: circle[i])
    circle = [*circle[start:-1], *circle[: start + 1]]
    names = [_named(*table[each].tolist()) for each in circle]
    return ", which waits for ".join(names).replace(", which waits for ", " waits for ", 1)


def _lists(warmups: Iterable[int], forwards: list[list[tuple[int, int, bool]]],
           backwards: list[list[tuple[int, int, bool]]]) -> list[list[tuple[int, int, bool]]]:  # fmt: skip
    """Of each device some forwards, then a forward and a backward in turn, then the backwards that are left."""
    lists = []
    for warm, ahead, back in zip(warmups, forwards, backwards, strict=True):
        turns = [op for pair in zip(ahead[warm:], back, strict=False) for op in pair]
        lists.append(ahead[:warm] + turns + back[max(0, len(ahead) - warm) :])
    return lists


@lru_cache(maxsize=64)
def one_f_one_b(num_slots: int, num_stages: int, forward_only: int = 0) -> OpOrder:
    """Order ops as 1F1B does: stage s runs S - 1 - s forwards, then a forward and a backward in turn.

    At most S - s slots are in flight there.

    Parameters
    ----------
    num_slots, num_stages : int
    forward_only : int
        So many first stages run forwards alone.

    Returns
    -------
    OpOrder

    References
    ----------
    PipeDream-Flush (Narayanan et al. 2021, arXiv:2006.09503).

    Examples
    --------
    >>> [(slot, backward) for slot, _, backward in one_f_one_b(3, 2).ops_of(0)]
    [(0, False), (1, False), (0, True), (2, False), (1, True), (2, True)]
    """
    num_slots, num_stages = as_count("num_slots", num_slots), as_count("num_stages", num_stages)
    lead = _as_lead(forward_only, num_stages)
    forwards = [[(k, s, False) for k in range(num_slots)] for s in range(num_stages)]
    backwards = [[(k, s, True) for k in range(num_slots)] if s >= lead else [] for s in range(num_stages)]
    warmups = [min(num_slots, num_stages - 1 - s) if s >= lead else num_slots for s in range(num_stages)]
    return OpOrder.of(_lists(warmups, forwards, backwards), num_slots, num_stages, "1f1b")


@lru_cache(maxsize=64)
def interleaved(num_slots: int, num_devices: int, chunks: int, forward_only: int = 0) -> OpOrder:
    """Order ops as interleaved 1F1B does: each device has `chunks` stages, and runs them for P slots at a time.

    At most ``min(K V, 2 (P - d - 1) + (V - 1) P + 1)`` stages of slots are in flight on device d.

    Parameters
    ----------
    num_slots : int
        A multiple of `num_devices`.
    num_devices, chunks : int
        P and V; stage s of S = P V is on device ``s % P``.
    forward_only : int
        So many first stages run forwards alone.

    Returns
    -------
    OpOrder

    References
    ----------
    Narayanan et al. 2021, arXiv:2104.04473.

    Examples
    --------
    >>> interleaved(4, 2, 2).ops_of(1)[:4]
    [(0, 1, False), (1, 1, False), (0, 3, False), (0, 3, True)]
    """
    num_slots, devices = as_count("num_slots", num_slots), as_count("num_devices", num_devices)
    chunks = as_count("chunks", chunks)
    if chunks == 1:
        return one_f_one_b(num_slots, devices, forward_only)
    if num_slots % devices:
        rule = f"be a multiple of {{num_devices}} = {devices} where {{chunks}} > 1"
        raise ArgumentError("num_slots", rule, num_slots, remedy=f"give {num_slots + -num_slots % devices}")
    lead = _as_lead(forward_only, devices * chunks)
    turns = [(first + k, chunk) for first in range(0, num_slots, devices)
             for chunk in range(chunks) for k in range(devices)]  # fmt: skip
    forwards = [[(k, chunk * devices + d, False) for k, chunk in turns] for d in range(devices)]
    backwards = [[(k, (chunks - 1 - chunk) * devices + d, True) for k, chunk in turns] for d in range(devices)]
    warmups = [min(len(turns), 2 * (devices - d - 1) + (chunks - 1) * devices) for d in range(devices)]
    lists = [  # as if all stages had backwards: then nothing waits for each other, nor without some of them
        [(k, s, back) for k, s, back in ops if s >= lead or not back] for ops in _lists(warmups, forwards, backwards)
    ]
    return OpOrder.of(lists, num_slots, devices * chunks, "interleaved")


@lru_cache(maxsize=64)
def gpipe(num_slots: int, num_stages: int, forward_only: int = 0) -> OpOrder:
    """Order ops as GPipe does: all forwards, then all backwards, both from the first slot on.

    Parameters
    ----------
    num_slots, num_stages : int
    forward_only : int
        So many first stages run forwards alone.

    Returns
    -------
    OpOrder

    References
    ----------
    Huang et al. 2019, arXiv:1811.06965.

    Examples
    --------
    >>> [(slot, backward) for slot, _, backward in gpipe(2, 2).ops_of(1)]
    [(0, False), (1, False), (0, True), (1, True)]
    """
    num_slots, num_stages = as_count("num_slots", num_slots), as_count("num_stages", num_stages)
    lead = _as_lead(forward_only, num_stages)
    lists = [
        [(k, s, back) for back in (False, True) if s >= lead or not back for k in range(num_slots)]
        for s in range(num_stages)
    ]
    return OpOrder.of(lists, num_slots, num_stages, "gpipe")


def _as_lead(forward_only: int, num_stages: int) -> int:
    lead = as_count("forward_only", forward_only, 0)
    if lead > num_stages:
        raise ArgumentError("forward_only", f"be <= {{num_stages}} = {num_stages}", lead)
    return lead
