"""Packs for fine-tuning, beside TRL's packing: how many, how full, how even, how fast.

    python benchmarks/packs.py [table] [steps] [speed]

`trl` need not be installed: its rule (`pack_dataset(strategy="bfd")`, best fit decreasing) is written anew here from
its description, and where it is installed its own function is called too and must make as many packs. TRL packs the
1,000 rows of a `datasets.map` batch at a time; it is shown so, and over all rows at once. Samples over a pack are cut
into pieces of its tokens, for all. All figures but seconds are the same on every machine.
"""

import sys
import time
from bisect import bisect_left, insort
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from balancer.cost import parse_cost
from balancer.offline.packed_rows import COST, PackSettings, pack_rows
from solvers import pack
from solvers._jit import compile_at_once

DATA = Path(__file__).parents[1] / "data"
LOGS = {
    "omni mix": ("omni_mix_dev", ("text_tokens", "image_tokens", "audio_tokens")),
    "documents with images": ("docs_msdev_interleaved", ("text_tokens", "image_tokens")),
    "long documents": ("prolong_documents", ("text_tokens",)),
}
CAPS = (8192, 32768)
MAP_BATCH = 1000
MODEL = parse_cost(COST)


def log_of(name: str) -> np.ndarray:
    file, columns = LOGS[name]
    table = pq.read_table(DATA / f"{file}.parquet", columns=list(columns))
    return sum(table[column].to_numpy().astype(np.int64) for column in columns)


def pieces_of(lengths: np.ndarray, cap: int) -> np.ndarray:
    """Samples over a pack cut into pieces of it, in order; empty ones left out."""
    count = -(-lengths // cap)
    rows = np.repeat(np.arange(len(lengths)), count)
    number = np.arange(len(rows)) - np.repeat(np.cumsum(count) - count, count)
    return np.minimum(lengths[rows] - number * cap, cap)


def by_best_fit(lengths: np.ndarray, cap: int) -> np.ndarray:
    """The pack of each sample: the longest first, each into the fullest pack that has room for it."""
    group, rooms, of_room, packs = np.empty(len(lengths), np.int64), [], {}, 0
    for i in np.argsort(-lengths, kind="stable").tolist():
        length = int(lengths[i])
        at = bisect_left(rooms, length)
        if at == len(rooms):
            number, room, packs = packs, cap, packs + 1
        else:
            room = rooms[at]
            number = of_room[room].pop(0)
            if not of_room[room]:
                del of_room[room], rooms[at]
        group[i], room = number, room - length
        if room and room not in of_room:
            insort(rooms, room)
        if room:
            of_room.setdefault(room, []).append(number)
    return group


def in_batches(packer: Callable, lengths: np.ndarray, cap: int, rows: int) -> np.ndarray:
    """The packs of a packer that sees so many rows at a time."""
    groups, first = [], 0
    for at in range(0, len(lengths), rows):
        groups.append(packer(lengths[at : at + rows], cap) + first)
        first = int(groups[-1].max()) + 1
    return np.concatenate(groups)


def trl_count(lengths: np.ndarray, cap: int) -> int | None:
    """How many packs TRL's own function makes of the same samples, all at once; None where it is not installed."""
    try:
        from datasets import Dataset
        from trl import pack_dataset
    except ImportError:
        return None
    ends = np.concatenate([[0], np.cumsum(lengths)])
    tokens = pa.LargeListArray.from_arrays(pa.array(ends), pa.array(np.zeros(int(ends[-1]), np.int8)))
    whole = Dataset(pa.table({"input_ids": tokens}))
    return len(pack_dataset(whole, cap, "bfd", map_kwargs={"batch_size": len(lengths), "keep_in_memory": True}))


def told(group: np.ndarray, pieces: np.ndarray, cap: int) -> tuple[int, float, float, float]:
    """Packs, the share that is empty, the most costly pack over the mean, and the standard deviation over the mean."""
    count = int(group.max()) + 1
    loads = np.bincount(group, MODEL.sample_costs(pieces), count)
    waste = 1 - pieces.sum() / (count * cap)
    return count, waste, loads.max() / loads.mean(), loads.std() / loads.mean()


def by_ours(lengths: np.ndarray, cap: int, **settings: object) -> tuple[np.ndarray, np.ndarray, int]:
    """Ours: the pack of each piece, the pieces, and the bound."""
    window = pack_rows(lengths, PackSettings(cap, over_long="cut", **settings))
    return np.repeat(np.arange(len(window.costs)), np.diff(window.offsets)), window.lengths, window.lower_bound


def rows_of(name: str, cap: int) -> Iterator[tuple[str, tuple[int, float, float, float], int]]:
    lengths = log_of(name)
    pieces = pieces_of(lengths, cap)
    bound = pack(pieces, cap).lower_bound
    yield "TRL's bfd, 1,000 rows at a time", told(in_batches(by_best_fit, pieces, cap, MAP_BATCH), pieces, cap), bound
    yield "TRL's bfd, all rows", told(by_best_fit(pieces, cap), pieces, cap), bound
    for title, settings in {"balancer pack": {}, "balancer pack --even-cost": {"even_cost": True}}.items():
        group, own_pieces, bound = by_ours(lengths, cap, **settings)
        yield title, told(group, own_pieces, cap), bound


def table() -> None:
    print("| log | tokens | packer | packs | over the bound | empty | most costly / mean | std / mean |")
    print("|---|--:|---|--:|--:|--:|--:|--:|")
    for name in LOGS:
        for cap in CAPS:
            counts = {}
            for title, (count, waste, most, std), bound in rows_of(name, cap):
                counts[title] = count
                over = count / bound - 1
                print(f"| {name} | {cap:,} | {title} | {count:,} | {over:.3%} | {waste:.2%} | {most:.3f} | {std:.3f} |")
            assert counts["balancer pack"] <= min(counts.values())
    print("\n| lengths of at most half a pack | tokens | packs | bound | over it |\n|---|--:|--:|--:|--:|")
    for name in LOGS:
        for cap in CAPS:
            lengths = log_of(name)
            found = pack_rows(lengths[lengths <= cap // 2], PackSettings(cap))
            over = len(found.costs) / found.lower_bound - 1
            print(f"| {name} | {cap:,} | {len(found.costs):,} | {found.lower_bound:,} | {over:.4%} |")
    small = pieces_of(log_of("documents with images"), CAPS[0])
    if (count := trl_count(small, CAPS[0])) is not None:
        assert count == int(by_best_fit(small, CAPS[0]).max()) + 1
        print(f"\nTRL's own function, of documents with images: {count} packs, as many as its rule written anew")


def steps() -> None:
    """How long ranks wait in steps of a pack each, by the order that packs come in."""
    print("| log | tokens | ranks | TRL's bfd, in a drawn order | balancer pack --per-step | and --even-cost |")
    print("|---|--:|--:|--:|--:|--:|")
    for name in LOGS:
        lengths = log_of(name)
        for cap in CAPS:
            pieces = pieces_of(lengths, cap)
            loads = np.bincount(by_best_fit(pieces, cap), MODEL.sample_costs(pieces))
            for ranks in (8, 64):
                drawn = np.random.default_rng(0).permutation(loads)[: len(loads) // ranks * ranks].reshape(-1, ranks)
                idle = [1 - drawn.sum() / (drawn.max(axis=1).sum() * ranks)]
                for even in (False, True):
                    settings = PackSettings(cap, over_long="cut", per_step=ranks, even_cost=even)
                    window = pack_rows(lengths, settings)
                    largest = np.maximum.reduceat(window.costs, np.arange(0, len(window.costs), ranks))
                    idle.append(1 - window.costs.sum() / (largest.sum() * ranks))
                print(f"| {name} | {cap:,} | {ranks} | " + " | ".join(f"{each:.2%}" for each in idle) + " |")


def speed() -> None:
    """Seconds for a million rows: the best of three."""
    omni = log_of("omni mix")
    rng = np.random.default_rng(0)
    logs = {
        "omni mix, ten times over": np.tile(omni, 10)[:1_000_000],
        "lognormal, mean 1,096, sigma 1": np.clip(rng.lognormal(6.5, 1, 1_000_000), 1, 8192).astype(np.int64),
    }
    print("| a million rows, packs of 8,192 | balancer pack | --even-cost | TRL's rule in Python |")
    print("|---|--:|--:|--:|")
    for name, lengths in logs.items():
        pieces = pieces_of(lengths, 8192)
        ways = [
            (lambda of=lengths: pack_rows(of, PackSettings(8192, over_long="cut")), 3),
            (lambda of=lengths: pack_rows(of, PackSettings(8192, over_long="cut", even_cost=True)), 1),
            (lambda of=pieces: by_best_fit(of, 8192), 1),
        ]
        print(f"| {name} | " + " | ".join(f"{best_of(way, times):.2f} s" for way, times in ways) + " |")


def best_of(way: Callable, times: int) -> float:
    found = []
    for _ in range(times):
        begun = time.perf_counter()
        way()
        found.append(time.perf_counter() - begun)
    return min(found)


if __name__ == "__main__":
    compile_at_once()
    pack_rows(np.array([6, 5, 4, 3, 3, 3] * 50), PackSettings(13, even_cost=True, per_step=4))  # compiled
    for what in sys.argv[1:] or ("table", "steps", "speed"):
        {"table": table, "steps": steps, "speed": speed}[what]()
        print()
