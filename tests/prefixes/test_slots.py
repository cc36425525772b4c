"""Micro-batches of items that share prefixes: the bound below all ways there are, results that keep the cap."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nightly import examples
from plan_files import tamper

import balancer
from balancer import PlanError
from balancer.cost import parse_cost
from solvers import CertificateError, check_schedule
from solvers.errors import InfeasibleError, SolverError
from solvers.packing import prefix_schedule_bound, schedule_with_prefixes


def value_of(case, rank, slot, num_slots, sync):
    """Return what a schedule takes, and the tokens of its micro-batches, by plain loops."""
    costs, tokens, num_ranks, keys, once, once_tokens = case
    loads = [[0] * num_slots for _ in range(num_ranks)]
    held = [[0] * num_slots for _ in range(num_ranks)]
    seen = set()
    for i, (r, k) in enumerate(zip(rank, slot, strict=True)):
        fresh = (r, k, keys[i]) not in seen
        seen.add((r, k, keys[i]))
        loads[r][k] += costs[i] + fresh * once[i]
        held[r][k] += tokens[i] + fresh * once_tokens[i]
    if sync == "step":
        return max(map(sum, loads)), held
    return sum(max(row[k] for row in loads) for k in range(num_slots)), held


def tiny(seed):
    rng = np.random.default_rng(seed)
    n, num_ranks, prefixes = int(rng.integers(1, 6)), int(rng.integers(1, 3)), int(rng.integers(1, 4))
    keys = rng.integers(0, prefixes, n)
    once_tokens = rng.integers(0, 9, prefixes)[keys]
    tokens = rng.integers(0, 9, n)
    factor = int(rng.integers(1, 4))
    costs, once = tokens * factor + tokens**2 * (seed % 2), once_tokens * factor
    cap = max(1, int((tokens + once_tokens).max()) + int(rng.integers(0, 12)))
    case = tuple(each.tolist() if isinstance(each, np.ndarray) else each
                 for each in (costs, tokens, num_ranks, keys, once, once_tokens))  # fmt: skip
    return case, cap


def made(case, cap, **keywords):
    costs, tokens, num_ranks, keys, once, once_tokens = case
    found = schedule_with_prefixes(costs, tokens, num_ranks, cap, keys, once, once_tokens, **keywords)
    checked(case, cap, found, **keywords)
    return found


def made_or_not(case, cap, **keywords):
    try:
        return made(case, cap, **keywords)
    except SolverError as error:
        return error


def checked(case, cap, found, **keywords):
    costs, tokens, num_ranks, keys, once, once_tokens = case
    check_schedule(costs, tokens, found, num_ranks=num_ranks, cap=cap, prefix=keys, prefix_costs=once,
                          prefix_tokens=once_tokens, **keywords)  # fmt: skip


@pytest.mark.more_by_night
@pytest.mark.parametrize("sync", ["micro_batch", "step"])
def test_bound_optimum_and_result_of_tiny_cases(sync):
    near = 0
    count = min(examples(12), 400)  # every placement of each is tried
    for seed in range(count):
        case, cap = tiny(seed)
        found = made(case, cap, sync=sync, allow_empty=True)
        num_slots, ranks = found.num_slots, case[2]
        value, held = value_of(case, found.rank_of_item.tolist(), found.slot_of_item.tolist(), num_slots, sync)
        assert value == found.value
        assert max(map(max, held)) <= cap
        best = None
        places = list(itertools.product(range(ranks), range(num_slots)))
        for where in itertools.product(places, repeat=len(case[0])):
            taken, held = value_of(case, *zip(*where, strict=True), num_slots, sync)
            if max(map(max, held)) <= cap:
                best = taken if best is None else min(best, taken)
        assert found.lower_bound <= best <= found.value
        near += found.value <= 1.1 * best
    assert near > 0.8 * count


@settings(max_examples=examples(30))
@given(
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 300)), min_size=1, max_size=40),
    st.lists(st.integers(0, 500), min_size=6, max_size=6), st.integers(1, 5), st.integers(0, 2000),
    st.sampled_from(["micro_batch", "step"]), st.integers(1, 3), st.integers(1, 3), st.booleans(),
)  # fmt: skip
def test_what_holds_for_all(items, prefixes, num_ranks, more, sync, least, multiple, allow_empty):
    keys, tokens = [key for key, _ in items], [size for _, size in items]
    once = [prefixes[key] for key in keys]
    cap = max(1, max(map(sum, zip(tokens, once, strict=True))) + more)
    case = tokens, tokens, num_ranks, keys, once, once
    keywords = {"sync": sync, "min_slots": least, "slots_multiple_of": multiple, "allow_empty": allow_empty}
    asked = -(-least // multiple) * multiple
    few = not allow_empty and len(items) < num_ranks * asked
    found = made_or_not(case, cap, **keywords)
    if isinstance(found, SolverError):
        assert isinstance(found, InfeasibleError) == few
        assert not allow_empty  # else each item may have a micro-batch to itself
        return
    assert not few
    value, held = value_of(case, found.rank_of_item.tolist(), found.slot_of_item.tolist(), found.num_slots, sync)
    bound = prefix_schedule_bound(tokens, tokens, num_ranks, cap, keys, once, once)
    assert value == found.value >= found.lower_bound == bound
    assert max(map(max, held)) <= cap
    assert found.num_slots >= least
    assert found.num_slots % multiple == 0
    if not allow_empty:
        bins = set(zip(found.rank_of_item.tolist(), found.slot_of_item.tolist(), strict=True))
        assert len(bins) == num_ranks * found.num_slots


def test_a_prompt_needs_as_many_micro_batches_as_its_responses():
    """Each of four responses fills what the prompt leaves of the cap: four copies, which the bound counts."""
    found = made(([60] * 4, [60] * 4, 2, [0] * 4, [40] * 4, [40] * 4), 100)
    assert (found.num_slots, found.value, found.lower_bound) == (2, 200, 200)


def test_numbers_of_slots_that_are_asked_for():
    case = ([1] * 16, [1] * 16, 2, [0] * 16, [2] * 16, [2] * 16)
    assert made(case, 10, num_slots=40, allow_empty=True).num_slots == 40  # more than there are items
    assert made(case, 10, min_slots=40, allow_empty=True).num_slots == 40
    assert made(case, 10, num_slots=3).num_slots == 3
    fewest = made(case, 10, num_slots="fewest")
    assert (fewest.num_slots, fewest.value) == (1, 10)
    several = {"num_slots": 3, "slots_multiple_of": 2}
    for wrong, told in (
        (several, "contradicts"),
        ({"sync": "pipeline"}, "sync"),
        ({"num_slots": 2**40}, "must be <= "),
    ):
        with pytest.raises(ValueError, match=told):
            made(case, 10, **wrong)


def test_the_checker_sees_what_is_wrong():
    case = ([9, 8, 7, 6, 5, 4], [9, 8, 7, 6, 5, 4], 2, [0, 0, 1, 1, 2, 2], [3] * 6, [3] * 6)
    found = made(case, 24)
    other = replace(found, slot_loads=found.slot_loads + 1)
    for wrong in (
        replace(found, lower_bound=found.value + 1), replace(found, value=found.value - 1), other,
        replace(found, slot_of_item=found.slot_of_item * 0), replace(found, bound_name="mean"),
        replace(found, rank_of_item=1 - found.rank_of_item),
    ):  # fmt: skip
        with pytest.raises(CertificateError):
            checked(case, 24, wrong)
    with pytest.raises(CertificateError, match="cap"):
        checked(case, 23, found)


def test_infeasible_is_told_apart_from_not_found():
    with pytest.raises(InfeasibleError, match="over cap = 100 by 10"):
        made(([60], [60], 1, [0], [50], [50]), 100)
    with pytest.raises(InfeasibleError, match="short by"):
        made(([1, 2], [1, 2], 3, [0, 0], [1, 1], [1, 1]), 100)


RNG = np.random.default_rng(3)
KEYS = np.repeat(np.arange(24), 8)
PROMPTS = RNG.integers(100, 3000, 24)[KEYS]
LENGTHS = PROMPTS + RNG.lognormal(6.5, 1, 192).astype(int) + 1
CAP = 16_384
ASKED = {"prefix": KEYS, "prefix_length": PROMPTS, "cut": balancer.MicroBatches(CAP)}


@pytest.mark.parametrize(("sync", "cost"), [("micro_batch", "linear"), ("step", "quadratic:a=500,b=1")])
def test_plans_keep_the_cap_and_are_read_back(sync, cost, tmp_path):
    plan = balancer.balance(LENGTHS, 4, ranks_per_node=2, home_rank=np.arange(192) // 48, cost=cost,
                            **ASKED | {"cut": balancer.MicroBatches(CAP, sync)})  # fmt: skip
    model = parse_cost(cost)
    costs, once = (model.sample_costs(np.asarray(each)) for each in (LENGTHS, PROMPTS))
    case = (costs - once).tolist(), (LENGTHS - PROMPTS).tolist(), 4, KEYS.tolist(), once.tolist(), PROMPTS.tolist()
    taken, held = value_of(case, plan.rank_of_sample.tolist(), plan.slot_of_sample.tolist(), plan.num_slots, sync)
    assert (plan.makespan, max(map(max, held)) <= CAP) == (taken, True)
    assert plan.unique_tokens().tolist() == [sum(row) for row in held]
    assert plan.lower_bound <= plan.makespan
    assert "prefix" in plan.fell_back
    bins = set(zip(plan.rank_of_sample.tolist(), plan.slot_of_sample.tolist(), KEYS.tolist(), strict=True))
    assert plan.prompt_copies.sum() == len(bins)
    for rank in range(4):  # side by side: a prompt begins once in each micro-batch
        mine = plan.samples_on_rank(rank)
        pairs = np.stack([plan.slot_of_sample[mine], KEYS[mine]])
        assert (np.diff(pairs, axis=1) != 0).any(axis=0).sum() + 1 == len(np.unique(pairs, axis=1)[0])
    path = tmp_path / "plan.parquet"
    plan.save(path)
    again = balancer.load_plan(path)
    assert (again.digest(), again.lower_bound, again.makespan) == (plan.digest(), plan.lower_bound, plan.makespan)


def test_a_prompt_counts_again_in_each_micro_batch_of_a_plan_file(tmp_path):
    given = {"prefix": ["a"] * 4, "prefix_length": [4] * 4, "cut": balancer.MicroBatches(8)}
    balancer.balance([6] * 4, 1, **given).save(tmp_path / "plan.parquet")

    def change(rows):
        rows.sort(key=lambda row: row["position"])
        assert [row["slot"] for row in rows] == [0, 0, 1, 1]
        rows[1]["slot"] = 1  # where a prompt and three responses of 2 tokens are more than fit

    tamper(tmp_path / "plan.parquet", rows=change)
    with pytest.raises(PlanError, match="micro-batch 1 of rank 0 holds 10 tokens, cap 8"):
        balancer.load_plan(tmp_path / "plan.parquet")


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"cut": balancer.MicroBatches(CAP, "pipeline")}, "sync='pipeline'"),
        ({"equal_counts": True}, "equal_counts"),
        ({"cut": balancer.MicroBatches(CAP, over_long="own")}, "over_long='own'"),
        ({"cut": balancer.MicroBatches(2000)}, "cut.tokens"),
    ],
)
def test_bad_input_is_a_line(more, told):
    with pytest.raises((ValueError, InfeasibleError), match=told):
        balancer.balance(LENGTHS, 4, **{**ASKED, **more})
