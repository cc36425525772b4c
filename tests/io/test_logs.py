import hashlib
import math
import pickle
import struct
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from log_writers import (
    LARGEST,
    WRITERS,
    every_format,
    every_format_with_nulls,
    failure,
    lengths_of,
    write,
)
from nightly import examples

from balancer.errors import InputError
from balancer.io import cells
from balancer.io import log as log_module
from balancer.io.log import (
    LengthLog,
    default_columns,
    default_length,
    open_log,
    parse_length,
    read_columns,
    unit_of,
)
from balancer.io.store import file_sha256


def sent(log):
    """Return what another process gets."""
    return pickle.loads(pickle.dumps(log))  # noqa: S301 (its own)


def failure_or_none(path):
    try:
        lengths_of(path, "n")
    except InputError:
        return failure(path, "n")
    return None


# ---------------------------------------------------------------------------------------------------------
# The same data in every format.

DATA = {
    "text_tokens": [5, 0, 17, LARGEST - 9, 3],
    "caption": ["a", "b c", "d", "e", "f"],
    "image_tokens": [1, 2, 3, 9, 0],
    "score": [0.5, 1.5, 2.5, 3.5, 4.5],
}


@every_format
def test_head_tells_format_and_columns(kind, tmp_path):
    log = open_log(str(write(kind, tmp_path, DATA)))
    assert log == LengthLog(
        tmp_path / WRITERS[kind][1], WRITERS[kind][2], tuple(DATA), ("text_tokens", "image_tokens"), False, ("score",)
    )


@every_format
def test_phases_are_sums_of_their_columns(kind, tmp_path):
    log = open_log(write(kind, tmp_path, DATA))
    phases = {"text": ("text_tokens",), "both": ("image_tokens", "text_tokens"), "image": ("image_tokens",)}
    columns = read_columns(log, phases)
    assert len(columns) == 5
    assert list(columns.sums) == list(phases)
    assert columns.sums["text"].tolist() == DATA["text_tokens"]
    assert columns.sums["image"].tolist() == DATA["image_tokens"]
    assert columns.sums["both"].tolist() == [6, 2, 20, LARGEST, 3]
    for lengths in columns.sums.values():
        assert lengths.dtype == np.int64
        assert not lengths.flags.writeable


@every_format
@settings(max_examples=examples(12))
@given(values=st.lists(st.integers(0, LARGEST), min_size=1, max_size=40))
def test_any_lengths_come_back(kind, tmp_path_factory, values):
    path = write(kind, tmp_path_factory.mktemp("any"), {"length": values})
    assert lengths_of(path, "length") == values


@every_format
def test_whole_floats_are_lengths(kind, tmp_path):
    path = write(kind, tmp_path, {"n": [512.0, 0.0, -0.0, float(2**52)]})
    assert lengths_of(path, "n") == [512, 0, 0, 2**52]


@pytest.mark.parametrize("kind", ["parquet", "arrow_file", "arrow_stream", "csv", "npy"])
def test_content_beats_the_name(kind, tmp_path):
    original = write(kind, tmp_path, {"n": [1, 2]})
    path = tmp_path / "log.data"
    original.rename(path)
    assert open_log(path).format == WRITERS[kind][2]
    assert lengths_of(path, "n") == [1, 2]


@pytest.mark.parametrize("name", ["log", "log.txt", "log.json", "log.NDJSON", "train.manifest"])
def test_json_lines_by_name_or_first_character(name, tmp_path):
    path = tmp_path / name
    path.write_text('\n  {"n": 4}\n\n{"n": 5}')
    assert open_log(path).format == "jsonl"
    assert lengths_of(path) == [4, 5]


# ---------------------------------------------------------------------------------------------------------
# Cells that are no lengths: the message names column, row, value and rule, whatever the format.

BAD_CELLS = {
    "negative": (-3, "-3 is negative; lengths must be >= 0"),
    "fraction": (2.5, "2.5 is a fraction; lengths must be whole numbers"),
    "nan": (math.nan, "is not finite; lengths must be whole numbers"),
    "minus infinite": (-math.inf, "is not finite; lengths must be whole numbers"),
    "too large float": (2.0**63, "is too large; lengths must be < 2**63"),
}


@every_format
@pytest.mark.parametrize("case", BAD_CELLS)
def test_bad_cell_is_named(kind, case, tmp_path):
    value, rule = BAD_CELLS[case]
    number = type(value)
    values = [number(7)] * 17 + [value, number(7), value]
    message = failure(write(kind, tmp_path, {"ok": [1] * 20, "text_tokens": values}), "ok", "text_tokens")
    assert message.startswith("column 'text_tokens', row 17")
    assert message.endswith(rule)


@every_format
def test_unsigned_past_int64_is_named(kind, tmp_path):
    values = [2**63 - 1, 2**63]
    if kind == "npy":
        values = np.array(values, dtype=np.uint64)
    elif kind not in ("csv", "tsv", "jsonl"):
        values = pa.array(values, pa.uint64())
    message = failure(write(kind, tmp_path, {"n": values}), "n")
    assert "column 'n', row 1" in message
    assert message.endswith("9223372036854775808 is too large; lengths must be < 2**63")


@every_format_with_nulls
def test_null_is_named(kind, tmp_path):
    message = failure(write(kind, tmp_path, {"n": [1, 2, None, 4], "m": [1, 1, 1, 1]}), "n")
    assert message.startswith("column 'n', row 2")
    assert "there is no value" in message


@every_format
@pytest.mark.parametrize("values", [["abc", "def"], [True, False]], ids=["text", "bool"])
def test_column_of_no_numbers(kind, values, tmp_path):
    message = failure(write(kind, tmp_path, {"m": [1, 2], "n": values}), "n")
    assert message.startswith("column 'n'")
    if WRITERS[kind][2] in ("csv", "jsonl"):  # they have no types, so it is the cell that is wrong
        assert "row 0" in message
        assert str(values[0]) in message
        assert "is not a number" in message
    else:
        assert "row" not in message
        assert "is of type " in message
        assert "lengths must be whole numbers" in message


@pytest.mark.parametrize("kind", ["parquet", "arrow_file", "arrow_stream", "feather", "jsonl"])
def test_column_of_lists(kind, tmp_path):
    path = write(kind, tmp_path, {"n": [[1], [2, 3]]})
    log = open_log(path)
    assert log.integer_columns == ()
    assert log.list_columns == ("n",)
    assert lengths_of(path, "n") == [1, 2]
    assert unit_of(log, ["n"]) == "how many values a row's list has"


@every_format
def test_sum_past_int64_names_the_row(kind, tmp_path):
    path = write(kind, tmp_path, {"a": [1, 2**62, 2**62, 5], "b": [1, 2**62 - 1, 2**62, 5]})
    message = failure(path, "a", "b")
    assert message == "row 2: a + b is too large a sum; lengths must be < 2**63"
    assert lengths_of(path, "a") == [1, 2**62, 2**62, 5]


@every_format
def test_absent_column_lists_those_there_are(kind, tmp_path):
    message = failure(write(kind, tmp_path, {"a": [1], "b": [1], "c": [1]}), "foo")
    assert message == "no column 'foo'; columns there are: a, b, c"


@every_format
def test_wrong_phases_are_refused(kind, tmp_path):
    log = open_log(write(kind, tmp_path, {"a": [1], "b": [2]}))
    for phases, complaint in [
        ({}, "no columns asked for"),
        ({"p": ()}, "at least one column"),
        ({"p": ("a", "a")}, "no column twice"),
        ({"p": ("a",), "q": ("c",)}, "no column 'c'"),
    ]:
        with pytest.raises(InputError, match=complaint):
            read_columns(log, phases)


@pytest.mark.parametrize("kind", ["parquet", "arrow_file", "arrow_stream", "feather"])
def test_bad_row_in_a_later_block_keeps_its_number(kind, tmp_path, monkeypatch):
    monkeypatch.setattr(log_module, "_ARROW_ROWS", 8)
    values = list(range(30))
    values[20] = -1
    message = failure(write(kind, tmp_path, {"n": values}))
    assert message == "column 'n', row 20: -1 is negative; lengths must be >= 0"


# ---------------------------------------------------------------------------------------------------------
# Files that are no logs.


@pytest.mark.parametrize("name", ["log.parquet", "log.csv", "log.jsonl", "log.arrow", "log.npy", "log"])
def test_missing_directory_and_empty(name, tmp_path):
    path = tmp_path / name
    assert failure(path) == "no such file"
    path.mkdir()
    assert "is a directory" in failure(path)
    path.rmdir()
    path.touch()
    assert "holds no rows" in failure(path)
    path.write_text("\n \n")
    assert "holds no rows" in failure(path)


@pytest.mark.parametrize("name", ["log.csv", "log.jsonl"])
def test_blank_for_longer_than_the_head(name, tmp_path):
    path = tmp_path / name
    path.write_text("\n" * 10_000)
    assert failure(path)
    path.write_text("\n" * 10_000 + ("n\n5\n" if name == "log.csv" else '{"n": 5}'))
    assert lengths_of(path) == [5]


@pytest.mark.parametrize("kind", ["arrow_file", "arrow_stream"])
def test_record_batch_that_claims_more_rows_than_it_has(kind, tmp_path):
    path = write(kind, tmp_path, {"n": [0] * 1234})
    damaged = path.read_bytes().replace(struct.pack("<q", 1234), struct.pack("<q", 5000))
    assert damaged != path.read_bytes()
    path.write_bytes(damaged)
    assert "cannot be read as Arrow IPC" in failure(path)


def test_name_that_no_file_can_have():
    with pytest.raises(InputError, match="cannot be read"):
        open_log("a\0b")
    with pytest.raises(InputError, match="cannot be read"):
        open_log("x" * 5000)


@pytest.mark.parametrize("kind", ["parquet", "arrow_file", "arrow_stream", "feather", "npy"])
def test_no_rows(kind, tmp_path):
    path = write(kind, tmp_path, {"n": np.empty(0, dtype=np.int64)})
    assert "holds no rows" in failure(path, "n")


@pytest.mark.parametrize("header", ["a,b", "a,b\n", "a,b\r\n\r\n"])
def test_csv_with_a_header_only(header, tmp_path):
    path = tmp_path / "log.csv"
    path.write_bytes(header.encode())
    assert "holds no rows" in failure(path, "a")


def test_empty_record_batches_are_skipped(tmp_path):
    path = tmp_path / "log.arrows"
    schema = pa.schema([("n", pa.int64())])
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, schema) as writer:
        for values in ([], [1, 2], [], [3]):
            writer.write_batch(pa.record_batch([pa.array(values, pa.int64())], schema))
    assert lengths_of(path, "n") == [1, 2, 3]


@pytest.mark.parametrize("kind", ["parquet", "arrow_file", "arrow_stream", "feather", "npy"])
def test_truncated_anywhere(kind, tmp_path):
    path = write(kind, tmp_path, {"n": list(range(500)), "m": [1] * 500})
    whole = path.read_bytes()
    survived = 0
    for size in range(1, len(whole), max(1, len(whole) // 50)):
        path.write_bytes(whole[:size])
        survived += failure_or_none(path) is None
    # Only the marker at a stream's end may go amiss unnoticed: its format allows to leave it out.
    assert survived <= (2 if kind == "arrow_stream" else 0)


@pytest.mark.parametrize("kind", WRITERS)
def test_damaged_bytes_give_lengths_or_an_input_error(kind, tmp_path):
    path = write(kind, tmp_path, {"n": list(range(50)), "m": [1] * 50})
    whole = path.read_bytes()
    rng = np.random.default_rng(7)
    failed = 0
    for _ in range(30):
        damaged = bytearray(whole)
        for at in rng.integers(0, len(whole), 4):
            damaged[at] = rng.integers(0, 256)
        path.write_bytes(damaged)
        failed += failure_or_none(path) is not None
    assert failed


@pytest.mark.parametrize("name", ["log.parquet", "log.arrow", "log.feather", "log.npy"])
def test_name_of_a_binary_format_on_text(name, tmp_path):
    path = tmp_path / name
    path.write_text("a,b\n1,2\n")
    assert "does not begin as a" in failure(path, "a")


@pytest.mark.parametrize(
    ("head", "remedy"),
    [(b"\x1f\x8b\x08", "it may be truncated or damaged"), (b"PK\x03\x04", "unpack"), (b"FEA1", "write it again")],
)
def test_known_files_that_are_no_logs(head, remedy, tmp_path):
    path = tmp_path / "log.csv"
    path.write_bytes(head + b"\0" * 50)
    assert remedy in failure(path)


# ---------------------------------------------------------------------------------------------------------
# A log is read once.


@every_format
def test_a_column_is_read_once(kind, tmp_path):
    log = open_log(path := write(kind, tmp_path, {"n": [5, 6], "m": [1, 2]}))
    assert read_columns(log, {"n": ("n",)}).sums["n"].tolist() == [5, 6]
    other = sent(log)  # what another process is sent
    path.unlink()
    assert read_columns(log, {"n": ("n",)}).sums["n"].tolist() == [5, 6]
    for each, columns in ((log, ("n", "m")), (other, ("n",))):
        with pytest.raises(InputError, match="no such file"):
            read_columns(each, {"p": columns})


def test_another_process_reads_a_log_once_for_all_that_it_is_sent(tmp_path):
    log = open_log(write("csv", tmp_path, {"n": [5, 6]}))
    first, second = (sent(log) for _ in range(2))
    assert first is second is not log
    assert first == log


def test_a_table_in_memory_is_a_log(tmp_path):
    log = open_log({"n": [5, 6], "pages": [[1], [2, 3]]})
    assert (log.integer_columns, log.list_columns) == (("n",), ("pages",))
    assert read_columns(log, {"n": ("n",)}, lists=["pages"]).lists["pages"].to_lists() == [[1], [2, 3]]
    other = sent(log)
    assert read_columns(other, {"n": ("n",)}).sums["n"].tolist() == [5, 6]
    with pytest.raises(InputError, match=r"the table: column 'n', row 1: -6 is negative; lengths must be >= 0"):
        read_columns(open_log({"n": [5, -6]}), {"n": ("n",)})
    with pytest.raises(InputError, match="the table: holds no rows"):
        open_log({"n": []})


def test_a_log_that_was_written_again_is_told_so(tmp_path):
    path = write("parquet", tmp_path, {"n": [5, 6], "m": [1, 2]})
    log = open_log(path)
    assert len(read_columns(log, {"n": ("n",)})) == 2
    write("parquet", tmp_path, {"n": [5, 6, 7], "m": [1, 2, 3]})
    with pytest.raises(InputError, match="changed while it was read: it has 3 rows"):
        read_columns(log, {"p": ("n", "m")})


def test_a_row_longer_than_a_block_is_told_so(tmp_path, monkeypatch):
    monkeypatch.setattr(log_module, "_TEXT_BLOCK_BYTES", 1 << 20)
    path = tmp_path / "log.csv"
    path.write_text("n,text\n1,a\n2," + "x" * (1 << 21) + "\n")
    assert failure(path, "n").startswith("a row is longer than 1 MiB")
    path = tmp_path / "log.jsonl"  # is read line by line then
    path.write_text('{"n": 1}\n{"n": 2, "text": "' + "x" * (1 << 21) + '"}\n')
    assert lengths_of(path, "n") == [1, 2]


# ---------------------------------------------------------------------------------------------------------
# Choosing the columns.


def log_with(columns, integers):
    return LengthLog(Path("log.csv"), "csv", tuple(columns), tuple(integers), False)


def test_default_length():
    assert default_length(log_with("ab", "b")) == ("b",)
    with pytest.raises(InputError, match=r"2 columns of integers.*they are: b, c\nsay .*--length"):
        default_length(log_with("abc", "bc"))
    with pytest.raises(InputError, match=r"no columns of integers.*columns there are: a, b\nsay .*--length"):
        default_length(log_with("ab", ""))


@pytest.mark.parametrize(
    "name",
    ["id", "sample_id", "sampleId", "sampleID", "ID", "docid", "Index", "idx", "row", "row_no", "uid", "Unnamed: 0",
     "cache-key", "timestamp", "image.id", "line_2"],
)  # fmt: skip
def test_an_identifier_is_no_length(name):
    with pytest.raises(InputError, match=r"integers, '.*', is by its name an identifier.*\nsay which with --length"):
        default_length(log_with(["text", name], [name]))


@pytest.mark.parametrize("name", ["n", "tokens", "num_tokens", "length", "id_len", "rows_read", "paid", "grid", "väl"])
def test_other_names_are_lengths(name):
    assert default_length(log_with(["text", name], [name])) == (name,)


def test_floats_are_named_where_the_length_is_open():
    log = LengthLog(Path("log.csv"), "csv", ("id", "duration", "score"), ("id",), False, ("duration", "score"))
    with pytest.raises(
        InputError, match=r"floats \(duration, score\) are lengths only where .* JSON lines with a 'dur"
    ):
        default_length(log)


@every_format
def test_a_column_that_counts_rows_is_no_length(kind, tmp_path):
    start = 1
    path = write(kind, tmp_path, {"note": ["a"] * 3000, "value": list(range(start, start + 3000))})
    counts = rf"'value', counts rows \({start}, {start + 1}, {start + 2}, \.\.\.\)"
    with pytest.raises(InputError, match=rf"{counts} and holds no lengths; columns .*: note, value\nsay which"):
        default_columns(open_log(path))


@pytest.mark.parametrize("kind", ["parquet", "csv", "jsonl"])
@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("tokens", list(range(50))),  # by its name
        ("value", [3, 4, 5]),  # few
        ("value", [*range(500), 7, *range(501, 600)]),
        ("value", [7] * 50),
    ],
)
def test_a_column_that_may_be_lengths_is_taken(kind, name, values, tmp_path):
    path = write(kind, tmp_path, {"note": ["a"] * len(values), name: values})
    assert default_columns(open_log(path)) == (name,)


def test_an_array_of_lengths_may_count(tmp_path):
    np.save(tmp_path / "log.npy", np.arange(100))
    assert default_columns(open_log(tmp_path / "log.npy")) == ("length",)


def test_many_columns_are_not_all_listed():
    names = [f"column{i}" for i in range(1000)]
    with pytest.raises(InputError, match=r"column29, \.\.\. \(970 more\)"):
        default_length(log_with(names, ""))


def test_parse_length():
    assert parse_length("a") == ("a",)
    assert parse_length("text_tokens+image_tokens") == ("text_tokens", "image_tokens")
    assert parse_length(" a b + c.d ") == ("a b", "c.d")
    for expression in ("", " ", "+", "a+", "+a", "a++b"):
        with pytest.raises(InputError, match="empty part"):
            parse_length(expression)
    with pytest.raises(InputError, match="column 'a' twice"):
        parse_length("a+b+a")


def test_file_sha256(tmp_path):
    path = tmp_path / "any"
    data = np.random.default_rng(0).bytes(3_000_000)
    path.write_bytes(data)
    assert file_sha256(path) == file_sha256(str(path)) == hashlib.sha256(data).hexdigest()
    with pytest.raises(InputError, match="No such file"):
        file_sha256(tmp_path / "none")


def test_shown_stays_on_one_line():
    assert cells.shown("a\nb") == "'a\\nb'"
    assert len(cells.shown("x" * 1000)) == 60
    assert cells.shown([1, "a\nb"]) == "[1, 'a\\nb']"


@pytest.mark.parametrize("order", [("a", "b"), ("b", "a")])
def test_an_empty_file_among_several_has_no_rows(tmp_path, order):
    (tmp_path / "a.csv").write_text("")
    (tmp_path / "b.csv").write_text("tokens\n1\n2\n")
    log = open_log([tmp_path / f"{name}.csv" for name in order])
    assert read_columns(log, {"tokens": ("tokens",)}).sums["tokens"].tolist() == [1, 2]
