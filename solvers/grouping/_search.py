"""How a solution is found: peeled in many ways, the best of them improved by solving a few slots anew.

*Peeling* fills one slot after another from all items that are left, the longest first. Three numbers say how. The
*density* sets a slot's height: so many 64ths of the time of a group that is full of the longest item left. The *floor*
is the least degree that a new group gets, by its row. The *weight* says how much time counts, against room, when an
item chooses among groups. A solution's *value* is the sum of its slots' times, and `goal` is a value that is small
enough.

Everything is counted work. What matters is which items share a slot, so the search spends itself on two or three slots
at a time, whose items it puts together anew under targets, orders and rules drawn at random.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from solvers.grouping._kernels import MANY_GROUPS, Charges, Given, peel, resolve
from solvers.grouping._problem import SequenceProblem

# In 64ths of a group that is full of the longest item. Row *densities* of benchmarks/ablation.py, sequence_groups:
# with many groups, steps are 203 +- 88 ppm longer with 64 alone.
_DENSITIES = (64, 56, 48, 40, 72, 32, 24, 96)
# Work units of an item that go into starts, and the parts of all work that they are at most and at least. Where there
# is much work for each item, slots solved anew are worth more than starts; where there is little, half as many starts
# lead to some steps that are longer by whole percents. Where slots have many groups, a fifth is the least and nothing
# is the most. Row *starts by items*: with a fifth alone steps are 197 +- 40 ppm longer (140 steps on which nothing was
# chosen).
_PEELED_ITEM = 240
_PEELING = 5, 20
# How many are improved, and each for how many hundredths of the work at most: the best alone gets what is left. The
# row *several improved* shows no gain, but steps of 64 items on 16 ranks are worse without all unsure rows at once.
# Without the round of two, steps are 97 +- 90 ppm longer.
_ROUNDS = ((4, 10), (2, 15), (1, 100))
# A step of these loops takes longer than a work unit, which is one of the local search of partitions.
_SCALE = 3, 4


@dataclass(slots=True, eq=False)
class Solution:
    """Group in its slot, degree and slot of the item at each position; how tall the first `num_slots` slots are."""

    where: NDArray[np.int64]  # int64[3, n]: rows GROUP, DEGREE, SLOT
    heights: NDArray[np.int64]
    num_slots: int

    def value(self, problem: SequenceProblem) -> int:
        """Return the sum of the slots' times."""
        return int(self.heights[: self.num_slots].sum()) + problem.overhead * problem.rules.slots_for(self.num_slots)


def _starts(num_degrees: int) -> Iterator[tuple[int, int, int]]:
    """Densities, least degrees of new groups and weights of time for peeling: those that do well come first."""
    # Degrees that are worth a try, each once: the smallest, those next to it, the middle one and the largest. Documents
    # on 1,024 ranks and more take 1.7 % longer without the middle one.
    last = num_degrees - 1
    floors = dict.fromkeys((0, min(2, last), min(1, last), last // 2, last))
    for weight in (0, 4):
        for density in _DENSITIES:
            for floor in floors:
                yield density, floor, weight


class _Search:
    """One problem, as its kernels take it."""

    def __init__(self, problem: SequenceProblem) -> None:
        p = problem
        self.many = p.num_ranks // int(p.degrees[0]) > MANY_GROUPS
        self.given = Given(p.times, p.sizes, p.least, p.by_degree, p.ranks)
        self.problem, self.seed = problem, 0
        self.charges = Charges(p.overhead, p.rules.least, p.rules.multiple, p.most_filled)

    def rank(self, found: Solution) -> tuple[int, int]:
        """What is smaller is better: slots too many, then the value."""
        return max(0, found.num_slots - self.problem.most_filled), found.value(self.problem)

    def peel(self, work: int) -> tuple[list[Solution], int]:
        """Return the solutions that peeling finds with so much work, one at least, best first; and the work done."""
        n = len(self.problem.order)
        found: list[Solution] = []
        done = 0
        for density, floor, weight in _starts(len(self.problem.degrees)):
            start = Solution(np.zeros((3, n), dtype=np.int64), np.zeros(n + 1, dtype=np.int64), 0)
            start.num_slots, spent = peel(self.given, start.where, start.heights, density, floor, weight)
            found.append(start)
            done += spent
            # The first start is paid for by every budget: there has to be a solution.
            if done >= work:
                break
        return sorted(found, key=self.rank), done

    def resolve(self, found: Solution, work: int, goal: int) -> int:
        """Improve a solution in place; return the work done."""
        self.seed += 1
        found.num_slots, spent = resolve(
            self.given, found.where, found.heights, found.num_slots, self.charges, self.seed, work, goal
        )
        return int(spent)


def search(problem: SequenceProblem, goal: int, work: int) -> tuple[Solution, bool]:
    """Return the best solution found, and whether the search ended by itself; a value of `goal` ends it.

    The solution may have more slots than the rules permit.
    """
    work = work * _SCALE[0] // _SCALE[1]
    state = _Search(problem)
    fifth, least = (work // part for part in _PEELING)
    starts = _PEELED_ITEM * len(problem.order)
    found, done = state.peel(max(fifth, starts) if state.many else min(fifth, max(least, starts)))
    # Starts of different numbers of slots lead to different solutions: the best of each number comes before second
    # ones.
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
