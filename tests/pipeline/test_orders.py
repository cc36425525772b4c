"""Op orders and exact runs: against events and longest paths; what deadlocks is named."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nightly import examples
from pipeline_oracles import ends_by_events, most_held, one_f_one_b_lists

from solvers.errors import UsageError
from solvers.pipeline import OpOrder, gpipe, interleaved, one_f_one_b, run


def lists_of(order):
    return [order.ops_of(d) for d in range(order.num_devices)]


@st.composite
def runs(draw):
    devices, chunks = draw(st.integers(1, 4)), draw(st.sampled_from([1, 1, 2, 3]))
    slots = draw(st.integers(1, 6)) * (devices if chunks > 1 else 1)
    stages, modules = devices * chunks, draw(st.integers(1, 2))
    number = st.integers(0, 9)
    table = st.lists(st.lists(number, min_size=stages, max_size=stages), min_size=modules, max_size=modules)
    loads = st.lists(st.lists(number, min_size=modules, max_size=modules), min_size=slots, max_size=slots)
    fixed = draw(st.none() | st.tuples(*[st.lists(number, min_size=stages, max_size=stages)] * 2))
    return slots, devices, chunks, draw(loads), draw(table), draw(table), fixed, draw(st.integers(0, 5))


@settings(max_examples=examples(50))
@given(runs(), st.booleans())
def test_runs_are_those_of_events(given_run, all_forwards_first):
    slots, devices, chunks, loads, forward, backward, fixed, hop = given_run
    order = gpipe(slots, devices) if all_forwards_first and chunks == 1 else interleaved(slots, devices, chunks)
    found = run(
        loads, forward, backward, order, hop=hop, forward_overhead=fixed and fixed[0],
        backward_overhead=fixed and fixed[1],
    )  # fmt: skip
    ends = ends_by_events(lists_of(order), loads, forward, backward, hop, fixed)
    assert found.makespan == max(ends.values())
    for (slot, stage, back), end in ends.items():
        assert (found.backward_end if back else found.forward_end)[slot, stage] == end
    assert (found.busy + found.idle == found.makespan).all()
    assert found.in_flight.max() == most_held(lists_of(order), np.ones((1, slots)))


def test_1f1b_is_what_it_means():
    for slots, stages in product((1, 3, 9), (1, 2, 6)):
        assert lists_of(one_f_one_b(slots, stages)) == one_f_one_b_lists(slots, stages)


def test_frozen_stages_run_ahead():
    """Stages with nothing to train hold nothing and wait for no backward."""
    loads, forward = [[1]] * 6, [[3, 1, 1]]
    frozen = run(loads, forward, [[0, 2, 2]], one_f_one_b(6, 3, 1))
    assert frozen.forward_end[:, 0].tolist() == [3, 6, 9, 12, 15, 18]
    assert frozen.in_flight.tolist() == [0, 2, 1]
    assert (frozen.backward_end[:, 0] == -1).all()
    assert frozen.makespan < run(loads, forward, [[1, 2, 2]], one_f_one_b(6, 3)).makespan


@pytest.mark.parametrize(("devices", "chunks", "slots"), [(2, 2, 4), (4, 2, 8), (4, 3, 12), (3, 4, 3)])
def test_in_flight_of_interleaved(devices, chunks, slots):
    ones = np.ones((slots, 1), dtype=np.int64)
    unit = [[1] * (devices * chunks)]
    most = run(ones, unit, unit, interleaved(slots, devices, chunks)).in_flight
    for d in range(devices):
        assert most[d] == min(slots * chunks, 2 * (devices - d - 1) + (chunks - 1) * devices + 1)


@pytest.mark.parametrize(("devices", "chunks", "slots"), [(1, 2, 3), (2, 2, 8), (3, 2, 6), (2, 3, 4)])
def test_interleaved_frozen_stages_run_as_others_do_but_for_backwards(devices, chunks, slots):
    whole = lists_of(interleaved(slots, devices, chunks))
    for lead in range(devices * chunks + 1):
        frozen = interleaved(slots, devices, chunks, lead)
        assert lists_of(frozen) == [[op for op in ops if op[1] >= lead or not op[2]] for ops in whole]
        assert frozen.forward_only == lead


def test_sizes_in_flight():
    found = run([[1]] * 3, [[1, 1]], [[1, 1]], one_f_one_b(3, 2), sizes=[5, 7, 1])
    assert found.in_flight.tolist() == [12, 7]


def test_a_deadlock_is_named():
    ahead = [[(0, 0, False), (1, 0, False), (0, 0, True), (1, 0, True)]]
    crossed = [*ahead, [(1, 1, False), (1, 1, True), (0, 1, False), (0, 1, True)]]
    with pytest.raises(UsageError, match="backward of slot 0 in stage 0 waits for backward of slot 0 in stage 1") as e:
        OpOrder.of([[(0, 0, False), (0, 0, True), (1, 0, False), (1, 0, True)], crossed[1]], 2, 2)
    assert str(e.value).count("waits for") == 6
    OpOrder.of([[(1, 0, False), (0, 0, False), (1, 0, True), (0, 0, True)], crossed[1]], 2, 2)


@pytest.mark.parametrize(
    ("ops", "message"),
    [
        ([[(0, 0, False), (0, 0, False), (0, 0, True)]], "every op once; twice is forward of slot 0 in stage 0"),
        ([[(0, 0, True)]], "every op; there is no forward of slot 0 in stage 0"),
        ([[(0, 1, False)], [(0, 0, False)]], r"ops\[0\] must hold stages s with s % 2 = 0, got 1"),
        ([[(0, 7, False)]], r"stage below 1.*got \(0, 7, 0\)"),
    ],
)
def test_bad_ops(ops, message):
    with pytest.raises(ValueError, match=message):
        OpOrder.of(ops, 1, len(ops))


def test_interleaved_needs_a_multiple():
    with pytest.raises(
        ValueError, match="num_slots must be a multiple of num_devices = 4 where chunks > 1, got 6; give 8"
    ):
        interleaved(6, 4, 2)


def test_sums_that_do_not_fit():
    with pytest.raises(ValueError, match="must be below 2"):
        run([[2**40]], [[2**20]], [[2**20]], one_f_one_b(1, 1))


def test_an_order_of_read_only_arrays():
    order = one_f_one_b(4, 3)
    assert not order.graph.flags.writeable
    assert order == OpOrder.of(lists_of(order), 4, 3, "1f1b")
