"""Overlap: the next step planned and exchanged on a thread of its own while this one computes."""

import contextlib
import copy
import os
import queue
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from itertools import count, islice
from operator import itemgetter
from typing import Any

import numpy as np
import torch

from balancer.executor.dispatched import Dispatched
from balancer.executor.dispatcher import Dispatcher
from balancer.executor.errors import ExecutorError, listed
from balancer.executor.gathering import Gathered
from balancer.executor.message import MiniBatch, Status

__all__ = ["PrefetchDispatcher"]

UNEVEN = ("continue", "stop")
"""What happens once some rank's loader has ended and others' have not."""

CONNECTIONS = "CUDA_DEVICE_MAX_CONNECTIONS"


@dataclass(frozen=True, slots=True)
class _Position:
    """Where a rank's loader is after a step, as resuming needs it."""

    steps: int = 0
    ended: bool = False
    loader: Any = field(default=None, compare=False)  # its own state, if it has one
    epoch: int | None = None  # as set_epoch said


_POSITION = tuple(spec.name for spec in fields(_Position))
_NEEDED = ("steps", "ended", "loader")


@dataclass(frozen=True, slots=True, eq=False)
class _Made:
    """A step that is ready, or why there is none."""

    step: Dispatched | None
    position: _Position
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

    Notes
    -----
    It has the parts of a DataLoader of steps. Trainers that resume make another of them, which skips the first steps:
    they are drawn, and not exchanged. Its length is that of the longest loader of all ranks, or with ``"stop"`` of
    the shortest. Behind Accelerate's loaders it says which step is the last, for which it makes one more ahead.

    Examples
    --------
    ::

        for batch in PrefetchDispatcher(loader, Dispatcher(length="input_ids")):
            loss = model(batch["input_ids"])
    """

    batch_size, num_workers, prefetch_factor = None, 0, None  # as a DataLoader of steps has them
    collate_fn = itemgetter(0)
    end_of_dataloader, remainder = False, -1  # as Accelerate asks for them

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
        if overlap and (reason := why_not_overlap(on_cuda, loader)):
            raise RuntimeError(reason)
        self.loader, self.dispatcher = loader, dispatcher
        self._lengths, self._depth, self._uneven, self._on_cuda = lengths, depth, uneven, on_cuda
        self._overlap, self._collate = overlap, collate
        self._maker = dispatcher
        if overlap:
            self._maker = copy.copy(dispatcher)
            self._maker.peers = dispatcher.peers.twin()
        self._start = self._position = _Position()
        self._running = False
        sizes = self._maker.peers.gather(np.asarray([_length_of(loader)]))
        self._length = int(sizes.min() if uneven == "stop" or sizes.min() < 0 else sizes.max())

    # As a DataLoader of steps.

    def __len__(self) -> int:
        if self._length < 0:
            raise TypeError("there is no length, as the loader of some rank has none")
        return self._length

    @property
    def dataset(self) -> "_Steps":
        """The steps, by number; as long as the loader's dataset, whose attributes it has."""
        return _Steps(self)

    @property
    def batch_sampler(self) -> "_StepNumbers":
        """The numbers of the steps, each alone."""
        return _StepNumbers(self)

    sampler = batch_sampler

    def set_epoch(self, epoch: int) -> None:
        """Tell the loader and its samplers which epoch the next iteration is; all ranks, before it.

        A state that was loaded of another epoch is dropped: that epoch was over.
        """
        if self._start.epoch not in (None, epoch):
            self._start = _Position()
        self._start = replace(self._start, epoch=epoch)
        _tell_epoch(self.loader, epoch, set())

    # Resuming.

    def state_dict(self) -> dict[str, Any]:
        """Return where this rank is: after the step that was yielded last, whatever has been made ahead.

        A loader that has a state is asked for it; of others, what was drawn is drawn again and left out, which is exact
        if they give the same mini-batches again. Where no loader has a state, one rank's will do for all.
        """
        return {name: getattr(self._position, name) for name in _POSITION}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on, at the next iteration, behind the step at which the state was taken; all ranks, before iterating."""
        if self._running:
            raise RuntimeError("load_state_dict must be called before iterating, or after")
        if missing := [name for name in _NEEDED if name not in state]:
            raise ValueError(f"the state must be one that state_dict returned, but has no {', '.join(missing)}")
        at = _Position(**{name: state[name] for name in _POSITION if name in state})
        if at.loader is not None and 0 <= _length_of(self.loader) <= at.steps:
            at = replace(at, ended=True)  # some loaders in a state at their end begin again
        self._start = self._position = at

    # Iterating.

    def __iter__(self) -> Iterator[Any]:
        if self._running:
            raise RuntimeError("it is being iterated over already; one loop at a time")
        self._running = True
        iteration = _Iteration(self)
        steps = iteration.ahead() if self._overlap else iteration.steps()
        accelerate = getattr(self.loader, "gradient_state", None)  # which asks the loader that came last
        try:
            made = next(steps)
            if accelerate is not None:
                accelerate._add_dataloader(self)
            while made.step is not None:
                after = None if accelerate is None else next(steps)
                self.end_of_dataloader = after is not None and after.step is None
                self._position, self.dispatcher.current = made.position, made.step
                _take_over(made)
                yield made.step.data if self._collate is None else self._collate(_samples(made.step.data))
                made = after or next(steps)
            if made.failure is not None:
                raise made.failure
            self._position = _Position()  # the next iteration is a new epoch
        finally:
            if accelerate is not None:
                accelerate._remove_dataloader(self)
            self._running = self.end_of_dataloader = False
            self._start = _Position(epoch=self._start.epoch)
            iteration.stop()


class _Steps:
    """The dataset of a DataLoader of steps."""

    def __init__(self, of: PrefetchDispatcher) -> None:
        self._of, self._next = of, 0
        self._steps: Iterator[Any] | None = None

    def __len__(self) -> int:
        return len(getattr(self._of.loader, "dataset", self._of))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(getattr(self._of.loader, "dataset", None), name)

    def __getitem__(self, number: int) -> Any:
        """Return a step, which is the next one, or the first after those that are skipped."""
        if self._steps is None or number != self._next:
            self._steps = None  # which ends it
            self._of._start = _Position(number, epoch=self._of._start.epoch)
            self._steps = iter(self._of)
        self._next = number + 1
        return next(self._steps)  # its end is that of the DataLoader


class _StepNumbers:
    """The batch sampler of a DataLoader of steps."""

    def __init__(self, of: PrefetchDispatcher) -> None:
        self._of, self.set_epoch = of, of.set_epoch

    def __iter__(self) -> Iterator[list[int]]:
        return ([number] for number in count())

    def __len__(self) -> int:
        return len(self._of)


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

    def __init__(self, of: PrefetchDispatcher) -> None:
        self._of = of
        self._closing = threading.Event()
        self._queue: queue.Queue[_Made] = queue.Queue(of._depth)
        self._thread: threading.Thread | None = None

    def steps(self) -> Iterator[_Made]:
        """Make step after step; the last says that there is none, or why."""
        of, at, step = self._of, self._of._start, None
        batches = _drawn(of.loader, at)
        while True:
            status, batch, failure = self._draw(batches, at)
            at, step = replace(at, ended=at.ended or status is Status.ENDED), None
            try:
                gathered = of._maker.tell(batch, status, failure)
                if failure is None and not self._is_over(gathered):
                    at = replace(at, steps=at.steps + 1)
                    if status is Status.READY and of.loader is not None:
                        at = replace(at, loader=_state_of(of.loader))
                    step = of._maker.exchanged(batch, gathered, of.dispatcher.peers, of.dispatcher.features)
            except Exception as error:
                failure = error
            yield _Made(step, at, failure=failure)  # the failure is raised where the step was asked for
            if step is None:
                return

    def _draw(self, batches: Iterator[Any], at: _Position) -> tuple[Status, MiniBatch | None, Exception | None]:
        if self._closing.is_set():
            return Status.CLOSING, None, None
        if self._of.loader is None:
            return Status.READY, None, None
        try:
            drawn = _NONE if at.ended else next(batches, _NONE)
            if drawn is _NONE:
                return Status.ENDED, None, None
            further = {} if self._of._lengths is None else self._of._lengths(drawn)
            return Status.READY, self._of._maker.read(drawn, further), None
        except Exception as error:  # the others must hear of it
            return Status.FAILED, None, error

    def _is_over(self, gathered: Gathered) -> bool:
        if left := [rank for rank, status in enumerate(gathered.statuses) if status is Status.CLOSING]:
            if not self._closing.is_set():
                raise ExecutorError(f"{listed(left)} left the loop; all ranks must leave it at the same step", left)
            return True
        ended = [status is Status.ENDED for status in gathered.statuses]
        return all(ended) or (self._of._uneven == "stop" and any(ended))

    # With a thread.

    def ahead(self) -> Iterator[_Made]:
        """As :meth:`steps`, made by a thread up to `depth` steps ahead."""
        device = torch.cuda.current_device() if self._of._on_cuda else None
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
        if device is not None:
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


_NONE = object()


def _drawn(loader: Any, start: _Position) -> Iterator[Any]:
    """Draw from a loader, from where a state says it was."""
    if loader is not None:
        if start.loader is not None:
            loader.load_state_dict(start.loader)
        yield from islice(loader, start.steps if start.loader is None else 0, None)


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


def _tell_epoch(teller: Any, epoch: int, told: set[int]) -> None:
    """Call set_epoch of all that a loader draws from: Accelerate's wrap samplers in others that pass nothing on."""
    if teller is None or id(teller) in told:
        return
    told.add(id(teller))
    if callable(set_epoch := getattr(teller, "set_epoch", None)):
        set_epoch(epoch)
    for name in ("batch_sampler", "sampler", "dataset"):
        _tell_epoch(getattr(teller, name, None), epoch, told)


def _samples(data: Any) -> list[Any]:
    """Return a mini-batch sample by sample."""
    if not isinstance(data, Mapping):
        return list(data)
    return [dict(zip(data, entries, strict=True)) for entries in zip(*data.values(), strict=True)]
