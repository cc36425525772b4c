"""Kernels run as Python before they are compiled: for so many turns, with the same results, not if kept; and how."""

import gc
import json
import os
import subprocess
import sys

import numpy as np
import pytest
from numba.core.caching import NullCache
from numba.core.codegen import CPUCodeLibrary

import balancer
import solvers._as_python as as_python
from solvers._helper_code import _KernelCode
from solvers._jit import helper, kernel

pytestmark = pytest.mark.skipif(os.environ.get("NUMBA_DISABLE_JIT") == "1", reason="nothing is compiled")

SCRIPT = """
import json, sys
from numba.core import event
import balancer
compiled = []
with event.install_timer("numba:compile", compiled.append):
    plan = balancer.balance([(i * 7919) % 4000 + 1 for i in range(199)], 8, **json.loads(sys.argv[1]))
print(json.dumps([plan.digest(), plan.lower_bound, plan.makespan, len(compiled)]))
"""


def summed(values, found):
    total, largest = np.int64(0), np.int32(0)
    for i in range(len(values)):
        found[0] += 1
        total += twice(values[i])
        largest = max(largest, np.int32(values[i]))
    return total, largest > 3, float(largest)


@helper
def twice(n):
    return n + n


first_kernel, second_kernel, third_kernel = kernel(summed), kernel(summed), kernel(summed)


@pytest.fixture
def turns(monkeypatch):
    """Leave a kernel, which no cache has, some turns; what numba asks for something to call."""
    monkeypatch.setattr(as_python, "_at_once", False)

    def leave(dispatcher, number):
        monkeypatch.setattr(dispatcher, "_cache", NullCache())  # that of an earlier run of this test has it
        asked = dispatcher._compile_for_args
        monkeypatch.setattr(asked, "_is_kept", lambda args: False)
        monkeypatch.setattr(asked, "_left", number)
        return asked

    return leave


def test_a_kernel_runs_as_python_until_its_turns_are_used_up(turns):
    asked, values, found = turns(first_kernel, 30), np.arange(5), np.zeros(1, dtype=np.int64)
    for time in (1, 2):
        told = first_kernel(values, found)
        assert told == (20, True, 4.0)
        assert [type(value) for value in told] == [int, bool, float]
        assert asked._left == 30 - 11 * time  # calls of both functions, and turns of the loop
    assert not first_kernel.overloads
    assert first_kernel(values, found) == (20, True, 4.0)
    assert len(first_kernel.overloads) == 1
    assert found[0] == 15  # what the third call had written before it was compiled counts once


def test_arrays_of_more_numbers_than_turns_are_for_the_compiler(turns):
    turns(second_kernel, 30)
    second_kernel(np.arange(30), np.zeros(1, dtype=np.int64))
    assert len(second_kernel.overloads) == 1


def test_compile_at_once(turns):
    turns(third_kernel, 30)
    as_python.compile_at_once()
    third_kernel(np.arange(5), np.zeros(1, dtype=np.int64))
    assert len(third_kernel.overloads) == 1


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"cost": "padded"},
        {"micro_batch_tokens": 16000},
        {"ranks_per_node": 4, "home_rank": [i % 8 for i in range(199)], "method": "lpt"},
    ],
)
def test_a_first_plan_compiles_nothing_and_is_the_plan_that_compiled_kernels_make(settings, tmp_path):
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)}
    words = [sys.executable, "-c", SCRIPT, json.dumps(settings)]
    first = json.loads(subprocess.run(words, env=environment, capture_output=True, text=True, check=True).stdout)
    plan = balancer.balance([(i * 7919) % 4000 + 1 for i in range(199)], 8, **settings)
    assert first == [plan.digest(), plan.lower_bound, plan.makespan, 0]


def test_a_kernel_that_is_kept_is_loaded(tmp_path):
    """Not run as Python: what the second process compiles is nothing, and what it has is the machine code."""
    (tmp_path / "kept.py").write_text(
        "from solvers._jit import kernel\n\n@kernel\ndef add(n):\n    for i in range(9):\n"
        "        n += i\n    return n\n"
    )
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        "import solvers._as_python as first\n"
        "if sys.argv[1] == 'at once': first.compile_at_once()\n"
        "from kept import add\n"
        "print(add(1), len(add.overloads), sum(add.stats.cache_hits.values()))\n"
    )
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)}
    told = [
        subprocess.run(
            [sys.executable, "-c", code, way], env=environment, capture_output=True, text=True, check=True
        ).stdout
        for way in ("first", "at once", "first")
    ]
    assert told == ["37 0 0\n", "37 1 0\n", "37 1 1\n"]


@helper
def thrice(n):
    return twice(n) + n


def test_helpers_are_optimized_with_their_kernel_and_python_collects_nothing_meanwhile(turns, monkeypatch):
    seen = []

    def watch(kind):
        optimize = kind._optimize_final_module

        def watched(code):
            seen.append((code.name.split(".")[-1], gc.isenabled()))
            optimize(code)

        monkeypatch.setattr(kind, "_optimize_final_module", watched)

    @kernel
    def both(n):
        return twice(n) + thrice(n)

    turns(both, -1)
    watch(CPUCodeLibrary)  # numba's
    watch(_KernelCode)
    assert both(7) == 35
    assert [one for one in seen if one[0] != "nrt"] == [("both", False)]  # numba's runtime comes with a first kernel
    assert gc.isenabled()
