"""Relocation keeps its cap, its bounds hold, and on small cases all assignments are tried."""

import dataclasses
import itertools
from fractions import Fraction

import numpy as np
import pytest
import relocation_oracles as oracles
from hypothesis import given
from hypothesis import strategies as st

import solvers
from solvers import SolveStatus, relocate
from solvers.groups import read_only
from solvers.relocation import plain_inter_bound, relocation_bound
from solvers.relocation._problem import RelocationProblem
from solvers.relocation.bounds import move_bounds

EVERY_METHOD = pytest.mark.parametrize("method", solvers.RELOCATORS)
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
def affinities(draw: st.DrawFn, num_items: int, num_ranks: int) -> tuple[list[int], list[int], list[int]]:
    rows = draw(
        st.lists(
            st.lists(st.tuples(st.integers(0, num_ranks - 1), st.integers(0, 9)), max_size=4),
            min_size=num_items, max_size=num_items,
        )
    )  # fmt: skip
    offsets = [0, *np.cumsum([len(row) for row in rows]).tolist()]
    return offsets, [r for row in rows for r, _ in row], [v for row in rows for _, v in row]


def lies_of(affinity: tuple[list[int], list[int], list[int]]) -> list[dict[int, int]]:
    offsets, ranks, volumes = affinity
    lies = []
    for low, high in itertools.pairwise(offsets):
        row: dict[int, int] = {}
        for j in range(low, high):
            row[ranks[j]] = row.get(ranks[j], 0) + volumes[j]
        lies.append(row)
    return lies


def lognormal(count: int, seed: int, quadratic: bool = False) -> np.ndarray:
    rng = np.random.default_rng(seed)
    lengths = np.clip(rng.lognormal(np.log(2000) - 0.5, 1, count), 1, 32768).astype(np.int64)
    return 24576 * lengths + lengths * lengths if quadratic else lengths


# --- the cap, and what a result promises -----------------------------------------------------------------------------


@EVERY_METHOD
@given(instance=instances(30), eps=st.sampled_from([0, 0.01, 0.2, 1.0]))
def test_any_instance(method: str, instance: tuple[list[int], list[int], list[int]], eps: float) -> None:
    costs, homes, nodes = instance
    result = relocate(costs, homes, nodes, eps=eps, method=method)
    solvers.check_relocation(costs, homes, nodes, result)
    assert result.method == method
    assert max(oracles.loads_of(costs, result.rank_of_item.tolist(), len(nodes))) == result.makespan <= result.cap
    assert (result.inter_gap == 0.0 == result.intra_gap) == (result.status is SolveStatus.OPTIMAL)
    assert not result.rank_of_item.flags.writeable
    assert not result.loads.flags.writeable
    assert result == relocate(np.array(costs, dtype=np.int64), homes, np.array(nodes), eps=eps, method=method)
    reached = solvers.partition(costs, len(nodes), time_budget=0.005).makespan
    at_home = max(oracles.loads_of(costs, homes, len(nodes)))
    expected = (1 + Fraction(str(eps))) * min(reached, at_home)
    assert result.cap == max(max(costs, default=0), expected.numerator // expected.denominator)
    if at_home <= result.cap:
        moves = result.inter_node_volume + result.intra_node_volume
        assert moves == 0 or method == "rearrange", "a home under the cap moves nothing"


@pytest.mark.parametrize("quadratic", [False, True], ids=["linear", "quadratic"])
@pytest.mark.parametrize(("ranks", "per_rank"), [(16, 4), (16, 16), (16, 60), (64, 60), (24, 40)])
def test_long_tails(ranks: int, per_rank: int, quadratic: bool) -> None:
    costs = lognormal(ranks * per_rank, 1, quadratic)
    homes, nodes = np.repeat(np.arange(ranks), per_rank), np.arange(ranks) // 8
    result = relocate(costs, homes, nodes, eps=50e-6)
    solvers.check_relocation(costs, homes, nodes, result)
    if per_rank == 60:
        assert result.fell_back == ""
        assert result.inter_node_volume <= 1.01 * result.inter_bound
        excess = np.maximum(np.bincount(homes, weights=costs) - result.cap, 0).sum()
        assert result.intra_node_volume <= 1.25 * excess
    baseline = relocate(costs, homes, nodes, eps=50e-6, method="rearrange")
    assert result.inter_node_volume <= baseline.inter_node_volume


SHAPES = {
    "no items": ([], [], [0, 0, 1]),
    "one rank": ([3, 1, 2], [0, 0, 0], [0]),
    "one node": ([5, 4, 3, 3, 3], [0, 0, 0, 0, 1], [0, 0]),
    "one rank a node": ([5, 4, 3, 3, 3, 1], [0, 0, 0, 0, 1, 1], [0, 1, 2]),
    "all on one rank": (list(range(1, 40)), [2] * 39, [0, 0, 1, 1, 2, 2]),
    "empty ranks": ([7, 7, 7], [0, 0, 1], [0, 0, 0, 1, 1, 1, 2, 2, 2]),
    "all zero": ([0] * 9, [0] * 9, [0, 1, 1]),
    "mostly zero": ([0, 0, 9, 0, 0, 4], [0, 0, 0, 0, 0, 0], [0, 1]),
    "giants as large as the cap": ([100, 100, *[5] * 40], [0] * 12 + [1] * 30, [0, 0, 1, 1]),
    "near the end of int64": ([2**62 - 1, 2**61, 2**60, 2**60 - 7, 3, 2], [0, 0, 0, 1, 1, 1], [0, 0, 1]),
    "nodes out of order": ([9, 8, 7, 6, 5, 4], [0, 0, 0, 0, 2, 3], [5, 2, 5, 2]),
}


@EVERY_METHOD
@pytest.mark.parametrize("equal_counts", [False, True], ids=["free", "equal_counts"])
@pytest.mark.parametrize("shape", SHAPES)
def test_shapes(shape: str, equal_counts: bool, method: str) -> None:
    costs, homes, nodes = SHAPES[shape]
    result = relocate(costs, homes, nodes, equal_counts=equal_counts, method=method)
    solvers.check_relocation(costs, homes, nodes, result, equal_counts=equal_counts)


# --- all assignments tried -------------------------------------------------------------------------------------------


@given(
    instance=instances(),
    equal_counts=st.booleans(),
    eps=st.sampled_from([0, 0.1, 0.5]),
    volumes=st.none() | st.lists(st.integers(0, 20), min_size=6, max_size=6),
)
def test_bounds_are_below_the_optimum(
    instance: tuple[list[int], list[int], list[int]], equal_counts: bool, eps: float, volumes: list[int] | None
) -> None:
    costs, homes, nodes = instance
    moved = costs if volumes is None else volumes[: len(costs)]
    lies = oracles.at_home(homes, moved)
    result = relocate(costs, homes, nodes, volumes=moved, eps=eps, equal_counts=equal_counts)
    solvers.check_relocation(costs, homes, nodes, result, volumes=moved, equal_counts=equal_counts)
    assignments = list(oracles.feasible(costs, len(nodes), result.cap, equal_counts))
    best = oracles.optimum(lies, nodes, iter(assignments))
    assert best is not None
    assert result.inter_bound <= best[0] <= result.inter_node_volume
    assert best <= (result.inter_node_volume, result.intra_node_volume)
    within = [v for v in (oracles.moved(lies, a, nodes) for a in assignments) if v[0] <= result.inter_node_volume]
    assert result.intra_bound <= min(intra for _, intra in within)
    assert result.leave_bound <= min(sum(oracles.moved(lies, a, nodes)) for a in assignments)
    if result.status is SolveStatus.OPTIMAL:
        assert best == (result.inter_node_volume, result.intra_node_volume)


@given(data=st.data())
def test_split_affinity(data: st.DataObject) -> None:
    nodes = data.draw(st.sampled_from(TOPOLOGIES))
    costs = data.draw(st.lists(st.integers(0, 12), max_size=6))
    affinity = data.draw(affinities(len(costs), len(nodes)))
    eps = data.draw(st.sampled_from([0, 0.1, 0.5, 2.0]))
    result = relocate(costs, None, nodes, affinity=affinity, eps=eps)
    solvers.check_relocation(costs, None, nodes, result, affinity=affinity)
    lies = lies_of(affinity)
    assignments = list(oracles.feasible(costs, len(nodes), result.cap))
    assert oracles.moved(lies, result.rank_of_item.tolist(), nodes) == (
        result.inter_node_volume, result.intra_node_volume,
    )  # fmt: skip
    assert result.inter_bound <= min(oracles.moved(lies, a, nodes)[0] for a in assignments)
    assert result.leave_bound <= min(sum(oracles.moved(lies, a, nodes)) for a in assignments)


@given(data=st.data())
def test_token_caps(data: st.DataObject) -> None:
    costs, homes, nodes = data.draw(instances())
    sizes = data.draw(st.lists(st.integers(0, 9), min_size=len(costs), max_size=len(costs)))
    caps = data.draw(st.lists(st.integers(0, 30), min_size=len(nodes), max_size=len(nodes)))
    try:
        result = relocate(costs, homes, nodes, sizes=sizes, caps=caps, eps=0.1)
    except solvers.InfeasibleError:
        assert not any(oracles.feasible(costs, len(nodes), sum(costs), False, sizes, caps))
        return
    solvers.check_relocation(costs, homes, nodes, result, sizes=sizes, caps=caps)
    lies = oracles.at_home(homes, costs)
    best = oracles.optimum(lies, nodes, oracles.feasible(costs, len(nodes), result.cap, False, sizes, caps))
    assert best is not None
    assert result.inter_bound <= best[0]
    assert best <= (result.inter_node_volume, result.intra_node_volume)


def test_token_caps_on_long_tails() -> None:
    lengths = lognormal(16 * 40, 3)
    homes, nodes = np.repeat(np.arange(16), 40), np.arange(16) // 4
    costs = 24576 * lengths + lengths * lengths
    caps = int(lengths.sum() / 16 * 1.02)
    result = relocate(costs, homes, nodes, sizes=lengths, caps=caps, eps=0.01)
    solvers.check_relocation(costs, homes, nodes, result, sizes=lengths, caps=caps)


def test_near_the_optimum_of_more_items_than_can_be_tried() -> None:
    """Sixteen items on four ranks, against CP-SAT: few items leave a search the least choice."""
    homes, nodes, over = np.repeat(range(4), 4).tolist(), [0, 0, 1, 1], []
    for seed, eps, equal_counts in itertools.product(range(2), [0.02, 0.2], [False, True]):
        costs = lognormal(16, seed).tolist()
        result = relocate(costs, homes, nodes, eps=eps, equal_counts=equal_counts)
        solvers.check_relocation(costs, homes, nodes, result, equal_counts=equal_counts)
        best = oracles.cp_sat_optimum(costs, homes, nodes, result.cap, equal_counts)
        assert best is not None
        assert best <= (result.inter_node_volume, result.intra_node_volume)
        assert result.inter_bound <= best[0]
        assert result.leave_bound <= sum(best)
        over.append((result.inter_node_volume - best[0]) / sum(costs))
    assert np.mean(over) <= 0.05


@pytest.mark.parametrize("equal_counts", [False, True], ids=["free", "equal_counts"])
def test_cp_sat_agrees_with_all_assignments_tried(equal_counts: bool) -> None:
    rng = np.random.default_rng(0)
    costs, homes, nodes = rng.integers(0, 30, 6).tolist(), [0, 0, 0, 1, 2, 2], [0, 0, 1]
    for cap in range(max(costs), sum(costs), 9):
        lies = oracles.at_home(homes, costs)
        best = oracles.optimum(lies, nodes, oracles.feasible(costs, len(nodes), cap, equal_counts))
        assert oracles.cp_sat_optimum(costs, homes, nodes, cap, equal_counts) == best


def test_what_the_partition_disproves_is_infeasible_and_what_it_does_not_is_not_called_so() -> None:
    with pytest.raises(solvers.InfeasibleError, match=r"cap = 5.* at least 6"):
        relocate([3, 3, 3], [0, 0, 1], [0, 1], cap=5)
    with pytest.raises(solvers.SolverError, match="nor was it proven that there is none") as caught:
        relocate([3, 3, 3], [0, 0, 1], [0, 1], cap=5, groups=[0, 0, 1])
    assert type(caught.value) is solvers.SolverError, "no clock ended the search"


@given(instance=instances(5), data=st.data())
def test_no_rearrangement_crosses_less_than_the_optimal_relocation(
    instance: tuple[list[int], list[int], list[int]], data: st.DataObject
) -> None:
    """Invariant 6: at a cap that is at least the partition's makespan."""
    costs, homes, nodes = instance
    groups = data.draw(st.lists(st.integers(0, len(nodes) - 1), min_size=len(costs), max_size=len(costs)))
    cap = max(oracles.loads_of(costs, groups, len(nodes)))
    lies = oracles.at_home(homes, costs)
    best = oracles.optimum(lies, nodes, oracles.feasible(costs, len(nodes), cap))
    assert best is not None
    assert best <= oracles.best_rearrangement(lies, nodes, groups)


# --- bounds by themselves --------------------------------------------------------------------------------------------


@given(
    pairs=st.lists(st.tuples(st.integers(0, 50) | st.integers(0, 2**40), st.integers(0, 50) | st.integers(0, 2**40)),
                   min_size=1, max_size=9),
    share=st.integers(0, 100),
)  # fmt: skip
def test_knapsacks(pairs: list[tuple[int, int]], share: int) -> None:
    """One rank too full beside one empty: what must leave is a knapsack."""
    costs, volumes = [w for _, w in pairs], [v for v, _ in pairs]
    cap = max(max(costs), sum(costs) * share // 100)
    problem = RelocationProblem.prepare(costs, [0] * len(pairs), [0, 1], volumes, None, False, None, None)
    bounds = move_bounds(problem, cap)
    whole = oracles.least_whole(pairs, sum(costs) - cap)
    assert oracles.least_cut(pairs, sum(costs) - cap) <= bounds.inter + 1  # one: rounding of products past int64
    assert bounds.inter == whole


def test_the_fractional_bound_of_many_items() -> None:
    rng = np.random.default_rng(5)
    costs, volumes = rng.integers(1, 1000, 200), rng.integers(0, 1000, 200)
    problem = RelocationProblem.prepare(costs, [0] * 200, [0, 1], volumes, None, False, None, None)
    cap = int(costs.sum()) * 2 // 3
    pairs = list(zip(volumes.tolist(), costs.tolist(), strict=True))
    bounds = move_bounds(problem, cap)
    assert (bounds.inter, bounds.inter_name) == (oracles.least_cut(pairs, int(costs.sum()) - cap), "fractional")


def test_a_bound_past_int64_products_stays_below() -> None:
    rng = np.random.default_rng(6)
    costs, volumes = rng.integers(1, 2**50, 40), rng.integers(1, 2**50, 40)
    problem = RelocationProblem.prepare(costs, [0] * 40, [0, 1], volumes, None, False, None, None)
    cap = int(costs.sum()) * 2 // 3
    least = oracles.least_cut(list(zip(volumes.tolist(), costs.tolist(), strict=True)), int(costs.sum()) - cap)
    assert 0.99 * least < move_bounds(problem, cap).inter <= least


# --- the same thing said differently ---------------------------------------------------------------------------------


@given(instance=instances(20))
def test_homes_are_affinities(instance: tuple[list[int], list[int], list[int]]) -> None:
    costs, homes, nodes = instance
    rows = (list(range(len(costs) + 1)), homes, costs)
    one, other = relocate(costs, homes, nodes), relocate(costs, None, nodes, affinity=rows)
    assert (one.inter_bound, one.leave_bound, one.cap) == (other.inter_bound, other.leave_bound, other.cap)
    if all(costs):  # an item of no volume has no home in rows
        assert np.array_equal(one.rank_of_item, other.rank_of_item)
        assert one.inter_node_volume == other.inter_node_volume


@given(instance=instances(20), names=st.permutations([3, 11, 4, 90]))
def test_names_of_nodes_do_not_matter_to_bounds(
    instance: tuple[list[int], list[int], list[int]], names: list[int]
) -> None:
    costs, homes, nodes = instance
    other = [names[sorted(set(nodes)).index(k)] for k in nodes]
    one, two = relocate(costs, homes, nodes), relocate(costs, homes, other)
    assert (one.cap, one.inter_bound, one.leave_bound) == (two.cap, two.inter_bound, two.leave_bound)
    solvers.check_relocation(costs, homes, other, two)


@pytest.mark.parametrize(
    ("eps", "cap"), [(0, 100), (0.05, 105), (Fraction(1, 3), 133), (np.float64(0.07), 107), (1, 200), (0.0999, 109)]
)
def test_eps_is_exact(eps: object, cap: int) -> None:
    assert relocate([1] * 200, [0] * 100 + [1] * 100, [0, 1], eps=eps).cap == cap


# --- the checker, and what is refused --------------------------------------------------------------------------------


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
        ({"inter_bound": 99}, "inter_bound"),
        ({"intra_bound": -1}, "intra_bound"),
        ({"leave_bound": 99}, "leave_bound"),
        ({"inter_bound_name": "magic"}, "unknown argument"),
        ({"status": SolveStatus.TIME_LIMIT}, "status"),
    ],
)
def test_the_checker_refuses(change: dict[str, object], rule: str) -> None:
    costs, homes, nodes = [5, 4, 3, 2, 1], [0, 0, 0, 0, 2], [0, 0, 1, 1]
    result = relocate(costs, homes, nodes)
    solvers.check_relocation(costs, homes, nodes, result)
    with pytest.raises(solvers.CertificateError, match=rule):
        solvers.check_relocation(costs, homes, nodes, dataclasses.replace(result, **change))  # type: ignore[arg-type]


def test_the_checker_refuses_a_bound_too_high() -> None:
    costs, homes, nodes = [6, 6, 6, 6], [0, 0, 1, 2], [0, 0, 1]
    result = relocate(costs, homes, nodes, cap=12, method="rearrange")
    claimed = dataclasses.replace(
        result, inter_bound=result.inter_node_volume, intra_bound=result.intra_node_volume, status=SolveStatus.OPTIMAL
    )
    if result.inter_node_volume + result.intra_node_volume > 0:
        with pytest.raises(solvers.CertificateError, match="proven at most"):
            solvers.check_relocation(costs, homes, nodes, claimed)


@pytest.mark.parametrize(
    ("arguments", "options", "error", "message"),
    [
        (([1, 2], [0, 2], [0, 1]), {}, ValueError, r"home_rank\[1\] must be within 0..1, got 2"),
        (([1, 2], [0], [0, 1]), {}, ValueError, "home_rank must have 2 entries"),
        (([1, -2], [0, 0], [0, 1]), {}, ValueError, r"costs\[1\] must be >= 0"),
        (([1, 2], [0, 0], []), {}, ValueError, "node_of_rank must name at least one rank"),
        (([1, 2], [0, 0], [0, -1]), {}, ValueError, r"node_of_rank\[1\] must be >= 0, got -1"),
        (([1, 2], [0, 0], [0, 1]), {"eps": -0.1}, ValueError, "eps must be >= 0"),
        (([1, 2], [0, 0], [0, 1]), {"eps": float("nan")}, TypeError, "eps must be a finite"),
        (([1, 2], [0, 0], [0, 1]), {"eps": True}, TypeError, "eps must be a number"),
        (([1, 2], [0, 0], [0, 1]), {"cap": 1}, solvers.InfeasibleError, "item 1: its cost 2 is over cap = 1"),
        (([2, 2, 2], [0, 0, 0], [0, 1]), {"cap": 2}, solvers.InfeasibleError, "by 2"),
        (([1, 2], [0, 0], [0, 1]), {"cap": 2.5}, TypeError, "cap must be an integer"),
        (([1, 2], [0, 0], [0, 1]), {"cap": -1}, ValueError, "cap must be >= 0"),
        (([1, 2], [0, 0], [0, 1]), {"volumes": [1]}, ValueError, "volumes must have 2 entries"),
        (([1, 2], [0, 0], [0, 1]), {"volumes": [1, -1]}, ValueError, r"volumes\[1\] must be >= 0"),
        (([1, 2], [0, 0], [0, 1]), {"sizes": [1, 1]}, ValueError, "sizes and caps go together"),
        (([1, 2], [0, 0], [0, 1]), {"sizes": [9, 1], "caps": 5}, solvers.InfeasibleError, r"sizes\[0\] = 9"),
        (([1, 2], [0, 0], [0, 1]), {"sizes": [5, 5], "caps": [5, 4]}, solvers.InfeasibleError, "sum to 10"),
        (([1, 2], [0, 0], [0, 1]), {"sizes": [5, 5], "caps": [5, 4, 3]}, ValueError, "caps must be one number or 2"),
        (([1, 2], [0, 0], [0, 1]), {"method": "magic"}, ValueError, "known methods are auto"),
        (([1, 2], [0, 0], [0, 1]), {"time_budget": 0}, ValueError, "time_budget"),
        (([1, 2], None, [0, 1]), {}, ValueError, "either home_rank or affinity"),
        (([1], None, [0]), {"affinity": ([0, 1], [1], [1])}, ValueError, r"ranks\[0\] must be within 0..0, got 1"),
        (([1], None, [0]), {"affinity": ([0], [0], [1])}, ValueError, "indptr must have 2 entries"),
        (([1], None, [0]), {"affinity": ([0, 2], [0], [1])}, ValueError, "ascend from 0 to 1"),
        (([1], None, [0]), {"affinity": ([0, 1], [0], [-1])}, ValueError, r"volumes\[0\] must be >= 0"),
        (([1], None, [0]), {"affinity": 3}, TypeError, "three arrays"),
    ],
)
def test_what_is_refused(
    arguments: tuple[object, ...], options: dict[str, object], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        relocate(*arguments, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("eps", [0, 2, 9])
@pytest.mark.parametrize("factor", [0, 1, 3, "other"])
def test_the_bound_in_one_pass_is_the_general_one(factor: int | str, eps: int) -> None:
    generator = np.random.default_rng(11)
    for nodes in ([0] * 4, [0, 0, 1, 1], [0, 0, 0, 1]):
        costs, homes = generator.integers(1, 100, 300), np.sort(generator.integers(0, 4, 300)).astype(np.int32)
        volumes = generator.integers(1, 100, 300) if factor == "other" else costs * int(factor)
        cap = -(-int(costs.sum()) // 4) + eps * 20
        node_of_rank = np.asarray(nodes, dtype=np.int32)
        arrays = map(read_only, (costs, volumes, homes, node_of_rank))
        found = int(plain_inter_bound(*arrays, max(nodes) + 1, cap))
        general = relocation_bound(costs, homes, nodes, volumes, max(cap, int(costs.max())))
        assert found == (-1 if factor == "other" else general)


def test_few_items_on_a_node_are_no_matter_of_one_pass() -> None:
    costs, homes, nodes = np.array([5, 4, 3, 2, 1, 1]), np.zeros(6, dtype=np.int32), np.array([0, 1], dtype=np.int32)
    arrays = map(read_only, (costs, costs, homes, nodes))
    assert plain_inter_bound(*arrays, 2, 9) == -1  # six whole items prove more than cut ones


@pytest.mark.parametrize("quadratic", [False, True], ids=["linear", "quadratic"])
def test_equal_counts_cross_little_more_than_must_without(quadratic: bool) -> None:
    """Of 60 items a rank the bound ignores that something has to come back."""
    tokens = lognormal(64 * 60, 1)
    costs = 24576 * tokens + tokens * tokens if quadratic else tokens
    homes, nodes = np.repeat(np.arange(64), 60), np.arange(64) // 8
    for volumes, most in ((None, 1.03), (tokens, 1.2)):
        result = relocate(costs, homes, nodes, volumes=volumes, eps=0.001, equal_counts=True)
        solvers.check_relocation(costs, homes, nodes, result, volumes=volumes, equal_counts=True)
        assert not result.fell_back
        assert result.inter_node_volume <= most * result.inter_bound


@pytest.mark.parametrize("seed", range(2))
def test_large_items_get_small_ones_beside_them(seed: int) -> None:
    """Of 16 items a rank the largest leave next to no room beside them, and few nodes have what is small enough."""
    costs = lognormal(64 * 16, seed, quadratic=True)
    homes, nodes = np.repeat(np.arange(64), 16), np.arange(64) // 8
    result = relocate(costs, homes, nodes, eps=0.001, equal_counts=True)
    solvers.check_relocation(costs, homes, nodes, result, equal_counts=True)
    assert not result.fell_back
    assert result.inter_node_volume < 0.005 * costs.sum()


def test_sums_beyond_what_a_foretelling_could_hold():
    """Room for more than 2^61: nothing is foretold, and no sum of it wraps around."""
    costs = np.full(40, 2**56)
    costs[0] = 2**61
    result = relocate(costs, np.zeros(40, dtype=np.int64), np.arange(16) // 4, cap=2**62)
    assert (result.makespan <= 2**62, result.inter_node_volume) == (True, 0)


@pytest.mark.parametrize(
    ("costs", "homes", "nodes", "cap", "equal_counts", "name", "bound"),
    [
        ([6, 6, 6], [0, 0, 1], [0, 0, 1, 1], 10, False, "rounded", 6),  # two ranks hold two items over half the cap
        ([4, 4, 4, 4, 4, 1], [0, 0, 1, 1, 0, 1], [0, 0, 1], 11, False, "rounded", 4),  # and four over a third
        ([9, 8, 7, 3, 2, 1], [0, 0, 0, 1, 1, 1], [0, 1], 18, True, "exchange", 8),  # 7 goes and 1 comes, 6 are too much
    ],
)
def test_bounds_of_few_items_and_of_counts(
    costs: list[int], homes: list[int], nodes: list[int], cap: int, equal_counts: bool, name: str, bound: int
) -> None:
    result = relocate(costs, homes, nodes, cap=cap, equal_counts=equal_counts)
    assert (result.inter_bound_name, result.inter_bound) == (name, bound) == (name, result.inter_node_volume)
    solvers.check_relocation(costs, homes, nodes, result, equal_counts=equal_counts)
    weaker = dataclasses.replace(result, inter_bound_name="fractional")
    with pytest.raises(solvers.CertificateError, match="proven at most"):
        solvers.check_relocation(costs, homes, nodes, weaker, equal_counts=equal_counts)
