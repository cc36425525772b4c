"""Overlap: the next step planned and exchanged on a thread of its own while this one computes."""

from __future__ import annotations

import contextlib
import copy
import os
import queue
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

import numpy as np
import torch

from balancer.executor.dispatched import Dispatched
from balancer.executor.dispatcher import Dispatcher
from balancer.executor.errors import ExecutorError, listed
from balancer.executor.gathering import Gathered
from balancer.executor.message import MiniBatch, Status
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


@dataclass(frozen=True, slots=True, eq=False)
class _Made:
    """A step that is ready, or why there is none."""

    step: Dispatched | None
    place: _Place
    event: Any = None
    failure: BaseException | None = None


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
    lengths : callable, optional
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
        lengths: Callable[[Any], Mapping[str, Any]] | None = None,
        depth: int = 1,
        overlap: bool = True,
        uneven: str = "continue",
        collate: Callable[[list[Any]], Any] | None = None,
    ) -> None:
        if uneven not in UNEVEN:
            raise ValueError(f"uneven must be one of {', '.join(UNEVEN)}, got {uneven!r}")
        if depth < 1:
            raise ValueError(f"depth must be >= 1, got {depth}")
        on_cuda = torch.cuda.is_available() and (
            dispatcher.peers.direct.moves_cuda or (dispatcher.device is not None and dispatcher.device.type == "cuda")
        )
        _check_accumulation(loader)
        if overlap and (reason := why_not_overlap(on_cuda, loader)):
            raise RuntimeError(reason)
        self.loader, self.dispatcher = loader, dispatcher
        self.lengths, self.depth, self.uneven, self.on_cuda = lengths, depth, uneven, on_cuda
        self._overlap, self._collate = overlap, collate
        self.maker = dispatcher
        if overlap:
            self.maker = copy.copy(dispatcher)
            self.maker.peers = dispatcher.peers.twin()
        self._start = self._place = _Place()
        self._running = False
        self.batches = _batches_of(loader)
        own = -1 if self.batches is not None else _length_of(loader)  # theirs may change as a state is loaded
        # Once, as it is made: trainers ask for the length where not all ranks do, and a collective would hang there.
        sizes = self.maker.peers.gather(np.asarray([own]))
        self._length = int(sizes.min() if uneven == "stop" or sizes.min() < 0 else sizes.max())

    def __len__(self) -> int:
        if self.batches is not None:
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
        if self.batches is not None and place.steps:
            loader = self.batches.state_dict(batches=place.steps)
        workers = None if loader is None or self.batches is not None else _workers_of(self.loader)
        return {
            "epoch": place.epoch, "batches": place.steps, "ended": place.ended, "loader": loader,
            "ranks": self.dispatcher.peers.size, "workers": workers,
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
        if self.batches is not None:
            place = replace(place, ended=False)
            if place.loader is not None:
                self.batches.load_state_dict(place.loader)
        else:
            self._check_dealt(state, place)
            if place.loader is not None and 0 <= _length_of(self.loader) <= place.steps:
                place = replace(place, ended=True)  # some loaders in a state at their end begin again
        self._start = self._place = place

    def _check_dealt(self, state: Mapping[str, Any], place: _Place) -> None:
        """Refuse a state that only a loader alike can go on from: which rows it deals to whom, it alone knows."""
        theirs, mine = state["ranks"], self.dispatcher.peers.size
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
        self._running = True
        iteration = _Iteration(self, self._start)
        steps = iteration.ahead() if self._overlap else iteration.steps()
        try:
            for made in steps:
                if made.failure is not None:
                    raise made.failure
                if made.step is None:
                    break
                self._place = made.place
                self.dispatcher.hand_out(made.step)
                _take_over(made)
                data = made.step.data
                yield data if self._collate is None else self._collate(samples_of(data))
            self._place = _Place()  # the next iteration is a new epoch
        finally:
            self._running = False
            self._start = _Place(self._start.epoch)
            iteration.stop()


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


def _take_over(made: _Made) -> None:
    """Let the current stream wait for the exchange, and keep its memory until this stream is done with it."""
    if made.event is not None and made.step is not None:
        stream = torch.cuda.current_stream()
        stream.wait_event(made.event)
        for tensor in made.step.tensors():
            if tensor.is_cuda:
                tensor.record_stream(stream)


class _Iteration:
    """One iteration: mini-batches drawn, lengths gathered, planned and exchanged, in this thread or in another."""

    def __init__(self, of: PrefetchDispatcher, start: _Place) -> None:
        self._of, self._start = of, start
        self._closing = threading.Event()
        self._queue: queue.Queue[_Made] = queue.Queue(of.depth)
        self._thread: threading.Thread | None = None

    def steps(self) -> Iterator[_Made]:
        """Make step after step; the last says that there is none, or why."""
        of, place = self._of, self._start
        batches = _drawn(of.loader, place, of.batches)
        while True:
            status, batch, failure = self._draw(batches, place)
            place, step = replace(place, ended=place.ended or status is Status.ENDED), None
            try:
                gathered = of.maker.gather(batch, status, failure)
                if not self._is_over(gathered):
                    if status is Status.READY and of.loader is not None and of.batches is None:
                        place = replace(place, loader=_state_of(of.loader))
                    step = of.maker.plan_and_move(batch, gathered, of.dispatcher.peers, of.dispatcher.features)
                    place = replace(place, steps=place.steps + 1)
            except Exception as error:
                step, failure = None, error
            yield _Made(step, place, failure=failure)  # the failure is raised where the step was asked for
            if step is None:
                return

    def _draw(self, batches: Iterator[Any], place: _Place) -> tuple[Status, MiniBatch | None, Exception | None]:
        if self._closing.is_set():
            return Status.CLOSING, None, None
        if self._of.loader is None:
            return Status.READY, None, None
        try:
            drawn = _END if place.ended else next(batches, _END)
            if drawn is _END:
                return Status.ENDED, None, None
            further = {} if self._of.lengths is None else self._of.lengths(drawn)
            return Status.READY, self._of.maker.read(drawn, further), None
        except Exception as error:  # the others must hear of it
            return Status.FAILED, None, error

    def _is_over(self, gathered: Gathered) -> bool:
        if left := [rank for rank, status in enumerate(gathered.statuses) if status is Status.CLOSING]:
            if not self._closing.is_set():
                raise ExecutorError(f"{listed(left)} left the loop; all ranks must leave it at the same step", left)
            return True
        ended = [status is Status.ENDED for status in gathered.statuses]
        return all(ended) or (self._of.uneven == "stop" and any(ended))

    # With a thread.

    def ahead(self) -> Iterator[_Made]:
        """As :meth:`steps`, made by a thread up to `depth` steps ahead."""
        device = torch.cuda.current_device() if self._of.on_cuda else None
        arguments = (device, torch.get_num_threads())
        self._thread = threading.Thread(target=self._work, args=arguments, name="seqbalancer", daemon=True)
        self._thread.start()
        made = None
        while made is None or made.step is not None:
            made = self._queue.get()
            yield made

    def _work(self, device: int | None, num_threads: int) -> None:
        torch.set_num_threads(num_threads)  # which a thread does not take over from the one that started it
        stream = None
        if device is not None:  # a thread begins with device 0 and the default stream, in which the model computes
            torch.cuda.set_device(device)
            stream = torch.cuda.Stream()
        with contextlib.nullcontext() if stream is None else torch.cuda.stream(stream):
            for made in self.steps():
                self._put(made if stream is None else replace(made, event=stream.record_event()))

    def _put(self, made: _Made) -> None:
        """Hand over a step; once the loop was left nobody takes it, and the thread must go on to tell the others."""
        while not self._closing.is_set():
            with contextlib.suppress(queue.Full):
                self._queue.put(made, timeout=0.05)
                return

    def stop(self) -> None:
        """End the thread: it tells the other ranks, whose threads may be waiting for it."""
        self._closing.set()
        if self._thread is not None:
            self._thread.join(2 * self._of.dispatcher.peers.timeout.total_seconds() + 1)


_END = object()


def _drawn(loader: Any, start: _Place, batches: Any) -> Iterator[Any]:
    """Draw from a loader, from where a state says it was."""
    if loader is not None:
        if start.loader is not None and batches is None:
            loader.load_state_dict(start.loader)
        yield from islice(loader, start.steps if start.loader is None else 0, None)


def _batches_of(loader: Any) -> Any:
    """Return the sampler that a loader draws from and whose place is one of any number of ranks, if it does."""
    return next((one for one in _drawn_from(loader, _SAMPLERS) if getattr(one, "counts_samples", False) is True), None)


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


def samples_of(data: Any) -> list[Any]:
    """Return a mini-batch sample by sample."""
    if not isinstance(data, Mapping):
        return list(data)
    return [dict(zip(data, entries, strict=True)) for entries in zip(*data.values(), strict=True)]
