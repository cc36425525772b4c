"""`BalancedBatchSampler`: users' cases, a wrong guess of `sync`, windows, limits, unlike ranks, phases, planning time.

Run: python benchmarks/sampler.py [cases] [sync] [window] [limits] [clock]; without a name all, some four minutes.
"Over even" is the time until the slowest rank is done, summed where ranks wait, over the mean of ranks: 1 is perfect.
Lengths of the cases are lognormal, by seeds that are fixed; logs are those in data/, and those of a folder that --data
names.
"""

import argparse
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from balancer import CountLimit, Everywhere, Kinds, Limit, PaddedLimit
from balancer.compat import BalancedBatchSampler
from balancer.cost import parse_cost

ATTENTION = "quadratic:a=24576,b=1"
LOGS = {"omni_mix_dev": "text_tokens+image_tokens+audio_tokens", "prolong_documents": "text_tokens",
        "docs_msdev_interleaved": "text_tokens+image_tokens", "omnibal_internvl_sft": "total_tokens",
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
    for sigma in 0.8, 0.5:
        lengths = lognormal(31, 6.5, sigma, 3968, 32, 8192)
        for sync, window, right in ("step", 0, "1.01"), ("micro_batch", 0, ""), ("micro_batch", 4, ""):
            grid = grids(lengths, 2, 8, gradient_accumulation_steps=4, sync=sync, window=window)
            figures = over_even(grid, lambda batch, lengths=lengths: lengths[batch].sum())
            yield (f"accumulation of 4, sigma {sigma}, ranks wait in every {sync}, window={window}: over even",
                   figures[sync == "step"], right)  # fmt: skip


def one_a_rank() -> Iterator[tuple[str, float, str]]:
    """Few samples a rank and step: the slowest sample sets the step."""
    sorted_and_cut = {4: "1.95", 8: "1.62", 49: "1.17"}  # of one a rank, in blocks of as many steps
    for each in 1, 2, 4, 16:
        lengths = lognormal(28, 8.5, 0.8, 4096 * each, 256, 60_000)
        costs = lengths * 24576 + lengths**2
        for window in 0, 4, 8, 49:
            grid = grids(lengths, each, 8, cost=ATTENTION, window=window)
            figure = over_even(grid, lambda batch, costs=costs: costs[batch].sum())[1]
            yield f"{each} a rank, window={window}: over even", figure, sorted_and_cut.get(window * (each == 1), "")


def padded() -> Iterator[tuple[str, float, str]]:
    """A published run of 1,600 sequences on 2 ranks x 8 x 2, and one of 256 on 2 x 2 x 2, by their padded tokens."""
    for name, seed, shape, each in (
        ("1,600 sequences, 2 x 8 x 2", 33, (5.0, 1.0, 1600, 16, 1024), 8),
        ("256 sequences, 2 x 2 x 2", 9, (4.9, 0.5, 256, 39, 407), 2),
    ):
        mean, sigma, count, least, most = shape
        random = np.random.default_rng(seed)
        lengths = np.clip(random.lognormal(mean, sigma, count), least, most).astype(np.int64)
        drawn = random.permutation(count)
        # As grouped by length: sorted within 50 batches of the size of an accumulation, where there are as many.
        blocks = np.split(drawn, range(each * 100, count, each * 100))
        grouped = np.concatenate([block[np.argsort(-lengths[block], kind="stable")] for block in blocks])

        def padding(grid: Any, lengths: np.ndarray = lengths) -> tuple[float, float]:
            """Padded tokens of the slowest rank in each micro-step, and the share of padding."""
            loads = np.array([[[len(b) * lengths[b].max() for b in slot] for slot in step] for step in grid], float)
            return loads.max(2).sum(), 1 - lengths.sum() / loads.sum()

        random_spent, _ = padding(drawn.reshape(-1, 2, 2, each))
        wanted_spent, wanted = padding(grouped.reshape(-1, 2, 2, each))
        for window in 0, 7, 24, 49:
            spent, share = padding(grids(lengths, each, 2, gradient_accumulation_steps=2, cost="padded", window=window))
            yield f"{name}, window={window}: padding", share, f"{wanted:.4f}"
            yield (
                f"{name}, window={window}: throughput over random",
                random_spent / spent,
                f"{random_spent / wanted_spent:.4f}",
            )


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
    yield f"three sources, by step {sorted(shares)}: kinds of steps", len(shares), "1, of 38/19/6"
    yield "three sources: over even", over_even(grid, lambda batch: lengths[batch].sum())[1], "1"


def own_cost() -> Iterator[tuple[str, float, str]]:
    """A cost of its own: loss tokens of samples whose other tokens are no measure of it."""
    random = np.random.default_rng(12)
    tokens = np.clip(random.lognormal(7, 0.9, 512), 64, 16_384).astype(int)
    costs = np.maximum(1, (tokens * random.beta(2, 5, 512)).astype(int))
    grid = grids(tokens, 8, 16, cost=costs, gradient_accumulation_steps=4, shuffle=False)
    yield "cost=loss tokens: over even", over_even(grid, lambda batch: costs[batch].sum())[1], "1"


CASES = (accumulation, one_a_rank, padded, mixture, own_cost)


def cases() -> None:
    print("| case | now | right |\n|---|--:|--:|")
    for case in CASES:
        for name, found, right in case():
            print(f"| {name} | {found:.4f} | {right} |", flush=True)


def read(folder: Path, log: str) -> np.ndarray | None:
    """Lengths of a log, at most 65,536 rows, spread over it."""
    if not (folder / f"{log}.parquet").exists():
        return None
    names = LOGS[log].split("+")
    table = pq.read_table(folder / f"{log}.parquet", columns=names)
    lengths = sum(table[name].to_numpy().astype(np.int64) for name in names)
    return lengths[:: -(-len(lengths) // 65_536)]


def sync(folders: list[Path]) -> None:
    """What a wrong guess of where ranks wait costs, both ways: 8 ranks x 4 x 4."""
    print("| log | cost | wait once a step: as drawn, planned so, planned for every micro-step | "
          "wait in every micro-step: as drawn, planned so, planned for the step |\n|---|---|--:|--:|")  # fmt: skip
    worst = [1.0, 1.0]
    for log in LOGS:
        lengths = next((found for folder in folders if (found := read(folder, log)) is not None), None)
        for cost in ("linear", ATTENTION) if lengths is not None else ():
            costs = parse_cost(cost).sample_costs(lengths)
            order = np.random.default_rng(0).permutation(len(lengths))
            size = RANKS * EACH * SLOTS
            drawn = order[: len(order) // size * size].reshape(-1, SLOTS, RANKS, EACH).tolist()
            given = {"cost": cost, "gradient_accumulation_steps": SLOTS, "drop_last": True}
            made = [drawn, *(grids(lengths, EACH, RANKS, sync=each, **given) for each in ("step", "micro_batch"))]
            found = [over_even(grid, lambda batch, costs=costs: costs[batch].sum()) for grid in made]
            (micro, step), (micro_of_step, step_of_step), (micro_of_micro, step_of_micro) = found
            worst = [max(worst[0], step_of_micro / step_of_step), max(worst[1], micro_of_step / micro_of_micro)]
            print(f"| {log} | {cost} | {step:.3f}, {step_of_step:.3f}, {step_of_micro:.3f} | "
                  f"{micro:.3f}, {micro_of_micro:.3f}, {micro_of_step:.3f} |", flush=True)  # fmt: skip
    print(f"\nAt most {worst[0] - 1:.1%} and {worst[1] - 1:.1%} longer than planned for what is.")


def window(folders: list[Path]) -> None:
    """What a window does to balance, memory and the weights of tokens: a report each, on 8 ranks."""
    print("| lengths | window | over even | largest micro-batch: tokens, padded | tokens of a step, over their mean | "
          "weight of a token under a mean per step |\n|---|---|--:|--:|--:|--:|")  # fmt: skip
    lengths = lognormal(31, 6.5, 0.8, 3968, 32, 8192)
    tried: list[tuple[str, np.ndarray, int, str]] = [("lognormal, 4 x 2", lengths, 2, "linear")]
    for log in "omni_mix_dev", "prolong_documents":
        lengths = next(found for folder in folders if (found := read(folder, log)) is not None)
        tried.append((f"{log}, {SLOTS} x {EACH}", lengths, EACH, ATTENTION))
    for name, lengths, each, cost in tried:
        for wide, within, sync in (
            (0, None, "step"), (0, None, "micro_batch"), (4, None, "step"), (4, None, "micro_batch"),
            (4, "20%", "step"), (24, None, "step"), (24, "20%", "step"),
        ):  # fmt: skip
            made = BalancedBatchSampler(
                lengths, each, RANKS, 0, gradient_accumulation_steps=SLOTS, cost=cost, window=wide, sync=sync,
                step_tokens_within=within,
            )  # fmt: skip
            report = made.report()
            words = f"{wide}, sync={sync}{f', step_tokens_within={within}' if within else ''}"
            rows = [("as drawn", report.drawn)] if wide == 0 and sync == "step" else []
            for what, of in [*rows, (words, report.planned)]:
                least, most = (each(of.tokens) * len(of.tokens) / sum(of.tokens) for each in (min, max))
                print(f"| {name} | {what} | {of.imbalance:.3f} | {of.largest:,}, {of.largest_padded:,} | "
                      f"{least:.2f} to {most:.2f} | +- {of.weight_spread:.0%} |", flush=True)  # fmt: skip


def limited() -> Iterator[tuple[str, np.ndarray, dict[str, Any]]]:
    """What is asked for, the costs of samples, int64[n] or int64[n, phases], and the sampler's arguments."""
    lengths = lognormal(31, 6.5, 0.8, 3968, 32, 8192)
    random = np.random.default_rng(0)
    kinds, image = random.integers(0, 3, len(lengths)), random.random(len(lengths)) < 0.3
    eight = {"lengths": lengths, "num_replicas": 8, "gradient_accumulation_steps": 4, "sync": "micro_batch"}
    cap, padded = Limit(lengths, 8192), {"cost": "padded", "limits": [PaddedLimit(12_288)]}
    asked: dict[str, dict[str, Any]] = {
        "no limit": {}, "Limit": {"limits": [cap]}, "Limit, CountLimit": {"limits": [cap, CountLimit(4)]},
        "Limit, Kinds": {"limits": [cap, Kinds(kinds)]}, "Limit, Everywhere": {"limits": [cap, Everywhere(image)]},
        "Limit of each rank": {"limits": [Limit(lengths, [8192, 8192, 10_240, 10_240] * 2)]}, "PaddedLimit": padded,
    }  # fmt: skip
    for size in 2, None:
        for name, given in asked.items():
            for window in (0, 4) if given or size else ():
                words = f"batch_size={size}, {name}, window={window}"
                yield words, lengths, {**eight, "batch_size": size, "window": window, **given}
    yield "batch_size=None, step_tokens", lengths, {**eight, "batch_size": None, "step_tokens": 32 * 4096}
    # Half of the samples have an image, and less text.
    random = np.random.default_rng(3)
    image = random.integers(0, 2, 512)
    vision = image * random.integers(256, 4096, 512)
    text = np.clip(random.lognormal(6, 0.8, 512), 16, 4096).astype(np.int64) // (1 + image)
    phases = np.stack([vision, text], axis=1)
    tokens = phases.sum(axis=1)
    given = {"lengths": tokens, "batch_size": 8, "num_replicas": 8, "gradient_accumulation_steps": 2, "window": 3,
             "sync": "micro_batch"}  # fmt: skip
    for name, more in {
        "cost of their sum": {}, "cost of each": {"cost": phases},
        "cost of each, Limit": {"cost": phases, "limits": [Limit(tokens, 26_000)]},
    }.items():  # fmt: skip
        yield f"two phases, {name}", phases, given | more
    lengths = lognormal(7, 6, 0.7, 512, 16, 4096)
    for sync in "step", "micro_batch":
        given = {"lengths": lengths, "batch_size": 8, "num_replicas": 4, "gradient_accumulation_steps": 2, "sync": sync}
        for name, more in {"equal counts": {}, "rank_speeds": {"rank_speeds": SPEEDS}}.items():
            yield f"cards of speeds 5, 5, 4, 2, wait in every {sync}, {name}", lengths, given | more


def limits() -> None:
    """What limits, unlike ranks and several phases leave of balance; how full steps of free size are; planning time."""
    print("| case | over even | largest micro-batch, tokens | tokens of a step | ms a step |\n|---|--:|--:|--:|--:|")
    for name, costs, given in limited():
        began = time.process_time()
        grid = list(BalancedBatchSampler(rank=0, **given).plan())
        spent = 1e3 * (time.process_time() - began) / len(grid)
        grid = grid[: -given.get("window", 0) - 1] if given["batch_size"] is None else grid  # what is left is less full
        tokens = np.array([[[given["lengths"][b].sum() for b in slot] for slot in step] for step in grid])
        columns = costs.reshape(len(costs), -1)
        each = [[[columns[b].sum(0) for b in slot] for slot in step] for step in grid]
        if str(given.get("cost")) == "padded":
            each = [[[columns[b].max(0) * len(b) for b in slot] for slot in step] for step in grid]
        loads = np.array(each, dtype=float)  # [step, micro-step, rank, phase]
        loads = loads.sum(axis=1, keepdims=True) if given["sync"] == "step" else loads
        speeds = SPEEDS if loads.shape[2] == len(SPEEDS) else np.ones(loads.shape[2])
        over = (loads / speeds[:, None]).max(axis=2).sum() * speeds.sum() / loads.sum()
        print(f"| {name} | {over:.4f} | {tokens.max():,} | {tokens.sum() / len(grid):,.0f} | {spent:.0f} |", flush=True)


def clock() -> None:
    """CPU milliseconds of one rank for a step."""
    print("| ranks x samples | sampler | ms a step |\n|---|---|--:|")
    for ranks, steps in (64, 60), (2560, 12):
        lengths = lognormal(0, 6.5, 0.8, ranks * 16 * steps, 32, 8192)
        share = np.random.default_rng(0).random(len(lengths))
        phases = np.stack([lengths * share, lengths * (1 - share)], axis=1).astype(np.int64)
        twice = {"sync": "micro_batch", "gradient_accumulation_steps": 2}
        cap = {"limits": [Limit(lengths, 16_384)]}
        for words, given in {
            "as it is": {}, "window=9": {"window": 9},
            "window=9, step_tokens_within=0.2": {"window": 9, "step_tokens_within": 0.2},
            "cost=padded, window=9": {"cost": "padded", "window": 9}, "2 micro-steps, wait in each": twice,
            "the same, two phases": twice | {"cost": phases}, "the same, Limit": twice | cap,
            "the same, two phases, Limit": twice | cap | {"cost": phases},
            "the same, batch_size=None, Limit": twice | cap | {"batch_size": None},
        }.items():  # fmt: skip
            slots = given.get("gradient_accumulation_steps", 1)
            sampler = BalancedBatchSampler(
                lengths, **{"batch_size": 16 // slots, "num_replicas": ranks, "rank": 0} | given
            )
            batches = iter(sampler)
            next(batches)  # kernels are loaded
            began = time.process_time()
            count = sum(1 for _ in batches) // slots
            print(f"| {ranks} x 16 | {words} | {1e3 * (time.process_time() - began) / count:.1f} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    tables = {"cases": cases, "sync": sync, "window": window, "limits": limits, "clock": clock}
    parser.add_argument("tables", nargs="*", metavar="TABLE", help=", ".join(tables))
    parser.add_argument("--data", type=Path, action="append", default=[], help="a folder with more logs")
    given = parser.parse_args()
    folders = [Path(__file__).parent.parent / "data", *given.data]
    for name in given.tables or tables:
        tables[name](*([folders] if name in ("sync", "window") else []))
        print()


if __name__ == "__main__":
    main()
