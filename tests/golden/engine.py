"""Calls of :mod:`solvers` whose results are recorded, by name; numbers are drawn from seeds."""

import numpy as np
from golden.told import attempted, of_solver

import solvers

_ADDITIVE = ("auto", "lpt", "karmarkar_karp")
_PACKERS = ("pair_fit", "best_fit_decreasing")


def _numbers(n, seed=0):
    return np.minimum(np.random.default_rng([seed, n]).lognormal(6, 1, n), 9000).astype(np.int64)


def _homes(n, num_ranks, seed=1):
    return np.random.default_rng([seed, n]).integers(0, num_ranks, n)


def _partitions():
    for method in _ADDITIVE:
        for n, groups in ((5, 2), (3, 6), (0, 3), (500, 16), (4096, 64)):
            for equal in (False,) if method == "karmarkar_karp" else (False, True):
                yield f"{method}, {n} in {groups}, equal counts {equal}", _partition(n, groups, method, equal)
    for name in ("padded", "mixed"):
        for equal in (False, True):
            yield f"{name}, equal counts {equal}", _of_rows(name, equal)


def _partition(n, groups, method, equal):
    return lambda: of_solver(solvers.partition(_numbers(n), groups, method, equal_counts=equal))


def _of_rows(name, equal):
    if name == "padded":
        return lambda: of_solver(solvers.padded(_numbers(300), 12, equal_counts=equal))
    return lambda: of_solver(solvers.mixed(_numbers(300), 5 * _numbers(300) + 9, 12, equal_counts=equal))


def _by_the_clock():
    """Methods that read the clock: what they prove is always the same, where they put items need not be."""

    def proven(result):
        return [result.makespan, result.lower_bound, result.status.value, result.method]

    small = _numbers(24)
    yield "exact", lambda: proven(solvers.partition(small, 5, "exact", 120.0))  # ends when proven


def _constrained():
    rng = np.random.default_rng(5)
    costs, sizes = _numbers(200), rng.integers(1, 50, 200)
    allowed = rng.random((200, 8)) < 0.5
    allowed[:, 3] = True
    together = [None if i % 5 == 0 else i // 4 for i in range(200)]
    for name, kept in {
        "sizes": {"sizes": sizes, "caps": 660},
        "caps of each": {"sizes": sizes, "caps": [660, 700, 660, 700, 660, 700, 660, 700]},
        "items": {"min_items": 20, "max_items": 27},
        "allowed": {"allowed": allowed},
        "together": {"keep_together": together},
        "initial loads": {"initial_loads": [0, 9000, 0, 50_000, 10, 0, 0, 7]},
        "speeds": {"speeds": [1, 2, 3, 4, 4, 3, 2, 1]},
        "all": {"sizes": sizes, "caps": 700, "keep_together": together, "max_items": 40, "min_items": 4},
        "too tight": {"sizes": sizes, "caps": 600},
        "contradiction": {"min_items": 30},
    }.items():
        yield name, lambda kept=kept: of_solver(solvers.partition(costs, 8, **kept))
        yield f"{name}, the bound", lambda kept=kept: solvers.makespan_lower_bound(costs, 8, **kept)


def _relocations():
    nodes = np.repeat(np.arange(4), 4)
    for eps in (0, 0.001, 0.1):
        yield f"eps {eps}", _relocate(640, nodes, eps=eps)
    yield "equal counts", _relocate(640, nodes, equal_counts=True)
    yield "counts", _relocate(640, nodes, counts=(38, 44))
    yield "sizes", _relocate(640, nodes, sizes=_numbers(640, 3), caps=30_000)
    yield "large", _relocate(4096, np.repeat(np.arange(8), 8))
    yield "few", _relocate(5, nodes)
    yield "volumes", _relocate(640, nodes, volumes=_numbers(640, 9))
    yield "prices", _relocate(640, nodes, prices=(_numbers(640, 9), _numbers(640, 4)))
    yield "a cap", _relocate(640, nodes, cap=27_000)
    yield "a cap too small", _relocate(640, nodes, cap=1_000)
    yield "uneven nodes", _relocate(640, [0] + [1] * 5 + [2] * 10)


def _relocate(n, nodes, **settings):
    return lambda: of_solver(solvers.relocate(_numbers(n), _homes(n, len(nodes)), nodes, **settings))


def _rearrangements():
    volumes = solvers.group_volumes(_homes(800, 32, 7), _homes(800, 32), _numbers(800), 32)
    nodes, kinds = np.arange(32) // 4, np.arange(32) % 3
    yield "greedy", lambda: of_solver(solvers.rearrange(volumes, nodes))
    yield (
        "greedy, classes",
        lambda: of_solver(solvers.rearrange(volumes, nodes, class_of_group=kinds, class_of_rank=kinds)),
    )
    # Ranks are as SciPy breaks ties; what crosses is the same by any.
    for name, classes in (("sum", {}), ("sum, classes", {"class_of_group": kinds, "class_of_rank": kinds})):
        yield name, lambda given=classes: _proven(solvers.rearrange(volumes, nodes, "sum", **given))


def _proven(result):
    return [result.inter_node_volume, result.lower_bound, result.status.value, result.method]


def _packings():
    sizes = _numbers(300)
    for method in _PACKERS:
        yield method, lambda method=method: of_solver(solvers.pack(sizes, 10_000, method))
        yield f"{method}, max items", lambda method=method: of_solver(solvers.pack(sizes, 10_000, method, max_items=12))
    yield "too large", lambda: of_solver(solvers.pack(sizes, 100))


def _schedules():
    tokens = _numbers(200)
    costs = 24_576 * tokens + tokens * tokens
    for name, settings in {
        "micro_batch": {},
        "step": {"sync": "step"},
        "pipeline": {"sync": "pipeline", "stages": 3},
        "fewest": {"num_slots": "fewest"},
        "a number": {"num_slots": 9},
        "a multiple": {"slots_multiple_of": 4, "min_slots": 5},
        "too few": {"num_slots": 1},
    }.items():
        yield (
            name,
            lambda settings=settings: of_solver(
                solvers.schedule_micro_batches(costs, tokens, 8, 10_000, time_budget=0.02, **settings)
            ),
        )
    for over_long in ("error", "own"):
        yield (
            f"over long: {over_long}",
            lambda over_long=over_long: of_solver(
                solvers.schedule_micro_batches(costs, tokens, 8, 1_500, over_long=over_long, time_budget=0.02)
            ),
        )
    ranks = _homes(200, 8)
    for name, settings in {"shares": {}, "shares, fewest": {"num_slots": "fewest"}}.items():
        yield name, lambda settings=settings: of_solver(solvers.cut_shares(costs, tokens, ranks, 8, 10_000, **settings))


_FAMILIES = {
    "partition": _partitions, "by the clock": _by_the_clock, "constraints": _constrained, "relocate": _relocations,
    "rearrange": _rearrangements, "pack": _packings, "schedule": _schedules,
}  # fmt: skip

FAMILIES = tuple(_FAMILIES)


def told_of(family):
    """Make all calls of a family and tell of each."""
    return {name: attempted(call) for name, call in _FAMILIES[family]()}
