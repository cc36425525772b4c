"""Where the volume of each item lies now: on one rank, its home, or spread over several."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from solvers._jit import kernel
from solvers.arguments import as_costs, as_int64, as_labels
from solvers.errors import ArgumentError, ArgumentTypeError
from solvers.groups import moved_amounts, read_only


@dataclass(frozen=True, slots=True)
class Affinity:
    """Homes, and what leaving them adds."""

    # int32[n]: the rank that holds most of the item among those of the node that holds most of it
    home: NDArray[np.int32]
    # int64[n]: volume that crosses more, at least, if the item leaves the node of its home
    leave_node: NDArray[np.int64]
    strongest: NDArray[np.int32]  # int32[n]: the rank that holds most of the item, in whatever node
    leave_rank: NDArray[np.int64]  # int64[n]: volume that moves more, at least, if the item leaves `strongest`
    # What crosses, and what moves, even if every item stays where most of it lies
    base_inter: int
    base_moved: int
    # (int64[n + 1], int64[k], int64[k]): offsets, ranks (ascending within an item, each once) and volumes; None where
    # all of an item is at its home
    rows: tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]] | None

    def is_proportional_to(self, costs: NDArray[np.int64]) -> bool:
        """Whether what leaving a node adds is one whole number times the cost, for every item."""
        if self.leave_node is costs:
            return True
        largest = int(costs.max(initial=0))
        factor = int(self.leave_node.max(initial=0)) // max(largest, 1)
        return np.array_equal(self.leave_node, costs * factor)

    def volumes_of(self, rank_of_item: NDArray[np.int32], node_of_rank: NDArray[np.int32]) -> tuple[int, int]:
        """Volume that crosses nodes and volume that moves inside them, exactly."""
        if self.rows is None:
            homes, ranks, amounts = read_only(self.home), read_only(rank_of_item), read_only(self.leave_node)
            _, moved, crossing, _, _ = moved_amounts(homes, ranks, read_only(node_of_rank), amounts)
            return int(crossing), int(moved - crossing)
        offsets, ranks, volumes = self.rows
        target = np.repeat(rank_of_item, np.diff(offsets))
        stays = ranks == target
        inside = node_of_rank[ranks] == node_of_rank[target]
        return int(volumes[~inside].sum()), int(volumes[inside & ~stays].sum())


def affinity_of_homes(home: NDArray[np.int32], volumes: NDArray[np.int64]) -> Affinity:
    """All of an item on one rank."""
    return Affinity(home, volumes, home, volumes, 0, 0, None)


def _canonical(
    affinity: Any, num_items: int, num_ranks: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Check rows from outside; sort each by rank; add up ranks named twice; drop volumes of zero."""
    try:
        first, second, third = affinity
    except (TypeError, ValueError):
        raise ArgumentTypeError("affinity", "be three arrays (indptr, ranks, volumes)") from None
    offsets, ranks = as_int64("affinity indptr", first), as_labels("affinity ranks", second, num_ranks)
    volumes, _, _ = as_costs(third, "affinity volumes")
    if len(offsets) != num_items + 1:
        rule = f"have {num_items + 1} entries, one more than {{items}}"
        raise ArgumentError("affinity indptr", rule, len(offsets))
    if offsets[0] != 0 or offsets[-1] != len(ranks) or (np.diff(offsets) < 0).any():
        raise ArgumentError("affinity indptr", f"ascend from 0 to {len(ranks)}, the number of ranks listed")
    if len(ranks) != len(volumes):
        rule = f"have {len(ranks)} entries, as {{affinity}} ranks has"
        raise ArgumentError("affinity volumes", rule, len(volumes))
    keys = np.repeat(np.arange(num_items), np.diff(offsets)) * num_ranks + ranks
    keys, volumes = _add_up(keys[volumes > 0], volumes[volumes > 0])
    counts = np.bincount(keys // num_ranks, minlength=num_items)
    return np.concatenate(([0], np.cumsum(counts))).astype(np.int64), keys % num_ranks, volumes


def _add_up(keys: NDArray[np.int64], volumes: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Sum the volumes of equal keys; keys come out ascending."""
    order = np.argsort(keys, kind="stable")
    keys, volumes = keys[order], volumes[order]
    if len(keys) == 0:
        return keys, volumes
    first = np.flatnonzero(np.concatenate(([True], keys[1:] != keys[:-1])))
    return keys[first], np.add.reduceat(volumes, first)


@kernel
def _keep_two_largest(rows, places, volumes, best, largest, second):
    for j in range(len(rows)):
        i = rows[j]
        if volumes[j] > largest[i]:
            second[i] = largest[i]
            largest[i] = volumes[j]
            best[i] = places[j]
        elif volumes[j] > second[i]:
            second[i] = volumes[j]


def _two_largest(
    rows: NDArray[np.int64], places: NDArray[np.int64], volumes: NDArray[np.int64], num_items: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Per item: the place of the largest volume (ties to the lowest place; -1 for none), it, and the second.

    Places ascend within an item; volumes are positive. O(n + k).
    """
    best = np.full(num_items, -1, dtype=np.int64)
    largest, second = np.zeros(num_items, dtype=np.int64), np.zeros(num_items, dtype=np.int64)
    _keep_two_largest(read_only(rows), read_only(places), read_only(volumes), best, largest, second)
    return best, largest, second


def affinity_of_rows(affinity: Any, num_items: int, node_of_rank: NDArray[np.int32]) -> Affinity:
    """Items spread over ranks: (indptr int64[n + 1], ranks int64[k], volumes int64[k]).

    An item of which nothing lies anywhere has home -1.
    """
    num_ranks = len(node_of_rank)
    offsets, ranks, volumes = _canonical(affinity, num_items, num_ranks)
    rows = np.repeat(np.arange(num_items), np.diff(offsets))
    node_keys, node_volumes = _add_up(rows * num_ranks + node_of_rank[ranks], volumes)
    node, most, next_most = _two_largest(node_keys // num_ranks, node_keys % num_ranks, node_volumes, num_items)
    in_best_node = node_of_rank[ranks] == node[rows]
    home, _, _ = _two_largest(rows[in_best_node], ranks[in_best_node], volumes[in_best_node], num_items)
    strongest, strong, next_strong = _two_largest(rows, ranks, volumes, num_items)
    total = int(volumes.sum())
    return Affinity(
        home.astype(np.int32),
        most - next_most,
        strongest.astype(np.int32),
        strong - next_strong,
        total - int(most.sum()),
        total - int(strong.sum()),
        (offsets, ranks, volumes),
    )


def homes_from(home_rank: ArrayLike, num_items: int, num_ranks: int, name: str = "home_rank") -> NDArray[np.int32]:
    """Homes from outside, or other ranks called `name`, checked."""
    home = as_labels(name, home_rank, num_ranks)
    if len(home) != num_items:
        raise ArgumentError(name, f"have {num_items} entries, as {{costs}} has", len(home))
    return home
