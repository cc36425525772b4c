"""What do dispatch and restore cost beyond their two all-to-alls?

    python benchmarks/executor.py [any] [relocate] [--quick]

Four gloo ranks on this machine; needs torch. Each rank draws samples of lognormal lengths in three fields (token ids,
labels, features), as lists of tensors or as RaggedTensors. By turns: `dispatch` and `restore`, gathering lengths and
planning included; two bare `all_to_all_single` of the same bytes with the same splits, their outputs allocated anew;
and a small collective. Processor time is that of all ranks together, gloo's threads included; time by the clock is
until the last rank is done, and means little where ranks share cores. A ratio is the median of each turn's own. About
two minutes of two cores; `--quick` half a minute.
"""

import os
import socket
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import common
import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing
from common import Table

from balancer.executor import Dispatcher, RaggedTensor

RANKS = 4
FEATURES = 30  # float32 a token, beside two integers of 8 bytes
BYTES_A_TOKEN = 2 * 8 + FEATURES * 4
MEAN = 500


def mini_batch(rank: int, size: float, form: str) -> dict[str, Any]:
    rng = np.random.default_rng(rank)
    count = max(4, int(size * 2**20 / BYTES_A_TOKEN / MEAN))
    lengths = np.maximum(1, rng.lognormal(0, 1, count) * MEAN / 1.65).astype(int).tolist()
    fields = {
        "ids": [torch.randint(0, 1000, (length,)) for length in lengths],
        "labels": [torch.randint(0, 1000, (length,)) for length in lengths],
        "features": [torch.randn(length, FEATURES) for length in lengths],
    }
    return fields if form == "lists" else {name: RaggedTensor(torch.cat(f), lengths) for name, f in fields.items()}


def taken(action: Callable[[], object]) -> tuple[float, float]:
    """Processor seconds of all ranks together, and seconds until the last is done."""
    dist.barrier()
    started, used = time.perf_counter(), time.process_time()
    action()
    spent = torch.tensor(time.process_time() - used, dtype=torch.float64)
    dist.all_reduce(spent)
    return spent.item(), time.perf_counter() - started


def measured(rank: int, size: float, form: str, placement: str, turns: int) -> tuple[int, float, np.ndarray]:
    """Bytes that this rank sends, the part that stays, and seconds by [turn; bare, ours, small; processor, clock]."""
    dispatcher = Dispatcher(length="ids", time_budget=0.001, placement=placement)
    samples = mini_batch(rank, size, form)
    plan = dispatcher.dispatch(samples).plan
    moved = np.zeros((RANKS, RANKS), dtype=np.int64)
    np.add.at(moved, (plan.home.rank_of_sample, plan.target.rank_of_sample), plan.lengths * BYTES_A_TOKEN)
    sends, receives = moved[rank].tolist(), moved[:, rank].tolist()
    forth, back = torch.zeros(sum(sends), dtype=torch.uint8), torch.zeros(sum(receives), dtype=torch.uint8)
    few = torch.zeros(64, dtype=torch.int64)

    def bare() -> None:
        dist.all_to_all_single(torch.empty_like(back), forth, receives, sends)
        dist.all_to_all_single(torch.empty_like(forth), back, sends, receives)

    def ours() -> None:
        step = dispatcher.dispatch(samples)
        assert len(step.data) == 3
        step.restore()

    def small() -> None:
        dist.all_gather([torch.empty_like(few) for _ in range(RANKS)], few)

    actions = bare, ours, small
    for action in actions:
        taken(action)
    found = [[taken(action) for action in actions] for _ in range(turns)]
    return sum(sends), sends[rank] / max(1, sum(sends)), np.asarray(found)


def on_rank(rank: int, port: int, placement: str, quick: bool, rows: Any) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    store = dist.TCPStore("127.0.0.1", port, RANKS, rank == 0)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=RANKS, timeout=timedelta(minutes=2))
    for form in ("lists", "ragged"):
        for size in (1, 16) if quick else (1, 16, 64):
            sent, stays, found = measured(rank, size, form, placement, 5 if quick else 20)
            best, ratios = 1e3 * found.min(axis=0), np.median(found[:, 1] / found[:, 0], axis=0)
            if rank == 0:
                cells = f"{best[0, 0]:.2f}", f"{best[1, 0]:.2f}", *ratios.tolist(), f"{best[2, 0]:.2f}"
                rows.put((f"{form}, {sent / 2**20:.2f}", f"{100 * stays:.0f}", *cells))
    dist.barrier()
    dist.destroy_process_group()


def table(placement: str, quick: bool) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    rows = multiprocessing.get_context("spawn").SimpleQueue()
    multiprocessing.spawn(on_rank, (port, placement, quick, rows), RANKS)
    shown = Table("fields, MiB a rank", "stay, %", "processor ms of all ranks: bare", "ours", "over bare, processor",
                  "by the clock", "a small collective, ms")  # fmt: skip
    while not rows.empty():
        shown.row(*rows.get())


def anywhere(quick: bool) -> None:
    """Samples wherever they balance: three quarters of the bytes move."""
    table("any", quick)


def relocate(quick: bool) -> None:
    """The default, near home: almost nothing moves."""
    table("relocate", quick)


anywhere.__name__ = "any"

if __name__ == "__main__":
    common.main(__doc__, anywhere, relocate)
