"""Turns of tasks in gaps: run as scheduled, checked from scratch, and refused where no device can run them."""

from dataclasses import replace

import numpy as np
import pytest
from nightly import examples

import solvers
from solvers.errors import CertificateError, UsageError
from solvers.pipeline import (
    PipelineRequest,
    TaskRequest,
    check_multiplex,
    multiplex,
    multiplexed_lower_bound,
    one_f_one_b,
    run_turns,
)

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
    back = 2 * ahead * (size % 2)
    asked = PipelineRequest(work, forward, 2 * forward, 2, 4, chunks=chunks, allow_empty=True, hop=hop)
    beside = TaskRequest(owner, ahead, back, 2, size)
    made = solvers.schedule_multiplexed(asked, beside, time_budget=1e-3)
    bound = multiplexed_lower_bound(asked, beside)
    assert bound == (made.lower_bound, made.bound_name)
    for replica, each in enumerate(made.replicas):
        mine = made.tasks_of(replica)
        loads, here = np.zeros((4, 1), dtype=np.int64), made.replica_of_item == replica
        np.add.at(loads, made.slot_of_item[here], work[here])
        given = PipelineRequest(loads, forward, 2 * forward, order=each.order, hop=hop)
        tasks = beside.of_slots(made.slot_of_item[owner[mine]], mine)
        again = run_turns(given, tasks, each.task_device, each.task_forward_turn, each.task_backward_turn)
        assert again.makespan == each.makespan
        assert again.held.tolist() == each.held.tolist()
        check_multiplex(given, tasks, again)


@pytest.mark.parametrize("seed", range(examples(12)))
def test_turns_of_what_takes_no_time_do_not_wait_for_each_other(seed):
    """By the starts alone, a quarter of these could not be told from turns that do."""
    rng = np.random.default_rng(seed)
    devices, chunks = rng.integers(1, 4), int(rng.integers(1, 3))
    work, forward = rng.integers(0, 3, (6, 1)), rng.integers(0, 2, (1, devices * chunks))
    owner, (ahead, back) = np.sort(rng.integers(0, 6, 7)), rng.integers(0, 2, (2, 7))
    size = rng.integers(1, 9, 7)
    forward[0, 0], window, hop = 1, int(rng.integers(1, 4)), int(rng.integers(0, 2))
    asked = PipelineRequest(work, forward, 2 * forward, 2, 3 * devices, chunks=chunks, allow_empty=True, hop=hop)
    beside = TaskRequest(owner, ahead, back, window, size)
    made = solvers.schedule_multiplexed(asked, beside, time_budget=1e-4)
    bound = multiplexed_lower_bound(asked, beside)
    assert bound == (made.lower_bound, made.bound_name)
    for replica, each in enumerate(made.replicas):
        mine = made.tasks_of(replica)
        loads, here = np.zeros((made.num_slots, 1), dtype=np.int64), made.replica_of_item == replica
        np.add.at(loads, made.slot_of_item[here], work[here])
        given = PipelineRequest(loads, forward, 2 * forward, order=each.order, hop=hop)
        tasks = beside.of_slots(made.slot_of_item[owner[mine]], mine)
        turns = each.task_forward_turn, each.task_backward_turn
        again = run_turns(given, tasks, each.task_device, *turns)
        assert again.makespan == each.makespan
        assert (again.task_forward_turn.tolist(), again.task_backward_turn.tolist()) == (
            turns[0].tolist(),
            turns[1].tolist(),
        )
        for found in (each, again):
            check_multiplex(given, tasks, found)


@pytest.mark.parametrize(
    ("turns", "told"),
    [
        (([0, 2], [6, 4]), "waits forever"),
        (([0, 2], [7, 6]), "is said to run at"),
        (([0, 0], [6, 7]), "two tasks have turn 0"),
        (([0, 9], [6, 7]), "within 0..7"),
        (([0, 2], [-1, 7]), "within 0..7"),
    ],
)
def test_turns_that_are_not_those_of_the_schedule_are_found(turns, told):
    made = multiplex(*PIPE, *TASKS, window=2, time_budget=1e-4)
    assert (made.task_forward_turn.tolist(), made.task_backward_turn.tolist()) == ([0, 2], [6, 7])
    odd = replace(made, task_forward_turn=np.array(turns[0]), task_backward_turn=np.array(turns[1]))
    with pytest.raises(CertificateError, match=told):
        check_multiplex(PipelineRequest(*PIPE), TaskRequest(*TASKS, 2), odd)


def test_turns_that_wait_forever_are_found_where_starts_do_not_show_it():
    """All takes nothing, and a task comes after the op that waits for it."""
    nothing, tasks = ([[0]], [[0]], [[0]]), ([0], [0], [0])
    made = multiplex(*nothing, *tasks, window=2, time_budget=1e-4)
    odd = replace(made, task_forward_turn=np.array([1]))
    with pytest.raises(CertificateError, match="waits forever"):
        check_multiplex(PipelineRequest(*nothing), TaskRequest(*tasks, 2), odd)


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
    asked = PipelineRequest(*PIPE, order=ORDER), TaskRequest(*TASKS, 2)
    run_turns(*asked, [0, 0], [0, 2], [4, 7])
    with pytest.raises((UsageError, ValueError), match=told):
        run_turns(*asked, device, *turns)


def test_a_step_of_nothing_takes_nothing():
    nothing = np.zeros(0, dtype=np.int64)
    asked = PipelineRequest(nothing.reshape(0, 1), [[1, 1]], [[2, 2]], 2, 2, allow_empty=True)
    made = solvers.schedule_multiplexed(asked, TaskRequest(nothing, nothing, nothing, 2), time_budget=1e-4)
    assert (made.makespan, made.lower_bound) == (0, 0)
