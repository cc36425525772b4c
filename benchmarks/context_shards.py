"""What do context-parallel ranks receive, and what does it cost to receive less?

    python benchmarks/context_shards.py [layouts] [budgets] [nodes] [windows] [model] [gloo] [--quick]

Packs are drawn from data/prolong_documents.parquet with replacement until full, the last document cut; causal attention
within documents, work at most 1.02 of the mean. Received are rows of keys that ranks get from others in a layer, over
the pack's tokens T. `model` is arithmetic: causal layers of an 8B Llama in bfloat16 on H100s; rows travel three times a
layer beside four forwards' worth of work, and nothing is hidden. `gloo`: four processes on this machine. Both need
torch. About four minutes of one core; `--quick` half a minute.
"""

import sys
import time
from collections.abc import Callable, Iterator

import common
import numpy as np
from common import NODE, Table, timed

import solvers
from solvers.context import measure_layout

CASES = ((17, 8), (17, 16), (17, 64), (19, 16), (19, 64), (20, 64))  # two to the power of tokens, ranks
RULES = {"head and tail of the pack": "head_tail", "of each document": "per_document", "PyTorch's PTRR": "round_robin"}
WEIGHTS, HIDDEN, ROW_BYTES = 218e6, 4096, 4096  # of a layer; bytes of a row of keys and values
FLOPS = 0.45 * 989e12
INSIDE, ACROSS = 0.7 * 450e9, 0.7 * 50e9  # bytes a second of a rank's link, within its node and out of it


def packs(tokens: int, count: int) -> Iterator[np.ndarray]:
    lengths, rng = common.log("documents"), np.random.default_rng(1)
    for _ in range(count):
        drawn: list[int] = []
        while sum(drawn) < tokens:
            drawn.append(min(int(lengths[rng.integers(len(lengths))]), tokens - sum(drawn)))
        yield np.array(drawn)


def cases(quick: bool) -> Iterator[tuple[str, int, list[np.ndarray]]]:
    for power, ranks in CASES[: 1 if quick else None]:
        yield f"{2 ** (power - 10)}K on {ranks}", ranks, list(packs(2**power, 3 if quick else 12))


def layouts(quick: bool) -> None:
    """Rules of others and the search: received, T, and the slowest rank's work over the mean."""
    table = Table("tokens on ranks", *(f"{name}: received, work" for name in RULES), "search: received, work", "bound",
                  "busiest rank over the mean", "ms")  # fmt: skip
    for name, ranks, drawn in cases(quick):
        cells = []
        for rule in RULES.values():
            found = [measure_layout(pack, ranks, rule) for pack in drawn]
            received = np.mean([each.received.sum() / pack.sum() for each, pack in zip(found, drawn, strict=True)])
            work = np.mean([each.work.max() / each.work.mean() for each in found])
            cells.append(f"{received:.2f}, {work:.3f}")
        rows = []
        for pack in drawn:
            found, ms = timed(lambda p=pack, r=ranks: solvers.context_shards(p, r))
            total = found.total_received
            busiest = max(int(found.received.max()), int(found.sent.max())) * ranks / max(1, total)
            rows.append([total / pack.sum(), found.imbalance_ratio, found.lower_bound / pack.sum(), busiest, ms])
        received, work, bound, busiest, ms = np.mean(rows, axis=0)
        table.row(name, *cells, f"{received:.3f}, {work:.3f}", bound, f"{busiest:.1f}", f"{ms:.0f}")


def budgets(quick: bool) -> None:
    """What more work finds: received over the bound."""
    table = Table("tokens on ranks", *(f"{1e3 * each:g} ms" for each in (0.005, 0.02, 0.05, 0.5)))
    for name, ranks, drawn in cases(quick):
        found = [[solvers.context_shards(pack, ranks, time_budget=each) for pack in drawn]
                 for each in (0.005, 0.02, 0.05, 0.5)]  # fmt: skip
        table.row(name, *(np.mean([each.total_received / each.lower_bound for each in of]) for of in found))


def nodes(quick: bool) -> None:
    """Nodes of 8: rows that cross, once a node, in T, with the rows received in brackets."""
    table = Table("tokens on ranks", "head and tail of each document", "search without nodes", "search")
    for name, ranks, drawn in list(cases(False))[1 : 2 if quick else None]:
        cells = []
        for rule in ("per_document", None, NODE):
            crossing, received = [], []
            for pack in drawn[: 3 if quick else None]:
                rows = rule
                if rule != "per_document":
                    found = solvers.context_shards(pack, ranks, ranks_per_node=rule)
                    rows = found.rank, found.document, found.start, found.stop
                measured = measure_layout(pack, ranks, rows, ranks_per_node=NODE)
                crossing.append(measured.crossing / pack.sum())
                received.append(measured.received.sum() / pack.sum())
            cells.append(f"{np.mean(crossing):.3f} ({np.mean(received):.2f})")
        table.row(name, *cells)


def windows(quick: bool) -> None:
    """One full layer and five with a window of 1,024: work of the slowest rank, and rows received in all six, T."""
    table = Table("tokens on ranks", "work of full layers, at most", "of windows", "received", "bound")
    for name, ranks, drawn in cases(quick):
        found = [solvers.context_shards(pack, ranks, masks={"full": 1, "window1024": 5}) for pack in drawn]
        work = np.max([each.work.max(axis=1) / each.work.mean(axis=1) for each in found], axis=0)
        sums = ([getattr(each, of) / pack.sum() for each, pack in zip(found, drawn, strict=True)]
                for of in ("total_received", "lower_bound"))  # fmt: skip
        table.row(name, *work.tolist(), *map(np.mean, sums))


def model(quick: bool) -> None:
    """A step by arithmetic: the exchange, a row to each rank that needs it, beside an all-gather over all ports."""
    from balancer.executor import ShardRows

    table = Table("tokens on ranks", "busiest rank, T: exchange", "all-gather", "of a step, %: exchange", "all-gather",
                  "tokens a second over all-gather's")  # fmt: skip
    for tokens, ranks in ((2**17, 8), (2**17, 16), (2**19, 32))[: 1 if quick else 3]:
        rows = []
        for pack in packs(tokens, 2 if quick else 6):
            several, share = ranks > NODE, tokens // ranks
            found = solvers.context_shards(pack, ranks, ranks_per_node=NODE if several else None)
            computing = 4 * (2 * WEIGHTS * share + 4 * HIDDEN * int(found.work.max())) / FLOPS
            most = int(np.maximum(found.received, found.sent).max())
            rows_of = ShardRows.from_result(found)
            crossing = max(
                sum(
                    len(place)
                    for other, place in enumerate(rows_of.keys_of(rank, 0).places)
                    if other // NODE != rank // NODE
                )
                for rank in range(ranks)
            )
            gathered = max((tokens - share) / INSIDE, (tokens - NODE * share) / (NODE * ACROSS) if several else 0)
            times = [3 * ROW_BYTES * each for each in (max(most / INSIDE, crossing / ACROSS), gathered)]
            steps = [computing + each for each in times]
            rows.append([most / tokens, 1 - 1 / ranks, 100 * times[0] / steps[0], 100 * times[1] / steps[1],
                         steps[1] / steps[0]])  # fmt: skip
        table.row(f"{tokens >> 10}K on {ranks}", *np.mean(rows, axis=0).tolist())


def median_ms(call: Callable[[], object]) -> float:
    import torch.distributed as dist

    call()
    taken = []
    for _ in range(7):
        dist.barrier()
        started = time.perf_counter()
        call()
        taken.append(1e3 * (time.perf_counter() - started))
    return float(np.median(taken))


def on_rank(rank: int) -> None:
    """Keys and values of 8 heads of 128, 16,384 tokens."""
    import torch
    import torch.distributed as dist

    from balancer.executor import ContextExchange

    found = solvers.context_shards(next(packs(2**14, 1)), 4)
    exchange = ContextExchange(found)
    keys = torch.randn(len(exchange.index), 8, 128, dtype=torch.bfloat16)
    whole = [torch.empty(4 * len(keys), 8, 128, dtype=torch.bfloat16) for _ in range(2)]
    ours = median_ms(lambda: exchange.gather(keys, keys.clone()))
    gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor  # the name before torch 2.13
    theirs = median_ms(lambda: [gather(each, keys) for each in whole])
    if rank == 0:
        table = Table("16K on 4, gloo", "exchange, ms", "all-gather, ms", "all-gather over exchange", "rows: ours",
                      "theirs")  # fmt: skip
        table.row("", ours, theirs, theirs / ours, int(found.received.max()), len(whole[0]) - len(keys))


def gloo(quick: bool) -> None:
    """The exchange beside an all-gather, clock time on this machine, whose cores the four ranks share."""
    sys.path.insert(0, str(common.ROOT / "examples"))
    from three_modalities import on_ranks

    on_ranks(on_rank)


if __name__ == "__main__":
    common.main(__doc__, layouts, budgets, nodes, windows, model, gloo)
