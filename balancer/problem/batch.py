"""A global batch: the samples that all ranks drew for one step, their lengths, and where they lie before dispatch."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike, NDArray

from balancer.problem.placement import Placement
from solvers.arguments import as_count, as_int64
from solvers.errors import ArgumentError, ArgumentTypeError
from solvers.types import Record


def contiguous_homes(num_samples: int, num_ranks: int, batch_per_rank: int) -> Placement:
    """Sample i lies on rank ``i // batch_per_rank``; in a short batch the last ranks hold nothing."""
    if num_samples > num_ranks * batch_per_rank:
        raise ValueError(
            f"{num_samples} samples do not fit on {num_ranks} ranks with batch_per_rank = {batch_per_rank}"
        )
    ranks = np.arange(num_samples, dtype=np.int32) // np.int32(batch_per_rank)
    return Placement.by_sample_order(ranks, num_ranks)


def strided_homes(num_samples: int, num_ranks: int, batch_per_rank: int) -> Placement:
    """Sample i lies on rank ``i % num_ranks``, as torch's DistributedSampler deals them."""
    ranks = np.arange(num_samples, dtype=np.int32) % np.int32(num_ranks)
    return Placement.by_sample_order(ranks, num_ranks)


HOMES = {"contiguous": contiguous_homes, "strided": strided_homes}
"""How a loader deals a global batch to ranks, by name."""


@dataclass(frozen=True, slots=True, eq=False)
class GlobalBatch(Record):
    """The samples of one step."""

    lengths: NDArray[np.int64]  # int64[n], read-only: length of each sample (tokens, frames or patches), >= 0
    home: Placement  # where each sample lies before dispatch
    # int64[n]: which row of its log each sample is; None: consecutive rows
    row_numbers: NDArray[np.int64] | None = field(default=None, compare=False)
    # int64[n]: tokens at the beginning of each sample that see each other, where the cost's mask has them; None: none
    prefixes: NDArray[np.int64] | None = None

    def __post_init__(self) -> None:
        if len(self.lengths) != len(self.home.rank_of_sample):
            raise ValueError(
                f"home_rank must name a rank for each of {len(self.lengths)} samples, "
                f"got {len(self.home.rank_of_sample)}"
            )
        Record.__post_init__(self)

    def rows_of(self, samples: NDArray[np.int64], first_row: int) -> NDArray[np.int64]:
        """Return the rows of the log that samples of the step are, in which it begins at `first_row`."""
        return samples + first_row if self.row_numbers is None else self.row_numbers[samples]

    @classmethod
    def from_lengths(
        cls, lengths: ArrayLike, num_ranks: int, home_rank: ArrayLike | None = None, prefixes: ArrayLike | None = None
    ) -> "GlobalBatch":
        """Check what comes from a caller; without homes, equal contiguous shares."""
        num_ranks = as_count("num_ranks", num_ranks)
        if isinstance(lengths, Mapping | Iterator | set | frozenset):
            rule = "be a list, an array or a CPU tensor of one number a sample"
            raise ArgumentTypeError("lengths", rule, f"a {type(lengths).__name__}")
        array = as_int64("lengths", lengths)
        if array.size and array.min() < 0:
            index = int(np.argmax(array < 0))
            raise ArgumentError("lengths", "be >= 0", array[index], index)
        array = array.copy()  # the caller may go on to change theirs
        own = None if prefixes is None else checked_prefixes(prefixes, len(array)).copy()
        if home_rank is None:
            home = contiguous_homes(len(array), num_ranks, max(1, -(-len(array) // num_ranks)))
        else:
            home = Placement.checked(home_rank, num_ranks, name="home_rank")
        return cls(array, home, prefixes=own)


def checked_prefixes(given: ArrayLike, num_samples: int) -> NDArray[np.int64]:
    """Return lengths of prefixes that come from a caller: int64[n], >= 0."""
    array = as_int64("prefix_length", given)
    if len(array) != num_samples:
        raise ArgumentError("prefix_length", f"have a length for each of {num_samples} samples", len(array))
    if (array < 0).any():
        index = int(np.argmax(array < 0))
        raise ArgumentError("prefix_length", "be >= 0", array[index], index)
    return array
