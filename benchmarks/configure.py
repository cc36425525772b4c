"""Layouts chosen for a cluster: seconds, what is excluded by proof, and what systems that are published are worth here.

Run: python benchmarks/configure.py [table] [worth]. What is chosen for is frozen here (CLUSTERS, PHASES) and in
data/omni_mix_dev.parquet, its first step: InternViT-6B in tiles of 1,024 patches, Whisper-large-v3's encoder and
Qwen2-72B on H100s, 8 samples a GPU, computing at half of the peak, no exchange hidden, a tenth of the memory left free.
Seconds are of this thread, after compilation. Nothing is tuned: those are the defaults of `balancer configure`.
"""

import sys
import time
from pathlib import Path

import numpy as np

from balancer.cuts.pipelines.timed import asked_of
from balancer.layout_choice.bounds import LayoutCase, room_of
from balancer.layout_choice.choose import configure
from balancer.layouts.layout import ModuleLayout, StepLayout
from balancer.problem.step_times import PER_SECOND
from solvers.pipeline import PipelineRequest
from solvers.pipeline.solver import PipelineProblem, makespans_of

LOG = str(Path(__file__).parent.parent / "data" / "omni_mix_dev.parquet")
PHASES = {
    "vision": "image_patches",
    "audio": "audio_frames",
    "llm": "text_tokens+image_tokens+audio_tokens",
}
MODELS = {"vision": "internvit-6b", "audio": "whisper-large-v3-encoder", "llm": "qwen2-72b"}
CLUSTERS = (("h100", 512, 4096), ("h200", 512, 4096), ("h100", 2560, 20480), ("h200", 2560, 20480))


def chosen(cluster, num_gpus, batch, mode="any", layouts=16):
    """A configuration, and the seconds of this thread that it took."""
    started = time.thread_time()
    found = configure(
        LOG, num_gpus, PHASES, MODELS, batch, cluster=cluster, mode=mode, pieces={"vision": 1024},
        layouts=layouts,
    )  # fmt: skip
    return found, time.thread_time() - started


def words(each):
    """A layout in a table's cell."""
    alike = {}
    for name, one in each.layout.modules.items():
        alike.setdefault(one.in_words(), []).append(name)
    return "; ".join(f"{'+'.join(names)}: {one}" for one, names in alike.items()) + f"; K {each.layout.micro_batches}"


def table():
    print("| cluster, GPUs | s | stages excluded | by estimate | all, excluded | fastest | s a step | proven | stages "
          "| before | multiplexed | formula's pick: says, takes |")  # fmt: skip
    print("|---|--:|--:|--:|--:|---|--:|--:|--:|--:|--:|--:|")
    for cluster, num_gpus, batch in CLUSTERS:
        found, took = chosen(cluster, num_gpus, batch)
        stages = found.counts["stages"]
        sums = {name: sum(counts[name] for counts in found.counts.values()) for name in stages}
        share, close, every = (
            f"{100 * part / whole:.1f} %"
            for part, whole in (
                (stages["bound"] + stages["memory"], sum(stages.values())),
                (stages["estimate"], sum(stages.values())),
                (sums["bound"] + sums["memory"], sum(sums.values())),
            )
        )
        best = [f"{found.best[mode].seconds:.3f}" if mode in found.best else "none" for mode in found.counts]
        modes = dict(zip(found.counts, best, strict=True))
        fits = "" if found.formula.bytes <= room_of(found.case.given) else " (does not fit)"
        formula = f"{found.formula_s:.3f}, {found.formula.seconds:.3f}{fits}"
        print(f"| {cluster}, {num_gpus:,} | {took:.1f} | {share} | {close} | {every} | {words(found.winner)} "
              f"| {found.winner.seconds:.3f} | {found.lower_bound_s:.3f} | {modes['stages']} | {modes['before']} "
              f"| {modes['multiplexed']} | {formula} |", flush=True)  # fmt: skip


def in_turn(asked):
    """Makespan of slots with as many samples each, in an order as if at random."""
    problem = PipelineProblem.from_request(PipelineRequest(**asked))
    n, cells = len(problem.work), np.empty(len(problem.work), dtype=np.int64)
    cells[np.random.default_rng(20_260_101).permutation(n)] = np.arange(n) * problem.num_cells // max(1, n)
    return int(makespans_of(problem, cells).max())


def as_they_come(given, layout, slots):
    """Seconds of the steps with encoders as stages and samples in slots as they come."""
    case = LayoutCase.of(given, layout, slots)
    total = 0.0
    for step in given.steps:
        asked = asked_of(case.step_times, step)
        total += in_turn(asked) / PER_SECOND
    return total / len(given.steps) + case.sync_s


def worth():
    """What each way of running encoders takes, over the fastest: folklore, formula, exact, before, in gaps."""
    print("\n| cluster, GPUs | way | s a step | over the fastest |\n|---|---|--:|--:|")
    for cluster, num_gpus, batch in CLUSTERS[1::2]:
        found, _ = chosen(cluster, num_gpus, batch)
        given, rows = found.case.given, {}
        for stages in (4, 8):
            llm = ModuleLayout(tp=8, pp=stages - 1, dp=num_gpus // (8 * stages))
            encoder = ModuleLayout(dp=8 * llm.dp)
            layout = StepLayout({"vision": encoder, "audio": encoder, "llm": llm})
            name = f"encoders as first of {stages} stages of 8 GPUs, samples as they come"
            rows[name] = as_they_come(given, layout, 4 * stages)
        rows["DFLOP's formula's layout, slots of exact schedules"] = found.formula.seconds
        for mode, each in found.best.items():
            rows[f"the best {mode}: {words(each)}"] = each.seconds
        least = min(rows.values())
        for name, seconds in sorted(rows.items(), key=lambda row: -row[1]):
            print(f"| {cluster}, {num_gpus:,} | {name} | {seconds:.3f} | {seconds / least:.2f} |", flush=True)


def main():
    asked = sys.argv[1:]
    configure(LOG, 16, {"llm": PHASES["llm"]}, {"llm": "qwen2-7b"}, 64, layouts=1)  # compiles
    chosen("h200", 64, 512, layouts=1)
    for name, run in (("table", table), ("worth", worth)):
        if not asked or name in asked:
            run()


if __name__ == "__main__":
    main()
