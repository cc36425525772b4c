"""Schedules of pipelines: against all schedules on small cases, under every rule, and what is refused."""

from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nightly import examples
from pipeline_oracles import best_makespan, closed_forms, fluid_by_scipy, most_held

import solvers
from solvers.errors import CertificateError, InfeasibleError
from solvers.pipeline import gpipe, interleaved, one_f_one_b


@st.composite
def problems(draw):
    devices, chunks = draw(st.integers(1, 3)), draw(st.sampled_from([1, 1, 1, 2]))
    slots = devices if chunks > 1 else draw(st.integers(1, 3))
    replicas = draw(st.integers(1, 2)) if slots < 3 else 1
    stages, modules = devices * chunks, draw(st.integers(1, 3))
    n = draw(st.integers(replicas * slots, max(4, replicas * slots)))
    number = st.integers(0, 6)
    table = st.lists(st.lists(number, min_size=stages, max_size=stages), min_size=modules, max_size=modules)
    work = st.lists(st.lists(st.integers(0, 20), min_size=modules, max_size=modules), min_size=n, max_size=n)
    large = draw(st.sampled_from([1, 1, 6]))  # times the first item
    rules = {"hop": draw(st.integers(0, 4)), "tied": draw(st.booleans()), "allow_empty": draw(st.booleans())}
    if draw(st.booleans()):
        fixed = st.lists(number, min_size=stages, max_size=stages)
        rules |= {"forward_overhead": draw(fixed), "backward_overhead": draw(fixed)}
    if draw(st.booleans()):
        rules |= {"sizes": draw(st.lists(st.integers(0, 9), min_size=n, max_size=n)), "cap": draw(st.integers(9, 20))}
        rules |= {"in_flight_cap": draw(st.integers(15, 40))} if draw(st.booleans()) else {}
    kind = {"chunks": chunks, "order": draw(st.sampled_from(["1f1b", "1f1b", "gpipe"])) if chunks == 1 else "1f1b"}
    first, *others = draw(work)
    return [[large * x for x in first], *others], draw(table), draw(table), replicas, slots, rules, kind


def lists_of(order):
    return [order.ops_of(d) for d in range(order.num_devices)]


def best_of(work, forward, backward, replicas, order, rules):
    fixed = (rules["forward_overhead"], rules["backward_overhead"]) if "forward_overhead" in rules else None
    kept = {key: rules[key] for key in rules if not key.endswith("overhead")}
    return best_makespan(work, forward, backward, replicas, lists_of(order), fixed=fixed, **kept)


def order_of(forward, backward, slots, kind):
    """The order of a problem without caps."""
    return solvers.schedule_pipeline([[1] * len(forward)], forward, backward, 1, slots, allow_empty=True, **kind).order


@settings(max_examples=examples(30))
@given(problems())
def test_between_bound_and_optimum(problem):
    work, forward, backward, replicas, slots, rules, kind = problem
    try:
        result = solvers.schedule_pipeline(work, forward, backward, replicas, slots, time_budget=1e-3, **rules, **kind)
    except InfeasibleError:
        assert best_of(work, forward, backward, replicas, order_of(forward, backward, slots, kind), rules) is None
        return
    except solvers.TimeLimitError:
        return
    solvers.check_pipeline(work, forward, backward, result, **rules)
    fixed = (rules["forward_overhead"], rules["backward_overhead"]) if "forward_overhead" in rules else None
    forms = closed_forms(work, forward, backward, lists_of(result.order), replicas, slots, rules["hop"], fixed)
    assert result.lower_bound == forms.get(result.bound_name, result.lower_bound)
    assert result.lower_bound >= max(forms["work"], forms["largest_item"])
    best = best_of(work, forward, backward, replicas, result.order, rules)
    assert best is not None
    assert result.lower_bound <= best <= result.makespan


def tight(seed):
    """Few items whose room is short, in slots and in flight."""
    rng = np.random.default_rng(seed)
    stages, slots, n = (int(x) for x in rng.integers((1, 1, 2), (4, 4, 6)))
    replicas = int(rng.integers(1, 3)) if slots < 3 else 1
    sizes, share = rng.integers(0, 9, n), 1 / (replicas * slots)
    rules = {"sizes": sizes, "allow_empty": bool(rng.integers(2)), "tied": False, "hop": 0}
    for name, count in (("cap", 1), ("in_flight_cap", min(stages, slots))):
        if rng.random() < 0.8:
            rules[name] = 1 + int(sizes.sum() * share * count * rng.uniform(0.9, 1.3))
    times = rng.integers(0, 4, (2, 1, stages)).tolist()
    kind = {"order": ["1f1b", "gpipe"][rng.integers(2)]}
    return rng.integers(0, 9, (n, 1)).tolist(), *times, replicas, slots, rules, kind


def full(seed):
    """Slots that leave no room, cut into a few items each, and the caps that they just keep to."""
    rng = np.random.default_rng(seed)
    replicas, slots, stages, cap = (int(x) for x in rng.integers((1, 2, 1, 8), (3, 4, 4, 30)))
    cells = replicas * slots
    held = np.where(rng.random(cells) < 0.6, cap, rng.integers(3, cap, cells))
    cuts = [np.sort(rng.choice(np.arange(1, h), min(h - 1, int(rng.integers(1, 3))), replace=False)) for h in held]
    sizes = rng.permutation(np.concatenate([np.diff([0, *cut, h]) for cut, h in zip(cuts, held, strict=True)]))
    most = most_held(lists_of(one_f_one_b(slots, stages)), held.reshape(replicas, -1))
    rules = {"sizes": sizes, "cap": cap} | ({"in_flight_cap": int(most)} if rng.random() < 0.7 else {})
    return (sizes[:, None], [[1] * stages], [[2] * stages], replicas, slots), rules


def test_nearly_all_plans_under_tight_caps_are_found():
    found = 0
    for seed in range(60):
        given, rules = full(seed)
        with suppress(solvers.TimeLimitError):
            result = solvers.schedule_pipeline(*given, time_budget=1e-4, **rules)
            solvers.check_pipeline(*given[:3], result, **rules)
            found += 1
    assert found >= 57


def test_there_is_none_only_where_that_is_proven():
    """Else an error says what would help."""
    infeasible = missed = 0
    for seed in range(90):
        work, forward, backward, replicas, slots, rules, kind = tight(seed)
        error = None
        try:
            asked = work, forward, backward, replicas, slots
            result = solvers.schedule_pipeline(*asked, time_budget=1e-4, **rules, **kind)
            solvers.check_pipeline(work, forward, backward, result, **rules)
        except solvers.SolverError as caught:
            error = caught
        if error is None:
            continue
        order = order_of(forward, backward, slots, kind)
        if isinstance(error, InfeasibleError):
            infeasible += 1
            assert error.certificate.needed > error.certificate.available
            assert best_of(work, forward, backward, replicas, order, rules) is None
        else:
            assert "; give a larger" in str(error)
            missed += best_of(work, forward, backward, replicas, order, rules) is not None
    assert infeasible > 5
    assert missed <= 1


def test_what_is_not_found_is_not_said_not_to_be_there():
    given = [[1]] * 5, [[1, 1]], [[1, 1]], 1, 2
    with pytest.raises(solvers.TimeLimitError, match="found no place under cap, for all 5 items") as caught:
        solvers.schedule_pipeline(*given, sizes=[6, 6, 6, 6, 6], cap=16)
    assert str(caught.value).endswith("; give a larger cap, more num_slots")


def test_mostly_optimal_on_small_cases():
    optimal = 0
    for seed in range(40):
        rng = np.random.default_rng(seed)
        stages, slots, replicas = (1 + seed % 4, 3, 1) if seed % 2 else (1 + seed % 4, 2, 2)
        work, unit = rng.integers(1, 30, (6, 2)), rng.integers(0, 4, (2, stages))
        rules = {"hop": int(rng.integers(0, 3))}
        result = solvers.schedule_pipeline(work, unit, 2 * unit, replicas, slots, time_budget=5e-3, **rules)
        best = best_of(work.tolist(), unit.tolist(), (2 * unit).tolist(), replicas, result.order, rules)
        assert result.lower_bound <= best <= result.makespan
        optimal += result.makespan == best
    assert optimal >= 38


def encoder_and_model(n, stages, first, seed=0):
    """Long-tailed work of an encoder in the first stages and a model in the others."""
    rng = np.random.default_rng(seed)
    work = np.stack([rng.lognormal(6, 0.9, n) * (rng.random(n) < 0.6), rng.lognormal(6.5, 0.7, n)], axis=1).astype(int)
    unit = np.zeros((2, stages), dtype=np.int64)
    unit[0, :first], unit[1, first:] = 1, 1
    return work, unit, 2 * unit


@pytest.mark.parametrize(
    ("stages", "slots", "order"),
    [(4, 12, one_f_one_b(12, 4)), (3, 9, gpipe(9, 3)), (6, 9, interleaved(9, 3, 2))],
)
def test_the_bound_is_nearly_the_linear_program(stages, slots, order):
    work, forward, backward = encoder_and_model(slots * 8, stages, stages // 3)
    result = solvers.schedule_pipeline(work, forward, backward, 1, slots, order=order, time_budget=1e-4, hop=3)
    expected = fluid_by_scipy(work.sum(axis=0), forward.tolist(), backward.tolist(), lists_of(order), slots, hop=3)
    assert 0.99 * expected <= result.lower_bound <= np.ceil(expected)


@pytest.mark.parametrize(
    ("rules", "kind"),
    [
        ({}, {}),
        ({"tied": True}, {"order": "gpipe"}),
        ({"hop": 40}, {"chunks": 2}),
        ({"forward_overhead": [90] * 6}, {}),
    ],
)
def test_checked_and_close(rules, kind):
    work, forward, backward = encoder_and_model(288, 6, 2)
    given = (work, forward, backward)
    result = solvers.schedule_pipeline(*given, 3, 12, time_budget=0.02, **rules, **kind)
    solvers.check_pipeline(*given, result, **rules)
    assert result.gap < (0.06 if rules.get("tied") else 0.03)
    assert result == solvers.schedule_pipeline(*given, 3, 12, time_budget=0.02, **rules, **kind)


def test_caps_hold_and_cost_little():
    work, forward, backward = encoder_and_model(512, 8, 2)
    sizes = work[:, 1] + 5
    even = int(sizes.sum()) // (2 * 32) * 8
    free = solvers.schedule_pipeline(work, forward, backward, 2, 32, time_budget=0.05)
    for most, worse in ((2.0, 1.02), (1.05, 1.09)):
        rules = {"sizes": sizes, "in_flight_cap": int(most * even), "cap": int(sizes.sum() // 64 * 2.5)}
        result = solvers.schedule_pipeline(work, forward, backward, 2, 32, time_budget=0.05, **rules)
        solvers.check_pipeline(work, forward, backward, result, **rules)
        assert result.makespan < worse * free.makespan


def test_sizes_by_stage_and_frozen_stages():
    work, forward, backward = encoder_and_model(160, 5, 2)
    backward[:, :2] = 0
    sizes = np.repeat(work[:, :1], 5, axis=1)
    sizes[:, 2:] = work[:, 1:]
    rules = {"sizes": sizes, "cap": [int(c) for c in sizes.sum(axis=0) // 20 * 3],
             "in_flight_cap": [1, 1, *(int(sizes[:, 2].sum()) // 20 * (3 - s) + 4_000 for s in range(3))]}  # fmt: skip
    result = solvers.schedule_pipeline(work, forward, backward, 1, 20, time_budget=0.01, **rules)
    assert result.order.forward_only == 2
    solvers.check_pipeline(work, forward, backward, result, **rules)


def test_a_wrong_result_is_found():
    given = encoder_and_model(60, 4, 1)
    result = solvers.schedule_pipeline(*given, 2, 6, time_budget=1e-3)
    moved = result.slot_of_item.copy()
    moved[0] = (moved[0] + 1) % 6
    cut = result.cut
    negative, heavy = cut.from_device.copy(), cut.from_device.copy()
    negative[0], heavy[0] = -1, heavy[0] + 5
    sprung = cut.from_neighbour.copy()
    sprung[np.flatnonzero(sprung)[-1]] += 1
    wrong = {
        "makespans are": replace(result, slot_of_item=moved),
        "lower_bound = ": replace(result, lower_bound=result.lower_bound + 1),
        "there is no cut": replace(result, cut=None),
        "negative weights": replace(result, cut=replace(cut, from_device=negative)),
        "over 2": replace(result, cut=replace(cut, from_device=heavy)),
        "more of the cut leaves": replace(result, cut=replace(cut, from_neighbour=sprung)),
        "status is": replace(result, status=solvers.SolveStatus.OPTIMAL),
        "unknown argument": replace(result, bound_name="hope"),
    }
    solvers.check_pipeline(*given, result)
    for message, claimed in wrong.items():
        with pytest.raises(CertificateError, match=message):
            solvers.check_pipeline(*given, claimed)
    with pytest.raises(CertificateError, match="over cap"):
        solvers.check_pipeline(*given, result, sizes=np.ones(60), cap=3)
    with pytest.raises(CertificateError, match="in flight, over in_flight_cap"):
        solvers.check_pipeline(*given, result, sizes=np.ones(60), in_flight_cap=9)


@pytest.mark.parametrize(
    ("change", "kind", "message"),
    [
        ({"work": [[1, 2]] * 4}, ValueError, r"work must have a column for each of 1 modules, got \(4, 2\)"),
        ({"backward": [[1]]}, ValueError, r"backward must have the shape \(1, 2\) of forward"),
        ({"num_slots": 3, "slots_multiple_of": 2}, ValueError, "num_slots must be a multiple of slots_multiple_of = 2"),
        ({"num_slots": 5}, InfeasibleError, "4 items are too few for 5 slots on each of 1 replicas"),
        ({"cap": 3}, ValueError, "cap is a cap on sizes: give sizes"),
        ({"sizes": [1, 1, 1, 9], "cap": 8}, InfeasibleError, "item 3 has size 9, over cap = 8 by 1"),
        ({"sizes": [4, 4, 4, 4], "cap": 7}, InfeasibleError, "are of size 16, and 2 slots hold 14"),
        ({"sizes": [5] * 4, "in_flight_cap": 4}, solvers.TimeLimitError, "give a larger in_flight_cap, more num_slots"),
        ({"sizes": [2, 2, 3, 3], "cap": 5, "in_flight_cap": 4}, solvers.TimeLimitError, "under cap and in_flight_c"),
        ({"order": "zero_bubble"}, ValueError, "unknown order 'zero_bubble'"),
        ({"order": one_f_one_b(3, 2)}, ValueError, "order must be of 2 slots and 2 stages"),
        ({"chunks": 3}, ValueError, "chunks must divide the 2 stages"),
        ({"forward": [[2**58, 1]]}, ValueError, "must be below 2"),
    ],
)  # fmt: skip
def test_what_is_refused(change, kind, message):
    asked = {"work": [[1], [2], [3], [4]], "forward": [[1, 1]], "backward": [[1, 1]], "num_replicas": 1, "num_slots": 2}
    with pytest.raises(kind, match=message):
        solvers.schedule_pipeline(**(asked | change))


def test_nothing_at_all():
    empty = np.zeros((0, 2), dtype=np.int64)
    result = solvers.schedule_pipeline(empty, [[1, 1], [2, 0]], [[1, 1], [2, 0]], 2, 3, allow_empty=True)
    solvers.check_pipeline(empty, [[1, 1], [2, 0]], [[1, 1], [2, 0]], result, allow_empty=True)
    assert (result.makespan, result.status) == (0, solvers.SolveStatus.OPTIMAL)


def test_a_hop_may_be_next_to_nothing_beside_what_ops_take():
    work, ops = 2**44 * np.arange(1, 13)[:, None], ([[1, 2]], [[2, 4]])
    found = solvers.schedule_pipeline(work, *ops, 2, 3, hop=1, time_budget=1e-4)
    solvers.check_pipeline(work, *ops, found, hop=1)
