"""Costs with a term a kind of layer from measured steps: which terms describe them best, and which they tell apart.

Candidates are a constant a step, one a sample (where counts vary: nothing else tells the two apart), one a unit of
length, and the areas asked for. Every choice of them is fitted by non-negative least squares; the one with the fewest
terms whose held-out error comes within 2 % of the best is taken.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from balancer.cost.areas import OWN_PREFIX, area, as_terms, checked
from balancer.cost.fit import FOLDS, Fit, as_steps, check_max_error, fold_of, held_out, judged, solve, spreads
from balancer.cost.integer import IntegerCost, integer_seconds
from balancer.errors import InputError
from solvers.errors import ArgumentError

_CLOSE = 1.02  # times the least error
_COLLINEAR = 1e-6
_FEWEST_STEPS = 10
_MOST_AREAS = 6
_STEP, _SAMPLE, _LENGTH = "c0", "constant", "a"

_Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class LengthError:
    """Held-out error of the steps whose longest sample is of a length in a range."""

    shortest: int
    longest: int
    steps: int
    error: float


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class TermsFit(Fit):
    """Terms that were chosen, and how far to trust them."""

    terms: tuple[tuple[str, float, float], ...]  # name, seconds, spread over resamples of the steps
    alike: tuple[str, ...]  # in words, candidates that these steps do not tell from others
    left_out: tuple[str, ...]  # candidates that made the held-out error no smaller
    by_length: tuple[LengthError, ...]

    def integer_cost(self) -> IntegerCost:
        """Integer nanoseconds, or finer, of all terms but that of a step, which changes no plan."""
        seconds = {name: value for name, value, _ in self.terms}
        step, sample, length = (seconds.pop(name, 0.0) for name in (_STEP, _SAMPLE, _LENGTH))
        return integer_seconds(
            length, seconds.pop("bidirectional", 0.0), constant=step, each=sample, areas=seconds,
            longest=max(self.longest, 1),
        )  # fmt: skip


def fit_terms(
    lengths: Sequence[ArrayLike],
    seconds: ArrayLike,
    areas: Sequence[str],
    *,
    max_error: float = 0.1,
    force: bool = False,
) -> TermsFit:
    """Fit a constant and one term for each kind of layer to measured steps.

    Parameters
    ----------
    lengths : sequence of int64[n]
        For every step, the lengths of its samples.
    seconds : float64[k]
        How long each took.
    areas : sequence of str
        Names of :data:`balancer.cost.areas.AREAS` that there may be, 1 to 6.
    max_error, force
        As those of :func:`balancer.cost.fit.fit_cost`.

    Raises
    ------
    InputError
        Fewer than ten steps, fewer than five different ones; never forced.
    FitError
        A held-out error above `max_error`, lengths that explain nothing, or times that do not grow with them.
    ValueError
        Arguments of the wrong kind.

    Notes
    -----
    O(2^c) small solutions for c candidates, and 200 more; deterministic.

    Examples
    --------
    >>> lengths = [[16 * i] for i in range(1, 41)]
    >>> fit = fit_terms(lengths, [1e-3 + 1e-6 * area("window128", step[0]) for step in lengths], ["full", "window128"])
    >>> [(name, round(value, 9)) for name, value, _ in fit.terms], fit.left_out
    ([('c0', 0.001), ('window128', 1e-06)], ('a', 'full'))
    """
    check_max_error(max_error)
    if not 1 <= len(areas) <= _MOST_AREAS:
        raise ArgumentError("areas", f"be 1 to {_MOST_AREAS} names", len(areas))
    as_terms([(name, 1) for name in areas])  # which are refused by name
    if OWN_PREFIX in areas:
        raise ArgumentError(
            "areas", "have sizes, as in prefix256: steps do not say the prefix of each sample", OWN_PREFIX
        )
    steps, measured = as_steps(lengths, seconds)
    names, design = _candidates(steps, areas)
    group, fold = fold_of(design)
    distinct = int(group.max()) + 1 if len(group) else 0
    if len(measured) < _FEWEST_STEPS or distinct < FOLDS:
        raise InputError(
            f"a fit of terms needs at least {_FEWEST_STEPS} steps, {FOLDS} of them different; there are "
            f"{len(measured)}, {distinct} different: measure more, of other lengths too"
        )
    weight = 1 / measured
    alike = _alike(names, design * weight[:, None], steps)
    chosen, errors, mean_errors = _best(names, design, measured, weight, fold)
    columns = design[:, chosen]
    found = solve(columns, measured, weight)
    kept = [names[i] for i in chosen]
    grows = any(name not in (_STEP, _SAMPLE) for name in kept)
    return TermsFit(
        **judged(
            steps, measured, distinct, (errors, mean_errors), columns @ found,
            grows=grows, max_error=max_error, force=force,
        ),
        terms=tuple(zip(kept, found.tolist(), spreads(columns, measured, weight), strict=True)),
        alike=alike,
        left_out=tuple(name for name in names if name not in kept),
        by_length=_by_length(np.array([step.max(initial=0) for step in steps]), errors),
    )  # fmt: skip


def _candidates(steps: Sequence[NDArray[np.int64]], areas: Sequence[str]) -> tuple[list[str], _Floats]:
    """Return names of terms and what a step has of each: float64[k, c]."""
    floats = [step.astype(np.float64) for step in steps]
    columns = {_STEP: np.ones(len(steps))}
    # Empty samples cost nothing, so they do not count.
    counts = np.array([np.count_nonzero(step) for step in steps], dtype=np.float64)
    if len(counts) and np.ptp(counts):
        columns[_SAMPLE] = counts
    columns[_LENGTH] = np.array([step.sum() for step in floats])
    columns |= {name: np.array([float(area(name, step).sum()) for step in floats]) for name in areas}
    return list(columns), np.column_stack(list(columns.values()))


def _alike(names: Sequence[str], scaled: _Floats, steps: Sequence[NDArray[np.int64]]) -> tuple[str, ...]:
    """Say which terms are the same as others over these steps, but for a factor or a sum."""
    told = []
    for i, name in enumerate(names):
        others = [j for j in range(i) if names[j] not in told]
        if others and _residual(scaled, others, i) < _COLLINEAR:
            told.append(name)
    longest, shortest = max(int(step.max(initial=0)) for step in steps), min(int(s.min()) for s in steps if len(s))
    return tuple(
        f"{name} cannot be told apart from {', '.join(names[: names.index(name)])}: {_why(name, shortest, longest)}"
                 for name in told)  # fmt: skip


def _why(name: str, shortest: int, longest: int) -> str:
    size = checked(name)[1] if name not in (_STEP, _SAMPLE, _LENGTH) else 0
    if size and longest <= size:
        return f"no length is over {size:,}"
    if size and shortest >= size:
        return f"no length is under {size:,}"
    return "these steps have the same sums of both"


def _residual(scaled: _Floats, others: Sequence[int], which: int) -> float:
    """What is left of a column, relative to it, that no sum of the others gives."""
    columns = scaled[:, others] / np.maximum(np.linalg.norm(scaled[:, others], axis=0), 1e-300)
    target = scaled[:, which]
    left = target - columns @ np.linalg.lstsq(columns, target, rcond=None)[0]
    return float(np.linalg.norm(left) / max(float(np.linalg.norm(target)), 1e-300))


def _best(
    names: Sequence[str], design: _Floats, measured: _Floats, weight: _Floats, fold: NDArray[np.int64]
) -> tuple[list[int], _Floats, _Floats]:
    """Return the columns to take, and the relative errors of every step held out, of the fit and of the mean."""
    tried: list[tuple[list[int], _Floats, _Floats]] = []
    for size in range(1, len(names) + 1):
        for some in combinations(range(len(names)), size):
            columns = design[:, some]
            independent = all(_residual(columns * weight[:, None], range(j), j) >= _COLLINEAR for j in range(1, size))
            # A term that comes out as 0 adds nothing: the choice without it is tried by itself.
            if independent and solve(columns, measured, weight).all():
                tried.append((list(some), *held_out(columns, measured, weight, fold)))
    least = min(float(errors.mean()) for _, errors, _ in tried)
    return next(each for each in tried if float(each[1].mean()) <= _CLOSE * least + 1e-12)


def _by_length(longest: NDArray[np.int64], errors: _Floats) -> tuple[LengthError, ...]:
    """Mean errors by the longest sample of a step, in ranges of a factor of four."""
    found = []
    # Half of a logarithm to the base 2: a range ends where lengths are four times as long.
    place = np.log2(np.maximum(longest, 1)).astype(np.int64) // 2
    for each in np.unique(place).tolist():
        inside = place == each
        found.append(
            LengthError(int(longest[inside].min()), int(longest[inside].max()), int(inside.sum()),
                        float(errors[inside].mean()))
        )  # fmt: skip
    return tuple(found)
