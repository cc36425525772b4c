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
from another_user import open_folder
from compiled import run_python

import balancer
import solvers
import solvers._jit as jit
from solvers._jit import helper, kernel

pytestmark = pytest.mark.skipif(os.environ.get("NUMBA_DISABLE_JIT") == "1", reason="nothing is compiled")

SCRIPT = """
import json, sys
from numba.core import event
import balancer
compiled = []
with event.install_timer("numba:compile", compiled.append):
    given = json.loads(sys.argv[1])
    cut = {"cut": balancer.MicroBatches(given["cut"])} if "cut" in given else {}
    plan = balancer.balance([(i * 7919) % 4000 + 1 for i in range(199)], 8, **given | cut)
print(json.dumps([plan.digest(), plan.lower_bound, plan.makespan, len(compiled)]))
"""

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


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"cost": "padded"},
        {"cut": 16000},
        {"ranks_per_node": 4, "home_rank": [i % 8 for i in range(199)], "method": "lpt"},
    ],
)
def test_a_first_plan_compiles_nothing_and_is_the_plan_that_compiled_kernels_make(settings, tmp_path):
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)}
    words = [sys.executable, "-c", SCRIPT, json.dumps(settings)]
    first = json.loads(subprocess.run(words, env=environment, capture_output=True, text=True, check=True).stdout)
    cut = {"cut": balancer.MicroBatches(settings["cut"])} if "cut" in settings else {}
    plan = balancer.balance([(i * 7919) % 4000 + 1 for i in range(199)], 8, **settings | cut)
    assert first == [plan.digest(), plan.lower_bound, plan.makespan, 0]
    assert not list(tmp_path.iterdir())


def test_a_small_plan_does_not_wait_for_numba_to_be_imported(tmp_path):
    code = "import sys, balancer; balancer.balance([3, 2, 1], 2); print('numba' in sys.modules)"
    assert run_python(code, NUMBA_CACHE_DIR=str(tmp_path)) == "False\n"


@pytest.mark.parametrize("absent", ["sys.modules['numba'] = None", "import os; os.environ['NUMBA_DISABLE_JIT'] = '1'"])
def test_without_numba_plans_are_the_same_and_it_is_said_once(absent):
    code = f"""
import sys, warnings
{absent}
import balancer
from solvers._jit import compile_at_once
compile_at_once()
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    plan = balancer.balance([(i * 7919) % 4000 + 1 for i in range(199)], 8, 4, [i % 8 for i in range(199)])
print(plan.digest(), [str(each.message)[:22] for each in told])
"""
    plan = balancer.balance([(i * 7919) % 4000 + 1 for i in range(199)], 8, 4, [i % 8 for i in range(199)])
    told = ["numba is not installed"] if "modules" in absent else []
    assert run_python(code) == f"{plan.digest()} {told}\n"


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


def test_what_is_kept_is_loaded_and_not_run_as_python(package):
    assert package(before="") == [[2, 4], PYTHON, []]
    assert package() == [[2, 4], COMPILED, []]
    assert package(before="") == [[2, 4], LOADED, []]
    (folder,) = package.kept()
    assert folder.stat().st_mode & 0o777 == 0o700
    assert not list((package.folder / "solvers").rglob("*.nbi"))


def test_a_helper_in_another_file_changes_and_so_does_the_result(package):
    """A new release over an old cache must not run old code: ranks would disagree on the plan."""
    assert package()[0] == [2, 4]
    low = package.folder / "solvers" / "low.py"
    low.write_text(low.read_text().replace("n + 1", "n + 2"))
    assert package() == [[3, 7], COMPILED, []]
    assert len(package.kept()) == 2  # the other may be of an installation that is in use


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


def test_folders_of_sources_that_are_gone_are_removed_if_nobody_has_used_them_for_days(package):
    days = {"seqbalancer-old": 30, "seqbalancer-new": 1, "other": 30}
    for name, count in days.items():
        (package.folder / "kept" / name / "below").mkdir(parents=True)
        os.utime(package.folder / "kept" / name, (time.time() - count * 86_400,) * 2)
    package()
    assert {path.name for path in package.kept()} >= {"seqbalancer-new", "other"}
    assert len(package.kept()) == 3


def test_a_folder_is_marked_as_used(package):
    package()
    (folder,) = package.kept()
    os.utime(folder, (1e9, 1e9))
    package()
    assert time.time() - folder.stat().st_mtime < 3600


@pytest.mark.parametrize(
    ("before", "words"),
    [
        pytest.param("open({kept!r}, 'w').close()", "Not a directory", id="a file in its place"),
        pytest.param(
            "import os; from solvers import _jit; os.makedirs(_jit._place()); os.chmod(_jit._place(), 0o777)",
            "another user owns it or may write to it",
            id="others may write to it",
        ),
        pytest.param(
            "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))", "File too large", id="disk full"
        ),
    ],
)
def test_where_kernels_cannot_be_kept_one_warning_says_so(package, before, words):
    pytest.importorskip("resource")
    before = before.format(kept=str(package.folder / "kept"))
    found, compiled, told = package(before=f"{before}\n{AT_ONCE}")
    assert (found, compiled) == ([2, 4], COMPILED)
    assert [words in each for each in told] == [True]
    assert not list(package.folder.rglob("*.nbi"))


def test_the_folder_of_another_user_is_not_looked_into(package):
    """Where two share NUMBA_CACHE_DIR."""
    with open_folder() as shared:
        before = f"""
import os, numba
from solvers import _jit
numba.njit(lambda n: n)(1)  # which imports all that another user may not read
os.environ["NUMBA_CACHE_DIR"] = {str(shared)!r}
os.makedirs(_jit._place(), 0)
if os.geteuid() == 0:
    os.seteuid(65534)
{AT_ONCE}"""
        found, compiled, told = package(before=before)
    assert (found, compiled) == ([2, 4], COMPILED)
    assert len(told) == 1
    assert "Name a folder of your own" in told[0]


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


def test_a_kernel_without_a_file_is_compiled_and_not_kept(tmp_path):
    code = "import solvers._jit as j; j.compile_at_once(); print(j.kernel(eval('lambda n: n + 1'))(1))"
    assert run_python(code, Path(solvers.__file__).parents[1], NUMBA_CACHE_DIR=str(tmp_path)) == "2\n"
