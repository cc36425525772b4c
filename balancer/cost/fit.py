"""Cost models from measured steps: ``seconds = c0 + a * sum(l) + b * sum(l^2)`` by non-negative least squares.

Errors are relative to the measured seconds, as noise grows with them.

Steps of sequence groups say how many ranks shared them, their degree d, and take ``c0 + (a * sum(l) + b * sum(l^2) +
x_d * sum(l)) / d``, where x_d is what a unit of length exchanges; at degree 1 it is 0.

A fit is judged by its held-out error (five-fold cross-validation). Steps of equal sums stay in one fold, so that no
step is predicted by its own repetition. Measurements that cannot tell the coefficients apart are refused.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from balancer.cost.integer import IntegerCost, integer_seconds
from balancer.cost.sequence_parallel import Sharing
from balancer.errors import FitError, InputError
from solvers.arguments import as_count, as_int64
from solvers.errors import ArgumentError
from solvers.types import Record

# Three coefficients from fewer steps follow their noise; a fifth of ten is held out at a time.
_FEWEST_STEPS = 10
# Of each degree beyond one, which has a coefficient of its own.
_FEWEST_OF_DEGREE = 3
# Steps outside are in another unit, or no steps.
_FASTEST_S, _SLOWEST_S = 1e-12, 1e12
FOLDS = 5
# Resamples of the steps: the standard deviation of 200 is itself off by some 5 %.
_RESAMPLES = 200
# Columns that differ by less than this part are one column for a fit in floats.
_COLLINEAR = 1e-6
# The held-out error must be a tenth less than that of one duration for all steps: else lengths explain nothing.
_LENGTHS_MUST_HELP = 0.9
_NAMES = ("c0", "a", "b")

_Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Fit(Record):
    """What was fitted to measured steps, and how far to trust it."""

    # Number of measured steps, and of those that differ in what the model sees of them
    steps: int
    distinct_steps: int
    # Lengths that were measured; beyond them the model extrapolates
    shortest: int
    longest: int
    # Mean and largest ``|predicted - measured| / measured`` over all steps, each predicted by a fit of the four fifths
    # that do not hold it
    held_out_error: float
    held_out_worst: float
    mean_error: float  # the held-out mean error of a model that ignores lengths: one duration for all steps
    refusal: str | None  # why the fit would have been refused, had it not been forced
    # float64[k]: of each step, in order; seconds, seconds, sum(l). Read-only.
    predicted: _Floats
    measured: _Floats
    total_lengths: _Floats


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class CostFit(Fit):
    """A fitted cost model and how far to trust it."""

    # c0, a and b in seconds (a step, a unit of length, and one squared); >= 0
    constant: float
    per_length: float
    per_square: float
    # Standard deviations of the three, and of the second of each `exchange`, over 200 resamples of the steps, seeded
    spreads: tuple[float, ...]
    condition: float  # condition number of the design with its columns scaled to norm 1
    # Degrees from 2 that were measured, ascending, and x_d in seconds a unit of length
    exchange: tuple[tuple[int, float], ...] = ()

    def predict(self, lengths: ArrayLike, degree: int = 1) -> float:
        """Seconds of a step that holds samples of these lengths, shared by as many ranks as the degree says."""
        values = np.asarray(lengths, dtype=np.float64)
        if degree > 1 and degree not in dict(self.exchange):
            raise ArgumentError("degree", f"be 1 or one that was measured: {_listed(self.exchange)}", degree)
        per_length = self.per_length + dict(self.exchange).get(degree, 0.0)
        return float(self.constant + (per_length * values.sum() + self.per_square * (values * values).sum()) / degree)

    def integer_cost(self) -> IntegerCost:
        """Integer nanoseconds, or finer where those would be off by more than 0.1 %.

        Where degrees were measured it knows what they exchange, and c0 is the overhead of a slot; otherwise it is
        without c0, which no plan changes.

        Raises
        ------
        ValueError
            If neither coefficient of the length is positive.
        """
        cost = integer_seconds(self.per_length, self.per_square, constant=self.constant, longest=max(self.longest, 1))
        if not self.exchange:
            return cost
        unit = cost.per_second()
        exchange = tuple((degree, round(value * unit)) for degree, value in self.exchange)
        sharing = Sharing(exchange=exchange, overhead=round(self.constant * unit))
        return replace(cost, model=replace(cost.model, sharing=sharing), omitted_constant=0.0)

    @property
    def terms(self) -> tuple[tuple[str, float, float], ...]:
        """Name, value and spread of every coefficient: c0, a, b, then x_d under the name that a cost has for it."""
        values = (self.constant, self.per_length, self.per_square, *(value for _, value in self.exchange))
        names = (*_NAMES, *(f"d{degree}" for degree, _ in self.exchange))
        return tuple(zip(names, values, self.spreads, strict=True))

    @property
    def uncertain(self) -> tuple[str, ...]:
        """Which coefficients but c0 have a spread of more than a quarter of themselves."""
        return tuple(name for name, value, spread in self.terms if name != "c0" and spread > 0.25 * value > 0)


def _listed(exchange: tuple[tuple[int, float], ...]) -> str:
    return ", ".join(str(degree) for degree, _ in exchange) or "none"


def fit_cost(
    lengths: Sequence[ArrayLike],
    seconds: ArrayLike,
    *,
    degrees: ArrayLike | None = None,
    max_error: float = 0.1,
    force: bool = False,
) -> CostFit:
    """Fit a cost model to measured steps.

    Parameters
    ----------
    lengths : sequence of int64[n]
        For every step, the lengths of its samples.
    seconds : float64[k]
        How long each took.
    degrees : int64[k], optional
        How many ranks shared each; by default one.
    max_error : float
        Refuse a fit whose held-out error is larger.
    force : bool
        Return a fit that would raise FitError, and say so in `refusal`.

    Returns
    -------
    CostFit

    Raises
    ------
    InputError
        Fewer than ten steps, fewer than three of a degree, none of degree 1, or steps that cannot tell the
        coefficients apart; never forced.
    FitError
        A held-out error above `max_error`, lengths that explain nothing, or times that do not grow with them.
    ValueError
        Arguments of the wrong kind.

    Notes
    -----
    O(k) time and memory for a few hundred small solutions; deterministic: the resamples' seed is fixed.

    References
    ----------
    Lawson & Hanson, "Solving Least Squares Problems", 1974, chapter 23; Efron, "Bootstrap methods: another look at the
    jackknife", Annals of Statistics 7(1), 1979.

    Examples
    --------
    >>> lengths = [[64 * i] * (1 + i % 3) for i in range(1, 21)]
    >>> seconds = [0.5 + 1e-3 * sum(step) + 1e-6 * sum(l * l for l in step) for step in lengths]
    >>> fit = fit_cost(lengths, seconds)
    >>> f"{fit.constant:.3f} {fit.per_length:.6f} {fit.per_square:.9f}"
    '0.500 0.001000 0.000001000'
    >>> str(fit.integer_cost().model)
    'quadratic:a=1000000,b=1000'
    """
    check_max_error(max_error)
    steps, measured = as_steps(lengths, seconds)
    design = _design(steps)
    design, shared = _by_degree(design, degrees)
    group, fold = fold_of(design)
    distinct = int(group.max()) + 1 if len(group) else 0
    _check_rows(design, distinct, *ends_of(steps))
    weight = 1 / measured  # noise grows with the seconds
    condition = _condition(design, weight)
    coefficients = solve(design, measured, weight)
    errors = held_out(design, measured, weight, fold)
    return CostFit(
        **judged(
            steps, measured, distinct, errors, design @ coefficients,
            grows=bool(coefficients[1:3].any()), max_error=max_error, force=force,
        ),
        constant=float(coefficients[0]),
        per_length=float(coefficients[1]),
        per_square=float(coefficients[2]),
        spreads=spreads(design, measured, weight),
        condition=condition,
        exchange=tuple(zip(shared, coefficients[3:].tolist(), strict=True)),
    )  # fmt: skip


def check_max_error(max_error: float) -> None:
    """Raise ValueError unless a fit can be asked for so."""
    if not max_error > 0:
        raise ValueError(f"max_error must be > 0, got {max_error!r}")


def ends_of(steps: Sequence[NDArray[np.int64]]) -> tuple[int, int]:
    """Return the shortest and the longest length; zeros where all steps are empty."""
    filled = [step for step in steps if len(step)]
    return min((int(step.min()) for step in filled), default=0), max((int(step.max()) for step in filled), default=0)


def judged(
    steps: Sequence[NDArray[np.int64]], measured: _Floats, distinct: int, held_out_errors: tuple[_Floats, _Floats],
    predicted: _Floats, *, grows: bool, max_error: float, force: bool,
) -> dict[str, Any]:  # fmt: skip
    """Return the fields of a :class:`Fit` by the held-out errors of every step; FitError if it is to be refused.

    The errors are those of the fit, and of the mean, as :func:`held_out` returns them. `grows` is whether what was
    fitted grows with lengths at all: where it does not, nothing is forced.
    """
    errors, mean_errors = held_out_errors
    held_out_error, mean_error = float(errors.mean()), float(mean_errors.mean())
    refusal = _refusal_of(grows, held_out_error, mean_error, max_error)
    if refusal is not None and not (force and grows):
        raise FitError(refusal)
    shortest, longest = ends_of(steps)
    return {
        "steps": len(measured), "distinct_steps": distinct, "shortest": shortest, "longest": longest,
        "held_out_error": held_out_error, "held_out_worst": float(errors.max()), "mean_error": mean_error,
        "refusal": refusal, "predicted": predicted, "measured": measured,
        "total_lengths": np.array([float(step.sum()) for step in steps]),
    }  # fmt: skip


def as_steps(lengths: Sequence[ArrayLike], seconds: ArrayLike) -> tuple[list[NDArray[np.int64]], _Floats]:
    """Return lengths and seconds of every step, checked; ValueError names the step that cannot be one."""
    measured = np.array(seconds, dtype=np.float64)
    if measured.ndim != 1 or len(measured) != len(lengths):
        raise ValueError(f"seconds must be as many as steps, got {measured.shape} for {len(lengths)} steps")
    wrong = ~((measured > 0) & (measured < math.inf))
    if wrong.any():
        where = int(np.argmax(wrong))
        raise ValueError(f"seconds[{where}] must be positive and finite, got {measured[where]}")
    wrong = (measured < _FASTEST_S) | (measured > _SLOWEST_S)
    if wrong.any():
        where = int(np.argmax(wrong))
        raise ValueError(
            f"seconds[{where}] must be from {_FASTEST_S:g} to {_SLOWEST_S:g}, got {measured[where]:g}; in seconds?"
        )
    steps = []
    for i, step in enumerate(lengths):
        values = as_int64(f"lengths[{i}]", step)
        if len(values) and values.min() < 0:
            raise ValueError(f"lengths[{i}] must be >= 0, got {int(values.min())}")
        steps.append(values)
    return steps, measured


def _design(steps: Sequence[NDArray[np.int64]]) -> _Floats:
    """Columns 1, sum(l), sum(l^2) as float64[k, 3]."""
    design = np.ones((len(steps), 3))
    for i, values in enumerate(steps):
        floats = values.astype(np.float64)
        design[i, 1:] = floats.sum(), (floats * floats).sum()
    return design


def _by_degree(design: _Floats, degrees: ArrayLike | None) -> tuple[_Floats, list[int]]:
    """Divide the work of each step by its degree; a column more for each degree from 2, and which these are."""
    if degrees is None:
        return design, []
    array = as_int64("degrees", degrees)
    if len(array) != len(design):
        raise ArgumentError("degrees", f"be as many as steps, {len(design)}", len(array))
    for where, degree in enumerate(array.tolist()):
        as_count(f"degrees[{where}]", degree)
    found, counts = np.unique(array, return_counts=True)
    if len(found) and found[0] > 1:
        raise InputError(
            f"all steps are of degree {found[0]} or more: a and what is exchanged cannot be told apart; measure steps "
            "on one rank too"
        )
    for degree, count in zip(found.tolist(), counts.tolist(), strict=True):
        if degree > 1 and (count < _FEWEST_OF_DEGREE or not design[array == degree, 1].any()):
            raise InputError(
                f"degree {degree} has {count} steps, or only empty ones; a fit needs {_FEWEST_OF_DEGREE}: measure more"
            )
    divided = design / np.where(np.arange(3) > 0, array[:, None], 1)
    shared = [degree for degree in found.tolist() if degree > 1]
    more = [np.where(array == degree, divided[:, 1], 0.0) for degree in shared]
    return np.column_stack([divided, *more]), shared


def fold_of(design: _Floats) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return which of the distinct steps each one is, by its sums in order, and its fold: int64[k] each."""
    # By sums, so that every fifth step is of every fold: each fold sees short and long steps. Equal steps are in one
    # fold, or what is held out would have been seen.
    order = np.lexsort(design[:, :0:-1].T)
    rows = design[order]
    new = np.any(rows[1:] != rows[:-1], axis=1)
    group = np.empty(len(design), dtype=np.int64)
    group[order] = np.concatenate([np.zeros(min(len(rows), 1), dtype=np.int64), np.cumsum(new)])
    return group, group % FOLDS


def _check_rows(design: _Floats, distinct: int, shortest: int, longest: int) -> None:
    """Refuse what cannot be fitted, in the words of who measured it."""
    needs = f"a fit of c0, a and b needs at least {_FEWEST_STEPS} steps, {FOLDS} of them different"
    if len(design) < _FEWEST_STEPS:
        raise InputError(f"{needs}; there are {len(design)}: measure more")
    remedy = "measure steps of other lengths too"
    if longest == shortest:
        raise InputError(f"all lengths are {longest}: a and b cannot be told apart; {remedy}")
    if distinct < FOLDS:
        raise InputError(f"{needs}; only {distinct} differ in sum(l) or sum(l^2): {remedy}")
    shared = " / degree" if design.shape[1] > len(_NAMES) else ""
    for column, name in ((1, f"sum(l){shared}"), (2, f"sum(l^2){shared}")):
        values = design[:, column]
        if np.ptp(values) <= _COLLINEAR * values.max():
            raise InputError(
                f"{name} is {values[0]:.0f} in every step: c0 and {_NAMES[column]} cannot be told apart; "
                "measure steps with fewer and with more tokens too"
            )


def _condition(design: _Floats, weight: _Floats) -> float:
    scaled = design * weight[:, None]
    values = np.linalg.svd(scaled / np.linalg.norm(scaled, axis=0), compute_uv=False)
    if values[-1] < _COLLINEAR * values[0]:
        raise InputError(
            "1, sum(l) and sum(l^2) are collinear over these steps, so c0, a and b cannot be told apart; "
            "measure steps of several lengths, few and many samples each"
        )
    return float(values[0] / values[-1])


def solve(design: _Floats, measured: _Floats, weight: _Floats) -> _Floats:
    """Non-negative least squares, weighted: float64[c]."""
    from scipy.optimize import nnls  # a solver's weight, which only those who fit should carry

    scaled = design * weight[:, None]
    norms = np.linalg.norm(scaled, axis=0)
    # A column may be 0 in all steps of a fold; its coefficient is then 0, too.
    norms[norms == 0] = 1.0
    solution = nnls(scaled / norms, measured * weight)[0]
    return np.asarray(solution / norms, dtype=np.float64)


def held_out(design: _Floats, measured: _Floats, weight: _Floats, fold: NDArray[np.int64]) -> tuple[_Floats, _Floats]:
    """Relative errors of each step under a fit, and under the weighted mean, of the other folds."""
    errors, mean_errors = np.empty_like(measured), np.empty_like(measured)
    for k in range(FOLDS):
        out = fold == k
        seen = ~out
        coefficients = solve(design[seen], measured[seen], weight[seen])
        errors[out] = np.abs(design[out] @ coefficients / measured[out] - 1)
        square = weight[seen] ** 2
        # What least squares with these weights gives where the only column is 1.
        mean = (square * measured[seen]).sum() / square.sum()
        mean_errors[out] = np.abs(mean / measured[out] - 1)
    return errors, mean_errors


def _refusal_of(grows: bool, held_out: float, mean_error: float, max_error: float) -> str | None:
    """Say why a fit is not to be trusted, or None; `grows` is whether it grows with lengths at all."""
    if not grows:
        return "times do not grow with lengths (a = b = 0): no cost model follows from these steps"
    if held_out > max_error:
        return (
            f"held-out error is {held_out:.1%}, more than the {max_error:.1%} allowed: the model does not describe them"
        )
    if held_out > _LENGTHS_MUST_HELP * mean_error:
        return (
            f"held-out error is {held_out:.1%}, that of one duration for all steps {mean_error:.1%}: "
            "lengths explain (almost) nothing here; measure steps that differ more"
        )
    return None


def spreads(design: _Floats, measured: _Floats, weight: _Floats) -> tuple[float, ...]:
    """Standard deviation of each coefficient over resamples of the steps."""
    from scipy.optimize import nnls

    scaled = design * weight[:, None]
    norms = np.linalg.norm(scaled, axis=0)
    columns = np.column_stack([scaled / norms, measured * weight])
    count = len(measured)
    # A fixed seed: the same measurements must give the same spreads.
    generator = np.random.Generator(np.random.PCG64(0))
    solutions = []
    for _ in range(_RESAMPLES):
        # Bootstrap: as many steps again, drawn with replacement (Efron 1979). The seed is fixed, as fits are
        # compared.
        times = np.bincount(generator.integers(count, size=count), minlength=count)
        triangle = np.asarray(
            np.linalg.qr(columns * np.sqrt(times)[:, None], mode="r")
        )  # as good as all rows, and small
        solutions.append(nnls(triangle[:, :-1], triangle[:, -1])[0])
    return tuple((np.std(solutions, axis=0) / norms).tolist())
