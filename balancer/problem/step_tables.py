"""A step as a file, options and keywords say it: tables of keys and values, and what they mean.

Whoever says a step makes these tables; ranks, phases, cut and settings are made of them here, and nowhere else.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from decimal import Decimal
from typing import Any

from balancer.cost import parse_cost
from balancer.errors import InputError
from balancer.problem.cuts import WHOLE_SHARES, Cut
from balancer.problem.cuts.context_shards import ContextShards
from balancer.problem.cuts.micro_batches import MicroBatches
from balancer.problem.cuts.pipeline_stages import PipelineStages
from balancer.problem.cuts.sequence_groups import SequenceGroups
from balancer.problem.phases import SINGLE_PHASE, Phase
from balancer.problem.settings import PlanSettings
from balancer.problem.step_keys import KEYS
from balancer.problem.topology import Topology
from solvers.errors import UsageError, Wording, braced

CUTS_OF_STEPS = ("micro_batches", "sequence_groups", "context_shards")
"""The tables that say how a step is cut, of which there is one."""

_OF_OTHERS = ("length", "bytes", "model", "pieces", "frozen")
"""Keys of a phase that are no field of :class:`Phase` by that name."""

_SHARING = ("sequence_groups", "context_shards")
"""Those of them in which ranks share samples."""

DEGREES = (1, 2, 4, 8)
"""How many ranks sequence groups may have where nobody says it."""

_ARGUMENTS = {
    "ranks": ("num_ranks",),
    "sync": ("cut.sync",),
    "micro_batch_tokens": ("cut.tokens",),
    "min_micro_batches": ("cut.at_least",),
    "micro_batches": ("cut.count", "num_slots"),
    "micro_batches_multiple_of": ("cut.multiple_of",),
    "max_tokens_per_rank": ("max_tokens_per_rank", "cut.tokens_per_rank"),
    "group_degrees": ("sequence_groups", "degrees"),
    "group_exchange": ("exchange",),
    "context": ("context_shards", "degree"),
    "context_block": ("block",),
    "stages": ("stages", "layout"),
    "costs": ("cost of phases",),
}
"""What the library calls the values of options that have another name there."""


@dataclass(frozen=True, slots=True)
class StepTables:
    """What is said of a step; each key is known, each value of its kind.

    Attributes
    ----------
    path : str
        The file that says it; empty where there is none.
    tables : mapping of str to mapping
        Keys and values by table; the one without a name is the top of a file.
    phases : tuple of mapping
        One a phase, in order, each with its name (``"all"`` where nobody named the only one).
    """

    path: str = ""
    tables: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    phases: tuple[Mapping[str, Any], ...] = ()

    def of(self, table: str) -> Mapping[str, Any]:
        """Return a table; an empty one if it is not there."""
        return self.tables.get(table, {})

    @property
    def top(self) -> Mapping[str, Any]:
        """Ranks, batch, and what else stands at the top of a file."""
        return self.of("")

    @property
    def cut(self) -> str:
        """The table that says how a step is cut; empty for whole shares."""
        return next((table for table in CUTS_OF_STEPS if table in self.tables), "")

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the phases; of the only one, if nothing was said of any."""
        return tuple(phase["name"] for phase in self.phases) or (SINGLE_PHASE,)

    @property
    def is_single(self) -> bool:
        """Whether nobody named a phase."""
        return self.names == (SINGLE_PHASE,)

    def of_phases(self, key: str) -> dict[str, Any]:
        """Return a key's values by phase, of those of which it was said."""
        return {phase["name"]: phase[key] for phase in self.phases if key in phase}

    def values(self) -> Iterator[tuple[str, str, str, Any]]:
        """Yield every value with its table, the phase (or nothing) and the key that it stands under."""
        for table, keys in self.tables.items():
            yield from ((table, "", key, value) for key, value in keys.items())
        for phase in self.phases:
            yield from (("phase", phase["name"], key, value) for key, value in phase.items() if key != "name")

    def beside(self, other: "StepTables") -> "StepTables":
        """Return all of both; what the other says wins, and another cut than this one's is in its place."""
        mine = {table: keys for table, keys in self.tables.items() if not other.cut or table not in CUTS_OF_STEPS}
        if other.cut and self.cut == other.cut:
            mine[self.cut] = self.of(self.cut)
        tables = {table: {**mine.get(table, {}), **other.of(table)} for table in (mine | dict(other.tables))}
        of_name = {phase["name"]: phase for phase in self.phases}
        for phase in other.phases:
            of_name[phase["name"]] = {**of_name.get(phase["name"], {}), **phase}
        return StepTables(self.path or other.path, tables, tuple(of_name.values()))

    def with_keys(self, table: str, **keys: Any) -> "StepTables":
        """Return it with keys of a table set."""
        return replace(self, tables={**self.tables, table: {**self.of(table), **keys}})

    def place(self, table: str, phase: str, key: str) -> str:
        """Return where a key stands, for a message."""
        return f"{self.path}: {table_in_words(table, phase)}{key}"

    def wording(self, but: Iterable[str] = ()) -> Wording:
        """Return where the file says what options would, `but` for these, which were typed."""
        places: dict[str, str | None] = {}
        for table, phase, key, _ in self.values() if self.path else ():
            option = KEYS[table][key].option
            if option and option not in but:
                place = self.place(table, "" if phase == SINGLE_PHASE else phase, key)
                for argument in _ARGUMENTS.get(option, (option,)):
                    places.setdefault(argument, braced(place))
        return Wording(places)

    def need(self, *keys: str) -> list[Any]:
        """Return values of the top; InputError names one that is missing."""
        for key in keys:
            if key not in self.top:
                where = f"{self.path}: " * bool(self.path)
                raise InputError(f"{where}{key} is missing: {KEYS[''][key].about}")
        return [self.top[key] for key in keys]

    def of_only_phase(self) -> dict[str, Any]:
        """Return length, cost and constraints of the only phase."""
        (keys,) = self.phases
        return {key: value for key, value in keys.items() if key not in ("name", "model", "pieces", "frozen", "bytes")}

    def topology(self) -> Topology:
        """Return ranks and nodes."""
        ranks = self.need("ranks")[0] if self.path else self.top.get("ranks")
        return Topology.uniform(ranks, self.top.get("ranks_per_node"))  # type: ignore[arg-type] # refused by name

    def across(self) -> dict[str, Any]:
        """Return which samples form a step, by keywords of ``AcrossSteps.from_options``."""
        found = {"defer" if key == "steps" else key: value for key, value in self.of("deferral").items()}
        found = {key: str(value) if isinstance(value, Decimal) else value for key, value in found.items()}
        return found | {key: self.top[key] for key in ("step_tokens",) if key in self.top}

    def as_phases(self, length: str | None = None, costs: Mapping[str, Any] | None = None) -> tuple[Phase, ...]:
        """Return the phases; `length` is that of the only one, and `costs` are of those of which no cost was said."""
        found = []
        for keys in self.phases or ({"name": SINGLE_PHASE},):
            name = keys["name"]
            given = {key: value for key, value in keys.items() if key not in _OF_OTHERS}
            if self.cut == "sequence_groups" and name == self.names[-1]:
                given.pop("max_tokens_per_rank", None)  # which is then one of groups
            column = keys.get("length") if length is None else length
            if column is None:
                where = f"{self.path}: " * bool(self.path)
                raise InputError(f"{where}{table_in_words('phase', name)}length is missing: the columns of its length")
            given["items"] = column
            if "bytes" in keys:
                both = keys["bytes"] if isinstance(keys["bytes"], list) else [keys["bytes"]]
                given |= dict(zip(("bytes_in", "bytes_out"), both, strict=False))
            for of_ranks in ("rank_speeds", "initial_loads"):
                if of_ranks in given:
                    given[of_ranks] = tuple(given[of_ranks])
            given.setdefault("cost", (costs or {}).get(name, "linear"))
            found.append(Phase(**given | {"cost": parse_cost(given["cost"])}))
        return tuple(found)

    def as_cut(self, models: Mapping[str, Any] | None = None, pieces: Mapping[str, Any] | None = None) -> Cut:
        """Return how a step is cut; of sequence groups the cap is that of the last phase.

        Stages hold whole layers of `models`; where none are given, of those by whose FLOPs all phases are planned.
        """
        stages, keys = self.of("stages"), dict(self.of(self.cut)) if self.cut else {}
        if stages and "counts" not in stages:
            raise UsageError(f"{named_options('stages', stages)} needs {{stages}}, how many stages each phase is cut "
                             "into")  # fmt: skip
        if self.cut in _SHARING:
            if stages:
                raise UsageError(f"{named_options('stages', stages)} cannot be combined with {{{self.cut}}}")
            return self._groups(keys) if self.cut == "sequence_groups" else _shards(keys)
        if "tokens" not in keys:
            if keys or stages or self.cut:
                given = "{stages}" if stages else named_options("micro_batches", keys) or "[micro_batches]"
                raise UsageError(f"{given} needs {{cut.tokens}}, the cap on a micro-batch")
            return WHOLE_SHARES
        if stages:
            keys.setdefault("sync", "pipeline")
            keys["stages"] = self._stages(keys.get("encoders") == "step", models, pieces)
        return MicroBatches(keys.pop("tokens"), **keys)

    def _groups(self, keys: dict[str, Any]) -> SequenceGroups:
        keys["degrees"] = tuple(keys.get("degrees", DEGREES))
        return SequenceGroups(tokens_per_rank=self.of_phases("max_tokens_per_rank").get(self.names[-1]), **keys)

    def _stages(
        self, last_alone: bool, models: Mapping[str, Any] | None, pieces: Mapping[str, Any] | None
    ) -> PipelineStages:
        """Return the stages of all phases, or of the last alone."""
        piped = self.names[-1:] if last_alone else self.names
        if models is None:
            costs = {name: str(self.of_phases("cost").get(name, "linear")) for name in piped}
            named = {name: cost.removeprefix("flops:") for name, cost in costs.items() if cost.startswith("flops:")}
            if other := [name for name in piped if named and name not in named]:
                raise UsageError(
                    "{stages} needs costs of one unit, flops:MODEL of all phases or of none, got {cost} of {other}",
                    cost=costs[other[0]], other=other[0],
                )  # fmt: skip
            models = named or None
        else:
            models = {name: models[name] for name in piped}
        rest = dict(self.of("stages"))
        frozen = tuple(name for name, still in self.of_phases("frozen").items() if still)
        return PipelineStages.of(rest.pop("counts"), models, pieces=pieces or {}, frozen=frozen, **rest)

    def settings(self, cut: Cut | None = None) -> PlanSettings:
        """Return how steps are planned; `cut` replaces the cut of the tables."""
        given: dict[str, Any] = {
            key: str(value) if isinstance(value, Decimal) else value for key, value in self.of("plan").items()
        }  # fmt: skip
        if "time_budget" in given:
            given["time_budget"] = float(given["time_budget"])
        return PlanSettings(cut=self.as_cut() if cut is None else cut, **given)


def _shards(keys: dict[str, Any]) -> ContextShards:
    for key, what in (("degree", "how many ranks share a pack"), ("pack_tokens", "the most tokens of a pack")):
        if key not in keys:
            raise UsageError(f"{{context_shards}} needs {{{key}}}, {what}")
    return ContextShards(**keys)


def keys_of_micro_batches(cut: MicroBatches) -> dict[str, Any]:
    """Return micro-batches as their table has them, without stages."""
    spec = {each.name: each.default for each in fields(cut) if each.name not in ("tokens", "stages")}
    given = {name: value for name in spec if (value := getattr(cut, name)) != spec[name]}
    return {"tokens": cut.tokens} | given


def named_options(table: str, keys: Iterable[str]) -> str:
    """Return the words of a template that borders call as the options, or keys, that say these."""
    options = (KEYS[table][key].option for key in keys)
    return ", ".join(f"{{{_ARGUMENTS.get(option, (option,))[0]}}}" for option in options)


def table_in_words(table: str, phase: str = "") -> str:
    """Return how a file begins a table, for a message."""
    if table == "phase":
        return f"[[phase]] {phase!r} " if phase and phase != SINGLE_PHASE else "[[phase]] "
    return f"[{table}] " if table else ""
