"""What does each part of the searches buy?

    python benchmarks/ablation.py [FAMILY ...] [--jobs 2] [--draws N] [--seed TEXT] [--only NAME] [--stop-at SHARE]

Leaves out one part at a time. Steps are those of beside.py (beside_families.py), so that a realistic user is a row of
it; a row says by how much steps take longer without the part, mean and standard error of paired differences, plans that
are found only with it, what crosses nodes more, and time. The rule: a part stays if without it some family's steps are
0.1 % longer on the mean, 0.1 points more cross nodes, plans are lost, or planning is slower by a tenth. A part that
shows none of this in any of its families is marked "under 0.1 %". Budgets are work, so all columns but time are the
same on every machine; one draw takes about two minutes of two cores a family, and errors of many parts need more.

A part is a module of this package, a name in it that Python looks up when it is called, and what stands there instead;
what only kernels call cannot be left out here. A name that is gone is said, and its part is left out of the table.
"""

import argparse
import contextlib
import functools
import hashlib
import importlib
import itertools
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
from beside_families import FAMILIES, Answer, every, measured
from common import Table

import solvers

NEVER = 1 << 60
LEAST = 0.1  # percent of a step's time; points of what crosses nodes
SLOWER = 1.1


class Over(NamedTuple):
    """What stands in a place, made of what stood there."""

    make: Callable[[Any], Any]


class Part(NamedTuple):
    name: str
    instead: dict[str, Any]  # "module:name" -> what stands there


def argument(k: int) -> Any:
    """Do nothing: what was handed over as argument `k` (an assignment, the work left) is the answer."""
    return lambda *args, **_: args[k]


def always(value: Any) -> Any:
    return lambda *_, **__: value


def without(shape: Any) -> Over:
    return Over(lambda shapes: tuple(each for each in shapes if each != shape))


def all_but(k: int) -> Over:
    return Over(lambda shapes: tuple(each for at, each in enumerate(shapes) if at != k))


def of_starts(k: int) -> Over:
    """Starts of which the k-th value is 0."""
    return Over(lambda starts: lambda *args: (start for start in starts(*args) if start[k] == 0))


def with_one_greedy(ways: Any) -> Any:
    def fewer(search: Any) -> Iterator[Any]:
        seen = False
        for way in ways(search):
            if way[1] is None or not seen:
                yield way
            seen |= way[1] is not None

    return fewer


def fair_documents(search: Any, rows: Any) -> Any:
    """Place a pack's documents one after the other, as many tokens on each rank."""
    document, start, stop, _ = search.units(rows, (8, 8))
    before = np.cumsum(stop - start) - (stop - start)
    as_rows = importlib.import_module("solvers.context._measure").as_rows
    return as_rows(before * search.ranks // int((stop - start).sum()), document, start, stop)


AUTO, SLOTS, RELOCATE = "solvers.partitioning.auto", "solvers.packing._schedule_search", "solvers.relocation"
NEAR, PEEL, LONG = (
    "balancer.cuts.micro_batches.near_home",
    "solvers.grouping.sequence_groups",
    "solvers.grouping.long_short",
)
GREEDY, PREFIX, COUNTS = (
    "solvers.context._greedy",
    "solvers.partitioning.prefixes",
    "solvers.partitioning.prefix_counts",
)
HOSTS, BINS = "solvers.deferral._search", "solvers.packing.bins"
PIPES, STARTS = "solvers.pipeline.solver", "solvers.pipeline.multiplex_slots"

SEARCH = (
    Part("divided anew", {f"{AUTO}:Search.lower": Over(lambda lower: lambda search, _, work: lower(search, 0, work))}),
    Part("tried exhaustively", {f"{AUTO}:Search.exhaust": always(None)}),
    Part("later turns", {f"{AUTO}:_TURNS": 2, f"{AUTO}:_TURNS_TO_OPTIMUM": 2}),
)
SEARCH_RULES = (
    *SEARCH,
    Part("likeness", {f"{AUTO}:Search._ways": Over(lambda ways: lambda search: (
        way for way in ways(search) if way[1] is not None))}),
    Part("other ways of greedy", {f"{AUTO}:Search._ways": Over(with_one_greedy)}),
    Part("a heap of each kind", {f"{AUTO}:_MOST_KINDS": 0}),
    Part("blocks", {f"{AUTO}:_BLOCK": NEVER}),
    Part("mended", {f"{AUTO}:Search._mend": always(None)}),
    Part("filled up", {f"{AUTO}:Search._fill_up": always(None)}),
    Part("work at least", {f"{AUTO}:_LEAST_WITH_RULES": 0}),
)  # fmt: skip
PREFIXES = (
    Part("shares that come last", {f"{PREFIX}:_SHARES_LAST": Over(lambda shares: shares[:1])}),
    Part("parts searched", {f"{PREFIX}:_SEVERAL": NEVER}),
)
RELOCATION = (
    Part("ranks share what crossed", {f"{RELOCATE}:_ENOUGH": 1}),
    Part("slack that nodes keep", {f"{RELOCATE}:_MOST_KEPT": NEVER}),
    Part("work", {f"{RELOCATE}:_WORK_A_RANK": 40_000}),
)
SCHEDULES = (
    Part("tall slots", {f"{SLOTS}:fill_densest": always(0)}),
    Part("dealt by tokens too", {f"{SLOTS}:Bins._deal": Over(
        lambda deal: lambda bins, tall, _: deal(bins, tall, True))}),
    Part("lowering", {f"{SLOTS}:Bins._lower": always(None)}),
    Part("divided anew", {f"{SLOTS}:_ATTEMPTS": 0}),
    Part("a packing", {f"{SLOTS}:Bins._mend": Over(lambda mend: lambda bins, _: mend(bins, None))}),
    Part("ranks under a cap", {f"{SLOTS}:_SPARE": ()}),
    Part("ranks first", {f"{SLOTS}:_ways": lambda *_: iter(())}),
    Part("more slots", {"solvers.packing.schedule:_MOST_TRIED": 2}),
)  # fmt: skip
NEAR_HOME = (
    Part("nodes choose slots", {f"{NEAR}:_by_nodes": lambda *_: iter(())}),
    Part("slots kept", {f"{NEAR}:_in_slots": Over(lambda laid: lambda *args, of_home=False: (
        iter(()) if of_home else laid(*args)))}),
    Part("less room", {f"{NEAR}:_PARTS": (Fraction(1),)}),
)  # fmt: skip
PIPELINES = (
    Part("the ramp", {f"{PIPES}:targets_of": Over(lambda targets: lambda problem, *ramp: (
        (found := targets(problem, *ramp))[0] * 0 + found[0].mean(axis=0), found[1]))}),
    Part("fitting", {f"{PIPES}:_TRIES": 0}),
    Part("exchanges", {f"{PIPES}:exchange": argument(1)}),
)  # fmt: skip
GAPS = (
    Part("all starts but one", {f"{STARTS}:_STARTS": 1}),
    Part("two starts of four", {f"{STARTS}:_STARTS": 2}),
    Part("replicas evened", {f"{STARTS}:_evened": argument(2)}),
    Part("the search", {f"{STARTS}:_searched": always(None)}),
)
SEQUENCE_GROUPS = (
    Part("starts by items", {f"{PEEL}:_PEELING": (5, 5), f"{PEEL}:_PEELED_ITEM": 0}),
    Part("densities", {f"{PEEL}:_DENSITIES": (64,)}),
    Part("least degrees", {f"{PEEL}:_starts": of_starts(1)}),
    Part("weights of time", {f"{PEEL}:_starts": of_starts(2)}),
    Part("slots solved anew", {f"{PEEL}:resolve": lambda given, where, heights, num_slots, *_: (num_slots, 0)}),
    Part("several improved", {f"{PEEL}:_ROUNDS": ((1, 100),)}),
)
LONG_SHORT = (
    Part("none shared", {f"{LONG}:_unshared": lambda *_: (1 << 62, None, None)}),
    Part("searched partitions", {f"{LONG}:partition": lambda costs, groups, **_: (
        solvers.partition(costs, groups, "lpt"))}),
)  # fmt: skip
DEFERRAL = (
    Part("start: the cover", {"solvers.deferral.solver:search": Over(
        lambda search: lambda problem, prices, cover, work: search(problem, prices, np.zeros_like(cover), work))}),
    Part("all changes of hosts", {f"{HOSTS}:_Stretch.climb": argument(1)}),
    Part("hosts given up", {f"{HOSTS}:_without": lambda *_: iter(())}),
    Part("hosts elsewhere", {f"{HOSTS}:_elsewhere": lambda *_: iter(())}),
    Part("hosts for tall items", {f"{HOSTS}:_for_tall": lambda *_: iter(())}),
    Part("tall items alone", {f"{HOSTS}:_SHARE_OF_ALL": 1.0, f"{HOSTS}:_SHARE_OF_WINDOW": NEVER}),
    Part("stretches", {f"{HOSTS}:_STRETCH": NEVER}),
)  # fmt: skip
CONTEXT = (
    Part("documents by work", {f"{GREEDY}:place": fair_documents}),
    *(Part(f"pass {k + 1}", {f"{GREEDY}:PASSES": all_but(k)}) for k in range(2)),
    *(Part(f"last passes: {each}", {f"{GREEDY}:_OVER": without(each)}) for each in (4, 32)),
    Part("last passes: 256 again", {f"{GREEDY}:_OVER": Over(lambda over: tuple(dict.fromkeys(over)))}),
    Part("tokens loose again", {f"{GREEDY}:loosened": argument(1)}),
)
PACKS = (Part("dealing", {f"{BINS}:deal": lambda problem, groups, bound, seconds: (groups, bound)}),)
PARTS: dict[str, tuple[Part, ...]] = {
    "free": SEARCH,
    "equal counts": SEARCH,
    "rules, many items": SEARCH_RULES,
    "rules, few items": SEARCH_RULES,
    "shared prompts": PREFIXES,
    "near home": RELOCATION,
    "near home, equal counts": RELOCATION,
    "micro-batches, micro_batch": SCHEDULES,
    "micro-batches, step": SCHEDULES,
    "micro-batches, pipeline": SCHEDULES,
    "micro-batches near home": NEAR_HOME,
    "pipelines": PIPELINES,
    "gaps": GAPS,
    "sequence groups": SEQUENCE_GROUPS,
    "long and short": LONG_SHORT,
    "across steps": DEFERRAL,
    "context shards": CONTEXT,
    "packs": PACKS,
}
"""By family of beside_families.py; a name that several families have is one part."""


def place_of(target: str) -> tuple[Any, str]:
    """Return what has a name, and the name."""
    module, _, path = target.partition(":")
    *outer, name = path.split(".")
    owner = functools.reduce(getattr, outer, importlib.import_module(module))
    owner.__dict__[name]
    return owner, name


def is_there(part: Part) -> bool:
    try:
        return bool([place_of(target) for target in part.instead])
    except (ImportError, AttributeError, KeyError):
        return False


@contextlib.contextmanager
def left_out(part: Part | None) -> Iterator[None]:
    """Put what stands in place of a part where Python looks for it, for as long as this lasts."""
    with contextlib.ExitStack() as back:
        for target, instead in part.instead.items() if part else ():
            owner, name = place_of(target)
            stands = owner.__dict__[name]
            back.callback(setattr, owner, name, stands)
            setattr(owner, name, instead.make(stands) if isinstance(instead, Over) else instead)
        yield


class Drawn(NamedTuple):
    """The steps of a family."""

    family: str
    seed: int
    draws: int
    stop_at: str


@functools.cache
def cases_of(drawn: Drawn) -> list[Callable[[], Answer]]:
    return [case for _, (_, case) in every([drawn.family], drawn.seed, drawn.draws, drawn.stop_at)]


def solve(drawn: Drawn, name: str, k: int) -> Answer:
    """Solve the k-th step without the part of this name; with all where it is empty."""
    part = next((part for part in PARTS[drawn.family] if part.name == name), None)
    with left_out(part):
        return measured(cases_of(drawn)[k])


class Loss(NamedTuple):
    """What leaving a part out costs in a family."""

    longer: np.ndarray  # percent, of each step that both ways plan
    lost: int  # plans found only with the part
    crosses: float  # points
    slower: float  # milliseconds of all steps, over those with the part

    @classmethod
    def of(cls, whole: list[Answer], rest: list[Answer]) -> "Loss":
        both = [(a, b) for a, b in zip(whole, rest, strict=True) if "value" in a and "value" in b]
        longer = np.array([100 * (b["value"] / a["value"] - 1) for a, b in both] or [0.0])
        lost = sum("value" in a and "value" not in b for a, b in zip(whole, rest, strict=True))
        crosses = float(np.mean([b.get("crosses", 0.0) - a.get("crosses", 0.0) for a, b in both] or [0.0]))
        slower = sum(answer["ms"] for answer in rest) / max(1e-9, sum(answer["ms"] for answer in whole))
        return cls(longer, lost, crosses, slower)

    @property
    def error(self) -> float:
        return float(self.longer.std() / np.sqrt(len(self.longer)))

    @property
    def stays(self) -> bool:
        return max(self.longer.mean(), self.crosses) >= LEAST or self.lost > 0 or self.slower >= SLOWER


def ablate(drawn: Drawn, parts: list[Part], run: Callable) -> dict[str, Loss]:
    """Print a row a part, and return what each costs."""
    steps = range(len(cases_of(drawn)))
    whole = list(run(functools.partial(solve, drawn, ""), steps))
    table = Table(f"{drawn.family}, {len(steps)} steps: without", "longer, %", "worst step, %", "plans lost",
                  "crosses, points", "time over", "")  # fmt: skip
    losses = {}
    for part in parts:
        losses[part.name] = loss = Loss.of(whole, list(run(functools.partial(solve, drawn, part.name), steps)))
        table.row(part.name, f"{loss.longer.mean():+.3f} ± {loss.error:.3f}", f"{loss.longer.max():+.2f}", loss.lost,
                  f"{loss.crosses:+.2f}", f"{loss.slower:.2f}", "" if loss.stays else "under 0.1 %")  # fmt: skip
    print()
    return losses


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("family", nargs="*", help=f"by default all: {', '.join(PARTS)}")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--draws", type=int, default=1, help="of each shape of a step")
    parser.add_argument("--seed", default="", help="a text: a value is judged on other steps than it was chosen on")
    parser.add_argument("--only", default="", help="parts with this in their name")
    parser.add_argument("--stop-at", default="0.1%", help="gap at which searches stop; 0 for as far as they get")
    given = parser.parse_args()
    if unknown := [name for name in given.family if name not in PARTS]:
        parser.error(f"no family {unknown[0]!r}: one of {', '.join(PARTS)}")
    assert set(PARTS) <= set(FAMILIES)
    seed, found = int(hashlib.sha256(given.seed.encode()).hexdigest()[:8], 16), {}
    with ProcessPoolExecutor(given.jobs) as pool:
        run = map if given.jobs == 1 else functools.partial(pool.map, chunksize=2)
        for family in given.family or PARTS:
            asked = [part for part in PARTS[family] if given.only in part.name]
            there = [part for part in asked if is_there(part)]
            for part in itertools.filterfalse(is_there, asked):
                print(f"gone: {part.name}, {', '.join(part.instead)}")
            for name, loss in ablate(Drawn(family, seed, given.draws, given.stop_at), there, run).items():
                found.setdefault((id(PARTS[family]), name), []).append(loss)
    under = [name for (_, name), losses in found.items() if not any(loss.stays for loss in losses)]
    print(f"Under 0.1 % in all families that were run: {', '.join(under) or '(none)'}.")


if __name__ == "__main__":
    main()
