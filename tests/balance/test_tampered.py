"""Plan files in which a cell, a column or a part was changed: none is accepted, and each is named."""

import random
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from nightly import examples
from plan_files import header_of, sealed, with_header
from run_cases import ALONE, PHASES, planned, settings_of

from balancer import InputError, PlanError
from balancer.offline.check import check_run
from balancer.offline.step_table import COLUMNS, restored, stored, table_of

CLAIMS = ("fell_back", "fell_back_percent")  # which nothing but planning again could tell
DERIVED = ("gap", "after", "bound")  # which files do not hold
BOUNDS = ("lower_bound", "bound_name", "status")  # of several phases a bound may be known from elsewhere


@pytest.fixture(scope="module")
def plans(tmp_path_factory):
    """Plans of one and of two phases, in parts of two steps, the first checked by sums, the other step by step."""
    out, generator = tmp_path_factory.mktemp("plans"), np.random.default_rng(5)
    columns = {"tokens": generator.integers(1, 5000, 80), "patches": generator.integers(0, 300, 80)}
    pq.write_table(pa.table(columns), out / "log.parquet")
    for name, phases in (("one", ALONE), ("two", PHASES)):
        planned(out / "log.parquet", settings_of(phases, epochs=2, steps_per_part=2), out / name)
        assert check_run(str(out / name)).bounds
    return out


def other(value, chance):
    """Another value of the same kind."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, str):
        return value + "x"
    return chance.choice([1, -1, 2**31, 7]) + (value or 0)


def cell_of_rows(path, chance, name):
    """Change a cell of the rows."""
    table = pq.read_table(path)
    rows = table.to_pylist()
    row = chance.choice(rows)
    column = chance.choice(list(row))
    if column == "phase":
        row[column] += "x"
    else:
        row[column] = max(-(2**31), min(2**31 - 1, other(row[column], chance)))
    pq.write_table(pa.Table.from_pylist(rows, schema=table.schema), path)
    return ()


def two_rows(path, chance, name):
    """Exchange two rows' ranks or places, leave one out, or have it twice."""
    table = pq.read_table(path)
    rows = table.to_pylist()
    i, j = chance.sample(range(len(rows)), 2)
    how = chance.choice(["gone", "twice", "sample", "rank"])
    if how == "gone":
        del rows[i]
    elif how == "twice":
        rows.insert(j, rows[i])
    elif rows[i][how] == rows[j][how]:
        return None
    else:
        rows[i][how], rows[j][how] = rows[j][how], rows[i][how]
    pq.write_table(pa.Table.from_pylist(rows, schema=table.schema), path)
    return ()


def cell_of_table(path, chance, name):
    """Change a cell of the table of steps, as if it had been written so."""
    header = header_of(path)
    rows = restored(header["table_of_steps"]).to_pylist()
    row = chance.choice(rows)
    left = (*CLAIMS, *DERIVED, *(BOUNDS if name == "two" else ()))
    column = chance.choice([each for each in row if each not in left])
    row[column] = other("" if row[column] is None and column in TEXTS else row[column], chance)
    with_header(path, sealed(header | {"table_of_steps": stored(table_of(rows))}))
    return () if column == "slots" else ("table of steps",)


TEXTS = {each.name for each in COLUMNS if each.type == pa.string()}


def rows_of_table(path, chance, name):
    """Leave a row of the table out, or have it twice."""
    header = header_of(path)
    rows = restored(header["table_of_steps"]).to_pylist()
    i = chance.randrange(len(rows))
    rows = rows[:i] + rows[i + 1 :] if chance.random() < 0.5 else [*rows[: i + 1], *rows[i:]]
    with_header(path, sealed(header | {"table_of_steps": stored(table_of(rows))}))
    return ("table of steps",)


def word_of_header(path, chance, name):
    """Change what a header says, without its hash."""
    header = header_of(path)
    key = chance.choice(["row_groups", "table_of_steps", "key", "description", "version", "format"])
    if key == "description":
        word = chance.choice(sorted(header[key]))
        header[key][word] = [header[key][word]]
    else:
        header[key] = [header[key]]
    with_header(path, header)
    return ()


def number_of_header(path, chance, name):
    """Change a number of rows, steps or samples, or steps of a row group, as if it had been written so."""
    header = header_of(path)
    if chance.random() < 0.3:
        group = chance.choice(header["row_groups"])
        group[chance.randrange(2)] += chance.choice([1, -1, 100])
    else:
        said = header["description"]
        word = chance.choice([each for each in ("rows", "steps", "samples", "first_step", "part") if each in said])
        said[word] = chance.choice([said[word] + 1, -1, 10**9, True, "1", None])
        if chance.random() < 0.2:
            del said[word]
    with_header(path, sealed(header))
    return ()


def digest(path, chance, name):
    """Change the digest, as if it had been written so."""
    header = header_of(path)
    header["description"]["digest"] = f"{chance.randrange(16**64):064x}"
    with_header(path, sealed(header))
    return ("digest",)


def column_gone(path, chance, name):
    """Leave a column out, or have it of another type."""
    table = pq.read_table(path)
    column = chance.choice([each for each in table.column_names if each != "phase"])
    at = table.column_names.index(column)
    if chance.random() < 0.5:
        table = table.drop_columns([column])
    else:
        table = table.set_column(at, column, table[column].cast(pa.float64()))
    pq.write_table(table, path)
    return ("column",)


def bytes_of_file(path, chance, name):
    """Damage some bytes, or cut the file off."""
    data = bytearray(Path(path).read_bytes())
    at = chance.randrange(len(data) // 2)
    if chance.random() < 0.3:
        Path(path).write_bytes(data[:at])
    else:
        data[at : at + 8] = bytes(byte ^ 0x55 for byte in data[at : at + 8])
        Path(path).write_bytes(data)
    return ()


def part_gone(path, chance, name):
    """Remove a part, or call it by another's number."""
    path = Path(path)
    if chance.random() < 0.5:
        path.unlink()
    else:
        others = [each for each in path.parent.iterdir() if each != path]
        shutil.copyfile(chance.choice(others), path)
    return ()


CHANGES = (cell_of_rows, two_rows, cell_of_table, rows_of_table, word_of_header, number_of_header, digest, column_gone,
           bytes_of_file, part_gone)  # fmt: skip


@pytest.mark.more_by_night
@pytest.mark.parametrize("name", ["one", "two"])
@pytest.mark.parametrize("change", CHANGES)
def test_no_changed_plan_is_accepted_and_each_is_named(plans, tmp_path, name, change):
    chance = random.Random(f"{name} {change.__name__}")
    for number in range(examples(3)):
        out = tmp_path / str(number)
        shutil.copytree(plans / name, out)
        path = chance.choice(sorted(out.iterdir()))
        words = change(path, chance, name)
        if words is None:
            continue
        try:
            found = check_run(str(out))
        except (PlanError, InputError) as error:
            told = str(error)
        else:
            # Some bytes of a Parquet file mean nothing: then what is read is the plan that was written.
            assert change is bytes_of_file
            whole = plans / name / path.name
            assert found == check_run(str(plans / name))
            assert pq.read_table(path) == pq.read_table(whole)
            assert header_of(path) == header_of(whole)
            continue
        assert str(out) in told
        assert len(told) > len(str(out)) + 10
        for word in words:
            assert word in told, told
        shutil.rmtree(out)


def test_rows_that_stand_in_another_order_are_the_same_plan(plans, tmp_path):
    """Within a step: what is where is what counts."""
    out = tmp_path / "out"
    shutil.copytree(plans / "one", out)
    path = min(out.iterdir())
    table = pq.read_table(path)
    order = np.arange(len(table))
    order[:4] = order[:4][::-1]
    pq.write_table(table.take(order), path)
    assert check_run(str(out)).steps == check_run(str(plans / "one")).steps
