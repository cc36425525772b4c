"""What each pipeline device of a layout holds on one of its GPUs: states, and bytes of what is in flight."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from balancer.cost import Decoder, Module
from balancer.cost.memory import kept_bytes, state_bytes
from balancer.layout_choice.times import gpus_of
from balancer.layouts.layout import ModuleLayout, StepLayout, upstream

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class DeviceMemory:
    """Bytes on one GPU of every pipeline device of a replica."""

    states: Floats  # float64[devices]: parameters, gradients and optimizer of all modules that are there
    # float64[devices]: by module, of each element of its lengths that the device holds between forward and backward; 0
    # where the module is not trained and nothing before it is. Interleaved, of each of its stages.
    kept: dict[str, Floats]
    at_work: dict[str, Floats]  # float64[devices]: besides, of each element that is at work
    parameters: dict[str, Floats]  # float64[devices]: by module, that the GPU computes with


def memory_of_devices(layout: StepLayout, models: Mapping[str, Module], frozen: Collection[str] = ()) -> DeviceMemory:
    """Return what devices hold, from the shapes of all modules of a layout; those that are `frozen` are not trained.

    Examples
    --------
    >>> from balancer.cost import module
    >>> llm = module("qwen2-72b")
    >>> layout = StepLayout({"llm": ModuleLayout(tp=8, pp=4, dp=16)})
    >>> (memory_of_devices(layout, {"llm": llm}).states / 2**30).round(1).tolist()
    [10.4, 9.7, 9.7, 10.4]
    """
    devices, names = layout.num_devices, list(layout.modules)
    states, held, kept, at_work = np.zeros(devices), {}, {}, {}
    for name, one in layout.modules.items():
        first, count = _place(layout, name, devices)
        here = slice(first, first + count)
        parameters = _parameters(models[name], one, count, cut=count == one.pp) / one.tp
        shards = one.dp * one.sequence_shards
        trained = name not in frozen
        states[here] += [state_bytes(each, one.zero_stage, shards, trained=trained) for each in parameters]
        held[name] = np.zeros(devices)
        held[name][here] = parameters
        bytes_, shared = kept_bytes(models[name], recompute=one.recompute), gpus_of(layout, name)
        layers = np.array(layers_of_stages(models[name], one.pp * one.chunks), dtype=np.float64)
        most = layers.reshape(one.chunks, one.pp).max(axis=0) if count == one.pp else np.full(count, layers.sum())
        each = most * bytes_.per_layer
        each[-1] += bytes_.head if count == one.pp else 0.0
        waits = trained or any(other not in frozen for other in upstream(names, layout.generators, name))
        kept[name], at_work[name] = np.zeros(devices), np.zeros(devices)
        kept[name][here] = each / shared * waits
        at_work[name][here] = bytes_.at_work / shared * waits
    return DeviceMemory(states, kept, at_work, held)


def layers_of_stages(model: Module, stages: int) -> list[int]:
    """Return how many layers are in each stage: as even as can be, more in the first."""
    return [model.layers // stages + (i < model.layers % stages) for i in range(stages)]


def _place(layout: StepLayout, name: str, devices: int) -> tuple[int, int]:
    """Return the first device that a module is on, and how many; on all, whole, where it is no stage."""
    if name == layout.llm_name:
        return layout.encoder_stages, layout.llm.pp
    if layout.mode != "stages":
        return 0, devices
    count = layout.modules[name].pp
    return (devices - count if name in layout.generators else 0), count


def _parameters(model: Module, one: ModuleLayout, count: int, cut: bool) -> Floats:
    """Return the parameters on each device, before tensor sharding: embedding first, head last, or all."""
    if not cut:
        return np.full(count, float(model.parameters))
    stages = one.pp * one.chunks
    layers = np.array(layers_of_stages(model, stages), dtype=np.float64)
    ends = 0.0
    if isinstance(model, Decoder):
        ends = float(model.hidden * model.vocabulary)
    around = ends * (1 if isinstance(model, Decoder) and model.tied else 2)
    each = layers * ((model.parameters - around) / model.layers)
    if isinstance(model, Decoder) and model.unlike:
        each = np.array(
            [sum(layer.parameters for layer in of_stage) for of_stage in model.in_stages(stages)], dtype=np.float64
        )
    each[0] += ends
    if stages > 1 or around > ends:  # a tied head of its own stage is a copy
        each[-1] += ends
    return np.asarray(each.reshape(one.chunks, one.pp).sum(axis=0), dtype=np.float64)
