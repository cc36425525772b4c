"""Scripts as torchrun runs them, by its own launcher: gloo over loopback, one thread each.

Ranks are forked from the server that has imported the trainers, which takes longer than what most scripts do.
"""

import faulthandler
import multiprocessing
import os
import runpy
import sys
import tempfile
import warnings
from pathlib import Path

import torch
from rank_processes import server
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, Std
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher import LaunchConfig, elastic_launch

PATIENCE_S = 600
HERE = Path(__file__).parent
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false",
    "ACCELERATE_USE_CPU": "true", "CUDA_VISIBLE_DEVICES": "", "WANDB_DISABLED": "1",
}  # fmt: skip


def launch(script, *arguments, ranks=2):
    """Run a script of this folder on `ranks` processes; return the code of the first that failed, 0 if none did.

    A rank that raises fails the test that calls this; one that was killed by signal `n` has the code `-n`.
    """
    with tempfile.TemporaryDirectory() as folder:
        logs = DefaultLogsSpecs(folder, Std.ALL)
        config = LaunchConfig(1, 1, ranks, logs, "tests", rdzv_endpoint="localhost:0", rdzv_backend="c10d",
                              max_restarts=0, start_method=server().get_start_method())  # fmt: skip
        code, said = 0, ""
        try:
            elastic_launch(config, _run)(str(HERE / script), list(map(str, arguments)))
        except ChildFailedError as error:
            code = next(iter(error.failures.values())).exitcode
            texts = [file.read_text(errors="replace")[-6000:] for file in Path(folder).rglob("stderr.log")]
            said = "\n".join([*texts, str(error)])
    assert code <= 0, said
    return code


def leave(result, mode, folder):
    """Leave what one rank has to say."""
    torch.save(result, Path(folder) / f"{mode}.{os.environ['RANK']}.pt")


def left(mode, folder, ranks=2):
    """Return what each rank left."""
    return [torch.load(Path(folder) / f"{mode}.{rank}.pt", weights_only=False) for rank in range(ranks)]


def _run(script, arguments):
    os.environ |= ENVIRONMENT
    torch.set_num_threads(1)
    multiprocessing.set_start_method("fork", force=True)  # for loaders' workers, as in a rank that is forked by nobody
    warnings.resetwarnings()  # trainers warn of much, and the tests' own process has warnings as errors
    faulthandler.dump_traceback_later(PATIENCE_S, exit=True)
    sys.argv = [script, *arguments]
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as ended:
        if ended.code:
            raise RuntimeError(f"{script} ended with {ended.code}") from None
