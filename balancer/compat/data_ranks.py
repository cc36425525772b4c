"""Data-parallel ranks as torch.distributed knows them, if anybody has started it."""

import contextlib
import importlib
import itertools
import sys
from collections.abc import Mapping
from typing import Any

from balancer.compat.epoch_order import OF_THE_EPOCH
from solvers.arguments import as_count
from solvers.errors import Named, UsageError

__all__ = ["agree", "compares", "world"]

_CALLS = itertools.count()  # of agree(), as many on all ranks


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


def compares(num_replicas: int) -> bool:
    """Whether :func:`agree` compares: the process group's ranks are these, and more than one."""
    dist = sys.modules.get("torch.distributed")  # nobody has made a process group without it
    up = dist is not None and dist.is_available() and dist.is_initialized()
    return up and 1 < dist.get_world_size() == num_replicas  # type: ignore[union-attr]


def agree(num_replicas: int, doing: str, mine: Mapping[str, Any]) -> None:
    """Raise on all ranks alike if what one of them is `doing` differs; `mine` is what must be the same, by its names.

    All ranks must come here. If one does not, the others raise at the process group's timeout, and name it.
    Only where the process group's ranks are these: where others share a batch, whose ranks these are is not known.
    """
    if not compares(num_replicas):
        return
    dist: Any = sys.modules["torch.distributed"]
    theirs: list[Any] = [None] * num_replicas
    me, of_job = dist.get_rank(), getattr(dist.group.WORLD, "get_group_store", None)  # torch before 2.9 hides it
    came = of_job and dist.PrefixStore(f"seqbalancer/agree/{next(_CALLS)}", of_job())
    if came:
        came.set(str(me), "here")
    try:
        dist.all_gather_object(theirs, mine)
    except RuntimeError as error:
        late = [rank for rank in range(num_replicas) if came and not came.check([str(rank)])]
        raise UsageError(
            "rank {me} waited to {doing}, and {late} did not come", "call set_epoch on all ranks",
            me=me, doing=doing, late=Named("rank", late) if late else "some rank",
        ) from error  # fmt: skip
    for name, value in theirs[0].items():
        if unlike := [rank for rank, each in enumerate(theirs) if each.get(name) != value]:
            raise UsageError(
                "ranks {doing} with unlike {name}: that of rank {rank} is not that of rank 0",
                ("give all ranks the same data, order and settings", OF_THE_EPOCH),
                doing=doing, name=name, rank=unlike[0],
            )  # fmt: skip
