"""An epoch's order with samples deferred, for batches that are cut from an order by count."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from balancer.cost import CostModel
from balancer.deferral.defer import Drawn
from balancer.deferral.request import Request

Ints = NDArray[np.int64]


def cut_from(
    samples: int, early: int, late: int, batch_size: int, num_ranks: int, cost: CostModel, cap: int | None
) -> dict[str, Any]:
    """Return how an epoch is cut into steps behind so many samples, as JSON: a saved place in it has all its cuts."""
    values = {"from": samples, "early": early, "late": late, "batch_size": batch_size, "num_ranks": num_ranks}
    return values | {"cost": str(cost), "max_tokens_per_rank": cap}


def deferred_order(lengths: Ints, cuts: list[dict[str, Any]], drop_last: bool = False) -> Ints:
    """Return the positions of an epoch's order in the order in which they run: int64[n].

    Each step has exactly as many samples as nominally, so that steps begin where they do without deferral.

    Parameters
    ----------
    lengths : int64[n]
        In the epoch's order.
    cuts : list of dict
        Of :func:`cut_from`. Each holds for all samples that have not run before it: they are cut into nominal steps
        anew, those that were deferred first.
    drop_last : bool
        A short last step stays as it is, behind all others, for it will be dropped.
    """
    left, ran = np.arange(len(lengths)), []
    for cut, later in zip(cuts, [*cuts[1:], None], strict=True):
        # 0.05 as in `balancer.defer`. A saved cut does not say it: with another value it would stand for another order.
        request = Request.of(
            cut["num_ranks"], cut["batch_size"], None, cut["early"], cut["late"], "exact", 0.05, cut["cost"],
            most_long_share=None, max_tokens_per_rank=cut["max_tokens_per_rank"], micro_batch_tokens=None,
        )  # fmt: skip
        here = lengths[left]
        step = request.nominal_steps(here, drop_last)
        if len(kept := np.flatnonzero(step >= 0)):
            step[kept] = Drawn(request, here[kept], step[kept]).solve().step
        # A short last step that is left out runs behind all others: its samples still belong to the order.
        step[step < 0] = len(here)
        # Stable: within a step samples stay in the order in which they were drawn.
        order = left[np.argsort(step, kind="stable")]
        count = len(order) if later is None else later["from"] - cut["from"]
        ran.append(order[:count])
        # In the epoch's order again: the next cut draws what has not run as if it were new.
        left = np.sort(order[count:])
    return np.concatenate(ran)
