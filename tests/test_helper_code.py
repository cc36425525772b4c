"""What kernels' compiler leaves out, and where it may not."""

import os

import numpy as np
import pytest
from compiled import from_python

from solvers import _helper_code
from solvers._jit import helper

pytestmark = pytest.mark.skipif(os.environ.get("NUMBA_DISABLE_JIT") == "1", reason="nothing is compiled")


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


def test_references_are_counted_where_a_function_makes_or_returns_arrays(monkeypatch):
    asked, counted = _helper_code._owns, {}

    def noted(state):
        return counted.setdefault(state.func_id.func_name, asked(state))

    monkeypatch.setattr(_helper_code, "_owns", noted)
    assert from_python(_all)(np.arange(5), np.asarray([0, 3])) == (4, 2, 5)
    ours = {name: counted[name] for name in ("_largest", "_tail", "_chosen", "_fresh", "_all")}
    assert ours == {"_largest": False, "_tail": True, "_chosen": True, "_fresh": True, "_all": True}
