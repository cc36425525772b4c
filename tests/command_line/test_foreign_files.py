"""Files that others made: what they say is shown as text, what they name is not quoted, and none keeps us waiting."""

import json
import os
import threading
from contextlib import contextmanager

import pytest
from log_files import write_csv, write_log
from plan_files import header_of, retold, sealed, tamper, with_header
from typed_words import keys

import balancer
from balancer.offline import load
from balancer.offline.load import checked_steps
from solvers import InfeasibleError

ESC = "\x1b[31m\x1b]0;owned\x07"
FORGED = "\nall is well\n"
SHAPE = ("--ranks", 2, "--batch-per-rank", 2)
FORMS = pytest.mark.parametrize("out", ["plan.parquet", "plan/"])
NESTED = b'{"a":' * 3000


@pytest.fixture
def plan(command, tmp_path):
    """Plan a log of nine rows, in a file or in a folder of parts."""
    write_csv(tmp_path / "log.csv", [5, 40, 3, 22, 9, 1, 17, 8, 30])

    def run(*options, out="plan.parquet"):
        outcome = command("plan", "log.csv", *SHAPE, *options, "--overwrite", "--out", out)
        assert outcome.code == 0, outcome.err
        return tmp_path / out

    return run


def assert_one_line(outcome, words, code=2):
    assert (outcome.code, outcome.out) == (code, ""), outcome
    (line,) = outcome.err.splitlines()
    for word in words:
        assert word in line


# --- nested too deeply -----------------------------------------------------------------------------------------------


def test_a_plan_nested_too_deeply(command, plan):
    with_header(plan(), NESTED)
    assert_one_line(command("report", "plan.parquet"), ["plan.parquet", "must be a JSON object"])


@pytest.mark.parametrize(
    "arguments",
    [("plan", "log.csv", *SHAPE, "--cost", "flops:deep.json"),
     ("plan", "deep.jsonl", *SHAPE, "--length", "length"), ("fit", "deep.jsonl"),
     ("simulate", "log.csv", *SHAPE, "--cluster", "deep.json", "--model", "qwen2-7b"),
     ("simulate", "log.csv", *SHAPE, "--cluster", "h100", "--model", "deep.json")],
    ids=["cost", "log", "measurements", "cluster", "model"],
)  # fmt: skip
def test_other_files_nested_too_deeply(arguments, command, plan, tmp_path):
    plan()
    (tmp_path / "deep.json").write_bytes(NESTED)
    rows = b'{"step": 1, "length": 5, "seconds": 0.5}\n' * 150
    (tmp_path / "deep.jsonl").write_bytes(rows + b'{"step": 2, "length": ' + b"[" * 10_000 + b"\n")
    assert_one_line(command(*arguments), ["deep.json"])


# --- what a terminal would act on ------------------------------------------------------------------------------------


def assert_inert(text):
    assert all(c.isprintable() or c in "\n\t" for c in text), repr(text)
    assert r"\x1b[31m" in text


def test_names_in_a_log(command, tmp_path):
    write_log(tmp_path / "log.parquet", {f"tokens{ESC}": [1, 2, 3, 4]})
    outcome = command("plan", "log.parquet", *SHAPE, "--length", "tokens")
    assert outcome.code == 2
    assert_inert(outcome.err)
    outcome = command("plan", "log.parquet", *SHAPE)
    assert outcome.code == 0
    assert_inert(outcome.out)


@pytest.mark.parametrize("name", ["plan", "simulate"])
def test_names_of_files_and_phases(name, command, tmp_path):
    write_csv(tmp_path / f"log{ESC}.csv", [5, 40, 3, 22])
    phase = keys(f"phase.text{ESC}.length=tokens")
    more = ("--cluster", "h100", *keys(f"phase.text{ESC}.model=qwen2-7b"), "--steps", 1) if name == "simulate" else ()
    outcome = command(name, f"log{ESC}.csv", *SHAPE, *phase, *more)
    assert outcome.code == 0
    assert_inert(outcome.out)
    outcome = command(name, f"log{ESC}.csv", *SHAPE, *phase, *more, *keys(f"phase.text{ESC}.caps={{nowhere=3}}"))
    assert outcome.code == 2
    assert_inert(outcome.err)


def test_measurements_of_any_name(command, tmp_path):
    rows = ["step,length,seconds", *(f"{i},{100 * i + j},{i * 0.5 + 1}" for i in range(1, 30) for j in range(3))]
    (tmp_path / f"steps{ESC}.csv").write_text("\n".join(rows) + "\n")
    outcome = command("fit", f"steps{ESC}.csv", "--force")
    assert outcome.code == 0, outcome.err
    assert_inert(outcome.out)


def test_names_that_would_end_a_line(command, plan, tmp_path):
    """Nobody writes a line of ours."""
    write_log(tmp_path / "log.parquet", {f"tokens{FORGED}": [1, 2, 3, 4]})
    (tmp_path / "steps.csv").write_text('"a\nb\nc\nd\ne",x\n1,2\n')
    for arguments in (("plan", "log.parquet", *SHAPE, "--length", "no"), ("fit", "steps.csv")):
        outcome = command(*arguments)
        assert outcome.code == 2
        assert len(outcome.err.splitlines()) == 1
    tamper(plan(), description=lambda d: d["sources"][0].update(file=f"log{FORGED}"))
    assert_one_line(command("report", "plan.parquet"), ["is not there; give it as --log"])
    retold(plan("--ranks-per-node", 1), fell_back=lambda _: FORGED)
    outcome = command("report", "plan.parquet")
    assert outcome.code == 0
    assert "all is well" in outcome.out
    assert "all is well" not in outcome.out.splitlines()


def test_names_that_look_like_markup(command, tmp_path):
    write_csv(tmp_path / "log.csv", [5, 40, 3, 22])
    outcome = command("plan", "log.csv", *SHAPE, *keys("phase.[/b].length=tokens"))
    assert outcome.code == 0
    assert "[/b]" in outcome.out


def test_reasons_of_a_foreign_plan(command, plan, tmp_path):
    pytest.importorskip("matplotlib")
    retold(plan("--ranks-per-node", 1), fell_back=lambda _: f"{ESC}{'why ' * 9000}")
    outcome = command("report", "plan.parquet", "--html", "r.html")
    assert outcome.code == 0, outcome.err
    assert_inert(outcome.out)
    assert len(outcome.out) < 10_000
    page = (tmp_path / "r.html").read_text()
    assert_inert(page)
    assert page.count("why why") < 1000


# --- files that a plan names -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("out", "claims"),
    [("plan/", {}), ("plan.parquet", {"size": 0}), ("plan.parquet", {"size": None, "sha256": None})],
    ids=["of the log", "size", "neither"],
)
def test_no_line_of_a_file_that_is_not_the_log_is_told(out, claims, command, plan, tmp_path, monkeypatch):
    where = plan(out=out)
    secret = tmp_path / "secret"
    secret.write_text("root:x:0:0\nuser:hunter2:1:1\n")
    if claims.get("size") == 0:
        claims["size"] = secret.stat().st_size
    header = header_of(where)
    header["description"]["sources"][0].update({"file": str(secret), **claims})
    with_header(where, sealed(header))
    monkeypatch.setattr(load, "open_log", lambda path: pytest.fail(f"{path} was read"))
    outcome = command("report", out)
    assert_one_line(outcome, [out.rstrip("/"), "was not made from", "size or SHA-256 differs"])
    assert "hunter2" not in outcome.err
    assert "root" not in outcome.err.replace(str(tmp_path), "")


@contextmanager
def pipe(path):
    """A named pipe, into which somebody writes nothing as soon as it is read: whoever opens it is not kept waiting."""
    os.mkfifo(path)
    writer = threading.Thread(target=lambda: open(path, "wb").close(), daemon=True)
    writer.start()
    try:
        yield
    finally:
        reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # or else the writer would wait for one
        writer.join()
        os.close(reader)


@pytest.mark.parametrize("name", ["plan.parquet", "part", "log.csv", "other.csv"])
def test_a_pipe_in_place_of_a_file(name, command, plan, tmp_path):
    out = "plan/" if name == "part" else "plan.parquet"
    where = plan(out=out)
    path = next((tmp_path / "plan").glob("part-*")) if name == "part" else tmp_path / name
    if name == "log.csv":
        tamper(where, description=lambda d: d["sources"][0].update(file=str(path)))
    path.unlink(missing_ok=True)
    with pipe(path):
        outcome = command("report", out, *(("--log", name) if name in ("other.csv", "log.csv") else ()))
    assert_one_line(outcome, [path.name, "is a pipe, and no regular file"])


# --- what a plan says of itself --------------------------------------------------------------------------------------


@FORMS
def test_one_digit_of_why_samples_were_not_relocated(out, command, plan):
    """Nothing in rows or log could tell: the table of steps has a hash of its own."""
    where = plan(out=out)
    header = header_of(where)
    for reason in ("relocated, it takes 0.12% longer", "relocated, it takes 2.12% longer"):
        retold(where, fell_back=lambda _, reason=reason: reason)
        outcome = command("report", out)
        assert outcome.code == 0
        assert reason[19:23] in outcome.out
    with_header(where, header | {"table_of_steps": header_of(where)["table_of_steps"]})
    assert_one_line(command("report", out), [out.rstrip("/"), "SHA-256 differs"], code=1)


@FORMS
@pytest.mark.parametrize(("name", "value"), [("steps", 7), ("samples", 10**6)])
def test_counts_are_those_of_the_rows(name, value, out, command, plan):
    where = plan(out=out)
    assert json.loads(command("report", out, "--json").out)[name] == {"steps": 3, "samples": 9}[name]
    header = header_of(where)
    header["description"][name] = value
    with_header(where, sealed(header))
    assert_one_line(command("report", out), [f"says {name} = {value}, and"], code=1)


def of_stages(asked):
    return asked["settings"]["cut"]["stages"]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda asked: of_stages(asked).update(in_flight_tokens=1), "more than in_flight_tokens = 1"),
        (lambda asked: asked["phases"][0].update(every_rank_nonempty=True), "stages cannot be combined with"),
        (lambda asked: of_stages(asked).update(hop=2**62), "must be below 2**58"),
        (lambda asked: of_stages(asked).update(hop=2**70), "hop must be >= 0 and fit int64"),
        (lambda asked: of_stages(asked)["forward"].update(all=[1, 2**70]), "too large"),
    ],
    ids=["infeasible", "contradiction", "too long", "no int64", "no int64 of a list"],
)
def test_what_no_plan_can_have_is_an_error_of_the_plan(change, told, command, plan):
    where = plan(*keys("cut.tokens=90", "cut.stages={all=2}", "cut.allow_empty=true"))
    assert command("report", "plan.parquet").code == 0
    tamper(where, description=change)
    assert_one_line(command("report", "plan.parquet"), ["plan.parquet: step 0: ", told], code=1)
    with pytest.raises((balancer.PlanError, InfeasibleError), match=r"plan.parquet: step 0: "):
        list(checked_steps(where))


# --- messages --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments",
    [
        ("plan", "a\0b.csv", *SHAPE), ("plan", "log.csv", *SHAPE, "--out", "a\0b.parquet"),
        ("report", "a\0b.parquet"), ("fit", "a\0b.csv"), ("plan", "log.csv", *SHAPE, "--cost", "flops:a\0b.json"),
        ("simulate", "log.csv", *SHAPE, "--cluster", "a\0b.json", "--model", "qwen2-7b"),
    ],
    ids=["log", "out", "plan", "measurements", "cost", "cluster"],
)  # fmt: skip
def test_a_null_byte_in_a_name(arguments, command, plan):
    plan()
    outcome = command(*arguments)
    assert outcome.code == 2, outcome
    assert "Traceback" not in outcome.err
    assert len(outcome.err.splitlines()) <= 2
    assert r"a\x00b" in outcome.err
    assert "null byte" in outcome.err


@pytest.mark.parametrize("row", [0, 130])
def test_a_name_twice_in_a_json_line(row, command, tmp_path):
    lines = ['{"tokens": 1}'] * 150
    lines[row] = '{"tokens": 1, "tokens": 9}'
    (tmp_path / "log.jsonl").write_text("\n".join(lines) + "\n")
    words = [f"log.jsonl: row {row} (line {row + 1}) has column 'tokens' twice"]
    assert_one_line(command("plan", "log.jsonl", *SHAPE), words)
