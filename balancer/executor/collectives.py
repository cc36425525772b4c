"""Collectives on one process group: every call ends, with a result or with an error that says whom it waited for."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor

from balancer.executor.errors import ExecutorError, PeerLostError, listed

__all__ = ["Collectives", "Meanwhile", "Sizes"]

POLL_S = 0.02  # how often a rank whose collective broke looks whether others report

Sizes: TypeAlias = Sequence[int]
"""Bytes to, or from, each rank of a group."""

Meanwhile: TypeAlias = Callable[[], None]
"""What a rank does, once, while its bytes are under way."""


class Collectives:
    """The collectives that the executor needs, on one group.

    Small integers and CPU payload go over a gloo group of its own, so that neither the caller's collectives nor their
    timeouts are touched. CUDA payload goes over the caller's group, if that has a backend for it, and else through
    host memory.

    A rank that has waited for a third of the timeout says so in the job's store; at two thirds it gives up, and reads
    there who else waits. Who does not is who was waited for. As long as all goes well, nothing is written.

    All ranks of the group make this at the same time; `what` is what errors call them. No call takes longer than the
    timeout.
    """

    def __init__(self, group: Any, timeout: timedelta, what: str = "rank") -> None:
        ranks = dist.get_process_group_ranks(group)
        self.group, self.timeout, self._what = group, timeout, what
        self.rank: int = dist.get_rank(group)
        self.size = len(ranks)
        self._calls = 0
        self._broken: str | None = None
        self._control = dist.new_group(ranks, timeout=timeout, backend="gloo", use_local_synchronization=True)
        self.moves_cuda = "nccl" in str(dist.get_backend_config(group))
        self._room = 0  # words of the first collective of gather_ragged: as many as the largest message so far

    def gather(self, words: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the words of all ranks, int64[size, k]; all ranks give as many."""
        if self.size == 1:
            return words[None]
        mine = torch.from_numpy(np.ascontiguousarray(words))
        rows = list(torch.empty((self.size, len(words)), dtype=torch.int64, device="cpu"))
        self._call("gathering lengths or digests", lambda: dist.all_gather(rows, mine, self._control, async_op=True))
        return torch.stack(rows).numpy()

    def gather_ragged(self, words: NDArray[np.int64]) -> list[NDArray[np.int64]]:
        """Return the words of all ranks, of any number: one collective, and a second where they outgrow the first."""
        rows = self.gather(_padded(np.concatenate(([len(words)], words[: self._room])), 1 + self._room))
        sizes, rows = rows[:, 0].tolist(), rows[:, 1:]
        if max(sizes) > self._room:
            rows = self.gather(_padded(words, max(sizes)))
            self._room = 1 << (max(sizes) - 1).bit_length()  # grows on all ranks alike
        return [row[:size] for row, size in zip(rows, sizes, strict=True)]

    def broadcast(self, words: NDArray[np.int64], root: int) -> NDArray[np.int64]:
        """Return what the root gave, int64[k]; what the others give is not looked at."""
        if self.size == 1:
            return words
        size = torch.tensor([len(words)], device="cpu")
        self._broadcast(size, root)
        buffer = torch.empty(int(size), dtype=torch.int64, device="cpu")
        if self.rank == root:
            buffer = torch.from_numpy(words.copy())
        if len(buffer):
            self._broadcast(buffer, root)
        return buffer.numpy()

    def broadcast_bytes(self, buffer: Tensor, root: int) -> None:
        """Fill the buffer, uint8[k], with what the root has in it."""
        if self.size == 1 or len(buffer) == 0:
            return
        if buffer.is_cuda and not self.moves_cuda:
            host = buffer.cpu()
            self._broadcast(host, root)
            buffer.copy_(host)
        else:
            self._broadcast(buffer, root)

    def _broadcast(self, tensor: Tensor, root: int) -> None:
        group = self.group if tensor.is_cuda else self._control
        source = dist.get_global_rank(group, root)
        doing = f"broadcasting from {self._what} {root}"
        self._call(doing, lambda: dist.broadcast(tensor, source, group, async_op=True), tensor.is_cuda)

    def all_to_all(
        self, sent: Tensor, sends: Sizes, receives: Sizes, arrived: Tensor, meanwhile: Meanwhile = lambda: None
    ) -> None:
        """Send ``sends[r]`` bytes to each rank r, in order, and put what arrives, by source rank, in uint8[sum]."""
        if self.size == 1:
            arrived.copy_(sent)
            meanwhile()
        elif sent.is_cuda and not self.moves_cuda:
            host = torch.empty(len(arrived), dtype=torch.uint8, device="cpu")
            self.all_to_all(sent.cpu(), sends, receives, host, meanwhile)
            arrived.copy_(host)
        else:
            group = self.group if sent.is_cuda else self._control
            start = partial(dist.all_to_all_single, arrived, sent, list(receives), list(sends), group, async_op=True)
            self._call("exchanging payload", start, sent.is_cuda, meanwhile)

    def _call(
        self, doing: str, start: Callable[[], Any], on_cuda: bool = False, meanwhile: Meanwhile = lambda: None
    ) -> None:
        if self._broken is not None:
            raise ExecutorError(f"the exchange broke before, and cannot be used any more: {self._broken}")
        self._calls += 1
        with self._blaming(doing):
            work = start()
        meanwhile()
        with self._blaming(doing):
            if on_cuda:
                work.wait()  # the stream waits, not this thread: NCCL's own watchdog ends what hangs
            else:
                self._wait(work)

    @contextmanager
    def _blaming(self, doing: str) -> Iterator[None]:
        began = time.monotonic()
        try:
            yield
        except RuntimeError as error:
            raise self._lost(doing, time.monotonic() - began, error) from error

    def _wait(self, work: Any) -> None:
        third = self.timeout / 3
        try:
            work.wait(third)
            return
        except RuntimeError:
            if work.is_completed():
                raise
        self._report()
        work.wait(third)

    def _report(self) -> None:
        with suppress(RuntimeError):  # whoever holds the store may be gone; _missing will say so
            self._store().set(f"{self._calls}/{self.rank}", b"waits")

    def _store(self) -> Any:
        default = dist.distributed_c10d._get_default_store()
        return dist.PrefixStore(f"seqbalancer/{self._control.group_name}", default)

    def _lost(self, doing: str, waited: float, error: RuntimeError) -> PeerLostError:
        """Say who was waited for."""
        missing = self._missing()
        if missing is None:
            whom = "which one is not known, as the job's store (on global rank 0) does not answer"
        elif missing:
            names = listed([dist.get_global_rank(self.group, rank) for rank in missing])
            whom = f"waited for {listed(missing).replace('rank', self._what)} (global {names})"
        else:
            whom = "all ranks are there, so that they stand in different calls"
        self._broken = f"{doing} with {self.size} {self._what}s failed after {waited:.1f} s: {whom}"
        cause = str(error).splitlines()[0] if str(error) else type(error).__name__
        return PeerLostError(f"{self._broken} ({cause})", missing or ())

    def _missing(self) -> list[int] | None:
        """Ranks that do not say within a third of the timeout that their call broke too; None if that is not known."""
        self._report()
        missing = [rank for rank in range(self.size) if rank != self.rank]
        until = time.monotonic() + self.timeout.total_seconds() / 3
        try:
            store = self._store()
            while True:
                missing = [rank for rank in missing if not store.check([f"{self._calls}/{rank}"])]
                if len(missing) <= 1 and time.monotonic() > until - self.timeout.total_seconds() / 4:
                    return missing
                if not missing or time.monotonic() > until:
                    return missing
                time.sleep(POLL_S)
        except RuntimeError:
            return None


def _padded(words: NDArray[np.int64], size: int) -> NDArray[np.int64]:
    padded = np.zeros(size, dtype=np.int64)
    padded[: len(words)] = words
    return padded
