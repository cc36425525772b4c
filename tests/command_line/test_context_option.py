"""--context on plan and simulate, [context_shards] in step files, and layouts of packs in reports."""

import json

import numpy as np
import pytest
from log_files import write_log

import balancer

ASKED = ("--ranks", 8, "--ranks-per-node", 4, "--batch-per-rank", 4, "--length", "tokens")
CONTEXT = ("--context", 4, "--pack-tokens", 6000)
MASKS = ("--masks", "full=1,window256=5")
STEP = """
ranks = 8
ranks_per_node = 4
batch_per_rank = 4
[[phase]]
length = "tokens"
[context_shards]
degree = 4
pack_tokens = 6000
masks = {full = 1, window256 = 5}
block = 64
sync = "step"
"""


@pytest.fixture
def log(tmp_path):
    lengths = np.minimum(np.random.default_rng(1).lognormal(5.5, 1.3, 32 * 3).astype(int) + 1, 6000)
    return write_log(tmp_path / "log.parquet", {"tokens": lengths.tolist()})


def test_the_plan_is_that_of_the_library(command, log):
    found = json.loads(command("plan", log, *ASKED, *CONTEXT, *MASKS, "--out", "plan.parquet", "--json").out)
    assert found["phases"]["all"]["sync"] == "context shards"
    cut = balancer.ContextShards(4, 6000, masks={"full": 1, "window256": 5})
    lengths = balancer.load_plan("plan.parquet", step=1).lengths
    plan = balancer.balance(lengths, 8, ranks_per_node=4, home_rank=np.arange(32) // 4, cut=cut)
    assert balancer.load_plan("plan.parquet", step=1).digest() == plan.digest()
    assert command("plan", log, *ASKED, *CONTEXT, "--out", "other.parquet").out.count("pieces_on_rank") == 1


def test_step_file_and_options_say_the_same(command, log, tmp_path):
    (tmp_path / "step.toml").write_text(STEP)
    assert command("plan", log, "--step", "step.toml", "--out", "a.parquet").code == 0
    typed = (*ASKED, *CONTEXT, *MASKS, "--context-block", 64, "--sync", "step")
    assert command("plan", log, *typed, "--out", "b.parquet").code == 0
    assert balancer.load_plan("a.parquet", step=2).digest() == balancer.load_plan("b.parquet", step=2).digest()
    wrong = command("plan", log, "--step", "step.toml", "--pack-tokens", 10)
    assert (wrong.code, "more than --pack-tokens = 10" in wrong.err) == (1, True)
    (tmp_path / "step.toml").write_text(STEP.replace("pack_tokens = 6000", "pack_tokens = 10"))
    wrong = command("plan", log, "--step", "step.toml")
    assert "step.toml: [context_shards] pack_tokens" in wrong.err


def test_report_sets_the_plan_beside_what_frameworks_ship(command, log):
    command("plan", log, *ASKED, *CONTEXT, *MASKS, "--out", "plan.parquet")
    found = json.loads(command("report", "plan.parquet", "--json").out)["layouts_of_packs"]
    assert list(found) == ["given", "head_tail", "per_document", "round_robin"]
    assert found["given"]["work_ratio"] < found["head_tail"]["work_ratio"]
    assert found["given"]["received"] < found["per_document"]["received"]
    words = command("report", "plan.parquet").words
    assert "head-tail of each document" in words
    assert f"{found['given']['received']:.3f}" in words
    command("plan", log, *ASKED, "--out", "whole.parquet")
    assert "layouts_of_packs" not in json.loads(command("report", "whole.parquet", "--json").out)


def test_a_document_over_a_replicas_share_is_told(command, tmp_path):
    log = write_log(tmp_path / "log.parquet", {"tokens": [4000] + [50] * 31})
    words = command("plan", log, *ASKED, *CONTEXT).words
    assert "costs more than a replica's fair share; replicas of more ranks mend that" in words


def test_simulate_takes_it(command, log):
    asked = ("--ranks", 8, "--batch-per-rank", 4, "--length", "tokens")
    assert command("simulate", log, *asked, *CONTEXT, "--cluster", "h100", "--model", "qwen2-7b").code == 0


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--context", 4), "--context needs --pack-tokens, the most tokens of a pack"),
        (("--pack-tokens", 100), "--pack-tokens needs --context, how many ranks share each pack of documents"),
        (("--masks", "full=1"), "--masks needs --context"),
        ((*CONTEXT, "--group-degrees", "1,2"), "--group-degrees cannot be combined with --context"),
        ((*CONTEXT, "--micro-batch-tokens", 50), "--micro-batch-tokens cannot be combined with --context"),
        ((*CONTEXT, "--over-long", "own"), "--over-long cannot be combined with --context"),
        ((*CONTEXT, "--stages", "2"), "--stages cannot be combined with --context"),
        ((*CONTEXT, "--micro-batches", "fewest"), "--micro-batches must be a whole number with --context"),
        ((*CONTEXT, "--masks", "full"), "--masks must be MASK=LAYERS,..., such as full=1,window1024=5, got 'full'"),
        ((*CONTEXT, "--masks", "full=1,full=2"), "--masks names 'full' twice"),
        ((*CONTEXT, "--masks", "mamba=3"), "mamba"),
        ((*CONTEXT, "--sync", "pipeline"), "--sync must be one of 'micro_batch', 'step'"),
        ((*CONTEXT[2:], "--context", 3), "--context = 3 must divide the 8 ranks"),
        ((*CONTEXT[2:], "--context", 0), "--context must be >= 1"),
        ((*CONTEXT, "--equal-counts"), "--context cannot be combined with --equal-counts"),
    ],
)
def test_bad_input_is_a_line(command, log, options, told):
    found = command("plan", log, *ASKED, *options)
    assert found.code == 2
    assert told in found.err.replace("\n", " "), found.err
