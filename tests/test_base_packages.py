"""The base packages are enough for what needs no extra, and are imported only by those who need them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
OF_EXTRAS = "ortools", "pandas", "torch", "ray", "fsspec", "s3fs", "jinja2", "matplotlib"


def run_python(code, cwd=ROOT):
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("used", ["balancer.balance", "balancer.orchestrate", "solvers.partition"])
def test_import_is_light(used):
    """All that planning needs is imported when the first of it is asked for."""
    heavy = [*OF_EXTRAS, "scipy", "numba", "pyarrow", "click", "rich", "pydantic"]
    told = run_python(f"import sys, balancer, solvers; {used}; print([n for n in {heavy} if n in sys.modules])")
    assert told == "[]\n"


HIDDEN = f"""
import runpy, sys
from importlib.machinery import PathFinder

class Finder(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.partition(".")[0] in {OF_EXTRAS} else super().find_spec(name, path, target)

sys.meta_path[sys.meta_path.index(PathFinder)] = Finder
runpy.run_path("tools/check_base.py", run_name="__main__")
"""


def test_without_extras_all_else_works_and_errors_name_them():
    """As `.ci/run` checks it in an environment that lacks them."""
    assert run_python(HIDDEN).startswith("base packages alone: the sampler, 6 errors")


LOGS = {
    "log.csv": "open('log.csv', 'w').write('tokens\\n5\\n3\\n 4\\n4.0\\n')",
    "log.jsonl": "open('log.jsonl', 'w').write('{\"tokens\": 5}\\n{\"tokens\": 3}\\n')",
    "log.npy": "import numpy as np; np.save('log.npy', np.array([5, 3, 4, 4]))",
    "log.parquet": "from pyarrow import parquet, table; parquet.write_table(table({'tokens': [5, 3]}), 'log.parquet')",
}
PLANNED = """
import sys
from balancer.cli.main import main
try:
    main(["plan", *{words}, "--ranks", "2", "--batch-per-rank", "1", "--out", "p"])
finally:
    print("pandas" in sys.modules)
"""


@pytest.mark.parametrize("name", LOGS)
def test_planning_a_log_loads_no_pandas(tmp_path, name):
    """It takes as long to load as planning half a million samples, and pyarrow's conversions do so by themselves."""
    run_python(LOGS[name], tmp_path)
    words = [name] if name == "log.npy" else [name, "--length", "tokens"]
    assert run_python(PLANNED.format(words=words), tmp_path).endswith("False\n")
