"""A whole warm-up compiles every function for one signature."""

import json
import os
import subprocess
import sys

import pytest

TWICE = {
    "solvers.pipeline._kernels.durations_of": 2,  # of loads that a search changes, and of those that stay
    "solvers._helper_code._shapes_that_differ.<locals>.said": 2,  # of slices of rows, and of tables
}
"""Functions that are compiled for several signatures: how many, and why."""
ALL = """
import collections, json
from numba.core import event
import balancer

class Counted(event.Listener):
    def __init__(self):
        self.of = collections.Counter()

    def on_start(self, event):
        function = event.data["dispatcher"].py_func
        self.of[f"{function.__module__}.{function.__qualname__}"] += 1

    def on_end(self, event):
        pass

counted = Counted()
with event.install_listener("numba:compile", counted):
    balancer.warmup()
print(json.dumps({name: count for name, count in counted.of.items() if name.startswith(("balancer.", "solvers."))}))
"""


@pytest.mark.nightly
@pytest.mark.skipif(os.environ.get("NUMBA_DISABLE_JIT") == "1", reason="nothing is compiled")
def test_every_function_is_compiled_for_one_signature(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", ALL],
        env=os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    times = json.loads(done.stdout)
    assert len(times) > 200
    assert {name: count for name, count in times.items() if count > 1} == TWICE
