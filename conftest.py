"""Doctests of the executor need torch, which is optional; scripts that import trainers run in their own processes."""

from importlib.util import find_spec

from solvers._jit import compile_at_once

collect_ignore_glob = [
    "tests/integrations/run_*",
    "tests/toy_cut.py",  # it registers itself, once
    "docs/*.py",
    *([] if find_spec("torch") else ["balancer/executor/*"]),
]
compile_at_once()  # kernels are tested as they are after their first calls
