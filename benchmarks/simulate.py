"""How fast the simulator is: 2,560 ranks, three phases, all strategies, 1,000 steps; and its memory on the way.

Run: python benchmarks/simulate.py [STEPS [BATCH_PER_RANK [MICRO_BATCH_TOKENS]]]. One run; a line whenever a fifth of
the steps is done by all strategies, and at the end one a strategy. CPU seconds are of all threads of this process;
memory is the most it had so far, and what it has then.
"""

import itertools
import resource
import sys
import time
from pathlib import Path

from balancer import MicroBatches, Phase, Topology
from balancer.io.log import open_log
from balancer.offline.settings import LogSettings
from balancer.problem.settings import PlanSettings
from balancer.problem.setup import Setup
from balancer.report.table import as_range
from balancer.simulate import CLUSTERS, PhaseModel, simulate_log
from balancer.strategies import STRATEGIES
from solvers._jit import compile_at_once

LOG = Path(__file__).parent.parent / "data" / "omni_mix_dev.parquet"
LAST = list(STRATEGIES)[-1]


class Meter:
    """Prints a line whenever the last strategy has done another fifth of the steps."""

    def __init__(self, steps: int) -> None:
        self.steps, self.done = steps, 0
        self.wall, self.cpu = time.perf_counter(), time.process_time()
        self.last = self.cpu
        self.each = dict.fromkeys(STRATEGIES, 0.0)
        self.order = itertools.cycle(STRATEGIES)  # which they come in, step by step

    def tick(self, samples: int) -> None:
        strategy = next(self.order)
        now = time.process_time()
        self.each[strategy] += now - self.last
        self.last = now
        if strategy != LAST:
            return
        self.done += 1
        if self.done % max(1, self.steps // 5) and self.done != self.steps:
            return
        wall, cpu = time.perf_counter() - self.wall, time.process_time() - self.cpu
        each = cpu / self.done / len(STRATEGIES) * 1e3
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(f"| {self.done:,} | {wall:.1f} | {cpu:.1f} | {each:.1f} | {peak:.0f} | {resident():.0f} |", flush=True)


def resident() -> float:
    """MiB that this process has in memory, where the system says."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 2**20
    except OSError:
        return float("nan")


def main() -> None:
    compile_at_once()
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    batch = int(sys.argv[2]) if len(sys.argv) > 2 else 8
    cut = MicroBatches(int(sys.argv[3]), over_long="own") if len(sys.argv) > 3 else None
    cluster = CLUSTERS["h100"]
    models = {
        "vision": PhaseModel.on("internvit-6b", cluster.peak_flops, 0.5, piece=1024),
        "audio": PhaseModel.on("whisper-large-v3-encoder", cluster.peak_flops, 0.5),
        "llm": PhaseModel.on("qwen2-72b", cluster.peak_flops, 0.5),
    }
    phases = (
        Phase("vision", "image_patches", models["vision"].cost_model(), "image_tokens", bytes_in=1176, bytes_out=16384),
        Phase("audio", "audio_frames", models["audio"].cost_model(), "audio_tokens", bytes_in=256, bytes_out=16384),
        Phase(
            "llm", "text_tokens+image_tokens+audio_tokens", models["llm"].cost_model(), own="text_tokens", bytes_in=4
        ),
    )
    settings = LogSettings(Setup(Topology.uniform(2560, 8), phases, PlanSettings(cut=cut)), batch)
    log = open_log(LOG)
    simulate_log(log, settings, models, cluster, num_steps=1)  # compile the kernels
    print(f"{len(STRATEGIES)} strategies, 2,560 ranks x {batch} samples, {len(phases)} phases\n")
    print("| steps | wall s | CPU s | CPU ms a step and strategy | peak MiB | now MiB |\n|--:|--:|--:|--:|--:|--:|")
    meter = Meter(steps)
    found = simulate_log(log, settings, models, cluster, num_steps=steps, tick=meter.tick)
    print("\n| strategy | CPU ms a step | steps a CPU second | micro-batches |\n|---|--:|--:|--:|")
    for name, seconds in meter.each.items():  # reading counts for the first, and sorting too
        run = found.strategies[name]
        slots = as_range(**run["micro_batches"])
        print(f"| {name} | {seconds / steps * 1e3:.0f} | {steps / seconds:.1f} | {slots} |")


if __name__ == "__main__":
    main()
