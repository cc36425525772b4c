"""What does a prompt gain that is computed once on each rank that has one of its responses?

    python benchmarks/shared_prompts.py [shares] [equal] [slots] [speed] [--quick]

Batches of 64 to 512 prompts with 8 or 16 responses on 8 to 256 ranks. Prompts are lognormal, mean 1,000, 4,000 or
12,000 tokens; responses of mean 1,000 to 8,000, sigma 0.8 to 1.2, cut at 32,768, half of the variance of their
logarithm common to a prompt. Largest loads are over the proven bound. About two minutes of one core; `--quick` half a
minute.
"""

import heapq
import itertools
from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

import common
import numpy as np
from common import COSTS, Table, timed

import solvers
from balancer.cost import parse_cost
from solvers.packing import schedule_with_prefixes


class Batch(NamedTuple):
    num_ranks: int
    prompts: np.ndarray  # int64[k]: cost of each
    key: np.ndarray  # int64[n]: the prompt of each response
    costs: np.ndarray  # int64[n]: cost of a response besides its prompt

    @property
    def asked(self) -> dict[str, np.ndarray]:
        return {"prefix": self.key, "prefix_costs": self.prompts[self.key]}


def drawn(rng: np.random.Generator, prompts: int, responses: int, means: tuple[int, int], sigma: float) -> tuple:
    """Lengths of prompts, int64[k], and of responses, int64[k, responses]."""
    prompt = np.maximum(1, rng.lognormal(np.log(means[0]) - 0.32, 0.8, prompts)).astype(np.int64)
    half = sigma * np.sqrt(0.5)
    logs = rng.normal(0, half, (prompts, 1)) + rng.normal(0, half, (prompts, responses))
    response = np.exp(np.log(means[1]) - sigma**2 / 2 + logs)
    return prompt, np.clip(response, 1, 32_768).astype(np.int64)


def batch_of(num_ranks: int, prompt: np.ndarray, response: np.ndarray, cost: str) -> Batch:
    model, count = parse_cost(COSTS[cost]), response.shape[1]
    once = model.sample_costs(prompt)
    whole = model.sample_costs((prompt[:, None] + response).ravel()).reshape(response.shape)
    return Batch(num_ranks, once, np.repeat(np.arange(len(prompt)), count), (whole - once[:, None]).ravel())


def lengths_of(count: int, ranks: list[int], longest_prompt: int = 12_000) -> Iterator[tuple]:
    """Ranks, and lengths of prompts and responses, of batches with half a prompt to 32 prompts a rank."""
    rng = np.random.default_rng(1)
    while count:
        prompts, responses = int(rng.choice([64, 128, 256, 512])), int(rng.choice([8, 16]))
        num_ranks = int(rng.choice(ranks))
        means = int(rng.choice([1000, 4000, 12_000])), int(rng.choice([1000, 2000, 4000, 8000]))
        sigma = float(rng.choice([0.8, 1.0, 1.2]))
        if 0.5 <= prompts / num_ranks <= 32 and means[0] <= longest_prompt:
            count -= 1
            yield num_ranks, *drawn(rng, prompts, responses, means, sigma)


def largest_load(batch: Batch, rank: np.ndarray) -> int:
    loads = np.zeros(batch.num_ranks, dtype=np.int64)
    np.add.at(loads, rank, batch.costs)
    pairs = np.unique(np.stack([rank, batch.key]), axis=1)
    np.add.at(loads, pairs[0], batch.prompts[pairs[1]])
    return int(loads.max())


def whole_groups(batch: Batch) -> np.ndarray:
    sums = np.bincount(batch.key, batch.costs).astype(np.int64) + batch.prompts
    return solvers.partition(sums, batch.num_ranks).group_of_item[batch.key]


def lengths_alone(batch: Batch) -> np.ndarray:
    return solvers.partition(batch.costs + batch.prompts[batch.key], batch.num_ranks).group_of_item


def greedy(batch: Batch) -> np.ndarray:
    """Responses, the most expensive first, to the rank that has least with it, its prompt's copy charged."""
    loads, there = np.zeros(batch.num_ranks, dtype=np.int64), defaultdict(set)
    rank = np.empty(len(batch.costs), dtype=np.int64)
    for i in np.argsort(-(batch.costs + batch.prompts[batch.key]), kind="stable").tolist():
        p = int(batch.key[i])
        with_it = loads + batch.costs[i] + batch.prompts[p]
        with_it[list(there[p])] -= batch.prompts[p]
        rank[i] = g = int(with_it.argmin())
        loads[g] = with_it[g]
        there[p].add(g)
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
        least, g = heapq.heappop(heap)
        rank[members] = g
        heapq.heappush(heap, (least + load, g))
    return rank


RULES = {"whole groups on a rank": whole_groups, "balanced by lengths": lengths_alone, "greedy": greedy,
         "a simple rule": simple_rule}  # fmt: skip


def shares(quick: bool) -> None:
    """Largest load over the bound, and copies of a prompt, by prompts a rank; rules of trainers on the same batches."""
    table = Table("cost, prompts a rank", "batches", "ours", "worst", *RULES, "copies of a prompt")
    for cost in COSTS:
        rows: dict[float, list[list[float]]] = defaultdict(list)
        for asked in lengths_of(12 if quick else 90, [8, 16, 32, 64, 128, 256]):
            batch = batch_of(*asked, cost)
            found = solvers.partition(batch.costs, batch.num_ranks, **batch.asked)
            solvers.check_partition(batch.costs, found, **batch.asked)
            ratios = [largest_load(batch, rule(batch)) / found.lower_bound for rule in RULES.values()]
            copies = len(np.unique(np.stack([found.group_of_item, batch.key]), axis=1)[0]) / len(batch.prompts)
            each = len(batch.prompts) / batch.num_ranks
            rows[each].append([found.makespan / found.lower_bound, *ratios, copies])
        for each, of in [*sorted(rows.items()), ("all", list(itertools.chain(*rows.values())))]:
            ours, *others = np.mean(of, axis=0).tolist()
            table.row(f"{cost}, {each}", len(of), f"{ours:.4f}", f"{max(row[0] for row in of):.4f}", *others)


def equal(quick: bool) -> None:
    """Equal counts, prompts of up to 4,000 tokens on average, one a rank or more: largest load over the bound."""
    table = Table("cost, prompts a rank", "batches", "over the bound", "worst")
    for cost in COSTS:
        rows: dict[float, list[float]] = defaultdict(list)
        for asked in lengths_of(12 if quick else 90, [8, 16, 32, 64, 128, 256], 4000):
            batch = batch_of(*asked, cost)
            if len(batch.prompts) >= batch.num_ranks:
                found = solvers.partition(batch.costs, batch.num_ranks, equal_counts=True, **batch.asked)
                rows[len(batch.prompts) / batch.num_ranks].append(found.makespan / found.lower_bound)
        for each, ratios in sorted(rows.items()):
            table.row(f"{cost}, {each}", len(ratios), f"{np.mean(ratios):.4f}", f"{max(ratios):.4f}")


def slots(quick: bool) -> None:
    """Micro-batches of 32K to 128K tokens: a step's time over the bound, and that with every prompt computed."""
    table = Table("cost, ranks wait", "over the bound", "worst", "prompts under a quarter of the cap", "worst",
                  "every prompt computed", "ms")  # fmt: skip
    for cost in COSTS:
        for sync in ("micro_batch", "step"):
            rows, rng = [], np.random.default_rng(2)
            for num_ranks, prompt, response in lengths_of(6 if quick else 40, [8, 16, 32, 64]):
                batch, own = batch_of(num_ranks, prompt, response, cost), response.ravel()
                tokens, once = prompt[batch.key], batch.prompts[batch.key]
                cap = max(int((own + tokens).max()), int(rng.choice([32_768, 65_536, 131_072])))
                given = batch.costs, own, num_ranks, cap, batch.key, once, tokens
                found, ms = timed(lambda given=given, sync=sync: schedule_with_prefixes(*given, sync=sync))
                alone = solvers.schedule_micro_batches(batch.costs + once, own + tokens, num_ranks, cap, sync=sync)
                bound, few = found.lower_bound, float(tokens.max() <= cap / 4)
                rows.append((found.value / bound, alone.value / bound, ms, few))
            ratio, every, ms, few = np.array(rows).T
            short = ratio[few == 1] if few.any() else np.array([np.nan])
            table.row(f"{cost}, in every {sync}", ratio.mean(), ratio.max(), short.mean(), short.max(), every.mean(),
                      f"{np.median(ms):.0f}")  # fmt: skip


def speed(quick: bool) -> None:
    """Milliseconds of one call, its bound included, and the gap: cost with attention."""
    table = Table("responses, ranks", "ms", "gap, %", "equal counts, ms", "gap, %")
    for prompts, responses, num_ranks in ((1024, 8, 256), (4096, 8, 1024), (8192, 16, 2560))[: 1 if quick else 3]:
        batch = batch_of(num_ranks, *drawn(np.random.default_rng(0), prompts, responses, (4000, 4000), 1.0),
                         "attention")  # fmt: skip
        cells = []
        for equal_counts in (False, True):
            found, ms = timed(lambda b=batch, r=num_ranks, e=equal_counts: solvers.partition(
                b.costs, r, equal_counts=e, **b.asked), 2)  # fmt: skip
            cells += [f"{ms:.1f}", f"{100 * found.gap:.2f}"]
        table.row(f"{prompts * responses:,}, {num_ranks:,}", *cells)


if __name__ == "__main__":
    common.main(__doc__, shares, equal, slots, speed)
