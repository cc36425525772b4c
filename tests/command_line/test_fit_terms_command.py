"""``balancer fit --areas``: tables of length and milliseconds, some rows of them, and what is printed."""

import json
from pathlib import Path

import pytest

from balancer.cost import parse_cost

TIMES = Path(__file__).parents[2] / "data" / "attention_h100_dev.parquet"


@pytest.mark.parametrize(("context", "heads", "error"), [(1, 1, 0.05), (1, 4, 0.05), (8, 1, 0.07), (8, 4, 0.06)])
def test_published_times_of_attention(command, context, heads, error):
    rows = ["--where", f"context_shards={context}", "--where", f"tensor_shards={heads}"]
    found = json.loads(command("fit", str(TIMES), "--areas", "full", *rows, "--json").out)
    assert found["steps"] == 11
    assert found["held_out_error"] < error
    assert found["full_s"] > 0
    assert parse_cost(found["cost"]).areas


def test_a_table(command):
    told = command("fit", str(TIMES), "--areas", "full,bidirectional", "--where", "context_shards=1", "--where",
                   "tensor_shards=1").out  # fmt: skip
    assert "seconds = c0 + a + full" in told
    assert "bidirectional cannot be told apart from c0, a, full" in told
    assert "--cost attention:a=" in told


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--areas", "full,full"], "'full' twice"),
        (["--areas", "wide"], "areas must be named full"),
        (["--where", "context_shards"], "--where must be COLUMN=VALUE, got 'context_shards'"),
        (["--where", "colour=1"], "colour"),
        (["--areas", "full", "--where", "context_shards=9"], "needs at least 10 steps"),
    ],
)
def test_what_is_refused(command, arguments, words):
    outcome = command("fit", str(TIMES), *arguments)
    assert outcome.code == 2
    assert words in outcome.err
    assert len(outcome.err.splitlines()) == 1
