"""Doctests of the executor need torch, which is optional; scripts that import trainers run in their own processes."""

from importlib.util import find_spec

collect_ignore_glob = ["tests/integrations/run_*", *([] if find_spec("torch") else ["balancer/executor/*"])]
