"""The correction of a running trainer: follows drifts, and stays out of the way where it would not help."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nightly import examples

from balancer.cost import OnlineCost

BASE = (0.012, 1.14e-4, 1.5e-9)


def steps_of(count, seed=0):
    rng = np.random.default_rng(seed)
    return [np.minimum(rng.lognormal(6.5, 1, rng.integers(1, 12)), 16384).astype(np.int64) for _ in range(count)]


def true_seconds(step, factors=(1, 1, 1)):
    c0, a, b = (value * factor for value, factor in zip(BASE, factors, strict=True))
    return c0 + a * step.sum() + b * (step * step).sum()


def run(online, steps, factors, noise=0.0, seed=3):
    """Show every step; gives whether the correction was in use, and its and the base model's error, before each."""
    rng = np.random.default_rng(seed)
    history = []
    for i, step in enumerate(steps):
        seconds = true_seconds(step, factors(i)) * np.exp(noise * rng.standard_normal())
        history.append((online.active, abs(online.predict(step) - seconds) / seconds))
        online.observe(step, seconds)
    return history


@pytest.mark.parametrize("factors", [(2.0, 0.8, 1.5), (1.0, 1.0, 4.0), (0.3, 0.3, 0.3)])
def test_a_model_that_is_wrong_is_corrected(factors):
    online = OnlineCost(*BASE)
    history = run(online, steps_of(600), lambda i: factors)
    assert online.active
    assert not any(active for active, _ in history[:50])
    assert np.mean([error for _, error in history[-100:]]) < 0.01
    np.testing.assert_allclose(np.array(online.coefficients) / BASE, factors, rtol=0.15)


def test_a_term_that_the_base_lacks_is_learned():
    online = OnlineCost(0.0, BASE[1], 0.0)
    history = run(online, steps_of(300), lambda i: (1, 1, 1), noise=0.02)
    assert np.mean([error for _, error in history[100:]]) < 0.03
    exact = OnlineCost(0.0, BASE[1], 0.0)
    run(exact, steps_of(300), lambda i: (1, 1, 1))
    np.testing.assert_allclose(exact.coefficients, BASE, rtol=0.1)
    mask = OnlineCost(*BASE[:2], 0.0, areas={"full": 1e-12})  # pairs are counted by areas, then
    run(mask, steps_of(300), lambda i: (1, 1, 1))
    assert mask.coefficients[2] == 0
    assert mask.coefficients[3] == pytest.approx(2 * BASE[2], rel=0.05)


def test_a_sudden_slowdown_is_followed_within_a_window():
    online = OnlineCost(*BASE)
    history = run(online, steps_of(600), lambda i: (1, 1.0 if i < 300 else 1.5, 1), noise=0.02)
    assert not history[299][0]
    assert online.active
    assert np.mean([error for _, error in history[450:]]) < 0.025
    assert online.corrected_error < 0.2 * online.base_error


def test_a_slow_drift_is_followed():
    online = OnlineCost(*BASE, forgetting=0.95)
    history = run(online, steps_of(600), lambda i: (1, 1 + i / 1000, 1 + i / 1000), noise=0.02)
    assert np.mean([error for _, error in history[300:]]) < 0.03


@pytest.mark.parametrize(("noise", "seed"), [(0.0, 0), (0.02, 1), (0.02, 2), (0.3, 3), (0.3, 4)])
def test_a_model_that_is_right_is_left_alone(noise, seed):
    online = OnlineCost(*BASE)
    history = run(online, steps_of(400, seed), lambda i: (1, 1, 1), noise=noise, seed=seed)
    assert not any(active for active, _ in history)
    assert online.coefficients == BASE


def test_it_switches_itself_off_when_the_base_is_right_again():
    online = OnlineCost(*BASE)
    history = run(online, steps_of(600), lambda i: (1, 1.4 if i < 200 else 1.0, 1), noise=0.02)
    assert history[199][0]
    assert not online.active
    assert not history[399][0]
    assert online.coefficients == BASE


def test_a_stalled_step_does_not_throw_it():
    online = OnlineCost(*BASE)
    steps = steps_of(300)
    run(online, steps, lambda i: (1, 1.3, 1))
    before = online.predict(steps[0])
    online.observe(steps[0], 100 * true_seconds(steps[0]))
    assert abs(online.predict(steps[0]) / before - 1) < 0.25
    run(online, steps, lambda i: (1, 1.3, 1))
    assert online.predict(steps[0]) == pytest.approx(true_seconds(steps[0], (1, 1.3, 1)), rel=0.02)


def test_a_model_that_is_off_tenfold_is_learned_soon():
    online = OnlineCost(*BASE, window=2)
    run(online, steps_of(40), lambda i: (10, 10, 10))
    assert online.predict(steps_of(1)[0]) == pytest.approx(true_seconds(steps_of(1)[0], (10, 10, 10)), rel=0.1)


def test_ranks_of_a_step_count_as_one_step():
    one, many = OnlineCost(*BASE), OnlineCost(*BASE)
    for i, step in enumerate(steps_of(20)):
        seconds, ranks = true_seconds(step, (1, 1 + i % 3, 1)), 1 + i % 4
        one.observe(step, seconds)
        sums = [sum(step), sum(length**2 for length in step.tolist())]
        many.observe_ranks([sums] * ranks, [seconds] * ranks)
    np.testing.assert_allclose(one._found, many._found, rtol=1e-9)
    assert one.base_error == pytest.approx(many.base_error)


def test_steps_that_are_all_alike_do_not_wind_it_up():
    online = OnlineCost(*BASE)
    same = np.array([1000, 2000])
    for _ in range(1000):
        online.observe(same, true_seconds(same, (1.2, 1.2, 1.2)))
    assert online.predict(same) == pytest.approx(true_seconds(same, (1.2, 1.2, 1.2)), rel=1e-3)
    run(online, steps_of(200), lambda i: (1, 1.3, 1))
    other = np.array([9000])
    assert online.predict(other) == pytest.approx(true_seconds(other, (1, 1.3, 1)), rel=0.05)


@settings(max_examples=examples(20))
@given(st.lists(st.tuples(st.lists(st.integers(0, 2**20), max_size=5), st.floats(1e-6, 1e6)), max_size=200))
def test_whatever_comes_predictions_stay_finite_and_never_negative(observations):
    one, two = (OnlineCost(*BASE, window=5) for _ in range(2))
    for lengths, seconds in observations:
        for online in (one, two):
            online.observe(lengths, seconds)
    assert min(one.coefficients) >= 0
    assert np.isfinite(one.coefficients).all()
    assert one.coefficients == two.coefficients  # bit for bit: every rank has the same
    assert one.active == two.active


def test_integer_cost_follows():
    online = OnlineCost(0.0, 1e-6, 0.0, window=10)
    assert str(online.integer_cost().model) == "linear:a=1000"
    for i in range(200):
        online.observe([100 + i], 2e-6 * (100 + i))
    assert online.integer_cost().model.a == pytest.approx(2000, abs=1)


def test_an_empty_step_of_a_model_without_a_constant_teaches_nothing():
    online = OnlineCost(0.0, 1e-6, 0.0)
    online.observe([], 1.0)
    assert online.coefficients == tuple(online._found) == (0.0, 1e-6, 0.0)
    assert np.isnan(online.base_error)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: OnlineCost(-1, 0, 0), "base coefficients"),
        (lambda: OnlineCost(0, 0, 0), "not all 0"),
        (lambda: OnlineCost(1, 1, float("inf")), "finite"),
        (lambda: OnlineCost(1, 1, 1, forgetting=0), "forgetting must be in"),
        (lambda: OnlineCost(1, 1, 1, window=1), "window must be an integer >= 2"),
        (lambda: OnlineCost(1, 1, 1, margin=1), "margin must be in"),
        (lambda: OnlineCost(1, 1, 1).observe([1], 0), "seconds must be from 1e-12 to 1e\\+12"),
        (lambda: OnlineCost(1, 1, 1).observe([1], 1e200), "seconds must be from"),
        (lambda: OnlineCost(1e300, 1, 1).observe([1], 1), "foretells 1e\\+300 s"),
        (lambda: OnlineCost(1, 1, 1).observe([-1], 1), "lengths must be >= 0, got -1"),
    ],
)
def test_bad_arguments(make, words):
    with pytest.raises(ValueError, match=words):
        make()
