"""The layouts that there are for some GPUs: of the language model, and of encoders beside, before or between."""

from collections.abc import Collection, Iterator
from dataclasses import replace
from itertools import product
from typing import NamedTuple

from balancer.cost.sequence_parallel import EXCHANGES, exchange_bytes
from balancer.problem.layout import ModuleLayout, StepLayout, misfit
from balancer.simulate.given import Given

__all__ = ["Stub", "numbers_of_slots", "stubs_of"]

_SHARDS = (1, 2, 4, 8)  # by tensors, and of samples
_STAGES = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 15, 16, 20, 24, 32)
_ENCODER_STAGES = (1, 2, 3, 4)
_CHUNKS = (1, 2)
_ZERO_STAGES = (1, 3)  # 0 and 2 take as long as 1 and 3, and hold more or hardly less
_LEAST_USED = 0.9  # of all GPUs
_MULTIPLES = (1, 2, 4, 8)  # of the devices: micro-batches
_MOST_CELLS = 512  # micro-batches times stages
_FEWEST_SAMPLES = 4  # of a micro-batch, where there are so many: fewer are too uneven


def _language_layouts(given: Given) -> Iterator[ModuleLayout]:
    """Yield layouts of the last module, with as many replicas as there are GPUs for."""
    name = list(given.models)[-1]
    for tp, shards, pp in product(_SHARDS, _SHARDS, _STAGES):
        for zero_stage, recompute, chunks in product(_ZERO_STAGES, (False, True), _CHUNKS if pp > 1 else (1,)):
            one = ModuleLayout(tp=tp, pp=pp, chunks=chunks, zero_stage=zero_stage, recompute=recompute)
            one = _with_shards(given, name, one, shards)
            replicas = given.num_gpus // one.num_gpus
            if replicas and _fits(given, name, one):
                yield replace(one, dp=replicas)


def _with_shards(given: Given, name: str, one: ModuleLayout, shards: int) -> ModuleLayout:
    """Return the layout with Ulysses or a ring, whichever exchanges less, if heads allow."""
    ulysses = replace(one, sp=shards)
    if shards > 1 and _fits(given, name, ulysses):
        model = given.models[name]
        heads, ring = (exchange_bytes(model.block.attention, model.layers, shards, kind) for kind in EXCHANGES)
        if heads * (shards - 1) <= ring * shards:
            return ulysses
    return replace(one, cp=shards)


class Stub(NamedTuple):
    """A layout in short: the language model's, and one that all encoders have; without the replicas they come to."""

    mode: str
    llm: ModuleLayout
    encoder: ModuleLayout | None

    def layout(self, given: Given) -> StepLayout:
        """Return it in full."""
        *encoders, last = given.models
        beside = {} if self.encoder is None else dict.fromkeys(encoders, self.encoder)
        return StepLayout({**beside, last: self.llm}, self.mode)


def stubs_of(given: Given, modes: Collection[str]) -> Iterator[Stub]:
    """Yield all layouts: those of encoders as stages have fewer replicas, for encoders need GPUs of their own."""
    encoders, node = list(given.models)[:-1], given.cluster.gpus_per_node
    shards = [tp for tp in _SHARDS if all(_fits(given, name, ModuleLayout(tp=tp)) for name in encoders)]
    stages = [
        ModuleLayout(tp=tp, pp=pp, dp=gpus // tp, recompute=recompute)
        for gpus, pp, tp, recompute in product(_SHARDS, _ENCODER_STAGES, shards, (False, True))
        if gpus % tp == 0 and gpus <= node and all(_fits(given, name, ModuleLayout(tp=tp, pp=pp)) for name in encoders)
    ]
    for llm in _language_layouts(given):
        if not encoders:
            yield Stub("stages", llm, None)
            continue
        replica = llm.num_gpus // llm.dp
        for one in stages if "stages" in modes and llm.chunks == 1 else ():
            replicas = given.num_gpus // (replica + one.num_gpus)
            if replicas * (replica + one.num_gpus) >= _LEAST_USED * given.num_gpus:
                encoder = replace(one, dp=one.dp * replicas, zero_stage=llm.zero_stage)
                yield Stub("stages", replace(llm, dp=replicas), encoder)
        if llm.num_gpus < _LEAST_USED * given.num_gpus:
            continue
        for mode, tp, recompute in product(("before", "multiplexed"), shards, (False, True)):
            zero_stages = _ZERO_STAGES if mode == "before" else (1,)
            around = llm.num_gpus if mode == "before" else llm.device_gpus
            if mode in modes and around % tp == 0 and (mode == "before" or llm.chunks == 1):
                for zero_stage in zero_stages:
                    yield Stub(
                        mode,
                        llm,
                        ModuleLayout(tp=tp, dp=llm.num_gpus // tp, zero_stage=zero_stage, recompute=recompute),
                    )


def _fits(given: Given, name: str, one: ModuleLayout) -> bool:
    return misfit(one, given.models[name], given.cluster.gpus_per_node) is None


def numbers_of_slots(given: Given, layout: StepLayout) -> list[int]:
    """Return numbers of micro-batches to try, ascending: some for each device, and no more than samples."""
    devices = layout.encoder_stages + layout.llm.pp
    samples = min(step.num_samples for step in given.steps) // layout.llm.dp
    most = min(max(devices, samples // _FEWEST_SAMPLES), samples, max(1, _MOST_CELLS // layout.num_stages))
    found = [devices * times for times in _MULTIPLES if devices * times <= most]
    if layout.llm.chunks > 1:
        return found
    return found or ([most] if most else [])
