"""Sequence groups: against all groups on small cases, under every rule, and what is refused."""

import re
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nightly import examples
from sequence_oracles import best_sum

import solvers
from balancer.cost import parse_cost
from solvers.errors import InfeasibleError

DEGREES = st.sampled_from([(1, 2, 4), (1, 2), (2, 4), (1, 3), (1, 2, 3), (4,), (3, 5)])


@st.composite
def problems(draw):
    degrees = draw(DEGREES)
    n = draw(st.integers(1, 5))
    lengths = draw(st.lists(st.integers(0, 12), min_size=n, max_size=n))
    loss = draw(st.integers(0, 3))
    times = [[-(-(9 * x + x * x + loss * d * x) // d) for x in lengths] for d in degrees]
    padded = draw(st.booleans())
    sizes = [[-(-x // d) * d for x in lengths] for d in degrees] if padded else lengths
    rules = {
        "degrees": degrees,
        "num_ranks": draw(st.integers(1, 6)),
        "cap": draw(st.integers(1, 14)),
        "overhead": draw(st.integers(0, 40)),
        "group_overhead": draw(st.sampled_from([None, [3 + d for d in degrees]])),
        "min_slots": draw(st.sampled_from([1, 1, 2])),
        "slots_multiple_of": draw(st.sampled_from([1, 1, 2, 3])),
    }
    if draw(st.booleans()):
        rules["num_slots"] = -(-draw(st.integers(rules["min_slots"], 4)) // rules["slots_multiple_of"])
        rules["num_slots"] *= rules["slots_multiple_of"]
    return times, sizes, rules


def solve(times, sizes, rules, **more):
    rules = dict(rules) | more
    return solvers.sequence_groups(
        times, sizes, rules.pop("degrees"), rules.pop("num_ranks"), rules.pop("cap"), **rules
    )


@settings(max_examples=examples(60))
@given(problems())
def test_between_bound_and_optimum(problem):
    times, sizes, rules = problem
    table = sizes if np.ndim(sizes) == 2 else [sizes] * len(times)
    best = best_sum(times, table, **rules)
    if min(rules["degrees"]) > rules["num_ranks"]:
        with pytest.raises(ValueError, match="degrees must hold one that is <= num_ranks"):
            solve(times, sizes, rules)
        return
    try:
        result = solve(times, sizes, rules, time_budget=0.002)
    except InfeasibleError:
        assert best is None
        return
    except solvers.TimeLimitError:  # none was found, though there may be one
        return
    solvers.check_sequence_groups(times, sizes, result, **rules)
    assert best is not None
    assert result.lower_bound <= best <= result.makespan


def tight(seed):
    """Few items whose room is short, in a number of slots."""
    rng = np.random.default_rng(seed)
    n, degrees = int(rng.integers(2, 6)), rng.choice(np.arange(1, 6), rng.integers(1, 4), replace=False)
    shape = (len(degrees), n)
    sizes = rng.integers(0, 10, shape if rng.random() < 0.4 else n)
    volume, num_ranks = int(sizes.sum()) // (sizes.ndim * len(sizes) // n or 1), int(max(degrees) + rng.integers(0, 4))
    slots = int(rng.integers(1, 4))
    rules = {
        "degrees": degrees.tolist(), "num_ranks": num_ranks, "num_slots": slots, "overhead": int(rng.integers(0, 3)),
        "cap": 1 + int(volume * rng.uniform(1, 1.6)) // (slots * num_ranks),
    }  # fmt: skip
    return rng.integers(0, 4, shape).tolist(), sizes.tolist(), rules


def test_what_a_search_does_not_find_is_not_called_infeasible():
    """Of few items in little room what there is is found; and no error says that there is nothing where there is."""
    there, found = 0, 0
    for seed in range(100):
        times, sizes, rules = tight(seed)
        table = sizes if np.ndim(sizes) == 2 else [sizes] * len(times)
        best = best_sum(times, table, **rules)
        there += best is not None
        try:
            result = solve(times, sizes, rules, time_budget=0.002)
        except InfeasibleError:
            assert best is None
        except solvers.TimeLimitError:
            continue
        else:
            solvers.check_sequence_groups(times, sizes, result, **rules)
            found += 1
    assert found == there


def test_none_was_found():
    """More budget is not advised where it changes nothing."""
    rules = {"degrees": [1], "num_ranks": 2, "cap": 10, "num_slots": 2}
    for budget, advice in ((1, ""), (1e-8, ", more time_budget")):
        with pytest.raises(solvers.TimeLimitError, match="none was found: no way to put the 5 items into") as caught:
            solve([[1] * 5], [6, 6, 6, 6, 6], rules, time_budget=budget)
        assert str(caught.value).endswith(
            f"into num_slots = 2 under cap, only into 3; give more num_slots, a larger cap{advice}"
        )


def test_mostly_optimal_on_small_cases():
    optimal = 0
    for seed in range(20):
        rng = np.random.default_rng(seed)
        lengths = rng.integers(1, 30, 5)
        times = [(-(-(20 * lengths + lengths**2 + 3 * (d - 1) * lengths) // d)).tolist() for d in (1, 2, 4)]
        rules = {"degrees": (1, 2, 4), "num_ranks": 4, "cap": 20, "overhead": 100}
        best = best_sum(times, [lengths.tolist()] * 3, **rules)
        result = solve(times, lengths, rules, time_budget=0.005)
        assert result.makespan >= best
        optimal += result.makespan == best
    assert optimal >= 18


def lognormal(n, seed, degrees):
    lengths = np.clip(np.random.default_rng(seed).lognormal(8, 1.4, n), 16, 60_000).astype(np.int64)
    times = np.array([(5 * lengths**2 // 1000 + (180 + 10 * np.log2(d).astype(int)) * lengths) // d for d in degrees])
    return lengths, times


@pytest.mark.parametrize(
    ("num_ranks", "degrees"),
    [(64, (1, 2, 4, 8, 16, 32, 64)), (20, (2, 7, 12))],
)
def test_checked_and_close_on_long_tails(num_ranks, degrees):
    lengths, times = lognormal(4 * num_ranks, 3, degrees)
    cap = 60_000 // max(degrees) + 3_000
    rules = {"degrees": degrees, "num_ranks": num_ranks, "cap": cap, "overhead": 300_000}
    result = solve(times, lengths, rules, time_budget=0.01)
    solvers.check_sequence_groups(times, lengths, result, **rules)
    assert result.gap < 0.25
    assert result == solve(times, lengths, rules, time_budget=0.01)


def test_many_groups_a_slot():
    """Beyond 64 groups the first that fits is found in a tree."""
    degrees = (1, 2, 4, 8)
    lengths, times = lognormal(800, 5, degrees)
    rules = {"degrees": degrees, "num_ranks": 128, "cap": 9_000, "overhead": 300_000}
    result = solve(times, lengths, rules, time_budget=0.02)
    solvers.check_sequence_groups(times, lengths, result, **rules)
    assert result.gap < 0.15


def test_more_budget_is_no_worse_and_the_order_of_items_does_not_matter():
    degrees = (1, 2, 4, 8)
    lengths, times = lognormal(200, 7, degrees)
    rules = {"degrees": degrees, "num_ranks": 16, "cap": 9_000, "overhead": 300_000}
    values = [solve(times, lengths, rules, time_budget=b).makespan for b in (0.001, 0.02)]
    assert values[1] <= values[0]
    order = np.random.default_rng(0).permutation(200)
    again = solve(times[:, order], lengths[order], rules, time_budget=0.02)
    assert again.slot_times.tolist() == solve(times, lengths, rules, time_budget=0.02).slot_times.tolist()


def test_ranks_left_over_are_put_to_use():
    """One item could run on one rank; it gets four, because they are there."""
    result = solvers.sequence_groups([[8], [5], [3]], [1], [1, 2, 4], 6, 1)
    assert result.degree_of_group.tolist() == [4]
    assert result.makespan == result.lower_bound == 3
    assert result.status == "optimal"


# --- legal, though it looks odd --------------------------------------------------------------------------------------


def test_groups_lie_in_descending_order_of_degree():
    """Where degrees do not divide each other a group may reach over the end of a node, here of 8 ranks."""
    rules = {"degrees": [3, 5], "num_ranks": 16, "cap": 1, "num_slots": 1}
    times = [[10] * 4, [6] * 4]
    result = solve(times, [3, 3, 5, 5], rules)
    solvers.check_sequence_groups(times, [3, 3, 5, 5], result, **rules)
    assert result.degree_of_group.tolist() == [5, 5, 3, 3]
    assert result.first_rank_of_group.tolist() == [0, 5, 10, 13]


def test_no_items():
    rules = {"degrees": [1, 2], "num_ranks": 4, "cap": 1, "overhead": 3, "slots_multiple_of": 2}
    result = solve(np.zeros((2, 0), int), [], rules)
    solvers.check_sequence_groups(np.zeros((2, 0), int), [], result, **rules)
    assert (result.makespan, result.num_groups, result.status) == (6, 0, "optimal")


def test_empty_slots_are_charged():
    result = solvers.sequence_groups([[5]], [1], [1], 2, 1, overhead=2, num_slots=4, slots_multiple_of=2)
    assert result.slot_times.tolist() == [7, 2, 2, 2]
    assert result.lower_bound == 13


def test_no_cap_at_all():
    rules = {"degrees": [1, 2], "num_ranks": 2, "cap": None}
    result = solve([[5, 5], [4, 4]], [9, 10**9], rules)
    solvers.check_sequence_groups([[5, 5], [4, 4]], [9, 10**9], result, **rules)
    assert result.makespan == 5


# --- refused ---------------------------------------------------------------------------------------------------------


def test_an_item_over_all_ranks_times_the_cap():
    with pytest.raises(
        InfeasibleError, match=re.escape("no group can hold item 1: its size 41 is over 40, cap = 10 on")
    ) as caught:
        solvers.sequence_groups([[1, 1], [1, 1]], [3, 41], [2, 4], 4, 10)
    assert caught.value.certificate.excess == 1


TOO_FEW = "num_slots = 1 is too few: the 3 items are of size 30"
ODD = "num_slots = 3 contradicts slots_multiple_of = 2"
SHAPE = "times must have the shape (2, n), a row for each of degrees"
SUMS = "num_ranks * (sum of the largest times of all items, and overheads)"
REFUSED = {
    "slots that cannot hold all": ({"num_slots": 1}, InfeasibleError, TOO_FEW),
    "fewer than min_slots": ({"num_slots": 2, "min_slots": 3}, ValueError, "num_slots = 2 contradicts min_slots = 3"),
    "no multiple": ({"num_slots": 3, "slots_multiple_of": 2}, ValueError, ODD),
    "no degree": ({"degrees": []}, ValueError, "degrees must hold at least one, got none"),
    "degree 0": ({"degrees": [0, 2]}, ValueError, "degrees[0] must be >= 1, got 0"),
    "a degree twice": ({"degrees": [2, 2]}, ValueError, "degrees[1] must be distinct, got 2"),
    "no degree that has place": ({"degrees": [3, 5]}, ValueError, "degrees must hold one that is <= num_ranks = 2"),
    "a row too few": ({"times": [[1, 1, 1]]}, ValueError, SHAPE),
    "sums": ({"times": [[2**57] * 3] * 2}, ValueError, SUMS),
    "overheads": ({"group_overhead": [1]}, ValueError, "group_overhead and degrees must be as many, got 1 and 2"),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_refused(what):
    changes, error, message = REFUSED[what]
    given = {"times": [[3, 3, 3], [2, 2, 2]], "sizes": [10, 10, 10], "degrees": [1, 2], "num_ranks": 2, "cap": 10}
    given |= changes
    with pytest.raises(error, match="^" + re.escape(message)):
        solvers.sequence_groups(**given)


def test_below_what_a_public_scheduler_takes():
    """Batches of 512 on 64 ranks, by published constants; see data/README.md."""
    table = pq.read_table(Path(__file__).parents[2] / "data" / "sequence_groups_dev.parquet")
    batch = table.slice(13, 1).to_pylist()[0]
    lengths, degrees = np.array(batch["lengths"]), [2, 4, 8, 16, 32, 64]
    priced = parse_cost("flexsp-7b-a100").degree_times(lengths, degrees, 64)
    rules = {"degrees": degrees, "num_ranks": 64, "cap": batch["cap"], "overhead": priced.overhead}
    result = solve(priced.times, lengths, rules, time_budget=0.05)
    solvers.check_sequence_groups(priced.times, lengths, result, **rules)
    taken = result.makespan * priced.unit / 1e9
    assert taken < batch["peer_ms"]
    assert taken < 1.01 * batch["prototype_ms"]
    assert result.gap < 0.08
