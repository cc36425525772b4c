"""A node-wise all-to-all: within the node first, then between ranks of equal place across nodes; fewer messages.

Rank (node A, place i) bundles what goes to place j of any node and hands it to its neighbour (A, j), who sends to
(B, j) all that A has for it in one message. The bytes that arrive are those of the direct way, in the same order.
"""

from datetime import timedelta
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor

from balancer.executor.collectives import Collectives, Meanwhile, Sizes
from balancer.problem.topology import Topology

__all__ = ["NodeWise"]


class NodeWise:
    """The two stages of one rank; its group has nodes of equal size. All its ranks make this at the same time."""

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
        # How much each neighbour hands over for each node: one small collective within the node.
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
