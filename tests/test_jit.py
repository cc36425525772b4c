"""Kernels run as Python before they are compiled: up to a limit, with the same results, not if kept; and how."""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from compiled import run_python

import balancer
import solvers
import solvers._jit as jit
from solvers._jit import TURNS, helper, kernel

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


@helper
def twice(n):
    return n + n


def summed(values, found):
    total, largest = np.int64(0), np.int32(0)
    for i in range(len(values)):
        found[0] += 1
        total += twice(values[i])
        largest = max(largest, np.int32(values[i]))
    return total, largest > 3, float(largest)


def worked(values, work):
    return len(values) + work


@pytest.fixture
def fresh(monkeypatch, tmp_path):
    """Make kernels that no cache has, in a process that has not been told to compile at once."""
    monkeypatch.setattr(jit, "_at_once", False)
    monkeypatch.setattr(jit, "folders", lambda: [tmp_path])
    monkeypatch.setattr(jit, "LIMIT", 66)
    return kernel


def test_a_kernel_runs_as_python_until_it_has_had_its_numbers(fresh):
    summing, values, found = fresh(summed), np.arange(5), np.zeros(1, dtype=np.int64)
    for turn in range(1, 5):  # 6 numbers, 3 turns each, and the call
        told = summing(values, found)
        assert told == (20, True, 4.0)
        assert [type(value) for value in told] == [int, bool, float]
        assert found[0] == 5 * turn
        assert len(summing.signatures) == (turn == 4)
    assert summing(np.arange(2), found) == (2, False, 1.0)  # for good
    assert found[0] == 22


def test_python_wraps_around_as_machine_code_does_and_says_nothing(fresh):
    doubling, large = fresh(lambda values: values[0] + values[0]), np.array([2**62])
    python = doubling(large)
    jit.compile_at_once()
    assert (python, doubling(large)) == (-(2**63), -(2**63))
    assert len(doubling.signatures) == 1


@pytest.mark.parametrize(("work", "compiled"), [(60, 0), (70, 1)])
def test_a_search_counts_the_work_that_it_may_do(fresh, work, compiled):
    search = fresh(worked)
    assert search(np.arange(1000), work) == 1000 + work
    assert len(search.signatures) == compiled


def test_a_kernel_that_is_kept_is_loaded(tmp_path):
    """Not run as Python: what the second process has is the machine code, which it did not compile."""
    (tmp_path / "kept.py").write_text("from solvers._jit import kernel\n\n@kernel\ndef add(n):\n    return n + 1\n")
    code = """
import sys
sys.path.insert(0, {folder!r})
import solvers._jit
if {at_once}:
    solvers._jit.compile_at_once()
from kept import add
print(add(1), len(add.signatures), sum(add.compiled.stats.cache_hits.values()))
"""
    told = [
        run_python(code.format(folder=str(tmp_path), at_once=at_once), NUMBA_CACHE_DIR=str(tmp_path))
        for at_once in (False, True, False)
    ]
    assert told == ["2 0 0\n", "2 1 0\n", "2 1 1\n"]


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


def _decorated(name):
    """Yield names of functions with a decorator of that name, in this whole package."""
    for file in Path(solvers.__file__).parent.rglob("*.py"):
        for node in ast.parse(file.read_text()).body:
            if isinstance(node, ast.FunctionDef) and any(ast.unparse(one) == name for one in node.decorator_list):
                module = ".".join(("solvers", *file.relative_to(Path(solvers.__file__).parent).with_suffix("").parts))
                yield f"{module}.{node.name}"


def test_turns_are_of_kernels_that_there_are():
    assert TURNS.keys() <= {*_decorated("kernel"), "solvers.partitioning.bin_completion.decide"}


WITHOUT = """
import sys
import numba.core.caching, numba.core.compiler
numba.njit(lambda n: n)(1)  # which imports all that needs them
{gone}
from solvers._jit import compile_at_once
compile_at_once()
sys.path.insert(0, {folder!r})
from kept import called, add
print(called(), type(add.compiled._cache).__name__ if hasattr(add.compiled, "_cache") else None)
"""
KEPT = {
    "one of its own": "from solvers._jit import kernel\n\n@kernel\ndef add(n):\n    return n + 1\n"
    "def called():\n    return add(5)\n",
    "solvers": "import solvers\nfrom solvers.partitioning.lpt import _lpt_rounds as add\n"
    "def called():\n    return int(solvers.lpt([6, 5, 1], 2).makespan)\n",
}


@pytest.mark.parametrize(
    ("gone", "kernels"),
    [
        ("del numba.core.caching.NullCache", "one of its own"),
        ("del numba.core.compiler.CompileResult._rebuild", "solvers"),
    ],
)
def test_without_names_that_numba_does_not_document_its_own_cache_is_used(gone, kernels, tmp_path):
    (tmp_path / "kept.py").write_text(KEPT[kernels])
    told = run_python(WITHOUT.format(gone=gone, folder=str(tmp_path)), NUMBA_CACHE_DIR=str(tmp_path))
    assert told == "6 FunctionCache\n"
    assert list(tmp_path.rglob("*.nbi"))
