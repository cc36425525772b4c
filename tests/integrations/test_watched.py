"""docs/how_to/watching.md in real trainers on two ranks: what is logged equals a recount, and nothing more is sent."""

import csv
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")
if not all(map(find_spec, ("accelerate", "datasets", "lightning", "transformers"))):
    pytest.skip("not all trainers are installed", allow_module_level=True)

import timer_cases
from doc_blocks import block
from launched import launch, left
from torch.utils.data import DataLoader

import balancer
from balancer.cli.main import main
from balancer.compat._watch import Watch
from balancer.executor import PlannedBatchSampler, step_timer
from balancer.io.measurements import read_measurements

FOUR = {"balancer/imbalance_before", "balancer/imbalance", "balancer/moved_share", "balancer/plan_ms"}


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    balancer.warmup()  # so that the ranks find the kernels, which callbacks make ready, on disk
    folder = tmp_path_factory.mktemp("watched")
    assert launch("run_watched.py", "watched", folder) == 0
    return left("watched", folder)


@pytest.mark.parametrize("trainer", ["accelerate", "sampler", "dispatcher", "lightning"])
def test_callbacks_send_nothing(found, trainer):
    for of_rank in found:
        usual, watched = of_rank[trainer]["sent"]
        assert watched == usual


def numbers_of(logs):
    last = [entry for entry in logs if "balancer/imbalance" in entry][-1]
    assert set(last) >= FOUR
    assert last["balancer/plan_ms"] > 0
    return [last[f"balancer/{name}"] for name in ("imbalance_before", "imbalance", "moved_share")]


@pytest.mark.parametrize("trainer", ["accelerate", "lightning"])
def test_a_dispatchers_numbers_are_those_of_its_plans(found, trainer):
    for of_rank in found[: 1 if trainer == "accelerate" else 2]:  # whose trackers are the main process's
        run = of_rank[trainer]
        before, after, moved = (np.array(each) for each in zip(*run["held"], strict=True))
        total = after.sum()
        wanted = [2 * before.max(axis=1).sum() / total, 2 * after.max(axis=1).sum() / total, moved.sum() / total]
        assert numbers_of(run["logs"]) == pytest.approx(wanted)  # Lightning's are of 32 bits
        assert wanted[0] > wanted[1] + 0.05
    assert found[0]["accelerate"]["logs"][0]["step"] == 0
    assert len(found[0]["accelerate"]["logs"]) == len(found[0]["accelerate"]["held"]) == 6


def test_lightnings_loggers_get_them(found):
    for of_rank in found[:1]:
        with (Path(of_rank["lightning"]["folder"]) / "metrics.csv").open(newline="") as file:
            rows = list(csv.DictReader(file))
        assert set(rows[-1]) >= FOUR
        assert len(rows) == len(of_rank["lightning"]["held"])


def test_a_samplers_numbers_in_the_trainer_are_those_of_its_batches(found):
    for of_rank in found:
        run = of_rank["sampler"]
        grids, drawn = run["held"]
        spent, worked = [0, 0], 0
        for grid, rows in zip(grids, drawn, strict=True):
            parts = np.array_split(rows, 4)
            works = [0, 0]
            for slot, batches in enumerate(grid):
                for which, held in enumerate((parts[2 * slot : 2 * slot + 2], batches)):
                    padded = [len(batch) * max(batch) for batch in held]
                    spent[which] += 2 * max(padded)
                    works[which] += sum(padded)
            worked += min(works)
        assert numbers_of(run["logs"]) == pytest.approx([spent[0] / worked, spent[1] / worked, 0])


def test_numbers_are_logged_with_every_loss(found):
    for of_rank in found:
        for name in ("sampler", "dispatcher"):
            steps = [[e["step"] for e in of_rank[name]["logs"] if key in e] for key in ("loss", "balancer/imbalance")]
            assert steps[0] == steps[1]
            assert len(steps[0]) > 2


def test_every_micro_batch_is_timed_with_the_lengths_that_it_had(found):
    for rank, of_rank in enumerate(found):
        header, *rows = of_rank["sampler"]["rows"]
        assert header == ["step", "rank", "lengths", "seconds"]
        batches = [(step, slot[rank]) for step, grid in enumerate(of_rank["sampler"]["held"][0]) for slot in grid]
        assert [row[:3] for row in rows] == [
            [str(step), str(rank), " ".join([str(max(batch))] * len(batch))] for step, batch in batches
        ]
        for trainer in ("accelerate", "lightning"):
            _, *rows = of_rank[trainer]["rows"]
            sums = [sum(map(int, row[2].split())) for row in rows]
            assert sums == [after[rank] for _, after, _ in of_rank[trainer]["held"]]
            assert [int(row[0]) for row in rows] == list(range(len(rows)))
        assert all(float(row[3]) > 0 for row in rows)


def test_steps_of_a_plan_are_timed_fitted_and_set_beside_it(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    lengths = np.random.default_rng(2).lognormal(4, 1, 80).astype(int) + 1
    Path("log.csv").write_text("tokens\n" + "\n".join(map(str, lengths)), encoding="utf-8")
    with pytest.raises(SystemExit, match="0"):
        main(["plan", "log.csv", "--ranks", "2", "--batch-per-rank", "4", "--cost", "quadratic:a=1,b=1",
              "--out", "plan.parquet"])  # fmt: skip
    for rank in range(2):
        clock = timer_cases.Clock()
        monkeypatch.setattr(step_timer.time, "thread_time", lambda clock=clock: clock.now)
        model = timer_cases.Model(clock)
        batches = PlannedBatchSampler("plan.parquet", rank)
        loader = DataLoader([np.zeros(n) for n in lengths], batch_sampler=batches, collate_fn=list)
        given = {"model": model, "rank": rank, "loader": loader, "train": lambda batch, of=model: of(batch).backward()}
        exec(block("What steps take"), given)
    assert len(read_measurements("steps.0.csv")[0]) == 10
    capsys.readouterr()
    with pytest.raises(SystemExit, match="0"):
        main(["report", "plan.parquet", "--measured", "steps.*.csv"])
    said = capsys.readouterr().out
    assert "steps.*.csv: 10 steps of 2 ranks; a rank's seconds = 10 a micro-batch + 1 a unit of load" in said
    assert "noise of a rank 0.0%" in said


def test_what_balances_nothing_is_refused_unless_it_is_timed():
    with pytest.raises(ValueError, match="DataLoader has no PrefetchDispatcher or BalancedBatchSampler behind it"):
        Watch().find(DataLoader([1, 2]))
    Watch("steps.csv").find(DataLoader([1, 2]))
    plan = balancer.balance([4, 8, 1], 2)
    Watch("steps.csv").find(DataLoader([1, 2, 3], batch_sampler=PlannedBatchSampler(plan, 0)))
