"""Plans of pipelines on a real log: as sampled, by the formula of equal micro-batches, and by exact runs.

Run: python benchmarks/pipeline_plans.py [SECONDS]. InternViT-6B (tiles of 1,024 patches), Whisper-large-v3's encoder
and Qwen2-72B, samples of up to 8,192 tokens of data/omni_mix_dev.parquet, steps 0, 2, .. 10 of 8 replicas with 8
samples a micro-batch. Makespans, all by exact runs, over the proven bound; the bubble of all stages; seconds; means.
The formula's plans ignore homes: near them its largest micro-batch is no larger, but the others are less even.
"""

import statistics
import sys
import time
from pathlib import Path

import pyarrow.parquet as pq

from balancer import MicroBatches, Phase, Pipelines, PipelineStages
from balancer.problem.problem import work_of_slots
from balancer.strategies import plan_with

DATA = Path(__file__).parent.parent / "data" / "omni_mix_dev.parquet"
MODELS = {"vision": "internvit-6b", "audio": "whisper-large-v3-encoder", "llm": "qwen2-72b"}
PHASES = [Phase(name, name, f"flops:{model}") for name, model in MODELS.items()]
LAYOUTS = ((4, 1, 16), (8, 2, 32))  # stages, those of the encoders, micro-batches
REPLICAS, SAMPLES, MOST_TOKENS, STEPS = 8, 8, 8_192, (0, 2, 4, 6, 8, 10)
NO_CAP = 1 << 20


def columns():
    read = pq.read_table(DATA)
    table = {name: read.column(name).to_numpy() for name in read.column_names if name != "source"}
    tokens = table["text_tokens"] + table["image_tokens"] + table["audio_tokens"]
    kept = tokens <= MOST_TOKENS
    return {"vision": table["image_patches"][kept], "audio": table["audio_frames"][kept], "llm": tokens[kept]}


def rows_of(log, layout, budget):
    """Makespan over the bound, seconds and bubble of each way to plan, by step."""
    stages, first, slots = layout
    cut = PipelineStages.of({"vision+audio": first, "llm": stages - first}, MODELS, pieces={"vision": 1024})
    exact = Pipelines(NO_CAP, count=slots, stages=cut)
    formula = MicroBatches(NO_CAP, "pipeline", count=slots, pipeline_stages=stages)
    size = REPLICAS * slots * SAMPLES
    for step in STEPS:
        batch = {name: column[step * size : (step + 1) * size] for name, column in log.items()}
        best = plan_with("orchestrated", batch, PHASES, REPLICAS, cut=exact, time_budget=budget)["llm"]
        total, share = best.perfect()
        for name, strategy, how, placement in (
            ("as sampled", "as_sampled", exact, "relocate"),
            ("formula", "orchestrated", formula, "any"),
            ("exact", "orchestrated", exact, "relocate"),
        ):
            started = time.perf_counter()
            plans = plan_with(strategy, batch, PHASES, REPLICAS, cut=how, placement=placement, time_budget=budget)
            plan = plans["llm"]
            seconds = time.perf_counter() - started
            work = work_of_slots(best.work, plan.rank_of_sample, plan.slot_of_sample, REPLICAS, slots)
            makespan = int(cut.makespans(work).max())
            yield name, makespan / best.lower_bound, 1 - total / (makespan * share), seconds


def main(budget):
    log = columns()
    print("| stages (encoders'), micro-batches | plan | over the proven bound | bubble | s |\n|---|---|--:|--:|--:|")
    for layout in LAYOUTS:
        found = {}
        for name, *numbers in rows_of(log, layout, budget):
            found.setdefault(name, []).append(numbers)
        for name, numbers in found.items():
            ratio, bubble, seconds = (statistics.mean(column) for column in zip(*numbers, strict=True))
            print(f"| {layout[0]} ({layout[1]}), {layout[2]} | {name} | {ratio:.4f} | {bubble:.1%} | {seconds:.2f} |")


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 0.3)
