"""What each format of a log may hold: Arrow's types, CSV, JSON lines, speech manifests, NumPy."""

import json
import math
from fractions import Fraction

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from log_writers import LARGEST, every_format, failure, lengths_of, write
from nightly import examples

from balancer.io import log as log_module
from balancer.io.log import default_length, open_log, read_columns, unit_of

# ---------------------------------------------------------------------------------------------------------
# Arrow types.


@pytest.mark.parametrize("kind", ["parquet", "arrow_stream"])
@pytest.mark.parametrize(
    "kept",
    [
        pa.int8(),
        pa.uint32(),
        pa.uint64(),
        pa.float16(),
        pa.float64(),
        pa.decimal128(30, 2),
        pa.dictionary(pa.int32(), pa.int64()),
    ],
    ids=str,
)
def test_numeric_types(kind, kept, tmp_path):
    values = [100, 0, 7, 100]
    inner = kept.value_type if pa.types.is_dictionary(kept) else kept
    array = pa.array(values).cast(inner)
    path = write(kind, tmp_path, {"n": array.dictionary_encode() if inner is not kept else array})
    assert lengths_of(path, "n") == values
    assert open_log(path).integer_columns == (("n",) if pa.types.is_integer(inner) else ())


def test_fractional_decimal(tmp_path):
    path = write("parquet", tmp_path, {"n": pa.array(["1.00", "2.00"]).cast(pa.decimal128(10, 2))})
    assert lengths_of(path, "n") == [1, 2]
    path = write("parquet", tmp_path, {"n": pa.array(["1.00", "2.25"]).cast(pa.decimal128(10, 2))})
    assert failure(path, "n").startswith("column 'n', row 1: 2.25 is a fraction")


def test_null_in_a_dictionary(tmp_path):
    path = write("parquet", tmp_path, {"n": pa.array([5, None, 5]).dictionary_encode()})
    assert "row 1: there is no value" in failure(path, "n")


def test_dictionary_index_out_of_range(tmp_path):
    indices = pa.array([0, 9], pa.int32())
    array = pa.DictionaryArray.from_arrays(indices, pa.array([4, 5]), safe=False)
    path = write("arrow_file", tmp_path, {"n": array})
    assert "damaged" in failure(path, "n")


def test_columns_of_the_same_name(tmp_path):
    table = pa.table([pa.array([1]), pa.array([2]), pa.array([3])], names=["a", "a", "b"])
    path = tmp_path / "log.arrow"
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    assert failure(path, "a") == "2 columns are named 'a'; rename all but one"
    assert lengths_of(path, "b") == [3]
    path = tmp_path / "log.csv"
    path.write_text("a,a,b\n1,2,3\n")
    assert failure(path, "a") == "2 columns are named 'a'; rename all but one"
    assert lengths_of(path, "b") == [3]


def test_flat_column_beside_a_nested_one_of_the_same_path(tmp_path):
    path = write("parquet", tmp_path, {"a": [{"b": 1}, {"b": 2}], "a.b": [3, 4]})
    assert lengths_of(path, "a.b") == [3, 4]
    assert "struct" in failure(path, "a")


# ---------------------------------------------------------------------------------------------------------
# CSV.


def csv(folder, text, name="log.csv"):
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


@pytest.mark.parametrize(
    ("cell", "length"),
    [
        ("512", 512),
        (" 512 ", 512),
        ('"7"', 7),
        ("5.12e2", 512),
        ("-0", 0),
        ("9007199254740993.0", 9007199254740993),
        ("9223372036854775807.00", LARGEST),
    ],
)
def test_csv_spellings_of_a_length(cell, length, tmp_path):
    assert lengths_of(csv(tmp_path, f"a,n\nx,1\ny,{cell}\n"), "n") == [1, length]


@pytest.mark.parametrize(
    ("cell", "complaint"),
    [
        ("abc", "'abc' is not a number"),
        ("0x10", "'0x10' is not a number"),
        ("", "there is no value"),
        ("-0.5", "-0.5 is negative"),
        ("2.0000000000000000001", "2.0000000000000000001 is a fraction"),
        ("1e999999", "1E+999999 is too large"),
        ("1e99999999999999999999", "is not a number"),
        ("-Infinity", "-inf is not finite"),
        ("9223372036854775808", "9223372036854775808 is too large"),
        ("x" * 1000, "..."),
    ],
)
def test_csv_cells_that_are_no_length(cell, complaint, tmp_path):
    message = failure(csv(tmp_path, f"a,n\nx,1\ny,{cell}\n"), "n")
    assert message.startswith("column 'n', row 1: ")
    assert complaint in message
    assert len(message) < 200


def test_csv_type_of_a_later_block_does_not_matter(tmp_path, monkeypatch):
    monkeypatch.setattr(log_module, "_TEXT_BLOCK_BYTES", 256)
    rows = [f"{i},t" for i in range(500)] + ["512.0,t", "7,t"]
    path = csv(tmp_path, "n,a\n" + "\n".join(rows) + "\n")
    assert open_log(path).integer_columns == ("n",)
    assert lengths_of(path) == [*range(500), 512, 7]
    path = csv(tmp_path, "n,a\n" + "\n".join([*rows, "oops,t"]) + "\n")
    assert failure(path) == "column 'n', row 502: 'oops' is not a number; lengths must be whole numbers"


@pytest.mark.parametrize("row", ["3", "3,4,5"])
def test_csv_ragged_row(row, tmp_path, monkeypatch):
    path = csv(tmp_path, "a,b\n1,2\n" + row + "\n")
    assert "row 1: Expected 2 columns" in failure(path, "a")
    monkeypatch.setattr(log_module, "_TEXT_BLOCK_BYTES", 64)
    path = csv(tmp_path, "a,b\n" + "1,2\n" * 300 + row + "\n")
    assert "row 300: Expected 2 columns" in failure(path, "a")


def test_text_with_two_numbers_on_a_line(tmp_path, monkeypatch):
    path = tmp_path / "lengths.txt"
    path.write_text("5\n6\n7,8\n9\n")
    assert "row 2: Expected 1 columns" in failure(path)
    monkeypatch.setattr(log_module, "_TEXT_BLOCK_BYTES", 64)
    path.write_text("5\n" * 300 + "7,8\n")
    assert "row 300: Expected 1 columns" in failure(path)


def test_csv_quotes_line_ends_marks_and_blank_lines(tmp_path):
    assert lengths_of(csv(tmp_path, 'caption,n\n"two\nlines, and a comma",5\n\n"""q""",6\n'), "n") == [5, 6]
    assert lengths_of(csv(tmp_path, b"\xef\xbb\xbfn,a\r\n5,x\r\n6,y\r\n")) == [5, 6]


@pytest.mark.parametrize("text", ["512,1.5\n256,2.5\n", "chat,431\nweb,256\n", "\n1e3,a\n5,b\n"])
def test_csv_without_a_header(text, tmp_path):
    assert "looks like data" in failure(csv(tmp_path, text))


def test_csv_line_ends_in_quotes_at_a_block_boundary(tmp_path, monkeypatch):
    monkeypatch.setattr(log_module, "_TEXT_BLOCK_BYTES", 64)
    rows = "".join(f'"one\ntwo\n\nfour",{i}\n' for i in range(200))
    assert lengths_of(csv(tmp_path, "caption,n\n" + rows), "n") == list(range(200))


def test_csv_that_is_not_utf8(tmp_path):
    assert "cannot be read as CSV" in failure(csv(tmp_path, b"n,a\n1,x\n\xff2,y\n"), "n")
    assert lengths_of(csv(tmp_path, b"n,a\n1,x\n2,\xff\n"), "n") == [1, 2]
    assert "cannot be read as CSV" in failure(csv(tmp_path, "n,a\n1,x\n".encode("utf-16")), "n")


# ---------------------------------------------------------------------------------------------------------
# JSON lines.


def jsonl(folder, *lines, name="log.jsonl"):
    path = folder / name
    path.write_bytes(b"\n".join(line if isinstance(line, bytes) else line.encode() for line in lines) + b"\n")
    return path


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ('{"n": 1', "is no JSON: Expecting ',' delimiter at character 8"),
        ("[1, 2]", "is [1, 2], not an object"),
        ("null", "is None, not an object"),
        (b'{"n": "\xff"}', "is no JSON: not UTF-8"),
        ("[" * 100_000, "is no JSON: nested too deeply"),
        ('{"n": 1e99999999999999999999}', "is no JSON: "),
        ('{"n": %s}' % ("9" * 5000), "is no JSON: "),
    ],
)
def test_json_line_that_is_no_row(line, complaint, tmp_path):
    head = [json.dumps({"n": 1})] * 150
    message = failure(jsonl(tmp_path, *head, "", line))
    assert message.startswith("row 150 (line 152) ")
    assert complaint in message
    assert "one object a line" in message
    assert len(message) < 300
    # ... and when the head already has it.
    assert failure(jsonl(tmp_path, line, name="log.json")).startswith("row 0 (line 1) ")


@pytest.mark.parametrize(
    ("cell", "complaint"),
    [
        ("true", "True is not a number"),
        ('"5"', "'5' is not a number"),
        ("null", "there is no value"),
        ("NaN", "nan is not finite"),
        ("-1", "-1 is negative"),
        ("9007199254740993.5", "9007199254740993.5 is a fraction"),
        ("9" * 400, "is too large"),
        ("1e999999999", "is too large"),
        ("1e-999999999", "is a fraction"),
    ],
)
def test_json_cells_that_are_no_length(cell, complaint, tmp_path):
    message = failure(jsonl(tmp_path, '{"n": 3}', "", f'{{"n": {cell}}}', '{"n": -1}'), "n")
    assert message.startswith("column 'n', row 1 (line 3): ")
    assert complaint in message
    assert len(message) < 200


def test_json_missing_key(tmp_path):
    path = jsonl(tmp_path, '{"n": 3, "m": 1}', '{"m": 2}')
    assert "column 'n', row 1 (line 2): there is no value" in failure(path, "n")
    assert lengths_of(path, "m") == [1, 2]


def test_json_byte_order_mark_and_line_ends(tmp_path):
    assert lengths_of(jsonl(tmp_path, b'\xef\xbb\xbf{"n": 3}\r', '{"n": 5.0}\r'), "n") == [3, 5]


def test_json_array_is_refused(tmp_path):
    path = tmp_path / "log.json"
    path.write_text(json.dumps([{"n": 1}, {"n": 2}], indent=1))
    assert "one object a line" in failure(path)


def test_json_later_blocks(tmp_path, monkeypatch):
    monkeypatch.setattr(log_module, "_JSON_ROWS", 4)
    lines = [json.dumps({"n": i}) for i in range(10)]
    log = open_log(jsonl(tmp_path, *lines))
    assert read_columns(log, {"p": ("n",)}).sums["p"].tolist() == list(range(10))
    monkeypatch.setattr(log_module, "_TEXT_BLOCK_BYTES", 20)
    lines[9] = '{"n": -9}'
    assert failure(jsonl(tmp_path, *lines)).startswith("column 'n', row 9 (line 10): -9 is negative")
    lines[9] = '{"n": -9.0}'  # which Arrow refuses: it is read line by line
    assert failure(jsonl(tmp_path, *lines), "n").startswith("column 'n', row 9 (line 10): -9.0 is negative")


# ---------------------------------------------------------------------------------------------------------
# Speech manifests.


def manifest(folder, *durations):
    rows = [f'{{"audio_filepath": "a.wav", "text": "x", "offset": 3, "duration": {d}}}' for d in durations]
    return jsonl(folder, *rows)


def test_manifest_is_recognised(tmp_path):
    log = open_log(manifest(tmp_path, "1.5"))
    assert log.is_manifest
    assert log.integer_columns == ("offset",)
    assert default_length(log) == ("duration",)
    assert unit_of(log, ("duration",)) == "frames of 10 ms: ceil(100 * duration)"
    assert unit_of(log, ("offset",)) == "as recorded"


@pytest.mark.parametrize(
    ("duration", "frames"),
    [
        ("1.1", 110),
        ("0", 0),
        ("-0.0", 0),
        ("0.0000001", 1),
        ("1e-999999999", 1),
        ("1.001", 101),
        ("1E2", 10_000),
        ("92233720368547758.07", LARGEST),
        ("1." + "0" * 40 + "1", 101),
    ],
)
def test_frames_are_exact(duration, frames, tmp_path):
    assert lengths_of(manifest(tmp_path, duration)) == [frames]


@settings(max_examples=examples(30))
@given(hundredths=st.lists(st.decimals(0, 10**9, allow_nan=False, places=6), min_size=1, max_size=20))
def test_frames_against_fractions(tmp_path_factory, hundredths):
    path = manifest(tmp_path_factory.mktemp("frames"), *hundredths)
    assert lengths_of(path) == [math.ceil(100 * Fraction(seconds)) for seconds in hundredths]


@pytest.mark.parametrize(
    ("duration", "complaint"),
    [
        ("-0.001", "-0.001 is negative"),
        ("NaN", "nan is not finite"),
        ("true", "True is not a number"),
        ('"1.5"', "'1.5' is not a number"),
        ("92233720368547758.071", "is too large"),
        ("1e400", "is too large"),
        ("1e999999999", "is too large"),  # not to be written out in digits
    ],
)
def test_durations_that_are_none(duration, complaint, tmp_path):
    message = failure(manifest(tmp_path, "1.5", duration))
    assert message.startswith("column 'duration', row 1 (line 2): ")
    assert complaint in message
    assert "duration" in message.split(": ", 1)[1]


@every_format
def test_duration_is_special_in_json_lines_only(kind, tmp_path):
    log = open_log(write(kind, tmp_path, {"duration": [3, 5]}))
    assert log.is_manifest == (kind == "jsonl")
    assert lengths_of(log.path) == ([300, 500] if kind == "jsonl" else [3, 5])
    if kind != "jsonl":
        assert unit_of(log, ("duration",)) == "as recorded"


# ---------------------------------------------------------------------------------------------------------
# NumPy.


@pytest.mark.parametrize("dtype", ["<i8", ">i8", "u1", "<u8", "<f4", "<f8", "<f2", ">i4"])
def test_npy_plain(dtype, tmp_path):
    path = tmp_path / "log.npy"
    np.save(path, np.array([7, 0, 255], dtype=dtype))
    log = open_log(path)
    assert log.columns == ("length",)
    assert log.integer_columns == (() if "f" in dtype else ("length",))
    assert lengths_of(path, "length") == [7, 0, 255]


@pytest.mark.parametrize("shape", [(), (3, 1), (1, 2, 3)])
def test_npy_of_another_shape(shape, tmp_path):
    path = tmp_path / "log.npy"
    np.save(path, np.zeros(shape, dtype=np.int64))
    assert f"has shape {shape}" in failure(path)


@pytest.mark.parametrize("values", [[True], ["a"], [1j], [np.datetime64("2020-01-01")]], ids=str)
def test_npy_of_no_numbers(values, tmp_path):
    path = tmp_path / "log.npy"
    np.save(path, np.array(values))
    assert "column 'length' is of type" in failure(path, "length")


def test_npy_of_objects_is_never_unpickled(tmp_path):
    path = tmp_path / "log.npy"
    np.save(path, np.array([1, None], dtype=object), allow_pickle=True)
    assert "Python objects" in failure(path)


def test_npy_nested_field(tmp_path):
    path = tmp_path / "log.npy"
    np.save(path, np.zeros(3, dtype=[("n", "<i8"), ("pair", "<i8", (2,))]))
    assert lengths_of(path) == [0, 0, 0]
    assert "column 'pair' is of type" in failure(path, "pair")
