"""What is said about a cap that is too small: true of every plan, and of every step."""

import numpy as np
import oracles
from hypothesis import given
from hypothesis import strategies as st

from balancer.errors import InputError
from balancer.problem.smallest_cap import AskedCap, least_cap, most_needed, needed

ASKED = AskedCap("all", "max_tokens_per_rank", 10, 2)


@given(st.lists(st.integers(0, 50), max_size=7), st.integers(1, 4))
def test_no_plan_keeps_to_less(lengths, bins):
    amounts = np.array(lengths, dtype=np.int64)
    best = oracles.optimal_makespan(lengths, bins, False)
    assert least_cap(amounts, bins) <= best
    said = needed("cap", amounts, bins, 0)
    assert said == f"; for this batch cap must be at least {max(best, 1)}, which does"
    assert needed("cap", amounts, bins, max(best, 1)) == ""


def test_sums_past_int64_are_exact():
    assert least_cap(np.array([2**62] * 3), 2) == 3 * 2**61
    assert needed("cap", np.array([2**62] * 3), 2, 5) == ""  # which no solver takes


def steps_of(*steps):
    for lengths in steps:
        if lengths is None:
            raise InputError("a bad row")
        yield {"all": np.array(lengths, dtype=np.int64)}


def test_the_step_that_needs_most():
    assert most_needed([ASKED], steps_of([11], [3], [30, 1], [30], []), 0) == (
        "\nfurther on step 2 needs max_tokens_per_rank of at least 30"
    )
    assert most_needed([ASKED], steps_of([11], [3], [30, 1]), 2) == ""
    assert most_needed([ASKED], steps_of([11], [10]), 0) == ""
    assert most_needed([ASKED], steps_of([11], [8, 8, 8]), 0).endswith(
        "step 1 needs max_tokens_per_rank of at least 12"
    )
    assert most_needed([ASKED._replace(num_bins=None)], steps_of([11], [8, 8, 8]), 0) == ""
    assert most_needed([ASKED], steps_of([11], [30], None), 0) == ""  # a bad row is another error's matter


def test_two_caps_each_with_its_step():
    asked = [ASKED, ASKED._replace(name="micro_batch_tokens", limit=5, num_bins=None)]
    assert most_needed(asked, steps_of([6], [8, 8, 8], [9]), 0) == (
        "\nfurther on step 1 needs max_tokens_per_rank of at least 12, step 2 needs micro_batch_tokens of at least 9"
    )
