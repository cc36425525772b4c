"""Pipelines: makespans over proven bounds, beside others' methods; memory's price; speed.

Run: python benchmarks/pipeline.py [table] [methods] [price] [speed] [orders]. What is planned is
frozen here (INSTANCES, STEPS) and in data/omni_mix_dev.parquet: InternViT-6B (images of a sample are alike),
Whisper-large-v3's encoder and Qwen2-72B by FLOPs at 40 % of an H100, tensor parallel 8, the backward twice the forward,
no hop, samples of up to 8,192 tokens. Seconds are of this thread, after compilation; all plans are checked.
"""

import statistics
import sys
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow.parquet as pq
from pipeline_methods import METHODS, filled

import solvers
from balancer.cost.named import module
from solvers._jit import kernel
from solvers.pipeline.run import Stages, all_ends, durations_of

DATA = Path(__file__).parent.parent / "data" / "omni_mix_dev.parquet"
FLOPS_PER_SECOND = 0.4 * 989e12 * 8
MOST_TOKENS = 8_192
STEPS = (0, 2, 4, 6, 8, 10)  # of *methods* and *price* every other one


class Instance(NamedTuple):
    """Stages, the encoder's among them, replicas, slots, samples a slot, and how many steps are planned."""

    stages: int
    first: int
    replicas: int
    slots: int
    samples: int
    steps: tuple[int, ...] = STEPS

    def __str__(self):
        return f"{self.stages} ({self.first}), {self.replicas}, {self.slots}, {self.samples}"


INSTANCES = (
    Instance(4, 1, 8, 16, 8),
    Instance(8, 2, 8, 32, 8),
    Instance(8, 2, 8, 16, 8),
    Instance(16, 3, 8, 64, 8),
    Instance(8, 2, 8, 32, 4),
    Instance(8, 2, 40, 32, 8, (0,)),
)


def seconds_of(name, lengths):
    """Forward time of samples of these lengths, in nanoseconds."""
    cost = module(name).flops(backward=False)
    flops = cost.constant * (lengths > 0) + cost.a * lengths + cost.b * lengths * lengths
    return np.asarray(flops, dtype=float) / FLOPS_PER_SECOND * 1e9


def samples():
    """Nanoseconds in the encoders and in the language model, and tokens, of every sample of the log."""
    table = pq.read_table(DATA)
    column = {
        name: table.column(name).to_numpy().astype(np.int64) for name in table.column_names if "source" not in name
    }
    tokens = column["text_tokens"] + column["image_tokens"] + column["audio_tokens"]
    images = np.maximum(1, column["num_images"])
    encoders = images * seconds_of("internvit-6b", column["image_patches"] / images)
    encoders += seconds_of("whisper-large-v3-encoder", column["audio_frames"].astype(float))
    kept = tokens <= MOST_TOKENS
    return encoders[kept], seconds_of("qwen2-72b", tokens.astype(float))[kept], tokens[kept]


def problem(log, instance, step):
    """Work, forward and backward of a step, and its tokens."""
    size = instance.replicas * instance.slots * instance.samples
    here = slice(step * size, (step + 1) * size)
    encoders, model, tokens = (part[here] for part in log)
    rest = instance.stages - instance.first
    work = np.rint(np.stack([encoders / instance.first, model / rest], axis=1)).astype(np.int64)
    unit = np.array([[1] * instance.first + [0] * rest, [0] * instance.first + [1] * rest])
    return (work, unit, 2 * unit), tokens


def solve(given, instance, budget=0.3, **rules):
    """Return the result, and the seconds that it took."""
    started = time.thread_time()
    result = solvers.schedule_pipeline(*given, instance.replicas, instance.slots, time_budget=budget, **rules)
    seconds = time.thread_time() - started
    solvers.check_pipeline(*given, result, **rules)
    return result, seconds


def by(method, given, instance):
    """Slots by another method, or by the solver, at 0.3 s."""
    if method == "auto":
        return solve(given, instance)[0]
    return filled(method, *given, instance.replicas, instance.slots)


def proven(given, instance):
    """The bound, which no budget changes."""
    return solve(given, instance, 1e-6)[0].lower_bound


def even(given, instance):
    """Makespan of slots that are all alike, which no plan of whole samples is."""
    work, forward, backward = given
    loads = np.tile(work.sum(axis=0) // (instance.replicas * instance.slots), (instance.slots, 1))
    order = solvers.pipeline.one_f_one_b(instance.slots, instance.stages)
    return solvers.pipeline.run(loads, forward, backward, order).makespan


def table(log):
    print(
        "| stages (encoder's), replicas, slots, samples a slot | vector LPT | equal slots | 0.1 s | 0.3 s | 1 s | s |"
    )
    print("|---|--:|--:|--:|--:|--:|--:|")
    for instance in INSTANCES:
        columns = [[] for _ in range(6)]
        for step in instance.steps:
            given, _ = problem(log, instance, step)
            lpt = by("vector_lpt", given, instance)
            found = [solve(given, instance, budget=budget) for budget in (0.1, 0.3, 1.0)]
            bound = proven(given, instance)
            ratios = [lpt.makespan, even(given, instance), *(result.makespan for result, _ in found)]
            for column, value in zip(columns, [*(x / bound for x in ratios), found[-1][1]], strict=True):
                column.append(value)
        means = [statistics.mean(column) for column in columns]
        print(f"| {instance} | " + " | ".join(f"{x:.4f}" for x in means[:5]) + f" | {means[5]:.2f} |", flush=True)


def methods(log):
    names = ("auto", *METHODS)
    print("\n| stages (encoder's), replicas, slots, samples a slot | " + " | ".join(names) + " |")
    print("|---|" + "--:|" * len(names))
    for instance in INSTANCES[:5]:
        means = []
        for method in names:
            ratios = []
            for step in instance.steps[::2]:
                given, _ = problem(log, instance, step)
                ratios.append(by(method, given, instance).makespan / proven(given, instance))
            means.append(statistics.mean(ratios))
        print(f"| {instance} | " + " | ".join(f"{x:.4f}" for x in means) + " |", flush=True)


LIMITS = (1.05, 1.1, 1.2, 1.4, 1.6)


def price(log):
    """Makespan over the bound where no stage may hold more than so many times what equal slots hold."""
    print("\n| stages (encoder's), replicas, slots, samples a slot | vector LPT: in flight, makespan | "
          + " | ".join(f"{limit:g}" for limit in LIMITS) + " | no cap | it holds |")  # fmt: skip
    print("|---|--:|" + "--:|" * (len(LIMITS) + 2))
    for instance in INSTANCES[:5]:
        rows = []
        for step in instance.steps[::2]:
            given, tokens = problem(log, instance, step)
            mean = int(tokens.sum()) // (instance.replicas * instance.slots)
            equal = mean * min(instance.slots, instance.stages)
            lpt = by("vector_lpt", given, instance)
            free, _ = solve(given, instance)
            bound = proven(given, instance)
            row = [most_held(lpt, tokens) / equal, lpt.makespan / bound]
            for limit in LIMITS:
                rules = {"sizes": tokens, "in_flight_cap": int(limit * equal)}
                try:
                    row.append(solve(given, instance, **rules)[0].makespan / bound)
                except solvers.TimeLimitError:
                    row.append(float("nan"))
            rows.append([*row, free.makespan / bound, most_held(free, tokens) / equal])
        means = np.mean(rows, axis=0)
        shown = [f"{means[0]:.2f}, {means[1]:.4f}", *(f"{x:.4f}" for x in means[2:-1]), f"{means[-1]:.2f}"]
        print(f"| {instance} | " + " | ".join(shown) + " |", flush=True)


def most_held(result, tokens):
    """The most tokens that the first stage of any replica holds."""
    held = np.zeros((result.num_replicas, result.num_slots), dtype=np.int64)
    np.add.at(held, (result.replica_of_item, result.slot_of_item), tokens)
    width = min(result.num_slots, result.order.num_stages)
    return max(int(np.convolve(row, np.ones(width, dtype=np.int64), "valid").max()) for row in held)


@kernel
def _many_runs(times, loads, unit, fixed, graph, durations, ends):
    total = 0
    for _ in range(times):
        durations_of(loads, unit, fixed, durations)
        total += all_ends(graph, durations, 0, ends)
    return total


def speed():
    """Nanoseconds for each slot and stage, forward and backward together, durations from loads of two modules too."""
    print("\n| slots, devices, chunks | ns a slot and stage |\n|---|--:|")
    rng = np.random.default_rng(0)
    for slots, devices, chunks in ((16, 4, 1), (32, 8, 1), (64, 16, 1), (256, 16, 1), (32, 8, 2), (64, 16, 4)):
        stages = devices * chunks
        unit = rng.integers(1, 5, (2, stages))
        made = Stages.from_tables(unit, 2 * unit, None, None, 0)
        loads = rng.integers(1, 100, (slots, 2))
        durations, times = np.empty((slots, 2 * stages), dtype=np.int64), 2_000
        order = solvers.pipeline.interleaved(slots, devices, chunks)
        given = loads, made.unit, made.fixed, order.graph, durations, np.empty(order.graph.shape[1], dtype=np.int64)
        _many_runs(1, *given)
        took = []
        for _ in range(5):
            started = time.thread_time()
            _many_runs(times, *given)
            took.append(time.thread_time() - started)
        print(f"| {slots}, {devices}, {chunks} | {min(took) / times / slots / stages * 1e9:.1f} |")


@kernel
def _free_order(durations, most, urgency):
    """Makespan where every device runs what can start first, of that what is most urgent; ``most`` are in flight."""
    num_slots, num_stages = durations.shape[0], durations.shape[1] // 2
    ends = np.full((num_slots, 2 * num_stages), -1)
    free, held = np.zeros(num_stages, np.int64), np.zeros(num_stages, np.int64)
    for _ in range(2 * num_slots * num_stages):
        first, slot, cell = np.int64(2**62), -1, -1
        for s in range(num_stages):
            for k in range(num_slots):
                for j in (s, num_stages + s):
                    before = j - 1 if j == s else (s if s + 1 == num_stages else j + 1)
                    ready = ends[k, before] if before >= 0 else 0
                    if ends[k, j] >= 0 or ready < 0 or (j == s and held[s] >= most[s]):
                        continue
                    start = max(free[s], ready)
                    if start < first or (start == first and urgency[k, j] > urgency[slot, cell]):
                        first, slot, cell = start, k, j
        if slot < 0:
            return np.int64(2**62)  # it deadlocks
        s = cell % num_stages
        free[s] = ends[slot, cell] = first + durations[slot, cell]
        held[s] += 1 if cell < num_stages else -1
    return free.max()


def orders(log):
    """What op orders fitted to the contents add to 1F1B: the best of list schedules by many priorities."""
    print(
        "\n| stages (encoder's), replicas, slots, samples a slot | even slots, % | two more in flight | ramp, % "
        "| two more |"
    )
    print("|---|--:|--:|--:|--:|")
    rng = np.random.default_rng(0)
    for instance in INSTANCES[:4]:
        columns = []
        for method, more in (("vector_lpt", 0), ("vector_lpt", 2), ("auto", 0), ("auto", 2)):
            gains = []
            for step in instance.steps[::3]:
                (work, forward, backward), _ = problem(log, instance, step)
                result = by(method, (work, forward, backward), instance)
                loads = np.zeros((instance.replicas, instance.slots, 2), dtype=np.int64)
                np.add.at(loads, (result.replica_of_item, result.slot_of_item), work)
                most = instance.stages - np.arange(instance.stages) + more
                best = []
                for load, makespan in zip(loads, result.makespans.tolist(), strict=True):
                    durations = np.ascontiguousarray(load @ np.hstack([forward, backward]))
                    for _ in range(40):
                        urgency = rng.normal(0, 2, (instance.slots, 1)) - np.arange(instance.slots)[:, None]
                        back = np.repeat([0, rng.choice([0, 2, 5, 1_000])], instance.stages)
                        makespan = min(makespan, _free_order(durations, most, urgency + back))
                    best.append(makespan)
                gains.append(100 * (1 - max(best) / result.makespan))
            columns.append(statistics.mean(gains))
        print(f"| {instance} | " + " | ".join(f"{x:.2f}" for x in columns) + " |", flush=True)


def main() -> None:
    asked = sys.argv[1:]
    log = samples()
    solve(problem(log, INSTANCES[0], 0)[0], INSTANCES[0], budget=1e-3)  # compiles
    parts = {
        "table": lambda: table(log), "methods": lambda: methods(log), "price": lambda: price(log),
        "speed": speed, "orders": lambda: orders(log),
    }  # fmt: skip
    for name, run in parts.items():
        if not asked or name in asked:
            run()


if __name__ == "__main__":
    main()
