"""Fits: exact laws come back, noisy ones within their spread; what cannot be known is refused, and it is said why."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nightly import examples

import balancer
from balancer.cost.fit import fit_cost
from balancer.errors import FitError

TRUTH = (0.012, 1.14e-4, 1.5e-9)


def steps_of(count=120, seed=0, longest=16384):
    rng = np.random.default_rng(seed)
    return [np.minimum(rng.lognormal(6.5, 1, rng.integers(1, 12)), longest).astype(np.int64) for _ in range(count)]


def seconds_of(steps, truth=TRUTH, noise=0.0, seed=1):
    rng = np.random.default_rng(seed)
    c0, a, b = truth
    exact = np.array([c0 + a * sum(map(int, s)) + b * sum(int(x) ** 2 for x in s) for s in steps])
    return exact * (1 + noise * rng.standard_normal(len(steps)))


def naive_nnls(columns, target):
    """Best of the least-squares solutions over all subsets of coefficients that come out non-negative."""
    best, best_error = np.zeros(columns.shape[1]), float((target**2).sum())
    for size in range(1, columns.shape[1] + 1):
        for chosen in itertools.combinations(range(columns.shape[1]), size):
            some = columns[:, chosen]
            solution = np.linalg.lstsq(some, target, rcond=None)[0]
            error = float(((some @ solution - target) ** 2).sum())
            if (solution >= 0).all() and error < best_error:
                best, best_error = np.zeros(columns.shape[1]), error
                best[list(chosen)] = solution
    return best


@pytest.mark.parametrize("truth", [TRUTH, (0, 1e-4, 0), (0.5, 0, 1e-8), (0, 0, 1e-9), (1e3, 1.0, 1e-3)])
def test_an_exact_law_comes_back(truth):
    steps = steps_of()
    fit = fit_cost(steps, seconds_of(steps, truth))
    np.testing.assert_allclose((fit.constant, fit.per_length, fit.per_square), truth, rtol=1e-7, atol=1e-16)
    assert fit.held_out_error < 1e-8
    assert fit.predict(steps[0]) == pytest.approx(fit.predicted[0])
    np.testing.assert_allclose(fit.predicted, fit.measured)
    assert fit.refusal is None


@pytest.mark.parametrize("seed", range(2))
def test_a_noisy_law_comes_back_within_its_spread(seed):
    steps = steps_of(400, seed)
    fit = fit_cost(steps, seconds_of(steps, noise=0.03, seed=seed + 100))
    for value, spread, truth in zip(*list(zip(*fit.terms, strict=True))[1:], TRUTH, strict=True):
        assert abs(value - truth) < 4 * spread
        assert 0 < spread < truth
    assert 0.015 < fit.held_out_error < 0.035  # mean of |normal| is 0.8 of its deviation
    assert fit.held_out_worst > fit.held_out_error


@settings(max_examples=examples(25))
@given(st.integers(0, 10**6))
def test_against_all_subsets(seed):
    rng = np.random.default_rng(seed)
    steps = steps_of(15, seed)
    seconds = rng.uniform(0.05, 2, 15)
    try:
        fit = fit_cost(steps, seconds, max_error=1e9, force=True)
    except FitError as error:
        assert "a = b = 0" in str(error)  # noqa: PT017
        want = np.zeros(3)
    columns = np.array([[1.0, s.sum(), (s * s).sum()] for s in steps])
    weight = 1 / seconds
    scale = np.array([1.0, 1e3, 1e7])  # conditions the oracle
    want = naive_nnls(columns * weight[:, None] / scale, seconds * weight) / scale
    if want[1:].any():
        got = np.array([fit.constant, fit.per_length, fit.per_square])
        np.testing.assert_allclose(got * scale, want * scale, atol=1e-8)


def test_the_spread_is_that_of_repeated_measurements():
    steps = steps_of(200)
    fits = [fit_cost(steps, seconds_of(steps, noise=0.03, seed=seed)) for seed in range(15)]
    for i, name in enumerate(("constant", "per_length", "per_square")):
        between = np.std([getattr(fit, name) for fit in fits])
        said = np.mean([fit.terms[i][2] for fit in fits])
        assert 0.5 < said / between < 2


def test_same_input_same_fit():
    steps = steps_of(60)
    seconds = seconds_of(steps, noise=0.02)
    one, two = fit_cost(steps, seconds), fit_cost(steps, seconds)
    assert one.terms == two.terms
    assert one.held_out_error == two.held_out_error


def test_the_held_out_error_against_loops():
    steps = steps_of(12) * 3  # every step three times, which stay together
    seconds = seconds_of(steps, noise=0.3)
    columns = np.array([[1.0, s.sum(), (s * s).sum()] for s in steps])
    weight = 1 / seconds
    pairs = sorted({tuple(row[1:]) for row in columns})
    scale = np.array([1.0, 1e3, 1e7])
    errors = []
    for i in range(len(steps)):
        mine = pairs.index(tuple(columns[i, 1:])) % 5
        others = [j for j in range(len(steps)) if pairs.index(tuple(columns[j, 1:])) % 5 != mine]
        fitted = naive_nnls((columns * weight[:, None] / scale)[others], (seconds * weight)[others]) / scale
        errors.append(abs(columns[i] @ fitted - seconds[i]) / seconds[i])
    fit = fit_cost(steps, seconds, force=True)
    assert fit.held_out_error == pytest.approx(np.mean(errors), rel=1e-6)
    assert fit.held_out_worst == pytest.approx(np.max(errors), rel=1e-6)


def test_held_out_steps_are_not_predicted_by_their_repetitions():
    """Each of 6 lengths is off by its own error, the same in all 10 repetitions: none of them can tell the others."""
    steps = [[length] for length in (100, 200, 400, 800, 1600, 3200) for _ in range(10)]
    own = np.repeat([1.3, 0.7, 1.3, 0.7, 1.3, 0.7], 10)
    fit = fit_cost(steps, seconds_of(steps) * own, force=True)
    assert fit.held_out_error > 0.25
    assert fit.distinct_steps == 6


def test_integer_cost_is_what_plans_take():
    steps = steps_of()
    fit = fit_cost(steps, seconds_of(steps))
    cost = fit.integer_cost()
    assert (str(cost.model), cost.work_unit) == ("quadratic:a=114000000,b=1500", "1 ps")
    assert balancer.balance([100, 4000, 2000], 2, cost=str(cost.model)).num_samples == 3
    assert cost.omitted_constant == pytest.approx(0.012e12)


def test_uncertain_coefficients_are_named():
    steps = [[length] for length in range(100, 140)]  # so short that squares hardly show
    fit = fit_cost(steps, seconds_of(steps, (0.0, 1e-4, 1e-9), noise=0.01))
    assert "b" in fit.uncertain or fit.per_square == 0
    assert fit_cost(steps_of(400), seconds_of(steps_of(400), noise=0.01)).uncertain == ()


@pytest.mark.parametrize(
    ("steps", "words"),
    [
        ([[5, 6]] * 9, "at least 10 steps.*there are 9"),
        ([], "at least 10 steps.*there are 0"),
        (
            [[512] * (1 + i % 7) for i in range(30)],
            "b cannot be .* from c0, a: all lengths are 512; measure",
        ),
        ([[512, 100]] * 30, "needs at least 10 steps, 5 of them different; there are 30, 1 different"),
        ([[100 + i % 3] for i in range(30)], "there are 30, 3 different: measure more, of other lengths too"),
        (
            [[i, 8192 - i] for i in range(30)],
            "a cannot be told apart from c0: these .* same sums of both",
        ),
        ([[100] * i + [200] * (2 * i) for i in range(1, 30)], "b cannot be told apart from c0, a: these steps"),
    ],
)
def test_what_cannot_be_fitted_even_by_force(steps, words):
    for force in (False, True):
        with pytest.raises(balancer.InputError, match=words):
            fit_cost(steps, seconds_of(steps) if steps else [], force=force)


def test_times_that_lengths_do_not_explain():
    steps = steps_of(50)
    noisy = seconds_of(steps) * np.exp(np.random.default_rng(5).normal(0, 0.5, 50))
    with pytest.raises(FitError, match=r"held-out error is .* more than the 10.0% allowed"):
        fit_cost(steps, noisy)
    with pytest.raises(FitError, match="lengths explain"):
        fit_cost(steps, seconds_of(steps, (1.0, 1e-9, 0), noise=0.02))
    forced = fit_cost(steps, noisy, force=True)
    assert "held-out error" in forced.refusal


def test_times_that_fall_with_lengths():
    steps = steps_of(50)
    for force in (False, True):
        with pytest.raises(FitError, match="a = b = 0"):
            fit_cost(steps, [10 / sum(s) for s in steps], force=force)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"seconds": [1.0]}, r"seconds must be as many as steps"),
        ({"seconds": [1.0] * 19 + [0.0]}, r"seconds\[19\] must be positive"),
        ({"seconds": [float("nan")] * 20}, r"seconds\[0\] must be positive"),
        ({"max_error": 0}, "max_error must be > 0"),
        ({"lengths": [[1]] * 19 + [[-1]]}, r"lengths\[19\] must be >= 0, got -1"),
        ({"lengths": [[1]] * 19 + [[1.5]]}, r"lengths\[19\]\[0\] must be a finite whole number"),
        ({"seconds": [1e-310 * (1 + i) for i in range(20)]}, r"seconds\[0\] must be from 1e-12 to 1e\+12, got 1e-310"),
        ({"seconds": [1.0] * 19 + [1e300]}, r"seconds\[19\] must be from 1e-12 to 1e\+12, got 1e\+300"),
    ],
)
def test_bad_arguments(change, words):
    arguments = {"lengths": [[i] for i in range(20)], "seconds": [1.0 + i for i in range(20)], **change}
    with pytest.raises(ValueError, match=words):
        fit_cost(**arguments)


def test_empty_steps_are_steps():
    steps = [[], *steps_of(30)]
    fit = fit_cost(steps, seconds_of(steps))
    assert fit.predict([]) == pytest.approx(TRUTH[0])


EXCHANGE = {2: 2e-5, 8: 3e-5, 16: 1.9e-4}


def shared_steps(noise=0.0):
    steps = steps_of(120)
    degrees = np.array([(1, 2, 8, 16)[i % 4] for i in range(120)])
    c0, a, b = TRUTH
    seconds = [
        c0 + ((a + EXCHANGE.get(d, 0)) * step.sum() + b * (step * step).sum()) / d
        for step, d in zip(steps, degrees.tolist(), strict=True)
    ]
    return steps, np.array(seconds) * (1 + noise * np.random.default_rng(3).standard_normal(120)), degrees


def test_what_groups_exchange_comes_back():
    steps, seconds, degrees = shared_steps()
    fit = fit_cost(steps, seconds, degrees=degrees)
    np.testing.assert_allclose((fit.constant, fit.per_length, fit.per_square), TRUTH, rtol=1e-7)
    assert [d for d, _ in fit.exchange] == list(EXCHANGE)
    np.testing.assert_allclose([x for _, x in fit.exchange], list(EXCHANGE.values()), rtol=1e-7)
    assert fit.held_out_error < 1e-8
    assert fit.predict(steps[3], 16) == pytest.approx(seconds[3])
    cost = fit.integer_cost()
    assert str(cost.model) == "quadratic:a=114000000,b=1500,d2=20000000,d8=30000000,d16=190000000,overhead=12000000000"
    assert cost.omitted_constant == 0
    times = cost.model.degree_times(steps[3], [16], 16)
    assert (times.times.sum() + times.overhead) / 1e12 == pytest.approx(seconds[3])
    with pytest.raises(ValueError, match="degree must be 1 or one that was measured: 2, 8, 16, got 4"):
        fit.predict([5], 4)


def test_spreads_of_what_groups_exchange():
    fit = fit_cost(*shared_steps(0.02)[:2], degrees=shared_steps()[2])
    assert [name for name, *_ in fit.terms] == ["c0", "a", "b", "d2", "d8", "d16"]
    for (_, value, spread), truth in zip(fit.terms, [*TRUTH, *EXCHANGE.values()], strict=True):
        assert abs(value - truth) < 4 * spread
        assert spread > 0


def test_degrees_that_are_all_one():
    steps = steps_of(50)
    alone = fit_cost(steps, seconds_of(steps), degrees=np.ones(50, dtype=int))
    assert alone == fit_cost(steps, seconds_of(steps))


@pytest.mark.parametrize(
    ("degrees", "error", "words"),
    [
        ([2] * 60 + [4] * 60, balancer.InputError, "all steps are of degree 2 or more: .* on one rank too"),
        ([1] * 118 + [4] * 2, balancer.InputError, "degree 4 has 2 steps, or only empty ones; a fit needs 3"),
        ([1] * 119, ValueError, "degrees must be as many as steps, 120, got 119"),
        ([1] * 119 + [0], ValueError, r"degrees\[119\] must be >= 1, got 0"),
    ],
)
def test_degrees_that_cannot_be_fitted(degrees, error, words):
    with pytest.raises(error, match=words):
        fit_cost(*shared_steps()[:2], degrees=degrees, force=True)
