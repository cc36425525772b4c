"""What ranks do in the tests of plain PyTorch and of FSDP2: the page's blocks, recorded, killed and resumed."""

from pathlib import Path

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
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

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


def unbalanced(rank, epochs):
    return tiny.unbalanced(tiny.loader_of(tiny.samples_of(dist.get_world_size(), tiny.STEPS // epochs)), epochs)


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
    state = {"loader": {"steps": 0, "ended": False, "loader": None}}
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
