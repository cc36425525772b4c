"""Deferral of a whole epoch whose lengths are known: its steps are chosen, and then each is planned."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from fractions import Fraction
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from balancer.cost import CostModel
from balancer.deferral.effects import TrainingEffects, effects_of
from balancer.deferral.settings import StepSettings
from balancer.deferral.steps import Given, choose_steps, given_of
from balancer.planner import balance
from balancer.problem.across_steps import AcrossSteps
from balancer.problem.cuts import Cut
from solvers.errors import ArgumentError, SolverError, UsageError
from solvers.types import Proven, status_of

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Deferral(Proven):
    """Samples in steps, with a certificate.

    Attributes
    ----------
    step_of_sample : int64[n], read-only
        The step in which each sample runs; -1 if `drop_last` left it out.
    nominal_step : int64[n], read-only
        The step for which it was drawn.
    displacement : int64[n], read-only
        The difference: negative is early; 0 for samples left out.
    makespans : int64[T], read-only
        The makespan of each step, as the planner plans it.
    even_share : int
        The time of all steps together if all ranks were busy all the time.
    floor : int
        Proven: if no sample moves, the makespans sum up to at least this.
    lower_bound : int
        Proven: with these windows and limits, the makespans sum up to at least this.
    bound_name : str
        ``"cover"`` or ``"mean"``: see :class:`solvers.DeferralResult`.
    effects : TrainingEffects
        What it does to training.
    fell_back : str
        Which steps hold the samples drawn for them though others would take less time, and why; else empty.
    status, runtime_s
        ``OPTIMAL`` if and only if the sum of makespans is the lower bound.
    """

    _measure: ClassVar[str] = "total"
    step_of_sample: Ints
    nominal_step: Ints
    displacement: Ints
    makespans: Ints
    even_share: int
    floor: int
    effects: TrainingEffects = field(compare=False)
    fell_back: str

    @property
    def total(self) -> int:
        """The sum of all makespans."""
        return int(self.makespans.sum())

    @property
    def num_steps(self) -> int:
        """T."""
        return len(self.makespans)

    def samples_of_step(self, step: int) -> Ints:
        """Return the samples that run in a step, in ascending order."""
        return np.flatnonzero(self.step_of_sample == step)


def defer(
    lengths: ArrayLike,
    num_ranks: int,
    *,
    step_samples: int | None = None,
    step_tokens: int | None = None,
    window: int | tuple[int, int] = 0,
    counts: Literal["exact", "any"] | None = None,
    tokens_within: float | Fraction | str | None = None,
    cost: str | CostModel = "linear",
    stage: ArrayLike | None = None,
    drop_last: bool = False,
    max_tokens_per_rank: int | None = None,
    cut: Cut | None = None,
) -> Deferral:
    """Choose which samples form a step: each may run a few steps early or late, so that long ones share steps.

    Within a step the longest sample is a floor: no plan ends before the rank that has it. Deferral lowers this floor.

    Parameters
    ----------
    lengths : int64[n]
        Tokens of each sample, in the order in which they are drawn.
    num_ranks : int
    step_samples : int, optional
        Samples of a nominal step, over all ranks; or
    step_tokens : int, optional
        its tokens: a step closes before it would exceed them, and a longer sample is a step alone.
    window : int or (int, int)
        Steps that a sample may run before and after its nominal step: one number for both, or (early, late). 0: every
        sample stays in its nominal step.
    counts : "exact" or "any", optional
        Samples of a step: the nominal number, or any number that leaves no rank empty. By default exact with
        `step_samples` and any with `step_tokens`.
    tokens_within : share or "any", optional
        How far a step's tokens may be from `step_tokens`, or without it from the mean of the nominal steps that may run
        in it. If a nominal step exceeds a limit, the limit is widened to it. By default any with exact counts, and 5 %
        with free ones.
    cost : str or CostModel
        A sum over samples: not ``padded`` and not ``convolution``.
    stage : int[n] or str[n], optional
        No sample moves across a place where it changes: stages of a curriculum, or rollouts.
    drop_last : bool
        Leave out a last nominal step that is short, before any sample is moved.
    max_tokens_per_rank, cut
        As of :func:`balancer.balance`, which plans every step.

    Returns
    -------
    Deferral

    Raises
    ------
    TypeError, ValueError
        An argument that cannot be used: it names the argument, the index, the value and the rule.
    InfeasibleError, SolverError
        If a nominal step cannot be planned either.

    Notes
    -----
    It reads no clock. A second or two for 100,000 samples: O(n D + T^2 D) for the bound, D steps of a window, and a
    fixed amount of work for the search. See :func:`solvers.defer`.

    Examples
    --------
    >>> lengths = [8, 1, 1, 1, 1, 8, 1, 1, 1, 1]
    >>> found = defer(lengths, 2, step_samples=5, window=1)
    >>> found.step_of_sample.tolist(), found.makespans.tolist(), found.floor, found.lower_bound
    ([0, 1, 0, 0, 0, 0, 1, 1, 1, 1], [10, 3], 16, 12)
    """
    started = time.perf_counter()
    across = AcrossSteps(window=window, tokens_within=tokens_within, counts=counts, step_tokens=step_tokens)
    settings = StepSettings.of(num_ranks, step_samples, across, cost, max_tokens_per_rank, cut)
    length = settings.checked(lengths)
    stages = None if stage is None else np.asarray(stage)
    if stages is not None and stages.shape != length.shape:
        raise ArgumentError("stage", f"be one key for each of {len(length)} samples", f"shape {stages.shape}")
    found = choose_steps(settings, length, stages, drop_last)
    given, kept = given_of(settings, length, found.nominal, stages)
    if given is None:
        raise UsageError(
            "no step is filled: {lengths} has {n} samples", "give more, or keep a short last step", n=len(length)
        )
    step, makespans, why = _planned(settings, length[kept], given, found.step[kept], found.floor)
    effects = found.effects
    if why:
        effects = effects_of(length[kept], given.start, step, effects.long_from)
    # Samples left out by `drop_last` have no step, so results are spread over all samples again.
    steps, displacement = np.full(len(length), -1, dtype=np.int64), np.zeros(len(length), dtype=np.int64)
    steps[kept], displacement[kept] = step, step - given.start
    return Deferral(
        steps, found.nominal, displacement, makespans, found.even_share, found.floor, effects, why,
        lower_bound=found.lower_bound, bound_name=found.bound_name,
        status=status_of(int(makespans.sum()), found.lower_bound), runtime_s=time.perf_counter() - started,
    )  # fmt: skip


def _planned(
    settings: StepSettings, lengths: Ints, given: Given, step: Ints, floor: int
) -> tuple[Ints, Ints, str]:  # fmt: skip
    """Return steps that all have a plan, their makespans, and which of them are nominal though others would be better.

    A step that has no plan goes back to the samples drawn for it: what came in goes home, and what left comes back. So
    others change, and go back too if they break a limit then, or have no plan.
    """
    makespans = np.zeros(given.num_steps, dtype=np.int64)
    nominal, back, why = given.start, np.zeros(given.num_steps, dtype=bool), ""
    waiting = np.arange(given.num_steps)
    while len(waiting):
        failed = []
        for t in waiting.tolist():
            try:
                makespans[t] = _makespan(settings, lengths[step == t])
            except SolverError as error:
                if back[t]:  # it holds what was drawn for it, and has no plan either
                    raise
                failed.append(t)
                why = why or str(error)
        if not failed and (wrong := given.broken(step)) is not None:
            failed = [wrong[0]]
        back[failed] = True
        home = (back[nominal] | back[step]) & (step != nominal)
        waiting = np.unique(np.concatenate([failed, step[home], nominal[home]]).astype(np.int64))
        step = np.where(home, nominal, step)
    if why:
        at = ", ".join(map(str, np.flatnonzero(back)))
        why = f"steps {at} hold the samples drawn for them, as no plan was found for others: {why}"
    # If the planner is far from the solver's floor, nominal steps may be better: no plan of theirs undercuts theirs.
    if int(makespans.sum()) > floor and (step != nominal).any():
        plain = np.array([_makespan(settings, lengths[nominal == t]) for t in range(given.num_steps)], dtype=np.int64)
        if int(plain.sum()) < int(makespans.sum()):
            return nominal, plain, why or "the planner reaches no less with deferred samples"
    return step, makespans, why


def _makespan(settings: StepSettings, lengths: Ints) -> int:
    # "any" placement: only the makespan counts here, not the ranks.
    return balance(
        lengths, settings.num_ranks, cost=settings.cost, max_tokens_per_rank=settings.max_tokens_per_rank,
        cut=settings.cut, placement="any",
    ).makespan  # fmt: skip
