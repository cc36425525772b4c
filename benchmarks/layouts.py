"""What are layouts worth, and what do unlike ones cost?

    python benchmarks/layouts.py [choice] [groups] [planning] [--quick]

`choice`: `balancer.configure` with its defaults on the first step of the shipped log, InternViT-6B in tiles of 1,024
patches, Whisper-large-v3's encoder and Qwen2-72B, 8 samples a GPU. `groups`, `planning`: an encoder on all GPUs, a
language model in replicas of 8 or 64 GPUs, lognormal lengths. About three minutes of one core; `--quick` half a minute.
"""

import common
import numpy as np
import phases
from common import NODE, Table, timed

import balancer
from balancer import ModuleLayout, Phase

COLUMNS = {"vision": "image_patches", "audio": "audio_frames", "llm": "text_tokens+image_tokens+audio_tokens"}


def choice(quick: bool) -> None:
    """Seconds of the search; the fastest layout of each mode over the fastest of all; the proven bound over it."""
    table = Table("cluster, GPUs", "s", "s a step, fastest", "fastest", "encoders as stages, over it", "before",
                  "in gaps", "no layout takes less than, over it", "DFLOP's formula's layout, over it")  # fmt: skip
    for cluster, gpus in (("h200", 64),) if quick else (("h100", 512), ("h200", 512), ("h200", 2560)):
        found, ms = timed(lambda c=cluster, g=gpus: balancer.configure(
            phases.LOG, g, COLUMNS, phases.MODULES, 8 * g, cluster=c, pieces={"vision": phases.TILE}))  # fmt: skip
        least = found.winner.seconds
        cells = [f"{found.best[mode].seconds / least:.3f}" if mode in found.best else "none fits"
                 for mode in ("stages", "before", "multiplexed")]  # fmt: skip
        table.row(f"{cluster}, {gpus:,}", f"{ms / 1e3:.1f}", least, found.winner.layout.mode, *cells,
                  found.lower_bound_s / least, found.formula.seconds / least)  # fmt: skip


def groups(quick: bool) -> None:
    """Groups of GPUs that plan alone: makespans over the bounds of all GPUs, and what crosses nodes of 8."""
    table = Table("GPUs, layouts, groups of", "encoder", "LLM", "crosses, %", "ms, one group")
    for gpus in (64,) if quick else (64, 512, 2560):
        for name in ("none", "unlike"):
            for size in (8, 64, None):
                if size is None or size < gpus:
                    step, _ = timed(lambda g=gpus, n=name, s=size: planned(g, n, s))
                    moved = [step.traffic_of(stream) for stream in step.streams]
                    crosses = 100 * sum(each.inter_node for each in moved) / sum(each.total for each in moved)
                    each = [plan.plan.makespan / plan.plan.lower_bound for plan in step.phases.values()]
                    _, ms = timed(lambda g=size or gpus, n=name: planned(g, n, None), 2)
                    table.row(f"{gpus:,}, {name}, {size or 'all'}", *each, f"{crosses:.1f}", f"{ms:.1f}")


def planned(gpus: int, layouts: str, size: int | None) -> balancer.StepPlan:
    rng, patches = np.random.default_rng(2), common.lognormal(4 * gpus, 3)
    batch = {"patches": patches, "tokens": patches // 4 + rng.integers(1, 4_000, len(patches)), "outputs": patches // 4}
    given = {"vision": ModuleLayout(dp=gpus), "llm": ModuleLayout(tp=8, dp=gpus // 8)}
    steps = [Phase("vision", "patches", outputs="outputs"), Phase("llm", "tokens")]
    return balancer.orchestrate(batch, steps, gpus, NODE, layouts=given if layouts == "unlike" else None,
                                group_size=size)  # fmt: skip


def planning(quick: bool) -> None:
    """A step of three phases with 10,240 samples on 2,560 GPUs: ms with unlike layouts over ms with none."""
    gpus, n = (512, 2048) if quick else (2560, 10_240)
    rng, patches = np.random.default_rng(1), common.lognormal(n)
    frames = common.lognormal(n) // 4 * rng.integers(0, 2, n)
    batch = {"patches": patches, "frames": frames, "tokens": patches + frames + rng.integers(1, 900, n)}
    steps = [Phase("vision", "patches"), Phase("audio", "frames"), Phase("llm", "tokens")]
    unlike = {"vision": ModuleLayout(dp=gpus), "audio": ModuleLayout(tp=2, dp=gpus // 2),
              "llm": ModuleLayout(tp=8, cp=8, dp=gpus // 64)}  # fmt: skip
    ways = {name: lambda given=given: balancer.orchestrate(batch, steps, gpus, NODE, layouts=given)
            for name, given in (("none", None), ("unlike", unlike))}  # fmt: skip
    ways |= {f"{name}, with all exchanges": lambda way=way: way().streams for name, way in list(ways.items())}
    times = common.in_turns(ways, 2 if quick else 5)
    table = Table(f"{gpus:,} GPUs, layouts", "ms", "over none")
    for name in ways:
        table.row(name, f"{min(times[name]):.1f}", common.over(times, name, "none"))


if __name__ == "__main__":
    common.main(__doc__, choice, groups, planning)
