"""Context shards on plan and simulate, in step files as well, and layouts of packs in reports."""

import json

import numpy as np
import pytest
from log_files import write_log
from typed_words import keys

import balancer

ASKED = ("--ranks", 8, "--ranks-per-node", 4, "--batch-per-rank", 4, "--length", "tokens")
PACKS = keys("cut.kind=context_shards", "cut.pack_tokens=6000")
CONTEXT = (*PACKS, *keys("cut.degree=4"))
MASKS = keys("cut.masks={full=1,window256=5}")


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
        (keys("cut.kind=context_shards", "cut.degree=4"), "cut.pack_tokens is missing: Tokens of a pack at most."),
        (
            keys("cut.kind=context_shards", "cut.pack_tokens=100"),
            "cut.degree is missing: How many ranks share each pack of documents.",
        ),
        (
            (*CONTEXT, *keys("cut.degrees=[1,2]")),
            "cut.degrees: there is no such key here, but where cut.kind is sequence_groups",
        ),
        ((*CONTEXT, *keys("cut.masks={mamba=3}")), "mamba"),
        ((*CONTEXT, *keys("cut.sync=pipeline")), "cut.sync must be one of micro_batch, step, got 'pipeline'"),
        ((*PACKS, *keys("cut.degree=3")), "cut.degree = 3 must divide the 8 ranks"),
        ((*CONTEXT, *keys("phase.all.equal_counts=true")), "context_shards cannot be combined with equal_counts"),
    ],
)
def test_bad_input_is_a_line(command, log, options, told):
    found = command("plan", log, *ASKED, *options)
    assert found.code == 2
    assert told in found.err.replace("\n", " "), found.err
