"""What dispatch and restore cost beyond their two all-to-alls: 4 gloo ranks on this machine, planning excluded.

    python benchmarks/executor.py

Each rank holds samples of lognormal lengths in three fields (token ids, labels, features). Measured by turns in a run:
dispatch (pack, all-to-all, unpack) and restore (the same backwards), and two bare `all_to_all_single` of the same
bytes with the same splits, their outputs allocated anew. CPU seconds are those of all ranks together, gloo's threads
included; seconds by the clock are until the last rank is done, and mean little where ranks share cores with each other
and with others. Best of the turns. Exits with 1 if the ratio of CPU seconds exceeds 1.4 at 16 MiB a rank or more.
"""

import os
import sys
import time
from datetime import timedelta

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing

from balancer.executor import Dispatcher
from balancer.executor.route import Route
from balancer.executor.wire import Cargo, _Side

RANKS = 4
MEBIBYTES = (0.25, 1, 4, 16, 64)
FEATURES = 30  # float32 a token, beside two integers of 8 bytes
BYTES_A_TOKEN = 2 * 8 + FEATURES * 4
MOST = 1.4


def mini_batch(rank, size, mean=500):
    rng = np.random.default_rng(rank)
    lengths = np.maximum(1, rng.lognormal(0, 1, max(4, int(size * 2**20 / BYTES_A_TOKEN / mean))) * mean / 1.65)
    lengths = lengths.astype(int).tolist()
    return {
        "ids": [torch.randint(0, 1000, (length,)) for length in lengths],
        "labels": [torch.randint(0, 1000, (length,)) for length in lengths],
        "features": [torch.randn(length, FEATURES) for length in lengths],
    }


def bytes_of(step):
    """What one rank sends to, and gets from, each."""
    cargoes = []
    for name, way in step._way_of_field.items():
        rows, spec = way.row_lengths(name, step._gathered), step._gathered.specs[name]
        cargoes.append(Cargo(Route.of(way.source, way.target, rows, step.rank), spec.torch_dtype, spec.trailing, None))
    return [_Side.of(cargoes, there=there).bytes_per_rank(None) for there in (False, True)]


def timed(action):
    """CPU seconds of all ranks together, and seconds until the last is done."""
    dist.barrier()
    started, used = time.perf_counter(), time.process_time()
    action()
    used = torch.tensor(time.process_time() - used, dtype=torch.float64)
    dist.all_reduce(used)
    return used.item(), time.perf_counter() - started


def measure(rank, port):
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    store = dist.TCPStore("127.0.0.1", port, RANKS, rank == 0)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=RANKS, timeout=timedelta(minutes=2))
    dispatcher = Dispatcher(length="ids", time_budget=0.001)
    worst = 0.0
    for size in MEBIBYTES:
        step = dispatcher.dispatch(mini_batch(rank, size))
        sends, receives = bytes_of(step)
        forth, back = torch.zeros(sum(sends), dtype=torch.uint8), torch.zeros(sum(receives), dtype=torch.uint8)

        def bare(forth=forth, back=back, sends=sends, receives=receives):
            dist.all_to_all_single(torch.empty_like(back), forth, receives, sends)
            dist.all_to_all_single(torch.empty_like(forth), back, sends, receives)

        def full(step=step):
            step._load()
            step.restore()

        timed(bare), timed(full)
        turns = np.asarray([(timed(bare), timed(full)) for _ in range(40 if size < 64 else 15)])  # [turn, which, clock]
        (bare_cpu, bare_wall), (full_cpu, full_wall) = turns.min(axis=0)
        stays = sends[rank] / sum(sends)
        if rank == 0:
            print(
                f"{sum(sends) / 2**20:6.2f} MiB a rank, {len(step.samples):4d} samples, {stays:.0%} stay: "
                f"CPU {bare_cpu * 1e3:7.2f} ms bare, {full_cpu * 1e3:7.2f} ms ours, ratio {full_cpu / bare_cpu:.2f}; "
                f"clock {bare_wall * 1e3:7.2f} and {full_wall * 1e3:7.2f} ms, ratio {full_wall / bare_wall:.2f}",
                flush=True,
            )
            if size >= 16:
                worst = max(worst, full_cpu / bare_cpu)
    dist.barrier()
    dist.destroy_process_group()
    if rank == 0 and worst > MOST:
        sys.exit(1)


def main():
    import socket

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    multiprocessing.spawn(measure, (port,), RANKS)


if __name__ == "__main__":
    main()
