"""Data-parallel ranks as torch.distributed knows them, if anybody has started it."""

import contextlib
import importlib
import sys
from collections.abc import Mapping
from typing import Any

from solvers.arguments import as_count
from solvers.errors import UsageError

__all__ = ["agree", "world"]


def world(num_replicas: int | None, rank: int | str | None) -> tuple[int, int | str]:
    """Return how many ranks there are, and which this is: torch.distributed's where nobody says."""
    if num_replicas is None or rank is None:
        dist: Any = None
        with contextlib.suppress(ImportError):
            dist = importlib.import_module("torch.distributed")
        if dist is None or not dist.is_available() or not dist.is_initialized():
            raise UsageError(
                "num_replicas and rank are those of torch.distributed, and it has no process group yet",
                ("give both: the number of data-parallel ranks, and which of them this is",
                 "or call torch.distributed.init_process_group() first"),
            )  # fmt: skip
        num_replicas = dist.get_world_size() if num_replicas is None else num_replicas
        rank = dist.get_rank() if rank is None else rank
    return as_count("num_replicas", num_replicas), rank


def agree(num_replicas: int, doing: str, mine: Mapping[str, Any]) -> None:
    """Raise on all ranks alike if what one of them is `doing` differs; `mine` is what must be the same, by its names.

    Only where the process group's ranks are these: where others share a batch, whose ranks these are is not known.
    """
    dist = sys.modules.get("torch.distributed")  # nobody has made a process group without it
    if dist is None or not dist.is_available() or not dist.is_initialized():
        return
    if not 1 < dist.get_world_size() == num_replicas:
        return
    theirs: list[Any] = [None] * num_replicas
    dist.all_gather_object(theirs, mine)
    for name, value in theirs[0].items():
        if unlike := [rank for rank, each in enumerate(theirs) if each.get(name) != value]:
            raise UsageError(
                "ranks {doing} with unlike {name}: that of rank {rank} is not that of rank 0",
                ("give all ranks the same data, order and settings", "a sampler as order needs one seed: "
                 "RandomSampler(dataset, generator=torch.Generator().manual_seed(0))"),
                doing=doing, name=name, rank=unlike[0],
            )  # fmt: skip
