"""A cost model corrected while a trainer runs, and left alone where that does not help.

Least squares of relative errors by normal equations, older steps weighing less: the idea of "DFLOP: A Data-driven
Framework for Multimodal LLM Training Pipeline Optimization", 2026 (arXiv:2603.25120). What is learned is used only
while, over the last `window` steps, it predicts better than the base model.
"""

import math
from collections import deque
from collections.abc import Mapping

import numpy as np
from numpy.typing import ArrayLike, NDArray

from balancer.cost.areas import checked, term_sums
from balancer.cost.integer import IntegerCost, integer_seconds

# Weight of the base model beside what was measured: it decides only what steps do not tell.
_LEAST_S, _MOST_S = 1e-12, 1e12  # a step takes less and more only by mistake
_PULL = 1e-3


class OnlineCost:
    """``c0 + a * sum(l) + b * sum(l^2)`` seconds, and areas, with coefficients that follow the measured steps.

    The same observations in the same order give the same coefficients on equal machines. Where every rank plans, one
    rank should solve and send what it found, as a :class:`~balancer.executor.Dispatcher` does.

    Parameters
    ----------
    constant, per_length, per_square : float
        The base model in seconds, such as a :class:`~balancer.cost.fit.CostFit` has them; finite, >= 0, not all 0.
        Those that are 0 are learned too, but for `per_square` where there are areas.
    areas : mapping of str to float
        The base model's seconds a pair of tokens, by the names of :data:`balancer.cost.areas.AREAS`.
    forgetting : float
        In (0, 1]: weight of a step relative to the next one. 0.95 remembers about 20 steps, 1 all.
    window : int
        Number of steps over which errors are compared; until it is reached, the base model is used.
    margin : float
        In [0, 1): the correction is switched on when its error is smaller than the base model's by this share, and off
        when it is not smaller.

    Examples
    --------
    >>> online = OnlineCost(0.0, 1e-3, 0.0, window=8)
    >>> for i in range(40):  # the cluster is a fifth slower than the model says
    ...     online.observe([100 + i], 1.2e-3 * (100 + i))
    >>> online.active, round(online.predict([1000]), 3), round(online.base_error, 3)
    (True, 1.2, 0.167)
    """

    active: bool
    """Whether the correction is in use."""

    def __init__(
        self,
        constant: float,
        per_length: float,
        per_square: float,
        *,
        areas: Mapping[str, float] | None = None,
        forgetting: float = 0.95,
        window: int = 50,
        margin: float = 0.15,
    ) -> None:
        for name in areas or {}:
            checked(name)
        self._names = ("c0", "a", "b", *(areas or {}))
        base = np.array([constant, per_length, per_square, *(areas or {}).values()], dtype=np.float64)
        if not ((base >= 0) & (base < math.inf)).all() or not base.any():
            raise ValueError(f"base coefficients must be finite, >= 0 and not all 0 (seconds), got {base.tolist()}")
        if not 0 < forgetting <= 1:
            raise ValueError(f"forgetting must be in (0, 1], got {forgetting!r}")
        if not isinstance(window, int) or window < 2:
            raise ValueError(f"window must be an integer >= 2 (steps), got {window!r}")
        if not 0 <= margin < 1:
            raise ValueError(f"margin must be in [0, 1), got {margin!r}")
        self._base, self._forgetting, self._window, self._margin = base, float(forgetting), window, float(margin)
        self._found = base
        # Of terms, in shares of a step's seconds: sums of their products, and of their products with these seconds.
        self._normal, self._right = np.zeros((len(base), len(base))), np.zeros(len(base))
        self._base_errors: deque[float] = deque(maxlen=window)
        self._corrected_errors: deque[float] = deque(maxlen=window)
        self.active = False

    @property
    def coefficients(self) -> tuple[float, ...]:
        """c0, a, b and those of areas in use, in seconds; never negative."""
        return tuple((self._found if self.active else self._base).tolist())

    @property
    def terms(self) -> dict[str, float]:
        """The same by name."""
        return dict(zip(self._names, self.coefficients, strict=True))

    @property
    def base_error(self) -> float:
        """Mean ``|predicted - measured|`` over the larger of both, of the base model; NaN before the first step."""
        return _mean(self._base_errors)

    @property
    def corrected_error(self) -> float:
        """The same for the correction; each step is predicted before it is learned from."""
        return _mean(self._corrected_errors)

    def sums(self, lengths: ArrayLike) -> NDArray[np.float64]:
        """Return what :meth:`observe_ranks` takes: sum of lengths, of their squares, of each area, float64[2 + k]."""
        values = np.asarray(lengths, dtype=np.float64)
        if values.size and not (values >= 0).all():
            raise ValueError(f"lengths must be >= 0, got {values.min()}")
        return term_sums(self._names[1:], values)

    def predict(self, lengths: ArrayLike) -> float:
        """Seconds of a step that holds samples of these lengths."""
        return float(np.append(1.0, self.sums(lengths)) @ self.coefficients)

    def observe(self, lengths: ArrayLike, seconds: float) -> None:
        """Learn from a step: the lengths of its samples, and how long it took. O(n) for n lengths.

        Raises
        ------
        ValueError
            If a length is negative, or seconds are not positive and finite.
        """
        self.observe_ranks(self.sums(lengths), [seconds])

    def observe_ranks(self, sums: ArrayLike, seconds: ArrayLike) -> None:
        """Learn from a step that several ranks measured; together they count as one step. O(R) for R ranks.

        Parameters
        ----------
        sums : float64[R, 2 + k]
            Of each rank, what :meth:`sums` gives.
        seconds : float64[R]
            How long each took.

        Raises
        ------
        ValueError
            If a sum is negative or infinite, or seconds are not from 1e-12 to 1e12, measured or foretold.
        """
        of_rank = np.asarray(sums, dtype=np.float64).reshape(-1, len(self._base) - 1)
        took = np.asarray(seconds, dtype=np.float64)
        if not ((took >= _LEAST_S) & (took <= _MOST_S)).all():
            raise ValueError(f"seconds must be from {_LEAST_S:g} to {_MOST_S:g}, got {took.tolist()}")
        if not ((of_rank >= 0) & (of_rank < math.inf)).all():
            raise ValueError(f"sums of lengths must be finite and >= 0, got {of_rank.tolist()}")
        terms = np.column_stack((np.ones(len(took)), of_rank))
        foretold = terms @ self._base
        if not (foretold <= _MOST_S).all():
            raise ValueError(f"the base model foretells {foretold.max():g} s of a step: are its coefficients seconds?")
        told = foretold >= _LEAST_S  # nothing to do under a model without c0 says nothing about lengths
        terms, took = terms[told], took[told]
        if not len(took):
            return
        base, corrected = terms @ self._base, terms @ self._found
        # By the larger of what was measured and foretold: so a stall, however long, is one error of at most 1, and
        # noise that makes steps longer weighs as much as noise that makes them shorter.
        whole = np.maximum(took, corrected)
        self._base_errors.append(float((np.abs(base - took) / np.maximum(took, base)).mean()))
        self._corrected_errors.append(float((np.abs(corrected - took) / whole).mean()))
        shares = terms / whole[:, None]
        self._normal = self._forgetting * self._normal + shares.T @ shares / len(took)
        self._right = self._forgetting * self._right + shares.T @ (took / whole) / len(took)
        self._found = self._solved()
        if len(self._base_errors) == self._window:
            # Two thresholds: with one, the correction would be switched at every step where errors are close.
            needed = self.base_error * (1 if self.active else 1 - self._margin)
            self.active = self.corrected_error < needed

    def _solved(self) -> NDArray[np.float64]:
        """Non-negative coefficients that fit best; where steps do not tell terms apart, in the base's proportions."""
        from scipy.optimize import nnls  # a solver's weight, which only those who correct should carry

        learned = np.ones(len(self._base), dtype=bool)
        learned[2] = self._base[2] > 0 or len(self._names) == 3  # pairs are counted by areas, then
        learned &= np.diag(self._normal) > 0
        drawn_to = self._base * (self._base @ self._right) / (self._base @ self._normal @ self._base)
        # Terms differ by orders of magnitude: in units in which each is as large over the steps.
        scale = np.sqrt(np.diag(self._normal)[learned])
        normal = self._normal[np.ix_(learned, learned)] / np.outer(scale, scale) + _PULL * np.eye(len(scale))
        right = self._right[learned] / scale + _PULL * drawn_to[learned] * scale
        root = np.linalg.cholesky(normal)
        found = self._base.copy()
        found[learned] = nnls(root.T, np.linalg.solve(root, right))[0] / scale
        return found

    def integer_cost(self, *, longest: int = 2**20) -> IntegerCost:
        """Integer cost of the coefficients in use, as :func:`~balancer.cost.integer.integer_seconds` rounds them."""
        return integer_seconds(self.terms, longest=longest)


def _mean(errors: deque[float]) -> float:
    return math.fsum(errors) / len(errors) if errors else math.nan
