"""Doctests of the executor need torch, which is optional; scripts that import trainers run in their own processes."""

from importlib.metadata import version
from importlib.util import find_spec

from solvers._jit import compile_at_once

collect_ignore_glob = [
    "tests/integrations/run_*",
    "tests/toy_cut.py",  # it registers itself, once
    "docs/*.py",
    *([] if find_spec("torch") else ["balancer/executor/*"]),
    # which refuses releases that were not tried
    *([] if find_spec("torch") and version("torch").startswith("2.13.") else ["balancer/compat/torch_context.py"]),
]
compile_at_once()  # kernels are tested as they are after their first calls
