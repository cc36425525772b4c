"""A small model of three modalities trained on real lengths, with and without balancing: the same loss, less waiting.

    python examples/three_modalities.py

Four ranks on gloo, on this machine. A vision encoder and an audio encoder feed a language model. The lengths are those
of `data/omni_mix_dev.parquet`, divided by four so that it runs in seconds. Both runs see the same samples in the same
steps from the same weights. The example prints both loss curves, how far the gradients differ, and the CPU time of the
slowest rank in each step. `predicted_and_measured.py` shows how well the simulator predicts that time.
"""

import os
import socket
import time
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow.parquet as pq
import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing
from torch import nn
from torch.nn import functional

from balancer import Phase
from balancer.executor import Dispatcher, anchored, count_labels, global_token_mean

LOG = Path(__file__).resolve().parent.parent / "data" / "omni_mix_dev.parquet"
RANKS, STEPS, SAMPLES_A_RANK, SHRINK = 4, 20, 8, 4
WIDTH, WORDS, MERGED = 48, 97, 4  # MERGED patches, or frames, make a token
PATCH, FRAME = 12, 8  # numbers in each

PHASES = [
    Phase("vision", "image_patches", outputs="image_tokens"),
    Phase("audio", "audio_frames", outputs="audio_tokens"),
    Phase("llm", "text_tokens+image_tokens+audio_tokens", own="text_tokens"),
]
FIELDS = {"patches": "vision", "frames": "audio", "text": "llm:own"}  # the labels go with the samples


class Model(nn.Module):
    """Two encoders of one hidden layer, a language model of one causal block."""

    def __init__(self):
        super().__init__()
        self.vision = nn.Sequential(nn.Linear(PATCH * MERGED, 8 * WIDTH), nn.GELU(), nn.Linear(8 * WIDTH, WIDTH))
        self.audio = nn.Sequential(nn.Linear(FRAME * MERGED, 8 * WIDTH), nn.GELU(), nn.Linear(8 * WIDTH, WIDTH))
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.attention, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 16 * WIDTH), nn.GELU())
        self.down, self.head = nn.Linear(16 * WIDTH, WIDTH), nn.Linear(WIDTH, WORDS)

    def loss_sum(self, tokens, lengths, labels):
        """Sum of the losses of packed samples; a sample attends to itself alone."""
        queries, keys, values = self.attention(tokens).chunk(3, dim=-1)
        rows = zip(*(part.split(lengths) for part in (queries, keys, values)), strict=True)
        seen = [functional.scaled_dot_product_attention(*(x[None] for x in row), is_causal=True)[0] for row in rows]
        tokens = tokens + self.out(torch.cat(seen) if seen else tokens)
        tokens = tokens + self.down(self.mlp(tokens))
        return functional.cross_entropy(self.head(tokens), labels, reduction="sum")


class Run(NamedTuple):
    """What a rank reports of its training."""

    losses: list[float]
    first_gradients: list[torch.Tensor]
    last_gradients: list[torch.Tensor]
    seconds: np.ndarray  # of each step
    tokens: np.ndarray  # [step, phase]: what the rank computed


def lengths_of(rank, step):
    """The columns of a rank's mini-batch: consecutive rows of the log."""
    first = (step * RANKS + rank) * SAMPLES_A_RANK
    columns = _log()
    shrunk = {name: -(-columns[name][first : first + SAMPLES_A_RANK] // SHRINK) for name in columns}
    return shrunk | {
        "image_patches": MERGED * shrunk["image_tokens"],
        "audio_frames": MERGED * shrunk["audio_tokens"],
    }


_LOG: dict[str, np.ndarray] = {}


def _log():
    if not _LOG:
        table = pq.read_table(LOG, columns=["text_tokens", "image_tokens", "audio_tokens"])
        _LOG.update({name: table[name].to_numpy() for name in table.column_names})
    return _LOG


def mini_batch(rank, step):
    """The payload for these lengths, from a seed."""
    lengths = lengths_of(rank, step)
    random = torch.Generator().manual_seed(1000 * step + rank)

    def numbers(counts, width):
        return [torch.randn(int(count), width, generator=random) for count in counts]

    def words(counts):  # some far more often than others, which is what there is to learn
        return [(torch.rand(int(count), generator=random) ** 3 * WORDS).long() for count in counts]

    total = lengths["text_tokens"] + lengths["image_tokens"] + lengths["audio_tokens"]
    return {
        "patches": numbers(lengths["image_patches"], PATCH),
        "frames": numbers(lengths["audio_frames"], FRAME),
        "text": words(lengths["text_tokens"]),
        "labels": words(total),
    }, lengths


def packed(rows, *width):
    """Rows one after the other, MERGED of them a token."""
    if not rows:
        return torch.empty(0, width[0] * MERGED)
    return torch.cat(rows).reshape(-1, width[0] * MERGED)


def encoded(model, patches, frames, text):
    """The outputs of this rank's images, clips and text."""
    words = torch.cat(text) if text else torch.empty(0, dtype=torch.int64)
    return model.vision(packed(patches, PATCH)), model.audio(packed(frames, FRAME)), model.embed(words)


def in_reading_order(vision, audio, text, lengths):
    """Each sample's parts one after the other: all tokens, and how many each sample has."""
    parts = zip(
        vision.split(lengths["image_tokens"].tolist()), audio.split(lengths["audio_tokens"].tolist()),
        text.split(lengths["text_tokens"].tolist()), strict=True,
    )  # fmt: skip
    rows = [torch.cat(sample) for sample in parts]
    return torch.cat(rows), [len(row) for row in rows]


def unbalanced_loss(model, data, lengths):
    """Every rank computes the samples that it drew."""
    vision, audio, text = encoded(model, data["patches"], data["frames"], data["text"])
    labels = torch.cat(data["labels"])
    loss = model.loss_sum(*in_reading_order(vision, audio, text, lengths), labels)
    return global_token_mean(loss, count_labels(data["labels"], shift=False)), (len(vision), len(audio), len(labels))


def balanced_loss(model, step):
    """Every rank computes its share: these are the lines that change."""
    vision, audio, text = encoded(model, step["patches"], step["frames"], step["text"])
    inputs = step.inputs("llm", {"vision": vision, "audio": audio}, text)
    labels = torch.cat(step["labels"]) if step["labels"] else torch.empty(0, dtype=torch.int64)
    loss = anchored(model.loss_sum(inputs.values, inputs.lengths.tolist(), labels), inputs.values)
    return global_token_mean(loss, count_labels(step["labels"], shift=False)), (len(vision), len(audio), len(labels))


def average_gradients(parameters):
    """Average gradients, as DDP does; a rank without an image has no gradient of its encoder."""
    grads = [torch.zeros_like(one) if one.grad is None else one.grad for one in parameters]
    flat = torch.cat([grad.reshape(-1) for grad in grads])
    dist.all_reduce(flat)
    pieces = (flat / dist.get_world_size()).split([one.numel() for one in parameters])
    for parameter, piece in zip(parameters, pieces, strict=True):
        parameter.grad = piece.view_as(parameter)


def train(rank, balance, steps=STEPS):
    """Train from the same weights on the same samples."""
    torch.manual_seed(0)
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    dispatcher = Dispatcher(phases=PHASES, fields=FIELDS)
    losses, gradients, seconds, tokens = [], [], [], []
    for number in range(steps):
        data, lengths = mini_batch(rank, number)
        step = dispatcher.dispatch(data, lengths) if balance else None
        optimizer.zero_grad()
        started = time.thread_time()
        loss, computed = balanced_loss(model, step) if balance else unbalanced_loss(model, data, lengths)
        loss.backward()
        seconds.append(time.thread_time() - started)
        tokens.append(computed)
        average_gradients(list(model.parameters()))
        losses.append(loss.item())
        gradients = [*gradients[:1], [parameter.grad.clone() for parameter in model.parameters()]]
        optimizer.step()
    return Run(losses, gradients[0], gradients[-1], np.asarray(seconds), np.asarray(tokens))


def add_up(model, *sums):
    """Add up gradients and other sums over ranks, in place."""
    for parameter in model.parameters():
        if parameter.grad is None:  # where the rank had nothing to compute
            parameter.grad = torch.zeros_like(parameter)
        dist.all_reduce(parameter.grad)
    for each in sums:
        dist.all_reduce(each)


def difference(ones, others):
    """The largest difference between gradients, relative to the largest entry of each."""
    return max(((one - other).abs().max() / one.abs().max()).item() for one, other in zip(ones, others, strict=True))


def gathered(array):
    """All ranks' arrays, [rank, ...]."""
    rows = [torch.empty(array.shape, dtype=torch.float64) for _ in range(dist.get_world_size())]
    dist.all_gather(rows, torch.from_numpy(array.astype(np.float64)))
    return torch.stack(rows).numpy()


def compare(rank):
    """Train both ways and print."""
    train(rank, True, 1), train(rank, False, 1)  # what is compiled or allocated once
    plain, ours = train(rank, False), train(rank, True)
    slowest_before, slowest = (gathered(run.seconds).max(axis=0) for run in (plain, ours))
    if rank:
        return
    for number in range(0, STEPS, 5):
        print(f"step {number:2d}: loss {plain.losses[number]:.6f} without balancing, {ours.losses[number]:.6f} with")
    print(f"gradients differ by {difference(plain.first_gradients, ours.first_gradients):.1e} at step 1, "
          f"{difference(plain.last_gradients, ours.last_gradients):.1e} at step {STEPS}")  # fmt: skip
    print(f"CPU time of the slowest rank, median of {STEPS} steps: {np.median(slowest_before) * 1e3:.1f} ms without, "
          f"{np.median(slowest) * 1e3:.1f} ms with ({np.median(slowest) / np.median(slowest_before):.0%})")  # fmt: skip


def main_of_rank(rank, port, what, *arguments):
    """Join the other ranks and run a function with them."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    store = dist.TCPStore("127.0.0.1", port, RANKS, rank == 0)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=RANKS, timeout=timedelta(minutes=2))
    what(rank, *arguments)
    dist.barrier()
    dist.destroy_process_group()


def on_ranks(what, *arguments):
    """Call a function with its rank, in one process for each rank."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    multiprocessing.spawn(main_of_rank, (port, what, *arguments), RANKS)


if __name__ == "__main__":
    on_ranks(compare)
