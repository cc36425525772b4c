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
COLLECT = """
import shutil, sys
from pathlib import Path
import balancer, solvers
from solvers._kernel_cache import KernelCache
balancer.warmup()
for module in [module for name, module in sys.modules.items() if name.split(".")[0] in ("balancer", "solvers")]:
    for kernel in vars(module).values():
        cache = getattr(kernel, "_cache", None)
        if isinstance(cache, KernelCache) and kernel.py_func.__module__ == module.__name__:
            folder = Path(sys.argv[1], module.__name__)
            for kind in ("nbi", "nbc"):
                for file in Path(cache.cache_path).glob(f"{cache._impl.filename_base}.*{kind}"):
                    folder.mkdir(parents=True, exist_ok=True)
                    shutil.copy(file, folder)
"""


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
        kernels = copy / "solvers" / "_kernels"
        subprocess.run([sys.executable, "-c", COLLECT, str(kernels)], cwd=copy, env=environment, check=True)
        words = ["pip", "wheel", "--no-deps", "--wheel-dir", str(wheels), str(copy)]
        subprocess.run([sys.executable, "-m", *words], check=True)


if __name__ == "__main__":
    main()
