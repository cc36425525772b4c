"""What balancing does, for Accelerate's trackers, and what steps take, for a file."""

import os
from collections.abc import Callable, Iterable
from typing import Any

from balancer.compat._watch import Watch

__all__ = ["BalanceLog"]


class BalanceLog:
    """Logs four numbers of what balances a loader's batches to Accelerate's trackers, over the steps so far.

    ``balancer/imbalance_before``, ``balancer/imbalance``, ``balancer/moved_share``, ``balancer/plan_ms``: see
    :class:`balancer.plan.balance_report.BalanceReport`. Ranks send each other nothing. Making it compiles or loads
    kernels.

    Parameters
    ----------
    accelerator : accelerate.Accelerator
    loader : PrefetchDispatcher, or what ``accelerator.prepare`` returned
        With a dispatcher or a :class:`balancer.compat.BalancedBatchSampler` behind it.
    model : torch.nn.Module, optional
        With `steps`, whose micro-batches are timed.
    steps : path, optional
        Also time every micro-batch of each rank, into ``steps.RANK.csv``: see :class:`balancer.executor.StepTimer`.
    lengths : callable, optional
        As there.
    first_step : int
        The number of the step to come, where training resumes.

    Raises
    ------
    ValueError
        Nothing balances the loader's batches, and nothing is timed.

    Examples
    --------
    ::

        accelerator.init_trackers("run")
        balance = BalanceLog(accelerator, steps)
        for step, batch in enumerate(steps):
            train(batch)
            balance.log(step)
        balance.close()
    """

    def __init__(
        self, accelerator: Any, loader: Any, *, model: Any = None, steps: str | os.PathLike[str] | None = None,
        lengths: Callable[..., Iterable[int]] | None = None, first_step: int = 0,
    ) -> None:  # fmt: skip
        if (model is None) != (steps is None):
            raise ValueError("model and steps go together: the model whose micro-batches are timed into a file")
        self._accelerator, self._watch = accelerator, Watch(steps, lengths)
        self._watch.find(loader)
        self._watch.begin(model, accelerator.process_index)
        self._watch.at(first_step)

    def log(self, step: int) -> None:
        """Log after an optimizer step; to be called after each of them, on all ranks or on some."""
        if numbers := self._watch.numbers():
            self._accelerator.log(numbers, step=step)
        # The micro-batches from here on belong to the step after this one.
        self._watch.at(step + 1)

    def close(self) -> None:
        """Write the rest of what was timed."""
        self._watch.end()
