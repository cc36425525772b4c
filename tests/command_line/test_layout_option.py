"""`plan --layout` where ranks are GPUs: phases over replicas of their own, written, reported, and what is refused."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typed_words import keys, typed

from balancer.offline.load import checked_steps

OPTIONS = (
    *typed("--ranks 8 --ranks-per-node 4 --batch-per-rank 2 phase.vision.length=patches phase.llm.length=tokens"),
)
LAYOUT = {"mode": "before", "modules": {"vision": {"dp": 8}, "llm": {"tp": 2, "cp": 2, "dp": 2}}}


@pytest.fixture
def log(tmp_path):
    patches = [(i * 37) % 50 for i in range(48)]
    table = pa.table({"patches": patches, "tokens": [each + 20 for each in patches]})
    pq.write_table(table, tmp_path / "log.parquet")
    (tmp_path / "layout.json").write_text(json.dumps(LAYOUT))
    return tmp_path / "log.parquet"


def test_a_plan_over_replicas(command, log):
    planned = command("plan", log, *OPTIONS, *keys("layout=layout.json"), "--out", "plan.parquet")
    assert planned.code == 0
    reported = command("report", "plan.parquet", "--html", "page.html")
    assert reported.code == 0
    for printed in (planned, reported):
        assert "48 samples in 3 steps" in printed.words
        assert "vision:out" in printed.words
    steps = list(checked_steps("plan.parquet"))
    assert [step["llm"].num_ranks for step in steps] == [2] * 3
    assert [step["vision"].num_ranks for step in steps] == [8] * 3


def test_ranks_are_gpus_or_replicas(command, log):
    command("plan", log, *OPTIONS[2:], "--ranks", 2, *keys("layout=layout.json"))
    outcome = command("plan", log, *OPTIONS[4:], "--ranks", 4, *keys("layout=layout.json"))
    assert outcome.code == 2
    assert "ranks must be 2, the replicas of layout.json, or 8, its GPUs, got 4" in outcome.err


PIPED = {"vision": {"dp": 2}, "llm": {"pp": 3, "dp": 2}}


@pytest.mark.parametrize(
    ("more", "options", "told"),
    [
        ({}, (), "cut.tokens is missing"),
        ({"micro_batches": 2**13}, (), "file.json: cut.count must be <= 4096 with stages"),
        ({"micro_batches": 2**24}, (), "file.json: cut.count must be <= 1048576"),
        ({"micro_batches": 2}, keys("cut.at_least=3"), "file.json: cut.count = 2 contradicts cut.at_least"),
        ({"micro_batch_tokens": 20}, (), "longer than cut.tokens = 20"),
        ({"micro_batch_tokens": 20}, keys("cut.tokens=21"), "longer than cut.tokens = 21"),
        ({}, keys("cut.sync=micro_batch"), "cut.sync: there is no such key here, but where cut.kind is micro_batches"),
        ({}, keys("cut.encoders=step"), "cut.encoders step contradicts mode 'stages' of file.json"),
        ({}, keys("phase.llm.cost=flops:qwen2-7b"), "file.json: cut.stages needs costs of one unit"),
        ({"mode": "stage"}, (), """file.json: unknown "mode" 'stage'; known are stages"""),
        ({"generators": ["tts"]}, (), 'file.json: "generators" must be of the phases vision, llm'),
        ({"modules": PIPED | {"llm": {"pp": 0}}}, (), "file.json: modules['llm']: pp must be >= 1, got 0"),
        ({"modules": {"llm": {"pp": 30}}}, (), "file.json: cut.stages['llm'] must be <= 28, the model's layers"),
    ],
)
def test_what_a_file_says_is_called_by_its_name(command, log, more, options, told):
    layout = {"micro_batch_tokens": 500} | {"modules": PIPED} | more
    if told.startswith("cut.tokens is missing"):
        del layout["micro_batch_tokens"]
    (log.parent / "file.json").write_text(json.dumps(layout))
    phases = OPTIONS[6:] if len(layout["modules"]) == 2 else (*OPTIONS[8:], *keys("phase.llm.cost=flops:qwen2-7b"))
    ranks = 1 if "<= 28" in told else 2
    outcome = command(
        "plan", log, "--ranks", ranks, "--batch-per-rank", 2, *phases, *keys("layout=file.json"), *options
    )
    assert outcome.code in (1, 2)
    assert told in outcome.err


def test_a_file_that_is_compared_is_named_where_it_does_not_fit(command, log):
    (log.parent / "file.json").write_text(json.dumps({"modules": {"vision": {"dp": 3, "tp": 3}, "llm": {"dp": 3}}}))
    models = ("--cluster", "h100", *keys("phase.vision.model=internvit-6b", "phase.llm.model=qwen2-7b"))
    outcome = command(
        "simulate", log, "--ranks", 1, "--batch-per-rank", 8, *OPTIONS[6:], *models, "--layout", "file.json"
    )
    assert "file.json: layout, module 'vision': tp * sp = 3 does not divide its 25 heads" in outcome.err
    page = command(
        "simulate",
        log,
        *typed("--ranks 1 --batch-per-rank 8"),
        *OPTIONS[6:],
        *models,
        *typed("--layout file.json --html a.html"),
    )
    assert "--layout compares layouts in a table, without --strategies and --html" in page.err
