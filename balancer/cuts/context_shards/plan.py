"""What comes out of context shards: the documents of each pack in pieces on the ranks of a replica."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from balancer.errors import PlanError
from balancer.io.plan_rows import PlanStep
from balancer.plan.digest import digest_after
from balancer.plan.dispatch_plan import DispatchPlan
from balancer.plan.item_rows import ItemRows, OneEach
from balancer.plan.piece_rows import first_rows, item_of
from balancer.plan.pieces import Pieces, SequenceGroup, Shares
from balancer.plan.shared_plan import SharedPlan
from balancer.problem.cuts.context_shards import ContextShards
from balancer.problem.placement import Placement
from balancer.problem.problem import Problem
from solvers.arguments import INT64_MAX
from solvers.context import MeasuredLayout, measure_layout
from solvers.context.measured import Layout
from solvers.groups import group_loads
from solvers.packing import MOST_BINS
from solvers.relocation import crossing_bound

_RULES = ("head_tail", "per_document", "round_robin")
"""What frameworks ship: PyTorch's and Megatron's default, Megatron's of packed documents, PyTorch's PTRR."""

Ints = NDArray[np.int64]


def _no_pieces() -> Pieces:
    nothing = np.empty(0, dtype=np.int64)
    return Pieces(nothing, nothing, nothing, Placement.by_sample_order(nothing.astype(np.int32), 1))


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ShardPlan(SharedPlan):
    """Documents in packs, a slot a pack of each replica; a sample's own rank is the one that holds its first token."""

    held: Pieces = field(default_factory=_no_pieces)

    @classmethod
    def from_pieces(
        cls, problem: Problem, slot: NDArray[np.int32], num_slots: int, sample: Ints, start: Ints, stop: Ints,
        rank: Ints,
    ) -> ShardPlan:  # fmt: skip
        """Place samples in slots, and pieces, in any order, that tile them on ranks. O(p log p)."""
        num_ranks = problem.topology.num_ranks
        order = np.lexsort((start, sample))
        sample, start, stop = (each[order].astype(np.int64) for each in (sample, start, stop))
        ranks = rank[order].astype(np.int32)
        place = Placement.by_slots(ranks, slot[sample], num_ranks, num_slots)
        first = np.append(True, np.diff(sample) != 0)[: len(sample)]
        target = Placement.by_slots(ranks[first], slot, num_ranks, num_slots)
        return cls(problem, target, slot, num_slots, held=Pieces(sample, start, stop, place))

    @classmethod
    def put_together(
        cls, problem: Problem, target: Placement, slots: NDArray[np.int32], num_slots: int, *beside: NDArray[np.int32]
    ) -> ShardPlan:
        """Place samples in the pieces that stand :attr:`beside`."""
        sample, start, stop, rank = (array.astype(np.int64) for array in beside)
        return cls.from_pieces(problem, slots, num_slots, sample, start, stop, rank)

    @property
    def beside(self) -> tuple[NDArray[np.int32], ...]:
        """Sample, start, stop and rank of each piece: no pack holds more tokens than 32 bits count."""
        held = self.held
        return *(each.astype(np.int32) for each in (held.sample, held.start, held.stop)), held.place.rank_of_sample

    @classmethod
    def read(cls, where: str, rows: PlanStep) -> OneEach:
        """Tell which rows begin an item; `where` is for errors."""
        return OneEach(rows, first_rows(where, rows))

    @classmethod
    def from_rows(cls, problem: Problem, rows: ItemRows) -> ShardPlan:
        """Place items in the pieces of the rows; PlanError if they cannot be there."""
        there, slot = rows.read.rows, rows.slot
        if not len(rows.order):
            nothing = np.empty(0, dtype=np.int64)
            return cls.from_pieces(problem, slot, rows.num_slots, nothing, nothing, nothing, nothing)
        order = np.lexsort((there.start, item_of(there), there.sample))  # type: ignore[arg-type]  # as `read` has seen
        sample, item = there.sample[order], item_of(there)[order]
        begins = np.append(True, (np.diff(sample) != 0) | (np.diff(item) != 0))[: len(order)]
        numbered = np.lexsort((rows.item, rows.sample))
        of = np.empty(len(order), dtype=np.int64)
        of[order] = numbered[np.cumsum(begins) - 1]
        if broken := _misplaced(problem, rows, of):
            raise PlanError(f"{rows.where}: {broken}")
        found = cls.from_pieces(problem, slot, rows.num_slots, of, there.start, there.stop, there.rank)  # type: ignore[arg-type]
        broken = found.violation()
        pieces = np.lexsort((there.start, of))  # type: ignore[arg-type]  # in the order of those found
        held = np.stack((there.position, there.group))[:, pieces]  # type: ignore[arg-type]
        wanted = np.stack((found.held.place.position_of_sample, found.group_of_pieces(found.held)))
        if not broken and (wrong := (held != wanted).any(axis=0)).any():
            at = int(np.argmax(wrong))
            names = "position and group"
            broken = f"a piece has {names} {held[:, at].tolist()}, where its pack has {wanted[:, at].tolist()}"
        if broken:
            raise PlanError(f"{rows.where}: {broken}")
        return found

    def violation(self) -> str:
        """Say which rule the pieces break first; nothing if they keep to all."""
        held, cut, lengths = self.held, self.cut, self.lengths
        replica = held.place.rank_of_sample // cut.degree
        first = np.append(True, np.diff(held.sample) != 0)[: len(replica)]
        last = np.append(first[1:], True)[: len(first)]
        of = np.cumsum(first) - 1
        begin = np.where(first, 0, np.append(0, held.stop[:-1])[: len(first)])
        apart = (held.start != begin) | (last & (held.stop != lengths[held.sample]))
        apart |= (held.stop < held.start) | ((held.stop == held.start) & ~(first & last))
        if apart.any():
            sample = int(held.sample[np.argmax(apart)])
            return f"the pieces of sample {sample} do not tile its {lengths[sample]} elements"
        if (elsewhere := replica != replica[first][of]).any():
            sample = int(held.sample[np.argmax(elsewhere)])
            return f"sample {sample} is on several replicas"
        tokens = self.tokens
        packs = tokens.reshape(-1, cut.degree, self.num_slots).sum(axis=1)
        if (over := packs > cut.pack_tokens).any():
            at, slot = np.unravel_index(int(np.argmax(over)), packs.shape)
            return f"pack {slot} of replica {at} holds {packs[at, slot]} tokens, cap {cut.pack_tokens}"
        most = (-(-packs // cut.degree)).repeat(cut.degree, axis=0)
        if (over := tokens > most).any():
            at, slot = np.unravel_index(int(np.argmax(over)), over.shape)
            return f"rank {at} holds {tokens[at, slot]} tokens of pack {slot}, its share is {most[at, slot]}"
        return ""

    @property
    def cut(self) -> ContextShards:
        """What was asked for."""
        return self.problem.cut  # type: ignore[return-value]  # which is what this class comes from

    # What it takes

    def measure(self) -> tuple[Ints, int]:
        """Return the work of each rank, int64[num_ranks], and what the packs of a step take."""
        busy = self.slot_loads
        return busy.sum(axis=1), int(self.cut.span(busy))

    @property
    def piece_costs(self) -> Ints:
        """What the queries of each piece cost: int64[p]; those of a sample add up to its cost."""
        held, cost = self.held, self.problem.cost
        return np.asarray(cost.exact(held.stop) - cost.exact(held.start))

    @property
    def slot_loads(self) -> Ints:
        """Work of each rank in each pack: int64[num_ranks, num_slots]."""
        return self._by_slot(self.piece_costs)

    @property
    def tokens(self) -> Ints:
        """Tokens of each rank in each pack: int64[num_ranks, num_slots]."""
        return self._by_slot(self.held.lengths)

    def _by_slot(self, each: Ints) -> Ints:
        bins = self.held.place.rank_of_sample * np.int64(self.num_slots) + self.slot_of_sample[self.held.sample]
        found = group_loads(each, bins.astype(np.int32), self.num_ranks * self.num_slots)
        return found.reshape(-1, self.num_slots)

    @property
    def binding_sample(self) -> int | None:
        """The costliest document if it costs more than a replica's fair share; else None."""
        return self.costliest(self.loads.reshape(-1, self.cut.degree).sum(axis=1))

    def least_crossing(self) -> int:
        """Return how many elements cross nodes at least, by tokens of ranks, and by work where nodes hold all."""
        problem, degree = self.problem, self.cut.degree
        lengths, home, node = problem.batch.lengths, problem.batch.home.rank_of_sample, problem.topology.node_of_rank
        room = min(self.num_slots * -(-self.cut.pack_tokens // degree), INT64_MAX)
        bound = crossing_bound(lengths, lengths, home, node, room)
        if not any(ranks % degree for ranks in problem.topology.node_sizes):  # a document is whole in its node
            bound = max(bound, crossing_bound(problem.costs, lengths, home, node, min(self.makespan, INT64_MAX)))
        return bound

    # What lies where

    @property
    def pieces(self) -> Pieces:
        """What of each sample lies on which rank."""
        return self.held

    @property
    def shares(self) -> Shares:
        """Each rank's share of each sample: all of its pieces. O(p log p)."""
        num_ranks = self.num_ranks
        keys, lengths = self._by_share(self.held.lengths)
        sample, rank = keys // num_ranks, (keys % num_ranks).astype(np.int32)
        place = Placement.by_slots(rank, self.slot_of_sample[sample], num_ranks, self.num_slots)
        return Shares(sample, place, lengths)

    def _by_share(self, each: Ints) -> tuple[Ints, Ints]:
        """Add up what pieces have by sample and rank: sample * num_ranks + rank, ascending, and the sums."""
        keys = self.held.sample * self.num_ranks + self.held.place.rank_of_sample
        found, share = np.unique(keys, return_inverse=True)
        sums = np.zeros(len(found), dtype=np.int64)
        np.add.at(sums, share, each)
        return found, sums

    def busy(self, shares: Shares) -> NDArray[np.float64]:
        """Return for how long a rank is busy with each share: as the cost of its queries over that of all."""
        costs = self._by_share(self.piece_costs)[1]
        return np.asarray(costs / np.maximum(self.problem.costs[shares.sample], 1))

    def group_of_pieces(self, pieces: Pieces) -> NDArray[np.int32]:
        """Return the number of the pack that each piece is of, slot by slot, in each by replica: int32[p]."""
        replicas = self.num_ranks // self.cut.degree
        group = self.slot_of_sample[pieces.sample] * np.int64(replicas)
        return (group + pieces.place.rank_of_sample // self.cut.degree).astype(np.int32)

    def groups(self, slot: int) -> list[SequenceGroup]:
        """Return the replicas that have anything in a slot; each is busy as long as its slowest rank."""
        cut, mine = self.cut, np.flatnonzero(self.slot_of_sample == self._checked(slot))
        replica, busy = self.rank_of_sample[mine] // cut.degree, self.slot_loads[:, slot]
        return [
            SequenceGroup(
                ranks := range(each * cut.degree, (each + 1) * cut.degree),
                mine[replica == each],
                int(busy[ranks.start : ranks.stop].max()),
            )
            for each in np.unique(replica).tolist()
        ]

    def layouts_beside(self) -> Iterator[tuple[int, Ints, Mapping[str, MeasuredLayout]]]:
        """Yield of each pack its tokens, layers, and what this layout, ``"given"``, and the rules of others take."""
        cut, held, node = self.cut, self.held, self.problem.topology.node_sizes[0]
        masks, lengths, rank = cut.masks_of(self.problem.cost), self.lengths, held.place.rank_of_sample
        layers = np.array(list(masks.values()), dtype=np.int64)
        pack = self.group_of_pieces(held)
        order = np.argsort(pack, kind="stable")
        for mine in np.split(order, np.flatnonzero(np.diff(pack[order])) + 1):
            mine = mine[held.lengths[mine] > 0]
            if not len(mine):
                continue
            documents, of = np.unique(held.sample[mine], return_inverse=True)
            rows = rank[mine] % cut.degree, of, held.start[mine], held.stop[mine]
            within = node if cut.degree > node else None
            layouts: dict[str, Layout] = {"given": rows, **{rule: rule for rule in _RULES}}
            yield int(lengths[documents].sum()), layers, {
                name: measure_layout(
                    lengths[documents], cut.degree, layout, ranks_per_node=within, masks=masks, pad=True
                )
                for name, layout in layouts.items()
            }  # fmt: skip

    def digest(self) -> str:
        """SHA-256, in hex, of pieces too."""
        held = self.held
        narrow = held.sample, held.place.rank_of_sample, held.place.position_of_sample
        return digest_after(DispatchPlan.digest(self), narrow=narrow, wide=(held.start, held.stop))


def _misplaced(problem: Problem, rows: ItemRows, of: Ints) -> str:
    """Say which rule ranks and slots of rows break first, `of` being the item of each; nothing if they keep to all."""
    there, cut, num_ranks, num_slots = rows.read.rows, problem.cut, problem.topology.num_ranks, rows.num_slots
    given = cut.count  # type: ignore[attr-defined]  # of context shards
    if num_slots * num_ranks > MOST_BINS or cut.slots_for(num_slots) != num_slots or given not in (None, num_slots):
        return f"there are {num_slots} packs a replica, which is not what was asked for"
    if len(of) and not (there.slot.min() >= 0 and there.slot.max() < num_slots):
        return f"slots must be within 0..{num_slots - 1}, got {there.slot.min()} to {there.slot.max()}"
    if len(of) and not (there.rank.min() >= 0 and there.rank.max() < num_ranks):
        return f"ranks must be within 0..{num_ranks - 1}, got {there.rank.min()} to {there.rank.max()}"
    if (other := there.slot != rows.slot[of]).any():
        return f"sample {there.sample[np.argmax(other)]} is in several packs"
    return ""
