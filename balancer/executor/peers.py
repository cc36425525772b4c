"""A rank's peers: the data-parallel group, the ranks that hold the same share, and the way bytes take between nodes."""

from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor

from balancer.executor.errors import ExecutorError, PeerError
from balancer.executor.line import Line
from balancer.executor.memory import Memory
from balancer.executor.node_wise import NodeWise
from balancer.executor.route import Route
from balancer.executor.runs import compile_runs
from balancer.executor.wire import AllToAll, Cargo, Values, as_whole, move
from balancer.problem.topology import Topology

__all__ = ["EXCHANGES", "NOTHING", "Peers"]

EXCHANGES = ("auto", "direct", "node_wise")
"""The ways of an all-to-all."""

NODE_WISE_FROM = 64
"""With "auto", ranks from which on messages are bundled by node: there are (ranks - 1) of them a rank otherwise."""


NOTHING = np.empty(0, dtype=np.int64)
"""What a rank gives to a broadcast that is another's."""


class Peers:
    """Whom a rank exchanges with. All of them make it at the same time.

    Parameters
    ----------
    dp_group : ProcessGroup or None
        The data-parallel group; None: all ranks.
    replica_group : ProcessGroup or None
        Tensor, context and pipeline peers: they get the samples and the plan of their first rank, the leader, whose
        data-parallel peers are leaders too. All of them have the same rank in their data-parallel groups.
    topology : Topology
        Of the data-parallel group.
    exchange : str
        A name in :data:`EXCHANGES`.
    timeout : timedelta
        No collective takes longer.
    """

    def __init__(
        self, dp_group: Any, replica_group: Any, topology: Topology, exchange: str, timeout: timedelta
    ) -> None:
        group = dist.group.WORLD if dp_group is None else dp_group
        self._made_of = (dp_group, replica_group, topology, exchange, timeout)
        self.direct = Line(group, timeout)
        self.replica = None if replica_group is None else Line(replica_group, timeout, "replica peer")
        self.rank, self.size = self.direct.rank, self.direct.size
        if topology.num_ranks != self.size:
            raise ValueError(f"topology must have the {self.size} ranks of dp_group, got {topology.num_ranks}")
        self.leads = self.replica is None or self.replica.rank == 0
        self.timeout = timeout
        self.nodes = NodeWise(group, topology, timeout) if _bundles(exchange, topology) else None
        self.memory = Memory()
        compile_runs()
        self._room = 0  # words that a gather takes in its first collective: as many as the largest message so far
        if self.replica is not None:
            ranks = self.replica.gather(np.asarray([self.rank]))[:, 0].tolist()
            if len(set(ranks)) > 1:
                raise ValueError(f"replica peers must have one rank in their data-parallel groups, got {ranks}")

    def twin(self) -> "Peers":
        """Return the same peers with groups of their own, for another thread. All peers call this."""
        dp_group, replica_group, topology, exchange, timeout = self._made_of
        if self.direct.moves_cuda:  # Line makes gloo groups of its own in any case
            dp_group = _copy(self.direct.group)
        if self.replica is not None and self.replica.moves_cuda:
            replica_group = _copy(self.replica.group)
        return Peers(dp_group, replica_group, topology, exchange, timeout)

    def gather(self, words: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the words of all ranks, int64[size, k], replica peers' own words not asked for."""
        flat = self._from_leader(lambda: self.direct.gather(words).reshape(-1))
        return flat.reshape(self.size, -1)

    def gather_ragged(self, words: NDArray[np.int64]) -> list[NDArray[np.int64]]:
        """Return the words of all ranks, of any number: one collective, and a second where they outgrow the first."""
        flat = self._from_leader(lambda: self._gather_ragged(words))
        sizes, rest = flat[: self.size], flat[self.size :]
        return np.split(rest, np.cumsum(sizes)[:-1])

    def _gather_ragged(self, words: NDArray[np.int64]) -> NDArray[np.int64]:
        rows = self.direct.gather(_padded(np.concatenate(([len(words)], words[: self._room])), 1 + self._room))
        sizes, rows = rows[:, 0], rows[:, 1:]
        largest = int(sizes.max())
        if largest > self._room:
            rows = self.direct.gather(_padded(words, largest))
            self._room = 1 << (largest - 1).bit_length()  # grows on all ranks alike
        return np.concatenate([sizes, *(row[:size] for row, size in zip(rows, sizes, strict=True))])

    def broadcast(self, words: NDArray[np.int64], root: int) -> NDArray[np.int64]:
        """Return what the root gave; what the others give is not looked at."""
        return self._from_leader(lambda: self.direct.broadcast(words, root))

    def move(
        self, cargoes: Sequence[Cargo], device: torch.device, packed: Tensor | None = None
    ) -> tuple[Tensor, list[Values]]:
        """Bring payload along its routes; replica peers get what their leader does. See :func:`wire.move`."""
        if self.replica is None:
            return move(cargoes, self._transport, self.memory, device, packed)
        return move(cargoes, partial(self._told, self.replica), self.memory, device, packed)

    def move_activations(self, route: Route, values: Tensor) -> Tensor:
        """Bring rows along a route, every replica peer in its own data-parallel group, with rows of its own."""
        cargo = Cargo(route, values.dtype, tuple(values.shape[1:]), False, values)
        moved = move([cargo], self._transport, self.memory, values.device)[1][0]
        return as_whole(moved)

    @property
    def _transport(self) -> AllToAll:
        return (self.nodes or self.direct).all_to_all

    def _told(
        self,
        replica: Line,
        buffer: Tensor,
        sends: Sequence[int],
        receives: Sequence[int],
        arrivals: Tensor,
        meanwhile: Callable[[], None],
    ) -> None:
        if self.leads:
            self._transport(buffer, sends, receives, arrivals, meanwhile)
        else:
            meanwhile()
        replica.broadcast_bytes(arrivals, 0)

    def _from_leader(self, collective: Callable[[], NDArray[np.int64]]) -> NDArray[np.int64]:
        if self.replica is None:
            return collective()
        if not self.leads:
            told = self.replica.broadcast(NOTHING, 0)
            if not told[0]:
                raise PeerError("the leader of this replica group lost its data-parallel peers", [self.rank])
            return told[1:]
        try:
            result = collective()
        except ExecutorError:
            self.replica.broadcast(np.zeros(1, dtype=np.int64), 0)
            raise
        self.replica.broadcast(np.concatenate(([1], result)), 0)
        return result


def _bundles(exchange: str, topology: Topology) -> bool:
    if exchange not in EXCHANGES:
        raise ValueError(f"exchange must be one of {', '.join(EXCHANGES)}, got {exchange!r}")
    uniform = topology.num_nodes > 1 and len(set(topology.node_sizes)) == 1
    if exchange == "node_wise" and not uniform:
        raise ValueError(
            f"exchange 'node_wise' needs several nodes of equal size, got {list(topology.node_sizes)}; use 'direct'"
        )
    large = topology.num_ranks >= NODE_WISE_FROM and topology.node_sizes[0] > 1
    return exchange == "node_wise" or (exchange == "auto" and uniform and large)


def _copy(group: Any) -> Any:
    return dist.new_group(dist.get_process_group_ranks(group), use_local_synchronization=True)


def _padded(words: NDArray[np.int64], size: int) -> NDArray[np.int64]:
    padded = np.zeros(size, dtype=np.int64)
    padded[: len(words)] = words
    return padded
