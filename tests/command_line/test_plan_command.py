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
from log_files import WRITERS, plan_rows, write_csv, write_log, write_manifest
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


@pytest.mark.parametrize("name", WRITERS)
def test_the_only_integer_column_is_the_length(name, command, tmp_path):
    write_log(tmp_path / name, {"note": ["x"] * len(TOKENS), "tokens": TOKENS})
    document = document_of(command("plan", name, *SHAPE, "--json"))
    assert document["samples"] == len(TOKENS)


def test_plain_npy(command, tmp_path):
    np.save(tmp_path / "log.npy", np.array(TOKENS))
    write_csv(tmp_path / "log.csv", TOKENS)
    for log in ("log.npy", "log.csv"):
        assert command("plan", log, *SHAPE, "--out", f"{log}.parquet").code == 0
    assert placements_of("log.npy.parquet") == placements_of("log.csv.parquet")


def test_speech_manifest_in_frames(command, tmp_path):
    write_manifest(tmp_path / "train.json", [length / 100 for length in TOKENS])
    write_csv(tmp_path / "log.csv", TOKENS)
    for log in ("train.json", "log.csv"):
        assert command("plan", log, *SHAPE, "--out", f"{log}.parquet").code == 0
    assert placements_of("train.json.parquet") == placements_of("log.csv.parquet")
    (source,) = description_of("train.json.parquet")["sources"]
    assert (source["format"], source["unit"]) == ("jsonl", {"all": "frames of 10 ms: ceil(100 * duration)"})


# --- numbers ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def log(tmp_path):
    return write_csv(tmp_path / "log.csv", TOKENS)


@pytest.mark.parametrize("home", ["contiguous", "strided"])
@pytest.mark.parametrize(
    ("cost", "work"),
    [
        ("linear", lambda n: n),
        ("linear:a=7", lambda n: 7 * n),
        ("quadratic:a=24576,b=1", lambda n: 24576 * n + n * n),
        ("quadratic:a=0,b=1", lambda n: n * n),
    ],
)
def test_json_against_loops_over_the_plan_file(home, cost, work, command, log):
    outcome = command("plan", log, *SHAPE, *keys(f"home={home}"), "--cost", cost, "--out", "plan.parquet", "--json")
    document = document_of(outcome)
    assert set(document) >= {"steps", "samples", "runtime_s", "planned_samples_per_second", "phases"}
    assert set(document["phases"]["all"]) >= PHASE_KEYS
    assert (document["steps"], document["samples"]) == (3, 50)  # 18 + 18 + 14: the last step is short
    assert document["planned_samples_per_second"] == pytest.approx(50 / document["runtime_s"])
    assert_numbers(document, recomputed("plan.parquet", TOKENS, home=home, cost=work))


@pytest.mark.parametrize("method", ["lpt", "karmarkar_karp"])
def test_every_method_reports_its_own_plan(method, command, log):
    document = document_of(
        command("plan", log, *SHAPE, *keys(f"plan.method={method}"), "--out", "plan.parquet", "--json")
    )
    assert_numbers(document, recomputed("plan.parquet", TOKENS))
    assert description_of("plan.parquet")["settings"]["method"] == method


def test_padded_costs(command, log):
    document = document_of(command("plan", log, *SHAPE, "--cost", "padded", "--out", "plan.parquet", "--json"))
    makespans = means = 0
    for step in range(2):  # full ones: the third is short
        rows = [row for row in plan_rows("plan.parquet") if row["step"] == step]
        lengths = [TOKENS[row["sample"]] for row in rows]
        loads = oracles.padded_loads_of(lengths, [row["rank"] for row in rows], RANKS)
        makespans += max(loads)
        means += sum(loads) / RANKS
    phase = document["phases"]["all"]
    assert phase["imbalance_ratio_after"] == pytest.approx(makespans / means)
    assert phase["steps_proven_optimal"] == 2


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


def test_equal_counts(command, log):
    assert command("plan", *keys("phase.all.equal_counts=true"), log, *SHAPE, "--out", "plan.parquet").code == 0
    for step, size in enumerate((18, 18, 14)):
        counts = oracles.counts_of([row["rank"] for row in plan_rows("plan.parquet") if row["step"] == step], RANKS)
        assert sum(counts) == size
        assert max(counts) - min(counts) <= 1


def test_drop_last(command, log):
    document = document_of(command("plan", log, *SHAPE, *keys("drop_last=true"), "--out", "plan.parquet", "--json"))
    assert (document["steps"], document["samples"]) == (2, 36)
    assert len(plan_rows("plan.parquet")) == 36
    assert_numbers(document, recomputed("plan.parquet", TOKENS[:36]))


def test_token_cap_is_kept(command, tmp_path):
    """By the square, one long sample weighs as much as all the short ones, which are three quarters of the tokens."""
    lengths = [100] + [10] * 31
    write_csv(tmp_path / "log.csv", lengths)
    ratios = []
    for options, kept in (((), False), (keys("phase.all.max_tokens_per_rank=210"), True)):
        shape = ("--ranks", 2, "--batch-per-rank", 16, "--cost", "quadratic:a=0,b=1")
        document = document_of(command("plan", "log.csv", *shape, *options, "--out", f"{kept}.parquet", "--json"))
        tokens = oracles.loads_of(lengths, [row["rank"] for row in plan_rows(f"{kept}.parquet")], 2)
        assert (max(tokens) <= 210) == kept
        ratios.append(document["phases"]["all"]["imbalance_ratio_after"])
    assert ratios[0] < ratios[1]


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


def test_no_sample_caps_an_even_plan(command, tmp_path):
    write_csv(tmp_path / "log.csv", [10] * 36)
    assert document_of(command("plan", "log.csv", *SHAPE, "--json"))["phases"]["all"]["capping_sample"] is None
    assert "fair share" not in command("plan", "log.csv", *SHAPE).words


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


@pytest.mark.parametrize("out", ["folder/", "existing"])
def test_folder_form_holds_the_same_plan(out, command, log, tmp_path):
    (tmp_path / "existing").mkdir()
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
    for seed in ("0", "77"):
        done = balancer_process("plan", "log.csv", *SHAPE, "--out", "there.parquet", cwd=tmp_path, PYTHONHASHSEED=seed)
        assert (done.returncode, done.stderr) == (0, "")
        assert (tmp_path / "there.parquet").read_bytes() == (tmp_path / "here.parquet").read_bytes()


def test_a_process_prints_one_document_and_exits_with_its_code(log, tmp_path):
    done = balancer_process("plan", "log.csv", *SHAPE, "--json", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["samples"] == 50
    done = balancer_process("plan", "nosuch.csv", *SHAPE, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "balancer: nosuch.csv: no such file\n"


def test_version(command):
    outcome = command("--version")
    assert (outcome.code, outcome.out, outcome.err) == (0, f"balancer {balancer.__version__}\n", "")


@pytest.mark.parametrize("flag", ["--help", "-h"])
def test_help(flag, command):
    outcome = command(flag)
    assert (outcome.code, outcome.err) == (0, "")
    for name in ("plan", "report", "fit", "--version"):
        assert name in outcome.out


@pytest.mark.parametrize(("name", "most"), [("plan", 50), ("report", 30), ("advise", 30), ("configure", 50)])
def test_help_fits_a_screen(name, most, command):
    assert len(command(name, "--help").out.splitlines()) <= most


@pytest.mark.parametrize("name", ["plan", "fit"])
def test_examples_in_help_stand_on_a_line_of_their_own(name, command):
    """Ready to be copied, and without the mark that keeps click from wrapping them."""
    out = command(name, "--help").out
    assert "\\b" not in out
    assert any(line.strip().startswith(f"balancer {name} ") for line in out.splitlines())


def test_without_a_command_there_is_help(command):
    outcome = command()
    assert outcome.code == 0
    assert outcome.err == ""
    assert "plan" in outcome.out


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
