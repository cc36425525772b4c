"""A data set read as its packs: every token once, in its place, and a data set that is another one is told."""

import numpy as np
import pytest
from datasets_of import lengths_of, samples_of

import balancer
from balancer import InputError, PackedDataset
from solvers.errors import UsageError

LENGTHS = lengths_of(200)
SAMPLES = samples_of(LENGTHS)


@pytest.mark.parametrize("over_long", ["cut", "own", "drop"])
def test_every_token_is_in_one_pack_with_its_label(over_long):
    packed = PackedDataset(SAMPLES, balancer.pack(LENGTHS, 40, over_long=over_long))
    seen = {}
    for number in range(len(packed)):
        pack = packed[number]
        assert set(pack) == {"input_ids", "labels", "seq_lengths", "position_ids"}
        assert pack["labels"] == [token + 100 for token in pack["input_ids"]]
        assert pack["position_ids"] == [i for n in pack["seq_lengths"] for i in range(n)]
        at = 0
        rows, starts = packed.packs.rows.to_lists()[number], packed.packs.starts.to_lists()[number]
        for row, start, length in zip(rows, starts, pack["seq_lengths"], strict=True):
            seen.setdefault(row, {})[start] = pack["input_ids"][at : at + length]
            at += length
        assert at == len(pack["input_ids"])
    whole = {row: [token for start in sorted(parts) for token in parts[start]] for row, parts in seen.items()}
    wanted = {i: each["input_ids"] for i, each in enumerate(SAMPLES) if each["input_ids"]}
    if over_long == "drop":
        wanted = {i: tokens for i, tokens in wanted.items() if len(tokens) <= 40}
    assert whole == wanted


def test_arrays_are_joined_to_lists_of_numbers():
    samples = [{name: np.array(each[name]) for name in ("input_ids", "labels")} for each in SAMPLES]
    arrays, lists = (PackedDataset(of, balancer.pack(LENGTHS, 100)) for of in (samples, SAMPLES))
    assert [arrays[i] for i in range(len(arrays))] == [lists[i] for i in range(len(lists))]
    assert type(arrays[0]["input_ids"][0]) is int


def test_packs_are_read_from_a_file_too(tmp_path):
    balancer.pack(LENGTHS, 100).save(tmp_path / "packs.parquet")
    here, read = (PackedDataset(SAMPLES, p) for p in (balancer.pack(LENGTHS, 100), tmp_path / "packs.parquet"))
    assert [here[i] for i in range(len(here))] == [read[i] for i in range(len(read))]
    assert here[-1] == here[len(here) - 1]
    with pytest.raises(IndexError):
        here[len(here)]


@pytest.mark.parametrize("length", [9, 11, 30])
def test_a_sample_of_another_length_is_told(length):
    packed = PackedDataset(samples_of([10, length]), balancer.pack([10, 10], 20))
    with pytest.raises(InputError, match=rf"row 1 has {length} tokens, but 10 of it were packed"):
        packed[0]


@pytest.mark.parametrize("length", [19, 21, 30, 31])
def test_a_cut_sample_of_another_length_is_told(length):
    packed = PackedDataset(samples_of([length]), balancer.pack([20], 10, over_long="cut"))
    with pytest.raises(InputError, match=rf"row 0 has {length} tokens"):
        [packed[i] for i in range(len(packed))]


def test_a_data_set_with_too_few_rows_is_told():
    with pytest.raises(UsageError, match="hold row 1, but dataset has 1 rows"):
        PackedDataset(samples_of([10]), balancer.pack([10, 10], 20))


def test_columns_are_told():
    packs = balancer.pack([2, 2], 4)
    with pytest.raises(InputError, match=r"row 0 has no column 'input_ids'; name the column of tokens"):
        PackedDataset([{"ids": [1, 2]}, {"ids": [3, 4]}], packs)[0]
    assert PackedDataset([{"ids": [1, 2]}, {"ids": [3, 4]}], packs, tokens="ids")[0]["ids"] == [1, 2, 3, 4]
    with pytest.raises(InputError, match="'labels' has a value for each token of some of rows"):
        PackedDataset([{"input_ids": [1, 2], "labels": [1, 2]}, {"input_ids": [3, 4]}], packs)[0]
    with pytest.raises(TypeError, match="index must be one number"):
        PackedDataset(samples_of([2, 2]), packs)[0:1]
    with pytest.raises(TypeError, match=r"dataset must be a datasets\.Dataset"):
        PackedDataset(samples_of([2, 2]), packs).to_datasets()


def test_a_data_set_of_hugging_face_gives_one(tmp_path):
    datasets = pytest.importorskip("datasets")
    whole = datasets.Dataset.from_list(SAMPLES)
    packed = PackedDataset(whole, balancer.pack(LENGTHS, 100))
    found = packed.to_datasets()
    assert (len(found), found.column_names) == (len(packed), ["input_ids", "labels", "position_ids", "seq_lengths"])
    order = np.random.default_rng(0).permutation(len(packed)).tolist()
    assert [found[i] for i in order] == [packed[i] for i in order]
    assert found[:2]["input_ids"] == [packed[0]["input_ids"], packed[1]["input_ids"]]


def test_other_programs_read_the_columns(tmp_path):
    datasets = pytest.importorskip("datasets")
    packs = balancer.pack(LENGTHS, 100)
    packs.save(tmp_path / "packs.parquet")
    read = datasets.Dataset.from_parquet(str(tmp_path / "packs.parquet"), cache_dir=str(tmp_path / "cache"))
    assert read["rows"][:] == packs.rows.to_lists()
    assert read["lengths"][:] == packs.lengths.to_lists()
