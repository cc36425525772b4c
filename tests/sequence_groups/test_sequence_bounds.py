"""What is proven of sequence groups: never above the optimum, and only by certificates that hold."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nightly import examples
from sequence_oracles import best_sum

import solvers
from solvers.errors import CertificateError
from solvers.grouping._problem import SequenceProblem
from solvers.grouping._relaxation import Types, proven

DEGREES = (1, 2, 4)


def problem_of(lengths):
    times = [[-(-(9 * x + x * x + 2 * d * x) // d) for x in lengths] for d in DEGREES]
    return times, lengths


LENGTHS = st.lists(st.integers(0, 20), min_size=1, max_size=6)
RULES = st.fixed_dictionaries({
    "overhead": st.sampled_from([0, 50, 300]),
    "group_overhead": st.sampled_from([None, [5, 9, 11]]),
    "num_slots": st.sampled_from([None, None, 3]),
    "slots_multiple_of": st.sampled_from([1, 3]),
})  # fmt: skip


@settings(max_examples=examples(20))
@given(LENGTHS, RULES, st.integers(5, 12))
def test_no_bound_is_above_the_optimum(lengths, rules, cap):
    times, sizes = problem_of(lengths)
    best = best_sum(times, [sizes] * 3, DEGREES, 4, cap, **rules)
    if best is None:
        return
    asked = solvers.SequenceRequest(times, sizes, DEGREES, 4, cap, **rules)
    for whole in (False, True):
        found = solvers.sequence_groups_lower_bound(asked, upper=best + 40, whole=whole, bound_budget=0.1)
        assert found.value <= best
        if found.certificate is not None:
            solvers.check_sequence_bound(asked, found, upper=best + 40)


@settings(max_examples=examples(40))
@given(LENGTHS, RULES, st.data())
def test_any_multipliers_prove_something_true(lengths, rules, data):
    """Weak duality does not ask where they come from."""
    times, sizes = problem_of(lengths)
    best = best_sum(times, [sizes] * 3, DEGREES, 4, 10, **rules)
    if best is None:
        return
    prices = st.integers(0, 1 << data.draw(st.integers(1, 20)))
    shape = (2, 3)

    def drawn(*size):
        return np.array(data.draw(st.lists(prices, min_size=int(np.prod(size)), max_size=int(np.prod(size))))).reshape(
            size
        )

    edges = np.array([0, data.draw(st.integers(1, max(1, best))), best + 1])
    certificate = solvers.SequenceBoundCertificate(
        edges, drawn(*shape), drawn(*shape), drawn(3, *shape), drawn(3, *shape), 20
    )
    problem = SequenceProblem.of(solvers.SequenceRequest(times, sizes, DEGREES, 4, 10, **rules))
    assert proven(Types.of(problem), certificate) <= best


def tail(cap, longest):
    lengths = np.clip(np.random.default_rng(2).lognormal(7, 1.3, 80), 16, longest).astype(np.int64)
    times = np.array([
        (5 * lengths**2 // 1000 + (180 + more) * lengths) // d for d, more in ((1, 0), (2, 0), (4, 20), (8, 200))
    ])  # fmt: skip
    rules = {"degrees": (1, 2, 4, 8), "num_ranks": 8, "cap": cap, "overhead": 300_000}
    return times, lengths, rules, solve(times, lengths, rules)


def solve(times, lengths, rules):
    ask = dict(rules)
    return solvers.sequence_groups(times, lengths, *(ask.pop(k) for k in ("degrees", "num_ranks", "cap")), **ask)


def prove(times, lengths, rules, result, **more):
    asked = solvers.SequenceRequest(times, lengths, **rules)
    return solvers.sequence_groups_lower_bound(asked, upper=result.makespan, **more)


def test_where_room_is_tight_the_program_proves_more():
    times, lengths, rules, result = tail(2_500, 15_000)
    bound = prove(times, lengths, rules, result)
    assert result.lower_bound * 1.02 < bound.value <= result.makespan
    assert bound.name == "relaxation"
    solvers.check_sequence_bound(solvers.SequenceRequest(times, lengths, **rules), bound, upper=result.makespan)


def test_whole_slots_prove_more():
    times, lengths, rules, result = tail(4_000, 19_000)
    bound = prove(times, lengths, rules, result, whole=True, bound_budget=3)
    assert result.lower_bound <= bound.value <= result.makespan  # how far it comes is the clock's affair
    assert bound.value > result.lower_bound or bound.name != "whole_relaxation"


def test_a_certificate_that_does_not_hold_is_found():
    times, lengths, rules, result = tail(2_500, 15_000)
    bound = prove(times, lengths, rules, result)
    kept = bound.certificate
    wrong = {
        "proves": replace(bound, value=bound.value + 2),
        "no certificate": replace(bound, certificate=None),
        "must cover": replace(bound, certificate=replace(kept, edges=kept.edges // 2)),
        "must be >= 0": replace(bound, certificate=replace(kept, time_price=-kept.time_price)),
        "sells more": replace(bound, certificate=replace(kept, time_price=kept.time_price * 2)),
    }
    asked = solvers.SequenceRequest(times, lengths, **rules)
    for message, claimed in wrong.items():
        with pytest.raises(CertificateError, match=message):
            solvers.check_sequence_bound(asked, claimed, upper=result.makespan)
