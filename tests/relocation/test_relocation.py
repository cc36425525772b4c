"""Relocation keeps its limits and says what it did, its bound holds, and on small cases all assignments are tried."""

import dataclasses
import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import relocation_oracles as oracles
from hypothesis import given, settings
from hypothesis import strategies as st
from nightly import examples
from oracles import loads_of

import solvers
from solvers import relocate, relocation
from solvers.relocation import crossing_bound, relocate_kernel

TOPOLOGIES = [[0], [0, 0], [0, 1], [0, 0, 1], [0, 0, 1, 1], [1, 0, 1, 0], [7, 7, 3], [0, 1, 2]]

small_cost = st.integers(0, 12) | st.integers(0, 10**9)


@st.composite
def instances(draw: st.DrawFn, most_items: int = 6, most_ranks: int = 4) -> tuple[list[int], list[int], list[int]]:
    """Costs, homes, nodes."""
    nodes = draw(st.sampled_from([t for t in TOPOLOGIES if len(t) <= most_ranks]))
    costs = draw(st.lists(small_cost, max_size=most_items))
    homes = draw(st.lists(st.integers(0, len(nodes) - 1), min_size=len(costs), max_size=len(costs)))
    return costs, homes, nodes


@st.composite
def limits(draw: st.DrawFn, num_items: int, num_ranks: int) -> dict[str, Any]:
    """What a rank may hold besides: nothing, equal counts, a number of items, or tokens."""
    few, most = num_items // num_ranks, -(-num_items // num_ranks)
    kind = draw(st.sampled_from(["free", "equal", "counts", "caps"]))
    if kind == "equal":
        return {"equal_counts": True}
    if kind == "counts":
        return {"counts": (draw(st.integers(0, few)), draw(st.integers(most, num_items + 1)))}
    if kind == "caps":
        sizes = draw(st.lists(st.integers(0, 9), min_size=num_items, max_size=num_items))
        return {"sizes": sizes, "caps": draw(st.lists(st.integers(5, 30), min_size=num_ranks, max_size=num_ranks))}
    return {}


def lognormal(count: int, seed: int, quadratic: bool = False) -> np.ndarray:
    rng = np.random.default_rng(seed)
    lengths = np.clip(rng.lognormal(np.log(2000) - 0.5, 1, count), 1, 32768).astype(np.int64)
    return 24576 * lengths + lengths * lengths if quadratic else lengths


# --- what a result promises ------------------------------------------------------------------------------------------


@given(instance=instances(30), eps=st.sampled_from([0, 0.01, 0.2, 1.0]), data=st.data())
def test_any_instance(instance: tuple[list[int], list[int], list[int]], eps: float, data: st.DataObject) -> None:
    costs, homes, nodes = instance
    given = data.draw(limits(len(costs), len(nodes)))
    try:
        result = relocate(costs, homes, nodes, eps=eps, **given)
    except solvers.SolverError:  # token caps can be too tight
        assert "caps" in given
        return
    solvers.check_relocation(costs, homes, nodes, result, **given)
    assert not result.rank_of_item.flags.writeable
    assert not result.loads.flags.writeable
    assert result == relocate(np.array(costs, dtype=np.int64), homes, np.array(nodes), eps=eps, **given)
    if not given:
        at_home = max(loads_of(costs, homes, len(nodes)))
        expected = (1 + Fraction(str(eps))) * min(solvers.partition(costs, len(nodes)).makespan, at_home)
        assert result.cap <= max(max(costs, default=0), at_home, expected.numerator // expected.denominator)
        if at_home <= result.cap:
            assert result.inter_node_volume + result.intra_node_volume == 0, "a home under the cap moves nothing"


SHAPES = {
    "no items": ([], [], [0, 0, 1]),
    "one rank": ([3, 1, 2], [0, 0, 0], [0]),
    "one node": ([5, 4, 3, 3, 3], [0, 0, 0, 0, 1], [0, 0]),
    "all on one rank": (list(range(1, 40)), [2] * 39, [0, 0, 1, 1, 2, 2]),
    "mostly zero": ([0, 0, 9, 0, 0, 4], [0, 0, 0, 0, 0, 0], [0, 1]),
    "giants as large as the cap": ([100, 100, *[5] * 40], [0] * 12 + [1] * 30, [0, 0, 1, 1]),
    "near the end of int64": ([2**62 - 1, 2**61, 2**60, 2**60 - 7, 3, 2], [0, 0, 0, 1, 1, 1], [0, 0, 1]),
    "many near int64's end": ([2**56 + 7 * i for i in range(100)], [i % 7 for i in range(100)], [0, 0, 0, 1, 1, 2, 2]),
    "a thousand on one rank": (list(range(1, 1001)), [0] * 1000, [0, 0, 1, 1]),
}  # fmt: skip


@pytest.mark.parametrize("shape", SHAPES)
def test_shapes(shape: str) -> None:
    costs, homes, nodes = SHAPES[shape]
    for rules in ({}, {"equal_counts": True}, {"counts": (0, 400)}):
        result = relocate(costs, homes, nodes, **rules)
        solvers.check_relocation(costs, homes, nodes, result, **rules)


@pytest.mark.parametrize(
    ("given", "quadratic"),
    [("free", True), ("equal", False), ("caps", True), ("unequal nodes", False), ("homes at random", True),
     ("does not divide", True)],
)  # fmt: skip
def test_long_tails_cross_little_more_than_must(given: str, quadratic: bool) -> None:
    per_rank = 16
    n = 64 * per_rank + 5 * (given == "does not divide")
    tokens, rng = lognormal(n, 1), np.random.default_rng(3)
    costs = 24576 * tokens + tokens * tokens if quadratic else tokens
    homes, nodes = np.minimum(np.arange(n) // per_rank, 63), np.arange(64) // 8
    kept: dict[str, Any] = {"equal_counts": True} if given in ("equal", "does not divide") else {}
    if given == "caps":
        kept = {"sizes": tokens, "caps": int(max(tokens.max(), 1.1 * tokens.sum() / 64))}
    if given == "unequal nodes":
        nodes = np.repeat(np.arange(6), [1, 3, 8, 12, 20, 20])
    if given == "homes at random":
        homes = rng.integers(0, 64, n)
    result = relocate(costs, homes, nodes, volumes=tokens, eps=0.001, **kept)
    solvers.check_relocation(costs, homes, nodes, result, volumes=tokens, **kept)
    assert not result.fell_back
    more = 0.02 if given == "caps" else 0.012  # the bound knows costs and tokens apart
    assert result.inter_node_volume <= result.inter_node_bound + more * tokens.sum()


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("limit", ["equal", "counts", "sizes"])
@pytest.mark.parametrize("eps", [0.001, 0.01])
def test_unequal_homes_under_limits_of_their_own(eps: float, limit: str, seed: int) -> None:
    """Homes hold 25 to 55 of 640 items, and sizes have nothing to do with costs: nearly all ranks break some limit."""
    rng = np.random.default_rng([seed, 640])
    costs, sizes = (np.minimum(rng.lognormal(6, 1, 640), 9000).astype(np.int64) for _ in range(2))
    homes, nodes = rng.integers(0, 16, 640), np.arange(16) // 4
    given: dict[str, Any] = {
        "equal": {"equal_counts": True},
        "counts": {"counts": (38, 44)},
        "sizes": {"sizes": sizes, "caps": int(1.16 * sizes.sum() / 16)},
    }[limit]
    result = relocate(costs, homes, nodes, eps=eps, **given)
    solvers.check_relocation(costs, homes, nodes, result, **given)
    assert limit == "equal" or not result.fell_back
    slack = 2 if limit == "equal" else 1.2  # the bound knows nothing of counts
    assert result.inter_node_volume < slack * result.inter_node_bound + 0.005 * costs.sum()


def test_what_came_of_the_partition_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    costs = lognormal(256, 2)
    homes, nodes = np.repeat(np.arange(16), 16), np.arange(16) // 4
    near = relocate(costs, homes, nodes)
    monkeypatch.setattr(relocation, "_WORK_A_RANK", 1)
    laid = relocate(costs, homes, nodes)
    solvers.check_relocation(costs, homes, nodes, laid)
    assert (near.fell_back, laid.fell_back) == ("", relocation.LAID)
    assert near.inter_node_volume < laid.inter_node_volume / 4


def test_prices_of_items_that_lie_in_parts() -> None:
    """An item that lies everywhere alike moves for nothing, and so it is what moves."""
    costs, homes, nodes = [6] * 8, [0] * 6 + [2] * 2, [0, 0, 1, 1]
    near = [6, 6, 6, 6, 0, 6, 6, 6]
    far = [6, 6, 6, 0, 6, 6, 6, 6]
    result = relocate(costs, homes, nodes, prices=(near, far), cap=18)
    solvers.check_relocation(costs, homes, nodes, result, prices=(near, far))
    assert (result.inter_node_volume, result.intra_node_volume, result.inter_node_bound) == (0, 12, 0)
    freely = relocate(costs, homes, nodes, prices=([0] * 8, [0] * 8), cap=12)
    assert (freely.makespan, freely.inter_node_volume, freely.intra_node_volume) == (12, 0, 0)


# --- all assignments tried -------------------------------------------------------------------------------------------


@settings(max_examples=examples(40))
@given(instance=instances(7, 3), eps=st.sampled_from([0, 0.1, 0.5]), data=st.data())
def test_no_assignment_is_better_than_the_bound(
    instance: tuple[list[int], list[int], list[int]], eps: float, data: st.DataObject
) -> None:
    costs, homes, nodes = instance
    given = data.draw(limits(len(costs), len(nodes)))
    volumes = data.draw(st.none() | st.lists(st.integers(0, 20), min_size=len(costs), max_size=len(costs)))
    moved = costs if volumes is None else volumes
    lies = oracles.at_home(homes, moved)
    try:
        result = relocate(costs, homes, nodes, volumes=volumes, eps=eps, **given)
    except solvers.InfeasibleError as error:
        assert not oracles.feasible(costs, len(nodes), sum(costs), **given)
        if (proof := error.certificate) is not None and "caps" in proof.constraint:
            in_groups = proof.available == len(nodes) < proof.needed  # more bins than there are ranks
            assert in_groups or proof.needed == sum(given["sizes"][i] for i in proof.items)
        return
    except solvers.SolverError:
        return
    solvers.check_relocation(costs, homes, nodes, result, volumes=volumes, **given)
    best = oracles.optimum(lies, nodes, oracles.feasible(costs, len(nodes), result.cap, **given))
    assert best is not None
    assert result.inter_node_bound <= best[0]
    assert best <= (result.inter_node_volume, result.intra_node_volume)


@pytest.mark.parametrize("kind", ["free", "equal", "caps"])
def test_small_cases_are_near_the_optimum(kind: str) -> None:
    """Seven items on three ranks: what crosses in all of thirty cases, against what had to."""
    found = least = 0
    for seed in range(30):
        rng = np.random.default_rng(seed)
        nodes = [[0, 0, 1], [0, 1, 1], [0, 1, 2]][seed % 3]
        costs, homes = rng.integers(1, 30, 7).tolist(), rng.integers(0, 3, 7).tolist()
        given: dict[str, Any] = {"equal_counts": True} if kind == "equal" else {}
        if kind == "caps":
            given = {"sizes": rng.integers(1, 9, 7).tolist(), "caps": [18, 16, 20]}
        try:
            result = relocate(costs, homes, nodes, eps=0.1, **given)
        except solvers.SolverError:
            continue
        lies = oracles.at_home(homes, costs)
        best = oracles.optimum(lies, nodes, oracles.feasible(costs, 3, result.cap, **given))
        assert best is not None
        found, least = found + result.inter_node_volume, least + best[0]
    assert least <= found <= 1.1 * least


@pytest.mark.parametrize("kind", ["free", "equal", "caps", "counts"])
@pytest.mark.parametrize("slack", [1, 1.02])
def test_planted_assignments(kind: str, slack: float) -> None:
    """A few items change ranks, and the cap, or token caps, are what ranks hold then: so little is enough."""
    crossed = 0.0
    for seed in range(4):
        rng = np.random.default_rng(seed)
        costs, homes, nodes = lognormal(16 * 24, seed), np.repeat(np.arange(16), 24), np.arange(16) // 4
        planted = homes.copy()
        some = rng.choice(len(costs), 60, replace=False)
        planted[some] = planted[rng.permutation(some)] if kind == "equal" else rng.integers(0, 16, 60)
        loads, counts = np.bincount(planted, weights=costs), np.bincount(planted)
        given: dict[str, Any] = {"cap": int(slack * loads.max())}
        if kind == "equal":
            given["equal_counts"] = True
        if kind == "counts":
            given["counts"] = (int(counts.min()), int(counts.max()))
        if kind == "caps":
            sizes = rng.integers(1, 1000, len(costs))
            room = slack * np.bincount(planted, weights=sizes)
            given |= {"sizes": sizes, "caps": np.ceil(room).astype(np.int64)}
        result = relocate(costs, homes, nodes, groups=planted, **given)
        solvers.check_relocation(costs, homes, nodes, result, **given)
        crossed += result.inter_node_volume / costs[nodes[planted] != nodes[homes]].sum() / 4
    assert crossed < (0.8 if kind == "caps" else 0.5)


@pytest.mark.parametrize("seed", range(40))
def test_the_step_takes_the_cheapest_of_all_ways(seed: int) -> None:
    """Of two tables, every pair of subsets is tried."""
    rng = np.random.default_rng(seed)
    hands = []
    for count in rng.integers(1, relocation.POOL + 1, 2):
        hand = relocation._hand()
        items, prices = rng.integers(0, 30, (2, count)), rng.integers(-20, 40, count)
        subsets = np.array([[mask >> i & 1 for i in range(count)] for mask in range(2**count)])
        amount = np.stack([subsets @ items[0], subsets @ items[1], subsets.sum(1)])
        order = np.argsort(amount[0], kind="stable")
        hand.amount[:, : 2**count], hand.price[: 2**count] = amount[:, order], (subsets @ prices)[order]
        hand.mask[: 2**count] = order
        hands.append((hand, 2**count))
    (mine, k), (other, j) = hands
    low, best = rng.integers(-90, 20, 3) // [1, 1, 20], int(rng.integers(0, 60))
    high = low + rng.integers(0, 160, 3) // [1, 1, 20]
    lost = mine.amount[:, :k, None] - other.amount[:, None, :j]
    fits = ((lost >= low[:, None, None]) & (lost <= high[:, None, None])).all(0)
    fits &= mine.mask[:k, None] + other.mask[:j] > 0
    prices = (mine.price[:k, None] + other.price[:j])[fits]
    a, b, _ = relocation._choose(mine, k, other, j, low, high, best, 0)
    if prices.min(initial=best) >= best:
        assert a == b == relocation.NONE
    else:
        assert fits[a, b]
        assert mine.price[a] + other.price[b] == prices.min()


@pytest.mark.parametrize("seed", range(8))
def test_kernel_is_the_python_that_it_is(seed: int) -> None:
    """Compiled or not: the same ranks, also of zeros, of ties and near 2^61."""
    rng = np.random.default_rng(seed)
    nodes = np.array(TOPOLOGIES[seed % len(TOPOLOGIES)])
    n, m = int(rng.integers(1, 11)), len(nodes)
    largest = [1, 3, 50, 2**40, 2**57][seed % 5]
    costs, homes, groups = rng.integers(0, largest + 1, n), rng.integers(0, m, n), rng.integers(0, m, n)
    sizes = rng.integers(0, 5, n)
    few = n // m if seed % 3 == 0 else 0
    kept = relocation._Limits(costs, sizes, np.full(m, sizes.sum() // m + 6), few, -(-n // m) if few else n)
    node = np.unique(nodes, return_inverse=True)[1].astype(np.int64)
    cap = max(int(costs.max()), math.ceil(1.1 * costs.sum() / m))
    asked = relocation._Asked.of(kept, cap, homes.astype(np.int32), node, costs, costs, 0)
    found = []
    for call in (relocate_kernel.compiled, relocate_kernel.py_func):
        for from_home in (True, False):
            where = homes.astype(np.int64)
            with np.errstate(all="ignore"):
                left = call(
                    asked.items, asked.order, asked.ranks, asked.nodes, asked.by_node, asked.begin,
                    groups.astype(np.int64), asked.enough, from_home, 200_000, where,
                )  # fmt: skip
            found.append((int(left), where.tolist()))
    assert found[:2] == found[2:]
    if found[0][0] == 0:
        where = np.array(found[0][1])
        assert np.bincount(where, weights=costs, minlength=m).max() <= cap * (1 + 1e-9)
        assert few == 0 or np.ptp(np.bincount(where, minlength=m)) <= 1


# --- the bound by itself ---------------------------------------------------------------------------------------------


@settings(max_examples=examples(40))
@given(
    pairs=st.lists(st.tuples(st.integers(0, 50) | st.integers(0, 2**50), st.integers(0, 50) | st.integers(0, 2**50)),
                   min_size=1, max_size=9),
    share=st.integers(0, 100),
)  # fmt: skip
def test_what_must_leave_is_a_knapsack_with_the_last_item_cut(pairs: list[tuple[int, int]], share: int) -> None:
    """One rank too full beside one empty."""
    costs, volumes = [w for _, w in pairs], [v for v, _ in pairs]
    cap = max(-(-sum(costs) // 2), sum(costs) * share // 100)
    exact = oracles.least_cut(pairs, sum(costs) - cap)
    found = crossing_bound(costs, volumes, [0] * len(pairs), [0, 1], cap)
    assert found <= exact
    large = max(costs) > 2**20 or max(volumes) > 2**20  # where products leave int64, a little is rounded away
    assert found >= exact - 1 - (exact // 10**5 + (max(volumes) >> 15) if large else 0)


def test_bounds_of_nodes_and_of_sizes() -> None:
    rng = np.random.default_rng(5)
    costs, volumes, sizes = (rng.integers(1, 1000, 200) for _ in range(3))
    homes, nodes = np.repeat(np.arange(4), [120, 30, 30, 20]), [0, 0, 1, 1]
    cap, room = int(costs.sum()) // 4 + 50, int(sizes.sum()) // 4 + 50

    def least(weights: np.ndarray, most: int) -> int:
        mine = homes < 2
        return oracles.least_cut(list(zip(volumes[mine].tolist(), weights[mine].tolist(), strict=True)),
                                 int(weights[mine].sum()) - 2 * most)  # fmt: skip

    assert crossing_bound(costs, volumes, homes, nodes, cap) == least(costs, cap)
    both = crossing_bound(costs, volumes, homes, nodes, cap, sizes=sizes, caps=room)
    assert both == max(least(costs, cap), least(sizes, room))
    assert crossing_bound(costs, None, homes, nodes, cap) == costs[homes < 2].sum() - 2 * cap
    assert crossing_bound([10, 1], None, [0, 1], [0, 1], 6) == 4, "an item may be over the cap: ranks share it"


# --- the checker, and what is refused --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("eps", "cap"), [(0, 100), (0.05, 105), ("5%", 105), (Fraction(1, 3), 133), (np.float64(0.07), 107), (0.0999, 109)]
)
def test_eps_is_exact(eps: object, cap: int) -> None:
    assert relocate([1] * 200, [0] * 100 + [1] * 100, [0, 1], eps=eps).cap == cap


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        ({"rank_of_item": np.array([0, 0, 9, 1, 1], dtype=np.int32)}, "within 0..3"),
        ({"rank_of_item": np.array([0, 0, 1, 1, 1], dtype=np.int64)}, "int32"),
        ({"loads": np.array([1, 2, 3, 4])}, "sums of the costs"),
        ({"makespan": 1}, "largest load"),
        ({"cap": 1}, "over cap"),
        ({"inter_node_volume": 99}, "crosses nodes"),
        ({"intra_node_volume": 99}, "moves inside"),
        ({"inter_node_bound": 99}, "inter_node_bound"),
    ],
)
def test_the_checker_refuses(change: dict[str, object], rule: str) -> None:
    costs, homes, nodes = [5, 4, 3, 2, 1], [0, 0, 0, 0, 2], [0, 0, 1, 1]
    result = relocate(costs, homes, nodes)
    solvers.check_relocation(costs, homes, nodes, result)
    with pytest.raises(solvers.CertificateError, match=rule):
        solvers.check_relocation(costs, homes, nodes, dataclasses.replace(result, **change))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "rule"),
    [
        ({"equal_counts": True}, "counts must be within 1..2"),
        ({"counts": (0, 1)}, "counts must be within 0..1"),
        ({"sizes": [9] * 5, "caps": 10}, "more than its token cap 10"),
        ({"cap": 8}, "the cap is 8"),
    ],
)
def test_the_checker_refuses_what_breaks_a_limit(given: dict[str, Any], rule: str) -> None:
    costs, homes, nodes = [1] * 5, [0, 0, 0, 0, 2], [0, 0, 1, 1]
    result = relocate(costs, homes, nodes, cap=9)
    with pytest.raises(solvers.CertificateError, match=rule):
        solvers.check_relocation(costs, homes, nodes, result, **given)


def test_what_the_partition_disproves_is_infeasible_and_what_it_does_not_is_not_called_so() -> None:
    with pytest.raises(solvers.InfeasibleError, match=r"cap = 5.* at least 6"):
        relocate([3, 3, 3], [0, 0, 1], [0, 1], cap=5)
    with pytest.raises(solvers.SolverError, match="nor was it proven that there is none") as caught:
        relocate([3, 3, 3], [0, 0, 1], [0, 1], cap=5, groups=[0, 0, 1])
    assert type(caught.value) is solvers.SolverError


@pytest.mark.parametrize(
    ("arguments", "options", "error", "message"),
    [
        (([1, 2], [0, 2], [0, 1]), {}, ValueError, r"home_rank\[1\] must be within 0..1, got 2"),
        (([1, 2], [0], [0, 1]), {}, ValueError, "home_rank must have 2 entries"),
        (([1, 2], [0, 0], []), {}, ValueError, "node_of_rank must name at least one rank"),
        (([1, 2], [0, 0], [0, -1]), {}, ValueError, r"node_of_rank\[1\] must be >= 0, got -1"),
        (([1, 2], [0, 0], [0, 1]), {"eps": -0.1}, ValueError, "eps must be >= 0"),
        (([1, 2], [0, 0], [0, 1]), {"cap": 1}, solvers.InfeasibleError, "item 1: its cost 2 is over cap = 1"),
        (([2, 2, 2], [0, 0, 0], [0, 1]), {"cap": 2}, solvers.InfeasibleError, "by 2"),
        (([1, 2], [0, 0], [0, 1]), {"prices": ([1, 1], [1])}, ValueError, r"prices\[1\] must have 2 entries"),
        (([1, 2], [0, 0], [0, 1]), {"sizes": [5, 5], "caps": [5, 4]}, solvers.InfeasibleError, "sum to 10"),
        (([1, 2], [0, 0], [0, 1]), {"prices": 3}, TypeError, "prices must be two arrays"),
        (([1, 2], [0, 0], [0, 1]), {"prices": ([1, 1], [1, 1]), "volumes": [1, 1]}, ValueError, "not both"),
        (([1, 2], [0, 0], [0, 1]), {"counts": (2, 2)}, solvers.InfeasibleError, r"counts = \(2, 2\) cannot be kept"),
        (([1, 2], [0, 0], [0, 1]), {"counts": (0, 2), "equal_counts": True}, ValueError, "not both"),
        (([1, 2], [0, 0], [0, 1]), {"sizes": [1, 1]}, ValueError, "sizes and caps go together"),
        (([1, 2], [0, 0], [0, 1]), {"sizes": [9, 1], "caps": 5}, solvers.InfeasibleError, r"sizes\[0\] = 9"),
        (([1, 2], [0, 0], [0, 1]), {"sizes": [5, 5], "caps": [5, 4, 3]}, ValueError, "caps must be one number or 2"),
    ],
)
def test_what_is_refused(
    arguments: tuple[object, ...], options: dict[str, object], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        relocate(*arguments, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", range(2))
def test_large_items_get_small_ones_beside_them(seed: int) -> None:
    """Of 16 items a rank the largest leave next to no room beside them, and few nodes have what is small enough."""
    costs = lognormal(64 * 16, seed, quadratic=True)
    homes, nodes = np.repeat(np.arange(64), 16), np.arange(64) // 8
    result = relocate(costs, homes, nodes, eps=0.001, equal_counts=True)
    solvers.check_relocation(costs, homes, nodes, result, equal_counts=True)
    assert not result.fell_back
    assert result.inter_node_volume < 0.005 * costs.sum()


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("equal_counts", [False, True])
def test_two_giants_on_a_rank_part(equal_counts: bool, seed: int) -> None:
    """No few small items weigh as much as one of them, so ranks pass it on and share what is small."""
    rng = np.random.default_rng(seed)
    m, each = 32, 60
    costs = rng.integers(900, 1100, (m, each))
    costs[0, :2] = 53 * each * 1000 // 100
    costs[0, 2:] = 1
    homes, nodes, costs = np.repeat(np.arange(m), each), np.arange(m) // 4, costs.ravel()
    result = relocate(costs, homes, nodes, eps=0.001, equal_counts=equal_counts)
    solvers.check_relocation(costs, homes, nodes, result, equal_counts=equal_counts)
    assert equal_counts or not result.fell_back
    assert result.inter_node_volume < 0.1 * costs.sum()


def test_few_items_a_rank_under_a_tight_cap() -> None:
    """Four a rank, all of the cap's slack a thousandth: of these the laid partition crosses four fifths."""
    costs = np.random.default_rng(0).integers(400, 1600, 256)
    homes, nodes = np.repeat(np.arange(64), 4), np.arange(64) // 8
    result = relocate(costs, homes, nodes, eps=0.001)
    solvers.check_relocation(costs, homes, nodes, result)
    assert result.makespan < 1.003 * costs.sum() / 64
    assert result.inter_node_volume < 0.2 * costs.sum()


def test_the_checker_refuses_a_bound_too_high() -> None:
    """One of two items of 7 has to go, of which 4 are over: so no more than 4 is proven."""
    costs, homes, nodes = [7, 7], [0, 0], [0, 1]
    result = relocate(costs, homes, nodes, cap=10)
    assert (result.inter_node_bound, result.inter_node_volume) == (4, 7)
    claimed = dataclasses.replace(result, inter_node_bound=7)
    with pytest.raises(solvers.CertificateError, match="inter_node_bound = 7, but 4 is proven at most"):
        solvers.check_relocation(costs, homes, nodes, claimed)
