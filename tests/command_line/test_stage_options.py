"""--stages on plan, simulate and report."""

import json
from pathlib import Path

import pytest
from log_files import write_log

ASKED = ("--ranks", 2, "--batch-per-rank", 16)
PHASES = ("--phase", "vision=patches", "--phase", "llm=tokens")
CUT = ("--micro-batch-tokens", 400, "--micro-batches", 4)
STAGES = (*CUT, "--stages", "vision=1,llm=3")


@pytest.fixture
def log(tmp_path):
    tokens = [90, 30, 20, 40, 50, 60, 70, 80, 10, 20, 30, 40, 50, 60, 70, 80] * 6
    patches = [0, 50, 200, 0, 10, 0, 0, 90, 400, 0, 0, 0, 30, 0, 0, 10] * 6
    return write_log(tmp_path / "log.parquet", {"tokens": tokens, "patches": patches})


def test_plan_and_report_know_the_pipeline(command, log):
    found = command("plan", log, *ASKED, *PHASES, *STAGES, "--out", "plan.parquet", "--json")
    phases = json.loads(found.out)["phases"]
    llm = phases["llm"]
    assert (llm["sync"], llm["pipeline_stages"], llm["micro_batches_most"]) == ("pipeline", 4, 4)
    assert 1 < llm["imbalance_ratio_best_possible"] <= llm["imbalance_ratio_after"] < llm["imbalance_ratio_before"]
    assert phases["vision"]["in_pipeline"]
    report = command("report", "plan.parquet", "--log", log, "--json", "--html", "page.html")
    assert json.loads(report.out)["phases"]["llm"] == llm
    page = Path("page.html").read_text()
    assert "stages of one pipeline" in page
    assert "bubble, before" in page
    table = command("report", "plan.parquet", "--log", log).words
    assert "bubble" in table
    assert "cut into as many micro-batches of equally many" in table


def test_models_give_stages_whole_layers(command, log):
    costs = ("--cost", "vision=flops:internvit-300m", "--cost", "llm=flops:qwen2-7b")
    found = command("plan", log, *ASKED, *PHASES, *STAGES, *costs, "--out", "plan.parquet")
    assert found.code == 0


def test_one_phase_takes_a_number(command, log):
    asked = (*ASKED, "--length", "tokens", *CUT, "--stages", 4, "--chunks", 2, "--recompute", "--json")
    plain = json.loads(command("plan", log, *asked).out)["phases"]["all"]
    assert plain["pipeline_stages"] == 4
    tied = json.loads(command("plan", log, *asked, "--tied").out)["phases"]["all"]
    assert tied["imbalance_ratio_after"] > plain["imbalance_ratio_after"]


def test_simulate_takes_models_and_pieces(command, log):
    run = ("--cluster", "h100", "--model", "vision=internvit-300m", "--model", "llm=qwen2-7b", "--html", "page.html")
    found = command("simulate", log, *ASKED, *PHASES, *STAGES, *run, "--gpus-per-rank", 8, "--pieces", "vision=100")
    assert found.code == 0
    assert "stages of one pipeline" in Path("page.html").read_text()
    refused = command("simulate", log, *ASKED, *PHASES, *STAGES, *run, "--gpus-per-rank", 2)
    assert (refused.code, "--gpus-per-rank must be a multiple of 4" in refused.err) == (2, True)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ((*CUT, "--chunks", 2), "--chunks needs --stages"),
        ((*STAGES, "--chunks", 0), "--chunks must be >= 1, got 0"),
        ((*STAGES, "--in-flight-tokens", 0), "--in-flight-tokens must be >= 1, got 0"),
        (("--stages", "vision=1,llm=3"), "--stages needs --micro-batch-tokens"),
        ((*CUT, "--stages", "4"), "--stages must be NAME[+NAME]=N for each of vision, llm"),
        ((*CUT, "--stages", "llm=3"), "--stages must be of the phases vision, llm, got llm"),
        ((*STAGES, "--pipeline-stages", 4), "give --stages or --pipeline-stages, not both"),
        ((*STAGES, "--sync", "micro_batch"), "--stages contradicts --sync"),
        ((*STAGES, "--frozen", "audio"), "--frozen audio: there is no such phase; phases are vision, llm"),
        ((*CUT, "--frozen", "vision"), "--frozen needs --stages"),
        ((*STAGES, "--cost", "llm=flops:qwen2-7b"), "--stages needs costs of one unit"),
        ((*STAGES, "--group-degrees", "1,2"), "--stages cannot be combined with --group-degrees"),
        ((*STAGES, "--equal-counts"), "--stages cannot be combined with --equal-counts"),
    ],
)
def test_bad_options_are_told(command, log, options, told):
    found = command("plan", log, *ASKED, *PHASES, *options)
    assert found.code == 2
    assert told in found.err
