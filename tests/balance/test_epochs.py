"""Plans of several epochs: each complete, in an order of its own that its seed says, replayed and loaded."""

import json

import numpy as np
import pyarrow.parquet as pq
import pytest

from balancer.cli.main import main
from balancer.compat import PlannedBatchSampler
from balancer.io.plan_reader import open_plan
from balancer.offline.load import checked_steps
from balancer.problem.shuffle import shuffled

LENGTHS = np.random.default_rng(0).integers(1, 90, 50)


def planned(folder, *arguments, exit_code=0, ranks=2):
    log, out = folder / "log.jsonl", folder / "plan.parquet"
    images = [[int(length) % 7 + 1] * (row % 3) for row, length in enumerate(LENGTHS)]
    rows = [
        {"tokens": int(n), "key": n % 5, "images": found} for n, found in zip(LENGTHS.tolist(), images, strict=True)
    ]
    log.write_text("\n".join(map(json.dumps, rows)))
    shape = ["plan", str(log), "--ranks", str(ranks), "--batch-per-rank", "4", "--overwrite", "--out", str(out)]
    with pytest.raises(SystemExit, match=str(exit_code)):
        main([*shape, *arguments])
    return out


@pytest.mark.parametrize(("drop", "seed", "several"), [(False, None, True), (True, 5, False), (False, 5, True)])
def test_every_epoch_is_the_log_in_its_order(tmp_path, drop, seed, several, capsys):
    phases = (
        ["--set", "phase.vision.length=images", "--set", "phase.llm.length=tokens"]
        if several
        else ["--length", "tokens"]
    )
    shuffle = [] if seed is None else ["--set", f"shuffle={seed!s}"]
    out = planned(tmp_path, "--set", "epochs=3", *shuffle, *phases, *["--set", "drop_last=true"] * drop)
    assert "3 epochs" in capsys.readouterr().out
    table = pq.read_table(out).to_pandas()
    table = table[table.phase == ("llm" if several else "all")]
    per_epoch = 6 if drop else 7
    assert open_plan(out).description["steps"] == 3 * per_epoch
    for step, rows in table.groupby("step"):
        epoch, number = divmod(step, per_epoch)
        positions = np.arange(number * 8, min(50, number * 8 + 8))
        wanted = positions if seed is None else shuffled(positions, 50, seed, epoch)
        assert sorted(rows["sample"]) == sorted(wanted)
    steps = list(checked_steps(out))  # replayed and checked against the log, the digest too
    assert len(steps) == 3 * per_epoch
    wanted = LENGTHS[:8] if seed is None else LENGTHS[shuffled(np.arange(8), 50, seed)]
    assert steps[0].batch.lengths.tolist() == wanted.tolist()


def test_errors_of_a_shuffled_step_name_rows_of_the_log(tmp_path, capsys):
    planned(
        tmp_path, "--length", "tokens", "--set", "shuffle=1", "--set", "phase.all.max_tokens_per_rank=60", exit_code=1
    )
    said = capsys.readouterr().err
    row = int(said.split("row ")[1].split(" ")[0])
    assert f"row {row} has length {LENGTHS[row]}" in said
    assert LENGTHS[row] > 60


@pytest.mark.parametrize(("key", "value", "least"), [("epochs", 0, 1), ("shuffle", -1, 0)])
def test_what_is_no_epoch_is_refused(tmp_path, capsys, key, value, least):
    planned(tmp_path, "--length", "tokens", "--set", f"{key}={value}", exit_code=2)
    assert f"{key} must be a whole number >= {least}, got {value}" in capsys.readouterr().err


def test_a_sampler_runs_the_epoch_that_it_is_told(tmp_path):
    out = planned(tmp_path, "--length", "tokens", "--set", "epochs=3", "--set", "shuffle=5", "--set", "drop_last=true")
    table = pq.read_table(out).to_pandas()
    ranks = [PlannedBatchSampler(out, rank) for rank in range(2)]
    for epoch in (0, 2, 1, 4):
        for sampler in ranks:
            sampler.set_epoch(epoch)
        found = [list(sampler) for sampler in ranks]
        assert [len(batches) for batches in found] == [len(sampler) for sampler in ranks] == [6, 6]
        for number, batches in enumerate(zip(*found, strict=True)):
            rows = table[table.step == epoch % 3 * 6 + number]["sample"]
            assert sorted(sum(batches, [])) == sorted(rows)  # noqa: RUF017
    state = ranks[0].state_dict(batches=4)
    resumed = PlannedBatchSampler(out, 0)
    resumed.load_state_dict(state)
    resumed.set_epoch(4)
    assert list(resumed) == found[0][4:]
