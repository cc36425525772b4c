"""Logs as data sets lie on disk: Megatron's index, folders and patterns, Hugging Face's and Lhotse's files."""

import gzip
import json
import struct

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from balancer.cli.main import main
from balancer.errors import InputError
from balancer.io.log import default_columns, open_log, read_columns, unit_of
from balancer.io.plan_reader import open_plan
from balancer.offline.load import checked_steps

LENGTHS = [5, 0, 7, 31, 2, 2, 9, 1]


def lengths_of(path, *columns):
    log = open_log(path)
    return read_columns(log, {"": columns or default_columns(log)}).sums[""].tolist()


def failure(path, *columns):
    with pytest.raises(InputError) as caught:
        lengths_of(path, *columns)
    said = str(caught.value)
    assert "\n" not in said
    assert len(said) < 500
    return said


def index_of(folder, lengths=LENGTHS, version=1, sequences=None, modes=b"", cut=0, name="data.idx"):
    """Write an index as the layout that Megatron documents has it."""
    documents = [0, *range(1, len(lengths) + 1)]
    pointers = np.cumsum([0, *lengths[:-1]]) * 2 if lengths else []
    sequences = len(lengths) if sequences is None else sequences
    parts = [
        b"MMIDIDX\x00\x00", struct.pack("<QBQQ", version, 8, sequences, len(documents)),
        np.array(lengths, "<i4").tobytes(), np.array(pointers, "<i8").tobytes(), np.array(documents, "<i8").tobytes(),
        modes,
    ]  # fmt: skip
    path = folder / name
    path.write_bytes(b"".join(parts)[: -cut or None])
    return path


@pytest.mark.parametrize("modes", [b"", bytes(len(LENGTHS))])
def test_the_index_of_a_megatron_data_set(tmp_path, modes):
    path = index_of(tmp_path, modes=modes)
    assert lengths_of(path) == LENGTHS
    assert open_log(path).format == "idx"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"cut": 5}, "it is damaged"), ({"version": 2}, "of version 2; version 1 is read"),
        ({"sequences": 2**60}, "it is damaged"), ({"cut": 185}, "too short for the header"),
        ({"lengths": [3, -1]}, "row 1: -1 is negative"), ({"lengths": []}, "holds no rows"),
    ],
)  # fmt: skip
def test_a_damaged_index_is_refused(tmp_path, change, said):
    assert said in failure(index_of(tmp_path, **change))


def test_what_lies_beside_an_index_is_told_from_it(tmp_path):
    index_of(tmp_path)
    (tmp_path / "data.bin").write_bytes(bytes(114))
    assert f"name its index, {tmp_path / 'data.idx'}" in failure(tmp_path / "data.bin")
    (tmp_path / "old.idx").write_bytes(b"TNTIDX\x00\x00" + bytes(40))
    assert "Megatron's old kind" in failure(tmp_path / "old.idx")
    (tmp_path / "no.idx").write_bytes(b"text")
    assert "does not begin as a Megatron index" in failure(tmp_path / "no.idx")


def parquet_folder(folder, **parts):
    for name, table in parts.items():
        path = folder / name.replace("__", "/")
        path.parent.mkdir(exist_ok=True)
        pq.write_table(pa.table(table), f"{path}.parquet")
    return folder


def test_a_folder_of_parquet_files_and_what_a_pattern_matches(tmp_path):
    folder = parquet_folder(
        tmp_path, day1__b={"n": LENGTHS[3:5], "text": ["a", "b"]}, day1__a={"n": LENGTHS[:3]},
        day1__empty={"n": pa.array([], pa.int64())}, day2__c={"text": ["c"] * 3, "n": LENGTHS[5:]}, _tmp__x={"n": [99]},
    )  # fmt: skip
    assert lengths_of(folder) == lengths_of(folder / "day*" / "*.parquet") == LENGTHS
    assert lengths_of(folder / "**" / "[abc].parquet") == LENGTHS
    assert len(open_log(folder).files) == 4
    assert "no file matches" in failure(folder / "*.csv")
    pq.write_table(pa.table({"n": [1, None]}), folder / "day2" / "d.parquet")
    assert f"{folder / 'day2' / 'd.parquet'}: column 'n', row 1: there is no value" in failure(folder)
    pq.write_table(pa.table({"m": [1]}), folder / "day2" / "d.parquet")
    assert f"{folder / 'day2' / 'd.parquet'}: no column 'n'" in failure(folder)
    (folder / "day2" / "d.parquet").write_bytes(b"PAR1 and no more")
    assert f"{folder / 'day2' / 'd.parquet'}: cannot be read as Parquet" in failure(folder)


def test_files_of_one_log_are_of_one_kind(tmp_path):
    (tmp_path / "a.csv").write_text("n\n1\n2")
    (tmp_path / "b.jsonl").write_text('{"n": 3}')
    assert "b.jsonl: is JSON lines, others of" in failure(tmp_path / "[ab].*", "n")
    (tmp_path / "b.jsonl").unlink()
    (tmp_path / "b.csv").write_text("n\n3\n")
    assert lengths_of(tmp_path / "*.csv") == [1, 2, 3]
    log = open_log(tmp_path / "*.csv")
    assert read_columns(log, {}, ["n"]).keys["n"].tolist() == ["1", "2", "3"]


def arrow(path, table):
    path.parent.mkdir(exist_ok=True)
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)


def tokens(lengths, **more):
    return pa.table({"input_ids": pa.array([list(range(length)) for length in lengths]), **more})


def saved(folder, *names):
    for name in names:
        arrow(folder / name, tokens(LENGTHS[:3] if name == names[0] else LENGTHS[3:]))
    (folder / "dataset_info.json").write_text("{}")
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": name} for name in names]}))
    return folder


def test_lists_of_tokens_are_counted_in_what_save_to_disk_wrote(tmp_path):
    folder = saved(tmp_path / "train", "data-00000-of-00002.arrow", "data-00001-of-00002.arrow")
    arrow(folder / "cache-1234.arrow", tokens([99]))
    log = open_log(folder)
    assert default_columns(log) == ("input_ids",)
    assert unit_of(log, ("input_ids",)) == "how many values a row's list has"
    assert lengths_of(folder) == LENGTHS
    (folder / "data-00001-of-00002.arrow").unlink()
    assert "names data-00001-of-00002.arrow, which is not there" in failure(folder)
    for damaged in ("{", "[]", '{"_data_files": []}', '{"_data_files": [{"filename": "../x.arrow"}]}'):
        (folder / "state.json").write_text(damaged)
        assert "state.json does not name the files" in failure(folder)
    (tmp_path / "dataset_dict.json").write_text("{}")
    assert "holds several splits (train)" in failure(tmp_path)


def test_what_the_cache_of_hugging_face_holds(tmp_path):
    folder = tmp_path / "wiki"
    for shard, lengths in enumerate((LENGTHS[:3], LENGTHS[3:])):
        arrow(folder / f"wiki-train-0000{shard}-of-00002.arrow", tokens(lengths, label=pa.array([1] * len(lengths))))
    assert lengths_of(folder) == LENGTHS
    arrow(folder / "wiki-test.arrow", tokens([4]))
    assert "holds several data sets (wiki-test, wiki-train); name one, such as" in failure(folder)
    assert lengths_of(folder / "wiki-train*.arrow") == LENGTHS
    (folder / "wiki-test.arrow").unlink()
    (folder / "wiki-train-00001-of-00002.arrow").unlink()
    assert "has 1 of the 2 files" in failure(folder)


def test_a_length_by_its_name_comes_before_tokens(tmp_path):
    arrow(tmp_path / "a.arrow", tokens([3, 4], length=pa.array([30, 40])))
    assert lengths_of(tmp_path / "a.arrow") == [30, 40]
    arrow(tmp_path / "b.arrow", tokens([3, 4], label=pa.array([0, 1])))
    assert lengths_of(tmp_path / "b.arrow") == [3, 4]
    lists = pa.table({"input_ids": pa.array([[1], None])})
    arrow(tmp_path / "c.arrow", lists)
    assert "column 'input_ids', row 1: there is no value" in failure(tmp_path / "c.arrow")


CUTS = [
    {"id": "a", "start": 0, "duration": 1.25, "channel": 0, "supervisions": [], "type": "MonoCut"},
    {"id": "b", "tracks": [{"cut": {"duration": 2.0}}, {"cut": {"duration": 1.5}, "offset": 1.1}], "type": "MixedCut"},
    {"id": "c", "duration": 0.3, "type": "PaddingCut"},
]


@pytest.mark.parametrize("name", ["cuts.jsonl", "cuts.jsonl.gz"])
def test_cut_manifests_of_lhotse(tmp_path, name):
    text = "\n".join(map(json.dumps, CUTS)).encode()
    (tmp_path / name).write_bytes(gzip.compress(text) if name.endswith("gz") else text)
    assert lengths_of(tmp_path / name) == [125, 260, 30]
    broken = [CUTS[0], {"id": "d", "tracks": [{"offset": 1}], "type": "MixedCut"}]
    text = "\n".join(map(json.dumps, broken)).encode()
    (tmp_path / name).write_bytes(gzip.compress(text) if name.endswith("gz") else text)
    assert "row 1 (line 2): there is no value" in failure(tmp_path / name)


def test_damaged_and_other_gzip_is_refused(tmp_path):
    whole = gzip.compress("\n".join([json.dumps(CUTS[0])] * 9000).encode())
    path = tmp_path / "cuts.jsonl.gz"
    for damaged in (whole[: len(whole) // 2], whole[:60] + b"\xff" * 40 + whole[100:]):
        path.write_bytes(damaged)
        assert "cannot be read as JSON lines, it may be truncated or damaged" in failure(path)
    (tmp_path / "log.npy.gz").write_bytes(gzip.compress(b"n\n1"))
    assert "compressed with gzip, which only text may be" in failure(tmp_path / "log.npy.gz")


def test_folders_that_hold_no_log(tmp_path):
    assert "is a directory without any" in failure(tmp_path)
    (tmp_path / "plan").mkdir()
    (tmp_path / "log.txt").write_text("5\n7\n")
    run("plan", tmp_path / "log.txt", "--ranks", "2", "--batch-per-rank", "1", "--out", f"{tmp_path}/plan/")
    assert "is a plan, and no log; name the log it was made from" in failure(tmp_path / "plan")


def run(*arguments, exit_code=0):
    with pytest.raises(SystemExit, match=str(exit_code)):
        main([str(argument) for argument in arguments])


@pytest.mark.parametrize("kind", ["index", "folder", "pattern", "saved"])
def test_plans_are_made_of_each_and_checked_against_all_their_files(tmp_path, kind, capsys):
    folder = tmp_path / "log"
    folder.mkdir()
    if kind == "index":
        log = index_of(folder)
    elif kind == "saved":
        log = saved(folder, "a.arrow", "b.arrow")
    else:
        parquet_folder(folder, a={"n": LENGTHS[:5]}, b={"n": LENGTHS[5:]})
        log = folder if kind == "folder" else folder / "*.parquet"
    out = tmp_path / "plan.parquet"
    run("plan", log, "--ranks", 2, "--batch-per-rank", 2, "--out", out)
    description = open_plan(out).description
    assert len(description["sources"]) == (1 if kind == "index" else 2)
    assert all(len(source["sha256"]) == 64 and source["size"] > 0 for source in description["sources"])
    steps = list(checked_steps(out))
    assert [length for step in steps for length in step.batch.lengths.tolist()] == LENGTHS
    run("report", out)
    run("report", out, "--log", log)
    capsys.readouterr()
    last = sorted(file for file in folder.iterdir() if file.suffix != ".json")[-1]
    whole = last.read_bytes()
    last.write_bytes(whole + b" ")
    run("report", out, exit_code=2)
    assert "the log's size or SHA-256 differs" in capsys.readouterr().err
    last.write_bytes(whole)
    run("plan", log, "--ranks", 2, "--batch-per-rank", 2, "--out", last, exit_code=2)
    assert "would overwrite its log" in capsys.readouterr().err
    folder.rename(tmp_path / "elsewhere")
    run("report", out, exit_code=2)
    said = "was not made from" if kind == "pattern" else "is not there; give it as --log"  # it matches the plan itself
    assert said in capsys.readouterr().err
