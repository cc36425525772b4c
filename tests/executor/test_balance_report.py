"""The dispatcher's report on real ranks: its numbers are those of a recount from lengths and from who got what."""

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from each_rank import each_rank, everywhere
from ranks_of import ranks_of

from balancer import Phase
from balancer.executor import Dispatcher, PrefetchDispatcher

ranks = ranks_of(4)


def lengths_of(step, rank):
    return np.random.default_rng([7, step, rank]).lognormal(4, 1, 5).astype(int) + 1


def batch_of(step, rank):
    return {"ids": [torch.arange(n) for n in lengths_of(step, rank)]}


def check(report, held, power=1):
    """Compare with a recount, given this rank's samples of each step: what a report must say of loads and moves."""
    spent, worked, volume, moved, crossing, worst = [0, 0], 0, 0, 0, 0, []
    of_ranks = everywhere(held)
    for step in range(len(held)):
        lengths = np.concatenate([lengths_of(step, rank) for rank in range(4)])
        home, to = np.repeat(np.arange(4), 5), np.empty(20, dtype=int)
        for rank, steps in enumerate(of_ranks):
            to[steps[step]] = rank
        loads = [np.array([(lengths[of == rank] ** power).sum() for rank in range(4)]) for of in (home, to)]
        spent = [total + 4 * int(each.max()) for total, each in zip(spent, loads, strict=True)]
        worked += int(loads[1].sum())
        worst.append(4 * int(loads[1].max()) / int(loads[1].sum()))
        volume += int(lengths.sum())
        moved += int(lengths[home != to].sum())
        crossing += int(lengths[home // 2 != to // 2].sum())
    wanted = {
        "steps": len(held), "imbalance_before": spent[0] / worked, "imbalance": spent[1] / worked,
        "gain": 1 - spent[1] / spent[0], "moved_share": moved / volume, "crossing_share": crossing / volume,
        "worst_step": int(np.argmax(worst)), "worst_imbalance": max(worst),
    }  # fmt: skip
    assert {name: getattr(report, name) for name in wanted} == pytest.approx(wanted)
    assert report.exchange_s > 0
    assert report.plan_s > 0


@each_rank
def test_every_number_is_a_recount(rank):
    made = Dispatcher(length="ids", ranks_per_node=2, cost="quadratic:a=0,b=1", planning="broadcast")
    assert made.report().steps == 0
    held = [made.dispatch(batch_of(step, rank)).samples.tolist() for step in range(5)]
    check(made.report(), held, power=2)


@each_rank
def test_steps_made_ahead_count_once_they_are_taken(rank):
    made = Dispatcher(length="ids", ranks_per_node=2)
    loop = iter(PrefetchDispatcher([batch_of(step, rank) for step in range(6)], made))
    held = []
    for _ in range(4):
        next(loop)
        held.append(made.current.samples.tolist())
    loop.close()
    check(made.report(), held)


@each_rank
def test_each_phase_has_its_own(rank):
    made = Dispatcher(phases=[Phase("vision", "patches", outputs="images"), Phase("llm", "tokens", own="text")])
    patches, text = 10 * lengths_of(1, rank), lengths_of(2, rank)
    columns = {"patches": patches, "images": patches // 10, "text": text, "tokens": text + patches // 10}
    step = made.dispatch({"id": torch.arange(5)}, columns).step
    for name in ("vision", "llm"):
        found, plan = made.report(name), step[name]
        assert (found.imbalance_before, found.imbalance) == (plan.home_imbalance_ratio, plan.imbalance_ratio)
    assert made.report().imbalance == made.report("llm").imbalance
    assert made.report("vision").imbalance_before != made.report("llm").imbalance_before
    with pytest.raises(KeyError, match="no phase 'audio'; phases are vision, llm"):
        made.report("audio")
