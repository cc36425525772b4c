"""From exact or measured terms to the integers that plans are made with, and their unit.

Until then a cost is a dictionary: FLOPs or seconds of a sample (``constant``), of a unit of length (``a``) and of one
squared (``b``), and of a pair of tokens by the names of areas.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

from balancer.cost.areas import amount, as_terms, largest_rate
from balancer.cost.model import CostModel
from solvers.arguments import INT64_MAX

_TOLERANCE = 1e-3
_ROOM, _TOTAL_LENGTH, _LONGEST = 2**58, 2**24, 2**17  # up to such a step, whatever is added up of its costs fits
_TIME_UNITS = {"ns": 10**9, "ps": 10**12, "fs": 10**15}


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
        return _TIME_UNITS.get(self.unit, flops_per_second) / self.factor


def integer_flops(terms: Mapping[str, int], *, total_length: int, longest: int) -> IntegerCost:
    """Divide by the greatest common divisor, which changes no plan, and, only if sums need it, by a power of two.

    The constant is kept beside areas alone. Up to the largest sum of lengths of a global batch, `total_length`, and the
    longest length all costs fit int64. Raises ValueError if all terms but the constant are 0, or the lengths are not
    positive.

    Examples
    --------
    >>> cost = integer_flops({"a": 600, "b": 20}, total_length=2**32, longest=2**20)
    >>> str(cost.model), cost.work_unit, cost.rounding
    ('quadratic:a=30,b=1', '20 FLOPs', 0.0)
    """
    used = {name: value for name, value in terms.items() if value}
    constant = used.get("constant", 0) if set(used) <= {"constant", "a", "b", "bidirectional"} else 0
    if constant:
        del used["constant"]
    if not set(used) - {"constant"}:
        raise ValueError("FLOPs that do not depend on the length (a = b = 0) make no cost model")
    if total_length < 1 or longest < 1:
        raise ValueError(f"total_length and longest must be >= 1, got {total_length} and {longest}")
    unit = math.gcd(*used.values())
    # One power of two at a time: each costs a bit of exactness, so no more than int64 needs.
    while (
        sum(value * total_length * largest_rate(name, longest) for name, value in _whole(used, unit).items())
        > INT64_MAX
    ):
        unit *= 2
    model = _model_of(_whole(used, unit))
    return IntegerCost(model, "FLOPs", unit, _largest_error(model, used, unit, longest), constant / unit)


def integer_seconds(terms: Mapping[str, float], *, longest: int = 2**20) -> IntegerCost:
    """Round seconds to the coarsest of ns, ps and fs that is off by at most 0.1 % at any length, or else is off least.

    Parameters
    ----------
    terms : mapping of str to float
        Seconds by name, finite, >= 0; those of a whole step, ``c0``, are left out of the integer cost.
    longest : int
        No length is longer; rounding `b` matters by ``b * l^2``.

    Returns
    -------
    IntegerCost
        Whose ``work_unit`` is the unit taken.

    Raises
    ------
    ValueError
        If a term is negative or not finite, or all of them vanish or leave int64 once rounded.

    Examples
    --------
    >>> cost = integer_seconds({"c0": 0.012, "a": 1.14e-4, "b": 1.5e-9})
    >>> str(cost.model), cost.work_unit
    ('quadratic:a=114000000,b=1500', '1 ps')
    """
    for name, value in terms.items():
        if not 0 <= value < math.inf:
            raise ValueError(f"coefficient {name} must be finite and >= 0 (seconds), got {value!r}")
    used = {name: value for name, value in terms.items() if name != "c0"}
    best: IntegerCost | None = None
    for unit, per_second in _TIME_UNITS.items():
        integers = _whole(used, Fraction(1, per_second))
        if not any(integers.values()):
            continue
        # Finer units only grow from here on.
        if max(integers.values()) > INT64_MAX:
            break
        model = _model_of(integers)
        error = _largest_error(model, used, Fraction(1, per_second), longest)
        if best is None or error < best.rounding:
            best = IntegerCost(model, unit, 1, error, terms.get("c0", 0.0) * per_second)
        if error <= _TOLERANCE:
            break
    if best is None:
        listed = ", ".join(f"{name} = {value:.3g} s" for name, value in used.items())
        raise ValueError(f"one of {listed} must be a positive number of int64 femto- or nanoseconds")
    return best


def integers_together(seconds: Mapping[str, Mapping[str, float]]) -> dict[str, CostModel]:
    """Return costs of several phases in one unit of time, as fine as the sums of a large step allow.

    `seconds` are those of each phase by term, finite, >= 0, some of them positive.

    Examples
    --------
    >>> costs = integers_together({"vision": {"a": 1e-5}, "llm": {"a": 1e-4, "b": 1e-9}})
    >>> costs["llm"].a // costs["vision"].a, costs["llm"].a // costs["llm"].b
    (10, 100000)
    """
    rates = [float(largest_rate(name, _LONGEST)) * value for terms in seconds.values() for name, value in terms.items()]
    unit = _ROOM / (4 * _TOTAL_LENGTH * sum(rates))  # backwards with recomputation too
    return {name: at_least_one(_whole(terms, 1 / Fraction(unit))) for name, terms in seconds.items()}


def at_least_one(terms: Mapping[str, int]) -> CostModel:
    """Return the cost of whole terms by name, with a unit a token where rounding has left nothing at all."""
    return _model_of(terms if any(terms.values()) else {"a": 1})


def _model_of(terms: Mapping[str, int]) -> CostModel:
    areas = {name: value for name, value in terms.items() if name not in ("constant", "a", "b")}
    a, b, constant = (terms.get(name, 0) for name in ("a", "b", "constant"))
    return CostModel(a, b, constant=constant, areas=as_terms(areas))


def _whole(terms: Mapping[str, float], unit: Fraction | int) -> dict[str, int]:
    """Terms in whole units, halves to the even: the one place where costs are rounded."""
    return {name: round(Fraction(value) / unit) for name, value in terms.items()}


def _largest_error(model: CostModel, terms: Mapping[str, float], unit: Fraction | int, longest: int) -> float:
    """Relative error of the cost at the ends, where that of two terms is largest, and with areas at powers of two."""
    lengths = {1, longest}
    if model.areas:
        # Areas bend where a window or a chunk ends, so the ends alone need not have the largest error.
        lengths |= {1 << power for power in range(longest.bit_length())}
    errors = [Fraction(0)]
    for length in sorted(lengths):
        whole = (
            sum((Fraction(value) * int(amount(name, length)) for name, value in terms.items()), start=Fraction(0))
            / unit
        )
        if whole:
            errors.append(abs(model.exact(length) - whole) / whole)
    return float(max(errors))
