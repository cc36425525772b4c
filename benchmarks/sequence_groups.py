"""Sequence groups: sums of slot times beside a public scheduler's, scale, and the shipped log.

Run: python benchmarks/sequence_groups.py [ratios] [static] [scale] [log] [--data FILE]. Batches are those of
data/sequence_groups_dev.parquet, priced as flexsp-7b-a100. Seconds are of this thread, after compilation; all plans are
checked.
"""

import statistics
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

import balancer
import solvers
from balancer.cost import parse_cost

DATA = Path(__file__).parent.parent / "data"
COST = parse_cost("flexsp-7b-a100")
DEGREES = (2, 4, 8, 16, 32, 64)
PER_MS = 10**9
BUDGETS = (0.05, 0.1, 1.0)


def solve(lengths, num_ranks, cap, budget, degrees=DEGREES):
    priced = COST.degree_times(lengths, degrees, num_ranks)
    rules = {"degrees": degrees, "num_ranks": num_ranks, "cap": cap, "overhead": priced.overhead}
    started = time.thread_time()
    result = solvers.sequence_groups(priced.times, lengths, **rules, time_budget=budget)
    seconds = time.thread_time() - started
    solvers.check_sequence_groups(priced.times, lengths, result, **rules)
    return priced, rules, result, seconds


def batches(path):
    for row in pq.read_table(path).to_pylist():
        yield row, np.array(row["lengths"], dtype=np.int64)


def ratios(path):
    print("| budget, s | over peer: median | worst | best | over prototype: median | worst | seconds, median |")
    print("|--:|--:|--:|--:|--:|--:|--:|")
    for budget in BUDGETS:
        peer, own, seconds = [], [], []
        for row, lengths in batches(path):
            priced, _, result, spent = solve(lengths, 64, row["cap"], budget)
            taken = result.makespan * priced.unit / PER_MS
            peer.append(taken / row["peer_ms"])
            own.append(taken / row["prototype_ms"])
            seconds.append(spent)
        print(
            f"| {budget:g} | {statistics.median(peer):.4f} | {max(peer):.4f} | {min(peer):.4f} "
            f"| {statistics.median(own):.4f} | {max(own):.4f} | {statistics.median(seconds):.3f} |"
        )


def documents(rng, n):
    """Lengths of documents of the shipped log, drawn with replacement, and the most tokens of a rank."""
    lengths = pq.read_table(DATA / "prolong_documents.parquet").column("text_tokens").to_numpy().astype(np.int64)
    return np.sort(rng.choice(np.minimum(lengths, 131_072), n)), 8192


def lognormal(rng, n):
    lengths = rng.lognormal(np.log(8000) - 1.4**2 / 2, 1.4, n)
    return np.clip(lengths, 128, 192_000).astype(np.int64) // 128 * 128, 6449


def scale():
    """Two draws of each row; documents may also stay on one rank, where no degree costs them anything."""
    print("\n| lengths | ranks | samples | budget, s | K | gap to the closed form, % | mean | seconds |")
    print("|---|--:|--:|--:|--:|--:|--:|--:|")
    rows = [(documents, 1024, n, (1, *DEGREES), (0.2,)) for n in (4096, 8192, 16384)]
    rows += [(documents, 2560, 20480, (1, *DEGREES), (0.2,))]
    rows += [(lognormal, ranks, 8 * ranks, DEGREES, (0.1, 0.2, 1.0)) for ranks in (1024, 2560)]
    means = {}
    for kind, num_ranks, n, degrees, budgets in rows:
        drawn = [kind(np.random.default_rng(seed), n) for seed in (0, 1)]
        for budget in budgets:
            found = [solve(lengths, num_ranks, cap, budget, degrees) for lengths, cap in drawn]
            gaps = [100 * result.gap for _, _, result, _ in found]
            means.setdefault((kind.__name__, budget), []).append(statistics.mean(gaps))
            print(
                f"| {kind.__name__} | {num_ranks:,} | {n:,} | {budget:g} "
                f"| {', '.join(str(result.num_slots) for _, _, result, _ in found)} "
                f"| {', '.join(f'{gap:.2f}' for gap in gaps)} | {statistics.mean(gaps):.2f} "
                f"| {statistics.mean(seconds for *_, seconds in found):.2f} |",
                flush=True,
            )
    for (kind, budget), of in means.items():
        print(f"| mean, {kind} | | | {budget:g} | | | {statistics.mean(of):.2f} | |")


def static(path):
    """What one degree for all takes, the best in hindsight of each batch, over groups of unequal size; 0.1 s each."""
    print("\n| batches | best static degree / sequence groups: median | least | most |")
    print("|---|--:|--:|--:|")
    found = {}
    for row, lengths in batches(path):
        priced, rules, result, _ = solve(lengths, 64, row["cap"], 0.1)
        of_degree = []
        for d, degree in enumerate(DEGREES):
            if lengths.max() <= degree * row["cap"]:
                alone = solvers.sequence_groups(priced.times[d : d + 1], lengths, **rules | {"degrees": [degree]})
                of_degree.append(alone.makespan / result.makespan)
        found.setdefault(f"{row['set']} {row['context']:,}", []).append(min(of_degree))
    found["all"] = [ratio for ratios in found.values() for ratio in ratios]
    for name, of in found.items():
        print(f"| {name} | {statistics.median(of):.3f} | {min(of):.3f} | {max(of):.3f} |")


def log():
    """One slot, linear cost, 5 % lost with each doubling of the degree: what is wasted, what crosses nodes."""
    columns = ["text_tokens", "image_tokens", "audio_tokens"]
    table = pq.read_table(DATA / "omni_mix_dev.parquet", columns=columns)
    lengths = sum(table.column(name).to_numpy() for name in columns).astype(np.int64)
    print("\n| ranks x samples | degrees | placement | steps | wasted %: whole samples, proven | groups | worst "
          "| crosses nodes % | at least % | seconds a step |")  # fmt: skip
    print("|---|---|---|--:|--:|--:|--:|--:|--:|--:|")
    for num_ranks, each, degrees in ((64, 16, (1, 2, 4, 8)), (2560, 4, (1, 2, 4, 8, 16, 32))):
        for placement in ("any", "relocate"):
            size = num_ranks * each
            cut, homes = balancer.SequenceGroups(degrees, count=1), np.arange(size) // each
            sums, worst, seconds = np.zeros(5), 0.0, []
            for first in range(0, len(lengths) - size + 1, size):
                step = lengths[first : first + size]
                started = time.thread_time()
                plan = balancer.balance(step, num_ranks, 8, homes, cut=cut, placement=placement, time_budget=0.1)
                seconds.append(time.thread_time() - started)
                whole = num_ranks * solvers.makespan_lower_bound(step, num_ranks)
                spent, crossing = num_ranks * plan.makespan, (plan.inter_node_volume, plan.inter_node_bound)
                sums += [int(step.sum()), whole, spent, *crossing]
                worst = max(worst, 100 * (1 - int(step.sum()) / spent))
            work, whole, spent, crosses, least = sums.tolist()
            print(
                f"| {num_ranks:,} x {each} | {degrees[0]} to {degrees[-1]} | {placement} | {len(seconds)} "
                f"| {100 * (1 - work / whole):.2f} | {100 * (1 - work / spent):.2f} | {worst:.2f} "
                f"| {100 * crosses / work:.2f} | {100 * least / work:.2f} | {statistics.mean(seconds):.2f} |",
                flush=True,
            )


def main() -> None:
    asked = sys.argv[1:]
    path = DATA / "sequence_groups_dev.parquet"
    if "--data" in asked:
        at = asked.index("--data")
        path = Path(asked[at + 1])
        asked[at : at + 2] = []
    solve(next(batches(path))[1], 64, 6449, 0.001)  # compiles
    parts = {"ratios": ratios, "static": static}
    for name, run in {
        **{name: lambda of=of: of(path) for name, of in parts.items()},
        "scale": scale,
        "log": log,
    }.items():
        if not asked or name in asked:
            run()


if __name__ == "__main__":
    main()
