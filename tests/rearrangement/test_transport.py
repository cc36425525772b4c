"""The transportation kernels, against SciPy's dense assignment and networkx's flows."""

import numpy as np
import pytest
import rearrangement_oracles as oracles
from compiled import from_python
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

import solvers
from solvers.rearrangement import _transport
from solvers.rearrangement._transport import Rows, dual_value_kernel, kept_by, solve_transport, take_largest

kept_by = from_python(kept_by)

ENDLESS = 2**62


def rows_of(matrix: NDArray[np.int64]) -> Rows:
    groups, places = np.nonzero(matrix)
    offsets = np.searchsorted(groups, np.arange(len(matrix) + 1)).astype(np.int64)
    return Rows(offsets, places.astype(np.int32), matrix[groups, places].astype(np.int64))


def starts_of(rooms: list[int]) -> NDArray[np.int64]:
    return np.concatenate([[0], np.cumsum(rooms)]).astype(np.int64)


def most_kept(matrix: NDArray[np.int64], rooms: list[int]) -> int:
    """Independent: SciPy's assignment to single slots."""
    slots = np.repeat(matrix, rooms, axis=1)
    return int(slots[linear_sum_assignment(slots, maximize=True)].sum())


def solve(
    matrix: NDArray[np.int64], rooms: list[int], small: bool = True, work: int = ENDLESS
) -> tuple[NDArray[np.int32], NDArray[np.int64], int]:
    """Solve from the assignment in order; check that every place is just full and that the prices prove something."""
    rows, starts = rows_of(matrix), starts_of(rooms)
    assignment = np.repeat(np.arange(len(rooms), dtype=np.int32), rooms)
    before = kept_by(rows, assignment)
    price = np.empty(len(rooms), dtype=np.int64)
    left = solve_transport(rows, starts, assignment, price, small, work)
    assert np.bincount(assignment, minlength=len(rooms)).tolist() == rooms
    kept = sum(int(matrix[g, p]) for g, p in enumerate(assignment))
    assert before <= kept == kept_by(rows, assignment) <= dual_value_kernel(rows, starts, price)
    return assignment, price, left


@st.composite
def problems(draw: st.DrawFn) -> tuple[NDArray[np.int64], list[int]]:
    rooms = draw(st.lists(st.integers(1, 4), min_size=1, max_size=6))
    largest = draw(st.sampled_from([1, 3, 100, 2**40]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    shape = (sum(rooms), len(rooms))
    matrix = rng.integers(0, largest + 1, shape) * (rng.random(shape) < draw(st.sampled_from([0.1, 0.5, 1.0])))
    return matrix.astype(np.int64), rooms


@given(problem=problems(), small=st.booleans())
def test_optimal_with_prices_that_prove_it(problem: tuple[NDArray[np.int64], list[int]], small: bool) -> None:
    matrix, rooms = problem
    assignment, price, left = solve(matrix, rooms, small)
    optimum = most_kept(matrix, rooms)
    assert kept_by(rows_of(matrix), assignment) == optimum
    assert dual_value_kernel(rows_of(matrix), starts_of(rooms), price) == optimum
    assert 0 <= left <= ENDLESS
    if not small:  # as the kernel promises, so that no sum leaves int64
        assert price.min() >= 0
        assert price.max() <= matrix.max()


@given(problem=problems(), works=st.lists(st.integers(0, 3000), min_size=2, max_size=2))
def test_less_work_is_less_good_but_never_wrong(problem: tuple[NDArray[np.int64], list[int]], works: list[int]) -> None:
    matrix, rooms = problem
    kept = [int(kept_by(rows_of(matrix), solve(matrix, rooms, work=work)[0])) for work in sorted(works)]
    assert kept[0] <= kept[1] <= most_kept(matrix, rooms)


@given(problem=problems())
def test_greedy_takes_the_largest_first(problem: tuple[NDArray[np.int64], list[int]]) -> None:
    matrix, rooms = problem
    rows = rows_of(matrix)
    order = np.argsort(-rows.kept, kind="stable").astype(np.int32)
    assignment = np.empty(len(matrix), dtype=np.int32)
    take_largest(rows, order, starts_of(rooms), assignment)
    room = list(rooms)
    expected: dict[int, int] = {}
    for value, g, p in sorted((-v, g, p) for g, row in enumerate(matrix.tolist()) for p, v in enumerate(row) if v):
        assert value < 0
        if g not in expected and room[p]:
            expected[g] = p
            room[p] -= 1
    for g in range(len(matrix)):
        if g not in expected:
            expected[g] = next(p for p, free in enumerate(room) if free)
            room[expected[g]] -= 1
    assert assignment.tolist() == [expected[g] for g in range(len(matrix))]
    assert 2 * kept_by(rows, assignment) >= most_kept(matrix, rooms)


MIDDLE = {
    "dense": (np.random.default_rng(0).integers(1, 10**9, (120, 15)), [8] * 15),
    "uneven": (np.random.default_rng(1).integers(0, 10**6, (60, 8)), [1, 2, 3, 4, 5, 6, 7, 32]),
    "one place": (np.random.default_rng(2).integers(0, 9, (30, 1)), [30]),
    "square": (np.random.default_rng(3).integers(0, 10**4, (90, 90)), [1] * 90),
    "ties": (np.random.default_rng(4).integers(0, 2, (100, 25)), [4] * 25),
    "all want the same": (np.arange(1, 97)[:, None] * np.arange(1, 13)[None, :] * 1000, [8] * 12),
    "all want one": (np.where(np.arange(12) == 5, np.arange(96, 0, -1)[:, None] + 10**6, 0), [8] * 12),
    "nothing": (np.zeros((40, 10), dtype=np.int64), [4] * 10),
    "large numbers": (np.random.default_rng(5).integers(2**51, 2**52, (100, 25)), [4] * 25),
}


@pytest.mark.parametrize("name", MIDDLE)
@pytest.mark.parametrize("small", [True, False])
def test_middle_sizes(name: str, small: bool) -> None:
    matrix, rooms = MIDDLE[name]
    assignment, price, _ = solve(matrix.astype(np.int64), rooms, small)
    optimum = most_kept(matrix, rooms)
    assert kept_by(rows_of(matrix), assignment) == optimum
    assert dual_value_kernel(rows_of(matrix), starts_of(rooms), price) == optimum


@pytest.mark.parametrize("name", ["dense", "square"])
def test_every_step_on_the_way_is_kept_if_it_is_better(name: str) -> None:
    matrix, rooms = MIDDLE[name]
    full = ENDLESS - solve(matrix, rooms)[2]
    kept = [int(kept_by(rows_of(matrix), solve(matrix, rooms, work=full * k // 12)[0])) for k in range(13)]
    assert kept == sorted(kept)
    assert len(set(kept)) >= 3  # not only the first and the last
    assert kept[-1] == most_kept(matrix, rooms)


def test_an_auction_that_takes_too_long_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prices of an unfinished auction are as good a start as any, and its groups without a place are not lost."""
    matrix, rooms = MIDDLE["all want the same"]
    rows, starts = rows_of(matrix), starts_of(rooms)
    auction, drop_loose, augment = map(from_python, (_transport._auction, _transport._drop_loose, _transport._augment))

    for allowance in range(0, 4000, 400):
        price, trial = np.zeros(len(rooms), dtype=np.int64), np.full(len(matrix), -1, dtype=np.int32)
        left = auction(rows, starts, price, 1000, trial, allowance)
        assert (left < 0) == bool((trial < 0).any())
        drop_loose(rows, price, trial)
        assert augment(rows, starts, price, trial, ENDLESS) > 0
        assert kept_by(rows, trial) == dual_value_kernel(rows, starts, price) == most_kept(matrix, rooms)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("ranks_per_node", [1, 4, 8])
def test_least_sum_against_network_flow(ranks_per_node: int, seed: int) -> None:
    """networkx as the independent oracle, with racks of uneven size on top."""
    m = 32
    lengths = np.random.default_rng(seed).lognormal(6, 1, m * 5).astype(np.int64)
    volumes = solvers.group_volumes(solvers.lpt(lengths, m).group_of_item, np.repeat(np.arange(m), 5), lengths, m)
    matrix = np.zeros((m, m), dtype=np.int64)
    matrix[np.repeat(np.arange(m), np.diff(volumes.offsets)), volumes.ranks] = volumes.amounts
    nodes = np.arange(m) // ranks_per_node
    racks = (nodes * ranks_per_node >= 24).astype(int)
    for levels, weights in (([nodes], [1]), ([nodes, racks], [1, 3])):
        nested = [level.tolist() for level in levels]
        result = solvers.rearrange(volumes, nested, "sum", weights=weights)
        assert result.value == oracles.least_crossing_by_flow(matrix.tolist(), nested, weights)
        solvers.check_rearrangement(volumes, nested, result, weights=weights)


def test_a_node_of_many_ranks_is_settled_exactly() -> None:
    """More ranks than the kernel calls tiny: inside the one node it is the same problem again."""
    m = 100
    rng = np.random.default_rng(6)
    matrix = np.where(rng.random((m, m)) < 0.1, rng.integers(1, 1000, (m, m)), 0)
    least = int(matrix.sum()) - most_kept(matrix, [1] * m)
    for method in ("sum", "auto"):
        assert solvers.rearrange(matrix, np.zeros(m), method).intra_node_volume == least
    greedy = solvers.rearrange(matrix, np.zeros(m), "greedy")
    assert least < greedy.intra_node_volume <= int(matrix.sum() - np.trace(matrix))
