"""Advice on a log: what waiting costs now, what each remedy would change, and what to do first."""

import math
import os
from dataclasses import dataclass, replace
from typing import Any

from balancer.advice.findings import Finding, Findings
from balancer.advice.remedies import REMEDIES, Case, Remedy, Way, prompts_of
from balancer.advice.sample import sample_of
from balancer.advice.tried import Tried, tried
from balancer.advice.words import lines_of
from balancer.io.logs import LengthLog
from balancer.offline.settings import LogSettings
from balancer.report.plan_log import opened_by, settings_of
from solvers.arguments import as_count
from solvers.errors import ArgumentError, ArgumentTypeError, SolverError, UsageError, WordedError

__all__ = ["Advice", "Finding", "advise", "advise_opened"]


@dataclass(frozen=True, slots=True)
class Advice(Findings):
    """What would help: print it, write its page, or take its numbers.

    Attributes
    ----------
    log : LengthLog
    settings : LogSettings
        A plan within the step, as it was asked for.
    sample : Sample
        The steps that everything was computed on.
    waiting, waiting_error : float
        Share of the time that ranks wait today, and its standard error where some of the log's steps were planned.
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

    def to_html(self, path: str | os.PathLike[str]) -> None:
        """Write a page of it; needs the extra ``plot``."""
        from balancer.report.charts import require_plotting

        require_plotting("to_html()")
        from balancer.advice.page import advice_page
        from balancer.report.page import write_page

        write_page(os.fspath(path), advice_page(self))

    def __str__(self) -> str:
        return "\n".join(lines_of(self))


def advise(
    log: Any, step: str | os.PathLike[str] | None = None, *, price: float | None = None,
    gpus_per_rank: int | None = None, **beside: Any,
) -> Advice:  # fmt: skip
    """Say what would help a training job, computed on some steps of its log.

    Parameters
    ----------
    log, step, **beside
        As :func:`balancer.plan_log` takes them: which samples make a step, on which ranks, and what they cost.
        Deferral, sequence groups and context shards are tried, not asked for.
    price : float, optional
        Price of a GPU hour, in any currency.
    gpus_per_rank : int, optional
        GPUs that one data-parallel rank has: by default 1, of a pipeline's replica one a stage.

    Returns
    -------
    Advice
        Print it, or write its page with ``to_html``.

    Raises
    ------
    TypeError, ValueError, InfeasibleError, SolverError
        As :func:`balancer.plan_log`, for a plan within the step. If a remedy cannot be planned, its finding says so.

    Notes
    -----
    All steps of a short log are planned. Of a long log 8 to 64 steps are, with some 2**17 rows: the first line says
    which. The same log gives the same advice, except for times of planning.

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
    log: LengthLog, settings: LogSettings, *, price: float | None = None, gpus_per_rank: int | None = None,
) -> Advice:  # fmt: skip
    """Say what would help, of a log that is open."""
    each = settings.setup.settings.cut.num_stages or 1 if gpus_per_rank is None else gpus_per_rank
    gpus = settings.setup.topology.num_ranks * as_count("gpus_per_rank", each)
    price = None if price is None else _checked_price(price)
    _refuse(settings)
    sample = sample_of(log, settings)
    # One unit, so that times of phases add up. A short last step counts only where it is the only one.
    settings = replace(settings, setup=settings.setup.in_one_unit(), drop_last=not sample.is_short)
    plain, prompts = prompts_of(log, settings)
    # Without shared prompts: to share them is one of the remedies.
    within = tried(sample, plain)
    if not within.steps:
        raise UsageError("no step is filled: the log has {n} samples", "give more", n=sample.stretches[0].num_rows)
    case = Case(log, sample, plain, within, prompts)
    error_before, error = within.waiting_errors(sample.steps_of_log)
    whole = Finding(
        "within_step", "a plan within the step", "a loss that is a sum over the global batch, divided once",
        time=_ratio(within.after, within.before), best_possible=_ratio(within.bound, within.before),
        waiting=within.waiting, waiting_error=error, saves=1 - _ratio(within.after, within.before),
        moved=_moved(within, settings), steps=within.steps, tokens=within.tokens, plan_ms=within.plan_ms,
    )  # fmt: skip
    others = tuple(_found(each, case, whole) for each in REMEDIES)
    row, length, ratio = within.cap or (-1, 0, 1.0)
    return Advice(log, plain, sample, within.waiting_before, error_before, whole, others, within.capped, row, length,
                  ratio, gpus, price)  # fmt: skip


def _refuse(settings: LogSettings) -> None:
    """Refuse what is tried anyhow, as what it is compared with would not be there."""
    if settings.across is not None and (settings.across.early or settings.across.late):
        raise UsageError("{early} and {late} are tried anyhow: leave them out")
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


def _found(remedy: Remedy, case: Case, whole: Finding) -> Finding:
    """Try a remedy; where it takes long on fewer steps, beside a plan within the step of those."""
    about = Finding(remedy.name, remedy.title, remedy.changes, remedy.assumed)
    if case.sample.is_short and remedy.name.startswith(("defer", "step_tokens")):
        return replace(about, why_not="the log has no second step")
    try:
        way = remedy.way(case)
        if not isinstance(way, Way):
            return replace(about, why_not=way)
        # A slow remedy is tried on fewer steps, and compared with a plan within these same steps.
        sample = case.sample if way.steps is None else case.sample.of_steps(way.steps)
        within = case.within if sample is case.sample else tried(sample, case.settings)
        found = tried(sample, way.settings)
    # A remedy that cannot be planned is a finding; the advice goes on with the others.
    except WordedError as error:
        return replace(about, why_not=str(error))
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
        about, time=time, best_possible=found.bound * scale, waiting=found.waiting,
        waiting_error=found.waiting_errors(sample.steps_of_log)[1], saves=1 - _ratio(time, whole.time),
        moved=_moved(found, way.settings), steps=found.steps, tokens=found.tokens, options=way.options,
        keywords=way.keywords, plan_ms=found.plan_ms,
    )  # fmt: skip
