"""Deferral of a whole epoch whose lengths are known."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from balancer.cost import CostModel
from balancer.deferral.effects import TrainingEffects, effects_of
from balancer.deferral.request import Request, held_in
from balancer.deferral.work import Chosen, PhaseWork, choose
from balancer.planner import balance
from balancer.problem.cuts.micro_batches import MicroBatches
from solvers.deferral import windows
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
        Why samples stay in their nominal steps, if a better plan was found but could not be used; else empty.
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
    batch_size: int | None = None,
    step_tokens: int | None = None,
    early: int = 0,
    late: int = 0,
    counts: Literal["exact"] | float | Fraction | str | None = None,
    tokens_within: float | Fraction | str | None = 0.05,
    cost: str | CostModel = "linear",
    stage: ArrayLike | None = None,
    keep_together: ArrayLike | None = None,
    most_long_share: float | Fraction | str | None = None,
    drop_last: bool = False,
    max_tokens_per_rank: int | None = None,
    micro_batch_tokens: int | None = None,
) -> Deferral:
    """Choose which samples form a step: each may run a few steps early or late, so that long ones share steps.

    Within a step the longest sample is a floor: no plan ends before the rank that has it. Deferral lowers this floor.

    Parameters
    ----------
    lengths : int64[n]
        Tokens of each sample, in the order in which they are drawn.
    num_ranks : int
    batch_size : int, optional
        Samples of a nominal step, over all ranks; or
    step_tokens : int, optional
        its tokens: a step closes before it would exceed them, and a longer sample is a step alone.
    early, late : int
        Steps that a sample may run before and after its nominal step. 0 and 0: nominal steps.
    counts : "exact", share or None
        Samples of a step: the nominal number, within a share of the mean nominal number, or any number that leaves
        no rank empty.
    tokens_within : share or None
        How far a step's tokens may be from `step_tokens`, or without it from the mean of the nominal steps that may run
        in it. If a nominal step exceeds a limit, the limit is widened to it.
    cost : str or CostModel
        A sum over samples: not ``padded`` and not ``convolution``.
    stage : int[n] or str[n], optional
        No sample moves across a place where it changes: stages of a curriculum, or rollouts.
    keep_together : int[n] or str[n], optional
        Samples of equal keys run on one rank of one step; they must be of one nominal step.
    most_long_share : share, optional
        The most of a step's tokens that may be in long samples, those of more than an eighth of a rank's mean share.
    drop_last : bool
        Leave out a last nominal step that is short, before any sample is moved.
    max_tokens_per_rank, micro_batch_tokens : int, optional
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
    It reads no clock. A second or two for 100,000 samples: O(n D + T^2 D) for the bound, D = early + late + 1, and a
    fixed amount of work for the search. See :func:`solvers.defer`.

    Examples
    --------
    >>> lengths = [8, 1, 1, 1, 1, 8, 1, 1, 1, 1]
    >>> found = defer(lengths, 2, batch_size=5, early=1, late=1, tokens_within=None, counts="exact")
    >>> found.step_of_sample.tolist(), found.makespans.tolist(), found.floor, found.lower_bound
    ([0, 1, 0, 0, 0, 0, 1, 1, 1, 1], [10, 3], 16, 12)
    """
    started = time.perf_counter()
    request = Request.of(
        num_ranks, batch_size, step_tokens, early, late, counts, tokens_within, cost, most_long_share=most_long_share,
        max_tokens_per_rank=max_tokens_per_rank, micro_batch_tokens=micro_batch_tokens,
    )  # fmt: skip
    length = request.checked(lengths)
    every = request.nominal_steps(length, drop_last)
    if not len(kept := np.flatnonzero(every >= 0)):
        raise UsageError(
            "no step is filled: {lengths} has {n} samples", "give more, or keep a short last step", n=len(every)
        )
    of_kept = {name: None if keys is None else _keys(name, keys, len(length))[kept]
               for name, keys in (("stage", stage), ("keep_together", keep_together))}  # fmt: skip
    drawn = Drawn(request, length[kept], every[kept], of_kept["stage"], of_kept["keep_together"])
    found = drawn.solve()
    step, makespans, why = drawn.planned(found)
    displaced = step - drawn.nominal
    # Samples left out by `drop_last` have no step, so results are spread over all samples again.
    steps, displacement = np.full(len(length), -1, dtype=np.int64), np.zeros(len(length), dtype=np.int64)
    steps[kept], displacement[kept] = step, displaced
    total = int(makespans.sum())
    sums = drawn.nominal_sums()
    return Deferral(
        steps, every, displacement, makespans, drawn.even_share, found.start_total,
        effects_of(drawn.lengths, drawn.nominal, step, request.long_from(sums[0])), why,
        lower_bound=found.lower_bound, bound_name=found.bound_name, status=status_of(total, found.lower_bound),
        runtime_s=time.perf_counter() - started,
    )  # fmt: skip


def _keys(name: str, keys: ArrayLike, n: int) -> Ints:
    """Return keys of any kind as numbers."""
    found = np.asarray(keys)
    if found.shape != (n,):
        raise ArgumentError(name, f"be one key for each of {n} samples", f"shape {found.shape}")
    return np.unique(found, return_inverse=True)[1].astype(np.int64)


class Given(NamedTuple):
    """What the solver is given of all items; `limits` by keyword."""

    phases: tuple[PhaseWork, ...]
    rows: Ints
    spans: Ints
    start: Ints
    limits: dict[str, Any]

    def at_least(self, step: Ints) -> int:
        """Return what these steps of items take at least, over all phases."""
        return sum(phase.at_least(step, int(self.spans[-1, 1]) + 1) for phase in self.phases)

    def keeps_limits(self, step: Ints) -> bool:
        """Return whether these steps of items hold what they must and may."""
        return all(
            bool(((held >= least) & (held <= most)).all()) for _, held, least, most in held_in(self.limits, step)
        )


class Drawn:
    """Samples in the order drawn, and the items that they are to the solver: those kept together are one."""

    def __init__(
        self, request: Request, lengths: Ints, nominal: Ints, stage: Ints | None = None, keys: Ints | None = None,
        phases: Sequence[PhaseWork] = (),
    ) -> None:  # fmt: skip
        """Take samples as drawn, and what each phase takes of them: by default one phase, of the request's cost."""
        self.request, self.lengths, self.nominal, self.stage, self.keys = request, lengths, nominal, stage, keys
        self.phases = tuple(phases) or (PhaseWork(request.cost.sample_costs(lengths), None, request.num_ranks),)
        self.num_steps = int(nominal[-1]) + 1
        self.item = np.arange(len(lengths)) if keys is None else np.unique(keys, return_inverse=True)[1]
        self.first = np.unique(self.item, return_index=True)[1]
        if (apart := nominal != nominal[self.first[self.item]]).any():
            i = int(np.argmax(apart))
            first = int(self.first[self.item[i]])
            raise UsageError(
                "{keep_together} has samples {first} and {other} together, which are of the nominal steps {a} and {b}: "
                "what stays together must be of one", first=first, other=i, a=int(nominal[first]), b=int(nominal[i]),
            )  # fmt: skip

    def nominal_sums(self) -> Ints:
        """Return tokens and samples of each nominal step: int64[2, T]."""
        sums = np.zeros((2, self.num_steps), dtype=np.int64)
        np.add.at(sums[0], self.nominal, self.lengths)
        np.add.at(sums[1], self.nominal, 1)
        return sums

    def _of_items(self, amounts: Ints) -> Ints:
        sums = np.zeros(len(self.first), dtype=np.int64)
        np.add.at(sums, self.item, amounts)
        return sums

    def given(self) -> Given:
        """Return what the solver is given."""
        start = self.nominal[self.first]
        longest = np.zeros(len(self.first), dtype=np.int64)
        np.maximum.at(longest, self.item, self.lengths)
        items = {"tokens": self._of_items(self.lengths), "counts": self._of_items(np.ones_like(self.lengths)),
                 "longest": longest}  # fmt: skip
        rows, spans = self._windows()
        # The solver limits steps, not ranks: what all ranks together may hold.
        capped = [
            (self._of_items(amounts), each.num_bins * most) for each in self.phases for amounts, most in each.capped
        ]
        limits = self.request.limits(items, start, self.nominal_sums(), capped=capped)
        # What stays together does so on one rank of the last phase; of others the tallest sample is on one
        phases = [each._replace(costs=self._of_items(each.costs), heights=self._tallest(each)) for each in self.phases]
        if self.phases[-1].heights is None:
            phases[-1] = phases[-1]._replace(heights=None)
        return Given(tuple(phases), rows[self.first], spans, start, limits)

    def _tallest(self, phase: PhaseWork) -> Ints | None:
        if self.keys is None:
            return phase.heights
        tallest = np.zeros(len(self.first), dtype=np.int64)
        np.maximum.at(tallest, self.item, phase.costs if phase.heights is None else phase.heights)
        return tallest

    @property
    def even_share(self) -> int:
        """What all steps take together if no rank ever waits, over all phases."""
        return sum(-(-int(each.costs.sum()) // each.num_bins) for each in self.phases)

    def solve(self) -> Chosen:
        """Choose a step for each item; never worse than with half the delay, if its steps are within the limits too."""
        given = self.given()
        found = choose(*given)
        early, late = self.request.early // 2, self.request.late // 2
        if early or late:
            request = replace(self.request, early=early, late=late)
            nearer = Drawn(request, self.lengths, self.nominal, self.stage, self.keys, self.phases)
            # What is proven of nearer steps is little work, and as a rule it ends the comparison
            if choose(*nearer.given(), search=False).lower_bound < found.total:
                other = nearer.solve()
                if other.total < found.total and given.keeps_limits(other.step):
                    return found._replace(step=other.step, total=other.total)
        return found

    def _windows(self) -> tuple[Ints, Ints]:
        """Return the row of each sample, and the window of each row: a nominal step, or its part within a stage."""
        plain = windows(self.num_steps, min(self.request.early, self.num_steps), min(self.request.late, self.num_steps))
        if self.stage is None:
            return self.nominal, plain
        run = np.concatenate([[0], np.cumsum(np.diff(self.stage) != 0)])
        # A nominal step that a change of stage divides is two rows, each with a window of its own.
        pairs, rows = np.unique(np.stack([self.nominal, run]), axis=1, return_inverse=True)
        ends = np.searchsorted(run, np.arange(int(run[-1]) + 2))
        low, high = self.nominal[ends[:-1]], self.nominal[ends[1:] - 1]
        spans = np.stack(
            [np.maximum(plain[pairs[0], 0], low[pairs[1]]), np.minimum(plain[pairs[0], 1], high[pairs[1]])], 1
        )
        return rows.ravel().astype(np.int64), spans

    def planned(self, found: Chosen) -> tuple[Ints, Ints, str]:
        """Return the step of each sample and the makespans, as the planner reaches them, and why they are nominal."""
        step = found.step[self.item]
        try:
            makespans, why = self._makespans(step), ""
        except SolverError as error:
            makespans, why = np.zeros(0, dtype=np.int64), f"a step of deferred samples could not be planned: {error}"
        # Otherwise the planner is so far from the solver's floor that nominal steps may be better: it plans them, too.
        if not why and int(makespans.sum()) <= found.start_total:  # which no plan of nominal steps undercuts
            return step, makespans, ""
        nominal = self._makespans(self.nominal)
        if why or int(nominal.sum()) < int(makespans.sum()):
            return self.nominal, nominal, why or "the planner reaches no less with deferred samples"
        return step, makespans, ""

    def _makespans(self, step: Ints) -> Ints:
        order = np.argsort(step, kind="stable")
        ends = np.searchsorted(step[order], np.arange(self.num_steps + 1))
        cap = self.request.micro_batch_tokens
        settings: dict[str, Any] = {
            "cost": self.request.cost, "max_tokens_per_rank": self.request.max_tokens_per_rank,
            "cut": None if cap is None else MicroBatches(cap), "placement": "any",
        }  # fmt: skip
        found = np.zeros(self.num_steps, dtype=np.int64)
        for t in range(self.num_steps):
            here = order[ends[t] : ends[t + 1]]
            keys = None if self.keys is None else self.keys[here]
            # "any" placement: only the makespan counts here, not the ranks.
            found[t] = balance(self.lengths[here], self.request.num_ranks, keep_together=keys, **settings).makespan
        return found
