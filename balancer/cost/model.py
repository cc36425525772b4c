"""Cost models: what a sample, or a padded mini-batch, costs in integer work units."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from solvers.arguments import INT64_MAX, first_overflow
from solvers.bounds import Bound, makespan_bound
from solvers.groups import group_loads, padded_loads
from solvers.partition import padded

__all__ = ["COSTS", "CostModel", "parse_cost"]


@dataclass(frozen=True, slots=True)
class CostModel:
    """``a * l + b * l^2`` for a sample of length l; a mini-batch costs the sum, or, padded, rows times the longest row.

    Attributes
    ----------
    a, b : int
        Non-negative, not both 0. Work units a token, and a token squared. Integers, so that all ranks agree.
    padded : bool
        Whether every row of a mini-batch is padded to its longest.

    Examples
    --------
    >>> CostModel(a=24576, b=1).sample_costs(np.array([1, 1000]))
    array([   24577, 25576000])
    """

    a: int = 1
    b: int = 0
    padded: bool = False

    def __post_init__(self) -> None:
        for name, value in (("a", self.a), ("b", self.b)):
            if not isinstance(value, int | np.integer) or isinstance(value, bool) or value < 0:
                raise ValueError(f"cost coefficient {name} must be an integer >= 0, got {value!r}")
            object.__setattr__(self, name, int(value))
            if value > INT64_MAX:
                raise ValueError(f"cost coefficient {name} must fit int64, got {value}")
        if self.a == self.b == 0:
            raise ValueError("cost coefficients a and b must not both be 0")

    def __str__(self) -> str:
        """Return the form that :func:`parse_cost` reads."""
        if self.padded:
            return "padded" if (self.a, self.b) == (1, 0) else f"padded:a={self.a},b={self.b}"
        if self.b:
            return f"quadratic:a={self.a},b={self.b}"
        return "linear" if self.a == 1 else f"linear:a={self.a}"

    def sample_costs(self, lengths: NDArray[np.int64], first_sample: int = 0) -> NDArray[np.int64]:
        """Cost of each sample: int64[n]. In errors, ``lengths[i]`` is called sample ``first_sample + i``.

        Raises
        ------
        ValueError
            Where a cost, or the sum (padded: n times the largest), does not fit int64; it names the sample.
        """
        longest = int(lengths.max()) if len(lengths) else 0
        largest = self.a * longest + self.b * longest * longest
        sample, rule = None, "the cost"
        if largest > INT64_MAX:
            sample = int(np.argmax(lengths))
        elif self.padded and largest * len(lengths) > INT64_MAX:
            sample, rule = int(np.argmax(lengths)), f"{len(lengths)} padded rows of the cost"
        else:
            costs = lengths if (self.a, self.b) == (1, 0) else self.a * lengths + self.b * lengths * lengths
            sample, rule = first_overflow(costs), "the sum of the batch's costs up to the cost"
            if self.padded or sample is None:
                return costs
        raise ValueError(
            f"{rule} of sample {first_sample + sample} (length {lengths[sample]}) must fit int64 under cost '{self}'; "
            "use smaller coefficients"
        )

    def loads(self, costs: NDArray[np.int64], rank_of_sample: NDArray[np.int32], num_ranks: int) -> NDArray[np.int64]:
        """Load of each rank, int64[num_ranks], from the costs that :meth:`sample_costs` returned."""
        return (padded_loads if self.padded else group_loads)(costs, rank_of_sample, num_ranks)

    def tokens(
        self, lengths: NDArray[np.int64], rank_of_sample: NDArray[np.int32], num_ranks: int
    ) -> NDArray[np.int64]:
        """Elements that each rank holds, padding included where rows are padded: int64[num_ranks]."""
        return (padded_loads if self.padded else group_loads)(lengths, rank_of_sample, num_ranks)

    def lower_bound(self, costs: NDArray[np.int64], num_ranks: int, equal_counts: bool = False) -> Bound:
        """Best closed-form lower bound on the makespan, from the costs that :meth:`sample_costs` returned."""
        if self.padded:
            return Bound(padded(costs, num_ranks, equal_counts=equal_counts).makespan, "padded")
        return makespan_bound(costs, num_ranks, equal_counts)


def _linear(a: int = 1) -> CostModel:
    return CostModel(a=a)


def _quadratic(*, a: int, b: int) -> CostModel:
    return CostModel(a=a, b=b)


def _padded(a: int = 1, b: int = 0) -> CostModel:
    return CostModel(a=a, b=b, padded=True)


COSTS: dict[str, tuple[str, Callable[..., CostModel]]] = {
    "linear": ("linear[:a=1]", _linear),
    "quadratic": ("quadratic:a=24576,b=1", _quadratic),
    "padded": ("padded[:a=1,b=0]", _padded),
}
"""Cost models by name: how to write one, and what makes it."""


def parse_cost(text: "str | CostModel") -> CostModel:
    """Read a cost model from its name and coefficients, such as ``"quadratic:a=24576,b=1"``.

    Raises
    ------
    ValueError
        An unknown name (the known ones are listed), or a missing, unknown, repeated or non-integer coefficient.

    Examples
    --------
    >>> str(parse_cost("quadratic:b=1,a=24576"))
    'quadratic:a=24576,b=1'
    """
    if isinstance(text, CostModel):
        return text
    if not isinstance(text, str):
        raise TypeError(f"cost must be a string or a CostModel, got {text!r}")
    name, colon, rest = text.partition(":")
    if name not in COSTS:
        raise ValueError(f"unknown cost {text!r}; known costs are {', '.join(form for form, _ in COSTS.values())}")
    form, make = COSTS[name]
    coefficients: dict[str, int] = {}
    for part in rest.split(",") if colon else []:
        key, _, value = part.partition("=")
        if key in coefficients or not value.isascii() or not value.isdigit():
            raise ValueError(f"cost {text!r}: {part!r} must be one coefficient and a whole number; write {form}")
        coefficients[key] = int(value)
    try:
        return make(**coefficients)
    except TypeError:
        raise ValueError(f"cost {text!r} lacks a coefficient or names an unknown one; write {form}") from None
