"""`balancer report PLAN --cost OTHER`: what ranks wait for by another cost, against loops over the plan's samples."""

import json

import numpy as np
import pytest
from log_files import write_csv

import balancer
from balancer.cost import parse_cost

LENGTHS = np.random.default_rng(8).lognormal(5, 1.2, 160).astype(int) + 1
SHAPE = ("--ranks", 4, "--batch-per-rank", 5)
OTHER = "attention:a=100,full=3,window64=20"


@pytest.fixture
def planned(command, tmp_path):
    write_csv(tmp_path / "log.csv", LENGTHS.tolist())
    outcome = command("plan", "log.csv", *SHAPE, "--cost", "quadratic:a=1,b=1", "--out", "plan.parquet", "--json")
    assert outcome.code == 0, outcome.err
    return list(balancer.load_steps(tmp_path / "plan.parquet", tmp_path / "log.csv"))


def waiting(steps, cost):
    slowest = mean = 0
    for step in steps:
        plan = step["all"]
        loads = [0] * 4
        for length, rank in zip(plan.lengths.tolist(), plan.rank_of_sample.tolist(), strict=True):
            loads[rank] += parse_cost(cost).exact(length)
        slowest, mean = slowest + max(loads), mean + sum(loads) / 4
    return 1 - mean / slowest


def test_json_and_words_against_loops(command, planned):
    found = json.loads(command("report", "plan.parquet", "--cost", OTHER, "--json").out)["priced"]["all"]
    assert (found["planned_by"], found["priced_by"]) == ("quadratic:a=1,b=1", OTHER)
    assert found["waiting"] == pytest.approx(waiting(planned, "quadratic:a=1,b=1"))
    assert found["waiting_priced"] == pytest.approx(waiting(planned, OTHER))
    words = command("report", "plan.parquet", "--cost", f"all={OTHER}").words
    assert f"Ranks wait {found['waiting_priced']:.2%} of the time by {OTHER}" in words
    assert f"{found['waiting']:.2%} by quadratic:a=1,b=1, which it was planned by" in words


def test_a_plan_priced_by_its_own_cost_is_what_it_was(command, planned):
    found = json.loads(command("report", "plan.parquet", "--cost", "quadratic:a=1,b=1", "--json").out)["priced"]["all"]
    assert found["waiting"] == found["waiting_priced"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--cost", "cubic"], "--cost unknown cost 'cubic'"),
        (["--cost", "vision=linear"], "--cost is of phase 'vision'; the plan has all"),
        (["--cost", "padded"], "--cost takes costs that add up over samples, not padded"),
        (["--cost", "linear", "--jobs", "2"], "leave --engine and --jobs out"),
    ],
)
def test_what_cannot_be_priced(command, planned, arguments, words):
    outcome = command("report", "plan.parquet", *arguments)
    assert outcome.code == 2
    assert words in outcome.err
    assert len(outcome.err.splitlines()) == 1
