"""From exact or measured coefficients to the integers that plans are made with, and their unit."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

from balancer.cost.model import CostModel
from solvers.arguments import INT64_MAX

__all__ = ["IntegerCost", "integer_flops", "integer_seconds", "integers_together"]

_TOLERANCE = 1e-3
_ROOM, _TOTAL_LENGTH, _LONGEST = 2**58, 2**24, 2**17  # up to such a step, whatever is added up of its costs fits
_TIME_UNITS = (("ns", 10**9), ("ps", 10**12), ("fs", 10**15))


@dataclass(frozen=True, slots=True)
class IntegerCost:
    """An integer cost model and what one of its work units is.

    Attributes
    ----------
    model : CostModel
        What plans are made with; ``str(model)`` is what ``--cost`` takes.
    unit : str
        ``FLOPs``, ``ns``, ``ps`` or ``fs``.
    factor : int
        One work unit is `factor` of them.
    rounding : float
        Largest relative error by rounding, over all lengths up to the longest asked for; 0.0 if none.
    omitted_constant : float
        Constant per sample (FLOPs) or per batch (times), in work units, which a :class:`CostModel` leaves out.
    """

    model: CostModel
    unit: str
    factor: int
    rounding: float
    omitted_constant: float

    @property
    def work_unit(self) -> str:
        """One work unit in words, such as ``1 ns`` or ``21,504 FLOPs``."""
        return f"{self.factor:,} {self.unit}"

    def per_second(self, flops_per_second: float = math.nan) -> float:
        """Work units that a rank does in a second; where they are of time, the rate says nothing."""
        return dict(_TIME_UNITS).get(self.unit, flops_per_second) / self.factor


def integer_flops(constant: int, a: int, b: int, *, total_length: int, longest: int) -> IntegerCost:
    """Divide by the greatest common divisor, which changes no plan, and, only if sums need it, by a power of two.

    `constant`, `a` and `b` are FLOPs a sample, a unit of length and a unit of length squared. Up to the largest sum of
    lengths of a global batch, `total_length`, and the longest length all costs fit int64. Raises ValueError if `a` and
    `b` are both 0, or the lengths are not positive.

    Examples
    --------
    >>> cost = integer_flops(0, 600, 20, total_length=2**32, longest=2**20)
    >>> str(cost.model), cost.work_unit, cost.rounding
    ('quadratic:a=30,b=1', '20 FLOPs', 0.0)
    """
    if a == b == 0:
        raise ValueError("FLOPs that do not depend on the length (a = b = 0) make no cost model")
    if total_length < 1 or longest < 1:
        raise ValueError(f"total_length and longest must be >= 1, got {total_length} and {longest}")
    exact_factor = math.gcd(a, b)
    small = Fraction(a, exact_factor), Fraction(b, exact_factor)
    shift = 0
    while _rounded(small, shift)[0] * total_length + _rounded(small, shift)[1] * total_length * longest > INT64_MAX:
        shift += 1
    factor = exact_factor << shift
    model = CostModel(*_rounded(small, shift))
    return IntegerCost(
        model=model,
        unit="FLOPs",
        factor=factor,
        rounding=_largest_error(model, Fraction(a, factor), Fraction(b, factor), longest),
        omitted_constant=constant / factor,
    )


def integer_seconds(a: float, b: float, *, constant: float = 0.0, longest: int = 2**20) -> IntegerCost:
    """Round seconds to the coarsest of ns, ps and fs that is off by at most 0.1 % at any length, or else is off least.

    Parameters
    ----------
    a, b : float
        Seconds a unit of length, and a unit of length squared; finite, >= 0.
    constant : float
        Seconds that the integer cost leaves out.
    longest : int
        No length is longer; rounding `b` matters by ``b * l^2``.

    Returns
    -------
    IntegerCost
        Whose ``work_unit`` is the unit taken.

    Raises
    ------
    ValueError
        If a coefficient is negative or not finite, or all of them vanish or leave int64 once rounded.

    Examples
    --------
    >>> cost = integer_seconds(1.14e-4, 1.5e-9)
    >>> str(cost.model), cost.work_unit
    ('quadratic:a=114000000,b=1500', '1 ps')
    """
    for name, value in (("a", a), ("b", b), ("constant", constant)):
        if not 0 <= value < math.inf:
            raise ValueError(f"coefficient {name} must be finite and >= 0 (seconds), got {value!r}")
    best: IntegerCost | None = None
    for unit, per_second in _TIME_UNITS:
        exact = Fraction(a) * per_second, Fraction(b) * per_second
        integers = _rounded(exact, 0)
        if not any(integers):
            continue
        if max(integers) > INT64_MAX:
            break
        model = CostModel(*integers)
        error = _largest_error(model, *exact, longest)
        if best is None or error < best.rounding:
            best = IntegerCost(model, unit, 1, error, constant * per_second)
        if error <= _TOLERANCE:
            break
    if best is None:
        raise ValueError(f"a = {a:.3g} s and b = {b:.3g} s must be a positive number of int64 femto- or nanoseconds")
    return best


def integers_together(seconds: Mapping[str, tuple[float, float]]) -> dict[str, CostModel]:
    """Return costs of several phases in one unit of time, as fine as the sums of a large step allow.

    `seconds` are, of each phase, those of a unit of length, and of one squared; finite, >= 0, some of them positive.

    Examples
    --------
    >>> costs = integers_together({"vision": (1e-5, 0.0), "llm": (1e-4, 1e-9)})
    >>> costs["llm"].a // costs["vision"].a, costs["llm"].a // costs["llm"].b
    (10, 100000)
    """
    most = 4 * _TOTAL_LENGTH * sum(a + b * _LONGEST for a, b in seconds.values())  # backwards with recomputation too
    of_phase = {name: (round(a * (_ROOM / most)), round(b * (_ROOM / most))) for name, (a, b) in seconds.items()}
    return {name: CostModel(max(a, int(b == 0)), b) for name, (a, b) in of_phase.items()}


def _rounded(coefficients: tuple[Fraction, Fraction], shift: int) -> tuple[int, int]:
    """Whole coefficients, halves to the even, once both are divided by 2**shift."""
    a, b = (round(value / (1 << shift)) for value in coefficients)
    return a, b


def _largest_error(model: CostModel, a: Fraction, b: Fraction, longest: int) -> float:
    """Relative error of the cost; as a function of length it is monotone, so its ends tell."""
    errors = []
    for length in (1, longest):
        exact = a + b * length
        errors.append(abs(model.a + model.b * length - exact) / exact if exact else Fraction(0))
    return float(max(errors))
