"""Ranks, nodes, and what crosses between them."""

import numpy as np
import pytest

from balancer import Topology


def test_ranks_of_nodes():
    assert Topology.uniform(5).node_sizes == (5,)
    assert Topology([3, 1, 2]).node_of_rank.tolist() == [0, 0, 0, 1, 2, 2]
    topology = Topology.uniform(6, 2)
    assert topology.node_sizes == (2, 2, 2)
    assert (topology.num_ranks, topology.num_nodes) == (6, 3)
    assert topology.node_of_rank.tolist() == [0, 0, 1, 1, 2, 2]
    assert topology.node_of_rank.dtype == np.int32


def test_topology_is_a_value():
    assert Topology([2, 1]) == Topology((np.int64(2), 1))
    assert hash(Topology([2, 1])) == hash(Topology((2, 1)))
    assert Topology([2, 1]) != Topology([1, 2])
    assert len({Topology.uniform(4, 2), Topology([2, 2]), Topology([4])}) == 2


def test_topology_is_frozen():
    topology = Topology([2, 1])
    with pytest.raises(AttributeError):
        topology.node_sizes = (3,)
    with pytest.raises(ValueError, match="read-only"):
        topology.node_of_rank[0] = 1


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: Topology([]), ValueError, ["node_sizes", "at least one"]),
        (lambda: Topology([2, 0]), ValueError, ["node_sizes[1]", ">= 1", "0"]),
        (lambda: Topology([2, 1.5]), TypeError, ["node_sizes[1]", "integer", "1.5"]),
        (lambda: Topology.uniform(0), ValueError, ["num_ranks", ">= 1", "0"]),
        (lambda: Topology.uniform(2**31), ValueError, ["num_ranks", "2147483647"]),
        (lambda: Topology.uniform(4, 0), ValueError, ["ranks_per_node", ">= 1", "0"]),
        (lambda: Topology.uniform(6, 4), ValueError, ["6 ranks", "4 a node", "node_sizes"]),
        (lambda: Topology.uniform(2, 4), ValueError, ["2 ranks", "4 a node"]),
    ],
)
def test_bad_topologies_are_named(make, error, words):
    with pytest.raises(error) as caught:
        make()
    for word in words:
        assert word in str(caught.value)
