"""The operation and its moves by themselves: what they promise for any state, and that they find what there is."""

import itertools
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from nightly import examples

import solvers
from solvers.constraints import Constraints
from solvers.partitioning.auto import Search
from solvers.partitioning.search import FAR, NOBODY, bring_under, divide_all, lay_out

SEEDS = st.integers(0, 10**9)


def a_search(seed: int, n: int, m: int, work: int = 10**8) -> tuple[Search, np.random.Generator]:
    """A problem with caps, counts, masks, two costs or one, all drawn."""
    rng = np.random.default_rng(seed)
    costs = rng.integers(0, 30, (n, int(rng.integers(1, 3))))
    rules: dict[str, Any] = {"sizes": rng.integers(0, 9, (n, 2)), "caps": rng.integers(5, 40, 2).tolist()}
    if rng.random() < 0.5:
        rules |= {"min_items": n // m, "max_items": -(-n // m)}
    if rng.random() < 0.5:
        allowed = rng.random((n, m)) < 0.7
        allowed[:, 0] = True
        rules["allowed"] = allowed
    if rng.random() < 0.5:
        rules["speeds"] = rng.integers(1, 4, m)
    problem = Constraints(**rules).check(costs if costs.shape[1] > 1 else costs[:, 0], m)
    return Search(problem, work, Fraction(0)), rng


def is_laid_out(search: Search) -> None:
    """Groups hold what their units have, and each list of a group's units is whole."""
    s, held = search.state, search.before.copy()
    inside = s.group >= 0
    np.add.at(held, s.group[inside], s.amounts[inside])
    assert (held == s.held).all()
    found = []
    for g in range(len(s.head)):
        unit = s.head[g]
        while unit >= 0:
            assert s.group[unit] == g
            found.append(int(unit))
            unit = s.near[unit, 1]
    assert sorted(found) == np.flatnonzero(inside).tolist()
    assert s.allowed[s.mask[inside], s.group[inside]].all()


@given(seed=SEEDS, n=st.integers(1, 40), m=st.integers(1, 6), attempts=st.integers(0, 6), work=st.integers(0, 10**5))
def test_no_group_gets_over_a_limit_or_further_over(seed: int, n: int, m: int, attempts: int, work: int) -> None:
    search, rng = a_search(seed, n, m)
    s = search.state
    places = np.array([rng.choice(np.flatnonzero(s.allowed[k])) for k in s.mask], dtype=np.int64)
    lay_out(s, places, search.before)
    upper = search.upper.copy()
    upper[:, : search.components] = rng.integers(0, 200, (m, search.components))
    before, fewest = np.maximum(s.held, upper), np.minimum(s.held[:, -1], s.lower)
    ok, left = bring_under(s, upper, 0, s.held.shape[1], attempts, search.seed, work)
    is_laid_out(search)
    assert (s.held <= before).all()
    assert (s.held[:, -1] >= fewest).all()
    assert bool(ok) == bool((s.held <= upper).all()) or (work and not ok)
    assert left <= work


@pytest.mark.parametrize("seed", range(min(examples(25), 2000)))
def test_division_over_all_groups_is_exhaustive(seed: int) -> None:
    search, rng = a_search(seed, int(np.random.default_rng(seed).integers(1, 7)), 3)
    s, n = search.state, len(search.state.group)
    lay_out(s, np.zeros(n, dtype=np.int64), search.before)
    upper = search.limits(rng.integers(5, 60, search.components).tolist())
    verdict, _ = divide_all(s, upper, 10**8)
    possible = False
    for places in itertools.product(range(3), repeat=n):
        held = search.before.copy()
        np.add.at(held, list(places), s.amounts)
        fits = (held <= upper).all() and (held[:, -1] >= s.lower).all()
        possible |= bool(fits and s.allowed[s.mask, list(places)].all())
    assert verdict == possible
    if verdict:
        is_laid_out(search)
        assert (s.held <= upper).all()
    assert divide_all(s, np.full(upper.shape, FAR), 0)[0] in (1, -1)  # no work: not known, or found at once


@pytest.mark.parametrize("seed", range(6))
def test_groups_that_no_unit_may_be_in_hide_no_way(seed: int) -> None:
    """All units with one mask: an empty group outside was taken for one like those inside, and these were passed by."""
    rng = np.random.default_rng(seed)
    n, k = int(rng.integers(5, 12)), int(rng.integers(2, 4))
    sizes, held = rng.integers(1, 60, (n, 2)), np.zeros((k, 2), dtype=np.int64)
    np.add.at(held, rng.integers(0, k, n), sizes)
    costs, rules = rng.integers(1, 100, n), {"sizes": sizes, "caps": held.max(axis=0).tolist(), "stop_at": 0}
    inside = solvers.partition(costs, k, **rules)
    beside = solvers.partition(costs, k + 1, allowed=[list(range(1, k + 1))] * n, **rules)
    assert beside.lower_bound <= inside.makespan
    assert inside.lower_bound <= beside.makespan


@given(seed=SEEDS, n=st.integers(1, 60), m=st.integers(1, 8))
def test_every_start_keeps_caps_counts_and_masks(seed: int, n: int, m: int) -> None:
    """Each way by itself: what fits nowhere stays out."""
    search, _ = a_search(seed, n, m)
    for order, weight in search._ways():
        failed = search._place(order, weight)
        is_laid_out(search)
        s = search.state
        assert (s.held[:, search.components :] <= search.upper[:, search.components :]).all()
        assert failed == (s.group == NOBODY).sum()


@pytest.mark.parametrize("rules", [{}, {"min_items": 12}])
def test_a_group_that_one_unit_may_not_be_in_is_asked_by_the_next(rules: dict[str, Any]) -> None:
    """A list of four groups for each item: the emptiest groups waited, and plans were 60 % over the bound."""
    rng = np.random.default_rng(1)
    home, costs = rng.integers(0, 130, 2000), rng.integers(1, 10**6, 2000)
    allowed = [sorted({int(g), *rng.integers(0, 130, 3).tolist()}) for g in home]
    assert solvers.partition(costs, 130, allowed=allowed, **rules).gap < 0.02


def test_a_start_fills_many_groups_in_blocks() -> None:
    """Two costs on 200 groups: blocks of 64 first, and then the groups of each."""
    rng = np.random.default_rng(3)
    costs = np.stack([rng.lognormal(7, 1, 6000), rng.lognormal(5, 2, 6000)], axis=1).astype(np.int64)
    search = Search(Constraints().check(costs, 200), 10**8, Fraction(0))
    order, weight = next(search._ways())
    assert weight is None
    assert search._place(order, weight) == 0
    is_laid_out(search)
    assert search.offer()
    assert search.makespan < 1.2 * search.bound.value


@pytest.mark.parametrize("rules", ["free", "equal", "caps", "masks", "costs"])
def test_work_is_counted_and_ends_near_what_was_asked(rules: str) -> None:
    """Without a clock: what is left is over by one start, or one last look, at most."""
    rng = np.random.default_rng(1)
    n, m = 4096, 64
    costs = rng.lognormal(7, 1, n).astype(np.int64)
    sizes = rng.lognormal(6, 1, n).astype(np.int64)
    given: dict[str, Any] = {
        "free": {}, "equal": {"equal_counts": True}, "caps": {"sizes": sizes, "caps": int(1.02 * sizes.sum() / m)},
        "masks": {"allowed": rng.random((n, m)) < 0.5}, "costs": {},
    }[rules]  # fmt: skip
    asked = 8_000_000
    search = Search(Constraints(**given).check(np.stack([costs, sizes], 1) if rules == "costs" else costs, m), asked, 0)
    search.run()
    assert search.work > -asked // 4


def test_what_was_once_over_the_bound() -> None:
    """Four items a group, equal counts: differencing left 2 % less than the search that took its turn."""
    rng = np.random.default_rng(5)
    costs = np.clip(rng.lognormal(7, 1, 2048), 1, 32768).astype(np.int64)
    found = solvers.partition(costs, 512, equal_counts=True)
    assert found.makespan <= 1.001 * solvers.partition(costs, 512, "lpt", equal_counts=True).makespan
    free = solvers.partition(costs, 512)
    for method in ("lpt", "karmarkar_karp"):
        assert free.makespan <= 1.001 * solvers.partition(costs, 512, method).makespan
