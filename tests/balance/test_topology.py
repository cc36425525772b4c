"""Ranks, nodes, and what crosses between them."""

import numpy as np
import pytest

import balancer
from balancer import Topology


def test_uniform_nodes():
    topology = Topology.uniform(6, 2)
    assert topology.node_sizes == (2, 2, 2)
    assert (topology.num_ranks, topology.num_nodes) == (6, 3)
    assert topology.node_of_rank.tolist() == [0, 0, 1, 1, 2, 2]
    assert topology.node_of_rank.dtype == np.int32


def test_without_ranks_per_node_all_share_one():
    assert Topology.uniform(5).node_sizes == (5,)


def test_uneven_nodes():
    topology = Topology([3, 1, 2])
    assert topology.node_of_rank.tolist() == [0, 0, 0, 1, 2, 2]
    assert topology.num_nodes == 3


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


def test_nothing_crosses_within_one_node():
    plan = balancer.balance([9, 1, 1, 1, 9, 9, 9, 9], 4)
    assert plan.rank_of_sample.tolist() != plan.home.rank_of_sample.tolist()
    assert plan.inter_node_volume == 0
