"""How close to the best possible are plans?

    python benchmarks/quality.py [methods] [few] [literature] [rules] [padded] [--quick]

Each table has makespans over the proven bound or optimum, with searches that go on as long as their budget lasts
(`stop_at=0`); every result is checked. Lengths are lognormal (mean 2,000, sigma 1, at most 32,768) by fixed seeds, or
those of data/. Costs with attention are 24,576 l + l². About six minutes of one core; `--quick` half a minute.
"""

import heapq
import statistics
from collections import Counter
from collections.abc import Callable

import common
import numpy as np
import pyarrow.parquet as pq
from common import COSTS, Table, timed

import solvers
from balancer.cost import parse_cost

SHAPES = [(512, 8), (4096, 64), (16_384, 256), (163_840, 2560)]


def loads_of(costs: np.ndarray, group: np.ndarray, num_groups: int) -> np.ndarray:
    loads = np.zeros(num_groups, dtype=np.int64)
    np.add.at(loads, group, costs)
    return loads


def padded_loads(rows: np.ndarray, group: np.ndarray, num_groups: int) -> np.ndarray:
    """Rows of a group times its longest one: int64[num_groups]."""
    longest = np.zeros(num_groups, dtype=np.int64)
    np.maximum.at(longest, group, rows)
    return longest * np.bincount(group, minlength=num_groups)


def bldm(costs: np.ndarray, num_groups: int) -> np.ndarray:
    """Largest differencing with counts within one (Michiels, Korst, Aarts & van Leeuwen, STACS 2003): int64[n].

    The items by descending cost are cut into blocks of one for each group. The two blocks of largest spread become one,
    the largest sums of one with the smallest of the other, until there is one. Public trainers, verl among them, run
    this rule for equal counts.
    """
    n, order = len(costs), np.argsort(-costs, kind="stable")
    places = np.arange(-(-n // num_groups) * num_groups).reshape(-1, 1, num_groups)  # of items in `order`
    sums = np.zeros(places.shape[::2], dtype=np.int64)
    sums.ravel()[:n] = costs[order]  # items of cost 0 fill up the last block
    blocks = [(int(row[-1] - row[0]), b, row, places[b]) for b, row in enumerate(sums)]
    heapq.heapify(blocks)
    while len(blocks) > 1:
        (_, name, a, in_a), (_, _, b, in_b) = heapq.heappop(blocks), heapq.heappop(blocks)
        both = a + b[::-1]
        by_sum = np.argsort(-both, kind="stable")
        joined = np.vstack([in_a, in_b[:, ::-1]])[:, by_sum]
        heapq.heappush(blocks, (int(both.min() - both.max()), name, both[by_sum], joined))
    group_of_place = np.empty(places.size, dtype=np.int64)
    group_of_place[blocks[0][3]] = np.arange(num_groups)
    group = np.empty(n, dtype=np.int64)
    group[order] = group_of_place[:n]
    return group


def methods(quick: bool) -> None:
    """Every method, with free and with equal counts: gap to the bound in ppm, and its time over auto's."""
    table = Table("counts, costs, items on groups", "method", "gap, ppm: median", "worst", "proven", "time over auto's")
    for equal in (False, True):
        for cost in COSTS:
            for n, m in SHAPES[: 2 if quick else 4]:
                drawn = [common.priced(common.lognormal(n, seed), cost) for seed in range(100, 102 if quick else 105)]
                times: dict[str, float] = {}
                for method in ("auto", "lpt", "bldm") if equal else ("auto", "lpt", "karmarkar_karp"):
                    gaps, spent = zip(*(gap_of(costs, m, method, equal) for costs in drawn), strict=True)
                    times[method] = statistics.median(spent)
                    name = f"{'equal' if equal else 'free'}, {cost}, {n:,} on {m:,}"
                    table.row(name, method, f"{statistics.median(gaps):,.2f}", f"{max(gaps):,.2f}",
                              f"{sum(gap == 0 for gap in gaps)}/{len(gaps)}",
                              times[method] / times["auto"])  # fmt: skip


def gap_of(costs: np.ndarray, num_groups: int, method: str, equal: bool) -> tuple[float, float]:
    """Parts per million over the bound, and milliseconds; `auto` may spend 50 of them."""
    if method == "bldm":
        group, ms = timed(lambda: bldm(costs, num_groups))
        bound = solvers.makespan_lower_bound(costs, num_groups, equal)
        return 1e6 * (int(loads_of(costs, group, num_groups).max()) / bound - 1), ms
    asked = {"equal_counts": equal, "stop_at": 0}
    found, ms = timed(lambda: solvers.partition(costs, num_groups, method, 0.05, **asked))
    solvers.check_partition(costs, found, **asked)
    return 1e6 * found.gap, ms


def few(quick: bool) -> None:
    """Few items a group: how many batches `auto` proves optimal at a budget, and its worst gap in ppm."""
    budgets = (0.001, 0.1) if quick else (0.001, 0.01, 0.1)
    table = Table("lengths, groups x items", "batches", *(f"{1e3 * each:g} ms: proven, worst" for each in budgets))
    for name in ("lognormal", "mix", "pages"):
        for m, each in ((8, 4), (8, 16), (64, 4), (64, 16), (512, 16))[: 2 if quick else 5]:
            size, most = m * each, 10 if quick or m == 512 else 40
            if name == "lognormal":
                drawn = [common.lognormal(size, seed) for seed in range(most)]
            else:
                drawn = common.steps_of(common.log(name), size, most)
            # Where the longest sample alone sets the bound there is nothing to find.
            drawn = [costs for costs in drawn if costs.max() < -(-costs.sum() // m)]
            gaps = [[solvers.partition(costs, m, time_budget=each, stop_at=0).gap for costs in drawn]
                    for each in budgets if drawn]  # fmt: skip
            if drawn:
                cells = [f"{sum(gap == 0 for gap in found)}, {1e6 * max(found):,.0f}" for found in gaps]
                table.row(f"{name}, {m} x {each}", len(drawn), *cells)


def literature(quick: bool) -> None:
    """Instances from the literature whose optimum is known: how many `auto` finds, and how many it proves."""
    table = Table("set", "instances", "budget, ms", "optimum found", "proven", "mean ms")
    rows = pq.read_table(common.DATA / "pcmax_dev.parquet").to_pylist()[:: 20 if quick else 1]
    for budget in (0.001,) if quick else (0.001, 0.01, 0.1):
        total, found, proven, spent = Counter(), Counter(), Counter(), Counter()
        for row in rows:
            asked = {"time_budget": budget, "stop_at": 0}
            result, ms = timed(lambda row=row, asked=asked: solvers.partition(row["costs"], row["num_groups"], **asked))
            if not result.lower_bound <= row["optimum"] <= result.makespan:
                raise SystemExit(
                    f"{row['name']}: {result.lower_bound}, {row['optimum']}, {result.makespan} do not rise"
                )
            name = row["set"]
            total[name] += 1
            found[name] += result.makespan == row["optimum"]
            proven[name] += result.gap == 0
            spent[name] += ms
        for name, count in total.items():
            cells = f"{found[name] / count:.1%}", f"{proven[name] / count:.1%}"
            table.row(name, count, f"{1e3 * budget:g}", *cells, spent[name] / count)


def rules(quick: bool) -> None:
    """Constraints that trainers have, costs with attention: gap to the bound in ppm, by budget."""
    n, m = (512, 8) if quick else (16_384, 256)
    heads = [head for ms in (10, 100) for head in (f"{ms} ms: gap, ppm, median", "worst")]
    table = Table(f"constraints, {n:,} items on {m}", *heads)
    found: dict[str, list[list[float]]] = {}
    for seed in range(2 if quick else 5):
        for name, costs, given in common.kinds_of_rules(n, m, seed):
            results = [solvers.partition(costs, m, time_budget=each, stop_at=0, **given) for each in (0.01, 0.1)]
            if seed == 0:
                solvers.check_partition(costs, results[-1], num_groups=m, stop_at=0, **given)
            found.setdefault(name, []).append([1e6 * result.gap for result in results])
    for name, gaps in found.items():
        cells = [f"{each:,.2f}" for of in zip(*gaps, strict=True) for each in (statistics.median(of), max(of))]
        table.row(name, *cells)


SPEECH = {  # frames of speech as in Whisper, in units of hidden size x layers: two convolutions over padded rows, and
    "large": "convolution:a=15360,b=1,c=144",  # a transformer over half of the frames
    "tiny": "convolution:a=4608,b=1,c=408",
    "even": "convolution:a=4608,b=1,c=4608",  # the padded part costs as much as the rest
}


def padded(quick: bool) -> None:
    """Padded batches, and costs of which a part is padded: what balances token sums, over the optimum or bound."""
    shapes, seeds = SHAPES[: 2 if quick else 3], range(100, 102 if quick else 105)
    table = Table("padded: rows on groups", "lpt of tokens", "karmarkar_karp of tokens", "lpt, equal counts")
    ways = ({"method": "lpt"}, {"method": "karmarkar_karp"}, {"method": "lpt", "equal_counts": True})
    for n, m in shapes:
        found = []
        for seed in seeds:
            lengths = common.lognormal(n, seed)
            optimum = solvers.padded(lengths, m)
            solvers.check_partition(lengths, optimum, padded=True)
            groups = [solvers.partition(lengths, m, **way).group_of_item for way in ways]
            found.append([int(padded_loads(lengths, group, m).max()) / optimum.makespan for group in groups])
        table.row(f"{n:,} on {m:,}", *np.median(found, axis=0).tolist())
    print()
    table = Table("partly padded: cost, rows on groups", "solvers.mixed", "best runs of the sorted", "lpt")
    for name, text in SPEECH.items():
        for n, m in shapes:
            found = []
            for seed in seeds:
                frames = common.lognormal(n, seed, 3000, 1000)  # 30 seconds
                costs, rows = np.ascontiguousarray(parse_cost(text).sample_costs(frames).T)
                result = solvers.mixed(costs, rows, m)
                if seed == seeds[0] and n == 512:
                    solvers.check_partition(costs, result, row_costs=rows)
                lpt = mixed_makespan(costs, rows, solvers.partition(costs + rows, m, "lpt").group_of_item, m)
                every = result.makespan, best_runs(costs, rows, m), lpt
                found.append([each / result.lower_bound for each in every])
            table.row(f"{name}, {n:,} on {m:,}", *(f"{each:.5f}" for each in np.median(found, axis=0)))


def mixed_makespan(costs: np.ndarray, rows: np.ndarray, group: np.ndarray, num_groups: int) -> int:
    return int((loads_of(costs, group, num_groups) + padded_loads(rows, group, num_groups)).max())


def best_runs(costs: np.ndarray, rows: np.ndarray, num_groups: int) -> int:
    """Makespan of the best contiguous runs of the sorted items, by bisection."""
    order = np.argsort(-(costs + rows), kind="stable")
    row, n = rows[order], len(rows)
    sums = np.concatenate(([0], np.cumsum(costs[order])))

    def covers(bound: int) -> bool:
        i = 0
        for _ in range(num_groups):
            if i < n:
                weight = sums + np.arange(n + 1) * row[i]  # of items 0 .. x - 1, each with this row; rises with x
                i = int(np.searchsorted(weight, bound + weight[i], side="right")) - 1
        return i >= n

    return least_that(covers, int((costs + rows).max()), int(sums[-1] + n * row[0]))


def least_that(holds: Callable[[int], bool], low: int, high: int) -> int:
    """Return the least number that a rule holds for, to a millionth."""
    while high - low > low >> 20:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle + 1, high)
    return high


if __name__ == "__main__":
    common.main(__doc__, methods, few, literature, rules, padded)
