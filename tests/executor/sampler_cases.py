"""What ranks do with a sampler where a process group is up."""

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from balancer import Everywhere
from balancer.compat import BalancedBatchSampler, BalancedStream

LENGTHS = [5, 9, 2, 40, 7, 7, 1, 3] * 3


def trains(rank, looks):
    """A look on one rank alone, then two epochs on all; return how many batches each had."""
    if rank == looks:
        made = BalancedBatchSampler(LENGTHS, 2)
        made.report()
    batches = BalancedBatchSampler(LENGTHS, 2)
    loader = torch.utils.data.DataLoader(list(range(24)), batch_sampler=batches, collate_fn=list)
    if rank == looks:
        batches.report(1)
        next(iter(loader))
    found = []
    for epoch in range(2):
        batches.set_epoch(epoch)
        found.append([row for batch in loader for row in batch])
    return found


def sets_epoch_but(rank, odd):
    if rank not in odd:
        try:
            BalancedBatchSampler(LENGTHS, 2).set_epoch(0)
        except ValueError as error:
            return str(error)
    return None


IMAGE = np.random.default_rng(4).random(48) < 0.3


def sampler_of_images(limits):
    """Three micro-steps of a step on two ranks; a quarter of the samples have an image."""
    lengths = np.random.default_rng(5).integers(10, 90, 48)
    return BalancedBatchSampler(
        lengths, 4, 2, "all", gradient_accumulation_steps=3, sync="micro_batch", window=1, limits=limits
    )


class Seeing(torch.nn.Module):
    """An encoder that only a batch with images enters, and a layer that all batches do."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.encoder = torch.nn.Linear(4, 4, dtype=torch.float64)
        self.backbone = torch.nn.Linear(4, 4, dtype=torch.float64)

    def forward(self, rows):
        samples = torch.tensor(rows, dtype=torch.float64)[:, None] / torch.arange(20, 24)
        seen = torch.from_numpy(IMAGE[rows])
        if seen.any():
            samples = samples.clone()
            samples[seen] = self.encoder(samples[seen]).sin()
        return self.backbone(samples).square().sum()


def trains_on_images(rank):
    """Return, of FSDP2's training, which micro-steps entered the encoder, and how far gradients are from one rank's."""
    model = Seeing()
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for part in model.encoder, model.backbone, model:
        fully_shard(part, mesh=mesh)
    entered, apart = [], 0.0
    for step in sampler_of_images([Everywhere(IMAGE)]).plan():
        model.zero_grad()
        whole = Seeing()
        for slot in step:
            (model(slot[rank]) * dist.get_world_size()).backward()  # FSDP means over ranks
            entered.append(bool(IMAGE[slot[rank]].any()))
        whole([row for slot in step for batch in slot for row in batch]).backward()
        for mine, wanted in zip(model.parameters(), whole.parameters(), strict=True):
            apart = max(apart, float((mine.grad.full_tensor() - wanted.grad).abs().max() / wanted.grad.abs().max()))
    return entered, apart


def streams(rank, odd):
    """Two epochs of a stream; on the odd ranks another one."""
    samples = list(enumerate(LENGTHS[1:] if rank in odd else LENGTHS))
    batches = BalancedStream(samples, lambda sample: sample[1], 2, window=1)
    found = []
    for epoch in range(2):
        try:
            batches.set_epoch(epoch)
        except ValueError as error:
            return str(error)
        found.append([row for batch in batches for row, _ in batch])
    return found
