"""A cost model corrected while a trainer runs, and left alone where that does not help.

Recursive least squares with exponential forgetting on three factors, one for each of c0, a and b, with a weak prior at
1. Corrections are always learned; they are used only while, over the last `window` steps, they predict better than the
base model: the idea of "DFLOP: A Data-driven Framework for Multimodal LLM Training Pipeline Optimization", 2026
(arXiv:2603.25120).
"""

import math
from collections import deque

import numpy as np
from numpy.typing import ArrayLike, NDArray

from balancer.cost.integer import IntegerCost, integer_seconds

__all__ = ["OnlineCost"]

_PRIOR = 0.001  # weight of the base model, in steps
_LARGEST_SURPRISE = 0.5  # a stalled step teaches no more than one that takes half again as long


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
        "_base",
        "_base_errors",
        "_corrected_errors",
        "_evidence",
        "_factors",
        "_forgetting",
        "_information",
        "_margin",
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
        forgetting: float = 0.98,
        window: int = 50,
        margin: float = 0.1,
    ) -> None:
        base = np.array([constant, per_length, per_square], dtype=np.float64)
        if not ((base >= 0) & (base < math.inf)).all() or not base.any():
            raise ValueError(f"base coefficients must be finite, >= 0 and not all 0 (seconds), got {base.tolist()}")
        if not 0 < forgetting <= 1:
            raise ValueError(f"forgetting must be in (0, 1], got {forgetting!r}")
        if not isinstance(window, int) or window < 2:
            raise ValueError(f"window must be an integer >= 2 (steps), got {window!r}")
        if not 0 <= margin < 1:
            raise ValueError(f"margin must be in [0, 1), got {margin!r}")
        self._base, self._forgetting, self._window, self._margin = base, float(forgetting), window, float(margin)
        self._factors: NDArray[np.float64] = np.ones(3)
        self._information, self._evidence = _PRIOR * np.eye(3), _PRIOR * np.ones(3)
        self._base_errors: deque[float] = deque(maxlen=window)
        self._corrected_errors: deque[float] = deque(maxlen=window)
        self.active = False

    @property
    def factors(self) -> tuple[float, float, float]:
        """The factors on the base model's c0, a and b while the correction is in use; never negative."""
        c0, a, b = np.maximum(self._factors, 0.0).tolist()
        return c0, a, b

    @property
    def coefficients(self) -> tuple[float, float, float]:
        """c0, a and b in use, in seconds."""
        c0, a, b = (self._base * self._in_use()).tolist()
        return c0, a, b

    @property
    def base_error(self) -> float:
        """Mean ``|predicted - measured| / measured`` of the base model over the window; NaN before the first step."""
        return _mean(self._base_errors)

    @property
    def corrected_error(self) -> float:
        """The same for the correction; each step is predicted before it is learned from."""
        return _mean(self._corrected_errors)

    def _in_use(self) -> NDArray[np.float64]:
        return np.maximum(self._factors, 0.0) if self.active else np.ones(3)

    def _parts(self, lengths: ArrayLike) -> NDArray[np.float64]:
        """Seconds that each term of the base model gives the step."""
        values = np.asarray(lengths, dtype=np.float64)
        if values.size and not (values >= 0).all():
            raise ValueError(f"lengths must be >= 0, got {values.min()}")
        sums = np.array([1.0, values.sum(), (values * values).sum()], dtype=np.float64)
        return np.asarray(self._base * sums, dtype=np.float64)

    def predict(self, lengths: ArrayLike) -> float:
        """Seconds of a step that holds samples of these lengths."""
        return float(self._parts(lengths) @ self._in_use())

    def observe(self, lengths: ArrayLike, seconds: float) -> None:
        """Learn from a step: the lengths of its samples, and how long it took. O(n) for n lengths.

        Raises
        ------
        ValueError
            If a length is negative, or seconds are not positive and finite.
        """
        if not 0 < seconds < math.inf:
            raise ValueError(f"seconds must be positive and finite, got {seconds!r}")
        parts = self._parts(lengths)
        base = float(parts.sum())
        if base == 0:
            return  # an empty step of a model without c0 says nothing about lengths
        corrected = float(parts @ np.maximum(self._factors, 0.0))
        self._base_errors.append(abs(base - seconds) / seconds)
        self._corrected_errors.append(abs(corrected - seconds) / seconds)
        self._learn(parts / base, seconds / base)
        self._switch()

    def _learn(self, shares: NDArray[np.float64], ratio: float) -> None:
        """One step of least squares on ``ratio = shares @ factors`` plus noise, older steps fading."""
        predicted = float(shares @ self._factors)
        surprise = min(max(ratio - predicted, -_LARGEST_SURPRISE), _LARGEST_SURPRISE)
        keep = self._forgetting
        fade = (1 - keep) * _PRIOR  # the prior is put back as it fades: what steps do not teach returns to the base
        self._information = keep * self._information + np.outer(shares, shares) + fade * np.eye(3)
        self._evidence = keep * self._evidence + (predicted + surprise) * shares + fade
        self._factors = np.asarray(np.linalg.solve(self._information, self._evidence), dtype=np.float64)

    def _switch(self) -> None:
        if len(self._base_errors) < self._window:
            return
        needed = self.base_error * (1 if self.active else 1 - self._margin)
        self.active = self.corrected_error < needed

    def integer_cost(self, *, longest: int = 2**20) -> IntegerCost:
        """Integer cost of the coefficients in use, as :func:`~balancer.cost.integer.integer_seconds` rounds them."""
        c0, a, b = self.coefficients
        return integer_seconds(a, b, constant=c0, longest=longest)


def _mean(errors: deque[float]) -> float:
    return math.fsum(errors) / len(errors) if errors else math.nan
