"""What may help beyond a plan within the step: remedies, each a changed step and what it asks of a trainer."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

from balancer.advice.sample import Sample
from balancer.advice.tried import Tried
from balancer.io.log import LengthLog
from balancer.offline.settings import LogSettings
from balancer.problem.across_steps import AcrossSteps
from balancer.problem.cuts import CUTS, SequenceGroups, cut_from_json
from balancer.problem.phases import SINGLE_PHASE

__all__ = ["REMEDIES", "Case", "Remedy", "changed_settings", "keys_in", "keywords_in", "prompts_of"]

_GROUP_STEPS, _SHARD_PACKS = 4096, 128
"""Of those two remedies at most, over all steps: ranks, of which 64 take some 50 ms a step, and packs, of up to 50 ms
each."""

_KEYS = ("prompt_id", "uid", "group_id", "group")
_PROMPTS = ("prompt_tokens", "prompt_length", "prefix_tokens", "prefix_length")
"""Names of columns that say, in logs of rollouts, which rows share a prompt, and how long it is."""

Change = Mapping[str, Any]
"""Keys of a step with other values, None where they go, in tables ``cut``, ``deferral`` and ``phase``, the last one."""


class Case(NamedTuple):
    """What is known before a remedy is tried."""

    log: LengthLog
    sample: Sample
    settings: LogSettings  # a plan within the step, of prompts that are not shared
    within: Tried  # what that gives
    prompts: tuple[str, str] | None  # columns: which rows share a prompt, and its length

    @property
    def most_on_a_rank(self) -> int | None:
        """What a rank may hold at a time: what was asked of micro-batches, or of a step."""
        slot = self.settings.setup.settings.cut.tokens_of_slot
        return self.settings.setup.phases[-1].max_tokens_per_rank if slot is None else slot


@dataclass(frozen=True, slots=True)
class Remedy:
    """A way to wait less, or to compute less.

    Attributes
    ----------
    name, title : str
        For machines, and for people: what it does.
    change : callable
        From a case to the change of its step, or to a sentence that says why it is of no use there.
    asks : str
        What it asks of the trainer, and what its numbers take for granted.
    computes_less : bool
        Whether it saves work, and not only waiting.
    steps : callable
        On so many steps of a sample it is tried, where it takes long to plan.
    """

    name: str
    title: str
    change: Callable[[Case], Change | str]
    asks: str
    computes_less: bool = False
    steps: Callable[[Case], int] = lambda case: case.sample.num_steps


def changed_settings(settings: LogSettings, change: Change) -> LogSettings:
    """Return how a log is planned with some keys of the step changed."""
    *others, last = settings.setup.phases
    last = replace(last, **change.get("phase", {}))
    plan, across = settings.setup.settings, settings.across
    if "cut" in change:
        plan = replace(plan, cut=cut_from_json(change["cut"]))
    if "deferral" in change:
        across = replace(across or AcrossSteps(), **change["deferral"])
    if "step_tokens" in change:
        across = AcrossSteps(step_tokens=change["step_tokens"])
    batch = change.get("batch_per_rank", settings.batch_per_rank)
    setup = replace(settings.setup, phases=(*others, last), settings=plan)
    return replace(settings, setup=setup, across=across, batch_per_rank=batch)


def keys_in(change: Change, phase: str = SINGLE_PHASE) -> dict[str, str | None]:
    """Return the keys of a change as ``--set`` takes them; None of one that goes."""
    found: dict[str, str | None] = {}
    for name, value in change.items():
        if isinstance(value, dict):
            table = f"phase.{phase}" if name == "phase" else name
            found |= {f"{table}.{key}": _typed(each) for key, each in value.items()}
        else:
            found[name] = _typed(value)
    return found


def _typed(value: Any) -> str | None:
    """Return a value as it is typed: a list without blanks."""
    if value is None:
        return None
    return str(list(value)).replace(" ", "") if isinstance(value, tuple) else str(value)


def keywords_in(change: Change) -> str:
    """Return the same as keywords of :func:`balancer.plan_log`."""
    flat = {key: each for name, value in change.items() if name != "cut"
            for key, each in (value.items() if isinstance(value, dict) else [(name, value)])}  # fmt: skip
    words = [f"{name}={value!r}" for name, value in flat.items()]  # None: left out
    if "cut" in change:
        given = ", ".join(f"{name}={value!r}" for name, value in change["cut"].items() if name != "kind")
        words.append(f"cut=balancer.{CUTS[change['cut']['kind']].__name__}({given})")
    return ", ".join(words)


# --- changes of a step -----------------------------------------------------------------------------------------------


def _defer(steps: int, _: Case) -> Change | str:
    return {"deferral": {"window": steps}}


def _by_tokens(case: Case) -> Change | str:
    if case.settings.across is not None:
        return "steps are cut by tokens already"
    # As many tokens as a step has now on average, so that there are as many steps.
    return {"batch_per_rank": None, "step_tokens": max(1, case.within.tokens // case.within.steps)}


def _degrees(case: Case) -> tuple[int, ...]:
    """Return how many ranks may share a sample: those of a node at most, as groups of them are all alike."""
    sizes = case.settings.setup.topology.node_sizes
    return tuple(each for each in SequenceGroups().degrees if all(size % each == 0 for size in sizes))


def _why_not_shared(case: Case, what: str) -> str:
    """Say why ranks need not, or cannot, share what is long; nothing where they can."""
    if case.settings.setup.settings.cut.num_stages:
        return "stages of a pipeline share no samples with other replicas"
    if not case.within.cap.steps:
        return "no sample is longer than a rank's fair share"
    return "" if len(_degrees(case)) > 1 else f"there are no two ranks of a node to share a {what}"


def _cut(case: Case, **cut: Any) -> Change:
    # A cap moves into the cut, which keeps it in each slot, not over a whole step.
    capped = case.settings.setup.phases[-1].max_tokens_per_rank is not None
    return {"cut": cut} | ({"phase": {"max_tokens_per_rank": None}} if capped else {})


def _groups(case: Case) -> Change | str:
    if why := _why_not_shared(case, "sample"):
        return why
    cap = case.most_on_a_rank
    return _cut(
        case, kind="sequence_groups", degrees=_degrees(case), **({} if cap is None else {"tokens_per_rank": cap})
    )


def _shards(case: Case) -> Change | str:
    if why := _why_not_shared(case, "pack"):
        return why
    degree, longest = _degrees(case)[-1], case.within.longest
    # A pack a replica where all are even, with an eighth to spare, as documents are not divided between packs
    even = case.within.tokens * degree / (case.within.steps * case.settings.setup.topology.num_ranks)
    tokens = max(longest, int(1.125 * even) + 1)
    if (cap := case.most_on_a_rank) is not None:
        if longest > degree * cap:
            return f"the longest sample does not fit {degree} ranks of {cap:,} tokens"
        tokens = min(tokens, degree * cap)
    return _cut(case, kind="context_shards", degree=degree, pack_tokens=tokens)


def _prompts(case: Case) -> Change | str:
    if case.prompts is None:
        return "no columns say which rows share a prompt (prefix, prefix_length)"
    return {"phase": dict(zip(("prefix", "prefix_length"), case.prompts, strict=True))}


def prompts_of(log: LengthLog, settings: LogSettings) -> tuple[LogSettings, tuple[str, str] | None]:
    """Return settings whose prompts are not shared, and the columns of those that may be.

    They are what the settings say, or else columns that are called as logs of rollouts call them.
    """
    last = settings.setup.phases[-1]
    if last.prefix is not None and last.prefix_length is not None:
        plain = changed_settings(settings, {"phase": {"prefix": None, "prefix_length": None}})
        return plain, (last.prefix, last.prefix_length)
    key = next((name for name in _KEYS if name in log.columns), None)
    length = next((name for name in _PROMPTS if name in log.integer_columns), None)
    return settings, None if key is None or length is None or last.prefix is not None else (key, length)


REMEDIES = (
    *(
        Remedy(
            f"defer_{steps}", f"samples up to {steps} step{'s' * (steps > 1)} early or late",
            partial(_defer, steps),
            "other samples form a step: divide the loss by a constant, see docs/how_to/across_steps.md",
        )
        for steps in (1, 2, 4)
    ),
    Remedy(
        "step_tokens", "steps of equal tokens", _by_tokens,
        "steps have any number of samples: divide the loss by tokens or a constant",
    ),
    Remedy(
        "sequence_groups", "groups of ranks share long samples", _groups,
        "attention across the ranks of a group (Ulysses), see docs/how_to/long_samples.md; assumed is that ranks lose "
        "5 % of their speed with each doubling of a group, if the cost says nothing of it",
        steps=lambda case: max(1, _GROUP_STEPS // case.settings.setup.topology.num_ranks),
    ),
    Remedy(
        "context_shards", "ranks of a node share packs of documents", _shards,
        "attention that exchanges keys and values (context parallelism), see docs/how_to/context_shards.md; assumed is "
        "that the exchange is hidden behind attention",
        steps=lambda case: max(1, _SHARD_PACKS * _degrees(case)[-1] // case.settings.setup.topology.num_ranks),
    ),
    Remedy(
        "shared_prompts", "a prompt computed once for its responses", _prompts,
        "a tree mask over each prompt and its responses, see docs/how_to/shared_prompts.md", computes_less=True,
    ),
)  # fmt: skip
"""In the order in which they are shown: what asks least of a trainer first."""
