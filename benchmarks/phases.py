"""What does balancing every phase gain?

    python benchmarks/phases.py [study] [samples] [cuts] [images] [groups] [--quick]

`study`, `samples` and `cuts` are tables of `balancer simulate`, ten steps each, of a model of 84B class with three
modalities on 2,560 H100s. OrchMLLM (arXiv:2503.23830) reports 41.6 % MFU of such a model, and up to 3.1 times the
throughput of Megatron-LM; notebooks/cluster_study.ipynb tells of it. `images`: pages of
data/docs_msdev_interleaved.parquet whose images are items of their own. `groups`: lognormal lengths. About five minutes
of one core; `--quick` one.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import common
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from common import NODE, Table

import balancer
from balancer import MicroBatches, Phase
from balancer.cost import module

LOG = common.DATA / "omni_mix_dev.parquet"
MODULES = {"vision": "internvit-6b", "audio": "whisper-large-v3-encoder", "llm": "qwen2-72b"}
TILE = 1024  # patches: InternViT sees tiles of 448 x 448 pixels
GPUS, EFFICIENCY, CONTEXT = 2560, 0.5, 8192
STRATEGIES = {
    "as_sampled": "unbalanced",
    "llm_only": "LLM only",
    "orchestrated": "orchestrated",
}
ASSUMPTIONS = f"""\
Assumed:
- modules: {", ".join(MODULES.values())}; all are trained, activations
  recomputed. Projectors are left out.
- {GPUS:,} H100s, 8 a node, bfloat16 peak 989.4 TFLOP/s, NVLink 450 GB/s and network 50 GB/s a GPU and direction,
  5 and 10 microseconds a message. A rank is one GPU (fully sharded parameters).
- lengths: the shipped log omni_mix_dev, in its order, over and over; the published run's data is not public.
  Vision computes tiles of {TILE} patches; audio is packed, not padded to 30 s. Outputs are 16,384 bytes a token.
- computing reaches {EFFICIENCY:.0%} of the peak whatever the shapes: MFU is proportional to it, ratios barely move.
- ranks wait for each other after every phase; no exchange is hidden; parameters' and gradients' own collectives, the
  optimizer, planning and data loading take no time; memory is not capped."""
STEP = f"""\
cluster = "h100"

[[phase]]
name = "vision"
length = "image_patches"
model = "{MODULES["vision"]}"
pieces = {TILE}
outputs = "image_tokens"
bytes_in = {3 * 14 * 14 * 2}
bytes_out = {2 * 8192}

[[phase]]
name = "audio"
length = "audio_frames"
model = "{MODULES["audio"]}"
outputs = "audio_tokens"
bytes_in = {128 * 2}
bytes_out = {2 * 8192}

[[phase]]
name = "llm"
length = "text_tokens+image_tokens+audio_tokens"
model = "{MODULES["llm"]}"
own = "text_tokens"
bytes_in = 4
"""


def limited_log(folder: str, longest: int) -> tuple[Path, float]:
    """Leave out samples of more LLM tokens than a context holds; return the log and the fraction left out."""
    keep = common.log("mix") <= longest
    path = Path(folder) / f"context_{longest}.parquet"
    pq.write_table(pq.read_table(LOG).filter(pa.array(keep)), path)
    return path, 1 - float(np.mean(keep))


def study(
    log: Path, gpus_per_rank: int, batch_per_gpu: int, steps: int, waits: str = "phase",
    strategies: Sequence[str] = tuple(STRATEGIES), micro_batches: MicroBatches | None = None,
) -> Any:  # fmt: skip
    """Simulate the model on the cluster; the same GPUs, in ranks of `gpus_per_rank`: what ``--json`` prints."""
    with tempfile.TemporaryDirectory() as folder:
        (file := Path(folder) / "step.toml").write_text(STEP)
        asked = ["simulate", str(log), "--step", str(file), "--ranks", GPUS // gpus_per_rank, "--steps", steps]
        asked += ["--ranks-per-node", 8 // gpus_per_rank, "--batch-per-rank", batch_per_gpu * gpus_per_rank]
        asked += ["--efficiency", EFFICIENCY, "--checkpointing", "--waits", waits, "--json"]
        asked += ["--strategies", ",".join(strategies), "--set", f"gpus_per_rank={gpus_per_rank}"]
        if micro_batches is not None:
            asked += ["--set", f"cut.tokens={micro_batches.tokens}", "--set", f"cut.encoders={micro_batches.encoders}"]
        command = [sys.executable, "-c", "from balancer.cli.main import main; main()", *map(str, asked)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(done.stderr)
        return SimpleNamespace(**json.loads(done.stdout))


def limited(call: Any) -> None:
    with tempfile.TemporaryDirectory() as folder:
        call(limited_log(folder, CONTEXT)[0])


def rows(table: Table, name: str, found: Any) -> None:
    """One row a strategy."""
    base = next(iter(found.strategies.values()))["samples_per_s"]
    for strategy, run in found.strategies.items():
        step = run["step_s"]
        table.row(
            name,
            STRATEGIES[strategy],
            f"{step['mean']:.2f} ± {step['deviation']:.2f}",
            f"{run['waiting_s']:.2f}",
            f"{1e3 * run['exchange_s']:.1f}",
            f"{run['mfu']:.1%}",
            run["samples_per_s"] / base,
            f"{run['activation_bytes'] / 2**30:.0f}",
        )


HEADS = ("", "strategy", "s a step", "waiting, s", "exchange, ms", "MFU", "throughput", "GiB a GPU")


def study_of(quick: bool) -> None:
    """Samples of up to 8,192 LLM tokens, 8 a GPU, one GPU a rank."""
    print(f"{sum(module(name).parameters for name in MODULES.values()) / 1e9:.1f} billion parameters.\n{ASSUMPTIONS}\n")
    table = Table(*HEADS)
    limited(lambda log: rows(table, "8 a GPU", study(log, 1, 8, 2 if quick else 10)))


study_of.__name__ = "study"


def samples(quick: bool) -> None:
    """Other numbers of samples, ranks of eight GPUs, ranks that wait once a step, and the whole log."""
    table, pair, steps = Table(*HEADS), ("as_sampled", "orchestrated"), 2 if quick else 10

    def of(log: Path) -> None:
        rows(table, "8 a GPU, wait once a step", study(log, 1, 8, steps, "step", pair))
        rows(table, "8 a GPU, eight GPUs a rank", study(log, 8, 8, steps, strategies=pair))
        if not quick:
            rows(table, "32 a GPU", study(log, 1, 32, steps, strategies=pair))

    limited(of)
    rows(table, "8 a GPU, the whole log", study(LOG, 1, 8, steps, strategies=pair))


def cuts(quick: bool) -> None:
    """In micro-batches of 8,192 LLM tokens, encoders in each of them or before the first."""
    table, pair, each = Table(*HEADS), ("as_sampled", "orchestrated"), 8 if quick else 32

    def of(log: Path) -> None:
        for encoders in ("slot", "step"):
            cut = MicroBatches(CONTEXT, encoders=encoders)
            found = study(log, 1, each, 2 if quick else 5, strategies=pair, micro_batches=cut)
            rows(table, f"{each} a GPU, encoders in each {encoders}", found)

    limited(of)


# Images as items, and ranks that plan within groups

SIDES = "(image_widths,image_heights)"
TEXT = Phase("llm", "text_tokens+image_tokens", own="text_tokens")
VISION = {
    "whole samples": Phase("vision", "image_patches", outputs="image_tokens"),
    "images": Phase("vision", f"qwen2vl_patches{SIDES}", outputs=f"qwen2vl_tokens{SIDES}"),
}


def images(quick: bool) -> None:
    """An encoder's imbalance ratio: as sampled, with whole samples, with images as items, and the least of each."""
    table = Table("ranks x samples", "as sampled", "whole samples", "least, proven", "images", "least, proven")
    for ranks, each in ((16, 8),) if quick else ((16, 8), (16, 16), (64, 8), (64, 16)):
        cells: list[float] = []
        for vision in VISION.values():
            topology = balancer.Topology.uniform(ranks, NODE)
            asked = {"phases": (vision, TEXT), "topology": topology, "batch_per_rank": each, "drop_last": True}
            found = balancer.plan_log(common.DATA / "docs_msdev_interleaved.parquet", **asked).summary()
            ratios = found["phases"]["vision"]
            names = ("imbalance_ratio_after", "imbalance_ratio_best_possible")
            cells += [ratios[name] for name in (names if cells else ("imbalance_ratio_before", *names))]
        table.row(f"{ranks} x {each}", *cells)


def groups(quick: bool) -> None:
    """Ranks that plan within groups: imbalance ratio, lognormal lengths, none longer than a fair share."""
    ranks, each, seeds = (256, 8, 1) if quick else (2560, 8, 3)
    sizes = (8, 64, 256)[: 2 if quick else 3]
    table = Table(f"{ranks:,} ranks x {each}, longest", "as sampled", *(f"groups of {size}" for size in sizes), "all",
                  "least, proven")  # fmt: skip
    for longest in (8192, 16_384):
        rows = []
        for seed in range(seeds):
            tokens = common.lognormal(ranks * each, seed, longest, 2048)
            home = np.repeat(np.arange(ranks), each)
            plans = [balancer.orchestrate({"tokens": tokens}, {"llm": "tokens"}, ranks, home_rank=home,
                                          group_size=size)["llm"] for size in (*sizes, None)]  # fmt: skip
            bound = plans[-1].lower_bound * ranks / int(tokens.sum())
            rows.append([plans[-1].home_imbalance_ratio, *(plan.imbalance_ratio for plan in plans), bound])
        table.row(f"{longest:,}", *np.mean(rows, axis=0).tolist())


if __name__ == "__main__":
    common.main(__doc__, study_of, samples, cuts, images, groups)
