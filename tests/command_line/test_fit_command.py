"""``balancer fit``: what it prints is what ``balancer plan --cost`` takes; what it refuses, and with which code."""

import json

import numpy as np
import pytest
from log_files import write_csv


def write_steps(path, count=60, noise=0.02, law=(0.012, 1.14e-4, 1.5e-9)):
    rng = np.random.default_rng(1)
    rows = ["lengths,seconds"]
    for _ in range(count):
        lengths = np.minimum(rng.lognormal(6.5, 1, rng.integers(1, 12)), 16384).astype(np.int64)
        seconds = law[0] + law[1] * lengths.sum() + law[2] * (lengths * lengths).sum()
        rows.append(f"{' '.join(map(str, lengths))},{seconds * np.exp(noise * rng.standard_normal())!r}")
    path.write_text("\n".join(rows).replace("np.float64(", "").replace(")", "") + "\n")
    return path


@pytest.fixture
def refused(command):
    def check(arguments, words, code=2):
        for more in ((), ("--json",)):
            outcome = command("fit", *arguments, *more)
            assert outcome.code == code, outcome
            assert outcome.out == ""
            lines = outcome.err.splitlines()
            assert 1 <= len(lines) <= 2, outcome.err
            assert lines[0].startswith("balancer: ")
            for word in words:
                assert word in outcome.err

    return check


def test_a_table_and_the_same_as_json(command, tmp_path):
    path = write_steps(tmp_path / "steps.csv")
    table, machine = command("fit", path), command("fit", path, "--json")
    assert (table.code, machine.code) == (0, 0)
    document = json.loads(machine.out)
    assert document["steps"] == document["distinct_steps"] == 60
    assert document["a_s"] == pytest.approx(1.14e-4, rel=0.02)
    assert 0.01 < document["held_out_error"] < 0.03
    assert document["work_unit"] == "1 ps"
    assert document["forced"] is None
    assert f"--cost {document['cost']} " in table.out
    assert f"held-out error {document['held_out_error']:.2%}" in table.out
    assert "60 steps (60 different)" in table.out


def test_what_it_prints_is_what_plan_takes(command, tmp_path):
    cost = json.loads(command("fit", write_steps(tmp_path / "steps.csv"), "--json").out)["cost"]
    log = write_csv(tmp_path / "log.csv", [100, 4000, 2000, 2100])
    planned = command("plan", log, "--ranks", 2, "--batch-per-rank", 2, "--cost", cost, "--json")
    assert planned.code == 0, planned.err


def test_steps_that_name_a_degree(command, tmp_path):
    path = write_steps(tmp_path / "steps.csv", noise=0.0)
    header, *rows = path.read_text().splitlines()
    degrees = [(1, 2, 8)[i % 3] for i in range(len(rows))]
    shared = [header + ",degree"]
    for row, degree in zip(rows, degrees, strict=True):
        lengths, seconds = row.split(",")
        exchange = {1: 0, 2: 2e-5, 8: 3e-5}[degree] * sum(map(int, lengths.split()))
        shared.append(f"{lengths},{0.012 + (float(seconds) - 0.012 + exchange) / degree!r},{degree}")
    path.write_text("\n".join(shared) + "\n")
    table, document = command("fit", path), json.loads(command("fit", path, "--json").out)
    assert document["cost"] == "quadratic:a=114000000,b=1500,d2=20000000,d8=30000000,overhead=12000000000"
    assert document["d8_s"] == pytest.approx(3e-5)
    assert "seconds = c0 + ((a + dN)*sum(l) + b*sum(l^2)) / N, N the degree" in table.out
    assert f"--cost {document['cost']}   (in units of 1 ps" in table.out
    assert table.out.endswith("overhead is c0)\n")
    log = write_csv(tmp_path / "log.csv", [100, 4000, 2000, 2100])
    for cost in (document["cost"], "flexsp-7b-a100"):
        assert command("plan", log, "--ranks", 2, "--batch-per-rank", 2, "--cost", cost, "--json").code == 0


def test_a_cost_by_the_name_of_a_model(command, tmp_path):
    log = write_csv(tmp_path / "log.csv", [100, 4000, 2000, 2100])
    shape = ("--ranks", 2, "--batch-per-rank", 2)
    assert command("plan", log, *shape, "--cost", "flops:llama-3-8b").code == 0
    outcome = command("plan", log, *shape, "--cost", "flops:llama-9")
    assert outcome.code == 2
    assert "unknown model 'llama-9'; known are qwen2-7b" in outcome.err


def test_skipping_a_warm_up(command, tmp_path):
    path = write_steps(tmp_path / "steps.csv")
    header, *rows = path.read_text().splitlines()
    path.write_text("\n".join([header, "500,60.0", "600,30.0", *rows]) + "\n")
    borne = json.loads(command("fit", path, "--json").out)  # relative errors of slow steps are at most 1
    assert borne["a_s"] == pytest.approx(1.14e-4, rel=0.03)
    skipped = command("fit", path, "--skip", 2, "--json")
    assert skipped.code == 0
    assert json.loads(skipped.out)["steps"] == 60
    assert json.loads(skipped.out)["skipped"] == 2


def test_a_bad_fit_is_refused_unless_forced(command, refused, tmp_path):
    path = write_steps(tmp_path / "steps.csv", noise=0.5)
    refused([path], ["steps.csv", "held-out error is", "more than the 10.0% allowed", "--force"], code=1)
    forced = command("fit", path, "--force")
    assert forced.code == 0
    assert "forced: held-out error is" in forced.out
    assert json.loads(command("fit", path, "--force", "--json").out)["forced"].startswith("held-out")


def test_what_cannot_be_fitted(refused, tmp_path):
    path = tmp_path / "steps.csv"
    refused([path], ["steps.csv", "no such file"])
    refused([write_steps(path, count=9)], ["steps.csv", "at least 10 steps", "there are 9"])
    path.write_text("lengths,seconds\n" + "".join(f"{' '.join(['512'] * i)},{i}\n" for i in range(1, 20)))
    refused([path, "--force"], ["all lengths are 512", "cannot be told apart"])
    path.write_text("lengths,seconds\n" + "".join(f"{i},{1 / i}\n" for i in range(1, 20)))
    refused([path, "--force"], ["a = b = 0"], code=1)
    refused([write_steps(path), "--skip", -1], ["--skip"])


def test_the_page_of_a_fit_shows_how_far_steps_are_from_it(command, tmp_path):
    pytest.importorskip("matplotlib")
    path = write_steps(tmp_path / "steps.csv")
    outcome = command("fit", path, "--html", "fit.html")
    assert outcome.code == 0, outcome.err
    assert "page written to fit.html" in outcome.out
    page = (tmp_path / "fit.html").read_text()
    assert "Measured beside predicted" in page
    assert page.count("<svg") == 1
    assert page.count("<use") >= 60  # a point a step
    assert command("fit", path, "--html", "fit.txt").code == 2
