"""Packs of a whole log: of files, tables and lengths, written and read."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets_of import lengths_of, write_log

import balancer
from balancer import InputError
from balancer.problem.limits import CountLimit, Limit
from solvers import InfeasibleError
from solvers.errors import UsageError

LENGTHS = lengths_of(1000)


@pytest.fixture
def log(tmp_path):
    return write_log(tmp_path / "log.parquet", LENGTHS)


def test_a_file_holds_what_the_function_returns(log, tmp_path):
    out = tmp_path / "packs.parquet"
    written = balancer.pack(log, 100, out=out)
    here = balancer.pack(LENGTHS, 100)
    assert here.to_arrow().equals(written.to_arrow())
    assert pq.read_table(out).column_names == ["rows", "starts", "lengths", "tokens", "cost"]
    assert here.summary() == written.summary() == balancer.Packs.load(out).summary()
    first = out.read_bytes()
    balancer.pack(LENGTHS, 100, out=out)
    assert out.read_bytes() == first


@pytest.mark.parametrize("kind", ["array", "list", "table", "dictionary"])
def test_lengths_and_tables_are_packed_as_logs_are(log, kind):
    given = {"array": LENGTHS, "list": LENGTHS.tolist(), "table": pa.table({"n_tokens": LENGTHS}),
             "dictionary": {"n_tokens": LENGTHS}}[kind]  # fmt: skip
    assert balancer.pack(given, 100).to_arrow().equals(balancer.pack(log, 100).to_arrow())


def test_lengths_that_are_none_are_told():
    with pytest.raises(UsageError, match=r"lengths\[1\] must be >= 0, got -2"):
        balancer.pack([3, -2], 10)
    with pytest.raises((ValueError, TypeError), match="lengths"):
        balancer.pack([3, 2.5], 10)
    assert len(balancer.pack([], 10)) == 0


def test_steps_are_named_in_files_too(log, tmp_path):
    written = balancer.pack(log, 100, per_step=8, out=tmp_path / "packs.parquet")
    assert written.steps.tolist() == [i // 8 for i in range(len(written))]
    assert pq.read_table(tmp_path / "packs.parquet")["step"].to_pylist() == written.steps.tolist()
    assert balancer.Packs.load(tmp_path / "packs.parquet").to_arrow().equals(written.to_arrow())


def test_limits_read_columns_of_a_log(tmp_path):
    images = np.random.default_rng(1).integers(0, 4, len(LENGTHS))
    log = tmp_path / "log.parquet"
    pq.write_table(pa.table({"n_tokens": LENGTHS, "images": images, "frames": images // 2}), log)
    limits = [Limit("images+frames", 8), CountLimit(9)]
    packs = balancer.pack(log, 100, length="n_tokens", limits=limits)
    given = balancer.pack(LENGTHS, 100, limits=[Limit(images + images // 2, 8), CountLimit(9)])
    assert packs.to_arrow().equals(given.to_arrow())
    assert max(sum(images[rows] + images[rows] // 2) for rows in packs.rows.to_lists()) <= 8
    out = tmp_path / "packs.parquet"
    balancer.pack(LENGTHS, 100, limits=[Limit(images, 8)], out=out)
    with pytest.raises(UsageError, match="holds something else than these packs"):
        balancer.pack(LENGTHS, 100, limits=[Limit(images[::-1], 8)], out=out)


def test_totals_are_those_of_the_packs(log):
    packs = balancer.pack(log, 50, over_long="drop", per_step=4)
    found, lengths = packs.summary(), LENGTHS[LENGTHS <= 50]
    assert found["tokens"] == lengths.sum() == sum(map(sum, packs.lengths.to_lists()))
    assert found["dropped_tokens"] == LENGTHS[LENGTHS > 50].sum()
    assert found["waste"] == pytest.approx(1 - lengths.sum() / (50 * len(packs)))
    largest = packs.costs.reshape(-1, 4).max(axis=1)
    assert found["step_idle"] == pytest.approx(1 - packs.costs.sum() / (4 * largest.sum()))


def test_what_is_there_is_replaced_only_by_the_same_request_or_when_told(log, tmp_path):
    out = tmp_path / "packs.parquet"
    first = balancer.pack(log, 100, out=out)
    assert balancer.pack(log, 100, out=out).to_arrow().equals(first.to_arrow())
    with pytest.raises(UsageError, match="holds something else than these packs; overwrite"):
        balancer.pack(log, 90, over_long="own", out=out)
    assert len(balancer.pack(log, 90, over_long="own", out=out, overwrite=True)) > len(first)
    other = tmp_path / "other.parquet"
    pq.write_table(pa.table({"a": [1]}), other)
    with pytest.raises(UsageError, match="holds something else"):
        balancer.pack(log, 100, out=other)


def test_places_that_cannot_be_written_are_refused(log, tmp_path):
    with pytest.raises(InputError, match="overwrite their log"):
        balancer.pack(log, 100, out=log, overwrite=True)
    with pytest.raises(InputError, match=r"must not end in \.csv"):
        balancer.pack(log, 100, out=tmp_path / "packs.csv")
    with pytest.raises(InputError, match="it is one file, and this is a folder"):
        balancer.pack(log, 100, out=f"{tmp_path}/packs/")
    with pytest.raises(InputError, match="this machine's files"):
        balancer.pack(log, 100, out="s3://bucket/packs.parquet")


def test_an_error_names_log_and_row_and_leaves_nothing(log, tmp_path):
    out = tmp_path / "packs.parquet"
    longest = int(np.argmax(LENGTHS > 60))
    with pytest.raises(InfeasibleError, match=rf"log\.parquet: no pack can hold row {longest}: its length"):
        balancer.pack(log, 60, out=out)
    assert [path.name for path in tmp_path.iterdir()] == ["log.parquet"]


def test_packs_are_told_from_a_plan(log, tmp_path):
    balancer.pack(log, 100, out=tmp_path / "packs.parquet")
    with pytest.raises(InputError, match=r"packs\.parquet: these are packs, and no plan; to plan them: balancer plan"):
        balancer.load_plan(tmp_path / "packs.parquet", 0)


def broken(table, name, values):
    return table.set_column(table.column_names.index(name), name, pa.array(values, table[name].type))


def test_files_that_contradict_themselves_are_refused(log, tmp_path):
    packs = balancer.pack(log, 100, out=tmp_path / "packs.parquet")
    table, about = packs.to_arrow(), pq.read_metadata(tmp_path / "packs.parquet").metadata[b"balancer.packs"]

    def written(table, about=about):
        path = tmp_path / "bad.parquet"
        pq.write_table(table.replace_schema_metadata({b"balancer.packs": about}), path)
        return path

    assert len(balancer.Packs.load(written(table))) == len(packs)
    rows, lengths = packs.rows.to_lists(), packs.lengths.to_lists()
    stepped = balancer.pack(log, 100, per_step=4, out=tmp_path / "steps.parquet").to_arrow()
    cases = {
        "tokens": broken(table, "tokens", [0] * len(packs)),
        "rows twice": broken(table, "rows", [[0] * len(each) for each in rows]),
        "unlike lists": broken(table, "lengths", [[*lengths[0], 1], *lengths[1:]]),
        "empty pieces": broken(table, "lengths", [[0] * len(each) for each in lengths]),
        "starts": broken(table, "starts", [[-1] * len(each) for each in lengths]),
        "costs": broken(table, "cost", [1] * len(packs)),
        "a pack too few": table[1:],
        "steps that were not asked for": table.append_column("step", pa.array([0] * len(packs), pa.int64())),
    }
    for bad in cases.values():
        with pytest.raises(InputError, match="are not what was written: pack again"):
            balancer.Packs.load(written(bad))
    about_steps = pq.read_metadata(tmp_path / "steps.parquet").metadata[b"balancer.packs"]
    with pytest.raises(InputError, match="are not what was written"):
        balancer.Packs.load(written(broken(stepped, "step", [0] * len(stepped)), about_steps))
    with pytest.raises(InputError, match="has no column 'cost'"):
        balancer.Packs.load(written(table.drop_columns(["cost"])))
    found = json.loads(about)
    said = found["description"]
    for rule, change in {
        "packs must say": {"format": "other"}, "of format 9, and format 3": {"version": 9},
        "are not what was written": {"description": {}},
        "or what is said of them, are not": {"description": said | {"totals": said["totals"] | {"lower_bound": 1}}},
    }.items():  # fmt: skip
        with pytest.raises(InputError, match=rule):
            balancer.Packs.load(written(table, json.dumps(found | change)))
    pq.write_table(table, tmp_path / "bare.parquet")
    with pytest.raises(InputError, match="holds no packs"):
        balancer.Packs.load(tmp_path / "bare.parquet")
    with pytest.raises(InputError, match="cannot read packs"):
        balancer.Packs.load(tmp_path / "missing.parquet")


def test_packs_are_a_log_for_a_plan(log, tmp_path):
    out = tmp_path / "packs.parquet"
    packs = balancer.pack(log, 100, out=out)
    plan = balancer.plan_log(str(out), length="tokens", num_ranks=4, batch_per_rank=2)
    assert plan.summary()["samples"] == len(packs)


def test_saved_packs_are_the_same(tmp_path):
    packs = balancer.pack(LENGTHS, 100)
    packs.save(tmp_path / "packs.parquet")
    assert balancer.Packs.load(tmp_path / "packs.parquet").to_arrow().equals(packs.to_arrow())
