"""Check of what a rearrangement claims, from scratch."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from solvers._checking import require, require_status
from solvers.errors import CertificateError
from solvers.rearrangement.types import RearrangementResult
from solvers.rearrangement.volumes import Volumes

TRUSTED_BOUNDS = frozenset({"cp_sat"})
"""Bounds that a search proved; the proof is not kept."""

# Cells of the matrix of groups and places that are looked at together: 32 MB, where all of it may be gigabytes.
_CHUNK = 2**22


def check_rearrangement(
    volumes: Volumes | ArrayLike,
    levels: ArrayLike | Sequence[ArrayLike],
    result: RearrangementResult,
    *,
    weights: ArrayLike | None = None,
    class_of_group: ArrayLike | None = None,
    class_of_rank: ArrayLike | None = None,
) -> None:
    """Check a rearrangement against what it was made from; return nothing if all holds.

    Every number is recomputed in plain NumPy, with no code of the solvers, and so is the lower bound, from the
    multipliers and prices of the certificate. Only what CP-SAT proved (``cp_sat``) is believed.

    Parameters
    ----------
    volumes, levels, weights, class_of_group, class_of_rank
        What the result was made from, as for :func:`solvers.rearrange`.
    result : RearrangementResult

    Raises
    ------
    CertificateError
        Naming the first violated rule.

    Notes
    -----
    O(groups * places) time: it checks every pair, also those that solvers do not store.

    Examples
    --------
    >>> import solvers
    >>> volumes = [[0, 5], [4, 1]]
    >>> check_rearrangement(volumes, [0, 1], solvers.rearrange(volumes, [0, 1]))
    """
    groups, ranks, amounts, m = _entries(volumes)
    nested = np.atleast_2d(np.asarray(levels))
    worth = np.ones(len(nested), dtype=np.int64) if weights is None else np.asarray(weights, dtype=np.int64)
    target = result.rank_of_group
    require(target.shape == (m,), f"every group has one rank: {m} groups, rank_of_group of shape {target.shape}")
    require(target.dtype == np.int32, f"rank_of_group must be int32, got {target.dtype}")
    inside = (target >= 0) & (target < m)
    if not inside.all():
        group = int(np.argmin(inside))
        raise CertificateError(f"group {group} is on rank {target[group]}, outside 0..{m - 1}")
    counts = np.bincount(target, minlength=m)
    if (counts != 1).any():
        rank = int(np.argmax(counts != 1))
        raise CertificateError(f"every rank has one group: rank {rank} has {counts[rank]}")
    group_class = np.zeros(m, dtype=np.int64) if class_of_group is None else np.asarray(class_of_group)
    rank_class = np.zeros(m, dtype=np.int64) if class_of_rank is None else np.asarray(class_of_rank)
    if (strange := group_class != rank_class[target]).any():
        group = int(np.argmax(strange))
        raise CertificateError(
            f"group {group} is of class {group_class[group]}, its rank {target[group]} of {rank_class[target[group]]}"
        )
    _check_volumes(groups, ranks, amounts, nested, worth, result)
    _check_bound(groups, ranks, amounts, nested, worth, group_class, rank_class, result)


def _entries(volumes: Volumes | ArrayLike) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], int]:
    if isinstance(volumes, Volumes):
        m = len(volumes.offsets) - 1
        groups = np.repeat(np.arange(m), np.diff(volumes.offsets))
        return groups, volumes.ranks.astype(np.int64), volumes.amounts, m
    matrix = np.asarray(volumes, dtype=np.int64)
    groups, ranks = np.nonzero(matrix)
    return groups, ranks, matrix[groups, ranks], len(matrix)


def _sums(keys: NDArray[np.int64], values: NDArray[np.int64], size: int) -> NDArray[np.int64]:
    sums = np.zeros(size, dtype=np.int64)
    np.add.at(sums, keys, values)
    return sums


def _check_volumes(
    groups: NDArray[np.int64],
    ranks: NDArray[np.int64],
    amounts: NDArray[np.int64],
    levels: NDArray[np.int64],
    weights: NDArray[np.int64],
    result: RearrangementResult,
) -> None:
    m = len(result.rank_of_group)
    target = result.rank_of_group[groups].astype(np.int64)
    crosses = [level[ranks] != level[target] for level in levels]
    crossing = [int(amounts[c].sum()) for c in crosses]
    require(
        result.crossing_volume.tolist() == crossing,
        f"the volumes that cross are {crossing}, not crossing_volume = {result.crossing_volume.tolist()}",
    )
    out, (_, node) = crosses[0], np.unique(levels[0], return_inverse=True)
    volume = amounts[out]
    weighted = _sums(ranks, sum(w * c for w, c in zip(weights, crosses, strict=True)) * amounts, m)
    numbers = {
        "inter_node_volume": crossing[0],
        "intra_node_volume": int(amounts[~out & (ranks != target)].sum()),
        "max_rank_send": int(_sums(ranks[out], volume, m).max()),
        "max_rank_receive": int(_sums(target[out], volume, m).max()),
        "max_node_send": int(_sums(node[ranks[out]], volume, m).max()),
        "max_node_receive": int(_sums(node[target[out]], volume, m).max()),
        "value": int(weighted.sum() if result.objective == "sum" else weighted.max()),
    }
    for name, number in numbers.items():
        require(getattr(result, name) == number, f"{name} is {number}, not {getattr(result, name)}")


def _check_bound(
    groups: NDArray[np.int64],
    ranks: NDArray[np.int64],
    amounts: NDArray[np.int64],
    levels: NDArray[np.int64],
    weights: NDArray[np.int64],
    group_class: NDArray[np.int64],
    rank_class: NDArray[np.int64],
    result: RearrangementResult,
) -> None:
    bound, name = result.lower_bound, result.bound_name
    require_status(result.status, bound, result.value, "value")
    if name in TRUSTED_BOUNDS:
        return
    require(name == "dual", f"lower_bound is by an unknown argument {name!r}; known are dual, cp_sat")
    multiplier, price = result.certificate.rank_multiplier, result.certificate.place_price
    m = len(rank_class)
    require(multiplier.shape == (m,), f"rank_multiplier must have {m} entries, got shape {multiplier.shape}")
    require(int(multiplier.min()) >= 0 and int(multiplier.max()) > 0, "rank_multiplier must be >= 0 and not all 0")
    if result.objective == "sum":
        require(bool((multiplier == 1).all()), "rank_multiplier must be 1 for the sum, or the bound is on another sum")
    (classes, _), of_rank = np.unique(np.stack([rank_class, levels[0]]), axis=1, return_inverse=True)
    rooms = np.bincount(of_rank)
    require(price.shape == rooms.shape, f"place_price must have {len(rooms)} entries, got shape {price.shape}")
    _, first = np.unique(of_rank, return_index=True)
    worth = amounts * multiplier[ranks]
    limit = sum(int(r) * int(p) for r, p in zip(rooms, price, strict=True))
    kinds, kind_of_place = np.unique(classes, return_inverse=True)
    cheapest = np.full(len(kinds), np.iinfo(np.int64).max)
    np.minimum.at(cheapest, kind_of_place, price)
    surplus = -cheapest[np.searchsorted(kinds, group_class)]  # of a group that keeps nothing where it goes
    busy, row = np.unique(groups, return_inverse=True)
    step = max(1, _CHUNK // len(rooms))
    for low in range(0, len(busy), step):
        here = (row >= low) & (row < low + step)
        mine, sources = busy[low : low + step], ranks[here]
        near = np.any([np.isin(level[first], level[sources]) for level in levels], axis=0)
        kept = np.zeros((len(mine), int(near.sum())), dtype=np.int64)
        for level, weight in zip(levels, weights, strict=True):
            labels, units = np.unique(level, return_inverse=True)
            by_unit = np.zeros((len(kept), len(labels)), dtype=np.int64)
            np.add.at(by_unit, (row[here] - low, units[sources]), worth[here])
            kept += weight * by_unit[:, units[first[near]]]
        allowed = group_class[mine, None] == classes[near]
        there = np.where(allowed, kept - price[near], np.iinfo(np.int64).min).max(axis=1)
        surplus[mine] = np.maximum(surplus[mine], there)
    limit += sum(surplus.tolist())
    proven = max(0, sum(worth.tolist()) * int(weights.sum()) - limit)
    if result.objective == "max":
        proven = -(-proven // int(multiplier.sum()))
    require(bound <= proven, f"lower_bound = {bound}, but its certificate proves {proven} at most")
