"""What the first calls of a fresh machine cost: processor seconds and kernels compiled, each with an empty cache.

    python benchmarks/cold_start.py                     # this checkout
    python benchmarks/cold_start.py --against 55fd994   # and the ratio to another commit, in turns

Before each, a process compiles one small fixed function with numba alone; ratios are of times in units of that, so that
machines, and minutes on a noisy one, compare.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parent.parent
LENGTHS = "[(i * 7919) % 4000 + 1 for i in range(199)]"
HOMES = "[i % 16 for i in range(199)]"
PLAN = ["plan", str(ROOT / "data" / "omni_mix_dev.parquet"), "--ranks", "64", "--ranks-per-node", "8",
        "--batch-per-rank", "16", "--length", "text_tokens+image_tokens+audio_tokens"]  # fmt: skip
CASES = {
    "import": "import balancer; balancer.balance",
    "first balance": f"import balancer; balancer.balance({LENGTHS}, 8)",
    "with homes": f"import balancer; balancer.balance({LENGTHS}, 16, 8, {HOMES})",
    "with micro-batches": f"import balancer; balancer.balance({LENGTHS}, 8, cut=balancer.MicroBatches(16000))",
    "equal counts": f"import balancer; balancer.balance({LENGTHS}, 8, equal_counts=True)",
    "a cap": f"import balancer; balancer.balance({LENGTHS}, 8, cost='quadratic:a=9,b=1', max_tokens_per_rank=60000)",
    "padded": f"import balancer; balancer.balance({LENGTHS}, 8, cost='padded')",
    "method lpt": f"import balancer; balancer.balance({LENGTHS}, 8, method='lpt')",
    "2,000 lengths": "import balancer; balancer.balance([(i * 7919) % 40000 + 1 for i in range(2000)], 64, 8)",
    "first orchestrate": "import balancer; balancer.orchestrate("
    f"{{'images': {LENGTHS}, 'text': {LENGTHS}}}, {{'vision': 'images', 'llm': 'text+images'}}, 8)",
    "plan of the shipped log": f"from balancer.cli.main import main; main({PLAN!r})",
    "all of warmup()": "import balancer; balancer.warmup()",
}
MEASURED = """
import json, sys, time
begun = time.process_time()
try:
    {code}
except SystemExit:
    pass
spent = time.process_time() - begun
from solvers._jit import Kernel

kernels = {{value for module in list(sys.modules.values()) for value in list(vars(module).values())
           if isinstance(value, Kernel)}}
print(json.dumps([spent, sum(bool(each.signatures) for each in kernels)]))
"""
SMALL = "import numba; numba.njit(lambda values: values.sum() + values.max())(__import__('numpy').arange(3.0))"


def measured(code, root):
    """Run a case in a process of its own on the package below `root`: [processor seconds, kernels compiled]."""
    with tempfile.TemporaryDirectory() as empty:
        environment = os.environ | {"NUMBA_CACHE_DIR": empty, "PYTHONPATH": str(root)}
        done = subprocess.run([sys.executable, "-c", MEASURED.format(code=code)], env=environment, cwd=root,
                              capture_output=True, text=True, check=True)  # fmt: skip
    return json.loads(done.stdout.splitlines()[-1])


def main():
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", metavar="COMMIT", help="measure this commit too, case by case in turns")
    parser.add_argument(
        "--only", metavar="TEXT", action="append", help="cases that have this in their name; may be given again"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        other = Path(folder) / "other"
        if options.against:
            subprocess.run(
                ["git", "worktree", "add", "-q", "--detach", str(other), options.against], cwd=ROOT, check=True
            )
        try:
            table = Table(
                "first call",
                "seconds",
                "kernels",
                "numba's own first, s",
                *(["before, s", "kernels", "ratio"] if options.against else []),
            )
            for name, code in CASES.items():
                if options.only and not any(text in name for text in options.only):
                    continue
                small, now = measured(SMALL, ROOT)[0], measured(code, ROOT)
                row = [name, f"{now[0]:.1f}", str(now[1]), f"{small:.2f}"]
                if options.against:
                    small_then, before = measured(SMALL, ROOT)[0], measured(code, other)
                    row += [f"{before[0]:.1f}", str(before[1]), f"{now[0] / small / (before[0] / small_then):.2f}"]
                table.add_row(*row)
                Console(stderr=True).print(*row)
            Console().print(table)
        finally:
            if options.against:
                subprocess.run(["git", "worktree", "remove", "--force", str(other)], cwd=ROOT, check=True)


if __name__ == "__main__":
    main()
