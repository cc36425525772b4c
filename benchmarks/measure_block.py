"""Measure decoder blocks' forward and backward pass over lengths, for ``balancer fit``; needs torch.

    python benchmarks/measure_block.py steps.csv && balancer fit steps.csv
    python benchmarks/measure_block.py steps.csv --window 1024 --layers 1:3
    balancer fit steps.csv --areas full,window1024

On a CUDA device: bfloat16, ``torch.nn.attention.varlen`` (PyTorch 2.11 or newer), lengths 128 to 32,768, time between
events. Elsewhere: float32, one thread, lengths 64 to 2,048, processor time. A step holds one to four sequences, packed
one after the other, none of which sees another; the shortest of three repetitions counts, after one that warms up.
"""

import argparse
import time
from typing import NamedTuple

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from balancer.cost.parts import Attention


class Shape(NamedTuple):
    """Sizes of a block."""

    attention: Attention
    intermediate: int


class DecoderBlock(nn.Module):
    """RMSNorm, causal GQA, RMSNorm, SwiGLU, as in Llama and Qwen; a window counts the token itself."""

    def __init__(self, shape, window=None):
        super().__init__()
        attention, self.shape, self.window, hidden = shape.attention, shape, window, shape.attention.hidden
        width, kv_width = attention.heads * attention.head_dim, attention.kv_heads * attention.head_dim
        self.norms = nn.ModuleList(nn.RMSNorm(hidden) for _ in range(2))
        self.queries, self.output = (
            nn.Linear(hidden, width, bias=False),
            nn.Linear(width, hidden, bias=False),
        )
        self.keys, self.values = (nn.Linear(hidden, kv_width, bias=False) for _ in range(2))
        self.gate, self.up = (nn.Linear(hidden, shape.intermediate, bias=False) for _ in range(2))
        self.down = nn.Linear(shape.intermediate, hidden, bias=False)

    def attend(self, x, lengths):
        """Attention within each sequence."""
        attention = self.shape.attention
        q, k, v = (m(x).unflatten(-1, (-1, attention.head_dim)) for m in (self.queries, self.keys, self.values))
        k, v = (y.repeat_interleave(attention.heads // attention.kv_heads, dim=1) for y in (k, v))
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


def block_shape(hidden, heads, kv_heads, intermediate):
    """A block with heads that make up its hidden size."""
    return Shape(Attention(hidden=hidden, heads=heads, kv_heads=kv_heads, head_dim=hidden // heads), intermediate)


def seconds_of(block, lengths, device, dtype):
    """Time one forward and backward pass of random tokens."""
    x = torch.randn(
        sum(lengths), block.blocks[0].shape.attention.hidden, device=device, dtype=dtype, requires_grad=True
    )
    block.zero_grad(set_to_none=True)
    if device == "cpu":
        begun = time.thread_time()
        block(x, lengths).sum().backward()
        return time.thread_time() - begun
    events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
    events[0].record()
    block(x, lengths).sum().backward()
    events[1].record()
    torch.cuda.synchronize()
    return events[0].elapsed_time(events[1]) / 1e3


def measured(block, steps, shortest, longest, device, dtype):
    """Yield the lengths of each step, which grow, and the least seconds of three passes after one."""
    rng = np.random.default_rng(0)
    for top in np.geomspace(shortest, longest, steps):
        lengths = [int(top), *rng.integers(shortest, max(top, shortest + 1), rng.integers(0, 4)).tolist()]
        taken = [seconds_of(block, lengths, device, dtype) for _ in range(4)]
        yield lengths, min(taken[1:])


def main():
    """Write a row a step."""
    parser = argparse.ArgumentParser()
    parser.add_argument("out")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--window", type=int, help="tokens that a query of a windowed layer sees")
    parser.add_argument("--layers", default="1:0", help="full and windowed ones, such as 1:3")
    options = parser.parse_args()
    cuda = torch.cuda.is_available()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    shape = block_shape(*((3584, 28, 4, 18944) if cuda else (256, 4, 2, 704)))
    device, dtype, range_ = ("cuda", torch.bfloat16, (128, 32768)) if cuda else ("cpu", torch.float32, (64, 2048))
    block = Blocks(shape, *map(int, options.layers.split(":")), options.window).to(device, dtype)
    with open(options.out, "w") as file:
        file.write("lengths,seconds\n")
        for lengths, taken in measured(block, options.steps, *range_, device, dtype):
            file.write(f"{' '.join(map(str, lengths))},{taken:.9f}\n")
            print(f"{len(lengths)} sequences, {sum(lengths):,} tokens: {taken:.4f} s")


if __name__ == "__main__":
    main()
