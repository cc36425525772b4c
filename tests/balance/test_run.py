"""Runs of many parts: the same bytes whoever plans, and foreign files are refused by name; output nobody takes."""

import errno
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from plan_files import sealed, with_header
from run_cases import PHASES, ROOT, planned, settings_of, snapshot

import balancer
from balancer import InputError, Phase, PlanError
from balancer.io import plan_writer
from balancer.io.log import open_log
from balancer.io.plan_reader import open_plan
from balancer.offline.check import check_run
from balancer.offline.run import plan_run
from balancer.offline.step_table import COLUMNS, Column, StepRows, restored, stored, summary, table_of
from balancer.offline.steps import plan_log
from solvers import InfeasibleError
from solvers.errors import UsageError

# ---------------------------------------------------------------------------------------------------------- rows


def test_an_error_names_the_row_whatever_part_it_is_in(tmp_path):
    tokens = [5] * 500
    tokens[417] = -3
    pq.write_table(pa.table({"tokens": tokens}), tmp_path / "log.parquet")
    for who in (1, 2):
        with pytest.raises(InputError, match="column 'tokens', row 417: -3"):
            plan_run(open_log(tmp_path / "log.parquet"), settings_of(), who=who)


# ------------------------------------------------------------------------------------------------------ one and many


@pytest.mark.parametrize(
    "settings",
    [settings_of(drop_last=True, epochs=2, shuffle=11, steps_per_part=9), settings_of(PHASES, steps_per_part=11)],
    ids=["epochs", "phases"],
)
def test_every_engine_writes_the_same_folder_and_one_file_holds_the_same_plan(folder, tmp_path, settings):
    log = open_log(folder / "many")
    one, summary = planned(folder / "many", settings, tmp_path / "one", who=1)
    two, other = planned(folder / "many", settings, tmp_path / "two", who=2)
    assert one == two
    assert summary == other
    assert len(one) == -(-settings.order(1000).num_steps // settings.steps_per_part)
    assert plan_run(log, settings, str(tmp_path / "plan.parquet")) == summary
    assert open_plan(tmp_path / "plan.parquet").description == open_plan(tmp_path / "one").description
    checked = [check_run(f"{tmp_path}/one", who=who) for who in (None, 2)]
    checked.append(check_run(f"{tmp_path}/plan.parquet"))
    assert all(again.steps == summary for again in checked)
    assert balancer.load_steps(tmp_path / "one") == balancer.load_steps(tmp_path / "plan.parquet") == summary
    assert summary.schema.names == [each.name for each in COLUMNS]


def test_stretches_of_the_table_add_up_to_that_of_all(folder):
    settings = settings_of(PHASES, epochs=2)
    whole, part, parts = StepRows(), StepRows(), []
    for step, plan in enumerate(plan_log(open_log(folder / "log.parquet"), settings)):
        if step % 9 == 0:
            parts.append(restored(json.loads(json.dumps(stored(part.table())))))
            part = StepRows()
        whole.add(step, plan)
        part.add(step, plan)
    joined = pa.concat_tables([*parts, part.table()])
    assert joined == whole.table()
    assert summary(joined) == summary(whole.table())


def test_the_documentation_has_every_column_of_the_table_of_steps():
    text = (ROOT / "docs" / "reference" / "file_formats.md").read_text(encoding="utf-8")
    rows = [f"| `{each.name}` | {each.type} | {each.says} |" for each in COLUMNS]
    assert "\n".join(["| column | type | what |", "|---|---|---|", *rows, ""]) in text


@pytest.mark.parametrize(
    ("text", "told"),
    [(None, "has no table of steps: plan the log again"), ("9:%", "no table of steps: Only base64"),
     (f"{10**30}:AAAA", "no table of steps"), (f"9:{'A' * 64}", "no table of steps"),
     (stored(table_of([], (Column("other", pa.int64(), ""), *COLUMNS))), "a table of steps with other columns")],
)  # fmt: skip
def test_a_table_of_steps_that_is_none_is_told(folder, tmp_path, text, told):
    path = tmp_path / "plan.parquet"
    plan_run(open_log(folder / "log.parquet"), settings_of(), str(path))
    header = json.loads(pq.read_schema(path).metadata[b"balancer"])
    del header["table_of_steps"]
    with_header(path, sealed(header | ({} if text is None else {"table_of_steps": text})))
    with pytest.raises(InputError, match=told):
        balancer.load_steps(path)


def test_the_first_step_that_cannot_be_planned_is_the_one_that_is_told(folder, tmp_path):
    settings = settings_of([Phase("all", "tokens", max_tokens_per_rank=11_000)], steps_per_part=2)
    told = []
    for who in (1, 2):
        with pytest.raises(InfeasibleError) as caught:
            planned(folder / "log.parquet", settings, tmp_path / "out", who=who)
        told.append(str(caught.value))
    assert told[0] == told[1]


def test_a_file_has_no_parts(folder, tmp_path):
    with pytest.raises(InputError, match="one file has no parts"):
        plan_run(open_log(folder / "log.parquet"), settings_of(), str(tmp_path / "plan"), who=2)
    plan_run(open_log(folder / "log.parquet"), settings_of(), str(tmp_path / "plan"))
    with pytest.raises(InputError, match="has no parts for several processes"):
        check_run(str(tmp_path / "plan"), who=2)


def test_a_part_that_was_changed_is_named(folder, tmp_path):
    files, _ = planned(folder / "log.parquet", settings_of(), tmp_path / "out")
    name = sorted(files)[4]
    table = pq.read_table(tmp_path / "out" / name)
    rank = np.array(table["rank"])
    swapped = rank.copy()
    a, b = 0, int(np.argmax(rank != rank[0]))
    swapped[[a, b]] = rank[[b, a]]
    position = np.array(table["position"]).copy()
    position[[a, b]] = position[[b, a]]
    columns = {"rank": swapped, "position": position}
    for column, values in columns.items():
        at = table.schema.get_field_index(column)
        table = table.set_column(at, table.schema.field(column), pa.array(values))
    pq.write_table(table, tmp_path / "out" / name, use_dictionary=["phase"])
    with pytest.raises(PlanError, match=r"out: step 12: its table of steps says makespan = \d+, and its rows \d+"):
        check_run(f"{tmp_path}/out", who=2)


# ------------------------------------------------------------------------------------------------------------ resume


@pytest.mark.parametrize("who", [1, 2], ids=["serial", "processes"])
def test_whole_parts_are_kept_and_the_others_made(folder, tmp_path, who):
    before, _ = planned(folder / "log.parquet", settings_of(), tmp_path / "out")
    parts = sorted(before)
    (tmp_path / "out" / parts[2]).unlink()
    (tmp_path / "out" / parts[5]).write_bytes(before[parts[5]][:-9])  # truncated
    damaged = bytearray(before[parts[6]])
    damaged[60] ^= 0xFF  # among its rows
    (tmp_path / "out" / parts[6]).write_bytes(bytes(damaged))
    made = (parts[2], parts[5], parts[6])
    times = {name: (tmp_path / "out" / name).stat().st_mtime_ns for name in parts if name not in made}
    after, summary = planned(folder / "log.parquet", settings_of(), tmp_path / "out", who=who)
    assert after == before
    assert all((tmp_path / "out" / name).stat().st_mtime_ns == then for name, then in times.items())
    assert len(summary) == 32


def test_a_full_disk_costs_the_part_that_did_not_fit(folder, tmp_path, monkeypatch):
    expected, _ = planned(folder / "log.parquet", settings_of(), tmp_path / "expected")
    written = []

    def full(file):
        written.append(file.name)
        if len(written) == 4:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(plan_writer, "sync_file", full)
    with pytest.raises(InputError, match="No space left on device"):
        planned(folder / "log.parquet", settings_of(), tmp_path / "out")
    monkeypatch.undo()
    left = snapshot(tmp_path / "out")
    assert left.items() < expected.items()
    assert len(left) == 3
    assert planned(folder / "log.parquet", settings_of(), tmp_path / "out")[0] == expected


def test_parts_of_another_plan_are_refused_whole_or_not(folder, tmp_path):
    log, settings = folder / "log.parquet", settings_of()
    files, _ = planned(log, settings, tmp_path / "out")
    other = tmp_path / "log.parquet"
    other.write_bytes(log.read_bytes().replace(b"patches", b"PATCHES"))
    with pytest.raises(UsageError, match=r"out.* holds the plan of another request \(sources\[0\]"):
        planned(other, settings, tmp_path / "out")
    (tmp_path / "out" / min(files)).unlink()
    with pytest.raises(UsageError, match="holds no plan that this version reads"):
        planned(log, settings_of(drop_last=True), tmp_path / "out")
    assert planned(log, settings, tmp_path / "out")[0] == files


def test_a_log_that_was_moved_is_the_same_log(folder, tmp_path):
    files, steps = planned(folder / "log.parquet", settings_of(), tmp_path / "out")
    (tmp_path / "out" / max(files)).unlink()
    (moved := tmp_path / "moved.parquet").write_bytes((folder / "log.parquet").read_bytes())
    assert sorted(planned(moved, settings_of(), tmp_path / "out")[0]) == sorted(files)
    assert check_run(f"{tmp_path}/out").steps == steps


def test_a_new_plan_takes_the_place_of_the_old_and_its_parts(folder, tmp_path):
    planned(folder / "log.parquet", settings_of(), tmp_path / "out")
    with pytest.raises(UsageError, match=r"holds the plan of another request \(steps_per_part is 3 there"):
        planned(folder / "log.parquet", settings_of(steps_per_part=11), tmp_path / "out")
    again, _ = planned(folder / "log.parquet", settings_of(steps_per_part=11), tmp_path / "out", overwrite=True)
    assert len(again) == 3


# --------------------------------------------------------------------------------------------------- around a command


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a disk that is full")
def test_output_that_cannot_be_written_is_told():
    with open("/dev/full", "w") as full:
        run = [sys.executable, "-m", "balancer", "plan", "--help"]
        ran = subprocess.run(run, cwd=ROOT, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert ran.returncode
    assert "No space left on device" in ran.stderr


@pytest.mark.parametrize("words", ["--version", "plan --help"])
def test_output_that_nobody_reads_on_ends_the_command_quietly(words):
    """With the code of a tool that such a signal ends, and not the 1 of a failed check."""
    reading, writing = os.pipe()
    os.close(reading)
    run = [sys.executable, "-m", "balancer", *words.split()]
    ran = subprocess.run(run, cwd=ROOT, stdout=writing, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writing)
    assert (ran.returncode, ran.stderr) == (141, "")


def test_an_executor_of_ones_own_plans_a_log_byte_for_byte(folder, tmp_path):
    """In place of processes: a cluster's, or, as here, threads."""
    asked = {"num_ranks": 2, "batch_per_rank": 2, "length": "tokens"}
    with ThreadPoolExecutor(2) as engine:
        for out, who in (("one/", {}), ("threads/", {"engine": engine})):
            balancer.plan_log(folder / "log.parquet", out=f"{tmp_path}/{out}", **asked, **who)
    one, threads = ({path.name: path.read_bytes() for path in (tmp_path / out).iterdir()} for out in ("one", "threads"))
    assert one == threads
