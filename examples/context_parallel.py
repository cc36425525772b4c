"""A small Llama trained on packs of documents that four ranks share token by token: the same losses and weights.

    python examples/context_parallel.py

Four ranks on gloo, on this machine, in float64. Lengths are those of `data/prolong_documents.parquet`, shortened so
that it runs in seconds. Every pack is filled with documents. It is cut so that ranks compute the same and receive
little. Layers alternate: one sees all of a document before a token, the next a window of it. Each kind gathers its own
rows of keys and values. The example prints losses, how far weights are from those of one rank, and how much the busiest
rank receives in a layer.
"""

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import torch
import torch.distributed as dist
from three_modalities import add_up, on_ranks
from torch import nn
from torch.nn import functional

import solvers
from balancer.executor import ContextExchange, count_labels, global_token_mean, shift_labels

LOG = Path(__file__).resolve().parent.parent / "data" / "prolong_documents.parquet"
STEPS, TOKENS, SHRINK = 10, 1024, 16
WORDS, WIDTH, HEADS, KEY_HEADS, LAYERS = 29, 32, 4, 2, 4
MASKS = {"full": 2, "window64": 2}  # layers of each kind; they take turns


def pack_of(step):
    """The documents of a pack, the last one cut, and their words: each depends on the one before."""
    random, log = np.random.default_rng(step), pq.read_table(LOG)["text_tokens"].to_numpy()
    lengths = []
    while sum(lengths) < TOKENS:
        lengths.append(min(1 + int(random.choice(log)) // SHRINK, TOKENS - sum(lengths)))
    return lengths, torch.from_numpy(np.concatenate([random.integers(0, 3, each).cumsum() % WORDS for each in lengths]))


def turned(x, position):
    """Rotary embedding of [token, head, width], by positions in documents, because a rank has parts of them."""
    angle = position[:, None, None] * torch.logspace(0, -3, x.shape[-1] // 2, dtype=x.dtype)
    one, other = x.chunk(2, dim=-1)
    return torch.cat([one * angle.cos() - other * angle.sin(), one * angle.sin() + other * angle.cos()], dim=-1)


def attend(query, key, value, sees):
    """Attention of queries [token, head, width] to keys of fewer heads; `sees` says which keys a query sees."""
    query, key, value = (x.transpose(0, 1)[None] for x in (query, key, value))
    found = functional.scaled_dot_product_attention(query, key, value, attn_mask=sees, enable_gqa=True)
    return found[0].transpose(0, 1).flatten(1)


class Layer(nn.Module):
    """Attention, then a gated hidden layer."""

    def __init__(self):
        super().__init__()
        self.before, self.between = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.query, self.out = nn.Linear(WIDTH, WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.pair = nn.Linear(WIDTH, 2 * KEY_HEADS * (WIDTH // HEADS), bias=False)  # keys and values
        self.gate, self.up = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.down = nn.Linear(3 * WIDTH, WIDTH, bias=False)

    def forward(self, x, position, attention):
        """The outputs for tokens; `attention` knows where keys and values are."""
        normed = self.before(x)
        key, value = self.pair(normed).unflatten(-1, (2 * KEY_HEADS, -1)).chunk(2, dim=1)
        query = turned(self.query(normed).unflatten(-1, (HEADS, -1)), position)
        x = x + self.out(attention(query, turned(key, position), value))
        normed = self.between(x)
        return x + self.down(functional.silu(self.gate(normed)) * self.up(normed))


class Llama(nn.Module):
    """A language model."""

    def __init__(self):
        super().__init__()
        self.embed, self.layers = nn.Embedding(WORDS, WIDTH), nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm, self.head = nn.RMSNorm(WIDTH), nn.Linear(WIDTH, WORDS, bias=False)

    def loss_sum(self, words, labels, position, attention):
        """Sum of the losses of tokens that have a label; `attention` gets the kind of layer, queries, keys, values."""
        x, kinds = self.embed(words), list(MASKS)
        for number, layer in enumerate(self.layers):
            kind = kinds[number % len(kinds)]
            x = layer(x, position, lambda *rows, kind=kind: attention(kind, *rows))
        return functional.cross_entropy(self.head(self.norm(x)), labels, reduction="sum", ignore_index=-100)


def together(model, exchange, words, labels):
    """The loss of a pack whose tokens ranks share: these are the lines that context parallelism needs."""

    def attention(kind, query, key, value):
        return attend(query, *exchange.gather(key, value, kind=kind), exchange.dense_mask(kind))

    mine = exchange.index
    loss_sum = model.loss_sum(words[mine], labels[mine], exchange.positions, attention)
    loss = global_token_mean(loss_sum, count_labels(labels[mine], shift=False), gradients="summed")
    loss.backward()
    add_up(model)
    return loss.item()


def alone(model, lengths, words, labels):
    """The same loss on one rank, document by document."""
    total, counted = 0.0, count_labels(labels, shift=False)
    for document, wanted in zip(words.split(lengths), labels.split(lengths), strict=True):
        at = torch.arange(len(document))
        behind = at[:, None] - at
        sees = {"full": behind >= 0, "window64": (behind >= 0) & (behind < 64)}
        loss = model.loss_sum(document, wanted, at, lambda kind, *rows, sees=sees: attend(*rows, sees[kind])) / counted
        loss.backward()
        total += loss.item()
    return total


def train(rank, steps=STEPS):
    """Train both ways from the same weights; return both losses of each step, how weights differ, and rows received.

    The first rank also trains alone. Only this rank has the second and third numbers.
    """
    torch.manual_seed(0)
    model, reference = Llama().double(), Llama().double()
    reference.load_state_dict(model.state_dict())
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.3, momentum=0.9) for each in (model, reference)]
    told, exchange = [], None
    for number in range(steps):
        lengths, words = pack_of(number)
        shards = solvers.context_shards(lengths, dist.get_world_size(), masks=MASKS, block=16)
        exchange = ContextExchange(shards, exchange, masks=MASKS)
        labels = shift_labels(words, lengths)
        loss, wanted = together(model, exchange, words, labels), None
        if rank == 0:
            wanted = alone(reference, lengths, words, labels)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        pairs = zip(model.parameters(), reference.parameters(), strict=True)
        apart = max((one - other).abs().max().item() for one, other in pairs) if rank == 0 else None
        told.append((loss, wanted, apart, [exchange.keys(kind).received for kind in MASKS]))
    return told


def show(rank):
    """Train and print."""
    steps, ranks = train(rank), dist.get_world_size()
    received = torch.tensor([rows for *_, rows in steps])
    dist.all_reduce(received, dist.ReduceOp.MAX)
    for number, (loss, wanted, apart, _) in enumerate(steps):
        if rank == 0:
            most = zip(MASKS, received[number].tolist(), strict=True)
            rows = ", ".join(f"{kind} {count}" for kind, count in most)
            print(f"step {number}: loss {loss:.9f}, on one rank {wanted:.9f}; weights differ by {apart:.0e}; the "
                  f"busiest rank receives {rows} rows a layer, by all-gather {TOKENS - TOKENS // ranks}")  # fmt: skip


if __name__ == "__main__":
    on_ranks(show)
