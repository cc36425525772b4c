"""Plan files: what is written is read back, what breaks in between leaves the old plan, what is no plan is named."""

import hashlib
import os
import re
import resource
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from another_user import another_user, open_folder
from hypothesis import given, settings
from hypothesis import strategies as st
from nightly import examples
from plan_steps import (
    DESCRIPTION,
    FORMS,
    append_all,
    assert_tidy,
    make_step,
    make_steps,
    merged,
    snapshot,
    target,
    write,
)

from balancer.errors import InputError
from balancer.io import plan_reader, plan_writer
from balancer.io.plan_folder import written
from balancer.io.plan_format import from_json
from balancer.io.plan_reader import open_plan
from balancer.io.plan_rows import PlanStep
from balancer.io.plan_writer import PlanWriter

ROOT = Path(__file__).parents[2]


# ------------------------------------------------------------------------------------------------- round trips


@FORMS
@pytest.mark.parametrize("extra", [False, True])
def test_round_trip(tmp_path, form, extra):
    steps = make_steps([5, 0, 1, 1000, 3, 3], extra=extra)
    path = write(target(tmp_path, form), steps)
    plan = open_plan(path)
    assert path == tmp_path / form.rstrip("/") == plan.path
    own = ("digest", "steps", "samples")  # which each part says of itself
    for described in (plan.description, DESCRIPTION):
        assert {k: v for k, v in described.items() if k not in own} == {
            "num_ranks": 4,
            "phases": ["vision", "llm"],
            "gap": None,
        }
    assert plan.num_rows == 1012
    assert plan.columns == tuple(PlanStep.__slots__)[: 8 if extra else 6]
    read = list(plan.steps())
    assert read == merged(steps) == list(plan.steps())
    for step in read:
        for name in plan.columns[2:]:
            assert not getattr(step, name).flags.writeable
            assert getattr(step, name).dtype == (np.int64 if name in ("sample", "length") else np.int32)
        assert (step.length is None) == (step.home_rank is None) == (not extra)
    assert_tidy(tmp_path, form)


@FORMS
@pytest.mark.parametrize(("group", "batch"), [(1, 3), (7, 1), (64, 1 << 17)])
def test_runs_cut_by_groups_batches_and_parts_are_joined(tmp_path, monkeypatch, form, group, batch):
    monkeypatch.setattr(plan_writer, "ROWS_PER_GROUP", group)
    monkeypatch.setattr(plan_reader, "ROWS_PER_BATCH", batch)
    steps = make_steps([5, 0, 1, 17, 3, 13, 14, 1])
    write(target(tmp_path, form), steps)
    plan = open_plan(tmp_path / form)
    assert list(plan.steps()) == merged(steps)
    assert plan.num_rows == 54
    assert (len(plan.parts) == 8) == form.endswith("/")
    if form.endswith("/"):
        assert [len(pq.read_table(part)) for part in plan.parts] == [len(step.sample) for step in steps]
    for part, groups in zip(plan.parts, plan.groups, strict=True):
        with pq.ParquetFile(part) as file:
            rows = [file.read_row_group(i)["step"].to_pylist() for i in range(file.num_row_groups)]
        assert list(groups) == [(min(steps), max(steps)) for steps in rows]
    assert_tidy(tmp_path, form)


@given(
    st.lists(st.tuples(st.integers(-(2**63), 2**63 - 1), st.sampled_from("abc"), st.integers(0, 30)), max_size=12),
    st.integers(1, 40),
    st.integers(1, 5),
    st.sampled_from(["plan.parquet", "plan/"]),
)
@settings(max_examples=examples(25))
def test_any_steps_come_back(tmp_path_factory, keys, group, per_part, form):
    tmp_path = tmp_path_factory.mktemp("plan")
    rng = np.random.default_rng(len(keys))
    steps = [make_step(rng, *key) for key in keys]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan_writer, "ROWS_PER_GROUP", group)
        patch.setattr(plan_reader, "ROWS_PER_BATCH", 11)
        write(target(tmp_path, form), steps or [make_step(rng, 0, "a", 0)], per_part=per_part)
        assert list(open_plan(tmp_path / form).steps()) == merged(steps)


@FORMS
def test_a_plan_without_rows_is_a_plan(tmp_path, form):
    write(target(tmp_path, form), make_steps([0, 0]))
    plan = open_plan(tmp_path / form)
    assert (plan.num_rows, list(plan.steps()), len(plan.columns)) == (0, [], 6)


def test_steps_are_read_as_a_stream(tmp_path, monkeypatch):
    monkeypatch.setattr(plan_writer, "ROWS_PER_GROUP", 50)
    monkeypatch.setattr(plan_reader, "ROWS_PER_BATCH", 50)
    write(str(tmp_path / "p"), make_steps([10] * 20))
    batches = []
    real = plan_reader._pieces
    monkeypatch.setattr(plan_reader, "_pieces", lambda *a: (batches.append(p) or p for p in real(*a)))
    stream = open_plan(tmp_path / "p").steps()
    assert (next(stream).step, next(stream).phase) == (0, "llm")
    assert len(batches) == 3
    stream.close()


# ------------------------------------------------------------------------------------------------- the format


@pytest.mark.parametrize("extra", [False, True])
def test_schema_and_description_are_as_stated(tmp_path, extra):
    path = write(str(tmp_path / "p.parquet"), make_steps([3, 4], extra=extra), description={"b": 1, "a": 2})
    wanted = {"step": pa.int64(), "phase": pa.string(), "sample": pa.int64()}
    wanted |= dict.fromkeys(("rank", "slot", "position"), pa.int32())
    wanted |= {"length": pa.int64(), "home_rank": pa.int32()} if extra else {}
    table = pq.read_table(path)
    for schema in (pq.read_schema(path), table.schema):
        assert dict(zip(schema.names, schema.types, strict=True)) == wanted
        assert list(schema.names) == list(wanted)
        digest = hashlib.sha256(b'{"a": 2, "b": 1}').hexdigest()  # which damage to the description breaks
        beside = hashlib.sha256(b'{"row_groups": [[0, 0]]}').hexdigest()
        assert schema.metadata[b"balancer"].decode() == (
            '{"beside_sha256": "'
            + beside
            + '", "description": {"a": 2, "b": 1}, "description_sha256": "'
            + digest
            + '", '
            '"format": "balancer-plan", "row_groups": [[0, 0]], "version": 4}'
        )
    assert table["phase"].to_pylist() == ["vision"] * 3 + ["llm"] * 4


def test_encodings_are_standard_and_small(tmp_path):
    sample = np.arange(200_000)
    rng = np.random.default_rng(0)
    rank, position = rng.integers(0, (64, 21), (200_000, 2)).astype(np.int32).T
    with PlanWriter(tmp_path / "p") as writer:
        for start in range(0, len(sample), 1000):
            rows = slice(start, start + 1000)
            writer.append(start // 1000, "llm", sample=sample[rows], rank=rank[rows], slot=0, position=position[rows])
        writer.close({})
    assert (tmp_path / "p").stat().st_size < 2.5 * len(sample)
    group = pq.read_metadata(tmp_path / "p").row_group(0)
    for column in map(group.column, range(group.num_columns)):
        assert set(column.encodings) <= {"DELTA_BINARY_PACKED", "PLAIN", "RLE", "RLE_DICTIONARY"}
        assert column.is_stats_set == (column.path_in_schema == "step")
    assert (group.column(0).statistics.min, group.column(0).statistics.max) == (0, 63)


def test_writing_loads_no_pandas(tmp_path):
    """It takes as long to load as planning half a million samples; pyarrow does so for ``pa.array``."""
    code = KILLED.replace("os.kill(os.getpid(), signal.SIGKILL)\n", "sys.exit('pandas' in sys.modules)\n")
    run = [sys.executable, "-c", code, str(tmp_path / "p"), "closing"]
    subprocess.run(run, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=True)
    assert open_plan(tmp_path / "p").num_rows == 6000


def test_a_folder_is_a_table_to_everybody(tmp_path):
    """Each part is a plan file; a reader of Parquet folders needs to know nothing of plans, after a kill too."""
    steps = make_steps([4, 5, 6])
    write(target(tmp_path, "plan/"), steps)
    names = sorted(os.listdir(tmp_path / "plan"))
    assert names == [f"part-abababababababab-{number:05d}-of-00003.parquet" for number in range(3)]
    (tmp_path / "plan" / f".{names[0]}.0123abcd.tmp").write_bytes(b"PAR1 half")
    assert open_plan(tmp_path / "plan").description | {"samples": 3} == DESCRIPTION | {
        "steps": 3, "samples": 3, "digest": hashlib.sha256(b"\0" * 3).hexdigest(),
    }  # fmt: skip
    whole = pq.read_table(tmp_path / "plan")
    assert whole["sample"].to_pylist() == [sample for step in steps for sample in step.sample.tolist()]
    pandas = pytest.importorskip("pandas")
    assert pandas.read_parquet(tmp_path / "plan")["rank"].tolist() == whole["rank"].to_pylist()


@pytest.mark.parametrize("form", ["plan", "plan/", "new/"])
def test_a_folder_is_no_place_for_one_file(tmp_path, form):
    (tmp_path / "plan").mkdir()
    with pytest.raises(InputError, match="cannot write a plan here: it is one file, and this is a folder"):
        PlanWriter(target(tmp_path, form))
    assert os.listdir(tmp_path) == ["plan"]


def test_plan_rewritten_without_arrow_schema_is_read(tmp_path):
    """Other writers store phase as plain text."""
    steps = make_steps([3, 4, 5])
    table = pq.read_table(write(str(tmp_path / "p"), steps))
    for name, kind, store in (("q", pa.string(), False), ("r", pa.large_string(), True)):
        at = table.schema.get_field_index("phase")
        text = table.set_column(at, "phase", table["phase"].cast(kind))
        with pq.ParquetWriter(tmp_path / name, text.schema, store_schema=store) as writer:
            writer.write_table(text)
            if not store:
                writer.add_key_value_metadata(table.schema.metadata)
        assert list(open_plan(tmp_path / name).steps()) == merged(steps)


# ------------------------------------------------------------------------------------------------- replacing


@FORMS
def test_new_plan_replaces_old(tmp_path, form):
    write(target(tmp_path, form), make_steps([30, 40, 50]), key="cd")
    steps = make_steps([7, 8], seed=1)
    write(target(tmp_path, form), steps)
    assert list(open_plan(tmp_path / form).steps()) == merged(steps)
    assert_tidy(tmp_path, form)


@pytest.mark.parametrize("old", [True, False])
@pytest.mark.parametrize("error", [KeyError, KeyboardInterrupt, None])
def test_leaving_before_close_changes_nothing(tmp_path, monkeypatch, old, error):
    monkeypatch.setattr(plan_writer, "ROWS_PER_GROUP", 10)
    if old:
        write(str(tmp_path / "p"), make_steps([3, 4]))
    before, names = snapshot(tmp_path), os.listdir(tmp_path)

    def leave() -> None:
        with PlanWriter(tmp_path / "p") as writer:
            append_all(writer, make_steps([25, 26], seed=1))
            assert snapshot(tmp_path) != before
            if error is not None:
                raise error

    if error is None:
        leave()
    else:
        with pytest.raises(error):
            leave()
    assert snapshot(tmp_path) == before
    assert os.listdir(tmp_path) == names


@pytest.mark.parametrize("description", [{"a": object()}, {"a": float("nan")}])
def test_description_that_is_not_json_changes_nothing(tmp_path, description):
    write(str(tmp_path / "p"), make_steps([3, 4]))
    before = snapshot(tmp_path)
    with pytest.raises((TypeError, ValueError), match="JSON"):
        write(str(tmp_path / "p"), make_steps([5]), description=description)
    assert snapshot(tmp_path) == before


@pytest.mark.parametrize("number", ["NaN", "1e999", "-Infinity"])
def test_a_number_that_json_does_not_know_is_no_description(number):
    assert from_json(f'{{"a": {number}}}'.encode()) is None
    assert from_json(b'{"a": 1e9}') == {"a": 1e9}


@FORMS
def test_disk_full_is_an_input_error_and_changes_nothing(tmp_path, form):
    write(target(tmp_path, form), make_steps([3, 4]))
    before = snapshot(tmp_path)
    steps = make_steps([300_000])
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, limits[1]))
    try:
        with pytest.raises(InputError, match=re.escape(str(tmp_path / form.rstrip("/")))) as caught:
            write(target(tmp_path, form), steps, key="cd")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert isinstance(caught.value.__cause__, OSError)
    assert "\n" not in str(caught.value)
    assert snapshot(tmp_path) == before


KILLED = """
import os, signal, sys
import numpy as np
from balancer.io import plan_writer
plan_writer.ROWS_PER_GROUP = 1000
sample = np.arange(600)
zero = np.zeros(600, np.int32)
if sys.argv[2] == "replacing":
    plan_writer.os.replace = lambda *names: os.kill(os.getpid(), signal.SIGKILL)
writer = plan_writer.PlanWriter(sys.argv[1])
for step in range(10):
    writer.append(step, "llm", sample=sample, rank=zero, slot=0, position=zero)
if sys.argv[2] != "appending":
    writer.close({"killed": True})
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("moment", ["appending", "replacing"])
def test_killed_writer_leaves_a_whole_plan(tmp_path, moment):
    steps = make_steps([3, 4])
    write(str(tmp_path / "p"), steps)
    before = snapshot(tmp_path)
    run = [sys.executable, "-c", KILLED, str(tmp_path / "p"), moment]
    killed = subprocess.run(run, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=False)
    assert killed.returncode == -signal.SIGKILL
    plan = open_plan(tmp_path / "p")
    left = snapshot(tmp_path)
    assert before.items() < left.items()  # the old plan untouched
    assert all(name == "p" or name.startswith(".p.") for name in left)
    assert list(plan.steps()) == merged(steps)
    write(str(tmp_path / "p"), make_steps([5]))
    assert open_plan(tmp_path / "p").num_rows == 5


def test_two_writers_at_once_do_not_break_each_other(tmp_path):
    """All ranks of a job may save to one path: the last one wins, and its plan is whole."""
    first, second = (make_steps([30, 40], seed=seed) for seed in (1, 2))
    with PlanWriter(str(tmp_path / "p")) as slow:
        append_all(slow, first)
        write(str(tmp_path / "p"), second)
        assert list(open_plan(tmp_path / "p").steps()) == merged(second)
        slow.close({})
    assert list(open_plan(tmp_path / "p").steps()) == merged(first)
    assert_tidy(tmp_path, "p")


def test_other_files_are_left_alone(tmp_path):
    (tmp_path / "plan").mkdir()
    kept = [
        "plan/notes.txt",
        "plan/part-1.parquet",
        "plan/x.tmp",
        ".plan.parquet.tmp",
        "part-00000000-00000.parquet",
    ]
    for name in kept:
        (tmp_path / name).write_text("mine")
    write(target(tmp_path, "plan/"), make_steps([3]))
    write(target(tmp_path, "plan.parquet"), make_steps([3]))
    assert all((tmp_path / name).read_text() == "mine" for name in kept)


def test_closed_writer_takes_nothing(tmp_path):
    steps = make_steps([3])
    with PlanWriter(tmp_path / "p") as writer:
        writer.close({})
        with pytest.raises(RuntimeError, match="closed"):
            append_all(writer, steps)
        with pytest.raises(RuntimeError, match="closed"):
            writer.close({})
        writer.discard()
    assert open_plan(tmp_path / "p").num_rows == 0


# ------------------------------------------------------------------------------------------- unwritable targets


def writer_to(path: str) -> PlanWriter:
    if not path.endswith("/"):
        return PlanWriter(path)
    with written(path, "ab" * 8):
        return PlanWriter(f"{path}part")


@pytest.mark.parametrize(
    ("path", "rule"),
    [
        ("missing/plan.parquet", "missing does not exist"),
        ("missing/plan/", "missing does not exist"),
        ("file/plan.parquet", "file is not a folder"),
        ("file/plan/", "file is not a folder"),
        ("file/", "file is not a folder"),
        ("pipe", "it is a pipe, and only regular files are replaced"),
        ("x" * 300, "(?i)name too long"),
        ("nul\0", "not a path"),
    ],
)
def test_unwritable_target_is_refused_at_once(tmp_path, path, rule):
    (tmp_path / "file").write_text("mine")
    os.mkfifo(tmp_path / "pipe")
    names = sorted(os.listdir(tmp_path))
    with pytest.raises(InputError, match=rule) as caught:
        writer_to(target(tmp_path, path))
    assert path.replace("\0", r"\x00") in str(caught.value)
    assert "\n" not in str(caught.value)
    assert sorted(os.listdir(tmp_path)) == names
    assert (tmp_path / "file").read_text() == "mine"


@FORMS
def test_folder_without_permission(form):
    with open_folder() as folder:
        folder.chmod(0o555)
        with another_user(), pytest.raises(InputError, match="ermission"):
            writer_to(target(folder, form))


# ---------------------------------------------------------------------------------------------- bad arguments


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("sample", np.arange(3, dtype=np.int32)),
        ("sample", np.zeros((3, 1), np.int64)),
        ("rank", np.arange(3)),
        ("rank", 0),
        ("slot", np.zeros(1, np.int32)),
        ("slot", 0.5),
        ("position", np.zeros(4, np.int32)),
        ("home_rank", np.zeros(3, np.int32)),
    ],
)
def test_columns_of_another_kind_are_refused(tmp_path, name, value):
    (step,) = make_steps([3])
    columns = {key: getattr(step, key) for key in ("sample", "rank", "slot", "position")}
    with PlanWriter(tmp_path / "p") as writer:
        append_all(writer, [step])
        with pytest.raises(TypeError, match=name):
            writer.append(0, "llm", **{**columns, name: value})
        writer.close({})
    assert open_plan(tmp_path / "p").num_rows == 3


def test_extra_columns_must_be_given_when_asked_for(tmp_path):
    (step,) = make_steps([3])
    with (
        PlanWriter(tmp_path / "p", ("length", "home_rank")) as writer,
        pytest.raises(TypeError, match="home_rank"),
    ):
        append_all(writer, [step])
