"""How prefixes are split: parts within limits, the same compiled and as Python, plans as close as they should be."""

from fractions import Fraction

import numpy as np
import pytest
from nightly import examples

from solvers import check_partition, partition
from solvers.groups import read_only
from solvers.packing import schedule_with_prefixes
from solvers.packing.prefix_schedule import _as_many, _bins
from solvers.partitioning.prefix_bound import Tokens, parts_bound, prepare
from solvers.partitioning.prefix_counts import _deal, _exchange, even_groups
from solvers.partitioning.prefixes import orders_of, pack_low, split, split_apart


def drawn(seed, prompts=24, responses=8, num_groups=8, equal=False, scale=1):
    """A problem, and tokens of items and prefixes under a cap that each item keeps with its prefix."""
    rng = np.random.default_rng(seed)
    keys = rng.permutation(np.repeat(np.arange(prompts), responses))
    once = rng.integers(0, rng.choice([1, 100, 3000]), prompts)[keys] * scale if seed % 7 else 0 * keys
    costs = (rng.lognormal(5, rng.choice([0.1, 1.5]), len(keys)) + seed % 2).astype(np.int64) * scale
    problem = prepare(costs, num_groups, equal, keys, once)
    each = rng.integers(0, 50, len(keys))
    of_prefix = rng.integers(0, 50, len(problem.given.once))
    most = int((each + of_prefix[problem.given.prefix_of]).max()) + int(rng.integers(0, 200))
    return problem, Tokens(read_only(each), read_only(of_prefix), max(1, most))


def held_by(parts, problem, each, once):
    """What parts hold, each prefix once, by plain loops."""
    held, seen = {}, set()
    for i, part in enumerate(parts.tolist()):
        p = int(problem.given.prefix_of[i])
        held[part] = held.get(part, 0) + int(each[i]) + (0 if (part, p) in seen else int(once[p]))
        seen.add((part, p))
    return held, seen


@pytest.mark.more_by_night
def test_parts_keep_their_target_and_the_cap():
    for seed in range(examples(12)):
        problem, tokens = drawn(seed)
        low = parts_bound(problem, _bins(problem, tokens))
        for target in (low, low // 3):
            parts = split_apart(problem, tokens, target)
            loads, pairs = held_by(parts, problem, problem.given.costs, problem.given.once)
            assert len(pairs) == len(loads)  # one prefix a part
            alone = int((problem.given.costs + problem.given.once[problem.given.prefix_of]).max())
            assert max(loads.values()) <= max(target, alone)
            assert max(held_by(parts, problem, tokens.each, tokens.once)[0].values()) <= tokens.most
        for order in orders_of(problem):
            group = pack_low(problem, tokens, order, 60, problem.total // 60, problem.total)
            if group is not None:
                assert max(held_by(group, problem, tokens.each, tokens.once)[0].values()) <= tokens.most


def test_compiled_kernels_do_what_python_does():
    for seed in range(10):
        problem, tokens = drawn(seed, equal=True, scale=1 if seed % 3 else 1 << 40)
        n, low = len(problem.order), parts_bound(problem)
        order = next(orders_of(problem))
        for makespan, apart in ((low, True), (low, False), (2 * low, False)):
            found = []
            for kernel in (split.compiled, split.py_func):
                group, loads = np.zeros(n, dtype=np.int64), np.zeros(n if apart else 8, dtype=np.int64)
                done = kernel(problem.given, tokens, makespan, order, apart, group, loads)
                found.append((bool(done), group.tolist(), loads.tolist()))
            assert found[0] == found[1]
        groups = []
        for kernel in ("compiled", "py_func"):
            with pytest.MonkeyPatch.context() as patch:
                for each in (_deal, _exchange):
                    patch.setattr(f"solvers.partitioning.prefix_counts.{each.__name__}", getattr(each, kernel))
                groups.append(even_groups(problem, low, 200_000, Fraction(0)).tolist())
        assert groups[0] == groups[1]


@pytest.mark.parametrize("equal", [False, True])
@pytest.mark.parametrize("prompts", [8, 32])
def test_many_prefixes_a_group_end_within_a_thousandth(prompts, equal):
    """The parts go through the one search: packed or exchanged alone, plans are 0.2 % and more over the bound."""
    for seed in range(1, 4):
        rng = np.random.default_rng(seed)
        keys = np.repeat(np.arange(8 * prompts), 8)
        once = rng.lognormal(7, 0.8, 8 * prompts).astype(np.int64)[keys]
        costs = rng.lognormal(7.5, 0.8, len(keys)).astype(np.int64)
        found = partition(costs, 8, equal_counts=equal, prefix=keys, prefix_costs=once)
        check_partition(costs, found, equal_counts=equal, prefix=keys, prefix_costs=once)
        assert found.gap <= 0.001


def test_stop_at_and_the_budget_are_kept_with_prefixes():
    rng = np.random.default_rng(0)
    keys = np.repeat(np.arange(64), 8)
    once, costs = rng.integers(1, 4000, 64)[keys], rng.lognormal(7, 1, 512).astype(np.int64)
    asked = {"prefix": keys, "prefix_costs": once}
    near, nearer = (partition(costs, 16, stop_at=stop_at, time_budget=0.05, **asked) for stop_at in ("1%", 0))
    assert nearer.makespan < near.makespan <= 1.01 * near.lower_bound
    assert near.status.value == "within"


@pytest.mark.parametrize("sync", ["micro_batch", "step"])
def test_few_large_parts_still_fill_all_micro_batches(sync):
    """Whole prompts would be fewer than micro-batches: the cheapest are halved."""
    keys, once = np.repeat(np.arange(4), 8), np.array([5, 500, 500, 600]).repeat(8)
    tokens = np.arange(32) % 8 + 1
    found = schedule_with_prefixes(tokens, tokens, 8, 640, keys, once, once, sync=sync)
    assert len(set(zip(found.rank_of_item.tolist(), found.slot_of_item.tolist(), strict=True))) == 8 * found.num_slots
    assert found.value <= 1.03 * found.lower_bound
    empty = schedule_with_prefixes(tokens, tokens, 8, 640, keys, once, once, sync=sync, allow_empty=True)
    assert empty.value <= found.value


@pytest.mark.parametrize("count", [25, 60, 192, 500])
def test_units_are_halved_until_they_are_as_many(count):
    problem, _ = drawn(1)
    before = problem.given.prefix_of.copy()
    unit = _as_many(problem, before, count)
    assert sorted(set(unit.tolist())) == list(range(min(count, 192)))
    assert len(set(zip(unit.tolist(), before.tolist(), strict=True))) == min(count, 192)  # halves of one unit each


def test_exchanges_leave_the_loads_that_they_say(monkeypatch):
    seen = []

    def exchange(given, rows, counts, loads, goal, work):
        _exchange(given, rows, counts, loads, goal, work)
        seen.append((rows.copy(), loads.copy()))

    monkeypatch.setattr("solvers.partitioning.prefix_counts._exchange", exchange)
    for seed in range(1, 6):
        problem, _ = drawn(seed, equal=True)
        even_groups(problem, parts_bound(problem), 200_000, Fraction(0))
        rows, loads = seen[-1]
        group = np.empty(len(problem.order), dtype=np.int64)
        for g, row in enumerate(rows):
            group[row[row >= 0]] = g
        assert problem.loads(group).tolist() == loads.tolist()


def test_where_the_fewest_parts_make_no_good_groups_there_are_more(monkeypatch):
    def makespans():
        found = []
        for seed in range(12):
            rng = np.random.default_rng(seed)
            keys = np.repeat(np.arange(32), 8)
            once = (rng.lognormal(7, 0.8, 32) ** 2).astype(np.int64)[keys]  # as attention costs
            costs = (rng.lognormal(7, 0.7, 32)[keys] * rng.lognormal(0, 0.7, len(keys))) ** 2
            problem = prepare(costs.astype(np.int64), 8, True, keys, once)
            groups = even_groups(problem, parts_bound(problem), 200_000, Fraction(1, 1000))
            found.append(int(problem.loads(groups).max()))
        return found

    twice = makespans()
    monkeypatch.setattr("solvers.partitioning.prefix_counts._BELOW", 1 << 60)
    once = makespans()
    assert all(a <= b for a, b in zip(twice, once, strict=True))
    assert sum(twice) < sum(once)
