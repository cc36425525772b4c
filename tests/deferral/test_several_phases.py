"""Steps that are good for several phases: the bound below all ways there are, the best of what was tried kept."""

import itertools

import numpy as np
import pytest
from deferral_oracles import makespans, sums
from nightly import examples

from balancer.cost import CostModel, parse_cost
from balancer.deferral.settings import StepSettings
from balancer.deferral.steps import Given, PhaseWork, choose
from balancer.problem.across_steps import AcrossSteps
from balancer.problem.phases import Phase
from balancer.problem.setup import Setup
from balancer.problem.topology import Topology
from solvers.deferral import UNLIMITED, windows


def tiny(seed):
    """Few samples in three steps; the first phase has two items a sample, which may run apart."""
    rng = np.random.default_rng(seed)
    n, steps = 6, 3
    rows = np.sort(rng.integers(0, steps, n))
    pairs = rng.choice([0, 1, 2, 9, 20], (n, 2))
    text = rng.choice([1, 2, 3, 9], n)
    bins = int(rng.integers(1, 3))
    phases = [PhaseWork(pairs.sum(axis=1), pairs.max(axis=1), bins), PhaseWork(text, None, bins)]
    tokens = rng.integers(1, 6, n)
    held = np.array(sums(tokens, rows, steps))
    limits = {"tokens": tokens, "token_limits": np.stack([0 * held, np.maximum(held, 1 + int(held.mean()))])}
    limits["count_limits"] = np.stack([0 * held, 0 * held + n])
    return phases, pairs, rows, windows(steps, 1, 1), limits


@pytest.mark.more_by_night
@pytest.mark.parametrize("seed", range(min(examples(12), 1000)))
def test_bound_optimum_and_steps_of_tiny_cases(seed):
    phases, pairs, rows, spans, limits = tiny(seed)
    given = Given(tuple(phases), rows, spans, rows, limits, limits)
    found = choose(given)
    bins, n = phases[0].num_bins, len(rows)
    of_pairs, of_text = makespans(pairs.ravel().tolist(), bins), makespans(phases[1].costs.tolist(), bins)
    totals = {}
    for step in itertools.product(*(range(spans[r][0], spans[r][1] + 1) for r in rows)):
        if all(h <= m for h, m in zip(sums(limits["tokens"], step, 3), limits["token_limits"][1], strict=True)):
            sets = [sum(1 << i for i in range(n) if step[i] == t) for t in range(3)]
            items = [sum(3 << 2 * i for i in range(n) if step[i] == t) for t in range(3)]
            totals[step] = sum(of_text[s] for s in sets) + sum(of_pairs[s] for s in items)
    assert found.lower_bound <= min(totals.values())
    assert found.total <= totals[tuple(found.step.tolist())]  # no plan takes less than what steps take at least
    assert found.lower_bound <= found.total <= found.start_total
    drawn = choose(given, search=False)
    assert drawn.step.tolist() == rows.tolist()
    assert (drawn.start_total, drawn.total, drawn.lower_bound) == (
        found.start_total,
        found.start_total,
        found.lower_bound,
    )


def test_it_is_never_worse_than_steps_led_by_one_phase():
    rng = np.random.default_rng(5)
    rows, spans = np.arange(300) // 12, windows(25, 2, 2)
    limits = {"count_limits": np.full((2, 25), 12)}
    limits |= {"tokens": np.ones(300, dtype=np.int64), "token_limits": np.full((2, 25), 12)}
    costs = [rng.lognormal(5, 1.5, 300).astype(np.int64) + 1 for _ in range(2)]
    phases = [PhaseWork(each, None, 4) for each in costs]
    both = choose(Given(tuple(phases), rows, spans, rows, limits, limits))
    for each in phases:
        one = choose(Given((each,), rows, spans, rows, limits, limits))
        assert both.total <= sum(phase.at_least(one.step, 25) for phase in phases)
    assert both.total < both.start_total


@pytest.mark.more_by_night
@pytest.mark.parametrize("seed", range(min(examples(1), 100)))
def test_more_freedom_is_hardly_ever_worse(seed):
    rng = np.random.default_rng(seed)
    lengths = rng.lognormal(5, 1.3, 200).astype(np.int64) + 1
    costs = [rng.lognormal(5, 1.5, 200).astype(np.int64) + 1 for _ in range(2)]
    totals = []
    for delay in (1, 2, 4, 8):
        settings = StepSettings.of(4, None, AcrossSteps(window=delay, step_tokens=3000), "linear")
        phases = [PhaseWork(c, None, 4) for c in costs]
        given = Given.of(settings, lengths, settings.nominal_steps(lengths), None, phases)
        found = choose(given)
        assert given.broken(found.step) is None
        assert found.total == given.at_least(found.step)
        totals.append(found.total)
    assert all(wider <= 1.02 * narrower for narrower, wider in itertools.pairwise(totals))
    assert totals[-1] < totals[0]


def test_caps_go_with_samples():
    work = PhaseWork(np.array([5, 6, 7]), np.array([4, 6, 3]), 2, ((np.array([1, 2, 3]), 9),))
    taken = work.taken(np.array([2, 0]))
    assert (taken.costs.tolist(), taken.heights.tolist(), taken.num_bins) == ([7, 5], [3, 4], 2)
    assert [(amounts.tolist(), most) for amounts, most in taken.capped] == [([3, 1], 9)]


def test_costs_of_named_models_in_one_unit():
    def costs_of(*texts):
        phases = [Phase(name, name, cost=cost) for name, cost in zip("ab", texts, strict=True)]
        return [phase.cost for phase in Setup(Topology.uniform(4), phases).in_one_unit().phases]

    vision, llm = (parse_cost(f"flops:{name}") for name in ("qwen2-vl-vit", "qwen2-7b"))
    a, b = costs_of("flops:qwen2-vl-vit", "flops:qwen2-7b")
    assert (a.a * llm.a * llm.flops_of_unit, a.flops_of_unit) == (
        vision.a * b.a * vision.flops_of_unit,
        b.flops_of_unit,
    )
    assert costs_of("linear", "quadratic:a=2,b=1") == [CostModel(), CostModel(2, 1)]  # nobody can tell
    with pytest.raises(ValueError, match="flops:MODEL of all or of none, got linear of a"):
        costs_of("linear", "flops:qwen2-7b")


def test_times_refuses_what_has_no_plain_terms():
    assert str(parse_cost("attention:constant=3,a=2,window8=5").times(2)) == "attention:constant=6,a=4,window8=10"
    for text in ("padded", "linear:d2=5"):
        with pytest.raises(ValueError, match="is not one of plain terms"):
            parse_cost(text).times(2)
    with pytest.raises(ValueError, match="must fit int64"):
        parse_cost("linear:a=9").times(UNLIMITED)
