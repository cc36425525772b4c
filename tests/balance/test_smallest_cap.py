"""What is said about a cap that is too small: true of every plan, and of every step."""

import json

import numpy as np
import oracles
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nightly import examples

from balancer import MicroBatches, Phase
from balancer.io.log import open_log
from balancer.offline.settings import LogSettings
from balancer.offline.steps import plan_log
from balancer.problem.settings import PlanSettings
from balancer.problem.setup import Setup, as_topology
from balancer.problem.smallest_cap import least_cap, needed
from solvers import InfeasibleError, SolverError


@given(st.lists(st.integers(0, 50), max_size=7), st.integers(1, 4))
@settings(max_examples=examples(25))
def test_no_plan_keeps_to_less(lengths, bins):
    amounts = np.array(lengths, dtype=np.int64)
    best = oracles.optimal_makespan(lengths, bins, False)
    assert least_cap(amounts, bins) <= best
    said = needed("cap", amounts, bins, 0)
    assert said == f"for this batch cap must be at least {max(best, 1)}, which is enough"
    assert needed("cap", amounts, bins, max(best, 1)) == ""


def test_sums_past_int64_are_exact():
    assert least_cap(np.array([2**62] * 3), 2) == 3 * 2**61
    assert needed("cap", np.array([2**62] * 3), 2, 5) == ""  # which no solver takes


@pytest.fixture
def note_of(tmp_path):
    """What is said of later steps, a line of its own, where steps of four samples on two ranks cannot be planned."""

    def planned(*steps, cap=10, cut=None):
        lengths = [length for step in steps for length in (*step, *[0] * (4 - len(step)))]
        (tmp_path / "log.csv").write_text("\n".join(["n", *map(str, lengths), ""]))
        phase = Phase("all", "n", max_tokens_per_rank=cap)
        setup = Setup(as_topology(2), (phase,), PlanSettings(cut=cut))
        with pytest.raises(SolverError) as caught:
            list(plan_log(open_log(tmp_path / "log.csv"), LogSettings(setup, 2)))
        assert str(caught.value).startswith(f"{tmp_path}/log.csv: step ")
        return str(caught.value).partition("\n")[2]

    return planned


def test_the_step_that_needs_most(note_of):
    said = "further on step 2 needs max_tokens_per_rank of at least 30"
    assert note_of([11], [3], [30, 1], [30], []) == said
    assert note_of([3], [3], [30, 1], [29]) == ""  # it is the one that failed
    assert note_of([11], [10]) == ""
    assert note_of([11], [8, 8, 8]) == "further on step 1 needs max_tokens_per_rank of at least 12"
    assert note_of([11], [8, 8, 3]) == ""


def test_a_bad_row_further_on_is_another_errors_matter(tmp_path):
    for rank, said in ((0, True), (1, False)):  # there is only rank 0
        rows = [{"n": 11, "only": [0]}, {"n": 30, "only": [0]}, {"n": 1, "only": [rank]}]
        (tmp_path / "log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        phase = Phase("all", "n", allowed_ranks="only", max_tokens_per_rank=10)
        with pytest.raises(InfeasibleError) as caught:
            list(plan_log(open_log(tmp_path / "log.jsonl"), LogSettings(Setup(as_topology(1), (phase,)), 1)))
        assert ("\nfurther on step 1 needs max_tokens_per_rank of at least 30" in str(caught.value)) == said


def test_two_caps_each_with_its_step(note_of):
    cut = MicroBatches(9, over_long="error", allow_empty=True)
    assert note_of([10, 9, 9], [7, 8, 8], [10], [8, 9, 9, 9], cut=cut, cap=12) == (
        "further on step 3 needs max_tokens_per_rank of at least 18"
    )
    assert note_of([10, 9, 9], [8, 8, 9], [15], cut=cut, cap=12) == (
        "further on step 2 needs max_tokens_per_rank of at least 15, step 2 needs cut.tokens of at least 15"
    )


def test_a_cap_that_no_number_of_micro_batches_is_too_few_for_is_asked_of_samples_alone(note_of):
    """As many micro-batches as it takes: only a sample can be over the cap."""
    assert note_of([10], [9, 9, 9, 9], cut=MicroBatches(9), cap=99) == ""
    said = note_of([10], [9, 9, 9, 9], cut=MicroBatches(9, count=1), cap=99)
    assert said == "further on step 1 needs cut.tokens of at least 18"


def test_caps_of_phases_are_told_apart(tmp_path):
    (tmp_path / "log.csv").write_text("a,b\n5,5\n1,1\n9,1\n1,30\n")
    phases = Phase("a", "a", max_tokens_per_rank=8), Phase("b", "b", max_tokens_per_rank=4)
    with pytest.raises(InfeasibleError) as caught:
        list(plan_log(open_log(tmp_path / "log.csv"), LogSettings(Setup(as_topology(2), phases), 1)))
    first, second = str(caught.value).splitlines()
    assert "step 0: phase 'b': row 0 has length 5" in first
    assert second == (
        "further on step 1 needs max_tokens_per_rank of phase 'a' of at least 9, "
        "step 1 needs max_tokens_per_rank of phase 'b' of at least 30"
    )
