"""Several phases: three strategies on the shipped log, images as items, and what planning within groups costs.

Run: python benchmarks/many_phases.py [strategies] [items] [groups]. Prints the tables of docs/benchmarks/phases.md.
"""

import sys
from pathlib import Path

import numpy as np

from balancer import Phase, Topology, balance, orchestrate
from balancer.io.log import open_log
from balancer.offline.settings import LogSettings
from balancer.offline.step_table import StepRows, phases_in, ratios_in, summary
from balancer.offline.steps import compare_log, plan_log
from balancer.problem.setup import Setup
from balancer.strategies import STRATEGIES
from solvers._jit import compile_at_once

DATA = Path(__file__).parent.parent / "data"
HIDDEN = 4096 * 2  # bytes of a token that an encoder puts out, in bfloat16
OMNI = (
    Phase("vision", "image_patches", outputs="image_tokens", bytes_in=3 * 14 * 14 * 2, bytes_out=HIDDEN),
    Phase("audio", "audio_frames", outputs="audio_tokens", bytes_in=128 * 2, bytes_out=HIDDEN),
    Phase("llm", "text_tokens+image_tokens+audio_tokens", own="text_tokens", bytes_in=4),
)


def strategies(num_ranks: int, batch_per_rank: int = 16) -> None:
    """Imbalance ratio of every phase over the whole log, and what crosses nodes of 8 ranks in a step."""
    settings = LogSettings(Setup(Topology.uniform(num_ranks, 8), OMNI), batch_per_rank, drop_last=True)
    log = open_log(DATA / "omni_mix_dev.parquet")
    rows = {strategy: StepRows() for strategy in STRATEGIES}
    for strategy, plan in compare_log(log, settings):
        rows[strategy].add(rows[strategy].steps, plan)
    steps, found = rows["orchestrated"].steps, {name: summary(each.table()) for name, each in rows.items()}
    print(f"\n### omni_mix_dev, {num_ranks} ranks x {batch_per_rank}, {steps} steps\n")
    names = [phase.name for phase in OMNI]
    print(f"| strategy | {' | '.join(names)} | GB a step across nodes |\n|---|{'--:|' * (len(names) + 1)}")
    for strategy, each in found.items():
        ratios = [f"{each['phases'][name]['imbalance_ratio_after']:.4f}" for name in names]
        crosses = sum(stream["crosses_nodes_bytes"] for stream in each["streams"].values())
        print(f"| `{strategy}` | {' | '.join(ratios)} | {crosses / steps / 1e9:.2f} |")
    bounds = [f"{found['orchestrated']['phases'][name]['imbalance_ratio_best_possible']:.4f}" for name in names]
    print(f"| proven bound | {' | '.join(bounds)} | |")


def images_as_items(num_ranks: int, batch_per_rank: int) -> None:
    """Vision of the interleaved pages: whole samples, the floor that is proven for them, and images as items."""
    topology = Topology.uniform(num_ranks, 8)
    log = open_log(DATA / "docs_msdev_interleaved.parquet")
    sides = "(image_widths,image_heights)"
    llm = Phase("llm", "text_tokens+image_tokens", own="text_tokens")
    whole = Phase("vision", "image_patches", outputs="image_tokens")
    images = Phase("vision", f"qwen2vl_patches{sides}", outputs=f"qwen2vl_tokens{sides}")
    found = {}
    for name, vision in (("whole", whole), ("images", images)):
        rows = StepRows()
        for plan in plan_log(log, LogSettings(Setup(topology, (vision, llm)), batch_per_rank, drop_last=True)):
            rows.add(rows.steps, plan)
        found[name] = ratios_in(phases_in(rows.table())["vision"])
    before, after = found["whole"], found["images"]
    print(
        f"| {num_ranks} x {batch_per_rank} | {before[0]:.4f} | {before[1]:.4f} | {before[2]:.4f} "
        f"| **{after[1]:.4f}** | {after[2]:.4f} |"
    )


def groups(num_ranks: int = 2560, batch_per_rank: int = 8, seeds: int = 5) -> None:
    """Largest over mean load where ranks plan within groups: lognormal lengths, none longer than a fair share."""
    print(f"\n### {num_ranks:,} ranks x {batch_per_rank} lognormal lengths, mean of {seeds} seeds\n")
    print("| | sigma 1, clipped at 8,192 | sigma 1, clipped at 16,384 |\n|---|--:|--:|")
    rows: dict[str, list[float]] = {}
    for longest in (8192, 16384):
        ratios: dict[str, list[float]] = {}
        for seed in range(seeds):
            rng = np.random.default_rng(seed)
            lengths = rng.lognormal(np.log(2048) - 0.5, 1.0, num_ranks * batch_per_rank)
            batch = {"tokens": np.clip(lengths, 1, longest).astype(np.int64)}
            home = balance(batch["tokens"], num_ranks).home_imbalance_ratio
            ratios.setdefault("as sampled", []).append(home)
            for size in (8, 64, 256, None):
                plan = orchestrate(batch, {"llm": "tokens"}, num_ranks, group_size=size)["llm"]
                name = "global" if size is None else f"groups of {size}"
                ratios.setdefault(name, []).append(plan.imbalance_ratio)
            ratios.setdefault("proven bound", []).append(plan.lower_bound * num_ranks / int(batch["tokens"].sum()))
        for name, values in ratios.items():
            rows.setdefault(name, []).append(float(np.mean(values)))
    for name, values in rows.items():
        print(f"| {name} | {' | '.join(f'{value:.4f}' for value in values)} |")


def main() -> None:
    compile_at_once()
    wanted = sys.argv[1:] or ["strategies", "items", "groups"]
    if "strategies" in wanted:
        for num_ranks in (64, 256):
            strategies(num_ranks)
    if "items" in wanted:
        print("\n### docs_msdev_interleaved: imbalance ratio of vision\n")
        print("| ranks x samples | as sampled | whole samples | their floor, proven | images | their floor |")
        print("|---|--:|--:|--:|--:|--:|")
        for shape in ((16, 8), (16, 16), (64, 8), (64, 16)):
            images_as_items(*shape)
    if "groups" in wanted:
        groups()


if __name__ == "__main__":
    main()
