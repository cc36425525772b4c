"""What is no plan, or no longer the plan that was written, is refused by name."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from plan_files import header_of, sealed, with_header
from plan_steps import FORMS, make_steps, merged, target, write

from balancer.errors import InputError, PlanError
from balancer.io import plan_reader
from balancer.io.plan_reader import open_plan


def refused(path: str | Path, rule: str, kind: type[Exception] = InputError) -> None:
    is_part = Path(path).name.startswith("part-")
    with pytest.raises(kind, match=rule) as caught:
        list(open_plan(Path(path).parent if is_part else path).steps())
    assert str(path).rstrip("/") in str(caught.value)
    assert str(caught.value).count("\n") <= 1


def test_what_is_no_file_is_refused(tmp_path):
    refused(tmp_path / "missing", "(?i)no such file")
    refused(tmp_path, "holds no plan: no part of one")
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


def test_a_flipped_bit_never_gives_another_plan(tmp_path):
    """Wherever it is: the file is refused, or (in what says who wrote it, say) the rows are the same."""
    steps = make_steps([20, 30, 40])
    whole = write(str(tmp_path / "p"), steps).read_bytes()
    for at in range(0, len(whole), 9):
        damaged = bytearray(whole)
        damaged[at] ^= 1 << at % 8
        (tmp_path / "q").write_bytes(damaged)
        try:
            read = list(open_plan(tmp_path / "q").steps())
        except (InputError, PlanError):
            continue
        assert read == merged(steps)


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        (lambda t: t.replace_schema_metadata(None), "no description under the metadata key 'balancer'"),
        (lambda t: t.replace_schema_metadata({"balancer": "{"}), "must be a JSON object"),
        (lambda t: t.replace_schema_metadata({"balancer": "[]"}), "must be a JSON object"),
        (lambda t: t.drop_columns(["rank", "slot"]), "has no column 'rank', 'slot'"),
        (
            lambda t: t.set_column(2, "sample", t["rank"].cast(pa.float64())),
            "'sample' of a plan must be int64, got double",
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


@FORMS
@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"format": "other"}, '"format": "balancer-plan"'),
        ({"version": 5}, "is a plan of format 5, and format 4 is read: plan the log again$"),
        ({"version": None}, "is a plan of format None, and format 4 is read"),
        ({"description": "text"}, "must hold a description, a JSON object"),
    ],
)
def test_bad_header_is_refused(tmp_path, form, changes, rule):
    path = write(target(tmp_path, form), make_steps([3, 4]))
    with_header(path, header_of(path) | changes)
    refused(path, rule)


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


@FORMS
def test_what_stands_beside_a_description_is_sealed_too(tmp_path, form):
    path = write(target(tmp_path, form), make_steps([3, 4]))
    header = header_of(path)
    for changed in (header | {"row_groups": [[0, -5]]}, header | {"table_of_steps": "x"}, header | {"more": 1}):
        with_header(path, changed)
        refused(path, "its table of steps or row groups are not those that were written: SHA-256 differs", PlanError)


def test_surplus_parts_are_named(tmp_path):
    folder = tmp_path / "plan"
    write(f"{folder}/", make_steps([30, 20, 20]), per_part=2)
    _, second = open_plan(folder).parts
    stray = Path(str(second).replace("00001-of", "00002-of"))
    stray.write_bytes(second.read_bytes())
    with pytest.raises(InputError, match=f"holds 3 files of a plan of 2 parts: {stray.name} is beyond them"):
        open_plan(folder)


def test_bad_parts_are_refused(tmp_path):
    folder = tmp_path / "plan"
    write(f"{folder}/", make_steps([30, 20, 20]), per_part=2)
    first, second = open_plan(folder).parts
    bytes_of = {path: path.read_bytes() for path in (first, second)}
    with pytest.raises(InputError, match="this is one part of a plan; open its folder"):
        open_plan(first)
    first.write_bytes(bytes_of[second])
    refused(first, "says that it is part 1 of the plan 'abababababababab'", PlanError)
    first.write_bytes(bytes_of[first][:-7])
    refused(first, "cannot read the plan")
    first.write_bytes(bytes_of[first])
    header = header_of(folder)
    with_header(second, sealed(header | {"description": header["description"] | {"num_ranks": 5, "part": 1}}))
    refused(second, "is of another plan than the first part: num_ranks differs", PlanError)
    zero = pa.array(np.zeros(20, np.int64))
    second.write_bytes(bytes_of[second])
    pq.write_table(pq.read_table(second).append_column("length", zero), second)
    refused(folder, "same columns")
    second.unlink()
    refused(folder, f"holds 1 of the 2 parts of its plan, and {second.name} is missing: the command that planned it")
    write(f"{folder}/", make_steps([3]), key="cd")
    first.write_bytes(bytes_of[first])  # what is left where a plan was being replaced
    assert list(open_plan(folder).steps()) == make_steps([3])
    second.write_bytes(bytes_of[second])
    refused(folder, "holds the parts of 2 plans, part-abababababababab-00000-of-00002.parquet and part-cdcd")
