"""What the modules of a layout take and hold, in numbers that need no model and no cluster: what schedules are made of.

:mod:`balancer.simulate` makes them of models and a cluster; a layout's file carries them to whoever plans by it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from balancer.cost import LengthPolynomial
from solvers.errors import ArgumentTypeError, UsageError

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Shares = Mapping[str, tuple[Ints, Ints]]
# Units in which schedules count time, tenths of nanoseconds: no op is so short that rounding shows.
PER_SECOND = 10**10
# And what is held: bytes would take ten bits more of every sum.
UNIT_BYTES = 1024
# Units that fit int64, with room for a sum.
_MOST = 2.0**62
# Of the room beside the states, that an encoder's task may hold: fifty are in flight then, and gaps are filled evenly.
_TASK_SHARE = 0.02


def in_units(seconds: Floats) -> Ints:
    """Return times as schedules count them; ValueError where they are too long."""
    return _whole("seconds", np.rint(seconds * PER_SECOND))


def _whole(what: str, values: Floats) -> Ints:
    """Return whole numbers as int64; ValueError where they are not in its range."""
    if not (values < _MOST).all():  # nor is NaN
        raise UsageError(
            "by these {times} a step takes more {what} than can be counted: {most} units", what=what,
            most=f"{values.max():.3g}",
        )  # fmt: skip
    return values.astype(np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class StepItems:
    """The items of a global batch, by phase."""

    # float64[k]: of each item: FLOPs of its forward, and elements
    flops: dict[str, Floats]
    lengths: dict[str, Floats]
    sample: dict[str, Ints]  # int64[k]
    of_sample: dict[str, Floats]  # float64[2, n]: FLOPs and elements of each sample
    total: dict[str, tuple[float, float]]  # their sums
    largest: Ints  # int64[w]: samples that have most FLOPs in a phase
    num_samples: int

    @classmethod
    def of(
        cls, items: Shares, forwards: Mapping[str, LengthPolynomial], pieces: Mapping[str, int | None], samples: int
    ) -> "StepItems":
        """Return them from the lengths and samples of each phase's items, and the FLOPs of an item's forward."""
        flops: dict[str, Floats] = {}
        lengths: dict[str, Floats] = {}
        sample: dict[str, Ints] = {}
        of_sample: dict[str, Floats] = {}
        for name, (given, owner) in items.items():
            each = forwards[name]
            lengths[name], sample[name] = given.astype(np.float64), owner
            if piece := pieces.get(name):
                # Items that are cut into pieces cost so much for every element: a piece does not see the next.
                flops[name] = lengths[name] * (each.exact(piece) / piece)
            else:
                flops[name] = np.where(lengths[name] > 0, each(lengths[name]), 0.0)
            of_sample[name] = np.stack(
                [np.bincount(sample[name], values, samples) for values in (flops[name], lengths[name])]
            )
        total = {name: (float(both[0].sum()), float(both[1].sum())) for name, both in of_sample.items()}
        # Bounds need the largest sample of each phase, and nothing else of single samples.
        largest = [int(np.argmax(both[0])) for both in of_sample.values() if samples]
        return cls(flops, lengths, sample, of_sample, total, np.unique(np.array(largest, dtype=np.int64)), samples)


@dataclass(frozen=True, slots=True)
class ModuleRate:
    """Seconds of the forward of a whole module, on one device."""

    per_flop: float
    per_element: float
    backward: int  # how many times that its backward takes

    def seconds(self, flops: Floats, elements: Floats) -> Floats:
        """Of a forward."""
        return self.per_flop * flops + self.per_element * elements


class GapTasks(NamedTuple):
    """Work of samples in gaps: of which sample each task is, units both ways, and what it holds."""

    sample: Ints
    forward: Ints
    backward: Ints
    size: Ints

    def of(self, chosen: Ints) -> "GapTasks":
        """Return the tasks with these numbers."""
        return GapTasks(*(column[chosen] for column in self))

    @property
    def number(self) -> NDArray[np.int32]:
        """Which task of its sample each is: int32[t]."""
        order = np.argsort(self.sample, kind="stable")
        number = np.empty(len(order), dtype=np.int32)
        number[order] = np.arange(len(order)) - np.searchsorted(self.sample[order], self.sample[order])
        return number

    @property
    def part(self) -> tuple[Ints, Ints]:
        """Which part each is of its sample's work in all encoders, and of how many, all alike."""
        return self.number.astype(np.int64), np.bincount(self.sample)[self.sample].astype(np.int64)


@dataclass(frozen=True, slots=True)
class StepTimes:
    """What the modules of a layout take and hold, with a number of micro-batches."""

    layout: str  # in words, that they are of
    piped: tuple[str, ...]  # modules that are stages of the pipeline, in order
    encoders: tuple[str, ...]  # those that run in its gaps
    # Of the pipeline
    replicas: int
    slots: int
    chunks: int
    # Of an item's forward, by module: a constant, what every element takes, and every element times another; then, for
    # masks, what a pair takes by the name of its area
    flops: Mapping[str, tuple[Any, ...]] = field(hash=False)
    # Of modules whose items are cut into pieces, such as tiles, their length
    pieces: Mapping[str, int] = field(hash=False)
    rates: Mapping[str, ModuleRate] = field(hash=False)
    parts: tuple[tuple[int, ...], ...]  # of each piped module, each stage's part
    # Seconds of every op of a stage besides
    forward_overhead: tuple[float, ...]
    backward_overhead: tuple[float, ...]
    hop: float  # seconds until the next device has what it is sent
    # Bytes on a GPU of each device: of every element between its forward and its backward, and of each at work
    kept: Mapping[str, tuple[float, ...]] = field(hash=False)
    at_work: Mapping[str, tuple[float, ...]] = field(hash=False)
    room: tuple[float, ...]  # bytes on a GPU of each device for all that is kept or at work

    @property
    def num_devices(self) -> int:
        """Of a replica's pipeline."""
        return len(self.room)

    def of_ops(self) -> dict[str, Any]:
        """Return what an op takes as :func:`solvers.pipeline.run` has it."""
        parts = np.array(self.parts, dtype=np.int64)
        times = np.array([self.rates[name].backward for name in self.piped], dtype=np.int64)
        return {
            "forward": parts,
            "backward": parts * times[:, None],
            "forward_overhead": in_units(np.array(self.forward_overhead)),
            "backward_overhead": in_units(np.array(self.backward_overhead)),
            "hop": round(self.hop * PER_SECOND),
        }

    def items(self, of_phase: Shares, num_samples: int) -> StepItems:
        """Return the items of a batch from the lengths and samples of each phase's."""
        forwards = {name: LengthPolynomial.of_row(self.flops[name]) for name in of_phase}
        return StepItems.of(of_phase, forwards, self.pieces, num_samples)

    def work(self, step: StepItems) -> Ints:
        """Return each sample's work in each piped module, int64[n, M]: what one of its parts takes."""
        parts = np.array(self.parts).sum(axis=1)
        seconds = np.stack([self.rates[name].seconds(*step.of_sample[name]) for name in self.piped], axis=1)
        return in_units(seconds / parts)

    def tasks(self, step: StepItems) -> GapTasks:
        """Return a task for each sample with encoder work; several alike where that is long or large, and in pieces."""
        forward, backward, size, pieces = np.zeros((4, step.num_samples))
        for name in self.encoders:
            rate, bytes_ = self.rates[name], max(self.kept[name])
            each = rate.seconds(*step.of_sample[name])
            forward += each
            backward += rate.backward * each
            size += step.of_sample[name][1] * bytes_
            parts = np.maximum(1, step.lengths[name] // (self.pieces.get(name) or np.inf))
            pieces += np.bincount(step.sample[name], parts * (step.lengths[name] > 0), step.num_samples)
        totals = [self.rates[name].seconds(*step.total[name]) for name in self.piped]  # type: ignore[arg-type]
        # What an op of the pipeline takes in the mean: a task that is longer than one would hold its device up.
        op = float(np.array(totals).sum()) / (self.replicas * self.slots * len(self.parts[0]))
        wanted = np.ceil(np.maximum(forward / max(op, 1e-9), size / (_TASK_SHARE * max(min(self.room), 1.0))))
        count = np.where(forward > 0, np.clip(wanted, 1, np.maximum(1, pieces)), 0).astype(np.int64)
        sample = np.repeat(np.arange(step.num_samples), count)
        each = np.maximum(1, count)
        sizes = _whole("memory", np.ceil(size / each / UNIT_BYTES))
        return GapTasks(sample, in_units(forward / each)[sample], in_units(backward / each)[sample], sizes[sample])

    def held(self, step: StepItems) -> tuple[Floats, Floats]:
        """Return the bytes that each sample's piped modules keep, and have at work, on every device: float64[n, D]."""
        found: list[Floats] = []
        for table in (self.kept, self.at_work):
            bytes_ = np.zeros((step.num_samples, self.num_devices))
            for name in self.piped:
                bytes_ += step.of_sample[name][1][:, None] * np.array(table[name])
            found.append(bytes_)
        return found[0], found[1]

    def timed(self, of_phase: Shares, num_samples: int) -> "TimedStep":
        """Return what a step has to do, from the lengths and samples of each phase's items."""
        items = self.items(of_phase, num_samples)
        return TimedStep(self, items, self.work(items), self.tasks(items))

    def to_json(self) -> dict[str, Any]:
        """Return the fields; :meth:`from_json` reads them back."""
        return asdict(self)

    @classmethod
    def from_json(cls, found: Any) -> "StepTimes":
        """Read back what :meth:`to_json` wrote; TypeError or ValueError that names what is wrong."""
        if not isinstance(found, Mapping):
            raise ArgumentTypeError("times", "be an object, as configure writes it", f"{found!r:.80}")
        known = cls.__dataclass_fields__
        if odd := [f"lack {name!r}" for name in known if name not in found] + [
            f"have the unknown key {name!r}" for name in found if name not in known
        ]:
            raise UsageError("{times} {odd}", "configure anew", odd=odd[0])
        try:
            made = cls(**_read(found))
            made._check()
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise UsageError("{times} cannot be read: {why}", "configure anew", why=f"{error!s:.120}") from None
        return made

    def _check(self) -> None:
        """Raise ValueError that names the key where numbers are missing, or are none that can be."""
        for key in ("replicas", "slots", "chunks"):
            _check_each(key, [getattr(self, key)], least=1)
        _check_each("pieces", self.pieces.values(), least=1)
        rows: dict[str, tuple[float, ...]] = {f"parts[{m}]": row for m, row in enumerate(self.parts)}
        both = {"forward_overhead": self.forward_overhead, "backward_overhead": self.backward_overhead}
        stages = self.num_devices * self.chunks
        if odd := [key for key, row in (rows | both).items() if len(row) != stages]:
            raise ValueError(f"{odd[0]} must have {stages} stages, as 'room' and 'chunks' say")
        for key, row in rows.items():
            _check_each(key, row)
        for key, row in (both | {"hop": (self.hop,), "room": self.room}).items():
            _check_each(key, row, whole=False)
        for name in (*self.piped, *self.encoders):
            self._check_module(name)
        if len(self.parts) != len(self.piped) or not all(map(sum, self.parts)):
            raise ValueError("'parts' must have a row of each module in 'piped', and a part of it in some stage")

    def _check_module(self, name: str) -> None:
        for key in ("rates", "flops", "kept", "at_work"):
            if name not in getattr(self, key):
                raise ValueError(f"{name!r} in {key!r} is missing")
        rate, where = self.rates[name], f"[{name!r}]"
        _check_each(f"rates{where}", (rate.per_flop, rate.per_element), whole=False)
        _check_each(f"rates{where}", (rate.backward,))
        _check_each(f"flops{where}", self.flops[name][:3])
        try:
            LengthPolynomial.of_row(self.flops[name])
        except ValueError as error:
            raise ValueError(f"flops{where}: {error}") from None
        for key in ("kept", "at_work"):
            row = getattr(self, key)[name]
            _check_each(f"{key}{where}", row, whole=False)
            if len(row) != self.num_devices:
                raise ValueError(f"{key}{where} must have bytes of {self.num_devices} devices")


def _read(found: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of :class:`StepTimes` that a file holds; ValueError where they are of another kind."""
    for key in ("rates", "flops", "kept", "at_work", "pieces"):
        if not isinstance(found[key], Mapping):
            raise ValueError(f"{key!r} must be an object, got {found[key]!r:.40}")
    rows = {key: _row(key, found[key]) for key in ("piped", "encoders", "forward_overhead", "backward_overhead",
                                                   "room")}  # fmt: skip
    tables = {
        key: {name: _row(f"{key}[{name!r}]", row) for name, row in found[key].items()}
        for key in ("flops", "kept", "at_work")
    }
    rates, known = {}, set(ModuleRate.__dataclass_fields__)
    for name, rate in found["rates"].items():
        if not isinstance(rate, Mapping) or set(rate) != known:
            raise ValueError(f"rates[{name!r}] must have {', '.join(ModuleRate.__dataclass_fields__)}")
        rates[name] = ModuleRate(**rate)
    parts = tuple(_row("parts", row) for row in _row("parts", found["parts"]))
    return {**found, **rows, **tables, "rates": rates, "parts": parts}


def _row(key: str, values: Any) -> tuple[Any, ...]:
    if not isinstance(values, list | tuple):
        raise ValueError(f"{key} must be a list, got {values!r:.40}")
    return tuple(values)


def _check_each(key: str, values: Iterable[Any], *, whole: bool = True, least: int = 0) -> None:
    """Raise ValueError that names the key where one of these is no number of this kind."""
    for x in values:
        if type(x) not in ((int,) if whole else (int, float)) or not least <= x < 2**60:  # NaN is not either
            kind = "a whole number" if whole else "a number"
            raise ValueError(f"{key} must be {kind} from {least} to 2^60, got {x!r:.40}")


class TimedStep(NamedTuple):
    """A step to schedule: its items, each sample's work in the pipeline, int64[n, M], and the tasks in its gaps."""

    times: StepTimes
    items: StepItems
    work: Ints
    tasks: GapTasks

    def in_slots(self, slots: int) -> "TimedStep":
        """Return the step in another number of micro-batches, in which all takes as long as in those of the layout."""
        if slots == self.times.slots:
            return self
        times = replace(self.times, slots=slots)
        return TimedStep(times, self.items, self.work, times.tasks(self.items))
