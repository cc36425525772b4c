"""What cannot be met is refused with a certificate that says which constraint, which items and by how much."""

import contextlib
import time
from typing import Any

import numpy as np
import pytest

import solvers
from solvers import ContradictionError, InfeasibilityCertificate, InfeasibleError, _jit

CASES: dict[str, tuple[int, int, dict[str, Any], str, InfeasibilityCertificate]] = {
    "item over every cap": (
        3, 2, {"sizes": [1, 9, 2], "caps": [5, 7]},
        "caps: item 1 of size 9 exceeds every cap that it may be under, the largest is 7: 2 too much",
        InfeasibilityCertificate("caps", [1], [0, 1], 9, 7, 0),
    ),
    "item over the cap of the groups it may be in": (
        2, 2, {"sizes": [1, 6], "caps": [5, 7], "allowed": [None, [0]]},
        "caps: item 1 of size 6 exceeds every cap that it may be under, the largest is 5: 1 too much",
        InfeasibilityCertificate("caps + allowed", [1], [0], 6, 5, 0),
    ),
    "total over total": (
        4, 2, {"sizes": [[1, 3], [1, 3], [1, 3], [1, 3]], "caps": [9, 5]},
        "caps: the sizes[:, 1] of all items sum to 12, and the 2 groups hold 10: 2 too much",
        InfeasibilityCertificate("caps", range(4), range(2), 12, 10, 1),
    ),
    "packing": (
        3, 2, {"sizes": [4, 4, 4], "caps": 6},
        "caps: the sizes need at least 3 groups of 6 (by 'l2', solvers.packing), there are 2",
        InfeasibilityCertificate("caps", range(3), range(2), 3, 2, 0),
    ),
    "no group has room for both quantities": (
        1, 2, {"sizes": [[4, 4]], "caps": [[9, 2], [3, 9]]},
        "caps: item 0 of sizes [4, 4] fits no group in all quantities at once",
        InfeasibilityCertificate("caps", [0], [0, 1], 4, 3, 0),
    ),
    "too many items": (
        7, 2, {"max_items": 3},
        "max_items: 7 items do not fit 2 groups of at most 3, which hold 6",
        InfeasibilityCertificate("max_items", range(7), range(2), 7, 6),
    ),
    "too few items": (
        3, 2, {"min_items": 2},
        "min_items: 2 groups of at least 2 need 4 items, there are 3",
        InfeasibilityCertificate("min_items", range(3), range(2), 4, 3),
    ),
    "keys make too few units": (
        4, 3, {"min_items": 1, "keep_together": ["a", "a", "b", "b"]},
        "min_items: no group may be empty, and 4 items that stay together by key make only 2 units for 3 groups",
        InfeasibilityCertificate("min_items + keep_together", range(4), range(3), 3, 2),
    ),
    "equal counts and keys": (
        6, 2, {"equal_counts": True, "keep_together": [7, 7, 8, 8, 9, 9]},
        "equal_counts: no whole number of units that stay together makes a group of 3 to 3 items; the most below is 2",
        InfeasibilityCertificate("equal_counts + keep_together", range(6), range(2), 3, 2),
    ),
    "a unit larger than a group": (
        5, 2, {"max_items": 3, "keep_together": [0, 1, 1, 1, 1]},
        "max_items: items 1, 2, 3, 4 must stay together, 4 of them, and a group may hold 3",
        InfeasibilityCertificate("max_items + keep_together", [1, 2, 3, 4], range(2), 4, 3),
    ),
    "no group allowed": (
        2, 2, {"allowed": np.array([[True, True], [False, False]])},
        "allowed: item 1 may be in no group",
        InfeasibilityCertificate("allowed", [1], [], 1, 0),
    ),
    "no group allowed to all of a unit": (
        3, 2, {"allowed": [[0], [1], None], "keep_together": [4, 4, 5]},
        "allowed: items 0, 1 must stay together, and no group may hold them all",
        InfeasibilityCertificate("allowed + keep_together", [0, 1], [], 1, 0),
    ),
    "Hall, sizes": (
        4, 3, {"allowed": [[0, 1], [0, 1], [0, 1], None], "sizes": [3, 3, 3, 1], "caps": 4},
        "caps: items 0, 1, 2 (size 9 together) may be in groups 0, 1 only, with room for 8: 1 too much",
        InfeasibilityCertificate("caps + allowed", [0, 1, 2], [0, 1], 9, 8, 0),
    ),
    "Hall, counts, by a union of three": (
        8, 4, {"allowed": [[0, 1], [0, 1], [1, 2], [1, 2], [0, 2], [0, 2], [0, 2], None], "max_items": 2},
        "max_items: items 0, 1, 2, 3, 4, ... (7) (7 items together) may be in groups 0, 1, 2 only, with room for 6: "
        "1 too much",
        InfeasibilityCertificate("max_items + allowed", [0, 1, 2, 3, 4, 5, 6], [0, 1, 2], 7, 6),
    ),
    "a group nobody may be in": (
        4, 2, {"allowed": [[0], [0], [0], [0]], "min_items": 1},
        "min_items: group 1 must hold 1 items and only 0 may be in it",
        InfeasibilityCertificate("min_items + allowed", [], [1], 1, 0),
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_certificate(case: str) -> None:
    n, m, given, message, certificate = CASES[case]
    for method in ("auto", "lpt", "exact"):
        with pytest.raises(InfeasibleError) as caught:
            solvers.partition([1] * n, m, method, **given)
        assert str(caught.value) == message
        assert caught.value.certificate == certificate
    assert certificate.excess == certificate.needed - certificate.available > 0


CONTRADICTIONS: dict[str, tuple[dict[str, Any], str]] = {
    "counts": ({"min_items": 3, "max_items": 2}, "min_items = 3 contradicts max_items = 2"),
    "equal, too many": (
        {"equal_counts": True, "max_items": 2},
        "equal_counts contradicts max_items = 2: 7 items in 3 groups make 3 in a group",
    ),
    "equal, too few": (
        {"equal_counts": True, "min_items": 3},
        "equal_counts contradicts min_items = 3: 7 items in 3 groups make 2 in a group",
    ),
}


@pytest.mark.parametrize("case", CONTRADICTIONS)
def test_contradictions_are_bad_arguments_and_infeasible(case: str) -> None:
    given, message = CONTRADICTIONS[case]
    for error in (ValueError, InfeasibleError, ContradictionError):
        with pytest.raises(error) as caught:
            solvers.partition([1] * 7, 3, **given)
        assert str(caught.value) == message
    with pytest.raises(ValueError, match="contradicts"):
        solvers.makespan_lower_bound([1] * 7, 3, **given)


def test_what_no_argument_proves_is_proven_by_search() -> None:
    """Only 5 + 5 and 4 + 3 + 3 fill two groups of 10, and then the second has 11 of the other quantity."""
    given = {"sizes": [[5, 0], [5, 8], [4, 9], [3, 1], [3, 1]], "caps": [10, 10]}
    with pytest.raises(InfeasibleError, match="every assignment of 5 items to 2 groups breaks one of caps"):
        solvers.partition([1] * 5, 2, **given)
    with pytest.raises(InfeasibleError):
        solvers.partition([1] * 5, 2, "exact", 5.0, **given)


def test_few_items_are_all_tried_before_the_budget_is_spent_on_mending() -> None:
    """A thousand assignments of ten items: to mend four starts spent all, and nothing was proven."""
    sizes = [[4, 3], [3, 4], [4, 16], [9, 17], [9, 8], [10, 7], [9, 3], [17, 14], [6, 3], [2, 8]]
    costs = [[17, 12, 12], [17, 13, 7], [7, 13, 2], [4, 9, 9], [3, 10, 16], [15, 6, 9], [14, 12, 16], [10, 11, 14],
             [17, 8, 5], [5, 18, 19]]  # fmt: skip
    allowed = [[1] if item in (3, 4, 9) else None for item in range(10)]
    rules = {"sizes": sizes, "caps": [[39, 37], [34, 46]], "min_items": 2, "allowed": allowed, "objective": "max"}
    with pytest.raises(InfeasibleError, match="every assignment of 10 items to 2 groups breaks one of caps"):
        solvers.partition(costs, 2, **rules)


def test_a_list_of_groups_for_each_item_takes_no_quadratic_time() -> None:
    """8,000 lists: to compare each with each, and the caps under each, took 20 s; the search takes milliseconds."""
    rng = np.random.default_rng(0)
    n, m = 8000, 256
    home, sizes = rng.integers(0, m, n), rng.integers(1, 100, n)
    allowed = [sorted({int(g), *rng.integers(0, m, 3).tolist()}) for g in home]
    started = time.process_time()
    with contextlib.suppress(solvers.SolverError):
        solvers.partition(sizes, m, "auto", 1e-3, sizes=sizes, caps=int(1.05 * sizes.sum() / m), allowed=allowed)
    assert time.process_time() - started < 5 or _jit._numba() is None


def test_neither_found_nor_proven() -> None:
    """A perfect packing of 40 triples under a cap with no slack: found by no search here, and with no proof."""
    rng = np.random.default_rng(4)
    first, second = rng.integers(2500, 4100, 40), rng.integers(2500, 4100, 40)
    sizes = np.concatenate([first, second, 10_000 - first - second])
    with pytest.raises(solvers.SolverError, match="nor was it proven that there is none; remedy") as caught:
        solvers.partition(sizes, 40, time_budget=1e-4, sizes=sizes, caps=10_000)
    assert not isinstance(caught.value, InfeasibleError)


def test_room_of_all_groups_that_does_not_fit_int64() -> None:
    """The room was added up, and what wrapped around 'proved' that there is none."""
    costs = [2767011611056432740, 3689348814741910320, 553402322211286548, 2213609288845146192]
    caps = {"sizes": costs, "caps": 5534023222112865480, "min_items": 2, "allowed": [None, None, [1], None]}
    assert sorted(solvers.partition(costs, 2, **caps).loads.tolist()) == [4242751136953196868, 4980620899901578932]
    many = solvers.partition([2**58] * 9, 16, sizes=[2**58] * 9, caps=2**62)  # 16 of these are 2**66
    assert many.makespan == many.lower_bound == 2**58


def test_proofs_and_caps_near_the_end_of_int64() -> None:
    """There the search has numbers of fewer bits: a cap on all there is shrank below it, and nothing was proven."""
    size = 2**61 + 1
    assert solvers.partition([1], 1, sizes=[size], caps=2**63 - 1).makespan == 1
    assert solvers.partition([1, 1], 2, sizes=[[size, 3], [1, 3]], caps=[size + 1, 3]).makespan == 1
    with pytest.raises(InfeasibleError, match="min_items: group 1 must hold 1 items and only 0 may be in it"):
        solvers.partition([2**61, 2**61], 2, min_items=1, allowed=[[0], [0]])
