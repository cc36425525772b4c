"""Measured steps from files: two forms in three formats, the same steps; what is wrong is named by column and row."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import balancer
from balancer.io.measurements import read_measurements

STEPS = [([512, 1024], 0.25), ([77], 0.125), ([], 0.0625), ([5, 6, 7], 1e-3)]
FULL = [step for step in STEPS if step[0]]  # a row a sample knows no empty steps


def wide_csv(path, sep=" "):
    rows = [f"{sep.join(map(str, lengths))},{seconds}" for lengths, seconds in STEPS]
    path.write_text("\n".join(["lengths,seconds", *rows]) + "\n")


def quoted_csv(path):
    rows = [f'"{json.dumps(lengths)}",{seconds}' for lengths, seconds in STEPS]
    path.write_text("\n".join(["lengths,seconds", *rows]) + "\n")


def wide_jsonl(path):
    path.write_text("".join(json.dumps({"lengths": a, "seconds": b, "other": None}) + "\n\n" for a, b in STEPS))


def wide_parquet(path):
    columns = list(zip(*STEPS, strict=True))
    pq.write_table(pa.table({"seconds": columns[1], "lengths": pa.array(columns[0], pa.list_(pa.int32()))}), path)


def long_rows():
    return [(step, length, seconds) for step, (lengths, seconds) in enumerate(FULL) for length in lengths]


def long_csv(path):
    path.write_text("step,length,seconds\n" + "".join(f"{a},{b},{c}\n" for a, b, c in long_rows()))


def long_jsonl(path):
    names = ("step", "length", "seconds")
    path.write_text("".join(json.dumps(dict(zip(names, row, strict=True))) + "\n" for row in long_rows()))


def long_parquet(path):
    columns = zip(*long_rows(), strict=True)
    pq.write_table(pa.table(dict(zip(("step", "length", "seconds"), map(list, columns), strict=True))), path)


WIDE = {
    "blanks.csv": wide_csv,
    "semicolons.csv": lambda path: wide_csv(path, ";"),
    "quoted.csv": quoted_csv,
    "wide.jsonl": wide_jsonl,
    "wide.parquet": wide_parquet,
}
LONG = {"long.csv": long_csv, "long.jsonl": long_jsonl, "long.parquet": long_parquet}


@pytest.mark.parametrize("name", [*WIDE, *LONG])
def test_the_same_steps_from_every_file(name, tmp_path):
    path = tmp_path / name
    ({**WIDE, **LONG})[name](path)
    lengths, seconds, _ = read_measurements(path)
    want = STEPS if name in WIDE else FULL
    assert [step.tolist() for step in lengths] == [step for step, _ in want]
    assert seconds.tolist() == [taken for _, taken in want]


def test_degrees(tmp_path):
    path = tmp_path / "steps.csv"
    path.write_text("degree,lengths,seconds\n1,5 6,0.5\n4,7,0.25\n")
    assert read_measurements(path)[2].tolist() == [1, 4]
    path.write_text("step,length,seconds,degree\nb,1,2.0,8\na,2,3.0,1\nb,3,2.0,8\n")
    lengths, _, degrees = read_measurements(path)
    assert ([step.tolist() for step in lengths], degrees.tolist()) == ([[1, 3], [2]], [8, 1])
    wide_csv(path)
    assert read_measurements(path)[2] is None


def test_rows_of_a_step_need_not_be_neighbours(tmp_path):
    path = tmp_path / "log.csv"
    path.write_text("step,length,seconds\nb,1,2.0\na,2,3.0\nb,3,2.0\n")
    lengths, seconds, _ = read_measurements(path)
    assert [step.tolist() for step in lengths] == [[1, 3], [2]]
    assert seconds.tolist() == [2, 3]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("tokens,time\n1,2\n", "columns are tokens, time; a row a step needs columns lengths, seconds; a row a sample"),
        ("lengths,seconds\n1 2,0.5\n1 x,0.5\n", "column 'lengths', row 1: lengths must be whole numbers .* got 'x'"),
        ("lengths,seconds\n-1,0.5\n", "column 'lengths', row 0: .* got '-1'"),
        ("lengths,seconds\n4294967296,0.5\n", "got '4294967296'"),
        ("lengths,seconds\n1,0\n", "column 'seconds', row 0: must be a positive, finite number, got '0'"),
        ("lengths,seconds\n1,\n", "column 'seconds', row 0: .* got ''"),
        ("step,length,seconds\n0,1,0.5\n0,2,0.6\n", "row 1: must be the 0.5 of row 0, .* same step '0', got '0.6'"),
        ("lengths,seconds,degree\n1,1,2\n1,1,0\n", "column 'degree', row 1: degrees must be whole .* 1 to .* got '0'"),
        (
            "step,length,seconds,degree\n0,1,1,2\n0,1,1,4\n",
            "'degree', row 1: must be the 2 of row 0, .* step '0', got 4",
        ),
        ("step,length,seconds\n0,,0.5\n", "column 'length', row 0"),
        ("lengths,ms\n1,2\n", "columns are lengths, ms; .* length, seconds; rename column 'ms' to 'milliseconds'$"),
        ("length,sec\n1,2\n", "rename column 'sec' to 'seconds'$"),
        ("lengths,seconds,seconds\n1,0.5,0.7\n", "2 columns are named 'seconds'"),
    ],
)
def test_bad_rows(content, words, tmp_path):
    path = tmp_path / "log.csv"
    path.write_text(content)
    with pytest.raises(balancer.InputError, match=words) as caught:
        read_measurements(path)
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"lengths": 3.5, "seconds": 1}, "column 'lengths', row 0: must be a list of lengths, got 3.5"),
        ({"lengths": [True], "seconds": 1}, "got True"),
        ({"lengths": [1], "seconds": True}, "column 'seconds', row 0"),
        ({"lengths": [1], "seconds": [1]}, "column 'seconds', row 0"),
        ({"lengths": [1], "seconds": 10**400}, "column 'seconds', row 0"),
        ({"step": None, "length": 1, "seconds": 1}, "column 'step', row 0: must be an integer or a name"),
    ],
)
def test_bad_json_rows(row, words, tmp_path):
    path = tmp_path / "log.jsonl"
    path.write_text(json.dumps(row) + "\n")
    with pytest.raises(balancer.InputError, match=words):
        read_measurements(path)


def test_other_formats_are_refused(tmp_path):
    path = tmp_path / "log.arrow"
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, pa.schema([("lengths", pa.int64())])) as writer:
        writer.write_table(pa.table({"lengths": [1]}))
    with pytest.raises(balancer.InputError, match="from CSV, Parquet and JSON lines, not from arrow"):
        read_measurements(path)
