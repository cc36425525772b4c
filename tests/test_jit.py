"""Kernels: Python before they are compiled, with the same results; and where their machine code is kept."""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from another_user import another_user, open_folder
from compiled import run_python

import solvers._jit as jit
from solvers._jit import helper, kernel

pytestmark = pytest.mark.skipif(os.environ.get("NUMBA_DISABLE_JIT") == "1", reason="nothing is compiled")

# --- Python first ----------------------------------------------------------------------------------------------------


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
    monkeypatch.setattr(jit, "_place", lambda: tmp_path)
    monkeypatch.setattr(jit, "_folder", lambda: None)
    monkeypatch.setattr(jit, "LIMIT", 200)
    return kernel


@pytest.fixture
def forgotten(monkeypatch):
    """What this process knows of numba and of the folder is found out anew, and once more for later tests."""
    known = jit._numba, jit._place, jit._folder, jit._warn
    for each in known:
        each.cache_clear()
    monkeypatch.setattr(jit, "_at_once", True)
    yield
    for each in known:
        each.cache_clear()


def test_a_kernel_runs_as_python_until_it_has_had_its_numbers(fresh):
    summing, values, found = fresh(summed), np.arange(5), np.zeros(1, dtype=np.int64)
    for turn in range(1, 5):  # 6 numbers, 10 turns each, and the call
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


@pytest.mark.parametrize(
    ("turns", "work", "compiled"), [(None, 190, 0), (None, 200, 1), (1, 200, 0), (20, 190, 0), (20, 200, 1)]
)
def test_a_call_counts_as_its_work_or_as_its_numbers_where_those_are_fewer_turns(fresh, turns, work, compiled):
    search = fresh(turns=turns)(worked)
    assert search(np.arange(100), work) == 100 + work
    assert len(search.signatures) == compiled


FIRST_PLANS = """
import sys, balancer

def plans():
    lengths, homes = [(i * 7919) % 4000 + 1 for i in range(199)], [i % 8 for i in range(199)]
    for asked in ({}, {"cost": "padded"}, {"cut": balancer.MicroBatches(16000)},
                  {"ranks_per_node": 4, "home_rank": homes, "method": "lpt"}):
        plan = balancer.balance(lengths, 8, **asked)
        yield plan.digest(), plan.lower_bound, plan.makespan
"""


def test_first_plans_compile_nothing_and_are_those_that_compiled_kernels_make(monkeypatch, tmp_path):
    """They do not even wait for numba to be imported."""
    seen = {name: value for name, value in os.environ.items() if name.startswith("COV")}  # the lines of kernels
    code = f"{FIRST_PLANS}\nprint([*plans(), 'numba' in sys.modules])"
    told = run_python(code, NUMBA_CACHE_DIR=str(tmp_path), **seen)
    monkeypatch.setattr(jit, "_at_once", True)
    names = {}
    exec(FIRST_PLANS, names)
    assert told == f"{[*names['plans'](), False]}\n"
    assert not list(tmp_path.iterdir())


def test_without_numba_all_is_python_and_it_is_said_once(forgotten, monkeypatch):
    monkeypatch.setitem(sys.modules, "numba", None)
    summing, found = kernel(summed), np.zeros(1, dtype=np.int64)
    with pytest.warns(UserWarning, match="numba is not installed: plans are the same") as told:
        sums = [summing(np.arange(5), found) for _ in range(3)]
    assert (sums, found[0], len(told)) == ([(20, True, 4.0)] * 3, 15, 1)
    assert summing.signatures == []


def test_where_numba_is_switched_off_all_is_python(forgotten, monkeypatch):
    monkeypatch.setattr("numba.config.DISABLE_JIT", 1)
    summing = kernel(summed)
    assert summing(np.arange(5), np.zeros(1, dtype=np.int64)) == (20, True, 4.0)
    assert summing.signatures == []


# --- where nothing can be kept ---------------------------------------------------------------------------------------


def a_file_in_its_place(kept):
    kept.touch()


def others_may_write_to_it(kept):
    jit._place().mkdir(parents=True)
    jit._place().chmod(0o777)


def the_disk_is_full(kept):
    resource = pytest.importorskip("resource")
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))


@pytest.mark.parametrize(
    ("so_that", "words"),
    [
        (a_file_in_its_place, "Not a directory.* Name a folder of your own in NUMBA_CACHE_DIR"),
        (others_may_write_to_it, "another user owns it or may write to it"),
        (the_disk_is_full, "File too large"),
    ],
)
def test_where_kernels_cannot_be_kept_one_warning_says_so(forgotten, monkeypatch, tmp_path, so_that, words):
    resource = pytest.importorskip("resource")
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "kept"))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        so_that(tmp_path / "kept")
        made = [kernel(worked), kernel(worked)]
        with pytest.warns(UserWarning, match=words) as told:
            sums = [each(np.arange(3), 4) for each in made]
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert (sums, len(told)) == ([7, 7], 1)
    assert [len(each.signatures) for each in made] == [1, 1]
    assert not list(tmp_path.rglob("*.nbi"))


def test_the_folder_of_another_user_is_not_looked_into(forgotten, monkeypatch):
    """Where two share NUMBA_CACHE_DIR."""
    kernel(lambda n: n)(1)  # which imports all that another user may not read
    with open_folder() as shared:
        monkeypatch.setenv("NUMBA_CACHE_DIR", str(shared))
        for each in jit._place, jit._folder:
            each.cache_clear()
        os.makedirs(jit._place(), 0)
        made = kernel(worked)
        with another_user(), pytest.warns(UserWarning, match="Name a folder of your own") as told:
            found = made(np.arange(3), 4)
    assert (found, len(told), len(made.signatures)) == (7, 1, 1)


def test_a_kernel_without_a_file_is_compiled_and_not_kept(forgotten, monkeypatch, tmp_path):
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    made = kernel(eval("lambda n: n + 1"))
    assert made(1) == 2
    assert len(made.signatures) == 1
    assert not list(tmp_path.rglob("*.nbi"))


# --- kept on disk ----------------------------------------------------------------------------------------------------

# A package of this name that has kernels of its own.
FILES = {
    "__init__.py": "",
    "_jit.py": Path(jit.__file__).read_text(),
    "low.py": "from solvers._jit import helper\n\n@helper\ndef add(n):\n    return n + 1\n",
    "high.py": "from solvers._jit import kernel\nfrom solvers.low import add\n\n"
    "@kernel\ndef once(n):\n    return add(n)\n\n@kernel\ndef thrice(n):\n    return add(add(add(n)))\n",
}
CALLS = """
import json, warnings
from solvers._jit import compile_at_once
from solvers.high import once, thrice
{before}
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    found = [once(1), thrice(1)]
import sys
compiled = [] if "numba" not in sys.modules else [
    [len(each.signatures), sum(each.compiled.stats.cache_hits.values()) if each.signatures else 0]
    for each in (once, thrice)
]
print(json.dumps([found, compiled, [str(each.message) for each in told]]))
"""
PYTHON, COMPILED, LOADED = [], [[1, 0], [1, 0]], [[1, 1], [1, 1]]
AT_ONCE = "compile_at_once()"


@pytest.fixture
def package(tmp_path):
    """Its folder, and a function that calls its kernels in a process of its own."""
    for name, text in FILES.items():
        (tmp_path / "solvers" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "solvers" / name).write_text(text)

    def call(before=AT_ONCE, **environment):
        given = {"NUMBA_CACHE_DIR": str(tmp_path / "kept"), "PYTHONDONTWRITEBYTECODE": "1"} | environment
        return json.loads(run_python(CALLS.format(before=before), tmp_path, **given))

    call.folder = tmp_path
    call.kept = lambda: sorted((tmp_path / "kept").iterdir())
    return call


def test_what_is_kept_is_loaded_as_long_as_sources_are_the_same(package):
    assert package(before="") == [[2, 4], PYTHON, []]
    assert package() == [[2, 4], COMPILED, []]
    (folder,) = package.kept()
    assert folder.stat().st_mode & 0o777 == 0o700
    assert not list((package.folder / "solvers").rglob("*.nbi"))
    os.utime(folder, (1e9, 1e9))
    assert package(before="") == [[2, 4], LOADED, []]
    assert time.time() - folder.stat().st_mtime < 3600  # it is marked as used
    # A new release over an old cache must not run old code: ranks would disagree on the plan.
    low = package.folder / "solvers" / "low.py"
    low.write_text(low.read_text().replace("n + 1", "n + 2"))
    for name, days in {"seqbalancer-old": 30, "seqbalancer-new": 1, "other": 30}.items():
        (package.folder / "kept" / name / "below").mkdir(parents=True)
        os.utime(package.folder / "kept" / name, (time.time() - days * 86_400,) * 2)
    assert package() == [[3, 7], COMPILED, []]
    # Others may be of an installation that is in use, unless nobody has used them for days.
    assert {path.name for path in package.kept()} >= {folder.name, "seqbalancer-new", "other"}
    assert len(package.kept()) == 4


def test_processes_that_start_together_do_not_harm_one_another(package):
    given = os.environ | {"NUMBA_CACHE_DIR": str(package.folder / "kept"), "PYTHONPATH": str(package.folder)}
    words = [sys.executable, "-c", CALLS.format(before=AT_ONCE)]
    started = [
        subprocess.Popen(words, env=given, cwd=package.folder, stdout=subprocess.PIPE, text=True) for _ in range(3)
    ]
    told = [json.loads(each.communicate(timeout=120)[0]) for each in started]
    assert [(found, warned) for found, _, warned in told] == [([2, 4], [])] * 3
    assert package() == [[2, 4], LOADED, []]


def test_machine_code_for_another_processor_is_not_asked_for(package):
    package(NUMBA_CPU_NAME="generic")
    assert package(before="") == [[2, 4], [[0, 0], [0, 0]], []]
    assert package(before="", NUMBA_CPU_NAME="generic") == [[2, 4], LOADED, []]


def test_the_folder_of_others_and_the_place_where_numba_keeps_theirs_stay_as_they_are(package):
    told = "import numba\nnumba.config.CACHE_DIR = 'theirs'\ncompile_at_once()"
    code = CALLS.format(before=told) + "\nprint(numba.config.CACHE_DIR)"
    kept = package.folder / "kept"
    assert run_python(code, package.folder, NUMBA_CACHE_DIR=str(kept)).splitlines()[-1] == "theirs"
    assert [path.name[:12] for path in kept.iterdir()] == ["seqbalancer-"]
    for name in ("XDG_CACHE_HOME", "HOME"):
        package(**{"NUMBA_CACHE_DIR": "", "XDG_CACHE_HOME": "", name: str(package.folder / name)})
    assert list((package.folder / "XDG_CACHE_HOME").glob("seqbalancer-*/*"))
    assert list((package.folder / "HOME" / ".cache").glob("seqbalancer-*/*"))


def test_a_file_that_is_cut_off_is_no_error(package):
    """As a machine that lost power leaves it: files of length 0."""
    package()
    for file in (package.folder / "kept").rglob("*.nb?"):
        os.truncate(file, 0)
    found, _, told = package()
    assert found == [2, 4]
    assert len(told) == 1
    assert "remove" in told[0]
    shutil.rmtree(package.kept()[0])
    assert package() == [[2, 4], COMPILED, []]
