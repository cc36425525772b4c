"""A step as files, ``--set`` and keywords say it: ranks, phases, cut, plan, deferral. Every key is declared once.

Keys of phases, cuts and settings are declared where these are, in ``balancer/problem/``; all others here.
"""

import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import MISSING, fields
from decimal import Decimal
from typing import Annotated, Any, ClassVar, Union

from balancer.described import (
    A_SIZE,
    Amount,
    Count,
    Flag,
    Kind,
    Size,
    SizesByName,
    Text,
    as_dict,
    by_kind,
    changed,
    defaults_of,
    described,
    key,
    one_of,
    partly,
    read,
    said_of,
    sentence_of,
)
from balancer.errors import InputError
from balancer.layouts.layout import StepLayout
from balancer.problem.across_steps import AcrossSteps
from balancer.problem.batch import HOMES
from balancer.problem.cuts import CUTS, Cut
from balancer.problem.cuts.context_shards import ContextShards
from balancer.problem.cuts.cut import WholeShares
from balancer.problem.cuts.in_slots import InSlots
from balancer.problem.cuts.micro_batches import MicroBatches
from balancer.problem.cuts.pipeline_stages import PipelineStages
from balancer.problem.cuts.pipelines import Pipelines
from balancer.problem.cuts.sequence_groups import SequenceGroups
from balancer.problem.phases import SINGLE_PHASE, Phase
from balancer.problem.settings import PlanSettings
from balancer.problem.topology import Topology
from solvers.errors import UsageError

# Keys ------------------------------------------------------------------------------------------------------------


def _tokens(value: Any) -> int:
    """Take 4M for 4,000,000: decimal, as sizes of batches are quoted."""
    found = re.fullmatch("([0-9]{1,15})([KMG]?)", value) if isinstance(value, str) else None
    thousands = {"": 0, "K": 1, "M": 2, "G": 3}
    tokens: int = A_SIZE.take(value if found is None else int(found[1]) * 1000 ** thousands[found[2]])
    return tokens


def _layout(value: Any) -> StepLayout | str:
    return value if isinstance(value, StepLayout) else os.fspath(value)


def _flag_or_names(value: Any) -> bool | tuple[str, ...]:
    if not isinstance(value, bool) and not (
        isinstance(value, list | tuple) and all(isinstance(name, str) for name in value)
    ):
        raise TypeError
    return value if isinstance(value, bool) else tuple(value)


Tokens = Annotated[int, Kind('a whole number >= 1, such as 4194304 or "4M"', {"type": ["integer", "string"]}, _tokens)]
Layout = Annotated[StepLayout | str, Kind("a layout's file", {"type": "string"}, _layout)]
FlagOrNames = Annotated[
    bool | tuple[str, ...],
    Kind(
        "true, false or a list of phases", {"type": ["boolean", "array"], "items": {"type": "string"}}, _flag_or_names
    ),
]


@described
class PipelineKeys(InSlots):
    """Micro-batches run through the stages of a pipeline."""

    stages: SizesByName | None = key(
        'Stages of each phase, in order: {"vision+audio" = 1, llm = 3}.', default=None, kw_only=True
    )
    chunks: Count = key("Stages on each device: interleaved 1F1B.", default=1, kw_only=True)
    recompute: FlagOrNames = key(
        "Backwards rerun the forward: of all phases, or of these.", default=False, kw_only=True
    )
    tied: Flag = key("An op waits for its like on all ranks, as with FSDP.", default=False, kw_only=True)
    in_flight_tokens: Size | None = key(
        "What a device holds between forwards and backwards.", default=None, kw_only=True
    )


OF_CUTS = {
    "whole_shares": partly(WholeShares, "whole_shares", "A rank computes its samples all at once."),
    "micro_batches": partly(MicroBatches, "micro_batches", "A rank computes its samples in micro-batches."),
    "pipelines": partly(PipelineKeys, "pipelines", "Micro-batches run through the stages of a pipeline."),
    "sequence_groups": partly(SequenceGroups, "sequence_groups", "Groups of ranks share samples."),
    "context_shards": partly(ContextShards, "context_shards", "A few ranks share packs of documents."),
}
"""The table `cut` by its key `kind`."""


def kind_of_cut(said: Mapping[str, Any]) -> str | None:
    """Return the first kind of cut that has all these keys: who gives them need not name it."""
    return next((kind for kind, keys in OF_CUTS.items() if defaults_of(keys).keys() >= said.keys()), None)


# The tables of a file: each key may be left out, so that options and layouts say it instead.
CutKeys: Any = Annotated[Union[*OF_CUTS.values()], *by_kind(kind_of_cut)]
PhaseKeys: Any = partly(Phase, keeps="name")
PlanKeys: Any = partly(PlanSettings)
DeferralKeys: Any = partly(AcrossSteps)


@described
class CutOnly:
    """How a step is cut, alone."""

    cut: CutKeys | None = key("How a step is cut.", default=None)


@described
class StepFile:
    """A step: ranks, batch, phases, cut, plan, deferral."""

    ranks: Count | None = key("Data-parallel ranks.", default=None)
    ranks_per_node: Count | None = key("Ranks on each node; by default all on one.", default=None)
    batch_per_rank: Count | None = key("Samples that a rank draws for each step.", default=None)
    step_tokens: Tokens | None = key("The most tokens of a step, instead of batch_per_rank.", default=None)
    home: Annotated[str, one_of(*HOMES)] | None = key(
        "How the loader deals rows to ranks: contiguous or strided.", default=None
    )
    drop_last: Flag | None = key("Leave out a last, short step.", default=None)
    epochs: Count | None = key("How often the log is planned, one after the other.", default=None)
    shuffle: Amount | None = key("The seed by which every epoch has another order.", default=None)
    layout: Layout | None = key("A layout, such as configure --out writes.", default=None)
    cluster: Text | None = key("What it runs on, for simulate and configure.", default=None)
    gpus: Count | None = key("GPUs of the cluster, for configure.", default=None)
    gpus_per_rank: Count | None = key("GPUs of a data-parallel rank, for simulate.", default=None)
    phase: tuple[PhaseKeys, ...] = key("The phases, in order.", default=())
    cut: CutKeys | None = key("How a step is cut.", default=None)
    plan: PlanKeys = key("How it is planned.", default=PlanKeys())
    deferral: DeferralKeys = key("Which samples form a step.", default=DeferralKeys())

    path: ClassVar[str] = ""  # the file that says it

    # What was said -----------------------------------------------------------------------------------------------

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the phases; of the only one, if nothing was said of any."""
        return tuple(phase.name for phase in self.phase) or (SINGLE_PHASE,)

    @property
    def is_single(self) -> bool:
        """Whether nobody named a phase."""
        return self.names == (SINGLE_PHASE,)

    def of_phases(self, name: str) -> dict[str, Any]:
        """Return a key's values by phase, of those of which it was said."""
        return {phase.name: value for phase in self.phase if (value := getattr(phase, name)) is not None}

    def need(self, name: str) -> Any:
        """Return a value of the top; InputError if nobody said it."""
        if (value := getattr(self, name)) is None:
            about = sentence_of(StepFile, name)
            raise InputError(f"{self.path}: {name} is missing: {about}".removeprefix(": "))
        return value

    def with_keys(self, **said: Any) -> "StepFile":
        """Return it with values of the top, or whole tables, set."""
        return changed(self, **said).of_file(self.path)

    def with_cut(self, said: Mapping[str, Any]) -> "StepFile":
        """Return it with another cut."""
        return self.with_keys(cut=read(CutOnly, {"cut": said}).cut)

    def of_file(self, path: str) -> "StepFile":
        """Return it as what this file says, for errors."""
        object.__setattr__(self, "path", path)
        return self

    # What is made of it ------------------------------------------------------------------------------------------

    def topology(self) -> Topology:
        """Return ranks and nodes."""
        return Topology.uniform(self.need("ranks"), self.ranks_per_node)

    def phases(self, length: str | None = None, costs: Mapping[str, Any] | None = None) -> tuple[Phase, ...]:
        """Return the phases; `length` is that of the only one, and `costs` are of those of which no cost was said."""
        found = []
        for said in self.phase or (PhaseKeys(),):
            given = said_of(said)
            if length is not None:
                given["length"] = length
            if "length" not in given:
                raise InputError(f"{self.path}: phase.{said.name}.length is missing".removeprefix(": "))
            given.setdefault("cost", (costs or {}).get(said.name, "linear"))
            found.append(Phase(**given))
        return tuple(found)

    def made_cut(self, models: Mapping[str, Any] | None = None, pieces: Mapping[str, Any] | None = None) -> Cut:
        """Return how a step is cut.

        Stages hold whole layers of `models`; where none are given, of those by whose FLOPs all phases are planned.
        """
        given = {} if self.cut is None else as_dict(self.cut)
        kind = given.pop("kind", "whole_shares")
        if kind == "pipelines":
            self._need_of_cut(PipelineKeys, "stages", "tokens")
            stages = self._stages(given, models, pieces)
            return Pipelines(**given, stages=stages)
        made = CUTS[kind]
        self._need_of_cut(made, *(name for name, default in defaults_of(made).items() if default is MISSING))
        return made(**given)

    def _need_of_cut(self, of_keys: type, *names: str) -> None:
        """Raise InputError for the first of some keys of the cut that nobody said."""
        for each in fields(of_keys):
            if each.name in names and getattr(self.cut, each.name) is None:
                about = each.metadata["description"]
                raise InputError(f"{self.path}: cut.{each.name} is missing: {about}".removeprefix(": "))

    def _stages(
        self, given: dict[str, Any], models: Mapping[str, Any] | None, pieces: Mapping[str, Any] | None
    ) -> PipelineStages:
        """Take the keys of stages out of those of pipelines."""
        # Encoders that compute before the step are in no stage: the last phase alone is cut then.
        piped = self.names[-1:] if given.get("encoders") == "step" else self.names
        if models is None:
            costs = self.of_phases("cost")
            named = {name: costs[name].model for name in piped if name in costs and costs[name].model}
            if other := [name for name in piped if named and name not in named]:
                raise UsageError(
                    "cut.stages needs costs of one unit, flops:MODEL of all phases or of none, got {cost} of {other}",
                    cost=str(costs.get(other[0], "linear")), other=other[0],
                )  # fmt: skip
            models = named or None
        else:
            models = {name: models[name] for name in piped}
        frozen = tuple(name for name, still in self.of_phases("frozen").items() if still)
        of_stages = ("chunks", "recompute", "tied", "in_flight_tokens")
        rest = {name: given.pop(name) for name in of_stages if name in given}
        return PipelineStages.of(given.pop("stages"), models, pieces=pieces or {}, frozen=frozen, **rest)

    def settings(self, cut: Cut | None = None) -> PlanSettings:
        """Return how steps are planned; `cut` replaces the cut that is said."""
        return PlanSettings(cut=self.made_cut() if cut is None else cut, **said_of(self.plan))

    def across(self) -> dict[str, Any]:
        """Return which samples form a step, by fields of ``AcrossSteps``."""
        return said_of(self.deferral) | ({} if self.step_tokens is None else {"step_tokens": self.step_tokens})


# Reading ---------------------------------------------------------------------------------------------------------


def read_toml(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read the tables of a step file as they stand there; InputError for one that is not there, or no TOML."""
    where = os.fspath(path)
    try:
        with open(where, encoding="utf-8-sig") as file:  # some editors begin a file with a mark of its encoding
            # Numbers with a point stay the decimals that were written.
            return tomllib.loads(file.read(), parse_float=Decimal)
    except FileNotFoundError:
        raise InputError(f"{where}: no such file") from None
    except ValueError as error:  # of TOML, of its encoding, or of a number of thousands of digits
        raise InputError(f"{where}: is no TOML: {error}") from None
    except RecursionError:
        raise InputError(f"{where}: lists stand within lists too often") from None
    except OSError as error:
        raise InputError(f"{where}: cannot be read: {error.strerror or error}") from None


def read_step(path: str | os.PathLike[str]) -> StepFile:
    """Read a step file.

    Raises
    ------
    InputError
        A file that is not there or no TOML; a key or a value that cannot be: it names file, key, value and rule.
    """
    return step_of(read_toml(path), os.fspath(path))


def step_of(said: Mapping[str, Any], path: str = "") -> StepFile:
    """Return the step that tables, as TOML has them, say; `path` is the file where they stand."""
    step: StepFile = read(StepFile, said, f"{path}: " if path else "")
    where = f"{path}: " if path else ""
    names = [phase.name for phase in step.phase]
    for number, (name, table) in enumerate(zip(names, said.get("phase", ()), strict=True), 1):
        if "name" not in table and len(names) > 1:
            raise InputError(f"{where}phase {number} of {len(names)} has no name; only a single one needs none")
        if name in names[: number - 1]:
            raise InputError(f"{where}phase {name!r} stands there twice; name each phase once")
    return step.of_file(path)
