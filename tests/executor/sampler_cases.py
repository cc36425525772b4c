"""What ranks do with a sampler where a process group is up."""

import torch

from balancer.compat import BalancedBatchSampler

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
