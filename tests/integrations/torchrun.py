"""Trainers under torchrun: one script a trainer, started with what it is to do and a folder for what comes of it."""

import os
import subprocess
import sys
from pathlib import Path

import torch

HERE = Path(__file__).parent
PATH = [str(HERE), str(HERE.parent / "executor"), str(HERE.parents[1])]


def launch(script, mode, folder, ranks=2, killed=False):
    """Run a script on so many ranks, which may be to die in the end; return what each left."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    env = os.environ | {
        "PYTHONPATH": os.pathsep.join(PATH), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "HF_HUB_OFFLINE": "1",
        "ACCELERATE_USE_CPU": "true", "TOKENIZERS_PARALLELISM": "false",
    }  # fmt: skip
    command += [str(HERE / script), mode, str(folder)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode != 0) == killed, done.stderr[-6000:]
    if killed:
        assert "SIGKILL" in done.stderr, done.stderr[-6000:]
    return [torch.load(Path(folder) / f"{mode}.{rank}.pt", weights_only=False) for rank in range(ranks)]


def leave(result, mode, folder):
    """Leave what one rank has to say."""
    torch.save(result, Path(folder) / f"{mode}.{os.environ['RANK']}.pt")
