"""What was found on a log: of each remedy its numbers, and of all of them what to choose."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from balancer.advice.sample import Sample
from balancer.advice.tried import Cap
from balancer.io.log import LengthLog
from balancer.offline.settings import LogSettings
from balancer.offline.step_table import JSON_VERSION
from balancer.report.plan_log import about

__all__ = ["WORTH", "Finding", "Findings"]

WORTH = 0.01
"""Share of the time that a remedy must save to be worth a word. A judgement: steps of equal work vary by as much."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What one remedy does to the sampled steps. Times are of the same samples, those of today being 1.

    Attributes
    ----------
    name, title, asks : str
        As ``Remedy`` in ``balancer.advice.remedies`` has them.
    beside : str
        The title of the row that it is compared with; empty of today's.
    time : float
        What the samples take.
    best_possible : float
        Proven: no plan of this kind takes less.
    waiting, waiting_error : float
        Share of the time that the mean rank waits, and its standard error where some of the log's steps were planned.
    saves : float
        Share of the time that goes, of the row that it stands beside.
    moved : float
        What a rank sends to others in a step on average: elements of a single phase, bytes of several.
    steps : int
        How many were planned.
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
    asks: str = ""
    beside: str = ""
    time: float = 1.0
    best_possible: float = 1.0
    waiting: float = 0.0
    waiting_error: float = 0.0
    saves: float = 0.0
    moved: float = 0.0
    steps: int = 0
    options: Mapping[str, str | None] = field(default_factory=dict)
    keywords: str = ""
    why_not: str = ""
    plan_ms: float = 0.0

    @property
    def is_worth_it(self) -> bool:
        """Whether it saves enough to speak of."""
        return not self.why_not and self.saves >= WORTH


@dataclass(frozen=True, slots=True)
class Findings:
    """What was found on a log, and what follows from it.

    Attributes
    ----------
    log : LengthLog
    settings : LogSettings
        A plan within the step, as it was asked for.
    sample : Sample
        The steps that everything was computed on.
    today : Finding
        What the samples take as they lie.
    last_alone : Finding or None
        With several phases, what it does to balance the last one alone, as most trainers do.
    within : Finding
        What a plan within the step does.
    remedies : tuple of Finding
        What could be done beyond it, in the order of ``balancer.advice.remedies.REMEDIES``.
    cap : Cap
        How many sampled steps one sample alone bounds, and the worst one's ``row``, ``length``, and ``ratio``, below
        which no plan of that step comes.
    tokens : int
        What the sampled steps hold, in lengths of the last phase.
    gpus : int
        Of all ranks.
    price : float or None
        Of a GPU hour.
    """

    log: LengthLog
    settings: LogSettings
    sample: Sample
    today: Finding
    last_alone: Finding | None
    within: Finding
    remedies: tuple[Finding, ...]
    cap: Cap
    tokens: int
    gpus: int
    price: float | None = None

    @property
    def rows(self) -> tuple[Finding, ...]:
        """All that was looked at, in the order in which it is shown: today first."""
        return self.today, *((self.last_alone,) if self.last_alone else ()), self.within, *self.remedies

    @property
    def best(self) -> Finding | None:
        """The remedy to choose besides a plan within the step; None where none saves enough to speak of.

        The one that saves most, or one that asks less of a trainer and takes hardly longer.
        """
        worth = [each for each in self.remedies if each.is_worth_it]
        least = min((each.time for each in worth), default=0.0)
        # Remedies that ask less of a trainer come first, so the first that is nearly the fastest is taken.
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
        capping = {"row": self.cap.row, "length": self.cap.length, "imbalance_ratio_best_possible": self.cap.ratio}
        found: dict[str, Any] = {
            "version": JSON_VERSION,
            **about(self.log, self.settings),
            "gpus": self.gpus,
            "steps": self.within.steps,
            "sample": self.sample.in_words(self.within.steps),
            "waiting": self.today.waiting,
            "waiting_error": self.today.waiting_error,
            "gpus_waiting": self.gpus * self.today.waiting,
            "capped_steps": self.cap.steps,
            "capping_sample": capping if self.cap.steps else None,
            "ways": {each.name: self._as_json(each) for each in self.rows[1:]},
            "worth": WORTH,
            "worth_it": [each.name for each in self.chosen],
        }
        if self.price is not None:
            found["price"] = self.price
            found["saved_a_day"] = {each.name: self.price * self.hours_a_day(each) for each in self.chosen}
        return found

    def _as_json(self, finding: Finding) -> dict[str, Any]:
        if finding.why_not:
            return {"why_not": finding.why_not}
        names = ("beside", "time", "best_possible", "waiting", "waiting_error", "saves", "steps")
        return {name: getattr(finding, name) for name in names} | {
            "moved_a_rank_and_step": finding.moved, "options": dict(finding.options),
            "gpus_waiting": self.gpus * finding.waiting, "gpu_hours_a_day": self.hours_a_day(finding),
        }  # fmt: skip
