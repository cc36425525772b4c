"""The exchange of context shards beside an all-gather: a model of a step on GPUs, and milliseconds on this machine.

    python benchmarks/context_exchange.py [model] [gloo]

`model`: causal layers of an 8B Llama in bfloat16 on H100s; six packs a row, drawn as in context_shards.py. Rows travel
three times a layer (forward, recomputed, gradients) beside four forwards' worth of work, and nothing is hidden behind
it. An all-gather brings what crosses into each node once, over all of its ports; the exchange sends a row to each rank
that needs it. `gloo`: four processes, seven exchanges each, the median.
"""

import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from context_shards import packs

import solvers
from balancer.executor import ContextExchange, ShardRows

sys.path.insert(0, str(Path(__file__).parent.parent / "examples"))
from three_modalities import on_ranks

WEIGHTS, HIDDEN, ROW_BYTES = 218e6, 4096, 4096  # of a layer; bytes of a row of keys and values
FLOPS = 0.45 * 989e12
INSIDE, ACROSS = 0.7 * 450e9, 0.7 * 50e9  # bytes a second of a rank's link, within its node and out of it
NODE = 8


def of_pack(pack: np.ndarray, ranks: int) -> tuple[float, ...]:
    """What the busiest rank moves in T, and an all-gather; each one's share of a step; speed; rows held."""
    tokens, several = int(pack.sum()), ranks > NODE
    found = solvers.context_shards(pack, ranks, ranks_per_node=NODE if several else None)
    rows, share = ShardRows.from_result(found), tokens // ranks
    computing = 4 * (2 * WEIGHTS * share + 4 * HIDDEN * int(found.work.max())) / FLOPS
    most = int(np.maximum(found.received, found.sent).max())
    crossing = max(
        sum(len(place) for other, place in enumerate(rows.keys_of(rank, 0).places) if other // NODE != rank // NODE)
        for rank in range(ranks)
    )
    gathered = max((tokens - share) / INSIDE, (tokens - NODE * share) / (NODE * ACROSS) if several else 0) * ROW_BYTES
    exchanged = max(most / INSIDE, crossing / ACROSS) * ROW_BYTES
    before, after = computing + 3 * gathered, computing + 3 * exchanged
    return (most / tokens, 1 - 1 / ranks, 3 * gathered / before, 3 * exchanged / after, before / after - 1,
            rows.most_rows_held() / share)  # fmt: skip


def model() -> None:
    for tokens, ranks in ((2**17, 8), (2**17, 16), (2**19, 32)):
        most, all_, before, after, faster, held = np.mean([of_pack(pack, ranks) for pack in packs(tokens, 6)], axis=0)
        print(f"{tokens:,} on {ranks}: busiest rank {most:.2f} T, all-gather {all_:.2f} T; of a step {after:.1%}, "
              f"all-gather {before:.1%}; {faster:+.0%} tokens a second; {held:.1f} shares held at most")  # fmt: skip


def median_ms(call: Callable[[], object]) -> float:
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
    pack = next(packs(2**14, 1))
    found = solvers.context_shards(pack, 4)
    exchange = ContextExchange(found)
    keys = torch.randn(len(exchange.index), 8, 128, dtype=torch.bfloat16)
    whole = [torch.empty(4 * len(keys), 8, 128, dtype=torch.bfloat16) for _ in range(2)]
    ours = median_ms(lambda: exchange.gather(keys, keys.clone()))
    gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor  # the name before torch 2.13
    theirs = median_ms(lambda: [gather(each, keys) for each in whole])
    again = median_ms(lambda: ContextExchange(found, exchange))
    if rank == 0:
        print(f"exchange {ours:.1f} ms, all-gather {theirs:.1f} ms; at most {found.received.max():,} rows of "
              f"{len(whole[0]) - len(keys):,} received; another pack's exchange is made in {again:.1f} ms")  # fmt: skip


if __name__ == "__main__":
    parts = {"model": model, "gloo": lambda: on_ranks(on_rank)}
    for part in sys.argv[1:] or parts:
        parts[part]()
