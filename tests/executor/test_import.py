"""Without torch, the package works and the executor says what to install; neither needs the other's imports."""

import subprocess
import sys

import pytest


def said_by(code):
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_without_torch_the_executor_says_what_to_install_and_all_else_works():
    found = said_by("""
import sys
sys.modules["torch"] = None
try:
    import balancer.executor.dispatcher
except ImportError as error:
    print(error)
import balancer
from balancer.compat import verl
print(balancer.balance([3, 1, 2], 2).loads.tolist(), verl.get_seqlen_balanced_partitions([4, 1, 3], 2, False))
""")
    assert found == [
        'balancer.executor needs PyTorch, which is not installed; install it with: pip install "seqbalancer[torch]"',
        "[3, 3] [[0], [1, 2]]",
    ]


def test_import_balancer_loads_no_torch_and_import_of_the_executor_no_compiler():
    pytest.importorskip("torch")
    found = said_by("""
import sys
import balancer, balancer.compat.verl
print("torch" in sys.modules)
import torch, torch.utils.data, balancer.executor
print("torch._dynamo" in sys.modules)
""")
    assert found == ["False", "False"]
