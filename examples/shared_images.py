"""A vision encoder whose long images ranks share, and a language model of whole samples; the same on one process.

    python examples/shared_images.py

Four ranks on gloo, on this machine. A few images are far longer than the others. The plan says which images two or four
ranks share, longest first. Single ranks compute the other images whole. Attention over a shared image is all-to-all, as
in `sequence_groups.py`. The encoder's outputs go straight to the rank of their sample, in pieces.
"""

from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from sequence_groups import WIDTH, WORDS, Blocks, Place, attend, ulysses
from three_modalities import add_up, difference, on_ranks
from torch import nn
from torch.nn import functional

from balancer import Phase
from balancer.executor import Dispatcher, anchored, count_labels, global_token_mean

STEPS, SAMPLES_A_RANK, PIXELS, MERGED = 4, 4, 6, 4  # PIXELS a patch, MERGED patches a token

COST = "quadratic:a=200,b=1,d2=20,d4=30"  # d2 and d4: what two ranks, or four, exchange for a patch that they share
PHASES = [
    Phase("vision", "pixels", COST, "made", sequence_parallel=4, share_multiple_of=MERGED),
    Phase("llm", "tokens", own="words"),
]
FIELDS = {"pixels": "vision", "words": "llm:own"}


class Patches(NamedTuple):
    """The image of each patch in a rank's slot; padding is not real."""

    image: torch.Tensor
    real: torch.Tensor

    def sees(self, other):
        """Which patches of another rank these patches attend to: all of their image."""
        return (self.image[:, None] == other.image) & (other.real > 0)


class Model(nn.Module):
    """An encoder that puts out a token for MERGED patches, and a language model of them and words."""

    def __init__(self):
        super().__init__()
        self.take, self.encoder, self.merge = nn.Linear(PIXELS, WIDTH), Blocks(), nn.Linear(MERGED * WIDTH, WIDTH)
        self.embed, self.llm, self.head = nn.Embedding(WORDS, WIDTH), Blocks(), nn.Linear(WIDTH, WORDS)

    def encoded(self, pixels, place, over_group=None):
        """The outputs of the patches that are real."""
        x = self.encoder(self.take(pixels), place, over_group or alone)
        return self.merge(x[place.real > 0].unflatten(0, (-1, MERGED)).flatten(1))

    def loss_sum(self, tokens, lengths, labels):
        """Sum of the losses of packed samples."""
        sample = torch.arange(len(lengths)).repeat_interleave(lengths)
        position = torch.cat([torch.arange(length) for length in lengths.tolist()] or [sample])
        found = self.head(self.llm(tokens, Place(sample, position), alone))
        return functional.cross_entropy(found, labels, reduction="sum")


def alone(query, key, value, place):
    """Attention of the patches on one rank."""
    return attend(query, key, value, place.sees(place))


def batch_of(rank, step):
    """A rank's samples of a few images and words each, and how many tokens its images make."""
    random = np.random.default_rng([step, rank])
    counts = random.integers(0, 4, SAMPLES_A_RANK)
    made = [random.integers(1, 6, count) * random.choice([1, 12, 30], count, p=[0.8, 0.1, 0.1]) for count in counts]
    words = [torch.from_numpy(random.integers(0, WORDS, random.integers(1, 9))) for _ in made]
    pixels = [[torch.from_numpy(random.standard_normal((MERGED * count, PIXELS))) for count in row] for row in made]
    tokens = [int(sum(row)) + len(text) for row, text in zip(made, words, strict=True)]
    labels = [torch.from_numpy(random.integers(0, WORDS, count)) for count in tokens]
    lengths = {"made": [row.tolist() for row in made], "tokens": tokens}
    for row in labels:
        row[: len(row) // 3] = -100  # what nobody learns, which no loss counts
    return {"pixels": pixels, "words": words, "labels": labels}, lengths


def on_one_process(model, batches):
    """The loss of a step, image by image and sample by sample; gradients stay in the model."""
    loss, total = 0.0, sum(count_labels(data["labels"], shift=False) for data, _ in batches)
    for data, _ in batches:
        for images, words, labels in zip(data["pixels"], data["words"], data["labels"], strict=True):
            whole = [Patches(torch.zeros(len(image)), torch.ones(len(image))) for image in images]
            parts = [model.encoded(image, place) for image, place in zip(images, whole, strict=True)]
            tokens = torch.cat([*parts, model.embed(words)])
            one = model.loss_sum(tokens, torch.tensor([len(labels)]), labels) / total
            one.backward()
            loss += one.item()
    return loss


def encoded(model, step):
    """The outputs of this rank's share of all images, slot by slot: these are the lines that sharing needs."""
    lengths, parts = torch.from_numpy(step.plan["vision"].lengths.copy()), []
    for slot, (start, stop) in enumerate(pairwise(step.slot_bounds("vision"))):
        if start == stop:  # this rank is in no group of the slot
            continue
        pieces, group = step.pieces(slot, "vision"), step.process_group(slot, "vision")
        image = torch.from_numpy(pieces.sample).repeat_interleave(torch.from_numpy(pieces.stop - pieces.start))
        position = torch.cat([torch.arange(*piece) for piece in zip(pieces.start, pieces.stop, strict=True)])
        place = Patches(image, (position < lengths[image]).long())

        def over_group(query, key, value, place, group=group):
            return alone(query, key, value, place) if group is None else ulysses(query, key, value, place, group)

        parts.append(model.encoded(torch.cat(step["pixels"][start:stop]), place, over_group))
    return torch.cat(parts) if parts else torch.zeros(0, WIDTH, dtype=torch.float64)


def together(model, step):
    """The loss of a step; its gradients must be summed over the ranks."""
    words, labels = (torch.cat([*step[name], torch.zeros(0, dtype=torch.int64)]) for name in ("words", "labels"))
    inputs = step.inputs("llm", {"vision": encoded(model, step)}, model.embed(words))
    loss = model.loss_sum(inputs.values, torch.as_tensor(inputs.lengths), labels)
    counted = count_labels(step["labels"], shift=False)
    return global_token_mean(anchored(loss, inputs.values), counted, gradients="summed")


def train(rank, steps=STEPS):
    """Train both ways from the same weights; return both losses of each step, how gradients differ, and degrees."""
    torch.manual_seed(0)
    model, reference = Model().double(), Model().double()
    reference.load_state_dict(model.state_dict())
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.1, momentum=0.9) for each in (model, reference)]
    dispatcher = Dispatcher(phases=PHASES, fields=FIELDS)
    told = []
    for number in range(steps):
        step = dispatcher.dispatch(*batch_of(rank, number))
        loss = together(model, step)
        loss.backward()
        loss = loss.detach()
        add_up(model)
        wanted = on_one_process(reference, [batch_of(other, number) for other in range(dist.get_world_size())])
        apart = difference(*([parameter.grad for parameter in each.parameters()] for each in (model, reference)))
        degrees = np.bincount(step.plan["vision"].group_table.degree_of_sample, minlength=5)[[1, 2, 4]].tolist()
        told.append((loss.item(), wanted, apart, degrees))
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    return told


def show(rank):
    """Train and print."""
    for number, (loss, wanted, apart, degrees) in enumerate(train(rank)):
        if rank == 0:
            print(f"step {number}: loss {loss:.9f}, on one process {wanted:.9f}; gradients differ by {apart:.0e}; "
                  f"images on one, two and four ranks {degrees}")  # fmt: skip


if __name__ == "__main__":
    on_ranks(show)
