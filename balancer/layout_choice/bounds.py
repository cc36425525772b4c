"""Layouts that need no schedule: what a step takes and holds at least, in closed form.

The work of a pipeline's busiest device, or a sample's round trip; before it the encoders' mean work, or an item; in its
gaps the mean work of all devices. Generators are stages.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from balancer.layout_choice.candidates import Stub
from balancer.layout_choice.given import Given
from balancer.layout_choice.memory import DeviceMemory, memory_of_devices
from balancer.layout_choice.times import PipelineTimes, both_ways, gpus_of, gradient_seconds, rate_of
from balancer.layouts.layout import ModuleLayout, StepLayout
from balancer.problem.step_times import ModuleRate, StepItems, StepTimes

Floats = NDArray[np.float64]
# Of a GPU's memory; the rest is for buffers and fragments.
_USABLE = 0.9


@dataclass(eq=False)
class LayoutCase:
    """A layout with a number of micro-batches, and what it takes and holds at least."""

    given: Given
    layout: StepLayout
    num_slots: int
    memory: DeviceMemory

    @classmethod
    def of(cls, given: Given, layout: StepLayout, num_slots: int, memory: DeviceMemory | None = None) -> "LayoutCase":
        """Return it; the memory is the same for all numbers of micro-batches."""
        memory = memory or memory_of_devices(layout, given.models, given.frozen)
        return cls(given, layout, num_slots, memory)

    @cached_property
    def times(self) -> PipelineTimes:
        """Of the pipeline."""
        return PipelineTimes.of(self.given, self.layout, self.num_slots, self.memory.parameters)

    @cached_property
    def apart(self) -> dict[str, ModuleRate]:
        """Rates of modules that are no stages: on one of their ranks, or, in gaps, on a device of the pipeline."""
        found: dict[str, ModuleRate] = {}
        for name, one in self.layout.modules.items():
            if name not in self.layout.piped:
                ranks = self.layout.llm.dp * self.num_slots if self.layout.mode == "multiplexed" else one.dp
                elements = self.given.total(name)[1] / len(self.given.steps) / ranks
                found[name] = rate_of(self.given, name, one, gpus_of(self.layout, name), elements)
        return found

    @property
    def rates(self) -> dict[str, ModuleRate]:
        """Rates of all modules: of the stages, and of those that are none."""
        return dict(zip(self.times.names, self.times.rates, strict=True)) | self.apart

    @property
    def room(self) -> Floats:
        """Bytes of a GPU of every device of the pipeline beside the states, float64[devices]."""
        return room_of(self.given) - self.memory.states

    @cached_property
    def step_times(self) -> StepTimes:
        """All that schedules of its steps are made from."""
        layout, memory, times, rates = self.layout, self.memory, self.times, self.rates
        in_gaps = layout.mode == "multiplexed"
        forwards = {name: self.given.models[name].flops(backward=False) for name in rates}
        return StepTimes(
            layout.in_words(), times.names, tuple(layout.encoders if in_gaps else ()),
            layout.llm.dp, self.num_slots, layout.llm.chunks,
            {name: each.as_row() for name, each in forwards.items()},
            {name: piece for name, piece in self.given.pieces.items() if piece}, rates,
            tuple(map(tuple, times.parts.tolist())), tuple(times.forward_overhead.tolist()),
            tuple(times.backward_overhead.tolist()), float(times.hop),
            {name: tuple(memory.kept[name].tolist()) for name in rates},
            {name: tuple(memory.at_work[name].tolist()) for name in rates},
            tuple(self.room.tolist()),
        )  # fmt: skip

    @cached_property
    def sync_s(self) -> float:
        """Seconds of a step at gradients and parameters."""
        return gradient_seconds(self.given, self.layout, self.memory.parameters)

    @cached_property
    def bound_s(self) -> float:
        """Seconds that no step takes less than, the mean over the steps."""
        return sum(map(self._bound, self.given.steps)) / len(self.given.steps) + self.sync_s

    @cached_property
    def formula_s(self) -> float:
        """DFLOP's formula: a mean micro-batch in the busiest stage, times micro-batches and stages, less one."""
        work = sum(float(self._busy(step).max()) for step in self.given.steps) / len(self.given.steps)
        return work * (self.num_slots + self.layout.num_stages - 1) / self.num_slots

    @property
    def samples(self) -> float:
        """Of a mean micro-batch."""
        samples = sum(step.num_samples for step in self.given.steps) / len(self.given.steps)
        return samples / (self.layout.llm.dp * self.num_slots)

    @cached_property
    def estimate_s(self) -> float:
        """What it may take: the bound, most of an even pipeline's ramps, and for few samples a slot, or little room."""
        # An estimate orders the search and proves nothing: it may be off.
        ramps = (0.2 if self.layout.mode == "multiplexed" else 0.6) * (self.layout.num_stages - 1) / self.num_slots
        likely, room = self._likely_bytes, room_of(self.given)
        full = 0.1 * (likely > 0.8 * room) + 0.2 * (likely > room)
        return self.bound_s * (1 + ramps + 0.2 / self.samples + full)

    @cached_property
    def least_bytes(self) -> float:
        """What a GPU holds at least, if replicas and micro-batches are even: some window of each stage is the mean."""
        return max(float(self._held(step).max()) for step in self.given.steps)

    @property
    def _likely_bytes(self) -> float:
        """What a GPU holds at least, and what encoders in gaps may, as many slots ahead as there are devices."""
        likely = self.least_bytes
        if self.layout.mode == "multiplexed":
            llm = self.layout.llm
            for name in self.layout.encoders:
                each = self.given.total(name)[1] / len(self.given.steps) / (llm.dp * llm.pp)
                likely += float(self.memory.kept[name].max()) * each * min(1.0, llm.pp / self.num_slots)
        return likely

    def _busy(self, step: StepItems) -> Floats:
        """Seconds of every device of the mean replica in its stages, float64[devices]."""
        times, layout = self.times, self.layout
        fixed = self.num_slots * (times.forward_overhead + times.backward_overhead)
        busy = (times.totals(step) * (1 + times.backward)) @ times.shares / layout.llm.dp + fixed
        return np.asarray(busy.reshape(layout.llm.chunks, -1).sum(axis=0), dtype=np.float64)

    def _bound(self, step: StepItems) -> float:
        times, layout, busy = self.times, self.layout, self._busy(step)
        trips = np.zeros(len(step.largest))
        for name, rate in zip(times.names, times.rates, strict=True):
            trips += both_ways(rate, *step.of_sample[name][:, step.largest])
        pipeline = max(float(busy.max()), float(trips.max(initial=0.0)))
        spent = {name: float(both_ways(rate, *step.total[name])) for name, rate in self.apart.items()}
        if layout.mode == "multiplexed":
            return max(pipeline, float(busy.mean()) + sum(spent.values()) / (layout.llm.dp * layout.llm.pp))
        return pipeline + sum(seconds / layout.modules[name].dp for name, seconds in spent.items())

    def _held(self, step: StepItems) -> Floats:
        memory, layout = self.memory, self.layout
        held = memory.states.copy()
        windows = -(-self.num_slots // slots_held(layout, self.num_slots))
        for name, kept in memory.kept.items():
            if layout.mode == "before" and name in self.apart:
                held += kept * step.total[name][1] / layout.modules[name].dp
            if name in self.apart:  # in gaps any device may hold it
                continue
            each = step.total[name][1] / layout.llm.dp
            held += kept * each / windows + memory.at_work[name] * each / self.num_slots
        return held


class QuickBound:
    """Mean work alone, the same for all numbers of micro-batches: what thousands of layouts are put in order by."""

    def __init__(self, given: Given) -> None:
        self.given = given
        self._kept: dict[tuple[object, ...], float] = {}

    def of(self, stub: Stub) -> float:
        """Return seconds that no step takes less than, the mean over the steps."""
        given, llm, between = self.given, stub.llm, 0.0
        mean = self._seconds(given.llm, llm, llm.device_gpus) / llm.dp
        busiest = mean * self._largest_share(given.llm, llm)
        for names, one in ((given.encoders, stub.encoder), (given.generators, stub.generator)):
            if one is None:
                continue
            if stub.mode == "before":
                return busiest + sum(self._seconds(name, one, one.device_gpus) for name in names) / one.dp
            shards = one.device_gpus * (one.dp // llm.dp) if stub.mode == "stages" else llm.device_gpus
            beside = sum(self._seconds(name, one, shards) for name in names) / llm.dp
            if stub.mode == "stages":
                busiest = max(
                    busiest, beside * self._largest_share(max(names, key=lambda name: given.total(name)[0]), one)
                )
            between += beside
        return max(busiest, (mean + between) / llm.pp) if stub.mode == "multiplexed" else busiest

    def _seconds(self, name: str, one: ModuleLayout, shards: int) -> float:
        """Seconds of a module's forwards and backwards on one device, as fast as with all elements at a time."""
        key = name, one.tp, one.cp, one.sp, one.recompute, shards
        if key not in self._kept:
            rate = rate_of(self.given, name, one, shards, self.given.total(name)[1])
            self._kept[key] = float(both_ways(rate, *self.given.total(name))) / len(self.given.steps)
        return self._kept[key]

    def _largest_share(self, name: str, one: ModuleLayout) -> float:
        key = name, one.pp, one.chunks
        if key not in self._kept:
            parts = self.given.parts((name,), ((name, one.pp * one.chunks),))[0]
            self._kept[key] = float(parts.reshape(one.chunks, one.pp).sum(axis=0).max() / parts.sum())
        return self._kept[key]


def room_of(given: Given) -> float:
    """Bytes of a GPU that a layout may use."""
    return _USABLE * given.cluster.memory_bytes


def slots_held(layout: StepLayout, num_slots: int) -> NDArray[np.int64]:
    """Return how many stages of micro-batches each device has in flight, int64[devices]."""
    devices, chunks = layout.num_devices, layout.llm.chunks
    d = np.arange(devices)
    if chunks == 1:
        return np.asarray(np.minimum(num_slots, devices - d), dtype=np.int64)
    most = 2 * (devices - d - 1) + (chunks - 1) * devices + 1
    return np.asarray(np.maximum(1, np.minimum(num_slots * chunks, most) // chunks), dtype=np.int64)
