"""What lies where: how much of each finished group now lies on each rank, in compressed sparse rows."""

from dataclasses import dataclass
from typing import SupportsIndex

import numpy as np
from numpy.typing import ArrayLike, NDArray

from solvers._jit import kernel
from solvers.arguments import as_costs, as_count, as_int64, as_labels
from solvers.errors import ArgumentError, ArgumentTypeError
from solvers.groups import members_by_group, read_only
from solvers.types import Record


@kernel
def _merge(members, starts, home_rank, volume, offsets, ranks, amounts):
    """Sum the volumes of each group by home rank; a row lists its ranks in the order of their first item."""
    filled = 0
    entry_of_rank = np.full(len(starts) - 1, -1, dtype=np.int64)
    for g in range(len(starts) - 1):
        first = filled
        for k in range(starts[g], starts[g + 1]):
            i = members[k]
            if volume[i] == 0:
                continue
            r = home_rank[i]
            if entry_of_rank[r] < first:  # an entry of an earlier group, or none
                entry_of_rank[r] = filled
                ranks[filled] = r
                amounts[filled] = 0
                filled += 1
            amounts[entry_of_rank[r]] += volume[i]
        offsets[g + 1] = filled


@kernel
def _first_group_with_a_rank_twice(offsets, ranks):
    seen_in = np.full(len(offsets) - 1, -1, dtype=np.int32)
    for g in range(len(offsets) - 1):
        for e in range(offsets[g], offsets[g + 1]):
            if seen_in[ranks[e]] == g:
                return g
            seen_in[ranks[e]] = g
    return -1


@dataclass(frozen=True, slots=True, eq=False)
class Volumes(Record):
    """How much of each group lies on each rank now. As many groups as ranks; what is not listed is 0.

    Attributes
    ----------
    offsets : int64[m + 1], read-only
        Group g has the entries ``offsets[g] .. offsets[g + 1] - 1``.
    ranks : int32[k], read-only
        The rank of each entry; each rank at most once in a group.
    amounts : int64[k], read-only
        The volume of each entry, at least 0; their sum fits int64.
    """

    offsets: NDArray[np.int64]
    ranks: NDArray[np.int32]
    amounts: NDArray[np.int64]

    @property
    def num_ranks(self) -> int:
        """Number of ranks, and of groups."""
        return len(self.offsets) - 1

    @property
    def total(self) -> int:
        """Sum of all volumes."""
        return int(self.amounts.sum())


def group_volumes(
    group_of_item: ArrayLike, home_rank: ArrayLike, volume: ArrayLike, num_ranks: SupportsIndex
) -> Volumes:
    """Sum what items weigh by group and home rank.

    Parameters
    ----------
    group_of_item : int[n]
        Within 0..num_ranks-1: as many groups as ranks, empty ones included.
    home_rank : int[n]
        Where each item lies now, within 0..num_ranks-1.
    volume : int64[n]
        What moving it costs, at least 0; the sum fits int64.
    num_ranks : int
        At least 1.

    Returns
    -------
    Volumes

    Raises
    ------
    TypeError, ValueError
        On arrays of the wrong kind or of different lengths, and on entries outside their range, by index.

    Notes
    -----
    O(n + num_ranks).

    Examples
    --------
    >>> volumes = group_volumes([0, 1, 0, 0], [1, 0, 1, 0], [5, 3, 2, 1], 2)
    >>> volumes.offsets.tolist(), volumes.ranks.tolist(), volumes.amounts.tolist()
    ([0, 2, 3], [1, 0, 0], [7, 1, 3])
    """
    num_ranks = as_count("num_ranks", num_ranks)
    groups = as_labels("group_of_item", group_of_item, num_ranks)
    homes = as_labels("home_rank", home_rank, num_ranks)
    amounts, _, _ = as_costs(volume, "volume")
    for name, array in (("home_rank", homes), ("volume", amounts)):
        if len(array) != len(groups):
            raise ArgumentError(name, f"have {len(groups)} entries, one an item", len(array))
    members, starts, _ = members_by_group(groups, num_ranks)
    offsets = np.zeros(num_ranks + 1, dtype=np.int64)
    ranks = np.empty(len(groups), dtype=np.int32)
    merged = np.empty(len(groups), dtype=np.int64)
    _merge(members, starts, read_only(homes), read_only(amounts), offsets, ranks, merged)
    return Volumes(offsets, ranks[: offsets[-1]].copy(), merged[: offsets[-1]].copy())


def as_volumes(volumes: Volumes | ArrayLike) -> Volumes:
    """Return `volumes` as they are, or made from a dense matrix ``[group, rank]``; or raise."""
    if isinstance(volumes, Volumes):
        return _checked(volumes)
    try:
        matrix = np.asarray(volumes)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ArgumentTypeError("volumes", "be Volumes or a matrix of integers: {why}", why=str(error)) from None
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or not len(matrix):
        raise ArgumentError("volumes", "be a square matrix [group, rank] of at least one", f"shape {matrix.shape}")
    flat = as_int64("volumes (row by row)", matrix.ravel())
    if (flat < 0).any():
        group, rank = divmod(int(np.argmax(flat < 0)), len(matrix))
        raise ArgumentError("volumes", "be >= 0", matrix[group, rank], f"{group}, {rank}")
    as_costs(flat, "volumes (row by row)")  # their sum fits int64
    # Row by row, so entries come by group; ranks ascend within one.
    groups, ranks = np.nonzero(flat.reshape(matrix.shape))
    offsets = np.searchsorted(groups, np.arange(len(matrix) + 1)).astype(np.int64)
    return Volumes(offsets, ranks.astype(np.int32), flat[flat != 0])


def _checked(volumes: Volumes) -> Volumes:
    """What a caller built by hand could break, so that no kernel reads out of bounds."""
    offsets, ranks, amounts = volumes.offsets, volumes.ranks, volumes.amounts
    kinds = offsets.dtype == np.int64 and ranks.dtype == np.int32 and amounts.dtype == np.int64
    flat = offsets.ndim == ranks.ndim == amounts.ndim == 1
    if not kinds or not flat or not all(a.flags.c_contiguous for a in (offsets, ranks, amounts)):
        rule = "hold contiguous arrays int64[m + 1], int32[k], int64[k]"
        raise ArgumentTypeError("volumes", rule, remedy="use group_volumes")
    m = len(offsets) - 1
    fits = m >= 1 and offsets[0] == 0 and offsets[-1] == len(ranks) == len(amounts) and (np.diff(offsets) >= 0).all()
    if not fits:
        raise ArgumentError("volumes.offsets", f"ascend from 0 to {len(ranks)} = len(ranks) = len(amounts)")
    if len(ranks) and (int(ranks.min()) < 0 or int(ranks.max()) >= m):
        where = int(np.argmax((ranks < 0) | (ranks >= m)))
        raise ArgumentError("volumes.ranks", f"be within 0..{m - 1}", ranks[where], where)
    as_costs(amounts, "volumes.amounts")
    group = int(_first_group_with_a_rank_twice(read_only(offsets), read_only(ranks)))
    if group >= 0:
        rule = f"list a rank at most once in a group, group {group} has one twice"
        raise ArgumentError("volumes", rule, remedy="use group_volumes")
    return volumes
