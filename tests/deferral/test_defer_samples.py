"""Samples in steps: windows, limits and proofs as a caller meets them, offline and as samples are drawn."""

import json
import re
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from nightly import examples

import balancer
import solvers
from balancer.deferral import DeferBuffer, Deferral, defer
from balancer.problem.across_steps import AcrossSteps

COST = "quadratic:a=30000,b=1"


def drawn(n: int, seed: int = 0) -> np.ndarray:
    return np.minimum(np.random.default_rng(seed).lognormal(7, 1.5, n), 100_000).astype(np.int64) + 1


LENGTHS = drawn(1800)
BY_TOKENS = {"step_tokens": 600_000, "cost": COST}
BY_COUNT = {"step_samples": 200, "counts": "any", "cost": COST}


def check(found: Deferral, lengths: np.ndarray, early: int, late: int, num_ranks: int) -> None:
    """Check what every result must hold: each sample once, windows, makespans of the steps, the bound."""
    kept = found.nominal_step >= 0
    assert ((found.step_of_sample >= 0) == kept).all()
    assert (found.displacement == np.where(kept, found.step_of_sample - found.nominal_step, 0)).all()
    assert found.displacement.min() >= -early
    assert found.displacement.max() <= late
    costs = balancer.cost.parse_cost(COST).sample_costs(lengths)
    for t, makespan in enumerate(found.makespans.tolist()):
        here = costs[found.samples_of_step(t)]
        assert makespan >= max(here.max(), -(-here.sum() // num_ranks))
    assert found.lower_bound <= found.total
    assert found.lower_bound <= found.floor


@pytest.mark.parametrize("by", [BY_TOKENS, BY_COUNT], ids=["tokens", "count"])
@pytest.mark.parametrize(("early", "late"), [(1, 1), (2, 2), (0, 3), (3, 0), (5, 50)])
def test_samples_run_within_their_windows_and_steps_take_less(by, early, late):
    found = defer(LENGTHS, 8, window=(early, late), **by)
    check(found, LENGTHS, early, late, 8)
    before = np.bincount(found.nominal_step, LENGTHS)
    after = np.bincount(found.step_of_sample, LENGTHS, found.num_steps)
    if by is BY_TOKENS:
        assert (after <= np.maximum(before, 630_000)).all()
        assert (after >= np.minimum(before, 570_000)).all()
    if early and late:
        assert found.total < found.floor


def test_no_window_is_todays_steps():
    by_count = defer(LENGTHS, 8, step_samples=64, cost=COST)
    assert (by_count.step_of_sample == np.arange(1800) // 64).all()
    assert by_count.effects.moved == by_count.effects.largest_displacement == 0
    assert by_count.effects.sample_mean_weight == 1
    assert by_count.effects.long_share[0] == by_count.effects.long_share[1] > 0
    dropped = defer(LENGTHS, 8, step_samples=64, cost=COST, drop_last=True)
    assert (dropped.step_of_sample[-8:] == -1).all()
    assert dropped.num_steps == 1800 // 64


def test_a_step_closes_before_it_would_exceed_its_tokens():
    found = defer([3, 4, 3, 9, 20, 1, 1], 2, step_tokens=10)
    assert found.nominal_step.tolist() == [0, 0, 0, 1, 2, 3, 3]
    short = defer([3, 4, 3, 9, 20, 1, 1], 2, step_tokens=10, drop_last=True)
    assert short.nominal_step.tolist() == [0, 0, 0, 1, 2, -1, -1]
    assert short.effects.moved == 0


def test_exact_counts_stay_as_they_are():
    found = defer(LENGTHS, 8, step_samples=200, cost=COST, window=2)
    check(found, LENGTHS, 2, 2, 8)
    assert set(np.bincount(found.step_of_sample).tolist()) == {200}
    assert found.effects.sample_mean_weight == pytest.approx(1)
    assert found.total < found.floor


def test_stages_are_not_crossed_even_within_a_step():
    stage = np.repeat(["warm", "long", "warm"], 600)
    found = defer(LENGTHS, 8, window=3, stage=stage, **BY_TOKENS)
    check(found, LENGTHS, 3, 3, 8)
    for part in (slice(0, 600), slice(600, 1200), slice(1200, 1800)):
        nominal, step = found.nominal_step[part], found.step_of_sample[part]
        assert nominal.min() <= step.min()
        assert step.max() <= nominal.max()


def test_caps_are_kept():
    found = defer(LENGTHS, 8, window=4, max_tokens_per_rank=110_000, **BY_TOKENS)
    check(found, LENGTHS, 4, 4, 8)
    assert not found.fell_back
    assert found.total < found.floor


def test_like_sits_with_like_where_ranks_have_few_samples():
    """One sample a rank: no search from the steps as drawn gets as far as sorted blocks of window + 1 steps."""
    few = drawn(8 * 30, 3)
    costs = balancer.cost.parse_cost(COST).sample_costs(few)
    blocks = [np.sort(costs[at : at + 8 * 5])[::-1][::8].sum() for at in range(0, len(few), 8 * 5)]
    found = defer(few, 8, step_samples=8, window=4, cost=COST)
    check(found, few, 4, 4, 8)
    assert (np.bincount(found.step_of_sample) == 8).all()
    assert found.total <= sum(blocks)


def test_exact_counts_have_no_limit_on_tokens_unless_asked():
    few = drawn(4 * 8 * 24, 4)
    free, narrow = (defer(few, 8, step_samples=32, window=4, cost=COST, tokens_within=w) for w in (None, "5%"))
    assert free.total < 0.9 * narrow.total
    of_steps = np.bincount(narrow.step_of_sample, few)
    mean = [few[max(0, t - 4) * 32 : (t + 5) * 32].sum() / (min(24, t + 5) - max(0, t - 4)) for t in range(24)]
    drawn_for = np.bincount(narrow.nominal_step, few)
    assert (of_steps <= np.maximum(drawn_for, 1.05 * np.array(mean))).all()


@pytest.mark.parametrize("within", ["50%", "any"])
def test_looser_limits_do_not_give_longer_steps(within):
    """Steps filled to what all ranks hold have no even plan."""
    asked = {"window": 4, "max_tokens_per_rank": 150_000, "step_tokens": 8 * 100_000, "cost": COST, "drop_last": True}
    narrow, loose = (defer(LENGTHS, 8, tokens_within=w, **asked) for w in ("5%", within))
    assert loose.total <= narrow.total
    assert loose.lower_bound <= narrow.lower_bound


def test_a_step_that_has_no_plan_goes_back_alone():
    """Ranks are full to 95 %, with samples of up to a whole cap: of some steps that are chosen none has a plan."""
    lengths = np.clip(np.random.default_rng(18).lognormal(7.6, 1.1, 3000), 64, 65_536).astype(np.int64)
    found = defer(
        lengths, 8, step_tokens=8 * 65_536, window=2, cost="quadratic:a=24576,b=1", max_tokens_per_rank=68_812
    )
    at = re.match(r"steps ([0-9, ]+) hold the samples drawn for them", found.fell_back)
    back = [int(t) for t in at[1].split(", ")]
    assert 0 < len(back) < found.num_steps // 4
    for t in back:
        assert (found.step_of_sample == t).tolist() == (found.nominal_step == t).tolist()
    assert found.effects.moved > 0.05
    assert found.effects.moved == (found.displacement != 0).mean()
    assert found.lower_bound <= found.total < found.floor


def test_a_cut_plans_every_step():
    few = np.minimum(LENGTHS[:300], 4000)
    given = {"step_tokens": 60_000, "window": 2, "cost": COST}
    found = defer(few, 4, cut=balancer.MicroBatches(4000), **given)
    for t in (0, found.num_steps - 1):
        plan = balancer.balance(few[found.samples_of_step(t)], 4, cost=COST, cut=balancer.MicroBatches(4000))
        assert found.makespans[t] <= plan.makespan * 1.001
    assert found.lower_bound <= found.total


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"cost": "padded"}, "cannot be deferred under cost = padded"),
        ({"window": -1}, r"window must be a whole number >= 0, or two of them: \[early, late\], got -1"),
        ({"window": (1, 0)}, "leaves every sample in its nominal step"),
        ({"counts": 0.1}, "counts must be one of exact, any, got 0.1"),
        ({"tokens_within": "-5%"}, "tokens_within must be a share of 0 or more"),
        ({"step_samples": None}, "give one of them"),
        ({"max_tokens_per_rank": 4}, r"lengths\[1\] must be <= max_tokens_per_rank = 4, got 5"),
        ({"cut": balancer.MicroBatches(4)}, r"lengths\[1\] must be <= cut.tokens = 4, got 5"),
        ({"cut": balancer.ContextShards(2, 8)}, "are not for context shards"),
        ({"stage": [1]}, "stage must be one key for each of 4 samples"),
        ({"lengths": []}, "no step is filled: lengths has 0 samples"),
        ({"lengths": [1, -1]}, r"lengths\[1\] must be >= 0"),
    ],
)
def test_errors_name_the_argument(change, error):
    given = {"lengths": [3, 5, 1, 2], "num_ranks": 2, "step_samples": 2, "window": 1} | change
    with pytest.raises((ValueError, TypeError), match=error):
        defer(given.pop("lengths"), given.pop("num_ranks"), **given)


@pytest.mark.parametrize(
    ("said", "kept"),
    [
        ({}, (0, 0, "exact", "any")),
        ({"window": 3}, (3, 3, "exact", "any")),
        ({"window": [2, 5], "step_tokens": 9}, (2, 5, "any", "1/20")),
        ({"window": (2, 5), "counts": "any"}, (2, 5, "any", "1/20")),
        ({"window": 1, "tokens_within": "2%"}, (1, 1, "exact", "1/50")),
        ({"window": 1, "step_tokens": 9, "tokens_within": "any"}, (1, 1, "any", "any")),
    ],
)
def test_what_is_not_said_follows_from_how_steps_are_cut(said, kept):
    across = AcrossSteps(**said)
    assert (across.early, across.late, across.counts, across.tokens_within) == kept
    assert AcrossSteps.from_json(json.loads(json.dumps(across.to_json()))) == across
    assert AcrossSteps(window=(3, 3)) == AcrossSteps(window=3)


# --- as samples are drawn --------------------------------------------------------------------------------------------


def steps_of(buffer: DeferBuffer, lengths: np.ndarray, at_once: int, kill_at: int = -1) -> list[list[int]]:
    """Push samples as they are drawn, and take every step as soon as it can be chosen."""
    found = []
    for begin in range(0, len(lengths), at_once):
        buffer.push(lengths[begin : begin + at_once])
        for step in buffer:
            found.append(step.tolist())
            if len(found) == kill_at:
                state = json.loads(json.dumps(buffer.state_dict()))
                buffer = make()
                buffer.load_state_dict(state)
    buffer.flush()
    return found + [step.tolist() for step in buffer]


def make(window: int | tuple[int, int] = 2, **changed) -> DeferBuffer:
    return DeferBuffer(8, window=window, time_budget=0.02, **(BY_TOKENS | changed))


@pytest.mark.parametrize(("early", "late"), [(2, 2), (0, 3), (2, 0), (1, 4)])
@pytest.mark.parametrize("by", ["tokens", "count", "exact"])
def test_every_sample_runs_once_and_in_time(early, late, by):
    changed = {"tokens": {}, "count": {"step_tokens": None, "step_samples": 200, "counts": "any"},
               "exact": {"step_tokens": None, "step_samples": 200}}[by]  # fmt: skip
    if by == "exact" and not early * late:
        return
    steps = steps_of(make((early, late), **changed), LENGTHS, 100)
    assert sorted(i for step in steps for i in step) == list(range(1800))
    nominal = defer(LENGTHS, 8, **({k: v for k, v in (BY_TOKENS | changed).items() if v is not None})).nominal_step
    assert len(steps) == nominal[-1] + 1
    for t, step in enumerate(steps):
        assert all(-early <= t - nominal[i] <= late for i in step)
        assert by != "tokens" or LENGTHS[step].sum() <= 1.05 * BY_TOKENS["step_tokens"]
        if by == "exact":
            assert len(step) == 200


def test_online_is_close_to_offline():
    costs = balancer.cost.parse_cost(COST).sample_costs(LENGTHS)
    steps = steps_of(make(), LENGTHS, 100)
    online = sum(max(costs[s].max(), costs[s].sum() // 8) for s in steps)
    offline = defer(LENGTHS, 8, window=2, **BY_TOKENS)
    assert online <= 1.08 * offline.total
    assert online < 0.9 * offline.floor


@given(
    st.lists(st.integers(0, 60), min_size=1, max_size=60), st.integers(0, 2), st.integers(0, 2), st.booleans(),
    st.integers(1, 7),
)  # fmt: skip
@settings(max_examples=examples(25))
def test_whatever_is_drawn_runs_once_within_its_window(lengths, early, late, exact, at_once):
    counts = "exact" if exact and (early == 0) == (late == 0) else "any"
    buffer = DeferBuffer(2, window=(early, late), step_samples=5, counts=counts, time_budget=0.001)
    steps = steps_of(buffer, np.array(lengths), at_once)
    assert sorted(i for step in steps for i in step) == list(range(len(lengths)))
    assert len(steps) == -(-len(lengths) // 5)
    for t, step in enumerate(steps):
        assert all(-early <= t - i // 5 <= late for i in step)
        assert counts == "any" or len(step) == len(lengths[5 * t : 5 * t + 5])


@given(
    st.lists(st.integers(0, 60), min_size=5, max_size=60), st.integers(0, 3), st.integers(0, 3), st.integers(20, 120),
    st.integers(1, 7),
)  # fmt: skip
@example(
    [8, 8, 2, 17, 12, 5, 4, 2, 4, 17, 5, 5, 6, 3, 5, 3, 0, 6, 0, 2, 1, 3, 4, 7, 6, 20, 1, 0, 20, 1, 20, 1, 14, 6, 1, 5,
     0, 13, 0, 7, 4, 3, 3, 5, 11, 20, 1, 8, 1, 1, 1, 2, 3, 3, 7, 2, 17], 3, 2, 22, 7,
)  # fmt: skip
def test_no_step_has_more_tokens_than_it_may(lengths, early, late, budget, at_once):
    buffer = DeferBuffer(2, window=(early, late), step_tokens=budget, tokens_within="10%", time_budget=0.001)
    length = np.array(lengths)
    steps = steps_of(buffer, length, at_once)
    nominal = defer(length, 2, step_tokens=budget).nominal_step
    for t, step in enumerate(steps):
        assert length[step].sum() <= max(budget * 11 // 10, length[nominal == t].sum())


def test_ranks_can_take_every_step_that_is_handed_out():
    """Steps are filled to 95 % of what ranks may hold, with samples of up to that much."""
    lengths = np.clip(np.random.default_rng(18).lognormal(7.6, 1.1, 1000), 64, 65_536).astype(np.int64)
    cap = {"max_tokens_per_rank": 68_812}
    buffer = DeferBuffer(8, window=2, step_tokens=8 * 65_536, cost="quadratic:a=24576,b=1", **cap)
    steps = steps_of(buffer, lengths, 64)
    assert sorted(i for step in steps for i in step) == list(range(1000))
    for step in steps:
        assert max(balancer.balance(lengths[step], 8, cost="quadratic:a=24576,b=1", **cap).lengths)


def test_a_step_that_ranks_cannot_take_is_an_error_before_it_is_handed_out():
    buffer = DeferBuffer(2, window=1, step_samples=3, max_tokens_per_rank=10)
    buffer.push([6] * 9)
    before = buffer.state_dict()
    with pytest.raises(
        solvers.SolverError, match=r"step 0: .*max_tokens_per_rank must be at least 12, which is enough"
    ):
        buffer.next_step()
    assert buffer.state_dict() == before


def test_a_buffer_goes_on_from_its_state_however_samples_are_pushed():
    fewer = LENGTHS[:1200]
    assert steps_of(make(), fewer, 50, kill_at=3) == steps_of(make(), fewer, 7, kill_at=1) == steps_of(make(), fewer, 1)


def test_a_buffer_is_filled_first_and_says_so():
    buffer = make()
    buffer.push(LENGTHS[:10])
    with pytest.raises(ValueError, match="2 steps after it must be filled first"):
        buffer.next_step()
    buffer.flush()
    assert len(buffer.next_step()) == 10
    with pytest.raises(ValueError, match="all have run"):
        buffer.next_step()
    with pytest.raises(ValueError, match="was flushed"):
        buffer.push([1])


def test_what_is_no_state_is_refused_by_what_is_missing():
    state = make().state_dict()
    with pytest.raises(ValueError, match="without samples"):
        make().load_state_dict({name: state[name] for name in state if name != "samples"})
    with pytest.raises(ValueError, match="state must be what state_dict"):
        make().load_state_dict(None)


def test_a_share_of_many_digits_is_the_share_that_it_is():
    """As a fraction it has a denominator beyond what int64 can be multiplied by."""
    lengths = [8163, 56, 184, 4390, 5991, 191, 8815, 161]
    found = [
        balancer.defer(lengths, 2, step_tokens=14_000, window=1, tokens_within=share)
        for share in (Fraction(1, 3), 1 / 3)
    ]
    assert found[0].step_of_sample.tolist() == found[1].step_of_sample.tolist()
    assert found[0].lower_bound == found[1].lower_bound


def test_steps_without_a_token_have_no_long_documents():
    assert balancer.defer([0, 0], 2, step_samples=1).effects.long_share == (0.0, 0.0)
