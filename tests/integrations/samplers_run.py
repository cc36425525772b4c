"""Two ranks train a tiny model by DDP, FSDP2, Accelerate and Lightning: accumulation of 4, two epochs, 42 rows."""

import sys
import warnings
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from doc_blocks import blocks
from torch.utils.data import DataLoader

import balancer
from balancer.compat import BalancedBatchSampler, PlannedBatchSampler

LENGTHS = np.minimum(np.random.default_rng(0).lognormal(2, 1, 42).astype(int) + 2, 60)
EPOCHS, EACH, SLOTS = 2, 2, 4
PAGE = Path(__file__).parents[2] / "docs" / "how_to" / "sampler.md"


class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return len(LENGTHS)

    def __getitem__(self, row):
        return row, torch.full((LENGTHS[row], 3), row + 1, dtype=torch.float64).cumsum(0).sin()


def collate(samples):
    return {"rows": torch.tensor([row for row, _ in samples]), "values": torch.cat([values for _, values in samples]),
            "labels": [torch.ones(len(values) + 1) for _, values in samples]}  # fmt: skip


def model():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1)).double()


def weights_of(net):
    found = (weight.full_tensor() if hasattr(weight, "full_tensor") else weight for weight in net.parameters())
    return torch.cat([weight.detach().flatten() for weight in found])


def sampler(rank, **options):
    return BalancedBatchSampler(LENGTHS, EACH, 2, rank, seed=5, gradient_accumulation_steps=SLOTS, **options)


KNOWN = {
    "BalancedBatchSampler": lambda *given, **options: BalancedBatchSampler(*given, **options, seed=5),
    "DataLoader": DataLoader, "lengths": LENGTHS, "dataset": Rows(), "collate": collate, "batch_size": EACH,
    "epochs": EPOCHS,
}  # fmt: skip
"""What blocks of the page read."""


def unbalanced(count):
    """One process, whole global batches: what all must come to; `count` says what a loss is divided by."""
    net, made = model(), sampler("all")
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for epoch in range(EPOCHS):
        for step in made.plan(epoch):
            rows = sorted(row for slot in step for batch in slot for row in batch)
            batch = collate([Rows()[row] for row in rows])
            optimizer.zero_grad()
            ((net(batch["values"]) ** 2).sum() / count(batch)).backward()
            optimizer.step()
    return weights_of(net)


def by_tokens(batch):
    return len(batch["values"])


def by_samples(batch):
    """A mean over samples is the same on any rank: counts are exact."""
    return len(batch["rows"])


class Summed(torch.nn.Module):
    """Given what the page's loop hands over, the sum of losses."""

    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, values, labels):
        return (self.net(values) ** 2).sum()


class Seen:
    """A loader that keeps the rows of what it yields, under the names that the page's loop reads."""

    def __init__(self, loader):
        self.loader, self.rows = loader, []

    def __iter__(self):
        for batch in self.loader:
            self.rows.append(batch["rows"].tolist())
            yield batch | {"input_ids": batch["values"]}


def by_the_page(net, sync):
    """The page's loop over an accumulation, in both epochs."""
    from balancer.executor import count_labels

    seen = []

    def loader(*given, **options):
        seen.append(Seen(DataLoader(*given, **options)))
        return seen[-1]

    def sampled(lengths, each, **options):
        made = sampler(dist.get_rank(), sync=sync)
        made.set_epoch(len(seen))
        return made

    given = {"BalancedBatchSampler": sampled, "DataLoader": loader, "lengths": LENGTHS, "batch_size": EACH,
             "dataset": Rows(), "collate": collate, "count_labels": count_labels, "dist": dist, "model": net,
             "nullcontext": nullcontext, "optimizer": torch.optim.SGD(net.parameters(), 0.1)}  # fmt: skip
    for _ in range(EPOCHS):
        exec("\n".join(blocks(PAGE)["Sampler: gradient accumulation"]), given)
    return {"weights": weights_of(net), "seen": [rows for each in seen for rows in each.rows]}


def ddp():
    return by_the_page(torch.nn.parallel.DistributedDataParallel(Summed(model())), "step")


def fsdp():
    from torch.distributed.fsdp import fully_shard

    net = Summed(model())
    for layer in (net.net[0], net.net[2], net):
        fully_shard(layer)
    net.no_sync = nullcontext  # every micro-step reduces its gradients
    return by_the_page(net, "micro_batch")


def accelerate():
    from accelerate import Accelerator
    from accelerate.utils import DataLoaderConfiguration

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=SLOTS)
    plan = balancer.balance(LENGTHS, 2)
    refused = []
    for made in sampler(accelerator.process_index), PlannedBatchSampler(plan, accelerator.process_index):
        try:
            accelerator.prepare(DataLoader(Rows(), batch_sampler=made, collate_fn=collate))
        except ValueError as error:
            refused.append(str(error))
    splits = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(split_batches=True))
    try:
        splits.prepare(DataLoader(Rows(), batch_sampler=sampler("all"), collate_fn=collate))
    except ValueError as error:
        refused.append(str(error))
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=SLOTS)
    dealt = accelerator.prepare(DataLoader(Rows(), batch_sampler=PlannedBatchSampler(plan, "all"), collate_fn=collate))
    planned = [batch["rows"].tolist() for batch in dealt] == [plan.samples_on_rank(accelerator.process_index).tolist()]
    net = model()
    net, optimizer = accelerator.prepare(net, torch.optim.SGD(net.parameters(), 0.1))
    seen = []

    def train(batch):
        seen.append(batch["rows"].tolist())
        accelerator.backward((net(batch["values"]) ** 2).sum() / by_samples(batch))
        optimizer.step()
        optimizer.zero_grad()

    given = {"accelerator": accelerator, "model": net, "checkpoint": None, "train": train, "save": repr}
    exec("\n".join(blocks(PAGE)["Sampler: Accelerate"]), KNOWN | given)
    return {"weights": weights_of(net), "seen": seen, "refused": refused, "planned": planned}


def in_lightning():
    import lightning
    from torchdata.stateful_dataloader import StatefulDataLoader

    class Base(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net, self.seen = model(), []

        def training_step(self, batch, _):
            self.seen.append(batch["rows"].tolist())
            return (self.net(batch["values"]) ** 2).sum() / by_samples(batch)

        def configure_optimizers(self):
            return torch.optim.SGD(self.net.parameters(), 0.1)

    class Quiet:
        @staticmethod
        def Trainer(**given):  # noqa: N802
            return lightning.Trainer(
                **given, accelerator="cpu", devices=2, strategy="ddp", accumulate_grad_batches=SLOTS, logger=False,
                enable_progress_bar=False, enable_model_summary=False, enable_checkpointing=False,
            )  # fmt: skip

    given = {"LightningModule": Base, "lightning": Quiet, "StatefulDataLoader": StatefulDataLoader}
    exec("\n".join(blocks(PAGE)["Sampler: Lightning"]), given := KNOWN | given)
    module, refused = given["Module"](), ""
    try:
        Quiet.Trainer(max_epochs=EPOCHS).fit(given["Module"]())
    except (ValueError, TypeError) as error:
        refused = str(error)
    given["trainer"].fit(module)
    return {"weights": weights_of(module.net), "seen": module.seen, "refused": refused}


def disagreement():
    """What is said on each rank of orders that differ, and of other settings."""
    rank, said = dist.get_rank(), []
    for other in ({"order": np.random.default_rng(rank).permutation(42)}, {"window": rank}, {"cost": LENGTHS + rank}):
        made = sampler(rank, **other)
        try:
            made.set_epoch(0)
        except ValueError as error:
            said.append(str(error))
    own = BalancedBatchSampler(LENGTHS, EACH)  # ranks and rank of the process group
    return [*said, f"{own.num_replicas} {own.rank}"]


def main(folder):
    warnings.simplefilter("ignore")
    found = {"accelerate": accelerate()}  # which makes the process group
    found |= {"ddp": ddp(), "fsdp": fsdp(), "lightning": in_lightning(), "said": disagreement()}
    for name, sync, count in (("step", "step", by_tokens), ("micro_batch", "micro_batch", by_tokens),
                              ("samples", "step", by_samples)):  # fmt: skip
        made = sampler(dist.get_rank(), sync=sync)
        found[name] = {"weights": unbalanced(count), "seen": [*made, *made]}
    torch.save(found, f"{folder}/rank{dist.get_rank()}.pt")


if __name__ == "__main__":
    main(sys.argv[1])
