"""What ranks do in the tests of plain PyTorch and of FSDP2: the page's blocks, recorded, killed and resumed."""

import os
import warnings
from pathlib import Path
from types import SimpleNamespace

import tiny
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from doc_blocks import block
from recorded import Recorded, sum_and_tokens
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler
from torchdata.stateful_dataloader import StatefulDataLoader

from balancer.executor import Dispatcher, PrefetchDispatcher

HALF = tiny.STEPS // 2
KINDS = {"torch": DataLoader, "stateful": StatefulDataLoader}


def trains_plain(rank, kind, workers, epochs, folder=None, dies_at=None):
    """Run the block for DDP; with a folder save in the middle, or resume from what lies there."""
    samples = tiny.samples_of(dist.get_world_size(), tiny.STEPS // epochs)
    model = DistributedDataParallel(tiny.Model())
    optimizer = tiny.optimizer_of(model)
    file = folder and Path(folder) / f"{rank}.pt"
    given = {"dp_group": None, "loader": tiny.loader_of(samples, workers, KINDS[kind]), "model": model,
             "optimizer": optimizer, "epochs": epochs, "checkpoint": {}}  # fmt: skip
    if file and dies_at is None:
        given["checkpoint"] = torch.load(file, weights_only=False)
        model.load_state_dict(given["checkpoint"]["model"])
        optimizer.load_state_dict(given["checkpoint"]["optimizer"])

    def save():
        held = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": given["epoch"]}
        torch.save({**held, "loader": given["steps"].state_dict()}, file)

    recorded = Recorded(model.module, optimizer, sum_and_tokens, HALF, save if dies_at else None, dies_at)
    exec(block("Plain PyTorch, DDP"), given)
    return recorded.losses, tiny.weights_of(model)


def runs_three_lines(rank):
    """Run the page's first block; the last step's loss is the mean over the tokens of its global batch."""
    loader = tiny.loader_of(tiny.samples_of(dist.get_world_size(), 2))
    bare = tiny.Model()
    model = DistributedDataParallel(bare)
    given = {"dp_group": None, "loader": loader, "model": model}
    exec(block("Three lines"), given)
    last = list(loader)[-1]
    total = torch.stack([bare(**last).detach(), torch.tensor(float(tiny.counted(last["labels"])))])
    dist.all_reduce(total)
    torch.testing.assert_close(given["loss"].detach(), total[0] / total[1])
    assert given["batch"].plan.imbalance_ratio < 1.2
    return [parameter.grad.tolist() for parameter in bare.parameters()]


def resumes_behind_accelerate(rank, at):
    """Resume a loader of Accelerate's that has a state, within an epoch and at its end."""
    from accelerate import Accelerator
    from accelerate.utils import DataLoaderConfiguration

    size = dist.get_world_size()
    torchrun = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size,
                "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": 0, "ACCELERATE_USE_CPU": True}  # fmt: skip
    os.environ |= {name: str(value) for name, value in torchrun.items()}  # without which Accelerate deals nothing out
    how = DataLoaderConfiguration(use_stateful_dataloader=True, use_seedable_sampler=True)
    samples = tiny.samples_of(dist.get_world_size(), 4)

    def steps():
        torch.manual_seed(1)
        loader = DataLoader(samples, tiny.MEAN, shuffle=True, collate_fn=tiny.as_fields)
        return PrefetchDispatcher(Accelerator(dataloader_config=how).prepare(loader), Dispatcher(length="input_ids"))

    def seen(batch):
        return [ids.tolist() for ids in batch["input_ids"]]

    whole, first = list(map(seen, steps())), steps()
    for _, _ in zip(range(at), first, strict=False):
        state = first.state_dict()
    again = steps()
    again.load_state_dict(state)
    assert state["loader"] is not None
    assert list(map(seen, again)) == whole[at:]


def runs_megatron(rank):
    """Run the block for ranks of which two after each other are tensor peers; return what each step gives."""
    size = dist.get_world_size()
    peers = [dist.new_group(list(range(place, size, 2))) for place in range(2)]
    replicas = [dist.new_group([first, first + 1]) for first in range(0, size, 2)]
    mpu = SimpleNamespace(
        get_data_parallel_group=lambda: peers[rank % 2], get_model_parallel_group=lambda: replicas[rank // 2]
    )
    given = {"mpu": mpu}
    exec(block("Megatron-style loops"), given)
    samples = tiny.samples_of(size // 2, 3)
    sampler = DistributedSampler(samples, size // 2, rank // 2, shuffle=False)
    batches = iter(DataLoader(samples, tiny.MEAN, sampler=sampler, collate_fn=tiny.as_fields))
    steps = [given["get_batch"](batches)["input_ids"] for _ in range(3)]
    return [[ids.tolist() for ids in step] for step in steps], [ids.tolist() for ids in samples.ids]


class SharingModel(tiny.Model):
    """The tiny model on pieces: what it needs of its group is only that all of a sample's tokens are there.

    Labels were shifted before; it returns how many it counts, too.
    """

    def __init__(self):
        super().__init__(shift=False)

    def forward(self, ids, labels, pieces, lengths, group):
        real = self.real(pieces, lengths)
        if group is not None:
            total = torch.tensor(int(real.sum()))
            dist.all_reduce(total, group=group)
            assert total == lengths.sum()
        return super().forward([ids[real]], [labels[real]]), tiny.counted([labels[real]], shift=False)

    @staticmethod
    def real(pieces, lengths):
        parts = zip(pieces.start, pieces.stop, lengths, strict=True)
        return torch.cat([torch.empty(0, dtype=torch.bool), *(torch.arange(a, b) < n for a, b, n in parts)])


def shares_long_samples(rank):
    """Run the block for samples that ranks share; return the run, and the degrees of all its groups."""
    samples = tiny.samples_of(dist.get_world_size())
    model, degrees = SharingModel(), []
    optimizer = tiny.optimizer_of(model)
    given = {"dp_group": None, "loader": tiny.loader_of(samples), "model": model, "optimizer": optimizer}
    recorded = Recorded(model, optimizer, lambda _, output: output)
    optimizer.register_step_post_hook(
        lambda *_: degrees.extend(given["dispatcher"].current.plan.group_table.degree.tolist())
    )
    exec(block("Long samples"), given)
    return (recorded.losses, tiny.weights_of(model)), degrees


def unbalanced(rank, epochs, shift=True):
    samples = tiny.samples_of(dist.get_world_size(), tiny.STEPS // epochs)
    return tiny.unbalanced(tiny.loader_of(samples), epochs, shift)


def deals_nothing_out(rank):
    """Run the block for DDP over a shuffled loader of which all ranks draw the same: every rank trains on all data."""
    samples = tiny.samples_of(dist.get_world_size())
    model = DistributedDataParallel(tiny.Model())
    torch.manual_seed(7)
    loader = DataLoader(samples, tiny.MEAN, shuffle=True, collate_fn=tiny.as_fields)
    given = {"dp_group": None, "loader": loader, "model": model, "optimizer": tiny.optimizer_of(model),
             "epochs": 1, "checkpoint": {}}  # fmt: skip
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        exec(block("Plain PyTorch, DDP"), given)
    return [text for each in told if "ranks drew" in (text := str(each.message))]


def few_at_the_end(rank):
    """Return a loader whose last step has a sample on rank 0 alone."""
    samples, whole = tiny.samples_of(dist.get_world_size()), tiny.MEAN * (tiny.STEPS - 1)
    mine = range(rank * whole, (rank + 1) * whole)
    return DataLoader(samples, tiny.MEAN, sampler=[*mine, *[len(samples) - 1] * (rank == 0)], collate_fn=tiny.as_fields)


def trains_fsdp(rank, folder=None, dies_at=None):
    """Run the block for FSDP2, of whose steps the last has fewer samples than ranks have micro-batches."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("dp",))
    model = tiny.Model()
    for layer in (model.hidden, model.head, model):
        fully_shard(layer, mesh=mesh)
    optimizer = tiny.optimizer_of(model)
    given = {"mesh": mesh, "loader": few_at_the_end(rank), "model": model, "optimizer": optimizer, "checkpoint": {}}
    state = {"loader": PrefetchDispatcher([], Dispatcher()).state_dict()}
    if folder and dies_at is None:
        state["model"], state["optimizer"] = get_state_dict(model, optimizer)
        dcp.load(state, checkpoint_id=folder)
        set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
        given["checkpoint"] = state

    def save():
        state["model"], state["optimizer"] = get_state_dict(model, optimizer)
        dcp.save({**state, "loader": given["steps"].state_dict()}, checkpoint_id=folder)

    slots = []
    recorded = Recorded(model, optimizer, sum_and_tokens, HALF, save if dies_at else None, dies_at)
    optimizer.register_step_post_hook(lambda *_: slots.append(given["dispatcher"].current.slot_bounds().tolist()))
    exec(block("FSDP2"), given)
    empty = any(start == stop for start, stop in zip(slots[-1], slots[-1][1:], strict=False))
    return (recorded.losses, tiny.weights_of(model)), [len(bounds) - 1 for bounds in slots], empty


def unbalanced_few(rank):
    return tiny.unbalanced(few_at_the_end(rank))
