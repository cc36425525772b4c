"""Logs as people have them: text of one number a line, compressed text, folders, several paths, names spelled wrong."""

import gzip

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from balancer.errors import InputError, did_you_mean
from balancer.io.log import choose_length, default_columns, open_log, read_columns

LENGTHS = [5, 431, 0, 17, 88]
CODECS = {"": bytes, ".gz": gzip.compress, ".zst": lambda text: pa.compress(text, "zstd", asbytes=True)}
TEXTS = {
    "log.csv": "n,note\n" + "".join(f"{n},a\n" for n in LENGTHS),
    "log.tsv": "n\tnote\n" + "".join(f"{n}\ta\n" for n in LENGTHS),
    "log.jsonl": "".join(f'{{"n": {n}}}\n' for n in LENGTHS),
    "log.txt": "".join(f"{n}\n" for n in LENGTHS),
}


def lengths_of(path):
    log = open_log(path)
    return read_columns(log, {"": default_columns(log)}).sums[""].tolist()


def failure(path):
    with pytest.raises(InputError) as raised:
        lengths_of(path)
    return str(raised.value)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("name", TEXTS)
def test_text_compressed_or_not(name, codec, tmp_path):
    path = tmp_path / f"{name}{codec}"
    path.write_bytes(CODECS[codec](TEXTS[name].encode()))
    assert lengths_of(path) == LENGTHS


@pytest.mark.parametrize("codec", [".gz", ".zst"])
def test_a_bad_cell_of_a_compressed_text_is_named(codec, tmp_path):
    path = tmp_path / f"log.txt{codec}"
    path.write_bytes(CODECS[codec](b"5\n6\n-7\n"))
    assert "column 'length', row 2: -7 is negative" in failure(path)
    path.write_bytes(path.read_bytes()[:-6])
    assert "it may be truncated or damaged" in failure(path)


@pytest.mark.parametrize("header", ["431,chat", "chat,431", "chat,4.5"])
def test_a_header_cell_that_is_a_number_is_data(header, tmp_path):
    path = tmp_path / "log.csv"
    path.write_text(f"{header}\n256,web\n")
    assert "which looks like data" in failure(path)


@pytest.mark.parametrize("kind", ["csv", "jsonl", "npy"])
def test_a_folder_of_files_of_one_kind(kind, tmp_path):
    for name, part in (("b", LENGTHS[2:]), ("a", LENGTHS[:2])):
        if kind == "npy":
            np.save(tmp_path / f"{name}.npy", part)
        else:
            rows = ["n", *map(str, part)] if kind == "csv" else [f'{{"n": {n}}}' for n in part]
            (tmp_path / f"{name}.{kind}").write_text("\n".join(rows) + "\n")
    (tmp_path / "_tmp.csv").write_text("n\n99\n")
    (tmp_path / "about.json").write_text("{}")
    assert lengths_of(tmp_path) == LENGTHS


def test_a_folder_of_two_kinds_is_refused(tmp_path):
    pq.write_table(pa.table({"n": [1]}), tmp_path / "a.parquet")
    (tmp_path / "b.csv").write_text("n\n2\n")
    told = failure(tmp_path)
    assert "holds files of several kinds: Parquet (1, such as a.parquet) and CSV (1, such as b.csv)" in told
    assert lengths_of(str(tmp_path / "**" / "*.parquet")) == [1]  # as it says


def test_several_paths_are_one_log(tmp_path):
    for name, part in (("b", LENGTHS[2:]), ("a", LENGTHS[:2])):
        pq.write_table(pa.table({"n": part}), tmp_path / f"{name}.parquet")
    paths = [tmp_path / "a.parquet", tmp_path / "b.parquet"]
    assert lengths_of(paths) == LENGTHS
    assert open_log(paths).files == tuple(paths)


def test_a_column_that_is_not_there_is_told_from_one_that_is(tmp_path):
    pq.write_table(pa.table({"text_tokens": [1], "Image_Tokens": [2]}), tmp_path / "log.parquet")
    log = open_log(tmp_path / "log.parquet")
    with pytest.raises(InputError, match=r"no column 'text_token' \(did you mean 'text_tokens'"):
        choose_length(log, "text_token")
    with pytest.raises(InputError, match=r"no column 'image_tokens' \(did you mean 'Image_Tokens'"):
        choose_length(log, "image_tokens")
    assert did_you_mean("audio", log.columns) == ""
    with pytest.raises(
        InputError, match=r"they are: text_tokens, Image_Tokens\nsay .* --length text_tokens.Image_Tokens"
    ):
        default_columns(log)


def test_a_masked_cell_of_an_array_is_missing():
    given = {"tokens": np.ma.masked_array([1, 2, 3], [False, True, False])}
    with pytest.raises(InputError, match="column 'tokens', row 1: there is no value"):
        read_columns(open_log(given), {"": ("tokens",)})


def test_a_column_that_is_a_number_is_named():
    with pytest.raises(InputError, match="column 'tokens' must be a list or an array, got 5"):
        open_log({"tokens": 5})
