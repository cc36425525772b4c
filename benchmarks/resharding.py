"""Exchanges between unlike layouts: an encoder on 2,560 GPUs, an LLM on 40 replicas of 8 context x 8 tensor shards.

Run: python benchmarks/resharding.py [exchange] [groups]. 10,240 items, lognormal lengths, each on a random replica of
either side. Times are of this thread, after compilation, the best of 30; beside NumPy's stable argsort of 163,840 int64
in the same run.
"""

import sys
import time

import numpy as np
from workloads import lognormal_lengths

import balancer
from balancer import ModuleLayout, Phase, Topology
from balancer.layouts.mesh import Mesh
from balancer.layouts.resharding import Resharding, Shards, Source
from balancer.layouts.step_plan import LaidOutStepPlan, reshard_on
from balancer.problem.placement import Placement

ITEMS, GPUS = 10_240, 2_560
ENCODER, LLM = ModuleLayout(dp=GPUS), ModuleLayout(tp=8, cp=8, dp=40)
NODES = Topology.uniform(GPUS, 8)


def milliseconds(call, rounds=30):
    best = float("inf")
    for _ in range(rounds):
        started = time.thread_time()
        call()
        best = min(best, time.thread_time() - started)
    return best * 1e3


def exchange():
    """Return how the exchange is composed, from layouts, lengths and placements."""
    rng, lengths = np.random.default_rng(0), lognormal_lengths(ITEMS)
    there = Placement.by_sample_order(rng.integers(0, ENCODER.dp, ITEMS).astype(np.int32), ENCODER.dp)
    here = Placement.by_sample_order(rng.integers(0, LLM.dp, ITEMS).astype(np.int32), LLM.dp)

    def compose():
        source = Shards.of(Mesh.of(ENCODER), there, lengths)
        return Resharding.of("out", [Source(source)], Shards.of(Mesh.of(LLM), here, lengths), GPUS)

    return compose


def one_rank(found, gpu):
    _ = found.stream.exchange(gpu), found.sent(gpu), found.arriving(gpu)
    _ = found.target.positions(gpu), found.target.cu_seqlens(gpu), found.target.window(gpu)


def one_alone(found, gpu):
    return lambda: Resharding.on(gpu, "out", found.sources, found.target, GPUS)


def step_of_phases(layouts):
    """Return how a step of three phases is planned, streams included."""
    rng = np.random.default_rng(1)
    patches, frames = lognormal_lengths(ITEMS), lognormal_lengths(ITEMS) // 4 * rng.integers(0, 2, ITEMS)
    batch = {"patches": patches, "frames": frames, "tokens": patches + frames + rng.integers(1, 900, ITEMS)}
    phases = [Phase("vision", "patches"), Phase("audio", "frames"), Phase("llm", "tokens")]
    return lambda: balancer.orchestrate(batch, phases, NODES, layouts=layouts)


def own_parts(step, gpu):
    """What a trainer's GPU composes of a step: what it sends and gets, of all streams."""
    if not isinstance(step, LaidOutStepPlan):
        return [stream.exchange(gpu) for stream in step.streams.values()]
    outs = step.parts["llm"].streams[:-1]
    home = [name for name in step.stream_names if name not in outs]
    return [reshard_on(step, gpu, name) for name in home] + [reshard_on(step, gpu, "llm:inputs", outs)]


def crossing(step):
    return [step.traffic_of(name) for name in step.stream_names]


def groups():
    """What planning within groups of GPUs costs: makespans over the proven bound, and what crosses nodes."""
    print(
        "| GPUs | groups of | layouts | encoder over its bound | LLM over its bound | crosses nodes % | ms, one group |"
    )
    print("|--:|--:|---|--:|--:|--:|--:|")
    balancer.warmup(["auto"])
    for gpus in (64, 512, 2_560, 20_480):
        for name in ("none", "unlike"):
            for size in (8, 64, 512, None):
                if size is None or size < gpus:
                    print(grouped(gpus, size, name))


def grouped(gpus, size, name):
    """Return a row of the table: all groups planned at once for what comes of it, one alone for what it takes."""

    def planned(count, size):
        rng = np.random.default_rng(2)
        patches = lognormal_lengths(4 * count, 3)
        batch = {"patches": patches, "tokens": patches // 4 + rng.integers(1, 4_000, len(patches))}
        batch["outputs"] = patches // 4
        phases = [Phase("vision", "patches", outputs="outputs"), Phase("llm", "tokens")]
        layouts = {"vision": ModuleLayout(dp=count), "llm": ModuleLayout(tp=8, dp=count // 8)}
        nodes = Topology.uniform(count, 8)
        given = layouts if name == "unlike" else None
        return lambda: balancer.orchestrate(batch, phases, nodes, layouts=given, group_size=size)

    step = planned(gpus, size)()
    traffic = [stream.traffic(step.topology) for stream in step.streams.values()]
    crossing = 100 * sum(each.inter_node for each in traffic) / sum(each.total for each in traffic)
    over = [plan.plan.makespan / plan.plan.lower_bound for plan in step.phases.values()]
    spent = milliseconds(planned(size or gpus, None), 3)
    return f"| {gpus:,} | {size or 'all'} | {name} | {over[0]:.4f} | {over[1]:.4f} | {crossing:.1f} | {spent:.1f} |"


def single():
    yardstick = lognormal_lengths(163_840)
    compose = exchange()
    found = compose()
    traffic, length = found.stream.traffic(NODES), int(found.target.lengths.sum())
    every = 8 * length  # to each tensor replica
    step = {
        name: step_of_phases(given)
        for name, given in (
            ("none", None),
            ("unlike", {"vision": ENCODER, "audio": ModuleLayout(tp=2, dp=1280), "llm": LLM}),
        )
    }
    argsort = milliseconds(lambda: np.argsort(yardstick, kind="stable"))
    rows = {
        "argsort of 163,840": argsort,
        "what travels": milliseconds(compose),
        "what of it crosses nodes": milliseconds(lambda: found.segments.traffic(NODES)),
        "whole exchange": milliseconds(lambda: compose().stream),
        "bound on that": milliseconds(lambda: found.least_inter_node(NODES)),
        "one GPU's part, of the whole": milliseconds(lambda: one_rank(found, 777)),
        "one GPU's part, composed alone": milliseconds(one_alone(found, 777)),
        "step of three phases, no layouts": milliseconds(step["none"], 5),
        "step of three phases, layouts": milliseconds(step["unlike"], 5),
        "and one GPU's parts, no layouts": milliseconds(lambda: own_parts(step["none"](), 777), 5),
        "and one GPU's parts, layouts": milliseconds(lambda: own_parts(step["unlike"](), 777), 5),
        "and what crosses nodes, no layouts": milliseconds(lambda: crossing(step["none"]()), 5),
        "and what crosses nodes, layouts": milliseconds(lambda: crossing(step["unlike"]()), 5),
        "its streams, no layouts": milliseconds(lambda: step["none"]().streams, 5),
        "its streams, layouts": milliseconds(lambda: step["unlike"]().streams, 5),
    }
    print("| what | ms | ratio to the argsort |\n|---|--:|--:|")
    for name, ms in rows.items():
        print(f"| {name} | {ms:.2f} | {ms / argsort:.2f} |")
    print(
        f"segments: {len(found.stream.lengths):,}; elements sent over the least: {traffic.total / length:.1f} "
        f"(to every tensor replica: {every / length:.1f}); across nodes over the bound: "
        f"{traffic.inter_node / found.least_inter_node(NODES):.3f}"
    )


def main():
    asked = sys.argv[1:] or ["exchange", "groups"]
    for name, part in (("exchange", single), ("groups", groups)):
        if name in asked:
            part()


if __name__ == "__main__":
    main()
