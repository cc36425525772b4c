"""Each trainer on one rank with the callback of the page: what it logged, timed and sent, beside a run without it."""

import os
import sys

import huggingface_run
import numpy as np
import run_lightning
import run_transformers
import tiny
import torch
import torch.distributed as dist
from accelerate import Accelerator
from accelerate.tracking import GeneralTracker
from doc_blocks import block
from launched import leave
from lightning import Callback, Trainer
from lightning.pytorch.loggers import CSVLogger
from torch.utils.data import DataLoader
from transformers import LlamaConfig, LlamaForCausalLM, TrainingArguments

from balancer.executor import Dispatcher, PrefetchDispatcher, global_token_mean
from balancer.problem.shuffle import shuffled

SENT = ("all_reduce", "all_gather", "all_gather_into_tensor", "all_gather_object", "broadcast", "barrier",
        "all_to_all_single", "broadcast_object_list", "reduce_scatter_tensor", "gather_object")  # fmt: skip


class Sent:
    """Counts collectives by name."""

    def __init__(self):
        self.count = dict.fromkeys(SENT, 0)
        for name in SENT:
            setattr(dist, name, self._counting(name, getattr(dist, name)))

    def _counting(self, name, function):
        def call(*args, **kwargs):
            self.count[name] += 1
            return function(*args, **kwargs)

        return call

    def during(self, function):
        before = dict(self.count)
        return function(), {name: self.count[name] - before[name] for name in SENT}


def loads_of(plan):
    """Of a plan of whole samples: what each rank has at home and gets, and which elements move."""
    ranks, lengths = range(plan.num_ranks), plan.lengths
    home, to = plan.home.rank_of_sample, plan.rank_of_sample
    loads = [[int(lengths[of == rank].sum()) for rank in ranks] for of in (home, to)]
    return [*loads, int(lengths[home != to].sum())]


# Hugging Face: batches of a sampler, and of a dispatcher.


def huggingface(kind, watched):
    torch.manual_seed(0)
    accumulation = 2
    arguments = TrainingArguments(
        "out", per_device_train_batch_size=2, gradient_accumulation_steps=accumulation, num_train_epochs=1,
        logging_steps=2, report_to=[], use_cpu=True, disable_tqdm=True, seed=3, save_strategy="no", ddp_backend="gloo",
    )  # fmt: skip
    if kind == "sampler":
        model = LlamaForCausalLM(LlamaConfig(**huggingface_run.TINY))
        data, collate, base = huggingface_run.rows_of_text(), huggingface_run.collate, huggingface_run.BalancedTrainer
    else:
        model, data = run_transformers.model(), run_transformers.rows()
        collate, base = run_transformers.Pads(), run_transformers.given["BalancedTrainer"]
    trainer = base(model, arguments, train_dataset=data, data_collator=collate)
    if watched:
        exec(block("Log: Hugging Face Trainer"), {"trainer": trainer})
    else:
        trainer.train()
    logs = [entry for entry in trainer.state.log_history if "loss" in entry or "balancer/imbalance" in entry]
    held = sampled(trainer) if kind == "sampler" else None
    return {"logs": logs, "held": held, "rows": timed("steps") if watched else None}


def sampled(trainer):
    """All batches of the epoch by lengths, [micro-step][rank], and the lengths in the order of the epoch."""
    made = trainer.balanced_sampler()
    lengths = trainer.train_dataset["length"]
    grids = [made.plan_step(step) for step in range(made.num_steps)]
    order = shuffled(np.arange(len(lengths)), len(lengths), made.seed, 0)
    cuts = range(0, len(lengths), made.samples_per_step)
    drawn = [[lengths[row] for row in order[cut : cut + made.samples_per_step]] for cut in cuts]
    assert min(map(len, drawn)) >= 4, "so that no rows are taken again"
    return [[[[lengths[row] for row in batch] for batch in slot] for slot in grid] for grid in grids], drawn


def timed(name):
    with open(f"{name}.{os.environ['RANK']}.csv", encoding="utf-8") as file:
        return [line.split(",") for line in file.read().splitlines()]


# Lightning.


class Notes(Callback):
    """Keeps what each step's plan is."""

    def __init__(self):
        self.held = []

    def on_train_batch_start(self, trainer, *_):
        self.held.append(loads_of(trainer.train_dataloader.dispatcher.current.plan))


def lightning(watched):
    module, notes = run_lightning.given["Balanced"](tiny.Model(), run_lightning.loader()), Notes()
    options = {"accelerator": "cpu", "devices": 2, "strategy": "ddp", "max_epochs": 2, "enable_checkpointing": False,
               "enable_progress_bar": False, "logger": CSVLogger("lightning", flush_logs_every_n_steps=1)}  # fmt: skip
    given = {"module": module, "options": options}
    if not watched:
        trainer = Trainer(**options, log_every_n_steps=1)
        trainer.fit(module)
        return None
    given["Trainer"] = lambda callbacks, **more: Trainer(callbacks=[*callbacks, notes], **more)
    exec(block("Log: Lightning"), given)
    numbers = {name: float(value) for name, value in given["trainer"].logged_metrics.items()}
    return {
        "logs": [numbers],
        "held": notes.held,
        "rows": timed("steps"),
        "folder": os.path.abspath(options["logger"].log_dir),
    }


# Accelerate.


class Keeps(GeneralTracker):
    name, requires_logging_directory, main_process_only = "keeps", False, False

    def __init__(self):
        super().__init__()
        self.logs = []

    @property
    def tracker(self):
        return self.logs

    def store_init_configuration(self, values):
        pass

    def log(self, values, step=None, **_):
        self.logs.append({**values, "step": step})


def accelerate(watched):
    keeps = Keeps()
    accelerator = Accelerator(cpu=True, log_with=keeps)
    model = tiny.Model()
    loader = DataLoader(tiny.Samples(2 * tiny.MEAN * 6), tiny.MEAN, collate_fn=tiny.as_fields)
    model, optimizer, loader = accelerator.prepare(model, tiny.optimizer_of(model), loader)
    steps, held = PrefetchDispatcher(loader, Dispatcher(length="input_ids")), []

    def train(batch):
        held.append(loads_of(steps.dispatcher.current.plan))
        accelerator.backward(
            global_token_mean(model(batch["input_ids"], batch["labels"]), sum(map(len, batch["labels"])))
        )
        optimizer.step()
        optimizer.zero_grad()

    if watched:
        exec(block("Log: Accelerate"), {"accelerator": accelerator, "steps": steps, "model": model, "train": train})
    else:
        for batch in steps:
            train(batch)
    return {"logs": keeps.logs, "held": held, "rows": timed("steps") if watched else None}


def main(mode, folder):
    os.chdir(folder)
    runs = {
        "accelerate": accelerate,  # which makes the process group
        "sampler": lambda watched: huggingface("sampler", watched),
        "dispatcher": lambda watched: huggingface("dispatcher", watched),
        "lightning": lightning,
    }
    sent, found = Sent(), {}
    for name, run in runs.items():
        os.makedirs(name, exist_ok=True)
        os.chdir(name)
        (_, usual), (found[name], watched) = (sent.during(lambda run=run, way=way: run(way)) for way in (False, True))
        found[name]["sent"] = usual, watched
        os.chdir("..")
    leave(found, mode, ".")


if __name__ == "__main__":
    main(*sys.argv[1:])
