"""Build a wheel that brings its kernels: ``make wheel``.

They are compiled for a processor of 2013 (x86-64-v3: AVX2, FMA), which code runs on whatever came later; on other kinds
of processors for the one that this runs on. Whoever installs the wheel elsewhere compiles, as without them.
"""

import argparse
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BASELINE = {
    "NUMBA_CPU_NAME": "x86-64-v3",
    "NUMBA_CPU_FEATURES": "+sse3,+ssse3,+sse4.1,+sse4.2,+popcnt,+cx16,+sahf,+avx,+avx2,+bmi,+bmi2,+f16c,+fma,+lzcnt,"
    "+movbe,+xsave",
}


def main() -> None:
    """Compile all kernels, put them into a copy of the package, and build its wheel."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--wheel-dir", metavar="DIR", default=ROOT / "dist", help="where the wheel is put, else dist")
    wheels = parser.parse_args().wheel_dir
    with tempfile.TemporaryDirectory() as name:
        copy, cache = Path(name, "copy"), Path(name, "cache")
        for package in ("balancer", "solvers"):
            shutil.copytree(ROOT / package, copy / package, ignore=shutil.ignore_patterns("__pycache__"))
        for file in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
            shutil.copy(ROOT / file, copy)
        target = BASELINE if platform.machine() in ("x86_64", "AMD64") else {}
        environment = os.environ | target | {"NUMBA_CACHE_DIR": str(cache), "PYTHONPATH": str(copy)}
        words = [sys.executable, "-c", "import balancer; balancer.warmup()"]
        subprocess.run(words, cwd=copy, env=environment, check=True)
        kernels = copy / "solvers" / "_kernels"
        kernels.mkdir()
        for file in cache.rglob("*.kernel"):
            shutil.copy(file, kernels)
        words = ["pip", "wheel", "--no-deps", "--wheel-dir", str(wheels), str(copy)]
        subprocess.run([sys.executable, "-m", *words], check=True)


if __name__ == "__main__":
    main()
