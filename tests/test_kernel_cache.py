"""Compiled kernels are read where they may not be written, and such for a processor that has less than this one."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from another_user import another_user, open_folder

from solvers._kernel_cache import _runs_on

pytestmark = pytest.mark.skipif(os.environ.get("NUMBA_DISABLE_JIT") == "1", reason="nothing is compiled")

ROOT = Path(__file__).parent.parent
KERNEL = "from solvers._jit import kernel\n\n@kernel\ndef add(n):\n    return n + 1\n"
CALL = """
import sys
sys.path.insert(0, {folder!r})
import numba
import solvers._jit
import solvers._kernel_cache
from another_user import another_user
solvers._jit.compile_at_once()
numba.njit(lambda n: n)(1)  # reads what another user may not be able to, in this checkout
solvers._kernel_cache._stamp()
with another_user() if {another} else open("/dev/null"):
    from kept import add
    add(0)
assert add(1) == 2
print(sum(add.compiled.stats.cache_hits.values()))
"""
OLDER = {"NUMBA_CPU_NAME": "x86-64-v2", "NUMBA_CPU_FEATURES": "+sse3,+ssse3,+sse4.1,+sse4.2,+popcnt,+cx16"}
NEVER = {"NUMBA_CPU_NAME": "x86-64-v2", "NUMBA_CPU_FEATURES": "+sse3,+fma4,+xop"}


def loaded(folder: Path, cache: Path, another: bool = False, **environment: str) -> bool:
    """Whether a fresh process that calls the kernel, as another user perhaps, finds it compiled."""
    kept = {
        "NUMBA_CACHE_DIR": str(cache),
        "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests'}",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    kept |= {"HOME": os.devnull, "XDG_CACHE_HOME": os.devnull, "IPYTHONDIR": os.devnull}
    done = subprocess.run(
        [sys.executable, "-c", CALL.format(folder=str(folder), another=another)],
        env=os.environ | kept | environment,
        cwd="/",
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout == "1\n"


def test_a_folder_that_may_only_be_read():
    with open_folder() as folder:
        (folder / "kept.py").write_text(KERNEL)
        cache = folder / "cache"
        assert not loaded(folder, cache)
        for path in (cache, *cache.rglob("*"), folder):
            path.chmod(0o555)
        with another_user():
            assert not os.access(cache, os.W_OK, effective_ids=True)
        assert loaded(folder, cache, another=True)
        (folder / "kept.py").chmod(0o755)
        (folder / "kept.py").write_text(KERNEL + "# changed\n")
        assert not loaded(folder, cache, another=True)


@pytest.mark.skipif(sys.platform != "linux" or os.uname().machine != "x86_64", reason="names of x86-64")
def test_machine_code_for_a_lesser_processor_is_used_and_for_another_is_not(tmp_path):
    (tmp_path / "kept.py").write_text(KERNEL)
    assert not loaded(tmp_path, tmp_path / "older", **OLDER)
    assert loaded(tmp_path, tmp_path / "older")
    assert not loaded(tmp_path, tmp_path / "never", **NEVER)
    assert loaded(tmp_path, tmp_path / "never", **NEVER)  # there it is, for whom it is
    assert not loaded(tmp_path, tmp_path / "never")


@pytest.mark.parametrize(
    ("features", "system", "runs"),
    [
        ("+a,+b", "linux", True),
        ("+a,-c", "linux", True),
        ("+c", "linux", False),
        ("", "linux", False),
        ("+a", "mac", False),
    ],
)
def test_what_runs_on_a_host(features, system, runs):
    assert _runs_on((system, "old", features), ("linux", "new", "+a,+b,-c")) == runs


def test_what_a_host_compiled_itself_runs_on_it():
    assert _runs_on(("linux", "new", ""), ("linux", "new", ""))
