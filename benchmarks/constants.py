"""What thresholds of the searches are worth: other values of each, beside the value that stands, by family of steps.

Run: python benchmarks/constants.py [FAMILY ...] [--jobs 2] [--draws N]. Steps, columns and errors are those of
ablation.py: a loss is what the other value costs, so that a negative one gains. A constant inside a kernel is in no
table, as kernels take it when they are compiled.
"""

import argparse
import functools
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import ablation
import ablation_cases as cases
import numpy as np
from ablation_parts import Part

PORTFOLIO, PATTERNS = "solvers.partitioning.portfolio", "solvers.partitioning.pattern_search"
EVEN, SEARCH = "solvers.partitioning.even_counts", "solvers.partitioning.constrained.search"
SLOTS, SCHEDULE = "solvers.packing._schedule_search", "solvers.packing.schedule"
PEEL, SHARDS = "solvers.grouping._search", "solvers.context._greedy"
UNDER_CONSTRAINTS: dict[str, tuple[Any, ...]] = {
    f"{SEARCH}:_SHAKEN": (2, 4),
    f"{SEARCH}:_CLOSE": (6, 12),
    f"{SEARCH}:_STEPS": (7, 20),
    "solvers.makespan_bounds:_MASKS": (8,),
    "solvers.makespan_bounds:_FILLED": (8,),
}
OTHERS: dict[str, dict[str, tuple[Any, ...]]] = {
    "free": {
        f"{PORTFOLIO}:_QUANTUM": (5_000, 80_000),
        f"{PORTFOLIO}:_MANY_A_GROUP": (8, 32),
        f"{PATTERNS}:_MOST_A_GROUP": (5, 10),
        f"{PATTERNS}:_MOST_VALUES": (100,),
        f"{PATTERNS}:_MOST_CELLS": (2_000_000,),
        "solvers.bounds:_LONGEST_PREFIX": (8,),
        "solvers.bounds:_MOST_QUESTIONS": (4,),
    },
    "equal": {f"{EVEN}:_FIRST": (20, 80), f"{EVEN}:_MORE": (8, 32)},
    "constrained": UNDER_CONSTRAINTS,
    "constrained_few": UNDER_CONSTRAINTS,
    "schedules": {
        f"{SLOTS}:_CLOSE": (7, 12),
        f"{SLOTS}:_SLACK": (4, 7),
        f"{SLOTS}:_ROUNDS": (2, 8),
        f"{SLOTS}:_SHAVES": ((10, 7),),
        f"{SCHEDULE}:_CLOSE": (128, 2048),
        f"{SCHEDULE}:_PACKING_BUDGET": (0.001,),
    },
    "sequence_groups": {
        f"{PEEL}:_PEELING": (3, 10),
        f"{PEEL}:_TUNING": ((2, 5), (4, 5)),
        f"{PEEL}:_LITTLE": (20_000, 80_000),
        f"{PEEL}:_ROUNDS": (((4, 20), (1, 100)),),
    },
    "context": {f"{SHARDS}:_OF_NODES": ((1, 5), (3, 5)), f"{SHARDS}:_FINE": ((32, 64),)},
}
"""Of each family of ablation.py, constants by module and name, and the values that are tried."""


def parts_of(family: str) -> tuple[Part, ...]:
    """Return each other value as a part whose place it takes."""
    return tuple(
        Part(f"{target.rpartition('.')[2].replace(':', ' ')} = {value}", {target: value})
        for target, values in OTHERS[family].items()
        for value in values
    )


def try_others() -> None:
    """Let the families of ablation.py have these values as their parts, in this process."""
    for family in OTHERS:
        ablation.FAMILIES[family] = ablation.FAMILIES[family]._replace(parts=parts_of(family))


def compare(family: str, draws: int, run: Callable) -> None:
    """Print what each other value costs."""
    ablation.scores(family, 1, frozenset(), run)  # compiles
    stands = ablation.scores(family, draws, frozenset(), run)
    stands[stands[:, 0] == cases.FAILED.gap, :-1] = np.nan  # what has no answer says nothing
    ablation.table("Each alone", family, draws, [part.name for part in parts_of(family)], [], stands, run)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("family", nargs="*", choices=[[], *OTHERS], help="by default all")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--draws", type=int, help="of each shape of a step, instead of the family's own")
    given = parser.parse_args()
    try_others()
    with ProcessPoolExecutor(given.jobs, initializer=try_others) as pool:  # which any way to start processes calls
        run = map if given.jobs == 1 else functools.partial(pool.map, chunksize=4)
        for family in given.family or OTHERS:
            draws = given.draws or ablation.FAMILIES[family].draws
            print(f"\n## {family}: {len(ablation.cases_of(family, draws))} cases\n", flush=True)
            compare(family, draws, run)


if __name__ == "__main__":
    main()
