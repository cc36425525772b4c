"""Simulations to draw: small ones, with whatever names."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from balancer import Phase, Topology
from balancer.io.log import open_log
from balancer.offline.settings import LogSettings
from balancer.problem.cuts import as_cut
from balancer.problem.settings import PlanSettings
from balancer.problem.setup import Setup
from balancer.report.simulation_table import Assumptions
from balancer.simulate import CLUSTERS, PhaseModel, simulate_log
from balancer.strategies import STRATEGIES

H100 = CLUSTERS["h100"]
SHAPES = ("internvit-300m", "whisper-large-v3-encoder", "qwen2-7b")


def log_of(folder, rows=60, seed=0):
    """Write a log of as many columns as there are shapes; a rank's share of the third is the least even."""
    rng = np.random.default_rng(seed)
    columns = {f"c{i}": rng.lognormal(4 + i, 1.5, rows).astype(np.int64) for i in range(len(SHAPES))}
    pq.write_table(pa.table(columns), folder / "log.parquet")
    return folder / "log.parquet"


def simulated(log, names=("vision", "audio", "llm"), *, ranks=4, batch=3, steps=5, waits="phase", **options):
    """Simulate a log; return what the page takes: what was found, and what was assumed."""
    phases = tuple(Phase(name, f"c{i}", bytes_in=4, bytes_out=8) for i, name in enumerate(names))
    shapes = dict(zip(names, SHAPES[-len(names) :], strict=True))
    models = {name: PhaseModel.on(shape, H100.peak_flops, 0.5) for name, shape in shapes.items()}
    planned = PlanSettings(cut=as_cut(options.pop("cut", None)))
    settings = LogSettings(Setup(Topology.uniform(ranks, min(ranks, 2)), phases, planned), batch)
    options = {"strategies": tuple(STRATEGIES), "num_steps": steps} | options
    found = simulate_log(open_log(log), settings, models, H100, waits=waits, **options)
    assumed = Assumptions(
        "h100", H100, settings, shapes, dict.fromkeys(names, 10**9), models, False, 0.0, waits, bytes_given=True
    )  # fmt: skip
    return found, assumed
