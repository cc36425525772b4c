"""An 84B-class model of three modalities on 2,560 H100s: what strategies of balancing are worth, by the simulator.

Run: python benchmarks/cluster_study.py [STEPS]. Prints its assumptions, then tables, which
docs/benchmarks/cluster_study.md explains.
"""

import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from balancer import MicroBatches, Phase
from balancer.cost import module
from balancer.io.log import open_log
from balancer.offline.settings import LogSettings
from balancer.plan.step_plan import StepPlan
from balancer.plan.stream import Stream
from balancer.planner import plan_problem
from balancer.problem.cuts import as_cut
from balancer.problem.settings import PlanSettings
from balancer.problem.setup import Setup
from balancer.simulate import CLUSTERS, PhaseModel, Simulation, StepTime, simulate_log

LOG = Path(__file__).parent.parent / "data" / "omni_mix_dev.parquet"
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


def limited_log(folder: str, longest: int) -> tuple[Path, float]:
    """Leave out samples of more LLM tokens than a context holds; return the log and the fraction left out."""
    table = pq.read_table(LOG)
    tokens = sum(table[name].to_numpy() for name in ("text_tokens", "image_tokens", "audio_tokens"))
    keep = tokens <= longest
    path = Path(folder) / f"context_{longest}.parquet"
    pq.write_table(table.filter(pa.array(keep)), path)
    return path, 1 - float(np.mean(keep))


def study(
    log: Path, gpus_per_rank: int, batch_per_gpu: int, steps: int, waits: str = "phase",
    strategies: Sequence[str] = tuple(STRATEGIES), micro_batches: MicroBatches | None = None,
    watch: Callable[[str, StepPlan, StepTime], None] | None = None,
) -> Simulation:  # fmt: skip
    """Simulate the model on the cluster; the same GPUs, in ranks of `gpus_per_rank`."""
    cluster = CLUSTERS["h100"].with_ranks_of(gpus_per_rank)
    models = {
        name: PhaseModel.on(
            model, cluster.peak_flops, EFFICIENCY, piece=TILE if name == "vision" else None, checkpointing=True
        )
        for name, model in MODULES.items()
    }
    phases = (
        Phase("vision", "image_patches", outputs="image_tokens", bytes_in=3 * 14 * 14 * 2, bytes_out=2 * 8192),
        Phase("audio", "audio_frames", outputs="audio_tokens", bytes_in=128 * 2, bytes_out=2 * 8192),
        Phase("llm", "text_tokens+image_tokens+audio_tokens", own="text_tokens", bytes_in=4),
    )
    phases = tuple(replace(phase, cost=models[phase.name].cost_model()) for phase in phases)
    ranks, batch = cluster.topology(GPUS // gpus_per_rank), batch_per_gpu * gpus_per_rank
    settings = LogSettings(Setup(ranks, phases, PlanSettings(cut=as_cut(micro_batches))), batch)
    return simulate_log(
        open_log(log), settings, models, cluster, strategies=strategies, num_steps=steps, waits=waits, watch=watch
    )


def crossing_by_way_of_home(plan: StepPlan) -> int:
    """Bytes that cross nodes where outputs go home to their sample first, and the LLM is balanced from there."""
    *encoders, last = plan.phases.values()
    streams = [plan.streams[f"{each.items.phase.name}:in"] for each in encoders]
    volumes = last.items.own.sums() * last.items.phase.bytes_in
    for each in encoders:
        out = plan.streams[f"{each.items.phase.name}:out"]
        streams.append(replace(out, target=each.plan.home))
        np.add.at(volumes, each.items.sample_of_item, out.bytes_of_item)
    # All that the LLM takes of a sample then lies at home.
    planned = plan_problem(replace(last.plan.problem, affinity=None, volumes=volumes), plan.setup.settings)
    streams.append(Stream("llm:in", planned.home, planned.target, volumes, volumes))
    return sum(stream.traffic(plan.topology).inter_node for stream in streams)


def print_study(title: str, found: Simulation) -> None:
    print(f"\n### {title}; {found.steps} steps, the log read {found.passes:.1f} times\n")
    print("| strategy | s a step | ± | compute | waiting | exchange | MFU | samples/s | throughput | GiB a GPU |")
    print(f"|---|{'--:|' * 9}")
    base = next(iter(found.strategies.values()))["samples_per_s"]
    for name, run in found.strategies.items():
        step = run["step_s"]
        print(
            f"| {STRATEGIES.get(name, name)} | {step['mean']:.2f} | {step['deviation']:.2f} | {run['compute_s']:.2f} "
            f"| {run['waiting_s']:.2f} | {run['exchange_s'] * 1e3:.2f} ms | {run['mfu']:.1%} "
            f"| {run['samples_per_s']:,.0f} | {run['samples_per_s'] / base:.2f} "
            f"| {run['activation_bytes'] / 2**30:.0f} |"
        )


def main() -> None:
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 50
    parameters = sum(module(name).parameters for name in MODULES.values())
    print(f"{parameters / 1e9:.1f} billion parameters in the three modules.")
    print(ASSUMPTIONS)
    with tempfile.TemporaryDirectory() as folder:
        limited, left_out = limited_log(folder, CONTEXT)
        context = f"samples over {CONTEXT:,} LLM tokens left out ({left_out:.2%})"
        moved = []

        def watch(strategy: str, plan: StepPlan, _: StepTime) -> None:
            if strategy == "orchestrated":
                straight = sum(plan.traffic_of(name).inter_node for name in plan.streams)
                moved.append((straight, crossing_by_way_of_home(plan)))

        for batch in (8, 32):
            moved.clear()
            title = f"{batch} samples a GPU, one GPU a rank, {context}"
            print_study(title, study(limited, 1, batch, steps, watch=watch))
            straight, home = np.mean(moved, axis=0) / 1e9
            print(f"\nAcross nodes a step: outputs straight to the LLM {straight:.2f} GB, by way of home {home:.2f} GB")
        for encoders, when in (("slot", "encoders in each of them"), ("step", "encoders before the first")):
            cut = study(limited, 1, 32, steps, micro_batches=MicroBatches(8192, encoders=encoders))
            title = f"32 samples a GPU in micro-batches of 8,192 LLM tokens, {when}, one GPU a rank, {context}"
            print_study(title, cut)
        title = f"8 samples a GPU, eight GPUs a rank, {context}"
        print_study(title, study(limited, 8, 8, steps))
        title = f"8 samples a GPU, one GPU a rank, {context}, ranks wait once a step"
        print_study(title, study(limited, 1, 8, steps, waits="step"))
        print_study("8 samples a GPU, one GPU a rank, the whole log", study(LOG, 1, 8, steps))


if __name__ == "__main__":
    main()
