"""What ranks that are no peers of a dispatcher agree on."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

__all__ = ["largest_of_ranks"]


def largest_of_ranks(numbers: Sequence[int], group: Any) -> list[int]:
    """Return of each number the largest that any rank of a group has. All of them call it."""
    on_cuda = "gloo" not in str(dist.get_backend_config(group)) and torch.cuda.is_available()
    largest = torch.tensor(numbers, dtype=torch.int64, device="cuda" if on_cuda else "cpu")
    dist.all_reduce(largest, dist.ReduceOp.MAX, group)
    return [int(number) for number in largest.tolist()]
