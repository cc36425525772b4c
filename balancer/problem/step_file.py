"""A step described once, in a file ``step.toml``: ranks, batch, phases, cut, placement.

Every key has one declaration here, from which the reader, the JSON schema for editors and the command line derive what
they need. Numbers with a point stay the decimals that were written.
"""

import os
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from fractions import Fraction
from typing import Any

from balancer.cost import EXCHANGES, parse_cost
from balancer.errors import InputError, did_you_mean
from balancer.problem.batch import HOMES
from balancer.problem.cuts import WHOLE_SHARES, Cut
from balancer.problem.cuts.micro_batches import ENCODERS, OVER_LONG, SCHEDULES, MicroBatches
from balancer.problem.cuts.pipeline_stages import PipelineStages
from balancer.problem.cuts.sequence_groups import SequenceGroups
from balancer.problem.phases import SINGLE_PHASE, Phase
from balancer.problem.settings import METHODS, MODES, OBJECTIVES, PLACEMENTS, PlanSettings
from balancer.problem.topology import Topology
from solvers.arguments import as_share

__all__ = ["KEYS", "Key", "StepFile", "read_step", "schema"]


@dataclass(frozen=True, slots=True)
class Key:
    """A key of a table: what its value is, and the parameter of the command line that means the same."""

    kind: str  # a name in `_KINDS`
    option: str
    about: str
    choices: tuple[str, ...] = ()


KEYS: dict[str, dict[str, Key]] = {
    "": {
        "ranks": Key("count", "ranks", "Data-parallel ranks."),
        "ranks_per_node": Key("count", "ranks_per_node", "Ranks on each node; by default all on one."),
        "batch_per_rank": Key("count", "batch_per_rank", "Samples that a rank draws for each step."),
        "step_tokens": Key("count", "step_tokens", "Tokens of a step at most, in place of batch_per_rank."),
        "home": Key("text", "home", "How the loader deals rows to ranks: contiguous or strided.", tuple(HOMES)),
        "drop_last": Key("flag", "drop_last", "Leave out a last, short step."),
        "layout": Key("text", "layouts", "A layout, such as configure --out writes."),
        "cluster": Key("text", "cluster", "What it runs on, for simulate and configure."),
        "gpus": Key("count", "num_gpus", "GPUs of the cluster, for configure."),
        "gpus_per_rank": Key("count", "gpus_per_rank", "GPUs of a data-parallel rank, for simulate."),
    },
    "phase": {
        "name": Key("text", "", "The module; the only phase needs none. The last is the language model."),
        "length": Key("text", "phases", "Columns whose sum is the length: text_tokens+image_tokens."),
        "items": Key("text", "items", "Several items a sample, from columns of lists: lengths(clips)."),
        "cost": Key("text", "costs", "linear, quadratic:a=24576,b=1, padded, flops:qwen2-7b, ..."),
        "outputs": Key("text", "outputs", "What each item puts out; by default its length."),
        "own": Key("text", "own", "What each sample adds itself in a phase that others feed."),
        "feeds": Key("text", "feeds", "The phase that takes the outputs; by default the last."),
        "bytes": Key("one or two counts", "byte_sizes", "Bytes of an element, as input and as output."),
        "equal_counts": Key("flag", "equal_counts", "Every rank gets equally many samples, within one."),
        "max_tokens_per_rank": Key("count", "max_tokens_per_rank", "Cap on a rank's sum of lengths."),
        "min_samples_per_rank": Key("amount", "min_samples_per_rank", "Samples a rank gets at least."),
        "max_samples_per_rank": Key("count", "max_samples_per_rank", "Samples a rank gets at most."),
        "caps": Key("counts by name", "caps", "Caps on a rank's sums of other columns."),
        "keep_together": Key("text", "keep_together", "Rows with equal values in this column run on one rank."),
        "prefix": Key("text", "prefix", "Rows with equal values in this column share a prompt, computed once a rank."),
        "prefix_length": Key("text", "prefix_length", "The column with the length of a row's prompt."),
        "allowed_ranks": Key("text", "allowed_ranks", "The column that lists the ranks of a row."),
        "rank_speeds": Key("counts", "rank_speeds", "Work units that each rank does in a unit of time."),
        "initial_loads": Key("amounts", "initial_loads", "Work units that each rank has already."),
        "sequence_parallel": Key("count", "sequence_parallel", "Ranks that share an encoder's long items."),
        "share_multiple_of": Key("count", "", "With sequence_parallel, what shares are padded to."),
        "every_rank_nonempty": Key("flag", "every_rank_nonempty", "Every rank gets an item, if possible."),
        "model": Key("text", "models", "Its model, for simulate and configure: qwen2-7b."),
        "pieces": Key("count", "pieces", "Its items are cut into pieces of so many elements."),
        "frozen": Key("flag", "frozen", "It is not trained; with stages, and for configure."),
    },
    "plan": {
        "placement": Key("text", "placement", "relocate, rearrange or any.", PLACEMENTS),
        "eps": Key("share", "eps", "How much longer a step may take so that less moves: 0.001 or \"0.1%\"."),
        "objective": Key("text", "objective", "With rearrange, what to minimise: sum or max.", OBJECTIVES),
        "method": Key("text", "method", "A partition method, or auto.", METHODS),
        "time_budget": Key("number", "time_budget", "Solver work in seconds, per step and phase; counted, not timed."),
        "mode": Key("text", "mode", "How encoders are balanced: separate, joint or auto.", MODES),
        "group_size": Key("count", "group_size", "Plan and exchange only within groups of so many ranks."),
    },
    "deferral": {
        "steps": Key("amount", "defer", "Steps that a sample may run early, and late."),
        "early": Key("amount", "defer_early", "Steps that it may run early, in place of steps."),
        "late": Key("amount", "defer_late", "Steps that it may run late, in place of steps."),
        "tokens_within": Key("text or share", "step_tokens_within", "How far a step's tokens may be off: \"5%\", any."),
        "counts": Key("text or share", "step_counts", "Samples of a step: exact, any, or a share they may be off."),
        "most_long_share": Key("share", "most_long_share", "Most of a step's tokens that long samples may have."),
        "stage": Key("text", "stage", "A column; no sample runs across a change of it."),
    },
    "micro_batches": {
        "tokens": Key("count", "micro_batch_tokens", "Elements of a micro-batch at most."),
        "schedule": Key("text", "schedule", "Where ranks meet: lockstep, step or pipeline.", SCHEDULES),
        "count": Key("count or text", "micro_batches", "How many a rank, or \"fewest\"; by default the fastest."),
        "at_least": Key("count", "min_micro_batches", "At least so many a rank."),
        "multiple_of": Key("count", "micro_batches_multiple_of", "A multiple of so many."),
        "pipeline_stages": Key("count", "pipeline_stages", "Stages of a pipeline of which no more is known."),
        "allow_empty": Key("flag", "allow_empty_micro_batches", "A micro-batch may hold nothing."),
        "over_long": Key("text", "over_long", "A row over the cap: error, own or drop.", OVER_LONG),
        "encoders": Key("text", "encoders", "Encoders compute in a sample's slot, or before: slot, step.", ENCODERS),
    },
    "sequence_groups": {
        "degrees": Key("counts", "group_degrees", "How many ranks a group may have."),
        "exchange": Key("text", "group_exchange", "What ranks of a group exchange: ulysses or ring.", tuple(EXCHANGES)),
        "slots": Key("count", "micro_batches", "How many slots; by default the fastest."),
        "multiple_of": Key("count", "micro_batches_multiple_of", "A multiple of so many."),
        "encoders": Key("text", "encoders", "As in micro_batches.", ENCODERS),
    },
    "stages": {
        "counts": Key("counts by name", "stages", "Stages of each phase, in order: \"vision+audio\" = 1, llm = 3."),
        "chunks": Key("count", "chunks", "Stages on each device: interleaved 1F1B."),
        "recompute": Key("flag", "recompute", "Backwards rerun the forward."),
        "tied": Key("flag", "tied", "An op waits for its like on all ranks, as with FSDP."),
        "in_flight_tokens": Key("count", "in_flight_tokens", "What a device holds between forwards and backwards."),
    },
}  # fmt: skip
"""Keys by table; the table without a name is the top of the file, and ``phase`` stands once for each phase."""

_CUTS = ("micro_batches", "sequence_groups")

_OF_OTHERS = ("length", "bytes", "model", "pieces", "frozen")
"""Keys of a phase that are no field of :class:`Phase` by that name."""


def _is_count(value: object, least: int = 1) -> bool:
    return type(value) is int and least <= value < 2**63


def _is_amount(value: object) -> bool:
    return _is_count(value, 0)


def _is_number(value: object) -> bool:
    return type(value) in (int, Decimal) and not (type(value) is Decimal and not value.is_finite())


def _is_share(value: object) -> bool:
    try:
        return (isinstance(value, str) or _is_number(value)) and 0 <= as_share("share", str(value)) < 1
    except (TypeError, ValueError):
        return False


_KINDS: dict[str, tuple[Any, str, dict[str, Any]]] = {
    "count": (_is_count, "a whole number >= 1", {"type": "integer", "minimum": 1}),
    "amount": (_is_amount, "a whole number >= 0", {"type": "integer", "minimum": 0}),
    "text": (lambda value: isinstance(value, str) and bool(value.strip()), "text", {"type": "string", "minLength": 1}),
    "flag": (lambda value: type(value) is bool, "true or false", {"type": "boolean"}),
    "number": (_is_number, "a number", {"type": "number"}),
    "share": (
        _is_share, "a share of 0 or more and under 1, 0.001 or \"0.1%\"",
        {"type": ["number", "string"]},
    ),
    "text or share": (
        lambda value: (isinstance(value, str) and bool(value.strip())) or _is_share(value), "text or a share",
        {"type": ["number", "string"]},
    ),
    "count or text": (
        lambda value: isinstance(value, str) or _is_count(value), "a whole number or text",
        {"type": ["integer", "string"]},
    ),
    "counts": (
        lambda value: isinstance(value, list) and bool(value) and all(map(_is_count, value)),
        "a list of whole numbers >= 1", {"type": "array", "items": {"type": "integer", "minimum": 1}, "minItems": 1},
    ),
    "amounts": (
        lambda value: isinstance(value, list) and bool(value) and all(map(_is_amount, value)),
        "a list of whole numbers >= 0", {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1},
    ),
    "one or two counts": (
        lambda value: _is_count(value) or (isinstance(value, list) and len(value) == 2 and all(map(_is_count, value))),
        "a whole number, or two in a list", {"type": ["integer", "array"]},
    ),
    "counts by name": (
        lambda value: isinstance(value, dict) and bool(value) and all(map(_is_count, value.values())),
        "a table of whole numbers >= 1", {"type": "object", "additionalProperties": {"type": "integer", "minimum": 1}},
    ),
}  # fmt: skip
"""Of each kind: whether a value is of it, what it is called, and its JSON schema."""


@dataclass(frozen=True, slots=True)
class StepFile:
    """What a step file says: tables of keys and values, all of them known, each of its kind.

    Attributes
    ----------
    path : str
    top, plan, stages : mapping of str to value
        Of the tables of these names; empty where there is none.
    phases : tuple of mapping
        One a phase, in order, each with its name (``"all"`` where nobody named the only one).
    cut : str
        The name of the table that says how a step is cut; empty for whole shares.
    cut_keys : mapping
        What stands in it.
    deferral : mapping of str to value
        Of the table of this name.
    """

    path: str
    top: Mapping[str, Any]
    phases: tuple[Mapping[str, Any], ...]
    plan: Mapping[str, Any]
    stages: Mapping[str, Any]
    cut: str
    cut_keys: Mapping[str, Any]
    deferral: Mapping[str, Any] = field(default_factory=dict)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the phases."""
        return tuple(phase["name"] for phase in self.phases)

    @property
    def is_single(self) -> bool:
        """Whether nobody named a phase."""
        return self.names in ((), (SINGLE_PHASE,))

    def values(self) -> Iterator[tuple[str, str, str, Any]]:
        """Yield every value with its table, the phase (or nothing) and the key that it stands under."""
        for table, keys in (
            ("", self.top), ("plan", self.plan), (self.cut, self.cut_keys), ("stages", self.stages),
            ("deferral", self.deferral),
        ):  # fmt: skip
            yield from ((table, "", key, value) for key, value in keys.items())
        for phase in self.phases:
            yield from (("phase", phase["name"], key, value) for key, value in phase.items() if key != "name")

    def place(self, table: str, phase: str, key: str) -> str:
        """Return where a key stands, for a message."""
        return f"{self.path}: {_table(table, phase)}{key}"

    def need(self, *keys: str) -> list[Any]:
        """Return values of the top of the file; InputError names one that is missing."""
        for key in keys:
            if key not in self.top:
                raise InputError(f"{self.path}: {key} is missing: {KEYS[''][key].about}")
        return [self.top[key] for key in keys]

    def check_known_to(self, who: str, **known: Iterable[str]) -> None:
        """Raise InputError, with its place, for a value that `who` would pass over: of phases, the cut, or the plan."""
        lengths = ("name", "length", "items", "model", "pieces")
        taken = {"phase": (*lengths, *known["phase"]), self.cut: tuple(known["cut"]), "plan": tuple(known["plan"]),
                 "deferral": tuple(known.get("deferral", ()))}  # fmt: skip
        last = self.names[-1] if self.names else ""
        for table, phase, key, _ in self.values():
            if table and key not in taken.get(table, ()) and phase in ("", last):
                raise InputError(
                    f"{self.place(table, phase, key)} is nothing that {who} does; leave it out of its file"
                )

    def of_only_phase(self) -> dict[str, Any]:
        """Return length, cost and constraints of the only phase."""
        (keys,) = self.phases
        return {key: value for key, value in keys.items() if key not in ("name", "model", "pieces", "frozen", "bytes")}

    def topology(self) -> Topology:
        """Return ranks and nodes."""
        (ranks,) = self.need("ranks")
        return Topology.uniform(ranks, self.top.get("ranks_per_node"))

    def across(self) -> dict[str, Any]:
        """Return which samples form a step, by keywords of ``AcrossSteps.from_options``."""
        found = {"defer" if key == "steps" else key: value for key, value in self.deferral.items()}
        found = {key: str(value) if isinstance(value, Decimal) else value for key, value in found.items()}
        return found | {key: self.top[key] for key in ("step_tokens",) if key in self.top}

    def as_phases(self, length: str | None = None) -> tuple[Phase, ...]:
        """Return the phases; `length` is that of the only phase where the file does not say it."""
        found = []
        for keys in self.phases or ({"name": SINGLE_PHASE},):
            given = {key: value for key, value in keys.items() if key not in _OF_OTHERS}
            if self.cut == "sequence_groups" and keys is self.phases[-1]:
                given.pop("max_tokens_per_rank", None)  # which is then one of groups
            column = keys.get("length", length)
            if column is None and "items" not in given:
                raise InputError(
                    f"{self.path}: {_table('phase', keys['name'])}length is missing: the columns of its length"
                )
            if "items" in given and column is not None:
                given["totals"] = column
            given.setdefault("items", column)
            if "bytes" in keys:
                both = keys["bytes"] if isinstance(keys["bytes"], list) else [keys["bytes"]]
                given |= dict(zip(("bytes_in", "bytes_out"), both, strict=False))
            for name in ("rank_speeds", "initial_loads"):
                if name in given:
                    given[name] = tuple(given[name])
            found.append(Phase(**given))
        return tuple(found)

    def as_cut(self) -> Cut:
        """Return how a step is cut; of sequence groups the cap is that of the last phase."""
        if self.cut == "sequence_groups":
            names = {"slots": "num_slots", "multiple_of": "slots_multiple_of"}
            given = {names.get(key, key): value for key, value in self.cut_keys.items()}
            cap = self.phases[-1].get("max_tokens_per_rank") if self.phases else None
            return SequenceGroups(
                max_tokens_per_rank=cap, **given | {"degrees": tuple(given.get("degrees", (1, 2, 4, 8)))}
            )
        if self.cut != "micro_batches":
            return WHOLE_SHARES
        given = dict(self.cut_keys)
        if "tokens" not in given:
            raise InputError(f"{self.path}: [micro_batches] tokens is missing: {KEYS['micro_batches']['tokens'].about}")
        if self.stages:
            given.setdefault("schedule", "pipeline")
            rest = {key: value for key, value in self.stages.items() if key != "counts"}
            frozen = tuple(phase["name"] for phase in self.phases if phase.get("frozen"))
            given["stages"] = PipelineStages.of(self.stages["counts"], frozen=frozen, **rest)
        return MicroBatches(given.pop("tokens"), **given)

    def settings(self) -> PlanSettings:
        """Return how steps are planned."""
        given = dict(self.plan)
        if "eps" in given:
            given["eps"] = exact(as_share("eps", str(given["eps"])))
        if "time_budget" in given:
            given["time_budget"] = float(given["time_budget"])
        return PlanSettings(cut=self.as_cut(), **given)


def exact(share: Fraction) -> float | Fraction:
    """Return a share as a float, if a float prints as it, else as it is."""
    return float(share) if as_share("eps", float(share)) == share else share


def _table(table: str, phase: str = "") -> str:
    if table == "phase":
        return f"[[phase]] {phase!r} " if phase and phase != SINGLE_PHASE else "[[phase]] "
    return f"[{table}] " if table else ""


def read_step(path: str | os.PathLike[str]) -> StepFile:
    """Read a step file.

    Raises
    ------
    InputError
        A file that is not there or no TOML; it names table, key, value and rule.
    """
    where = os.fspath(path)
    try:
        with open(where, encoding="utf-8-sig") as file:  # some editors begin a file with a mark of its encoding
            found = tomllib.loads(file.read(), parse_float=Decimal)
    except FileNotFoundError:
        raise InputError(f"{where}: no such file") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{where}: is no TOML: {error}") from None
    except RecursionError:
        raise InputError(f"{where}: lists stand within lists too often") from None
    except OSError as error:
        raise InputError(f"{where}: cannot be read: {error.strerror or error}") from None
    tables = {name: value for name, value in found.items() if name in KEYS}
    for name, value in tables.items():
        if name != "phase" and not isinstance(value, dict):
            raise InputError(f"{where}: [{name}] must be a table, got {_shown(value)}")
    if len(cuts := [name for name in _CUTS if name in tables]) > 1:
        raise InputError(f"{where}: [{cuts[0]}] and [{cuts[1]}] are two cuts of one step; keep one of them")
    cut = cuts[0] if cuts else ""
    if "stages" in tables and cut != "micro_batches":
        raise InputError(f"{where}: [stages] needs [micro_batches], which run through them")
    top = _checked(where, "", "", {name: value for name, value in found.items() if name not in tables})
    phases = _phases(where, tables.get("phase", []))
    rest = {name: _checked(where, name, "", tables.get(name, {})) for name in ("plan", "stages", "deferral")}
    if rest["stages"] and "counts" not in rest["stages"]:
        raise InputError(f"{where}: [stages] counts is missing: {KEYS['stages']['counts'].about}")
    return StepFile(
        where, top, phases, rest["plan"], rest["stages"], cut, _checked(where, cut, "", tables.get(cut, {})),
        rest["deferral"],
    )  # fmt: skip


def _phases(where: str, tables: object) -> tuple[Mapping[str, Any], ...]:
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise InputError(f"{where}: phases are tables of their own: write [[phase]], with two brackets, before each")
    found: list[Mapping[str, Any]] = []
    for number, table in enumerate(tables):
        name = table.get("name", SINGLE_PHASE if len(tables) == 1 else None)
        if name is None:
            raise InputError(
                f"{where}: [[phase]] {number + 1} of {len(tables)} has no name; only a single one needs none"
            )
        keys = _checked(where, "phase", str(name), {"name": name} | table)
        if any(name == other["name"] for other in found):
            raise InputError(f"{where}: [[phase]] {name!r} stands there twice; name each phase once")
        found.append(keys)
    return tuple(found)


def _checked(where: str, table: str, phase: str, keys: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the keys of a table, if each is known and of its kind."""
    known = KEYS.get(table, {})
    for key, value in keys.items():
        place = f"{where}: {_table(table, phase)}{key}"
        if key not in known:
            raise InputError(f"{place}: there is no such key{_meant(key, table)}; known here are {', '.join(known)}")
        check, kind, _ = _KINDS[known[key].kind]
        if not check(value):
            raise InputError(f"{place} must be {kind}, got {_shown(value)}")
        if (choices := known[key].choices) and value not in choices:
            raise InputError(f"{place} must be one of {', '.join(choices)}, got {_shown(value)}")
        if key == "cost":
            _check_cost(place, value)
    return keys


def _check_cost(place: str, text: str) -> None:
    try:
        parse_cost(text)
    except ValueError as error:
        raise InputError(f"{place}: {error}") from None


def _meant(key: str, table: str) -> str:
    """Return the words that name the table in which a key is known, or the key that was probably meant."""
    homes = [_table(name).strip() for name, keys in KEYS.items() if name and name != table and key in keys]
    return f", but in {homes[0]}" if homes else did_you_mean(key, tuple(KEYS.get(table, {})))


def _shown(value: object) -> str:
    text = repr(str(value)) if isinstance(value, str) else str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def schema() -> dict[str, Any]:
    """Return the JSON schema of step files, for editors."""
    tables = {name: _schema_of(keys) for name, keys in KEYS.items() if name and name != "phase"}
    top = _schema_of(KEYS[""])
    phase = {"type": "array", "items": _schema_of(KEYS["phase"]), "description": "The phases, in order."}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A step of seqbalancer",
        **top,
        "properties": top["properties"] | {"phase": phase} | tables,
    }


def _schema_of(keys: Mapping[str, Key]) -> dict[str, Any]:
    properties = {
        name: _KINDS[key.kind][2] | {"description": key.about} | ({"enum": list(key.choices)} if key.choices else {})
        for name, key in keys.items()
    }
    return {"type": "object", "additionalProperties": False, "properties": properties}
