"""What ablation.py measures on: real logs of data/ and lognormal lengths, as steps of many shapes and budgets.

A case solves one step and says how good the answer is. Budgets are work, so that a case is the same everywhere. Draws
repeat all shapes with other lengths; which source, cost, budget and tolerance a shape has goes round with the draws.
"""

import functools
import itertools
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import context_shards
import multiplexing
import numpy as np
import packs as packs_of
import pipeline
import pyarrow.parquet as pq
import shared_prompts
from constraints import cases as steps_with_rules
from workloads import lognormal_lengths

import balancer
import solvers
from balancer.cost import parse_cost
from balancer.offline.packed_rows import PackSettings, pack_rows

DATA = Path(__file__).parent.parent / "data"
LOGS = {
    "omni_mix_dev": ("text_tokens", "image_tokens", "audio_tokens"),
    "prolong_documents": ("text_tokens",),
    "docs_msdev_interleaved": ("text_tokens", "image_tokens"),
}
SOURCES = ("lognormal", *LOGS)
PER_GROUP, GROUPS = (2, 3, 4, 8, 16, 64), (8, 64, 512, 2560)
TOLERANCES = (0, 50e-6, 1e-3, 0.01)


class Score(NamedTuple):
    """How good an answer is; what does not apply is NaN."""

    gap: float = np.nan  # to the proven bound, parts per million: of 512 items and more
    few: float = np.nan  # so too, of fewer items, where a gap is one item's luck
    proven: float = np.nan  # percent: 0 or 100
    crossing: float = np.nan  # percent of all volume
    inside: float = np.nan  # percent of all volume that moves inside nodes
    ms: float = 0.0  # of this thread


FAILED = Score(1e6, 1e6, 0.0, 100.0, 0.0)
Case = Callable[[], Score]


@functools.cache
def log(name: str) -> np.ndarray:
    table = pq.read_table(DATA / f"{name}.parquet", columns=list(LOGS[name]))
    return sum(table[column].to_numpy().astype(np.int64) for column in LOGS[name])


def lengths(k: int, size: int) -> np.ndarray:
    """The k-th step of `size` samples: consecutive rows of a log, from wherever, or lognormal."""
    source = SOURCES[k % len(SOURCES)]
    if source == "lognormal":
        return lognormal_lengths(size, 1000 + k)
    rows = log(source)
    return rows[(np.arange(size) + 7919 * k) % len(rows)]


def costs_of(tokens: np.ndarray, k: int) -> np.ndarray:
    return tokens if k // len(SOURCES) % 2 else 24576 * tokens + tokens * tokens


def scored(solve: Callable[[], object], score: Callable[[object], Score]) -> Score:
    started = time.thread_time()
    try:
        found = solve()
    except solvers.SolverError:
        return FAILED._replace(ms=1e3 * (time.thread_time() - started))
    return score(found)._replace(ms=1e3 * (time.thread_time() - started))


def by_gap(found, items: int = 512) -> Score:
    proven = 100.0 * (found.gap == 0)
    return Score(1e6 * found.gap, proven=proven) if items >= 512 else Score(few=1e6 * found.gap, proven=proven)


def partitioned(costs, groups: int, **asked) -> Score:
    return scored(lambda: solvers.partition(costs, groups, stop_at=0, **asked), lambda found: by_gap(found, len(costs)))


def shapes(draws: int) -> Iterator[tuple[int, int, int, float]]:
    """Number, items a group, groups and budget: all shapes at 1 and 10 ms, every third at 100 ms, some at 1 s."""
    for draw in range(draws):
        for i, (per_group, groups) in enumerate(itertools.product(PER_GROUP, GROUPS)):
            k = 5 * i + draw
            yield k, per_group, groups, 0.001
            yield k, per_group, groups, 0.01
            if k % 3 == 0:
                yield k, per_group, groups, 0.1
            if k % 16 == 0 and per_group * groups < 50_000:
                yield k, per_group, groups, 1.0


def partition(draws: int, equal_counts: bool = False) -> Iterator[Case]:
    def case(k, per_group, groups, budget):
        costs = costs_of(lengths(k, per_group * groups), k)
        return partitioned(costs, groups, time_budget=budget, equal_counts=equal_counts)

    for shape in shapes(draws):
        yield functools.partial(case, *shape)
    if not equal_counts:
        rows = pq.read_table(DATA / "pcmax_dev.parquet").to_pylist()
        for row in rows[:: max(1, 61 // draws)]:
            yield functools.partial(partitioned, row["costs"], row["num_groups"], time_budget=0.02)


def rules(draws: int) -> Iterator[Case]:
    def case(n, m, seed, which, budget):
        _, costs, given = list(steps_with_rules(n, m, seed))[which]
        return partitioned(costs, m, time_budget=budget, **given)

    for draw, (n, m), which in itertools.product(
        range(draws), ((512, 8), (1024, 64), (2048, 256), (4096, 64), (16384, 256)), range(15)
    ):
        yield functools.partial(case, n, m, draw, which, (0.01, 0.1)[(draw + which) % 2])


def rules_few(draws: int) -> Iterator[Case]:
    """Few items, where single ones decide: caps are multiples of what LPT makes of the tokens, so that most can be."""

    def case(n, m, seed, which, budget):
        room = solvers.partition(lognormal_lengths(n, seed), m, "lpt").makespan
        _, costs, given = list(steps_with_rules(n, m, seed, room))[which]
        return partitioned(costs, m, time_budget=budget, **given)

    shapes = (8, 2), (12, 4), (16, 2), (24, 8), (40, 8), (64, 16), (128, 16)
    for draw, (n, m), which in itertools.product(range(draws), shapes, range(15)):
        yield functools.partial(case, n, m, draw, which, (0.001, 0.01)[(draw + which) % 2])


def schedules(draws: int) -> Iterator[Case]:
    def case(k, per_rank, ranks, factor, sync, budget):
        tokens = lengths(k, per_rank * ranks)
        cap = max(int(tokens.max()), int(factor * tokens.mean()))
        asked = {"sync": sync, "stages": 4 if sync == "pipeline" else 1, "time_budget": budget}
        return scored(lambda: solvers.schedule_micro_batches(costs_of(tokens, k), tokens, ranks, cap, **asked), by_gap)

    every = itertools.product(range(draws), (8, 16, 64), (8, 64, 512), (2, 8), ("micro_batch", "step", "pipeline"))
    for k, (draw, *shape) in enumerate(every):
        yield functools.partial(case, k + draw, *shape, (0.01, 0.1)[k % 2])


def relocation(draws: int, equal_counts: bool = False) -> Iterator[Case]:
    def case(k, per_rank, ranks):
        tokens = lengths(k, per_rank * ranks)
        costs, home, node = costs_of(tokens, k), np.repeat(np.arange(ranks), per_rank), np.arange(ranks) // 8
        volumes = tokens if k % 3 == 0 else costs
        asked = {"eps": TOLERANCES[k // 3 % 4], "equal_counts": equal_counts}
        total = int(volumes.sum()) / 100

        def score(found):
            shares = found.inter_node_volume / total, found.intra_node_volume / total
            return Score(np.nan, np.nan, np.nan, *shares)

        return scored(lambda: solvers.relocate(costs, home, node, volumes=volumes, **asked), score)

    every = itertools.product(range(draws), PER_GROUP, (16, 64, 512, 2560))
    for i, (draw, per_rank, ranks) in enumerate(every):
        if per_rank * ranks < 100_000 or draw % 4 == 0:
            yield functools.partial(case, 7 * i + draw, per_rank, ranks)


def slots_near_home(draws: int) -> Iterator[Case]:
    def case(k, per_rank, ranks, factor, sync):
        tokens = lengths(k, per_rank * ranks)
        cap = max(int(tokens.max()), int(factor * tokens.mean()))
        slots = balancer.MicroBatches(cap, sync, pipeline_stages=4 if sync == "pipeline" else 1)
        cost = ("quadratic:a=24576,b=1", "linear")[k % 2]
        total = int(tokens.sum()) / 100

        def score(plan):
            return by_gap(plan)._replace(crossing=plan.inter_node_volume / total, inside=plan.intra_node_volume / total)

        asked = {"cut": slots, "placement": "relocate", "eps": (0.001, 0.01)[k // 2 % 2], "cost": cost}
        return scored(lambda: balancer.balance(tokens, ranks, 8, **asked), score)

    every = itertools.product(range(draws), (8, 32), (16, 64, 256), (4, 8), ("micro_batch", "step", "pipeline"))
    for k, (draw, *shape) in enumerate(every):
        yield functools.partial(case, k + draw, *shape)


def sequence_groups(draws: int) -> Iterator[Case]:
    cost, degrees = parse_cost("flexsp-7b-a100"), (2, 4, 8, 16, 32, 64)

    def case(tokens, ranks, cap, budget):
        priced = cost.degree_times(tokens, degrees, ranks)
        asked = {"overhead": priced.overhead, "time_budget": budget}
        return scored(lambda: solvers.sequence_groups(priced.times, tokens, degrees, ranks, cap, **asked), by_gap)

    for row in pq.read_table(DATA / "sequence_groups_dev.parquet").to_pylist():
        for budget in (0.001, 0.01, 0.1):
            yield functools.partial(case, np.array(row["lengths"], np.int64), 64, row["cap"], budget)
    for draw in range(draws):
        asked = [(ranks, n, (0.01, 0.1)[draw % 2]) for ranks, n in ((16, 64), (64, 256), (256, 2048), (1024, 8192))]
        if draw:  # batches like those rows, of other lengths
            asked += [(64, 512, budget) for budget in (0.001, 0.01, 0.1)]
        for ranks, n, budget in asked:
            tokens = np.clip(lengths(draw, n) * 4, 128, 190_000) // 128 * 128
            yield functools.partial(case, tokens, ranks, 6449, budget)


def long_short(draws: int) -> Iterator[Case]:
    patches = pq.read_table(DATA / "docs_msdev_interleaved.parquet")["image_patches"].to_numpy().astype(np.int64)
    patches = patches[patches > 0]

    def case(k, ranks, per_rank, several, dear, budget):
        """Sharing takes 437 units a patch, or ten times that, as across nodes."""
        mine = patches[(np.arange(ranks * per_rank) + 997 * k) % len(patches)]
        degrees = [d for d in (2, 4, 8, 16, 32) if d <= ranks] if several else [ranks]
        alone = (3_700_000 * mine + 500 * mine * mine) // 1000
        shared = np.array([-(-alone // d) + 437 * dear * mine // d for d in degrees])
        asked = {"degrees": degrees, "overhead": 1_920_000, "time_budget": budget}
        return scored(lambda: solvers.long_short(alone, shared, ranks, **asked), by_gap)

    every = itertools.product(range(8 * draws), (8, 32), (1, 4, 16), (False, True), (1, 10), (0.0002, 0.002))
    for draw, *shape in every:
        yield functools.partial(case, draw, *shape)


def prefixes(draws: int) -> Iterator[Case]:
    """Responses to shared prompts, free and under equal counts, by both costs of shared_prompts.py."""

    def case(batch, equal_counts):
        asked = {"equal_counts": equal_counts, "prefix": batch.key, "prefix_costs": batch.prompts[batch.key]}
        return partitioned(batch.costs, batch.num_ranks, **asked)

    for cost, equal_counts in itertools.product(shared_prompts.COSTS.values(), (False, True)):
        for batch in shared_prompts.batches(cost, count=130 * draws):
            yield functools.partial(case, batch, equal_counts)


def prefix_slots(draws: int) -> Iterator[Case]:
    """The same in micro-batches under a cap."""

    def case(batch, own, tokens, cap, sync):
        once = batch.prompts[batch.key]
        return scored(lambda: solvers.packing.schedule_with_prefixes(
            batch.costs, own, batch.num_ranks, cap, batch.key, once, tokens, sync=sync), by_gap)  # fmt: skip

    for cost, sync in itertools.product(shared_prompts.COSTS.values(), ("micro_batch", "step")):
        for step in shared_prompts.in_micro_batches(cost, 60 * draws):
            yield functools.partial(case, *step, sync)


def deferral(draws: int) -> Iterator[Case]:
    """Logs with tall items, cut at 131,072 tokens: steps by tokens, within 5 %, or by counts, some past a stretch."""

    def case(k, bins, steps, delay, by_counts, budget):
        tokens = np.minimum(lengths(k, 40 * bins * steps), 131_072)
        costs, amounts = 70_455 * tokens + tokens * tokens, np.ones_like(tokens) if by_counts else tokens
        rows = (np.cumsum(amounts) - 1) * steps // int(amounts.sum())
        held = np.bincount(rows, tokens, steps).astype(np.int64)
        asked = {
            "tokens": tokens,
            "token_limits": [np.minimum(held, int(0.95 * held.mean())), np.maximum(held, int(1.05 * held.mean()))],
            "count_limits": [np.bincount(rows)] * 2 if by_counts else None,
            "time_budget": budget,
        }
        spans = solvers.deferral.windows(steps, delay, delay)
        return scored(lambda: solvers.deferral.defer(costs, rows, spans, bins, **asked), by_gap)

    every = itertools.product(range(4 * draws), ((8, 24), (32, 24), (8, 160)), (1, 2, 8), (False, True))
    for k, (draw, (bins, steps), delay, by_counts) in enumerate(every):
        tall = len(SOURCES) * (draw // 2) + SOURCES.index("prolong_documents") + draw % 2  # and docs_msdev_interleaved
        yield functools.partial(case, tall, bins, steps, delay, by_counts, (0.1, 0.5)[k % 2])


def packs(draws: int, even_cost: bool = False) -> Iterator[Case]:
    """Windows of logs packed: how many packs over the bound; or, even in cost, their spread over their mean."""

    def case(pieces, settings):
        def score(found):
            if even_cost:
                return Score(1e6 * float(found.costs.std() / found.costs.mean()))
            return Score(
                1e6 * (len(found.costs) / found.lower_bound - 1), proven=100.0 * (len(found.costs) == found.lower_bound)
            )

        return scored(lambda: pack_rows(pieces, settings), score)

    rng = np.random.default_rng(1)
    logs = {name: packs_of.log_of(name) for name in packs_of.LOGS}
    logs["lognormal"] = np.maximum(1, rng.lognormal(6.5, 1.2, 10**5)).astype(np.int64)
    for _, cap, rows in itertools.product(range(2 * draws), (4096, 8192, 16384, 32768), (2000, 10_000)):
        for lengths in logs.values():
            first = int(rng.integers(max(1, len(lengths) - rows)))
            pieces = packs_of.pieces_of(lengths[first : first + rows], cap)
            yield functools.partial(case, pieces, PackSettings(cap, even_cost=even_cost))


def context(draws: int) -> Iterator[Case]:
    """Packs on few and many ranks, some on nodes, the first one document; gaps are parts of gathering all keys.

    An answer that is not even within 2 % is none.
    """

    def case(k, power, ranks, node, block, budget):
        def score(found):
            if found.imbalance_ratio > 1.0201:  # caps are whole
                return FAILED
            gap = 1e6 * (found.total_received - found.lower_bound) / (2**power * (ranks - 1))
            return Score(gap, crossing=100 * found.crossing / 2**power if node else np.nan)

        asked = {"ranks_per_node": node, "block": block, "time_budget": budget}
        return scored(lambda: solvers.context_shards(packs[power][k], ranks, **asked), score)

    powers = 16, 17, 19
    packs = {power: [np.array([2**power]), *context_shards.packs(2**power, 12 * draws - 1)] for power in powers}
    shapes = ((16, 4, None), (17, 8, None), (17, 16, 8), (17, 32, None), (19, 16, None), (19, 32, 8), (19, 64, None))
    for k, shape, block, budget in itertools.product(range(12 * draws), shapes, (16, 128), (0.02, 0.05)):
        yield functools.partial(case, k, *shape, block, budget)


def pipelines(draws: int) -> Iterator[Case]:
    sampled = pipeline.samples()
    few = pipeline.Instance(4, 1, 4, 8, 4)  # samples a slot: one of them is larger than a slot of the ramp
    steps = [(i, step) for step in range(4 * draws) for i in (*pipeline.INSTANCES[:3], few)]

    def case(k, instance, step, budget):
        (work, forward, backward), tokens = pipeline.problem(sampled, instance, step % 6)
        most = 1.2 * instance.stages * tokens.sum() / instance.replicas / instance.slots  # in flight: hardly room
        asked = {"sizes": tokens, "in_flight_cap": int(most)} if k % 5 == 3 else {}
        ask = work, forward, backward, instance.replicas, instance.slots
        return scored(lambda: solvers.schedule_pipeline(*ask, time_budget=budget, **asked), by_gap)

    for k, (instance, step) in enumerate(steps):
        yield functools.partial(case, k, instance, step, (0.01, 0.1, 0.3)[k // 4 % 3])


def gaps(draws: int) -> Iterator[Case]:
    sampled = pipeline.samples()

    def case(instance, step, budget, room):
        given = multiplexing.step_of(sampled, instance, step)
        unit, owner = np.ones((1, instance.stages), dtype=np.int64), np.flatnonzero(given.encoders)
        spent = given.encoders[owner]
        ask = solvers.PipelineRequest(given.model[:, None], unit, 2 * unit, instance.replicas, instance.slots)
        held = int(2 * given.encoders.sum() / instance.replicas / instance.slots) if room else None
        tasks = solvers.TaskRequest(owner, spent, 2 * spent, instance.stages, spent, held_cap=held)
        return scored(lambda: solvers.schedule_multiplexed(ask, tasks, time_budget=budget), by_gap)

    every = itertools.product(range(2 * draws), multiplexing.INSTANCES[:2], (0.1, 0.5), (False, True))
    for step, instance, budget, room in every:
        yield functools.partial(case, instance, step % 20, budget, room)
