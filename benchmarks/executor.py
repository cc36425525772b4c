"""What dispatch and restore cost beyond their two all-to-alls: 4 gloo ranks on this machine, planning excluded.

    python benchmarks/executor.py [lists|ragged ...]

Each rank holds samples of lognormal lengths in three fields (token ids, labels, features), as lists of tensors or as
RaggedTensors. Samples are placed with no regard to where they lie, so that three quarters of the bytes move ("any"),
or by the default, which moves almost nothing ("relocate"). Measured by turns in a run: dispatch (read, route, pack,
all-to-all, unpack, hand over) and restore (the same backwards), with lengths gathered and the plan made before; two
bare `all_to_all_single` of the same bytes with the same splits, their outputs allocated anew; and a small collective,
64 integers gathered. CPU seconds are those of all ranks together, gloo's threads included; seconds by the clock are
until the last rank is done, and mean little where ranks share cores with each other and with others. Milliseconds are
the best of all turns; a ratio is the median of each turn's own. Exits with 1 if the ratio of CPU seconds exceeds 1.4
at 16 MiB a rank or more.
"""

import os
import socket
import sys
import time
from datetime import timedelta

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing

from balancer.executor import Dispatched, Dispatcher, RaggedTensor
from balancer.executor.gathered import put_together, read_batch
from balancer.step_planner import plan_step

RANKS = 4
MEBIBYTES = (0.25, 1, 4, 16, 64)
FEATURES = 30  # float32 a token, beside two integers of 8 bytes
BYTES_A_TOKEN = 2 * 8 + FEATURES * 4
MEAN = 500
MOST = 1.4


def mini_batch(rank, size, form):
    rng = np.random.default_rng(rank)
    count = max(4, int(size * 2**20 / BYTES_A_TOKEN / MEAN))
    lengths = np.maximum(1, rng.lognormal(0, 1, count) * MEAN / 1.65).astype(int).tolist()
    fields = {
        "ids": [torch.randint(0, 1000, (length,)) for length in lengths],
        "labels": [torch.randint(0, 1000, (length,)) for length in lengths],
        "features": [torch.randn(length, FEATURES) for length in lengths],
    }
    return fields if form == "lists" else {name: RaggedTensor(torch.cat(f), lengths) for name, f in fields.items()}


def timed(action):
    """CPU seconds of all ranks together, and seconds until the last is done."""
    dist.barrier()
    started, used = time.perf_counter(), time.process_time()
    action()
    used = torch.tensor(time.process_time() - used, dtype=torch.float64)
    dist.all_reduce(used)
    return used.item(), time.perf_counter() - started


def measured(rank, size, form, placement):
    """Bytes that this rank sends, the part that stays, and seconds by [turn; bare, full, small; CPU, clock]."""
    dispatcher = Dispatcher(length="ids", time_budget=0.001, placement=placement)
    samples = mini_batch(rank, size, form)
    ranks = dispatcher.ranks
    gathered = put_together(ranks.say(read_batch(samples, {}, set(), ranks.memory)[1]))
    step_plan = plan_step(gathered.step(dispatcher.setup))
    plan = step_plan["all"]
    crossing = np.zeros((RANKS, RANKS), dtype=np.int64)
    np.add.at(crossing, (plan.home.rank_of_sample, plan.target.rank_of_sample), plan.lengths * BYTES_A_TOKEN)
    sends, receives = crossing[rank].tolist(), crossing[:, rank].tolist()
    forth, back = torch.zeros(sum(sends), dtype=torch.uint8), torch.zeros(sum(receives), dtype=torch.uint8)
    few = torch.zeros(64, dtype=torch.int64)

    def bare():
        dist.all_to_all_single(torch.empty_like(back), forth, receives, sends)
        dist.all_to_all_single(torch.empty_like(forth), back, sends, receives)

    def full():
        held, _ = read_batch(samples, {}, set(), ranks.memory)
        step = Dispatched(step_plan, gathered, held, dispatcher._shared, ranks, ranks)
        assert len(step.data) == 3
        step.restore()

    def small():
        dist.all_gather([torch.empty_like(few) for _ in range(RANKS)], few)

    actions = bare, full, small
    [timed(action) for action in actions]
    turns = [[timed(action) for action in actions] for _ in range(60 if size < 64 else 20)]
    return sum(sends), sends[rank] / max(1, sum(sends)), np.asarray(turns)


def measure(rank, port):
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    store = dist.TCPStore("127.0.0.1", port, RANKS, rank == 0)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=RANKS, timeout=timedelta(minutes=2))
    worst = 0.0
    if rank == 0:
        print("| fields | placement | MiB a rank | stay | CPU ms of all ranks, bare | ours | ratio | clock ms, bare "
              "| ours | ratio | a small collective, CPU ms | clock ms |")  # fmt: skip
        print("|---|---|" + "--:|" * 10)
    for form in sys.argv[1:] or ("lists", "ragged"):
        for placement in ("any", "relocate"):
            for size in MEBIBYTES:
                sent, stays, turns = measured(rank, size, form, placement)
                best, ratios = 1e3 * turns.min(axis=0), np.median(turns[:, 1] / turns[:, 0], axis=0)
                if rank == 0:
                    cells = [form, placement, f"{sent / 2**20:.2f}", f"{stays:.0%}"]
                    for clock in (0, 1):
                        cells += [f"{best[0, clock]:.2f}", f"{best[1, clock]:.2f}", f"{ratios[clock]:.2f}"]
                    print("| " + " | ".join([*cells, f"{best[2, 0]:.2f}", f"{best[2, 1]:.2f}"]) + " |", flush=True)
                    if size >= 16:
                        worst = max(worst, ratios[0])
    dist.barrier()
    dist.destroy_process_group()
    if rank == 0 and worst > MOST:
        sys.exit(1)


def main():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    try:
        multiprocessing.spawn(measure, (port,), RANKS)
    except multiprocessing.ProcessExitedException as ended:
        sys.exit(ended.exit_code)


if __name__ == "__main__":
    main()
