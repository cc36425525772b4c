"""Tasks in the gaps of pipelines: against CP-SAT on small cases, under every rule, and what is refused."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from compiled import from_python
from hypothesis import given, settings
from hypothesis import strategies as st
from nightly import examples
from pipeline_oracles import closed_forms, durations, gap_forms, gap_starts, longest, op_before

import solvers
from solvers.errors import ArgumentError, CertificateError, InfeasibleError, UsageError
from solvers.groups import read_only
from solvers.pipeline import (
    OpOrder,
    PipelineRequest,
    TaskRequest,
    check_multiplex,
    gpipe,
    multiplex,
    one_f_one_b,
    schedule_multiplexed,
)
from solvers.pipeline._gap_list import Listed, ListRule, PipelineOps, list_schedule
from solvers.pipeline._gap_list import listed as best_list
from solvers.pipeline._gap_run import late_tasks, pipeline_of, set_after
from solvers.pipeline._problem import PipelineProblem
from solvers.pipeline._tasks import NO_CAP, TASK, SlotTasks, Tasks
from solvers.pipeline.multiplex_slots import _curved, _evened
from solvers.pipeline.run import Stages

QUICK = {"time_budget": 2e-4}
BACK_TO_FRONT = OpOrder.of([[(k, s, b) for b in (False, True) for k in (2, 1, 0)] for s in range(2)], 3, 2)


def requests(work, forward, backward, *tasks, counts=(), **rules):
    """What :func:`multiplex` takes, as requests."""
    names = {"window", "task_size", "held_cap", "task_devices"} & rules.keys()
    of_tasks = {name.removeprefix("task_"): rules.pop(name) for name in sorted(names)}
    return PipelineRequest(work, forward, backward, *counts, **rules), TaskRequest(*tasks, **of_tasks)


def checked(problem, found, **rules):
    """Check, and compare every op's start, and the bound, with those of the tests' own."""
    check_multiplex(*requests(*problem, **rules), found)
    loads, forward, backward, *tasks = problem
    lists, hop = [found.order.ops_of(d) for d in range(found.order.num_devices)], rules.get("hop", 0)
    every = durations(loads, forward, backward)
    took = {op: every[op] for each in lists for op in each}
    turns = found.task_forward_turn.tolist(), found.task_backward_turn.tolist()
    starts = gap_starts(lists, took, tasks, found.task_device.tolist(), turns, rules["window"], hop)
    told = {(k, s, back): (found.backward_start if back else found.forward_start)[k, s] for k, s, back in took}
    told |= {(i, back): (found.task_backward_start if back else found.task_forward_start)[i]
             for i in range(len(tasks[0])) for back in (False, True) if tasks[1 + back][i] or not back}  # fmt: skip
    assert {op: starts[op] for op in told} == told
    devices = rules.get("task_devices")
    allowed = None if devices is None or isinstance(devices, str) else np.asarray(devices).tolist()
    if len(lists) == 1:
        allowed = [[True]] * len(tasks[0])
    forms = gap_forms(took, lists, tasks, longest(lists, took, len(forward[0]), hop), len(loads), allowed)
    assert found.lower_bound == forms[found.bound_name]


def best_makespan(
    loads, forward, backward, slot, ahead, back, *, window, held_cap=None, hop=0, devices=None, size=None
):  # fmt: skip
    """Optimum by CP-SAT, from the rules alone."""
    from ortools.sat.python import cp_model

    model, stages, slots = cp_model.CpModel(), len(forward[0]), len(loads)
    lists = [one_f_one_b(slots, stages).ops_of(d) for d in range(stages)]
    took = {(k, s, b): sum(x * u[s] for x, u in zip(loads[k], unit, strict=True))
            for k in range(slots) for s in range(stages)
            for b, unit in ((False, forward), (True, backward))}  # fmt: skip
    most = sum(took.values()) + sum(ahead) + sum(back) + hop * (4 * slots * stages + 4 * len(slot))
    start = {op: model.new_int_var(0, most, "") for op in took}
    end = model.new_int_var(0, most, "")
    on = [[] for _ in lists]
    held = [[] for _ in lists]
    for d, each in enumerate(lists):
        for one, other in pairwise(each):
            model.add(start[other] >= start[one] + took[one])
        for k, s, b in each:
            on[d].append(model.new_fixed_size_interval_var(start[k, s, b], took[k, s, b], ""))
            model.add(end >= start[k, s, b] + took[k, s, b])
            before = op_before((k, s, b), stages)
            if before:
                model.add(start[k, s, b] >= start[before] + took[before] + (hop if before[1] != s else 0))
    for i, k in enumerate(slot):
        first, last = model.new_int_var(0, most, ""), model.new_int_var(0, most, "")
        here = [model.new_bool_var("") for _ in lists]
        model.add_exactly_one(here)
        model.add(end >= first + ahead[i])
        if k >= window:
            model.add(first >= start[k - window, 0, False])
        for d, literal in enumerate(here):
            if devices is not None and not devices[i][d]:
                model.add(literal == 0)
            away = hop if d else 0
            model.add(start[k, 0, False] >= first + ahead[i] + away).only_enforce_if(literal)
            on[d].append(model.new_optional_fixed_size_interval_var(first, ahead[i], literal, ""))
            if back[i]:
                model.add(last >= start[k, 0, True] + took[k, 0, True] + away).only_enforce_if(literal)
                model.add(end >= last + back[i])
                on[d].append(model.new_optional_fixed_size_interval_var(last, back[i], literal, ""))
                span = model.new_int_var(0, most, "")
                model.add(span == last + back[i] - first)
                whole = model.new_optional_interval_var(first, span, last + back[i], literal, "")
                held[d].append((whole, 1 if size is None else size[i]))
    for d in range(stages):
        model.add_no_overlap(on[d])
        if held_cap is not None and held[d]:
            model.add_cumulative(*zip(*held[d], strict=True), held_cap)
    model.minimize(end)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.max_time_in_seconds = 20
    assert solver.solve(model) == cp_model.OPTIMAL
    return round(solver.objective_value)


def small(seed):
    rng = np.random.default_rng(seed)
    stages, slots, n = int(rng.integers(1, 4)), int(rng.integers(1, 5)), int(rng.integers(0, 5))
    unit = rng.integers(0, 4, (1, stages)) + (stages == 1)
    task = np.sort(rng.integers(0, slots, n)), rng.integers(1, 9, n), rng.integers(0, 2) * rng.integers(1, 9, n)
    rules = {"window": int(rng.integers(1, 4)), "hop": int(rng.integers(0, 3))}
    loads = rng.integers(1, 5, (slots, 1))
    return [each.tolist() for each in (loads, unit, 1 + unit, *task)], rules


@settings(max_examples=examples(8), deadline=None)
@given(st.integers(0, 10_000))
def test_between_bound_and_optimum(seed):
    problem, rules = small(seed)
    found = multiplex(*problem, **rules, **QUICK)
    checked(problem, found, **rules)
    best = best_makespan(*problem, **rules)
    assert found.lower_bound <= best <= found.makespan


def test_mostly_optimal_on_small_cases():
    met = 0
    for seed in range(12):
        problem, rules = small(seed)
        met += multiplex(*problem, **rules, time_budget=2e-3).makespan == best_makespan(*problem, **rules)
    assert met >= 10


def test_devices_and_what_they_hold():
    loads, unit = [[2], [3], [2]], [[1, 1]]
    slot, ahead, back, size = [0, 1, 1, 2], [3, 2, 4, 1], [3, 2, 4, 1], [2, 1, 2, 1]
    tied = np.array([[True, False], [True, True], [False, True], [True, True]])
    problem = (loads, unit, [[2, 2]], slot, ahead, back)
    rules = {"window": 2, "held_cap": 3, "task_size": size, "task_devices": tied}
    found = multiplex(*problem, **rules, **QUICK)
    checked(problem, found, **rules)
    assert found.held.max() <= 3
    assert found.task_device[0] == 0
    assert found.task_device[2] == 1
    best = best_makespan(*problem, window=2, held_cap=3, devices=tied.tolist(), size=size)
    assert found.lower_bound <= best <= found.makespan
    assert found == multiplex(*problem, **rules, **QUICK)


def test_the_checker_sees_what_is_wrong():
    problem = ([[4]] * 3, [[1, 1]], [[2, 2]], [0, 1, 2], [3, 3, 3], [6, 6, 6])
    found = multiplex(*problem, window=1, **QUICK)
    checked(problem, found, window=1)
    early = found.task_forward_start.copy()
    early[2] = 0
    later = found.task_backward_start.copy()
    later[0] = 0
    for wrong in (
        replace(found, task_forward_start=early),
        replace(found, task_backward_start=later),
        replace(found, task_device=1 - found.task_device),
        replace(found, lower_bound=found.makespan + 1),
        replace(found, bound_name="guess"),
        replace(found, makespan=found.makespan - 1),
        replace(found, forward_start=found.forward_start + 1, forward_end=found.forward_end + 1),
    ):
        with pytest.raises(CertificateError):
            checked(problem, wrong, window=1)
    with pytest.raises(CertificateError, match="over held_cap"):
        checked(problem, found, window=1, held_cap=0)
    with pytest.raises(CertificateError):
        checked(problem, found, window=1, hop=9)


def test_ops_that_take_no_time():
    """They start when others do, and come before or after those all the same."""
    task = [3, 2, 0, 0, 1], [7, 0, 2, 5, 0], [3, 0, 9, 0, 6]
    for order in (gpipe(4, 2), one_f_one_b(4, 2)):
        for stages in (([[0, 3]], [[2, 0]]), ([[2, 0]], [[0, 1]]), ([[0, 0]], [[0, 2]])):
            problem = ([[0], [1], [0], [3]], *stages, *task)
            if stages[1][0][0] == 0:
                problem = (*problem[:-1], [0] * 5)
            found = multiplex(*problem, window=3, order=order if stages[1][0][0] else None, **QUICK)
            checked(problem, found, window=3)


def test_a_task_without_backward_holds_nothing():
    problem = ([[4]] * 3, [[1, 1]], [[2, 2]], [0, 1, 2], [3, 3, 3], [6, 0, 6])
    rules = {"window": 2, "task_size": [1, 9, 1], "held_cap": 2}
    checked(problem, multiplex(*problem, **rules, **QUICK), **rules)


def items_and_tasks(n, stages, seed=0):
    """Long-tailed work of a model, and one task of most items."""
    rng = np.random.default_rng(seed)
    work = rng.lognormal(5, 0.6, n).astype(int)[:, None]
    owner = np.flatnonzero(rng.random(n) < 0.7)
    ahead = rng.lognormal(5.2, 0.6, len(owner)).astype(int)
    unit = np.ones((1, stages), dtype=np.int64)
    return work, unit, 2 * unit, owner, ahead, 2 * ahead


@pytest.mark.parametrize(
    "rules",
    [
        {},
        {"held_cap": 3},
        {"sizes": "work", "cap": 4_000},
        {"hop": 10},
        {"task_devices": "tied"},
    ],
)
def test_slots_and_tasks_together(rules):
    problem = items_and_tasks(24, 2)
    number = np.arange(len(problem[3]))
    named = {"work": problem[0][:, 0], "tied": number[:, None] % 3 != np.arange(2)}
    rules = {key: named[value] if isinstance(value, str) else value for key, value in rules.items()}
    asked = requests(*problem, counts=(2, 5), window=2, **rules)
    found = schedule_multiplexed(*asked, time_budget=5e-3)
    solvers.check_multiplexed(*asked, found)
    work, forward, backward, *tasks = (each.tolist() for each in problem)
    lists = [found.order.ops_of(d) for d in range(2)]
    forms = closed_forms(work, forward, backward, lists, 2, 5, rules.get("hop", 0), tasks=tasks)
    assert found.lower_bound == forms.get(found.bound_name, found.lower_bound) >= max(forms.values())
    assert found.gap < 0.4
    assert found == schedule_multiplexed(*asked, time_budget=5e-3)
    assert sorted(np.concatenate([found.tasks_of(r) for r in range(2)]).tolist()) == list(range(len(problem[3])))


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"task_devices": "all"}, UsageError, "barrier|waits?|stops the whole pipeline"),
        ({"task_devices": "some"}, ArgumentError, "task_devices"),
        ({"task_devices": np.zeros((2, 2), dtype=bool)}, ArgumentError, "allow every task a device"),
        ({"task_size": [5, 5], "held_cap": 4}, ArgumentError, "task_size"),
        ({"window": 0}, ArgumentError, "window must be >= 1"),
        ({"order": one_f_one_b(4, 2)}, ArgumentError, "order"),
        ({"order": BACK_TO_FRONT}, ArgumentError, r"begin slots 0, 1, ... in turn.*\[2, 1, 0\]"),
    ],
)
def test_what_is_refused(change, error, words):
    problem = ([[4]] * 3, [[1, 1]], [[2, 2]], [0, 2], [3, 3], [6, 6])
    with pytest.raises(error, match=words):
        multiplex(*problem, **({"window": 2} | change))


def test_a_cap_below_what_is_in_flight_is_refused():
    """Three devices, so three slots are in flight: three tasks of 2 at once, of which two devices hold two, not one."""
    given = [[4]] * 4, [[1, 1, 1]], [[2, 2, 2]], [0, 1, 2, 3], [3] * 4, [6] * 4
    rules = {"window": 1, "task_size": [2] * 4}
    with pytest.raises(InfeasibleError, match=r"tasks that hold 6, over the 5 .* held_cap = 2 or more") as caught:
        multiplex(*given, **rules, held_cap=[2, 2, 1])
    assert caught.value.certificate.needed == 6
    found = multiplex(*given, **rules, held_cap=2, **QUICK)
    checked(given, found, **rules, held_cap=2)
    with pytest.raises(InfeasibleError, match=r"tasks that hold 4, over the 3 .* held_cap = 2 or more"):
        schedule_multiplexed(*requests(*given, counts=(1, 4), **rules, held_cap=[2, 1, 0]))
    asked = requests(*given, counts=(1, 4), **rules, held_cap=2)
    solvers.check_multiplexed(*asked, schedule_multiplexed(*asked, **QUICK))


def test_pipelines_with_tasks_are_not_tied():
    asked = requests([[4]] * 2, [[1]], [[2]], [0, 1], [3] * 2, [6] * 2, counts=(1, 2), window=1, tied=True)
    with pytest.raises(ArgumentError, match="tied must be False where tasks run in gaps"):
        schedule_multiplexed(*asked)


def test_slots_to_be_found_are_counted():
    asked = requests([[4]] * 2, [[1]], [[2]], [0, 1], [3] * 2, [6] * 2, window=1)
    with pytest.raises(TypeError, match="num_replicas must be an integer, got None"):
        schedule_multiplexed(*asked)


def gaps_of(problem, *, window, hop=0, units=0, **rules):
    """The best of some lists, run exactly."""
    loads, forward, backward, *task = problem
    order, stages = (
        one_f_one_b(len(loads), len(forward[0])),
        Stages.from_request(PipelineRequest(loads, forward, backward, hop=hop)),
    )
    tasks = Tasks.from_request("task_slot", TaskRequest(*task, window, **rules), len(loads), order)
    given = tasks.of_slots(tasks.owner, len(loads), np.arange(len(tasks.owner)))
    return best_list(stages.durations(np.array(loads)), order, hop, tasks, given, units, 0)


def test_a_cap_that_forwards_meet_slot_by_slot():
    """With forwards of later slots before, both devices are full when a slot's last task is to run."""
    size = [1, 1, 1, 4, 5, 5, 4, 5, 3, 3]
    problem = ([[2]] * 6, [[1, 1]], [[2, 2]], [0, 1, 1, 1, 1, 2, 2, 2, 3, 5], size, [2 * took for took in size])
    rules = {"window": 4, "held_cap": 13, "task_size": size}
    checked(problem, multiplex(*problem, **rules, time_budget=1e-4), **rules)


def listed(loads, tasks, rule, *, stages=2, hop=0, allowed=None, caps=None):
    """One list schedule: its makespan, where tasks run, and when their forwards and backwards start.

    An op takes as long as its slot's load forwards, and twice that backwards. No op ends later than the list has it
    where all run as early as their turns let them.
    """
    order, n = one_f_one_b(len(loads), stages), len(tasks)
    durations = np.array(loads)[:, None] * np.repeat([1, 2], stages)
    given = np.array([(at, *task) for at, task in enumerate(tasks)], dtype=TASK)
    first = np.searchsorted(given["slot"], np.arange(len(loads) + 1))
    allowed = np.ones((n, stages), dtype=bool) if allowed is None else np.array(allowed)
    caps = np.array([NO_CAP] * stages if caps is None else caps)
    given = SlotTasks(*map(read_only, (given, allowed, first, caps)))
    own = (durations, order.device_offsets, order.slot, order.stage + stages * order.backward)
    ops = PipelineOps(*map(read_only, own), hop, 9)
    made = Listed.empty(ops, n)
    makespan = list_schedule(ListRule(*rule[:3], bool(rule[3])), ops, given, made)
    turn = {op: at for row in made.sequence.tolist() for at, op in enumerate(row[1 : row[0] + 1])}
    turns = [[turn.get(durations.size + half * n + i, -1) for i in range(n)] for half in range(2)]
    took = {(k, s, back): int(durations[k, s + stages * back]) for k in range(len(loads)) for s in range(stages)
            for back in (False, True)}  # fmt: skip
    columns = [[task[at] for task in tasks] for at in range(3)]
    starts = gap_starts([order.ops_of(d) for d in range(stages)], took, columns, made.device.tolist(), turns, 9, hop)
    assert max(start + (took | {(i, b): t for b in (False, True) for i, t in enumerate(columns[1 + b])})[op]
               for op, start in starts.items()) <= makespan  # fmt: skip
    when = [[starts[i, half] if turns[half][i] >= 0 else -1 for i in range(n)] for half in (False, True)]
    return makespan, made.device.tolist(), when


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        # One device, and a task of the second slot: urgent two slots ahead, so before the first slot's op; else after.
        (([4, 4], [(1, 5, 0, 1)], [2, 0, 0, 0], {"stages": 1}), (29, [0], [[0], [-1]])),
        (([4, 4], [(1, 5, 0, 1)], [1, 0, 0, 0], {"stages": 1}), (29, [0], [[4], [-1]])),
        # From 39 on a gap of 4: the backward that fits it; if any may exceed it, the longest.
        (([4] * 3, [(0, 2, 3, 1), (0, 1, 8, 1)], [1, 0, 0, 0], {}), (59, [0, 0], [[0, 2], [39, 51]])),
        (([4] * 3, [(0, 2, 3, 1), (0, 1, 8, 1)], [1, 256, 0, 0], {}), (58, [0, 0], [[0, 2], [55, 39]])),
        # What the first device owes counts in the mean: so the other ends below it, and takes the second task.
        (([4], [(0, 6, 6, 1), (0, 9, 3, 1)], [1, 0, 0, 0], {}), (39, [0, 1], [[0, 0], [33, 33]])),
        # A task of 14 that ends over the mean, 23, stays where the first stage waits for it; with a slack of 3 it goes.
        (([4], [(0, 7, 1, 1), (0, 9, 5, 1)], [1, 0, 0, 0], {}), (46, [0, 0], [[0, 7], [45, 40]])),
        (([4], [(0, 7, 1, 1), (0, 9, 5, 1)], [1, 0, 3, 0], {}), (38, [0, 1], [[0, 0], [33, 33]])),
        # The second device waits four before 24 of its own: over the mean, 26, so that it takes no task.
        (([4, 4], [(1, 4, 0, 1)], [1, 0, 0, 0], {}), (36, [0], [[4], [-1]])),
    ],
)
def test_what_a_list_lets_run_next(asked, found):
    *given, rules = asked
    assert listed(*given, **rules) == found


def test_lists_make_room_before_the_pipeline_stands_still():
    """Mean of some lists over what is proven: 1.147, and 1.23 where no device runs backwards to make room."""
    slots, stages = 12, 4
    ramp = np.minimum(1, np.minimum(np.arange(1, slots + 1), np.arange(slots, 0, -1)) / 5)
    slot, parts = np.repeat(np.arange(slots), 3), []
    for seed in range(6):
        size = np.maximum(1, (np.random.default_rng(seed).integers(1, 60, len(slot)) * ramp[slot]).astype(np.int64))
        flight = max(size[(slot >= k) & (slot < k + stages)].sum() for k in range(slots))
        problem = (40 * ramp).astype(np.int64)[:, None], [[1] * stages], [[2] * stages], slot, size, 2 * size
        rules = {"window": stages, "task_size": size, "held_cap": int(flight / stages * 1.25)}
        found = multiplex(*problem, **rules, time_budget=1e-4)
        checked(problem, found, **rules)
        parts.append(found.makespan / found.lower_bound)
    assert np.mean(parts) < 1.165


@pytest.mark.parametrize("slots", [1, 3, 16, 64])
def test_curves_leave_room_for_slots_in_flight(slots):
    """Targets have all work and all tasks; no four slots in turn have more tasks than they may; few tasks come last."""
    targets = _curved(np.full((2, slots, 1), 3.0), 5.0, 4, 5.2 / slots)
    assert np.allclose(targets.sum(axis=1), [3.0 * slots, 5.0])
    tasks = targets[0, :, 1] / 5.0
    assert max(tasks[k : k + 4].sum() for k in range(slots)) <= max(1.0 if slots < 5 else 0.0, 5.2 / slots) * 1.01
    if slots > 4:
        assert targets[0, -1, 0] < 0.6 * targets[0, :, 0].mean()
        assert tasks[-1] < 0.01


def what_comes_after(gaps):
    """The longest time from each op's start to the end of all, by the rules alone."""
    pipe, ops = pipeline_of(gaps.order, len(gaps.plan.device), gaps.tasks.window, gaps.hop), gaps.plan.ops
    front, backs, width = pipe.front, pipe.backs, pipe.width
    follow = {op: [] for op in range(gaps.num_ops)}
    for row in gaps.plan.sequence:
        for op, later in pairwise(row[1 : row[0] + 1]):
            follow[op].append((later, ops[op]["took"]))
    for d, row in enumerate(gaps.plan.sequence):
        for op in row[1 : row[0] + 1]:
            took, before, lag, _, gate = ops[op].tolist()
            away = pipe.hop * (d > 0)
            if before >= 0:
                since = 0 if front <= op < backs else ops[before]["took"] + (lag if op < front else away)
                follow[before].append((op, since))
            if front <= op < backs:
                follow[op].append((gate * width, took + away))
    after = {}
    for op in sorted(follow, key=lambda op: (-gaps.starts[op], op < front)):  # all ops that run take some time
        after[op] = max([ops[op]["took"], *(since + after[later] for later, since in follow[op])])
    return after


@pytest.mark.parametrize(
    ("slots", "task", "devices"),
    [
        (6, ([0, 0, 1, 2, 2, 3, 3, 4, 5], [2, 1, 5, 3, 1, 2, 7, 1, 2], [4, 2, 1, 6, 0, 4, 1, 2, 4]), "any"),
        (1, ([0], [9], [1]), [[False, True, False]]),  # the first op waits for a task of another device
    ],
)
def test_what_is_on_a_longest_path_and_what_comes_after(slots, task, devices):
    problem = [[k % 3 + 1] for k in range(slots)], [[1, 2, 1]], [[2, 3, 2]], *task
    gaps = gaps_of(problem, window=2, hop=1, devices=devices)
    plan, size, starts = gaps.plan, gaps.num_ops, gaps.starts
    pipe = pipeline_of(gaps.order, len(plan.device), gaps.tasks.window, gaps.hop)
    path, after = (np.zeros(size, dtype=np.int64) for _ in range(2))
    need, count, at = np.zeros((size, 2), dtype=np.int64), np.zeros(size, dtype=np.int64), np.zeros(3, dtype=np.int64)
    from_python(set_after)(plan, starts, pipe, need, count, at, after)
    ran = np.flatnonzero(gaps.starts >= 0)
    expected = what_comes_after(gaps)
    assert after[ran].tolist() == [expected[op] for op in ran]
    assert (starts[ran] + after[ran]).max() == gaps.makespan
    tasks = from_python(late_tasks)(starts, after, gaps.makespan, pipe, path)
    longest = [op for op in ran if starts[op] + expected[op] == gaps.makespan]
    assert min(starts[longest]) == 0
    assert path[:tasks].tolist() == [op for op in longest if op >= pipe.front]


def test_replicas_begin_with_as_much_work():
    """What the longest replica has more than the shortest, of the mean: 0.006, and 0.023 where nothing is exchanged."""
    spread = []
    for seed in range(5):
        asked = requests(*items_and_tasks(48, 2, seed), counts=(3, 4), window=2)
        busy = [int(each.busy.sum()) for each in schedule_multiplexed(*asked, time_budget=2e-3).replicas]
        spread.append((max(busy) - min(busy)) / np.mean(busy))
    assert np.mean(spread) < 0.01


def test_long_items_stay_in_their_slots_when_replicas_are_evened(monkeypatch):
    """Replica 0 has two, and more work by them: exchanged, one of them would hold up a slot of the other replica."""
    own, ahead = np.array([[10 + i % 2] for i in range(24)]), np.arange(24) % 5
    own[[0, 4]] = 50
    problem = PipelineProblem.from_request(PipelineRequest(own, [[1, 1]], [[2, 2]], 2, 3))
    tasks = Tasks.from_request("task_item", TaskRequest(np.arange(24), ahead, 2 * ahead, 2), 24, problem.order)
    cells = np.arange(24) // 4
    evened = _evened(problem, tasks, cells)
    moved = evened != cells
    assert moved.any()
    assert (evened[moved] % 3 == cells[moved] % 3).all()
    assert evened[[0, 4]].tolist() == [0, 1]
    monkeypatch.setattr("solvers.pipeline.multiplex_slots._MOST_PAIRS", 3 * 4**2 - 1)
    assert (_evened(problem, tasks, cells) == cells).all()


@pytest.mark.parametrize(
    ("items", "stages", "slots", "rules"),
    [
        (2, [1] * 4, 1, {"held_cap": 2**40}),
        (1, [1, 3, 0], 2, {"forward_overhead": [1, 0, 0], "backward_overhead": [1, 1, 3]}),
    ],
    ids=["room for anything", "a slot of nothing"],
)
def test_targets_are_numbers(items, stages, slots, rules):
    """Division by next to nothing would warn."""
    given = [[3]] * items, [stages], [[2 * s for s in stages]], [0], [1], [2]
    asked = requests(*given, counts=(1, slots), window=1, allow_empty=True, **rules)
    solvers.check_multiplexed(*asked, solvers.schedule_multiplexed(*asked, time_budget=5e-4))
