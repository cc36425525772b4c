"""What context shards have and need: whose rows of keys go to whom, and what each rank's queries see. Arrays alone."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from balancer.plan.dispatch_plan import DispatchPlan
from balancer.problem.cuts.context_shards import ContextShards
from solvers.context import ContextShardsResult, keys_seen, measure_layout
from solvers.errors import ArgumentError, ArgumentTypeError, UsageError

__all__ = ["KeyRows", "ShardRows"]

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class KeyRows:
    """The rows of keys that one rank holds in the layers of one kind: in order of documents and positions.

    Attributes
    ----------
    token : int64[k]
        Each row's token, numbered through the documents of the pack.
    sends : list of int64
        For each rank, the local rows that go to it; none to itself.
    places : list of int64
        For each rank, where among the rows held those stand that come from it; for itself, its own.
    own : int64
        The local rows that are held: those that some query of this rank sees.
    first, end : int64[c]
        Rows held that each local query sees, ``first[i]`` to ``end[i] - 1``.
    total_received : int
        Rows that all ranks get from others.
    """

    token: Ints
    sends: list[Ints]
    places: list[Ints]
    own: Ints
    first: Ints
    end: Ints
    total_received: int

    @property
    def received(self) -> int:
        """Rows that come from other ranks."""
        return len(self.token) - len(self.own)


@dataclass(frozen=True, slots=True)
class ShardRows:
    """A pack of documents, in shards.

    Attributes
    ----------
    lengths : int64[n]
        Of its documents, padding the last, if it is padded.
    rank, document, start, stop : int64[p]
        Rank ``rank[i]`` has positions ``start[i]`` to ``stop[i] - 1`` of a document; by rank, document and start.
    num_ranks : int
    masks : dict from str to int
        Kinds of layers, and how many there are of each.
    padded : bool
        Whether the last document is padding, which nobody computes.
    """

    lengths: Ints
    rank: Ints
    document: Ints
    start: Ints
    stop: Ints
    num_ranks: int
    masks: Mapping[str, int]
    padded: bool = False

    @classmethod
    def from_result(cls, shards: ContextShardsResult, masks: Mapping[str, int] | None = None) -> ShardRows:
        """Take what :func:`solvers.context_shards` found; UsageError if it was found for other masks."""
        if not isinstance(shards, ContextShardsResult):
            raise ArgumentTypeError("shards", "be what solvers.context_shards returns", repr(type(shards).__name__))
        lengths = np.zeros(int(shards.document.max()) + 1, dtype=np.int64)
        np.maximum.at(lengths, shards.document, shards.stop)
        num_ranks, named = shards.received.shape[1], {"full": 1} if masks is None else dict(masks)
        rows = shards.rank, shards.document, shards.start, shards.stop
        for padded in (False, True):  # a document that nobody computes is padding
            if padded and len(lengths) == 1:
                break
            kept = lengths[:-1] if padded else lengths
            if padded and not 0 < lengths[-1] < num_ranks:
                break
            layout = measure_layout(kept, num_ranks, rows, masks=named, pad=padded)
            if np.array_equal(layout.work, shards.work) and np.array_equal(layout.received, shards.received):
                return cls(lengths, *rows, num_ranks, named, padded)
        raise UsageError(
            f"the shards were made for other {{masks}} than {', '.join(named)}: give those they were made with"
        )

    @classmethod
    def from_plan(cls, plan: DispatchPlan, slot: int, replica: int) -> ShardRows:
        """Take a pack of a plan; its documents are the samples of the pack, in ascending order."""
        cut = plan.cut
        if not isinstance(cut, ContextShards):
            raise ArgumentError("plan", "be of context shards", repr(cut.in_words()))
        pieces = plan.pieces
        rank = pieces.place.rank_of_sample
        here = (plan.slot_of_sample[pieces.sample] == slot) & (rank // cut.degree == replica) & (pieces.lengths > 0)
        samples, document = np.unique(pieces.sample[here], return_inverse=True)
        order = np.lexsort((pieces.start[here], document, rank[here]))
        who, start, stop = rank[here] % cut.degree, pieces.start[here], pieces.stop[here]
        by, of, first, end = (np.asarray(each)[order].astype(np.int64) for each in (who, document, start, stop))
        return cls(plan.lengths[samples], by, of, first, end, cut.degree, cut.masks_of(plan.cost))

    def digest(self) -> str:
        """SHA-256, in hex, of all that ranks must agree on."""
        found = hashlib.sha256(repr((self.num_ranks, sorted(self.masks.items()), self.padded)).encode())
        for each in (self.lengths, self.rank, self.document, self.start, self.stop):
            found.update(np.ascontiguousarray(each, dtype="<i8").tobytes())
        return found.hexdigest()

    @property
    def first_token(self) -> Ints:
        """Where each document begins in the pack: int64[n]."""
        return np.cumsum(self.lengths) - self.lengths

    def tokens_of(self, rank: int) -> Ints:
        """Return the tokens of a rank in the order of its rows: int64[c]; positions of the pack, ascending."""
        mine = self.rank == rank
        begins = self.first_token[self.document[mine]] + self.start[mine]
        return _ranges(begins, self.stop[mine] - self.start[mine])

    def keys_of(self, rank: int, kind: int) -> KeyRows:
        """Return what a rank holds in layers of one kind. O(g c log p + T) of c tokens a rank."""
        needs = [self._needed(other, kind) for other in range(self.num_ranks)]
        token = _ranges(needs[rank][0], needs[rank][1] - needs[rank][0])
        mine = self.tokens_of(rank)
        sends = [_inside(mine, *need) if other != rank else mine[:0] for other, need in enumerate(needs)]
        own = _inside(mine, *needs[rank])
        owner = np.empty(int(self.lengths.sum()), dtype=np.int32)
        for other in range(self.num_ranks):
            owner[self.tokens_of(other)] = other
        order = np.argsort(owner[token], kind="stable")
        places = np.split(order, np.searchsorted(owner[token][order], np.arange(1, self.num_ranks)))
        first, end = (np.searchsorted(token, each) for each in self._seen_by(mine, kind))
        total = sum(int((stop - start).sum()) for start, stop in needs) - len(owner)  # as each rank needs its own
        return KeyRows(token, sends, places, own, first, end, total)

    def most_rows_held(self) -> int:
        """Return the most rows that a rank holds in a layer of any kind. O(g p) a kind."""
        needs = (self._needed(rank, kind) for rank in range(self.num_ranks) for kind in range(len(self.masks)))
        return max(int((end - first).sum()) for first, end in needs)

    def _needed(self, rank: int, kind: int) -> tuple[Ints, Ints]:
        """Return the tokens whose keys a rank's queries see, as intervals that do not touch: first, and one behind."""
        mine = self.rank == rank
        first, end = self._seen(self.document[mine], self.start[mine], self.stop[mine], kind)
        if not len(first):
            return first, end
        begins = np.append(True, first[1:] > end[:-1])  # both rise from row to row
        return first[begins], end[np.append(begins[1:], True)]

    def _seen_by(self, tokens: Ints, kind: int) -> tuple[Ints, Ints]:
        document = np.searchsorted(self.first_token, tokens, side="right") - 1
        at = tokens - self.first_token[document]
        return self._seen(document, at, at + 1, kind)

    def _seen(self, document: Ints, start: Ints, stop: Ints, kind: int) -> tuple[Ints, Ints]:
        """Return the tokens that parts of documents see; those of padding see themselves."""
        real = document < len(self.lengths) - self.padded
        first = start.copy()
        if real.any():
            known = self.lengths[: len(self.lengths) - self.padded]
            parts = document[real], start[real], stop[real]
            first[real] = keys_seen(known, *parts, masks=self.masks)[kind]
        offset = self.first_token[document]
        return first + offset, stop + offset


def _ranges(first: Ints, sizes: Ints) -> Ints:
    """Return all numbers of ranges, one after the other."""
    before = np.cumsum(sizes) - sizes
    return np.arange(int(sizes.sum())) - np.repeat(before - first, sizes)


def _inside(tokens: Ints, first: Ints, end: Ints) -> Ints:
    """Return which of ascending tokens are in intervals that do not touch, ascending."""
    at = np.searchsorted(first, tokens, side="right") - 1
    inside = at >= 0
    inside[inside] = tokens[inside] < end[at[inside]]
    return np.flatnonzero(inside)
