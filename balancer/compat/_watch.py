"""What the callbacks of all trainers do: kernels made ready, the four numbers said, micro-batches timed."""

import os
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from balancer.planning.warmup import warmup
from solvers.errors import UsageError

if TYPE_CHECKING:
    from balancer.executor import StepTimer

__all__ = ["Watch"]


class Watch:
    """What balances the batches of a trainer, and who times them; callbacks call it where their trainers call them."""

    def __init__(
        self, steps: str | os.PathLike[str] | None = None, lengths: Callable[..., Iterable[int]] | None = None
    ) -> None:
        self._steps, self._lengths = steps, lengths
        self._balances: Any = None
        self._timer: StepTimer | None = None

    def begin(self, model: Any, rank: int) -> None:
        """Compile or load kernels before the first step, and listen to the model if its steps are to be timed."""
        warmup()
        self.end()  # a training that failed may have left a timer
        if self._steps is not None:
            from balancer.executor import StepTimer

            self._timer = StepTimer(model, self._steps, rank, self._lengths)

    def find(self, loader: Any) -> None:
        """Find the dispatcher or sampler behind a trainer's loader.

        Raises
        ------
        ValueError
            There is none, and nothing is timed.
        """
        seen: list[Any] = []
        waiting = [loader]
        while waiting:
            each = waiting.pop(0)
            # Compared by identity: wrappers may point at each other, and some loaders cannot be hashed or compared.
            if each is None or any(each is other for other in seen):
                continue
            seen.append(each)
            # Known by what it can do: to import the dispatcher's class would load torch for samplers without it.
            if hasattr(each, "report"):
                self._balances = each
                return
            # Trainers wrap loaders in classes of their own; what balances hides under one of these names.
            waiting += [getattr(each, name, None) for name in ("dispatcher", "batch_sampler", "sampler")]
        if self._steps is None:
            raise UsageError(
                "{loader} has no PrefetchDispatcher or BalancedBatchSampler behind it, so there are no numbers to log",
                ("leave the callback out", "or give it steps='steps.csv', which times any batches"),
                loader=type(loader).__name__,
            )

    def at(self, step: int) -> None:
        """Say which step the micro-batches to come are of."""
        if self._timer is not None:
            self._timer.step = step

    def numbers(self) -> dict[str, float]:
        """Return the four numbers over the steps so far; none of batches that nothing balances at run time."""
        return {} if self._balances is None else self._balances.report().numbers()

    def end(self) -> None:
        """Write the rest of what was timed."""
        if self._timer is not None:
            self._timer.close()
            self._timer = None
