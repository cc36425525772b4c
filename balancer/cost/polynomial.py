"""What a sample costs as a polynomial in its length, exactly; and how that becomes the integer cost of a plan."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from balancer.cost.areas import Terms, as_terms, largest_rate, pairs
from balancer.cost.integer import IntegerCost, integer_flops
from balancer.cost.model import CostModel


@dataclass(frozen=True, slots=True)
class LengthPolynomial:
    """FLOPs of one sample of length l: ``constant + a * l + b * l^2``, and of each area its pairs of tokens.

    Attributes
    ----------
    constant, a, b : int
        Non-negative Python integers of any size: FLOPs a sample, a unit of length, and a unit of length squared.
    length_unit : str
        What l counts.
    areas : mapping of str to int, or tuple of (str, int)
        FLOPs a pair, by the names of :data:`balancer.cost.areas.AREAS`; kept as a tuple in one order.

    Examples
    --------
    >>> flops = LengthPolynomial(0, 6, 2)
    >>> flops.exact(10), flops.total([10, 1]), (flops + flops).b
    (260, 268, 4)
    """

    constant: int
    a: int
    b: int
    length_unit: str = "tokens"
    areas: Terms = ()

    def __post_init__(self) -> None:
        terms = dict(as_terms(self.areas))
        # One cost has one form: b and this area count the same pairs, so both go into b.
        object.__setattr__(self, "b", self.b + terms.pop("bidirectional", 0))
        object.__setattr__(self, "areas", tuple(terms.items()))
        for name in ("constant", "a", "b"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 0:
                raise ValueError(f"coefficient {name} must be an integer >= 0, got {value!r}")

    def __repr__(self) -> str:
        """Return the fields, areas only if there are any."""
        shown = {"constant": self.constant, "a": self.a, "b": self.b, "length_unit": self.length_unit}
        shown |= {"areas": self.areas} if self.areas else {}
        return f"LengthPolynomial({', '.join(f'{name}={value!r}' for name, value in shown.items())})"

    @property
    def terms(self) -> dict[str, int]:
        """FLOPs a unit of length, ``a``, and a pair of tokens by the names of areas; `b` is ``bidirectional``."""
        return {"a": self.a, "bidirectional": self.b, **dict(self.areas)}

    def largest_rate(self, longest: int) -> Fraction:
        """Most FLOPs a unit of length, but for the constant, of any sample up to the longest."""
        return sum(
            (value * largest_rate(name, longest) for name, value in list(self.terms.items())[1:]), Fraction(self.a)
        )

    def as_row(self) -> tuple[Any, ...]:
        """Return constant, a and b, and an object of areas if there are any, as :meth:`of_row` reads them back."""
        row = self.constant, self.a, self.b
        return (*row, dict(self.areas)) if self.areas else row

    @classmethod
    def of_row(cls, row: Sequence[Any]) -> "LengthPolynomial":
        """Read back what :meth:`as_row` wrote; ValueError names what is wrong."""
        if len(row) not in (3, 4) or (len(row) == 4 and not isinstance(row[3], Mapping)):
            raise ValueError("FLOPs must be three whole numbers, and an object of areas if there are any")
        constant, a, b, *areas = row
        return cls(constant, a, b, areas=as_terms(dict(*areas)))

    def __call__(self, lengths: ArrayLike) -> NDArray[np.float64]:
        """FLOPs of each sample, float64[n]: exact up to 2**53, then to 16 digits."""
        values = np.asarray(lengths, dtype=np.float64)
        polynomial = self.constant + values * (self.a + values * self.b)
        return np.asarray(polynomial + pairs(self.areas, values) if self.areas else polynomial, dtype=np.float64)

    def exact(self, length: int) -> int:
        """FLOPs of one sample, whatever their size."""
        return self.constant + length * (self.a + length * self.b) + int(pairs(self.areas, length))

    def total(self, lengths: Sequence[int] | NDArray[np.int64]) -> int:
        """FLOPs of all samples together, exactly; O(n) Python steps."""
        return sum(self.exact(int(length)) for length in lengths)

    def __add__(self, other: "LengthPolynomial") -> "LengthPolynomial":
        """Two modules that see the same lengths, one after the other."""
        if self.length_unit != other.length_unit:
            raise ValueError(f"lengths must be of one unit, got {self.length_unit!r} and {other.length_unit!r}")
        sums = Counter(self.terms)
        sums.update(other.terms)
        return self._of(self.constant + other.constant, sums)

    def __mul__(self, times: int) -> "LengthPolynomial":
        """As often as `times`."""
        return self._of(self.constant * times, {name: value * times for name, value in self.terms.items()})

    def _of(self, constant: int, terms: Mapping[str, int]) -> "LengthPolynomial":
        areas = {name: value for name, value in terms.items() if name != "a"}
        return LengthPolynomial(constant, terms["a"], 0, self.length_unit, as_terms(areas))

    def in_pieces(self, length: int, unit: str) -> "LengthPolynomial":
        """For samples cut or padded into pieces of one `length`: FLOPs by the number of pieces.

        Attention stays within a piece, so the cost is linear, and a :class:`CostModel` can hold the constant.

        Examples
        --------
        >>> LengthPolynomial(5, 6, 2).in_pieces(10, "tiles of 10 patches")
        LengthPolynomial(constant=0, a=265, b=0, length_unit='tiles of 10 patches')
        """
        if length < 1:
            raise ValueError(f"length must be >= 1, got {length}")
        return LengthPolynomial(0, self.exact(length), 0, unit)

    def integer_cost(self, *, total_length: int = 2**32, longest: int = 2**20) -> IntegerCost:
        """Cost in FLOPs that fits int64, and what one unit is: see :func:`balancer.cost.integer.integer_flops`.

        Raises
        ------
        ValueError
            If the cost does not depend on length.
        """
        return integer_flops({"constant": self.constant, **self.terms}, total_length=total_length, longest=longest)

    def cost_model(self, *, total_length: int = 2**32, longest: int = 2**20) -> CostModel:
        """Integer cost to plan with; :meth:`integer_cost` also tells its unit, and the constant that it leaves out.

        Examples
        --------
        >>> str(LengthPolynomial(0, 600, 20).cost_model())  # in units of 20 FLOPs: plans are the same
        'quadratic:a=30,b=1'
        """
        return self.integer_cost(total_length=total_length, longest=longest).model
