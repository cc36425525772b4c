"""Advice on a log: what waiting costs now, what each remedy would change, and what to do first."""

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from balancer.advice.remedies import REMEDIES, Case, Remedy, Way, prompts_of
from balancer.advice.sample import Sample, sample_of
from balancer.advice.tried import Tried, tried
from balancer.io.logs import LengthLog
from balancer.offline.settings import LogSettings
from balancer.report.plan_log import about, opened_by, settings_of
from balancer.report.summary import JSON_VERSION
from solvers.arguments import as_count
from solvers.errors import ArgumentError, ArgumentTypeError, SolverError, UsageError, WordedError, Wording

__all__ = ["WORTH", "Advice", "Finding", "advise", "advise_opened"]

WORTH = 0.01
"""Share of the time that a remedy must save to be worth a word: less is lost in what step times vary by anyhow."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What one remedy does to the sampled steps. Times are of the same samples, those of today being 1.

    Attributes
    ----------
    name, title, changes, assumed : str
        As ``Remedy`` in ``balancer.advice.remedies`` has them.
    time : float
        What the samples take.
    best_possible : float
        Proven: no plan of this kind takes less.
    waiting : float
        Share of the time that the mean rank waits.
    saves : float
        Share of the time that goes: of today's, and of remedies that of a plan within the step.
    moved : float
        What a rank sends to others in a step on average: elements of a single phase, bytes of several.
    steps : int
        Steps that were planned.
    options : mapping of str to str or None
        What ``balancer plan`` is told besides; None of an option that goes.
    keywords : str
        The same for :func:`balancer.plan_log`.
    why_not : str
        Why it is of no use here, or could not be planned; else empty. Then there are no numbers.
    plan_ms : float
        What a step took to plan, by the clock.
    """

    name: str
    title: str
    changes: str = ""
    assumed: str = ""
    time: float = 1.0
    best_possible: float = 1.0
    waiting: float = 0.0
    saves: float = 0.0
    moved: float = 0.0
    steps: int = 0
    options: Mapping[str, str | None] | None = None
    keywords: str = ""
    why_not: str = ""
    plan_ms: float = 0.0

    @property
    def is_worth_it(self) -> bool:
        """Whether it saves enough to speak of."""
        return not self.why_not and self.saves >= WORTH

    def as_json(self) -> dict[str, Any]:
        """Return the numbers by name, but what a clock gave."""
        if self.why_not:
            return {"why_not": self.why_not}
        names = ("time", "best_possible", "waiting", "saves", "steps")
        return {name: getattr(self, name) for name in names} | {
            "moved_a_rank_and_step": self.moved, "options": dict(self.options or {}),
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Advice:
    """What would help.

    Attributes
    ----------
    log : LengthLog
    settings : LogSettings
        A plan within the step, as it was asked for.
    sample : Sample
        The steps that everything was computed on.
    waiting : float
        Share of the time that ranks wait today.
    within : Finding
        What a plan within the step does.
    remedies : tuple of Finding
        What could be done besides, in the order of ``balancer.advice.remedies.REMEDIES``.
    capped, cap_row, cap_length, cap_ratio : int, int, int, float
        Sampled steps in which one sample alone is longer than a fair share; the worst one's row, length, and the
        imbalance ratio below which no plan of that step comes.
    gpus : int
        Of all ranks.
    price : float or None
        Of a GPU hour.
    """

    log: LengthLog
    settings: LogSettings
    sample: Sample
    waiting: float
    within: Finding
    remedies: tuple[Finding, ...]
    capped: int
    cap_row: int
    cap_length: int
    cap_ratio: float
    gpus: int
    price: float | None = None

    @property
    def best(self) -> Finding | None:
        """The remedy to choose besides a plan within the step; None where none saves enough to speak of.

        The one that saves most, or one that asks less of a trainer and takes hardly longer.
        """
        worth = [each for each in self.remedies if each.is_worth_it]
        least = min((each.time for each in worth), default=0.0)
        return next((each for each in worth if each.time <= (1 + WORTH) * least), None)

    @property
    def least(self) -> float:
        """Proven: the imbalance ratio, over all sampled steps, of any plan within the step."""
        even = self.within.time * (1 - self.within.waiting)
        return self.within.best_possible / even if even else 1.0

    @property
    def chosen(self) -> tuple[Finding, ...]:
        """What is worth it: a plan within the step, and the best remedy. Neither, one, or both."""
        first = (self.within,) if self.within.is_worth_it else ()
        return first if self.best is None else (*first, self.best)

    def hours_a_day(self, finding: Finding) -> float:
        """Return the GPU hours that a day of today's training takes less."""
        return 24 * self.gpus * (1 - finding.time)

    def summary(self) -> dict[str, Any]:
        """Return the numbers by name, as ``balancer advise --json`` prints them, without what a clock gave."""
        every = {each.name: each for each in (self.within, *self.remedies)}
        found: dict[str, Any] = {
            "version": JSON_VERSION,
            **about(self.log, self.settings),
            "gpus": self.gpus,
            "steps": self.within.steps,
            "sample": self.sample.in_words(self.within.steps),
            "waiting": self.waiting,
            "gpus_waiting": self.gpus * self.waiting,
            "capped_steps": self.capped,
            "capping_sample": {"row": self.cap_row, "length": self.cap_length,
                               "imbalance_ratio_best_possible": self.cap_ratio} if self.capped else None,
            "ways": {
                name: each.as_json() | ({} if each.why_not else {
                    "gpus_waiting": self.gpus * each.waiting, "gpu_hours_a_day": self.hours_a_day(each),
                }) for name, each in every.items()
            },
            "worth": WORTH,
            "worth_it": [each.name for each in self.chosen],
        }  # fmt: skip
        if self.price is not None:
            found["price"] = self.price
            found["saved_a_day"] = {each.name: self.price * self.hours_a_day(each) for each in self.chosen}
        return found

    def to_html(self, path: str | os.PathLike[str]) -> None:
        """Write a page of it."""
        from balancer.advice.page import write_advice_page

        write_advice_page(os.fspath(path), self)

    def __str__(self) -> str:
        from balancer.advice.words import lines_of

        return "\n".join(lines_of(self))


def advise(
    log: Any, step: str | os.PathLike[str] | None = None, *, price: float | None = None, gpus_per_rank: int = 1,
    **beside: Any,
) -> Advice:  # fmt: skip
    """Say what would help a training job, computed on some steps of its log.

    Parameters
    ----------
    log, step, **beside
        As :func:`balancer.plan_log` takes them: which samples make a step, on which ranks, and what they cost.
        Deferral, sequence groups and context shards are tried, not asked for.
    price : float, optional
        Of a GPU hour, in any currency.
    gpus_per_rank : int
        GPUs that one data-parallel rank has.

    Returns
    -------
    Advice
        Print it, or write its page with ``to_html``.

    Raises
    ------
    TypeError, ValueError, InfeasibleError, SolverError
        As :func:`balancer.plan_log`, of a plan within the step. What else cannot be planned says so in its finding.

    Notes
    -----
    All steps of a short log are planned, of a long one 8 to 64, of some 2**17 rows: the first line says which. The same
    log gives the same advice, times of planning aside.

    Examples
    --------
    >>> found = advise({"tokens": [900, 400, 100, 600, 500, 930, 70, 500]}, num_ranks=2, batch_per_rank=2)
    >>> round(found.waiting, 3), round(found.within.waiting, 3), [each.name for each in found.chosen]
    (0.267, 0.0, ['within_step'])
    """
    with opened_by(log, step, beside) as (opened, said, held):
        odd = [name for name in ("epochs", "shuffle", "first_epoch", "first_sample") if beside.get(name) is not None]
        if odd:
            raise UsageError(f"{{{odd[0]}}} changes no advice: leave it out")
        found = advise_opened(opened, settings_of(opened, said, beside), price=price, gpus_per_rank=gpus_per_rank)
        del held  # a table's file, which nobody reads any more
    return found


def advise_opened(
    log: LengthLog, settings: LogSettings, *, price: float | None = None, gpus_per_rank: int = 1,
    wording: Wording | None = None,
) -> Advice:  # fmt: skip
    """Say what would help, of a log that is open; `wording` is for reasons why a remedy cannot be planned."""
    gpus = settings.setup.topology.num_ranks * as_count("gpus_per_rank", gpus_per_rank)
    price = None if price is None else _checked_price(price)
    _refuse(settings)
    sample = sample_of(log, settings)
    settings = replace(settings, setup=settings.setup.in_one_unit(), drop_last=not sample.is_short)
    plain, prompts = prompts_of(log, settings)
    within = tried(sample, plain)
    if not within.steps:
        raise UsageError("no step is filled: the log has {n} samples", "give more", n=sample.stretches[0].num_rows)
    case = Case(log, sample, plain, within, prompts)
    whole = Finding(
        "within_step", _WITHIN_STEP, "a loss that is a sum over the global batch, divided once",
        time=_ratio(within.after, within.before), best_possible=_ratio(within.bound, within.before),
        waiting=within.waiting, saves=1 - _ratio(within.after, within.before), moved=_moved(within, settings),
        steps=within.steps, options={}, plan_ms=within.plan_ms,
    )  # fmt: skip
    others = tuple(_found(each, case, whole, wording or Wording()) for each in REMEDIES)
    row, length, ratio = within.cap or (-1, 0, 1.0)
    return Advice(log, plain, sample, within.waiting_before, whole, others, within.capped, row, length, ratio, gpus,
                  price)  # fmt: skip


_WITHIN_STEP = "a plan within the step"


def _refuse(settings: LogSettings) -> None:
    """Refuse what is tried anyhow, as what it is compared with would not be there."""
    if settings.across is not None and (settings.across.early or settings.across.late):
        raise UsageError("{defer} is tried anyhow: leave it out")
    cut = settings.setup.settings.cut
    if cut.shares:
        raise UsageError(f"{{{cut.called}}} are tried anyhow: leave them out")


def _checked_price(price: float) -> float:
    if isinstance(price, bool) or not isinstance(price, int | float):
        raise ArgumentTypeError("price", "be a number", repr(price))
    if not (math.isfinite(price) and price >= 0):
        raise ArgumentError("price", "be >= 0, what a GPU hour costs", price)
    return float(price)


def _ratio(taken: float, of: float) -> float:
    return taken / of if of else 1.0


def _moved(found: Tried, settings: LogSettings) -> float:
    return found.moved / (found.steps * settings.setup.topology.num_ranks)


def _found(remedy: Remedy, case: Case, whole: Finding, wording: Wording) -> Finding:
    """Try a remedy; where it takes long on fewer steps, beside a plan within the step of those."""
    about = Finding(remedy.name, remedy.title, remedy.changes, remedy.assumed)
    if case.sample.is_short and remedy.name.startswith(("defer", "step_tokens")):
        return replace(about, why_not="the log has no second step")
    try:
        way = remedy.way(case)
        if not isinstance(way, Way):
            return replace(about, why_not=way)
        sample = case.sample if way.steps is None else case.sample.of_steps(way.steps)
        within = case.within if sample is case.sample else tried(sample, case.settings)
        found = tried(sample, way.settings)
    except WordedError as error:
        return replace(about, why_not=str(error.in_words(wording)))
    except (ValueError, SolverError) as error:
        return replace(about, why_not=str(error))
    if not found.steps or not found.tokens or not within.after:
        return replace(about, why_not="its steps hold nothing")
    # A token's even share of today's time; steps that are cut otherwise may leave out a few samples at the end, and
    # some steps have more long samples than all
    even = whole.time * (1 - whole.waiting)
    scale = even * within.tokens / (float(within.even) * found.tokens)
    time = found.after * scale
    return replace(
        about, time=time, best_possible=found.bound * scale, waiting=found.waiting, saves=1 - _ratio(time, whole.time),
        moved=_moved(found, way.settings), steps=found.steps, options=way.options, keywords=way.keywords,
        plan_ms=found.plan_ms,
    )  # fmt: skip
