"""How fast the simulator is: 2,560 ranks, three phases, all strategies, 1,000 steps; and its memory.

Run: python benchmarks/simulate.py [STEPS [BATCH_PER_RANK]]. CPU seconds are of all threads of this process.
"""

import resource
import sys
import time
from pathlib import Path

from balancer import Phase, Topology
from balancer.io.logs import open_log
from balancer.offline_steps import StepSettings
from balancer.simulate import CLUSTERS, PhaseModel, simulate_log

LOG = Path(__file__).parent.parent / "data" / "omni_mix_dev.parquet"


def main() -> None:
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    batch = int(sys.argv[2]) if len(sys.argv) > 2 else 8
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
    settings = StepSettings(Topology.uniform(2560, 8), batch, phases)
    log = open_log(LOG)
    simulate_log(log, settings, models, cluster, num_steps=1)  # compile the kernels
    print("| steps | strategies | wall s | CPU s | ms a step and strategy | peak MiB |\n|--:|--:|--:|--:|--:|--:|")
    for count in (max(1, steps // 4), steps):
        wall, cpu = time.perf_counter(), time.process_time()
        found = simulate_log(log, settings, models, cluster, num_steps=count)
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        each = cpu / count / len(found.strategies) * 1e3
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(f"| {count:,} | {len(found.strategies)} | {wall:.1f} | {cpu:.1f} | {each:.1f} | {peak:.0f} |", flush=True)


if __name__ == "__main__":
    main()
