"""How long the modules of a layout take: of every FLOP and element, of every op besides, and once a step.

Exchanges count in full but for the fraction that is assumed to overlap. What a backward exchanges is taken for as many
times its forward's as it computes.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from balancer.cost.sequence_parallel import exchange_bytes
from balancer.layout_choice.given import Given
from balancer.layouts.layout import ModuleLayout, StepLayout
from balancer.problem.step_times import ModuleRate, StepItems

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
_BYTES = 2  # of an activation, a parameter, a gradient: bfloat16
_EXCHANGES_FORWARD, _EXCHANGES_BACKWARD = 4, 6  # of a layer cut by tensors: gathers and scatters of its tokens


def rate_of(given: Given, name: str, layout: ModuleLayout, shards: int, elements: float) -> ModuleRate:
    """Return a module's rate on a device of `shards` GPUs that has so many elements at a time."""
    measured = given.rates[name].get(layout.tp)
    rate = float((measured or given.rates[name][0]).at(max(1.0, elements / (shards / layout.tp))))
    backward = given.backward_times(name, recompute=layout.recompute)
    seconds = _sequence_seconds(given, name, layout)
    if measured is None:
        seconds += _tensor_seconds(given, name, layout)
    ranks = shards // layout.device_gpus  # that share a micro-batch's items evenly
    return ModuleRate(1 / (rate * shards), given.exposed * seconds / ranks, backward)


def _tensor_seconds(given: Given, name: str, layout: ModuleLayout) -> float:
    """Seconds a forward's element on one device at exchanges between tensor shards: a part of all passes."""
    if layout.tp == 1:
        return 0.0
    model, tp = given.models[name], layout.tp
    times = _EXCHANGES_FORWARD * (1 + layout.recompute) + _EXCHANGES_BACKWARD
    volume = times * model.layers * model.hidden * _BYTES * (tp - 1) / tp
    return volume / given.bandwidth(tp) / layout.sequence_shards / (3 + layout.recompute)


def _sequence_seconds(given: Given, name: str, layout: ModuleLayout) -> float:
    """The same at exchanges between ranks that share samples."""
    model, seconds = given.models[name], 0.0
    for kind, degree in (("ring", layout.cp), ("ulysses", layout.sp)):
        if degree > 1:
            volume = (
                exchange_bytes(model.attention, model.layers, degree, kind, checkpointing=layout.recompute) / layout.tp
            )
            part = 1.0 if kind == "ring" else (degree - 1) / degree
            seconds += volume * part / given.bandwidth(layout.device_gpus) / layout.sequence_shards
    return seconds / (3 + layout.recompute)


def gpus_of(layout: StepLayout, name: str) -> int:
    """Return how many GPUs of a device share a module's elements."""
    one = layout.modules[name]
    if name == layout.llm_name or layout.mode == "before":  # there ranks have items of their own
        return one.device_gpus
    if layout.mode == "stages":
        return one.device_gpus * (one.dp // layout.llm.dp)
    return layout.llm.device_gpus


def both_ways(rate: ModuleRate, flops: ArrayLike, elements: ArrayLike) -> Floats:
    """Return seconds of forwards and their backwards of so many FLOPs and elements on one device."""
    return np.asarray((1 + rate.backward) * rate.seconds(np.asarray(flops), np.asarray(elements)), dtype=np.float64)


@dataclass(frozen=True, slots=True, eq=False)
class PipelineTimes:
    """Seconds in the pipeline of a replica."""

    names: tuple[str, ...]  # modules that run in it
    rates: tuple[ModuleRate, ...]
    parts: Ints  # int64[M, S]: each stage's part of a module
    # float64[S]: of every op besides: parameters that are gathered, and gradients that are scattered (ZeRO stage 3)
    forward_overhead: Floats
    backward_overhead: Floats
    hop: float

    @classmethod
    def of(cls, given: Given, layout: StepLayout, num_slots: int, parameters: Mapping[str, Floats]) -> "PipelineTimes":
        """Return the times with so many micro-batches; `parameters`, float64[devices] each, are those of a GPU."""
        names, counts, llm = layout.piped, layout.stage_counts, layout.llm_name
        parts = given.parts(names, tuple(counts.items()))
        slots = layout.llm.dp * num_slots * len(given.steps)
        elements = {name: given.total(name)[1] / slots for name in names}
        rates = [rate_of(given, name, layout.modules[name], gpus_of(layout, name), elements[name]) for name in names]
        ahead, back = _gathers(given, layout, parameters)
        back *= (parts * [[rate.backward] for rate in rates]).any(axis=0)  # where there is none, nothing is gathered
        hop = 0.0
        if parts.shape[1] > 1:
            hidden, per_node = given.models[llm].hidden, given.cluster.gpus_per_node
            sent = elements[llm] * hidden * _BYTES / layout.llm.device_gpus
            hop = given.exposed * (given.cluster.inter_node_latency_s + sent / given.bandwidth(per_node + 1))
        return cls(names, tuple(rates), parts, ahead, back, hop)

    @property
    def shares(self) -> Floats:
        """Each stage's share of a module's forward, float64[M, S]."""
        return np.asarray(self.parts / self.parts.sum(axis=1, keepdims=True), dtype=np.float64)

    @property
    def backward(self) -> Ints:
        """How many times the forward each module's backward takes, int64[M]."""
        return np.array([rate.backward for rate in self.rates], dtype=np.int64)

    def totals(self, step: StepItems) -> Floats:
        """Seconds of each module's forwards in a step, on one device after the other, float64[M]."""
        sums = (step.total[name] for name in self.names)
        return np.array(
            [r.per_flop * flops + r.per_element * n for r, (flops, n) in zip(self.rates, sums, strict=True)]
        )


def gradient_seconds(given: Given, layout: StepLayout, parameters: Mapping[str, Floats]) -> float:
    """Seconds of a step at gradients and parameters of modules that gather none in every op.

    Gradients are scattered and parameters gathered once; those of encoders before the pipeline that share parameters
    (ZeRO stage 3) are gathered twice.
    """
    seconds = 0.0
    for name, one in layout.modules.items():
        in_ops = one.zero_stage == 3 and (layout.mode != "before" or name not in layout.encoders)
        if name not in given.frozen and not in_ops:
            times = 3 if one.zero_stage == 3 else 2
            seconds += times * _shared_seconds(given, one, float(parameters[name].max()))
    return seconds


def _shared_seconds(given: Given, one: ModuleLayout, parameters: float) -> float:
    """Seconds at gathering so many parameters, or scattering their gradients, among ranks that have the same."""
    ranks = one.dp * one.sequence_shards
    return given.exposed * parameters * _BYTES * (ranks - 1) / ranks / given.bandwidth(ranks * one.tp)


def _gathers(given: Given, layout: StepLayout, parameters: Mapping[str, Floats]) -> tuple[Floats, Floats]:
    """Seconds of a forward, and of a backward, at gathering parameters that ranks share, float64[S] each."""
    seconds = np.zeros(layout.num_stages)
    for name in layout.piped:
        one = layout.modules[name]
        if one.zero_stage == 3:
            each = [_shared_seconds(given, one, float(p) / one.chunks) for p in parameters[name]]
            seconds += np.tile(each, layout.llm.chunks)
    return seconds, 2 * seconds
