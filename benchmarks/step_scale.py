"""One step of three phases planned, composed and turned into every rank's exchanges: time, memory, growth with ranks.

And few samples on many ranks, of which most hold nothing: ranks that do must cost next to nothing.

Run: python benchmarks/step_scale.py [few] [ranks ...]. CPU time of one core, best of several; a process for each size.
"""

import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable

import numpy as np
from all_exchanges import all_exchanges, check_rank

from balancer import Phase, Topology, balance, orchestrate
from solvers._jit import compile_at_once

SAMPLES_PER_RANK = 60
PLACEMENTS = ("relocate", "rearrange", "any")
PHASES = (
    Phase("vision", "image_patches", outputs="image_tokens", bytes_in=3 * 14 * 14 * 2, bytes_out=8192),
    Phase("audio", "audio_frames", outputs="audio_tokens", bytes_in=256, bytes_out=8192),
    Phase("llm", "text_tokens+image_tokens+audio_tokens", own="text_tokens", bytes_in=4),
)


def batch(num_ranks: int, seed: int = 0) -> dict[str, np.ndarray]:
    """Lognormal text with every sample, an image with 60 %, audio with 30 %."""
    rng = np.random.default_rng(seed)
    n = num_ranks * SAMPLES_PER_RANK
    lengths = [np.clip(rng.lognormal(6, 1, n), 1, 8192).astype(np.int64) for _ in range(2)]
    images = np.where(rng.random(n) < 0.6, lengths[1], 0)
    frames = np.where(rng.random(n) < 0.3, rng.integers(100, 3000, n), 0)
    return {
        "text_tokens": lengths[0],
        "image_patches": 4 * images,
        "image_tokens": images,
        "audio_frames": frames,
        "audio_tokens": frames // 4,
    }


def timed(function: Callable[[], object], runs: int) -> tuple[float, object]:
    """Return milliseconds of CPU time, best of `runs`, and what the function returned."""
    best, result = float("inf"), None
    for _ in range(runs):
        started = time.process_time()
        result = function()
        best = min(best, time.process_time() - started)
    return 1e3 * best, result


def measure(num_ranks: int) -> None:
    """Print a row: what an orchestrated step takes on so many ranks."""
    columns, topology = batch(num_ranks), Topology.uniform(num_ranks, 8)
    orchestrate(batch(64), PHASES, Topology.uniform(64, 8))  # kernels are compiled, or loaded
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
    runs = 10 if num_ranks <= 2560 else 4
    placing = [timed(lambda p=p: orchestrate(columns, PHASES, topology, placement=p), runs) for p in PLACEMENTS]
    planning, plan = placing[0]
    streams = [*plan.streams.values()]
    exchanging, held = timed(lambda: [all_exchanges(s.source, s.target, s.lengths) for s in streams], runs)
    for exchanges in held:
        check_rank(exchanges, num_ranks // 2)
    fusing, _ = timed(lambda: plan.inputs_of("llm"), runs)
    fused = plan.inputs_of("llm")
    own, _ = timed(lambda: [s.exchange(num_ranks // 2) for s in (*streams, fused)], runs)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
    kept = sum(array.nbytes for e in held for array in (e.send_items, e.arrival_items, e.pair_items, e.pair_elements))
    total = planning + exchanging
    micros = 1e3 * total / (num_ranks * SAMPLES_PER_RANK)
    plans = " | ".join(f"{milliseconds:.1f}" for milliseconds, _ in placing)
    print(
        f"| {num_ranks:,} | {plans} | {exchanging:.1f} | {total:.1f} | {micros:.2f} | {fusing:.1f} | {own:.2f} "
        f"| {peak:.0f} ({before:.0f} before) | {kept / 2**20:.0f} |",
        flush=True,
    )


def measure_few(num_ranks: int) -> None:
    """Print a row: what 200 samples take, of which the first ranks hold eight each."""
    lengths, homes = [7919 * i % 4000 + 1 for i in range(200)], [i // 8 for i in range(200)]
    asked = [(nodes, placement) for nodes in (8, None) for placement in PLACEMENTS]
    times = []
    for nodes, placement in asked:
        balance(lengths, 64, nodes, homes, placement=placement)  # kernels are compiled, or loaded
        times.append(timed(lambda n=nodes, p=placement: balance(lengths, num_ranks, n, homes, placement=p), 3)[0])
    print(f"| {num_ranks:,} | {' | '.join(f'{milliseconds:.1f}' for milliseconds in times)} |", flush=True)


FEW = (
    "ranks", *(f"{placement}, {nodes}, ms" for nodes in ("nodes of 8", "one node") for placement in PLACEMENTS)
)  # fmt: skip
ALL = (
    "ranks", "relocate, ms", "rearrange", "any", "all exchanges, ms", "with relocate", "us a sample", "fused, ms",
    "one rank's, ms", "peak MiB", "exchanges MiB",
)  # fmt: skip


def main() -> None:
    compile_at_once()
    words = sys.argv[1:]
    few = words[:1] == ["few"]
    words = words[few:]
    if words[:1] == ["--one"]:
        (measure_few if few else measure)(int(words[1]))
        return
    usual = [1024, 16384, 131072, 1048576] if few else [64, 256, 1024, 2560, 5120, 10240, 20480]
    headers = FEW if few else ALL
    print(f"| {' | '.join(headers)} |\n|{'--:|' * len(headers)}", flush=True)
    for size in [int(word) for word in words] or usual:
        command = [sys.executable, os.path.abspath(__file__), *["few"] * few, "--one", str(size)]
        subprocess.run(command, check=True)


if __name__ == "__main__":
    main()
