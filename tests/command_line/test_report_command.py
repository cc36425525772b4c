"""`balancer report`: every number anew, from the plan's placements and the log's lengths, and no tampered plan."""

import json

import numpy as np
import pytest
from log_files import write_csv
from plan_files import tamper
from typed_words import keys, typed

import balancer

LENGTHS = np.minimum(np.random.default_rng(8).lognormal(5, 1.2, 41), 5000).astype(int).tolist()
SHAPE = ("--ranks", 6, "--ranks-per-node", 3, "--batch-per-rank", 3)


@pytest.fixture
def planned(command, tmp_path):
    """A plan of log.csv, and what `plan --json` said about it."""
    write_csv(tmp_path / "log.csv", LENGTHS)

    def plan(*options, out="plan.parquet"):
        outcome = command("plan", "log.csv", *SHAPE, *options, "--overwrite", "--out", out, "--json")
        assert outcome.code == 0, outcome.err
        return json.loads(outcome.out)

    return plan


@pytest.mark.parametrize(
    "options",
    [
        "--set home=strided --set drop_last=true --set plan.method=karmarkar_karp",
        "--cost padded --set phase.all.equal_counts=true",
        "--set phase.all.max_tokens_per_rank=100000",
    ],
)
def test_report_says_what_plan_said(options, command, planned):
    out = "plan/"
    said = planned(*options.split(), out=out)
    outcome = command("report", out, "--json")
    assert (outcome.code, outcome.err) == (0, "")
    found = json.loads(outcome.out)
    assert found["phases"] == said["phases"]
    assert (found["steps"], found["samples"]) == (said["steps"], said["samples"])


def test_a_bound_that_holds_without_constraints_too_is_in_plan_and_report(command, tmp_path):
    """The search under equal counts proves 108 of these on 8 ranks, a bound on their sums 109."""
    lengths = [3, 76, 72, 84, 17, 8, 86, 2, 54, 8, 29, 48, 42, 40, 2, 0, 12, 0, 67, 52, 64, 25, 61]
    write_csv(tmp_path / "log.csv", lengths)
    arguments = ("plan", "log.csv", *typed("--ranks 8 --batch-per-rank 3 phase.all.equal_counts=true --out p.parquet"))
    said = json.loads(command(*arguments, "--json").out)["phases"]["all"]
    assert said == json.loads(command("report", "p.parquet", "--json").out)["phases"]["all"]
    assert said["imbalance_ratio_best_possible"] == pytest.approx(109 * 8 / sum(lengths))


def test_table(command, planned):
    phase = planned()["phases"]["all"]
    outcome = command("report", "plan.parquet")
    assert (outcome.code, outcome.err) == (0, "")
    assert "plan.parquet: complete, checked" in outcome.words
    assert f"imbalance ratio {phase['imbalance_ratio_before']:.3f}" in outcome.words
    assert "41 samples in 3 steps" in outcome.words


def test_report_copies_no_number(command, planned, tmp_path):
    """A plan is judged by what it places, not by what its description says of the run."""
    worse = planned(*keys("plan.method=lpt", "phase.all.equal_counts=true"))["phases"]["all"]
    better = planned(*keys("plan.method=auto"), out="better.parquet")["phases"]["all"]
    assert worse["imbalance_ratio_after"] > better["imbalance_ratio_after"]
    found = json.loads(command("report", "plan.parquet", "--json").out)["phases"]["all"]
    assert found == worse


def test_log_that_moved(command, planned, tmp_path):
    said = planned()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "log.csv").rename(tmp_path / "elsewhere" / "moved.csv")
    missing = command("report", "plan.parquet", "--json")
    assert (missing.code, missing.out) == (2, "")
    assert "log.csv, is not there; give it as --log" in missing.err
    found = command("report", "plan.parquet", "--log", "elsewhere/moved.csv", "--json")
    assert found.code == 0
    assert json.loads(found.out)["phases"] == said["phases"]


def test_log_beside_the_plan_is_found(command, planned, tmp_path, monkeypatch):
    planned()
    (tmp_path / "both").mkdir()
    for name in ("log.csv", "plan.parquet"):
        (tmp_path / name).rename(tmp_path / "both" / name)
    assert command("report", "both/plan.parquet", "--json").code == 0


def test_another_log_is_refused(command, planned, tmp_path):
    planned()
    write_csv(tmp_path / "other.csv", [*LENGTHS[:-1], LENGTHS[-1] + 1])
    outcome = command("report", "plan.parquet", "--log", "other.csv")
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err == "balancer: plan.parquet: was not made from other.csv: the log's size or SHA-256 differs\n"


def swap_ranks(rows):
    """Two samples of one step change places: all else but sums still holds."""
    other = next(r for r in rows if r["step"] == rows[0]["step"] and r["rank"] != rows[0]["rank"])
    for key in ("rank", "position"):
        rows[0][key], other[key] = other[key], rows[0][key]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (swap_ranks, ["step 0: its table of steps says", ", and its rows "]),
        (lambda rows: rows.pop(20), ["step 1", "sample 20 is not placed"]),
        (lambda rows: rows.pop(), ["step 2", "sample 40 is not placed"]),
        (lambda rows: rows[21].update(sample=20), ["step 1", "sample 21 is not placed"]),
        (lambda rows: rows.insert(5, dict(rows[4])), ["step 0", "placed twice"]),
        (lambda rows: rows.__delitem__(slice(36, None)), ["step 2 is missing"]),
        (lambda rows: rows[7].update(rank=6), ["step 0", "rank_of_sample[7]", "0..5", "6"]),
        (lambda rows: rows.append({**rows[-1], "step": 3}), ["more steps than the log"]),
    ],
    ids=["swap", "drop", "drop last", "duplicate", "row twice", "drop step", "rank", "extra step"],
)
def test_a_tampered_plan_fails(change, words, command, planned, tmp_path):
    planned()
    tamper(tmp_path / "plan.parquet", change)
    outcome = command("report", "plan.parquet")
    assert (outcome.code, outcome.out) == (1, "")
    assert outcome.err.startswith("balancer: plan.parquet: ")
    assert len(outcome.err.strip().splitlines()) == 1
    for word in words:
        assert word in outcome.err


def test_a_plan_that_was_saved_from_python_needs_no_log(command, tmp_path):
    plan = balancer.balance(LENGTHS, 6, 3)
    plan.save(tmp_path / "saved.parquet")
    outcome = command("report", "saved.parquet", "--json")
    assert (outcome.code, outcome.err) == (0, "")
    phase = json.loads(outcome.out)["phases"]["all"]
    assert phase["imbalance_ratio_after"] == pytest.approx(plan.imbalance_ratio)
    assert phase["imbalance_ratio_before"] == pytest.approx(plan.home_imbalance_ratio)
    assert phase["crosses_nodes"] == pytest.approx(plan.inter_node_volume / sum(LENGTHS))


TINY = {
    "model_type": "gemma3_text", "hidden_size": 64, "num_hidden_layers": 6, "num_attention_heads": 4,
    "num_key_value_heads": 1, "head_dim": 16, "intermediate_size": 128, "vocab_size": 1000, "sliding_window": 32,
}  # fmt: skip
TERMS = "attention:a=2132,full=1,window32=5"  # FLOPs in units of 768, three times 2 x 4 x (16 + 16) a pair and layer


@pytest.mark.parametrize(
    ("options", "line", "of_page", "document"),
    [
        (
            "--length llm --cost flops:tiny/config.json",
            f"{TERMS} of tiny/config.json",
            f"cost {TERMS} of tiny/config.json",
            {"cost": {"all": TERMS}, "models": {"all": "tiny/config.json"}},
        ),
        (
            "--set phase.vision.length=vision --set phase.audio.length=vision "
            "--set phase.llm.length=llm --set phase.llm.cost=flops:qwen2-7b",
            "cost: linear (vision, audio), quadratic:a=493184,b=7 of qwen2-7b (llm)",
            "cost quadratic:a=493184,b=7 of qwen2-7b",
            {
                "cost": {"vision": "linear", "audio": "linear", "llm": "quadratic:a=493184,b=7"},
                "models": {"llm": "qwen2-7b"},
            },
        ),
        (
            "--length llm --cost quadratic:a=9,b=1",
            "quadratic:a=9,b=1",
            "cost quadratic:a=9,b=1",
            {"cost": {"all": "quadratic:a=9,b=1"}},
        ),
    ],
)
def test_the_cost_and_its_model_are_named(options, line, of_page, document, command, tmp_path):
    out = "plan/"
    lengths = np.random.default_rng(3).integers(1, 900, (40, 2))
    (tmp_path / "log.csv").write_text("vision,llm\n" + "\n".join(f"{a},{b}" for a, b in lengths))
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny" / "config.json").write_text(json.dumps(TINY))
    shape = "--ranks", 2, "--batch-per-rank", 5
    assert line in command("plan", "log.csv", *shape, *options.split(), "--out", out).words
    assert line in command("report", out, "--html", "page.html").words
    assert of_page in (tmp_path / "page.html").read_text(encoding="utf-8")
    for found in (
        json.loads(command("report", out, "--json").out),
        json.loads(command("plan", "log.csv", *shape, *options.split(), "--json").out),
    ):
        assert {name: found[name] for name in ("cost", "models") if name in found} == document
