"""Encoder work in a pipeline's gaps, beside encoders as stages and encoders before the pipeline; the price of memory.

Run: python benchmarks/multiplexing.py [table] [steps] [held] [pieces] [longer]. What is scheduled is frozen here
(INSTANCES, STEP, STEPS, LONGER), in benchmarks/pipeline.py (what samples take: InternViT-6B, Whisper-large-v3's encoder
and Qwen2-72B by FLOPs at 40 % of an H100, tensor parallel 8, the backward twice the forward, no hop, samples of up to
8,192 tokens) and in data/omni_mix_dev.parquet. Figures are makespans over the mean work of all devices; every schedule
is checked. Seconds are of this thread, after compilation.
"""

import sys
import time
from itertools import repeat
from typing import NamedTuple

import numpy as np
from pipeline import samples
from pipeline_methods import filled

import solvers
from solvers._jit import compile_at_once

STEP, STEPS = 3, (0, 3, 4, 6)
HELD = (4, 8, 16, 32)
LONGER = {(4, 4): (16, 64, 128), (8, 4): (32, 128, 256), (16, 2): (64, 128, 256)}  # devices, replicas: slots


class Instance(NamedTuple):
    """Devices, slots, replicas, samples a slot, and how many of the stages are the encoder's where it has some."""

    stages: int
    slots: int
    replicas: int
    first: int
    samples: int = 8

    def __str__(self):
        return f"{self.stages}, {self.slots}, {self.replicas}"


INSTANCES = (Instance(4, 16, 4, 1), Instance(8, 32, 4, 2), Instance(16, 64, 2, 3), Instance(16, 32, 2, 3))


class Step(NamedTuple):
    """What samples take forwards: in one of the model's S stages, in the encoders on one device; and mean work."""

    model: np.ndarray
    encoders: np.ndarray
    mean: float


def step_of(log, instance, number=STEP):
    size = instance.replicas * instance.slots * instance.samples
    encoders, model, _ = (part[number * size : (number + 1) * size] for part in log)
    model, encoders = np.rint(model / instance.stages).astype(np.int64), np.rint(encoders).astype(np.int64)
    mean = 3 * (instance.stages * int(model.sum()) + int(encoders.sum())) / instance.stages / instance.replicas
    return Step(model, encoders, mean)


def as_stages(step, instance):
    """Encoders in the first stages, slots by vector LPT."""
    rest = instance.stages - instance.first
    work = np.stack([step.encoders // instance.first, step.model * instance.stages // rest], axis=1)
    unit = np.array([[1] * instance.first + [0] * rest, [0] * instance.first + [1] * rest])
    return filled("vector_lpt", work, unit, 2 * unit, instance.replicas, instance.slots).makespan


def before(step, instance):
    """All encoders' forwards before the pipeline and backwards after it, as even as can be; slots by vector LPT."""
    unit = np.ones((1, instance.stages), dtype=np.int64)
    ask = step.model[:, None], unit, 2 * unit, instance.replicas, instance.slots
    groups = solvers.partition(step.encoders, instance.replicas * instance.stages)
    return filled("vector_lpt", *ask).makespan + 3 * groups.makespan


def nested(step, instance):
    """Encoders' work as even as can be beside every op, without memory and without filling a gap: the model's ramp."""
    unit = np.ones((1, instance.stages), dtype=np.int64)
    ask = step.model[:, None], unit, 2 * unit, instance.replicas, instance.slots
    alone = solvers.schedule_pipeline(*ask, time_budget=1.0).makespan
    return alone + 3 * int(step.encoders.sum()) / instance.replicas / instance.stages


def multiplexed(step, instance, budget, pieces=1, **rules):
    """Return the result, and the seconds that it took; every sample's encoder work is in so many tasks."""
    unit = np.ones((1, instance.stages), dtype=np.int64)
    owner = np.repeat(np.flatnonzero(step.encoders), pieces)
    spent = step.encoders[owner] // pieces
    asked = solvers.PipelineRequest(step.model[:, None], unit, 2 * unit, instance.replicas, instance.slots)
    rules = {"window": instance.stages, "size": spent} | rules
    tasks = solvers.TaskRequest(owner, spent, 2 * spent, **rules)
    solvers.schedule_multiplexed(asked, tasks, time_budget=1e-4)
    started = time.thread_time()
    result = solvers.schedule_multiplexed(asked, tasks, time_budget=budget)
    seconds = time.thread_time() - started
    solvers.check_multiplexed(asked, tasks, result)
    return result, seconds


def table(log):
    print("| devices, slots, replicas | encoder as stages | before | multiplexed, 0.3 s | 1 s | bound | s |")
    print("|---|--:|--:|--:|--:|--:|--:|")
    for instance in INSTANCES:
        step = step_of(log, instance)
        short, _ = multiplexed(step, instance, 0.3)
        found, seconds = multiplexed(step, instance, 1.0)
        values = as_stages(step, instance), before(step, instance), short.makespan, found.makespan, found.lower_bound
        row = " | ".join(f"{value / step.mean:.4f}" for value in values)
        print(f"| {instance} | {row} | {seconds:.2f} |", flush=True)


def steps(log):
    """The same on other steps of the log, without a cap and with room for 2 S slots."""
    print("\n| devices, slots, replicas | room | " + " | ".join(f"step {number + 1}" for number in STEPS) + " | mean |")
    print("|---|--:|" + "--:|" * (len(STEPS) + 1))
    for instance in INSTANCES:
        parts = [step_of(log, instance, number) for number in STEPS]
        caps = [int(2 * step.encoders.sum() / instance.replicas / instance.slots) for step in parts]
        for room, held in (("all", [None] * len(parts)), ("2 S", caps)):
            found = [multiplexed(*ask, 1.0, held_cap=cap)[0] for *ask, cap in zip(parts, repeat(instance), held)]
            values = [each.makespan / step.mean for each, step in zip(found, parts, strict=True)]
            row = " | ".join(f"{value:.4f}" for value in [*values, np.mean(values)])
            print(f"| {instance} | {room} | {row} |", flush=True)


def pieces(log):
    """With room for 2 S slots, samples' encoder work in one task or in several."""
    print("\n| devices, slots, replicas | pieces | 1 s | 4 s |\n|---|--:|--:|--:|")
    for instance in INSTANCES:
        step = step_of(log, instance)
        cap = int(2 * instance.stages * step.encoders.sum() / instance.replicas / instance.slots / instance.stages)
        for count in (1, 4):
            found = [multiplexed(step, instance, budget, count, held_cap=cap)[0] for budget in (1.0, 4.0)]
            row = " | ".join(f"{each.makespan / step.mean:.4f}" for each in found)
            print(f"| {instance} | {count} | {row} |", flush=True)


def longer(log):
    """With room for 2 S and 3 S slots, steps of more and more slots; 2 s of budget, and more in proportion to slots."""
    print("\n| devices, slots, replicas | 2 S | 3 S | no cap | it holds |\n|---|--:|--:|--:|--:|")
    for (stages, replicas), counts in LONGER.items():
        for slots in counts:
            instance = Instance(stages, slots, replicas, 1)
            step, budget = step_of(log, instance), 2.0 * slots / counts[0]
            share = step.encoders.sum() / replicas / slots / stages
            capped = [multiplexed(step, instance, budget, held_cap=int(most * stages * share))[0] for most in (2, 3)]
            free, _ = multiplexed(step, instance, budget)
            most = max(int(each.held.max()) for each in free.replicas) / share
            row = " | ".join(f"{each.makespan / step.mean:.4f}" for each in (*capped, free))
            print(f"| {instance} | {row} | {most:.0f} slots |", flush=True)


def held(log):
    """What a device may hold: its share of the S slots that 1F1B has in flight and of some slots more."""
    print(
        "\n| devices, slots, replicas | "
        + " | ".join(f"S + {more}" for more in HELD)
        + " | no cap | it holds | nested |"
    )
    print("|---|" + "--:|" * (len(HELD) + 3))
    for instance in INSTANCES:
        step = step_of(log, instance)
        share = step.encoders.sum() / instance.replicas / instance.slots / instance.stages
        row = []
        for more in HELD:
            try:
                found, _ = multiplexed(step, instance, 1.0, held_cap=int((instance.stages + more) * share))
                row.append(f"{found.makespan / step.mean:.4f}")
            except (solvers.InfeasibleError, solvers.TimeLimitError, ValueError):
                row.append("none found")
        free, _ = multiplexed(step, instance, 1.0)
        most = max(int(each.held.max()) for each in free.replicas)
        row += [f"{free.makespan / step.mean:.4f}", f"S + {most / share - instance.stages:.0f}"]
        row.append(f"{nested(step, instance) / step.mean:.4f}")
        print(f"| {instance} | " + " | ".join(row) + " |", flush=True)


def main() -> None:
    compile_at_once()
    log = samples()
    parts = {"table": table, "steps": steps, "held": held, "pieces": pieces, "longer": longer}
    for name, run in parts.items():
        if len(sys.argv) == 1 or name in sys.argv[1:]:
            run(log)


if __name__ == "__main__":
    main()
