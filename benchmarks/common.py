"""What the benchmarks share: lengths as they come, ways that are timed in turns, tables, and how a script is asked.

Machines are noisy, so speed is a ratio within one run, and milliseconds are of this thread's processor. All else is the
same on every machine.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

ROOT = Path(__file__).resolve().parents[1]
DATA = ROOT / "data"
LOGS = {
    "mix": ("omni_mix_dev", ("text_tokens", "image_tokens", "audio_tokens")),
    "documents": ("prolong_documents", ("text_tokens",)),
    "pages": ("docs_msdev_interleaved", ("text_tokens", "image_tokens")),
}
"""Logs of data/ by a short name: the file, and the columns whose sum is the length."""

ATTENTION = "quadratic:a=24576,b=1"  # attention beside all else, as in a model of 7B
COSTS = {"linear": "linear", "attention": ATTENTION}
NODE = 8


# What is measured on


def lognormal(count: int, seed: int = 0, longest: int = 32_768, mean: float = 2000) -> np.ndarray:
    """Lengths as they come: sigma 1, clipped. int64[count]."""
    drawn = np.random.default_rng(seed).lognormal(np.log(mean) - 0.5, 1.0, count)
    return np.clip(drawn, 1, longest).astype(np.int64)


@cache
def log(name: str) -> np.ndarray:
    """Lengths of the rows of a log, in its order: int64[n]."""
    file, columns = LOGS[name]
    table = pq.read_table(DATA / f"{file}.parquet", columns=list(columns))
    return np.maximum(sum(table[column].to_numpy().astype(np.int64) for column in columns), 1)


@cache
def column(file: str, name: str) -> np.ndarray:
    return pq.read_table(DATA / f"{file}.parquet", columns=[name])[name].to_numpy().astype(np.int64)


def priced(lengths: np.ndarray, cost: str) -> np.ndarray:
    """Costs of samples by a name of ``COSTS``: int64[n]."""
    return lengths if cost == "linear" else 24_576 * lengths + lengths * lengths


def steps_of(lengths: np.ndarray, size: int, most: int) -> list[np.ndarray]:
    """Steps of so many consecutive rows; at most so many steps, spread over the log."""
    chosen = np.unique(np.linspace(0, len(lengths) // size - 1, most).astype(np.int64))
    return [lengths[step * size : (step + 1) * size] for step in chosen.tolist()]


def kinds_of_rules(n: int, m: int, seed: int, room: float | None = None) -> Iterator[tuple[str, np.ndarray, dict]]:
    """Name, costs, and constraints that trainers have; caps are multiples of `room`, by default the mean tokens."""
    rng = np.random.default_rng(1000 + seed)
    tokens = lognormal(n, seed)
    costs = priced(tokens, "attention")
    mean = tokens.sum() / m if room is None else room
    patches = np.where(rng.random(n) < 0.3, rng.integers(1, 4000, n), 0)
    kinds = rng.random(n) < 0.5  # half of the samples may not be on the first quarter of the groups
    first_quarter = np.arange(m) < m // 4
    masks = ~(kinds[:, None] & first_quarter[None, :])
    speeds = np.where(np.arange(m) < m // 2, 2, 1)

    def cap(factor: float) -> dict[str, Any]:
        return {"sizes": tokens, "caps": int(factor * mean)}

    two = {"sizes": np.stack([tokens, patches], axis=1), "caps": [int(1.05 * mean), int(1.05 * patches.sum() / m)]}
    yield "cap 1.02", costs, cap(1.02)
    yield "cap 1.05", costs, cap(1.05)
    yield "cap 1.1", costs, cap(1.1)
    yield "two caps 1.05", costs, two
    yield "equal counts, cap 1.05", costs, cap(1.05) | {"equal_counts": True}
    yield "max_items n/m + 4, cap 1.05", costs, cap(1.05) | {"max_items": n // m + 4}
    yield "prompts of 8, cap 1.1", costs, cap(1.1) | {"keep_together": np.arange(n) // 8}
    yield "masks", costs, {"allowed": masks}
    yield "masks, cap 1.1", costs, cap(1.1) | {"allowed": masks}
    yield "speeds 2 and 1", costs, {"speeds": speeds}
    yield "speeds 2 and 1, cap 1.3", costs, cap(1.3) | {"speeds": speeds}
    yield "initial loads", costs, {"initial_loads": rng.integers(0, costs.sum() // m, m)}
    vectors = np.stack([patches * patches + 1000 * patches, costs], axis=1)
    yield "vision and LLM, sum", vectors, {}
    yield "vision and LLM, max", vectors, {"objective": "max"}
    yield "vision and LLM, sum, cap 1.05", vectors, cap(1.05)


# How it is measured


def timed(call: Callable[[], Any], times: int = 1) -> tuple[Any, float]:
    """Return what a call returns, and the least milliseconds of this thread's processor in so many calls."""
    least = float("inf")
    for _ in range(times):
        started = time.thread_time()
        found = call()
        least = min(least, 1e3 * (time.thread_time() - started))
    return found, least


def in_turns(ways: dict[str, Callable[[], Any]], rounds: int) -> dict[str, list[float]]:
    """Call each way once, and then all in turns: milliseconds of every round, by way."""
    for way in ways.values():
        way()
    found: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            found[name].append(timed(way)[1])
    return found


def over(times: dict[str, list[float]], name: str, other: str) -> float:
    """Return the median of one way's time over another's, round by round."""
    return statistics.median(a / b for a, b in zip(times[name], times[other], strict=True))


# How it is shown, and asked for


class Table:
    """A table in Markdown that is printed row by row; numbers have three decimals where nothing else is said."""

    def __init__(self, *heads: str) -> None:
        print(f"| {' | '.join(heads)} |\n|---|{'--:|' * (len(heads) - 1)}")

    def row(self, *cells: Any) -> None:
        print(f"| {' | '.join(map(shown, cells))} |", flush=True)


def shown(cell: Any) -> str:
    if isinstance(cell, (int, np.integer)):
        return f"{cell:,}"
    return f"{cell:.3f}" if isinstance(cell, float) else str(cell)


def main(said: str, *parts: Callable[[bool], None]) -> None:
    """Run the parts of a script that the command line names, or all; each is told whether it has to be quick."""
    named = {part.__name__: part for part in parts}
    parser = argparse.ArgumentParser(description=said, formatter_class=argparse.RawDescriptionHelpFormatter)
    about = "; ".join(f"{name}: {(part.__doc__ or '').splitlines()[0]}" for name, part in named.items())
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"by default all. {about}")
    parser.add_argument("--quick", action="store_true", help="the smallest sizes, to see that it runs")
    given = parser.parse_args()
    if unknown := [name for name in given.parts if name not in named]:
        parser.error(f"no part {unknown[0]!r}: one of {', '.join(named)}")
    import balancer  # not above: beside.py lets this file be read beside another commit's packages

    balancer.warmup()  # or else times have compilation in them
    for name in given.parts or named:
        print(f"## {name}: {(named[name].__doc__ or '').strip()}\n")
        named[name](given.quick)
        print()
