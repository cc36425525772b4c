"""Balanced batches in Hugging Face's Trainer, and in what is built on it (TRL): a mixin, and lengths."""

import functools
import inspect
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from balancer.compat.rank_batches import RankBatches
from balancer.compat.sampler import BalancedBatchSampler
from solvers.errors import ArgumentError, ArgumentTypeError, UsageError

__all__ = ["BalancedTrainerMixin", "sample_lengths"]

_ROWS = 10_000  # of a column that are looked at together
_STRATEGY = "train_sampling_strategy"


class BalancedTrainerMixin:
    """Stands before a Trainer class, and makes its training batches those of a :class:`BalancedBatchSampler`.

    Batch size, accumulation, seed, dropping the last batch, workers and collator are the Trainer's own arguments. Where
    ranks wait is read from the Trainer: in every micro-step under FSDP and under DeepSpeed's stages 2 and 3, else once
    a step. A run resumed from a checkpoint goes on as if it had not stopped; on other ranks too, where accumulation
    keeps the global batch, as the Trainer counts steps. Other steps, or another data set or seed, are refused.

    Attributes
    ----------
    sample_length : str or callable or None
        A column of the dataset, of lengths or of lists that are as long; or a function from a sample to its length.
        None: the column that ``args.length_column_name`` names if it is there, else ``input_ids``.
    balance : mapping
        Other arguments of the sampler. By default ``cost="padded", window=24``, for collators that pad: samples move by
        at most 24 steps to others of their length, as with the Trainer's own ``group_by_length`` on two ranks. With
        ``window=0`` every step has the samples that were drawn. For collators that pack give ``{"cost": "linear"}``, or
        your model's cost.

    Raises
    ------
    ValueError, TypeError
        As training begins: settings under which batches cannot be balanced without changing what is learnt.

    Examples
    --------
    ::

        class BalancedTrainer(BalancedTrainerMixin, Trainer):
            sample_length = "length"
    """

    sample_length: str | Callable[[Any], int] | None = None
    balance: Mapping[str, Any] = MappingProxyType({"cost": "padded", "window": 24})

    def balanced_sampler(self) -> RankBatches:
        """Return the batches of this rank; override it to train on others, such as those of a plan file."""
        trainer: Any = self
        args = trainer.args
        return BalancedBatchSampler(
            sample_lengths(trainer.train_dataset, self.sample_length, args.length_column_name),
            trainer._train_batch_size,  # noqa: SLF001 (what a batch size that the Trainer searches for is now)
            args.world_size, args.process_index, **{
                "gradient_accumulation_steps": args.gradient_accumulation_steps,
                "seed": args.seed if args.data_seed is None else args.data_seed,
                "drop_last": args.dataloader_drop_last, "sync": _where_ranks_wait(trainer),
            } | dict(self.balance),
        )  # fmt: skip

    def get_train_dataloader(self) -> Any:
        """Return the Trainer's own loader, with other batches; it is not prepared, which would deal them out again."""
        trainer: Any = super()
        _check(self)
        sampler = self.balanced_sampler()
        samples = len(self.train_dataset)  # type: ignore[attr-defined]
        if isinstance(sampler, BalancedBatchSampler) and len(sampler.lengths) != samples:
            raise ArgumentError(
                "lengths", f"have one for each of the {samples} samples of the dataset", len(sampler.lengths)
            )
        _check_loss(self, isinstance(sampler, BalancedBatchSampler))
        # A Trainer may train twice, and finds a callback by its class.
        trainer.remove_callback(_checkpoints())
        trainer.add_callback(_checkpoints())
        return _with_batches(trainer.get_train_dataloader(), sampler)


def _where_ranks_wait(trainer: Any) -> str:
    """Return the sampler's `sync` under the Trainer's way to run on several ranks."""
    state = trainer.accelerator.state
    # Stage 2 reduces gradients into shards in every backward pass, so that ranks wait there too.
    plugin = getattr(state, "deepspeed_plugin", None)
    sharded = "FSDP" in str(state.distributed_type) or (plugin is not None and plugin.zero_stage >= 2)
    return "micro_batch" if sharded else "step"


def _with_batches(loader: Any, sampler: RankBatches) -> Any:
    """Return a loader of the same dataset, collator and workers with other batches, whose epoch can be set."""
    from torch.utils.data import DataLoader

    chosen = {"batch_size", "shuffle", "sampler", "batch_sampler", "drop_last", "self", "dataset"}
    # Read from the signature: an argument of a newer torch is carried over, too.
    names = [name for name in inspect.signature(DataLoader.__init__).parameters if name not in chosen]
    alike = {name: getattr(loader, name) for name in names if hasattr(loader, name)}
    made = DataLoader(loader.dataset, batch_sampler=sampler, **alike)
    made.set_epoch = sampler.set_epoch  # the Trainer looks for it on the loader
    return made


@functools.cache  # one class for all Trainers: its name stands in checkpoints
def _checkpoints() -> Any:
    from transformers import TrainerCallback
    from transformers.trainer_callback import ExportableState

    class BatchesInCheckpoint(TrainerCallback, ExportableState):  # type: ignore[misc]
        """Checkpoints say which steps they count, as a resumed run skips as many of its own."""

        def __init__(self) -> None:
            self.steps: dict[str, Any] = {}

        def state(self) -> dict[str, Any]:
            return {"args": {}, "attributes": {"steps": self.steps}}

        def on_train_begin(
            self, args: Any, state: Any, control: Any, train_dataloader: Any = None, **others: Any
        ) -> None:
            sampler = train_dataloader.batch_sampler
            self.steps = getattr(sampler, "steps_are", {}) | sampler.state_dict(batches=0)["of"]
            if not state.global_step or args.ignore_data_skip:  # a new run, or one that skips nothing
                return
            found = (state.stateful_callbacks or {}).get(type(self).__name__, {})
            saved = found.get("attributes", {}).get("steps", {})
            if unlike := [name for name in {**self.steps, **saved} if saved.get(name) != self.steps.get(name)]:
                raise UsageError(
                    "the checkpoint counts steps with {name} = {theirs}, and here it is {mine}: the Trainer would skip "
                    "samples that were not trained",
                    ("keep the data, the seed, the settings, and samples_per_step: per_device_train_batch_size times "
                     "gradient_accumulation_steps times ranks", "or give ignore_data_skip=True: the epoch begins anew"),
                    name=unlike[0], theirs=repr(saved.get(unlike[0])), mine=repr(self.steps.get(unlike[0])),
                )  # fmt: skip

    return BatchesInCheckpoint


def _check(trainer: Any) -> None:
    """Refuse what cannot be balanced by lengths that are known beforehand, and what would change what is learnt."""
    if trainer.train_dataset is None or not hasattr(trainer.train_dataset, "__len__"):
        raise UsageError(
            "train_dataset must have a length: batches are balanced by lengths that are known beforehand",
            "for a stream return PrefetchDispatcher(loader, ...) from get_train_dataloader",
        )
    # Older releases of Accelerate have no such settings.
    parallel = getattr(trainer.accelerator, "parallelism_config", None)
    sizes = {name: getattr(parallel, f"{name}_size", 1) for name in ("tp", "cp", "sp")}
    if over := [name for name, size in sizes.items() if size not in (None, 1)]:
        raise UsageError(
            f"{over[0]}_size of parallelism_config must be 1: this mixin does not know which processes share a batch"
        )
    strategy = _strategy(trainer.args)
    if strategy == "sequential":
        raise UsageError(
            "train_sampling_strategy='sequential' is not seen by the sampler that this mixin puts in",
            "leave it out, and give balance = dict(..., shuffle=False) for the order of the dataset",
        )
    if strategy in ("group_by_length", "batch_rebalance"):
        option = f"train_sampling_strategy={strategy!r}" if hasattr(trainer.args, _STRATEGY) else f"{strategy}=True"
        raise UsageError(
            "{option} chooses samples by length, and so does this mixin",
            "leave one of them out; balance = dict(cost='padded', window=24) moves samples about as far",
            option=option,
        )  # fmt: skip


def _strategy(args: Any) -> str:
    """Return how the Trainer is to sample, whichever of its arguments says so."""
    # Older releases of Transformers have only group_by_length, newer ones only the strategy.
    grouped = "group_by_length" if getattr(args, "group_by_length", False) else "random"
    return str(getattr(args, _STRATEGY, grouped))


def _check_loss(trainer: Any, equal_counts: bool) -> None:
    """Refuse a loss that is not normalised over all ranks where it depends on which samples meet on one."""
    if trainer.args.world_size == 1:
        return
    # In both cases the loss is divided by a count that the Trainer hands over, not by the batch's own.
    counted = trainer.model_accepts_loss_kwargs or trainer.compute_loss_func is not None
    if counted and not trainer.args.average_tokens_across_devices:
        raise UsageError(
            "average_tokens_across_devices must be True: a loss normalised on each rank depends on which samples meet "
            "there"
        )
    if not counted and not equal_counts:
        raise UsageError(
            "the model takes no num_items_in_batch, so that its loss is a mean over each rank's batch, and batches "
            "must be of one size",
            ("use the batches of a BalancedBatchSampler",
             "or give a compute_loss_func that divides by num_items_in_batch"),
        )  # fmt: skip


def sample_lengths(
    dataset: Any, by: str | Callable[[Any], int] | None = None, column: str = "length"
) -> NDArray[np.int64]:
    """Return the length of every sample of a dataset, without loading values if a column has it.

    Parameters
    ----------
    dataset : datasets.Dataset, or sequence of mappings
    by : str or callable, optional
        A column of lengths, or of lists that are as long; or a function from a sample to its length. By default
        `column` where it is there, else ``"input_ids"``.
    column : str

    Returns
    -------
    int64[n]

    Raises
    ------
    TypeError, ValueError
        No such column, or one that holds neither whole numbers nor lists.
    """
    if callable(by):
        return np.fromiter((by(sample) for sample in dataset), dtype=np.int64, count=len(dataset))
    names = getattr(dataset, "column_names", None) or (list(dataset[0]) if len(dataset) else [])
    name = by or (column if column in names else "input_ids")
    if name not in names:
        raise UsageError(
            "the dataset has no column {name!r}; columns there are: {names}", "name another with sample_length",
            name=name, names=", ".join(map(str, names)),
        )  # fmt: skip
    if hasattr(dataset, "with_format") and hasattr(dataset, "iter"):
        # Arrow knows how long its lists are: the tokens themselves are never decoded.
        arrow = dataset.select_columns([name]).with_format("arrow")
        parts = [_of_arrow(name, table.column(name)) for table in arrow.iter(_ROWS)]
        # A dataset without rows has no parts, and nothing to join is an error to NumPy.
        return np.concatenate([np.empty(0, dtype=np.int64), *parts])
    return np.array([_length_of(name, row, sample[name]) for row, sample in enumerate(dataset)], dtype=np.int64)


def _of_arrow(name: str, cells: Any) -> NDArray[np.int64]:
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_list(cells.type) or pa.types.is_large_list(cells.type) or pa.types.is_fixed_size_list(cells.type):
        cells = pc.list_value_length(cells)
    if not pa.types.is_integer(cells.type) or cells.null_count:
        raise ArgumentTypeError("sample_length", f"name a column of whole numbers or of lists, {name!r} is of another")
    return np.asarray(cells.to_numpy(), dtype=np.int64)


def _length_of(name: str, row: int, value: Any) -> int:
    if isinstance(value, int | np.integer) and not isinstance(value, bool):
        return int(value)
    if hasattr(value, "__len__") and not isinstance(value, str):
        return len(value)
    raise ArgumentTypeError(
        "sample_length", f"name a column of whole numbers or of lists; row {row} of {name!r}", repr(value)[:40]
    )
