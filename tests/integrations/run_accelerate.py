"""Accelerate on one rank: the page's block, or what it replaces; two micro-steps a step, also over epochs."""

import sys

import tiny
import torch
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration, GradientAccumulationPlugin
from doc_blocks import block
from launched import leave
from recorded import Recorded, sum_and_tokens
from runs import ACCELERATE as RUN
from torch.utils.data import DataLoader

from balancer.executor import global_token_mean

RESUMED_IN = 1  # epochs, of three steps each


def parts():
    samples = tiny.Samples(2 * tiny.MEAN * RUN.batches)
    torch.manual_seed(3)
    model = tiny.Model()
    loader = DataLoader(samples, tiny.MEAN, shuffle=True, collate_fn=tiny.as_fields)
    return model, tiny.optimizer_of(model), loader


def without():
    """The same training with no dispatcher."""
    accelerator = Accelerator(
        cpu=True, gradient_accumulation_plugin=GradientAccumulationPlugin(2, sync_with_dataloader=False),
        dataloader_config=DataLoaderConfiguration(use_seedable_sampler=True),
    )  # fmt: skip
    bare, optimizer, loader = parts()
    recorded = Recorded(bare, optimizer, sum_and_tokens)
    model, optimizer, loader = accelerator.prepare(bare, optimizer, loader)
    for epoch in range(RUN.epochs):
        loader.set_epoch(epoch)
        for batch in loader:
            with accelerator.accumulate(model):
                loss_sum = model(batch["input_ids"], batch["labels"])
                accelerator.backward(global_token_mean(loss_sum, tiny.counted(batch["labels"])))
                optimizer.step()
                optimizer.zero_grad()
    return recorded.losses, tiny.weights_of(bare)


def balanced(folder, dies_at=None, resumes=False):
    model, optimizer, loader = parts()
    given = {"model": model, "optimizer": optimizer, "loader": loader, "epochs": RUN.epochs,
             "checkpoint": resumes and f"{folder}/state", "first_epoch": RESUMED_IN if resumes else 0}  # fmt: skip

    def save():
        given["accelerator"].save_state(f"{folder}/state")

    recorded = Recorded(model, optimizer, sum_and_tokens, RUN.saved_at, save if dies_at else None, dies_at)
    exec(block("Accelerate"), given)
    return recorded.losses, tiny.weights_of(model)


if __name__ == "__main__":
    mode, folder = sys.argv[1:]
    if mode == "resumed":
        leave(balanced(folder, resumes=True), mode, folder)
    else:
        leave((without(), balanced(folder)), mode, folder)
        balanced(folder, dies_at=RUN.dies_at)
