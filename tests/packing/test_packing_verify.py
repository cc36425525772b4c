"""The checker of packings: it accepts what is right and names the first rule that is not."""

import dataclasses

import numpy as np
import pytest

from solvers import CertificateError, SolveStatus, check_packing
from solvers.bounds import groups_bound
from solvers.packing import pack
from solvers.types import status_of

SIZES, CAP = [4, 5, 6, 5, 3], 10  # groups 0, 1, 0, 1, 2


def groups(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int32)


FALSE_CLAIMS = [
    ({"cap": 11}, "the cap is 10, not 11"),
    ({"loads": np.array([10.0, 10.0, 3.0])}, r"loads must be int64\[num_groups\], got float64"),
    ({"group_of_item": groups(0, 1, 0, 1)}, "every item has one group: 5 items"),
    ({"group_of_item": groups(0, 1, 0, 1, 3)}, "item 4 is in group 3, outside 0..2"),
    ({"group_of_item": groups(0, 1, 0, 1, 1)}, "every group holds an item, but group 2 is empty"),
    ({"loads": np.array([10, 9, 3])}, "the load of group 1 is 10, not 9"),
    ({"group_of_item": groups(1, 0, 0, 1, 2), "loads": np.array([11, 9, 3])}, "group 0 weighs 11, over cap = 10"),
    ({"lower_bound": 4}, "lower_bound = 4 must be within 0..num_groups = 3"),
    ({"lower_bound": 2}, "status is optimal with num_groups 3 and lower_bound 2"),
    ({"bound_name": "hope"}, "lower_bound is by an unknown argument 'hope'; known here are volume, l2"),
]


@pytest.mark.parametrize(("changes", "message"), FALSE_CLAIMS)
def test_false_claims_are_found(changes, message):
    result = pack(SIZES, CAP)
    check_packing(SIZES, CAP, result)
    with pytest.raises(CertificateError, match=message):
        check_packing(SIZES, CAP, dataclasses.replace(result, **changes))


def test_too_many_items_and_too_much_of_another_sum_are_found():
    packed = pack([1, 1, 1], 9)
    with pytest.raises(CertificateError, match="group 0 holds 3 items, over max_items = 2"):
        check_packing([1, 1, 1], 9, packed, max_items=2)
    with pytest.raises(CertificateError, match=r"group 0 holds 6 of limits\[1\], over 5"):
        check_packing([1, 1, 1], 9, packed, limits=[([1, 1, 1], 3), ([2, 2, 2], 5)])


@pytest.mark.parametrize("name", ["volume", "l2", "counts"])
def test_bounds_are_recomputed_by_name(name):
    sizes, cap = [34, 34, 34, 34, 34, 20, 5], 100
    claimed = dataclasses.replace(
        pack(sizes, cap), bound_name=name, group_of_item=np.arange(7, dtype=np.int32), loads=np.array(sizes),
        lower_bound=7, status=SolveStatus.OPTIMAL,
    )  # fmt: skip
    with pytest.raises(CertificateError, match=f"lower_bound = 7, but '{name}' proves [1-3] at most"):
        check_packing(sizes, cap, claimed, max_items=3)


def test_every_bound_that_the_packers_give_is_proven():
    chance = np.random.default_rng(2)
    seen = set()
    for _ in range(300):
        cap = int(chance.integers(10, 120))
        low, high = sorted(chance.integers(0, cap + 1, 2).tolist())
        sizes = chance.integers(low, high + 1, chance.integers(1, 40)).tolist()
        result = pack(sizes, cap, "best_fit_decreasing", max_items=5)
        check_packing(sizes, cap, result, max_items=5)
        bound = groups_bound(np.array(sorted(sizes, reverse=True)), sum(sizes), cap, 5)
        status = status_of(result.num_groups, bound.value)
        claimed = dataclasses.replace(result, bound_name=bound.name, lower_bound=bound.value, status=status)
        check_packing(sizes, cap, claimed, max_items=5)
        seen.add(bound.name)
    assert seen == {"volume", "counts", "l2", "fekete_schepers", "ccm1"}
