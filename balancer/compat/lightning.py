"""A callback for Lightning: what balancing does goes to the trainer's loggers, and what steps take to a file."""

import os
from collections.abc import Callable, Iterable
from typing import Any

from balancer.compat._watch import Watch

__all__ = ["balance_callback"]


def balance_callback(
    steps: str | os.PathLike[str] | None = None, lengths: Callable[..., Iterable[int]] | None = None
) -> Any:
    """Return a callback that logs four numbers of what balances the trainer's batches, over the steps so far.

    ``balancer/imbalance_before``, ``balancer/imbalance``, ``balancer/moved_share``, ``balancer/plan_ms``, of the
    :class:`balancer.plan.balance_report.BalanceReport` of the dispatcher or sampler behind its loader, go to its
    loggers. Ranks send each other nothing. Kernels are compiled or loaded as training begins.

    Parameters
    ----------
    steps : path, optional
        Also time every micro-batch of each rank, into ``steps.RANK.csv``: see :class:`balancer.executor.StepTimer`.
    lengths : callable, optional
        As there.

    Returns
    -------
    lightning.Callback

    Raises
    ------
    ValueError
        As training begins: nothing balances the loader's batches, and nothing is timed.
    """
    from lightning import Callback

    watch = Watch(steps, lengths)

    class BalanceCallback(Callback):  # type: ignore[misc]
        def on_train_start(self, trainer: Any, pl_module: Any) -> None:
            watch.find(trainer.train_dataloader)
            watch.begin(pl_module, trainer.global_rank)

        def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
            watch.at(trainer.global_step)

        def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
            pl_module.log_dict(watch.numbers(), on_step=True, on_epoch=False)

        def on_train_end(self, trainer: Any, pl_module: Any) -> None:
            watch.end()

    return BalanceCallback()
