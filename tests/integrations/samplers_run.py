"""Two ranks train a tiny model by Accelerate, by Lightning and by a plain loop, with batches of a sampler."""

import sys
import warnings

import numpy as np
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader

import balancer
from balancer.compat import BalancedBatchSampler
from balancer.executor import PlannedBatchSampler

LENGTHS = np.minimum(np.random.default_rng(0).lognormal(2, 1, 42).astype(int) + 2, 60)
EPOCHS = 2


class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return len(LENGTHS)

    def __getitem__(self, row):
        return row, torch.full((LENGTHS[row], 3), row + 1, dtype=torch.float64).cumsum(0).sin()


def collate(samples):
    return {"rows": torch.tensor([row for row, _ in samples]), "values": torch.cat([values for _, values in samples])}


def model():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1)).double()


def loss_of(net, batch, tokens):
    return (net(batch["values"]) ** 2).sum() * dist.get_world_size() / tokens


def tokens_of(batch):
    count = torch.tensor(len(batch["values"]))
    dist.all_reduce(count)
    return count


def weights_of(net):
    return torch.cat([weight.detach().flatten() for weight in net.parameters()])


def sampler(rank, **options):
    return BalancedBatchSampler(LENGTHS, 4, 2, rank, seed=5, **options)


def unbalanced():
    """One process, whole global batches: what all must come to."""
    net, made = model(), sampler(None)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for epoch in range(EPOCHS):
        for step in range(made.num_steps):
            batch = collate([Rows()[int(row)] for row in made._rows(step * made.samples_per_step, epoch)])
            optimizer.zero_grad()
            ((net(batch["values"]) ** 2).sum() / len(batch["values"])).backward()
            optimizer.step()
    return weights_of(net)


def accelerate():
    from accelerate import Accelerator, skip_first_batches
    from accelerate.utils import DataLoaderConfiguration

    accelerator = Accelerator(cpu=True)
    plan = balancer.balance(LENGTHS, 2)
    refused = []
    for made in sampler(accelerator.process_index), PlannedBatchSampler(plan, accelerator.process_index):
        try:
            accelerator.prepare(DataLoader(Rows(), batch_sampler=made, collate_fn=collate))
        except ValueError as error:
            refused.append(str(error))
    splits = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(split_batches=True))
    try:
        splits.prepare(DataLoader(Rows(), batch_sampler=sampler(None), collate_fn=collate))
    except ValueError as error:
        refused.append(str(error))
    dealt = accelerator.prepare(DataLoader(Rows(), batch_sampler=PlannedBatchSampler(plan, None), collate_fn=collate))
    planned = [batch["rows"].tolist() for batch in dealt] == [plan.samples_on_rank(accelerator.process_index).tolist()]
    loader = DataLoader(Rows(), batch_sampler=sampler(None), collate_fn=collate)
    net = model()
    net, optimizer, loader = accelerator.prepare(net, torch.optim.SGD(net.parameters(), 0.1), loader)
    seen = []
    for epoch in range(EPOCHS):
        loader.set_epoch(epoch)
        for batch in loader:
            seen.append(batch["rows"].tolist())
            optimizer.zero_grad()
            accelerator.backward(loss_of(net, batch, tokens_of(batch)))
            optimizer.step()
    loader.set_epoch(1)
    again = [batch["rows"].tolist() for batch in skip_first_batches(loader, 2)]
    return {"weights": weights_of(net), "seen": seen, "refused": refused, "resumed": again, "steps": len(loader),
            "planned": planned}  # fmt: skip


def lightning():
    import lightning

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net, self.seen = model(), []

        def training_step(self, batch, _):
            self.seen.append(batch["rows"].tolist())
            return loss_of(self.net, batch, tokens_of(batch))

        def configure_optimizers(self):
            return torch.optim.SGD(self.net.parameters(), 0.1)

        def train_dataloader(self):
            return DataLoader(Rows(), batch_sampler=sampler(self.trainer.global_rank), collate_fn=collate)

    module, refused = Module(), ""
    quiet = {
        "logger": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "enable_checkpointing": False,
    }
    shape = {"accelerator": "cpu", "devices": 2, "strategy": "ddp", "max_epochs": EPOCHS}
    try:
        lightning.Trainer(**shape, **quiet).fit(Module())
    except (ValueError, TypeError) as error:
        refused = str(error)
    lightning.Trainer(**shape, **quiet, use_distributed_sampler=False).fit(module)
    return {"weights": weights_of(module.net), "seen": module.seen, "refused": refused}


def plain():
    net = torch.nn.parallel.DistributedDataParallel(model())
    batches = sampler(dist.get_rank())
    loader = DataLoader(Rows(), batch_sampler=batches, collate_fn=collate, num_workers=2)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    seen = []
    for epoch in range(EPOCHS):
        batches.set_epoch(epoch)
        for batch in loader:
            seen.append(batch["rows"].tolist())
            optimizer.zero_grad()
            loss_of(net, batch, tokens_of(batch)).backward()
            optimizer.step()
    return {"weights": weights_of(net), "seen": seen}


def main(folder):
    warnings.simplefilter("ignore")
    found = {"accelerate": accelerate()}  # which makes the process group
    found |= {"plain": plain(), "lightning": lightning()}
    rank = dist.get_rank()
    made = sampler(rank)
    found["wanted"] = {"weights": unbalanced(), "seen": []}
    for epoch in range(EPOCHS):
        made.set_epoch(epoch)
        found["wanted"]["seen"].extend(made)
    torch.save(found, f"{folder}/rank{rank}.pt")


if __name__ == "__main__":
    main(sys.argv[1])
