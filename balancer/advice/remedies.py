"""What may help beyond a plan within the step: remedies, each with its way to plan the same samples."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from balancer.advice.sample import Sample
from balancer.advice.tried import Tried
from balancer.io.log import LengthLog
from balancer.offline.settings import LogSettings
from balancer.problem.across_steps import AcrossSteps
from balancer.problem.cuts import Cut
from balancer.problem.cuts.context_shards import ContextShards
from balancer.problem.cuts.sequence_groups import SequenceGroups
from balancer.problem.phases import Phase

__all__ = ["REMEDIES", "Case", "Remedy", "Way", "prompts_of"]

_GROUP_STEPS, _SHARD_PACKS = 4096, 128
"""Of those two remedies at most, over all steps: ranks, of which 64 take some 50 ms a step, and packs, of up to 50 ms
each."""

_KEYS = ("prompt_id", "uid", "group_id", "group")
_PROMPTS = ("prompt_tokens", "prompt_length", "prefix_tokens", "prefix_length")
"""Names of columns that say, in logs of rollouts, which rows share a prompt, and how long it is."""


class Case(NamedTuple):
    """What is known before a remedy is tried."""

    log: LengthLog
    sample: Sample
    settings: LogSettings  # a plan within the step, of prompts that are not shared
    within: Tried  # what that gives
    prompts: tuple[str, str] | None  # columns: which rows share a prompt, and its length


class Way(NamedTuple):
    """How a remedy plans this log.

    Attributes
    ----------
    settings : LogSettings
    options : dict of str to str
        What ``balancer plan`` is told besides; ``None`` for an option that goes.
    keywords : str
        The same for :func:`balancer.plan_log`.
    steps : int or None
        So many steps of the sample are enough; None: all.
    """

    settings: LogSettings
    options: Mapping[str, str | None]
    keywords: str
    steps: int | None = None


@dataclass(frozen=True, slots=True)
class Remedy:
    """A way to wait less, or to compute less.

    Attributes
    ----------
    name, title : str
        For machines, and for people.
    way : callable
        From a case to the way it is planned, or to a sentence that says why it is of no use there.
    changes : str
        What it asks of the trainer.
    assumed : str
        What its numbers take for granted.
    computes_less : bool
        Whether it saves work, and not only waiting.
    """

    name: str
    title: str
    way: Callable[[Case], Way | str]
    changes: str
    assumed: str = ""
    computes_less: bool = False


def _defer(steps: int) -> Callable[[Case], Way | str]:
    def way(case: Case) -> Way | str:
        across = replace(case.settings.across or AcrossSteps(), window=steps)
        return Way(replace(case.settings, across=across), {"deferral.window": str(steps)}, f"window={steps}")

    return way


def _step_tokens(case: Case) -> Way | str:
    if case.settings.across is not None:
        return "steps are cut by tokens already"
    # As many tokens as a step has now on average, so that there are as many steps.
    tokens = max(1, case.within.tokens // case.within.steps)
    settings = replace(case.settings, batch_per_rank=None, across=AcrossSteps(step_tokens=tokens))
    return Way(settings, {"batch_per_rank": None, "step_tokens": str(tokens)}, f"step_tokens={tokens}")


def _capped(case: Case) -> str:
    """Say why ranks need not share samples; nothing where a sample is longer than a rank's fair share."""
    if case.settings.setup.settings.cut.num_stages:
        return "stages of a pipeline share no samples with other replicas"
    return "" if case.within.capped else "no sample is longer than a rank's fair share"


def _most_on_a_rank(case: Case) -> int | None:
    """Return what a rank may hold at a time: what was asked of micro-batches, or of a step."""
    slot = case.settings.setup.settings.cut.tokens_of_slot
    return case.settings.setup.phases[-1].max_tokens_per_rank if slot is None else slot


def _degrees(case: Case) -> tuple[int, ...]:
    """Return how many ranks may share a sample: those of a node at most, as groups of them are all alike."""
    sizes = case.settings.setup.topology.node_sizes
    return tuple(each for each in SequenceGroups().degrees if all(size % each == 0 for size in sizes))


def _sequence_groups(case: Case) -> Way | str:
    degrees = _degrees(case)
    if (why := _capped(case)) or len(degrees) < 2:
        return why or "there are no two ranks of a node to share a sample"
    *others, last = case.settings.setup.phases
    cap = _most_on_a_rank(case)
    # The cap moves into the cut: groups keep it in each slot, not over a whole step.
    phases = (*others, replace(last, max_tokens_per_rank=None))
    keys: dict[str, str | None] = {"cut.kind": "sequence_groups", "cut.degrees": str(list(degrees)).replace(" ", "")}
    keys |= {} if cap is None else {"cut.tokens_per_rank": str(cap)}
    keys |= _uncapped(last)
    given = f"({', '.join(map(str, degrees))})" + f", {cap}" * (cap is not None)
    steps = max(1, _GROUP_STEPS // case.settings.setup.topology.num_ranks)
    groups = _cut(case, SequenceGroups(degrees, cap), phases)
    return Way(groups, keys, f"cut=balancer.SequenceGroups({given})", steps)


def _context_shards(case: Case) -> Way | str:
    degree, num_ranks = _degrees(case)[-1], case.settings.setup.topology.num_ranks
    if (why := _capped(case)) or degree < 2:
        return why or "there are no two ranks of a node to share a pack"
    *others, last = case.settings.setup.phases
    # A pack a replica where all are even, with an eighth to spare, as documents are not divided between packs
    even = case.within.tokens * degree / (case.within.steps * num_ranks)
    longest = max(case.within.longest, int(1.125 * even) + 1)
    if (cap := _most_on_a_rank(case)) is not None:
        if case.within.longest > degree * cap:
            return f"the longest sample does not fit {degree} ranks of {cap:,} tokens"
        longest = min(longest, degree * cap)
    shards = ContextShards(degree, longest)
    steps = max(1, _SHARD_PACKS * degree // num_ranks)
    keys: dict[str, str | None] = {
        "cut.kind": "context_shards", "cut.degree": str(degree), "cut.pack_tokens": str(longest)
    }  # fmt: skip
    keys |= _uncapped(last)
    settings = _cut(case, shards, (*others, replace(last, max_tokens_per_rank=None)))
    return Way(settings, keys, f"cut=balancer.ContextShards({degree}, {longest})", steps)


def _uncapped(last: Phase) -> dict[str, str | None]:
    """Return the key of a cap that moves into the cut."""
    return {} if last.max_tokens_per_rank is None else {f"phase.{last.name}.max_tokens_per_rank": None}


def _cut(case: Case, cut: Cut, phases: tuple[Any, ...]) -> LogSettings:
    setup = case.settings.setup
    return replace(case.settings, setup=replace(setup, phases=phases, settings=replace(setup.settings, cut=cut)))


def _shared_prompts(case: Case) -> Way | str:
    if case.prompts is None:
        return "no columns say which rows share a prompt (prefix, prefix_length)"
    *others, last = case.settings.setup.phases
    key, length = case.prompts
    shared = replace(last, prefix=key, prefix_length=length)
    setup = replace(case.settings.setup, phases=(*others, shared))
    keywords = f"prefix={key!r}, prefix_length={length!r}"
    return Way(
        replace(case.settings, setup=setup),
        {f"phase.{last.name}.prefix": key, f"phase.{last.name}.prefix_length": length},
        keywords,
    )


def prompts_of(log: LengthLog, settings: LogSettings) -> tuple[LogSettings, tuple[str, str] | None]:
    """Return settings whose prompts are not shared, and the columns of those that may be.

    They are what the settings say, or else columns that are called as logs of rollouts call them.
    """
    *others, last = settings.setup.phases
    if last.prefix is not None and last.prefix_length is not None:
        plain = replace(last, prefix=None, prefix_length=None)
        return replace(settings, setup=replace(settings.setup, phases=(*others, plain))), (
            last.prefix, last.prefix_length,
        )  # fmt: skip
    key = next((name for name in _KEYS if name in log.columns), None)
    length = next((name for name in _PROMPTS if name in log.integer_columns), None)
    return settings, None if key is None or length is None or last.prefix is not None else (key, length)


_SAME_LOSS = "other samples form a step: divide the loss by a constant, see docs/how_to/across_steps.md"

REMEDIES = (
    *(
        Remedy(
            f"defer_{steps}", f"samples up to {steps} step{'s' * (steps > 1)} early or late", _defer(steps), _SAME_LOSS,
            "no sample leaves its stretch of steps, and a whole epoch may gain more",
        )
        for steps in (1, 2, 4)
    ),
    Remedy(
        "step_tokens", "steps of equal tokens", _step_tokens,
        "steps have any number of samples: divide the loss by tokens or a constant",
    ),
    Remedy(
        "sequence_groups", "groups of ranks share long samples", _sequence_groups,
        "attention across the ranks of a group (Ulysses), see docs/how_to/long_samples.md",
        "ranks lose 5 % of their speed with each doubling of a group, if the cost says nothing of it",
    ),
    Remedy(
        "context_shards", "ranks of a node share packs of documents", _context_shards,
        "attention that exchanges keys and values (context parallelism), see docs/how_to/context_shards.md",
        "the exchange of keys and values is hidden behind attention",
    ),
    Remedy(
        "shared_prompts", "a prompt computed once for its responses", _shared_prompts,
        "a tree mask over each prompt and its responses, see docs/how_to/shared_prompts.md", computes_less=True,
    ),
)  # fmt: skip
"""In the order in which they are shown: what asks least of a trainer first."""
