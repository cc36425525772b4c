"""Two epochs in every trainer, begun on some ranks and ended on others; each rank leaves the rows it trained on."""

import contextlib
import sys
import warnings
from pathlib import Path
from types import MappingProxyType

import datasets
import huggingface_run
import lightning
import numpy as np
import torch
import torch.distributed as dist
from accelerate import Accelerator
from doc_blocks import blocks
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments

from balancer.compat import BalancedBatchSampler
from balancer.compat.huggingface import BalancedTrainerMixin
from balancer.executor import Dispatcher, PrefetchDispatcher

ROWS, EPOCHS, SAVED_AT = 61, 2, 3
LENGTHS = np.minimum(np.random.default_rng(0).lognormal(2, 1, ROWS).astype(int) + 2, 60)
DATA = [{"row": torch.tensor([row]), "ids": torch.full((length,), row)} for row, length in enumerate(LENGTHS)]
BATCH = 2
PAGE = Path(__file__).parents[2] / "docs" / "how_to" / "sampler.md"


def as_fields(samples):
    return {name: [sample[name] for sample in samples] for name in samples[0]}


def rows_of(batch):
    return [int(row) for row in batch["row"]]


def loaded(file):
    return torch.load(file, weights_only=False) if file else None


def sampler():
    return BalancedBatchSampler(LENGTHS, BATCH, seed=3, window=1)  # of the process group's ranks


class Saved(Exception):  # noqa: N818
    pass


def by_the_page(heading, file, state, saved_at=SAVED_AT, **given):
    """Run the page's block; where it ends, the state of the batches that were trained on."""
    seen, saved = [[] for _ in range(EPOCHS)], []

    def train(trained):
        for batch in trained if isinstance(trained, tuple) else (trained,):  # a step, or a micro-step
            seen[given["epoch"]].append(rows_of(batch))

    def save(checkpoint):
        saved.append(checkpoint)
        if not state and len(saved) == saved_at:
            torch.save({"checkpoint": checkpoint}, file)
            raise Saved

    given |= {"BalancedBatchSampler": lambda *of, **how: BalancedBatchSampler(*of, **how, window=1),
              "DataLoader": DataLoader, "lengths": LENGTHS, "dataset": DATA, "collate": as_fields,
              "batch_size": BATCH, "epochs": EPOCHS, "checkpoint": state and state["checkpoint"], "train": train,
              "save": save}  # fmt: skip
    with contextlib.suppress(Saved):
        exec("\n".join(blocks(PAGE)[heading]), given)
    return seen


def plain(file, state):
    """With workers, which fetch ahead; any rank's state will do."""
    ranks = {"num_replicas": dist.get_world_size(), "rank": dist.get_rank()}
    return by_the_page("Sampler: resuming", file, state, saved_at=1, **ranks)


def dispatcher(file, state):
    """Batches of the sampler's behind an exchange, which deals them anew."""
    loader = DataLoader(DATA, batch_sampler=sampler(), collate_fn=as_fields, num_workers=0 if state else 1)
    steps = PrefetchDispatcher(loader, Dispatcher(length="ids"))
    if state:
        steps.load_state_dict(state)
    seen = [[] for _ in range(EPOCHS)]
    for epoch in range(EPOCHS):
        steps.set_epoch(epoch)
        for done, batch in enumerate(steps, 1):
            seen[epoch].append(rows_of(batch))
            if not state and done == SAVED_AT:
                torch.save(steps.state_dict(), file)
                return seen
    return seen


def dealt(file, state):
    """Rows that the loader deals itself."""
    rows = torch.utils.data.DistributedSampler(DATA)
    loader = StatefulDataLoader(DATA, BATCH, sampler=rows, collate_fn=as_fields, num_workers=1)
    steps = PrefetchDispatcher(loader, Dispatcher(length="ids"))
    if state:
        try:
            steps.load_state_dict(state)
        except ValueError as error:
            return str(error)
        workers = StatefulDataLoader(DATA, BATCH, sampler=rows, collate_fn=as_fields, num_workers=2)
        try:
            PrefetchDispatcher(workers, Dispatcher(length="ids")).load_state_dict(state)
        except ValueError as error:
            return str(error)
    running = iter(steps)
    next(running)
    torch.save(steps.state_dict(), file)
    running.close()
    return ""


def accelerate(file, state):
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=4)
    given = {"accelerator": accelerator, "model": torch.nn.Linear(1, 1)}
    return by_the_page("Sampler: Accelerate", file, state, saved_at=4, **given)  # behind an accumulation


def in_lightning(file, state):
    seen = [[] for _ in range(EPOCHS)]

    class Base(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(1))

        def training_step(self, batch, batch_idx):
            seen[self.current_epoch].append(rows_of(batch))
            return (self.weight * len(batch["row"])).sum()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 0.1)

    class Saves(lightning.Callback):
        def on_train_batch_end(self, trainer, *_):
            if not state and trainer.global_step == SAVED_AT:
                trainer.save_checkpoint(file)
                trainer.should_stop = True

    class Quiet:
        @staticmethod
        def Trainer(**given):  # noqa: N802
            quiet = {"logger": False, "enable_progress_bar": False, "enable_checkpointing": False,
                     "enable_model_summary": False, "callbacks": [Saves()]}  # fmt: skip
            return lightning.Trainer(
                **given, **quiet, accelerator="cpu", devices=dist.get_world_size(), strategy="ddp", min_epochs=0
            )

    given = {"BalancedBatchSampler": BalancedBatchSampler, "StatefulDataLoader": StatefulDataLoader, "lengths": LENGTHS,
             "dataset": DATA, "collate": as_fields, "batch_size": BATCH, "epochs": EPOCHS, "LightningModule": Base,
             "lightning": Quiet}  # fmt: skip
    exec("\n".join(blocks(PAGE)["Sampler: Lightning"]), given)
    given["trainer"].fit(given["Module"](), ckpt_path=file if state else None)
    return seen


def hugging_face(file, state, ranks):
    """The Trainer counts steps: the global batch is kept by accumulation, or the mixin refuses."""
    seen = [[] for _ in range(EPOCHS)]

    class Balanced(BalancedTrainerMixin, Trainer):
        sample_length = "length"
        balance = MappingProxyType({"cost": "padded", "window": 1})

    def collate(samples):
        found = huggingface_run.collate(samples)
        rows = torch.tensor([int(sample["row"]) for sample in samples])
        return found | {"rows": rows}

    class Model(LlamaForCausalLM):
        def forward(self, rows=None, **given):
            if self.training:
                seen[int(trainer.state.epoch or 0)].append(rows.tolist())
            return super().forward(**given)

    class Saves(TrainerCallback):
        def on_step_end(self, args, trainer_state, control, **_):
            if not state and trainer_state.global_step == SAVED_AT:
                control.should_save = control.should_training_stop = True

    data = datasets.Dataset.from_dict({"input_ids": [[1] * n for n in LENGTHS], "length": LENGTHS, "row": range(ROWS)})
    size = dist.get_world_size()
    wanted = 12 if state is None or ranks is None else ranks
    per_device, accumulation = (2, wanted // (2 * size)) if wanted % (2 * size) == 0 else (1, wanted // size)
    arguments = TrainingArguments(
        str(file), per_device_train_batch_size=per_device, gradient_accumulation_steps=accumulation, save_steps=1000,
        num_train_epochs=EPOCHS, learning_rate=0.01, report_to=[], use_cpu=True, disable_tqdm=True, seed=3,
        ddp_backend="gloo", remove_unused_columns=False, ddp_find_unused_parameters=False, logging_steps=1000,
    )  # fmt: skip
    trainer = Balanced(
        Model(LlamaConfig(**huggingface_run.TINY)), arguments, train_dataset=data, data_collator=collate,
        callbacks=[Saves()],
    )  # fmt: skip
    try:
        trainer.train(resume_from_checkpoint=f"{file}/checkpoint-{SAVED_AT}" if state else None)
    except ValueError as error:
        return str(error)
    return seen


def main(folder, mode, *saved_on):
    warnings.simplefilter("ignore")
    Accelerator(cpu=True)  # which makes the process group
    size, found = dist.get_world_size(), {}
    for ranks in map(int, saved_on or [size]):
        for run in (plain, dispatcher, dealt, accelerate, in_lightning, hugging_face):
            file = Path(folder) / f"{run.__name__}-{ranks}"
            resumes = mode == "load"
            if run is hugging_face:
                found[run.__name__, ranks] = run(file, resumes or None, 12)
                if resumes and ranks != size:
                    found[f"{run.__name__} refused", ranks] = run(file, True, 12 * 2)
                continue
            state = True if run is in_lightning and resumes else loaded(file if resumes else None)
            found[run.__name__, ranks] = run(file, state)
            dist.barrier()
    torch.save(found, f"{folder}/{mode}-{size}-{dist.get_rank()}.pt")


if __name__ == "__main__":
    main(*sys.argv[1:])
