"""What sequence groups are asked for, as a caller gives it: solver, bound and checker begin from it."""

from dataclasses import KW_ONLY, dataclass

from numpy.typing import ArrayLike


@dataclass(frozen=True, slots=True, eq=False)
class SequenceRequest:
    """Items for groups of ranks, and the rules for them; whoever solves it checks it, once.

    Attributes
    ----------
    times, sizes, degrees, num_ranks, cap, overhead, group_overhead, num_slots, min_slots, slots_multiple_of
        As in :func:`solvers.sequence_groups`.
    """

    times: ArrayLike
    sizes: ArrayLike
    degrees: ArrayLike
    num_ranks: int
    cap: int | None
    _: KW_ONLY
    overhead: int = 0
    group_overhead: ArrayLike | None = None
    num_slots: int | None = None
    min_slots: int = 1
    slots_multiple_of: int = 1
