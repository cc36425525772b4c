"""How long does the first call on a fresh machine take?

    python benchmarks/first_call.py [--against COMMIT] [--only TEXT]... [--quick]

Processor seconds and kernels compiled, each in a process of its own with an empty cache; with COMMIT also the ratio to
that commit, in turns. Before each, a process compiles one small fixed function with numba alone, and ratios are of
times in units of that, so that machines, and minutes on a noisy one, compare. About eight minutes of one core, half of
them for all of `warmup()`; `--quick` a minute.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

from common import DATA, ROOT, Table

LENGTHS = "[(i * 7919) % 4000 + 1 for i in range(199)]"
HOMES = "[i % 16 for i in range(199)]"
PLAN = ["plan", str(DATA / "omni_mix_dev.parquet"), "--ranks", "64", "--ranks-per-node", "8",
        "--batch-per-rank", "16", "--length", "text_tokens+image_tokens+audio_tokens"]  # fmt: skip
CASES = {
    "import": "import balancer; balancer.balance",
    "first balance": f"import balancer; balancer.balance({LENGTHS}, 8)",
    "with homes": f"import balancer; balancer.balance({LENGTHS}, 16, 8, {HOMES})",
    "with micro-batches": f"import balancer; balancer.balance({LENGTHS}, 8, cut=balancer.MicroBatches(16000))",
    "equal counts": f"import balancer; balancer.balance({LENGTHS}, 8, equal_counts=True)",
    "a cap": f"import balancer; balancer.balance({LENGTHS}, 8, cost='quadratic:a=9,b=1', max_tokens_per_rank=60000)",
    "method lpt": f"import balancer; balancer.balance({LENGTHS}, 8, method='lpt')",
    "2,000 lengths": "import balancer; balancer.balance([(i * 7919) % 40000 + 1 for i in range(2000)], 64, 8)",
    "first orchestrate": "import balancer; balancer.orchestrate("
    f"{{'images': {LENGTHS}, 'text': {LENGTHS}}}, {{'vision': 'images', 'llm': 'text+images'}}, 8)",
    "plan of the shipped log": f"from balancer.cli.main import main; main({PLAN!r})",
    "all of warmup()": "import balancer; balancer.warmup()",
}
QUICK = ("import", "first balance")
MEASURED = """
import json, sys, time
begun = time.process_time()
try:
    {code}
except SystemExit:
    pass
spent = time.process_time() - begun
kernels = {{value for module in list(sys.modules.values()) for value in list(vars(module).values())
           if type(value).__name__ == "Kernel"}}
print(json.dumps([spent, sum(bool(each.signatures) for each in kernels)]))
"""
SMALL = "import numba; numba.njit(lambda values: values.sum() + values.max())(__import__('numpy').arange(3.0))"


def measured(code: str, root: Path) -> tuple[float, int]:
    """Run a case on the package below `root`: processor seconds, and how many kernels were compiled."""
    with tempfile.TemporaryDirectory() as empty:
        environment = os.environ | {"NUMBA_CACHE_DIR": empty, "PYTHONPATH": str(root)}
        done = subprocess.run([sys.executable, "-c", MEASURED.format(code=code)], env=environment, cwd=root,
                              capture_output=True, text=True, check=True)  # fmt: skip
    return tuple(json.loads(done.stdout.splitlines()[-1]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", metavar="COMMIT", help="measure this commit too, case by case in turns")
    parser.add_argument("--only", metavar="TEXT", action="append", help="cases that have this in their name")
    parser.add_argument("--quick", action="store_true", help=f"only: {', '.join(QUICK)}")
    given = parser.parse_args()
    git = ["git", "-C", str(ROOT), "worktree"]
    with ExitStack() as stack:
        other = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "other"
        if given.against:
            subprocess.run([*git, "add", "-q", "--detach", str(other), given.against], check=True)
            stack.callback(subprocess.run, [*git, "remove", "--force", str(other)], check=True)
        heads = ("s, before", "kernels", "over before") if given.against else ()
        table = Table("first call", "s", "kernels", "over numba's own first", *heads)
        for name, code in CASES.items():
            if name not in QUICK if given.quick else given.only and not any(text in name for text in given.only):
                continue
            small, (spent, kernels) = measured(SMALL, ROOT)[0], measured(code, ROOT)
            row = [f"{spent:.1f}", kernels, f"{spent / small:.1f}"]
            if given.against:
                then, (before, others) = measured(SMALL, ROOT)[0], measured(code, other)
                row += [f"{before:.1f}", others, f"{spent / small / (before / then):.2f}"]
            table.row(name, *row)


if __name__ == "__main__":
    main()
