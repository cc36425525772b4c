"""What a step may say: every key of step files, what its value is, and the option that means the same.

Reader, JSON schema and command line derive what they need from here.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from balancer.cost import EXCHANGES
from balancer.problem.batch import HOMES
from balancer.problem.cuts.context_shards import SHARD_SYNCS
from balancer.problem.cuts.micro_batches import ENCODERS, OVER_LONG
from balancer.problem.settings import METHODS, MODES, PLACEMENTS
from solvers.arguments import as_share
from solvers.packing import SYNCS


@dataclass(frozen=True, slots=True)
class Key:
    """A key of a table: what its value is, and the parameter of the command line that means the same."""

    kind: str  # a name in `KINDS`
    option: str
    about: str
    choices: tuple[str, ...] = ()


KEYS: dict[str, dict[str, Key]] = {
    "": {
        "ranks": Key("count", "ranks", "Data-parallel ranks."),
        "ranks_per_node": Key("count", "ranks_per_node", "Ranks on each node; by default all on one."),
        "batch_per_rank": Key("count", "batch_per_rank", "Samples that a rank draws for each step."),
        "step_tokens": Key("count", "step_tokens", "The most tokens of a step, instead of batch_per_rank."),
        "home": Key("text", "home", "How the loader deals rows to ranks: contiguous or strided.", tuple(HOMES)),
        "drop_last": Key("flag", "drop_last", "Leave out a last, short step."),
        "layout": Key("text", "layouts", "A layout, such as configure --out writes."),
        "cluster": Key("text", "cluster", "What it runs on, for simulate and configure."),
        "gpus": Key("count", "num_gpus", "GPUs of the cluster, for configure."),
        "gpus_per_rank": Key("count", "gpus_per_rank", "GPUs of a data-parallel rank, for simulate."),
    },
    "phase": {
        "name": Key("text", "", "The module; the only phase needs none. The last is the language model."),
        "length": Key("text", "phases", "Its length: columns, text+image, or of several items lengths(clips)."),
        "cost": Key("text", "costs", "linear, quadratic:a=24576,b=1, padded, flops:qwen2-7b, ..."),
        "outputs": Key("text", "outputs", "What each item puts out; by default its length."),
        "own": Key("text", "own", "What each sample adds itself in the last phase."),
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
        "method": Key("text", "method", "A partition method, or auto.", METHODS),
        "stop_at": Key("share", "stop_at", "The gap that is small enough for groups; 0: search on for the optimum."),
        "time_budget": Key("number", "time_budget", "Solver work in seconds, per step and phase; counted, not timed."),
        "mode": Key("text", "mode", "How encoders are balanced: separate or joint.", MODES),
        "group_size": Key("count", "group_size", "Plan and exchange only within groups of so many ranks."),
    },
    "deferral": {
        "steps": Key("amount", "defer", "Steps that a sample may run early, and late."),
        "early": Key("amount", "defer_early", "Steps that it may run early, instead of steps."),
        "late": Key("amount", "defer_late", "Steps that it may run late, instead of steps."),
        "tokens_within": Key("text or share", "step_tokens_within", "How far a step's tokens may be off: \"5%\", any."),
        "counts": Key("text or share", "step_counts", "Samples of a step: exact, any, or a share they may be off."),
        "most_long_share": Key("share", "most_long_share", "Most of a step's tokens that long samples may have."),
        "stage": Key("text", "stage", "A column; no sample runs across a change of it."),
    },
    "micro_batches": {
        "tokens": Key("count", "micro_batch_tokens", "Elements of a micro-batch at most."),
        "sync": Key("text", "sync", "Where ranks wait: micro_batch, step or pipeline.", SYNCS),
        "count": Key("count or text", "micro_batches", "How many a rank, or \"fewest\"; by default the fastest."),
        "at_least": Key("count", "min_micro_batches", "At least so many a rank."),
        "multiple_of": Key("count", "micro_batches_multiple_of", "A multiple of so many."),
        "pipeline_stages": Key("count", "pipeline_stages", "Stages of a pipeline of which no more is known."),
        "allow_empty": Key("flag", "allow_empty_micro_batches", "A micro-batch may hold nothing."),
        "over_long": Key("text", "over_long", "A row over the cap: error, or own.", OVER_LONG),
        "encoders": Key("text", "encoders", "Encoders compute in a sample's slot, or before: slot, step.", ENCODERS),
    },
    "sequence_groups": {
        "degrees": Key("counts", "group_degrees", "How many ranks a group may have."),
        "exchange": Key("text", "group_exchange", "What ranks of a group exchange: ulysses or ring.", tuple(EXCHANGES)),
        "count": Key("count", "micro_batches", "How many slots; by default the fastest."),
        "multiple_of": Key("count", "micro_batches_multiple_of", "A multiple of so many."),
        "encoders": Key("text", "encoders", "As in micro_batches.", ENCODERS),
    },
    "context_shards": {
        "degree": Key("count", "context", "How many ranks share each pack of documents."),
        "pack_tokens": Key("count", "pack_tokens", "Tokens of a pack at most."),
        "masks": Key("counts by name", "masks", "Layers by what queries see: full = 1, window1024 = 5."),
        "block": Key("count", "context_block", "Documents are cut at its multiples; by default 128."),
        "sync": Key("text", "sync", "Where replicas wait: micro_batch or step.", SHARD_SYNCS),
        "count": Key("count", "micro_batches", "How many packs a replica; by default the fastest."),
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


KINDS: dict[str, tuple[Any, str, dict[str, Any]]] = {
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
        name: KINDS[key.kind][2] | {"description": key.about} | ({"enum": list(key.choices)} if key.choices else {})
        for name, key in keys.items()
    }
    return {"type": "object", "additionalProperties": False, "properties": properties}
