"""The best sequence groups by trying all of them: plain Python that imports nothing from `solvers`."""

import itertools
from collections.abc import Iterator


def partitions(items: list[int]) -> Iterator[list[list[int]]]:
    """All ways to divide items into unlabelled, non-empty sets."""
    if not items:
        yield []
        return
    first, rest = items[0], items[1:]
    for parts in partitions(rest):
        for i in range(len(parts)):
            yield [*parts[:i], [first, *parts[i]], *parts[i + 1 :]]
        yield [[first], *parts]


def slot_height(times, sizes, degrees, items, num_ranks, cap, extra) -> int | None:
    """Least time of a slot with these items; None if they do not fit."""
    best = None
    for groups in partitions(list(items)):
        for choice in itertools.product(range(len(degrees)), repeat=len(groups)):
            ranks = [degrees[d] for d in choice]
            if sum(ranks) > num_ranks:
                continue
            if any(sum(sizes[d][i] for i in g) > degrees[d] * cap for d, g in zip(choice, groups, strict=True)):
                continue
            height = max(extra[d] + sum(times[d][i] for i in g) for d, g in zip(choice, groups, strict=True))
            best = height if best is None else min(best, height)
    return best


def best_sum(
    times, sizes, degrees, num_ranks, cap, *, overhead=0, group_overhead=None, num_slots=None, min_slots=1,
    slots_multiple_of=1,
) -> int | None:  # fmt: skip
    """Least sum of slot times over all slots, groups and degrees; None if nothing is permitted."""
    n = len(times[0])
    extra = group_overhead or [0] * len(degrees)
    heights: dict[tuple[int, ...], int | None] = {}
    best = None
    for slots in partitions(list(range(n))):
        k = -(-max(len(slots), min_slots) // slots_multiple_of) * slots_multiple_of
        if num_slots is not None:
            if len(slots) > num_slots:
                continue
            k = num_slots
        total = k * overhead
        for slot in slots:
            key = tuple(slot)
            if key not in heights:
                heights[key] = slot_height(times, sizes, degrees, slot, num_ranks, cap, extra)
            height = heights[key]
            if height is None:
                break
            total += height
        else:
            best = total if best is None else min(best, total)
    return best


def cp_sat_sum(times, sizes, degrees, num_ranks, cap, overhead, num_slots) -> int:
    """Least sum of slot times for a number of slots, by CP-SAT."""
    from ortools.sat.python import cp_model

    model, n = cp_model.CpModel(), len(times[0])
    most, top = num_ranks // min(degrees), sum(map(max, zip(*times, strict=True)))
    heights = [model.new_int_var(0, top, "") for _ in range(num_slots)]
    inside = {i: [] for i in range(n)}
    for height in heights:
        used = []
        for _ in range(most):
            holds = [model.new_bool_var("") for _ in range(n)]
            choice = [model.new_bool_var("") for _ in degrees]
            model.add_at_most_one(choice)
            used.append(sum(d * chosen for d, chosen in zip(degrees, choice, strict=True)))
            for i, held in enumerate(holds):
                inside[i].append(held)
                model.add(sum(choice) >= held)
            for d, chosen in enumerate(choice):
                time = sum(t * held for t, held in zip(times[d], holds, strict=True))
                model.add(time <= height).only_enforce_if(chosen)
                size = sum(s * held for s, held in zip(sizes[d], holds, strict=True))
                model.add(size <= degrees[d] * cap).only_enforce_if(chosen)
        model.add(sum(used) <= num_ranks)
        for first, second in itertools.pairwise(used):
            model.add(first >= second)
    for held in inside.values():
        model.add_exactly_one(held)
    for first, second in itertools.pairwise(heights):
        model.add(first >= second)
    model.minimize(sum(heights))
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 2
    solver.parameters.max_time_in_seconds = 60
    assert solver.solve(model) == cp_model.OPTIMAL
    return int(solver.objective_value) + overhead * num_slots
