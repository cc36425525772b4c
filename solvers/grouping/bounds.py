"""Lower bounds on the sum of slot times, in closed form.

``area``: no slot's groups run longer than those of all slots together, S, so every item takes at least its least
rank-time (degree times time) among the degrees that hold it and take no longer than S; and the slots offer their ranks
for S. The least S for which that is enough is the bound. ``longest``: some group runs an item at its fastest degree. To
either, the overheads of the fewest slots that hold all sizes.
"""

import numpy as np

from solvers.bounds import Bound
from solvers.grouping._kernels import RANK_TIME, TIME
from solvers.grouping._problem import SequenceProblem


def _area(problem: SequenceProblem, height: int) -> int:
    """Sum of the least rank-times of all items in groups that take at most `height`, in which each has its place."""
    rooms, extra = problem.by_degree["room"][:, None], problem.by_degree["overhead"][:, None]
    may = (problem.sizes <= rooms) & (problem.times + extra <= height)
    rank_times = np.where(may, problem.times * problem.degrees[:, None], np.iinfo(np.int64).max)
    return int(rank_times.min(axis=0).sum())


def closed_form(problem: SequenceProblem) -> Bound:
    """Return the best bound in closed form. O(n) times the degrees, or log of the times as often."""
    if not len(problem.order):
        return Bound(problem.overhead * problem.rules.slots_for(0), "longest")
    ranks, longest = problem.num_ranks, int(problem.least[TIME].max())
    low = max(longest, -(-int(problem.least[RANK_TIME].sum()) // ranks))
    # The area falls as S grows, for more degrees are quick enough. Where the first S is enough already, it is the
    # bound; else it is below the slowest item at its slowest degree, where all degrees count.
    high = (
        low
        if ranks * low >= _area(problem, low)
        else max(low, int((problem.times + problem.by_degree["overhead"][:, None]).max()))
    )
    while low < high:
        middle = (low + high) // 2
        if ranks * middle >= _area(problem, middle):
            high = middle
        else:
            low = middle + 1
    return Bound(low + problem.overhead * problem.fewest_slots, "longest" if low == longest else "area")
