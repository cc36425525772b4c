"""Imported once by the server from which ranks are forked."""

import contextlib
import gc
import os
import warnings

os.environ |= {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}  # read as packages are imported

import torch
import torch._dynamo
import torch.distributed

import balancer
import balancer.executor
import balancer.step_planner
from balancer.executor.exchange import compile_runs

with contextlib.suppress(ImportError), warnings.catch_warnings(action="ignore"):
    import accelerate  # noqa: F401
    import datasets  # noqa: F401
    import lightning  # noqa: F401
    from transformers import LlamaForCausalLM, Trainer  # noqa: F401

torch.set_num_threads(1)
balancer.warmup(["auto"])
compile_runs()
gc.freeze()  # or else each rank that collects garbage looks at, and copies, all that was imported
