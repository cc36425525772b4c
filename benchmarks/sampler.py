"""What does the batch sampler gain?

    python benchmarks/sampler.py [cases] [sync] [window] [limits] [clock] [--quick]

"Over even" is the time until the slowest rank is done, summed where ranks wait, over the mean of ranks: 1 is perfect.
Lengths of the cases are lognormal, by fixed seeds; logs are those of data/, at most 65,536 rows spread over each. About
three minutes of one core; `--quick` half a minute.
"""

import time
from collections.abc import Callable, Iterator
from typing import Any

import common
import numpy as np
from common import ATTENTION, Table

from balancer import CountLimit, Everywhere, Kinds, Limit, PaddedLimit
from balancer.compat import BalancedBatchSampler
from balancer.cost import parse_cost

LOGS = {"mix": None, "documents": None, "pages": None, "omnibal_internvl_sft": "total_tokens",
        "azure_llm_2023_conv": "text_tokens", "librispeech_dev_test_asr": "audio_frames"}  # fmt: skip
RANKS, EACH, SLOTS = 8, 4, 4
SPEEDS = np.array([5, 5, 4, 2])


def lognormal(seed: int, mean: float, sigma: float, count: int, least: int, most: int) -> np.ndarray:
    return np.clip(np.random.default_rng(seed).lognormal(mean, sigma, count), least, most).astype(np.int64)


def over_even(grid: list[Any], load: Callable[[Any], int]) -> tuple[float, float]:
    """Where ranks wait in every micro-step, and where they wait once a step."""
    loads = np.array([[[load(batch) for batch in slot] for slot in step] for step in grid], dtype=float)
    return loads.max(2).sum() / loads.mean(2).sum(), loads.sum(1).max(1).sum() / loads.sum(1).mean(1).sum()


def grids(lengths: np.ndarray, each: int, ranks: int, **given: Any) -> list[Any]:
    return list(BalancedBatchSampler(lengths, each, ranks, 0, **given).plan())


def accumulation() -> Iterator[tuple[str, float, str]]:
    """4 micro-steps of 2 samples on 8 ranks."""
    lengths = lognormal(31, 6.5, 0.8, 3968, 32, 8192)
    for sync, window, right in ("step", 0, "1.01"), ("micro_batch", 0, ""), ("micro_batch", 4, ""):
        grid = grids(lengths, 2, 8, gradient_accumulation_steps=4, sync=sync, window=window)
        figures = over_even(grid, lambda batch: lengths[batch].sum())
        yield f"accumulation of 4, ranks wait in every {sync}, window={window}", figures[sync == "step"], right


def one_a_rank() -> Iterator[tuple[str, float, str]]:
    """Few samples a rank and step: the slowest sample sets the step."""
    sorted_and_cut = {4: "1.95", 8: "1.62", 49: "1.17"}  # of one a rank, in blocks of as many steps
    for each in 1, 4, 16:
        lengths = lognormal(28, 8.5, 0.8, 4096 * each, 256, 60_000)
        costs = lengths * 24576 + lengths**2
        for window in 0, 8, 49:
            grid = grids(lengths, each, 8, cost=ATTENTION, window=window)
            figure = over_even(grid, lambda batch, costs=costs: costs[batch].sum())[1]
            yield f"{each} a rank, window={window}", figure, sorted_and_cut.get(window * (each == 1), "")


def padded() -> Iterator[tuple[str, float, str]]:
    """A published run of 1,600 sequences on 2 ranks x 8 x 2: padding, and throughput over random order."""
    random, count, each = np.random.default_rng(33), 1600, 8
    lengths = np.clip(random.lognormal(5.0, 1.0, count), 16, 1024).astype(np.int64)
    drawn = random.permutation(count)
    # As grouped by length: sorted within 50 batches of the size of an accumulation.
    blocks = np.split(drawn, range(each * 100, count, each * 100))
    grouped = np.concatenate([block[np.argsort(-lengths[block], kind="stable")] for block in blocks])

    def padding(grid: Any) -> tuple[float, float]:
        """Padded tokens of the slowest rank in each micro-step, and the share of padding."""
        loads = np.array([[[len(b) * lengths[b].max() for b in slot] for slot in step] for step in grid], float)
        return loads.max(2).sum(), 1 - lengths.sum() / loads.sum()

    by_chance, _ = padding(drawn.reshape(-1, 2, 2, each))
    wanted, least = padding(grouped.reshape(-1, 2, 2, each))
    for window in 0, 7, 24, 49:
        spent, share = padding(grids(lengths, each, 2, gradient_accumulation_steps=2, cost="padded", window=window))
        yield f"1,600 sequences, window={window}: padding", share, f"{least:.3f}"
        yield f"1,600 sequences, window={window}: speed over random", by_chance / spent, f"{by_chance / wanted:.3f}"


def mixture() -> Iterator[tuple[str, float, str]]:
    """The user's own order: 38, 19 and 6 of three sources in every 63 of it."""
    lengths = lognormal(14, 6.5, 0.7, 10_000, 32, 8192)
    source = np.repeat([0, 1, 2], [6000, 3000, 1000])

    def order(epoch: int) -> np.ndarray:
        random = np.random.default_rng([14, epoch])
        queues = [random.permutation(np.flatnonzero(source == each)) for each in range(3)]
        parts = [queue[: 156 * count].reshape(156, count) for queue, count in zip(queues, (38, 19, 6), strict=True)]
        return np.concatenate(parts, axis=1).ravel()

    grid = grids(lengths, 7, 9, order=order)
    shares = {tuple(np.bincount(source[np.ravel(step)], minlength=3).tolist()) for step in grid}
    yield f"three sources in the user's order, by step {sorted(shares)}: kinds of steps", float(len(shares)), "1"
    yield "three sources in the user's order", over_even(grid, lambda batch: lengths[batch].sum())[1], "1"


def own_cost() -> Iterator[tuple[str, float, str]]:
    """A cost of its own: loss tokens of samples whose other tokens are no measure of it."""
    random = np.random.default_rng(12)
    tokens = np.clip(random.lognormal(7, 0.9, 512), 64, 16_384).astype(int)
    costs = np.maximum(1, (tokens * random.beta(2, 5, 512)).astype(int))
    grid = grids(tokens, 8, 16, cost=costs, gradient_accumulation_steps=4, shuffle=False)
    yield "cost=loss tokens", over_even(grid, lambda batch: costs[batch].sum())[1], "1"


def cases(quick: bool) -> None:
    """What users ask for: over even where nothing else is said; right is what was asked for, or a stock sampler's."""
    table = Table("case", "now", "right")
    for case in (accumulation,) if quick else (accumulation, one_a_rank, padded, mixture, own_cost):
        for row in case():
            table.row(*row)


def read(name: str) -> np.ndarray:
    lengths = common.column(name, LOGS[name]) if LOGS[name] else common.log(name)
    return lengths[:: -(-len(lengths) // 65_536)]


def sync(quick: bool) -> None:
    """What a wrong guess of where ranks wait costs, both ways: 8 ranks x 4 x 4, over even."""
    table = Table("log, cost", "wait once a step: as drawn", "planned so", "planned for every micro-step",
                  "wait in every micro-step: as drawn", "planned so", "planned for the step")  # fmt: skip
    worst = [1.0, 1.0]
    known = [name for name in LOGS if LOGS[name] is None or (common.DATA / f"{name}.parquet").exists()]
    for name in known[: 1 if quick else None]:
        lengths = read(name)
        for cost in ("linear", ATTENTION):
            costs = parse_cost(cost).sample_costs(lengths)
            order, size = np.random.default_rng(0).permutation(len(lengths)), RANKS * EACH * SLOTS
            drawn = order[: len(order) // size * size].reshape(-1, SLOTS, RANKS, EACH).tolist()
            given = {"cost": cost, "gradient_accumulation_steps": SLOTS, "drop_last": True}
            made = [drawn, *(grids(lengths, EACH, RANKS, sync=each, **given) for each in ("step", "micro_batch"))]
            found = [over_even(grid, lambda batch, costs=costs: costs[batch].sum()) for grid in made]
            (micro, step), (micro_of_step, step_of_step), (micro_of_micro, step_of_micro) = found
            worst = [max(worst[0], step_of_micro / step_of_step), max(worst[1], micro_of_step / micro_of_micro)]
            columns = step, step_of_step, step_of_micro, micro, micro_of_micro, micro_of_step
            table.row(f"{name}, {cost.split(':')[0]}", *columns)
    print(f"\nA wrong guess takes at most {worst[0] - 1:.1%} and {worst[1] - 1:.1%} longer than the right one.")


def window(quick: bool) -> None:
    """What a window does to balance, memory and the weights of tokens, on 8 ranks."""
    table = Table("lengths", "window, sync", "over even", "largest micro-batch, tokens", "padded",
                  "tokens of a step over their mean", "weight of a token in a mean per step")  # fmt: skip
    tried = [("lognormal", lognormal(31, 6.5, 0.8, 3968, 32, 8192), 2, "linear")]
    tried += [] if quick else [(name, read(name), EACH, ATTENTION) for name in ("mix", "documents")]
    ways = [(0, None, "step"), (0, None, "micro_batch"), (4, None, "step"), (4, None, "micro_batch")]
    for name, lengths, each, cost in tried:
        for wide, within, where in [*ways, (4, "20%", "step"), (24, "20%", "step")]:
            made = BalancedBatchSampler(
                lengths, each, RANKS, 0, gradient_accumulation_steps=SLOTS, cost=cost, window=wide, sync=where,
                step_tokens_within=within,
            ).report()  # fmt: skip
            words = f"{wide}, {where}{f', step_tokens_within={within}' if within else ''}"
            rows = [("as drawn", made.drawn)] if (wide, where) == (0, "step") else []
            for what, of in [*rows, (words, made.planned)]:
                least, most = (edge(of.tokens) * len(of.tokens) / sum(of.tokens) for edge in (min, max))
                table.row(name, what, of.imbalance, of.largest, of.largest_padded, f"{least:.2f} to {most:.2f}",
                          f"+- {of.weight_spread:.0%}")  # fmt: skip


def limited() -> Iterator[tuple[str, np.ndarray, dict[str, Any]]]:
    """What is asked for, the costs of samples, int64[n] or int64[n, phases], and the sampler's arguments."""
    lengths = lognormal(31, 6.5, 0.8, 3968, 32, 8192)
    random = np.random.default_rng(0)
    kinds, image = random.integers(0, 3, len(lengths)), random.random(len(lengths)) < 0.3
    eight = {"lengths": lengths, "num_replicas": 8, "gradient_accumulation_steps": 4, "sync": "micro_batch"}
    cap, padded_cap = Limit(lengths, 8192), {"cost": "padded", "limits": [PaddedLimit(12_288)]}
    asked: dict[str, dict[str, Any]] = {
        "no limit": {}, "Limit": {"limits": [cap]}, "Limit, CountLimit": {"limits": [cap, CountLimit(4)]},
        "Limit, Kinds": {"limits": [cap, Kinds(kinds)]}, "Limit, Everywhere": {"limits": [cap, Everywhere(image)]},
        "Limit of each rank": {"limits": [Limit(lengths, [8192, 8192, 10_240, 10_240] * 2)]},
        "PaddedLimit": padded_cap,
    }  # fmt: skip
    for size in 2, None:
        for name, given in asked.items():
            if given or size:
                yield f"batch_size={size}, {name}", lengths, {**eight, "batch_size": size, **given}
    yield "batch_size=None, step_tokens", lengths, {**eight, "batch_size": None, "step_tokens": 32 * 4096}
    # Half of the samples have an image, and less text.
    random = np.random.default_rng(3)
    image = random.integers(0, 2, 512)
    text = np.clip(random.lognormal(6, 0.8, 512), 16, 4096).astype(np.int64) // (1 + image)
    phases = np.stack([image * random.integers(256, 4096, 512), text], axis=1)
    tokens = phases.sum(axis=1)
    given = {"lengths": tokens, "batch_size": 8, "num_replicas": 8, "gradient_accumulation_steps": 2, "window": 3,
             "sync": "micro_batch"}  # fmt: skip
    for name, more in {"cost of their sum": {}, "cost of each": {"cost": phases}}.items():
        yield f"two phases, {name}", phases, given | more
    lengths = lognormal(7, 6, 0.7, 512, 16, 4096)
    for where in "step", "micro_batch":
        given = {"lengths": lengths, "batch_size": 8, "num_replicas": 4, "gradient_accumulation_steps": 2,
                 "sync": where}  # fmt: skip
        for name, more in {"equal counts": {}, "rank_speeds": {"rank_speeds": SPEEDS}}.items():
            yield f"cards of speeds 5, 5, 4, 2, wait in every {where}, {name}", lengths, given | more


def limits(quick: bool) -> None:
    """What limits, unlike ranks and several phases leave of balance; how full steps of free size are."""
    table = Table("case", "over even", "largest micro-batch, tokens", "tokens of a step")
    for name, costs, given in list(limited())[: 3 if quick else None]:
        grid = list(BalancedBatchSampler(rank=0, **given).plan())
        grid = grid[:-1] if given["batch_size"] is None else grid  # what is left is less full
        tokens = np.array([[[given["lengths"][b].sum() for b in slot] for slot in step] for step in grid])
        columns, padding = costs.reshape(len(costs), -1), str(given.get("cost")) == "padded"
        loads = np.array([[[columns[b].max(0) * len(b) if padding else columns[b].sum(0) for b in slot]
                           for slot in step] for step in grid], dtype=float)  # fmt: skip
        loads = loads.sum(axis=1, keepdims=True) if given["sync"] == "step" else loads  # [step, slot, rank, phase]
        speeds = SPEEDS if loads.shape[2] == len(SPEEDS) else np.ones(loads.shape[2])
        over = float((loads / speeds[:, None]).max(axis=2).sum() * speeds.sum() / loads.sum())
        table.row(name, f"{over:.4f}", int(tokens.max()), int(tokens.sum()) // len(grid))


def clock(quick: bool) -> None:
    """Milliseconds of one rank for a step, and over those of the sampler as it is."""
    table = Table("ranks x samples", "sampler", "ms a step", "over as it is")
    for ranks, steps in ((64, 60), (2560, 12))[: 1 if quick else 2]:
        lengths = lognormal(0, 6.5, 0.8, ranks * 16 * steps, 32, 8192)
        share = np.random.default_rng(0).random(len(lengths))
        phases = np.stack([lengths * share, lengths * (1 - share)], axis=1).astype(np.int64)
        twice = {"sync": "micro_batch", "gradient_accumulation_steps": 2}
        cap, base = {"limits": [Limit(lengths, 16_384)]}, 0.0
        for words, given in {
            "as it is": {}, "window=9": {"window": 9}, "cost=padded, window=9": {"cost": "padded", "window": 9},
            "2 micro-steps, wait in each": twice, "the same, two phases": twice | {"cost": phases},
            "the same, Limit": twice | cap, "the same, batch_size=None, Limit": twice | cap | {"batch_size": None},
        }.items():  # fmt: skip
            slots = given.get("gradient_accumulation_steps", 1)
            asked = {"batch_size": 16 // slots, "num_replicas": ranks, "rank": 0} | given
            batches = iter(BalancedBatchSampler(lengths, **asked))
            next(batches)  # kernels are loaded
            began = time.process_time()
            count = sum(1 for _ in batches) // slots
            ms = 1e3 * (time.process_time() - began) / count
            base = base or ms
            table.row(f"{ranks:,} x 16", words, f"{ms:.1f}", ms / base)


if __name__ == "__main__":
    common.main(__doc__, cases, sync, window, limits, clock)
