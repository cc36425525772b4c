"""Try the oldest numba that pyproject.toml names, the pinned one and the newest there is: ``make test-numba``.

Each in an environment of its own, with the pinned versions of all else but NumPy, which an old numba wants older.
"""

import re
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TESTS = (
    "tests/test_jit.py",
    "tests/test_kernels.py",
    "tests/test_kernel_cache.py",
    "tests/golden",
    "-k",
    "not executor",
)
HEAVY = "numba|numpy|llvmlite|torch"


def main() -> None:
    """Install each, and run the kernels' tests and the golden digests."""
    pinned = (ROOT / "constraints.txt").read_text()
    oldest = re.search(r'"numba>=([\d.]+)"', (ROOT / "pyproject.toml").read_text())
    assert oldest is not None
    asked = {
        "oldest": f"numba=={oldest[1]}.*",
        "pinned": re.search(r"^numba==.*", pinned, re.MULTILINE)[0],
        "newest": "numba",
    }
    failed = []
    for name, numba in asked.items():
        folder = ROOT / "out" / "numba" / name
        venv.create(folder, with_pip=True, clear=True)
        constraints = folder / "constraints.txt"
        constraints.write_text(pinned if name == "pinned" else re.sub(rf"(?m)^({HEAVY})==.*\n", "", pinned))
        python = folder / ("Scripts" if sys.platform == "win32" else "bin") / "python"
        words = ["install", "--quiet", "--constraint", str(constraints), "--editable", f"{ROOT}[test]", numba]
        subprocess.run([python, "-m", "pip", *words], cwd=ROOT, check=True)
        shown = "import numba, numpy; print('numba', numba.__version__, 'numpy', numpy.__version__, flush=True)"
        subprocess.run([python, "-c", shown], check=True)
        failed += (
            [name] if subprocess.run([python, "-m", "pytest", "-q", *TESTS], cwd=ROOT, check=False).returncode else []
        )
    sys.exit(f"tests fail with the {', '.join(failed)} numba" if failed else 0)


if __name__ == "__main__":
    main()
