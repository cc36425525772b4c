"""What a plan is worth on a real GPU: the batches of all ranks of a step, run in turns on one device and timed.

    python benchmarks/gpu_step.py [--ranks 8] [--tokens 65536] [--longest 32768 65536] [--layers 1:3] [--window 1024]

First decoder blocks, some with full and some with windowed attention, are timed on batches of documents of a quarter
to one and a half of a rank's tokens, and the cost is fitted with a term for each kind (``balancer fit --areas``). Then
steps of other documents, cut at the longest length, are drawn, as many tokens to a rank, and planned: not at all, by
tokens, by FLOPs as if no layer had a window, by the fitted cost, and by the fitted cost with documents deferred by two
steps at most. Each rank's forward and backward pass is run and timed: what a step takes is its slowest rank; gradients'
exchange and the optimizer are left out. Predicted and measured stand side by side.
On a CPU (a smoke test): tiny blocks and few tokens.
"""

import argparse
import time
from pathlib import Path

import measure_block
import numpy as np
import pyarrow.parquet
import torch

import balancer
from balancer.cost.areas import area
from balancer.cost.fit import fit_cost

DATA = Path(__file__).parents[1] / "data" / "prolong_documents.parquet"
DEFER = 2
MOST_TOKENS = 1.5  # of a rank's tokens: its memory


def batch(rng, tokens, longest):
    """Draw documents until so many tokens are full, the last one cut: their lengths."""
    documents = np.minimum(pyarrow.parquet.read_table(DATA).column("text_tokens").to_numpy(), longest)
    held, left = [], tokens
    while left:
        held.append(int(min(documents[rng.integers(len(documents))], left)))
        left -= held[-1]
    return held


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
        lengths = np.concatenate([np.array(held, dtype=np.int64) for held in draw])
        home = np.repeat(np.arange(ranks), [len(held) for held in draw])
        share, milliseconds = shares(lengths, home, ranks, cost, most)
        steps.append(share)
        taken.append(milliseconds)
    return steps, float(np.median(taken))


def deferred(draws, ranks, tokens, cost, most):
    """Steps formed anew, no document more than DEFER steps from its own, and each planned."""
    lengths = np.array([length for draw in draws for held in draw for length in held], dtype=np.int64)
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


def main():
    """Fit, plan, run, and print a table for each longest length."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    cuda = torch.cuda.is_available()
    parser.add_argument("--ranks", type=int, default=8 if cuda else 4)
    parser.add_argument("--tokens", type=int, default=65536 if cuda else 2048, help="of a rank and step, as drawn")
    parser.add_argument("--longest", type=int, nargs="+", default=[32768, 65536] if cuda else [1024])
    parser.add_argument("--steps", type=int, default=5 if cuda else 2)
    parser.add_argument("--layers", default="1:3", help="full and windowed ones")
    parser.add_argument("--window", type=int, default=1024 if cuda else 64)
    given = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    device, dtype = ("cuda", torch.bfloat16) if cuda else ("cpu", torch.float32)
    full, windowed = map(int, given.layers.split(":"))
    shape = measure_block.block_shape(*((2048, 16, 4, 8192) if cuda else (64, 4, 2, 128)))
    block = measure_block.Blocks(shape, full, windowed, given.window).to(device, dtype)

    # A cost from the device itself, once it is as warm as it will be.
    rng = np.random.default_rng(0)
    sizes = rng.integers(given.tokens // 4, int(MOST_TOKENS * given.tokens), 60)
    batches = [batch(rng, size, max(given.longest)) for size in sizes]
    times = [[run(block, held, device, dtype) for held in batches] for _ in range(2)][-1]
    fit = fit_cost(batches, times, areas=["full", f"window{given.window}"], force=not cuda)
    cost = fit.integer_cost().model
    name = torch.cuda.get_device_name() if cuda else "CPU"
    print(f"{name}, PyTorch {torch.__version__}; held-out error {fit.held_out_error:.1%}")
    print(", ".join(f"{name} {seconds:.3e} s" for name, seconds, _ in fit.terms), f"; cost {cost}", flush=True)

    # The same blocks as if none had a window: what a cost of a*l + b*l^2 from FLOPs would say.
    hidden, attention = shape.attention.hidden, shape.attention
    width = attention.heads * attention.head_dim
    a = 2 * (
        2 * hidden * width + 2 * hidden * attention.kv_heads * attention.head_dim + 3 * hidden * shape.intermediate
    )
    by_full = f"attention:a={a},full={4 * width}"

    unit = {term: value for term, value, _ in fit.terms}
    for longest in given.longest:
        rng = np.random.default_rng(1)
        draws = [[batch(rng, given.tokens, longest) for _ in range(given.ranks)] for _ in range(given.steps)]
        for _ in range(2):  # the first round compiles
            ways = plans(draws, given.ranks, given.tokens, cost, by_full)
        said = {
            way: np.array([[predicted(unit, held) for held in step] for step in plan])
            for way, (plan, _) in ways.items()
        }
        real = {way: np.zeros_like(each) for way, each in said.items()}
        for step, rank in np.ndindex(given.steps, given.ranks):  # all ways by turns, as clocks of the device drift
            for way, (plan, _) in ways.items():
                real[way][step, rank] = run(block, plan[step][rank], device, dtype)
        print(f"\nDocuments of at most {longest:,} tokens\n")
        print("| plan | s a step, predicted | measured | ratio | waiting, predicted | measured | ms to plan |")
        print("|---|--:|--:|--:|--:|--:|--:|")
        for way, (_, planning) in ways.items():
            (m, w), (p, v) = (figures(each[way]) for each in (real, said))
            print(f"| {way} | {p:.4f} | {m:.4f} | {m / p:.3f} | {v:.1%} | {w:.1%} | {planning:.2f} |", flush=True)


def run(block, lengths, device, dtype):
    """Seconds of a rank's pass: the lesser of two; 0 where it holds nothing."""
    return min(measure_block.seconds_of(block, lengths, device, dtype) for _ in range(2)) if lengths else 0.0


def predicted(unit, lengths):
    """Seconds that the fitted terms give a rank's batch."""
    held = np.array(lengths, dtype=np.int64)
    size = {"c0": 1, "constant": len(held), "a": held.sum()}
    return float(sum(value * (size[term] if term in size else area(term, held).sum()) for term, value in unit.items()))


def figures(times):
    """Mean seconds of a step, its slowest rank, and the share of all ranks' time that is waiting."""
    slowest = times.max(axis=1)
    return slowest.mean(), 1 - times.mean() / slowest.mean()


if __name__ == "__main__":
    main()
