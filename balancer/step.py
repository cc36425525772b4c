"""A step as files, ``--set`` and keywords say it: ranks, phases, cut, plan, deferral. Every key is declared here, once.

Phases, cut and settings are made of the keys here, and nowhere else. What goes together is checked where they are made.
"""

import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import fields
from decimal import Decimal
from typing import Annotated, Any, ClassVar, Literal

from balancer.cost import EXCHANGES, parse_cost
from balancer.described import (
    A_COUNT,
    A_SHARE,
    Amount,
    Amounts,
    Count,
    Counts,
    CountsByName,
    Flag,
    Kind,
    Number,
    Share,
    Text,
    as_dict,
    by_kind,
    changed,
    defaults_of,
    described,
    key,
    keys_of,
    needed,
    one_of,
    read,
    sentence_of,
)
from balancer.errors import InputError
from balancer.problem.batch import HOMES
from balancer.problem.cuts import WHOLE_SHARES, Cut
from balancer.problem.cuts.context_shards import SHARD_SYNCS, ContextShards
from balancer.problem.cuts.micro_batches import ENCODERS, OVER_LONG, MicroBatches
from balancer.problem.cuts.pipeline_stages import PipelineStages
from balancer.problem.cuts.sequence_groups import SequenceGroups
from balancer.problem.layout import StepLayout
from balancer.problem.phases import SINGLE_PHASE, Phase
from balancer.problem.settings import METHODS, MODES, PLACEMENTS, PlanSettings
from balancer.problem.topology import Topology
from solvers.errors import UsageError
from solvers.packing import SYNCS

# Keys ------------------------------------------------------------------------------------------------------------


def _cost(value: Any) -> str:
    parse_cost(value)
    return str(value)


def _tokens(value: Any) -> int:
    """Take 4M for 4,000,000: decimal, as sizes of batches are quoted."""
    found = re.fullmatch("([0-9]{1,15})([KMG]?)", value) if isinstance(value, str) else None
    thousands = {"": 0, "K": 1, "M": 2, "G": 3}
    tokens: int = A_COUNT.take(value if found is None else int(found[1]) * 1000 ** thousands[found[2]])
    return tokens


def _layout(value: Any) -> StepLayout | str:
    return value if isinstance(value, StepLayout) else os.fspath(value)


Cost = Annotated[str, Kind("", {"type": "string"}, _cost)]
Tokens = Annotated[int, Kind('a whole number >= 1, such as 4194304 or "4M"', {"type": ["integer", "string"]}, _tokens)]
Layout = Annotated[StepLayout | str, Kind("a layout's file", {"type": "string"}, _layout)]


@described
class PhaseKeys:
    """A module, what it computes, and what every rank's share of it keeps to."""

    name: Text = key("The module; the only phase needs none. The last is the language model.", SINGLE_PHASE)
    length: Text | None = key("Its length: columns, text+image, or of several items lengths(clips).")
    cost: Cost | None = key("linear, quadratic:a=24576,b=1, padded, flops:qwen2-7b, ...")
    outputs: Text | None = key("What each item puts out; by default its length.")
    own: Text | None = key("What each sample adds itself in the last phase.")
    bytes_in: Count | None = key("Bytes of an element as input.")
    bytes_out: Count | None = key("Bytes of an element as output.")
    equal_counts: Flag | None = key("Every rank gets equally many samples, within one.")
    max_tokens_per_rank: Count | None = key("Cap on a rank's sum of lengths.")
    min_samples_per_rank: Amount | None = key("Samples a rank gets at least.")
    max_samples_per_rank: Count | None = key("Samples a rank gets at most.")
    caps: CountsByName | None = key("Caps on a rank's sums of other columns: {images = 90}.")
    keep_together: Text | None = key("Rows with equal values in this column run on one rank.")
    prefix: Text | None = key("Rows with equal values in this column share a prompt, computed once a rank.")
    prefix_length: Text | None = key("The column with the length of a row's prompt.")
    allowed_ranks: Text | None = key("The column that lists the ranks of a row.")
    rank_speeds: Counts | None = key("Work units that each rank does in a unit of time.")
    initial_loads: Amounts | None = key("Work units that each rank has already.")
    sequence_parallel: Count | None = key("Ranks that share an encoder's long items.")
    share_multiple_of: Count | None = key("With sequence_parallel, what shares are padded to.")
    every_rank_nonempty: Flag | None = key("Every rank gets an item, if possible.")
    model: Text | None = key("Its model, for simulate and configure: qwen2-7b.")
    pieces: Count | None = key("Its items are cut into pieces of so many elements.")
    frozen: Flag | None = key("It is not trained; for pipelines and configure.")


def _flag_or_names(value: Any) -> bool | tuple[str, ...]:
    if not isinstance(value, bool) and not (
        isinstance(value, list | tuple) and all(isinstance(name, str) for name in value)
    ):
        raise TypeError
    return value if isinstance(value, bool) else tuple(value)


FlagOrNames = Annotated[
    bool | tuple[str, ...],
    Kind(
        "true, false or a list of phases", {"type": ["boolean", "array"], "items": {"type": "string"}}, _flag_or_names
    ),
]
Encoders = Annotated[str, one_of(*ENCODERS)]
OverLong = Annotated[str, one_of(*OVER_LONG)]
CountOrFewest = Annotated[int | str, A_COUNT.or_word("fewest")]


@described
class WholeSharesKeys:
    """A rank computes its samples all at once."""

    kind: Literal["whole_shares"] = key("A rank computes its samples all at once.", "whole_shares")


@described
class SlotKeys:
    """What micro-batches have in common, whether a pipeline runs them or not."""

    tokens: Count | None = key("Elements of a micro-batch at most.")
    count: CountOrFewest | None = key('How many a rank, or "fewest"; by default the fastest.')
    at_least: Count | None = key("At least so many a rank.")
    multiple_of: Count | None = key("A multiple of so many.")
    allow_empty: Flag | None = key("A micro-batch may hold nothing.")
    over_long: OverLong | None = key("A row over the cap: error, or own.")
    encoders: Encoders | None = key("Encoders compute in a sample's micro-batch (slot), or before (step).")


@described
class MicroBatchesKeys(SlotKeys):
    """A rank computes its samples in micro-batches."""

    sync: Annotated[str, one_of(*SYNCS)] | None = key("Where ranks wait: micro_batch, step or pipeline.")
    pipeline_stages: Count | None = key("Stages of a pipeline of which no more is known.")
    kind: Literal["micro_batches"] = key("A rank computes its samples in micro-batches.", "micro_batches")


@described
class PipelinesKeys(SlotKeys):
    """Micro-batches run through the stages of a pipeline."""

    stages: CountsByName | None = key('Stages of each phase, in order: {"vision+audio" = 1, llm = 3}.')
    chunks: Count | None = key("Stages on each device: interleaved 1F1B.")
    recompute: FlagOrNames | None = key("Backwards rerun the forward: of all phases, or of these.")
    tied: Flag | None = key("An op waits for its like on all ranks, as with FSDP.")
    in_flight_tokens: Count | None = key("What a device holds between forwards and backwards.")
    kind: Literal["pipelines"] = key("Micro-batches run through the stages of a pipeline.", "pipelines")


@described
class SequenceGroupsKeys:
    """Groups of ranks share samples: long ones run on many ranks, short ones on few."""

    degrees: Counts | None = key("How many ranks a group may have: [1, 2, 4, 8].")
    tokens_per_rank: Count | None = key("Tokens of a rank in a slot at most.")
    count: Count | None = key("How many slots; by default the fastest.")
    multiple_of: Count | None = key("A multiple of so many.")
    exchange: Annotated[str, one_of(*EXCHANGES)] | None = key("What ranks of a group exchange: ulysses or ring.")
    encoders: Encoders | None = key("Encoders compute in a sample's slot (slot), or before (step).")
    kind: Literal["sequence_groups"] = key("Groups of ranks share samples.", "sequence_groups")


@described
class ContextShardsKeys:
    """A few ranks share packs of documents, token by token."""

    degree: Count = needed("How many ranks share each pack of documents.")
    pack_tokens: Count = needed("Tokens of a pack at most.")
    masks: CountsByName | None = key("Layers by what queries see: {full = 1, window1024 = 5}.")
    block: Count | None = key("Documents are cut at its multiples; by default 128.")
    sync: Annotated[str, one_of(*SHARD_SYNCS)] | None = key("Where replicas wait: micro_batch or step.")
    count: Count | None = key("How many packs a replica; by default the fastest.")
    kind: Literal["context_shards"] = key("A few ranks share packs of documents.", "context_shards")


def kind_of_cut(said: Mapping[str, Any]) -> str | None:
    """Return the first kind of cut that has all these keys: who gives them need not name it."""
    kinds = (WholeSharesKeys, MicroBatchesKeys, PipelinesKeys, SequenceGroupsKeys, ContextShardsKeys)
    return next((names["kind"] for names in map(defaults_of, kinds) if names.keys() >= said.keys()), None)


CutKeys = Annotated[
    WholeSharesKeys | MicroBatchesKeys | PipelinesKeys | SequenceGroupsKeys | ContextShardsKeys, *by_kind(kind_of_cut)
]


@described
class CutOnly:
    """How a step is cut, alone."""

    cut: CutKeys | None = key("How a step is cut.")


@described
class PlanKeys:
    """How steps are planned."""

    method: Annotated[str, one_of(*METHODS)] | None = key("A partition method, or auto.")
    placement: Annotated[str, one_of(*PLACEMENTS)] | None = key("How plans choose ranks: relocate, rearrange or any.")
    eps: Share | None = key('How much longer a step may take so that less moves: 0.001 or "0.1%".')
    stop_at: Share | None = key("The gap that is small enough; 0: search on for the optimum.")
    time_budget: Number | None = key("Solver work in seconds, per step and phase; counted, not timed.")
    mode: Annotated[str, one_of(*MODES)] | None = key("How encoders are balanced: separate or joint.")
    group_size: Count | None = key("Plan and exchange only within groups of so many ranks.")


ShareOrAny = Annotated[str, A_SHARE.or_word("any")]
ShareExactOrAny = Annotated[str, A_SHARE.or_word("exact", "any")]


@described
class DeferralKeys:
    """Which samples form a step, where a sample may run early or late."""

    early: Amount | None = key("Steps that a sample may run early.")
    late: Amount | None = key("Steps that it may run late.")
    tokens_within: ShareOrAny | None = key('How far a step\'s tokens may be off: "5%", any.')
    counts: ShareExactOrAny | None = key("Samples of a step: exact, any, or a share they may be off.")
    most_long_share: Share | None = key("Most of a step's tokens that long samples may have.")
    stage: Text | None = key("A column; no sample runs across a change of it.")


@described
class StepFile:
    """A step: ranks, batch, phases, cut, plan, deferral."""

    ranks: Count | None = key("Data-parallel ranks.")
    ranks_per_node: Count | None = key("Ranks on each node; by default all on one.")
    batch_per_rank: Count | None = key("Samples that a rank draws for each step.")
    step_tokens: Tokens | None = key("The most tokens of a step, instead of batch_per_rank.")
    home: Annotated[str, one_of(*HOMES)] | None = key("How the loader deals rows to ranks: contiguous or strided.")
    drop_last: Flag | None = key("Leave out a last, short step.")
    epochs: Count | None = key("How often the log is planned, one after the other.")
    shuffle: Amount | None = key("The seed by which every epoch has another order.")
    layout: Layout | None = key("A layout, such as configure --out writes.")
    cluster: Text | None = key("What it runs on, for simulate and configure.")
    gpus: Count | None = key("GPUs of the cluster, for configure.")
    gpus_per_rank: Count | None = key("GPUs of a data-parallel rank, for simulate.")
    phase: tuple[PhaseKeys, ...] = key("The phases, in order.", ())
    cut: CutKeys | None = key("How a step is cut.")
    plan: PlanKeys = key("How it is planned.", PlanKeys())
    deferral: DeferralKeys = key("Which samples form a step.", DeferralKeys())

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
            given = as_dict(said)
            for of_others in ("model", "pieces", "frozen"):
                given.pop(of_others, None)
            if (column := length or given.pop("length", None)) is None:
                raise InputError(f"{self.path}: phase.{said.name}.length is missing".removeprefix(": "))
            given.pop("length", None)
            given.setdefault("cost", (costs or {}).get(said.name, "linear"))
            found.append(Phase(items=column, **given))
        return tuple(found)

    def made_cut(self, models: Mapping[str, Any] | None = None, pieces: Mapping[str, Any] | None = None) -> Cut:
        """Return how a step is cut.

        Stages hold whole layers of `models`; where none are given, of those by whose FLOPs all phases are planned.
        """
        given = {} if self.cut is None else as_dict(self.cut)
        for name in ("stages", "tokens"):
            if hasattr(self.cut, name) and getattr(self.cut, name) is None:
                about = next(each.about for each in keys_of(StepFile) if each.path == f"cut.{name}")
                raise InputError(f"{self.path}: cut.{name} is missing: {about}".removeprefix(": "))
        match given.pop("kind", "whole_shares"):
            case "micro_batches":
                return MicroBatches(**given)
            case "pipelines":
                stages = self._stages(given, models, pieces)
                return MicroBatches(**given, sync="pipeline", stages=stages)
            case "sequence_groups":
                return SequenceGroups(**given)
            case "context_shards":
                return ContextShards(**given)
        return WHOLE_SHARES

    def _stages(
        self, given: dict[str, Any], models: Mapping[str, Any] | None, pieces: Mapping[str, Any] | None
    ) -> PipelineStages:
        """Take the keys of stages out of those of pipelines."""
        # Encoders that compute before the step are in no stage: the last phase alone is cut then.
        piped = self.names[-1:] if given.get("encoders") == "step" else self.names
        if models is None:
            costs = {name: str(self.of_phases("cost").get(name, "linear")) for name in piped}
            named = {name: cost.removeprefix("flops:") for name, cost in costs.items() if cost.startswith("flops:")}
            if other := [name for name in piped if named and name not in named]:
                raise UsageError(
                    "cut.stages needs costs of one unit, flops:MODEL of all phases or of none, got {cost} of {other}",
                    cost=costs[other[0]], other=other[0],
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
        return PlanSettings(cut=self.made_cut() if cut is None else cut, **as_dict(self.plan))

    def across(self) -> dict[str, Any]:
        """Return which samples form a step, by fields of ``AcrossSteps``."""
        return {**as_dict(self.deferral)} | ({} if self.step_tokens is None else {"step_tokens": self.step_tokens})


def keys_of_micro_batches(cut: MicroBatches) -> dict[str, Any]:
    """Return micro-batches, without stages, as keys of a cut."""
    spec = {each.name: each.default for each in fields(cut) if each.name not in ("tokens", "stages")}
    return {"tokens": cut.tokens} | {
        name: value for name, default in spec.items() if (value := getattr(cut, name)) != default
    }


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
