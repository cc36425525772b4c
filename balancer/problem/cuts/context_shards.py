"""Context shards: replicas of equally many ranks, each of which shares the documents of a pack, token by token."""

from collections.abc import Iterator, Sequence
from math import gcd
from typing import Annotated, ClassVar

import numpy as np
from numpy.typing import NDArray

from balancer.cost import CostModel
from balancer.described import Count, Size, SizesByName, described, key, one_of, settle
from balancer.problem.batch import GlobalBatch
from balancer.problem.constraints import Constraints
from balancer.problem.cuts.cut import Cut
from balancer.problem.cuts.in_slots import (
    Slots,
    check_adds_up,
    check_slots_planned,
)
from balancer.problem.cuts.micro_batches import MicroBatches
from balancer.problem.cuts.sequence_groups import equal_nodes
from balancer.problem.smallest_cap import check_longest
from balancer.problem.topology import Topology
from solvers.context.masks import as_masks
from solvers.errors import UsageError

SHARD_SYNCS = ("micro_batch", "step")
"""Where replicas wait for each other: in every pack, or once a step."""

_MOST_LAYERS = 2**20  # of one kind, there are fewer


@described
class ContextShards(Cut):
    """Packs of documents, each shared by the ranks of a replica: equally many tokens, even work, little to receive.

    Samples are documents: attention stays within each. They go to replicas and packs as to ranks and micro-batches, and
    :func:`solvers.context_shards` divides each pack. Loads are what ranks compute: a piece costs what its queries do.

    Attributes
    ----------
    degree : int
        Consecutive ranks that make a replica, and share each of its packs. It divides the ranks, and those of a node;
        or a replica is whole nodes.
    pack_tokens : int
        No pack holds more tokens; a rank has a `degree`-th of a pack's, rounded up.
    block : int, optional
        Documents are cut at multiples of it, up to ``degree - 1`` cuts of a pack aside. By default 128, and less where
        ranks have few tokens: see :func:`solvers.context_shards`.
    masks : dict from str to int, optional
        The number of layers by mask, as in :func:`solvers.context_shards`. By default the layers of
        the cost, or full causal attention if the cost names none.
    sync : str
        Where replicas wait for each other: ``"micro_batch"``, in every pack, or ``"step"``, once a step.
    count : int, optional
        Packs of a replica in a step, the same for all; by default the fastest number.

    Examples
    --------
    >>> ContextShards(2, 4096, masks={"full": 1, "window1024": 5}).in_words()
    'context shards of 2 ranks, packs of at most 4,096, sync micro_batch'
    """

    degree: Count = key("How many ranks share each pack of documents.")
    pack_tokens: Size = key("Tokens of a pack at most.")
    masks: SizesByName | None = key("Layers by what queries see: {full = 1, window1024 = 5}.", default=None, hash=False)
    block: Count | None = key("Documents are cut at its multiples; 128, or less for few tokens.", default=None)
    sync: Annotated[str, one_of(*SHARD_SYNCS)] = key(
        "Where replicas wait: micro_batch or step.", default=SHARD_SYNCS[0]
    )
    count: Slots | None = key("How many packs a replica; by default the fastest.", default=None)

    name: ClassVar[str] = "context_shards"
    called: ClassVar[str] = "context_shards"
    meets: ClassVar[str] = "context shards"
    holder: ClassVar[str] = "replica"
    shares: ClassVar[bool] = True
    strategies: ClassVar[tuple[str, ...]] = ("context_shards",)

    def __post_init__(self) -> None:
        settle(self, "cut")
        if self.masks is not None:
            as_masks(dict(self.masks), 1)

    def masks_of(self, cost: CostModel) -> dict[str, int]:
        """Return the masks, or those of the layers that a cost tells apart, by what a pair of each takes.

        ArgumentError, by name, if one of them is none by position.
        """
        if self.masks is not None:
            return dict(self.masks)
        if not cost.areas:  # `b` alone, of which a cost does not say what its queries see
            return {"full": 1}
        terms = dict(cost.areas)
        common = gcd(*terms.values())
        layers = {name: value // common for name, value in terms.items()}
        if (most := max(layers.values())) >= _MOST_LAYERS:
            layers = {name: max(1, value * (_MOST_LAYERS - 1) // most) for name, value in layers.items()}
        as_masks(layers, 1)
        return layers

    @property
    def packs(self) -> MicroBatches:
        """How packs are made: micro-batches of replicas, which may be empty."""
        return MicroBatches(self.pack_tokens, self.sync, count=self.count, allow_empty=True)

    def replicas(self, topology: Topology) -> Topology:
        """Return replicas instead of ranks; a replica of one node or more is a node itself."""
        node, count = equal_nodes(topology, self.name), topology.num_ranks // self.degree
        return Topology.uniform(count, max(1, min(count, node // self.degree)))

    # What goes together

    def check_settings(self, method: str, group_size: int | None) -> None:
        """Raise ValueError if no packs are made so."""
        check_slots_planned(self, "packs", method, group_size)

    def check_ranks(self, topology: Topology) -> None:
        """Raise ValueError unless the ranks, and those of a node, are whole replicas, or replicas whole nodes."""
        node, degree, count = equal_nodes(topology, self.name), self.degree, topology.num_ranks
        if count % degree or (node % degree and (degree % node or count % node)):
            raise UsageError(
                "{cut.degree} = {asked} must divide the {count} ranks and the {node} of a node, or be whole nodes",
                asked=degree, count=count, node=node,
            )  # fmt: skip

    def check(self, cost: CostModel, constraints: Sequence[str], topology: Topology) -> None:
        """Raise ValueError if ranks cannot share documents of this cost, under these constraints."""
        check_adds_up(self, cost)
        if constraints:
            raise UsageError(
                f"{{context_shards}} cannot be combined with {{{constraints[0]}}}: documents are on several ranks, "
                "which must be alike; leave one of them out"
            )
        if cost.needs_prefixes:
            raise UsageError(f"cost '{cost}' is of a prefix of each sample, which {{context_shards}} do not know")
        if cost.areas and cost.b:
            raise UsageError(
                f"cost '{cost}' has bidirectional layers, whose queries see keys after their own: {{context_shards}} "
                "are of causal attention, windows and chunks; plan such a model by {sequence_groups}"
            )
        self.check_ranks(topology)
        self.masks_of(cost)

    def check_batch(self, batch: GlobalBatch, num_ranks: int, constraints: Constraints, cost: CostModel) -> None:
        """Raise InfeasibleError if a document is longer than a pack."""
        check_longest(batch, "pack_tokens", self.pack_tokens, "raise it", "cut such documents beforehand")

    def cap_on_tokens(self, num_ranks: int) -> tuple[str, int, int | None]:
        """Return the cap on a pack."""
        bins = None if self.count is None else num_ranks // self.degree * self.count
        return "{pack_tokens}", self.pack_tokens, bins

    # What plans of it have

    def slots_for(self, used: int) -> int:
        """Return K, given that the `used`-th slot is the last that holds anything."""
        return self.packs.slots_for(used)

    def rank_sets(self, topology: Topology) -> Iterator[range]:
        """Yield the ranks of each replica, if it has several."""
        for first in range(0, topology.num_ranks if self.degree > 1 else 0, self.degree):
            yield range(first, first + self.degree)

    def span(self, slots: NDArray[np.int64] | NDArray[np.float64]) -> float:
        """Return what a step takes from what each rank is busy in each slot, [ranks, K]: an int of integers.

        The ranks of a replica wait for each other in every pack.
        """
        slowest = slots.reshape(-1, self.degree, slots.shape[1]).max(axis=1)
        taken: float = self.packs.span(slowest)
        return taken

    def of_whole_samples(self) -> MicroBatches:
        """Return micro-batches of as many tokens as a rank has of a pack, which longer samples exceed."""
        share = -(-self.pack_tokens // self.degree)
        return MicroBatches(share, self.sync, count=self.count, allow_empty=True, over_long="own", encoders="step")

    # Words and files

    def in_words(self) -> str:
        """Say what they are, for a report."""
        return f"context shards of {self.degree} ranks, packs of at most {self.pack_tokens:,}, sync {self.sync}"
