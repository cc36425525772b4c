"""Advice on a log: what waiting costs now, what each remedy would change, and what to do first."""

import math
import os
from dataclasses import replace
from typing import Any

from balancer.advice.findings import WORTH, Finding, Findings
from balancer.advice.remedies import REMEDIES, Case, Remedy, changed_settings, keys_in, keywords_in, prompts_of
from balancer.advice.sample import sample_of
from balancer.advice.tried import Tried, tried
from balancer.advice.words import lines_of
from balancer.io.log import LengthLog
from balancer.offline.settings import LogSettings
from balancer.report.plan_log import opened_by, settings_of
from balancer.strategies import llm_only, strategies_for
from solvers.arguments import as_count
from solvers.errors import ArgumentError, ArgumentTypeError, SolverError, UsageError

__all__ = ["Advice", "Finding", "advise", "advise_opened"]


class Advice(Findings):
    """What would help: print it, write its page, or take its numbers (those of :class:`.Findings`)."""

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
    >>> round(found.today.waiting, 3), round(found.within.waiting, 3), [each.name for each in found.chosen]
    (0.267, 0.0, ['within_step'])
    """
    with opened_by(log, step, beside) as (opened, said):
        odd = [name for name in ("epochs", "shuffle", "first_epoch", "first_sample") if beside.get(name) is not None]
        if odd:
            raise UsageError(f"{{{odd[0]}}} changes no advice: leave it out")
        return advise_opened(
            opened, settings_of(opened, said, beside, of="advise"), price=price, gpus_per_rank=gpus_per_rank
        )


def advise_opened(
    log: LengthLog, settings: LogSettings, *, price: float | None = None, gpus_per_rank: int | None = None,
) -> Advice:  # fmt: skip
    """Say what would help, of a log that is open."""
    each = settings.setup.settings.cut.num_stages or 1 if gpus_per_rank is None else gpus_per_rank
    gpus = settings.setup.topology.num_ranks * as_count("gpus_per_rank", each)
    price = None if price is None else _checked_price(price)
    _refuse(settings)
    # Of the log as it lies: how often it is planned, and in which order, changes no advice.
    settings = replace(settings, epochs=1, shuffle=None)
    sample = sample_of(log, settings)
    # One unit, so that times of phases add up. A short last step counts only where it is the only one.
    settings = replace(settings, setup=settings.setup.in_one_unit(), drop_last=not sample.is_short)
    # Without shared prompts: to share them is one of the remedies.
    plain, prompts = prompts_of(log, settings)
    case = Case(log, sample, plain, tried(sample, plain), prompts)
    if not case.within.steps:
        raise UsageError("no step is filled: the log has {n} samples", "give more", n=sample.stretches[0].num_rows)
    today = _row(case, Finding("today", "today, as sampled"), case.within, "before")
    asks = "a loss that is a sum over the global batch, divided once"
    within = _row(case, Finding("within_step", "a plan within the step", asks, beside=today.title), case.within)
    remedies = tuple(_found(each, case, within) for each in REMEDIES)
    alone, cap, tokens = _last_alone(case, today), case.within.cap, case.within.tokens
    return Advice(log, plain, sample, today, alone, within, remedies, cap, tokens, gpus, price)


def _row(
    case: Case, about: Finding, found: Tried, when: str = "after", *, scale: float = 1.0, beside: float = 1.0
) -> Finding:
    """Return what was found of a way: today's time is 1, and what it saves is of the row that it stands beside.

    Times are `scale` times those of the steps that were planned; the row beside takes `beside`.
    """
    today = case.within.time("before")
    time = _ratio(scale * found.time(when), today)
    return replace(
        about, time=time, best_possible=_ratio(scale * found.bound, today), waiting=found.waiting(when),
        waiting_error=found.waiting_error(case.sample.steps_of_log, when), saves=1 - _ratio(time, beside),
        moved=found.moved if when == "after" else 0.0, steps=found.steps, plan_ms=found.plan_ms,
    )  # fmt: skip


def _last_alone(case: Case, today: Finding) -> Finding | None:
    """Return what it does to balance the last phase alone, as most trainers do, where there are several."""
    setup = case.settings.setup
    if len(setup.phases) == 1 or llm_only.__name__ not in strategies_for(setup):
        return None
    about = Finding("llm_only", f"only {setup.phases[-1].name} balanced", beside=today.title)
    try:
        return _row(case, about, tried(case.sample, case.settings, llm_only))
    except (ValueError, SolverError) as error:
        return replace(about, why_not=str(error))


def _found(remedy: Remedy, case: Case, whole: Finding) -> Finding:
    """Try a remedy; where it takes long on fewer steps, beside a plan within the step of those."""
    about = Finding(remedy.name, remedy.title, remedy.asks, whole.title)
    if case.sample.is_short and remedy.name.startswith(("defer", "step_tokens")):
        return replace(about, why_not="the log has no second step")
    # Where costs are sums, no remedy that moves samples takes less than even ranks do: what cannot gain is not planned,
    # and its kernels are not compiled.
    even = whole.waiting < WORTH and all(phase.cost.additive for phase in case.settings.setup.phases)
    if even and not remedy.computes_less:
        return replace(about, why_not=f"nothing to gain: {whole.title} leaves ranks waiting under 1 % of the time")
    try:
        change = remedy.change(case)
        if isinstance(change, str):
            return replace(about, why_not=change)
        # A slow remedy is tried on fewer steps, and compared with a plan within these same steps.
        sample = case.sample.of_steps(remedy.steps(case))
        within = case.within if sample is case.sample else tried(sample, case.settings)
        found = tried(sample, changed_settings(case.settings, change))
    # A remedy that cannot be planned is a finding; the advice goes on with the others.
    except (ValueError, SolverError) as error:
        return replace(about, why_not=str(error))
    if not found.steps or not found.tokens or not within.time("after"):
        return replace(about, why_not="its steps hold nothing")
    # A token's even share of today's time; steps that are cut otherwise may leave out a few samples at the end, and
    # some steps have more long samples than all
    scale = case.within.time("even") * within.tokens / (within.time("even") * found.tokens)
    last = case.settings.setup.phases[-1].name
    about = replace(about, options=keys_in(change, last), keywords=keywords_in(change))
    return _row(case, about, found, scale=scale, beside=whole.time)


def _refuse(settings: LogSettings) -> None:
    """Refuse what is tried anyhow, as what it is compared with would not be there."""
    if settings.across is not None and settings.across.window:
        raise UsageError("{window} is tried anyhow: leave it out")
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
