"""The base packages are enough for what needs no extra, and are imported only by those who need them."""

import ast

import pytest
from compiled import run_python

OF_EXTRAS = "ortools", "pandas", "torch", "ray", "fsspec", "s3fs", "jinja2", "matplotlib"
HEAVY = *OF_EXTRAS, "scipy", "numba", "pyarrow", "click", "rich", "pydantic", "networkx"

# One process that cannot import what extras bring, and is told at each stage what there was.
STAGES = f"""
import os, runpy, sys
from importlib.machinery import PathFinder

asked = []

class Finder(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name.partition(".")[0] not in {OF_EXTRAS}:
            return super().find_spec(name, path, target)
        asked.append(name)

sys.meta_path[sys.meta_path.index(PathFinder)] = Finder

import solvers
solvers.partition
print([name for name in {(*HEAVY, "balancer")} if name in sys.modules] + asked)
import balancer
balancer.balance, balancer.orchestrate
print([name for name in {HEAVY} if name in sys.modules] + asked)

import numpy
from pyarrow import parquet, table
from balancer.cli.main import main

root = os.getcwd()
os.chdir(FOLDER)
open("log.csv", "w").write("tokens\\n5\\n3\\n 4\\n4.0\\n")
open("log.jsonl", "w").write('{{"tokens": 5}}\\n{{"tokens": 3}}\\n')
numpy.save("log.npy", numpy.array([5, 3, 4, 4]))
parquet.write_table(table({{"tokens": [5, 3]}}), "log.parquet")
asked.clear()
for log in "log.csv", "log.jsonl", "log.npy", "log.parquet":
    length = [] if log == "log.npy" else ["--length", "tokens"]
    try:
        main(["plan", log, *length, "--ranks", "2", "--batch-per-rank", "1", "--out", log.replace(".", "-")])
    except SystemExit as ended:
        assert not ended.code, ended.code
print([name for name in asked if name == "pandas"])
os.chdir(root)
runpy.run_path("tools/check_base.py", run_name="__main__")
"""


@pytest.fixture(scope="module")
def stages(tmp_path_factory):
    """What each stage has to say."""
    code = STAGES.replace("FOLDER", repr(str(tmp_path_factory.mktemp("base"))))
    *said, last = run_python(code).splitlines()
    return [*(ast.literal_eval(line) for line in said if line.startswith("[")), last]


@pytest.mark.parametrize("package", [0, 1], ids=["solvers", "balancer"])
def test_import_is_light(stages, package):
    """All that planning needs is imported when the first of it is asked for."""
    assert stages[package] == []


def test_planning_a_log_loads_no_pandas(stages):
    """It takes as long to load as planning half a million samples, and pyarrow's conversions do so by themselves."""
    assert stages[2] == []


def test_without_extras_all_else_works_and_errors_name_them(stages):
    """As `.ci/run` checks it in an environment that lacks them."""
    assert stages[3].startswith("base packages alone: the sampler, 6 errors")
