"""Shares cut rank by rank: against plain Python, rule by rule, and what cannot be."""

import dataclasses

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from nightly import examples
from packing_oracles import fewest_groups
from schedule_cases import COSTS, OTHER_RULES, TOKENS, changed
from shares_oracles import cut

from solvers import check_shares
from solvers.errors import CertificateError, InfeasibleError, SolverError
from solvers.packing import cut_shares
from solvers.types import SolveStatus

SAMPLES = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 30), st.integers(0, 3)), max_size=24)
RULES = st.fixed_dictionaries(
    {
        "num_slots": st.sampled_from([None, None, "fewest", 2, 6]),
        "min_slots": st.integers(1, 3),
        "slots_multiple_of": st.integers(1, 3),
        "allow_empty": st.booleans(),
        "over_long": st.sampled_from(["error", "own"]),
    }
)
LOOSE = {"num_slots": None, "min_slots": 1, "slots_multiple_of": 1, "allow_empty": True, "over_long": "own"}


def columns(samples):
    return [list(column) for column in zip(*samples, strict=True)] if samples else [[], [], []]


# --- against plain Python --------------------------------------------------------------------------------------------


@settings(max_examples=examples(100))
@given(SAMPLES, st.integers(8, 60), RULES)
@example([(9, 5, 0), (9, 5, 0), (7, 4, 0), (1, 1, 0), (0, 5, 0)], 10, LOOSE)  # costs that do not follow tokens
@example([(0, 0, 0)] * 5, 8, LOOSE | {"min_slots": 3})
@example([(3, 30, 1), (3, 0, 1), (5, 30, 1)], 8, LOOSE)
@example([(8, 5, 0), (0, 6, 0), (1, 1, 0), (2, 2, 0), (4, 5, 0), (3, 4, 0), (2, 6, 0)], 10, LOOSE | {"min_slots": 4})
@example([(9, 30, 2)] + [(t, t, 2) for t in (6, 5, 5, 4, 4, 3, 3)], 10, LOOSE)
@example([(6, 6, 1)] * 13, 10, LOOSE)
def test_slots_are_those_of_plain_python(samples, cap, rules):
    costs, tokens, ranks = columns(samples)
    expected = None
    if not isinstance(rules["num_slots"], int) or rules["num_slots"] % rules["slots_multiple_of"] == 0:
        rules = rules | {"min_slots": 1} if isinstance(rules["num_slots"], int) else rules
        expected = cut(costs, tokens, ranks, 4, cap, **rules)
    if expected is None:
        with pytest.raises((SolverError, ValueError)):
            cut_shares(costs, tokens, ranks, 4, cap, **rules)
        return
    result = cut_shares(costs, tokens, ranks, 4, cap, **rules)
    assert (result.slot_of_item.tolist(), result.num_slots) == expected
    check_shares(costs, tokens, ranks, result, num_ranks=4, cap=cap, **rules)


@settings(max_examples=examples(30))
@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 1)), max_size=12), st.integers(5, 15))
def test_the_number_of_slots_is_between_its_bound_and_what_first_fit_promises(samples, cap):
    tokens, ranks = [t for t, _ in samples], [r for _, r in samples]
    result = cut_shares(tokens, tokens, ranks, 2, cap, over_long="own", allow_empty=True)
    best = 1
    for rank in range(2):
        mine = [t for t, r in samples if r == rank]
        fitting = [t for t in mine if t <= cap]
        best = max(best, fewest_groups(fitting, cap) + len(mine) - len(fitting))
    assert result.lower_bound <= best <= result.num_slots <= 11 / 9 * best + 6 / 9
    assert result.status is (SolveStatus.OPTIMAL if result.gap == 0 else SolveStatus.FEASIBLE)  # of so few slots


def test_a_rank_with_very_many_samples_is_cut_as_well():
    lengths = np.random.default_rng(1).integers(1, 60, 3000)
    result = cut_shares(lengths, lengths, np.zeros(3000, dtype=int), 1, 200)
    check_shares(lengths, lengths, np.zeros(3000, dtype=int), result, num_ranks=1, cap=200)
    assert result.num_slots == result.lower_bound == -(-lengths.sum() // 200)


# --- properties ------------------------------------------------------------------------------------------------------


@settings(max_examples=examples(30))
@given(st.permutations(range(1, 25)), st.lists(st.integers(0, 3), min_size=24, max_size=24), st.integers(24, 60))
def test_permuting_the_samples_permutes_the_slots(order, ranks, cap):
    """Without ties."""
    costs = np.arange(1, 25) * (9 + np.arange(1, 25))
    tokens, turn, ranks = np.arange(1, 25), np.array(order) - 1, np.array(ranks)
    one = cut_shares(costs, tokens, ranks, 4, cap, allow_empty=True)
    other = cut_shares(costs[turn], tokens[turn], ranks[turn], 4, cap, allow_empty=True)
    assert one.slot_of_item[turn].tolist() == other.slot_of_item.tolist()


@settings(max_examples=examples(30))
@given(SAMPLES, st.integers(8, 60), st.integers(0, 3))
def test_a_rank_is_cut_the_same_whatever_the_others_hold(samples, cap, rank):
    """Given the number of slots, which alone is agreed on."""
    rules = {"over_long": "own", "allow_empty": True}
    together = cut_shares(*columns(samples), 4, cap, **rules)
    mine = [i for i, (_, _, at) in enumerate(samples) if at == rank]
    costs, tokens, _ = columns([samples[i] for i in mine])
    alone = cut_shares(costs, tokens, [0] * len(mine), 1, cap, num_slots=together.num_slots, **rules)
    assert together.slot_of_item[mine].tolist() == alone.slot_of_item.tolist()


def test_numbers_near_the_end_of_int64():
    huge = 2**62
    result = cut_shares([huge, huge - 1], [huge, huge - 1], [0, 0], 1, 2**63 - 1)
    assert (result.num_slots, result.slot_loads.tolist()) == (1, [[2**63 - 1]])
    result = cut_shares([huge, huge - 1], [huge, huge - 1], [0, 0], 1, huge)
    assert (result.num_slots, result.slot_loads.tolist()) == (2, [[huge, huge - 1]])
    result = cut_shares([1, huge], [huge, huge - 1], [1, 1], 2, 1, over_long="own", allow_empty=True)
    assert result.slot_loads.tolist() == [[0, 0], [huge, 1]]


def test_nothing_to_cut():
    result = cut_shares([], [], [], 3, 5, allow_empty=True, min_slots=2, slots_multiple_of=4)
    assert (result.num_slots, result.lower_bound, result.slot_loads.tolist()) == (4, 4, [[0] * 4] * 3)
    assert result.status is SolveStatus.OPTIMAL


def test_where_lpt_finds_no_room_the_packing_stands():
    tokens = [6, 5, 5, 4, 4, 3, 3]  # 30 in three of 10: LPT puts the last 3 nowhere
    result = cut_shares(tokens, tokens, [0] * 7, 1, 10)
    assert result.num_slots == 3
    assert sorted(result.slot_tokens[0].tolist()) == [10, 10, 10]


# --- what cannot be --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"num_ranks": 2**26 + 1}, ValueError, r"num_ranks \* num_slots must be <= 67108864 micro-batches"),
        ({"rank_of_item": [0]}, ValueError, "costs and rank_of_item must be as many, got 8 and 1"),
        ({"rank_of_item": [0] * 7 + [2]}, ValueError, r"rank_of_item\[7\] must be within 0..1, got 2"),
        ({"num_slots": 1}, InfeasibleError, "4 samples of rank 0 need at least 2 micro-batches, short by 1; .* is 2"),
        ({"num_slots": 5}, InfeasibleError, "rank 0 has 4 samples for num_slots = 5 micro-batches.* short by 1"),
        ({"min_slots": 6}, InfeasibleError, "rank 0 has 4 samples for num_slots = 6.*allow_empty=True permits"),
        ({"rank_of_item": [1] * 8}, InfeasibleError, "rank 0 has 0 samples for num_slots = 4"),
    ],
)
def test_what_cannot_be_is_said(arguments, error, message):
    given_arguments = {
        "costs": [4] * 8, "tokens": [5] * 8, "rank_of_item": [0, 1] * 4, "num_ranks": 2, "cap": 10
    } | arguments  # fmt: skip
    with pytest.raises(error, match=message):
        cut_shares(**given_arguments)


def test_a_number_that_only_first_fit_misses_is_no_proof():
    tokens = [11, 8, 7, 5, 5, 4]  # 11 + 5 + 4 and 8 + 7 + 5; first fit puts 11 and 8 together
    with pytest.raises(SolverError, match=r"found no packing .* 2 micro-batches at least do not exclude; 3 would do"):
        cut_shares(tokens, tokens, [0] * 6, 1, 20, num_slots=2)
    assert cut_shares(tokens, tokens, [0] * 6, 1, 20).gap > 0


# --- wrong results are caught ----------------------------------------------------------------------------------------

RANKS = [0, 1, 1, 0, 1, 0, 0, 1, 0]
ASKED = {"num_ranks": 2, "cap": 10, "over_long": "own"}


@pytest.mark.parametrize(
    ("field", "change", "message"),
    [
        ("rank_of_item", lambda r: changed(r.rank_of_item, 2, 0), "sample 2 lies on rank 1 and was put on rank 0"),
        ("slot_loads", lambda r: changed(r.slot_loads, (1, 1), 1), "slot 1 costs .*, not slot_loads = 1"),
        ("lower_bound", lambda r: r.num_slots + 1, "but 'volume' proves 3 at most"),
        ("lower_bound", lambda r: 0, "lower_bound = 0 must be within"),
        ("bound_name", lambda r: "hope", "lower_bound is by an unknown argument 'hope'"),
        ("bound_name", lambda r: "halves", "'halves' proves 2 at most"),
        ("status", lambda r: SolveStatus.FEASIBLE if r.gap == 0 else SolveStatus.OPTIMAL, "status is "),
        ("own", lambda r: r.own[:0], r"own must be \[8\], got \[\]"),
    ],
)
def test_a_wrong_result_is_caught(field, change, message):
    result = cut_shares(COSTS, TOKENS, RANKS, **ASKED)
    check_shares(COSTS, TOKENS, RANKS, result, **ASKED)
    with pytest.raises(CertificateError, match=message):
        check_shares(COSTS, TOKENS, RANKS, dataclasses.replace(result, **{field: change(result)}), **ASKED)


def test_micro_batches_in_another_order_are_caught():
    result = cut_shares(COSTS, TOKENS, RANKS, **ASKED)
    turned = dataclasses.replace(
        result, slot_of_item=result.num_slots - 1 - result.slot_of_item,
        slot_loads=result.slot_loads[:, ::-1], slot_tokens=result.slot_tokens[:, ::-1],
    )  # fmt: skip
    with pytest.raises(CertificateError, match="the micro-batches of rank 0 must descend in cost"):
        check_shares(COSTS, TOKENS, RANKS, turned, **ASKED)


def test_a_result_made_under_other_rules_is_caught():
    result = cut_shares(COSTS, TOKENS, RANKS, **ASKED)
    for rules, message in OTHER_RULES:
        with pytest.raises(CertificateError, match=message):
            check_shares(COSTS, TOKENS, RANKS, result, **(ASKED | rules))
