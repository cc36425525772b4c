"""Collectives on one process group: every call ends, with a result or with an error that says whom it waited for.

An all-to-all goes straight to each rank, or by nodes, in fewer messages.
"""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import contextmanager
from datetime import timedelta
from functools import cached_property, partial
from queue import SimpleQueue
from typing import Any, TypeAlias

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor

from balancer.executor.broadcast import as_words, from_words
from balancer.executor.errors import PeerError, PeerLostError, listed
from balancer.executor.lookout import Lookout
from balancer.problem.topology import Topology

__all__ = ["Collectives", "Meanwhile", "NodeWise", "Sizes"]

GIVES_UP = 5 / 6  # of the timeout: how late a rank may be

_ALL_GATHER = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor  # the name before torch 2.13
_REDUCE_SCATTER = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor

Sizes: TypeAlias = Sequence[int]
"""Bytes to, or from, each rank of a group."""

Meanwhile: TypeAlias = Callable[[], None]
"""What a rank does, once, while its bytes are under way."""


class Collectives:
    """The collectives that the executor needs, on one group.

    Small integers and CPU payload go over a gloo group of its own, so that neither the caller's collectives nor their
    timeouts are touched. CUDA payload goes over the caller's group, if that has a backend for it, and else through
    host memory.

    All ranks of the group make this at the same time; `what` is what errors call them. A rank is waited for for as long
    as most of the timeout; the :attr:`lookout` then says which ranks are lost, of this group or of others that their
    ranks exchange by. No call takes longer than two timeouts, and some seconds where those are short.
    """

    def __init__(self, group: Any, timeout: timedelta, what: str = "rank") -> None:
        ranks = dist.get_process_group_ranks(group)
        self.group, self.timeout, self._what = group, timeout, what
        self.rank: int = dist.get_rank(group)
        self.size = len(ranks)
        self._control = dist.new_group(ranks, timeout=timeout, backend="gloo", use_local_synchronization=True)
        self.moves_cuda = "nccl" in str(dist.get_backend_config(group))
        self.lookout = Lookout(self._control.group_name, {rank: place for place, rank in enumerate(ranks)}, timeout)
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
        # Messages of one job are of like size, so that nearly all steps need the first collective alone.
        rows = self.gather(_padded(np.concatenate(([len(words)], words[: self._room])), 1 + self._room))
        sizes, rows = rows[:, 0].tolist(), rows[:, 1:]
        if max(sizes) > self._room:
            rows = self.gather(_padded(words, max(sizes)))
            self._room = 1 << (max(sizes) - 1).bit_length()  # grows on all ranks alike
        return [row[:size] for row, size in zip(rows, sizes, strict=True)]

    def gather_json(self, said: Any) -> list[list[Any]]:
        """Return what each rank says, in a list of its own: ranks of one group have no replica peers."""
        return [[from_words(words)[0]] for words in self.gather_ragged(as_words(said))]

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
        group = self._group_of(tensor)
        source = dist.get_global_rank(group, root)
        doing = f"broadcasting from {self._what} {root}"
        self._call(doing, lambda: dist.broadcast(tensor, source, group, async_op=True), tensor.is_cuda)

    def all_to_all(
        self, sent: Tensor, sends: Sizes, receives: Sizes, arrived: Tensor, meanwhile: Meanwhile = lambda: None
    ) -> None:
        """Send ``sends[r]`` bytes to each rank r, in order, and put what arrives, by source rank, in uint8[sum]."""
        end = self.begin_all_to_all(sent, sends, receives, arrived)
        meanwhile()
        end()

    def begin_all_to_all(self, sent: Tensor, sends: Sizes, receives: Sizes, arrived: Tensor) -> Callable[[], None]:
        """Begin one, and return what waits for it; until then `sent` and `arrived` are not to be touched."""
        if self.size == 1:
            arrived.copy_(sent)
            return lambda: None
        if sent.is_cuda and not self.moves_cuda:
            host, held = torch.empty(len(arrived), dtype=torch.uint8, device="cpu"), sent.cpu()
            end = self.begin_all_to_all(held, sends, receives, host)

            def end_on_device() -> None:
                end()
                arrived.copy_(host)

            return end_on_device
        splits = list(receives), list(sends)
        start = partial(dist.all_to_all_single, arrived, sent, *splits, self._group_of(sent), async_op=True)
        return self._begin("exchanging payload", start, sent.is_cuda)

    def all_gather(self, mine: Tensor) -> Tensor:
        """Return what all ranks give, of one shape, one after the other."""
        return self._of_all("gathering windows", _ALL_GATHER, mine, self.size * len(mine))

    def reduce_scatter(self, given: Tensor) -> Tensor:
        """Return the sum of what all ranks give for this one: each gives for one rank after the other."""
        return self._of_all("summing gradients", _REDUCE_SCATTER, given, len(given) // self.size)

    def _of_all(self, doing: str, collective: Callable[..., Any], given: Tensor, count: int) -> Tensor:
        """Return what a collective makes of what all ranks give: so many rows, on the device that it was given on."""
        if self.size == 1:
            return given
        if given.is_cuda and not self.moves_cuda:
            return self._of_all(doing, collective, given.cpu(), count).to(given.device)
        found = given.new_empty((count, *given.shape[1:]))
        start = partial(collective, found, given.contiguous(), group=self._group_of(given), async_op=True)
        self._call(doing, start, given.is_cuda)
        return found

    def sum(self, tensor: Tensor) -> None:
        """Put into a tensor, which is contiguous and on the host, the sum of what all ranks have in theirs."""
        if self.size > 1:
            self._call("summing gradients", lambda: dist.all_reduce(tensor, group=self._control, async_op=True))

    def send(self, tensor: Tensor, target: int, tag: int) -> Any:
        """Begin to send a tensor on the host to a rank; :meth:`finish` takes what this returns."""
        with self._blaming(f"sending to {self._what} {target}"):
            return dist.isend(tensor, dist.get_global_rank(self._control, target), self._control, tag)

    def receive(self, tensor: Tensor, source: int, tag: int) -> Any:
        """Begin to fill a tensor on the host with what a rank sends; :meth:`finish` takes what this returns."""
        with self._blaming(f"receiving from {self._what} {source}"):
            return dist.irecv(tensor, dist.get_global_rank(self._control, source), self._control, tag)

    def finish(self, work: Any, doing: str) -> None:
        """Wait until a message has been sent, or is there."""
        with self._blaming(doing):
            # A wait for one message that runs out of time closes the connection, so it cannot be cut into short ones
            # as those for collectives are: a thread waits, and this one looks for reports meanwhile.
            done: Future[None] = Future()
            self._waits.put((work, done))
            pause, gives_up = self.timeout.total_seconds() / 60, time.monotonic() + self.timeout.total_seconds()
            while True:
                try:
                    return done.result(pause)
                except FutureTimeout:
                    if self.lookout.told() is not None:
                        raise RuntimeError("another rank failed") from None
                    if self.lookout.others_report():
                        raise RuntimeError("another rank's call broke") from None
                    if time.monotonic() > gives_up:
                        raise RuntimeError("it took too long") from None

    @cached_property
    def _waits(self) -> "SimpleQueue[tuple[Any, Future[None]]]":
        """What the thread that waits for messages is given."""
        queue: SimpleQueue[tuple[Any, Future[None]]] = SimpleQueue()
        threading.Thread(target=_wait_in_turn, args=(queue,), name="seqbalancer messages", daemon=True).start()
        return queue

    def _group_of(self, tensor: Tensor) -> Any:
        return self.group if tensor.is_cuda else self._control

    def _call(self, doing: str, start: Callable[[], Any], on_cuda: bool = False) -> None:
        self._begin(doing, start, on_cuda)()

    def _begin(self, doing: str, start: Callable[[], Any], on_cuda: bool) -> Callable[[], None]:
        """Start a call, and return what waits for it."""
        if self.lookout.broken is not None:
            what, ranks = self.lookout.broken
            raise PeerLostError(f"the exchange broke before, and cannot be used any more: {what}", ranks)
        with self._blaming(doing):
            work = start()

        def end() -> None:
            with self._blaming(doing):
                if on_cuda:
                    work.wait()  # the stream waits, not this thread: NCCL's own watchdog ends what hangs
                else:
                    self._wait(work)

        return end

    @contextmanager
    def _blaming(self, doing: str) -> Iterator[None]:
        began = time.monotonic()
        try:
            yield
        except RuntimeError as error:
            if (told := self.lookout.told()) is not None:
                rank, what = self.lookout.members.get(told[0], -1), f"global rank {told[0]} failed: {told[1]}"
                self.lookout.broken = what, (rank,)
                raise PeerError(what, [rank]) from None
            raise self._lost(doing, began, error) from error

    def _wait(self, work: Any) -> None:
        timeout = self.timeout.total_seconds()
        # Short waits, so that a report of another rank's failure is seen long before this call's own timeout.
        gives_up, pause = time.monotonic() + GIVES_UP * timeout, min(1.0, timeout / 20)
        while True:
            try:
                work.wait(timedelta(seconds=pause))
                return
            except RuntimeError:
                if work.is_completed():
                    work.wait()  # it broke, or was done just now
                    return
            if time.monotonic() > gives_up:
                raise RuntimeError("it took too long")
            if self.lookout.others_report():
                raise RuntimeError("another rank's call broke")
            pause = timeout / 60

    def _lost(self, doing: str, began: float, error: RuntimeError) -> PeerLostError:
        """Say who was waited for."""
        waited = time.monotonic() - began
        lost = self.lookout.lost(began + self.timeout.total_seconds())
        ranks = sorted({self.lookout.members[rank] for rank in lost or ()})
        if lost is None:
            whom = "which one is not known, as the job's store (usually on global rank 0) does not answer"
        elif dist.get_rank() in lost:
            whom = "the others had given up waiting for this rank"
        elif lost:
            whom = f"waited for {listed(ranks)} (global {listed(lost)})"
        else:
            whom = "all ranks are there, so that they stand in different calls"
        what = f"{doing} with {self.size} {self._what}s failed after {waited:.1f} s: {whom}"
        self.lookout.broken = what, tuple(ranks)
        cause = str(error).splitlines()[0] if str(error) else type(error).__name__
        return PeerLostError(f"{what} ({cause})", ranks)


def _wait_in_turn(queue: "SimpleQueue[tuple[Any, Future[None]]]") -> None:
    while True:
        work, done = queue.get()
        try:
            work.wait()
            done.set_result(None)
        except RuntimeError as error:
            done.set_exception(error)


def _padded(words: NDArray[np.int64], size: int) -> NDArray[np.int64]:
    padded = np.zeros(size, dtype=np.int64)
    padded[: len(words)] = words
    return padded


class NodeWise:
    """An all-to-all within the node first, then between ranks of equal place across nodes, for nodes of equal size.

    Rank (node A, place i) bundles what goes to place j of any node and hands it to its neighbour (A, j), who sends to
    (B, j) all that A has for it in one message. The bytes that arrive are those of the direct way, in the same order.
    All ranks of the group make this at the same time.
    """

    def __init__(self, group: Any, topology: Topology, timeout: timedelta) -> None:
        ranks, rank = dist.get_process_group_ranks(group), dist.get_rank(group)
        self._places, self._num_nodes = topology.node_sizes[0], topology.num_nodes
        node, place = divmod(rank, self._places)
        backend = dist.get_backend_config(group)
        new_group = partial(dist.new_group, backend=backend, use_local_synchronization=True)
        neighbours = ranks[node * self._places : (node + 1) * self._places]
        self.inside = Collectives(new_group(neighbours), timeout, "rank of this node")
        self.across = Collectives(new_group(ranks[place :: self._places]), timeout, "node")

    def all_to_all(
        self, sent: Tensor, sends: Sizes, receives: Sizes, arrived: Tensor, meanwhile: Meanwhile = lambda: None
    ) -> None:
        """Send bytes as :meth:`Collectives.all_to_all` does."""
        nodes, places = self._num_nodes, self._places
        to = np.asarray(sends, dtype=np.int64).reshape(nodes, places)
        # How much each neighbour hands over for each node: one small collective within the node, as an all-to-all
        # knows only what this rank sends and gets.
        handed = self.inside.gather(np.ascontiguousarray(to.T).reshape(-1)).reshape(places, places, nodes)
        handed = handed[:, self.inside.rank]  # [neighbour, node]
        bundles = _transposed(sent, to)  # by place, then by node
        came = sent.new_empty(int(handed.sum()))
        self.inside.all_to_all(bundles, to.sum(axis=0).tolist(), handed.sum(axis=1).tolist(), came)
        onward = _transposed(came, handed)  # by node, then by neighbour
        by_node = np.asarray(receives, dtype=np.int64).reshape(nodes, places).sum(axis=1)
        self.across.all_to_all(onward, handed.sum(axis=0).tolist(), by_node.tolist(), arrived, meanwhile)


def _transposed(buffer: Tensor, sizes: NDArray[np.int64]) -> Tensor:
    """Bring chunks that lie row after row, of the sizes in a table, into the order column after column."""
    chunks = buffer.split(sizes.reshape(-1).tolist())
    order = np.arange(sizes.size).reshape(sizes.shape).T.reshape(-1)
    return torch.cat([chunks[index] for index in order.tolist()])
