"""Fits of a term for each kind of layer: what made the times comes back, and what cannot be told apart is said."""

import numpy as np
import pytest

import balancer
from balancer.cost import parse_cost
from balancer.cost.areas import area
from balancer.cost.fit import fit_cost
from balancer.errors import FitError


def steps_of(count=60, longest=8192, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.integers(1, longest, rng.integers(1, 9)) for _ in range(count)]


def seconds_of(steps, noise=0.0, **terms):
    rng = np.random.default_rng(1)
    seconds = []
    for step in steps:
        each = {"c0": 1, "constant": len(step), "a": int(step.sum())}
        value = sum(
            weight * (each[name] if name in each else float(area(name, step).sum())) for name, weight in terms.items()
        )
        seconds.append(value * (1 + noise * rng.standard_normal()))
    return seconds


@pytest.mark.parametrize(
    "truth",
    [
        {"c0": 0.01, "a": 1e-5, "full": 2e-9, "window512": 1e-8},
        {"constant": 1e-3, "a": 1e-5, "window512": 1e-8},
        {"c0": 0.01, "constant": 1e-3, "full": 1e-9},
        {"a": 1e-5},
    ],
)
def test_what_made_the_times_comes_back(truth):
    steps = steps_of()
    fit = fit_cost(steps, seconds_of(steps, **truth), areas=["full", "window512"])
    assert {name for name, _, _ in fit.terms} == set(truth)
    for name, value, _ in fit.terms:
        assert value == pytest.approx(truth[name], rel=1e-6)
    assert set(fit.left_out) == {"c0", "constant", "a", "full", "window512"} - set(truth)
    assert not fit.alike
    assert fit.held_out_error < 1e-6


def test_a_noisy_law_comes_back_and_the_cost_is_what_plans_take():
    steps = steps_of(300)
    truth = {"constant": 2e-3, "a": 1e-5, "full": 2e-9, "window512": 4e-8}
    fit = fit_cost(steps, seconds_of(steps, noise=0.02, **truth), areas=["full", "window512"])
    for name, value, spread in fit.terms:
        assert abs(value - truth.get(name, 0)) < 5 * spread + 0.05 * truth.get(name, 0)
    cost = fit.integer_cost().model
    assert parse_cost(str(cost)) == cost
    assert balancer.balance(steps[0], 1, cost=cost).makespan > 0
    assert 0.01 < fit.held_out_error < 0.03


def test_windows_that_cannot_be_told_apart_are_said():
    short = [np.array([length]) for length in range(10, 400, 10)]
    fit = fit_cost(short, seconds_of(short, full=1e-8, a=1e-6), areas=["full", "window512"])
    assert fit.alike == ("window512 cannot be told apart from c0, a, full: no length is over 512",)
    assert [name for name, _, _ in fit.terms] == ["a", "full"]
    long = [np.array([length]) for length in range(600, 4000, 50)]
    fit = fit_cost(long, seconds_of(long, c0=1e-3, a=1e-6), areas=["window512"])
    assert fit.alike == ("window512 cannot be told apart from c0, a: no length is under 512",)
    both = fit_cost(long, seconds_of(long, full=1e-8), areas=["full", "bidirectional"])
    assert both.alike == (
        "bidirectional cannot be told apart from c0, a, full: these steps have the same sums of both",
    )


def test_a_constant_of_samples_needs_counts_that_vary():
    one = [np.array([length]) for length in range(10, 400, 10)]
    fit = fit_cost(one, seconds_of(one, c0=1e-3, full=1e-8), areas=["full"])
    assert "constant" not in (*fit.left_out, *(name for name, _, _ in fit.terms))


def test_what_cannot_be_fitted():
    steps = steps_of(20)
    with pytest.raises(balancer.InputError, match="needs at least 10 steps, 5 of them different; there are 4, 4 diff"):
        fit_cost(steps[:4], [1.0] * 4, areas=["full"])
    with pytest.raises(ValueError, match="areas must be 1 to 6 names, got 0"):
        fit_cost(steps, [1.0] * 20, areas=[])
    with pytest.raises(ValueError, match="areas must have each name once, got 'full' twice"):
        fit_cost(steps, [1.0] * 20, areas=["full", "full"])
    with pytest.raises(ValueError, match="areas must be named full, bidirectional, windowN"):
        fit_cost(steps, [1.0] * 20, areas=["windowed"])
    with pytest.raises(FitError, match="times do not grow with lengths"):
        fit_cost(steps, [1.0 + i % 2 for i in range(20)], areas=["full"], force=True)
    noisy = seconds_of(steps, noise=0.4, full=1e-8)
    with pytest.raises(FitError, match="held-out error is"):
        fit_cost(steps, noisy, areas=["full"])
    assert "held-out error" in fit_cost(steps, noisy, areas=["full"], force=True).refusal
