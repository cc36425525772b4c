"""The page's blocks on the sampler in Accelerate, Lightning and the Trainer of Hugging Face, run on two ranks."""

import sys

import huggingface_run
import lightning
import samplers_run
import torch
from accelerate import Accelerator
from doc_blocks import blocks
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

from balancer.compat import BalancedBatchSampler


def main(page, folder):
    from pathlib import Path

    of_page = blocks(Path(page))
    known = {
        "BalancedBatchSampler": BalancedBatchSampler, "DataLoader": DataLoader, "lengths": samplers_run.LENGTHS,
        "dataset": samplers_run.Rows(), "collate": samplers_run.collate, "batch_size": 4, "epochs": 2, "epoch": 1,
    }  # fmt: skip
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=4)
    accelerate = known | {"accelerator": accelerator}
    seen, size = [], (4, accelerator.num_processes, accelerator.process_index)
    made = BalancedBatchSampler(samplers_run.LENGTHS, *size, gradient_accumulation_steps=4)
    accelerate |= {"checkpoint": None, "train": lambda batch: seen.append(batch["rows"].tolist()), "save": repr,
                   "model": torch.nn.Linear(1, 1)}  # fmt: skip
    exec("\n".join(of_page["Sampler: Accelerate"]), accelerate)
    assert seen == [*made, *made]

    hugging_face = known | {
        "Trainer": Trainer, "collate": huggingface_run.collate, "dataset": huggingface_run.rows_of_text(),
        "model": LlamaForCausalLM(LlamaConfig(**huggingface_run.TINY)),
        "arguments": TrainingArguments(folder, max_steps=2, save_strategy="no", report_to=[], use_cpu=True),
    }  # fmt: skip
    exec("\n".join(of_page["Sampler: Hugging Face Trainer"]), hugging_face)
    hugging_face["trainer"].train()
    assert hugging_face["trainer"].state.global_step == 2

    class Base(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = samplers_run.model()

        def training_step(self, batch, _):
            return (self.net(batch["values"]) ** 2).sum() / len(batch["rows"])

        def configure_optimizers(self):
            return torch.optim.SGD(self.net.parameters(), 0.1)

    class Quiet:
        @staticmethod
        def Trainer(**given):  # noqa: N802
            quiet = {"logger": False, "enable_progress_bar": False, "enable_checkpointing": False}
            return lightning.Trainer(**given, **quiet, accelerator="cpu", devices=2, strategy="ddp")

    of_lightning = known | {"LightningModule": Base, "lightning": Quiet, "StatefulDataLoader": StatefulDataLoader}
    exec("\n".join(of_page["Sampler: Lightning"]), of_lightning)
    of_lightning["trainer"].fit(of_lightning["Module"]())
    assert of_lightning["trainer"].global_step == 2 * 6


if __name__ == "__main__":
    main(*sys.argv[1:])
