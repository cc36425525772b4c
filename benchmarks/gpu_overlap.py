"""Does the executor hide behind a real step? One GPU: a loop by hand, dispatched, and dispatched on a side stream.

    python benchmarks/gpu_overlap.py [--tokens 65536] [--steps 16] [--rounds 5]

Decoder blocks train on documents of ``prolong_documents``, so many tokens a step, each with its ids and 256 half
floats a token, as a small image encoder's inputs are. By turns, the same steps:

- by hand: rows joined and copied to the device;
- dispatched: ``Dispatcher.dispatch``, which gathers lengths, plans, joins, copies, exchanges on NCCL, and splits;
- prefetched: ``PrefetchDispatcher``, the same on a thread and a stream of its own while the step before computes.

There is one rank, so nothing crosses a wire: what is measured is the executor's own work. Then planning for many
ranks: the batches of ``BalancedBatchSampler``, drawn in the loop or before it. On a CPU (a smoke test): tiny blocks.
"""

import argparse
import statistics
import time
from pathlib import Path

import measure_block
import numpy as np
import pyarrow.parquet
import torch
import torch.distributed as dist

from balancer.compat import BalancedBatchSampler
from balancer.executor import Dispatcher, PrefetchDispatcher

DATA = Path(__file__).parents[1] / "data" / "prolong_documents.parquet"
WIDTH = 256


def step_of(rng, documents, tokens):
    """Draw documents until so many tokens are full, the last one cut: a mini-batch in the host's memory."""
    held = []
    while (left := tokens - sum(held)) > 0:
        held.append(int(min(documents[rng.integers(len(documents))], left)))
    return {
        "ids": [torch.from_numpy(rng.integers(0, 1024, length)) for length in held],
        "features": [torch.zeros(length, WIDTH, dtype=torch.float16) for length in held],
    }


class Model(torch.nn.Module):
    """An embedding, features added to it, and blocks."""

    def __init__(self, shape, full, windowed, window):
        super().__init__()
        self.ids = torch.nn.Embedding(1024, shape.attention.hidden)
        self.features = torch.nn.Linear(WIDTH, shape.attention.hidden)
        self.blocks = measure_block.Blocks(shape, full, windowed, window)

    def forward(self, ids, features, lengths):
        return self.blocks(self.ids(ids) + self.features(features), lengths).float().square().mean()


def by_hand(steps, device):
    """Yield each step's rows on the device."""
    for step in steps:
        yield {name: [row.to(device, non_blocking=True) for row in rows] for name, rows in step.items()}


def dispatched(steps, dispatcher):
    """Yield each step, dispatched when it is asked for."""
    for step in steps:
        yield dispatcher.dispatch(step)


def train(model, optimizer, batches):
    """Train on batches; milliseconds a step, until the device has done the last."""
    synchronize()
    begun, count = time.perf_counter(), 0
    for batch in batches:
        lengths = [len(row) for row in batch["ids"]]
        features = torch.cat(list(batch["features"])).to(model.features.weight.dtype)
        model(torch.cat(list(batch["ids"])), features, lengths).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        count += 1
    synchronize()
    return 1e3 * (time.perf_counter() - begun) / count


def synchronize():
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def table(title, times):
    """Print the median of each way, and the median of its ratios to the first, round by round."""
    first, *_ = times
    print(f"\n| {title} | ms a step | over the first |\n|---|--:|--:|")
    for way, taken in times.items():
        ratio = statistics.median(a / b for a, b in zip(taken, times[first], strict=True))
        print(f"| {way} | {statistics.median(taken):.2f} | {ratio:.3f} |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    cuda = torch.cuda.is_available()
    parser.add_argument("--tokens", type=int, default=65536 if cuda else 512, help="of a step")
    parser.add_argument("--steps", type=int, default=16 if cuda else 3)
    parser.add_argument("--rounds", type=int, default=5 if cuda else 2)
    given = parser.parse_args()
    torch.manual_seed(0)
    device, dtype = ("cuda", torch.bfloat16) if cuda else ("cpu", torch.float32)
    dist.init_process_group("cpu:gloo,cuda:nccl" if cuda else "gloo", store=dist.HashStore(), rank=0, world_size=1)

    shape = measure_block.block_shape(*((2048, 16, 4, 8192) if cuda else (64, 4, 2, 128)))
    model = Model(shape, 1, 3, 1024 if cuda else 64).to(device, dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    rng = np.random.default_rng(0)
    documents = pyarrow.parquet.read_table(DATA).column("text_tokens").to_numpy()
    documents = np.minimum(documents, given.tokens // 2)
    steps = [step_of(rng, documents, given.tokens) for _ in range(given.steps)]
    print(f"{torch.cuda.get_device_name() if cuda else 'CPU'}, PyTorch {torch.__version__}, {given.tokens:,} tokens,"
          f" {given.tokens * (8 + 2 * WIDTH) / 2**20:.1f} MiB a step")  # fmt: skip

    dispatcher = Dispatcher(length="ids", device=device)
    ways = {
        "by hand": lambda: by_hand(steps, device),
        "dispatched": lambda: dispatched(steps, dispatcher),
        "prefetched": lambda: PrefetchDispatcher(steps, dispatcher),
    }
    times = {way: [] for way in ways}
    for turn in range(given.rounds + 1):
        for way, make in ways.items():
            spent = train(model, optimizer, make())
            if turn:  # the first round compiles
                times[way].append(spent)
    table("a step's rows", times)

    # Planning for many ranks: rank 0's rows come from a table in the host's memory, drawn by its batches
    for num_ranks in (8, 64, 512) if cuda else (2,):
        per_rank = max(1, round(given.tokens / documents.mean()))
        lengths = documents[rng.integers(len(documents), size=num_ranks * per_rank * given.steps)]
        taken = {"batches known before": [], "batches planned in the loop": []}
        for turn in range(given.rounds + 1):
            for way in taken:
                sampler = BalancedBatchSampler(lengths, per_rank, num_ranks, 0, cost="quadratic:a=30000,b=1")
                sampler.set_epoch(0)
                batches = list(sampler) if way == "batches known before" else sampler
                drawn = ({"ids": [torch.zeros(lengths[i], dtype=torch.int64, device=device) for i in batch],
                          "features": [torch.zeros(lengths[i], WIDTH, dtype=torch.float16, device=device)
                                       for i in batch]} for batch in batches)  # fmt: skip
                spent = train(model, optimizer, drawn)
                if turn:
                    taken[way].append(spent)
        table(f"{num_ranks} ranks x {per_rank} documents", taken)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
