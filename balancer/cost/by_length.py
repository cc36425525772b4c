"""What a sample costs by its length, as named terms: exact FLOPs and the work units of a plan are both of this form."""

from fractions import Fraction
from typing import Any

import numpy as np

from balancer.cost.areas import Terms, area, as_terms, largest_rate


class ByLength:
    """``constant + a * l + b * l^2`` of a sample of length l, and of each area its number times the pairs it keeps.

    A sample of length 0 costs 0.
    """

    __slots__ = ()
    constant: int
    a: int
    b: int
    areas: Terms

    def _check_terms(self, *others: str) -> None:
        """Check terms and other coefficients, and bring areas into one form: `b` is another word for one of them."""
        areas = dict(as_terms(self.areas))
        for name in ("constant", "a", "b", *others):
            value = getattr(self, name)
            if not isinstance(value, int | np.integer) or isinstance(value, bool) or value < 0:
                raise ValueError(f"cost coefficient {name} must be an integer >= 0, got {value!r}")
            object.__setattr__(self, name, int(value))
        object.__setattr__(self, "b", self.b + areas.pop("bidirectional", 0))
        object.__setattr__(self, "areas", tuple(areas.items()))

    @property
    def terms(self) -> dict[str, int]:
        """Those that are not 0, by name."""
        known = {"constant": self.constant, "a": self.a, "b": self.b}
        return {name: value for name, value in known.items() if value} | dict(self.areas)

    def exact(self, lengths: Any, prefixes: Any = 0) -> Any:
        """Cost of one sample of any size, or of each of several: int64[n], which the caller knows to hold it."""
        cost = self.a * lengths
        if self.b or self.areas:
            cost = cost + self.attention_work(lengths, prefixes)
        return cost + self.constant * (lengths > 0) if self.constant else cost

    def attention_work(self, lengths: Any, prefixes: Any = 0) -> Any:
        """What of it is pairs of tokens."""
        work = self.b * lengths * lengths
        for name, value in self.areas:
            work = work + value * area(name, lengths, prefixes)
        return work

    def largest_rate(self, longest: int) -> Fraction:
        """Most that a unit of length costs, but for the constant, of any sample up to the longest."""
        return sum((value * largest_rate(name, longest) for name, value in self.terms.items() if name != "constant"),
                   start=Fraction(0))  # fmt: skip
