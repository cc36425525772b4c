"""Instances from the literature with proven optima: how many `auto` finds, and how many it proves.

Run: python benchmarks/literature.py [seconds of budget ...]. Every bound is checked against the optimum on the way.
"""

import sys
import time
from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq

import solvers

INSTANCES = Path(__file__).parent.parent / "data" / "pcmax_dev.parquet"


def main() -> None:
    budgets = [float(argument) for argument in sys.argv[1:]] or [0.001, 0.01, 0.1, 1.0]
    instances = pq.read_table(INSTANCES).to_pylist()
    solvers.partition(instances[0]["costs"], instances[0]["num_groups"])  # compile
    print("| set | instances | budget, s | optimum found | proven | mean ms |")
    print("|---|--:|--:|--:|--:|--:|")
    for budget in budgets:
        total, found, proven, seconds = Counter(), Counter(), Counter(), Counter()
        for instance in instances:
            name, optimum = instance["set"], instance["optimum"]
            started = time.thread_time()
            result = solvers.partition(instance["costs"], instance["num_groups"], time_budget=budget, stop_at=0)
            seconds[name] += time.thread_time() - started
            if not result.lower_bound <= optimum <= result.makespan:
                raise SystemExit(f"{instance['name']}: {result.lower_bound} <= {optimum} <= {result.makespan} fails")
            total[name] += 1
            found[name] += result.makespan == optimum
            proven[name] += result.gap == 0
        for name, count in total.items():
            shares = f"{found[name] / count:.1%} | {proven[name] / count:.1%}"
            print(f"| {name} | {count} | {budget:g} | {shares} | {seconds[name] / count * 1e3:.2f} |")


if __name__ == "__main__":
    main()
