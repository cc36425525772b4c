"""A global batch: the samples that all ranks drew for one step, their lengths, and where they lie before dispatch."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike, NDArray

from balancer.problem.block import Block
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


_NONE: NDArray[np.int64] = np.empty(0, dtype=np.int64)
_NONE.flags.writeable = False

HOMES = {"contiguous": contiguous_homes, "strided": strided_homes}
"""How a loader deals a global batch to ranks, by name."""


@dataclass(frozen=True, slots=True, eq=False)
class GlobalBatch(Record):
    """The samples of one step."""

    lengths: NDArray[np.int64]  # int64[n], read-only: length of each sample (tokens, frames or patches), >= 0
    home: Placement  # where each sample lies before dispatch
    # int64[d], read-only: samples of the step that are left out, ascending; `lengths` and `home` are of the others, in
    # order
    dropped: NDArray[np.int64] = field(default_factory=lambda: _NONE)
    dropped_lengths: NDArray[np.int64] = field(default_factory=lambda: _NONE)  # int64[d], read-only
    # int64[n + d]: which row of its log each sample of the step is, those left out too; None: consecutive rows
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

    @property
    def kept(self) -> NDArray[np.int64]:
        """Which samples of the step these are: int64[n], ascending."""
        return kept_samples(len(self.lengths), self.dropped)

    @property
    def numbers(self) -> NDArray[np.int64]:
        """The numbers of these samples in error messages: int64[n]."""
        return self.kept

    def rows_of(self, samples: NDArray[np.int64], first_row: int) -> NDArray[np.int64]:
        """Return the rows of the log that samples of the step are, in which it begins at `first_row`."""
        return samples + first_row if self.row_numbers is None else self.row_numbers[samples]

    def without(self, samples: NDArray[np.int64]) -> "GlobalBatch":
        """Leave out ``lengths[samples]``; the others stay where they are."""
        lengths = np.delete(self.lengths, samples)
        home = Placement.by_sample_order(np.delete(self.home.rank_of_sample, samples), self.home.num_ranks)
        dropped = np.concatenate((self.dropped, self.kept[samples]))
        order = np.argsort(dropped)
        dropped_lengths = np.concatenate((self.dropped_lengths, self.lengths[samples]))
        prefixes = None if self.prefixes is None else np.delete(self.prefixes, samples)
        return GlobalBatch(lengths, home, dropped[order], dropped_lengths[order], self.row_numbers, prefixes)

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
    array = as_int64("prefix_lengths", given)
    if len(array) != num_samples:
        raise ArgumentError("prefix_lengths", f"have a length for each of {num_samples} samples", len(array))
    if (array < 0).any():
        index = int(np.argmax(array < 0))
        raise ArgumentError("prefix_lengths", "be >= 0", array[index], index)
    return array


def kept_samples(count: int, dropped: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the `count` samples of a step that are not among `dropped`, ascending: int64[count]."""
    kept: NDArray[np.int64] = np.arange(count + len(dropped))
    return np.delete(kept, dropped) if len(dropped) else kept


def whole_batches(blocks: Iterable[Block], samples_per_step: int, drop_last: bool = False) -> Iterator[Block]:
    """Cut a stream of blocks of any size where global batches, of consecutive samples, end.

    Each block that comes is of one batch or several; the last may be shorter, and is left out if `drop_last`. Where a
    block of the stream holds whole batches, they come together and share its arrays. Memory is one block and one batch.
    """
    parts: list[Block] = []  # of the batch that is not full yet
    held = 0
    for block in blocks:
        start = min(samples_per_step - held, len(block)) if held else 0
        if start:
            parts.append(block[:start])
            held += start
            if held < samples_per_step:
                continue
            yield Block.concatenate(parts)
            parts, held = [], 0
        stop = len(block) - (len(block) - start) % samples_per_step
        if start < stop:
            yield block[start:stop]
        if stop < len(block):
            parts, held = [block[stop:]], len(block) - stop
    if held and not drop_last:
        yield Block.concatenate(parts)
