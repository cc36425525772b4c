"""Hugging Face's Trainer on one rank: the page's class and the stock one; two mini-batches a step, two epochs."""

import sys
import warnings
from types import MappingProxyType

import tiny
import torch
from datasets import Dataset
from doc_blocks import block
from launched import leave
from recorded import Recorded
from runs import TRANSFORMERS as RUN
from transformers import (
    DataCollatorWithFlattening,
    LlamaConfig,
    LlamaForCausalLM,
    Trainer,
    TrainingArguments,
)

given = {"torch": torch}
exec(block("Hugging Face Trainer"), given)


def rows():
    samples = tiny.Samples(2 * tiny.MEAN * RUN.batches)
    return Dataset.from_list([{name: ids.tolist() for name, ids in sample.items()} for sample in samples])


def model():
    torch.manual_seed(0)
    config = LlamaConfig(vocab_size=tiny.WORDS, hidden_size=16, intermediate_size=16, num_hidden_layers=1,
                         num_attention_heads=2, max_position_embeddings=128, attention_dropout=0.0)  # fmt: skip
    return LlamaForCausalLM(config).double()


class Pads:
    """A collator that pads."""

    def __call__(self, features):
        longest = max(len(one["input_ids"]) for one in features)
        found = {"input_ids": [], "attention_mask": [], "labels": []}
        for one in features:
            more = longest - len(one["input_ids"])
            found["input_ids"].append([*map(int, one["input_ids"]), *[0] * more])
            found["attention_mask"].append([1] * (longest - more) + [0] * more)
            found["labels"].append([*map(int, one["labels"]), *[-100] * more])
        return {name: torch.tensor(rows) for name, rows in found.items()}


COLLATORS = {"flattens": DataCollatorWithFlattening, "pads": Pads}


def trains(kind, collator, folder, checkpoint=None, dies_at=None, **options):
    arguments = TrainingArguments(
        output_dir=folder, per_device_train_batch_size=tiny.MEAN, gradient_accumulation_steps=2,
        num_train_epochs=RUN.epochs, learning_rate=0.01, save_strategy="steps", save_steps=RUN.saved_at, report_to=[],
        use_cpu=True, disable_tqdm=True, seed=4, logging_steps=1000, **options,
    )  # fmt: skip
    trainer = kind(model=model(), args=arguments, train_dataset=rows(), data_collator=COLLATORS[collator]())
    trainer.create_optimizer()
    recorded = Recorded(trainer.model, trainer.optimizer, lambda _, output: (output.loss, 0), dies_at=dies_at)
    trainer.train(resume_from_checkpoint=checkpoint)
    return recorded.losses, tiny.weights_of(trainer.model)


class Watched(given["BalancedTrainer"]):
    """Keeps the shape of every mini-batch that it computes, and the lengths of the step's samples on all ranks."""

    def get_train_dataloader(self):
        self.steps = super().get_train_dataloader()
        return self.steps

    def training_step(self, model, inputs, *others):
        shapes.append((tuple(inputs["input_ids"].shape), self.steps.dispatcher.current.plan.lengths.tolist()))
        return super().training_step(model, inputs, *others)


class Declared(given["BalancedTrainer"]):
    """What its user says counts, whatever the collator does."""

    dispatch = MappingProxyType({"cost": "linear"})


def looked_at(collator, folder):
    """The shapes that a rank computed, and what its dispatcher balances."""
    shapes.clear()
    arguments = TrainingArguments(output_dir=folder, per_device_train_batch_size=tiny.MEAN, max_steps=5, report_to=[],
                                  use_cpu=True, disable_tqdm=True, save_strategy="no", seed=4)  # fmt: skip
    trainer = Watched(model=model(), args=arguments, train_dataset=rows(), data_collator=COLLATORS[collator]())
    trainer.train()
    return str(trainer.steps.dispatcher.setup.phases[0].cost), list(shapes)


def refusals(folder):
    """What the trainer says of arguments under which the loss would be another, and of a collator that pads."""
    said = {}
    for name, options in REFUSED.items():
        try:
            trains(given["BalancedTrainer"], "pads", folder, **options)
        except ValueError as error:
            said[name] = str(error)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        trains(Declared, "pads", folder)
    return said, [str(each.message) for each in told if "collate pads" in str(each.message)]


shapes = []
REFUSED = {
    "rank means": {"average_tokens_across_devices": False},
    "grouped": {"train_sampling_strategy": "group_by_length"},
    "rebalanced": {"train_sampling_strategy": "batch_rebalance"},
}

if __name__ == "__main__":
    mode, folder = sys.argv[1:]
    if mode == "silent":
        leave((refusals(folder), {name: looked_at(name, folder) for name in COLLATORS}), mode, folder)
        sys.exit()
    if mode == "killed":
        whole = [
            [trains(kind, collator, f"{folder}/whole") for kind in (Trainer, given["BalancedTrainer"])]
            for collator in COLLATORS
        ]
        leave(whole, mode, folder)
        trains(given["BalancedTrainer"], "flattens", f"{folder}/killed", dies_at=RUN.dies_at)
    else:
        checkpoint = f"{folder}/killed/checkpoint-{RUN.saved_at}"
        leave(trains(given["BalancedTrainer"], "flattens", f"{folder}/again", checkpoint), mode, folder)
