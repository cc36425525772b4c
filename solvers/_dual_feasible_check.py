"""Dual feasible functions by their definition, for the checkers; see :mod:`solvers.dual_feasible` for why they hold."""

import itertools
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator


def _over_thresholds(sizes: list[int], cap: int, value_of: Callable[[int], int]) -> int:
    """The best over all thresholds a up to cap / 2 of items over cap - a, and values from a to cap - a by the cap's."""
    number = Counter(sizes)
    ascending = sorted(number)
    items = [0, *itertools.accumulate(number[size] for size in ascending)]
    values = [0, *itertools.accumulate(number[size] * value_of(size) for size in ascending)]
    # Items over half of the cap stand alone, whatever the threshold.
    half = bisect_right(ascending, cap // 2)
    best = len(sizes) - items[half]
    for a in range(half):
        end = bisect_right(ascending, cap - ascending[a])
        best = max(best, len(sizes) - items[end] - (values[a] - values[end]) // value_of(cap))
    return best


def _fekete_schepers(sizes: list[int], cap: int) -> Iterator[int]:
    # The parameters are written down anew, not imported: a checker that read the solver's would follow its mistakes.
    for k in range(2, 21):

        def value_of(x: int, k: int = k) -> int:
            return k * x if (k + 1) * x % cap == 0 else (k + 1) * x // cap * cap

        yield _over_thresholds(sizes, cap, value_of)


def _ccm1(sizes: list[int], cap: int) -> Iterator[int]:
    small = sorted({size for size in sizes if 0 < 2 * size <= cap}, reverse=True)[:64]
    ends = {k for q in range(2, 33) for k in (cap // q, cap // (q + 1) + 1)}
    for k in sorted(ends.union(small) - {0}):

        def value_of(x: int, k: int = k) -> int:
            if 2 * x == cap:
                return cap // k
            return 2 * (x // k) if 2 * x < cap else 2 * (cap // k - (cap - x) // k)

        if k <= cap // 2:
            yield _over_thresholds(sizes, cap, value_of)


GROUPS_BY_FUNCTION: dict[str, Callable[[list[int], int], Iterator[int]]] = {
    "l2": lambda sizes, cap: iter([_over_thresholds(sizes, cap, lambda x: x)]),
    "fekete_schepers": _fekete_schepers,
    "ccm1": _ccm1,
}
"""How many groups of a cap sizes need at least, by each parameter of each function."""
