"""The dispatcher's report on real ranks: its numbers are those of a recount from lengths and from who got what."""

import numpy as np
import pytest

pytest.importorskip("torch")

import report_cases as cases
from rank_processes import Ranks


@pytest.fixture(scope="module")
def ranks():
    with Ranks(4) as four:
        yield four


def recount(held, power=1):
    """Given of each rank and step the samples that it got: what a report must say of loads and moves."""
    spent, worked, volume, moved, crossing, worst = [0, 0], 0, 0, 0, 0, []
    for step in range(len(held[0])):
        lengths = np.concatenate([cases.lengths_of(step, rank) for rank in range(4)])
        home, to = np.repeat(np.arange(4), 5), np.empty(20, dtype=int)
        for rank, steps in enumerate(held):
            to[steps[step]] = rank
        loads = [np.array([(lengths[of == rank] ** power).sum() for rank in range(4)]) for of in (home, to)]
        spent = [total + 4 * int(each.max()) for total, each in zip(spent, loads, strict=True)]
        worked += int(loads[1].sum())
        worst.append(4 * int(loads[1].max()) / int(loads[1].sum()))
        volume += int(lengths.sum())
        moved += int(lengths[home != to].sum())
        crossing += int(lengths[home // 2 != to // 2].sum())
    return {
        "steps": len(held[0]), "imbalance_before": spent[0] / worked, "imbalance": spent[1] / worked,
        "gain": 1 - spent[1] / spent[0], "moved_share": moved / volume, "crossing_share": crossing / volume,
        "worst_step": int(np.argmax(worst)), "worst_imbalance": max(worst),
    }  # fmt: skip


def check(found, power=1):
    wanted = recount([held for _, held in found], power)
    for numbers, _ in found:
        assert {name: numbers[name] for name in wanted} == pytest.approx(wanted)
        assert numbers["exchange_s"] > 0
    return [numbers for numbers, _ in found]


def test_every_number_is_a_recount(ranks):
    found = check(ranks.run(cases.dispatches, 6, {}))
    assert all(numbers["plan_s"] > 0 for numbers in found)
    check(ranks.run(cases.dispatches, 3, {"cost": "quadratic:a=0,b=1", "planning": "broadcast"}), power=2)


def test_steps_made_ahead_count_once_they_are_taken(ranks):
    for taken in (1, 4, 6):
        check(ranks.run(cases.takes_some, 6, taken))


def test_each_phase_has_its_own(ranks):
    for found, ratios in ranks.run(cases.of_phases):
        for name, (before, after) in ratios.items():
            assert (found[name]["imbalance_before"], found[name]["imbalance"]) == (before, after)
        assert found["vision"]["imbalance_before"] != found["llm"]["imbalance_before"]
        assert found["error"] == "\"no phase 'audio'; phases are vision, llm\""
