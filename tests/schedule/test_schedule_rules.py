"""The rules of a schedule: properties, contradictory constraints, samples over the cap, wrong results."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nightly import examples
from schedule_cases import COSTS, OTHER_RULES, TOKENS, changed

from solvers import check_schedule
from solvers.errors import CertificateError, InfeasibleError, TimeLimitError
from solvers.packing import SYNCS, schedule_micro_batches
from solvers.types import SolveStatus

SAMPLES = st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 120)), max_size=40)


@settings(max_examples=examples(50))
@given(
    SAMPLES,
    st.integers(1, 5),
    st.integers(60, 400),
    st.sampled_from(SYNCS),
    st.sampled_from([None, "fewest", 2, 4]),
    st.integers(1, 3),
    st.integers(1, 3),
    st.booleans(),
    st.sampled_from(["error", "own"]),
)
def test_every_rule_holds(samples, ranks, cap, sync, num_slots, least, multiple, allow_empty, over_long):
    costs = [cost for cost, _ in samples]
    tokens = [t for _, t in samples]
    rules = {
        "sync": sync,
        "num_slots": num_slots,
        "min_slots": least,
        "slots_multiple_of": multiple,
        "stages": 3 if sync == "pipeline" else 1,
        "allow_empty": allow_empty,
        "over_long": over_long,
    }
    over = [i for i, t in enumerate(tokens) if t > cap]
    try:
        result = schedule_micro_batches(costs, tokens, ranks, cap, time_budget=0.001, **rules)
    except ValueError:
        assert isinstance(num_slots, int)
        assert num_slots < least or num_slots % multiple
        return
    except TimeLimitError:
        return
    except InfeasibleError:
        few = not allow_empty and len(costs) < 12 * ranks + len(over)
        assert (over and over_long == "error") or few or num_slots in (2, 4)
        return
    check_schedule(costs, tokens, result, num_ranks=ranks, cap=cap, **rules)
    assert result.slot_loads.shape == (ranks, result.num_slots)
    assert result.num_slots >= least
    assert result.num_slots % multiple == 0
    again = schedule_micro_batches(costs, tokens, ranks, cap, time_budget=0.001, **rules)
    assert again == result
    assert again is not result


def test_permuting_the_samples_permutes_the_schedule():
    rng = np.random.default_rng(5)
    tokens = rng.permutation(np.arange(1, 61))
    costs = tokens * (100 + tokens)
    turn = rng.permutation(60)
    one = schedule_micro_batches(costs, tokens, 4, 200)
    other = schedule_micro_batches(costs[turn], tokens[turn], 4, 200)
    assert (one.rank_of_item[turn] == other.rank_of_item).all()
    assert (one.slot_of_item[turn] == other.slot_of_item).all()


def test_numbers_near_the_end_of_int64():
    huge = 2**62
    for sync in ("micro_batch", "step"):
        result = schedule_micro_batches([huge, huge - 2, 1], [huge, 1, huge - 2], 1, huge, num_slots=2, sync=sync)
        assert (result.value, result.gap) == (2**63 - 1, 0)
        rules = {"num_slots": 3, "sync": sync, "allow_empty": True}
        check_schedule([huge] * 1, [huge], schedule_micro_batches([huge], [huge], 2, 2**63 - 1, **rules), num_ranks=2,
                       cap=2**63 - 1, **rules)  # fmt: skip
    with pytest.raises(ValueError, match=r"the sum of costs must fit int64: it overflows at costs\[2\]"):
        schedule_micro_batches([huge, huge - 1, 2], [1, 1, 1], 1, 3)
    with pytest.raises(ValueError, match="the sum of tokens must fit int64"):
        schedule_micro_batches([1, 1], [huge, huge], 1, huge)
    result = schedule_micro_batches([2**61, 2**61], [2**62, 2**62 - 1], 2, 2**63 - 1, sync="pipeline", stages=2**20)
    assert result.value == 2**20 * 2**61


def test_samples_without_cost_or_tokens():
    for sync in SYNCS:
        result = schedule_micro_batches([0] * 6, [0] * 6, 2, 1, sync=sync)
        assert (result.value, result.lower_bound, result.gap, result.status) == (0, 0, 0.0, SolveStatus.OPTIMAL)
        result = schedule_micro_batches([], [], 3, 5, allow_empty=True, sync=sync)
        assert (result.num_slots, result.value, result.slot_loads.tolist()) == (1, 0, [[0]] * 3)


# --- constraints that contradict each other --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"num_slots": 3, "min_slots": 4}, ValueError, "num_slots = 3 contradicts min_slots = 4"),
        ({"num_slots": 3, "slots_multiple_of": 2}, ValueError, "contradicts slots_multiple_of = 2: give .* such as 4"),
        ({"num_slots": "most"}, ValueError, "num_slots must be an integer, 'fewest' or None, got 'most'"),
        ({"stages": 2}, ValueError, "stages = 2 contradicts sync = 'micro_batch'"),
        ({"sync": "even"}, ValueError, "sync must be one of 'micro_batch', 'step', 'pipeline', got 'even'"),
        ({"over_long": "cut"}, ValueError, "over_long must be one of 'error', 'own', got 'cut'"),
        ({"allow_empty": 1}, TypeError, "allow_empty must be True or False, got 1"),
        ({"time_budget": 0}, ValueError, "time_budget must be positive"),
        ({"tokens": [1, 2]}, ValueError, "costs and tokens must be as many, got 8 and 2"),
        ({"cap": 9, "tokens": [5] * 7 + [11]}, InfeasibleError, r"tokens\[7\] = 11 is over cap = 9 by 2"),
        ({"num_slots": 1}, InfeasibleError, "8 samples need at least 4 micro-batches, 2 .* short by 2.* may do is 2"),
        ({"num_slots": 5}, InfeasibleError, r"5 slots \(num_slots\) are 10 micro-batches, but there are 8 samples"),
        ({"min_slots": 5}, InfeasibleError, "5 slots .min_slots, .*, short by 2; allow_empty=True permits"),
        ({"num_slots": 2**27, "allow_empty": True}, ValueError, r"num_ranks \* num_slots must be <= "),
    ],
)
def test_what_cannot_be_is_said(arguments, error, message):
    given_arguments = {"costs": [4] * 8, "tokens": [5] * 8, "num_ranks": 2, "cap": 10} | arguments
    with pytest.raises(error, match=message):
        schedule_micro_batches(**given_arguments)


def test_the_fewest_slots_respect_minimum_and_multiple():
    costs = tokens = [5] * 24
    assert schedule_micro_batches(costs, tokens, 2, 20, num_slots="fewest").num_slots == 3
    assert schedule_micro_batches(costs, tokens, 2, 20, num_slots="fewest", min_slots=5).num_slots == 5
    assert schedule_micro_batches(costs, tokens, 2, 20, num_slots="fewest", slots_multiple_of=4).num_slots == 4
    assert schedule_micro_batches(costs, tokens, 2, 20, slots_multiple_of=4, min_slots=5).num_slots == 8


def test_a_packing_without_slack_is_found():
    tokens = [6, 6, 5, 5, 4, 4, 3, 3, 2, 2]  # 40 tokens in four micro-batches of 10
    for sync in SYNCS:
        result = schedule_micro_batches([t * t for t in tokens], tokens, 2, 10, num_slots="fewest", sync=sync)
        assert (result.slot_tokens == 10).all()


# --- samples over the cap --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sync", SYNCS)
def test_an_over_long_sample_lies_alone(sync):
    costs, tokens = [9, 1, 1, 0, 5, 1, 1], [30, 1, 1, 0, 25, 2, 2]
    own = schedule_micro_batches(costs, tokens, 2, 20, sync=sync, over_long="own")
    check_schedule(costs, tokens, own, num_ranks=2, cap=20, sync=sync, over_long="own")
    assert own.own.tolist() == [0, 4]
    for item in own.own:
        alone = (own.rank_of_item == own.rank_of_item[item]) & (own.slot_of_item == own.slot_of_item[item])
        assert alone.sum() == 1


# --- wrong results are caught ----------------------------------------------------------------------------------------

RULES = {"num_ranks": 2, "cap": 10, "over_long": "own"}


@pytest.mark.parametrize(
    ("field", "change", "message"),
    [
        ("rank_of_item", lambda r: changed(r.rank_of_item, 2, 2), "sample 2 is on rank 2, outside 0..1"),
        ("slot_of_item", lambda r: changed(r.slot_of_item, 3, 9), "sample 3 is in slot 9, outside"),
        ("rank_of_item", lambda r: r.rank_of_item[:-1], "every sample has one place"),
        ("slot_of_item", lambda r: np.zeros_like(r.slot_of_item), "the micro-batch of rank . slot . (holds|is empty)"),
        ("num_slots", lambda r: r.num_slots + 1, "every rank has num_slots = "),
        ("slot_loads", lambda r: changed(r.slot_loads, (1, 1), 1), "slot 1 costs .*, not slot_loads = 1"),
        ("slot_tokens", lambda r: changed(r.slot_tokens, (0, 1), 1), "slot 1 holds .* tokens, not 1"),
        ("cap", lambda r: 11, "cap is 10, not 11"),
        ("slot_of_item", lambda r: r.slot_of_item // 2, r"rank \d, slot \d (holds .* tokens, over cap = 10|is empty)"),
        ("sync", lambda r: "step", "sync is 'micro_batch', not 'step'"),
        ("value", lambda r: r.value - 1, "with sync 'micro_batch' it takes .*, not value = "),
        ("perfect", lambda r: r.perfect + 1, "perfect is "),
        ("lower_bound", lambda r: r.value + 1, "lower_bound = .* must be within 0..value"),
        ("bound_name", lambda r: "hope", "lower_bound is by an unknown argument 'hope'"),
        ("status", lambda r: SolveStatus.FEASIBLE if r.gap == 0 else SolveStatus.OPTIMAL, "status is "),
        ("own", lambda r: r.own[:0], r"own must be \[8\], got \[\]"),
    ],
)
def test_a_wrong_result_is_caught(field, change, message):
    result = schedule_micro_batches(COSTS, TOKENS, **RULES)
    check_schedule(COSTS, TOKENS, result, **RULES)
    message = message.replace("rank . slot .", r"rank \d, slot \d")
    with pytest.raises(CertificateError, match=message):
        check_schedule(COSTS, TOKENS, dataclasses.replace(result, **{field: change(result)}), **RULES)


def test_a_result_made_under_other_rules_is_caught():
    result = schedule_micro_batches(COSTS, TOKENS, **RULES)
    for rules, message in OTHER_RULES:
        with pytest.raises(CertificateError, match=message):
            check_schedule(COSTS, TOKENS, result, **(RULES | rules))


@pytest.mark.parametrize("sync", SYNCS)
def test_a_bound_that_proves_too_much_is_caught(sync):
    rng = np.random.default_rng(1)
    tokens = rng.integers(1, 20, 40)
    costs = tokens * tokens
    result = schedule_micro_batches(costs, tokens, 3, 40, sync=sync, num_slots=5)
    wrong = dataclasses.replace(result, lower_bound=result.value, status=SolveStatus.OPTIMAL, bound_name="mean")
    if result.gap > 0:
        with pytest.raises(CertificateError, match=r"'mean' proves .* at most"):
            check_schedule(costs, tokens, wrong, num_ranks=3, cap=40, sync=sync, num_slots=5)


def test_an_empty_micro_batch_is_caught():
    result = schedule_micro_batches([5, 5], [5, 5], 2, 10, num_slots=2, allow_empty=True)
    check_schedule([5, 5], [5, 5], result, num_ranks=2, cap=10, allow_empty=True)
    with pytest.raises(CertificateError, match="is empty"):
        check_schedule([5, 5], [5, 5], result, num_ranks=2, cap=10)
