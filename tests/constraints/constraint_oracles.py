"""Everything under constraints by definition and by enumeration: plain Python that imports nothing from `solvers`."""

import itertools
from collections.abc import Iterator
from typing import Any


def rows(values: Any, count: int) -> list[list[int]]:
    """One or several numbers an entry, as a list each."""
    return [list(v) if isinstance(v, list | tuple) else [v] for v in values] if values is not None else [[]] * count


def caps_table(caps: Any, sizes: Any, m: int) -> list[list[int]]:
    if caps is None:
        return [[] for _ in range(m)]
    several = isinstance(sizes[0], list | tuple) if len(sizes) else False
    if not isinstance(caps, list | tuple):
        return [[caps] for _ in range(m)]
    if caps and isinstance(caps[0], list | tuple):
        return [list(row) for row in caps]
    if several:
        return [list(caps) for _ in range(m)]
    return [[cap] for cap in (caps if len(caps) == m else list(caps) * m)]


def keeps(groups: list[int], n: int, m: int, given: dict[str, Any]) -> bool:
    """Whether an assignment keeps every constraint."""
    counts = [groups.count(g) for g in range(m)]
    if given.get("equal_counts") and any(not n // m <= count <= -(-n // m) for count in counts):
        return False
    if any(count < given.get("min_items", 0) for count in counts):
        return False
    if given.get("max_items") is not None and any(count > given["max_items"] for count in counts):
        return False
    sizes = given.get("sizes")
    if sizes is not None:
        table, limits = rows(sizes, n), caps_table(given["caps"], sizes, m)
        for g in range(m):
            for q, cap in enumerate(limits[g]):
                if sum(table[i][q] for i in range(n) if groups[i] == g) > cap:
                    return False
    allowed = given.get("allowed")
    if allowed is not None:
        for i, g in enumerate(groups):
            if allowed[i] is None:
                continue
            is_table = len(allowed[i]) > 0 and isinstance(allowed[i][0], bool)
            if not (allowed[i][g] if is_table else g in allowed[i]):
                return False
    keys = given.get("keep_together")
    if keys is not None:
        for i, j in itertools.combinations(range(n), 2):
            if keys[i] == keys[j] and groups[i] != groups[j]:
                return False
    return True


def loads(costs: list[Any], groups: list[int], m: int, given: dict[str, Any]) -> list[list[int]]:
    table = rows(costs, len(costs))
    components = len(table[0]) if table else 1
    before = rows(given["initial_loads"], m) if given.get("initial_loads") is not None else [[0] * components] * m
    return [
        [before[g][k] + sum(table[i][k] for i in range(len(costs)) if groups[i] == g) for k in range(len(before[g]))]
        for g in range(m)
    ]


def makespan(costs: list[Any], groups: list[int], m: int, given: dict[str, Any]) -> int:
    speeds = given.get("speeds") or [1] * m
    table = loads(costs, groups, m, given)
    largest = [max(-(-table[g][k] // speeds[g]) for g in range(m)) for k in range(len(table[0]))]
    return sum(largest) if given.get("objective", "sum") == "sum" else max(largest)


def all_assignments(n: int, m: int) -> Iterator[list[int]]:
    for groups in itertools.product(range(m), repeat=n):
        yield list(groups)


def optimum(costs: list[Any], m: int, given: dict[str, Any]) -> int | None:
    """The smallest makespan of all assignments that keep the constraints, or None where there is none."""
    n = len(costs)
    feasible = (groups for groups in all_assignments(n, m) if keeps(groups, n, m, given))
    return min((makespan(costs, groups, m, given) for groups in feasible), default=None)
