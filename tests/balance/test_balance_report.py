"""What balancing reports of itself: every number counted once more from lengths and batches, by other means."""

import numpy as np
import pytest

import balancer
from balancer.plan.balance_report import BalanceReport

LENGTHS = np.random.default_rng(3).lognormal(5, 1.1, 101).astype(int) + 1


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
    first = BalanceReport(1, 12, 10, 8, 8, plan_s=0.0015, worst_imbalance=1.25)
    said = str(first + BalanceReport(1, 10, 10, 8, 8, plan_s=0.0005, worst_imbalance=1.25))
    assert said.splitlines() == [
        "2 steps: ranks wait 20.0 % of the time (imbalance 1.250), 27.3 % as drawn (1.375): "
        "9.1 % of step time saved, predicted",
        "moved 0.0 % of the lengths, 0.0 % across nodes; a step took 1.0 ms to plan, 0.0 ms to exchange",
        "worst step 0: imbalance 1.250",
    ]
