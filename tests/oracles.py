"""What every solver should find, computed in the most naive way: plain Python that imports nothing from `solvers`."""

import heapq
from collections.abc import Callable, Iterator, Sequence


def descending(costs: Sequence[int]) -> list[int]:
    """Item numbers by descending cost; equal costs in the order given."""
    return sorted(range(len(costs)), key=lambda i: -costs[i])


def loads_of(costs: Sequence[int], groups: Sequence[int], num_groups: int) -> list[int]:
    return [sum(c for c, g in zip(costs, groups, strict=True) if g == group) for group in range(num_groups)]


def padded_loads_of(costs: Sequence[int], groups: Sequence[int], num_groups: int) -> list[int]:
    members = [[c for c, g in zip(costs, groups, strict=True) if g == group] for group in range(num_groups)]
    return [len(rows) * max(rows, default=0) for rows in members]


def counts_of(groups: Sequence[int], num_groups: int) -> list[int]:
    return [sum(g == group for g in groups) for group in range(num_groups)]


# --- optima by enumeration -------------------------------------------------------------------------------------------


def all_assignments(num_items: int, num_groups: int) -> Iterator[list[int]]:
    """Every partition of the items into at most `num_groups` unlabelled groups, once."""

    def extend(groups: list[int], used: int) -> Iterator[list[int]]:
        if len(groups) == num_items:
            yield groups
            return
        for group in range(min(used + 1, num_groups)):
            yield from extend([*groups, group], max(used, group + 1))

    yield from extend([], 0)


def optimum(
    costs: Sequence[int],
    num_groups: int,
    equal_counts: bool,
    loads: Callable[[Sequence[int], Sequence[int], int], list[int]],
    least: int = 0,
) -> int:
    """The least makespan, of loads that are counted so, of all partitions that keep to counts."""
    best = None
    for groups in all_assignments(len(costs), num_groups):
        counts = counts_of(groups, num_groups)
        if min(counts) < least or (equal_counts and max(counts) - min(counts) > 1):
            continue
        makespan = max(loads(costs, groups, num_groups))
        best = makespan if best is None else min(best, makespan)
    assert best is not None
    return best


def optimal_makespan(costs: Sequence[int], num_groups: int, equal_counts: bool = False) -> int:
    return optimum(costs, num_groups, equal_counts, loads_of)


def optimal_padded_makespan(costs: Sequence[int], num_groups: int, equal_counts: bool = False, least: int = 0) -> int:
    return optimum(costs, num_groups, equal_counts, padded_loads_of, least)


# --- constructive methods --------------------------------------------------------------------------------------------


def lpt(costs: Sequence[int], num_groups: int) -> list[int]:
    """Longest first to the least loaded group; cost zero to the group with the fewest items; ties to the lowest."""
    return _list_schedule(costs, num_groups, descending(costs))


def _list_schedule(costs: Sequence[int], num_groups: int, order: Sequence[int]) -> list[int]:
    groups = [-1] * len(costs)
    heap = [(0, g) for g in range(num_groups)]
    counts = [0] * num_groups
    for item in order:
        if costs[item] > 0:
            load, group = heap[0]
            heapq.heapreplace(heap, (load + costs[item], group))
        else:
            group = counts.index(min(counts))
        counts[group] += 1
        groups[item] = group
    return groups


def lpt_with_quotas(costs: Sequence[int], num_groups: int) -> list[int]:
    """Longest first to the least loaded group that may take one more; n mod m groups may hold one more than n // m."""
    groups = [-1] * len(costs)
    quota, longer = divmod(len(costs), num_groups)
    loads, counts = [0] * num_groups, [0] * num_groups
    for item in descending(costs):
        longer_left = longer - sum(count > quota for count in counts)
        free = [g for g in range(num_groups) if counts[g] < quota or (counts[g] == quota and longer_left > 0)]
        group = min(free, key=lambda g: (loads[g], g))
        loads[group] += costs[item]
        counts[group] += 1
        groups[item] = group
    return groups


Tuple = list[tuple[int, list[int]]]  # m subsets, each its sum and its items, by descending sum


def _difference(queue: list[tuple[int, int, Tuple]]) -> Tuple:
    """Merge the two tuples of largest spread (ties to the lower name) until one is left; the first gives its name."""
    while len(queue) > 1:
        queue.sort(key=lambda entry: (-entry[0], entry[1]))
        (_, name, a), (_, _, b) = queue[:2]
        merged = [(x + y, i + j) for (x, i), (y, j) in zip(a, reversed(b), strict=True)]
        merged.sort(key=lambda subset: -subset[0])
        queue = [(merged[0][0] - merged[-1][0], name, merged), *queue[2:]]
    return queue[0][2]


def _groups_of(subsets: Tuple, num_items: int) -> list[int]:
    groups = [-1] * num_items
    for group, (_, items) in enumerate(subsets):
        for item in items:
            if item < num_items:
                groups[item] = group
    return groups


def karmarkar_karp(costs: Sequence[int], num_groups: int) -> list[int]:
    """Largest differencing on m-tuples that hold all their zeros."""
    if not costs:
        return []
    queue = []
    for name, item in enumerate(descending(costs)):
        subsets: Tuple = [(costs[item], [item]), *((0, []) for _ in range(num_groups - 1))]
        queue.append((subsets[0][0] - subsets[-1][0], name, subsets))
    return _groups_of(_difference(queue), len(costs))


# --- lower bounds ----------------------------------------------------------------------------------------------------


def mean_bound(costs: Sequence[int], num_groups: int) -> int:
    return -(-sum(costs) // num_groups)


def largest_bound(costs: Sequence[int], num_groups: int) -> int:
    return max(costs, default=0)


def pigeonhole_bound(costs: Sequence[int], num_groups: int) -> int:
    """Of any number of largest items, any number of groups, the fullest of these, hold so many and share their cost."""
    return _shared_bound(costs, num_groups, lambda groups: 0)


def filler_bound(costs: Sequence[int], num_groups: int) -> int:
    """Equal counts: the same, and these groups hold as many items as the other groups leave them."""
    quotas = [-(-(len(costs) - g) // num_groups) for g in range(num_groups)]
    return _shared_bound(costs, num_groups, lambda groups: sum(sorted(quotas)[:groups]))


def _shared_bound(costs: Sequence[int], num_groups: int, least: Callable[[int], int]) -> int:
    ordered, best = sorted(costs, reverse=True), 0
    for first in range(1, len(costs) + 1) if len(costs) > num_groups else ():
        for groups in range(1, num_groups + 1):
            large = groups * (first // num_groups) + min(groups, first % num_groups)
            more = max(0, least(groups) - large)
            others = sorted(ordered[first:])[:more]
            if len(others) == more:  # else more of the large ones are needed: another `first` says it
                best = max(best, -(-(sum(ordered[first - large : first]) + sum(others)) // groups))
    return best


def folding_bound(costs: Sequence[int], num_groups: int) -> int:
    """Equal counts of at most two: the largest with the smallest."""
    if not num_groups < len(costs) <= 2 * num_groups:
        return 0
    ordered = sorted([*costs, *[0] * (2 * num_groups - len(costs))])
    return max(a + b for a, b in zip(ordered, ordered[::-1], strict=True))


def lower_bound(costs: Sequence[int], num_groups: int, equal_counts: bool = False) -> tuple[int, str]:
    """The best of all bounds and its name; ties to the first."""
    bounds = [
        (mean_bound(costs, num_groups), "mean"),
        (largest_bound(costs, num_groups), "largest"),
    ]
    if equal_counts:
        bounds.append((filler_bound(costs, num_groups), "filler"))
        bounds.append((folding_bound(costs, num_groups), "folding"))
    else:
        bounds.append((pigeonhole_bound(costs, num_groups), "pigeonhole"))
    return max(bounds, key=lambda bound: bound[0])
