"""Reasons that many steps give, counted: those that differ in a percentage alone are one, with its range."""

import re
from collections.abc import Iterator

__all__ = ["Reasons"]

_PERCENTAGE = re.compile(r"\b\d+(?:\.\d+)?%")


class Reasons:
    """Why something was not done, and in how many steps."""

    __slots__ = ("_found",)

    def __init__(self) -> None:
        self._found: dict[tuple[str, ...], list[list[str]]] = {}

    def add(self, reason: str) -> None:
        """Take in the reason of one more step."""
        self._found.setdefault(tuple(_PERCENTAGE.split(reason)), []).append(_PERCENTAGE.findall(reason))

    def __len__(self) -> int:
        """Return the number of steps that gave a reason."""
        return sum(map(len, self._found.values()))

    def counted(self) -> Iterator[tuple[str, int]]:
        """Yield each reason and the number of steps that gave it, the most frequent first."""
        for words, given in sorted(self._found.items(), key=lambda found: -len(found[1])):
            ranges = [_range(list(percentages)) for percentages in zip(*given, strict=True)]
            text = words[0] + "".join(between + after for between, after in zip(ranges, words[1:], strict=True))
            yield text, len(given)


def _range(percentages: list[str]) -> str:
    """Show from where to where percentages go, and the middle one, in the digits in which they came."""
    ordered = sorted(percentages, key=lambda text: float(text.removesuffix("%")))
    if ordered[0] == ordered[-1]:
        return ordered[0]
    return f"{ordered[0]} to {ordered[-1]} (median {ordered[(len(ordered) - 1) // 2]})"
