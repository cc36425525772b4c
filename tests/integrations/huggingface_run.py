"""Train a tiny Llama with Hugging Face's Trainer on two ranks; a mode, a folder, and what to change say how."""

import json
import os
import signal
import sys
from pathlib import Path
from types import MappingProxyType

import datasets
import numpy as np
import torch
from doc_blocks import blocks
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments

from balancer.compat.huggingface import BalancedTrainerMixin
from balancer.compat.sampler import BalancedBatchSampler


class AsTheyCome(BalancedBatchSampler):
    """The same global batches, not balanced: rows in the order of the dataset."""

    def _steps(self, at, ranks):
        for behind, batches in super()._steps(at, range(self.num_replicas)):
            yield behind, np.sort(np.ravel(batches)).reshape(np.shape(batches))[:, list(ranks)].tolist()


class BalancedTrainer(BalancedTrainerMixin, Trainer):
    sample_length = "length"
    balance = MappingProxyType({"cost": "padded", "window": 0})


class UnbalancedTrainer(BalancedTrainer):
    def balanced_sampler(self):
        made = super().balanced_sampler()
        made.__class__ = AsTheyCome
        return made


class ShortTrainer(BalancedTrainer):
    """Its lengths are of a part of the dataset."""

    def balanced_sampler(self):
        return BalancedBatchSampler(self.train_dataset["length"][:20], 2, self.args.world_size, self.args.process_index)


class MovedTrainer(BalancedTrainerMixin, Trainer):
    """As it is for collators that pad."""


KINDS = {"balanced": BalancedTrainer, "unbalanced": UnbalancedTrainer, "short": ShortTrainer, "moved": MovedTrainer}


class Watch(TrainerCallback):
    """Notes what each rank was given, and ends the job at a step if it is told to."""

    def __init__(self, kill_at):
        self.kill_at = kill_at

    def on_step_end(self, args, state, control, **_):
        if state.global_step == self.kill_at:
            os.kill(os.getpid(), signal.SIGKILL)


def collate(samples):
    longest = max(len(sample["input_ids"]) for sample in samples)
    ids = torch.zeros(len(samples), longest, dtype=torch.long)
    labels = torch.full((len(samples), longest), -100)
    for row, sample in enumerate(samples):
        ids[row, : len(sample["input_ids"])] = labels[row, : len(sample["input_ids"])] = torch.tensor(
            sample["input_ids"]
        )
    return {"input_ids": ids, "labels": labels, "attention_mask": (labels >= 0).long()}


TINY = {
    "vocab_size": 50, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2,
    "max_position_embeddings": 64, "attn_implementation": "eager",
}  # fmt: skip


def rows_of_text():
    random = np.random.default_rng(0)
    lengths = np.minimum(random.lognormal(2, 1, 44).astype(int) + 2, 60)
    rows = [random.integers(1, 50, length).tolist() for length in lengths]
    return datasets.Dataset.from_dict({"input_ids": rows, "length": lengths})


def tokenizer():
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel({"<pad>": 0, "<eos>": 1, "<unk>": 2}, unk_token="<unk>"))
    return PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>")


def fine_tune(folder, mode, options):
    """TRL's trainer, with its own collator and loss; six steps."""
    from trl import SFTConfig, SFTTrainer

    class Balanced(BalancedTrainerMixin, SFTTrainer):
        balance = MappingProxyType({"cost": "padded", "window": 0})

        def balanced_sampler(self):
            made = super().balanced_sampler()
            made.__class__ = BalancedBatchSampler if options["balanced"] else AsTheyCome
            return made

    torch.manual_seed(0)
    arguments = SFTConfig(
        f"{folder}/{mode}", per_device_train_batch_size=1, gradient_accumulation_steps=4, max_steps=6, bf16=False,
        learning_rate=0.01, save_strategy="no", logging_steps=1, report_to=[], use_cpu=True, disable_tqdm=True, seed=3,
        max_grad_norm=0.0, optim="sgd", lr_scheduler_type="constant", ddp_backend="gloo",
    )  # fmt: skip
    model = LlamaForCausalLM(LlamaConfig(**TINY)).double()
    trainer = Balanced(model, arguments, train_dataset=rows_of_text().select_columns(["input_ids"]),
                       processing_class=tokenizer())  # fmt: skip
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    return {
        "losses": losses,
        "weights": torch.cat([weight.detach().flatten() for weight in trainer.model.parameters()]),
    }


def train(folder, mode, options):
    torch.manual_seed(0)
    config = LlamaConfig(attention_dropout=options.get("dropout", 0), **TINY)
    arguments = TrainingArguments(
        f"{folder}/{mode}", per_device_train_batch_size=1, gradient_accumulation_steps=4, max_steps=10,
        learning_rate=0.01, save_strategy="steps" if "dropout" in options else "no", save_steps=8, logging_steps=1,
        report_to=[], use_cpu=True, disable_tqdm=True, seed=3,
        max_grad_norm=0.0, optim="sgd", lr_scheduler_type="constant", ddp_backend="gloo",
        **options.get("arguments", {}),
    )  # fmt: skip
    base = KINDS[options.get("trainer", "balanced")]
    kind = type(base.__name__, (base,), options.get("attributes", {}))
    watch = Watch(options.get("kill_at"))
    model = LlamaForCausalLM(config).double()
    trainer = kind(model, arguments, train_dataset=rows_of_text(), data_collator=collate, callbacks=[watch])
    trainer.train(resume_from_checkpoint=options.get("resume", False))
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    weights = [weight.detach().double().flatten() for weight in trainer.model.parameters()]
    return {"losses": losses, "weights": torch.cat(weights), "epoch": trainer.state.epoch}


def by_the_page(folder, mode, options):
    """The block of docs/how_to/sampler.md."""
    arguments = TrainingArguments(folder, max_steps=2, save_strategy="no", report_to=[], use_cpu=True)
    given = {"Trainer": Trainer, "collate": collate, "dataset": rows_of_text(), "arguments": arguments,
             "model": LlamaForCausalLM(LlamaConfig(**TINY))}  # fmt: skip
    exec("\n".join(blocks(Path(options["page"]))["Sampler: Hugging Face Trainer"]), given)
    given["trainer"].train()
    return given["trainer"].state.global_step


def main(folder, runs):
    for mode, options in runs:
        try:
            way = fine_tune if "balanced" in options else by_the_page if "page" in options else train
            found = way(folder, mode, options)
        except (ValueError, TypeError) as error:
            found = {"error": str(error)}
        if os.environ["RANK"] == "0":
            torch.save(found, f"{folder}/{mode}.pt")


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
