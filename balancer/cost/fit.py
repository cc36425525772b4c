"""Cost models from measured steps, by non-negative least squares over named terms.

Without areas the terms are ``seconds = c0 + a * sum(l) + b * sum(l^2)``. Steps of sequence groups say how many ranks
shared them, their degree d, and take ``c0 + (a * sum(l) + b * sum(l^2) + x_d * sum(l)) / d``, where x_d is what a unit
of length exchanges; at degree 1 it is 0. Measurements that cannot tell these terms apart are refused.

With areas there is a candidate for each of them, a constant a step, one a sample (where counts vary: nothing else tells
the two apart) and one a unit of length. Every choice of them is fitted; the one with the fewest terms whose held-out
error comes within 2 % of the best is taken.

Errors are relative to the measured seconds, as noise grows with them. A fit is judged by its held-out error (five-fold
cross-validation). Steps of equal sums stay in one fold, so that no step is predicted by its own repetition.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from balancer.cost.areas import OWN_PREFIX, as_terms, checked, term_sums
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
_FOLDS = 5
# Resamples of the steps: the standard deviation of 200 is itself off by some 5 %.
_RESAMPLES = 200
# Columns that differ by less than this part are one column for a fit in floats.
_COLLINEAR = 1e-6
# The held-out error must be a tenth less than that of one duration for all steps: else lengths explain nothing.
_LENGTHS_MUST_HELP = 0.9
_CLOSE = 1.02  # times the least error, so near that fewer terms are better
_MOST_AREAS = 6
_STEP, _SAMPLE, _LENGTH, _SQUARE = "c0", "constant", "a", "b"

_Floats = NDArray[np.float64]
_Steps = Sequence[NDArray[np.int64]]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class CostFit(Record):
    """What was fitted to measured steps, and how far to trust it."""

    # Name, seconds (a step, a sample, a unit of length, one squared, a pair of an area), and standard deviation over
    # 200 resamples of the steps, seeded. x_d has the name that a cost has for it, such as d2.
    terms: tuple[tuple[str, float, float], ...]
    # In words, candidates that these steps do not tell from others; and those that made the error no smaller
    alike: tuple[str, ...]
    left_out: tuple[str, ...]
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
    # float64[k]: seconds of each step, in order. Read-only.
    predicted: _Floats
    measured: _Floats

    @property
    def coefficients(self) -> dict[str, float]:
        """Seconds of each term, by name."""
        return {name: value for name, value, _ in self.terms}

    @property
    def constant(self) -> float:
        """c0, seconds a step."""
        return self.coefficients.get(_STEP, 0.0)

    @property
    def per_length(self) -> float:
        """a, seconds a unit of length."""
        return self.coefficients.get(_LENGTH, 0.0)

    @property
    def per_square(self) -> float:
        """b, seconds a unit of length squared."""
        return self.coefficients.get(_SQUARE, 0.0)

    @property
    def exchange(self) -> tuple[tuple[int, float], ...]:
        """Degrees from 2 that were measured, ascending, and x_d in seconds a unit of length."""
        return tuple((int(name[1:]), value) for name, value, _ in self.terms if name[0] == "d")

    @property
    def uncertain(self) -> tuple[str, ...]:
        """Which coefficients but c0 have a spread of more than a quarter of themselves."""
        return tuple(name for name, value, spread in self.terms if name != _STEP and spread > 0.25 * value > 0)

    def predict(self, lengths: ArrayLike, degree: int = 1) -> float:
        """Seconds of a step that holds samples of these lengths, shared by as many ranks as the degree says."""
        shared = dict(self.exchange)
        if degree > 1 and degree not in shared:
            known = ", ".join(map(str, shared)) or "none"
            raise ArgumentError("degree", f"be 1 or one that was measured: {known}", degree)
        found = {name: value for name, value in self.coefficients.items() if name != _STEP and name[0] != "d"}
        found[_LENGTH] = found.get(_LENGTH, 0.0) + shared.get(degree, 0.0)
        work = term_sums(tuple(found), as_int64("lengths", lengths)) @ list(found.values())
        return self.constant + float(work) / degree

    def integer_cost(self) -> IntegerCost:
        """Integer nanoseconds, or finer where those would be off by more than 0.1 %.

        Where degrees were measured it knows what they exchange, and c0 is the overhead of a slot; otherwise it is
        without c0, which no plan changes.

        Raises
        ------
        ValueError
            If no coefficient of the length is positive.
        """
        seconds = {name: value for name, value in self.coefficients.items() if name[0] != "d"}
        cost = integer_seconds(seconds, longest=max(self.longest, 1))
        if not self.exchange:
            return cost
        unit = cost.per_second()
        exchange = tuple((degree, round(value * unit)) for degree, value in self.exchange)
        sharing = Sharing(exchange=exchange, overhead=round(self.constant * unit))
        return replace(cost, model=replace(cost.model, sharing=sharing), omitted_constant=0.0)


def fit_cost(
    lengths: Sequence[ArrayLike],
    seconds: ArrayLike,
    *,
    areas: Sequence[str] | None = None,
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
    areas : sequence of str, optional
        Names of :data:`balancer.cost.areas.AREAS` that there may be, 1 to 6; without, all pairs count.
    degrees : int64[k], optional
        How many ranks shared each; by default one. Not together with areas.
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
        Fewer than ten steps, five of them different, fewer than three of a degree, none of degree 1, or, without areas,
        steps that cannot tell the coefficients apart; never forced.
    FitError
        A held-out error above `max_error`, lengths that explain nothing, or times that do not grow with them.
    ValueError
        Arguments of the wrong kind.

    Notes
    -----
    O(k) time and memory for a few hundred small solutions, with areas for 2^c choices of c candidates; deterministic:
    the resamples' seed is fixed.

    References
    ----------
    Lawson & Hanson, "Solving Least Squares Problems", 1974, chapter 23; Efron, "Bootstrap methods: another look at the
    jackknife", Annals of Statistics 7(1), 1979.

    Examples
    --------
    >>> lengths = [[64 * i] * (1 + i % 3) for i in range(1, 21)]
    >>> seconds = [0.5 + 1e-3 * sum(step) + 1e-6 * sum(l * l for l in step) for step in lengths]
    >>> fit = fit_cost(lengths, seconds)
    >>> [(name, round(value, 9)) for name, value, _ in fit.terms], str(fit.integer_cost().model)
    ([('c0', 0.5), ('a', 0.001), ('b', 1e-06)], 'quadratic:a=1000000,b=1000')
    >>> from balancer.cost.areas import area
    >>> lengths = [[16 * i] for i in range(1, 41)]
    >>> seconds = [1e-3 + 1e-6 * area("window128", step[0]) for step in lengths]
    >>> fit = fit_cost(lengths, seconds, areas=["full", "window128"])
    >>> [(name, round(value, 9)) for name, value, _ in fit.terms], fit.left_out
    ([('c0', 0.001), ('window128', 1e-06)], ('a', 'full'))
    """
    if not max_error > 0:
        raise ValueError(f"max_error must be > 0, got {max_error!r}")
    steps, measured = _as_steps(lengths, seconds)
    names = [_STEP, _LENGTH, _SQUARE]
    if areas is not None:
        _check_areas(areas, degrees)
        # Empty samples cost nothing, so they do not count.
        counts = {int(np.count_nonzero(step)) for step in steps}
        names = [_STEP, *([_SAMPLE] if len(counts) > 1 else []), _LENGTH, *areas]
    design = np.array([term_sums(names, step) for step in steps]).reshape(len(steps), len(names))
    if degrees is not None:
        names, design = _by_degree(names, design, degrees)
    # By sums, so that every fifth step is of every fold: each fold sees short and long steps. Equal steps are in one
    # fold, or what is held out would have been seen.
    distinct, group = np.unique(design, axis=0, return_inverse=True)
    if len(steps) < _FEWEST_STEPS or len(distinct) < _FOLDS:
        raise InputError(
            f"a fit of {', '.join(names)} needs at least {_FEWEST_STEPS} steps, {_FOLDS} of them different; there are "
            f"{len(steps)}, {len(distinct)} different: measure more, of other lengths too"
        )
    problem = _Problem(design, measured, group.reshape(-1) % _FOLDS)
    samples = np.concatenate(steps)
    shortest, longest = int(samples.min()), int(samples.max())
    alike = _alike(names, problem, shortest, longest)
    if areas is None and alike:
        raise InputError(f"{alike[0]}; measure steps of several lengths, with few and with many samples")
    every = tuple(range(len(names)))
    chosen, errors = problem.best() if areas is not None else (every, problem.held_out(every))
    kept, found = [names[i] for i in chosen], problem.solve(chosen)
    # By one duration for all steps, which is the least that lengths have to beat.
    held_out, mean_error = float(errors.mean()), float(problem.held_out((0,)).mean())
    grows = any(
        value for name, value in zip(kept, found, strict=True) if name not in (_STEP, _SAMPLE) and name[0] != "d"
    )
    refusal = _refusal_of(bool(grows), held_out, mean_error, max_error)
    if refusal is not None and not (force and grows):
        raise FitError(refusal)
    return CostFit(
        terms=tuple(zip(kept, found.tolist(), problem.spreads(chosen), strict=True)), alike=alike,
        left_out=tuple(name for name in names if name not in kept), steps=len(measured), distinct_steps=len(distinct),
        shortest=shortest, longest=longest, held_out_error=held_out, held_out_worst=float(errors.max()),
        mean_error=mean_error, refusal=refusal, predicted=design[:, chosen] @ found, measured=measured,
    )  # fmt: skip


# --- what is given ---------------------------------------------------------------------------------------------------


def _check_areas(areas: Sequence[str], degrees: ArrayLike | None) -> None:
    if not 1 <= len(areas) <= _MOST_AREAS:
        raise ArgumentError("areas", f"be 1 to {_MOST_AREAS} names", len(areas))
    as_terms([(name, 1) for name in areas])  # which are refused by name
    if OWN_PREFIX in areas:
        raise ArgumentError(
            "areas", "have sizes, as in prefix256: steps do not say the prefix of each sample", OWN_PREFIX
        )
    if degrees is not None and (np.asarray(degrees) > 1).any():
        raise InputError("areas take no steps of several ranks (column 'degree'): fit those without --areas")


def _as_steps(lengths: Sequence[ArrayLike], seconds: ArrayLike) -> tuple[_Steps, _Floats]:
    """Return lengths and seconds of every step, checked; ValueError names the step that cannot be one."""
    measured = np.array(seconds, dtype=np.float64)
    if measured.ndim != 1 or len(measured) != len(lengths):
        raise ValueError(f"seconds must be as many as steps, got {measured.shape} for {len(lengths)} steps")
    for i, taken in enumerate(measured.tolist()):
        if not 0 < taken < np.inf:
            raise ValueError(f"seconds[{i}] must be positive and finite, got {taken}")
        if not _FASTEST_S <= taken <= _SLOWEST_S:
            rule = f"from {_FASTEST_S:g} to {_SLOWEST_S:g}"
            raise ValueError(f"seconds[{i}] must be {rule}, got {taken:g}; in seconds?")
    steps = [as_int64(f"lengths[{i}]", step) for i, step in enumerate(lengths)]
    for i, step in enumerate(steps):
        if step.min(initial=0) < 0:
            raise ValueError(f"lengths[{i}] must be >= 0, got {int(step.min())}")
    return steps, measured


def _by_degree(names: list[str], design: _Floats, degrees: ArrayLike) -> tuple[list[str], _Floats]:
    """Divide the work of each step by its degree; a column more for each degree from 2."""
    array = as_int64("degrees", degrees)
    if len(array) != len(design):
        raise ArgumentError("degrees", f"be as many as steps, {len(design)}", len(array))
    for where, degree in enumerate(array.tolist()):
        as_count(f"degrees[{where}]", degree)
    found = np.unique(array).tolist()
    if found and found[0] > 1:
        raise InputError(
            f"all steps are of degree {found[0]} or more: a and what is exchanged cannot be told apart; measure steps "
            "on one rank too"
        )
    design = design / np.where(np.arange(len(names)) > 0, array[:, None], 1)
    for degree in found[1:]:
        mine = array == degree
        if (count := int(mine.sum())) < _FEWEST_OF_DEGREE or not design[mine, 1].any():
            raise InputError(
                f"degree {degree} has {count} steps, or only empty ones; a fit needs {_FEWEST_OF_DEGREE}: measure more"
            )
        names, design = [*names, f"d{degree}"], np.column_stack([design, np.where(mine, design[:, 1], 0.0)])
    return names, design


# --- least squares ---------------------------------------------------------------------------------------------------


def _nnls(columns: _Floats, target: _Floats) -> _Floats:
    from scipy.optimize import nnls  # a solver's weight, which only those who fit should carry

    return np.asarray(nnls(columns, target)[0], dtype=np.float64)


class _Problem:
    """Least squares of relative errors, by columns of what each step has of each term, of norm 1 once weighted."""

    def __init__(self, design: _Floats, measured: _Floats, fold: NDArray[np.int64]) -> None:
        # Noise grows with the seconds, so a step weighs as much as it is short: all targets are 1.
        shares = design / measured[:, None]
        norms = np.linalg.norm(shares, axis=0)
        # A column that is 0 in all steps has the coefficient 0.
        self.norms = np.where(norms > 0, norms, 1.0)
        self.columns, self.fold = shares / self.norms, fold

    def solve(self, chosen: Sequence[int]) -> _Floats:
        """Non-negative coefficients of these terms: float64[c]."""
        columns = self.columns[:, chosen]
        return _nnls(columns, np.ones(len(columns))) / self.norms[list(chosen)]

    def held_out(self, chosen: Sequence[int]) -> _Floats:
        """Relative error of each step under a fit of the other folds."""
        columns, errors = self.columns[:, chosen], np.empty(len(self.columns))
        for k in range(_FOLDS):
            out = self.fold == k
            errors[out] = np.abs(columns[out] @ _nnls(columns[~out], np.ones((~out).sum())) - 1)
        return errors

    def spreads(self, chosen: Sequence[int]) -> list[float]:
        """Standard deviation of each coefficient over resamples of the steps."""
        columns = np.column_stack([self.columns[:, chosen], np.ones(len(self.columns))])
        count = len(columns)
        # A fixed seed: the same measurements must give the same spreads.
        generator = np.random.Generator(np.random.PCG64(0))
        solutions = []
        for _ in range(_RESAMPLES):
            # Bootstrap: as many steps again, drawn with replacement (Efron 1979).
            times = np.bincount(generator.integers(count, size=count), minlength=count)
            # The triangle is as good as all rows, and small.
            triangle = np.asarray(np.linalg.qr(columns * np.sqrt(times)[:, None], mode="r"))
            solutions.append(_nnls(triangle[:, :-1], triangle[:, -1]))
        return list(map(float, np.std(solutions, axis=0) / self.norms[list(chosen)]))

    def rest(self, others: Sequence[int], which: int) -> float:
        """What is left of a column that no sum of the others gives."""
        given, column = self.columns[:, others], self.columns[:, which]
        return float(np.linalg.norm(column - given @ np.linalg.lstsq(given, column, rcond=None)[0]))

    def best(self) -> tuple[Sequence[int], _Floats]:
        """Return the terms to take, and the errors of every step held out."""
        tried = []
        for size in range(1, self.columns.shape[1] + 1):
            for some in combinations(range(self.columns.shape[1]), size):
                independent = all(self.rest(some[:j], some[j]) >= _COLLINEAR for j in range(1, size))
                # A term that comes out as 0 adds nothing: the choice without it is tried by itself.
                if independent and self.solve(some).all():
                    tried.append((some, self.held_out(some)))
        least = min(float(errors.mean()) for _, errors in tried)
        return next(each for each in tried if float(each[1].mean()) <= _CLOSE * least + 1e-12)


# --- which terms, and whether to trust them --------------------------------------------------------------------------


def _alike(names: Sequence[str], problem: _Problem, shortest: int, longest: int) -> tuple[str, ...]:
    """Say which terms are the same as others over these steps, but for a factor or a sum."""
    told, said = list[int](), list[str]()
    for i, name in enumerate(names):
        if not told or problem.rest(told, i) >= _COLLINEAR:
            told.append(i)
            continue
        size = 0 if name in (_STEP, _SAMPLE, _LENGTH, _SQUARE) or name[0] == "d" else checked(name)[1]
        why = "these steps have the same sums of both"
        if shortest == longest:
            why = f"all lengths are {longest:,}"
        elif size and longest <= size:
            why = f"no length is over {size:,}"
        elif size and shortest >= size:
            why = f"no length is under {size:,}"
        said.append(f"{name} cannot be told apart from {', '.join(names[:i])}: {why}")
    return tuple(said)


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
