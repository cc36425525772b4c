"""Try a plain installation: what needs no extra works, and what needs one names it.

Run: PYTHON tools/check_base.py, with the Python of an environment that has the base packages alone; `.ci/run` does.
"""

import doctest
import importlib
import random
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import balancer
import solvers
from balancer.compat import BalancedBatchSampler
from balancer.offline.ray_executor import RayExecutor

ROOT = Path(__file__).resolve().parent.parent
LENGTHS = [100 + 37 * i % 900 for i in range(64)]
BROUGHT = ("ortools", "pandas", "torch", "ray", "fsspec", "jinja2", "matplotlib")
HARD = [random.Random(i).randrange(10**6) for i in range(90)]  # three of them a group: no bound proves what is found
NEEDS: dict[str, Callable[[], object]] = {
    "exact": lambda: solvers.partition(HARD, 30, "exact", time_budget=1),
    "pandas": lambda: balancer.balance(LENGTHS, 4).to_pandas(),
    "torch": lambda: importlib.import_module("balancer.executor"),
    "ray": RayExecutor,
    "remote": lambda: balancer.load_plan("s3://bucket/plan.parquet"),
    "plot": lambda: balancer.plan_log({"tokens": LENGTHS}, num_ranks=4, batch_per_rank=4).to_html("plan.html"),
}


def check_sampler() -> None:
    """Refuse a sampler that does not give every sample to one rank, or that needs PyTorch."""
    ranks = [BalancedBatchSampler(LENGTHS, 4, num_replicas=4, rank=rank) for rank in range(4)]
    for epoch in range(2):
        for rank in ranks:
            rank.set_epoch(epoch)
        if sorted(sample for rank in ranks for batch in rank for sample in batch) != list(range(64)):
            sys.exit(f"epoch {epoch} of the sampler does not hold every sample once")


def check_extras() -> None:
    """Refuse an error that does not say what to install."""
    for extra, use in NEEDS.items():
        try:
            use()
        except (ImportError, ValueError) as error:
            if f'pip install "seqbalancer[{extra}]"' not in str(error):
                sys.exit(f"what needs the extra {extra} does not name it: {error}")
        else:
            sys.exit(f"nothing misses the extra {extra}")


if __name__ == "__main__":
    if there := [name for name in BROUGHT if find_spec(name)]:
        sys.exit(f"not the base packages alone: {', '.join(there)}")
    check_sampler()
    check_extras()
    failed, tried = doctest.testfile(str(ROOT / "README.md"), module_relative=False)
    if failed or not tried:
        sys.exit(f"{failed} of {tried} examples of the README failed")
    print(f"base packages alone: the sampler, {len(NEEDS)} errors, {tried} examples of the README")
