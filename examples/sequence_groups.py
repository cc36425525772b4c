"""A small transformer trained on samples that ranks share, and on one process: the same losses and gradients.

    python examples/sequence_groups.py

Four ranks on gloo, on this machine. A few samples are far longer than the others. In every slot (micro-batch) long
samples run on groups of several ranks, short ones on one; the plan says which. Attention goes over the group of the
slot, in one of the two usual ways. With all-to-all each rank gets all tokens of some heads (Ulysses). With a ring the
keys and values of all ranks travel round, and each rank holds the beginning and the end of a sample (zigzag).
"""

from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from three_modalities import add_up, difference, on_ranks
from torch import nn
from torch.nn import functional

from balancer import SequenceGroups
from balancer.executor import Dispatcher, count_labels

STEPS, SAMPLES_A_RANK, TOKENS_A_RANK = 6, 6, 80
WORDS, WIDTH, HEADS, LAYERS = 29, 32, 4, 2
WAYS = {"ulysses": "contiguous", "ring": "zigzag"}  # and the order in which each wants the pieces


class Place(NamedTuple):
    """Where the tokens of a rank's slot belong."""

    sample: torch.Tensor
    position: torch.Tensor  # in the sample

    def sees(self, other):
        """Which tokens of another rank these tokens attend to: tokens of their sample that are not after them."""
        return (self.sample[:, None] == other.sample) & (self.position[:, None] >= other.position)


class AllToAll(torch.autograd.Function):
    """Equal parts [rank, ...] to the ranks of a group; gradients take the same way."""

    @staticmethod
    def forward(ctx, parts, group):
        ctx.group, parts = group, parts.contiguous()
        arrived = torch.empty_like(parts)
        dist.all_to_all_single(arrived, parts, group=group)
        return arrived

    @staticmethod
    def backward(ctx, gradient):
        return AllToAll.apply(gradient, ctx.group), None


def attend(query, key, value, sees):
    """Attention of all tokens [token, head, width]; each attends to some token, padding too."""
    query, key, value = (x.transpose(0, 1) for x in (query, key, value))
    return functional.scaled_dot_product_attention(query, key, value, attn_mask=sees).transpose(0, 1)


def ulysses(query, key, value, place, group):
    """Attention of a rank's tokens over its group: all tokens of some heads, then all heads of its tokens."""
    ranks = dist.get_world_size(group)

    def of_heads(x):  # [token, head, width] to all ranks' tokens and some heads
        parts = x.unflatten(1, (ranks, -1)).transpose(0, 1)
        return AllToAll.apply(parts, group).flatten(0, 1)

    places = type(place)(*(torch.cat(all_of(x, group)) for x in place))
    found = attend(of_heads(query), of_heads(key), of_heads(value), places.sees(places))
    return AllToAll.apply(found.unflatten(0, (ranks, -1)), group).transpose(0, 1).flatten(1, 2)


def ring(query, key, value, place, group):
    """Attention of a rank's tokens over its group: keys and values come round, softmax is kept running."""
    ranks, rank = dist.get_world_size(group), dist.get_rank(group)
    places = [Place(*x) for x in zip(*(all_of(x, group) for x in place), strict=True)]
    most, weight, found = query.new_full(query.shape[:2], -torch.inf), 0, 0
    for turn in range(ranks):
        scores = torch.einsum("qhw,khw->qhk", query, key) / query.shape[-1] ** 0.5
        scores = scores.masked_fill(~place.sees(places[rank - turn])[:, None], -torch.inf)
        larger = torch.maximum(most, scores.amax(-1).detach())  # never -inf: the first turn has the token itself
        kept, new = (most - larger).exp(), (scores - larger[..., None]).exp()
        found = found * kept[..., None] + torch.einsum("qhk,khw->qhw", new, value)
        most, weight = larger, weight * kept + new.sum(-1)
        if turn < ranks - 1:
            key, value = passed_on(torch.stack([key, value]), group)
    return found / weight[..., None]


def passed_on(values, group):
    """The tensor of the rank before; gradients go back to it."""
    ranks, rank = dist.get_world_size(group), dist.get_rank(group)
    parts = [torch.zeros_like(values)] * ranks
    parts[(rank + 1) % ranks] = values
    return AllToAll.apply(torch.stack(parts), group)[rank - 1]


def all_of(values, group):
    """All ranks' numbers, as many on each."""
    found = [torch.empty_like(values) for _ in range(dist.get_world_size(group))]
    dist.all_gather(found, values, group=group)
    return found


class Blocks(nn.Module):
    """Blocks of attention and a hidden layer."""

    def __init__(self):
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(LAYERS))
        self.attention = nn.ModuleList(nn.Linear(WIDTH, 3 * WIDTH) for _ in range(LAYERS))
        self.mlp = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)) for _ in range(LAYERS)
        )

    def forward(self, x, place, over_group):
        """The outputs for tokens; `over_group` computes attention."""
        for norm, attention, mlp in zip(self.norms, self.attention, self.mlp, strict=True):
            parts = (part.unflatten(-1, (HEADS, -1)) for part in attention(norm(x)).chunk(3, dim=-1))
            x = x + over_group(*parts, place).flatten(1)
            x = x + mlp(x)
        return x


class Model(nn.Module):
    """A language model: its blocks are causal."""

    def __init__(self):
        super().__init__()
        self.embed, self.head, self.blocks = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS), Blocks()

    def loss_sum(self, ids, labels, place, counted, over_group):
        """Sum of the losses of the counted tokens; `over_group` computes attention."""
        wave = place.position[:, None] * torch.logspace(0, -3, WIDTH // 2)
        x = self.blocks(self.embed(ids) + torch.cat([wave.sin(), wave.cos()], dim=-1), place, over_group)
        return functional.cross_entropy(self.head(x)[counted], labels[counted], reduction="sum")


def batch_of(rank, step):
    """A rank's samples: a few are long; every word depends on the one before."""
    random = np.random.default_rng([step, rank])
    lengths = random.integers(4, 24, SAMPLES_A_RANK) * np.where(random.random(SAMPLES_A_RANK) < 0.15, 10, 1)
    words = [torch.from_numpy(random.integers(0, 3, length + 1).cumsum() % WORDS) for length in lengths]
    labels = [row[1:].clone() for row in words]
    for row in labels:
        row[: len(row) // 3] = -100  # what nobody learns, which no loss counts
    return {"ids": [row[:-1] for row in words], "labels": labels}


def alone(model, batches):
    """The loss of a step on one process, sample by sample; gradients stay in the model."""
    loss, tokens = 0.0, sum(count_labels(batch["labels"], shift=False) for batch in batches)
    for batch in batches:
        for ids, labels in zip(batch["ids"], batch["labels"], strict=True):
            place = Place(torch.zeros_like(ids), torch.arange(len(ids)))
            one = (
                model.loss_sum(ids, labels, place, labels != -100, lambda *x: attend(*x[:3], x[3].sees(x[3]))) / tokens
            )
            one.backward()
            loss += one.item()
    return loss


def together(model, step, attention):
    """A rank's losses of a step, summed slot by slot, and how many: these are the lines that sequence groups need."""
    loss, tokens, lengths = 0.0, 0, torch.from_numpy(step.plan.lengths.copy())
    for slot, (start, stop) in enumerate(pairwise(step.slot_bounds())):
        if start == stop:  # this rank is in no group of the slot
            continue
        pieces, group = step.pieces(slot), step.process_group(slot)
        sizes = torch.from_numpy(pieces.stop - pieces.start)
        sample = torch.from_numpy(pieces.sample).repeat_interleave(sizes)
        position = torch.cat([torch.arange(*piece) for piece in zip(pieces.start, pieces.stop, strict=True)])
        place = Place(sample, position)

        def over_group(query, key, value, place, group=group):
            if group is None:
                return attend(query, key, value, place.sees(place))
            return attention(query, key, value, place, group)

        ids, labels = torch.cat(step["ids"][start:stop]), torch.cat(step["labels"][start:stop])
        counted = (position < lengths[sample]) & (labels != -100)  # neither padding nor what is masked
        one = model.loss_sum(ids, labels, place, counted, over_group)
        one.backward()
        loss, tokens = loss + one.item(), tokens + int(counted.sum())
    return torch.tensor([loss, tokens], dtype=torch.float64)


def train(rank, way, steps=STEPS):
    """Train both ways from the same weights; return both losses of each step, how gradients differ, and degrees."""
    torch.manual_seed(0)
    model, reference = Model().double(), Model().double()
    reference.load_state_dict(model.state_dict())
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.3, momentum=0.9) for each in (model, reference)]
    cut = SequenceGroups((1, 2, 4), tokens_per_rank=TOKENS_A_RANK, exchange=way, order=WAYS[way])
    dispatcher = Dispatcher(length="ids", cost="quadratic:a=200,b=1", cut=cut)
    told = []
    for number in range(steps):
        step = dispatcher.dispatch(batch_of(rank, number))
        sums = together(model, step, {"ulysses": ulysses, "ring": ring}[way])
        add_up(model, sums)
        loss, tokens = sums[0] / sums[1], sums[1]
        for parameter in model.parameters():
            parameter.grad /= tokens
        wanted = alone(reference, [batch_of(other, number) for other in range(dist.get_world_size())])
        apart = difference(*([parameter.grad for parameter in each.parameters()] for each in (model, reference)))
        degrees = [[group.degree for group in step.plan.groups(slot)] for slot in range(step.plan.num_slots)]
        told.append((loss.item(), wanted, apart, degrees))
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    return told


def show(rank):
    """Train over both exchanges and print."""
    for way in WAYS:
        for number, (loss, wanted, apart, degrees) in enumerate(train(rank, way)):
            if rank == 0:
                print(f"{way}, step {number}: loss {loss:.9f}, on one process {wanted:.9f}; gradients differ by "
                      f"{apart:.0e}; degrees by slot {degrees}")  # fmt: skip


if __name__ == "__main__":
    on_ranks(show)
