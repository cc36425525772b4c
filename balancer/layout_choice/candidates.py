"""The layouts that there are for some GPUs: of the language model, and of what is beside, before or between."""

from collections.abc import Collection, Iterator
from dataclasses import replace
from functools import cache
from itertools import product
from typing import NamedTuple

from balancer.cost.sequence_parallel import EXCHANGES, exchange_bytes
from balancer.layout_choice.given import Given
from balancer.layouts.layout import ModuleLayout, StepLayout, misfit

_SHARDS = (1, 2, 4, 8)  # by tensors, and of samples
_STAGES = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 15, 16, 20, 24, 32)
_STAGES_BESIDE = (1, 2, 3, 4)
_CHUNKS = (1, 2)
_ZERO_STAGES = (1, 3)  # 0 and 2 take as long as 1 and 3, and hold more or hardly less
_LEAST_USED = 0.9  # of all GPUs
_MULTIPLES = (1, 2, 4, 6, 8, 12)  # of the devices: micro-batches
_MOST_CELLS = 512  # micro-batches times stages


def _language_layouts(given: Given) -> Iterator[ModuleLayout]:
    """Yield layouts of the language model, with as many replicas as there are GPUs for."""
    name = given.llm
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
        heads, ring = (exchange_bytes(model.attention, model.layers, shards, kind) for kind in EXCHANGES)
        if heads * (shards - 1) <= ring * shards:
            return ulysses
    return replace(one, cp=shards)


class Stub(NamedTuple):
    """A layout in short: the language model's, one that all encoders have, and of stages one that generators have."""

    mode: str
    llm: ModuleLayout
    encoder: ModuleLayout | None = None
    generator: ModuleLayout | None = None

    def layout(self, given: Given) -> StepLayout:
        """Return it in full."""
        modules = dict.fromkeys(given.encoders, self.encoder) | {given.llm: self.llm}
        modules |= dict.fromkeys(given.generators, self.generator)
        whole = {name: one for name, one in modules.items() if one is not None}
        return StepLayout(whole, self.mode, generators=given.generators)


def stubs_of(given: Given, modes: Collection[str]) -> Iterator[Stub]:
    """Yield all layouts; those of stages beside the language model's have fewer replicas, for these need GPUs too."""
    alone = len(given.models) == 1
    beside = list(_stages_beside(given)) if "stages" in modes and not alone else []
    apart = list(_apart(given))

    @cache  # few differ
    def times(one: ModuleLayout, replicas: int, zero_stage: int) -> ModuleLayout:
        return replace(one, dp=one.dp * replicas, zero_stage=zero_stage)

    for llm in _language_layouts(given):
        if alone:
            yield Stub("stages", llm)
            continue
        replica, once = llm.num_gpus // llm.dp, replace(llm, dp=1)
        for gpus, *both in beside if llm.chunks == 1 else ():
            replicas = given.num_gpus // (replica + gpus)
            if replicas * (replica + gpus) >= _LEAST_USED * given.num_gpus:
                first, last = (one and times(one, replicas, llm.zero_stage) for one in both)
                yield Stub("stages", times(once, replicas, llm.zero_stage), first, last)
        if llm.num_gpus < _LEAST_USED * given.num_gpus:
            continue
        for mode, one in product(("before", "multiplexed"), apart):
            around = llm.num_gpus if mode == "before" else llm.device_gpus
            if mode not in modes or around % one.tp or (mode == "multiplexed" and llm.chunks > 1):
                continue
            for zero_stage in _ZERO_STAGES if mode == "before" else (1,):
                whole = replace(one, dp=llm.num_gpus // one.tp, zero_stage=zero_stage)
                yield Stub(mode, llm, whole)


def _stages_beside(given: Given) -> Iterator[tuple[int, ModuleLayout | None, ModuleLayout | None]]:
    """Yield stages of encoders and of generators for one replica, and how many GPUs they are.

    Where there are both, generators have two at most, are cut by tensors as encoders are, and recompute as these do.
    """
    encoders, generators = (list(_stages(given, names)) for names in (given.encoders, given.generators))
    for first, last in product(encoders or (None,), generators or (None,)):
        if first and last and (last.pp > 2 or (first.tp, first.recompute) != (last.tp, last.recompute)):
            continue
        yield sum(one.num_gpus for one in (first, last) if one is not None), first, last


def _stages(given: Given, names: Collection[str]) -> Iterator[ModuleLayout]:
    """Yield the stages that all of some modules may have beside the language model's: as many GPUs as a node's each."""
    for gpus, pp, tp, recompute in product(_SHARDS, _STAGES_BESIDE, _SHARDS, (False, True)):
        cut = ModuleLayout(tp=tp, pp=pp)
        if names and gpus % tp == 0 and gpus <= given.cluster.gpus_per_node and _all_fit(given, names, cut):
            yield replace(cut, dp=gpus // tp, recompute=recompute)


def _apart(given: Given) -> Iterator[ModuleLayout]:
    """Yield what all encoders may have where they are no stages."""
    for tp, recompute in product(_SHARDS, (False, True)):
        if _all_fit(given, given.encoders, ModuleLayout(tp=tp)):
            yield ModuleLayout(tp=tp, recompute=recompute)


def _all_fit(given: Given, names: Collection[str], one: ModuleLayout) -> bool:
    return all(_fits(given, name, one) for name in names)


def _fits(given: Given, name: str, one: ModuleLayout) -> bool:
    return misfit(one, given.models[name], given.cluster.gpus_per_node) is None


def numbers_of_slots(given: Given, layout: StepLayout) -> list[int]:
    """Return numbers of micro-batches to try, ascending: some for each device, and no more than samples."""
    devices = layout.num_devices
    samples = min(step.num_samples for step in given.steps) // layout.llm.dp
    most = min(samples, max(1, _MOST_CELLS // layout.num_stages))
    found = [devices * times for times in _MULTIPLES if devices * times <= most]
    if layout.llm.chunks > 1:
        return found
    return found or ([most] if most else [])
