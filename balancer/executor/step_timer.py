"""What each micro-batch of a rank held, and what its own compute took: the file that ``balancer fit`` reads."""

import csv
import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from balancer.io._atomic import reported, target_of

__all__ = ["StepTimer", "lengths_given"]

COLUMNS = ("step", "rank", "lengths", "seconds")


class StepTimer:
    """Writes a row a micro-batch of this rank: step, rank, lengths, and the seconds of its forward and backward pass.

    The seconds are CUDA events on the stream of the forward pass, or, of a model on the host, processor time of the
    thread that runs it: from the model's call until the last gradient is there, so that what DDP waits for other ranks
    is not in them. Nothing is sent. Calls without gradients, as in evaluation, are not timed.

    Parameters
    ----------
    model : torch.nn.Module
        Wrapped in DDP or not.
    path : path
        ``steps.csv`` becomes ``steps.RANK.csv``, a file a rank, written anew.
    rank : int
    lengths : callable, optional
        Given what the model is given, returns the lengths of the micro-batch's samples as they are computed, padding
        included. By default ``cu_seq_lens_q``, ``position_ids`` or ``input_ids`` tell them.

    Attributes
    ----------
    step : int
        Of the micro-batches to come; to be set by who trains.

    Raises
    ------
    ValueError
        The path does not end in ``.csv``. When the model is called: lengths that cannot be told.
    InputError
        The file cannot be written.

    Notes
    -----
    With FSDP a rank's compute waits for the parameters that others hold: time it on one rank, or under DDP.

    Examples
    --------
    ::

        with StepTimer(model, "steps.csv", rank) as timer:
            for timer.step, batch in enumerate(loader):
                train(batch)
    """

    def __init__(
        self,
        model: Any,
        path: str | os.PathLike[str],
        rank: int = 0,
        lengths: Callable[..., Iterable[int]] | None = None,
    ) -> None:
        if Path(path).suffix != ".csv":
            raise ValueError(f"path must end in .csv, got {os.fspath(path)!r}")
        self.step, self.rank = 0, rank
        self.path = Path(path).with_suffix(f".{rank}.csv")
        doing = "write measured steps"
        target = target_of(str(self.path), doing)
        with reported(str(self.path), doing):
            self._handle = open(target, "w", newline="", encoding="utf-8")  # noqa: SIM115 (open until it is closed)
        self._lengths = lengths or lengths_given
        self._rows = csv.writer(self._handle, lineterminator="\n")
        self._rows.writerow(COLUMNS)
        self._open: _Timed | None = None
        self._done: deque[_Timed] = deque()  # whose events may not have happened yet
        self._hooks = [model.register_forward_pre_hook(self._begins, with_kwargs=True)]
        trained = [each for each in model.parameters() if each.requires_grad]
        self._cuda = any(each.is_cuda for each in trained)
        # The last parameter whose gradient is there ends the time: before DDP waits for other ranks.
        self._hooks += [each.register_post_accumulate_grad_hook(self._accumulated) for each in trained]

    def __enter__(self) -> "StepTimer":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Write what is left, and listen no more."""
        for hook in self._hooks:
            hook.remove()
        self._finish()
        while self._done:
            self._write(self._done.popleft())
        self._handle.close()

    def _begins(self, model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not (model.training and torch.is_grad_enabled()):
            return
        lengths = list(self._lengths(*args, **kwargs))  # which may wait for the device
        if self._open is None or self._open.ended:
            self._finish()
            self._open = _Timed(self.step, _CudaSpan() if self._cuda else _ProcessorSpan())
        self._open.lengths += lengths  # of several calls before one backward pass

    def _accumulated(self, _: Any) -> None:
        if self._open is not None:
            self._open.span.stop()
            self._open.ended = True

    def _finish(self) -> None:
        """Write what is known to be over."""
        if self._open is not None and self._open.ended:
            self._done.append(self._open)
        self._open = None
        while self._done and self._done[0].span.is_over():
            self._write(self._done.popleft())

    def _write(self, timed: "_Timed") -> None:
        lengths = " ".join(str(int(length)) for length in timed.lengths)
        self._rows.writerow((timed.step, self.rank, lengths, f"{timed.span.seconds():.9g}"))
        self._handle.flush()


class _Timed:
    """A micro-batch: what its forward passes held, and how long it has taken so far."""

    def __init__(self, step: int, span: "_CudaSpan | _ProcessorSpan") -> None:
        self.step, self.span, self.ended = step, span, False
        self.lengths: list[Any] = []


class _ProcessorSpan:
    """Processor time of this thread, in which a backward pass on the host runs, too."""

    def __init__(self) -> None:
        self._begun = self._ended = time.thread_time()

    def stop(self) -> None:
        self._ended = time.thread_time()

    def is_over(self) -> bool:
        return True

    def seconds(self) -> float:
        return self._ended - self._begun


class _CudaSpan:
    """Between two events on the stream that is current where it begins."""

    def __init__(self) -> None:
        self._stream = torch.cuda.current_stream()
        self._first, self._last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        self._first.record(self._stream)

    def stop(self) -> None:
        self._last.record(self._stream)

    def is_over(self) -> bool:
        return self._last.query()

    def seconds(self) -> float:
        self._last.synchronize()
        return self._first.elapsed_time(self._last) / 1000


def lengths_given(*args: Any, **kwargs: Any) -> Iterator[int]:
    """Yield the lengths of the samples that a model is given, as it computes them.

    Of ``cu_seq_lens_q``, else of ``position_ids`` of one packed row, where they begin anew at each sample; else of
    ``input_ids`` or the first argument: a tensor with a row a sample has its padded length for each, a list of tensors
    that of each.

    Raises
    ------
    ValueError
        There is none of these.
    """
    first = args[0] if args else None
    named = {**(first if isinstance(first, Mapping) else {}), **kwargs}
    if (bounds := named.get("cu_seq_lens_q")) is not None:
        return iter(bounds.diff().tolist())
    places = named.get("position_ids")
    if places is not None and places.shape[0] == 1:
        begins = (places[0] == 0).nonzero()[:, 0].tolist()
        return (stop - start for start, stop in zip(begins, [*begins[1:], places.shape[1]], strict=True))
    ids = named.get("input_ids", first)
    if isinstance(ids, list | tuple) and all(hasattr(row, "__len__") for row in ids):
        return (len(row) for row in ids)
    if isinstance(ids, torch.Tensor) and ids.is_nested:
        return (len(row) for row in ids.unbind())
    if isinstance(ids, torch.Tensor) and ids.ndim >= 2:
        return iter([ids.shape[1]] * ids.shape[0])
    given = ", ".join(named) or type(first).__name__
    raise ValueError(
        f"lengths of a micro-batch cannot be told from what the model is given ({given}): give lengths=, a function "
        "that takes what the model takes"
    )
