"""`balancer plan`: the same plan whatever the log's format, and numbers that anyone can recompute."""

import hashlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import oracles
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from log_files import WRITERS, plan_rows, write_csv, write_log
from plan_files import description_of, header_of, sealed
from typed_words import keys

import balancer

ROOT = Path(__file__).resolve().parents[2]
RNG = np.random.default_rng(5)
TOKENS = np.minimum(RNG.lognormal(5, 1.2, 50), 5000).astype(int).tolist()
IMAGES = (RNG.integers(0, 3, 50) * 256).tolist()
RANKS, PER_NODE, BATCH = 6, 2, 3
SHAPE = ("--ranks", RANKS, "--ranks-per-node", PER_NODE, "--batch-per-rank", BATCH)

PHASE_KEYS = {
    "imbalance_ratio_before",
    "imbalance_ratio_after",
    "waiting_before",
    "waiting_after",
    "gap_mean",
    "gap_largest",
    "steps_proven_optimal",
    "crosses_nodes",
}


def placements_of(path):
    return [(r["step"], r["sample"], r["rank"], r["slot"], r["position"]) for r in plan_rows(path)]


def document_of(outcome):
    assert outcome.code == 0, outcome.err
    assert outcome.err == ""
    return json.loads(outcome.out)  # fails on anything before or after the one document


def recomputed(path, lengths, *, home="contiguous", cost=lambda length: length, ranks=RANKS, per_node=PER_NODE):
    """Every number of the report from the rows of the plan file and the lengths, in loops."""
    per_step = ranks * BATCH
    steps = [lengths[i : i + per_step] for i in range(0, len(lengths), per_step)]
    rank_of = {row["sample"]: row["rank"] for row in plan_rows(path)}
    before = after = mean = bound = volume = crossing = first = 0
    gaps = []
    for batch in steps[: max(row["step"] for row in plan_rows(path)) + 1]:
        if len(batch) < per_step:
            continue  # the last step is short, and judged apart
        homes = [i // BATCH if home == "contiguous" else i % ranks for i in range(len(batch))]
        targets = [rank_of[first + i] for i in range(len(batch))]
        costs = [cost(length) for length in batch]
        makespan = max(oracles.loads_of(costs, targets, ranks))
        least = oracles.lower_bound(costs, ranks)[0]
        before += max(oracles.loads_of(costs, homes, ranks))
        after += makespan
        bound += least
        mean += sum(costs) / ranks
        gaps.append((makespan - least) / least)
        volume += sum(batch)
        crossing += sum(x for x, h, t in zip(batch, homes, targets, strict=True) if h // per_node != t // per_node)
        first += len(batch)
    return {
        "imbalance_ratio_before": before / mean,
        "imbalance_ratio_after": after / mean,
        "imbalance_ratio_best_possible": bound / mean,
        "waiting_before": 1 - mean / before,
        "waiting_after": 1 - mean / after,
        "gap_mean": sum(gaps) / len(gaps),
        "gap_largest": max(gaps),
        "steps_proven_optimal": gaps.count(0),
        "crosses_nodes": crossing / volume,
    }


def assert_numbers(document, expected):
    phase = document["phases"]["all"]
    for name, value in expected.items():
        assert phase[name] == pytest.approx(value, rel=1e-9, abs=1e-12), name


# --- formats ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", WRITERS)
def test_every_format_gives_the_same_plan(name, command, tmp_path):
    write_log(tmp_path / name, {"tokens": TOKENS, "images": IMAGES, "note": ["x"] * len(TOKENS)})
    sums = [t + i for t, i in zip(TOKENS, IMAGES, strict=True)]
    reference = write_csv(tmp_path / "reference.csv", sums)
    assert command("plan", name, *SHAPE, "--length", "tokens+images", "--out", "plan.parquet").code == 0
    assert command("plan", reference, *SHAPE, "--out", "reference.parquet").code == 0
    assert placements_of("plan.parquet") == placements_of("reference.parquet")
    assert description_of("plan.parquet")["digest"] == description_of("reference.parquet")["digest"]
    assert description_of("plan.parquet")["sources"][0]["unit"] == {"all": "as recorded"}


# --- numbers ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def log(tmp_path):
    return write_csv(tmp_path / "log.csv", TOKENS)


@pytest.mark.parametrize(
    ("home", "cost", "work"),
    [("strided", "linear:a=7", lambda n: 7 * n), ("contiguous", "quadratic:a=0,b=1", lambda n: n * n)],
)
def test_json_against_loops_over_the_plan_file(home, cost, work, command, log):
    outcome = command("plan", log, *SHAPE, *keys(f"home={home}"), "--cost", cost, "--out", "plan.parquet", "--json")
    document = document_of(outcome)
    assert set(document) >= {"steps", "samples", "runtime_s", "planned_samples_per_second", "phases"}
    assert set(document["phases"]["all"]) >= PHASE_KEYS
    assert (document["steps"], document["samples"]) == (3, 50)  # 18 + 18 + 14: the last step is short
    assert document["planned_samples_per_second"] == pytest.approx(50 / document["runtime_s"])
    assert_numbers(document, recomputed("plan.parquet", TOKENS, home=home, cost=work))


def test_convolution_costs(command, log):
    """Planned, written, and replayed by `report` from the files alone, with every number recomputed."""
    cost = "convolution:a=20,b=1,c=300,p=1"
    document = document_of(command("plan", log, *SHAPE, "--cost", cost, "--out", "plan.parquet", "--json"))
    makespans = means = 0
    for step in range(2):  # full ones: the third is short
        rows = [row for row in plan_rows("plan.parquet") if row["step"] == step]
        lengths, ranks = [TOKENS[row["sample"]] for row in rows], [row["rank"] for row in rows]
        packed = oracles.loads_of([20 * length + length * length for length in lengths], ranks, RANKS)
        padded = oracles.padded_loads_of([300 * length for length in lengths], ranks, RANKS)
        loads = [a + b for a, b in zip(packed, padded, strict=True)]
        makespans += max(loads)
        means += sum(loads) / RANKS
    assert document["phases"]["all"]["imbalance_ratio_after"] == pytest.approx(makespans / means)
    report = document_of(command("report", "plan.parquet", "--json"))
    for number in ("imbalance_ratio_after", "gap_worst", "steps_proven_optimal"):
        assert report["phases"]["all"].get(number) == document["phases"]["all"].get(number)
    assert description_of("plan.parquet")["phases"][0]["cost"] == cost


def test_the_table_has_the_json_numbers(command, log):
    phase = document_of(command("plan", log, *SHAPE, "--json"))["phases"]["all"]
    table = command("plan", log, *SHAPE)
    assert (table.code, table.err) == (0, "")
    assert f"imbalance ratio {phase['imbalance_ratio_before']:.3f}" in table.words
    assert f"waiting {100 * phase['waiting_before']:.1f} %" in table.words
    assert f"steps within 0.2 % (eps, stop_at) {phase['steps_within_eps']} of 2" in table.words
    assert f"crosses nodes {100 * phase['crosses_nodes']:.1f} %" in table.words
    assert "50 samples in 3 steps" in table.words
    assert "log.csv" in table.words


# --- legal extremes --------------------------------------------------------------------------------------------------


def test_more_ranks_than_samples(command, tmp_path):
    write_csv(tmp_path / "log.csv", [5, 3])
    document = document_of(
        command("plan", "log.csv", "--ranks", 8, "--batch-per-rank", 4, "--out", "plan.parquet", "--json")
    )
    assert (document["steps"], document["samples"]) == (1, 2)
    assert sorted(row["rank"] for row in plan_rows("plan.parquet")) == [0, 1]


def test_all_lengths_zero(command, tmp_path):
    write_csv(tmp_path / "log.csv", [0] * 7)
    for cost in ("linear", "quadratic:a=1,b=1", "padded"):
        document = document_of(command("plan", "log.csv", *SHAPE, "--cost", cost, "--json"))
        phase = document["phases"]["all"]
        assert phase["imbalance_ratio_before"] == phase["imbalance_ratio_after"] == 1.0
        assert phase["waiting_before"] == phase["waiting_after"] == phase["crosses_nodes"] == 0.0
    outcome = command("plan", "log.csv", *SHAPE)
    assert outcome.code == 0
    assert "All lengths are 0, so there is nothing to balance" in outcome.words


def test_the_sample_that_caps_the_plan_is_named(command, tmp_path):
    lengths = [10] * 18 + [10] * 7 + [4321] + [10] * 10
    write_csv(tmp_path / "log.csv", lengths)
    capping = document_of(command("plan", "log.csv", *SHAPE, "--json"))["phases"]["all"]["capping_sample"]
    assert (capping["step"], capping["row"], capping["length"]) == (1, 25, 4321)
    assert capping["imbalance_ratio_best_possible"] == pytest.approx(4321 * RANKS / (4321 + 170))
    words = command("plan", "log.csv", *SHAPE).words
    assert "In 1 of 2 steps one sample alone costs more than a rank's fair share" in words
    assert "row 25 (from 0), length 4,321, in step 1" in words


# --- the plan file ---------------------------------------------------------------------------------------------------


def test_plan_file_schema_and_rows(command, log):
    assert command("plan", log, *SHAPE, "--out", "plan.parquet").code == 0
    schema = pq.read_schema("plan.parquet")
    assert [(field.name, field.type) for field in schema] == [
        ("step", pa.int64()),
        ("phase", pa.string()),
        ("sample", pa.int64()),
        ("rank", pa.int32()),
        ("slot", pa.int32()),
        ("position", pa.int32()),
    ]
    rows = plan_rows("plan.parquet")
    assert [row["sample"] for row in rows] == list(range(50))
    assert [row["step"] for row in rows] == [i // 18 for i in range(50)]
    assert {row["phase"] for row in rows} == {"all"}
    assert {row["slot"] for row in rows} == {0}
    for step in range(3):
        for rank in range(RANKS):
            positions = [row["position"] for row in rows if (row["step"], row["rank"]) == (step, rank)]
            assert positions == list(range(len(positions)))


def test_plan_file_holds_what_balance_plans(command, log):
    assert command("plan", log, *SHAPE, "--out", "plan.parquet").code == 0
    homes = [i // BATCH for i in range(14)]
    plan = balancer.balance(TOKENS[36:], RANKS, PER_NODE, home_rank=homes)
    assert [row["rank"] for row in plan_rows("plan.parquet") if row["step"] == 2] == plan.rank_of_sample.tolist()
    assert balancer.load_plan("plan.parquet", step=2) == plan


def test_description(command, log):
    options = (
        "--cost",
        "quadratic:b=1,a=24576",
        *keys("home=strided", "phase.all.equal_counts=true", "phase.all.max_tokens_per_rank=99999"),
    )
    assert command("plan", log, *SHAPE, *options, *keys("plan.time_budget=0.02"), "--out", "plan.parquet").code == 0
    header = header_of("plan.parquet")
    assert header == sealed(header)
    found, _, _ = (header.pop(name) for name in ("description", "description_sha256", "beside_sha256"))
    assert header.pop("row_groups") == [[0, 2]]
    del header["table_of_steps"]
    assert header == {"format": "balancer-plan", "version": 4}
    digest = found.pop("digest")
    assert len(digest) == 64
    assert found["sources"][0].pop("sha256") == hashlib.sha256(Path("log.csv").read_bytes()).hexdigest()
    assert Path(found["sources"][0].pop("file")).name == "log.csv"
    assert found == {
        "topology": {"node_sizes": [2, 2, 2]},
        "phases": [
            {
                "name": "all",
                "length": "tokens",
                "cost": "quadratic:a=24576,b=1",
                "equal_counts": True,
                "max_tokens_per_rank": 99999,
            }
        ],
        "settings": {"time_budget": 0.02},
        "batch_per_rank": 3,
        "home": "strided",
        "drop_last": False,
        "sources": [{"format": "csv", "unit": {"all": "as recorded"}, "size": Path("log.csv").stat().st_size}],
        "rows": 50,
        "steps": 3,
        "samples": 50,
        "producer": balancer.__version__,
    }


def test_folder_form_holds_the_same_plan(command, log, tmp_path):
    out = "existing"
    (tmp_path / out).mkdir()
    assert command("plan", log, *SHAPE, "--out", "plan.parquet").code == 0
    assert command("plan", log, *SHAPE, "--out", out).code == 0
    parts = sorted((tmp_path / out).glob("*.parquet"))
    assert sorted(path.name for path in (tmp_path / out).iterdir()) == [part.name for part in parts]
    assert description_of(tmp_path / out) == description_of("plan.parquet") | {"part": 0, "first_step": 0}
    assert [row for part in parts for row in placements_of(part)] == placements_of("plan.parquet")


def test_the_message_names_the_file(command, log):
    lines = command("plan", log, *SHAPE, "--out", "plan.parquet").out.splitlines()
    assert lines[lines.index("plan written to plan.parquet") + 2] == (
        "  balancer report plan.parquet --html plan.html"  # what to do next can be pasted
    )
    assert "PlannedBatchSampler('plan.parquet', rank)" in lines[-1]


def test_the_log_is_never_overwritten_by_its_plan(command, log):
    before = log.read_bytes()
    for out in ("log.csv", "./log.csv", log):
        outcome = command("plan", "log.csv", *SHAPE, "--out", out)
        assert log.read_bytes() == before
        assert outcome.code == 2
        assert "log.csv" in outcome.err


# --- the same everywhere ---------------------------------------------------------------------------------------------


def balancer_process(*arguments, cwd, stdin="", **environment):
    return subprocess.run(
        [sys.executable, "-c", "from balancer.cli.main import main; main()", *map(str, arguments)],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        input=stdin,
        capture_output=True,
        text=True,
        check=False,
    )


def test_two_processes_write_the_same_file(command, log, tmp_path):
    assert command("plan", "log.csv", *SHAPE, "--out", "here.parquet").code == 0
    words = ("plan", "log.csv", *SHAPE, "--out", "there.parquet", "--json")
    done = balancer_process(*words, cwd=tmp_path, PYTHONHASHSEED="77")
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["samples"] == 50  # one document, and nothing else
    assert (tmp_path / "there.parquet").read_bytes() == (tmp_path / "here.parquet").read_bytes()


def test_version(command):
    outcome = command("--version")
    assert (outcome.code, outcome.out, outcome.err) == (0, f"balancer {balancer.__version__}\n", "")


@pytest.mark.parametrize(("name", "most"), [("plan", 50), ("report", 30), ("advise", 30), ("configure", 50)])
def test_help_fits_a_screen(name, most, command):
    assert len(command(name, "--help").out.splitlines()) <= most


def test_no_number_is_cut_on_a_narrow_terminal(command, log, monkeypatch):
    monkeypatch.setenv("COLUMNS", "30")
    out = command("plan", log, *SHAPE).out
    assert "imbalance ratio" in out
    assert "before" in out
    assert "best possible" in out
    assert "…" not in out


def test_progress_beside_json_is_lines_on_standard_error(command, log, monkeypatch):
    monkeypatch.setattr("balancer.cli.run.LINE_AFTER_S", 0.0)
    outcome = command("plan", log, *SHAPE, "--json")
    of, pace = r"balancer: (\d+)(?: of 50)? samples, (\d+) steps?", r", [\d,]+ samples/s(?:, \d+:\d\d left)?"
    lines = [re.fullmatch(of + pace, line).groups() for line in outcome.err.splitlines()]
    assert lines == [("18", "1"), ("36", "2"), ("50", "2")]
    assert json.loads(outcome.out)["samples"] == 50


@pytest.mark.parametrize(
    ("words", "rule"),
    [
        (["--jobs", "2", "--out", "plan.parquet"], "one file has no parts for several processes"),
        (["--jobs", "99999999999999999999"], "--jobs must be <= 2147483647, got 99999999999999999999"),
        (["--engine", "spark"], "'--engine': 'spark' is not one of 'processes', 'ray'"),
        (["--engine", "ray", "--jobs", "2"], "--jobs is for --engine processes"),
    ],
)
def test_who_plans_and_where_must_go_together(words, rule, command, log):
    outcome = command("plan", log, *SHAPE, *words)
    assert outcome.code == 2
    assert rule in outcome.err
    assert outcome.err.count("\n") == 1 + ("try: balancer plan --help" in outcome.err)


def test_a_folder_is_planned_again_from_what_is_there(command, log, tmp_path):
    assert command("plan", log, *SHAPE, "--out", "parts/").code == 0
    before = {file.name: file.read_bytes() for file in (tmp_path / "parts").iterdir()}
    outcome = command("plan", log, *SHAPE, "--out", "parts")
    assert outcome.code == 0
    assert re.search(r"50 samples in 3 steps, planned in \S+ s; all parts were there already", outcome.words)
    assert (
        json.loads(command("plan", log, *SHAPE, "--out", "parts", "--json").out)["planned_samples_per_second"] is None
    )
    assert {file.name: file.read_bytes() for file in (tmp_path / "parts").iterdir()} == before
    outcome = command("plan", log, *SHAPE, *keys("drop_last=true"), "--out", "parts/")
    assert outcome.code == 2
    assert "parts/ holds the plan of another request (drop_last is false there, and true here)" in outcome.err


def test_pages_are_made_by_one_process(command, log):
    assert command("plan", log, *SHAPE, "--out", "plan.parquet").code == 0
    outcome = command("report", "plan.parquet", "--html", "page.html", "--jobs", "2")
    assert outcome.code == 2
    assert "--html and --measured look at every step, which one process does" in outcome.err
