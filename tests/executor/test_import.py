"""Without torch, the package works and the executor says what to install; neither needs the other's imports."""

import subprocess
import sys

import pytest

BLOCKED = "import sys; sys.modules['torch'] = None; "


def run(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("module", ["balancer.executor", "balancer.executor.dispatcher"])
def test_without_torch_the_executor_says_what_to_install(module):
    done = run(f"{BLOCKED}import {module}")
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert last == (
        "ImportError: balancer.executor needs PyTorch, which is not installed; "
        'install it with: pip install "seqbalancer[torch]"'
    )


def test_without_torch_all_else_works():
    code = (
        "import balancer; from balancer.compat import verl; "
        "print(balancer.balance([3, 1, 2], 2).loads.tolist(), verl.get_seqlen_balanced_partitions([4, 1, 3], 2, False))"
    )
    done = run(BLOCKED + code)
    assert done.stdout.split() == ["[3,", "3]", "[[0],", "[1,", "2]]"], done.stderr


def test_import_balancer_loads_no_torch():
    done = run("import balancer, balancer.compat.verl, sys; print('torch' in sys.modules)")
    assert done.stdout.strip() == "False", done.stderr


def test_import_of_the_executor_loads_no_compiler():
    pytest.importorskip("torch")
    done = run("import torch, torch.utils.data, balancer.executor, sys; print('torch._dynamo' in sys.modules)")
    assert done.stdout.strip() == "False", done.stderr
