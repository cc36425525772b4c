"""A rank's peers: the data-parallel group, the ranks that hold the same share, and the way bytes take between nodes."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import Any
from uuid import uuid4

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor

from balancer.executor.broadcast import as_words, from_words
from balancer.executor.collectives import Collectives, Meanwhile, NodeWise, Sizes
from balancer.executor.errors import ExecutorError, PeerError, PeerLostError, summary
from balancer.executor.lookout import Lookout
from balancer.executor.memory import Memory, compile_runs
from balancer.executor.payload import AllToAll, Payload, Values, as_whole, exchange_payloads
from balancer.plan.route import Route
from balancer.problem.topology import Topology

__all__ = ["EXCHANGES", "NOTHING", "Peers"]

EXCHANGES = ("auto", "direct", "node_wise")
"""The ways of an all-to-all: "direct" from each rank to each, "node_wise" in bundles that each node sends to each."""

NODE_WISE_FROM = 64
"""With "auto", ranks from which on messages are bundled by node: there are (ranks - 1) of them a rank otherwise."""

NOTHING = np.empty(0, dtype=np.int64)
"""What a rank gives to a broadcast that is another's."""


class Peers:
    """Whom a rank exchanges with. All of them make it at the same time.

    Without `dp_group`, the data-parallel group, whose topology is given, these are all ranks. `replica_group` are
    tensor, context and pipeline peers: they get the samples and the plan of their first rank, the leader, whose
    data-parallel peers are leaders too. All of them have the same rank in their data-parallel groups. `exchange` is a
    name in :data:`EXCHANGES`; `lookout` that of the peers whose groups these are besides.
    """

    def __init__(
        self, dp_group: Any, replica_group: Any, topology: Topology, exchange: str, timeout: timedelta,
        lookout: Lookout | None = None,
    ) -> None:  # fmt: skip
        group = dist.group.WORLD if dp_group is None else dp_group
        self._made_of = (dp_group, replica_group, topology, exchange, timeout)
        self.direct = Collectives(group, timeout)
        self.replica = None if replica_group is None else Collectives(replica_group, timeout, "replica peer")
        self.rank, self.size = self.direct.rank, self.direct.size
        if topology.num_ranks != self.size:
            raise ValueError(f"topology must have the {self.size} ranks of dp_group, got {topology.num_ranks}")
        self.leads = self.replica is None or self.replica.rank == 0
        self.timeout = timeout
        self.nodes = NodeWise(group, topology, timeout) if _bundles(exchange, topology) else None
        self.tensor: dict[str, Collectives] = {}
        self._all_to_all: AllToAll = (self.nodes or self.direct).all_to_all
        self.memory = Memory()
        compile_runs()
        if self.replica is not None:
            ranks = self.replica.gather(np.asarray([self.rank]))[:, 0].tolist()
            if len(set(ranks)) > 1:
                raise ValueError(f"replica peers must have one rank in their data-parallel groups, got {ranks}")
        lookout = lookout or self._common_lookout()
        for collectives in (self.direct, self.replica, *((self.nodes.inside, self.nodes.across) if self.nodes else ())):
            if collectives is not None:
                collectives.lookout = lookout

    def _common_lookout(self) -> Lookout:
        """Return one for all groups of all peers: who is lost to one of them is lost to all."""
        # Every process draws a name; the first one's names the lookout of all. `said` is by rank, then by replica peer.
        said = self.gather_json([uuid4().hex, dist.get_rank()])
        members = {global_rank: rank for rank, of_rank in enumerate(said) for _, global_rank in of_rank}
        return Lookout(said[0][0][0], members, self.timeout)

    def twin(self) -> "Peers":
        """Return the same peers with groups of their own, for another thread. All peers call this."""
        dp_group, replica_group, topology, exchange, timeout = self._made_of
        # Two threads must not use one group: their collectives would meet in another order on another rank.
        if self.direct.moves_cuda:  # Collectives makes gloo groups of its own in any case
            dp_group = _copy(self.direct.group)
        if self.replica is not None and self.replica.moves_cuda:
            replica_group = _copy(self.replica.group)
        twin = Peers(dp_group, replica_group, topology, exchange, timeout, self.direct.lookout)
        twin.join({name: _copy(one.group) if one.moves_cuda else one.group for name, one in self.tensor.items()})
        return twin

    def join(self, tensor_groups: Mapping[str, Any]) -> None:
        """Exchange by tensor groups too, by phase; each of its members has a window. All peers call this."""
        for name, group in tensor_groups.items():
            self.tensor[name] = Collectives(group, self.timeout, "tensor peer")
            self.tensor[name].lookout = self.direct.lookout

    def groups_of(self, rank_sets: Iterable[range]) -> dict[range, Any]:
        """Make of sets of ranks the process groups that this rank is in. All peers call this, with the same sets.

        Only members take part in making one, so that a rank waits for as many as there are rounds of sets without a
        common rank, whatever the number of ranks. Replica peers have groups of their own.
        """
        ranks, groups = dist.get_process_group_ranks(self.direct.group), {}
        # Every rank walks through the same rounds in the same order, or two groups would wait for each other.
        for disjoint in _rounds(rank_sets):
            mine = next((one for one in disjoint if self.rank in one), None)
            # torch names a group by the number of groups that its members have made, so each rank makes one a round.
            others = set(range(self.size)).difference(*disjoint)
            members = [ranks[rank] for rank in mine or sorted(others)]
            made = dist.new_group(members, timeout=self.timeout, use_local_synchronization=True)
            if mine is not None:
                groups[mine] = made
        return groups

    def gather(self, words: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the words of all ranks, int64[size, k]; of replica peers the leader's words count."""
        return self._of_leader(lambda: self.direct.gather(words).reshape(-1)).reshape(self.size, -1)

    def gather_ragged(self, words: NDArray[np.int64]) -> list[NDArray[np.int64]]:
        """Return the words of all ranks, of any number; of replica peers the leader's words count."""
        if self.replica is None:
            return self.direct.gather_ragged(words)

        def flat() -> NDArray[np.int64]:
            found = self.direct.gather_ragged(words)
            return np.concatenate([list(map(len, found)), *found])

        # A broadcast carries one array: the lengths of all ranks' words, then the words.
        sizes, rest = np.split(self._of_leader(flat), [self.size])
        return np.split(rest, np.cumsum(sizes)[:-1])

    def gather_json(self, said: Any) -> list[list[Any]]:
        """Return of every rank what its replica peers, the leader first, say: for when time does not matter."""
        of_replica = [said] if self.replica is None else [each for (each,) in self.replica.gather_json(said)]
        return [from_words(words)[0] for words in self.gather_ragged(as_words(of_replica))]

    def broadcast(self, words: NDArray[np.int64], root: int) -> NDArray[np.int64]:
        """Return what the root gave; what the others give is not looked at."""
        return self._of_leader(lambda: self.direct.broadcast(words, root))

    def move(
        self, payloads: Sequence[Payload], device: torch.device, packed: Tensor | None = None
    ) -> tuple[Tensor, list[Values]]:
        """Bring payloads along their routes in one all-to-all; replica peers get what their leader does."""
        all_to_all = self._all_to_all if self.replica is None else partial(self._all_to_leaders, self.replica)
        return exchange_payloads(payloads, all_to_all, self.memory, device, packed)

    def move_activations(self, route: Route, values: Tensor) -> Tensor:
        """Bring rows along a route, every replica peer in its own data-parallel group, with rows of its own."""
        payload = Payload(route, values.dtype, tuple(values.shape[1:]), False, values)
        return as_whole(exchange_payloads([payload], self._all_to_all, self.memory, values.device, None)[1][0])

    def _all_to_leaders(
        self, replica: Collectives, sent: Tensor, sends: Sizes, receives: Sizes, arrived: Tensor, meanwhile: Meanwhile
    ) -> None:
        if self.leads:
            self._all_to_all(sent, sends, receives, arrived, meanwhile)
        else:
            meanwhile()
        replica.broadcast_bytes(arrived, 0)

    def _of_leader(self, collective: Callable[[], NDArray[np.int64]]) -> NDArray[np.int64]:
        """Return what the leader of this replica group gets of a collective of the leaders."""
        if self.replica is None:
            return collective()
        if not self.leads:
            # The first word is 1 if the leader failed; behind it stands its error as text, or else the result.
            failed, words = np.split(self.replica.broadcast(NOTHING, 0), [1])
            if failed:
                raise PeerError(f"the leader of this replica group failed: {from_words(words)[0]}", [self.rank])
            return words
        try:
            result = collective()
        except PeerLostError:
            raise  # replica peers learn of it from the lookout
        except ExecutorError as error:
            self.replica.broadcast(np.concatenate(([1], as_words(summary(error)))), 0)
            raise
        self.replica.broadcast(np.concatenate(([0], result)), 0)
        return result


def _rounds(rank_sets: Iterable[range]) -> list[list[range]]:
    """Divide sets of ranks, those of one size ascending, into few rounds of sets without a common rank."""
    rounds: list[list[range]] = []
    for one in rank_sets:
        free = next((earlier for earlier in rounds if earlier[-1].stop <= one.start), None)
        if free is None:
            rounds.append(free := [])
        free.append(one)
    return rounds


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
