"""A wheel that brings its kernels, installed in a fresh place, compiles nothing."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
ALL = """
import json
from numba.core import event
import balancer, solvers
compiled = []
with event.install_timer("numba:compile", compiled.append):
    balancer.warmup()
print(json.dumps([solvers.__file__, len(compiled)]))
"""


@pytest.mark.nightly
@pytest.mark.skipif(os.environ.get("NUMBA_DISABLE_JIT") == "1", reason="nothing is compiled")
def test_a_wheel_that_brings_its_kernels_compiles_nothing(tmp_path):
    subprocess.run([sys.executable, ROOT / "tools" / "build_wheel.py", "--wheel-dir", tmp_path / "dist"], check=True)
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    fresh = tmp_path / "fresh"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", fresh, wheel]
    subprocess.run(pip, check=True)
    environment = os.environ | {"PYTHONPATH": str(fresh), "NUMBA_CACHE_DIR": str(tmp_path / "empty")}

    words = [sys.executable, "-c", ALL]
    done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    file, compiled = json.loads(done.stdout)
    assert Path(file).is_relative_to(fresh)
    assert compiled == 0
