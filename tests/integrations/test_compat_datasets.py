"""What datasets and lhotse write, read as a log: the same lengths that they tell themselves."""

import json

import numpy as np
import pytest

datasets = pytest.importorskip("datasets")
lhotse = pytest.importorskip("lhotse")

from balancer.cli.main import main  # noqa: E402
from balancer.io.log import default_columns, open_log, read_columns  # noqa: E402

pytestmark = pytest.mark.filterwarnings("default")

LENGTHS = np.random.default_rng(0).integers(0, 40, 300)


def lengths_of(path):
    log = open_log(path)
    return read_columns(log, {"": default_columns(log)}).sums[""].tolist()


def made(**columns):
    return datasets.Dataset.from_dict({"input_ids": [[7] * length for length in LENGTHS]} | columns)


def test_a_folder_that_save_to_disk_wrote(tmp_path, capsys):
    made().save_to_disk(tmp_path / "one")
    made(label=[1] * 300).save_to_disk(tmp_path / "shards", num_shards=3)
    made(length=(LENGTHS * 2).tolist()).save_to_disk(tmp_path / "column")
    made().select(range(299, -1, -2)).save_to_disk(tmp_path / "chosen")
    assert lengths_of(tmp_path / "one") == lengths_of(tmp_path / "shards") == LENGTHS.tolist()
    assert lengths_of(tmp_path / "column") == (LENGTHS * 2).tolist()
    assert lengths_of(tmp_path / "chosen") == LENGTHS[::-1][::2].tolist()
    with pytest.raises(SystemExit, match="0"):
        main(["plan", str(tmp_path / "shards"), "--ranks", "4", "--batch-per-rank", "8", "--json"])
    assert json.loads(capsys.readouterr().out)["samples"] == 300


def test_what_the_cache_holds(tmp_path):
    def rows():
        for length in LENGTHS:
            yield {"input_ids": [1] * int(length)}

    data = datasets.Dataset.from_generator(rows, cache_dir=str(tmp_path))
    (file,) = {entry["filename"] for entry in data.cache_files}
    assert lengths_of(file) == lengths_of(file.rsplit("/", 1)[0]) == LENGTHS.tolist()


@pytest.mark.parametrize("name", ["cuts.jsonl", "cuts.jsonl.gz"])
def test_cuts_of_lhotse(tmp_path, name):
    from lhotse.testing.dummies import DummyManifest

    cuts = DummyManifest(lhotse.CutSet, begin_id=0, end_id=6)
    plain = [cut.with_id(f"cut-{index}").truncate(duration=0.2 + index / 10) for index, cut in enumerate(cuts)]
    mixed = plain[0].append(plain[1]).with_id("mixed")
    padded = plain[2].pad(duration=0.75).with_id("padded")
    everything = lhotse.CutSet.from_cuts([*plain, mixed, padded])
    everything.to_file(tmp_path / name)
    wanted = [round(100 * cut.duration) for cut in everything]
    assert lengths_of(tmp_path / name) == wanted
    assert len(wanted) == 8
