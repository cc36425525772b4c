"""The checker under constraints: every rule and every bound from scratch, with no code of the solvers.

A bound b is checked by refuting b - 1: the argument it names must show that no assignment reaches that.
"""

from collections.abc import Callable
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from solvers._checking import require, require_status
from solvers.constraints import ConstrainedProblem
from solvers.errors import CertificateError
from solvers.types import PartitionResult

PlainBounds = dict[str, Callable[[list[int], int], int]]


def check_constrained(
    problem: ConstrainedProblem, result: PartitionResult, plain_bounds: PlainBounds, trusted: frozenset[str],
    stop_at: Fraction,
) -> None:  # fmt: skip
    """Raise CertificateError naming the first violated rule, or return."""
    shape = (problem.num_groups, problem.costs.shape[1]) if problem.vector else (problem.num_groups,)
    groups = check_groups(result, len(problem.costs), shape)
    _check_rules(problem, groups)
    _check_loads(problem, groups, result)
    require_status(result.status, result.lower_bound, result.makespan, stop_at=stop_at)
    _check_bound(problem, result, plain_bounds, trusted)


def check_groups(result: PartitionResult, num_items: int, loads_shape: tuple[int, ...]) -> NDArray[np.int32]:
    """Check that every item has one of ``loads_shape[0]`` groups, and every group its loads; return the groups."""
    groups, m = result.group_of_item, loads_shape[0]
    require(
        result.loads.shape == loads_shape and result.loads.dtype == np.int64,
        f"loads must be int64 of shape {loads_shape}, got {result.loads.dtype} of shape {result.loads.shape}",
    )
    require(
        groups.shape == (num_items,), f"every item has one group: {num_items} items, groups of shape {groups.shape}"
    )
    require(groups.dtype == np.int32, f"group_of_item must be int32, got {groups.dtype}")
    inside = (groups >= 0) & (groups < m)
    if not inside.all():
        item = int(np.argmin(inside))
        raise CertificateError(f"item {item} is in group {groups[item]}, outside 0..{m - 1}")
    return groups


def _check_rules(problem: ConstrainedProblem, groups: NDArray[np.int32]) -> None:
    m = problem.num_groups
    allowed = problem.masks[problem.mask_of_item, groups]
    if not allowed.all():
        item = int(np.argmin(allowed))
        raise CertificateError(f"allowed: item {item} may not be in group {groups[item]}")
    if problem.key_of_item is not None and len(groups):
        _, first = np.unique(problem.key_of_item, return_index=True)
        together = groups == groups[first[problem.key_of_item]]
        if not together.all():
            item = int(np.argmin(together))
            other = int(first[problem.key_of_item[item]])
            raise CertificateError(
                f"keep_together: items {other} and {item} have one key and are in groups {groups[other]} and "
                f"{groups[item]}"
            )
    for q in range(problem.sizes.shape[1]):
        held = np.zeros(m, dtype=np.int64)
        np.add.at(held, groups, problem.sizes[:, q])
        over = held > problem.caps[:, q]
        if over.any():
            group = int(np.argmax(over))
            raise CertificateError(
                f"caps: group {group} holds {held[group]} of quantity {q}, over its cap {problem.caps[group, q]}"
            )
    counts = np.bincount(groups, minlength=m)
    wrong = (counts < problem.least_items) | (counts > problem.most_items)
    if wrong.any():
        group = int(np.argmax(wrong))
        names = [name for name in ("equal_counts", "min_items", "max_items") if name in problem.names]
        raise CertificateError(
            f"{', '.join(names)}: group {group} holds {counts[group]} items, "
            f"not {problem.least_items} to {problem.most_items}"
        )


def _check_loads(problem: ConstrainedProblem, groups: NDArray[np.int32], result: PartitionResult) -> None:
    loads = problem.initial.copy()
    np.add.at(loads, groups, problem.costs)
    claimed = result.loads if problem.vector else result.loads[:, None]
    wrong = (loads != claimed).any(axis=1)
    if wrong.any():
        group = int(np.argmax(wrong))
        got, given = (rows[group].tolist() if problem.vector else int(rows[group, 0]) for rows in (loads, claimed))
        raise CertificateError(f"the load of group {group} is {got}, not {given}")
    times = [max(-(-int(load) // int(s)) for load, s in zip(column, problem.speeds, strict=True)) for column in loads.T]
    makespan = sum(times) if problem.objective == "sum" else max(times)
    require(result.makespan == makespan, f"the loads make a makespan of {makespan}, not {result.makespan}")


def _check_bound(
    problem: ConstrainedProblem, result: PartitionResult, plain_bounds: PlainBounds, trusted: frozenset[str]
) -> None:
    bound, name = result.lower_bound, result.bound_name
    if name in trusted or bound == 0:
        return
    proof = _Proof(problem, plain_bounds)
    require(
        name in proof.arguments,
        f"lower_bound is by an unknown argument {name!r}; known here are {', '.join(proof.arguments)}",
    )
    proven = proof.bound(name)
    require(bound <= proven, f"lower_bound = {bound}, but '{name}' proves {proven} at most")


class _Proof:
    """Bounds by their definition, on the items merged by key."""

    def __init__(self, problem: ConstrainedProblem, plain_bounds: PlainBounds) -> None:
        self.problem, self.plain = problem, plain_bounds
        self.speeds = [int(s) for s in problem.speeds]
        self._merge()
        self.one_component = {"water": self.water, "fastest": self.fastest, "best_group": self.best_group,
                              "masks": self.masks, "fill": self.fill}  # fmt: skip
        vector = ["components", "summed_cost"]
        scalar = [*plain_bounds, *self.one_component]
        self.arguments = vector if problem.costs.shape[1] > 1 else scalar

    def _merge(self) -> None:
        problem = self.problem
        n = len(problem.costs)
        # Units by key, in plain dictionaries: the solver's own `merge` is not to be trusted here.
        keys = range(n) if problem.key_of_item is None else problem.key_of_item.tolist()
        members: dict[int, list[int]] = {}
        for item, key in enumerate(keys):
            members.setdefault(key, []).append(item)
        self.units = list(members.values())
        rows = [problem.masks[problem.mask_of_item[items]].all(axis=0) for items in self.units]
        self.allowed = np.array(rows, dtype=np.bool_).reshape(len(rows), problem.num_groups)
        self.costs = np.array([problem.costs[items].sum(axis=0) for items in self.units], dtype=np.int64)
        self.costs = self.costs.reshape(len(rows), problem.costs.shape[1])
        amounts = [[len(items), *problem.sizes[items].sum(axis=0).tolist()] for items in self.units]
        self.amounts = np.array(amounts, dtype=np.int64).reshape(len(rows), 1 + problem.sizes.shape[1])

    def bound(self, name: str) -> int:
        """Return what the argument proves."""
        problem = self.problem
        c = problem.costs.shape[1]
        if name == "components":
            parts = [self.component(self.costs[:, k], problem.initial[:, k]) for k in range(c)]
            return sum(parts) if problem.objective == "sum" else max(parts)
        if name == "summed_cost":
            summed = self.component(self.costs.sum(axis=1), problem.initial.sum(axis=1))
            return summed if problem.objective == "sum" else -(-summed // c)
        return self.argument(name, self.costs[:, 0], problem.initial[:, 0])

    def component(self, costs: NDArray[np.int64], initial: NDArray[np.int64]) -> int:
        """Return the best of all arguments on one component."""
        names = [name for name in ("mean", "largest", "pigeonhole", "filler", "folding") if name in self.plain]
        return max((self.argument(name, costs, initial) for name in [*names, *self.one_component]), default=0)

    def argument(self, name: str, costs: NDArray[np.int64], initial: NDArray[np.int64]) -> int:
        """Return what one argument proves of one component."""
        if name in self.plain:
            # A group's initial load counts as one item more: other groups could have had it too, so the bound holds.
            # Equal counts do not count it.
            before = [] if name in ("filler", "folding") else [load for load in initial.tolist() if load]
            items = sorted([*costs.tolist(), *before], reverse=True)
            return -(-self.plain[name](items, self.problem.num_groups) // max(self.speeds)) if items else 0
        return self.one_component[name](costs.tolist(), initial.tolist())

    def level(self, needed: int, initial: list[int], groups: list[int]) -> int:
        """Smallest T at which the groups have room for `needed`: bisected on the definition."""
        low, high = 0, min(-(-(initial[g] + needed) // self.speeds[g]) for g in groups)
        while low < high:
            middle = (low + high) // 2
            room = sum(max(0, middle * self.speeds[g] - initial[g]) for g in groups)
            low, high = (low, middle) if room >= needed else (middle + 1, high)
        return low

    def water(self, costs: list[int], initial: list[int]) -> int:
        """All groups filled to one level."""
        groups = list(range(len(initial)))
        before = max(-(-load // s) for load, s in zip(initial, self.speeds, strict=True))
        return max(before, self.level(sum(costs), initial, groups))

    def fastest(self, costs: list[int], initial: list[int]) -> int:
        """The k largest units need the room of the k groups with most of it."""
        largest = sorted(costs, reverse=True)[: len(initial) - 1]
        if not largest:
            return 0

        def holds(target: int) -> bool:
            room = sorted((max(0, target * s - i) for s, i in zip(self.speeds, initial, strict=True)), reverse=True)
            return all(sum(room[:k]) >= sum(largest[:k]) for k in range(1, len(largest) + 1))

        low, high = 0, max(-(-(i + sum(largest)) // s) for s, i in zip(self.speeds, initial, strict=True))
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if holds(middle) else (middle + 1, high)
        return low

    def best_group(self, costs: list[int], initial: list[int]) -> int:
        """A unit alone in the group where it finishes first."""
        loads, speeds = np.array(initial), np.array(self.speeds)
        finish = [
            int((-(-(loads[mask] + cost) // speeds[mask])).min())
            for cost, mask in zip(costs, self.allowed, strict=True)
            if mask.any()
        ]
        return max(finish, default=0)

    def masks(self, costs: list[int], initial: list[int]) -> int:
        """Units that may only be inside a mask, or the union of two, filled to one level there."""
        distinct, mask_of_unit = np.unique(self.allowed, axis=0, return_inverse=True)
        weights = [
            sum(c for c, k in zip(costs, mask_of_unit.reshape(-1), strict=True) if k == j) for j in range(len(distinct))
        ]
        # As the solver says it: one mask, or two together. A larger family would prove more than is claimed, and take
        # longer.
        best = 0
        for j in range(len(distinct)):
            for other in range(j + 1):
                groups = distinct[j] | distinct[other]
                inside = sum(w for w, mask in zip(weights, distinct, strict=True) if not (mask & ~groups).any())
                if inside and groups.any():
                    best = max(best, self.level(inside, initial, np.flatnonzero(groups).tolist()))
        return best

    def fill(self, costs: list[int], initial: list[int]) -> int:
        """A unit with the cheapest company, cut to measure, that what other groups cannot hold forces on its group."""
        problem = self.problem
        m, best = problem.num_groups, 0
        for d in range(self.amounts.shape[1]):
            amounts = self.amounts[:, d].tolist()
            caps = [problem.most_items] * m if d == 0 else problem.caps[:, d - 1].tolist()
            least = problem.least_items if d == 0 else 0
            forced = [max(least, sum(amounts) - sum(caps) + cap) for cap in caps]
            if max(forced) <= 0:
                continue
            # Fractions of units, the cheapest for their amount first: no whole units cost less (Dantzig 1957).
            order = sorted((u for u in range(len(costs)) if amounts[u]), key=lambda u: costs[u] / amounts[u])
            sums = np.cumsum([[amounts[u], costs[u]] for u in order], axis=0).reshape(-1, 2)
            known: dict[int, int] = {}
            for u, mask in enumerate(self.allowed):
                finish = []
                for g in np.flatnonzero(mask).tolist():
                    need = forced[g] - amounts[u]
                    if need not in known:
                        known[need] = _cheapest(need, order, sums, costs, amounts)
                    finish.append(-(-(initial[g] + costs[u] + known[need]) // self.speeds[g]))
                best = max(best, min(finish, default=0))
        return best


def _cheapest(need: int, order: list[int], sums: NDArray[np.int64], costs: list[int], amounts: list[int]) -> int:
    if need <= 0 or not order:
        return 0
    k = int(np.searchsorted(sums[:, 0], need))
    if k == len(order):
        return int(sums[-1, 1])
    before = (int(sums[k - 1, 0]), int(sums[k - 1, 1])) if k else (0, 0)
    return before[1] + -(-(need - before[0]) * costs[order[k]] // amounts[order[k]])
