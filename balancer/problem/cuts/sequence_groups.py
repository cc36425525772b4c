"""Sequence groups: in every slot, the ranks are divided into groups of unequal size that share samples."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import gcd, isqrt
from typing import Annotated, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from balancer.cost import EXCHANGES, CostModel, check_heads
from balancer.cost.parts import Attention
from balancer.cost.sequence_parallel import legal_degrees, padded_heads
from balancer.described import Count, Counts, Size, described, key, one_of, settle
from balancer.problem.batch import GlobalBatch
from balancer.problem.constraints import MAX_TOKENS, Constraints, not_taken
from balancer.problem.cuts.cut import WHOLE_SHARES, Cut
from balancer.problem.cuts.in_slots import (
    ENCODERS,
    Encoders,
    check_adds_up,
    check_encoder_in_slots,
    check_slots_planned,
)
from balancer.problem.cuts.micro_batches import MicroBatches
from balancer.problem.topology import Topology
from solvers.arguments import INT64_MAX, as_count
from solvers.errors import ArgumentError, UsageError, Wording
from solvers.packing import slots_for

ORDERS = ("contiguous", "zigzag")
"""Which part of a sample a rank of its group holds, by name; see :class:`SequenceGroups`."""

GROUPING = Wording({
    "cap": "cut.tokens_per_rank", "num_slots": "cut.count", "slots_multiple_of": "cut.multiple_of",
    "sizes": "lengths", "times": "costs", "item": "sample", "items": "samples", "group": "sequence group",
})  # fmt: skip
"""The arguments of :func:`solvers.sequence_groups` under the names of the fields that set them."""


_OF_SHARED = {
    "equal_counts": (
        "a shared item is one of each of its ranks, and counts would be equal where times are not",
        "a cap on counts is {max_samples_per_rank}",
    ),
    "every_rank_nonempty": (
        "a rank may have whole items, pieces of shared ones, or nothing", "give ranks that have nothing a dummy item",
    ),
    "min_samples_per_rank": (
        "it would count pieces of shared items, which no rank needs", "give ranks that have nothing a dummy item",
    ),
    "allowed_ranks": (
        "an item would be allowed in groups all of whose ranks are, which is not planned",
        "{group_size} keeps items within groups of ranks",
    ),
    "initial_loads": (
        "ranks of a group reach what they share at the same time, so that they must be alike",
        "leave it out, or plan whole items",
    ),
    **dict.fromkeys(
        ("prefix", "prefix_length"),
        ("every rank that has a part of an item would compute a part of its prompt, which is not planned",
         "leave it out, or plan whole items"),
    ),
    "rank_speeds": (
        "ranks of a group share items in equal parts, so that they must be alike", "leave it out, or plan whole items",
    ),
}  # fmt: skip
"""What a constraint would mean where ranks share items, so that it is refused; and what to do instead."""


def equal_nodes(topology: Topology, name: str) -> int:
    """Return how many ranks each node has, the last perhaps fewer; ValueError, naming the cut, if others have."""
    sizes = topology.node_sizes
    if len(set(sizes[:-1])) > 1 or sizes[-1] > sizes[0]:
        raise UsageError(f"{{{name}}} needs nodes of equal size, got {{sizes!s:.60}}", sizes=list(sizes))
    return sizes[0]


@described
class SequenceGroups(Cut):
    """Groups of ranks that share samples: long samples run on many ranks, short ones on few.

    Attributes
    ----------
    degrees : tuple of int
        The numbers of ranks that a group may have. With ``exchange="ulysses"`` each must divide the attention heads.
        Where each divides the next, groups start at multiples of their degree: inside a node, if that divides the
        ranks of one. Others may reach over the end of a node, which the times of a cost do not tell apart.
    tokens_per_rank : int or None
        A group of degree d holds at most d times this number of tokens in a slot, padding included.
    count : int or None
        K, the same on all ranks; None: the fastest.
    multiple_of : int
        K must be a multiple of this.
    exchange : str
        What the ranks of a group exchange in attention: ``"ulysses"``, heads for tokens (all to all), or ``"ring"``,
        keys and values, which takes any degree.
    order : str
        ``"contiguous"``: rank j of a group holds the j-th of equal parts of each sample. ``"zigzag"``: parts j and 2d -
        1 - j of 2d, so that causal attention takes all ranks of a ring equally long.
    pad_to : int
        A rank's share of a sample is padded to a multiple of it (in a zigzag each of its two parts).
    encoders : str
        As :class:`balancer.MicroBatches` has it.

    Examples
    --------
    >>> SequenceGroups((1, 2), pad_to=16).padded(np.array([40, 7]), np.array([2, 1])).tolist()
    [64, 16]
    """

    degrees: Counts = key("How many ranks a group may have: [1, 2, 4, 8].", default=(1, 2, 4, 8))
    tokens_per_rank: Size | None = key("Tokens of a rank in a slot at most.", default=None)
    count: Count | None = key("How many slots; by default the fastest.", default=None, kw_only=True)
    multiple_of: Count = key("The number of slots is a multiple of this.", default=1, kw_only=True)
    exchange: Annotated[str, one_of(*EXCHANGES)] = key(
        "What ranks of a group exchange: ulysses or ring.", default=EXCHANGES[0], kw_only=True
    )
    order: Annotated[str, one_of(*ORDERS)] = key(
        "Which part of a sample a rank holds: contiguous or zigzag.", default=ORDERS[0], kw_only=True
    )
    pad_to: Count = key("A rank's share of a sample is padded to a multiple of it.", default=1, kw_only=True)
    encoders: Encoders = key(
        "Encoders compute in a sample's slot (slot), or before (step).", default=ENCODERS[0], kw_only=True
    )

    name: ClassVar[str] = "sequence_groups"
    called: ClassVar[str] = "sequence_groups"
    meets: ClassVar[str] = "sequence groups"
    sync: ClassVar[str] = "micro_batch"
    shares: ClassVar[bool] = True
    strategies: ClassVar[tuple[str, ...]] = ("static_degree", "sequence_groups")

    def __post_init__(self) -> None:
        settle(self, "cut")
        if len(set(self.degrees)) < len(self.degrees):
            raise ArgumentError("cut.degrees", "be distinct numbers of ranks", list(self.degrees))
        if self.count is not None and self.count % self.multiple_of:
            raise UsageError(
                "{cut.count} = {count} contradicts {cut.multiple_of} = {multiple}",
                count=self.count, multiple=self.multiple_of,
            )  # fmt: skip

    @property
    def size(self) -> int:
        """Ranks of a group that no sample leaves; 0: a sample may be on any ranks."""
        return 0

    def check_settings(self, method: str, group_size: int | None) -> None:
        """Raise ValueError if no sequence groups are made so."""
        check_slots_planned(self, "sequence groups", method, group_size)

    def check_ranks(self, topology: Topology) -> None:
        """Raise ValueError unless nodes have equally many ranks."""
        self.ranks_per_node(topology)

    def check(self, cost: CostModel, constraints: Sequence[str], topology: Topology) -> None:
        """Raise ValueError if ranks cannot share samples of this cost, under these constraints."""
        self._check(cost, constraints)
        self.check_ranks(topology)
        self.check_heads(cost)

    def check_encoder(self, cost: CostModel, constraints: Sequence[str]) -> None:
        """Raise ValueError if an encoder in these slots cannot have this cost or these constraints."""
        if self.encoders == "slot":
            check_encoder_in_slots(self, constraints)
            self._check(cost, constraints)

    def _check(self, cost: CostModel, constraints: Sequence[str]) -> None:
        check_adds_up(self, cost)
        refused = not_taken(self.name, constraints)
        if MAX_TOKENS in refused:
            raise UsageError(
                "{max_tokens_per_rank} is a cap on a rank's step; {sequence_groups} have a cap of their own, on a "
                "rank's slot: give {cut.tokens_per_rank}"
            )
        if refused:
            raise UsageError(
                f"{{sequence_groups}} cannot be combined with {{{refused[0]}}}: samples are on several ranks, which "
                "must be alike; leave one of them out"
            )

    def of_encoder(self, num_slots: int, num_elements: int) -> Cut:
        """Return micro-batches, possibly empty, and of any size: encoders compute whole items."""
        return MicroBatches(max(1, num_elements), "micro_batch", count=num_slots, allow_empty=True)

    def kept_by_encoder(self, constraints: Constraints) -> Constraints:
        """Return where items may run, if slots say when: what a rank holds over the step is not planned then."""
        return Constraints(allowed_ranks=constraints.allowed_ranks) if self.encoders == "slot" else constraints

    def of_whole_samples(self) -> Cut:
        """Return micro-batches under the same cap, which longer samples exceed; without a cap whole shares."""
        if self.tokens_per_rank is None:
            return WHOLE_SHARES
        return MicroBatches(
            self.tokens_per_rank, count=self.count, multiple_of=self.multiple_of, allow_empty=True,
            over_long="own", encoders=self.encoders,
        )  # fmt: skip

    def check_deferral(self) -> None:
        """Raise nothing: any samples can make a step."""

    def least_work(
        self, cost: CostModel, lengths: NDArray[np.int64], num_ranks: int
    ) -> tuple[NDArray[np.int64], NDArray[np.int64] | None]:
        """Return least degree times time, and least time, over the degrees that each sample may have: int64[n] each."""
        found = cost.degree_times(lengths, self.degrees, num_ranks)
        degree = np.array(self.degrees)[:, None]
        times = found.times * found.unit
        work = degree * times
        if self.tokens_per_rank is not None:
            over = self.padded(lengths[None, :], degree) > self.tokens_per_rank * degree
            # A sample that no degree holds keeps its numbers here: the planner says what is wrong, and how to mend
            # it.
            over &= ~over.all(axis=0)  # of what fits nowhere the planner tells
            work, times = (np.where(over, INT64_MAX, each) for each in (work, times))
        return work.min(axis=0), times.min(axis=0)

    def check_heads(self, cost: CostModel) -> None:
        """Raise ValueError if the cost is of a model whose heads the degrees do not divide, where they must."""
        if self.exchange == "ulysses" and cost.attention is not None:
            check_heads(self.degrees, cost.attention)

    def padded(self, lengths: NDArray[np.int64], degree: NDArray[np.int64] | int) -> NDArray[np.int64]:
        """Return the length of each sample in a group of its degree, padding included: int64[n]."""
        degree = np.asarray(degree)
        # A zigzag cuts each rank's share in two, and both have to be whole.
        parts = degree * self.pad_to * np.where((degree > 1) & (self.order == "zigzag"), 2, 1)
        return np.asarray(-(-lengths // parts) * parts)

    def rank_sets(self, topology: Topology) -> Iterator[range]:
        """Yield all sets of ranks that any plan can need as a group of more than one; each degree's ascend.

        Where every degree divides the next these are fewer than two a rank.
        """
        num_ranks = topology.num_ranks
        for degree in sorted(degree for degree in self.degrees if 1 < degree <= num_ranks):
            for first in range(0, num_ranks - degree + 1, self.step(degree, num_ranks)):
                yield range(first, first + degree)

    def step(self, degree: int, num_ranks: int) -> int:
        """Return the number of ranks of which the first rank of each group of a degree is a multiple.

        Only groups of the same or a larger degree lie before a group in its slot.
        """
        return gcd(*(each for each in self.degrees if degree <= each <= num_ranks))

    def reaches_over_nodes(self, degree: int, topology: Topology) -> bool:
        """Return whether groups of a degree may have ranks of several nodes."""
        aligned = self.step(degree, topology.num_ranks) == degree and self.ranks_per_node(topology) % degree == 0
        return topology.num_nodes > 1 and not aligned

    def ranks_per_node(self, topology: Topology) -> int:
        """Return how many ranks each node has, the last perhaps fewer; ValueError if others have."""
        return equal_nodes(topology, self.name)

    def allows(
        self, slot: NDArray[np.integer], first: NDArray[np.int64], degree: NDArray[np.int64], topology: Topology
    ) -> NDArray[np.bool_]:
        """Return whether groups may be so many ranks from these on, each in its slot: bool[G]."""
        within = (first >= 0) & (first + degree <= topology.num_ranks) & np.isin(degree, self.degrees)
        for each in np.unique(degree[within]).tolist():
            within &= (degree != each) | (first % self.step(each, topology.num_ranks) == 0)
        return np.asarray(within)

    def charged(
        self, first: NDArray[np.integer], degree: NDArray[np.integer], num_ranks: int, num_slots: int
    ) -> NDArray[np.int64]:
        """Return how often a rank takes the overhead in each slot, given all groups: int64[num_ranks, num_slots]."""
        return np.ones((num_ranks, num_slots), dtype=np.int64)

    def slots_for(self, used: int) -> int:
        """Return K, given that the `used`-th slot is the last that holds anything."""
        return slots_for(used, self.count or 1, self.multiple_of)

    def fewest_slots(self, lengths: NDArray[np.int64], num_ranks: int) -> int:
        """Return a number of slots that no plan is below: what all ranks hold at once, and what is asked for."""
        room = num_ranks * (self.tokens_per_rank or max(1, int(lengths.sum())))
        return self.slots_for(max(1, -(-int(lengths.sum()) // room)))

    def in_words(self) -> str:
        """Say what they are, for a report."""
        cap = "" if self.tokens_per_rank is None else f", at most {self.tokens_per_rank:,} a rank"
        return f"groups of {', '.join(map(str, self.degrees))} ranks{cap}"

    def makespan(self, slot_loads: NDArray[np.int64]) -> int:
        """Return what a step takes in cost units, from what each rank is busy in each slot, int64[ranks, K]."""
        return int(self.span(slot_loads))

    def span(self, slots: NDArray[np.int64] | NDArray[np.float64]) -> float:
        """Return what a step takes from what each rank is busy in each slot, [ranks, K]: an int of integers."""
        taken: float = slots.max(axis=0).sum().item()
        return taken

    def solver_keywords(self, topology: Topology) -> dict[str, Any]:
        """Return these as :func:`solvers.sequence_groups` takes them."""
        return {
            "degrees": self.degrees,
            "num_ranks": topology.num_ranks,
            "cap": self.tokens_per_rank,
            "num_slots": self.count,
            "slots_multiple_of": self.multiple_of,
        }


@described
class LongShort(SequenceGroups):
    """Long and short: an encoder's items in aligned groups of ranks, in which the long ones are shared.

    A slot a degree, the largest first; a rank that is done with one goes on to the next, and a step takes as long as
    the rank that takes longest. What sharing costs besides is charged once where any item of a group is shared.

    Examples
    --------
    >>> LongShort.from_size(8).degrees, LongShort.from_size(12).degrees
    ((8, 4, 2, 1), (12, 6, 3, 1))
    """

    name: ClassVar[str] = "sequence_parallel"
    called: ClassVar[str] = "sequence_parallel"
    meets: ClassVar[str] = ""
    sync: ClassVar[str] = "step"
    own_slots: ClassVar[bool] = True

    @classmethod
    def from_size(cls, size: int, pad_to: int = 1) -> LongShort:
        """Return that of groups of so many ranks; a rank's share of an item is padded to a multiple of `pad_to`."""
        degrees = [as_count(cls.name, size, 2)]
        while degrees[-1] > 1:
            last = degrees[-1]
            # Divided by its smallest prime each time: the longest chain of degrees, so that sharing can be as narrow
            # as possible.
            prime = next((d for d in range(2, isqrt(last) + 1) if last % d == 0), last)
            degrees.append(degrees[-1] // prime)
        return cls(tuple(degrees), count=len(degrees), pad_to=pad_to)

    @property
    def size(self) -> int:
        """Ranks of a group."""
        return self.degrees[0]

    def _check(self, cost: CostModel, constraints: Sequence[str]) -> None:
        check_adds_up(self, cost)
        for name in not_taken(self.name, constraints):
            why, remedy = _OF_SHARED[name]
            raise UsageError(f"{{sequence_parallel}} cannot be combined with {{{name}}}: {why}", remedy)

    def check_batch(self, batch: GlobalBatch, num_ranks: int, constraints: Constraints, cost: CostModel) -> None:
        """Raise nothing: what a cap holds depends on which items are shared."""

    def check_ranks(self, topology: Topology) -> None:
        """Raise ValueError unless the ranks, and those of a node, are whole groups, or groups whole nodes."""
        node, size = self.ranks_per_node(topology), self.size
        fits = topology.num_ranks % size == 0 and (node % size == 0 or size % node == 0)
        if not fits:
            raise UsageError(
                "{sequence_parallel} must divide the {count} ranks and the {node} of a node, or be whole nodes, got "
                "{size}", count=topology.num_ranks, node=node, size=size,
            )  # fmt: skip

    def check_heads(self, cost: CostModel) -> None:
        """Raise ValueError if the cost is of a model whose heads some degree does not divide; all exchange so."""
        if cost.attention is not None:
            self.check_attention(cost.attention)

    def check_attention(self, attention: Attention) -> None:
        """Raise ValueError unless every degree divides the heads, by the name that users know."""
        try:
            check_heads(self.degrees, attention)
        except ArgumentError:
            legal = legal_degrees(attention)
            sizes = [size for size in legal[1:] if set(self.from_size(size).degrees) <= set(legal)]
            take = (f"take {', '.join(map(str, sizes))}",) if sizes else ()
            raise UsageError(
                "{sequence_parallel} = {size} shares items by {counts} ranks, each of which must divide the model's "
                "{heads} attention heads ({kv_heads} of keys and values)",
                (*take, *padded_heads(attention, self.size)), size=self.size,
                counts=", ".join(map(str, self.degrees[:-1])), heads=attention.heads, kv_heads=attention.kv_heads,
            ) from None  # fmt: skip

    def allows(
        self, slot: NDArray[np.integer], first: NDArray[np.int64], degree: NDArray[np.int64], topology: Topology
    ) -> NDArray[np.bool_]:
        """Return whether groups are of their slot's degree, and begin at a multiple of it: bool[G]."""
        of_slot = np.array(self.degrees)[slot]
        within = (first >= 0) & (first + degree <= topology.num_ranks)
        return np.asarray((degree == of_slot) & (first % of_slot == 0) & within)

    def charged(
        self, first: NDArray[np.integer], degree: NDArray[np.integer], num_ranks: int, num_slots: int
    ) -> NDArray[np.int64]:
        """Return 1 in the first slot of each rank in whose group any item is shared."""
        sharing = np.zeros(num_ranks // self.size, dtype=np.int64)
        sharing[first[degree > 1] // self.size] = 1
        charged = np.zeros((num_ranks, num_slots), dtype=np.int64)
        charged[:, 0] = sharing.repeat(self.size)
        return charged

    def fewest_slots(self, lengths: NDArray[np.int64], num_ranks: int) -> int:
        """Return in how many slots a rank takes the overhead at least: in none, if nothing is shared."""
        return 0

    def in_words(self) -> str:
        """Say what they are, for a report."""
        return f"long items shared by up to {self.size} ranks"

    def span(self, slots: NDArray[np.int64] | NDArray[np.float64]) -> float:
        """Return what a step takes from what each rank is busy in each slot, [ranks, K]: an int of integers."""
        taken: float = slots.sum(axis=1).max().item()
        return taken
