"""`balancer report PLAN --measured FILE`: predicted beside measured; a file that cannot be used is one exact line."""

import json

import numpy as np
import pytest
from log_files import write_csv

from balancer.offline.load import checked_steps

LENGTHS = np.random.default_rng(8).lognormal(5, 1.2, 160).astype(int) + 1
SHAPE = ("--ranks", 4, "--batch-per-rank", 5)


@pytest.fixture
def planned(command, tmp_path):
    write_csv(tmp_path / "log.csv", LENGTHS.tolist())
    outcome = command("plan", "log.csv", *SHAPE, "--out", "plan.parquet", "--json")
    assert outcome.code == 0, outcome.err
    return [step["all"].loads for step in checked_steps(tmp_path / "plan.parquet", tmp_path / "log.csv")]


def rows_of(planned, noise=0.0):
    random = np.random.default_rng(4)
    return [
        (step, rank, float((0.01 + 1e-5 * load) * (1 + noise * random.standard_normal())))
        for step, loads in enumerate(planned)
        for rank, load in enumerate(loads.tolist())
    ]


def write(path, rows, header="step,rank,seconds"):
    path.write_text("\n".join([header, *(",".join(map(str, row)) for row in rows)]) + "\n")


def test_table_and_json_say_what_was_predicted_and_measured(command, tmp_path, planned):
    write(tmp_path / "steps.csv", rows_of(planned, noise=0.02))
    bare = json.loads(command("report", "plan.parquet", "--json").out)
    outcome = command("report", "plan.parquet", "--measured", "steps.csv", "--json")
    assert outcome.code == 0, outcome.err
    found = json.loads(outcome.out)
    assert found["phases"] == bare["phases"]
    fit = found["measured"]
    assert (fit["steps"], fit["ranks"]) == (8, 4)
    assert 0.01 < fit["rank_noise"] < 0.03
    slowest = [max(seconds for of, _, seconds in rows_of(planned, 0.02) if of == step) for step in range(8)]
    assert fit["slowest_s"] == pytest.approx(sum(slowest))
    assert fit["predicted_s"] < fit["predicted_with_noise_s"]
    said = command("report", "plan.parquet", "--measured", "steps.csv").out
    assert "steps.csv: 8 steps of 4 ranks; a rank's seconds = " in said
    assert f"slowest rank, s: measured {fit['slowest_s']:.4g}; predicted {fit['predicted_s']:.4g} (" in said
    assert f"noise of a rank {fit['rank_noise']:.1%}" in said


def test_a_file_a_rank_is_the_same(command, tmp_path, planned):
    rows = rows_of(planned, noise=0.02)
    write(tmp_path / "all.csv", rows)
    for rank in range(4):
        write(
            tmp_path / f"steps.{rank}.csv",
            [(step, of, "7 8", t) for step, of, t in rows if of == rank],
            "step,rank,lengths,seconds",
        )
    one, many = (
        json.loads(command("report", "plan.parquet", "--measured", which, "--json").out)["measured"]
        for which in ("all.csv", "steps.*.csv")
    )
    assert one == many


BAD = [
    ("no_rank", "bad.csv: has no column 'rank': what ranks took needs step, rank, seconds; columns are step, seconds"),
    ("nan", "bad.csv: column 'seconds', row 1: must be a positive, finite number, got 'nan'"),
    ("negative", "bad.csv: column 'seconds', row 0: must be a positive, finite number, got '-0.5'"),
    ("words", "bad.csv: column 'rank', row 2: ranks must be whole numbers from 0 to 2147483647, got 'first'"),
    ("other", "bad.csv: times do not grow with the plan's loads: are they of these steps?"),
]


def spoilt(rows, how):
    changed = {
        "nan": [rows[0], (*rows[1][:2], "nan"), *rows[2:]],
        "negative": [(0, 0, -0.5), *rows[1:]],
        "words": [*rows[:2], (0, "first", 1.0), *rows[3:]],
        "other": [(step, rank, 2e-4 / seconds) for step, rank, seconds in rows],
    }
    return changed[how]


@pytest.mark.parametrize(("how", "words"), BAD)
def test_a_bad_file_is_one_exact_line(how, words, command, tmp_path, planned):
    rows = rows_of(planned)
    if how == "no_rank":
        write(tmp_path / "bad.csv", [(step, seconds) for step, _, seconds in rows], "step,seconds")
    else:
        write(tmp_path / "bad.csv", spoilt(rows, how))
    for more in ((), ("--json",)):
        outcome = command("report", "plan.parquet", "--measured", "bad.csv", *more)
        assert (outcome.code, outcome.out, outcome.err) == (2, "", f"balancer: {words}\n")


def test_files_that_are_not_there_and_engines(command, planned):
    outcome = command("report", "plan.parquet", "--measured", "none.csv")
    assert outcome.code == 2
    assert len(outcome.err.splitlines()) == 1
    outcome = command("report", "plan.parquet", "--measured", "none.csv", "--jobs", 2)
    assert "which one process does" in outcome.err
