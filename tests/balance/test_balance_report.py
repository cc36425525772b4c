"""What balancing reports of itself: every number counted once more from lengths and batches, by other means."""

from fractions import Fraction

import numpy as np
import pytest

import balancer
from balancer.compat import BalancedBatchSampler
from balancer.plan.balance_report import BalanceReport

LENGTHS = np.random.default_rng(3).lognormal(5, 1.1, 101).astype(int) + 1
COSTS = {
    "linear": lambda lengths: sum(lengths),
    "quadratic:a=100,b=1": lambda lengths: sum(100 * n + n * n for n in lengths),
    "padded": lambda lengths: len(lengths) * max(lengths, default=0),
}


def counted(steps, cost):
    """Given of each step [micro-step][rank] -> lengths before and after: ratios of rank-time, gain, and worst step."""
    spent, worked, worst = [0, 0], 0, []
    for pair in steps:
        works = []
        for which, slots in enumerate(pair):
            loads = [[COSTS[cost](batch) for batch in slot] for slot in slots]
            took = sum(max(slot) * len(slot) for slot in loads)
            spent[which] += took
            works.append(sum(map(sum, loads)))
        worst.append(Fraction(took, min(works)))
        worked += min(works)
    before, after = (float(Fraction(each, worked)) for each in spent)
    return before, after, 1 - spent[1] / spent[0], worst.index(max(worst)), float(max(worst))


@pytest.mark.parametrize("cost", COSTS)
@pytest.mark.parametrize(("accumulation", "equal"), [(1, True), (3, True), (2, False)])
def test_a_sampler_reports_what_its_batches_add_up_to(cost, accumulation, equal):
    options = {"gradient_accumulation_steps": accumulation, "cost": cost, "equal_counts": equal, "shuffle": False}
    samplers = [BalancedBatchSampler(LENGTHS, 2, 3, rank, **options) for rank in range(3)]
    assert str(samplers[0].report()) == "no steps yet"
    batches = [[LENGTHS[batch].tolist() for batch in sampler] for sampler in samplers]
    steps, groups = [], 3 * accumulation
    for step in range(samplers[0].num_steps):
        rows = np.arange(2 * groups * step, 2 * groups * (step + 1))
        if rows[-1] >= len(LENGTHS):  # the last takes rows again from the beginning, as many as counts need
            rows = np.arange(rows[0], len(LENGTHS))
            again = -len(rows) % groups if equal else max(0, groups - len(rows))
            rows = np.concatenate((rows, np.arange(again)))
        drawn = [LENGTHS[part].tolist() for part in np.array_split(rows, groups)]
        before = [drawn[slot * 3 : slot * 3 + 3] for slot in range(accumulation)]
        after = [[of_rank[step * accumulation + slot] for of_rank in batches] for slot in range(accumulation)]
        steps.append((before, after))
    for sampler in samplers:
        found = sampler.report()
        assert found.steps == len(steps)
        before, after, gain, worst_step, worst = counted(steps, cost)
        assert (found.imbalance_before, found.imbalance, found.worst_imbalance) == (before, after, worst)
        assert (found.worst_step, found.moved_share, found.exchange_s) == (worst_step, 0, 0)
        assert found.gain == pytest.approx(gain, abs=1e-12)
        assert found.waiting == pytest.approx(1 - 1 / after)
        assert found.plan_s > 0


def test_only_steps_that_were_drawn_count_and_states_hold_no_report():
    sampler = BalancedBatchSampler(LENGTHS, 2, 3, 1, gradient_accumulation_steps=2)
    running = iter(sampler)
    sampler.plan_step(0)
    for drawn in range(1, 5):
        next(running)
        assert sampler.report().steps == -(-drawn // 2)
    resumed = BalancedBatchSampler(LENGTHS, 2, 3, 1, gradient_accumulation_steps=2)
    resumed.load_state_dict(sampler.state_dict())
    next(iter(resumed))
    assert resumed.report().steps == 1


@pytest.mark.parametrize(
    "options", [{}, {"rank_speeds": [1, 2, 3, 1]}, {"cost": "quadratic:a=9,b=1"}, {"cost": "padded"}]
)
def test_a_plans_report_is_a_recount(options):
    home = np.arange(101) % 4
    plans = [balancer.balance(LENGTHS[rows], 4, 2, home[rows], **options) for rows in np.array_split(np.arange(101), 5)]
    reports = [BalanceReport.of_plan(plan, 0.002, 0.003) for plan in plans]
    found = sum(reports, BalanceReport())
    moved = crossing = 0
    for plan, rows in zip(plans, np.array_split(np.arange(101), 5), strict=True):
        to = plan.rank_of_sample
        moved += int(LENGTHS[rows][to != home[rows]].sum())
        crossing += int(LENGTHS[rows][to // 2 != home[rows] // 2].sum())
    assert found.moved_share == pytest.approx(moved / LENGTHS.sum())
    assert found.crossing_share == pytest.approx(crossing / LENGTHS.sum())
    assert found.spent == sum(plan.makespan * 4 for plan in plans)
    assert found.spent_before == sum(plan.home_makespan * 4 for plan in plans)
    assert [one.imbalance for one in reports] == [plan.imbalance_ratio for plan in plans]
    assert [one.imbalance_before for one in reports] == [plan.home_imbalance_ratio for plan in plans]
    worst = int(np.argmax([plan.imbalance_ratio for plan in plans]))
    assert (found.worst_step, found.worst_imbalance) == (worst, plans[worst].imbalance_ratio)
    assert (found.plan_ms, found.exchange_ms) == (pytest.approx(2), pytest.approx(3))


def test_adding_reports_is_the_same_in_any_grouping():
    reports = [
        BalanceReport.of_plan(balancer.balance(LENGTHS[5 * k : 5 * k + 20], 3, 1, np.arange(20) % 3), 0.5)
        for k in range(6)
    ]
    one_by_one = sum(reports, BalanceReport())
    assert sum(reports[:2], BalanceReport()) + sum(reports[2:], BalanceReport()) == one_by_one
    assert BalanceReport() + BalanceReport() == BalanceReport()


def test_it_can_be_read():
    before, after = np.array([[4, 0], [2, 2]]), np.array([[2, 2], [3, 1]])
    said = str(BalanceReport.of_loads(before, after, 0.0015) + BalanceReport.of_loads(after, after, 0.0005))
    assert said.splitlines() == [
        "2 steps: ranks wait 20.0 % of the time (imbalance 1.250), 27.3 % as drawn (1.375): "
        "9.1 % of step time saved, predicted",
        "moved 0.0 % of the lengths, 0.0 % across nodes; a step took 1.0 ms to plan, 0.0 ms to exchange",
        "worst step 0: imbalance 1.250",
    ]
