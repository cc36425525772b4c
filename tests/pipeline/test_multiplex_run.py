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


def drawn(seed, long):
    """Pipelines of two replicas with tasks: of long ops, or of ops that mostly take no time."""
    rng = np.random.default_rng(seed)
    chunks, hop = int(rng.integers(1, 3)), int(rng.integers(0, 4))
    devices = 1 if long else int(rng.integers(1, 4))
    work, forward = rng.integers(0, 50 if long else 3, (8, 1)), rng.integers(0, 9 if long else 2, (1, devices * chunks))
    owner, (ahead, back) = np.sort(rng.integers(0, 8, 7)), rng.integers(0, 200 if long else 2, (2, 7))
    forward[0, 0], size = 1, rng.integers(1, 9, 7)
    asked = PipelineRequest(work, forward, 2 * forward, 2, 3 * devices, chunks=chunks, allow_empty=True, hop=hop)
    return asked, TaskRequest(owner, ahead, back, int(rng.integers(1, 4)), size)


@pytest.mark.parametrize("long", [True, False])
@pytest.mark.parametrize("seed", range(examples(8)))
def test_a_schedule_runs_again_by_its_turns(seed, long):
    """By the starts alone, a quarter of the short ones could not be told from turns that wait for each other."""
    asked, beside = drawn(seed, long)
    made = solvers.schedule_multiplexed(asked, beside, time_budget=1e-4)
    assert multiplexed_lower_bound(asked, beside) == (made.lower_bound, made.bound_name)
    for replica, each in enumerate(made.replicas):
        mine = made.tasks_of(replica)
        loads, here = np.zeros((made.num_slots, 1), dtype=np.int64), made.replica_of_item == replica
        np.add.at(loads, made.slot_of_item[here], asked.work[here])
        given = PipelineRequest(loads, asked.forward, asked.backward, order=each.order, hop=asked.hop)
        tasks = beside.of_slots(made.slot_of_item[beside.owner[mine]], mine)
        turns = each.task_forward_turn.tolist(), each.task_backward_turn.tolist()
        again = run_turns(given, tasks, each.task_device, *turns)
        assert (again.makespan, again.held.tolist()) == (each.makespan, each.held.tolist())
        assert (again.task_forward_turn.tolist(), again.task_backward_turn.tolist()) == turns
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
