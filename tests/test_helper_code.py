"""What kernels' compiler leaves out, and where it may not."""

import os
import subprocess
import sys
from typing import Any, NamedTuple

import numpy as np
import pytest
from compiled import from_python

from solvers import _helper_code
from solvers._jit import helper

pytestmark = pytest.mark.skipif(os.environ.get("NUMBA_DISABLE_JIT") == "1", reason="nothing is compiled")


class State(NamedTuple):
    """Arrays that a kernel works on."""

    kept: Any
    other: Any


@helper
def _largest(values):
    rest, found = values[1:], values[0]
    for at in range(rest.size):
        found = max(found, rest[at])
    return found


@helper
def _tail(values):
    return values[1:]


@helper
def _chosen(values, at):
    found = values[at]
    return found.size


@helper
def _fresh(values):
    return np.empty(values.size, np.int64).size


@helper
def _all(values, at):
    return _largest(_tail(values)), _chosen(values, at), _fresh(values)


@helper
def _entries(rows, flags, turned, where, n):
    """Entries by all kinds of indices, and loops over all kinds of ranges."""
    told, at = np.zeros(64, np.int64), 0
    for i in range(n):
        for j in range(-2, n):
            rows[i, j] = (rows[i, j] * 3 + rows[-1, where[i]] + turned[j, -i % 2] + flags[-j]) % 997
            flags[i] = rows[i, j] % 2 == 0
    turns = range(1, n)
    for _ in range(2):
        for i in turns:
            if i == n - 1:
                break
            told[at] += i
            at += 1
    for i in range(n, -n, -2):
        told[at] = rows[0, i // 2] + i
        at += 1
    for i in range(n, 0):
        told[at] = i
        at += 1
    turned[1, :], turned[0, 1] = where[:2], where[np.uint8(3)]
    told[at] = rows.sum() + turned.sum() + flags.sum()
    return told


@helper
def _given(state, back):
    fresh = np.zeros(2, np.int64)
    if back:
        return state.kept
    kept = state.kept
    kept[0] += 1
    return fresh


def test_entries_and_loops_are_pythons():
    found = []
    for run in (_entries.py_func, from_python(_entries)):
        rows, flags = np.arange(30).reshape(5, 6), np.asarray([True, False, True, True, False, True])
        turned, where = np.arange(14).reshape(2, 7).T, np.asarray([3, -1, 2, 0, 1], np.int32)
        told = run(rows, flags, turned, where, 5)
        found.append((told.tolist(), rows.tolist(), flags.tolist(), turned.tolist()))
    assert found[0] == found[1]


def test_an_array_that_does_not_fit_into_a_slice_is_an_error():
    @helper
    def copied(into, values):
        into[1:] = values

    with pytest.raises(ValueError, match="cannot assign slice from input of different size"):
        from_python(copied)(np.zeros(3), np.zeros(3))


def test_arguments_are_kept_by_who_calls_and_returned_with_a_reference():
    given = from_python(_given)
    for back, kept in ((True, 1), (False, 0)):
        values = np.zeros(100, np.int64)
        before = sys.getrefcount(values)
        found = [given(State(values, values), back) for _ in range(9)]
        assert sys.getrefcount(values) - before in (9 * kept, 0)
        values = None
        assert [entry.sum() for entry in found] == [0] * 9


PLANNED = """
import hashlib, sys
import numba
numba.version_info = numba.version_info._replace(short=eval(sys.argv[1]))
import numpy as np
import balancer
from solvers import _as_python, _jit
_as_python.compile_at_once()
rng = np.random.default_rng(0)
plan = balancer.balance(rng.integers(1, 4000, 199), 16, cost="quadratic:a=9,b=1", method="lpt", placement="any")
ranks = hashlib.sha256(np.ascontiguousarray(plan.rank_of_sample)).hexdigest()
print(ranks, _jit.HelperCompiler is _jit.KernelCompiler)  # which numba's own is both
"""


@pytest.mark.nightly
def test_another_version_of_numba_compiles_to_the_same_plans(tmp_path):
    told = [
        subprocess.run(
            [sys.executable, "-c", PLANNED, version],
            env=os.environ | {"NUMBA_CACHE_DIR": str(tmp_path / version)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.split()
        for version in ("(0, 68)", "(0, 99)")
    ]
    assert told[0][0] == told[1][0]
    assert [of_numba for _, of_numba in told] == ["False", "True"]


def test_references_are_counted_where_a_function_makes_or_returns_arrays(monkeypatch):
    asked, counted = _helper_code._owns, {}

    def noted(state):
        return counted.setdefault(state.func_id.func_name, asked(state))

    monkeypatch.setattr(_helper_code, "_owns", noted)
    assert from_python(_all)(np.arange(5), np.asarray([0, 3])) == (4, 2, 5)
    ours = {name: counted[name] for name in ("_largest", "_tail", "_chosen", "_fresh", "_all")}
    assert ours == {"_largest": False, "_tail": True, "_chosen": True, "_fresh": True, "_all": True}
