"""What is no plan, or no longer the plan that was written, is refused by name."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from plan_files import header_of, with_header
from plan_steps import DESCRIPTION, FORMS, assert_tidy, make_steps, merged, target, write

from balancer.errors import InputError, PlanError
from balancer.io import plan_reader
from balancer.io.plan_reader import open_plan


def refused(path: str | Path, rule: str, kind: type[Exception] = InputError) -> None:
    with pytest.raises(kind, match=rule) as caught:
        list(open_plan(path).steps())
    assert str(path).rstrip("/") in str(caught.value)
    assert str(caught.value).count("\n") <= 1


def test_what_is_no_file_is_refused(tmp_path):
    refused(tmp_path / "missing", "(?i)no such file")
    refused(tmp_path, r"must have a manifest\.json")
    (tmp_path / "file").write_text("")
    refused(tmp_path / "file", "cannot read")
    refused(tmp_path / "file" / "under", "cannot read")
    (tmp_path / "file").write_text("step,phase\n" * 1000)
    refused(tmp_path / "file", "is not a plan: a plan is a Parquet file")


def test_truncated_file_is_refused(tmp_path):
    whole = write(str(tmp_path / "p"), make_steps([300, 400])).read_bytes()
    for size in range(0, len(whole), 97):
        (tmp_path / "cut").write_bytes(whole[:size])
        refused(tmp_path / "cut", "cannot read the plan")


@pytest.mark.parametrize("bit", [0, 3, 7])
def test_a_flipped_bit_never_gives_another_plan(tmp_path, bit):
    """Wherever it is: the file is refused, or (in what says who wrote it, say) the rows are the same."""
    steps = make_steps([20, 30, 40])
    whole = write(str(tmp_path / "p"), steps).read_bytes()
    for at in range(0, len(whole), 7):
        damaged = bytearray(whole)
        damaged[at] ^= 1 << bit
        (tmp_path / "q").write_bytes(damaged)
        try:
            read = list(open_plan(tmp_path / "q").steps())
        except (InputError, PlanError):
            continue
        assert read == merged(steps)


def test_damaged_values_are_noticed(tmp_path):
    path = write(str(tmp_path / "p"), make_steps([3000]))
    whole = bytearray(path.read_bytes())
    whole[len(whole) // 2] ^= 1
    path.write_bytes(whole)
    refused(path, "cannot read the plan")


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        (lambda t: t.replace_schema_metadata(None), "no description under the metadata key 'balancer'"),
        (lambda t: t.replace_schema_metadata({"balancer": "{"}), "must be a JSON object"),
        (lambda t: t.replace_schema_metadata({"balancer": b"\xff"}), "must be a JSON object"),
        (lambda t: t.replace_schema_metadata({"balancer": "[]"}), "must be a JSON object"),
        (lambda t: t.drop_columns(["rank", "slot"]), "has no column 'rank', 'slot'"),
        (
            lambda t: t.set_column(2, "sample", t["rank"].cast(pa.float64())),
            "'sample' of a plan must be int64, got double",
        ),
        (
            lambda t: t.set_column(3, "rank", t["rank"].cast(pa.int64())),
            "'rank' of a plan must be int32, got int64",
        ),
        (lambda t: t.set_column(1, "phase", t["step"]), "'phase' of a plan must be dictionary<.*, got int64"),
        (lambda t: t.append_column("length", t["rank"]), "'length' of a plan must be int64, got int32"),
    ],
)
def test_parquet_that_is_no_plan_is_refused(tmp_path, change, rule):
    table = change(pq.read_table(write(str(tmp_path / "p"), make_steps([3, 4]))))
    pq.write_table(table, tmp_path / "q")
    refused(tmp_path / "q", rule)


@pytest.mark.parametrize("name", ["step", "phase", "sample", "home_rank"])
def test_missing_values_are_refused_by_row_and_column(tmp_path, monkeypatch, name):
    monkeypatch.setattr(plan_reader, "ROWS_PER_BATCH", 4)
    table = pq.read_table(write(str(tmp_path / "p"), make_steps([5, 4], extra=True)))
    values = table[name].to_pylist()
    values[6] = None
    at = table.schema.get_field_index(name)
    nulls = table.set_column(at, name, pa.array(values, table.schema.field(name).type))
    pq.write_table(nulls, tmp_path / "q")
    refused(tmp_path / "q", f"row 6, column '{name}': .*no missing values")


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"format": "other"}, '"format": "balancer-plan"'),
        ({"version": 4}, "is a plan of format 4, and format 3 is read: plan the log again$"),
        ({"version": 2}, "is a plan of format 2, and format 3 is read: plan the log again$"),
        ({"version": None}, "is a plan of format None, and format 3 is read"),
        ({"parts": None}, "must hold parts, each with its file name and rows"),
        ({"parts": []}, "must hold parts, each with its file name and rows"),
        ({"parts": [{}]}, "must hold parts, each with its file name and rows"),
        ({"parts": [{"file": "../p.parquet", "rows": 1}]}, "must hold parts, each with its file name and rows"),
        ({"parts": [{"file": 1, "rows": 1}]}, "must hold parts, each with its file name and rows"),
        ({"description": "text"}, "must hold a description, a JSON object"),
        (
            {"parts": [{"file": "part-00000000-00000.parquet", "rows": 1}]},
            "part-00000000-00000.parquet, which is not there",
        ),
    ],
)
def test_bad_manifest_is_refused(tmp_path, changes, rule):
    write(target(tmp_path, "plan/"), make_steps([3, 4]))
    path = tmp_path / "plan/manifest.json"
    path.write_text(json.dumps(json.loads(path.read_bytes()) | changes))
    refused(target(tmp_path, "plan/"), rule)


@FORMS
@pytest.mark.parametrize(
    ("features", "rule"),
    [
        (["pieces"], "needs 'pieces', which this release does not know"),
        (["pieces", "experts"], "needs 'pieces', 'experts', which this release does not know"),
        ("pieces", "needs 'pieces', which this release does not know"),
        ([7], "needs 7, which this release does not know"),
        ([["pieces"]], r"needs \['pieces'\], which this release does not know"),
        (None, "needs None, which this release does not know"),
    ],
)
def test_features_that_nobody_here_knows_are_refused_by_name(tmp_path, form, features, rule):
    path = write(target(tmp_path, form), make_steps([3, 4]))
    with_header(path, header_of(path) | {"features": features})
    refused(path, rule)


def test_a_plan_that_needs_no_features_may_be_silent_about_them(tmp_path):
    path = write(str(tmp_path / "p"), make_steps([3, 4]))
    header = header_of(path)
    del header["features"]
    with_header(path, header)
    assert open_plan(path).description == DESCRIPTION


@FORMS
@pytest.mark.parametrize(
    "change", [lambda h: h["description"].update(gap=0), lambda h: h.update(description_sha256="0"),
               lambda h: h.pop("description_sha256")],
    ids=["description", "digest", "no digest"],
)  # fmt: skip
def test_a_description_that_was_changed_is_refused(tmp_path, form, change):
    path = write(target(tmp_path, form), make_steps([3, 4]))
    header = header_of(path)
    change(header)
    with_header(path, header)
    refused(path, "its description is not the one that was written: its SHA-256 differs", PlanError)


def of_an_older_format(tmp_path, form):
    """A plan of an older format, by hand: the header in a file, or in a manifest."""
    rows = pa.table(
        {
            "step": pa.array([0, 0], pa.int64()),
            "phase": pa.array(["all", "all"]).dictionary_encode(),
            "sample": pa.array([0, 1], pa.int64()),
            **{name: pa.array([0, 0], pa.int32()) for name in ("rank", "slot", "position")},
        }
    )
    description = {"topology": {"node_sizes": [2]}, "columns": ["tokens"], "solver": {"method": "auto"}, "digest": "0"}
    header = {"format": "balancer-plan", "version": 1, "description": description}
    if not form.endswith("/"):
        pq.write_table(rows.replace_schema_metadata({"balancer": json.dumps(header)}), tmp_path / form)
        return tmp_path / form
    folder, part = tmp_path / form, "part-0123abcd-00000.parquet"
    folder.mkdir()
    of_part = {"format": "balancer-plan-part", "part": 0}
    pq.write_table(rows.replace_schema_metadata({"balancer": json.dumps(of_part)}), folder / part)
    header["parts"] = [{"file": part, "rows": 2, "first_step": 0, "last_step": 0}]
    (folder / "manifest.json").write_text(json.dumps(header))
    return folder


@FORMS
def test_an_older_format_is_refused_in_a_line_that_says_to_plan_again(tmp_path, form):
    path = of_an_older_format(tmp_path, form)
    with pytest.raises(InputError, match=r"is a plan of format 1, and format 3 is read: plan the log again$") as e:
        open_plan(path)
    assert str(path) in str(e.value)
    assert "\n" not in str(e.value)


@FORMS
def test_a_plan_of_an_older_format_can_be_planned_again_in_its_place(tmp_path, form):
    path, steps = of_an_older_format(tmp_path, form), make_steps([3, 4])
    assert list(open_plan(write(target(tmp_path, form), steps)).steps()) == merged(steps)
    assert open_plan(path).description == DESCRIPTION
    assert_tidy(tmp_path, form)


def test_bad_parts_are_refused(tmp_path):
    folder = tmp_path / "plan"
    write(f"{folder}/", make_steps([30, 20, 20]), per_part=2)
    first, second = open_plan(folder).parts
    bytes_of = {path: path.read_bytes() for path in (first, second)}
    first.write_bytes(bytes_of[second])
    refused(first.parent, "must hold the 50 rows that manifest.json says, got 20", PlanError)
    first.write_bytes(bytes_of[first][:-7])
    refused(first, "cannot read the plan")
    first.write_bytes(bytes_of[first])
    zero = pa.array(np.zeros(20, np.int64))
    pq.write_table(pq.read_table(second).append_column("length", zero), second)
    refused(folder, "same columns")
    second.unlink()
    refused(folder, f"{second.name}, which is not there")
