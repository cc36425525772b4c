"""`plan --layout` where ranks are GPUs: phases over replicas of their own, written, reported, and what is refused."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import balancer

OPTIONS = (
    "--ranks",
    8,
    "--ranks-per-node",
    4,
    "--batch-per-rank",
    2,
    "--phase",
    "vision=patches",
    "--phase",
    "llm=tokens",
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
    planned = command("plan", log, *OPTIONS, "--layout", "layout.json", "--out", "plan.parquet")
    assert planned.code == 0
    reported = command("report", "plan.parquet", "--html", "page.html")
    assert reported.code == 0
    for printed in (planned, reported):
        assert "48 samples in 3 steps" in printed.words
        assert "vision:out" in printed.words
    steps = list(balancer.load_steps("plan.parquet"))
    assert [step["llm"].num_ranks for step in steps] == [2] * 3
    assert [step["vision"].num_ranks for step in steps] == [8] * 3
    (strategy,) = json.loads(command("compare", log, *OPTIONS, "--layout", "layout.json", "--json").out)["strategies"]
    assert strategy == "orchestrated"


def test_ranks_are_gpus_or_replicas(command, log):
    command("plan", log, *OPTIONS[2:], "--ranks", 2, "--layout", "layout.json")
    outcome = command("plan", log, *OPTIONS[4:], "--ranks", 4, "--layout", "layout.json")
    assert outcome.code == 2
    assert "--ranks must be 2, the replicas of layout.json, or 8, its GPUs, got 4" in outcome.err
