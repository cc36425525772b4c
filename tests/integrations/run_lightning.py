"""Lightning on one rank: the page's module; saved within an epoch and at the end of one."""

import os
import sys

import tiny
import torch
from doc_blocks import block
from launched import leave
from lightning import Callback, Trainer, seed_everything
from recorded import Recorded, sum_and_tokens
from runs import LIGHTNING as RUN

given = {"torch": torch}
exec(block("Lightning"), given)


class Keeps(Callback):
    """Saves within an epoch and at the end of one."""

    def __init__(self, folder):
        self.folder = folder

    def on_train_batch_end(self, trainer, *_):
        if trainer.global_step == RUN.saved_at:
            trainer.save_checkpoint(f"{self.folder}/within.ckpt")

    def on_train_epoch_end(self, trainer, *_):
        if trainer.current_epoch == 1:
            trainer.save_checkpoint(f"{self.folder}/end.ckpt")


def trains(module, callbacks=(), checkpoint=None, dies_at=None):
    optimizer = torch.optim.AdamW(module.parameters(), lr=0.01)
    module.configure_optimizers = lambda: optimizer
    recorded = Recorded(module.model, optimizer, sum_and_tokens, dies_at=dies_at)
    trainer = Trainer(accelerator="cpu", devices=2, strategy="ddp", max_epochs=RUN.epochs, logger=False,
                      enable_checkpointing=False, enable_progress_bar=False, callbacks=list(callbacks))  # fmt: skip
    trainer.fit(module, ckpt_path=checkpoint)
    return recorded.losses, tiny.weights_of(module.model)


def loader():
    samples = tiny.Samples(2 * tiny.MEAN * RUN.batches)
    sampler = torch.utils.data.DistributedSampler(samples, 2, int(os.environ["RANK"]), shuffle=True, seed=5)
    return torch.utils.data.DataLoader(samples, tiny.MEAN, sampler=sampler, collate_fn=tiny.as_fields)


class Without(given["Balanced"]):
    """The same module with no dispatcher."""

    def train_dataloader(self):
        return self.loader


if __name__ == "__main__":
    mode, folder = sys.argv[1:]
    seed_everything(1)
    if mode == "killed":
        usual = trains(Without(tiny.Model(), loader()))
        leave((usual, trains(given["Balanced"](tiny.Model(), loader()))), mode, folder)
        trains(given["Balanced"](tiny.Model(), loader()), [Keeps(folder)], dies_at=RUN.dies_at)
    else:
        names = ("within", "end")
        leave([trains(given["Balanced"](tiny.Model(), loader()), checkpoint=f"{folder}/{n}.ckpt") for n in names],
              mode, folder)  # fmt: skip
