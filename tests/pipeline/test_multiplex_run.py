"""Turns of tasks in gaps: run as scheduled, checked from scratch, and refused where no device can run them."""

import numpy as np
import pytest

import solvers
from solvers.errors import UsageError
from solvers.pipeline import check_multiplex, multiplexed_lower_bound, one_f_one_b, run_turns, turns_of

PIPE = [[4]] * 2, [[1]], [[2]]
TASKS = [0, 1], [4, 4], [8, 8]
ORDER = one_f_one_b(2, 1)


@pytest.mark.parametrize(("seed", "chunks", "hop", "light"), [(0, 1, 3, False), (1, 2, 0, False), (2, 1, 2, True)])
def test_a_schedule_runs_again_by_its_turns(seed, chunks, hop, light):
    """The last with slots that take nothing, whose ops start together with others."""
    rng = np.random.default_rng(seed)
    work = rng.integers(1, 50, (12, 1)) * (np.arange(12) % 2 >= light)[:, None]
    forward = rng.integers(1, 9, (1, 2 * chunks))
    owner = np.sort(rng.integers(0, 12, 9))
    ahead, size = rng.integers(1, 200, 9), rng.integers(1, 9, 9)
    back, rules = 2 * ahead * (size % 2), {"hop": hop}
    made = solvers.schedule_multiplexed(
        work, forward, 2 * forward, owner, ahead, back, 2, 4, window=2, task_size=size, chunks=chunks, allow_empty=True,
        time_budget=1e-3, **rules,
    )  # fmt: skip
    bound = multiplexed_lower_bound(work, forward, 2 * forward, owner, ahead, back, 2, 4, chunks=chunks, **rules)
    assert bound == (made.lower_bound, made.bound_name)
    for replica, each in enumerate(made.replicas):
        mine = made.tasks_of(replica)
        loads, here = np.zeros((4, 1), dtype=np.int64), made.replica_of_item == replica
        np.add.at(loads, made.slot_of_item[here], work[here])
        given = loads, forward, 2 * forward, made.slot_of_item[owner[mine]], ahead[mine], back[mine]
        turns = turns_of(each, ahead[mine], back[mine])
        again = run_turns(*given, each.task_device, *turns, each.order, window=2, task_size=size[mine], **rules)
        assert again.makespan <= each.makespan  # a list schedule that no search has run may wait for nothing
        assert again.makespan == each.makespan or each.makespan < made.makespan
        assert again.held.tolist() == each.held.tolist()
        check_multiplex(*given, again, window=2, task_size=size[mine], **rules)


@pytest.mark.parametrize(
    ("device", "turns", "told"),
    [
        ([0, 0], ([0, 0], [4, 7]), "distinct and within 0..7"),
        ([0, 0], ([0, 2], [4, 8]), "distinct and within 0..7"),
        ([0, 1], ([0, 2], [4, 7]), "within 0..0"),
        ([0, 0], ([0, 2], [-1, 7]), "one of its backward exactly"),
        ([0, 0], ([1, 2], [4, 7]), "wait for each other"),
        ([0, 0], ([0, 3], [2, 7]), "wait for each other"),
    ],
)
def test_turns_that_no_device_can_run(device, turns, told):
    run_turns(*PIPE, *TASKS, [0, 0], [0, 2], [4, 7], ORDER, window=2)
    with pytest.raises((UsageError, ValueError), match=told):
        run_turns(*PIPE, *TASKS, device, *turns, ORDER, window=2)


def test_a_step_of_nothing_takes_nothing():
    nothing = np.zeros(0, dtype=np.int64)
    tasks, rules = (nothing, nothing, nothing), {"window": 2, "allow_empty": True, "time_budget": 1e-4}
    made = solvers.schedule_multiplexed(nothing.reshape(0, 1), [[1, 1]], [[2, 2]], *tasks, 2, 2, **rules)
    assert (made.makespan, made.lower_bound) == (0, 0)
