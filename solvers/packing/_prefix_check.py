"""The check of micro-batches whose items share prefixes, from scratch: plain loops, nothing of the scheduler."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from solvers._checking import require
from solvers.packing._schedule_check import require_cells, require_places, require_slots, require_value
from solvers.packing._schedule_types import ScheduleResult
from solvers.prefixes.verify import bins_of, refuted


def check_prefix_schedule(
    costs: ArrayLike, tokens: ArrayLike, result: ScheduleResult, *, num_ranks: int, cap: int,
    prefix: ArrayLike | Sequence[int | str | None], prefix_costs: ArrayLike, prefix_tokens: ArrayLike,
    objective: str = "lockstep", num_slots: int | str | None = None, min_slots: int = 1, slots_multiple_of: int = 1,
    allow_empty: bool = False,
) -> None:  # fmt: skip
    """Check a schedule of items that share prefixes; return nothing if all holds.

    Parameters
    ----------
    costs, tokens, num_ranks, cap, prefix, prefix_costs, prefix_tokens, objective, num_slots, min_slots
        As given to :func:`schedule_with_prefixes`; so are the rules below.
    result : ScheduleResult
    slots_multiple_of, allow_empty
        Rules on micro-batches.

    Raises
    ------
    CertificateError
        Naming the first violated rule. The bound is believed if no loads below it could hold all items, and the copies
        of prefixes that these, and the cap, need.

    Examples
    --------
    >>> from solvers.packing.prefix_schedule import schedule_with_prefixes
    >>> found = schedule_with_prefixes([3, 2], [3, 2], 1, 4, [0, 0], [1, 1], [1, 1])
    >>> check_prefix_schedule([3, 2], [3, 2], found, num_ranks=1, cap=4, prefix=[0, 0], prefix_costs=[1, 1],
    ...                       prefix_tokens=[1, 1])
    >>> found.num_slots, found.value
    (2, 7)
    """
    own, own_tokens, once, once_tokens = (
        [int(each) for each in np.asarray(given).tolist()] for given in (costs, tokens, prefix_costs, prefix_tokens)
    )
    keys = np.asarray(prefix).tolist() if isinstance(prefix, np.ndarray) else list(prefix)  # type: ignore[arg-type]
    require(result.cap == cap, f"cap is {cap}, not {result.cap}")
    require(result.objective == objective, f"objective is {objective!r}, not {result.objective!r}")
    require_slots(result, num_ranks, num_slots, min_slots, slots_multiple_of)
    cells = require_places(result, len(own))
    whole, whole_tokens = list(own), list(own_tokens)
    for items in cells.values():  # the first item of a prefix in each micro-batch bears it
        for item in {keys[i]: i for i in reversed(items)}.values():
            whole[item] += once[item]
            whole_tokens[item] += once_tokens[item]
    require_cells(result, cells, whole, whole_tokens, cap, allow_empty)
    require_value(result, sum(whole), 1)
    require(result.bound_name == "parts", f"unknown bound {result.bound_name!r:.40}")
    members = {key: [i for i in range(len(own)) if keys[i] == key] for key in dict.fromkeys(keys)}
    # A prefix is copied into every micro-batch that its items need, by their tokens beside it: at least so many.
    copies = {key: bins_of([own_tokens[i] for i in mine], cap - once_tokens[mine[0]]) for key, mine in members.items()}
    bound = int(result.lower_bound)
    holds = bound == 0 or refuted(own, once, keys, num_ranks, False, bound - 1, copies)
    require(holds, f"lower_bound = {bound} is not proven: sums of {bound - 1} are not refuted")
