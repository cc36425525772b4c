"""Shares cut rank by rank: against plain Python, rule by rule, and what cannot be."""

import dataclasses

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from nightly import examples
from schedule_cases import COSTS, OTHER_RULES, TOKENS, changed
from shares_oracles import cut, fewest_slots

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


@settings(max_examples=examples(300))
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


@settings(max_examples=examples(60))
@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 1)), max_size=12), st.integers(5, 15))
def test_the_number_of_slots_is_between_its_bound_and_what_first_fit_promises(samples, cap):
    tokens, ranks = [t for t, _ in samples], [r for _, r in samples]
    result = cut_shares(tokens, tokens, ranks, 2, cap, over_long="own", allow_empty=True)
    best = max(1, *(fewest_slots([t for t, r in samples if r == rank], cap) for rank in range(2)))
    assert result.lower_bound <= best <= result.num_slots <= 11 / 9 * best + 6 / 9
    assert result.status is (SolveStatus.OPTIMAL if result.gap == 0 else SolveStatus.FEASIBLE)  # of so few slots


def test_ranks_by_the_thousand():
    rng = np.random.default_rng(0)
    lengths = np.clip(rng.lognormal(6, 1.2, 600 * 24).astype(np.int64), 1, 8192)
    costs, ranks = lengths * (lengths + 9000), rng.permutation(np.repeat(np.arange(600), 24))
    result = cut_shares(costs, lengths, ranks, 600, 8192)
    check_shares(costs, lengths, ranks, result, num_ranks=600, cap=8192)
    expected = cut(costs.tolist(), lengths.tolist(), ranks.tolist(), 600, 8192)
    assert (result.slot_of_item.tolist(), result.num_slots) == expected


def test_a_rank_with_very_many_samples_is_cut_as_well():
    lengths = np.random.default_rng(1).integers(1, 60, 3000)
    result = cut_shares(lengths, lengths, np.zeros(3000, dtype=int), 1, 200)
    check_shares(lengths, lengths, np.zeros(3000, dtype=int), result, num_ranks=1, cap=200)
    assert result.num_slots == result.lower_bound == -(-lengths.sum() // 200)


# --- properties ------------------------------------------------------------------------------------------------------


@settings(max_examples=examples(60))
@given(st.permutations(range(1, 25)), st.lists(st.integers(0, 3), min_size=24, max_size=24), st.integers(24, 60))
def test_permuting_the_samples_permutes_the_slots(order, ranks, cap):
    """Without ties."""
    costs = np.arange(1, 25) * (9 + np.arange(1, 25))
    tokens, turn, ranks = np.arange(1, 25), np.array(order) - 1, np.array(ranks)
    one = cut_shares(costs, tokens, ranks, 4, cap, allow_empty=True)
    other = cut_shares(costs[turn], tokens[turn], ranks[turn], 4, cap, allow_empty=True)
    assert one.slot_of_item[turn].tolist() == other.slot_of_item.tolist()


@settings(max_examples=examples(60))
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


def test_an_over_long_sample_lies_alone():
    costs, tokens, ranks = [9, 1, 1, 0, 5, 1, 1], [30, 1, 1, 0, 25, 2, 2], [0, 0, 0, 0, 1, 1, 1]
    own = cut_shares(costs, tokens, ranks, 2, 20, over_long="own")
    assert (own.num_slots, own.own.tolist(), own.slot_of_item.tolist()) == (2, [0, 4], [0, 1, 1, 1, 0, 1, 1])


def test_where_lpt_finds_no_room_the_packing_stands():
    tokens = [6, 5, 5, 4, 4, 3, 3]  # 30 in three of 10: LPT puts the last 3 nowhere
    result = cut_shares(tokens, tokens, [0] * 7, 1, 10)
    assert result.num_slots == 3
    assert sorted(result.slot_tokens[0].tolist()) == [10, 10, 10]


# --- what cannot be --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"num_slots": 3, "min_slots": 4}, ValueError, "num_slots = 3 contradicts min_slots = 4"),
        ({"num_slots": 3, "slots_multiple_of": 2}, ValueError, "contradicts slots_multiple_of = 2: give .* such as 4"),
        ({"num_slots": "most"}, ValueError, "num_slots must be an integer, 'fewest' or None, got 'most'"),
        ({"over_long": "cut"}, ValueError, "over_long must be one of 'error', 'own', got 'cut'"),
        ({"allow_empty": 1}, TypeError, "allow_empty must be True or False, got 1"),
        ({"cap": 0}, ValueError, "cap must be >= 1"),
        ({"num_ranks": 0}, ValueError, "num_ranks must be >= 1, got 0"),
        ({"num_ranks": 2**26 + 1}, ValueError, r"num_ranks \* num_slots must be <= 67108864 micro-batches"),
        ({"tokens": [1, 2]}, ValueError, "costs and tokens must be as many, got 8 and 2"),
        ({"rank_of_item": [0]}, ValueError, "costs and rank_of_item must be as many, got 8 and 1"),
        ({"rank_of_item": [0] * 7 + [2]}, ValueError, r"rank_of_item\[7\] must be within 0..1, got 2"),
        ({"rank_of_item": [-1] + [0] * 7}, ValueError, r"rank_of_item\[0\] must be within 0..1, got -1"),
        ({"rank_of_item": [0.5] * 8}, ValueError, r"rank_of_item\[0\] must be a finite whole number"),
        ({"tokens": [-1] * 8}, ValueError, r"tokens\[0\] must be >= 0, got -1"),
        ({"costs": [2**62] * 8}, ValueError, "the sum of costs must fit int64"),
        ({"cap": 9, "tokens": [5] * 7 + [11]}, InfeasibleError, r"tokens\[7\] = 11 is over cap = 9 by 2"),
        ({"num_slots": 1}, InfeasibleError, "4 samples of rank 0 need at least 2 micro-batches, short by 1; .* is 2"),
        ({"num_slots": 5}, InfeasibleError, "rank 0 has 4 samples for num_slots = 5 micro-batches.* short by 1"),
        ({"min_slots": 6}, InfeasibleError, "rank 0 has 4 samples for num_slots = 6.*allow_empty=True permits"),
        ({"rank_of_item": [1] * 8}, InfeasibleError, "rank 0 has 0 samples for num_slots = 4"),
        ({"num_slots": 2**27, "allow_empty": True}, ValueError, r"num_ranks \* num_slots must be <= "),
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
        ("rank_of_item", lambda r: changed(r.rank_of_item, 2, 2), "sample 2 is on rank 2, outside 0..1"),
        ("rank_of_item", lambda r: changed(r.rank_of_item, 2, 0), "sample 2 lies on rank 1 and was put on rank 0"),
        ("slot_of_item", lambda r: changed(r.slot_of_item, 3, 9), "sample 3 is in slot 9, outside"),
        ("slot_of_item", lambda r: np.zeros_like(r.slot_of_item), r"rank 0, slot 0 holds 5 samples, among them"),
        ("num_slots", lambda r: r.num_slots + 1, "every rank has num_slots = "),
        ("slot_loads", lambda r: changed(r.slot_loads, (1, 1), 1), "slot 1 costs .*, not slot_loads = 1"),
        ("slot_tokens", lambda r: changed(r.slot_tokens, (0, 1), 1), "slot 1 holds .* tokens, not 1"),
        ("cap", lambda r: 11, "cap is 10, not 11"),
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


@pytest.mark.parametrize(("rules", "message"), OTHER_RULES)
def test_a_result_made_under_other_rules_is_caught(rules, message):
    result = cut_shares(COSTS, TOKENS, RANKS, **ASKED)
    with pytest.raises(CertificateError, match=message):
        check_shares(COSTS, TOKENS, RANKS, result, **(ASKED | rules))
