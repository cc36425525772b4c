"""What ranks do in tests on NCCL, one process a device."""

import os
import socket

import numpy as np
import torch
import torch.distributed as dist

from balancer.executor import Dispatcher, PrefetchDispatcher


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def on_nccl(rank, size, port, case):
    os.environ.pop("CUDA_DEVICE_MAX_CONNECTIONS", None)
    torch.cuda.set_device(rank)
    store = dist.TCPStore("127.0.0.1", port, size, rank == 0)
    dist.init_process_group("cpu:gloo,cuda:nccl", store=store, rank=rank, world_size=size)
    globals()[case](rank)
    dist.destroy_process_group()


def batch(rank, step=0):
    lengths = np.random.default_rng([rank, step]).integers(1, 500, 6).tolist()
    return {
        "ids": [torch.full((length,), 100 * rank + i) for i, length in enumerate(lengths)],
        "name": [f"{rank}.{i}" for i in range(6)],
    }


def round_trip(rank):
    data = batch(rank)
    out = Dispatcher(length="ids", device="cuda").dispatch(data)
    assert all(row.is_cuda for row in out["ids"])
    home = out.restore()
    assert home["name"] == data["name"]
    assert all(torch.equal(row.cpu(), wanted) for row, wanted in zip(home["ids"], data["ids"], strict=True))


def gradients(rank):
    phases = {"vision": "images", "llm": "tokens"}
    images = np.random.default_rng(rank).integers(1, 9, 4)
    out = Dispatcher(phases=phases, device="cuda").dispatch({"id": [0] * 4}, {"images": images, "tokens": images})
    vision = torch.randn(int(out.lengths("vision").sum()), 3, device="cuda", requires_grad=True)
    inputs = out.inputs("llm", {"vision": vision}).values
    (inputs**2).sum().backward()
    torch.testing.assert_close(vision.grad, 2 * vision.detach())


def prefetch(rank):
    loader = [batch(rank, step) for step in range(8)]
    names = []
    dispatcher = Dispatcher(length="ids", device="cuda")
    for out in PrefetchDispatcher(loader, dispatcher):
        torch.randn(2000, 2000, device="cuda") @ torch.randn(2000, 2000, device="cuda")
        assert dispatcher.current.restore()["name"] == loader[len(names)]["name"]
        names.append(out["name"])
    assert len(names) == 8
