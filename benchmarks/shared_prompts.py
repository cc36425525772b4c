"""Responses to shared prompts, the prompt counted once a rank: beside what trainers do, and how close to the bound.

    python benchmarks/shared_prompts.py [table] [equal] [slots] [speed]

Batches of 64 to 512 prompts with 8 or 16 responses on 8 to 256 ranks. Prompts are lognormal, mean 1,000, 4,000 or
12,000 tokens; responses of mean 1,000 to 8,000, sigma 0.8 to 1.2, cut at 32,768, half of the variance of their
logarithm common to a prompt. All figures but times are the same on every machine; times are of this thread's processor.
"""

import heapq
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

import solvers
from balancer.cost import parse_cost
from solvers._jit import compile_at_once

COSTS = {"tokens": "linear", "attention": "quadratic:a=24576,b=1"}
BATCHES = 260


class Batch(NamedTuple):
    num_ranks: int
    prompts: np.ndarray  # int64[k]: cost of each
    key: np.ndarray  # int64[n]: the prompt of each response
    costs: np.ndarray  # int64[n]: cost of a response besides its prompt

    @property
    def groups_a_rank(self) -> float:
        return len(self.prompts) / self.num_ranks


def drawn(rng: np.random.Generator, prompts: int, responses: int, means: tuple[int, int], sigma: float) -> tuple:
    """Lengths of prompts, int64[k], and of responses, int64[k, responses]."""
    prompt = np.maximum(1, rng.lognormal(np.log(means[0]) - 0.32, 0.8, prompts)).astype(np.int64)
    half = sigma * np.sqrt(0.5)
    logs = rng.normal(0, half, (prompts, 1)) + rng.normal(0, half, (prompts, responses))
    response = np.exp(np.log(means[1]) - sigma**2 / 2 + logs)
    return prompt, np.clip(response, 1, 32_768).astype(np.int64)


def priced(num_ranks: int, prompt: np.ndarray, response: np.ndarray, cost: str) -> Batch:
    model, count = parse_cost(cost), response.shape[1]
    once = model.sample_costs(prompt)
    whole = model.sample_costs((prompt[:, None] + response).ravel()).reshape(response.shape)
    return Batch(num_ranks, once, np.repeat(np.arange(len(prompt)), count), (whole - once[:, None]).ravel())


def batches(cost: str, least: float = 0.5, longest_prompt: int = 12_000, count: int = BATCHES) -> Iterator[Batch]:
    rng = np.random.default_rng(1)
    while count:
        prompts, responses = int(rng.choice([64, 128, 256, 512])), int(rng.choice([8, 16]))
        num_ranks = int(rng.choice([8, 16, 32, 64, 128, 256]))
        means = int(rng.choice([1000, 4000, 12_000])), int(rng.choice([1000, 2000, 4000, 8000]))
        sigma = float(rng.choice([0.8, 1.0, 1.2]))
        if least <= prompts / num_ranks <= 32 and means[0] <= longest_prompt:
            count -= 1
            yield priced(num_ranks, *drawn(rng, prompts, responses, means, sigma), cost)


def largest_load(batch: Batch, rank: np.ndarray) -> int:
    loads = np.zeros(batch.num_ranks, dtype=np.int64)
    np.add.at(loads, rank, batch.costs)
    held = np.unique(np.stack([rank, batch.key]), axis=1)
    np.add.at(loads, held[0], batch.prompts[held[1]])
    return int(loads.max())


def ours(batch: Batch, equal: bool = False) -> solvers.PartitionResult:
    found = solvers.partition(batch.costs, batch.num_ranks, equal_counts=equal, prefix=batch.key,
                              prefix_costs=batch.prompts[batch.key])  # fmt: skip
    solvers.check_partition(batch.costs, found, equal_counts=equal, prefix=batch.key,
                            prefix_costs=batch.prompts[batch.key])  # fmt: skip
    return found


def whole_groups(batch: Batch) -> np.ndarray:
    sums = np.bincount(batch.key, batch.costs).astype(np.int64) + batch.prompts
    return solvers.partition(sums, batch.num_ranks).group_of_item[batch.key]


def lengths_alone(batch: Batch) -> np.ndarray:
    return solvers.partition(batch.costs + batch.prompts[batch.key], batch.num_ranks).group_of_item


def greedy(batch: Batch) -> np.ndarray:
    """Responses, the most expensive first, to the rank that has least with it, its prompt's copy charged."""
    loads, held = np.zeros(batch.num_ranks, dtype=np.int64), defaultdict(set)
    rank = np.empty(len(batch.costs), dtype=np.int64)
    for i in np.argsort(-(batch.costs + batch.prompts[batch.key]), kind="stable").tolist():
        p = int(batch.key[i])
        with_it = loads + batch.costs[i] + batch.prompts[p]
        with_it[list(held[p])] -= batch.prompts[p]
        rank[i] = g = int(with_it.argmin())
        loads[g] = with_it[g]
        held[p].add(g)
    return rank


def simple_rule(batch: Batch) -> np.ndarray:
    """Prompts in as many parts as a fair share asks for, responses dealt to them evenly; then LPT over parts."""
    sums = np.bincount(batch.key, batch.costs)
    share = (sums.sum() + batch.prompts.sum()) / batch.num_ranks
    parts = []
    for p in range(len(batch.prompts)):
        mine = np.flatnonzero(batch.key == p)
        room = share - batch.prompts[p]
        count = len(mine) if room <= 0 else min(len(mine), int(np.ceil(sums[p] / room)))
        where = solvers.partition(batch.costs[mine], count, "lpt").group_of_item
        parts += [(int(batch.costs[mine[where == k]].sum() + batch.prompts[p]), mine[where == k]) for k in range(count)]
    heap, rank = [(0, g) for g in range(batch.num_ranks)], np.empty(len(batch.costs), dtype=np.int64)
    for load, members in sorted(parts, key=lambda part: -part[0]):
        held, g = heapq.heappop(heap)
        rank[members] = g
        heapq.heappush(heap, (held + load, g))
    return rank


RULES = {"whole groups": whole_groups, "lengths": lengths_alone, "greedy": greedy, "simple rule": simple_rule}


def table() -> None:
    """Largest load over the bound, mean and worst; copies of a prompt."""
    for name, cost in COSTS.items():
        rows: dict[float, list[list[float]]] = defaultdict(list)
        for batch in batches(cost):
            found = ours(batch)
            ratios = [largest_load(batch, rule(batch)) / found.lower_bound for rule in RULES.values()]
            copies = len(np.unique(np.stack([found.group_of_item, batch.key]), axis=1)[0]) / len(batch.prompts)
            rows[batch.groups_a_rank].append([found.makespan / found.lower_bound, *ratios, copies])
        every = [row for of_rank in rows.values() for row in of_rank]
        print(f"\n{name}: prompts a rank, batches; ours over the bound, mean and worst; {', '.join(RULES)}; copies")
        for groups, of_rank in [*sorted(rows.items()), ("all", every)]:
            mean, worst = np.mean(of_rank, axis=0), np.max(of_rank, axis=0)
            print(f"{groups:>5} {len(of_rank):4d}  {mean[0]:.4f} {worst[0]:.4f}  "
                  f"{' '.join(f'{each:.3f}' for each in mean[1:])}")  # fmt: skip


def equal() -> None:
    """Equal counts, prompts of up to 4,000 tokens on average."""
    for name, cost in COSTS.items():
        rows: dict[float, list[float]] = defaultdict(list)
        for batch in batches(cost, 1, 4000):
            found = ours(batch, equal=True)
            rows[batch.groups_a_rank].append(found.makespan / found.lower_bound)
        print(f"\n{name}, equal counts: prompts a rank, batches; over the bound: mean, worst, share within 3 %")
        for groups, ratios in sorted(rows.items()):
            within = np.mean(np.array(ratios) <= 1.03)
            print(f"{groups:5.1f} {len(ratios):4d}  {np.mean(ratios):.4f} {max(ratios):.4f}  {within:.2f}")


def in_micro_batches(cost: str, count: int = 60) -> Iterator[tuple]:
    """Batches, tokens of responses and of their prompts, int64[n] each, and a cap of 32K to 128K tokens, or more."""
    rng = np.random.default_rng(1)
    for _ in range(count):
        prompts, responses = int(rng.choice([64, 128, 256, 512])), int(rng.choice([8, 16]))
        num_ranks, mean = int(rng.choice([8, 16, 32, 64])), int(rng.choice([1000, 4000, 12_000]))
        each, sigma = int(rng.choice([1000, 2000, 4000, 8000])), float(rng.choice([0.8, 1.0, 1.2]))
        prompt, response = drawn(rng, prompts, responses, (mean, each), sigma)
        batch, own = priced(num_ranks, prompt, response, cost), response.ravel()
        tokens = prompt[batch.key]
        yield batch, own, tokens, max(int((own + tokens).max()), int(rng.choice([32_768, 65_536, 131_072])))


def slots() -> None:
    """Micro-batches under a cap: a step's time over the bound, and with every prompt computed."""
    for name, cost in COSTS.items():
        for sync in ("micro_batch", "step"):
            rows = []
            for batch, own, tokens, cap in in_micro_batches(cost):
                once, started = batch.prompts[batch.key], time.thread_time()
                found = solvers.packing.schedule_with_prefixes(
                    batch.costs, own, batch.num_ranks, cap, batch.key, once, tokens, sync=sync
                )
                ms = 1e3 * (time.thread_time() - started)
                alone = solvers.schedule_micro_batches(
                    batch.costs + once, own + tokens, batch.num_ranks, cap, sync=sync
                )
                bound, few = found.lower_bound, tokens.max() <= cap / 4
                rows.append((found.value / bound, alone.value / bound, ms, few))
            ratio, alone_ratio, ms, few = map(np.array, zip(*rows, strict=True))
            short = ratio[few.astype(bool)]
            print(f"{name}, {sync}: {ratio.mean():.4f} of the bound, {ratio.max():.3f} at worst; prompts under a "
                  f"quarter of the cap ({len(short)} of {len(ratio)}): {short.mean():.4f}, {short.max():.3f}; every "
                  f"prompt computed {alone_ratio.mean():.3f}; {np.median(ms):.0f} ms")  # fmt: skip


def speed() -> None:
    """Processor time of one call, with its bound, after a first one."""
    for prompts, responses, num_ranks in ((1024, 8, 256), (4096, 8, 1024), (2048, 16, 1024), (8192, 16, 2560)):
        rng = np.random.default_rng(0)
        batch = priced(num_ranks, *drawn(rng, prompts, responses, (4000, 4000), 1.0), COSTS["attention"])
        for equal_counts in (False, True):
            took = []
            for _ in range(4):
                started = time.thread_time()
                found = solvers.partition(batch.costs, num_ranks, equal_counts=equal_counts, prefix=batch.key,
                                          prefix_costs=batch.prompts[batch.key])  # fmt: skip
                took.append(time.thread_time() - started)
            print(f"{prompts * responses:,} responses, {num_ranks:,} ranks{', equal counts' if equal_counts else ''}: "
                  f"{1e3 * min(took[1:]):.1f} ms, {found.gap:.2%} over the bound")  # fmt: skip


if __name__ == "__main__":
    compile_at_once()
    parts = {"table": table, "equal": equal, "slots": slots, "speed": speed}
    for part in sys.argv[1:] or parts:
        parts[part]()
