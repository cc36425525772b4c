"""A cost model corrected while a trainer runs, and left alone where that does not help.

Recursive least squares with exponential forgetting on factors, one for each of c0, a, b and every area, with a weak
prior at 1; kinds of attention that the steps cannot tell apart share one. Corrections are always learned; they are used
only while, over the last `window` steps, they predict better than the base model: the idea of "DFLOP: A Data-driven
Framework for Multimodal LLM Training Pipeline Optimization", 2026 (arXiv:2603.25120).
"""

import math
from collections import deque
from collections.abc import Mapping

import numpy as np
from numpy.typing import ArrayLike, NDArray

from balancer.cost.areas import area_sums, checked
from balancer.cost.integer import IntegerCost, integer_seconds

# Weight of the base model, in steps: it decides only what steps say nothing of.
_PRIOR = 0.001
# A stalled step teaches no more than one that takes half again as long, or than twice what is usual of so many steps,
# where the base model is far off.
_LARGEST_SURPRISE = 0.5
_USUAL_SURPRISES = 9
# One less the correlation of two terms, from which on steps do not tell them apart.
_ALIKE = 1e-6


class OnlineCost:
    """``c0 + a * sum(l) + b * sum(l^2)`` seconds, each coefficient times a factor that follows the measured steps.

    The same observations in the same order give the same factors, bit for bit. Where every rank plans, every rank must
    therefore observe the same: gather the times of all ranks, or plan on one.

    Parameters
    ----------
    constant, per_length, per_square : float
        The base model in seconds, such as a :class:`~balancer.cost.fit.CostFit` has them; finite, >= 0, not all 0. A
        coefficient that is 0 stays 0.
    forgetting : float
        In (0, 1]: weight of a step relative to the next one. 0.98 remembers about 50 steps, 1 all.
    areas : mapping of str to float
        The base model's seconds a pair of tokens, by the names of :data:`balancer.cost.areas.AREAS`.
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

    __slots__ = (
        "_areas",
        "_base",
        "_base_errors",
        "_corrected_errors",
        "_evidence",
        "_factors",
        "_forgetting",
        "_information",
        "_margin",
        "_surprises",
        "_window",
        "active",
    )

    active: bool
    """Whether the correction is in use."""

    def __init__(
        self,
        constant: float,
        per_length: float,
        per_square: float,
        *,
        areas: Mapping[str, float] | None = None,
        forgetting: float = 0.98,
        window: int = 50,
        margin: float = 0.1,
    ) -> None:
        self._areas = tuple(areas or {})
        for name in self._areas:
            checked(name)
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
        # Factors on the base model, not seconds: terms differ by orders of magnitude, and factors begin near 1.
        self._factors: NDArray[np.float64] = np.ones(len(base))
        self._information, self._evidence = _PRIOR * np.eye(len(base)), _PRIOR * np.ones(len(base))
        self._base_errors: deque[float] = deque(maxlen=window)
        self._corrected_errors: deque[float] = deque(maxlen=window)
        self._surprises: deque[float] = deque(maxlen=_USUAL_SURPRISES)
        self.active = False

    @property
    def factors(self) -> tuple[float, ...]:
        """The factors on the base model's c0, a, b and areas while the correction is in use; never negative."""
        return tuple(np.maximum(self._factors, 0.0).tolist())

    @property
    def coefficients(self) -> tuple[float, ...]:
        """c0, a, b and those of areas in use, in seconds."""
        return tuple((self._base * self._in_use()).tolist())

    @property
    def areas(self) -> tuple[str, ...]:
        """Names of the areas, in the order of their coefficients."""
        return self._areas

    @property
    def base_error(self) -> float:
        """Mean ``|predicted - measured| / measured`` of the base model over the window; NaN before the first step."""
        return _mean(self._base_errors)

    @property
    def corrected_error(self) -> float:
        """The same for the correction; each step is predicted before it is learned from."""
        return _mean(self._corrected_errors)

    def _in_use(self) -> NDArray[np.float64]:
        return np.maximum(self._factors, 0.0) if self.active else np.ones(len(self._base))

    def _parts(self, sums: NDArray[np.float64]) -> NDArray[np.float64]:
        """Seconds that each term of the base model gives to ranks with these sums."""
        return np.asarray(self._base * np.column_stack((np.ones(len(sums)), sums)), dtype=np.float64)

    def sums(self, lengths: ArrayLike) -> NDArray[np.float64]:
        """Return what :meth:`observe_ranks` takes: sum of lengths, of their squares, of each area, float64[2 + k]."""
        values = np.asarray(lengths, dtype=np.float64)
        if values.size and not (values >= 0).all():
            raise ValueError(f"lengths must be >= 0, got {values.min()}")
        return np.array([values.sum(), (values * values).sum(), *area_sums(self._areas, values)])

    def predict(self, lengths: ArrayLike) -> float:
        """Seconds of a step that holds samples of these lengths."""
        return float(self._parts(self.sums(lengths)[None])[0] @ self._in_use())

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
            If a sum is negative or infinite, or seconds are not positive and finite.
        """
        of_rank = np.asarray(sums, dtype=np.float64).reshape(-1, len(self._base) - 1)
        took = np.asarray(seconds, dtype=np.float64)
        if not ((took > 0) & (took < math.inf)).all():
            raise ValueError(f"seconds must be positive and finite, got {took.tolist()}")
        if not ((of_rank >= 0) & (of_rank < math.inf)).all():
            raise ValueError(f"sums of lengths must be finite and >= 0, got {of_rank.tolist()}")
        parts = self._parts(of_rank)
        base = parts.sum(axis=1)
        told = base > 0  # nothing to do under a model without c0 says nothing about lengths
        parts, base, took = parts[told], base[told], took[told]
        if not len(base):
            return
        corrected = parts @ np.maximum(self._factors, 0.0)
        self._base_errors.append(float((np.abs(base - took) / took).mean()))
        self._corrected_errors.append(float((np.abs(corrected - took) / took).mean()))
        self._learn(parts / base[:, None], took / base)
        self._switch()

    def _learn(self, shares: NDArray[np.float64], ratios: NDArray[np.float64]) -> None:
        """One step of least squares on ``ratios = shares @ factors`` plus noise, older steps fading."""
        predicted = shares @ self._factors
        self._surprises.append(float(np.median(np.abs(ratios - predicted))))
        usual = float(np.median(self._surprises)) if len(self._surprises) > _USUAL_SURPRISES // 2 else 0.0
        # A step with a hiccup may not pull the factors away: what it says beyond the usual surprise is cut off.
        most = max(_LARGEST_SURPRISE, 2 * usual)
        met = predicted + np.clip(ratios - predicted, -most, most)
        keep = self._forgetting
        fade = (1 - keep) * _PRIOR  # the prior is put back as it fades: what steps do not teach returns to the base
        self._information = keep * self._information + shares.T @ shares / len(met) + fade * np.eye(len(self._base))
        self._evidence = keep * self._evidence + shares.T @ met / len(met) + fade
        shared = self._shared()
        found = np.linalg.solve(shared.T @ self._information @ shared, shared.T @ self._evidence)
        self._factors = np.asarray(shared @ found, dtype=np.float64)

    def _shared(self) -> NDArray[np.float64]:
        """Which terms have which factor, float64[terms, factors] of 0 and 1: one each, or one of attention alike."""
        learned = self._information - _PRIOR * np.eye(len(self._base))  # the prior tells all apart
        size = np.sqrt(np.maximum(np.diag(learned), 0.0))
        alike = learned > (1 - _ALIKE) * np.outer(size, size)
        alike |= np.eye(len(size), dtype=bool)
        alike[:2] = np.eye(len(size), dtype=bool)[:2]  # c0 and a are no attention
        alike[:, :2] = alike[:2].T
        first = alike.argmax(axis=1)  # the first term that each is like
        return np.asarray(first[:, None] == np.unique(first), dtype=np.float64)

    def _switch(self) -> None:
        if len(self._base_errors) < self._window:
            return
        # Two thresholds: with one, the correction would be switched at every step where errors are close.
        needed = self.base_error * (1 if self.active else 1 - self._margin)
        self.active = self.corrected_error < needed

    def integer_cost(self, *, longest: int = 2**20) -> IntegerCost:
        """Integer cost of the coefficients in use, as :func:`~balancer.cost.integer.integer_seconds` rounds them."""
        c0, a, b, *rest = self.coefficients
        areas = dict(zip(self._areas, rest, strict=True))
        return integer_seconds(a, b, constant=c0, areas=areas, longest=longest)


def _mean(errors: deque[float]) -> float:
    return math.fsum(errors) / len(errors) if errors else math.nan
