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

def told(name, *what):
    arrays = [each.tobytes() if isinstance(each, np.ndarray) else repr(each).encode() for each in what]
    found[name] = [repr(what[0])[:40], hashlib.sha256(b"".join(arrays)).hexdigest()]

n, m, little = 60, 5, {"time_budget": 2e-4}
costs, sizes, homes = rng.integers(1, 500, n), rng.integers(1, 50, n), rng.integers(0, m, n)
masks = rng.random((n, m)) < 0.8
masks[:, 0] = True
for name, rules in {
    "caps": {"sizes": sizes, "caps": int(sizes.sum() / m * 1.1)},
    "speeds": {"speeds": [3, 2, 1, 1, 1], "max_items": 20},
    "masks": {"allowed": masks}, "keys": {"keep_together": np.arange(n) // 5},
    "prefixes": {"prefix": np.arange(n) // 6, "prefix_costs": np.full(n, 90), "equal_counts": True},
}.items():
    for value in (costs, np.stack([costs, sizes], axis=1))[: 1 + (name != "prefixes")]:
        r = solvers.partition(value, m, **little, **rules)
        told(f"{name} {value.ndim}", (r.makespan, r.lower_bound, r.status.value), r.group_of_item)
for largest in (40, 2**40, 2**58):
    volumes = solvers.group_volumes(homes, rng.integers(0, m, n), rng.integers(0, largest // n + 2, n), m)
    r = solvers.rearrange(volumes, [0, 0, 1, 1, 1], class_of_group=[0, 1, 0, 1, 0], class_of_rank=[0, 0, 1, 1, 0])
    told(f"rearrange {largest}", (r.inter_node_volume, r.largest_send), r.rank_of_group)
    many = rng.integers(0, largest // n + 2, n)
    for rules in ({}, {"equal_counts": True}, {"sizes": sizes, "caps": int(sizes.sum() / m * 1.3)}):
        r = solvers.relocate(many, homes, [0, 0, 1, 1, 1], eps=0.05, **rules)
        told(f"relocate {largest} {rules.keys()}", (r.inter_node_volume, r.inter_node_bound), r.rank_of_item)
times = np.array([(costs**2 // 1000 + 180 * costs) // d for d in (1, 2, 4)]) << 16
r = solvers.sequence_groups(times, costs, (1, 2, 4), 8, 1000, overhead=300_000 << 16, **little)
told("sequence groups", r.makespan, r.group_of_item, r.first_rank_of_group)
work, unit = np.stack([costs, sizes], axis=1), np.array([[1, 0, 0], [0, 1, 1]])
for kind in ({}, {"tied": True}, {"order": "gpipe"}):
    r = solvers.schedule_pipeline(work, unit, 2 * unit, 2, 4, hop=2, **little, **kind)
    told(f"pipeline {kind}", (r.makespan, r.lower_bound), r.slot_of_item, r.replica_of_item)
print(json.dumps(found))
"""


def test_compiled_and_plain_python_give_the_same_plans(tmp_path: Path) -> None:
    """And kernels that are Python at first; and so does every process: the hash seed differs between them as well."""
    compiled = json.loads(run_python(AT_ONCE + DIGESTS, NUMBA_DISABLE_JIT="0", PYTHONHASHSEED="1"))
    plain = json.loads(run_python(DIGESTS, NUMBA_DISABLE_JIT="1", PYTHONHASHSEED="2"))
    both = json.loads(run_python(DIGESTS, NUMBA_DISABLE_JIT="0", NUMBA_CACHE_DIR=str(tmp_path)))
    assert len(compiled) > 60
    assert compiled == plain == both
