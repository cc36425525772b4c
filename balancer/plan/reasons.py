"""Reasons that many steps give, counted: those that differ in a percentage alone are one, with its range."""

from collections import Counter
from collections.abc import Iterator
from typing import Any, Self


class Reason(str):
    """Why something was not done, with a percentage that differs from step to step.

    Examples
    --------
    >>> Reason("it would take", 2.5, "longer")
    'it would take 2.5 % longer'
    """

    __slots__ = ("around", "percent")
    around: tuple[str, str]
    percent: float

    def __new__(cls, before: str, percent: float, after: str) -> Self:
        """Put the words around the percentage."""
        made = super().__new__(cls, f"{before} {percent:g} % {after}")
        made.around, made.percent = (before, after), percent
        return made

    def __getnewargs__(self) -> tuple[Any, ...]:
        """Return what a copy is made of, so that plans can be copied and pickled."""
        return self.around[0], self.percent, self.around[1]


class Reasons:
    """Why something was not done, and in how many steps."""

    __slots__ = ("_found",)

    def __init__(self) -> None:
        self._found: dict[tuple[str, ...], Counter[float]] = {}

    def add(self, reason: str) -> None:
        """Add the reason of one more step."""
        kind = reason.around if isinstance(reason, Reason) else (reason,)
        self._found.setdefault(kind, Counter())[reason.percent if isinstance(reason, Reason) else 0.0] += 1

    def __len__(self) -> int:
        """Return the number of steps that gave a reason."""
        return sum(given.total() for given in self._found.values())

    def counted(self) -> Iterator[tuple[str, int]]:
        """Yield each reason in words and the number of steps that gave it, the most frequent first."""
        for kind, given in sorted(self._found.items(), key=lambda found: -found[1].total()):
            yield _told(kind, given), given.total()


def _told(kind: tuple[str, ...], given: Counter[float]) -> str:
    """Show from where to where the percentage goes, and the middle one."""
    if len(kind) == 1:
        return kind[0]
    ordered, (before, after) = sorted(given.elements()), kind
    if ordered[0] == ordered[-1]:
        return str(Reason(before, ordered[0], after))
    middle = ordered[(len(ordered) - 1) // 2]
    return f"{before} {ordered[0]:g} % to {ordered[-1]:g} % (median {middle:g} %) {after}"
