"""Whatever is wrong: one or two lines that say where and why, the right exit code, and nothing left behind."""

import json
import os

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from log_files import write_csv, write_log, write_manifest
from plan_files import sealed, with_header
from typed_words import keys

SHAPE = ("--ranks", 2, "--batch-per-rank", 2)
OUT = "out.parquet"


def assert_refused(outcome, words, code=2):
    assert outcome.code == code, outcome
    assert outcome.out == ""
    assert "Traceback" not in outcome.err
    lines = outcome.err.splitlines()
    assert 1 <= len(lines) <= 2, outcome.err
    assert lines[0].startswith("balancer: ")
    assert max(map(len, lines)) < 500
    for word in words:
        assert word in outcome.err, outcome.err


@pytest.fixture
def refused(command, tmp_path):
    """Run a command that must fail, with an output asked for if it has one; the folder must be as it was."""

    def check(arguments, words, code=2, out=True):
        before = sorted(tmp_path.rglob("*"))
        assert_refused(command(*arguments, "--json", *(("--out", "folder/") if out else ())), words, code)
        assert sorted(tmp_path.rglob("*")) == before, "something was left behind"

    return check


# --- the log ---------------------------------------------------------------------------------------------------------


def columns_of(tokens, **others):
    return {"tokens": tokens, **others}


def rewrite(name, content):
    return lambda folder: (folder / name).write_bytes(content)


LOGS = {
    "missing": (lambda folder: None, "log.csv", (), ["log.csv", "no such file"]),
    "0 bytes": (rewrite("log.csv", b""), "log.csv", (), ["log.csv", "no rows"]),
    "absent column": (
        lambda f: write_log(f / "log.parquet", columns_of([1, 2], other=[3, 4])),
        "log.parquet",
        ("--length", "tokens+nosuch"),
        ["log.parquet", "no column 'nosuch'", "tokens, other"],
    ),
    "several integer columns": (
        lambda f: write_log(f / "log.parquet", columns_of([1], other=[2])),
        "log.parquet",
        (),
        ["log.parquet", "2 columns of integers", "tokens, other", "--length"],
    ),
    "an identifier": (
        lambda f: write_log(f / "log.parquet", {"sample_id": [7, 3], "seconds": [0.5, 1.5]}),
        "log.parquet",
        (),
        ["'sample_id', is by its name an identifier", "--length COLUMN", "floats (seconds)", "'duration'"],
    ),
    "a count of rows": (
        lambda f: write_csv(f / "log.csv", range(100), "value"),
        "log.csv",
        (),
        ["'value', counts rows (0, 1, 2, ...)", "--length COLUMN"],
    ),
    "no name": (lambda f: None, "", (), ["the name of the log is empty"]),
    "a pipe": (lambda f: os.mkfifo(f / "log.csv"), "log.csv", (), ["log.csv: is a pipe", "write it to a file"]),
    "a name that is no text": (
        rewrite("log\udcff.csv", b"tokens\n1\n"),
        "log\udcff.csv",
        (),
        ["its name is not UTF-8", "rename"],
    ),
    "semicolons": (
        rewrite("log.csv", b"id;tokens\n1;2\n3;4\n"),
        "log.csv",
        (),
        ["'id;tokens'", "separated by ';'", "commas"],
    ),
    "bad manifest": (
        lambda f: write_manifest(f / "train.json", [1.5, -2.0]),
        "train.json",
        (),
        ["train.json", "'duration'", "row 1", "-2.0"],
    ),
    "shorter than a step": (
        lambda f: write_csv(f / "log.csv", [1, 2, 3]),
        "log.csv",
        keys("drop_last=true"),
        ["log.csv", "fewer rows than one global batch of 4"],
    ),
}


@pytest.mark.parametrize(("make", "name", "options", "words"), LOGS.values(), ids=LOGS)
def test_bad_log(make, name, options, words, refused, tmp_path):
    make(tmp_path)
    refused(["plan", name, *SHAPE, *options], words)


# --- options ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def log(tmp_path):
    return write_csv(tmp_path / "log.csv", [5, 40, 3, 22, 9, 1, 17, 8, 30]).name


OPTIONS = {
    "ranks abc": (["--ranks", "abc", "--batch-per-rank", 2], ["ranks must be a whole number >= 1, got 'abc'"]),
    "ranks 1.5": (["--ranks", "1.5", "--batch-per-rank", 2], ["ranks must be a whole number >= 1, got 1.5"]),
    "ranks huge": (["--ranks", 10**12, "--batch-per-rank", 2], ["ranks must be <= 2147483647, got 1000000000000"]),
    "no ranks": (["--batch-per-rank", 2], ["ranks is missing: Data-parallel ranks."]),
    "batch huge": (["--ranks", 4, "--batch-per-rank", 2**30], ["global batch", "2147483647"]),
    "padded for linear": ([*SHAPE, *keys("plan.method=padded")], ["'padded'", "'linear'", "auto"]),
    "cost coefficient": ([*SHAPE, "--cost", "quadratic:a=x,b=1"], ["'a=x'", "whole number"]),
    "cost without coefficient": ([*SHAPE, "--cost", "quadratic"], ["quadratic:a=24576,b=1"]),
    "budget nan": ([*SHAPE, *keys("plan.time_budget=nan")], ["time_budget must be a number of seconds > 0, got NaN"]),
    "eps nan": ([*SHAPE, *keys("plan.eps=nan")], ["plan.eps must be a share >= 0, such as ", "got NaN"]),
    "extra argument": ([*SHAPE, "second.csv"], ["second.csv"]),
}


@pytest.mark.parametrize(("options", "words"), OPTIONS.values(), ids=OPTIONS)
def test_bad_option(options, words, refused, log):
    refused(["plan", log, *options], words)


def test_no_log_at_all(refused):
    refused(["plan", *SHAPE], ["LOG", "Missing"])


def test_out_without_a_value(command, log):
    assert_refused(command("plan", log, *SHAPE, "--out"), ["--out"])


@pytest.mark.parametrize(
    ("out", "words"),
    [
        ("log.csv/plan.parquet", ["log.csv", "not a folder"]),
        ("nowhere/parts/", ["nowhere", "does not exist"]),
        ("log.csv/", ["log.csv", "not a folder"]),
        ("", ["plan"]),
    ],
)
def test_unwritable_output(out, words, command, log, tmp_path):
    before = sorted(tmp_path.rglob("*"))
    assert_refused(command("plan", log, *SHAPE, "--out", out), words)
    assert sorted(tmp_path.rglob("*")) == before


# --- costs past int64, and constraints that nothing satisfies --------------------------------------------------------


@pytest.mark.parametrize(
    ("lengths", "cost", "sample"),
    [
        ([1] * 5 + [2**40], "quadratic:a=0,b=1", 5),
        ([1] * 5 + [2**62, 2**62, 1], "linear", 6),
        ([1] * 5 + [2**61, 1, 1], "linear:a=99999999999", 5),
        ([1] * 4 + [2**62, 1, 1, 1], "padded", 4),
    ],
    ids=["a sample", "the sum", "coefficient", "padded"],
)
def test_cost_past_int64(lengths, cost, sample, refused, tmp_path):
    write_csv(tmp_path / "log.csv", lengths)
    words = ["log.csv", "step 1", f"row {sample} ", f"length {lengths[sample]}", "int64"]
    refused(["plan", "log.csv", *SHAPE, "--cost", cost], words)


@pytest.mark.parametrize(
    ("lengths", "cap", "words"),
    [
        ([1] * 5 + [12], 10, ["row 5", "length 12", "2 more", "= 10"]),
        ([1] * 4 + [6, 6, 6, 6], 11, ["24 tokens", "2 more than 2 ranks", "= 11"]),
        ([1] * 4 + [6, 6, 6], 11, ["= 11", "at least"]),
    ],
    ids=["a sample", "the sum", "the bound"],
)
def test_infeasible_cap(lengths, cap, words, refused, tmp_path):
    write_csv(tmp_path / "log.csv", lengths)
    arguments = ["plan", "log.csv", *SHAPE, *keys(f"phase.all.max_tokens_per_rank={cap}")]
    refused(arguments, ["log.csv", "step 1", *words], code=1)


def test_the_step_that_needs_the_largest_cap_is_named(refused, tmp_path):
    write_csv(tmp_path / "log.csv", [3, 4, 5, 6, 1, 9, 1, 1, 1, 12, 20, 1, 1, 1, 2, 3])
    shape = ["plan", "log.csv", *SHAPE]
    refused(
        [*shape, *keys("phase.all.max_tokens_per_rank=8")],
        ["step 0: the batch has 18 tokens", "max_tokens_per_rank must be at least 9, which is enough",
         "\nfurther on step 2 needs max_tokens_per_rank of at least 20\n"], code=1,
    )  # fmt: skip
    refused([*shape, *keys("phase.all.max_tokens_per_rank=12")], ["step 2: ", "at least 20, which is enough\n"], code=1)
    refused(
        [*shape, *keys("cut.tokens=5", "cut.count=3")],
        ["step 0: row 3 of length 6 is longer than cut.tokens = 5",
         "\nfurther on step 2 needs cut.tokens of at least 20\n"], code=1,
    )  # fmt: skip
    refused(
        [*shape, *keys("cut.tokens=9", "cut.count=1")],
        ["step 2: 2 samples are longer than", "row 10: 20", "over_long='own'"], code=1,
    )  # fmt: skip
    refused(
        [*shape, *keys("cut.tokens=6", "cut.count=1", "cut.over_long=own")],
        ["step 0: cut.count = 1 is too few: under cut.tokens = 6", "may do is 2"], code=1,
    )  # fmt: skip


@pytest.mark.parametrize("name", ["caps", "group_size"])
def test_names_that_are_also_arguments_stay_what_they_are(name, command, tmp_path):
    columns = {name: [9, 1, 1, 1]}
    pq.write_table(pa.table(columns), f"{name}.parquet")
    outcome = command("plan", f"{name}.parquet", *SHAPE, *keys("phase.all.max_tokens_per_rank=5"))
    said = "row 0 has length 9, 4 more than max_tokens_per_rank = 5"
    assert outcome.err.startswith(f"balancer: {name}.parquet: step 0: {said}")
    for phase in (name, f"it's {name}"):
        phases = keys(f"phase.{phase}.length={name}", f"phase.{phase}.max_tokens_per_rank=5")
        outcome = command("plan", f"{name}.parquet", *SHAPE, *phases)
        assert f"{name}.parquet: step 0: phase {phase!r}: {said}" in outcome.err


def test_an_old_plan_survives_a_failed_run(command, log, tmp_path):
    assert command("plan", log, *SHAPE, "--out", OUT).code == 0
    before = (tmp_path / OUT).read_bytes()
    write_csv(tmp_path / "log.csv", [5, 40, 3, 22, 9, 1, -17])
    assert command("plan", log, *SHAPE, "--out", OUT).code == 2
    assert (tmp_path / OUT).read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["log.csv", OUT]


@pytest.mark.parametrize("out", [OUT, "parts/"])
def test_interrupted_before_a_part_is_there(command, log, tmp_path, monkeypatch, out):
    import balancer.step_planner

    calls = []

    def plan_then_interrupt(*arguments):
        calls.append(arguments)
        if len(calls) > 2:  # the first plan makes the kernels ready, the next one is written
            raise KeyboardInterrupt
        return original(*arguments)

    original = balancer.step_planner.plan_problem
    monkeypatch.setattr(balancer.step_planner, "plan_problem", plan_then_interrupt)
    outcome = command("plan", log, *SHAPE, "--out", out)
    assert (outcome.code, outcome.out) == (130, "")
    assert outcome.err.strip() == "balancer: interrupted"
    assert [path.name for path in tmp_path.iterdir()] == ["log.csv"]


# --- report ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        ([], ["PLAN", "Missing"]),
        (["log.csv"], ["log.csv", "is not a plan: a plan is a Parquet file"]),
        (["folder"], ["folder", "holds no plan"]),
    ],
)
def test_report_on_what_is_no_plan(plan, words, refused, log, tmp_path):
    (tmp_path / "folder").mkdir()
    refused(["report", *plan], words, out=False)


def test_report_on_a_truncated_plan(command, refused, log, tmp_path):
    assert command("plan", log, *SHAPE, "--out", OUT).code == 0
    content = (tmp_path / OUT).read_bytes()
    (tmp_path / OUT).write_bytes(content[: len(content) // 2])
    refused(["report", OUT], [OUT, "cannot read the plan"], out=False)


@pytest.mark.parametrize(
    ("header", "words"),
    [
        (b"[]", ["the description of a plan must be a JSON object"]),
        (
            json.dumps(sealed({"format": "balancer-plan", "version": 4, "description": {}})).encode(),
            ["its description is not one this version reads"],
        ),
    ],
)
def test_report_on_a_plan_with_a_foreign_description(header, words, command, refused, log, tmp_path):
    assert command("plan", log, *SHAPE, "--out", OUT).code == 0
    with_header(tmp_path / OUT, header)
    refused(["report", OUT], [OUT, *words], out=False)


def test_rows_of_a_later_step_are_called_by_their_rows(command, tmp_path):
    rows = {"tokens": [5] * 16, "prompt": [*range(8), *[9] * 8]}
    write_log(tmp_path / "log.parquet", rows)
    asked = "--ranks", 4, "--batch-per-rank", 2, "--length", "tokens", *keys("phase.all.max_samples_per_rank=3")
    outcome = command("plan", "log.parquet", *asked, *keys("phase.all.keep_together=prompt"))
    assert outcome.code == 1
    assert "step 1: max_samples_per_rank: rows 8, 9, 10, 11, 12, ... (8) must stay together" in outcome.err


def test_settings_that_exclude_each_other_are_called_by_their_keys(command, tmp_path):
    write_csv(tmp_path / "log.csv", [5] * 16)
    asked = "--ranks", 4, "--batch-per-rank", 2, *keys("cut.tokens=10", "phase.all.rank_speeds=[1,1,2,2]")
    outcome = command("plan", "log.csv", *asked)
    expected = "balancer: cut.tokens cannot be combined with rank_speeds: "
    assert outcome.code == 2
    assert outcome.err.startswith(expected)
    assert outcome.err.endswith("; leave one of them out\n")


def test_advice_is_given_as_keys(command, tmp_path):
    write_csv(tmp_path / "log.csv", [5] * 10)
    asked = "--ranks", 4, "--batch-per-rank", 2, "--set"
    outcome = command("plan", "log.csv", *asked, "cut.tokens=4")
    assert outcome.code == 1
    assert "8 samples are longer than cut.tokens = 4 (the longest, row 0: 5); leave them out" in outcome.err
    assert ", over_long='own' gives each a micro-batch of its own" in outcome.err
    phases = keys("phase.v.length=tokens", "phase.llm.length=tokens", "phase.v.equal_counts=true")
    outcome = command("plan", "log.csv", *asked, "cut.tokens=10", *phases)
    assert outcome.code == 2
    assert "phase 'v': cut.tokens cannot be combined with equal_counts" in outcome.err
    assert outcome.err.endswith("; use encoders='step'\n")
    outcome = command("plan", "log.csv", *asked, "cut.tokens=10")
    assert outcome.code == 1
    assert "; allow_empty=True permits empty micro-batches" in outcome.err
    empty = (*keys("cut.allow_empty=true"), "--out", "plan.parquet")
    assert command("plan", "log.csv", *asked, "cut.tokens=10", *empty).code == 0
    assert command("report", "plan.parquet").code == 0


def test_limits_beyond_32_bits(command, tmp_path):
    write_log(tmp_path / "log.parquet", {"tokens": [5] * 8, "flops": [10**12] * 8})
    asked = "--ranks", 4, "--batch-per-rank", 2, "--length", "tokens"
    for limit in (
        keys(f"phase.all.caps={{flops = {2 * 10**12}}}"),
        keys(f"phase.all.max_tokens_per_rank={10**10}"),
        keys(f"cut.tokens={10**10}"),
    ):
        assert command("plan", "log.parquet", *asked, *limit).code == 0, limit
