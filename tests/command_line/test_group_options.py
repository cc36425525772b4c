"""Sequence groups on plan, simulate and report."""

import json

import pytest
from log_files import write_log
from typed_words import keys, typed

from balancer.cost import module

ASKED = ("--ranks", 4, "--ranks-per-node", 2, "--batch-per-rank", 4, "--length", "tokens")
GROUPS = keys("cut.kind=sequence_groups", "cut.degrees=[1,2,4]")


@pytest.fixture
def log(tmp_path):
    lengths = [900, 30, 20, 40, 50, 60, 70, 80, 10, 20, 30, 40, 50, 60, 70, 80] * 3
    return write_log(tmp_path / "log.parquet", {"tokens": lengths})


def test_plan_shares_long_rows_and_the_file_says_so(command, log):
    whole = json.loads(command("plan", log, *ASKED, "--json").out)["phases"]["all"]
    found = command("plan", log, *ASKED, *GROUPS, "--out", "plan.parquet", "--json")
    shared = json.loads(found.out)["phases"]["all"]
    assert whole["imbalance_ratio_best_possible"] > 2
    assert shared["imbalance_ratio_after"] < 1.2
    assert sum(shared["groups_of_degree"].values()) >= 3
    assert shared["sync"] == "sequence groups"
    report = command("report", "plan.parquet", "--log", log, "--json")
    assert json.loads(report.out)["phases"]["all"]["imbalance_ratio_after"] == shared["imbalance_ratio_after"]


def test_table_says_what_is_assumed(command, log):
    found = command("plan", log, *ASKED, *GROUPS)
    assert "micro-batches (sequence groups)" in found.words
    assert "assumed to lose 5 % of their speed" in found.words
    measured = command("plan", log, *ASKED, *GROUPS, "--cost", "linear:d2=1,d4=3")
    assert "assumed" not in measured.words


def test_simulate_takes_the_exchange_from_the_cluster(command, log):
    asked = [option for option in ASKED if option not in ("--ranks-per-node", 2)]
    found = command("simulate", log, *asked, *GROUPS, "--cluster", "h100", "--model", "qwen2-7b")
    assert found.code == 0
    assert "d2=" in found.out
    wide = keys("cut.kind=sequence_groups", "cut.degrees=[1,8]")
    refused = command("simulate", log, *asked, *wide, "--cluster", "h100", "--model", "qwen2-7b")
    assert (refused.code, "28 attention heads" in refused.err) == (2, True)
    ring = (*wide, *keys("cut.exchange=ring"))
    assert command("simulate", log, *asked, *ring, "--cluster", "h100", "--model", "qwen2-7b").code == 0


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ((*GROUPS, *keys("cut.count=fewest")), "cut.count must be a whole number >= 1, got 'fewest'"),
        ((*GROUPS, *keys("phase.all.equal_counts=true")), "sequence_groups cannot be combined with equal_counts"),
        (
            (*GROUPS, *keys("cut.tokens_per_rank=100")),
            "its size 900 is over 400, cut.tokens_per_rank = 100 on each of 4",
        ),
        (
            (*GROUPS, *keys("phase.all.max_tokens_per_rank=100")),
            "max_tokens_per_rank is a cap on a rank's step; sequence_groups have a cap of their own",
        ),
        ((*GROUPS, "--cost", "padded"), "cost 'padded'"),
        ((*GROUPS, *keys("plan.method=lpt")), "makes no sequence groups"),
    ],
)
def test_refused(command, log, options, told):
    found = command("plan", log, *ASKED, *options)
    assert found.code in (1, 2)
    assert told in found.err
    assert len(found.err.splitlines()) <= 2


VISION = keys("phase.vision.length=image", "phase.llm.length=tokens", "phase.llm.own=tokens")


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (keys("phase.vision.equal_counts=true"), "use encoders='step'"),
        (keys("phase.vision.max_tokens_per_rank=90"), "use encoders='step'"),
        (
            keys("phase.llm.every_rank_nonempty=true"),
            "phase 'llm': sequence_groups cannot be combined with every_rank_nonempty",
        ),
    ],
)
def test_refused_in_phases(command, tmp_path, options, told):
    log = write_log(tmp_path / "log.parquet", {"tokens": [9] * 16, "image": [0] * 16})
    found = command("plan", log, *ASKED[:-2], *VISION, *GROUPS, *options)
    assert found.code == 2
    assert told in found.err


def test_extremes(command, log):
    assert command("plan", log, *ASKED, *GROUPS, *keys("plan.eps=0.9999")).code == 0
    huge = write_log(log, {"tokens": [2**59] + [1] * 15})
    assert "ranks * (sum of lengths) must be below 2**60" in command("plan", huge, *ASKED, *GROUPS).err


ENCODER = typed("--ranks 4 --ranks-per-node 4 --batch-per-rank 4 phase.vision.length=tokens phase.llm.length=text")
SHARED = keys("phase.vision.sequence_parallel=4")


def test_an_encoder_shares_its_long_items(command, tmp_path):
    lengths = [900, 30, 20, 40, 50, 60, 70, 80, 10, 20, 30, 40, 50, 60, 70, 80] * 2
    log = write_log(tmp_path / "log.parquet", {"tokens": lengths, "text": [1000] * 32})
    found = json.loads(command("plan", log, *ENCODER, *SHARED, "--out", "plan.parquet", "--json").out)["phases"][
        "vision"
    ]
    assert found["imbalance_ratio_after"] < 1.2
    assert found["shared_items"] >= 2
    assert 0.5 < found["shared_fraction"] < 1
    report = command("report", "plan.parquet", "--log", log, "--json")
    assert json.loads(report.out)["phases"]["vision"] == found
    printed = command("plan", log, *ENCODER, *SHARED).words
    assert "shared items, of all elements" in printed
    assert "In 2 of 2 steps ranks take over 0.2 % more than the bound: eps is of the rank-time of groups" in printed
    assert "eps is of" not in command("plan", log, *ENCODER, *SHARED, *keys("plan.placement=rearrange")).words
    models = ("--cluster", "h100", *keys("phase.vision.model=qwen2-vl-vit", "phase.llm.model=qwen2-7b"))
    simulated = command("simulate", log, *ENCODER[:2], *ENCODER[4:], *SHARED, *models)
    assert (simulated.code, "orchestrated" in simulated.words) == (0, True)
    for option, told in {
        "llm.sequence_parallel=4": "phase 'llm': sequence_parallel is for encoders",
        "vision.sequence_parallel=1": "phase.vision.sequence_parallel must be a whole number >= 2, got 1",
        "vision.sequence_parallel=3": "phase 'vision': sequence_parallel must divide the 4 ranks and the 4 of a node",
    }.items():
        refused = command("plan", log, *ENCODER, *keys(f"phase.{option}"))
        assert (refused.code, told in refused.err) == (2, True), refused.err


def test_heads_that_do_not_divide_are_padded_in_a_model_file(command, tmp_path):
    log = write_log(tmp_path / "log.parquet", {"tokens": [900, *[30] * 15], "text": [1000] * 16})
    asked = (
        "simulate",
        log,
        *ENCODER[:2],
        *ENCODER[4:],
        *SHARED,
        "--cluster",
        "h100",
        *keys("phase.llm.model=qwen2-7b"),
    )
    refused = command(*asked, *keys("phase.vision.model=internvit-6b"))
    assert refused.code == 2
    assert "take 5, 25, or give a model padded to 28 heads of 128 (in config.json num_attention_heads" in refused.err
    shape = {"model_type": "intern_vit_6b", "hidden_size": 3200, "num_hidden_layers": 45, "intermediate_size": 12800}
    shape |= {"patch_size": 14, "image_size": 448, "num_attention_heads": 28, "head_dim": 128, "norm_type": "rms_norm"}
    (tmp_path / "padded.json").write_text(json.dumps(shape))
    assert command(*asked, *keys("phase.vision.model=padded.json")).code == 0
    assert 1.03 < module(str(tmp_path / "padded.json")).flops().a / module("internvit-6b").flops().a < 1.05
