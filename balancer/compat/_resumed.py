"""What a checkpoint of Hugging Face's Trainer says of its batches, so that a run on other ranks skips the right ones.

The Trainer counts steps, and a resumed run skips as many: these must hold exactly the samples that were trained.
"""

import functools
import warnings
from collections.abc import Mapping
from typing import Any

from balancer.compat.rank_batches import check_same
from balancer.compat.sampler import BalancedBatchSampler
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
            self.batches = _batches_of(train_dataloader)
            # 0 in a new run, which has no checkpoint to differ from.
            if state.global_step:
                _check_same_steps((state.stateful_callbacks or {}).get(type(self).__name__), self.batches, args)

    return BatchesInCheckpoint


def _batches_of(loader: Any) -> dict[str, Any]:
    """Return what makes the steps of a run what they are; of other batches than a BalancedBatchSampler's nothing."""
    batches = getattr(loader, "batch_sampler", None)
    if not isinstance(batches, BalancedBatchSampler):
        return {}
    return {"steps": batches.steps_are, "of": batches.state_dict(batches=0)["of"]}


def _check_same_steps(saved: Any, mine: Mapping[str, Any], args: Any) -> None:
    theirs = ((saved or {}).get("attributes") or {}).get("batches") or {}
    if not mine or not theirs:
        if mine or theirs:
            warnings.warn(
                "only one of the checkpoint's run and this one has the batches of a BalancedBatchSampler: the Trainer "
                "skips as many steps as it trained, so some samples are trained twice and others never",
                stacklevel=2,
            )
        return
    check_same(theirs["of"], mine["of"])
    size, here = theirs["steps"]["samples_per_step"], mine["steps"]["samples_per_step"]
    if size != here:
        a_micro_step = args.train_batch_size * args.world_size
        accumulation, odd = divmod(size, a_micro_step)
        raise UsageError(
            "the checkpoint's steps have {theirs} samples and here they have {mine}: the Trainer counts steps, so it "
            "would skip samples that were not trained",
            "no gradient_accumulation_steps keeps them with {one} samples a micro-step on all ranks; choose a "
            "per_device_train_batch_size with which {ranks} ranks can reach {theirs}" if odd else
            "give gradient_accumulation_steps={accumulation}: it keeps them on {ranks} ranks",
            theirs=size, mine=here, accumulation=accumulation, one=a_micro_step, ranks=args.world_size,
        )  # fmt: skip
    if theirs["steps"] != mine["steps"]:
        raise UsageError(
            "the checkpoint's steps have other samples, they are of {theirs} and here of {mine}: the Trainer counts "
            "steps, so it would skip samples that were not trained",
            "resume with the same settings, or end the epoch with them",
            theirs=str(theirs["steps"]), mine=str(mine["steps"]),
        )  # fmt: skip
