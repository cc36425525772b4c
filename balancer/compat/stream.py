"""Balanced batches of a stream: samples whose lengths are known only when they are drawn.

A stream is drawn ``window + 1`` steps at a time, and each such window is a small dataset for
:class:`balancer.compat.BalancedBatchSampler`, which plans it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count, islice
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from balancer.compat.data_ranks import agree, compares, world
from balancer.compat.epoch_order import digest
from balancer.compat.rank_batches import Place, RankBatches
from balancer.compat.sampler import BalancedBatchSampler
from balancer.cost.model import CostModel
from solvers.arguments import as_count, as_flag, as_index, as_int64, as_integer
from solvers.errors import ArgumentError, ArgumentTypeError, UsageError, WordedError, Wording

if TYPE_CHECKING:
    from balancer.problem.limits import AnyLimit

    _Iterable = object
else:
    try:  # a DataLoader asks for it
        from torch.utils.data import IterableDataset as _Iterable
    except ImportError:
        _Iterable = object

__all__ = ["BalancedStream"]


@dataclass(frozen=True, slots=True, eq=False)
class StreamPlace(Place):
    """Where a run stands in a stream: ``samples`` are drawn, and ``steps`` have run of those that come next."""

    stream: Any = None  # what the stream says of itself there, if it does
    lengths: str | None = None  # what tells the next window from another, once it is drawn


class BalancedStream(RankBatches, _Iterable):
    """Micro-batches of samples for one data-parallel rank, of even cost, from a stream that all ranks read.

    It draws ``window + 1`` steps of ``batch_size * num_replicas * gradient_accumulation_steps`` samples, plans them as
    :class:`BalancedBatchSampler` would, yields the rank's micro-batches (lists of samples), and draws the next.
    ``DataLoader(stream, batch_size=None, collate_fn=collate)`` collates them; at most one worker.

    All ranks read the *same* samples in the same order, and each leaves those of others, so stream what is cheap to
    read (keys, undecoded bytes), and decode in the collator. If each rank reads a shard of its own, samples must move
    between ranks: that is what :class:`balancer.executor.Dispatcher` does.

    Parameters
    ----------
    samples : iterable, or function of the epoch that returns one
        Begins anew each time it is iterated, and yields the same again. Its `set_epoch`, if it has one, is called.
    length : function
        From a sample to its length: tokens, frames or patches.
    batch_size, num_replicas, rank
        As :class:`BalancedBatchSampler` has them.
    cost : str, CostModel, or function
        What to balance: a cost of lengths, or a function from a sample to its cost, or to its costs in several phases.
    gradient_accumulation_steps, sync, step_tokens_within, rank_speeds, seed
        As :class:`BalancedBatchSampler` has them.
    window : int
        Steps by which a sample may move; ``window + 1`` steps of samples are held.
    limits : sequence of limits, or function
        What a micro-batch may hold, as :class:`BalancedBatchSampler` has it; where limits have values of samples, a
        function from the samples of a window to its limits.
    drop_last : bool
        Leave out the samples after the last full step. If False, they make a shorter one, which a few of its window
        fill up so that all micro-batches of it are of one size.

    Raises
    ------
    TypeError, ValueError
        An argument that cannot be used. In `set_epoch`: ranks with unlike streams or settings. While iterating: a
        length that is no whole number >= 0; several workers; a step that limits do not permit.

    Notes
    -----
    Where a process group of `num_replicas` ranks is up, `set_epoch` compares them, also by the lengths of the first
    window, which it draws for that; it waits for all ranks. No other call does.

    A run that loads a state goes on bit for bit. If `samples` has ``state_dict`` and ``load_state_dict`` these bring it
    back to the window; else it is read again from the beginning of the epoch, without planning. They must be exact: a
    stream that loses the samples of its shuffle buffer yields others, which is an error.

    Examples
    --------
    >>> ranks = [BalancedStream(["aaaaaaaaa", "a", "aaaa", "aaaaaa"], len, 2, 2, rank) for rank in range(2)]
    >>> [[[len(sample) for sample in batch] for batch in stream] for stream in ranks]
    [[[9, 1]], [[6, 4]]]
    """

    counts_samples = False  # its state is of these ranks alone

    def __init__(
        self,
        samples: Iterable[Any] | Callable[[int], Iterable[Any]],
        length: Callable[[Any], int],
        batch_size: int,
        num_replicas: int | None = None,
        rank: int | str | None = None,
        *,
        cost: str | CostModel | Callable[[Any], float] = "linear",
        gradient_accumulation_steps: int = 1,
        sync: str = "step",
        window: int = 0,
        step_tokens_within: float | str | None = None,
        rank_speeds: ArrayLike | None = None,
        limits: Sequence[AnyLimit] | Callable[[list[Any]], Sequence[AnyLimit]] = (),
        seed: int = 0,
        drop_last: bool = False,
    ) -> None:
        super().__init__(*world(num_replicas, rank))
        if isinstance(samples, Iterator | type) or not (hasattr(samples, "__iter__") or callable(samples)):
            rule = "be an iterable that begins anew each time, or a function of the epoch that returns one"
            raise ArgumentTypeError("samples", rule, repr(samples)[:60])
        if not callable(length):
            raise ArgumentTypeError("length", "be a function from a sample to its length", repr(length)[:60])
        self._samples, self._length, self._drop = samples, length, as_flag("drop_last", drop_last)
        self._cost = None if isinstance(cost, str | CostModel) else cost
        if self._cost is not None and not callable(self._cost):
            raise ArgumentTypeError("cost", "be a cost by its name, or a function of a sample", repr(cost)[:60])
        self._settings: dict[str, Any] = {
            "batch_size": as_count("batch_size", batch_size), "sync": sync,
            "gradient_accumulation_steps": gradient_accumulation_steps,
            "window": window, "step_tokens_within": step_tokens_within, "seed": as_integer("seed", seed),
            "rank_speeds": None if rank_speeds is None else as_int64("rank_speeds", rank_speeds).tolist(),
        }  # fmt: skip
        if self._cost is None:
            self._settings["cost"] = cost
        self._limits = limits if callable(limits) else None
        if self._limits is None:
            self._settings["limits"] = limits
        checked = self._sampler(np.ones(1, dtype=np.int64), [], 0)
        self._micro_steps = int(gradient_accumulation_steps)
        self.samples_per_step = int(batch_size) * self.num_replicas * self._micro_steps
        self._window_size = self.samples_per_step * (checked.window + 1)
        self._begin_at(self._beginning(0))

    def __repr__(self) -> str:
        settings = ", ".join(f"{name}={value!r}" for name, value in self._settings.items())
        return f"BalancedStream(num_replicas={self.num_replicas}, rank={self.rank!r}, {settings})"

    def __iter__(self) -> Iterator[list[Any]]:
        data = sys.modules.get("torch.utils.data")
        worker = data and data.get_worker_info()
        if worker and worker.num_workers > 1:
            raise UsageError(
                "a BalancedStream is read by one worker, and there are {count}: each would plan the whole stream, or "
                "a part of it", "give num_workers=1, and decode in its collate_fn", count=worker.num_workers,
            )  # fmt: skip
        return super().__iter__()

    def __len__(self) -> int:
        raise TypeError("how many batches a stream has is known only at its end")

    def _batches(self, begin: Place) -> int:
        return 0  # nobody was told another number

    # Windows: what is drawn together, and planned together.

    def _source(self, at: StreamPlace) -> Iterator[Any]:
        """Return an iterator of the stream behind a place."""
        samples, skipped = self._samples, at.samples
        if callable(set_epoch := getattr(samples, "set_epoch", None)):
            set_epoch(at.epoch)
        if at.stream is not None:
            samples.load_state_dict(at.stream)  # type: ignore[union-attr]
            skipped = 0
        source = iter(samples if hasattr(samples, "__iter__") else samples(at.epoch))
        if (read := sum(1 for _ in islice(source, skipped))) < skipped:
            raise UsageError("the state stands behind {there} samples, and the stream ended after {read}",
                             "resume with the stream that was trained", there=skipped, read=read)  # fmt: skip
        return source

    def _windows(self, at: StreamPlace) -> Iterator[tuple[StreamPlace, list[Any], StreamPlace]]:
        """Yield where each window begins, its samples, and where the next one begins."""
        source = self._source(at)
        while drawn := list(islice(source, self._window_size)):
            lengths = self._lengths(drawn, at.samples)
            if at.lengths not in (None, found := digest(lengths)):
                raise UsageError(
                    "the stream yields other samples than when the state was saved: lengths behind sample {sample} "
                    "differ",
                    ("resume with the stream that was trained",
                     "where its own state_dict is not exact, hide that: BalancedStream(lambda epoch: samples, ...)"),
                    sample=at.samples,
                )  # fmt: skip
            states = hasattr(self._samples, "state_dict") and hasattr(self._samples, "load_state_dict")
            state = self._samples.state_dict() if states else None  # type: ignore[union-attr]
            behind = StreamPlace(at.epoch, at.samples + len(drawn), stream=state)
            yield replace(at, lengths=found), drawn, behind
            at = behind

    def _lengths(self, drawn: Sequence[Any], first: int) -> Any:
        lengths = as_int64("length", [self._length(sample) for sample in drawn])
        if len(odd := np.flatnonzero(lengths < 0)):
            raise ArgumentError("length", "be >= 0", lengths[odd[0]], first + int(odd[0]))
        return lengths

    def _sampler(self, lengths: Any, drawn: Sequence[Any], first: int) -> BalancedBatchSampler:
        """Return what plans a window; each has random numbers of its own."""
        more: dict[str, Any] = {"seed": self._settings["seed"] + first}
        if self._cost is not None and drawn:
            more["cost"] = [self._cost(sample) for sample in drawn]
        if self._limits is not None and drawn:
            more["limits"] = self._limits(list(drawn))
        settings = self._settings | more
        return BalancedBatchSampler(lengths, num_replicas=self.num_replicas, rank=0, shuffle=False, **settings)

    def _planned(self, drawn: Sequence[Any], begin: StreamPlace) -> Iterator[list[list[list[int]]]]:
        sampler = self._sampler(self._lengths(drawn, begin.samples), drawn, begin.samples)
        try:
            yield from sampler.plan(begin.epoch)
        except WordedError as error:  # its steps and rows are of the window
            where = f"window that begins behind sample {begin.samples} of the stream"
            raise error.in_words(Wording({"batch_size=None": None})).within(where) from None

    def _steps(self, at: Place, ranks: Sequence[int]) -> Iterator[tuple[Place, list[list[list[Any]]]]]:
        left = at.steps  # that have run of what is drawn
        for begin, drawn, behind in self._windows(self._in_stream(at)):
            kept = len(drawn) - (len(drawn) % self.samples_per_step if self._drop else 0)
            total = -(-kept // self.samples_per_step)
            if left < total:
                for number, grid in enumerate(self._planned(drawn[:kept], begin), 1):
                    if number > left:
                        after = replace(begin, steps=number, begun=0) if number < total else behind
                        yield after, [[[drawn[row] for row in slot[rank]] for rank in ranks] for slot in grid]
            left = max(0, left - total)

    # The place: how much of the stream is drawn, and the steps that have run since.

    def _in_stream(self, at: Place) -> StreamPlace:
        return at if isinstance(at, StreamPlace) else StreamPlace(at.epoch)

    def _beginning(self, epoch: int) -> Place:
        return StreamPlace(epoch)

    def _places(self, at: Place) -> Iterator[tuple[Place, int]]:
        return ((replace(at, steps=steps), self._micro_steps) for steps in count(at.steps + 1))

    def _order_of(self, epoch: int) -> dict[str, Any]:
        settings = {name: value if name == "window" else str(value) for name, value in self._settings.items()}
        return settings | {"num_replicas": self.num_replicas, "drop_last": self._drop}

    def _window(self, at: Place) -> dict[str, Any]:
        here = self._in_stream(at)
        return {"steps": here.steps, "lengths": here.lengths, "stream": here.stream}

    def _loaded(self, at: Place, window: Any) -> Place:
        if not isinstance(window, Mapping) or not window.keys() >= {"steps", "lengths", "stream"}:
            raise ArgumentTypeError("state.window", "be what state_dict() returned", repr(window)[:60])
        steps = as_index("state.window.steps", window["steps"], sys.maxsize)
        return StreamPlace(at.epoch, at.samples, batches=at.batches, steps=steps, stream=window["stream"],
                           lengths=window["lengths"])  # fmt: skip

    def _check_ranks(self) -> None:
        if not compares(self.num_replicas):
            return
        at = self._in_stream(self._at if self._resumes else self._beginning(self.epoch))
        first = next((begin.lengths for begin, _, _ in self._windows(at)), None)
        agree(self.num_replicas, f"begin epoch {self.epoch}", {
            "epoch": self.epoch, **self._order_of(self.epoch), "place": [at.samples, at.steps], "stream": first,
        })  # fmt: skip
