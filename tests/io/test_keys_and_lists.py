"""Key columns and columns of lists, in every format that has them."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from log_writers import WRITERS, every_format, every_format_with_nulls, write
from nightly import examples

from balancer.errors import InputError
from balancer.io import log as log_module
from balancer.io.log import open_log, read_columns

LARGEST = 2**63 - 1

LIST_KINDS = ["parquet", "arrow_file", "arrow_stream", "feather", "jsonl"]
TYPED_KINDS = [kind for kind in LIST_KINDS if kind != "jsonl"]
every_list_format = pytest.mark.parametrize("kind", LIST_KINDS)
every_typed_format = pytest.mark.parametrize("kind", TYPED_KINDS)


def whole(path, **wanted):
    return read_columns(open_log(path), **{"sums": {}, **wanted})


def keys_of(path, name="k"):
    return whole(path, keys=[name]).keys[name].tolist()


def lists_of(path, name="n"):
    return whole(path, lists=[name]).lists[name].to_lists()


def failure(path, **wanted):
    with pytest.raises(InputError) as caught:
        whole(path, **wanted)
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert len(message) - len(str(path)) < 250
    return message.removeprefix(f"{path}: ")


def jsonl(folder, *rows):
    path = folder / "log.jsonl"
    path.write_text("".join(row + "\n" for row in rows))
    return path


# ---------------------------------------------------------------------------------------------------------
# Keys.


@every_format
def test_integer_keys(kind, tmp_path):
    path = write(kind, tmp_path, {"k": [3, -1, 3, LARGEST, -(2**63)], "n": [1, 2, 3, 4, 5]})
    block = whole(path, sums={"all": ("n",)}, keys=["k"])
    expected = [3, -1, 3, LARGEST, -(2**63)]
    if WRITERS[kind][2] == "csv":  # it has no types
        expected = [str(key) for key in expected]
    else:
        assert block.keys["k"].dtype == np.int64
    assert block.keys["k"].tolist() == expected
    assert block.sums["all"].tolist() == [1, 2, 3, 4, 5]
    assert not block.keys["k"].flags.writeable


@every_format
def test_text_keys(kind, tmp_path):
    path = write(kind, tmp_path, {"n": [1, 2, 3], "k": ["page 1", "père", "page 1"]})
    block = whole(path, keys=["k"])
    assert block.keys["k"].dtype == object
    assert block.keys["k"].tolist() == ["page 1", "père", "page 1"]
    assert {type(key) for key in block.keys["k"]} == {str}


@every_format
def test_a_column_may_be_key_and_length(kind, tmp_path):
    path = write(kind, tmp_path, {"n": [1, 2, 1], "m": [0, 1, 0]})
    block = whole(path, sums={"a": ("n", "m"), "b": ("n",)}, keys=["n", "m", "n"])
    assert block.sums["a"].tolist() == [1, 3, 1]
    assert [int(key) for key in block.keys["n"]] == [1, 2, 1]
    assert list(block.keys) == ["n", "m"]


@every_typed_format
@pytest.mark.parametrize(
    ("array", "expected"),
    [
        (pa.array(["a", "b", "a"]).dictionary_encode(), ["a", "b", "a"]),
        (pa.array([7, 5, 7]).dictionary_encode(), [7, 5, 7]),
        (pa.array(["a", "", "c"], pa.large_string()), ["a", "", "c"]),
        (pa.array([1, 2, 255], pa.uint8()), [1, 2, 255]),
        (pa.array([1, 2, LARGEST], pa.uint64()), [1, 2, LARGEST]),
        (pa.array([-1, 2, 3], pa.int16()), [-1, 2, 3]),
    ],
    ids=str,
)
def test_types_of_keys(kind, array, expected, tmp_path):
    assert keys_of(write(kind, tmp_path, {"k": array})) == expected


@every_format_with_nulls
@pytest.mark.parametrize("values", [[5, None, 6], ["a", None, "b"]], ids=["integers", "text"])
def test_missing_key_is_named(kind, values, tmp_path):
    message = failure(write(kind, tmp_path, {"n": [1, 2, 3], "k": values}), keys=["k"])
    assert message.startswith("column 'k', row 1")
    assert "there is no value" in message
    assert "every row needs a key" in message


def test_missing_keys_of_text_formats(tmp_path):
    assert "column 'k', row 1 (line 2): there is no value" in failure(
        jsonl(tmp_path, '{"k": "a", "n": 1}', '{"n": 1}'), keys=["k"]
    )
    path = tmp_path / "log.csv"
    path.write_text('k,n\n007,1\n" ",2\n')
    assert "column 'k', row 1: there is no value" in failure(path, keys=["k"])
    path.write_text('k,n\n007,1\n" a",2\n')
    assert keys_of(path) == ["007", " a"]  # as written


@pytest.mark.parametrize("kind", [*TYPED_KINDS, "npy"])
@pytest.mark.parametrize("values", [[0.5, 1.0], [True, False]], ids=["floats", "bools"])
def test_types_that_are_no_keys(kind, values, tmp_path):
    message = failure(write(kind, tmp_path, {"k": values}), keys=["k"])
    assert message.startswith("column 'k' is of type ")
    assert "a key column must hold integers, or text" in message


@every_list_format
def test_lists_are_no_keys(kind, tmp_path):
    message = failure(write(kind, tmp_path, {"k": [[1], [2]]}), keys=["k"])
    assert message.startswith("column 'k'")
    assert "a key column must hold integers, or text" in message


@pytest.mark.parametrize("kind", [*TYPED_KINDS, "npy"])
def test_unsigned_key_past_int64(kind, tmp_path):
    values = np.array([1, 2**63], dtype=np.uint64)
    path = write(kind, tmp_path, {"k": values if kind == "npy" else pa.array(values)})
    assert failure(path, keys=["k"]).startswith("column 'k', row 1: 9223372036854775808 does not fit")


@pytest.mark.parametrize(
    ("cells", "row", "complaint"),
    [
        (["1", '"a"'], 1, "'a' is text after integers"),
        (['"a"', "1"], 1, "1 is an integer after text"),
        (["1", "true"], 1, "True is neither an integer nor text"),
        (["1.5", "1"], 0, "1.5 is neither"),
        (["1", "[1]"], 1, "[1] is neither"),
        (['"a"', "null"], 1, "there is no value"),
        (["null", "1"], 0, "there is no value"),
        (["1", str(2**63)], 1, "9223372036854775808 does not fit"),
        (["1", str(-(2**63) - 1)], 1, "-9223372036854775809 does not fit"),
    ],
)
def test_json_cells_that_are_no_keys(cells, row, complaint, tmp_path):
    message = failure(jsonl(tmp_path, *(f'{{"k": {cell}}}' for cell in cells)), keys=["k"])
    assert message.startswith(f"column 'k', row {row} (line {row + 1}): {complaint}")


def test_json_keys_of_another_kind_in_a_later_block(tmp_path, monkeypatch):
    monkeypatch.setattr(log_module, "_JSON_ROWS", 2)
    path = jsonl(tmp_path, '{"k": 1}', '{"k": 2}', "", '{"k": "a"}')
    message = failure(path, keys=["k"])
    assert message.startswith("column 'k', row 2 (line 4): 'a' is not of the kind of the rows before")


@pytest.mark.parametrize("kind", ["parquet", "arrow_file"])
def test_text_that_is_no_utf8(kind, tmp_path):
    path = write(kind, tmp_path, {"k": pa.array([b"ok", b"\xff\xfe"]).view(pa.string())})
    assert "column 'k' is damaged" in failure(path, keys=["k"])


# ---------------------------------------------------------------------------------------------------------
# Lists.

ROWS = [[5, 3], [], [LARGEST], [0, 0, 7], []]


@every_list_format
def test_lists_come_back(kind, tmp_path):
    path = write(kind, tmp_path, {"a": [1, 2, 3, 4, 5], "n": ROWS, "m": [[1]] * 5})
    block = whole(path, sums={"all": ("a",)}, lists=["n", "m", "n"])
    assert block.lists["n"].to_lists() == ROWS
    assert block.lists["m"].to_lists() == [[1]] * 5
    assert list(block.lists) == ["n", "m"]
    assert block.sums["all"].tolist() == [1, 2, 3, 4, 5]


@every_list_format
@settings(max_examples=examples(12))
@given(rows=st.lists(st.lists(st.integers(0, LARGEST), max_size=4), min_size=1, max_size=20))
def test_any_lists_come_back(kind, tmp_path_factory, rows):
    path = write(kind, tmp_path_factory.mktemp("any"), {"n": pa.array(rows, pa.list_(pa.int64())).to_pylist()})
    assert lists_of(path) == rows


@every_typed_format
@pytest.mark.parametrize(
    "made",
    [
        pa.list_(pa.int32()),
        pa.list_(pa.uint64()),
        pa.large_list(pa.int16()),
        pa.list_(pa.float64()),
        pa.list_(pa.decimal128(20, 0)),
        pa.list_(pa.int64(), 2),
        pa.list_(pa.dictionary(pa.int32(), pa.int64())),
    ],
    ids=str,
)
def test_types_of_lists(kind, made, tmp_path):
    rows = [[5, 3], [0, 7], [1, 1]]
    if pa.types.is_dictionary(made.value_type):
        items = pa.array([5, 3, 0, 7, 1, 1]).dictionary_encode()
        array = pa.ListArray.from_arrays(pa.array([0, 2, 4, 6], pa.int32()), items)
    else:
        array = pa.array(rows, made)
    assert lists_of(write(kind, tmp_path, {"n": array})) == rows


@every_list_format
def test_lists_of_later_blocks(kind, tmp_path, monkeypatch):
    monkeypatch.setattr(log_module, "_ARROW_ROWS", 8)
    rows = [[i] * (i % 4) for i in range(50)]
    path = write(kind, tmp_path, {"n": rows, "k": list(range(50))})
    assert lists_of(path) == rows
    rows[43][2] = -5
    message = failure(write(kind, tmp_path, {"n": rows}), lists=["n"])
    line = " (line 44)" if kind == "jsonl" else ""
    assert message == f"column 'n', row 43{line}, item 2: -5 is negative; lengths must be >= 0"


@every_list_format
@pytest.mark.parametrize(
    ("value", "complaint"),
    [
        (-3, "-3 is negative; lengths must be >= 0"),
        (2.5, "2.5 is a fraction; lengths must be whole numbers"),
        (None, "there is no value"),
    ],
)
def test_bad_item_is_named(kind, value, complaint, tmp_path):
    number = type(value) if value is not None else int
    rows = [[number(1)], [], [number(1), number(2), value], [value]]
    message = failure(write(kind, tmp_path, {"ok": [[1]] * 4, "n": rows}), lists=["ok", "n"])
    line = " (line 3)" if kind == "jsonl" else ""
    assert message.startswith(f"column 'n', row 2{line}, item 2: {complaint}")


@every_list_format
@pytest.mark.parametrize("values", [[[1], [], None, [2]], [[1], [2], None, None]], ids=["one", "two"])
def test_missing_list_is_named(kind, values, tmp_path):
    message = failure(write(kind, tmp_path, {"n": values}), lists=["n"])
    assert message.startswith("column 'n', row 2")
    assert "there is no list (null or missing); a row without items needs an empty one" in message


@every_typed_format
@pytest.mark.parametrize("values", [[1, 2], ["a", "b"], [["a"], ["b"]], [[[1]], [[2]]], [[True], []]], ids=str)
def test_columns_of_no_lists(kind, values, tmp_path):
    message = failure(write(kind, tmp_path, {"n": values}), lists=["n"])
    assert message.startswith("column 'n' is of type ")
    assert "each row must hold a list of whole numbers" in message


@pytest.mark.parametrize(
    ("cell", "complaint"),
    [
        ("5", ": 5 is no list; each row must hold a list"),
        ('"[5]"', ": '[5]' is no list"),
        ('{"a": 1}', ": {'a': 1} is no list"),
        ("[1, true]", ", item 1: True is not a number"),
        ("[[1]]", ", item 0: [1] is not a number"),
        ("[1e999]", ", item 0: 1E+999 is too large"),
    ],
)
def test_json_cells_that_are_no_lists(cell, complaint, tmp_path):
    message = failure(jsonl(tmp_path, '{"n": [7.0]}', "", f'{{"n": {cell}}}'), lists=["n"])
    assert message.startswith(f"column 'n', row 1 (line 3){complaint}")


@pytest.mark.parametrize("kind", ["csv", "tsv", "npy"])
def test_formats_without_lists(kind, tmp_path):
    path = write(kind, tmp_path, {"n": [1, 2]})
    with pytest.raises(InputError, match=r"column 'n': .* has no columns of lists; use Parquet or JSON lines"):
        read_columns(open_log(path), {}, lists=["n"])


@every_format
def test_absent_columns_are_refused(kind, tmp_path):
    log = open_log(write(kind, tmp_path, {"n": [1, 2]}))
    for wanted in ({"keys": ["k"]}, {"lists": ["k"]}):
        with pytest.raises(InputError, match="no column 'k'; columns there are: n"):
            read_columns(log, {}, **wanted)
    with pytest.raises(InputError, match="no columns asked for"):
        read_columns(log, {})


def test_offsets_that_contradict(tmp_path):
    buffers = [None, pa.py_buffer(np.array([0, 3, 1, 4], dtype=np.int32))]
    array = pa.ListArray.from_buffers(pa.list_(pa.int64()), 3, buffers, children=[pa.array([1, 2, 3, 4])])
    path = write("arrow_file", tmp_path, {"n": array})
    assert "column 'n' is damaged" in failure(path, lists=["n"])


@every_format
def test_damaged_bytes_give_columns_or_an_input_error(kind, tmp_path):
    has_lists = kind in LIST_KINDS
    data = {"n": list(range(50)), "k": [f"page {i // 5}" for i in range(50)], "i": [i // 3 for i in range(50)]}
    if has_lists:
        data["l"] = [[i] * (i % 3) for i in range(50)]
    path = write(kind, tmp_path, data)
    original = path.read_bytes()
    rng = np.random.default_rng(11)
    failed = 0
    for _ in range(30):
        damaged = bytearray(original)
        for at in rng.integers(0, len(original), 4):
            damaged[at] = rng.integers(0, 256)
        path.write_bytes(damaged)
        try:
            whole(path, sums={"p": ("n",)}, keys=["k", "i"], lists=["l"] if has_lists else [])
        except InputError:
            failed += 1
    assert failed


def test_one_pass_with_row_groups(tmp_path):
    rows = [[i] * (i % 3) for i in range(100)]
    path = tmp_path / "log.parquet"
    pq.write_table(pa.table({"n": rows, "k": [json.dumps(row) for row in rows]}), path, row_group_size=7)
    block = whole(path, keys=["k"], lists=["n"])
    assert [json.loads(key) for key in block.keys["k"]] == block.lists["n"].to_lists() == rows
