"""A plan beside what its ranks took: what is fitted, and the largest of noisy ranks, held against draws of chance."""

import json

import numpy as np
import pytest

import balancer
from balancer import MicroBatches
from balancer.errors import InputError
from balancer.plan.step_plan import as_step_plan
from balancer.report.measured import MeasuredSteps, expected_largest

# Harter, "Expected values of normal order statistics", Biometrika 48, 1961, table 1.
PUBLISHED = {2: 0.56419, 3: 0.84628, 4: 1.02938, 5: 1.16296, 10: 1.53875, 20: 1.86748, 50: 2.24907, 100: 2.50759}


def plans_of(ranks, steps=40, **options):
    random = np.random.default_rng(5)
    each = [random.lognormal(5, 1, 12 * ranks).astype(int) + random.integers(1, 900) for _ in range(steps)]
    return [balancer.balance(lengths, ranks, **options) for lengths in each]


def measured(plans, c0=0.05, k=2e-5, noise=0.0, common=0.0, seed=1):
    """Times of every micro-batch of every rank; the noise of a step that all ranks share is `common`."""
    random, times = np.random.default_rng(seed), {}
    for step, plan in enumerate(plans):
        alike = 1 + common * random.standard_normal()
        lengths, slot, to = plan.lengths, plan.slot_of_sample, plan.rank_of_sample
        times[step] = {
            rank: [
                alike * (1 + noise * random.standard_normal())
                * (c0 + k * int(lengths[(to == rank) & (slot == s)].sum()))
                for s in range(plan.num_slots)
            ]
            for rank in range(plan.num_ranks)
        }  # fmt: skip
    return times


def fit_of(plans, times):
    steps = MeasuredSteps("steps.csv", times)
    for plan in plans:
        steps.add(as_step_plan(plan))
    return steps.fit()


@pytest.mark.parametrize(("count", "wanted"), PUBLISHED.items())
def test_the_largest_of_equal_ranks_is_as_published(count, wanted):
    for noise in (0.001, 0.03, 0.2):
        found = (expected_largest(np.full((2, count), 7.0), noise) / 7 - 1) / noise
        assert found == pytest.approx([wanted] * 2, abs=2e-5)


def test_the_largest_of_unequal_ranks_is_the_mean_of_draws():
    means = np.array([[1.0, 1.02, 0.9, 0.5], [0.0, 0.0, 3.0, 2.99], [1.0, 1e-9, 0.2, 0.3]])
    draws = means * (1 + 0.04 * np.random.default_rng(0).standard_normal((100_000, 3, 4)))
    assert expected_largest(means, 0.04) == pytest.approx(draws.max(axis=2).mean(axis=0), rel=5e-4)
    assert expected_largest(means, 0.0).tolist() == [1.02, 3.0, 1.0]
    assert expected_largest(np.zeros((1, 3)), 0.1).tolist() == [0.0]


def test_without_noise_the_prediction_is_what_was_measured():
    plans = plans_of(4)
    found = fit_of(plans, measured(plans))
    assert (found.c0_s, found.load_s) == (pytest.approx(0.05), pytest.approx(2e-5))
    assert (found.steps, found.ranks) == (40, 4)
    assert found.rank_noise == pytest.approx(0, abs=1e-9)
    slowest = sum(max(0.05 + 2e-5 * plan.loads) for plan in plans)
    assert (found.slowest_s, found.predicted_s, found.predicted_with_noise_s) == pytest.approx((slowest,) * 3)
    assert found.drawn_s == pytest.approx(sum(max(0.05 + 2e-5 * plan.home_loads) for plan in plans))


def test_noise_of_ranks_is_fitted_and_explains_the_slowest():
    plans = plans_of(16, steps=120)
    found = fit_of(plans, measured(plans, noise=0.03, common=0.1))
    assert found.rank_noise == pytest.approx(0.03, rel=0.1), "what all ranks of a step share is no noise of ranks"
    assert found.predicted_s < 0.96 * found.slowest_s
    assert found.predicted_with_noise_s == pytest.approx(found.slowest_s, rel=0.02)
    assert found.rank_error > 0.05
    said = " ".join(found.lines("steps.csv"))
    assert "steps.csv: 120 steps of 16 ranks" in said
    assert f"noise of a rank {found.rank_noise:.1%}" in said
    assert json.loads(json.dumps(found.as_json()))["steps"] == 120


def test_ranks_that_meet_in_every_micro_batch_wait_in_each():
    plans = plans_of(4, cut=MicroBatches(4000, "micro_batch"))
    assert max(plan.num_slots for plan in plans) > 2
    times = measured(plans, noise=0.02)
    found = fit_of(plans, times)
    by_slot = [np.array(list(step.values())).max(axis=0).sum() for step in times.values()]
    assert found.slowest_s == pytest.approx(sum(by_slot))
    assert found.predicted_with_noise_s == pytest.approx(found.slowest_s, rel=0.01)
    once = plans_of(4, cut=MicroBatches(4000, "step"))
    times = measured(once, noise=0.02)
    by_step = [np.array(list(step.values())).sum(axis=1).max() for step in times.values()]
    assert fit_of(once, times).slowest_s == pytest.approx(sum(by_step))


def test_faster_ranks_take_less():
    plans = plans_of(3, rank_speeds=[1, 2, 4])
    times = measured(plans, c0=0.0)
    for step in times.values():
        step[1][0] /= 2
        step[2][0] /= 4
    found = fit_of(plans, times)
    assert (found.load_s, found.rank_noise) == (pytest.approx(2e-5), pytest.approx(0, abs=1e-9))


def test_loads_that_are_alike_tell_no_constant():
    plans = [balancer.balance([100, 50, 50, 100, 60, 40], 2) for _ in range(6)]
    found = fit_of(plans, measured(plans))
    assert found.c0_s == 0
    assert found.predicted_s == pytest.approx(found.slowest_s)


def test_a_part_of_the_steps_is_enough():
    plans = plans_of(4)
    times = {step: ranks for step, ranks in measured(plans).items() if 10 <= step < 20}
    found = fit_of(plans, times)
    assert found.steps == 10
    assert found.slowest_s == pytest.approx(sum(max(0.05 + 2e-5 * plan.loads) for plan in plans[10:20]))


def test_what_cannot_be_compared_is_named():
    plans = plans_of(3, steps=6)
    good = measured(plans)
    cases = [
        (good | {9: good[0]}, "steps.csv: has step 9; the plan has 6 steps, counted from 0"),
        (good | {2: {0: [1.0], 2: [1.0]}}, "steps.csv: step 2 has 2 of 3 ranks: no rank 1"),
        (good | {2: good[2] | {3: [1.0]}}, "steps.csv: step 2 has rank 3; the plan has 3 ranks, counted from 0"),
        (good | {2: good[2] | {1: [1.0, 2.0]}},
         "steps.csv: step 2, rank 1 has 2 rows; the plan has 1 micro-batch, a row each"),
        ({0: good[0]}, "steps.csv: has 1 step, and a fit needs 5: measure more"),
        (measured(plans, c0=1.0, k=-3e-5),
         "steps.csv: times do not grow with the plan's loads: are they of these steps?"),
    ]  # fmt: skip
    for times, words in cases:
        with pytest.raises(InputError) as error:
            fit_of(plans, times)
        assert str(error.value) == words


def test_plans_of_several_phases_are_refused():
    batch = {"patches": [4, 8, 1, 5], "tokens": [5, 6, 7, 8]}
    step = balancer.orchestrate(batch, {"vision": "patches", "llm": "tokens"}, 2)
    with pytest.raises(InputError, match="plans of one phase; this one has vision, llm"):
        MeasuredSteps("steps.csv", {0: {}}).add(step)
