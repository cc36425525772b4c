"""What every registered method must hold, on every shape of problem, judged by the checker and by plain Python."""

import inspect
import json
from collections.abc import Sequence

import numpy as np
import pytest
import rearrangement_oracles as oracles
from compiled import compiled_and_plain
from hypothesis import assume, given
from hypothesis import strategies as st

import solvers
from solvers import REARRANGERS, SolveStatus
from solvers.rearrangement import OBJECTIVES, USES_CLOCK

BUDGET = 0.2  # seconds that CP-SAT may take in each of its runs here
CLOCKLESS = [name for name in REARRANGERS if name not in USES_CLOCK]
EVERY_METHOD = pytest.mark.parametrize("method", REARRANGERS)
EVERY_OBJECTIVE = pytest.mark.parametrize("objective", OBJECTIVES)
Case = tuple[list[list[int]], list[list[int]], list[int]]


def random_matrix(m: int, seed: int, density: float = 0.5, largest: int = 1000) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    return np.where(rng.random((m, m)) < density, rng.integers(0, largest, (m, m)), 0).tolist()


SHAPES: dict[str, Case] = {
    "one rank": ([[5]], [[0]], [1]),
    "one rank, nothing": ([[0]], [[0]], [1]),
    "two nodes of one": ([[1, 9], [8, 2]], [[0, 1]], [1]),
    "one node": (random_matrix(6, 0), [[3] * 6], [1]),
    "a rank a node": (random_matrix(6, 1), [[0, 1, 2, 3, 4, 5]], [1]),
    "nodes of two": (random_matrix(6, 2), [[0, 0, 1, 1, 2, 2]], [1]),
    "uneven nodes": (random_matrix(6, 3), [[0, 0, 0, 1, 1, 2]], [1]),
    "scattered nodes with odd labels": (random_matrix(6, 4), [[7, -2, 7, 5, -2, 5]], [3]),
    "all zero": ([[0] * 6 for _ in range(6)], [[0, 0, 0, 1, 1, 1]], [1]),
    "all equal": ([[4] * 6 for _ in range(6)], [[0, 0, 0, 1, 1, 1]], [1]),
    "empty groups": ([[3, 0, 0, 7], [0] * 4, [0, 5, 0, 1], [0] * 4], [[0, 0, 1, 1]], [1]),
    "at home": (np.diag([4, 5, 6, 7]).tolist(), [[0, 0, 1, 1]], [1]),
    "few ties": (random_matrix(6, 5, 0.4, 3), [[0, 0, 1, 1, 2, 2]], [1]),
    "racks": (random_matrix(6, 6), [[0, 0, 1, 1, 2, 2], [0, 0, 0, 0, 1, 1]], [1, 1]),
    "racks that cost more": (random_matrix(6, 7), [[0, 0, 1, 1, 2, 2], [0, 0, 0, 0, 1, 1]], [2, 7]),
    "three levels": (random_matrix(6, 8), [[0, 1, 2, 3, 4, 4], [0, 0, 1, 1, 2, 2], [0, 0, 0, 0, 1, 1]], [1, 2, 4]),
    "near the end of int64": ([[2**60, 2**61, 3], [2**60, 0, 2**60], [1, 2**61, 2**60 - 9]], [[0, 0, 1]], [1]),
    "sum is int64's largest": ([[0, 2**62], [2**62 - 1, 0]], [[0, 1]], [1]),
    "weight near the end of int64": ([[0, 2], [1, 0]], [[0, 1]], [2**61]),
}
EVERY_SHAPE = pytest.mark.parametrize("shape", SHAPES)


def check(case: Case, result: solvers.RearrangementResult, group_class=None, rank_class=None) -> None:
    """All that a result promises, from scratch."""
    volumes, levels, weights = case
    target = result.rank_of_group.tolist()
    assert sorted(target) == list(range(len(volumes)))
    assert result.rank_of_group.dtype == np.int32
    assert not result.rank_of_group.flags.writeable
    assert not result.crossing_volume.flags.writeable
    for name, number in oracles.moved(volumes, levels[0], target).items():
        assert getattr(result, name) == number, name
        assert type(getattr(result, name)) is int
    sends = oracles.weighted_sends(volumes, levels, weights, target)
    assert result.value == (sum(sends) if result.objective == "sum" else max(sends))
    assert type(result.value) is type(result.lower_bound) is int
    assert 0 <= result.lower_bound <= result.value
    assert (result.status is SolveStatus.OPTIMAL) == (result.lower_bound == result.value)
    assert (result.gap == 0.0) == (result.lower_bound == result.value)
    assert result.runtime_s >= 0
    solvers.check_rearrangement(
        volumes, levels, result, weights=weights, class_of_group=group_class, class_of_rank=rank_class
    )


@EVERY_METHOD
@EVERY_OBJECTIVE
@EVERY_SHAPE
def test_result_holds_what_it_promises(method: str, objective: str, shape: str) -> None:
    """And brute force over all bijections agrees on the bound, and on what is claimed to be optimal."""
    volumes, levels, weights = SHAPES[shape]
    result = solvers.rearrange(volumes, levels, method, objective, BUDGET, weights=weights)
    assert (result.method, result.objective) == (method, objective)
    check(SHAPES[shape], result)
    optimum = oracles.optimum(volumes, levels, weights, objective)
    assert result.lower_bound <= optimum <= result.value
    if (method, objective) in {("sum", "sum"), ("auto", "sum")}:
        assert (result.value, result.status) == (optimum, SolveStatus.OPTIMAL)
    if (method, objective) == ("max", "max") and sum(map(sum, volumes)) * sum(weights) < 2**58:
        assert (result.value, result.status) == (optimum, SolveStatus.OPTIMAL)


@EVERY_METHOD
@EVERY_SHAPE
def test_inside_a_node_most_stays_where_it_is(method: str, shape: str) -> None:
    if method == "identity":
        return
    volumes, levels, weights = SHAPES[shape]
    result = solvers.rearrange(volumes, levels, method, None, BUDGET, weights=weights)
    least = oracles.least_inside(volumes, levels[0], result.rank_of_group.tolist(), [0] * len(volumes))
    identity = solvers.rearrange(volumes, levels, "identity")
    if result.rank_of_group.tolist() != identity.rank_of_group.tolist():
        assert result.intra_node_volume == least


@EVERY_METHOD
def test_registry_and_signature_agree(method: str) -> None:
    function = REARRANGERS[method]
    names = ["volumes", "levels", "objective", "weights", "class_of_group", "class_of_rank", "time_budget"]
    assert list(inspect.signature(function).parameters) == names
    own = inspect.signature(function).parameters["objective"].default
    assert own == ("max" if method == "max" else "sum")
    first, second = solvers.rearrange([[0, 5], [4, 1]], [0, 1], method), function([[0, 5], [4, 1]], [0, 1])
    assert first == second
    assert first.objective == own


def test_auto_is_the_default_and_clocks_are_declared() -> None:
    assert solvers.rearrange([[1]], [0]).method == "auto"
    assert set(REARRANGERS) >= USES_CLOCK
    assert "auto" not in USES_CLOCK


# --- every problem ---------------------------------------------------------------------------------------------------


@st.composite
def cases(draw: st.DrawFn, most: int = 6) -> tuple[Case, list[int], list[int]]:
    """A matrix, nested levels with weights, and classes of which each has as many groups as ranks."""
    m = draw(st.integers(1, most))
    amount = st.sampled_from([st.integers(0, 3), st.integers(0, 1000), st.integers(0, 2**50)])
    amounts = draw(amount)
    volumes = draw(st.lists(st.lists(amounts, min_size=m, max_size=m), min_size=m, max_size=m))
    nodes = draw(st.lists(st.integers(0, 2), min_size=m, max_size=m))
    levels = [nodes]
    if draw(st.booleans()):
        rack_of_node = draw(st.lists(st.integers(0, 1), min_size=3, max_size=3))
        levels.append([rack_of_node[n] for n in nodes])
    weights = [draw(st.integers(1, 5)) for _ in levels]
    group_class = draw(st.lists(st.sampled_from([0, 0, 4]), min_size=m, max_size=m))
    rank_class = draw(st.permutations(group_class))
    return (volumes, levels, weights), group_class, list(rank_class)


@EVERY_OBJECTIVE
@given(drawn=cases())
def test_bound_optimum_value(objective: str, drawn: tuple[Case, list[int], list[int]]) -> None:
    case, group_class, rank_class = drawn
    volumes, levels, weights = case
    optimum = oracles.optimum(volumes, levels, weights, objective, group_class, rank_class)
    values = {}
    for method in CLOCKLESS:
        result = solvers.rearrange(
            volumes, levels, method, objective, weights=weights, class_of_group=group_class, class_of_rank=rank_class
        )
        check(case, result, group_class, rank_class)
        assert result.lower_bound <= optimum <= result.value, method
        values[method] = result.value
    assert max(values.values()) == values["identity"]
    assert values["auto"] <= values["greedy"]
    if objective == "sum":
        assert values["sum"] == values["auto"] == optimum


@given(drawn=cases(), budgets=st.lists(st.sampled_from([1e-9, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3]), min_size=2, max_size=2))
def test_more_work_never_ends_worse(drawn: tuple[Case, list[int], list[int]], budgets: list[float]) -> None:
    (volumes, levels, weights), group_class, rank_class = drawn
    for objective in OBJECTIVES:
        less, more = (
            solvers.rearrange(
                volumes, levels, "auto", objective, budget, weights=weights, class_of_group=group_class,
                class_of_rank=rank_class,
            )
            for budget in sorted(budgets)
        )  # fmt: skip
        check((volumes, levels, weights), less, group_class, rank_class)
        assert more.value <= less.value


@EVERY_OBJECTIVE
@given(drawn=cases(most=5))
def test_cp_sat_against_brute_force(objective: str, drawn: tuple[Case, list[int], list[int]]) -> None:
    """Whatever the time it gets, what it returns is bounded; given enough, it is optimal."""
    case, group_class, rank_class = drawn
    volumes, levels, weights = case
    result = solvers.rearrange(
        volumes, levels, "max", objective, 30.0, weights=weights, class_of_group=group_class,
        class_of_rank=rank_class,
    )  # fmt: skip
    check(case, result, group_class, rank_class)
    optimum = oracles.optimum(volumes, levels, weights, objective, group_class, rank_class)
    assert result.lower_bound <= optimum <= result.value
    if objective == "max":
        assert (result.value, result.status) == (optimum, SolveStatus.OPTIMAL)


# --- invariance ------------------------------------------------------------------------------------------------------


def middle_case(m: int, ranks_per_node: int, items_per_rank: int, seed: int) -> tuple[solvers.Volumes, list[int]]:
    """Lognormal lengths after LPT, as trainers have them."""
    lengths = np.random.default_rng(seed).lognormal(6, 1, m * items_per_rank).astype(np.int64)
    home = np.repeat(np.arange(m), items_per_rank)
    groups = solvers.lpt(lengths, m).group_of_item
    return solvers.group_volumes(groups, home, lengths, m), (np.arange(m) // ranks_per_node).tolist()


@pytest.mark.parametrize("method", CLOCKLESS)
@EVERY_OBJECTIVE
def test_relabelled_nodes_change_nothing_but_names(method: str, objective: str) -> None:
    volumes, nodes = middle_case(32, 4, 6, seed=1)
    names = np.random.default_rng(0).permutation(8)
    first = solvers.rearrange(volumes, nodes, method, objective)
    second = solvers.rearrange(volumes, names[nodes], method, objective)
    assert first.lower_bound <= second.value
    if method == "sum":
        assert (first.value, first.lower_bound) == (second.value, second.lower_bound) or objective == "max"


@pytest.mark.parametrize("method", CLOCKLESS)
@EVERY_OBJECTIVE
def test_matrix_and_sparse_rows_give_the_same(method: str, objective: str) -> None:
    volumes, nodes = middle_case(24, 4, 3, seed=2)
    m = volumes.num_ranks
    from_matrix = solvers.rearrange(oracles.dense(volumes), nodes, method, objective)
    assert from_matrix.value == solvers.rearrange(volumes, nodes, method, objective).value
    twice = [solvers.rearrange(volumes, nodes, method, objective) for _ in range(2)]
    assert twice[0] == twice[1]
    assert from_matrix.crossing_volume.shape == (1,)
    assert from_matrix.certificate.rank_multiplier.shape == (m,)


@EVERY_METHOD
def test_loads_stay_what_they_were(method: str) -> None:
    """Invariant 6: the largest load does not change, whoever gets which group."""
    lengths = np.random.default_rng(3).lognormal(6, 1, 160).astype(np.int64)
    partition = solvers.partition(lengths, 16)
    volumes = solvers.group_volumes(partition.group_of_item, np.repeat(np.arange(16), 10), lengths, 16)
    result = solvers.rearrange(volumes, np.arange(16) // 4, method, None, BUDGET)
    loads = np.bincount(result.rank_of_group[partition.group_of_item], weights=lengths, minlength=16)
    assert sorted(loads.astype(int).tolist()) == sorted(partition.loads.tolist())
    assert loads.max() == partition.makespan


def scaled(matrix: list[list[int]], factor: int) -> list[list[int]]:
    return [[factor * v for v in row] for row in matrix]


@given(drawn=cases(), factor=st.integers(1, 1000))
def test_a_factor_scales_the_least_sum(drawn: tuple[Case, list[int], list[int]], factor: int) -> None:
    (volumes, levels, weights), _, _ = drawn
    total = sum(map(sum, volumes)) * sum([1] if weights is None else weights)
    assume(factor * total < 2**63)  # more is refused
    first = solvers.rearrange(volumes, levels, "sum", weights=weights)
    second = solvers.rearrange(scaled(volumes, factor), levels, "sum", weights=weights)
    assert second.value == factor * first.value


DIGESTS = """
import hashlib, json
import numpy as np
import solvers

found = {}
for m, per_rank, largest in ((48, 6, 2**40), (96, 3, 4), (80, 5, 2**52)):
    rng = np.random.default_rng(m)
    lengths = rng.integers(0, largest, m * per_rank)
    groups = solvers.lpt(lengths, m).group_of_item
    volumes = solvers.group_volumes(groups, np.repeat(np.arange(m), per_rank), lengths, m)
    nodes = np.sort(rng.integers(0, m // 6, m))
    for method in solvers.REARRANGERS:
        for objective in ("sum", "max"):
            for levels in (nodes, np.stack([nodes, nodes // 4])):
                if method != "max":
                    r = solvers.rearrange(volumes, levels, method, objective, 0.001)
                    what = r.rank_of_group.tobytes() + r.certificate.place_price.tobytes()
                    key = f"{m} {method} {objective} {np.ndim(levels)}"
                    found[key] = [r.value, r.lower_bound, hashlib.sha256(what).hexdigest()]
print(json.dumps(found))
"""


def test_compiled_and_plain_python_give_the_same() -> None:
    """And so does every process: invariant 3. With ties, uneven nodes, an early end, and numbers past 2^53."""
    assert len(json.loads(compiled_and_plain(DIGESTS))) == 48


# --- what callers get wrong ------------------------------------------------------------------------------------------

GOOD = [[1, 2], [3, 4]]


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"volumes": [[1, 2, 3], [4, 5, 6]]}, ValueError, r"square matrix .* got shape \(2, 3\)"),
        ({"volumes": []}, ValueError, r"got shape \(0,\)"),
        ({"volumes": np.zeros((0, 0))}, ValueError, r"at least one, got shape \(0, 0\)"),
        ({"volumes": [1, 2]}, ValueError, r"got shape \(2,\)"),
        ({"volumes": [[1, 2], [3]]}, TypeError, "volumes must be Volumes or a matrix"),
        ({"volumes": [[1, 2], [-3, 4]]}, ValueError, r"volumes\[1, 0\] must be >= 0, got -3"),
        ({"volumes": [[0.5, 1], [1, 1]]}, ValueError, "whole number"),
        ({"volumes": [[2**62, 2**62], [0, 0]]}, ValueError, "must fit int64"),
        ({"volumes": [[2**61, 0], [0, 0]], "weights": [4]}, ValueError, r"times the sum of weights must fit int64"),
        ({"levels": [0]}, ValueError, "node_of_rank must have 2 entries, one a rank, got 1"),
        ({"levels": [0, 1, 1]}, ValueError, "node_of_rank must have 2 entries"),
        ({"levels": [[0, 1], [0]]}, ValueError, r"levels\[1\] must have 2 entries"),
        ({"levels": np.zeros((0, 2))}, ValueError, "at least one level"),
        ({"levels": [0.5, 1]}, ValueError, "whole number"),
        ({"levels": ["a", "b"]}, TypeError, "node_of_rank must be integers"),
        (
            {"levels": [[0, 0], [0, 1]]},
            ValueError,
            r"ranks 0 and 1 share a unit of levels\[0\], but not of levels\[1\]",
        ),
        ({"weights": [1, 1]}, ValueError, "weights must have 1 entries, one a level, got 2"),
        ({"weights": [0]}, ValueError, r"weights\[0\] must be >= 1, got 0"),
        ({"method": "hungarian"}, ValueError, "unknown method 'hungarian'; known methods are auto, identity"),
        ({"objective": "median"}, ValueError, "unknown objective 'median'; known objectives are sum, max"),
        ({"time_budget": 0}, ValueError, "time_budget must be positive"),
        ({"class_of_group": [0, 1]}, ValueError, "class_of_group was given without class_of_rank"),
        ({"class_of_rank": [0, 1]}, ValueError, "class_of_rank was given without class_of_group"),
        ({"class_of_group": [0, 1], "class_of_rank": [0]}, ValueError, "class_of_rank must have 2 entries, got 1"),
        (
            {"class_of_group": [0, 7], "class_of_rank": [0, 0]},
            solvers.InfeasibleError,
            "class 0 has 1 groups but 2 ranks",
        ),
    ],
)
def test_bad_arguments(arguments: dict[str, object], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        solvers.rearrange(**({"volumes": GOOD, "levels": [0, 1]} | arguments))  # type: ignore[arg-type]


def with_classes(classes: Sequence[int]) -> solvers.RearrangementResult:
    volumes = [[0, 0, 9, 0], [0, 0, 0, 9], [9, 0, 0, 0], [0, 9, 0, 0]]
    return solvers.rearrange(volumes, [0, 0, 1, 1], class_of_group=classes, class_of_rank=classes)


def test_only_equal_classes_are_exchanged() -> None:
    assert with_classes([0, 0, 0, 0]).inter_node_volume == 0
    assert with_classes([0, 0, 1, 1]).inter_node_volume == 36
    assert with_classes([0, 1, 0, 1]).rank_of_group.tolist() == [2, 3, 0, 1]
