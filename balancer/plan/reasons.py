"""Reasons that many steps give, counted: those that differ in a percentage alone are one, with its range."""

import re
from collections import Counter
from collections.abc import Iterator

__all__ = ["Reasons"]

_PERCENTAGE = re.compile(r"\b\d+(?:\.\d+)?(?:e-?\d+)? ?%")


class Reasons:
    """Why something was not done, and in how many steps; told again, a reason with a range stays as it is."""

    __slots__ = ("_found",)

    def __init__(self) -> None:
        self._found: dict[tuple[str, ...], Counter[tuple[str, ...]]] = {}

    def add(self, reason: str) -> tuple[str, ...]:
        """Take in the reason of one more step; return which of those in :meth:`told` it is."""
        kind = tuple(_PERCENTAGE.split(reason))
        self._found.setdefault(kind, Counter())[tuple(_PERCENTAGE.findall(reason))] += 1
        return kind

    def __len__(self) -> int:
        """Return the number of steps that gave a reason."""
        return sum(given.total() for given in self._found.values())

    def told(self) -> dict[tuple[str, ...], str]:
        """Return each reason in words, in the order in which they came."""
        return {kind: _told(kind, given) for kind, given in self._found.items()}

    def counted(self) -> Iterator[tuple[str, int]]:
        """Yield each reason in words and the number of steps that gave it, the most frequent first."""
        for kind, given in sorted(self._found.items(), key=lambda found: -found[1].total()):
            yield _told(kind, given), given.total()


def _told(words: tuple[str, ...], given: Counter[tuple[str, ...]]) -> str:
    ranges = []
    for i in range(len(words) - 1):
        counts: Counter[str] = Counter()
        for percentages, count in given.items():
            counts[percentages[i]] += count
        ranges.append(_range(counts))
    return words[0] + "".join(between + after for between, after in zip(ranges, words[1:], strict=True))


def _range(counts: Counter[str]) -> str:
    """Show from where to where percentages go, and the middle one, in the digits in which they came."""
    ordered = sorted(counts, key=lambda text: float(text.rstrip(" %")))
    before, middle = 0, ordered[0]
    for middle in ordered:
        before += counts[middle]
        if 2 * before >= counts.total():
            break
    return ordered[0] if len(ordered) == 1 else f"{ordered[0]} to {ordered[-1]} (median {middle})"
