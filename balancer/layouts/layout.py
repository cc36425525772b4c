"""Layouts: how the GPUs of a step are split for each module; encoders are stages, or run before, or between.

Generators, such as decoders of audio or images, come after the language model: last stages.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from balancer.cost import Module
from balancer.cost.memory import ZERO_STAGES
from balancer.cost.sequence_parallel import heads_divide, legal_degrees, padded_heads
from balancer.errors import InputError
from balancer.problem.step_times import StepTimes
from solvers.arguments import as_count
from solvers.errors import ArgumentError, ArgumentTypeError, UsageError, WordedError, Wording

LAYOUT_MODES = ("stages", "before", "multiplexed")
"""Encoders are the first stages of the pipeline, run on all GPUs before it, or in its gaps."""


def check_place_of(generators: Iterable[str], mode: str) -> None:
    """Raise ValueError if generators have no place in a mode: a micro-batch's backward begins with their gradient."""
    if (names := ", ".join(generators)) and mode != "stages":
        raise UsageError(
            "{mode} {given!r} has no place for generators ({names}), which are last stages: there the backward of a "
            "micro-batch begins", "use {mode} 'stages'", given=mode, names=names,
        )  # fmt: skip


_EXPERTS = ("ep", "etp", "expert_parallel", "expert_parallelism")
_COUNTS = ("tp", "pp", "dp", "cp", "sp", "chunks")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleLayout:
    """How the GPUs of one module are split: ``tp * cp * sp`` are a device of its pipeline, ``pp`` devices a replica.

    Attributes
    ----------
    tp : int
        Tensor shards of each layer, with what is between them sharded too (sequence parallelism of Megatron-LM).
    pp : int
        Pipeline devices.
    dp : int
        Replicas: data-parallel ranks.
    cp : int
        Context shards of each sample: keys and values go round a ring.
    sp : int
        Ulysses shards of each sample: heads for tokens, all to all. Both kinds multiply the GPUs.
    chunks : int
        Stages of each device; over 1 they are interleaved.
    zero_stage : int
        What the ``dp * cp * sp`` ranks with the same parameters share: nothing (0), the optimizer (1), gradients (2),
        parameters (3).
    recompute : bool
        Whether layers keep only their inputs, and backwards run the forward again.
    """

    tp: int = 1
    pp: int = 1
    dp: int = 1
    cp: int = 1
    sp: int = 1
    chunks: int = 1
    zero_stage: int = 1
    recompute: bool = False

    def __post_init__(self) -> None:
        for name in _COUNTS:
            object.__setattr__(self, name, as_count(name, getattr(self, name)))
        stage = as_count("zero_stage", self.zero_stage, 0)
        if stage not in ZERO_STAGES:
            raise ArgumentError("zero_stage", "be 0, 1, 2 or 3", stage)
        if not isinstance(self.recompute, bool):
            raise ArgumentTypeError("recompute", "be true or false", repr(self.recompute))

    @property
    def sequence_shards(self) -> int:
        """GPUs that share each sample."""
        return self.cp * self.sp

    @property
    def device_gpus(self) -> int:
        """GPUs of one device of its pipeline."""
        return self.tp * self.sequence_shards

    @property
    def num_gpus(self) -> int:
        """All of them."""
        return self.device_gpus * self.pp * self.dp

    def in_words(self) -> str:
        """Say what is not 1, as ``tp 8 pp 4 dp 16``."""
        parts = [f"{name} {getattr(self, name)}" for name in _COUNTS if getattr(self, name) > 1]
        parts += [f"zero {self.zero_stage}"] * (self.zero_stage != 1) + ["recompute"] * self.recompute
        return " ".join(parts) or "one GPU"


@dataclass(frozen=True, slots=True)
class StepLayout:
    """How a step's modules are laid out: encoders, the language model, and generators, if there are any.

    Attributes
    ----------
    modules : mapping of str to ModuleLayout
        By phase, in the order of the phases.
    mode : {"stages", "before", "multiplexed"}
        Encoders are first stages of the replicas' pipelines, all in the same ones, each with as many ranks in a replica
        as divide evenly; or they run on all GPUs before it, and their backward after it; or on all GPUs in its gaps.
        Generators are last stages in the same way: other modes have none.
    micro_batches : int or None
        Number for each replica, if it is decided.
    micro_batch_tokens : int or None
        The most tokens of the language model in a micro-batch, if it is decided.
    generators : tuple of str
        The last modules, which take the outputs of the language model.
    times : StepTimes or None
        With encoders in gaps: what all modules take and hold, from which plans are made; ``configure`` finds it.

    Examples
    --------
    >>> llm, vision = ModuleLayout(tp=8, pp=3, dp=16), ModuleLayout(pp=1, dp=128)
    >>> layout = StepLayout({"vision": vision, "llm": llm})
    >>> layout.num_gpus, layout.num_stages, layout.encoder_share
    (512, 4, 8)
    """

    modules: Mapping[str, ModuleLayout] = field(hash=False)
    mode: str = "stages"
    micro_batches: int | None = None
    micro_batch_tokens: int | None = None
    generators: tuple[str, ...] = ()
    times: StepTimes | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if not isinstance(self.modules, Mapping) or not self.modules:
            raise ArgumentTypeError("modules", "map phases, the language model last, to layouts", repr(self.modules))
        for name, layout in self.modules.items():
            if not isinstance(layout, ModuleLayout) or not isinstance(name, str):
                raise ArgumentTypeError(f"modules[{name!r}]", "be a ModuleLayout", repr(layout))
        object.__setattr__(self, "modules", dict(self.modules))
        if self.mode not in LAYOUT_MODES:
            raise UsageError("unknown {mode} {given!r}", f"known are {', '.join(LAYOUT_MODES)}", given=self.mode)
        for name in ("micro_batches", "micro_batch_tokens"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, as_count(name, getattr(self, name)))
        object.__setattr__(self, "generators", as_generators(list(self.modules), self.generators))
        check_place_of(self.generators, self.mode)
        if self.times is not None:
            self._check_times(self.times)
        for alike in (self.encoders, self.after):
            for name, layout in alike.items():
                self._check_beside(name, layout, next(iter(alike.values())))

    def _check_times(self, times: StepTimes) -> None:
        """Refuse times of another layout."""
        if (times.layout, times.slots) != (self.in_words(), self.micro_batches):
            raise UsageError(
                "{times} are of another layout ({words}; {count} micro-batches)",
                "configure anew, or leave {times} out",
                words=times.layout, count=times.slots,
            )  # fmt: skip
        own: dict[str, Any] = {
            "replicas": self.llm.dp, "chunks": self.llm.chunks, "piped": self.piped, "encoders": tuple(self.encoders)
        }  # fmt: skip
        for key, value in own.items():
            if (given := getattr(times, key)) != value:
                raise UsageError(
                    "{times}: {key} must be {value}, as the modules have it, got {given}", "configure anew", key=key,
                    value=_listed(value), given=_listed(given),
                )  # fmt: skip

    def _check_beside(self, name: str, layout: ModuleLayout, first: ModuleLayout) -> None:
        """Refuse an encoder that does not go with the language model, or with the first encoder; generators too."""
        llm, where = self.llm, f"modules[{name!r}]"
        kind = "generator" if name in self.generators else "encoder"
        if layout.chunks > 1 or (self.mode == "stages" and llm.chunks > 1):
            raise ArgumentError(
                f"{where}.chunks", f"be 1, and {self.llm_name!r}'s too where {kind}s are stages",
                max(layout.chunks, llm.chunks), remedy="use {mode='before'}" if kind == "encoder" else (),
            )  # fmt: skip
        if self.mode == "stages":
            if layout.dp % llm.dp:
                raise ArgumentError(
                    f"{where}.dp", f"be a multiple of {llm.dp}, the replicas of {self.llm_name!r}", layout.dp
                )
            # Encoders that are stages share their stages' GPUs: what differs between them is only how each splits a
            # device.
            if (layout.pp, layout.num_gpus) != (first.pp, first.num_gpus):
                rule = f"be as for the first {kind}, whose stages it shares: pp {first.pp} on {first.num_gpus} GPUs"
                raise ArgumentError(where, rule, f"pp {layout.pp} on {layout.num_gpus}")
            return
        if layout.pp > 1:
            raise ArgumentError(f"{where}.pp", f"be 1 with mode {self.mode!r}: no encoder is cut there", layout.pp)
        if layout.num_gpus != llm.num_gpus:
            rule = f"be on the {llm.num_gpus} GPUs of {self.llm_name!r} with mode {self.mode!r}"
            raise ArgumentError(where, rule, f"{layout.num_gpus} GPUs")
        # A task runs on one device of the pipeline, so that the encoder's replicas have to tile it.
        if self.mode == "multiplexed" and llm.device_gpus % layout.device_gpus:
            rule = f"have tp * cp * sp that divide the {llm.device_gpus} GPUs of a device of {self.llm_name!r}"
            raise ArgumentError(where, rule, layout.device_gpus)
        if self.mode == "multiplexed" and layout.zero_stage == 3:
            raise ArgumentError(
                f"{where}.zero_stage", "be 0, 1 or 2 with mode 'multiplexed': to gather parameters, all devices would "
                "have to run their tasks in one order", 3,
            )  # fmt: skip

    @property
    def llm_name(self) -> str:
        """The language model: the last module that is no generator."""
        return list(self.modules)[-1 - len(self.generators)]

    @property
    def llm(self) -> ModuleLayout:
        """The language model's."""
        return self.modules[self.llm_name]

    @property
    def encoders(self) -> dict[str, ModuleLayout]:
        """Those of all modules before the language model."""
        return dict(list(self.modules.items())[: -1 - len(self.generators)])

    @property
    def after(self) -> dict[str, ModuleLayout]:
        """Those of the generators."""
        return {name: self.modules[name] for name in self.generators}

    @property
    def piped(self) -> tuple[str, ...]:
        """Modules that are stages of the pipeline, in order."""
        return tuple(self.modules) if self.mode == "stages" else (self.llm_name,)

    @property
    def num_gpus(self) -> int:
        """GPUs that are used."""
        firsts = self._first(self.encoders), self._first(self.after)
        return self.llm.num_gpus + sum(one.num_gpus for one in firsts if one)

    @property
    def encoder_stages(self) -> int:
        """Stages of the pipeline that encoders are."""
        return first.pp if (first := self._first(self.encoders)) else 0

    @property
    def generator_stages(self) -> int:
        """Stages of the pipeline that generators are."""
        return first.pp if (first := self._first(self.after)) else 0

    def _first(self, alike: Mapping[str, ModuleLayout]) -> ModuleLayout | None:
        """Return the layout of the first that has stages of its own; all that are alike share them."""
        return next(iter(alike.values()), None) if self.mode == "stages" else None

    @property
    def num_devices(self) -> int:
        """Devices of a replica's pipeline."""
        return self.encoder_stages + self.llm.pp + self.generator_stages

    @property
    def num_stages(self) -> int:
        """Stages of a replica's pipeline."""
        return self.num_devices + self.llm.pp * (self.llm.chunks - 1)

    @property
    def encoder_share(self) -> int:
        """Ranks of the first encoder for each replica, where encoders are stages: they share a micro-batch's items."""
        return next(iter(self.encoders.values())).dp // self.llm.dp if self.encoders else 1

    @property
    def stage_counts(self) -> dict[str, int]:
        """What :meth:`balancer.PipelineStages.of` takes as its layout."""
        llm = self.llm_name, self.llm.pp * self.llm.chunks
        before, behind = ("+".join(self.encoders), self.encoder_stages), ("+".join(self.after), self.generator_stages)
        return {names: count for names, count in (before, llm, behind) if count}

    def pipeline_keywords(self) -> dict[str, Any]:
        """Return the rest of what it takes: chunks, and which of the pipeline's modules recompute."""
        return {"chunks": self.llm.chunks, "recompute": [name for name in self.piped if self.modules[name].recompute]}

    def check_phases(self, names: Sequence[str]) -> None:
        """Raise ValueError unless the layout is of exactly these phases, in this order."""
        if list(self.modules) != list(names):
            raise UsageError(
                "{layouts} must be of the phases {named} in this order, got {given}", named=", ".join(names),
                given=", ".join(self.modules),
            )  # fmt: skip

    def check_models(self, models: Mapping[str, Module], gpus_per_node: int) -> None:
        """Raise ValueError where a model cannot be cut like this: heads, layers, or tensor shards across nodes."""
        for name, layout in self.modules.items():
            why = misfit(layout, models[name], gpus_per_node)
            if why is not None:
                attention, parts = models[name].attention, layout.tp * layout.sp
                legal = ", ".join(map(str, legal_degrees(attention)))
                remedy = () if heads_divide(attention, parts) else (f"take {legal}", *padded_heads(attention, parts))
                raise UsageError("{layouts}, module {name!r}: {why}", remedy, name=name, why=why)

    def to_json(self) -> dict[str, Any]:
        """Return it as a file holds it."""
        found = {"mode": self.mode, "modules": {name: asdict(layout) for name, layout in self.modules.items()}}
        more: dict[str, Any] = {name: getattr(self, name) for name in ("micro_batches", "micro_batch_tokens")}
        more["generators"] = list(self.generators) or None
        more["times"] = None if self.times is None else self.times.to_json()
        return found | {name: value for name, value in more.items() if value is not None}

    @classmethod
    def from_json(cls, found: Any) -> StepLayout:
        """Read back what :meth:`to_json` wrote; TypeError or ValueError that names what is wrong. Key `found` is free.

        Examples
        --------
        >>> StepLayout.from_json({"modules": {"all": {"tp": 8, "dp": 2}}}).num_gpus
        16
        """
        if not isinstance(found, Mapping) or "modules" not in found:
            raise ArgumentTypeError("layouts", "be an object with 'modules'", f"{found!r:.80}")
        _refuse_others("layout", found, [*(each.name for each in fields(cls)), "found"])
        given = found["modules"]
        if not isinstance(given, Mapping) or not all(isinstance(each, Mapping) for each in given.values()):
            raise ArgumentTypeError("modules", "map phases to objects", f"{given!r:.80}")
        modules = {}
        for name, each in given.items():
            _refuse_others(f"modules[{name!r}]", each, [each.name for each in fields(ModuleLayout)])
            try:
                modules[name] = ModuleLayout(**each)
            except (UsageError, ArgumentTypeError) as error:
                raise error.within(f"modules[{name!r}]") from None
        rest = {name: value for name, value in found.items() if name not in ("modules", "found")}
        if rest.get("times") is not None:
            rest["times"] = StepTimes.from_json(rest["times"])
        return cls(modules, **rest)

    def in_words(self) -> str:
        """Say what it is, in a line."""
        each = "; ".join(f"{name}: {layout.in_words()}" for name, layout in self.modules.items())
        return f"{self.mode}; {each}" if len(self.modules) > 1 else each


def _listed(value: Any) -> str:
    """Return a number, or names, in words."""
    return ", ".join(value) or "none" if isinstance(value, tuple) else str(value)


def as_generators(names: Sequence[str], given: Any) -> tuple[str, ...]:
    """Return phases that come after the language model, in order: the last of these, and never all."""
    if not isinstance(given, Iterable):
        raise ArgumentTypeError("generators", "be phases, by name", repr(given))
    found = (given,) if isinstance(given, str) else tuple(given)
    if odd := [name for name in found if name not in names]:
        raise ArgumentError("generators", f"be of the phases {', '.join(names)}", repr(odd[0]))
    last = tuple(names)[len(names) - len(set(found)) :]
    if set(found) != set(last) or len(last) == len(names):
        rule = f"be the last of the phases {', '.join(names)}, after the language model, which they follow"
        raise ArgumentError("generators", rule, ", ".join(found))
    return last


def upstream(names: Sequence[str], generators: Collection[str], name: str) -> tuple[str, ...]:
    """Return the modules whose outputs reach one: of the language model encoders, of a generator these and that.

    Examples
    --------
    >>> [upstream(["vision", "llm", "speech"], ["speech"], name) for name in ("vision", "llm", "speech")]
    [(), ('vision',), ('vision', 'llm')]
    """
    llm = len(names) - len(generators) - 1
    if name in generators:
        return tuple(names)[: llm + 1]
    return tuple(names)[:llm] if name == names[llm] else ()


def _refuse_others(where: str, given: Mapping[str, Any], known: Sequence[str]) -> None:
    for name in given:
        # Named apart from unknown keys, as it is what many layouts have, and no slip of the pen.
        if name in _EXPERTS:
            raise UsageError(
                "{where}: expert parallelism ({name}) is not planned: which expert a token goes to is in no log of "
                "lengths, so that what its ranks do cannot be foretold",
                "lay experts out with tp, or leave them whole", where=where, name=name,
            )  # fmt: skip
        if name not in known:
            raise UsageError("{where}: unknown field {name!r}", f"known are {', '.join(known)}", where=where, name=name)


def misfit(layout: ModuleLayout, model: Module, gpus_per_node: int) -> str | None:
    """Say why a model cannot be cut like this, or None."""
    attention = model.attention
    if layout.tp > gpus_per_node:
        return f"tp {layout.tp} is more than the {gpus_per_node} GPUs of a node"
    parts = layout.tp * layout.sp
    if not heads_divide(attention, parts):
        return (
            f"tp * sp = {parts} does not divide its {attention.heads} heads ({attention.kv_heads} of keys and values)"
        )
    if model.layers < layout.pp * layout.chunks:
        return f"pp {layout.pp} with {layout.chunks} chunks are more stages than its {model.layers} layers"
    return None


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        again = next(name for at, name in enumerate(names) if name in names[:at])
        raise UsageError("{again!r} stands twice in one object: which of them holds?", again=again)
    return found


_KEYS = Wording({
    "mode": '"mode"', "mode='before'": '"mode": "before"', "generators": '"generators"', "layouts": "a layout",
})  # fmt: skip
"""What a file calls the arguments."""


def read_layout(path: str | os.PathLike[str]) -> StepLayout:
    """Read a layout from a JSON file, such as ``balancer configure --out`` writes.

    Raises
    ------
    InputError
        A file that cannot be read, or that holds no layout; it names the file and the field.
    """
    where = os.fspath(path)
    try:
        with open(path, encoding="utf-8") as handle:
            return StepLayout.from_json(json.load(handle, object_pairs_hook=_each_once))
    except FileNotFoundError:
        raise InputError(f"{where}: no such file") from None
    except WordedError as error:
        raise InputError.of(error.in_words(_KEYS).within(where)) from None
    except (OSError, ValueError, TypeError, RecursionError) as error:
        raise InputError(f"{where}: cannot be read as a layout: {str(error).splitlines()[0][:200]}") from error
