"""The steps of an epoch's samples: chosen, or chosen by somebody else and checked; and what is proven of them.

Told in the order in which it happens: :class:`PhaseWork` is what a phase takes of the samples. :class:`Given` adds
nominal steps, windows and limits. :func:`choose` searches from two starts, each phase leading in turn.
:func:`choose_steps` and :func:`check_steps` are for an epoch, of which samples of a short last step may be left out.
"""

import itertools
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

import solvers
from balancer.deferral.effects import TrainingEffects, effects_of
from balancer.deferral.settings import FILLED, StepSettings, held_in
from solvers.deferral import least_makespans, windows
from solvers.errors import UsageError

Ints = NDArray[np.int64]

_BUDGET = 2.0  # seconds' worth of work for all searches from one start
_NO_SEARCH = 1e-9  # the bound alone


class PhaseWork(NamedTuple):
    """What one phase takes of each sample."""

    costs: Ints  # int64[n]: its work, over all ranks that have a part of it
    heights: Ints | None  # int64[n]: the least time of a step that has it; None: the work, as one rank does all of it
    num_bins: int  # ranks, or replicas, that share the phase's work
    # int64[n] and a number: what else each sample has, such as tokens, and the most of it that a rank may hold
    capped: tuple[tuple[Ints, int], ...] = ()

    def at_least(self, step: Ints, num_steps: int) -> int:
        """Return what these steps take at least, whatever the plans of steps."""
        return int(least_makespans(self.costs, step, num_steps, self.num_bins, self.heights).sum())

    def taken(self, samples: Ints) -> "PhaseWork":
        """Return that of some samples."""
        heights = None if self.heights is None else self.heights[samples]
        capped = tuple((amounts[samples], most) for amounts, most in self.capped)
        return PhaseWork(self.costs[samples], heights, self.num_bins, capped)

    @property
    def even_share(self) -> int:
        """What the phase takes in all steps together if no rank ever waits."""
        return -(-int(self.costs.sum()) // self.num_bins)


class Given(NamedTuple):
    """What the solver is given of samples."""

    phases: tuple[PhaseWork, ...]
    rows: Ints  # int64[n]: the row of `spans` that has a sample's window
    spans: Ints  # int64[R, 2]: first and last step
    start: Ints  # int64[n]: steps to begin with, which keep all limits
    limits: dict[str, Any]  # of each step, as keywords of the solver
    # Tighter ones, which the search keeps to: a step that is full to the brim may have no even plan, or none
    within: dict[str, Any]

    @property
    def num_steps(self) -> int:
        """T."""
        return int(self.spans[-1, 1]) + 1

    @classmethod
    def of(cls, settings: StepSettings, lengths: Ints, nominal: Ints, stage: Ints | None,
           phases: Sequence[PhaseWork]) -> Self:  # fmt: skip
        """Return what is given of the samples of an epoch, all of which have a nominal step."""
        steps = int(nominal[-1]) + 1
        rows, spans = _windows(settings, nominal, stage)
        sums = np.zeros((2, steps), dtype=np.int64)
        np.add.at(sums[0], nominal, lengths)
        np.add.at(sums[1], nominal, 1)
        # The solver limits steps, not ranks: what all ranks together may hold.
        capped = [(amounts, each.num_bins * most) for each in phases for amounts, most in each.capped]
        limits = settings.limits(lengths, nominal, sums, capped=capped)
        within = limits
        if capped or settings.max_tokens_per_rank is not None:
            within = settings.limits(lengths, nominal, sums, capped=capped, filled=FILLED)
        return cls(tuple(phases), rows, spans, nominal, limits, within)

    def at_least(self, step: Ints) -> int:
        """Return what these steps take at least, over all phases."""
        return sum(phase.at_least(step, self.num_steps) for phase in self.phases)

    def broken(self, step: Ints) -> tuple[int, str] | None:
        """Return a step that does not hold what it must and may, and what is wrong; None if all do."""
        for name, held, least, most in held_in(self.limits, step):
            if (odd := (held < least) | (held > most)).any():
                t = int(np.argmax(odd))
                return t, f"has {int(held[t])} {name}, outside {int(least[t])}..{int(most[t])}"
        return None


def _windows(settings: StepSettings, nominal: Ints, stage: Ints | None) -> tuple[Ints, Ints]:
    """Return the row of each sample, and the window of each row: a nominal step, or its part within a stage."""
    steps, across = int(nominal[-1]) + 1, settings.across
    plain = windows(steps, min(across.early, steps), min(across.late, steps))
    if stage is None:
        return nominal, plain
    run = np.concatenate([[0], np.cumsum(np.diff(stage) != 0)])
    # A nominal step that a change of stage divides is two rows, each with a window of its own.
    pairs, rows = np.unique(np.stack([nominal, run]), axis=1, return_inverse=True)
    ends = np.searchsorted(run, np.arange(int(run[-1]) + 2))
    low, high = nominal[ends[:-1]], nominal[ends[1:] - 1]
    spans = [np.maximum(plain[pairs[0], 0], low[pairs[1]]), np.minimum(plain[pairs[0], 1], high[pairs[1]])]
    return rows.ravel().astype(np.int64), np.stack(spans, axis=1)


class Chosen(NamedTuple):
    """Steps of samples, with what is proven of them; numbers are sums over phases, whose costs are in one unit."""

    step: Ints  # int64[n]
    total: int  # what they take at least
    start_total: int  # what steps take at least as they were drawn
    lower_bound: int  # and at least in any steps that windows and limits allow
    bound_name: str


def choose(given: Given, search: bool = True) -> Chosen:
    """Choose the step of each sample, so that all phases' makespans sum to little; its bound is the sum of theirs.

    The solver knows one phase. So each phase leads in turn, and from there every other one goes on; of all these steps
    those that take least over all phases are kept, or the steps as drawn. With one phase that is the solver. Without
    `search` the steps as drawn are returned, with the bound.
    """
    phases, start = given.phases, given.start

    def led_by(phase: PhaseWork, begin: Ints, limits: dict[str, Any], budget: float) -> solvers.DeferralResult:
        return solvers.defer(phase.costs, given.rows, given.spans, phase.num_bins, start=begin, heights=phase.heights,
                             time_budget=budget, **limits)  # fmt: skip

    # p phases make p searches alone and p (p - 1) that follow: p squared in all.
    share = _BUDGET / len(phases) ** 2 if search else _NO_SEARCH
    proven = [led_by(phase, start, given.limits, share if given.within is given.limits else _NO_SEARCH)
              for phase in phases]  # fmt: skip
    tried = [start]
    if search:
        alone = []
        for phase, known in zip(phases, proven, strict=True):
            found = [known if given.within is given.limits else led_by(phase, start, given.within, share)]
            if (blocks := sorted_blocks(given, phase)) is not None:
                found.append(led_by(phase, blocks, given.within, share))
            alone.append(min(found, key=lambda each: each.total).step_of_item)
        tried += alone
        for first, then in itertools.permutations(range(len(phases)), 2):
            tried.append(led_by(phases[then], alone[first], given.within, share).step_of_item)
    # Judged over all phases: what the leading phase gains, others may lose.
    totals = [given.at_least(step) for step in tried]
    best = totals.index(min(totals))
    return Chosen(
        tried[best], totals[best], sum(each.start_total for each in proven), sum(each.lower_bound for each in proven),
        "cover" if any(each.bound_name == "cover" for each in proven) else "mean",
    )  # fmt: skip


def sorted_blocks(given: Given, phase: PhaseWork) -> Ints | None:
    """Return steps in which like sits with like: blocks of steps that no window forbids, each sorted by height.

    Each step keeps its number of samples; None where numbers are free, or such steps break another limit. With one
    sample a rank a search from here takes a tenth less than one from the steps as drawn (lognormal lengths, 4 steps
    either way: 1.96 for 2.18 of the even share); with four or more it takes more.
    """
    least, most = given.within["count_limits"]
    if not (least == most).all():
        return None
    low, high = np.zeros(given.num_steps, dtype=np.int64), np.full(given.num_steps, given.num_steps - 1)
    np.maximum.at(low, given.start, given.spans[given.rows, 0])
    np.minimum.at(high, given.start, given.spans[given.rows, 1])
    block, begin, latest, soonest = np.zeros(given.num_steps, dtype=np.int64), 0, 0, given.num_steps
    for t in range(given.num_steps):
        latest, soonest = max(latest, int(low[t])), min(soonest, int(high[t]))
        if latest > begin or soonest < t:  # some sample of the block could not run in all of its steps
            begin, latest, soonest = t, int(low[t]), int(high[t])
        block[t] = begin
    heights = phase.costs if phase.heights is None else phase.heights
    order = np.lexsort((-heights, block[given.start]))
    step = np.empty_like(given.start)
    step[order] = np.sort(given.start)
    kept = (step != given.start).any() and given._replace(limits=given.within).broken(step) is None
    return step if kept else None


@dataclass(frozen=True, slots=True, eq=False)
class EpochSteps:
    """The steps of an epoch's samples, and what is proven of them.

    Attributes
    ----------
    step, nominal : int64[n]
        Of each sample, in the order of the epoch; -1 of those left out with a short last step.
    sizes : int64[T]
        Samples of each step.
    even_share, floor, chosen_floor, lower_bound : int
        What all steps take together if no rank ever waits; at least without deferral; these steps at least; any steps
        within windows and limits at least.
    bound_name : str
        ``"cover"`` or ``"mean"``: see :class:`solvers.DeferralResult`.
    effects : TrainingEffects
    part : int
        Which part of its epoch these are, where steps are chosen part by part.
    """

    step: Ints
    nominal: Ints
    sizes: Ints
    even_share: int
    floor: int
    chosen_floor: int
    lower_bound: int
    bound_name: str
    effects: TrainingEffects
    part: int = 0

    def as_json(self) -> dict[str, Any]:
        """Return what there is to report of it."""
        return {
            "steps": len(self.sizes), "even_share": self.even_share, "floor": self.floor,
            "chosen_floor": self.chosen_floor, "lower_bound": self.lower_bound, **asdict(self.effects),
        }  # fmt: skip


def choose_steps(
    settings: StepSettings, lengths: Ints, stage: NDArray[Any] | None = None, drop_last: bool = False,
    phases: Sequence[PhaseWork] = (),
) -> EpochSteps:  # fmt: skip
    """Choose the step of each sample of an epoch.

    Parameters
    ----------
    settings : StepSettings
    lengths : int64[n]
        In the order of the epoch.
    stage : array[n], optional
        What no sample is moved across.
    drop_last : bool
        Leave out a short last step.
    phases : sequence of PhaseWork, optional
        What each phase takes of all samples; by default one phase, of the settings' cost and cut.
    """
    nominal = settings.nominal_steps(settings.checked(lengths), drop_last)
    given, kept = given_of(settings, lengths, nominal, stage, phases)
    step, found = nominal.copy(), None
    if given is not None:
        found = choose(given)
        step[kept] = found.step
    return _found(settings, given, lengths, nominal, step, found)


def check_steps(
    settings: StepSettings, lengths: Ints, stage: NDArray[Any] | None = None, drop_last: bool = False,
    phases: Sequence[PhaseWork] = (), *, step: Ints,
) -> EpochSteps:  # fmt: skip
    """Check the steps of an epoch that somebody chose, and prove their bound anew.

    Raises
    ------
    ValueError
        A sample outside its window, or a step that is not within its limits.
    """
    nominal = settings.nominal_steps(settings.checked(lengths), drop_last)
    if (odd := (step < 0) != (nominal < 0)).any():
        i = int(np.argmax(odd))
        raise UsageError(f"sample {{sample}} of the epoch is {'not placed' if step[i] < 0 else 'placed'}, which it must"
                         f"{'' if step[i] < 0 else ' not'} be", sample=i)  # fmt: skip
    given, kept = given_of(settings, lengths, nominal, stage, phases)
    if given is None:
        return _found(settings, given, lengths, nominal, step, None)
    here, spans = step[kept], given.spans[given.rows]
    if (odd := (here < spans[:, 0]) | (here > spans[:, 1])).any():
        i = int(np.argmax(odd))
        raise UsageError(f"sample {int(kept[i])} of the epoch is in step {int(here[i])}, outside its window "
                         f"{spans[i].tolist()}")  # fmt: skip
    if (wrong := given.broken(here)) is not None:
        raise UsageError(f"step {wrong[0]} of the epoch {wrong[1]}")
    # No search: the steps are given, and only the bound is proven anew.
    found = choose(given, search=False)._replace(total=given.at_least(here))
    return _found(settings, given, lengths, nominal, step, found)


def given_of(
    settings: StepSettings, lengths: Ints, nominal: Ints, stage: NDArray[Any] | None = None,
    phases: Sequence[PhaseWork] = (),
) -> tuple[Given | None, Ints]:  # fmt: skip
    """Return what is given of samples that are not left out, None if all are, and which these are."""
    kept = np.flatnonzero(nominal >= 0)
    if not len(kept):
        return None, kept
    # Stages of any kind become numbers, as the solver compares integers only.
    stages = None if stage is None else np.unique(stage[kept], return_inverse=True)[1].astype(np.int64)
    mine = lengths[kept]
    works = [each.taken(kept) for each in phases]
    if not works:
        costs, heights = settings.cut.least_work(settings.cost, mine, settings.num_ranks)
        works = [PhaseWork(costs, heights, settings.num_ranks)]
    return Given.of(settings, mine, nominal[kept], stages, works), kept


def _found(
    settings: StepSettings, given: Given | None, lengths: Ints, nominal: Ints, step: Ints, found: Chosen | None
) -> EpochSteps:
    kept = nominal >= 0
    if given is None or found is None:
        none = np.zeros(0, dtype=np.int64)
        return EpochSteps(step, nominal, none, 0, 0, 0, 0, "mean", effects_of(none, none, none, 0))
    tokens = np.bincount(nominal[kept], lengths[kept])
    effects = effects_of(lengths[kept], nominal[kept], step[kept], settings.long_from(tokens))
    sizes = np.bincount(step[kept], minlength=given.num_steps).astype(np.int64)
    even = sum(each.even_share for each in given.phases)
    return EpochSteps(step, nominal, sizes, even, found.start_total, found.total, found.lower_bound, found.bound_name,
                      effects)  # fmt: skip
