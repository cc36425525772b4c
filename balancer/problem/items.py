"""Items inside samples: named functions from a row's lists, such as image sizes, to the lengths of its items.

A list of the lengths themselves needs none: its column is named alone.
"""

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from balancer.errors import InputError
from balancer.problem.ragged import Ragged
from solvers.errors import Named

# Qwen2-VL's units are squares of 28 px: 2 x 2 patches of 14 px that become one token. An image has 4 to 16,384.
_UNIT = 28
_PATCHES_PER_UNIT = 4
_SMALLEST_AREA = 4 * _UNIT**2
_LARGEST_AREA = 16_384 * _UNIT**2
_LONGEST_SIDE = 2**26 - 1  # the product of two such sides is exact in float64


class _ValueOutsideError(ValueError):
    """The value at `index` of argument `argument` breaks `rule`."""

    def __init__(self, argument: str, index: int, value: int, rule: str) -> None:
        super().__init__(f"{argument}[{index}] must be {rule}, got {value}")
        self.argument, self.index, self.value, self.rule = argument, index, value, rule


def qwen2vl_patches(widths: NDArray[np.int64], heights: NDArray[np.int64]) -> NDArray[np.int64]:
    """Patches of 14 x 14 px into the vision encoder of Qwen2-VL, for each image.

    Both sides are rounded to multiples of 28 px, halves to even ones. If the area is then above 12,845,056 px, the
    original sides are scaled to that area and rounded down, to no less than 28 px; if it is below 3,136 px, they are
    scaled to that and rounded up.

    Parameters
    ----------
    widths, heights : int64[k]
        Pixels, within 1..2**26-1.

    Returns
    -------
    int64[k]
        Multiples of 4, at least 16. The area of an image longer than 16,384 times its width stays above the limit.

    Raises
    ------
    ValueError
        For a side outside that range.

    Notes
    -----
    Scaling is in float64, operation by operation as the model's image processor has it, because a trainer's token
    counts come from there: where a scaled side is a whole multiple, as those of squares are, rounding errors decide,
    and exact arithmetic would give another answer for one large square in eight. IEEE 754 rounds every one of these
    operations correctly, so all machines get the same. The processor refuses sides of a ratio beyond 200; here they
    are counted.

    References
    ----------
    Wang et al., Qwen2-VL: Enhancing Vision-Language Model's Perception of the World at Any Resolution, 2024
    (arXiv:2409.12191), and the defaults of its published image processor.

    Examples
    --------
    >>> qwen2vl_patches(np.array([1280, 1, 8000]), np.array([720, 1, 8000])).tolist()
    [4784, 16, 65536]
    """
    return _PATCHES_PER_UNIT * qwen2vl_tokens(widths, heights)


def qwen2vl_tokens(widths: NDArray[np.int64], heights: NDArray[np.int64]) -> NDArray[np.int64]:
    """Tokens that an image of Qwen2-VL brings into the LLM: a quarter of :func:`qwen2vl_patches`.

    Examples
    --------
    >>> qwen2vl_tokens(np.array([1280, 1, 8000]), np.array([720, 1, 8000])).tolist()
    [1196, 4, 16384]
    """
    for name, sides in (("widths", widths), ("heights", heights)):
        outside = (sides < 1) | (sides > _LONGEST_SIDE)
        if outside.any():
            index = int(np.argmax(outside))
            raise _ValueOutsideError(name, index, int(sides[index]), f"a side within 1..{_LONGEST_SIDE} px")
    across, down = _rounded(widths), _rounded(heights)
    area = across * down * _UNIT**2
    large, small = np.flatnonzero(area > _LARGEST_AREA), np.flatnonzero(area < _SMALLEST_AREA)
    if len(large):
        shrink = np.sqrt((widths[large] * heights[large]) / _LARGEST_AREA)
        for units, sides in ((across, widths), (down, heights)):
            units[large] = np.maximum(1, np.floor(sides[large] / shrink / _UNIT).astype(np.int64))
    if len(small):
        stretch = np.sqrt(_SMALLEST_AREA / (widths[small] * heights[small]))
        for units, sides in ((across, widths), (down, heights)):
            units[small] = np.ceil(sides[small] * stretch / _UNIT).astype(np.int64)
    return across * down


def _rounded(sides: NDArray[np.int64]) -> NDArray[np.int64]:
    """Round to units, halves to even: int64[k], a new array. In integers, so that halves are halves."""
    units, rest = np.divmod(sides, _UNIT)
    # As Python's round() does, which the image processor calls.
    units += (2 * rest > _UNIT) | ((2 * rest == _UNIT) & (units % 2 == 1))
    return units


ITEM_FUNCTIONS: dict[str, Callable[..., NDArray[np.int64]]] = {
    function.__name__: function for function in (qwen2vl_patches, qwen2vl_tokens)
}
"""From the values of columns of lists, int64[k] each, to the lengths of their items, by name."""


@dataclass(frozen=True, slots=True)
class ItemsExpression:
    """A function of :data:`ITEM_FUNCTIONS` and the columns of lists that it is given.

    Notes
    -----
    ``str`` gives back an expression that :func:`parse_items` reads.
    """

    name: str
    columns: tuple[str, ...]

    def __post_init__(self) -> None:
        if self.name not in ITEM_FUNCTIONS:
            raise InputError(f"unknown function of items {self.name!r}; known functions are {', '.join(_usages())}")
        parameters = _parameters(self.name)
        if len(self.columns) != len(parameters) or not all(self.columns):
            given = sum(map(bool, self.columns))
            raise InputError(
                f"{self}: must name {len(parameters)} of a log's columns, got {given}; write {_usage(self.name)}"
            )

    def __str__(self) -> str:
        return f"{self.name}({','.join(self.columns)})"

    def evaluate(self, lists: Mapping[str, Ragged], first_row: int = 0) -> Ragged:
        """Compute the lengths of the items of every row: as many as its lists have entries.

        `lists` are the columns, of the same rows; others may be among them. Errors count rows from `first_row`.

        Raises
        ------
        InputError
            If the lists of a row are of unequal lengths, or an entry is none that the function takes; the message
            names column, row, item, value and rule.
        KeyError
            If a column is not in `lists`.
        """
        columns = [lists[name] for name in self.columns]
        first = columns[0]
        for name, other in zip(self.columns, columns, strict=True):
            if len(other) != len(first):
                raise ValueError(f"lists must be of the same rows, got {len(first)} rows and {len(other)}")
            unequal = other.counts != first.counts
            if unequal.any():
                row = int(np.argmax(unequal))
                raise InputError(
                    "{row}: {first!r} lists {count} items and {name!r} {other}; {function} needs both of every item",
                    row=Named("row", first_row + row), first=self.columns[0], count=first.counts[row], name=name,
                    other=other.counts[row], function=self.name,
                )  # fmt: skip
        try:
            return Ragged(ITEM_FUNCTIONS[self.name](*(column.values for column in columns)), first.offsets)
        except _ValueOutsideError as error:
            name = self.columns[_parameters(self.name).index(error.argument)]
            row = int(np.searchsorted(first.offsets, error.index, side="right")) - 1
            item = error.index - int(first.offsets[row])
            raise InputError(
                "column {name!r}, {row}, item {item}: must be {rule}, got {value}",
                name=name, row=Named("row", first_row + row), item=item, rule=error.rule, value=error.value,
            ) from None  # fmt: skip


def parse_items(expression: str) -> ItemsExpression:
    """Read an expression such as ``qwen2vl_patches(image_widths,image_heights)``.

    Examples
    --------
    >>> parse_items("qwen2vl_patches(image_widths, image_heights)")
    ItemsExpression(name='qwen2vl_patches', columns=('image_widths', 'image_heights'))
    """
    match = re.fullmatch(r"\s*(\w+)\s*\((.*)\)\s*", expression, re.DOTALL)
    if match is None:
        raise InputError(f"items {expression!r} must be FUNCTION(COLUMN[,COLUMN...]); known are {', '.join(_usages())}")
    return ItemsExpression(match[1], tuple(part.strip() for part in match[2].split(",")))


def _parameters(name: str) -> list[str]:
    return list(inspect.signature(ITEM_FUNCTIONS[name]).parameters)


def _usage(name: str) -> str:
    return f"{name}({', '.join(_parameters(name)).upper()})"


def _usages() -> list[str]:
    return [_usage(name) for name in ITEM_FUNCTIONS]
