"""Context parallelism: each rank gets the rows of keys and values that its queries see and others have, and no more."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, NamedTuple, cast

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from balancer.executor.alike import attempt, held_by_all
from balancer.executor.collectives import Collectives
from balancer.executor.errors import PlanMismatchError, against_majority, by_text, listed
from balancer.executor.memory import bytes_of
from balancer.plan.context_rows import KeyRows, ShardRows
from solvers.context import ContextShardsResult
from solvers.errors import ArgumentError, UsageError

__all__ = ["ContextExchange", "PendingGather", "Sequences", "shift_labels"]

_IGNORED = -100
"""The label that torch's losses leave out."""


class Sequences(NamedTuple):
    """Boundaries of queries and of keys, as kernels for sequences of unequal lengths take them."""

    queries: Tensor  # int32[sequences + 1]
    keys: Tensor  # int32[sequences + 1]
    longest_queries: int
    longest_keys: int


class _Rows(NamedTuple):
    """Rows of one kind as tensors on one device."""

    sends: Tensor  # int64[s]: local rows, rank after rank
    of_rank: list[Tensor]  # the same, by rank
    places: Tensor  # int64[k - own]: where what arrives stands, rank after rank
    own: Tensor
    own_places: Tensor
    first: Tensor  # int64[c]
    end: Tensor


class _Wire:
    """What moves rows between the ranks of a pack, and what each kind of layer moves."""

    def __init__(self, rows: ShardRows, peers: Collectives) -> None:
        self.rank, self._rows, self.peers = peers.rank, rows, peers
        self._kinds: dict[str, KeyRows] = {}
        self._on_device: dict[tuple[str, torch.device], _Rows] = {}

    def keys(self, kind: str) -> KeyRows:
        """Return which rows this rank holds, and from whom."""
        if kind not in self._kinds:
            names = list(self._rows.masks)
            if kind not in names:
                raise ArgumentError("kind", f"be one of {', '.join(names)}", repr(kind))
            self._kinds[kind] = self._rows.keys_of(self.rank, names.index(kind))
        return self._kinds[kind]

    def rows(self, kind: str, device: torch.device) -> _Rows:
        """Return the same as tensors."""
        if (kind, device) not in self._on_device:
            keys = self.keys(kind)
            others = [place for rank, place in enumerate(keys.places) if rank != self.rank]

            def there(array: NDArray[np.int64]) -> Tensor:
                return torch.from_numpy(np.ascontiguousarray(array)).to(device)

            self._on_device[kind, device] = _Rows(
                there(np.concatenate(keys.sends)), [there(each) for each in keys.sends],
                there(np.concatenate([keys.token[:0], *others])), there(keys.own), there(keys.places[self.rank]),
                there(keys.first), there(keys.end),
            )  # fmt: skip
        return self._on_device[kind, device]

    def local_queries(self, kind: str) -> Tensor:
        """Return the queries of this rank all of whose keys are its own: int64[q], ascending."""
        keys = self.keys(kind)
        foreign = np.ones(len(keys.token), dtype=np.int64)
        foreign[keys.places[self.rank]] = 0
        before = np.append(0, np.cumsum(foreign))
        return torch.from_numpy(np.flatnonzero(before[keys.end] == before[keys.first]))

    def counts(self, kind: str) -> tuple[list[int], list[int]]:
        """Return how many rows go to each rank, and come from it."""
        keys = self.keys(kind)
        receives = [len(place) if rank != self.rank else 0 for rank, place in enumerate(keys.places)]
        return [len(each) for each in keys.sends], receives

    def begin(self, kind: str, tensors: Sequence[Tensor], back: bool = False) -> Callable[[], list[Tensor]]:
        """Begin to send rows of several tensors, rank after rank, in one message; return what waits for what comes."""
        sends, receives = reversed(self.counts(kind)) if back else self.counts(kind)
        if not self.keys(kind).total_received:  # all ranks know that no rank waits for any
            return lambda: list(tensors)
        count, arriving = sum(sends), sum(receives)
        widths = [math.prod(each.shape[1:]) * each.element_size() for each in tensors]
        of_each = [bytes_of(each).reshape(count, width) for each, width in zip(tensors, widths, strict=True)]
        packed = torch.cat(of_each, dim=1).reshape(-1)
        arrived = packed.new_empty(arriving * sum(widths))
        sent, received = ([sum(widths) * each for each in counts] for counts in (sends, receives))
        end = self.peers.begin_all_to_all(packed, sent, received, arrived)

        def come() -> list[Tensor]:
            end()
            parts = arrived.reshape(arriving, sum(widths)).split(widths, dim=1)
            if len(parts) > 1:  # into memory of their own, as a dtype wants its numbers aligned
                parts = tuple(part.clone(memory_format=torch.contiguous_format) for part in parts)
            return [
                part.reshape(-1).view(each.dtype).reshape(arriving, *each.shape[1:])
                for part, each in zip(parts, tensors, strict=True)
            ]

        return come


class ContextExchange:
    """The exchange of one pack's shards. All ranks of the group make it at the same time.

    Parameters
    ----------
    shards : ContextShardsResult or ShardRows
        What :func:`solvers.context_shards` found, or :meth:`ShardRows.from_plan` of a plan; the same on all ranks.
    group : ProcessGroup or ContextExchange, optional
        The ranks that share the pack, in the order of its ranks; by default all. Or the exchange of a pack before,
        whose ranks are these: no group is made then, which takes longer than a step.
    masks : optional
        Those the shards were made with: layers by what their queries see.
    max_rows_held : int, optional
        The most rows of keys that a rank may hold in a layer, as for :func:`solvers.context_shards`.
    timeout : timedelta
        How long a rank is waited for; that of the exchange before, if it is given.

    Attributes
    ----------
    rows : ShardRows
    rank : int
    peers : Collectives
        What ranks exchange by.
    agreed : dict of str to set of str
        Of each kind of layer, what all ranks have agreed to gather.
    index : Tensor, int64[c]
        The tokens of this rank, numbered through the pack's documents: ``inputs[index]`` are its inputs.
    positions : Tensor, int64[c]
        Each one's position in its document, for rotary embeddings.
    documents : Tensor, int64[c]
        The document of each.

    Raises
    ------
    ArgumentError, UsageError
        Shards of other masks, of another number of ranks than the group has, or that hold more rows.
    PeerError
        Another rank's shards could not be used, and why.
    PlanMismatchError
        On all ranks, where they hold different shards; nothing has been exchanged then.

    Notes
    -----
    O(g c log p + T) for each kind of layer, once. A gather is one all-to-all of the rows alone, none
    where no rank needs any.
    """

    peers: Collectives
    agreed: dict[str, set[str]]

    def __init__(
        self, shards: ContextShardsResult | ShardRows, group: Any = None, *, masks: Mapping[str, int] | None = None,
        max_rows_held: int | None = None, timeout: timedelta = timedelta(minutes=10),
    ) -> None:  # fmt: skip
        # Peers are there before shards are looked at, so that the others hear of a rank whose shards cannot be used.
        if isinstance(group, ContextExchange):
            peers, self.agreed = group.peers, group.agreed
        else:
            peers = Collectives(dist.group.WORLD if group is None else group, timeout, "context-parallel rank")
            self.agreed = {}

        def checked() -> ShardRows:
            rows = shards if isinstance(shards, ShardRows) else ShardRows.from_result(shards, masks)
            if peers.size != rows.num_ranks:
                raise ArgumentError("group", f"have the {rows.num_ranks} ranks that share the pack", peers.size)
            if max_rows_held is not None and (most := rows.most_rows_held()) > max_rows_held:
                raise ArgumentError("max_rows_held", f"be the {most} rows at least that a rank holds", max_rows_held)
            return rows

        rows = _agreed(peers, checked)
        self.rows, self.rank, self.peers, self._wire = rows, peers.rank, peers, _Wire(rows, peers)
        tokens = rows.tokens_of(self.rank)
        document = np.searchsorted(rows.first_token, tokens, side="right") - 1
        self.index, self.documents = torch.from_numpy(tokens), torch.from_numpy(document)
        self.positions = torch.from_numpy(tokens - rows.first_token[document])

    # What travels

    def gather(self, *tensors: Tensor, kind: str = "full", async_op: bool = False) -> Any:
        """Bring the rows that the queries of this rank see in the layers of a kind, in order of documents.

        Parameters
        ----------
        *tensors : Tensor[c, ...]
            Rows of this rank's tokens, of any dtypes and trailing dimensions: keys and values, or a latent. The same
            tensors on all ranks, which call this the same number of times.
        kind : str
            One of the masks.
        async_op : bool
            Return a :class:`PendingGather`, so that queries whose keys are all here can be computed meanwhile.

        Returns
        -------
        Tensor[k, ...], or a tuple of them
            Backward, gradients are summed into the rows' owners in float32, or a wider dtype of theirs, in order of
            ranks, so that runs repeat.

        Raises
        ------
        ArgumentError
            What is no tensor, or one of another number of rows; an unknown kind.
        PlanMismatchError
            On all ranks, at the first gather of a kind for which rows travel, where they gather other tensors;
            nothing has been exchanged then.
        PeerError
            There too, where another rank's tensors could not be used, and why.
        PeerLostError
            A rank that does not come, by name.
        """
        self._agree(kind, tensors)
        pending = PendingGather(self._wire, kind, tensors)
        return pending if async_op else pending.wait()

    def _agree(self, kind: str, tensors: tuple[Any, ...]) -> None:
        """Raise on all ranks unless they gather alike; they ask each other once for each kind and what is gathered."""
        gathered, failure = attempt(lambda: self._said(kind, tensors))
        agreed = self.agreed.get(kind, set())
        # Where no rank needs another's rows, as all know, none waits: each may gather when it likes, or not at all.
        alone = kind in self.rows.masks and not self.keys(kind).total_received
        if failure is not None and (agreed or alone):
            raise failure  # the others do not ask, and would not hear of it
        if alone or gathered in agreed:
            return
        # Unlike rows would be read as other numbers, or end the process: gloo aborts it where sizes differ.
        said = held_by_all(self.peers, gathered, failure, "could not gather")
        usual, odd = against_majority({rank: found for rank, (found,) in enumerate(said)})
        if odd:
            text = by_text(odd, lambda ranks, what: f"{listed(ranks)} gather{'s' * (len(ranks) == 1)} {what}")
            raise PlanMismatchError(f"{text}, the others {usual}; nothing has been exchanged", list(odd))
        self.agreed.setdefault(kind, set()).add(usual)

    def _said(self, kind: str, tensors: tuple[Any, ...]) -> str:
        """Check what is to be gathered, and say what all ranks must gather alike."""
        self.keys(kind)
        if not tensors:
            raise UsageError("give {tensors}, of which rows are gathered")
        for place, tensor in enumerate(tensors):
            if not isinstance(tensor, Tensor):
                raise ArgumentError("tensors", "be a tensor", type(tensor).__name__, place)
            if tensor.ndim == 0 or len(tensor) != len(self.index):
                rule = f"have the {len(self.index)} rows of this rank"
                raise ArgumentError("tensors", rule, list(tensor.shape), place)
        rows = [
            f"{str(each.dtype).removeprefix('torch.')} [*{''.join(f', {size}' for size in each.shape[1:])}]"
            for each in tensors
        ]
        return f"{len(rows)} tensor{'s' * (len(rows) > 1)} for kind {kind!r}: {' and '.join(rows)}"

    def keys(self, kind: str = "full") -> KeyRows:
        """Return which rows this rank holds in layers of a kind, and from whom."""
        return self._wire.keys(kind)

    # What attention needs

    @property
    def restore_index(self) -> Tensor:
        """Where each token of the pack stands in the shards of all ranks, one after the other: int64[T]."""
        ranks = range(self.rows.num_ranks)
        return torch.from_numpy(np.argsort(np.concatenate([self.rows.tokens_of(rank) for rank in ranks])))

    def mask_mod(self, kind: str = "full", device: Any = "cpu") -> Callable[[Any, Any, Any, Any], Any]:
        """Return what ``flex_attention`` asks: whether a query of this rank sees a row held."""
        rows = self._wire.rows(kind, torch.device(device))

        def sees(batch: Any, head: Any, query: Any, key: Any) -> Any:
            return (key >= rows.first[query]) & (key < rows.end[query])

        return sees

    def dense_mask(self, kind: str = "full", device: Any = "cpu") -> Tensor:
        """Return which rows held each query sees: bool[c, k]."""
        rows = self._wire.rows(kind, torch.device(device))
        held = torch.arange(len(self.keys(kind).token), device=device)
        return (held >= rows.first[:, None]) & (held < rows.end[:, None])

    def ranges(self, kind: str = "full") -> tuple[Tensor, Tensor]:
        """Return queries and rows held of each part of a document: int64[p, 2] each, first and one behind the last.

        The last query of a part sees the last of its rows.
        """
        mine, rows, keys = self.rows.rank == self.rank, self.rows, self.keys(kind)
        stop = np.cumsum(rows.stop[mine] - rows.start[mine])
        start = np.append(0, stop[:-1])
        queries = np.stack([start, stop], axis=1)
        if not len(queries):
            return torch.empty(0, 2, dtype=torch.int64), torch.empty(0, 2, dtype=torch.int64)
        held = np.stack([keys.first[queries[:, 0]], keys.end[queries[:, 1] - 1]], axis=1)
        return torch.from_numpy(queries), torch.from_numpy(held)

    def cu_seqlens(self, kind: str = "full", device: Any = "cpu") -> Sequences:
        """Return the boundaries of documents, for kernels that take sequences of unequal lengths.

        Such a kernel reads each row of keys for one sequence alone. UsageError where two parts of a document on this
        rank share rows.
        """
        queries, keys = self.ranges(kind)
        if (keys[1:, 0] < keys[:-1, 1]).any():
            at = int(torch.argmax((keys[1:, 0] < keys[:-1, 1]).int()))
            document = int(self.documents[queries[at + 1, 0]])
            raise UsageError(
                f"rank {self.rank} has several parts of document {document}, which share rows of keys: take mask_mod, "
                "or ranges, whose kernels read a row for several parts"
            )
        sizes = [each[:, 1] - each[:, 0] for each in (queries, keys)]
        bounds = [torch.nn.functional.pad(each.cumsum(0), (1, 0)).to(torch.int32).to(device) for each in sizes]
        return Sequences(*bounds, *(int(each.max()) if len(each) else 0 for each in sizes))

    def local_queries(self, kind: str = "full") -> Tensor:
        """Return the queries, of this rank's, all of whose keys are its own: int64[q], ascending."""
        return self._wire.local_queries(kind)


class PendingGather:
    """A gather under way: of keys that arrive while queries are computed that need none of them."""

    def __init__(self, wire: _Wire, kind: str, tensors: tuple[Tensor, ...]) -> None:
        self._wire, self._kind, self._tensors = wire, kind, tensors
        rows = wire.rows(kind, tensors[0].device)
        sent = [tensor.detach().index_select(0, rows.sends) for tensor in tensors]
        self._come = wire.begin(kind, sent)

    @property
    def local_queries(self) -> Tensor:
        """The queries that need nothing of what is under way: int64[q]."""
        return self._wire.local_queries(self._kind)

    def wait(self) -> Any:
        """Return the rows, in order of documents: one tensor, or a tuple of as many as were given. Once."""
        found = _Gather.apply(self._wire, self._kind, self._come, *self._tensors)
        return found[0] if len(found) == 1 else found


class _Gather(torch.autograd.Function):
    """Rows of this rank and of others; backward, what all ranks have for its rows, summed."""

    @staticmethod
    def forward(
        ctx: Any, wire: _Wire, kind: str, come: Callable[[], list[Tensor]], *tensors: Tensor
    ) -> tuple[Tensor, ...]:
        ctx.wire, ctx.kind, rows = wire, kind, wire.rows(kind, tensors[0].device)
        ctx.given = [(tensor.dtype, tensor.shape) for tensor in tensors]
        count, found = len(wire.keys(kind).token), []
        for tensor, arrived in zip(tensors, come(), strict=True):
            held = tensor.new_empty((count, *tensor.shape[1:]))
            held[rows.places], held[rows.own_places] = arrived, tensor.detach()[rows.own]
            found.append(held)
        ctx.mark_non_differentiable(*(each for each in found if not each.is_floating_point()))
        return tuple(found)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        wire, wanted = ctx.wire, [i for i in range(len(gradients)) if ctx.needs_input_grad[3 + i]]
        found: list[Tensor | None] = [None] * len(gradients)
        if not wanted:
            return None, None, None, *found
        rows, came_from = wire.rows(ctx.kind, gradients[wanted[0]].device), wire.counts(ctx.kind)[0]
        sent = [gradients[i].index_select(0, rows.places) for i in wanted]
        for i, arrived in zip(wanted, wire.begin(ctx.kind, sent, back=True)(), strict=True):
            dtype, shape = ctx.given[i]
            total = arrived.new_zeros(shape, dtype=torch.promote_types(dtype, torch.float32))
            for rank, part in enumerate(arrived.split(came_from)):  # in order of ranks, so that sums repeat
                if rank == wire.rank:
                    total[rows.own] += gradients[i][rows.own_places].to(total.dtype)
                else:
                    total[rows.of_rank[rank]] += part.to(total.dtype)
            found[i] = total.to(dtype)
        return None, None, None, *found


def _agreed(peers: Collectives, checked: Callable[[], ShardRows]) -> ShardRows:
    """Return this rank's shards; an error on all ranks unless all have them, and the same."""
    rows, failure = attempt(checked)
    digest = "" if rows is None else rows.digest()
    held = {
        rank: found for rank, (found,) in enumerate(held_by_all(peers, digest, failure, "could not take the shards"))
    }
    if odd := list(against_majority(held)[1]):
        raise PlanMismatchError(
            f"{listed(odd)} of {len(held)} hold{'s' * (len(odd) == 1)} other shards, or masks, than the majority; "
            "nothing has been exchanged: give every rank the same lengths and settings", odd,
        )  # fmt: skip
    return cast(ShardRows, rows)  # else this rank's failure was raised


def shift_labels(labels: Tensor, lengths: ArrayLike, ignore_index: int = _IGNORED) -> Tensor:
    """Return what each token of a pack is to predict: the label of the next token of its document.

    Before sharding, as the next token may be another rank's. The last of each document predicts nothing.

    Parameters
    ----------
    labels : Tensor, int64[..., T]
        Of the tokens themselves.
    lengths : int64[n]
        Of the pack's documents, padding included; their sum is T.
    ignore_index : int
        The label of what predicts nothing.
    """
    ends = np.cumsum(np.asarray(lengths, dtype=np.int64))
    if labels.shape[-1] != (ends[-1] if len(ends) else 0):
        rule = f"have the {ends[-1] if len(ends) else 0} tokens of the documents"
        raise ArgumentError("labels", rule, labels.shape[-1])
    shifted = torch.roll(labels, -1, dims=-1)
    shifted[..., torch.from_numpy(ends[ends > 0] - 1)] = ignore_index
    return shifted
