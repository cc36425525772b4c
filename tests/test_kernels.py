"""Shared kernels, and that they give the same compiled and as plain Python."""

import json
from pathlib import Path

import numpy as np
import pytest
from compiled import from_python, run_python
from hypothesis import given
from hypothesis import strategies as st

from solvers._sort import sort_descending
from solvers.partitioning.lpt import _insertion_sort, _radix_sort, _sift_down

radix_sort, insertion_sort, sift_down = map(from_python, (_radix_sort, _insertion_sort, _sift_down))

# --- sorting ---------------------------------------------------------------------------------------------------------


def assert_sorted_as_numpy_does(costs: np.ndarray, largest: int) -> None:
    before = costs.copy()
    order, sorted_costs = sort_descending(costs, largest)
    expected = np.argsort(-costs, kind="stable")
    assert order.dtype == np.int32
    assert sorted_costs.dtype == np.int64
    assert order.tolist() == expected.tolist()
    assert sorted_costs.tolist() == costs[expected].tolist()
    assert np.array_equal(costs, before)


@pytest.mark.parametrize("count", [0, 1, 2, 63, 64, 65, 127, 700])
@pytest.mark.parametrize("bits", [1, 2, 10, 11, 12, 22, 23, 33, 44, 52, 53, 54, 60, 62])
def test_sort_descending(count: int, bits: int) -> None:
    """One to six passes; more than 63 bits for cost and item together take the way through NumPy."""
    costs = np.random.default_rng(bits).integers(0, 2**bits, count)
    costs[: count // 3] = costs[count // 3 : 2 * (count // 3)]  # ties far apart
    assert_sorted_as_numpy_does(costs, int(costs.max(initial=0)))
    assert_sorted_as_numpy_does(costs, 2**bits - 1)
    costs.flags.writeable = False
    assert_sorted_as_numpy_does(costs, 2**bits - 1)


@given(st.lists(st.integers(0, 3) | st.integers(0, 2**63 - 1), max_size=150))
def test_sort_descending_anything(costs: list[int]) -> None:
    array = np.array(costs, dtype=np.int64)
    assert_sorted_as_numpy_does(array, max(costs, default=0))


@pytest.mark.parametrize(("item_bits", "cost_bits", "falls_back"), [(7, 56, False), (7, 57, True), (8, 55, False)])
def test_where_the_fallback_begins(
    monkeypatch: pytest.MonkeyPatch, item_bits: int, cost_bits: int, falls_back: bool
) -> None:
    """128 items take 7 bits and 129 take 8; costs take what the largest takes; together at most 63."""
    count = 128 if item_bits == 7 else 129
    costs = np.random.default_rng(0).integers(0, 2**cost_bits, count)
    costs[[5, 100]] = 2**cost_bits - 1
    calls = []
    argsort = np.argsort
    expected = argsort(-costs, kind="stable").tolist()
    monkeypatch.setattr(np, "argsort", lambda *a, **k: calls.append(1) or argsort(*a, **k))
    order, _ = sort_descending(costs, 2**cost_bits - 1)
    assert bool(calls) == falls_back
    assert order.tolist() == expected


@pytest.mark.parametrize("spread", [0, 1, 8, 9, 10, 27, 55])
def test_radix_sort_by_the_bits_in_which_keys_differ(spread: int) -> None:
    """Odd and even numbers of passes; the group in the low bits counts last."""
    rng = np.random.default_rng(spread)
    loads = 2**40 + rng.integers(0, 2**spread, 200) if spread < 55 else rng.integers(0, 2**spread, 200)
    keys = loads << 8 | rng.permutation(200)
    expected = np.sort(keys).tolist()
    radix_sort(keys, np.empty_like(keys), np.empty(1 << 9, dtype=np.int64), 255)
    assert keys.tolist() == expected


@given(st.lists(st.integers(-9, 9) | st.integers(-(2**63), 2**63 - 1), max_size=40), st.data())
def test_insertion_sort(keys: list[int], data: st.DataObject) -> None:
    size = data.draw(st.integers(0, len(keys)))
    array = np.array(keys, dtype=np.int64)
    insertion_sort(array, size)
    assert array.tolist() == sorted(keys[:size]) + keys[size:]


# --- heaps -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 6, 8, 9, 17, 20, 21, 22, 85, 100])
def test_a_heap_gives_the_smallest_first(size: int) -> None:
    """Replacing the root by something larger, over and over, in the order that a sorted list gives."""
    rng = np.random.default_rng(size)
    packed, bits = np.arange(size), 7
    expected = [(0, g) for g in range(size)]
    for added in rng.integers(0, 5, 300).tolist():
        load, group = expected[0]
        assert int(packed[0]) == load << bits | group
        expected = sorted([*expected[1:], (load + added, group)])
        sift_down(packed, size, (load + added) << bits | group)
    assert sorted(packed.tolist()) == [load << bits | group for load, group in expected]


def test_a_heap_reads_nothing_past_its_size() -> None:
    keys = np.array([5, 6, 7, -1, -1, -1, -1])
    sift_down(keys, 3, 9)
    assert keys.tolist() == [6, 9, 7, -1, -1, -1, -1]


# --- how kernels run -------------------------------------------------------------------------------------------------

AT_ONCE = "from solvers._jit import compile_at_once; compile_at_once()\n"
"""Without it, what these processes do would run as Python."""

DIGESTS = """
import hashlib, json
import numpy as np
import solvers

rng = np.random.default_rng(7)
problems = {
    "lognormal": (rng.lognormal(6, 1, 300).astype(np.int64), 16),
    "ties": (rng.integers(0, 4, 200), 7),
    "many groups": (rng.lognormal(6, 2, 400).astype(np.int64), 150),
    "wide": (rng.integers(2**55, 2**56, 70), 64),
    "few": (np.array([3, 1, 2]), 5),
}
found = {}
for name, (costs, m) in problems.items():
    for method in solvers.PARTITIONERS:
        if method not in solvers.USES_CLOCK:
            for equal_counts in (False,) if method == "karmarkar_karp" else (False, True):
                r = solvers.partition(costs, m, method, equal_counts=equal_counts)
                what = [r.group_of_item.tobytes(), r.loads.tobytes(), repr((r.makespan, r.lower_bound, r.status))]
                found[f"{name} {method} {equal_counts}"] = [what[2], hashlib.sha256(what[0] + what[1]).hexdigest()]
    for equal_counts in (False, True):
        r = solvers.padded(costs % 2**40, m, equal_counts=equal_counts)
        x = solvers.mixed(costs % 2**40, costs % 2**40 // 3, m, equal_counts=equal_counts)
        what = [repr((x.makespan, x.lower_bound, x.status)), hashlib.sha256(x.group_of_item.tobytes()).hexdigest()]
        found[f"{name} mixed {equal_counts}"] = what
        found[f"{name} padded {equal_counts}"] = [r.makespan, hashlib.sha256(r.group_of_item.tobytes()).hexdigest()]
    tokens = 1 + np.arange(len(costs)) * 7919 % 97
    for sync in ("micro_batch", "step", "pipeline"):
        x = solvers.schedule_micro_batches(costs, tokens, 3, 300, sync=sync, allow_empty=True, time_budget=1e-3)
        what = x.rank_of_item.tobytes() + x.slot_of_item.tobytes()
        found[f"{name} {sync}"] = [repr((x.value, x.lower_bound)), hashlib.sha256(what).hexdigest()]
print(json.dumps(found))
"""


def test_compiled_and_plain_python_give_the_same_plans(tmp_path: Path) -> None:
    """And kernels that are Python at first; and so does every process: the hash seed differs between them as well."""
    compiled = json.loads(run_python(AT_ONCE + DIGESTS, NUMBA_DISABLE_JIT="0", PYTHONHASHSEED="1"))
    plain = json.loads(run_python(DIGESTS, NUMBA_DISABLE_JIT="1", PYTHONHASHSEED="2"))
    both = json.loads(run_python(DIGESTS, NUMBA_DISABLE_JIT="0", NUMBA_CACHE_DIR=str(tmp_path)))
    assert len(compiled) > 40
    assert compiled == plain == both


def test_import_is_light() -> None:
    """No OR-Tools, no PyArrow, no torch, and not one kernel compiled or loaded from its cache."""
    code = """
import sys
import numba.core.event as event
with event.install_recorder("numba:compile") as recorder:
    import solvers
heavy = {"ortools", "pyarrow", "torch", "scipy.optimize", "networkx", "balancer"} & set(sys.modules)
print(len(recorder.buffer), sorted(heavy))
"""
    assert run_python(code, NUMBA_DISABLE_JIT="0").split(maxsplit=1) == ["0", "[]\n"]
