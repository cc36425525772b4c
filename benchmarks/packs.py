"""How full and how even are packs for fine-tuning, and how fast are they made?

    python benchmarks/packs.py [counts] [steps] [speed] [--quick]

Beside TRL's `pack_dataset(strategy="bfd")`, best fit decreasing, whose rule is written anew here from its description;
where `trl` is installed, its own function must make as many packs. TRL packs the 1,000 rows of a `datasets.map` batch
at a time; it is shown so, and over all rows at once. Samples over a pack are cut into pieces of its tokens, for all.
About a minute of one core; `--quick` ten seconds.
"""

from bisect import bisect_left, insort

import common
import numpy as np
import pyarrow as pa
from common import ATTENTION, LOGS, Table, timed

import balancer
from balancer.cost import parse_cost

CAPS = (8192, 32_768)
MAP_BATCH = 1000
MODEL = parse_cost(ATTENTION)


def pieces_of(lengths: np.ndarray, cap: int) -> np.ndarray:
    """Samples over a pack cut into pieces of it, in order."""
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


def in_batches(lengths: np.ndarray, cap: int) -> np.ndarray:
    """The same of 1,000 rows at a time."""
    groups, first = [], 0
    for at in range(0, len(lengths), MAP_BATCH):
        groups.append(by_best_fit(lengths[at : at + MAP_BATCH], cap) + first)
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


def counts(quick: bool) -> None:
    """Packs over the proven bound, what is empty, and how unlike packs cost."""
    table = Table("log, tokens of a pack", "packer", "packs", "over the bound, %", "empty, %", "most costly / mean",
                  "std / mean")  # fmt: skip
    for name in list(LOGS)[2:] if quick else LOGS:
        for cap in CAPS[: 1 if quick else 2]:
            lengths = common.log(name)[: 5000 if quick else None]
            pieces = pieces_of(lengths, cap)
            rows = []
            for title, packer in (("TRL's bfd, 1,000 rows at a time", in_batches), ("TRL's bfd, all", by_best_fit)):
                group = packer(pieces, cap)
                rows.append((title, np.bincount(group, MODEL.sample_costs(pieces), int(group.max()) + 1)))
            for title, even in (("balancer.pack", False), ("balancer.pack, even_cost", True)):
                found = balancer.pack(lengths, cap, over_long="cut", even_cost=even)
                rows.append((title, found.costs))
            for title, costs in rows:
                over, empty = len(costs) / found.lower_bound - 1, 1 - pieces.sum() / (len(costs) * cap)
                table.row(f"{name}, {cap:,}", title, len(costs), 100 * over, f"{100 * empty:.2f}",
                          float(costs.max() / costs.mean()), float(costs.std() / costs.mean()))  # fmt: skip
            assert len(rows[2][1]) <= min(len(costs) for _, costs in rows)
    small = pieces_of(common.log("pages")[: 2000 if quick else None], CAPS[0])
    if (count := trl_count(small, CAPS[0])) is not None:
        assert count == int(by_best_fit(small, CAPS[0]).max()) + 1
        print(f"\nTRL's own function, of pages: {count} packs, as many as its rule written anew.")


def steps(quick: bool) -> None:
    """How long ranks wait in steps of a pack each, % of all rank-time."""
    table = Table("log, tokens of a pack, ranks", "TRL's bfd, in a drawn order", "balancer.pack, per_step",
                  "and even_cost")  # fmt: skip
    for name in list(LOGS)[2:] if quick else LOGS:
        lengths = common.log(name)[: 5000 if quick else None]
        for cap in CAPS[: 1 if quick else 2]:
            pieces = pieces_of(lengths, cap)
            loads = np.bincount(by_best_fit(pieces, cap), MODEL.sample_costs(pieces))
            for ranks in (8, 64):
                drawn = np.random.default_rng(0).permutation(loads)[: len(loads) // ranks * ranks].reshape(-1, ranks)
                idle = [1 - drawn.sum() / (drawn.max(axis=1).sum() * ranks)]
                for even in (False, True):
                    costs = balancer.pack(lengths, cap, over_long="cut", per_step=ranks, even_cost=even).costs
                    largest = np.maximum.reduceat(costs, np.arange(0, len(costs), ranks))
                    idle.append(1 - costs.sum() / (largest.sum() * ranks))
                table.row(f"{name}, {cap:,}, {ranks}", *(f"{100 * each:.2f}" for each in idle))


def speed(quick: bool) -> None:
    """Seconds for rows, packs of 8,192 tokens, beside TRL's rule in Python."""
    count = 100_000 if quick else 1_000_000
    logs = {"mix, over and over": np.resize(common.log("mix"), count),
            "lognormal": common.lognormal(count, 0, 8192, 1096)}  # fmt: skip
    table = Table(f"{count:,} rows", "balancer.pack, s", "even_cost, s", "TRL's rule, s", "TRL's rule over ours")
    for name, lengths in logs.items():
        _, ours = timed(lambda of=lengths: balancer.pack(of, 8192, over_long="cut"), 2)
        _, even = timed(lambda of=lengths: balancer.pack(of, 8192, over_long="cut", even_cost=True))
        pieces = pieces_of(lengths, 8192)
        _, trl = timed(lambda of=pieces: by_best_fit(of, 8192))
        table.row(name, *(f"{each / 1e3:.2f}" for each in (ours, even, trl)), f"{trl / ours:.1f}")


if __name__ == "__main__":
    common.main(__doc__, counts, steps, speed)
