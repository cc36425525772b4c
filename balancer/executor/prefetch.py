"""Overlap: the next steps drawn, planned and exchanged by a thread while this one computes."""

from __future__ import annotations

import contextlib
import copy
import os
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

import torch

from balancer.executor.dispatched import Dispatched
from balancer.executor.dispatcher import Dispatcher, all_have_ended
from balancer.executor.ranks import ExecutorError, listed
from solvers.errors import UsageError

__all__ = ["PrefetchDispatcher"]

UNEVEN = ("continue", "stop")
"""What happens once some rank's loader has ended and others' have not."""

CONNECTIONS = "CUDA_DEVICE_MAX_CONNECTIONS"

_SAMPLERS = ("batch_sampler", "sampler")
"""What loaders, and samplers that wrap others, call those that they draw from."""


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a rank is after a step."""

    epoch: int | None = None  # None where nobody has said
    steps: int = 0  # that were made in it
    ended: bool = False
    loader: Any = field(default=None, compare=False)  # its own state, if it has one


class PrefetchDispatcher:
    """Iterates over a loader and yields every mini-batch dispatched, the next one under way meanwhile.

    What comes is what was handed in, balanced: a plain dictionary of fields, or the one field. ``dispatcher.current``
    is the :class:`Dispatched` that it is of.

    All ranks make it at the same time, iterate, and leave the loop at the same step. Ranks whose loader ends early go
    on with empty mini-batches of their own and their share of the others' samples, until all loaders have ended.

    Parameters
    ----------
    loader : iterable
        Of what :meth:`Dispatcher.dispatch` takes: a DataLoader, a StatefulDataLoader, a list. Replica peers may give
        None.
    dispatcher : Dispatcher
        Restoring and exchanges of activations go by its groups; the thread has groups of its own.
    columns : callable, optional
        Given a mini-batch, returns the further columns that :meth:`Dispatcher.dispatch` takes.
    depth : int
        Steps that are made ahead.
    overlap : bool
        False: no thread; each step is made when it is asked for.
    uneven : str
        ``"continue"``, or ``"stop"`` for all as soon as one loader has ended: what others drew for that step is left
        out.
    collate : callable, optional
        Makes what is yielded, as a DataLoader's ``collate_fn`` does, of this rank's samples: a list of dictionaries, or
        of entries of the one field; an empty one where the rank has none.

    Raises
    ------
    RuntimeError
        If overlap is known to deadlock here; it says why.
    ValueError
        If Accelerate is to end an accumulation with its own loader, which is ahead of the steps.

    Notes
    -----
    Its length is that of the longest loader of all ranks, or with ``"stop"`` of the shortest.

    Examples
    --------
    ::

        for batch in PrefetchDispatcher(loader, Dispatcher(length="input_ids")):
            loss = model(batch["input_ids"])
    """

    def __init__(
        self,
        loader: Iterable[Any] | None,
        dispatcher: Dispatcher,
        *,
        columns: Callable[[Any], Mapping[str, Any]] | None = None,
        depth: int = 1,
        overlap: bool = True,
        uneven: str = "continue",
        collate: Callable[[list[Any]], Any] | None = None,
    ) -> None:
        if uneven not in UNEVEN:
            raise ValueError(f"uneven must be one of {', '.join(UNEVEN)}, got {uneven!r}")
        if depth < 1:
            raise ValueError(f"depth must be >= 1, got {depth}")
        device = dispatcher.device
        self._on_cuda = torch.cuda.is_available() and (
            dispatcher.ranks.on_cuda or (device is not None and device.type == "cuda")
        )
        _check_accumulation(loader)
        if overlap and (reason := why_not_overlap(self._on_cuda, loader)):
            raise RuntimeError(reason)
        self.loader, self.dispatcher = loader, dispatcher
        self._columns, self._depth, self._stops = columns, depth, uneven == "stop"
        self._overlap, self._collate = overlap, collate
        self._maker = dispatcher
        if overlap:
            self._maker = copy.copy(dispatcher)
            self._maker.ranks = dispatcher.ranks.twin()
        self._start = self._place = _Place()
        self._running = self._left = False
        # A sampler of this package, whose place is one of any number of ranks.
        self._sampler = next(
            (one for one in _drawn_from(loader, _SAMPLERS) if getattr(one, "counts_samples", False) is True), None
        )
        own = -1 if self._sampler is not None else _length_of(loader)  # theirs may change as a state is loaded
        # Once, as it is made: trainers ask for the length where not all ranks do, and a collective would hang there.
        sizes = self._maker.ranks.say(own)
        self._length = min(sizes) if self._stops or min(sizes) < 0 else max(sizes)

    def __len__(self) -> int:
        if self._sampler is not None:
            return len(self.loader)  # type: ignore[arg-type]
        if self._length < 0:
            raise TypeError("there is no length, as the loader of some rank has none")
        return self._length

    @property
    def sampler(self) -> PrefetchDispatcher:
        """Itself: Lightning tells epochs to what it finds under this name, and to nothing else."""
        return self

    def set_epoch(self, epoch: int) -> None:
        """Tell the loader and its samplers which epoch the next iteration is; all ranks, before it.

        A state that was loaded of another epoch is dropped: that epoch was over.
        """
        if self._start.epoch not in (None, epoch):
            self._start = _Place()
        self._start = replace(self._start, epoch=epoch)
        if not self._running:
            self._place = self._start
        for source in _drawn_from(self.loader, (*_SAMPLERS, "dataset")):
            if callable(set_epoch := getattr(source, "set_epoch", None)):
                set_epoch(epoch)

    # Resuming.

    def state_dict(self) -> dict[str, Any]:
        """Return where this rank is: after the step that was yielded last, whatever has been made ahead.

        Batches of a ``BalancedBatchSampler`` or ``PlannedBatchSampler`` are asked for their place, which is one of any
        number of ranks and workers. Of other loaders one that has a state is asked for it; of those without,
        what was drawn is drawn again and left out, which is exact if they give the same mini-batches again. Where no
        loader has a state, one rank's will do for all.
        """
        place, loader = self._place, self._place.loader
        if self._sampler is not None and place.steps:
            loader = self._sampler.state_dict(batches=place.steps)
        workers = None if loader is None or self._sampler is not None else _workers_of(self.loader)
        return {
            "epoch": place.epoch, "batches": place.steps, "ended": place.ended, "loader": loader,
            "ranks": self.dispatcher.ranks.size, "workers": workers,
        }  # fmt: skip

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on, at the next iteration, behind the step at which the state was taken; all ranks, before iterating.

        Raises
        ------
        ValueError
            What is no state; one of another number of ranks, or of a loader with another number of workers, where
            batches are not those of a sampler of this package.
        RuntimeError
            It is being iterated over.
        """
        if self._running:
            raise RuntimeError("load_state_dict must be called before iterating, or after")
        found = set(state) if isinstance(state, Mapping) else set()
        if missing := [
            name for name in ("epoch", "batches", "ended", "loader", "ranks", "workers") if name not in found
        ]:
            raise UsageError("the state must be one that state_dict returned, but has no {names}",
                             names=", ".join(missing))  # fmt: skip
        place = _Place(state["epoch"], state["batches"], bool(state["ended"]), state["loader"])
        if self._sampler is not None:
            place = replace(place, ended=False)
            if place.loader is not None:
                self._sampler.load_state_dict(place.loader)
        else:
            self._check_dealt(state, place)
            if place.loader is not None and 0 <= _length_of(self.loader) <= place.steps:
                place = replace(place, ended=True)  # some loaders in a state at their end begin again
        self._start = self._place = place

    def _check_dealt(self, state: Mapping[str, Any], place: _Place) -> None:
        """Refuse a state that only a loader alike can go on from: which rows it deals to whom, it alone knows."""
        theirs, mine = state["ranks"], self.dispatcher.ranks.size
        if self.loader is not None and theirs != mine:
            raise UsageError(
                "the state is of {theirs} ranks and there are {mine}: which rows the loader dealt to each of those is "
                "known to it alone, so that some would be trained twice and others never",
                (
                    "resume on {theirs} ranks",
                    "or give it batches whose place is one of any number of ranks: "
                    "balancer.compat.BalancedBatchSampler, or a plan file (balancer plan LOG --continue PLAN --at-step "
                    "S --ranks {mine})",
                ),
                theirs=theirs, mine=mine,
            )  # fmt: skip
        saved_with, workers = state["workers"], _workers_of(self.loader)
        if place.loader is not None and saved_with != workers:
            raise UsageError(
                "the state is of a loader with num_workers={theirs}, here it has {mine}, and a loader's own state "
                "fixes them",
                ("make it with num_workers={theirs} until the epoch ends", "or give it a BalancedBatchSampler"),
                theirs=saved_with, mine=workers,
            )  # fmt: skip

    # Iterating.

    def __iter__(self) -> Iterator[Any]:
        if self._running:
            raise RuntimeError("it is being iterated over already; one loop at a time")
        self._running, self._left = True, False
        steps = self._steps(self._start)
        ahead = self._ahead(steps) if self._overlap else ((*made, None) for made in steps)
        try:
            for step, place, event in ahead:
                self._place = place
                self.dispatcher.hand_over(step)
                if event is not None:
                    _take_over(step, event)
                yield step.data if self._collate is None else self._collate(_samples_of(step.data))
            self._place = _Place()  # the next iteration is a new epoch
        finally:
            self._running, self._left = False, True
            self._start = _Place(self._start.epoch)
            ahead.close()

    def _steps(self, place: _Place) -> Iterator[tuple[Dispatched, _Place]]:
        """Make step after step, in this thread or in another."""
        batches = self._drawn(place)

        def draw() -> Any:
            nonlocal place
            if self._left:
                return "left"
            drawn = _END if place.ended else next(batches, _END)
            if drawn is _END:
                place = replace(place, ended=True)
                return "ended"
            if self._sampler is None:
                place = replace(place, loader=_state_of(self.loader))
            return drawn, {} if self._columns is None else self._columns(drawn)

        while (step := self._maker.step(draw, self.dispatcher.ranks, self._is_over)) is not None:
            place = replace(place, steps=place.steps + 1)
            yield step, place

    def _drawn(self, start: _Place) -> Iterator[Any]:
        """Draw from the loader, from where a state says it was."""
        if start.loader is not None and self._sampler is None:
            self.loader.load_state_dict(start.loader)  # type: ignore[union-attr]
        yield from islice(self.loader or (), start.steps if start.loader is None else 0, None)

    def _is_over(self, statuses: Sequence[str]) -> bool:
        if left := [rank for rank, status in enumerate(statuses) if status == "left"]:
            if not self._left:
                raise ExecutorError(f"{listed(left)} left the loop; all ranks must leave it at the same step", left)
            return True
        return all_have_ended(statuses) or (self._stops and "ended" in statuses)

    def _ahead(
        self, steps: Iterator[tuple[Dispatched, _Place]]
    ) -> Generator[tuple[Dispatched, _Place, Any], None, None]:
        """Yield the same, each with an event of its exchange, made by a thread `depth` steps ahead."""
        device = torch.cuda.current_device() if self._on_cuda else None
        stream: Any = None

        def begin(num_threads: int) -> None:
            nonlocal stream
            torch.set_num_threads(num_threads)  # which a thread does not take over from the one that started it
            if device is not None:  # a thread begins with device 0 and the default stream, in which the model computes
                torch.cuda.set_device(device)
                stream = torch.cuda.Stream()

        def make() -> tuple[Dispatched, _Place, Any] | None:
            with contextlib.nullcontext() if stream is None else torch.cuda.stream(stream):
                found = next(steps, None)
                event = None if stream is None else stream.record_event()
            return None if found is None else (*found, event)

        with ThreadPoolExecutor(1, "seqbalancer", begin, (torch.get_num_threads(),)) as thread:
            waiting = deque(thread.submit(make) for _ in range(self._depth))
            try:
                while (found := waiting.popleft().result()) is not None:
                    waiting.append(thread.submit(make))
                    yield found
            finally:
                thread.submit(make)  # where the loop was left it says so to the other ranks, whose threads may wait


def _take_over(step: Dispatched, event: Any) -> None:
    """Let the current stream wait for the exchange, and keep its memory until this stream is done with it."""
    stream = torch.cuda.current_stream()
    stream.wait_event(event)
    for tensor in step.tensors():
        if tensor.is_cuda:
            tensor.record_stream(stream)


def _check_accumulation(loader: Any) -> None:
    """Refuse that Accelerate ends an accumulation where its loader ends: that loader is steps ahead of these."""
    state = getattr(loader, "gradient_state", None)
    if state is not None and state.num_steps > 1 and state.sync_with_dataloader:
        raise UsageError(
            "Accelerate ends an accumulation of {steps} with the last batch of its own loader, which is drawn before "
            "the steps in front of it are trained on",
            "give Accelerator(gradient_accumulation_plugin=GradientAccumulationPlugin({steps}, "
            "sync_with_dataloader=False)), which goes on accumulating over the end of an epoch",
            steps=state.num_steps,
        )  # fmt: skip


def why_not_overlap(on_cuda: bool, loader: Any = None) -> str | None:
    """Say why a second stream of collectives would deadlock here; None if it would not, as far as is known."""
    if type(loader).__name__ == "DataLoaderDispatcher":
        return (
            "Accelerate's DataLoaderDispatcher sends batches over the trainer's own process group, in whatever order "
            "with the trainer's. Let each rank read its own, DataLoaderConfiguration(dispatch_batches=False) or "
            "accelerator_config={'dispatch_batches': False}; or use overlap=False"
        )
    if on_cuda and os.environ.get(CONNECTIONS) == "1":
        return (
            f"{CONNECTIONS}=1 makes kernels of all streams wait for each other in one queue: an exchange in the "
            "background can then wait for a peer whose compute waits for this rank's. Unset it, or use overlap=False"
        )
    return None


_END = object()


def _drawn_from(loader: Any, names: Sequence[str]) -> Iterator[Any]:
    """Yield a loader and all that it draws from by attributes of these names: Accelerate's wrap samplers in others."""
    inner, seen = [loader], dict[int, Any]()  # which keeps them, so that no other gets the number of one
    while inner:
        one = inner.pop(0)
        if one is not None and id(one) not in seen:
            yield one
            seen[id(one)] = one
            inner += [getattr(one, name, None) for name in names]


def _workers_of(loader: Any) -> int | None:
    return getattr(loader, "num_workers", None)


def _state_of(loader: Any) -> Any:
    """Return a loader's own state; None if it has none: Accelerate's have the method without one."""
    try:
        return loader.state_dict()
    except AttributeError:
        return None


def _length_of(loader: Any) -> int:
    try:
        return len(loader)
    except (TypeError, NotImplementedError):
        return -1


def _samples_of(data: Any) -> list[Any]:
    """Return a mini-batch sample by sample."""
    if not isinstance(data, Mapping):
        return list(data)
    return [dict(zip(data, entries, strict=True)) for entries in zip(*data.values(), strict=True)]
