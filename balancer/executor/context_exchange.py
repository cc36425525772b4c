"""Context parallelism: each rank gets the rows of keys and values that its queries see and others have, and no more."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from balancer.executor.context_rows import KeyRows, ShardRows
from balancer.executor.exchange import exchange
from balancer.executor.moves import Move, Runs
from balancer.executor.ranks import Ranks, attempt
from solvers.context import ContextShardsResult
from solvers.errors import ArgumentError, UsageError

__all__ = ["ContextExchange", "shift_labels"]

_IGNORED = -100
"""The label that torch's losses leave out."""


class Sequences(NamedTuple):
    """Boundaries of queries and of keys, as kernels for sequences of unequal lengths take them."""

    queries: Tensor  # int32[sequences + 1]
    keys: Tensor  # int32[sequences + 1]
    longest_queries: int
    longest_keys: int


class _Rows(NamedTuple):
    """Rows of one kind on one device: which go to each rank, this one among them, and where those that come belong."""

    sent: list[Tensor]  # of each rank, int64: local rows that it needs
    places: Tensor  # int64[k]: where what comes stands among the rows held, rank after rank
    first: Tensor  # int64[c]: rows held that each local query sees, from the first...
    end: Tensor  # ... to one in front of this
    move: Move


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
    ranks : Ranks
        Those that share the pack, and what they exchange by.
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
    ExecutorError
        On all ranks, where they hold different shards; or another rank's could not be used, and why. Nothing has been
        exchanged then.

    Notes
    -----
    O(g c log p + T) for each kind of layer, once. A gather is one all-to-all of the rows alone, none
    where no rank needs any.
    """

    ranks: Ranks
    agreed: dict[str, set[str]]

    def __init__(
        self, shards: ContextShardsResult | ShardRows, group: Any = None, *, masks: Mapping[str, int] | None = None,
        max_rows_held: int | None = None, timeout: timedelta = timedelta(minutes=10),
    ) -> None:  # fmt: skip
        # Ranks are there before shards are looked at, so that the others hear of one whose shards cannot be used.
        given = group if isinstance(group, ContextExchange) else None
        ranks = self.ranks = Ranks(group, None, timeout) if given is None else given.ranks
        self.agreed = {} if given is None else given.agreed

        def checked() -> ShardRows:
            rows = shards if isinstance(shards, ShardRows) else ShardRows.from_result(shards, masks)
            if ranks.size != rows.num_ranks:
                raise ArgumentError("group", f"have the {rows.num_ranks} ranks that share the pack", ranks.size)
            if max_rows_held is not None and (most := rows.most_rows_held()) > max_rows_held:
                raise ArgumentError("max_rows_held", f"be the {most} rows at least that a rank holds", max_rows_held)
            return rows

        rows = ranks.alike("taking the shards", checked, lambda rows: {"the shards or masks": rows.digest()})
        self.rows, self.rank = rows, ranks.rank
        self._keys: dict[str, KeyRows] = {}
        self._on_device: dict[tuple[str, torch.device], _Rows] = {}
        tokens = rows.tokens_of(self.rank)
        document = np.searchsorted(rows.first_token, tokens, side="right") - 1
        self.index, self.documents = torch.from_numpy(tokens), torch.from_numpy(document)
        self.positions = torch.from_numpy(tokens - rows.first_token[document])

    # What travels

    def gather(self, *tensors: Tensor, kind: str = "full") -> Any:
        """Bring the rows that the queries of this rank see in the layers of a kind, in order of documents.

        Parameters
        ----------
        *tensors : Tensor[c, ...]
            Rows of this rank's tokens, of any dtypes and trailing dimensions: keys and values, or a latent. The same
            tensors on all ranks, which call this the same number of times.
        kind : str
            One of the masks.

        Returns
        -------
        Tensor[k, ...], or a tuple of them
            Backward, gradients are summed into the rows' owners in float32, or a wider dtype of theirs, in order of
            ranks, so that runs repeat.

        Raises
        ------
        ArgumentError
            What is no tensor, or one of another number of rows; an unknown kind.
        ExecutorError
            On all ranks, at the first gather of a kind for which rows travel, where they gather other tensors, or
            another rank's could not be used; nothing has been exchanged then. Or a rank does not come.
        """
        self._agree(kind, tensors)
        found = _Gather.apply(self, kind, *tensors)
        return found[0] if len(found) == 1 else found

    def _agree(self, kind: str, tensors: tuple[Any, ...]) -> None:
        """Raise on all ranks unless they gather alike; they ask each other once for each kind and what is gathered."""
        said, failure = attempt(lambda: self._said(kind, tensors))
        agreed = self.agreed.get(kind, set())
        # Where no rank needs another's rows, as all know, none waits: each may gather when it likes, or not at all.
        alone = kind in self.rows.masks and not self.keys(kind).total_received
        if failure is not None and (agreed or alone):
            raise failure  # the others do not ask, and would not hear of it
        if alone or said in agreed:
            return
        # Unlike rows would be read as other numbers, or end the process: gloo aborts it where sizes differ.
        said = self.ranks.alike("gathering", lambda: self._said(kind, tensors), lambda text: {"what they gather": text})
        self.agreed.setdefault(kind, set()).add(said)

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
        if kind not in self._keys:
            names = list(self.rows.masks)
            if kind not in names:
                raise ArgumentError("kind", f"be one of {', '.join(names)}", repr(kind))
            self._keys[kind] = self.rows.keys_of(self.rank, names.index(kind))
        return self._keys[kind]

    def rows_on(self, kind: str, device: Any) -> _Rows:
        """Return what :meth:`keys` says as tensors on a device, and how rows move."""
        key = kind, torch.device(device)
        if key not in self._on_device:
            keys = self.keys(kind)
            sent = [own if rank != self.rank else keys.own for rank, own in enumerate(keys.sends)]

            def there(array: NDArray[np.int64]) -> Tensor:
                return torch.from_numpy(np.ascontiguousarray(array)).to(device)

            move = Move(_blocks(sent), _blocks(keys.places), len(keys.token))
            self._on_device[key] = _Rows(
                [there(each) for each in sent], there(np.concatenate([keys.token[:0], *keys.places])),
                there(keys.first), there(keys.end), move,
            )  # fmt: skip
        return self._on_device[key]

    # What attention needs

    @property
    def restore_index(self) -> Tensor:
        """Where each token of the pack stands in the shards of all ranks, one after the other: int64[T]."""
        ranks = range(self.rows.num_ranks)
        return torch.from_numpy(np.argsort(np.concatenate([self.rows.tokens_of(rank) for rank in ranks])))

    def mask_mod(self, kind: str = "full", device: Any = "cpu") -> Callable[[Any, Any, Any, Any], Any]:
        """Return what ``flex_attention`` asks: whether a query of this rank sees a row held."""
        rows = self.rows_on(kind, device)

        def sees(batch: Any, head: Any, query: Any, key: Any) -> Any:
            return (key >= rows.first[query]) & (key < rows.end[query])

        return sees

    def dense_mask(self, kind: str = "full", device: Any = "cpu") -> Tensor:
        """Return which rows held each query sees: bool[c, k]."""
        rows = self.rows_on(kind, device)
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


def _blocks(rows: list[NDArray[np.int64]]) -> Runs:
    """Return one run a rank, of as many rows, one after the other."""
    sizes = np.array([len(each) for each in rows], dtype=np.int64)
    return Runs(np.arange(len(rows)), np.cumsum(sizes) - sizes, sizes)


class _Gather(torch.autograd.Function):
    """Rows of this rank and of others; backward, what all ranks have for its rows, summed."""

    @staticmethod
    def forward(ctx: Any, of: ContextExchange, kind: str, *tensors: Tensor) -> tuple[Tensor, ...]:
        rows = of.rows_on(kind, tensors[0].device)
        ctx.of, ctx.kind, ctx.given = of, kind, [(tensor.dtype, tensor.shape) for tensor in tensors]
        chosen = torch.cat(rows.sent)
        sent = [tensor.detach().index_select(0, chosen) for tensor in tensors]
        # Where no rank needs another's rows, as all know, none waits.
        found = exchange(of.ranks, sent, [rows.move] * len(sent)) if of.keys(kind).total_received else sent
        held = [torch.empty_like(each).index_copy_(0, rows.places, each) for each in found]
        ctx.mark_non_differentiable(*(each for each in held if not each.is_floating_point()))
        return tuple(held)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        wanted = [i for i in range(len(gradients)) if ctx.needs_input_grad[2 + i]]
        summed: list[Tensor | None] = [None] * len(gradients)
        if not wanted:
            return None, None, *summed
        of, rows = ctx.of, ctx.of.rows_on(ctx.kind, gradients[wanted[0]].device)
        found = [gradients[i].index_select(0, rows.places) for i in wanted]
        if of.keys(ctx.kind).total_received:
            back = Move(rows.move.into, rows.move.out, sum(map(len, rows.sent)))
            found = exchange(of.ranks, found, [back] * len(found))
        for i, came in zip(wanted, found, strict=True):
            dtype, shape = ctx.given[i]
            total = came.new_zeros(shape, dtype=torch.promote_types(dtype, torch.float32))
            for chosen, part in zip(rows.sent, came.split([len(each) for each in rows.sent]), strict=True):
                total[chosen] += part.to(total.dtype)  # in order of ranks, so that sums repeat
            summed[i] = total.to(dtype)
        return None, None, *summed


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
