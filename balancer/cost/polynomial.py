"""FLOPs of a sample by its length, exactly, and the integer cost that they become."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from balancer.cost.areas import Terms, as_terms
from balancer.cost.by_length import ByLength
from balancer.cost.integer import IntegerCost, integer_flops
from balancer.cost.model import CostModel


@dataclass(frozen=True, slots=True)
class LengthPolynomial(ByLength):
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
    >>> flops.exact(10), (flops * 2).b
    (260, 4)
    """

    constant: int
    a: int
    b: int
    length_unit: str = "tokens"
    areas: Terms = ()

    def __post_init__(self) -> None:
        self._check_terms()

    def __repr__(self) -> str:
        """Return the fields, areas only if there are any."""
        known = f"constant={self.constant}, a={self.a}, b={self.b}, length_unit={self.length_unit!r}"
        return f"LengthPolynomial({known}{f', areas={self.areas!r}' if self.areas else ''})"

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
        """FLOPs of each sample, float64[n]: exact up to 2**53, then to 15 digits."""
        return np.asarray(self.exact(np.asarray(lengths, dtype=np.float64)), dtype=np.float64)

    def __mul__(self, times: int) -> "LengthPolynomial":
        """As often as `times`."""
        areas = tuple((name, value * times) for name, value in self.areas)
        return LengthPolynomial(self.constant * times, self.a * times, self.b * times, self.length_unit, areas)

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
        return integer_flops(self.terms, total_length=total_length, longest=longest)

    def cost_model(self, *, total_length: int = 2**32, longest: int = 2**20) -> CostModel:
        """Integer cost to plan with; :meth:`integer_cost` also tells its unit, and the constant that it leaves out.

        Examples
        --------
        >>> str(LengthPolynomial(0, 600, 20).cost_model())  # in units of 20 FLOPs: plans are the same
        'quadratic:a=30,b=1'
        """
        return self.integer_cost(total_length=total_length, longest=longest).model
