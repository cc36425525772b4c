"""How a solution is found: peeled in many ways, the best of them improved by solving a few slots anew.

Everything is counted work. Where slots are few, what matters is which items share one, so the search spends itself on
two or three slots at a time, whose items it puts together anew under targets, orders and rules drawn at random.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from solvers.sequence_groups._kernels import MANY_GROUPS, peel, resolve
from solvers.sequence_groups._problem import SequenceProblem

__all__ = ["Solution", "search"]

_DENSITIES = (64, 56, 48, 40, 72, 32, 24, 96)  # 64ths
_PEELING = 5  # a fifth of the work at most goes into starts
_ROUNDS = ((4, 10), (2, 15), (1, 100))  # how many are improved, and each for how many hundredths of the work at most
_SCALE = 3, 4  # a step of these loops takes longer than a work unit


@dataclass(slots=True, eq=False)
class Solution:
    """Slot, group in the slot and degree of the item at each position; how tall the first `num_slots` slots are."""

    where: NDArray[np.int64]
    heights: NDArray[np.int64]
    num_slots: int

    def value(self, problem: SequenceProblem) -> int:
        """Return the sum of the slots' times."""
        return int(self.heights[: self.num_slots].sum()) + problem.overhead * problem.rules.slots_for(self.num_slots)


def _starts(num_degrees: int, in_node: int) -> Iterator[tuple[int, int, int]]:
    """Densities, least degrees of new groups and weights of time for peeling: those that do well come first."""
    floors = dict.fromkeys((0, min(2, in_node), min(1, in_node), in_node, num_degrees - 1))
    for weight in (0, 4):
        for density in _DENSITIES:
            for floor in floors:
                yield density, floor, weight


class _Search:
    """One problem with the room that its kernels need."""

    def __init__(self, problem: SequenceProblem) -> None:
        p, most_groups = problem, problem.num_ranks // int(problem.degrees[0])
        tree = np.zeros((3, int(p.shape[3, -1]) if most_groups > MANY_GROUPS else 1), dtype=np.int64)
        groups = np.zeros((4, most_groups), dtype=np.int64)
        self.given = p.least, p.times, p.sizes, p.shape, p.ranks, groups, tree
        self.problem, self.seed = problem, 0
        self.slots = np.array([p.overhead, p.rules.least, p.rules.multiple], dtype=np.int64)

    def rank(self, found: Solution) -> tuple[int, int]:
        """What is smaller is better: slots too many, then the value."""
        return max(0, found.num_slots - self.problem.most_filled), found.value(self.problem)

    def peel(self, work: int) -> tuple[list[Solution], int]:
        """Return the solutions that peeling finds with so much work, one at least, best first; and the work done."""
        n, degrees = len(self.problem.order), self.problem.degrees
        in_node = max(0, int(np.searchsorted(degrees, self.problem.ranks_per_node, "right")) - 1)
        found: list[Solution] = []
        done = 0
        for density, floor, weight in _starts(len(degrees), in_node):
            start = Solution(np.zeros((3, n), dtype=np.int64), np.zeros(n + 1, dtype=np.int64), 0)
            start.num_slots, spent = peel(density, floor, weight, *self.given, start.where, start.heights)
            found.append(start)
            done += spent
            if done >= work:
                break
        return sorted(found, key=self.rank), done

    def resolve(self, found: Solution, work: int, goal: int) -> int:
        """Improve a solution in place; return the work done."""
        self.seed += 1
        found.num_slots, spent = resolve(
            self.seed,
            work,
            goal,
            self.problem.most_filled,
            self.slots,
            *self.given,
            found.where,
            found.heights,
            found.num_slots,
        )
        return int(spent)


def search(problem: SequenceProblem, goal: int, work: int) -> tuple[Solution, bool]:
    """Return the best solution found, and whether the search ended by itself; a value of `goal` ends it.

    The solution may have more slots than the rules permit.
    """
    work = work * _SCALE[0] // _SCALE[1]
    state = _Search(problem)
    found, done = state.peel(work // _PEELING)
    first = {each.num_slots: each for each in reversed(found)}  # the best of each number of slots
    alive = sorted(first.values(), key=state.rank)
    alive += [each for each in found if first[each.num_slots] is not each]
    alive = alive[: _ROUNDS[0][0]]
    for count, share in _ROUNDS:
        alive = sorted(alive, key=state.rank)[:count]
        for each in alive:
            if min(map(state.rank, alive)) > (0, goal) and work > done:
                done += state.resolve(each, min(work - done, work * share // 100), goal)
    return min(alive, key=state.rank), done < work
