"""Compiled functions and plain Python: helpers made callable from a test, and code run either way."""

import os
import subprocess
import sys
from pathlib import Path

import solvers
from solvers._jit import kernel

__all__ = ["from_python", "run_python"]


def from_python(function):
    """Compile a helper of `solvers`, which is Python by itself."""
    return kernel(function).compiled


def run_python(code: str, package_root: Path = Path(solvers.__file__).parents[1], **environment: str) -> str:
    """Run `code` in a process of its own, with the package below `package_root`; return its standard output."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("NUMBA_", "COV"))}
    done = subprocess.run(
        [sys.executable, "-W", "error::RuntimeWarning", "-c", code],
        env=inherited | {"PYTHONPATH": str(package_root)} | environment,
        cwd=package_root,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout
