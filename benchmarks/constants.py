"""What thresholds of the searches are worth: other values of each, beside the value that stands, by family of steps.

Run: python benchmarks/constants.py [FAMILY ...] [--jobs 2] [--draws N] [--skip N] [--only NAME]. Steps, columns and
errors are those of ablation.py: a loss is what the other value costs, so that a negative one gains. Kernels take
constants when they are compiled, so a value that they read gets processes of its own, which compile them anew.
"""

import argparse
import functools
import importlib
import multiprocessing
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from fractions import Fraction
from types import CodeType, FunctionType
from typing import Any

import ablation
import ablation_cases as cases
import numpy as np
from ablation_parts import Part

from solvers import _jit

AUTO, SEARCH = "solvers.partitioning.auto", "solvers.partitioning.search"
SLOTS, SCHEDULE = "solvers.packing._schedule_search", "solvers.packing.schedule"
PEEL, SHARDS = "solvers.grouping.sequence_groups", "solvers.context._greedy"
RELOCATE = "solvers.relocation"
OF_SEARCH: dict[str, tuple[Any, ...]] = {
    f"{AUTO}:_FIRST_EACH": (10, 160),
    f"{AUTO}:_LEAST_EACH": (0, 160),
    f"{AUTO}:_EXHAUSTED": (500_000, 8_000_000),
    f"{SEARCH}:_PARTNERS": (0, 16, 256),  # 0: no swaps
    f"{SEARCH}:_GROUPS": (0, 3, 12),  # 0: no trades
    f"{SEARCH}:_WINDOW": (12, 48),
    f"{SEARCH}:_PAIRS": (12, 48),
    f"{SEARCH}:_DIVIDED": (3, 8),
    f"{SEARCH}:_NODES": (0, 500, 8_000),  # 0: none divided anew
}
OF_RULES: dict[str, tuple[Any, ...]] = OF_SEARCH | {
    f"{AUTO}:_LEAST_WITH_RULES": (40, 400),
    f"{AUTO}:_STARTS_EACH": (15, 240),
    f"{AUTO}:_BLOCK": (16, 256),
    f"{AUTO}:_MOST_KINDS": (4, 64),
    f"{SEARCH}:_SELDOM": (1, 64),
    "solvers.bounds:_MASKS": (8,),
}
OF_RELOCATION: dict[str, tuple[Any, ...]] = {
    f"{RELOCATE}:_ENOUGH": (30, 300),
    f"{RELOCATE}:_WORK_A_RANK": (100_000, 1_600_000),
    f"{RELOCATE}:POOL": (6, 8),
    f"{RELOCATE}:FEWER": (4, 6),
    f"{RELOCATE}:FAR": (16, 64),
    f"{RELOCATE}:TRIES": (32, 128),
    f"{RELOCATE}:ACROSS": (100, 400),
    f"{RELOCATE}:RATE": (1.15, 1.5),
    f"{RELOCATE}:DEARER": (0.06, 0.25),
    f"{RELOCATE}:LARGE": (0, 5),
    f"{RELOCATE}:SMALL": (2, 8),
    f"{RELOCATE}:ROUNDS": (3, 12),
    f"{RELOCATE}:SIDEWAYS": (0.5, 8.0),
    f"{RELOCATE}:LITTLE": (32, 512),
}
OTHERS: dict[str, dict[str, tuple[Any, ...]]] = {
    "search": OF_SEARCH,
    "search_equal": OF_SEARCH,
    "search_rules": OF_RULES,
    "search_few": OF_RULES,
    "schedules": {
        f"{SLOTS}:_FINE": (10, 14),
        f"{SLOTS}:_ATTEMPTS": (1, 16),
        f"{SLOTS}:_SPARE": ((0, 64),),
        f"{SLOTS}:CLOSE": (Fraction(1, 1000), Fraction(1, 16384)),
        f"{SCHEDULE}:_PACKING_BUDGET": (0.001,),
    },
    "sequence_groups": {
        f"{PEEL}:_PEELING": ((3, 20), (5, 10)),
        f"{PEEL}:_PEELED_ITEM": (120, 480),
        f"{PEEL}:_ROUNDS": (((4, 20), (1, 100)),),
        f"{PEEL}:_MANY_GROUPS": (16, 256),
        f"{PEEL}:_PATIENCE": (16, 256),
        f"{PEEL}:_WEIGHTS": (2, 8),
        f"{PEEL}:_HALVINGS": (8, 16),
    },
    "relocation": OF_RELOCATION,
    "relocation_equal": OF_RELOCATION,
    "deferral": {
        "solvers.deferral._search:_MOST_REFUSALS": (2, 32),
        "solvers.deferral._search:_MOST_UNFIT": (8, 128),
        "solvers.deferral.bounds:_SAMPLED": (2_048, 32_768),
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


def modules_with(target: str) -> list[Any]:
    """Return the module of a constant; with those that import it, if its name is public."""
    module, _, name = target.partition(":")
    there = importlib.import_module(module)
    if name.startswith("_"):
        return [there]
    loaded = [each for path, each in list(sys.modules.items()) if path.partition(".")[0] in ("solvers", "balancer")]
    return [each for each in loaded if vars(each).get(name) is vars(there)[name]]


def names_in(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from names_in(each)


def reads(function: FunctionType, name: str, where: list[dict[str, Any]], seen: set[FunctionType]) -> bool:
    """Whether a function, or one that it calls, reads a global variable of these modules."""
    seen.add(function)
    names = set(names_in(function.__code__))
    if name in names and any(function.__globals__ is each for each in where):
        return True
    called = (getattr(found, "py_func", found) for found in map(function.__globals__.get, names))
    return any(
        isinstance(each, FunctionType) and each not in seen and reads(each, name, where, seen) for each in called
    )


def kernels_with(target: str) -> list[_jit.Kernel]:
    """Return the kernels that read a constant."""
    name, where = target.partition(":")[2], [vars(each) for each in modules_with(target)]
    solvers = [each for path, each in list(sys.modules.items()) if path.partition(".")[0] == "solvers"]
    kernels = {each for module in solvers for each in vars(module).values() if isinstance(each, _jit.Kernel)}
    return [each for each in kernels if reads(each.py_func, name, where, set())]


def freeze(target: str, value: Any) -> None:
    """Let this process, which has compiled nothing, compile kernels with another value; they are not kept."""
    try_others()
    for each in kernels_with(target):
        _jit._with_numba(each.py_func)  # numba knows all helpers from here on
        each.compiled = _jit._numba().njit(nogil=True)(each.py_func)
    for module in modules_with(target):
        setattr(module, target.partition(":")[2], value)


def run_with(part: Part, jobs: int, run: Callable) -> Callable:
    """Return what runs steps with this value: `run`, or processes of its own."""
    ((target, value),) = part.instead.items()
    if not kernels_with(target):
        return run

    def run_anew(solve: Callable, steps: range) -> list:
        fresh = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(jobs, fresh, freeze, (target, value)) as pool:
            ablation.scores(solve.args[0], ablation.Draws(1), frozenset(), pool.map)  # compiles
            return list(pool.map(solve, steps))

    return run_anew


def compare(family: str, draws: ablation.Draws, run: Callable, jobs: int, only: str) -> None:
    """Print what each other value costs, of constants whose name has `only` in it."""
    ablation.scores(family, ablation.Draws(1), frozenset(), run)  # compiles
    stands = ablation.scores(family, draws, frozenset(), run)
    stands[stands[:, 0] == cases.FAILED.gap, :-1] = np.nan  # what has no answer says nothing
    runs = {part.name: run_with(part, jobs, run) for part in parts_of(family) if only in part.name}
    ablation.table("Each alone", family, draws, runs, [], stands)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("family", nargs="*", choices=[[], *OTHERS], help="by default all")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--draws", type=int, help="of each shape of a step, instead of the family's own")
    parser.add_argument("--skip", type=int, default=0, help="so many draws first: a value is chosen on other steps")
    parser.add_argument("--only", default="", help="constants with this in their name")
    given = parser.parse_args()
    try_others()
    with ProcessPoolExecutor(given.jobs, initializer=try_others) as pool:  # which any way to start processes calls
        run = map if given.jobs == 1 else functools.partial(pool.map, chunksize=4)
        for family in given.family or OTHERS:
            draws = ablation.Draws(given.draws or ablation.FAMILIES[family].draws, given.skip)
            print(f"\n## {family}: {len(ablation.cases_of(family, draws))} cases\n", flush=True)
            compare(family, draws, run, given.jobs, given.only)


if __name__ == "__main__":
    main()
