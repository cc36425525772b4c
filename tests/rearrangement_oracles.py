"""Naive rearrangement: by definition, in plain Python, with nothing from `solvers`."""

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import networkx

Matrix = Sequence[Sequence[int]]


def weighted_sends(
    volumes: Matrix, levels: Sequence[Sequence[int]], weights: Sequence[int], target: Sequence[int]
) -> list[int]:
    """What each rank sends, each element counted with the weights of the levels that it crosses."""
    m = len(volumes)
    sends = [0] * m
    for g in range(m):
        for r in range(m):
            for level, weight in zip(levels, weights, strict=True):
                if level[r] != level[target[g]]:
                    sends[r] += weight * volumes[g][r]
    return sends


def moved(volumes: Matrix, nodes: Sequence[int], target: Sequence[int]) -> dict[str, int]:
    """What a bijection moves: the volumes that a result reports."""
    m = len(volumes)
    across = {(g, r): volumes[g][r] for g in range(m) for r in range(m) if nodes[r] != nodes[target[g]]}
    inside = sum(volumes[g][r] for g in range(m) for r in range(m) if nodes[r] == nodes[target[g]] and r != target[g])

    def largest(key) -> int:
        sums: dict[int, int] = {}
        for (g, r), volume in across.items():
            sums[key(g, r)] = sums.get(key(g, r), 0) + volume
        return max(sums.values(), default=0)

    return {
        "inter_node_volume": sum(across.values()),
        "intra_node_volume": inside,
        "max_rank_send": largest(lambda g, r: r),
        "max_rank_receive": largest(lambda g, r: target[g]),
        "max_node_send": largest(lambda g, r: nodes[r]),
        "max_node_receive": largest(lambda g, r: nodes[target[g]]),
    }


def bijections(group_class: Sequence[int], rank_class: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Every way to put groups on ranks within their classes."""
    for target in itertools.permutations(range(len(group_class))):
        if all(group_class[g] == rank_class[r] for g, r in enumerate(target)):
            yield target


def optimum(
    volumes: Matrix,
    levels: Sequence[Sequence[int]],
    weights: Sequence[int],
    objective: str,
    group_class: Sequence[int] | None = None,
    rank_class: Sequence[int] | None = None,
) -> int:
    """The least value over all bijections."""
    m = len(volumes)
    total = sum if objective == "sum" else max
    return min(
        total(weighted_sends(volumes, levels, weights, target))
        for target in bijections(group_class or [0] * m, rank_class or [0] * m)
    )


def least_inside(volumes: Matrix, nodes: Sequence[int], target: Sequence[int], kinds: Sequence[int]) -> int:
    """The least intra-node volume with every group in the node, and on a rank of the class, where `target` has it."""
    places = list(zip(nodes, kinds, strict=True))
    return min(
        moved(volumes, nodes, other)["intra_node_volume"]
        for other in itertools.permutations(range(len(volumes)))
        if all(places[r] == places[target[g]] for g, r in enumerate(other))
    )


def least_crossing_by_flow(volumes: Matrix, levels: Sequence[Sequence[int]], weights: Sequence[int]) -> int:
    """The least weighted volume that crosses, by networkx's network simplex: a unit of flow a group, to nodes."""
    m = len(volumes)
    nodes = levels[0]
    graph = networkx.DiGraph()
    total = sum(map(sum, volumes)) * sum(weights)
    for g in range(m):
        graph.add_node(("group", g), demand=-1)
        for node in set(nodes):
            rank = nodes.index(node)
            kept = sum(
                weight * volumes[g][r]
                for level, weight in zip(levels, weights, strict=True)
                for r in range(m)
                if level[r] == level[rank]
            )
            graph.add_edge(("group", g), ("node", node), weight=-kept, capacity=1)
    for node in set(nodes):
        graph.add_node(("node", node), demand=nodes.count(node))
    return total + networkx.min_cost_flow_cost(graph)


def dense(volumes: Any) -> list[list[int]]:
    """Volumes as a matrix ``[group, rank]``; each rank of a group is there once, and no amount is 0."""
    matrix = [[0] * volumes.num_ranks for _ in range(volumes.num_ranks)]
    for g in range(volumes.num_ranks):
        for e in range(volumes.offsets[g], volumes.offsets[g + 1]):
            assert matrix[g][volumes.ranks[e]] == 0
            assert volumes.amounts[e] > 0
            matrix[g][volumes.ranks[e]] = int(volumes.amounts[e])
    return matrix
