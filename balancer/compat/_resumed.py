"""What a checkpoint of Hugging Face's Trainer says of its batches, so that a run on other ranks skips the right ones.

The Trainer counts steps, and a resumed run skips as many: these must hold exactly the samples that were trained.
"""

import functools
import warnings
from collections.abc import Mapping
from typing import Any

from balancer.planning.epoch_position import check_same
from balancer.planning.rank_batches import RankBatches
from solvers.errors import UsageError

__all__ = ["check_resumed"]


def check_resumed(trainer: Any) -> None:
    """Let a Trainer's checkpoints say which batches they count; as it begins to train, compare with those it has."""
    callback = _callback()
    # A Trainer may train twice; then the callback must not be there twice.
    trainer.remove_callback(callback)
    trainer.add_callback(callback)


# One class for all Trainers: they find a callback by its class, and its name stands in checkpoints.
@functools.cache
def _callback() -> Any:
    from transformers import TrainerCallback
    from transformers.trainer_callback import ExportableState

    class BatchesInCheckpoint(TrainerCallback, ExportableState):  # type: ignore[misc]
        """By this name they are in the checkpoint's ``trainer_state.json``."""

        def __init__(self) -> None:
            self.batches: dict[str, Any] = {}

        def state(self) -> dict[str, Any]:
            return {"args": {}, "attributes": {"batches": self.batches}}

        def on_train_begin(
            self, args: Any, state: Any, control: Any, train_dataloader: Any = None, **others: Any
        ) -> None:
            self.batches = _batches_of(train_dataloader, args)
            # 0 in a new run, which has no checkpoint to differ from.
            if state.global_step:
                _check_same_steps((state.stateful_callbacks or {}).get(type(self).__name__), self.batches, args)

    return BatchesInCheckpoint


def _batches_of(loader: Any, args: Any) -> dict[str, Any]:
    """Return what makes the steps of a run what they are: those of a sampler of ours, or of the Trainer's own."""
    batches = getattr(loader, "batch_sampler", None)
    if isinstance(batches, RankBatches):
        return {"samples_per_step": batches.samples_per_step, "of": batches.state_dict(batches=0)["of"]}
    size = args.train_batch_size * args.world_size * args.gradient_accumulation_steps
    return {"samples_per_step": size, "of": {"seed": args.seed if args.data_seed is None else args.data_seed}}


def _check_same_steps(saved: Any, mine: Mapping[str, Any], args: Any) -> None:
    try:
        theirs = saved["attributes"]["batches"]
        size = theirs["samples_per_step"]
        check_same(theirs, mine["of"])
    # No entry, or one of another form: a checkpoint of an older release, or of a run without this callback.
    except (KeyError, TypeError):
        warnings.warn(
            "the checkpoint does not say how many samples its steps had (seqbalancer until 0.2 did not say it): resume "
            "with as many ranks, samples and micro-steps, or some samples are trained twice and others never",
            stacklevel=2,
        )
        return
    if size != mine["samples_per_step"]:
        a_micro_step = args.train_batch_size * args.world_size
        accumulation, odd = divmod(size, a_micro_step)
        raise UsageError(
            "the checkpoint's steps have {theirs} samples and here they have {mine}: the Trainer counts steps, so it "
            "would skip samples that were not trained",
            "no gradient_accumulation_steps keeps them with {one} samples a micro-step on all ranks; choose a "
            "per_device_train_batch_size with which {ranks} ranks can reach {theirs}" if odd else
            "give gradient_accumulation_steps={accumulation}: it keeps them on {ranks} ranks",
            theirs=size, mine=mine["samples_per_step"], accumulation=accumulation, one=a_micro_step,
            ranks=args.world_size,
        )  # fmt: skip
