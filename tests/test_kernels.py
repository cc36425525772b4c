"""Shared kernels, and that they give the same compiled and as plain Python."""

import json
from pathlib import Path

import numpy as np
import pytest
from compiled import run_python
from hypothesis import given
from hypothesis import strategies as st

from solvers._sort import sort_descending

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


@pytest.mark.parametrize("bits", [1, 12, 33, 44, 54, 62])
def test_sort_descending(bits: int) -> None:
    """One to six passes; more than 63 bits for cost and item together take the way through NumPy."""
    for count in (0, 1, 64, 700):
        costs = np.random.default_rng(bits).integers(0, 2**bits, count)
        costs[: count // 3] = costs[count // 3 : 2 * (count // 3)]  # ties far apart
        assert_sorted_as_numpy_does(costs, int(costs.max(initial=0)))
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
