"""Measure a decoder block's forward and backward pass over lengths, for ``balancer fit``; needs torch.

    python benchmarks/measure_block.py steps.csv && balancer fit steps.csv

On a CUDA device: bfloat16, fused causal attention, lengths 128 to 32,768, time between events. Elsewhere: float32,
one thread, lengths 64 to 2,048, processor time. A step holds one to four sequences, packed one after the other, none of
which sees another; the shortest of three repetitions counts, after one that warms up.
"""

import argparse
import time

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from balancer.cost.layers import Attention, Block, Mlp


class DecoderBlock(nn.Module):
    """RMSNorm, causal GQA, RMSNorm, SwiGLU, as in Llama and Qwen."""

    def __init__(self, shape):
        super().__init__()
        attention, self.shape = shape.attention, shape
        width, kv_width = attention.heads * attention.head_dim, attention.kv_heads * attention.head_dim
        self.norms = nn.ModuleList(nn.RMSNorm(shape.hidden) for _ in range(2))
        self.queries, self.output = (
            nn.Linear(shape.hidden, width, bias=False),
            nn.Linear(width, shape.hidden, bias=False),
        )
        self.keys, self.values = (nn.Linear(shape.hidden, kv_width, bias=False) for _ in range(2))
        self.gate, self.up = (nn.Linear(shape.hidden, shape.mlp.intermediate, bias=False) for _ in range(2))
        self.down = nn.Linear(shape.mlp.intermediate, shape.hidden, bias=False)

    def attend(self, x, lengths):
        """Attention within each sequence."""
        heads = self.shape.attention.head_dim
        parts = []
        for q, k, v in zip(*(m(x).split(lengths) for m in (self.queries, self.keys, self.values)), strict=True):
            q, k, v = (y.unflatten(-1, (-1, heads)).transpose(0, 1).unsqueeze(0) for y in (q, k, v))
            seen = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
            parts.append(seen.squeeze(0).transpose(0, 1).flatten(1))
        return self.output(torch.cat(parts))

    def forward(self, x, lengths):
        """Tokens of all sequences, [sum of lengths, hidden]."""
        x = x + self.attend(self.norms[0](x), lengths)
        y = self.norms[1](x)
        return x + self.down(functional.silu(self.gate(y)) * self.up(y))


def seconds_of(block, x, lengths, cuda):
    """Time one forward and backward pass."""
    if not cuda:
        begun = time.thread_time()
        block(x, lengths).sum().backward()
        return time.thread_time() - begun
    events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
    events[0].record()
    block(x, lengths).sum().backward()
    events[1].record()
    torch.cuda.synchronize()
    return events[0].elapsed_time(events[1]) / 1e3


def main():
    """Write a row a step."""
    parser = argparse.ArgumentParser()
    parser.add_argument("out")
    parser.add_argument("--steps", type=int, default=40)
    options = parser.parse_args()
    cuda = torch.cuda.is_available()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    hidden, heads, kv_heads, intermediate = (3584, 28, 4, 18944) if cuda else (256, 4, 2, 704)
    shape = Block(
        attention=Attention(hidden=hidden, heads=heads, kv_heads=kv_heads, head_dim=hidden // heads),
        mlp=Mlp(hidden=hidden, intermediate=intermediate, gated=True),
        norm_parameters=2 * hidden,
    )
    device, dtype = ("cuda", torch.bfloat16) if cuda else ("cpu", torch.float32)
    block = DecoderBlock(shape).to(device, dtype)
    shortest, longest = (128, 32768) if cuda else (64, 2048)
    rng = np.random.default_rng(0)
    with open(options.out, "w") as file:
        file.write("lengths,seconds\n")
        for step in range(options.steps):
            top = np.geomspace(shortest, longest, options.steps)[step]
            lengths = [int(top), *rng.integers(shortest, max(top, shortest + 1), rng.integers(0, 4)).tolist()]
            x = torch.randn(sum(lengths), hidden, device=device, dtype=dtype, requires_grad=True)
            seconds_of(block, x, lengths, cuda)
            taken = min(seconds_of(block, x, lengths, cuda) for _ in range(3))
            file.write(f"{' '.join(map(str, lengths))},{taken:.9f}\n")
            print(f"{len(lengths)} sequences, {sum(lengths):,} tokens: {taken:.4f} s")


if __name__ == "__main__":
    main()
