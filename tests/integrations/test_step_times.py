"""Step times as docs/how_to/measure.md writes them, of a plan's batches: fitted, and set beside the plan."""

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")

import timer_cases
from doc_blocks import block
from torch.utils.data import DataLoader

from balancer.cli.main import main
from balancer.compat import PlannedBatchSampler
from balancer.executor import step_timer
from balancer.io.measurements import read_measurements


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
