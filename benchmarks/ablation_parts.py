"""The parts that ablation.py leaves out: of each family a name, and what stands where the part was.

A target is a module of this package and a name in it, which Python looks up when it is called. What only kernels call
cannot be left out here, and is not in these tables.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

import solvers
from balancer.offline import packed_rows
from solvers.context import _search
from solvers.context._greedy import search as search_context
from solvers.context._measure import as_rows
from solvers.deferral._search import _orders as orders_of_deferral
from solvers.deferral._search import search as search_hosts
from solvers.deferral.bounds import Prices, cover_bound
from solvers.partitioning import prefixes
from solvers.pipeline import multiplex_slots
from solvers.pipeline._gap_search import no_items
from solvers.pipeline.solver import targets_of

NEVER = 1 << 60


class Over(NamedTuple):
    """Two parts in one place, each left out of what the other left: what stands there, from what stood there."""

    make: Callable[[Any], Any]


class Part(NamedTuple):
    name: str
    instead: dict[str, Any]  # "module:name" -> what stands there


def argument(k: int) -> Any:
    """Do nothing: what was handed over as argument `k` (an assignment, the work left) is the answer."""
    return lambda *args, **_: args[k]


def always(value: Any) -> Any:
    return lambda *_, **__: value


AUTO = "solvers.partitioning.auto"


def without_likeness(ways: Any) -> Any:
    return lambda search: (way for way in ways(search) if way[1] is not None)


def with_one_greedy(ways: Any) -> Any:
    def fewer(search: Any) -> Iterator[Any]:
        seen = False
        for way in ways(search):
            if way[1] is None or not seen:
                yield way
            seen |= way[1] is not None

    return fewer


SEARCH = (
    Part("divided anew", {f"{AUTO}:Search.lower": Over(lambda lower: lambda search, _, work: lower(search, 0, work))}),
    Part("tried exhaustively", {f"{AUTO}:Search.exhaust": always(None)}),
    Part("later turns", {f"{AUTO}:_TURNS": 2, f"{AUTO}:_TURNS_TO_OPTIMUM": 2}),
)
SEARCH_RULES = (
    *SEARCH,
    Part("likeness", {f"{AUTO}:Search._ways": Over(without_likeness)}),
    Part("other ways of greedy", {f"{AUTO}:Search._ways": Over(with_one_greedy)}),
    Part("a heap of each kind", {f"{AUTO}:_MOST_KINDS": 0}),
    Part("blocks", {f"{AUTO}:_BLOCK": NEVER}),
    Part("mended", {f"{AUTO}:Search._mend": always(None)}),
    Part("filled up", {f"{AUTO}:Search._fill_up": always(None)}),
    Part("work at least", {f"{AUTO}:_LEAST_WITH_RULES": 0}),
)

SLOTS = "solvers.packing._schedule_search"
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

RELOCATE = "solvers.relocation"
RELOCATION = (
    Part("ranks share what crossed", {f"{RELOCATE}:_ENOUGH": 1}),
    Part("slack that nodes keep", {f"{RELOCATE}:_MOST_KEPT": NEVER}),
    Part("work", {f"{RELOCATE}:_WORK_A_RANK": 40_000}),
)

NEAR = "balancer.cuts.micro_batches.near_home"
NEAR_HOME = (
    Part("nodes choose slots", {f"{NEAR}:_by_nodes": lambda *_: iter(())}),
    Part("slots kept", {f"{NEAR}:_in_slots": Over(lambda laid: lambda *args, of_home=False: (
        iter(()) if of_home else laid(*args)))}),
    Part("less room", {f"{NEAR}:_PARTS": (Fraction(1),)}),
)  # fmt: skip

PEEL = "solvers.grouping.sequence_groups"
SEQUENCE_GROUPS = (
    Part("starts by items", {f"{PEEL}:_PEELING": (5, 5), f"{PEEL}:_PEELED_ITEM": 0}),
    Part("densities", {f"{PEEL}:_DENSITIES": (64,)}),
    Part(
        "least degrees", {f"{PEEL}:_starts": Over(lambda starts: lambda *args: (s for s in starts(*args) if s[1] == 0))}
    ),
    Part(
        "weights of time",
        {f"{PEEL}:_starts": Over(lambda starts: lambda *args: (s for s in starts(*args) if s[2] == 0))},
    ),
    Part("slots solved anew", {f"{PEEL}:resolve": lambda given, where, heights, num_slots, *_: (num_slots, 0)}),
    Part("several improved", {f"{PEEL}:_ROUNDS": ((1, 100),)}),
)

LONG = "solvers.grouping.long_short"
LONG_SHORT = (
    Part("none shared", {f"{LONG}:_unshared": lambda *_: (1 << 62, None, None)}),
    Part("searched partitions", {f"{LONG}:partition": lambda costs, groups, **_: (
        solvers.partition(costs, groups, "lpt"))}),
)  # fmt: skip


def by_tokens(search: Any, rows: Any) -> Any:
    """Place a pack's documents one behind the other, as many tokens on each rank."""
    document, start, stop, _ = search.units(rows, (8, 8))
    before = np.cumsum(stop - start) - (stop - start)
    return as_rows(before * search.ranks // int((stop - start).sum()), document, start, stop)


GREEDY, PASSES = "solvers.context._greedy", _search.PASSES
CONTEXT = (
    Part("documents by work", {f"{GREEDY}:place": by_tokens}),
    *(Part(f"pass {k + 1}", {f"{GREEDY}:PASSES": PASSES[:k] + PASSES[k + 1 :]}) for k in range(len(PASSES))),
    Part("last passes: 4", {f"{GREEDY}:_OVER": Over(lambda over: tuple(each for each in over if each != 4))}),
    Part("last passes: 32", {f"{GREEDY}:_OVER": Over(lambda over: tuple(each for each in over if each != 32))}),
    Part("last passes: 256 again", {f"{GREEDY}:_OVER": Over(lambda over: tuple(dict.fromkeys(over)))}),
    Part("tokens loose again", {f"{GREEDY}:loosened": argument(1)}),
    Part("nodes first", {"solvers.context.solver:search": lambda problem, caps, work: search_context(
        problem._replace(ranks_per_node=problem.num_ranks), caps, work)}),
)  # fmt: skip

PREFIX, COUNTS, SLOTS = (
    "solvers.partitioning.prefixes",
    "solvers.partitioning.prefix_counts",
    "solvers.packing.prefix_schedule",
)
LAST = tuple(
    Part(f"{share} % last", {f"{PREFIX}:_SHARES_LAST": tuple(each for each in prefixes._SHARES_LAST if each != share)})
    for share in prefixes._SHARES_LAST[1:]
)
PREFIXES = (
    *LAST,
    Part("parts searched", {f"{PREFIX}:_SEVERAL": NEVER}),
    Part(
        "equal counts: parts at the bound", {f"{COUNTS}:parts_at": lambda problem, _: np.ones_like(problem.given.once)}
    ),
    Part("equal counts: more parts", {f"{COUNTS}:_BELOW": NEVER}),
    Part("equal counts: exchanges", {f"{COUNTS}:_exchange": always(None)}),
)
PREFIX_SLOTS = (
    *LAST,
    Part("parts filled up", {f"{SLOTS}:_SHARES": ()}),
    Part("parts of a half and a quarter", {f"{SLOTS}:_SHARES": (1,)}),
    Part("packed", {f"{SLOTS}:_MOST_PACKED": 0}),
    Part("packed into more slots", {f"{SLOTS}:_MOST_PACKED": 1}),
)


def unpriced(prices: Prices) -> Prices:
    """Take tokens and items to be worth nothing."""
    return prices._replace(values=np.zeros_like(prices.values))


HOSTS = "solvers.deferral._search"
DEFERRAL = (
    Part("start: the cover", {"solvers.deferral.solver:search": lambda problem, prices, cover, work: (
        search_hosts(problem, prices, np.zeros_like(cover), work))}),
    Part("all changes of hosts", {f"{HOSTS}:_Stretch.climb": argument(1)}),
    Part("hosts given up", {f"{HOSTS}:_without": lambda *_: iter(())}),
    Part("hosts elsewhere", {f"{HOSTS}:_elsewhere": lambda *_: iter(())}),
    Part("hosts for tall items", {f"{HOSTS}:_for_tall": lambda *_: iter(())}),
    Part("tall items alone", {f"{HOSTS}:_SHARE_OF_ALL": 1.0, f"{HOSTS}:_SHARE_OF_WINDOW": NEVER}),
    Part("what is given first, by prices", {f"{HOSTS}:_orders": lambda problem, prices: (
        orders_of_deferral(problem, unpriced(prices)))}),
    Part("stretches", {f"{HOSTS}:_STRETCH": NEVER}),
    Part("prices in the bound", {"solvers.deferral.solver:cover_bound": lambda problem, prices: (
        cover_bound(problem, unpriced(prices)))}),
)  # fmt: skip

BINS, ROWS = "solvers.packing.bins", "balancer.offline.packed_rows"
PACKS = (
    *(Part(left_out, {f"{ROWS}:pack": lambda sizes, cap, _="", method=method, **more: (
        solvers.pack(sizes, cap, method, **more))})
      for left_out, method in (("pair fit", "best_fit_decreasing"), ("best fit", "pair_fit"))),
    Part("dealing", {f"{BINS}:deal": lambda problem, groups, bound, seconds: (groups, bound)}),
)  # fmt: skip
EVEN_PACKS = tuple(
    Part(f"{share:.0%} left over", {f"{ROWS}:_LEFT_OVER": Over(lambda stands, share=share: without(share, stands))})
    for share in packed_rows._LEFT_OVER
)


PIPES, STARTS = "solvers.pipeline.solver", "solvers.pipeline.multiplex_slots"
PIPELINES = (
    Part("the ramp", {f"{PIPES}:targets_of": lambda problem, *ramp: (
        (found := targets_of(problem, *ramp))[0] * 0 + found[0].mean(axis=0), found[1])}),
    Part("room for large items", {f"{PIPES}:targets_of": lambda problem, *ramp: targets_of(
        dataclasses.replace(problem, tied=True), *ramp)}),
    Part("fitting", {f"{PIPES}:_TRIES": 0}),
    Part("exchanges", {f"{PIPES}:exchange": argument(1)}),
)  # fmt: skip


def without(shape: Any, shapes: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(each for each in shapes if each != shape)


GAPS = (
    *(
        Part(f"shape {k}", {f"{STARTS}:_SHAPES": Over(functools.partial(without, shape))})
        for k, shape in enumerate(multiplex_slots._SHAPES)
    ),
    Part("a curve", {f"{STARTS}:_CURVES": multiplex_slots._CURVES[:1]}),
    Part("replicas evened", {f"{STARTS}:_evened": argument(2)}),
    Part("the race", {f"{STARTS}:_raced": lambda tried, units, goal: (tried[0], units)}),
    Part("items that move", {f"{STARTS}:Items": lambda *_: no_items()}),
    Part("the search", {f"{STARTS}:_searched": always(None)}),
)
