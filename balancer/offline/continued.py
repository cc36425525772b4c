"""What is left of a plan of which some steps were trained, to be planned for other ranks."""

import os
from typing import Any

from balancer.errors import InputError
from balancer.io.log_files import LogPath
from balancer.io.plan_reader import open_plan
from balancer.offline.claims import Claims
from balancer.offline.load import source_of
from solvers.errors import ArgumentError


def left_of(plan: str | os.PathLike[str], log: LogPath, at_step: int) -> dict[str, Any]:
    """Return, as settings of a log have them, the epochs that are left behind the first `at_step` steps of a plan.

    Steps have consecutive samples of an epoch's order, so that those trained are the ones before a place in it.

    Raises
    ------
    InputError, ArgumentError
        A plan that cannot be read, or is of another log; no such step, or one behind which nothing is left.
    """
    claims = Claims(open_plan(plan))
    if claims.is_saved:
        raise InputError(f"{plan}: was saved by itself, and no log goes on behind it")
    if claims.settings.across is not None and at_step:
        raise InputError(
            f"{plan}: its samples run early or late, so that behind a step no place of an epoch divides what ran from "
            "what did not; BalancedBatchSampler(..., window=W) goes on with other ranks"
        )
    source_of(claims, log)  # the same to the byte
    order = claims.order
    if not 0 <= at_step < order.num_steps:
        left = "nothing is left behind the last" if at_step == order.num_steps else f"the plan has {order.num_steps}"
        raise ArgumentError("at_step", f"be within 0..{order.num_steps - 1}", f"{at_step}: {left}")
    epoch, sample = order.place(at_step)
    return {
        "epochs": order.epochs - (epoch - order.first_epoch), "shuffle": order.shuffle, "first_epoch": epoch,
        "first_sample": sample,
    }  # fmt: skip
