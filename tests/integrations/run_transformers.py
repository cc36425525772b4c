"""Hugging Face's Trainer on one rank: the page's class around its own loader, and the stock one."""

import sys

import tiny
import torch
from datasets import Dataset
from doc_blocks import block
from launched import leave
from recorded import Recorded
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

STEPS = 3  # of two mini-batches
given = {"torch": torch}
for heading in ("Collating", "Hugging Face Trainer"):
    exec(block(heading), given)


def model():
    torch.manual_seed(0)
    config = LlamaConfig(vocab_size=tiny.WORDS, hidden_size=16, intermediate_size=16, num_hidden_layers=1,
                         num_attention_heads=2, max_position_embeddings=128, attention_dropout=0.0)  # fmt: skip
    return LlamaForCausalLM(config).double()


def pads(samples):
    longest = max(len(one["input_ids"]) for one in samples)
    filled = {"input_ids": 0, "labels": -100}
    return {
        name: torch.tensor([[*map(int, one[name]), *[fill] * (longest - len(one[name]))] for one in samples])
        for name, fill in filled.items()
    }


def trains(kind, folder):
    """Return losses, weights, and the elements of every mini-batch that this rank computed."""
    samples = tiny.Samples(2 * tiny.MEAN * 2 * STEPS)
    arguments = TrainingArguments(
        output_dir=folder, per_device_train_batch_size=tiny.MEAN, gradient_accumulation_steps=2, num_train_epochs=1,
        learning_rate=0.01, save_strategy="no", report_to=[], use_cpu=True, disable_tqdm=True, seed=4,
    )  # fmt: skip
    rows = Dataset.from_list([{name: ids.tolist() for name, ids in sample.items()} for sample in samples])
    trainer = kind(model=model(), args=arguments, train_dataset=rows, data_collator=pads)
    trainer.create_optimizer()
    sizes = []
    trainer.model.register_forward_pre_hook(
        lambda _, args, named: sizes.append(named["input_ids"].numel()), with_kwargs=True
    )
    recorded = Recorded(trainer.model, trainer.optimizer, lambda _, output: (output.loss, 0))
    trainer.train()
    return (recorded.losses, tiny.weights_of(trainer.model)), sizes


if __name__ == "__main__":
    mode, folder = sys.argv[1:]
    leave([trains(kind, folder) for kind in (Trainer, given["BalancedTrainer"])], mode, folder)
