"""Pipelines on plan, simulate and report."""

import json
from pathlib import Path

import pytest
from log_files import write_log
from plan_files import description_of
from typed_words import keys, typed

ASKED = ("--ranks", 2, "--batch-per-rank", 16)
PHASES = keys("phase.vision.length=patches", "phase.llm.length=tokens")
CUT = keys("cut.tokens=400", "cut.count=4")
STAGES = (*CUT, *keys("cut.stages={vision=1,llm=3}"))


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
    costs = keys("phase.vision.cost=flops:internvit-300m", "phase.llm.cost=flops:qwen2-7b")
    found = command("plan", log, *ASKED, *PHASES, *STAGES, *costs, "--out", "plan.parquet")
    assert found.code == 0


def test_stages_of_one_phase(command, log):
    asked = (
        *ASKED,
        "--length",
        "tokens",
        *CUT,
        *keys("cut.stages={all=4}", "cut.chunks=2", "cut.recompute=true"),
        "--json",
    )
    plain = json.loads(command("plan", log, *asked).out)["phases"]["all"]
    assert plain["pipeline_stages"] == 4
    found = command("plan", log, *asked, *keys("cut.tied=true"), "--out", "tied.parquet")
    assert json.loads(found.out)["phases"]["all"]["imbalance_ratio_after"] >= plain["imbalance_ratio_after"]
    assert description_of("tied.parquet")["settings"]["cut"]["stages"]["tied"] is True


def test_simulate_takes_models_and_pieces(command, log):
    run = typed("--cluster h100 phase.vision.model=internvit-300m phase.llm.model=qwen2-7b --html page.html")
    found = command(
        "simulate", log, *ASKED, *PHASES, *STAGES, *run, *keys("gpus_per_rank=8", "phase.vision.pieces=100")
    )
    assert found.code == 0
    assert "stages of one pipeline" in Path("page.html").read_text()
    refused = command("simulate", log, *ASKED, *PHASES, *STAGES, *run, *keys("gpus_per_rank=2"))
    assert (refused.code, "gpus_per_rank must be a multiple of 4" in refused.err) == (2, True)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ((*CUT, *keys("cut.chunks=2")), "cut.stages is missing: Stages of each phase, in order"),
        ((*CUT, *keys("cut.stages=4")), "cut.stages must be a table of whole numbers >= 1, got 4"),
        ((*CUT, *keys("cut.stages={llm=3}")), "stages must be of the phases vision, llm, got llm"),
        ((*STAGES, *keys("cut.pipeline_stages=4")), "cut: no kind of cut has both stages and pipeline_stages"),
        ((*STAGES, *keys("phase.llm.cost=flops:qwen2-7b")), "cut.stages needs costs of one unit"),
        ((*STAGES, *keys("phase.llm.equal_counts=true")), "phase 'llm': stages cannot be combined with equal_counts"),
    ],
)
def test_bad_options_are_told(command, log, options, told):
    found = command("plan", log, *ASKED, *PHASES, *options)
    assert found.code == 2
    assert told in found.err
