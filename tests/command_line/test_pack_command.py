"""`balancer pack`: what it prints and writes, and how it fails."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets_of import lengths_of, write_log

import balancer
from balancer.problem.limits import CountLimit, Limit

LENGTHS = lengths_of(500)


@pytest.fixture
def run(command, tmp_path):
    write_log(tmp_path / "log.parquet", LENGTHS)
    return lambda *arguments, **more: command("pack", *arguments, **more)


def test_people_are_told_packs_and_proof(run):
    outcome = run("log.parquet", "--tokens", 100, "--out", "packs.parquet")
    packs = balancer.Packs.load("packs.parquet")
    assert (outcome.code, outcome.err) == (0, "")
    proof = "no fewer are possible" if len(packs) == packs.lower_bound else f"at least {packs.lower_bound}"
    assert f"{len(packs)} packs of {LENGTHS.sum():,} tokens {proof}" in outcome.words
    assert f"{int((LENGTHS == 0).sum())} empty row" in outcome.words
    assert "packs written to packs.parquet" in outcome.words
    assert packs.to_arrow().equals(balancer.pack(LENGTHS, 100).to_arrow())


def test_json_is_the_summary(run):
    options = "--tokens", 60, "--over-long", "cut", "--per-step", 4, "--even-cost"
    outcome = run("log.parquet", *options, "--cost", "quadratic:a=100,b=1", "--json")
    found = json.loads(outcome.out)
    packs = balancer.pack(LENGTHS, 60, over_long="cut", per_step=4, even_cost=True, cost="quadratic:a=100,b=1")
    assert {name: found[name] for name in packs.summary()} == packs.summary()
    assert found["settings"] == packs.description["settings"]


def test_steps_and_what_is_over_long_are_told(run):
    over = int((LENGTHS > 60).sum())
    outcome = run("log.parquet", "--tokens", 60, "--over-long", "drop", "--per-step", 4)
    assert f"{over} rows over 60 tokens: left out, {LENGTHS[LENGTHS > 60].sum():,} tokens" in outcome.words
    assert "steps of 4 " in outcome.words
    assert "ranks wait" in outcome.words
    assert f"{over} rows over 60 tokens: in packs of their own" in run(
        "log.parquet", "--tokens", 60, "--over-long", "own").words  # fmt: skip


@pytest.mark.parametrize(("arguments", "code", "said"), [
    (("--tokens", 60), 1, "row 17: its length 73 is over --tokens = 60 by 13 "),
    (("--tokens", 60), 1, "--over-long own gives each a pack of its own, --over-long drop leaves them out, --"),
    (("--tokens", 0), 2, "--tokens must be >= 1, got 0"),
    (("--tokens", 60, "--over-long", "split"), 2, "'--over-long': 'split' is not one of 'error', 'own', 'drop', 'cut'"),
    (("--tokens", 60, "--per-step", 0), 2, "--per-step must be >= 1, got 0"),
    (("--tokens", 60, "--cost", "padded"), 2, "--cost = 'padded' is no such cost"),
    (("--tokens", 60, "--length", "n_token"), 2, "did you mean 'n_tokens'?"),
    (("--tokens", 100, "--limit", "images"), 2, "--limit must be COL[+COL...]=N, such as images=16, got 'images'"),
    (("--tokens", 100, "--limit", "images=3"), 2, "images"),
    (("--tokens", 100, "--max-samples", 0), 2, "--max-samples must be >= 1, got 0"),
    ((), 2, "Missing option '--tokens'"),
])  # fmt: skip
def test_bad_input_is_told_in_a_line(run, arguments, code, said):
    longest = int(np.argmax(LENGTHS > 60))
    said = said.replace("row 17: its length 73", f"row {longest}: its length {LENGTHS[longest]}")
    said = said.replace("by 13", f"by {LENGTHS[longest] - 60}")
    outcome = run("log.parquet", *arguments)
    assert outcome.code == code
    assert said in outcome.err
    assert "Traceback" not in outcome.err


def test_limits_are_options(run):
    images = np.arange(len(LENGTHS)) % 3
    pq.write_table(pa.table({"n_tokens": LENGTHS, "images": images}), "both.parquet")
    options = "--tokens", 100, "--length", "n_tokens", "--limit", "images=4", "--max-samples", 5, "--json"
    found = json.loads(run("both.parquet", *options).out)
    packs = balancer.pack(LENGTHS, 100, limits=[Limit(images, 4), CountLimit(5)])
    assert found["packs"] == len(packs)
    assert found["settings"]["limits"] == ["Limit(amounts='images', most=4)", "CountLimit(most=5)"]


def test_overwrite_is_asked_for_by_its_option(run):
    run("log.parquet", "--tokens", 100, "--out", "packs.parquet")
    outcome = run("log.parquet", "--tokens", 99, "--out", "packs.parquet")
    assert (outcome.code, "--overwrite replaces it" in outcome.err) == (2, True)
    assert run("log.parquet", "--tokens", 99, "--out", "packs.parquet", "--overwrite").code == 0
