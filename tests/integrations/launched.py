"""Scripts run as trainers run them: processes under torchrun, gloo over loopback, one thread each."""

import os
import subprocess
import sys
from pathlib import Path

import balancer

PATIENCE_S = 600
HERE = Path(__file__).parent


def torchrun(script, *arguments, ranks=2, fails=False):
    """Run a script of this folder on `ranks` processes; return what they wrote."""
    paths = [str(Path(balancer.__file__).parent.parent), str(HERE), os.environ.get("PYTHONPATH", "")]
    quiet = {
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "CUDA_VISIBLE_DEVICES": "",
        "WANDB_DISABLED": "1",
    }
    environment = os.environ | quiet | {
        "PYTHONPATH": os.pathsep.join(filter(None, paths)), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo",
    }  # fmt: skip
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    found = subprocess.run(
        [*launcher, str(HERE / script), *map(str, arguments)],
        env=environment, capture_output=True, text=True, timeout=PATIENCE_S,
    )  # fmt: skip
    said = found.stdout + found.stderr
    assert (found.returncode != 0) == fails, said[-6000:]
    return said
