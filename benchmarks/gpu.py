"""Does a fitted cost hold on a real device, what is a plan worth there, and does the executor hide behind a step?

    python benchmarks/gpu.py [measure] [step] [overlap] [--out steps.csv] [--window 1024] [--layers 1:3] [--steps N]

Needs torch; on a CUDA device (bfloat16, ``torch.nn.attention.varlen``, PyTorch 2.11 or newer) a minute or two each, on
a CPU a smoke test of tiny blocks (float32, one thread), a minute for all with ``--steps 4``.

`measure` times decoder blocks' forward and backward pass over lengths for ``balancer fit steps.csv [--areas
full,window1024]``: steps of one to four sequences, packed one after the other, the shortest of three repetitions.

`step` runs the batches of all ranks of a step in turns on the device. First blocks, some with full and some with
windowed attention, are timed on batches of documents, and the cost is fitted with a term for each kind. Then steps of
other documents are planned: not at all, by tokens, by FLOPs as if no layer had a window, by the fitted cost, and by
that with documents deferred by two steps at most. A step takes what its slowest rank takes; the exchange of gradients
and the optimizer are left out.

`overlap` trains blocks on documents with their ids and 256 half floats a token, by turns with rows joined and copied by
hand, by ``Dispatcher.dispatch``, and by ``PrefetchDispatcher``; there is one rank, so what is measured is the
executor's own work. Then with the batches of ``BalancedBatchSampler``, drawn in the loop or before it.
"""

import argparse
import statistics
import time
from typing import Any, NamedTuple

import common
import numpy as np
import torch
import torch.distributed as dist
from common import Table
from torch import nn
from torch.nn import functional

import balancer
from balancer.compat import BalancedBatchSampler
from balancer.cost.fit import fit_cost
from balancer.executor import Dispatcher, PrefetchDispatcher

CUDA = torch.cuda.is_available()
DEVICE, DTYPE = ("cuda", torch.bfloat16) if CUDA else ("cpu", torch.float32)
WIDTH = 256  # features of a token
DEFER = 2
MOST_TOKENS = 1.5  # of a rank's tokens: its memory


class Shape(NamedTuple):
    """Sizes of a block, whose heads make up its hidden size."""

    hidden: int
    heads: int
    kv_heads: int
    intermediate: int

    @property
    def head_dim(self) -> int:
        return self.hidden // self.heads


SHAPE = Shape(2048, 16, 4, 8192) if CUDA else Shape(64, 4, 2, 128)
MEASURED = Shape(3584, 28, 4, 18944) if CUDA else Shape(256, 4, 2, 704)  # Qwen2-7B's


class DecoderBlock(nn.Module):
    """RMSNorm, causal GQA, RMSNorm, SwiGLU, as in Llama and Qwen; a window counts the token itself."""

    def __init__(self, shape, window=None):
        super().__init__()
        self.shape, self.window, hidden = shape, window, shape.hidden
        kv_width = shape.kv_heads * shape.head_dim
        self.norms = nn.ModuleList(nn.RMSNorm(hidden) for _ in range(2))
        self.queries, self.output = (nn.Linear(hidden, hidden, bias=False) for _ in range(2))
        self.keys, self.values = (nn.Linear(hidden, kv_width, bias=False) for _ in range(2))
        self.gate, self.up = (nn.Linear(hidden, shape.intermediate, bias=False) for _ in range(2))
        self.down = nn.Linear(shape.intermediate, hidden, bias=False)

    def attend(self, x, lengths):
        """Attention within each sequence."""
        shape = self.shape
        q, k, v = (m(x).unflatten(-1, (-1, shape.head_dim)) for m in (self.queries, self.keys, self.values))
        k, v = (y.repeat_interleave(shape.heads // shape.kv_heads, dim=1) for y in (k, v))
        seen = (on_cuda if x.is_cuda else one_by_one)(q, k, v, lengths, self.window)
        return self.output(seen.flatten(1))

    def forward(self, x, lengths):
        """Tokens of all sequences, [sum of lengths, hidden]."""
        x = x + self.attend(self.norms[0](x), lengths)
        y = self.norms[1](x)
        return x + self.down(functional.silu(self.gate(y)) * self.up(y))


def on_cuda(q, k, v, lengths, window):
    """One kernel for all sequences: [tokens, heads, head dimension]."""
    from torch.nn.attention.varlen import varlen_attn

    starts = torch.tensor([0, *np.cumsum(lengths)], dtype=torch.int32, device=q.device)
    longest = max(lengths)
    size = (-1 if window is None else window - 1, 0)
    return varlen_attn(q, k, v, starts, starts, longest, longest, window_size=size)


def one_by_one(q, k, v, lengths, window):
    """Attend with a mask, sequence by sequence, which any device can do."""
    parts = []
    for one in zip(*(y.split(lengths) for y in (q, k, v)), strict=True):
        place = torch.arange(len(one[0]), device=q.device)
        back = place[:, None] - place
        mask = (back >= 0) & (back < (window or len(place)))
        heads_first = (y.transpose(0, 1) for y in one)
        parts.append(functional.scaled_dot_product_attention(*heads_first, attn_mask=mask).transpose(0, 1))
    return torch.cat(parts)


class Blocks(nn.Module):
    """Blocks in a row, the last of which keep a window."""

    def __init__(self, shape, full, windowed, window):
        super().__init__()
        self.blocks = nn.ModuleList([DecoderBlock(shape) for _ in range(full)])
        self.blocks.extend(DecoderBlock(shape, window) for _ in range(windowed))

    def forward(self, x, lengths):
        for block in self.blocks:
            x = block(x, lengths)
        return x


def seconds_of(block, lengths):
    """Time one forward and backward pass of random tokens."""
    x = torch.randn(sum(lengths), block.blocks[0].shape.hidden, device=DEVICE, dtype=DTYPE, requires_grad=True)
    block.zero_grad(set_to_none=True)
    if not CUDA:
        begun = time.thread_time()
        block(x, lengths).sum().backward()
        return time.thread_time() - begun
    events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
    events[0].record()
    block(x, lengths).sum().backward()
    events[1].record()
    torch.cuda.synchronize()
    return events[0].elapsed_time(events[1]) / 1e3


def blocks_of(shape, asked, layers="1:3"):
    """So many blocks with full and with windowed attention, by default the `layers` given."""
    return Blocks(shape, *map(int, (asked.layers or layers).split(":")), asked.window).to(DEVICE, DTYPE)


def measure(asked):
    """Write a row a step: its lengths, which grow, and seconds."""
    block = blocks_of(MEASURED, asked, "1:0")
    shortest, longest = (128, 32_768) if CUDA else (64, 2048)
    rng, rows = np.random.default_rng(0), ["lengths,seconds"]
    for top in np.geomspace(shortest, longest, asked.steps or 40):
        lengths = [int(top), *rng.integers(shortest, max(top, shortest + 1), rng.integers(0, 4)).tolist()]
        taken = min([seconds_of(block, lengths) for _ in range(4)][1:])
        rows.append(f"{' '.join(map(str, lengths))},{taken:.9f}")
    with open(asked.out, "w") as file:
        file.write("\n".join(rows) + "\n")
    print(f"{len(rows) - 1} steps in {asked.out}: balancer fit {asked.out}")


def documents(longest):
    return np.minimum(common.log("documents"), longest)


def batch(rng, tokens, longest):
    """Draw documents until so many tokens are full, the last one cut: their lengths."""
    every, drawn = documents(longest), []
    while (left := tokens - sum(drawn)) > 0:
        drawn.append(int(min(every[rng.integers(len(every))], left)))
    return drawn


# What a plan is worth


def shares(lengths, home, ranks, cost, most):
    """Plan a step; the lengths on each rank, and the plan's milliseconds."""
    begun = time.perf_counter()
    plan = balancer.balance(lengths, ranks, home_rank=home, cost=cost, max_tokens_per_rank=most)
    taken = (time.perf_counter() - begun) * 1e3
    return [lengths[plan.samples_on_rank(r)].tolist() for r in range(ranks)], taken


def planned(draws, ranks, cost, most):
    """Each step planned by itself."""
    steps, taken = [], []
    for draw in draws:
        lengths = np.concatenate([np.array(rank, dtype=np.int64) for rank in draw])
        home = np.repeat(np.arange(ranks), [len(rank) for rank in draw])
        share, milliseconds = shares(lengths, home, ranks, cost, most)
        steps.append(share)
        taken.append(milliseconds)
    return steps, float(np.median(taken))


def deferred(draws, ranks, tokens, cost, most):
    """Steps formed anew, no document more than DEFER steps from its own, and each planned."""
    lengths = np.array([length for draw in draws for rank in draw for length in rank], dtype=np.int64)
    found = balancer.defer(
        lengths, ranks, step_tokens=ranks * tokens, window=DEFER, cost=cost, max_tokens_per_rank=most
    )
    steps = [lengths[found.step_of_sample == step] for step in range(len(draws))]
    results = [shares(step, np.arange(len(step)) * ranks // len(step), ranks, cost, most) for step in steps]
    return [share for share, _ in results], float(np.median([taken for _, taken in results]))


def plans(draws, ranks, tokens, cost, by_full):
    """By the name of a way to plan: lengths by step and rank, and milliseconds a step."""
    most = int(MOST_TOKENS * tokens)
    return {
        "as drawn": (draws, 0.0),
        "by tokens": planned(draws, ranks, "linear", most),
        "by FLOPs, all layers full": planned(draws, ranks, by_full, most),
        "by the fitted cost": planned(draws, ranks, cost, most),
        f"fitted, deferred by {DEFER}": deferred(draws, ranks, tokens, cost, most),
    }


def step(asked):
    """Plans of a step by what they know of its cost: seconds predicted and measured, over those as drawn."""
    ranks, tokens = (8, asked.tokens or 65_536) if CUDA else (4, asked.tokens or 1024)
    block = blocks_of(SHAPE, asked)
    longest_of_all = tokens if CUDA else 512
    # A cost from the device itself, once it is as warm as it will be.
    rng = np.random.default_rng(0)
    sizes = rng.integers(tokens // 4, int(MOST_TOKENS * tokens), 60 if CUDA else 20)
    batches = [batch(rng, size, longest_of_all) for size in sizes]
    times = [[run(block, lengths) for lengths in batches] for _ in range(2)][-1]
    fit = fit_cost(batches, times, areas=["full", f"window{asked.window}"], force=not CUDA)
    print(f"{torch.cuda.get_device_name() if CUDA else 'CPU'}, PyTorch {torch.__version__}; held-out error "
          f"{fit.held_out_error:.1%}\n", flush=True)  # fmt: skip
    # The same blocks as if none had a window: what a cost of a*l + b*l^2 from FLOPs would say.
    hidden, kv_width = SHAPE.hidden, SHAPE.kv_heads * SHAPE.head_dim
    a = 2 * (2 * hidden * hidden + 2 * hidden * kv_width + 3 * hidden * SHAPE.intermediate)
    by_full, cost = f"attention:a={a},full={4 * hidden}", fit.integer_cost().model
    table = Table("longest, plan", "predicted over as drawn", "measured over as drawn", "measured over predicted",
                  "waiting, %: predicted", "measured", "ms to plan")  # fmt: skip
    for longest in (32_768, 65_536) if CUDA else (512,):
        rng, count = np.random.default_rng(1), asked.steps or (5 if CUDA else 2)
        draws = [[batch(rng, tokens, longest) for _ in range(ranks)] for _ in range(count)]
        for _ in range(2):  # the first round compiles
            ways = plans(draws, ranks, tokens, cost, by_full)
        said = {way: np.array([[fit.predict(rank) if rank else 0.0 for rank in each] for each in plan])
                for way, (plan, _) in ways.items()}  # fmt: skip
        real = {way: np.zeros_like(each) for way, each in said.items()}
        for at, rank in np.ndindex(count, ranks):  # all ways by turns, as clocks of the device drift
            for way, (plan, _) in ways.items():
                real[way][at, rank] = run(block, plan[at][rank])
        base = [figures(each["as drawn"])[0] for each in (said, real)]
        for way, (_, planning) in ways.items():
            (p, v), (m, w) = (figures(each[way]) for each in (said, real))
            table.row(f"{longest:,}, {way}", p / base[0], m / base[1], m / p, f"{100 * v:.1f}", f"{100 * w:.1f}",
                      f"{planning:.2f}")  # fmt: skip


def run(block, lengths):
    """Seconds of a rank's pass: the lesser of two; 0 where it holds nothing."""
    return min(seconds_of(block, lengths) for _ in range(2)) if lengths else 0.0


def figures(times):
    """Mean seconds of a step, its slowest rank, and the share of all ranks' time that is waiting."""
    slowest = times.max(axis=1)
    return slowest.mean(), 1 - times.mean() / slowest.mean()


# Whether the executor hides


class Model(nn.Module):
    """An embedding, features added to it, and blocks."""

    def __init__(self, shape, asked):
        super().__init__()
        self.ids = nn.Embedding(1024, shape.hidden)
        self.features = nn.Linear(WIDTH, shape.hidden)
        self.blocks = blocks_of(shape, asked)

    def forward(self, ids, features, lengths):
        return self.blocks(self.ids(ids) + self.features(features), lengths).float().square().mean()


def by_hand(steps):
    """Yield each step's rows on the device."""
    for step in steps:
        yield {name: [row.to(DEVICE, non_blocking=True) for row in rows] for name, rows in step.items()}


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
    if CUDA:
        torch.cuda.synchronize()


def rows_of(rng, tokens):
    """A mini-batch in the host's memory."""
    lengths = batch(rng, tokens, tokens // 2)
    return {
        "ids": [torch.from_numpy(rng.integers(0, 1024, length)) for length in lengths],
        "features": [torch.zeros(length, WIDTH, dtype=torch.float16) for length in lengths],
    }


def rounds(table, name, ways, model, optimizer):
    """A row a way: the median of its times, and of its ratios to the first, round by round."""
    times = {way: [] for way in ways}
    for turn in range(6 if CUDA else 3):
        for way, make in ways.items():
            spent = train(model, optimizer, make())
            if turn:  # the first round compiles
                times[way].append(spent)
    for way, taken in times.items():
        table.row(f"{name}, {way}", f"{statistics.median(taken):.2f}", common.over(times, way, next(iter(ways))))


def overlap(asked):
    """A step's rows, by hand and dispatched; then batches that are planned in the loop."""
    tokens, count = asked.tokens or (65_536 if CUDA else 512), asked.steps or (16 if CUDA else 3)
    dist.init_process_group("cpu:gloo,cuda:nccl" if CUDA else "gloo", store=dist.HashStore(), rank=0, world_size=1)
    model = Model(SHAPE, asked).to(DEVICE, DTYPE)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    rng = np.random.default_rng(0)
    steps = [rows_of(rng, tokens) for _ in range(count)]
    dispatcher = Dispatcher(length="ids", device=DEVICE)
    table = Table("rows", "ms a step", "over the first")
    rounds(table, "one rank", {
        "by hand": lambda: by_hand(steps),
        "dispatched": lambda: dispatched(steps, dispatcher),
        "prefetched": lambda: PrefetchDispatcher(steps, dispatcher),
    }, model, optimizer)  # fmt: skip
    every = documents(tokens // 2)
    for ranks in (8, 64, 512) if CUDA else (2,):
        # Rank 0's rows come from a table in the host's memory, drawn by its batches.
        each = max(1, round(tokens / every.mean()))
        lengths = every[rng.integers(len(every), size=ranks * each * count)]

        def drawn(before: bool, ranks: int = ranks, each: int = each, lengths: Any = lengths):
            sampler = BalancedBatchSampler(lengths, each, ranks, 0, cost="quadratic:a=30000,b=1")
            for indices in list(sampler) if before else sampler:
                own = lengths[indices]
                ids = [torch.zeros(n, dtype=torch.int64, device=DEVICE) for n in own]
                features = [torch.zeros(n, WIDTH, dtype=torch.float16, device=DEVICE) for n in own]
                yield {"ids": ids, "features": features}

        ways = {"batches known before": lambda drawn=drawn: drawn(True), "planned in the loop":
                lambda drawn=drawn: drawn(False)}  # fmt: skip
        rounds(table, f"{ranks} ranks x {each} documents", ways, model, optimizer)
    dist.destroy_process_group()


def main():
    parts = {each.__name__: each for each in (measure, step, overlap)}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(parts))
    parser.add_argument("--out", default="steps.csv", help="where measure writes")
    parser.add_argument("--steps", type=int, help="how many")
    parser.add_argument("--tokens", type=int, help="of a rank and step")
    parser.add_argument("--layers", help="full and windowed ones, by default 1:0 for measure and 1:3")
    parser.add_argument("--window", type=int, default=1024 if CUDA else 64)
    asked = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    balancer.warmup()
    for name in asked.parts or parts:
        print(f"## {name}: {parts[name].__doc__}\n")
        parts[name](asked)
        print()


if __name__ == "__main__":
    main()
